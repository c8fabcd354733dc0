"""Where the first infinity comes from: the operation is named, and masks are not blamed."""

import math
from contextlib import nullcontext

import pytest
import torch
from networks import Within
from sick_runs import (
    half,
    looked_at,
    mlp,
    regression,
    seeded,
    trained,
    trained_by_closure,
    watched,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from mplab import BF16, FP16
from mplab.health import Health
from mplab.simulation import simulated


def spread(*, inplace):
    """An infinity is made in the second module, perhaps in place, and spread by later ones."""

    def bad(x):
        return x.mul_(0.0).reciprocal_() if inplace else (x * 0.0).reciprocal()

    return nn.Sequential(nn.Linear(4, 4), Within(bad), nn.ReLU(), nn.Linear(4, 4))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("trace", [True, False])
def test_the_first_operation_is_named_though_later_ones_spread_it(inplace, trace):
    model = spread(inplace=inplace)
    with Health(model) as health:
        for _ in range(0 if trace else 2):
            health.step(0.0)  # steps 0 and 1 are traced
        loss = model(torch.ones(1, 4)).sum()
        health.step(loss)
    (origin,) = health.report().steps[-1].origins
    operation = "reciprocal" + "_" * inplace if trace else ""
    assert origin[1:4] == ("forward", "1 (Within)", operation)
    assert origin.what == ("infinity" if trace else "infinity or NaN")


def test_after_trouble_the_next_step_names_the_operation_of_both():
    model = spread(inplace=True)
    with Health(model) as health:
        for number in range(4):
            health.step(model(torch.ones(1, 4)).sum() if number > 1 else 0.0)
    assert [s.origins[0].operation for s in health.steps[2:]] == ["reciprocal_"] * 2
    assert [s.origins[0].step for s in health.steps[2:]] == [2, 3]


def test_of_a_simulated_run_the_operation_whose_result_was_rounded_to_infinity_is_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight.fill_(6e4)
        model[0].weight.fill_(1.0)
    with Health(model) as health, simulated(FP16, model=model):
        loss = model(torch.full((1, 2), 9.0)).sum()
    health.step(loss)
    origin = health.steps[0].origins[0]
    assert origin[1:5] == ("forward", "1 (Linear)", "addmm", "infinity")
    assert origin.sizes.startswith("input ") and "output inf" in origin.sizes


def test_infinities_that_are_told_to_be_there_are_no_fault():
    def masked(x):
        x = x.masked_fill(x > 0, -torch.inf)
        x = torch.where(x < 0, x, torch.full_like(x, -torch.inf))
        return x.softmax(-1).nan_to_num()

    model = Within(masked)
    with Health(model) as health:
        health.step(model(torch.randn(3, 4)).sum())
    assert health.report().codes == []


class MaskThenOverflow(nn.Module):
    """Masks made in three ways, all harmless, and a layer that may overflow in FP16."""

    def __init__(self, weight):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer = nn.Linear(4, 4)
        with torch.no_grad():
            self.layer.weight.fill_(weight)

    def forward(self, x):
        seen = torch.ones(3, 3).tril()
        distances = torch.log(torch.arange(3.0)).clamp(min=0)  # log 0
        large = (1 - seen) * torch.finfo(torch.float32).min  # no FP16 number
        for mask in (seen.log(), large):
            options = {"attn_mask": mask, "need_weights": False}
            x = self.attention(x, x, x, **options)[0] + distances[:, None]
        mask = torch.zeros(3, 3).masked_fill(seen == 0, -torch.inf)
        x = F.scaled_dot_product_attention(x, x, x, mask, 0.01)
        return self.layer(x.abs() + 1).mean()


def in_half(simulate):
    return simulated(FP16) if simulate else half()


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize("weight", [1e5, -1e5, 6e4, 1.0])
def test_masks_are_not_blamed_for_an_overflow_after_them(simulate, weight):
    torch.manual_seed(0)
    model = MaskThenOverflow(weight)
    x = torch.randn(2, 3, 4)
    health = looked_at(model, lambda _: model(x), within=in_half(simulate))
    if weight == 1.0:
        assert math.isfinite(health.steps[0].loss) and health.report().codes == []
        return
    (origin,) = (o for o in health.steps[0].origins if o.phase == "forward")
    made = "_to_copy" if abs(weight) == 1e5 else "addmm"
    assert origin[2:4] == ("layer (Linear)", made)


def test_an_infinity_is_followed_through_the_casts_of_a_simulation_to_the_loss():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    for place in (1, 2):
        with torch.no_grad():
            model[place].weight.fill_(1e5)
        with Health(model) as health, simulated(FP16, model=model):
            # In the second step the copy of the weight is there already.
            for _ in range(2):
                health.step(model(torch.ones(2, 4)).tanh().softmax(-1).mean().detach())
        origins = [step.origins[0][2:5] for step in health.steps]
        assert origins == [(f"{place} (Linear)", "_to_copy", "infinity")] * 2
        with torch.no_grad():
            model[place].weight.fill_(0.1)


def test_memory_that_a_cast_has_not_filled_yet_is_not_looked_at(monkeypatch):
    empty = torch.empty_like
    monkeypatch.setattr(
        torch, "empty_like", lambda *args: empty(*args).fill_(torch.nan)
    )
    model = nn.Sequential(
        nn.Linear(4, 4), Within(lambda x: torch.empty_like(x).bernoulli_())
    )
    with Health(model) as health, simulated(FP16):
        health.step(model(torch.ones(2, 4)).mean().detach())
    assert health.steps[0].origins == []


def test_the_logarithms_of_zero_within_a_loss_are_no_fault():
    model = nn.LogSoftmax(-1)
    x = torch.randn(6, 1, 3, requires_grad=True)
    target = torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2])
    health = looked_at(model, lambda _: F.ctc_loss(model(x), *target))
    assert health.steps[0].origins == []


