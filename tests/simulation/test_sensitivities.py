"""Which layer bears which format: what is measured, and what stays untouched."""

import copy
import math
import re
from functools import cache

import numpy as np
import pytest
import torch
from networks import assert_bits, mlp, round_to
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP8_E8M0, FP16, FP32
from mplab.simulation import convert_linears, sensitivity, simulated
from mplab.simulation.policies import CUDA_AUTOCAST, EVERYTHING, POLICIES
from mplab.simulation.sensitivities import _Step

LOW = (FP16, BF16, FP8_E4M3, FP8_E5M2)
every_policy = pytest.mark.parametrize("policy", POLICIES.values())


def seeded(make, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def measured(model, batches, loss, formats=(FP16,), **options):
    return sensitivity(model, batches, loss, formats, progress=False, **options)


def squares(model, batch):
    return model(batch).square().mean()


def classified(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def inputs(*shape, count=1):
    return [seeded(lambda i=i: torch.randn(shape), 7 + i) for i in range(count)]


class Normed(nn.Module):
    """Batch statistics, dropout, attention, a lone parameter, and operations of its own."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.mixed = nn.TransformerEncoderLayer(8, 2, 16, 0.2, batch_first=True)
        self.place = nn.Parameter(torch.full((8,), 0.1))
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(8, 4)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x))).transpose(1, 2)
        h = self.mixed(h + self.place)
        return self.head(self.drop(F.linear(h, h[0]).softmax(-1) @ h[0]))


MODELS = {
    "mlp": lambda: (seeded(lambda: mlp(6, 5, 4)), inputs(3, 6, count=2)),
    "normed": lambda: (seeded(Normed), inputs(3, 4, 8, count=2)),
}
every_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


# The measures


@every_policy
@every_model
def test_where_nothing_is_low_all_numbers_are_those_of_plain_fp32_bit_for_bit(
    policy, make
):
    model, batches = make()
    found = measured(model, batches, squares, (), policy=policy)
    step = _Step(model, batches, squares, policy)
    step.low_layers()
    plain = copy.deepcopy(model)
    outputs = []
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for batch in batches:
            outputs.append(plain(batch))
            losses.append(outputs[-1].square().mean())
            losses[-1].backward()
    losses = [each.item() for each in losses]
    assert found.fp32[:4] == (math.fsum(losses) / len(losses), 0.0, 0.0, "")
    for a, b in zip(step.outputs, outputs, strict=True):
        assert_bits(a, b)
    for name, module in plain.named_modules():
        own = [p.grad for p in module.parameters(recurse=False)]
        for a, b in zip(
            step.gradients.get(name or type(plain).__name__, []), own, strict=True
        ):
            assert_bits(a, b)


def relative(found, exact):
    """The norm of a difference over that of `exact`, in float64."""
    found, exact = (
        np.concatenate([t.detach().double().numpy().ravel() for t in part])
        for part in (found, exact)
    )
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("fmt", LOW)
@pytest.mark.parametrize("low", [0, 1])
def test_a_layer_alone_gives_what_one_rounds_by_hand(fmt, low):
    """Sums of two products have one right answer, so the rounded pass can be written out."""
    weights = [seeded(lambda i=i: torch.randn(2, 2), i) for i in range(2)]
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in weights))
    with torch.no_grad():
        for layer, weight in zip(model, weights, strict=True):
            layer.weight.copy_(weight)
    (x,) = inputs(2, 2)

    def by_hand(*low):
        def into(t, i):
            return round_to(t, fmt) if i in low else t

        h = into(into(x, 0) @ into(weights[0], 0).t(), 0)
        y = into(into(h, 1) @ into(weights[1], 1).t(), 1)
        loss = y.square().mean()
        g = into(0.5 * y, 1)
        second = into(g.t() @ into(h, 1), 1)
        g = into(into(g @ into(weights[1], 1), 1), 0)
        return loss, y, into(g.t() @ into(x, 0), 0), second

    exact = by_hand()
    rounded = by_hand(low)
    found = measured(model, [x], squares, [fmt]).measures[str(low), fmt]
    errors = [relative([a], [b]) for a, b in zip(rounded[2:], exact[2:], strict=True)]
    assert found.loss == float(rounded[0])
    assert found.output_error == pytest.approx(
        relative([rounded[1]], [exact[1]]), rel=1e-12
    )
    assert found.gradient_error == pytest.approx(max(errors), rel=1e-12)
    assert found.worst == str(int(np.argmax(errors)))


def test_a_layer_is_a_module_with_operations_of_its_own_that_the_policy_runs_low():
    model, batches = MODELS["normed"]()
    some = measured(model, batches, squares, steps=1)
    every = measured(model, batches, squares, steps=1, policy=EVERYTHING)
    assert [layer for layer, _ in some.measures] == [
        "conv",
        "mixed.self_attn",
        "mixed.linear1",
        "mixed.linear2",
        "Normed",
        "head",
    ]
    assert {"norm", "mixed", "mixed.norm1", "drop"} <= {
        layer for layer, _ in every.measures
    }
    assert all(
        m.output_error > 0
        for (layer, _), m in every.measures.items()
        if layer != "drop"
    )


def test_what_works_in_place_keeps_the_format_of_the_layer_before_and_is_no_layer():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 4))
    found = measured(model, inputs(3, 6), squares, policy=EVERYTHING)
    assert [layer for layer, _ in found.measures] == ["0", "2"]


def test_outputs_that_are_infinite_in_fp32_too_are_no_error():
    class Masked(nn.Linear):
        def forward(self, x):
            return super().forward(x).index_fill(1, torch.tensor([0]), -math.inf)

    batches = [(x, torch.tensor([1, 2, 1])) for x in inputs(3, 6)]
    found = measured(seeded(lambda: Masked(6, 3)), batches, classified)
    assert 0 < found.measures["Masked", FP16].output_error < 1e-3


def test_layers_that_the_policy_puts_in_fp32_stay_there():
    model, batches = MODELS["mlp"]()
    policy = CUDA_AUTOCAST.with_layers({"2": FP32, "0": FP8_E4M3})
    found = measured(model, batches, squares, policy=policy)
    assert list(found.measures) == [("0", FP16)]
    assert (
        found.measures["0", FP16]
        == measured(model, batches, squares).measures["0", FP16]
    )


def test_the_measures_of_a_layer_are_its_alone_though_others_are_within_it():
    class Outer(nn.Linear):
        def __init__(self):
            super().__init__(2, 2, bias=False)
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(super().forward(x))

    model = nn.Sequential(seeded(Outer))
    with torch.no_grad():
        model[0].inner.weight.mul_(1e6)  # which FP16 does not hold
    found = measured(model, inputs(2, 2), squares).measures
    assert found["0", FP16].output_error < 1e-3
    assert found["0.inner", FP16].output_error == math.inf


def test_odd_names_of_modules_are_taken_as_they_are():
    model = nn.Sequential()
    for name in ("a[0]", "a0", "*", "b?"):
        model.add_module(name, seeded(lambda: nn.Linear(2, 2)))
    with torch.no_grad():
        model.get_submodule("a0").weight.mul_(1e6)
    found = measured(model, inputs(2, 2), squares).measures
    assert [layer for layer, _ in found] == ["a[0]", "a0", "*", "b?"]
    assert found["a[0]", FP16].output_error < 1e-3
    assert found["a0", FP16].output_error == math.inf


# What a weak layer is weak for


class Peak(nn.Module):
    """Goes up to 1e5 and down again, all within itself."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(1e5 * torch.eye(8))
        self.down = nn.Parameter(1e-5 * torch.eye(8))

    def forward(self, x):
        return F.linear(F.linear(x, self.up), self.down)


class Planted(nn.Module):
    """One layer whose activations leave FP16, and one whose gradients lie below 2^-24."""

    def __init__(self):
        super().__init__()
        self.stem, self.faint, self.head = (
            nn.Linear(8, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 4),
        )
        self.peak = Peak()

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        return self.head(self.peak(h) + 1e-8 * self.faint(h))


@cache
def planted(formats, scale=1.0):
    def loss(model, batch):
        return scale * classified(model, batch)

    batches = [(x, torch.arange(32) % 4) for x in inputs(32, 8, count=2)]
    return measured(seeded(Planted), batches, loss, formats)


def test_the_layer_that_overflows_is_found_and_so_is_the_one_whose_gradients_are_flushed():
    found = planted((FP16, BF16))
    fp16 = {layer: m for (layer, fmt), m in found.measures.items() if fmt is FP16}
    sound = [fp16["stem"], fp16["head"]]
    assert all(m.output_error < 1e-3 and m.gradient_error < 1e-3 for m in sound)
    assert not any(m.forward.overflow + m.backward.flushed for m in sound)
    peak = fp16["peak"]
    faint = fp16["faint"]
    assert math.isnan(peak.loss)
    assert peak.output_error == peak.gradient_error == math.inf
    assert peak.forward.overflow > 0
    assert faint.output_error == 0 and faint.loss == found.fp32.loss
    assert faint.gradient_error == 1 and faint.worst == "faint"
    assert faint.backward.flushed > 0 and not faint.forward.overflow
    for (_, fmt), m in found.measures.items():
        assert fmt is FP16 or max(m.output_error, m.gradient_error) < 2**-7


def test_a_loss_scale_cures_the_gradients_and_not_the_activations():
    found = planted((FP16,), 2.0**20)
    assert found.measures["faint", FP16].gradient_error < 1e-3
    assert found.measures["peak", FP16].output_error == math.inf


# What stays untouched


def state_of(model):
    tensors = [
        *model.parameters(),
        *model.buffers(),
        *(p.grad for p in model.parameters()),
    ]
    bits = [t.detach().numpy().tobytes() for t in tensors]
    versions = [t._version for t in tensors]
    return (
        bits,
        versions,
        [m.training for m in model.modules()],
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_its_gradients_and_random_numbers_stay_as_they_are(fails):
    model, batches = MODELS["normed"]()
    squares(model, batches[0]).backward()
    model.norm.eval()
    before = state_of(model)
    hooks = len(model._forward_hooks)
    calls = []

    def loss(model, batch):
        calls.append(batch.sum())
        if fails and len(calls) > 7:
            raise RuntimeError("as a loss may")
        batch.mul_(1)
        return squares(model, batch)

    if fails:
        with pytest.raises(RuntimeError, match="as a loss may"):
            measured(model, batches, loss)
    else:
        measured(model, batches, loss)
    assert len(calls) > 7
    assert state_of(model) == before
    assert len(model._forward_hooks) == hooks


def test_dropout_and_shuffled_batches_are_the_same_each_time():
    model = seeded(lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(6, 4)))
    rows = torch.cat(inputs(3, 6, count=2))
    shuffled = torch.utils.data.DataLoader(rows, batch_size=3, shuffle=True)
    first = measured(model, shuffled, squares)
    torch.rand(3)
    assert first == measured(model, shuffled, squares)
    assert first.fp32.output_error == first.fp32.gradient_error == 0


def test_a_loss_that_draws_other_numbers_each_time_shows_in_the_first_row():
    model, batches = MODELS["mlp"]()
    random = np.random.default_rng(1)

    def noisy(model, batch):
        return squares(model, batch + 0.1 * random.random())

    assert measured(model, batches, noisy).fp32.output_error > 1e-3


def test_a_loss_may_take_its_batch_apart():
    model, batches = MODELS["mlp"]()
    named = [{"x": batch} for batch in batches]
    found = measured(model, named, lambda model, batch: squares(model, batch.pop("x")))
    assert found.measures == measured(model, batches, squares).measures
    assert all("x" in batch for batch in named)


def test_only_as_many_batches_are_drawn_as_are_used():
    model, _ = MODELS["mlp"]()
    endless = (torch.full((2, 6), float(i)) for i in range(10**9))
    assert measured(model, endless, squares).batches == 4
    assert next(endless)[0, 0] == 4
    assert measured(model, endless, squares, steps=6).batches == 6
    assert next(endless)[0, 0] == 11


def test_a_model_that_is_not_called_as_a_whole_is_measured_by_its_loss():
    model, batches = MODELS["mlp"]()
    found = measured(
        model, batches, lambda model, x: model[2](model[0](x)).square().mean()
    )
    m = found.measures["0", FP16]
    assert 0 < m.output_error < 1e-3
    assert m.gradient_error > 0


# What is shown


def test_the_table_has_a_row_for_fp32_and_one_for_each_layer_and_format():
    found = planted((FP16, BF16))
    lines = repr(found).splitlines()
    assert lines[0] == "Planted under CUDA_AUTOCAST, one layer low, 2 batches"
    assert lines[2].split()[:5] == [
        "(none)",
        "FP32",
        f"{found.fp32.loss:.6g}",
        "0",
        "0",
    ]
    assert len(lines) == 3 + 8
    assert re.search(r"peak +FP16 +nan +inf +inf +\w+ +0\.\d+ overflow", repr(found))
    assert re.search(
        r"faint +FP16 +[\d.]+ +0 +1 +faint +– +0\.\d+ flushed", repr(found)
    )
    assert found._repr_html_().count("<tr>") == 1 + 9


# What is refused


def test_what_would_cost_a_run_or_compare_with_something_else_is_refused():
    model, batches = MODELS["mlp"]()
    right = {"model": model, "batches": batches, "loss": squares, "formats": [FP16]}
    past = torch.full((2, 6), math.inf)
    other = seeded(lambda: mlp(6, 5, 4))
    for words, odd in {
        "fmt must have signs and zero": {"formats": [FP16, FP8_E8M0]},
        "batches must hold at least one": {"batches": []},
        "loss must be finite .*got the loss": {"batches": [past]},
        "loss must .* finite gradients; got [02]": {
            "loss": lambda model, x: 3e38 * (model(x) - model(x).detach()).sum()
        },
        "got no gradient": {"loss": lambda model, x: squares(other, x)},
        # its baseline was called FP32, and its layers read eight bits
        "no layers of few bits, .* in 0, 2. Measure": {
            "model": convert_linears(mlp(6, 5, 4))
        },
    }.items():
        with pytest.raises(ValueError, match=f"^sensitivity: .*{words}"):
            sensitivity(**{**right, "progress": False, **odd})


def test_inside_another_simulation_nothing_is_measured():
    model, batches = MODELS["mlp"]()
    with (
        simulated(FP32),
        pytest.raises(RuntimeError, match="sensitivity: it must be called outside of"),
    ):
        measured(model, batches, squares, [FP16])
