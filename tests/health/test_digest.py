"""Where two runs part: digests that only look, and the comparison that names the place."""

import copy
import json
import math
import pickle
import subprocess
import sys
from fractions import Fraction
from functools import partial
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from networks import Within
from sick_runs import Changed, mlp, regression, seeded
from torch import nn
from torch.nn import functional as F

from mplab import FP16
from mplab.course.pictures.monitoring import parting
from mplab.health import Digest, compare, digest as digest_module
from mplab.health.digest import (
    _CHUNK,
    _FACTOR,
    _WEIGHTS,
    SAMPLED,
    _elsewhere,
    numbers_of,
)
from mplab.simulation import simulated

STEPS = 4


def network():
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 4),
    )


def run(change=None, *, make=network, steps=STEPS, seed=5, rate=0.05, **options):
    """A digest of a small run; `change` gets the model, the batches and the number of a step."""
    model = seeded(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    batches = list(zip(*(t.split(16) for t in regression()), strict=True))
    torch.manual_seed(seed)
    with Digest(model, optimizer, **options) as digest:
        for n in range(steps):
            if change is not None:
                change(model, batches, n)
            x, y = batches[n % len(batches)]
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
    assert digest.record.error == ""
    return digest


def place(comparison):
    """Step, direction, layer and what of the parting."""
    first = comparison.first
    return first.step, first.site.direction, first.site.layer, first.site.what


def at(step, change):
    """A change before a step."""
    return lambda model, batches, n: change(model, batches) if n == step else None


def one_ulp(name, index=3):
    """One weight gets the next code."""

    def change(model, batches):
        bits = model.get_parameter(name).detach().view(-1).view(torch.int32)
        bits[index] += 1

    return change


# Only looking: what optimizers and wrappers do is in test_bits.py ---------------------------
CONTEXTS = [partial(simulated, FP16), partial(torch.autocast, "cpu", torch.bfloat16)]


@pytest.mark.parametrize("context", CONTEXTS, ids=["simulation", "autocast"])
def test_under_a_simulation_and_autocast_a_run_keeps_its_bits_and_has_digests(context):
    def trained(watch):
        x, y = regression()
        model, optimizer = made()
        torch.manual_seed(5)
        with watch(model, optimizer) as digest:
            for _ in range(2):
                optimizer.zero_grad()
                with context():
                    F.mse_loss(model(x).float(), y).backward()
                optimizer.step()
        return list(model.parameters()), digest

    weights, _ = trained(MagicMock())
    seen, digest = trained(Digest)
    assert all(map(torch.equal, weights, seen))
    found = compare(digest, trained(Digest)[1])
    assert found.equal and found.compared > 70


def test_an_error_of_the_digest_ends_it_and_not_the_run_and_is_told(monkeypatch):
    right = run()

    def broken(t):
        raise ZeroDivisionError("of the digest")

    monkeypatch.setattr("mplab.health.digest.numbers_of", broken)
    model = seeded(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Digest(model, optimizer) as digest:
        model(regression()[0]).sum().backward()
        optimizer.step()
    found = compare(right, digest)
    assert not found.equal
    assert (
        "watch of run_b met an error of its own and stopped: ZeroDivisionError"
        in repr(found)
    )


def test_copies_of_a_watched_model_have_no_digests_and_can_be_stored():
    model = seeded(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Digest(model, optimizer) as digest:
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            twin(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert {s.direction for s in digest.record.sites} == {"start", "update"}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_evaluations_between_steps_are_not_seen():
    def evaluate(model, batches, n):
        model.eval()
        with torch.no_grad():
            model(batches[0][0])
        model.train()

    assert compare(run(), run(evaluate)).equal


def test_a_step_that_a_loss_scaler_skips_belongs_to_the_next():
    model = seeded(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    x, y = regression()
    with Digest(model, optimizer) as digest:
        for size in (1e10, 1.0, 1.0):  # the first overflows
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(model(x), size * y)).backward()
            scaler.step(optimizer)
            scaler.update(2.0**10)
    assert list(digest.record.steps) == [0, 1]
    calls = [
        s.call for s in digest.record.sites if s.place[:3] == ("forward", "0", "output")
    ]
    assert calls == [0, 1]


# Where they part ---------------------------------------------------------------------------
@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("layer", ["0", "4", "6"])
def test_one_ulp_of_one_weight_is_found_in_its_step_and_layer(layer, step):
    name = f"{layer}.bias"  # which reaches every row
    found = compare(run(rate=0.0), run(at(step, one_ulp(name)), rate=0.0))
    assert place(found) == (step, "forward", layer, "output")
    assert found.first.ulps >= 1
    assert place(compare(run(), run(at(step, one_ulp(name))))) == place(found)


def test_one_ulp_in_an_update_is_one_ulp_there():
    """A weight that the forward pass does not see: its input is 0 in every row."""

    def blind(model, batches, n):
        for x, _ in batches:
            x[:, 5] = 0

    def change(model, batches, n):
        blind(model, batches, n)
        if n == 2:
            one_ulp("0.weight", 5)(model, batches)

    found = compare(run(blind), run(change))
    assert place(found) == (2, "update", "0", "weight")
    assert (found.first.ulps, found.first.moved) == (1, 0)  # seen in the sum alone
    assert "1 ulp in the sum over 128 numbers" in found.first.apart
    assert len(found.differences) == STEPS - 2  # nothing else ever differs


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_first_weights_are_compared_too_by_their_units(count):
    def start(index):
        def make():
            model = network()
            model[4].weight.detach().view(-1).view(torch.int32)[index] += count
            return model

        return make

    found = compare(run(make=start(0)), run(make=network))
    assert place(found) == (0, "start", "4", "weight")
    assert (found.first.ulps, found.first.moved) == (count, 1)
    found = compare(run(make=start(100)), run(make=network))  # not among those sampled
    assert (found.first.ulps, found.first.moved) == (count, 0)


@pytest.mark.parametrize("seed", range(2))
def test_rows_of_ones_and_zeros_that_change_places_are_seen(seed):
    """Their sums of bits are equal, and most of their bits are zeros."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 2, (60, 8), generator=g)
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int64,
    ):
        rows = x.to(dtype)
        for i in range(59):
            other = rows.clone()
            other[[i, i + 1]] = rows[[i + 1, i]]
            one = numbers_of(rows).tolist()
            two = numbers_of(other).tolist()
            assert one[0] == two[0]
            assert (one[1] == two[1]) == torch.equal(rows, other)


class Twice(nn.Module):
    """A layer that runs twice, with something between that is no module."""

    def __init__(self, factor):
        super().__init__()
        self.z, self.a, self.factor = nn.Linear(8, 8), nn.Linear(8, 4), factor

    def forward(self, x):
        return self.a(self.z(self.z(x).tanh() * self.factor))


def within(middle):
    return nn.Sequential(
        nn.Linear(8, 8), nn.Linear(8, 8), Within(middle), nn.Linear(8, 4)
    )


def one_ulp_off(gradient):
    gradient = gradient.clone()
    gradient.view(-1).view(torch.int32)[0] += 1
    return gradient


def flipped(model, batches):
    batches[3] = tuple(t.flip(0) for t in batches[3])


def other_statistics(model, batches):
    model[1].momentum = 0.2


def clipped(model, batches):
    def clip(p):
        p.grad.clamp_(-1e-3, 1e-3)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(clip)


PARTINGS = {
    "another order of the data": (
        {},
        {"change": at(3, flipped)},
        "The runs part in step 3, forward: the input of the model (Sequential).",
        'step 2, update: "bias" of 6 (Linear) after the update',
    ),
    "statistics of a batch norm, which no output shows": (
        {},
        {"change": at(1, other_statistics)},
        'The runs part in step 1, forward: "running_mean" of 1 (BatchNorm1d).',
        "step 1, forward: the output of 0 (Linear)",
    ),
    "another seed of the dropout": (
        {},
        {"seed": 6},
        "The runs part in step 0, forward: the output of 3 (Dropout).",
        "step 0, forward: the output of 2 (ReLU)",
    ),
    "a factor between two modules, though z stands after a": (
        {"make": partial(Twice, 1.0)},
        {"make": partial(Twice, 1 + 2.0**-23)},
        "The runs part in step 0, forward: the input of z (Linear), call 2.",
        "step 0, forward: the output of z (Linear)",
    ),
    "a gradient, one ulp off": (
        {"make": partial(within, torch.clone)},
        {"make": partial(within, lambda x: Changed.apply(x, one_ulp_off))},
        "The runs part in step 0, backward: the gradient with respect to the output of 1 "
        "(Linear).",
        "step 0, backward: the gradient with respect to the output of 2 (Within)",
    ),
    "clipping, which acts between gradients and weights": (
        {},
        {"change": at(2, clipped)},
        'The runs part in step 2, update: "weight" of 0 (Linear) after the update.',
        'step 2, backward: the gradient with respect to "weight" of 0 (Linear)',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTINGS)
def test_what_differs_first_is_named_and_what_was_equal_before(name):
    one, other, verdict, before = PARTINGS[name]
    found = compare(run(**one), run(**other))
    assert found.verdict == verdict
    assert found.before == before


# By how many ulps --------------------------------------------------------------------------
def pair(a, b, dtype=torch.float32):
    """A comparison of two runs whose weights begin with these bits."""
    digests = []
    for values in (a, b):
        model = nn.Linear(len(values), 1, bias=False).to(dtype)
        with torch.no_grad():
            model.weight.copy_(torch.as_tensor(values, dtype=dtype))
        with Digest(model, torch.optim.SGD(model.parameters(), lr=0.0)) as digest:
            digest.optimizer.step()
        digests.append(digest)
    return compare(*digests)


NAN = float("nan")


def test_a_nan_is_equal_to_a_nan_and_minus_zero_is_no_zero():
    assert pair([NAN, 1.0], [NAN, 1.0]).equal
    assert pair([0.0], [-0.0]).first.ulps == 1
    assert pair([0.0] * 40, [-0.0] * 40).first.moved == SAMPLED
    other = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert math.isnan(pair([NAN], other).first.ulps)
    for bad in (math.inf, -math.inf):
        found = pair([bad, 1.0], [NAN, 2.0]).first
        assert found.apart == "numbers that are not finite, of other bits"

    for bad in (NAN, math.inf):
        assert pair([bad, 1.0], [1.0, 1.0]).first.ulps == math.inf
        assert "not finite" in pair([bad, 1.0], [1.0, 1.0]).first.apart


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_units_are_those_of_the_exact_difference(dtype):
    """Between neighbours in one binade, the difference in ulps is that of the numbers."""
    g = np.random.default_rng(0)
    wide = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}[
        dtype
    ]
    for _ in range(50):
        codes = g.integers(0, 1 << min(wide, 20), 2)
        one, two = (1 + Fraction(int(c), 1 << wide) for c in codes)
        for sign in (1, -1):
            found = pair([float(sign * one)], [float(sign * two)], dtype)
            exact = abs(one - two) * (1 << wide)
            assert (found.first.ulps if found.first else 0) == exact


def test_signs_and_places_of_numbers_not_sampled_are_no_ulps(tmp_path):
    ones = np.linspace(1.0, 2.0, 100)
    for other in ([1, 3, 2], [1, 2, -3]):
        changed = ones.copy()
        changed[:3] = np.sign(other) * ones[np.abs(other) - 1]
        found = pair(ones, changed)
        assert found.first.apart == (
            "0 ulp in the sum over 100 numbers, as where places or signs change; those sampled "
            "are equal"
        )
        parting(found).save(tmp_path / "p.png")


def test_signs_and_binades_are_crossed_by_counting_the_numbers_between():
    tiny = float(torch.finfo(torch.float32).smallest_normal) * 2.0**-23
    assert pair([tiny], [-tiny]).first.ulps == 3  # -0 and +0 lie between
    below = float(np.nextafter(np.float32(1), np.float32(0)))
    above = float(np.nextafter(np.float32(1), np.float32(2)))
    assert pair([below], [above]).first.ulps == 2


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 64, 65_537, 200_000])
def test_the_sums_are_those_of_python_s_integers(dtype, size):
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    bits = x.view(kind).tolist()
    narrow = x.view(torch.int32).tolist() if dtype.itemsize == 8 else bits
    total = 0
    for begin in range(0, len(narrow), _CHUNK):
        part = zip(narrow[begin : begin + _CHUNK], _WEIGHTS.tolist(), strict=False)
        total = total * _FACTOR + sum(b * w for b, w in part)
    expected = [((n + (1 << 63)) % (1 << 64)) - (1 << 63) for n in (sum(bits), total)]
    found = numbers_of(x).tolist()
    assert found[:2] == expected
    if dtype.itemsize < 8:
        by_torch = torch.zeros(2, dtype=torch.int64)
        _elsewhere(x.view(kind), by_torch)  # as on other devices
        assert by_torch.tolist() == expected
    assert numbers_of(x.view(1, -1).expand(1, -1).clone().T).tolist()[:2] == expected
    kept = found[2 : 2 + min(SAMPLED, size)]
    assert set(kept) <= set(bits)
    assert kept[0] == bits[0]
    assert len(set(kept)) == len(kept)


def test_digests_do_not_depend_on_threads_or_on_how_memory_lies():
    x = torch.randn(300, 700)
    before = torch.get_num_threads()
    found = numbers_of(x)
    try:
        torch.set_num_threads(3)
        assert torch.equal(found, numbers_of(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, numbers_of(x.T.contiguous().T))
    assert not torch.equal(found, numbers_of(x.T))
    for some in (x[:, ::2], x[0, ::3], x[:, 5], x[0].flip(0)):
        for dtype in (torch.float64, torch.float16):
            whole = some.to(dtype)
            spread = torch.stack([whole, whole], -1)[..., 0]
            assert torch.equal(numbers_of(whole.contiguous()), numbers_of(spread))


def test_every_kind_of_tensor_has_numbers():
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 0, 1]]), torch.ones(3), (2,), check_invariants=True
    )
    tensors = [
        torch.tensor([True, False]),
        torch.tensor(3),
        torch.zeros(0),
        torch.ones(2) * 1j,
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.arange(5),
        (torch.ones(2) * 1j).conj(),
        sparse,
    ]
    for t in tensors:
        assert numbers_of(t).shape == (2 + SAMPLED,)
    elsewhere = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([2.0, 1.0]), (3,), check_invariants=True
    )
    assert torch.equal(numbers_of(sparse), numbers_of(sparse.coalesce()))
    assert not torch.equal(numbers_of(sparse), numbers_of(elsewhere))
    assert not torch.equal(numbers_of(tensors[3]), numbers_of(tensors[6]))


# What else is told -------------------------------------------------------------------------
def test_equal_runs_are_said_to_be_equal():
    found = compare(run(), run())
    assert (found.equal, found.first, found.notes) == (True, None, [])
    digests = sum(len(ids) for ids, _ in run().record.steps.values())
    assert found.compared == digests
    said = f"The runs do not differ: {digests} digests of {STEPS} steps are equal."
    assert repr(found) == said
    assert said in found._repr_html_()


def test_other_lengths_are_told_and_what_both_have_is_compared():
    found = compare(run(), run(steps=3))
    assert not found.equal
    assert found.first is None
    assert found.notes == [
        "Other lengths: run_a has 4 steps, 0 to 3, run_b 3 steps, 0 to 2; 3 in common."
    ]
    assert found.verdict.startswith("No difference in what both runs have: ")
    found = compare(run(every=3), run(at(3, one_ulp("4.bias"))))
    assert found.steps == [0, 3]
    assert place(found) == (3, "forward", "4", "output")


def test_a_run_that_goes_on_is_laid_beside_the_whole_one():
    """It counted its steps from 0."""
    batches = list(zip(*(t.split(16) for t in regression()), strict=True))

    def part(steps, *states):
        model = seeded(mlp)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for it, state in zip((model, optimizer), states, strict=False):
            it.load_state_dict(state)
        with Digest(model, optimizer, first_step=steps[0]) as digest:
            for n in steps:
                x, y = batches[n % len(batches)]
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        return digest, model.state_dict(), optimizer.state_dict()

    whole, *_ = part(range(4))
    _, weights, momenta = part(range(2))
    found = compare(whole, part(range(2, 4), weights, momenta)[0])
    assert (found.first, found.steps) == (None, [2, 3])
    assert found.notes == [
        "Other lengths: run_a has 4 steps, 0 to 3, run_b 2 steps, 2 to 3; 2 in common."
    ]
    found = compare(whole, part(range(2, 4), weights)[0])
    assert found.verdict.startswith("The runs part in step 2, update: ")


def test_other_tensors_are_told_and_what_both_have_is_compared():
    found = compare(run(make=mlp), run(make=lambda: nn.Sequential(*mlp(), nn.Tanh())))
    assert not found.equal
    assert found.notes == [
        "Other tensors: 8 digests are in run_b alone; the first: step 0, forward: the output of 3 "
        "(Tanh)."
    ]


def test_a_weight_frozen_on_the_way_is_told_with_its_step():
    found = compare(run(), run(at(2, lambda m, _: m[4].weight.requires_grad_(False))))
    assert (
        found.verdict == "The runs part in step 3, forward: the output of 4 (Linear)."
    )
    assert found.notes == [
        "Other tensors: 4 digests are in run_a alone; the first: step 2, backward: the gradient "
        'with respect to "weight" of 4 (Linear).'
    ]


def test_other_shapes_and_dtypes_are_told():
    wide = compare(run(make=mlp), run(make=lambda: mlp(activation=nn.ReLU)))
    assert place(wide) == (0, "forward", "1", "output")

    def half(model, batches):
        batches[1] = tuple(t[:8] for t in batches[1])

    found = compare(run(), run(at(1, half)))
    assert place(found) == (1, "forward", "", "input")
    assert found.first.apart == "float32 of (16, 8) against float32 of (8, 8)"
    assert math.isnan(found.first.ulps)


def test_runs_without_a_common_step_have_nothing_to_compare():
    empty = run(steps=0)
    found = compare(empty, run())
    assert (found.compared, found.equal) == (0, False)
    assert found.verdict == "The runs have nothing in common that could be compared."
    assert "run_a has no steps" in repr(found)
    assert not compare(empty, empty).equal


def test_the_report_prints_and_is_a_table_in_jupyter():
    found = compare(run(), run(at(2, one_ulp("4.bias"))))
    lines = repr(found).splitlines()
    verdict = "The runs part in step 2, forward: the output of 4 (Linear)."
    assert lines[0] == verdict
    assert "equal until   step 2, forward: the output of 3" in repr(found)
    page = found._repr_html_()
    assert page.startswith(f"<p><b>{verdict}</b></p>")
    assert page.count("<table>") == 2
    assert len(lines) < 20


# Files -------------------------------------------------------------------------------------
def test_a_file_gives_the_digest_back(tmp_path):
    path = tmp_path / "a.json"
    digest = run(path=path)
    assert compare(digest, path).equal
    assert compare(str(path), digest).equal
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert place(compare(path, run(seed=6))) == (0, "forward", "3", "output")


def test_a_run_that_breaks_off_leaves_its_steps_and_the_one_at_work(tmp_path):
    def stop(model, batches, n):
        if n == 2:
            model(batches[2][0])
            raise InterruptedError

    path = tmp_path / "a.json"
    with pytest.raises(InterruptedError):
        run(stop, path=path)
    found = compare(path, run())
    assert found.steps == [0, 1, 2]
    assert found.first is None
    assert "Other lengths: run_a has 3 steps" in repr(found)


@pytest.mark.slow
def test_a_killed_process_leaves_the_digests_of_all_steps_before(tmp_path):
    path = tmp_path / "new" / "a.json"
    code = (
        "import os, signal, torch\nfrom mplab.health import Digest\n"
        "torch.manual_seed(0)\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"with Digest(model, optimizer, path={str(path)!r}):\n"
        "    for _ in range(3):\n"
        "        model(torch.ones(1, 2)).sum().backward()\n        optimizer.step()\n"
        "    model(torch.ones(1, 2))\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert compare(path, path).steps == [0, 1, 2]
    path.write_bytes(path.read_bytes()[:-10])  # a line that was not finished
    assert compare(path, path).steps == [0, 1]
    with pytest.raises(OSError, match=r"a\.json"), Digest(*made(), path=path / "below"):
        raise AssertionError("what cannot be written is found out at the beginning")


def made():
    model = seeded(network)
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def test_a_wrapped_model_has_the_names_of_the_model_itself():
    twin = run(make=lambda: nn.DataParallel(network()))
    assert compare(run(), twin).equal


def test_processes_need_paths_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setattr(digest_module, "several_processes", lambda: True)
    monkeypatch.setattr(digest_module, "rank", lambda: 3)
    with pytest.raises(ValueError, match=r"^Digest: path must hold %r, for the rank"):
        Digest(*made(), path=tmp_path / "a.json")
    assert Digest(*made(), path=tmp_path / "%r.json").path == tmp_path / "3.json"


def broken_files():
    """Files of another kind, and a good one with one thing wrong."""
    head = b'{"mplab digest": 2}\n'
    yield from (
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"mplab digest": 1}\n',
        b"\xff\xfe",
        b"[" * 100_000,
    )
    site = ["forward", "0", "Linear", "output", 0, "float32", [1]]
    row = [0] * (2 + SAMPLED)
    good = {"step": 0, "new": [site], "sites": [0], "rows": [row]}
    for wrong in (
        {"new": [[1, 2]]}, {"new": [[*site[:5], "system", [1]]]}, {"new": [[["0"], *site[1:]]]},
        {"new": [[*site[:4], "0", "float32", [1]]]}, {"rows": [[1, 2]]},
        {"sites": [10**6]}, {"sites": [-1]}, {"step": "0"}, {"rows": [[2**70] * (2 + SAMPLED)]},
        {"sites": [], "rows": []}, {"new": None},
    ):  # fmt: skip
        yield head + json.dumps(good | wrong).encode() + b"\n"
    yield (
        head
        + json.dumps({k: v for k, v in good.items() if k != "rows"}).encode()
        + b"\n"
    )


def test_a_file_of_another_kind_is_refused_by_name(tmp_path):
    path = tmp_path / "b.json"
    good = run(steps=1)
    for content in broken_files():
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"^compare: run_b must hold a digest of version 2;"
        ):
            compare(good, path)
    with pytest.raises(OSError, match="nowhere"):
        compare(tmp_path / "nowhere.json", good)


def test_a_digest_is_closed_before_it_is_entered_again():
    model = seeded(mlp)
    digest = Digest(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with digest, pytest.raises(RuntimeError, match="must be closed"):
        digest.__enter__()
    with digest:
        pass


def test_a_frozen_layer_is_recorded_at_the_start_and_never_as_updated():
    def frozen():
        model = network()
        model[0].requires_grad_(False)
        return model

    sites = run(make=frozen, steps=1).record.sites
    directions = [site.direction for site in sites if site.layer == "0"]
    assert "start" in directions
    assert "update" not in directions


def test_the_loops_for_integers_of_three_widths_have_files_of_their_own():
    """numba keeps one index a name: processes that save two widths at once mix them up."""
    loops = [digest_module._on_processor(itemsize).py_func for itemsize in (1, 2, 4)]
    assert len({loop.__qualname__ for loop in loops}) == 3