@pytest.mark.parametrize("trace_every", [1, 50])
@pytest.mark.parametrize("hides", [False, True])
def test_a_mask_that_a_module_returns_is_no_fault_and_a_hidden_infinity_is(
    trace_every, hides
):
    model = seeded(mlp)
    model.insert(1, Within(lambda x: x + 1 / (3e38 * (x.abs() + 2)) if hides else x))
    model.append(Within(lambda x: x.masked_fill(torch.arange(4) == 3, -torch.inf)))
    model.append(nn.LogSoftmax(-1))
    x, _ = regression()
    health = watched(model, trace_every=trace_every)
    found = trained(health, lambda _: F.nll_loss(model(x), torch.arange(64) % 3), 6)
    assert found.codes == ["hidden-infinity"] * hides


@pytest.mark.parametrize("learns", [True, False])
def test_a_mask_that_is_the_logarithm_of_zeros_and_ones_is_no_fault(learns):
    """Without gradients, as in an evaluation, it was said to be a hidden infinity."""
    model = nn.Sequential(
        nn.Linear(8, 8), Within(lambda x: x + x.new_ones(8, 8).tril().log())
    )
    x, _ = regression(8)
    with Health(model) as health, torch.set_grad_enabled(learns):
        health.step(model(x).softmax(-1).sum())
    assert "hidden-infinity" not in health.report().codes


def test_a_row_that_is_masked_everywhere_makes_its_nan_where_the_softmax_is():
    model = nn.Softmax(-1)
    with Health(model) as health:
        masked = torch.ones(3, 3, requires_grad=True) + torch.full((3, 3), -torch.inf)
        health.step(model(masked).sum().detach())
    assert health.steps[0].origins[0][2:5] == ("Softmax", "_softmax", "NaN")


def test_modules_that_return_several_tensors_or_take_integers_are_watched():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LSTM(4, 3))

    def loss_of(_):
        out, (h, c) = model(torch.tensor([[1, 2]]))
        return out.sum() + h.sum() + c.sum()

    health = looked_at(model, loss_of)
    (step,) = health.steps
    assert (set(step.gradients), step.origins) == ({"0 (Embedding)", "1 (LSTM)"}, [])


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients_are_watched(make):
    model = nn.Embedding(5, 4, sparse=True)
    health = watched(model, optimizer=make)
    report = trained(health, lambda _: model(torch.tensor([1, 2])).sum(), 1)
    assert report.steps[0].gradient_norm == pytest.approx(8**0.5)
    assert report.codes == []


def test_an_optimizer_that_asks_for_the_loss_again_is_watched():
    model = nn.Linear(2, 1)
    health = Health(model, torch.optim.LBFGS(model.parameters(), max_iter=3))
    # It converges on the way, and then stays, whatever gradient is left.
    report = trained_by_closure(
        health, lambda: model(torch.ones(4, 2)).square().mean(), 6
    )
    assert report.codes == []


def test_weights_that_nothing_trains_are_named_where_the_optimizer_calls_the_loop():
    """As Lightning steps; they were passed over, because L-BFGS converges within its step."""
    model = seeded(mlp)
    report = trained_by_closure(
        watched(model), lambda: model(torch.zeros(2, 8)).square().mean(), 4
    )
    (found,) = report.findings
    assert found.code == "zero-gradients" and "0.weight" in found.observed


def test_a_step_in_fp32_after_one_in_mixed_precision_uses_no_stale_copies():
    model = seeded(mlp)
    x, y = regression()

    def loss_of(step):
        with half(torch.bfloat16) if step == 0 else nullcontext():
            out = model(x)
        return F.mse_loss(out.float(), y)

    assert trained(watched(model), loss_of, 2).codes == []


@pytest.mark.parametrize("option", ["every", "trace_every"])
def test_an_interval_of_no_steps_is_refused_before_the_run(option):
    with pytest.raises(
        ValueError, match=f"Health: {option} must be an integer, at least 1; got 0"
    ):
        Health(nn.Linear(1, 1), **{option: 0})


# What looks like a fault and is none -------------------------------------------------------


def test_whole_numbers_of_a_scaled_gradient_are_no_positions():
    """A squared error to whole targets has whole gradients at a large scale."""
    model = seeded(lambda: nn.Linear(8, 1))
    health = watched(model, lr=1e-3, scaler=torch.amp.GradScaler("cpu", 2.0**16))

    def loss_of(_):
        with half():
            out = model(torch.ones(4, 8))
        return F.mse_loss(out.float(), torch.ones(4, 1))

    report = trained(health, loss_of, 6)
    assert report.codes == [] and report.evidence.integers is None


@pytest.mark.parametrize(("numbers", "level"), [
    (torch.arange(8000.0, 8064.0), "problem"),
    (torch.tensor([257.0, 1000.0, 5000.0]), "note"),  # they stay apart
])  # fmt: skip
def test_whole_numbers_that_coincide_after_a_cast_are_told_from_those_that_stay_apart(
    numbers, level
):
    model = seeded(lambda: nn.Linear(1, 1))
    health = looked_at(
        model,
        lambda _: model(numbers[:, None]).float().square().mean(),
        within=half(torch.bfloat16),
    )
    (found,) = [f for f in health.report().findings if f.code == "rounded-integers"]
    assert found.level == level
    left = len(numbers.bfloat16().unique())
    assert f"of {len(numbers)} different ones {left} were left" in found.observed


class MasksAdded(nn.Module):
    """Attention whose causal and padding masks of the least number are added."""

    def __init__(self, whole_row):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.whole_row = whole_row

    def forward(self, x):
        scores = self.query(x) @ x.transpose(1, 2)
        least = torch.finfo(scores.dtype).min
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        padding = torch.zeros(6, 6, dtype=torch.bool)
        padding[:, 4:] = True
        if self.whole_row:
            padding[0] = True
        zeros = torch.zeros_like(scores)
        mask = zeros.masked_fill(later, least) + zeros.masked_fill(padding, least)
        if self.whole_row:
            mask = mask + zeros.masked_fill(padding, least)
        return (scores + mask).softmax(-1) @ x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("whole_row", [False, True])
def test_masks_that_are_added_past_the_least_number_are_named_only_if_a_nan_follows(
    dtype, whole_row
):
    model = seeded(lambda: MasksAdded(whole_row))
    x = torch.randn(4, 6, 8)
    health = looked_at(
        model, lambda _: model(x).float().square().mean(), within=half(dtype)
    )
    if whole_row:
        assert health.report().codes == ["overflow-forward"]
        assert health.steps[0].origins[0].operation == "add"
    else:
        assert health.report().findings == []


def test_uninitialised_memory_that_is_written_in_parts_is_not_read():
    """As attention puts its keys together: `k[:, :4] = a; k[:, 4:] = b`."""

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x):
            part = self.layer(x)
            whole = torch.full((len(x), 8), math.nan, dtype=part.dtype)
            whole[:, :4] = part
            whole[:, 4:] = part
            return whole.sum()

    model = seeded(Parts)
    x = torch.randn(4, 8)
    health = looked_at(model, lambda _: model(x).float(), within=half(torch.bfloat16))
    assert health.report().codes == []


@pytest.mark.parametrize("kind", ["meta", "fake", "vmap", "sparse"])
def test_a_pass_whose_numbers_cannot_be_read_is_passed_over(kind):
    """Keras and summaries of models run a model on shapes alone."""
    model = seeded(mlp)
    x, y = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Health(model, optimizer) as health:
        for step in range(4):
            if step == 1 and kind == "meta":
                shapes = {n: p.detach().to("meta") for n, p in model.named_parameters()}
                torch.func.functional_call(
                    model, shapes, (torch.empty(2, 8, device="meta"),)
                )
            elif step == 1 and kind == "fake":
                with FakeTensorMode(allow_non_fake_inputs=True):
                    model(torch.empty(2, 8))
            elif step == 1 and kind == "vmap":
                torch.func.vmap(model)(x)
            elif step == 1:
                model[0](x.to_sparse())
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            health.step(loss)
    assert not health.seen.error
    assert health.report().findings == []


class Narrow(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e4m3fn)


def test_results_of_eight_bits_are_measured():
    """Torch compares, counts and orders no numbers of eight bits."""
    with Health(Narrow()) as health:
        health.model(torch.tensor([3.0, 0.0]))
        health.step(0.0)
    assert not health.seen.error
    (found,) = health.steps[0].outputs.values()
    assert (found.fmt, found.largest, found.total, found.zeros) == ("FP8_E4M3", 3, 2, 1)


# What rounding does to numbers of which each digit counts -----------------------------------


@pytest.mark.parametrize("widened", [False, True])
@pytest.mark.parametrize(
    ("largest", "level"), [(100.0, None), (250.0, "watch"), (2000.0, "problem")]
)
def test_angles_that_bf16_rounds_are_weighed_by_half_a_unit_of_the_largest(
    largest, level, widened
):
    model = seeded(lambda: nn.Linear(2, 1))
    angles = torch.linspace(0.3, largest, 64)

    def loss_of(_):
        low = angles.bfloat16()
        low = low.float() if widened else low
        return model(torch.stack([low.cos(), low.sin()], -1).float()).square().mean()

    health = looked_at(model, loss_of)
    found = [f.level for f in health.report().findings if f.code == "rounded-angles"]
    assert found == ([level] if level else [])


@pytest.mark.slow
@pytest.mark.parametrize("simulate", [False, True])
def test_a_sum_that_stops_growing_in_bf16_is_told_from_one_in_fp32(simulate):
    """After 256 additions of 1 it stays 256: of 320 that is 20 % less."""
    for dtype, codes in ((torch.float32, []), (torch.bfloat16, ["low-precision-sum"])):
        total = torch.zeros(4).to(dtype)
        rows = torch.zeros(2, 4).to(dtype)
        with Health(nn.Linear(1, 1)) as health:
            with simulated(BF16) if simulate else nullcontext():
                for _ in range(320):
                    total += torch.ones(4).to(dtype)
                    for row in rows:  # parts of one memory are sums of their own
                        row.add_(torch.ones(4).to(dtype) / 320)
            health.step(1.0)
        assert health.report().codes == codes
    assert health.report().findings[0].level == "problem"
    assert "was off by 20.0%" in health.report().findings[0].observed
    assert "After 320 additions" in health.report().findings[0].observed


def test_a_copy_of_a_weight_in_fp8_that_is_made_once_and_kept_is_named():
    class Kept(nn.Module):
        copy = None

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(0.2 * torch.randn(4, 8))

        def forward(self, x):
            if self.copy is None or not self.training:
                self.copy = self.weight.detach().to(torch.float8_e4m3fn).float()
            return F.linear(x, self.copy + (self.weight - self.weight.detach()))

    x, y = regression()
    for keeps, codes in ((True, ["stale-casts"]), (False, [])):
        model = seeded(lambda: nn.Sequential(Kept(), nn.Tanh(), nn.Linear(4, 4)))
        model[0].train(keeps)
        run = watched(model)
        report = trained(run, lambda step, m=model: F.mse_loss(m(x), y), 3)
        assert report.codes == codes


class Scores(nn.Module):
    """Attention by hand, whose scores are large."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.project(x)
        self.scores = x @ x.transpose(1, 2)
        return self.norm((self.scores.float().softmax(-1).to(x.dtype) @ x).float())


@pytest.mark.parametrize("simulate", [False, True])
def test_a_product_in_a_forward_has_headroom_and_fp32_beside_it_is_judged_by_itself(
    simulate,
):
    model = seeded(Scores)
    x = 10 * torch.randn(2, 4, 8)
    health = looked_at(
        model, lambda _: model(x).square().mean(), 2, within=in_half(simulate)
    )
    outputs = health.steps[-1].outputs
    found = outputs["Scores bmm"]
    assert (found.fmt, found.what_if) == ("FP16", False)
    assert found.largest == model.scores.abs().max()
    assert found.headroom < outputs["project (Linear)"].headroom
    assert outputs["norm (LayerNorm)"][:2] == ("FP32", False)
    assert health.report().layers().rows[0][0] == "Scores bmm"
    rows = {row[0]: row for row in health.report().layers().rows}
    assert rows["norm (LayerNorm)"][1] == "FP32"


@pytest.mark.parametrize("kept", [False, True])
def test_masks_of_two_modules_and_masks_that_are_kept_are_meant(kept):
    class Masked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.mask = None

        def forward(self, x):
            if self.mask is None or not kept:
                self.mask = torch.ones(4, 4).tril().log()
            return self.inner(x) + self.mask

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Masked(), Masked()

        def forward(self, x):
            return self.second(self.first(x).softmax(-1)).softmax(-1)

    torch.manual_seed(0)
    model = Outer()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    with Health(model, sgd) as health:
        for _ in range(3):
            sgd.zero_grad()
            loss = model(torch.randn(4, 4)).square().sum()
            loss.backward()
            sgd.step()
            health.step(loss)
    assert not health.report().codes
