"""A watch counts what it says, changes nothing, and leaves nothing behind."""

import copy
import itertools
import math
import re
import threading
from dataclasses import replace
from functools import partial
from unittest.mock import MagicMock

import pytest
import sick_runs
import torch
from legible import assert_legible
from sick_runs import half, mlp, regression, seeded
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, pictures, tally
from mplab.health import Digest, Health
from mplab.health.measures import casts_of
from mplab.health.reports import _course
from mplab.health.tracing import Tracer
from mplab.lessons.l13.clinic import CASES
from mplab.numbers.formats import FORMATS
from mplab.scaling import GradScaler, LossScaler
from mplab.simulation import Fp8Linear, convert_linears, simulated
from mplab.simulation.casts import SCALINGS


def test_zeros_of_a_gradient_are_those_of_its_own_format_or_of_the_one_asked_for():
    values = [0.0, 2.0**-25, 2.0**-24, 2.0**-15, 1.0, 60000.0, torch.inf]
    for dtype in (torch.float16, torch.float32):
        x = torch.zeros(len(values), dtype=dtype, requires_grad=True)
        with Health(model := nn.Identity()) as health:
            model(x * 1).backward(torch.tensor(values, dtype=dtype))
            health.step(0.0)
        found = health.steps[0].gradients["Identity"]
        assert found[:2] == ("FP16", dtype is torch.float32)
        assert (found.total, found.zeros, found.largest) == (7, 2, math.inf)


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16, None])
def test_headroom_is_counted_in_powers_of_two_to_the_ends_of_the_format(low):
    """The least numbers that matter are those below which a hundredth of the norm lies."""
    model = seeded(mlp)
    x, y = regression()
    fmt = BF16 if low is torch.bfloat16 else FP16
    kept = []
    model[0].register_forward_hook(lambda *given: kept.append(given[-1].detach()))
    with Health(model) as health:
        for factor in (1.0, 8.0, 64.0):
            with half(low) if low else torch.enable_grad():
                out = model(factor * x)
            F.mse_loss(out.float(), y).backward()
            health.step(1.0)
    for output, step in zip(kept, health.steps, strict=True):
        found = step.outputs["0 (Linear)"]
        size = output.float().abs()
        assert found[:2] == (fmt.name, low is None)
        assert found.largest == size.max()
        assert found.headroom == pytest.approx(
            math.log2(fmt.max_finite / float(size.max()))
        )
        small = size[size <= found.least]
        assert small.norm() <= 0.01 * size.norm()
        up = math.log2(float(size.square().mean().sqrt()) / 100 / fmt.min_subnormal)
        assert found.footroom == pytest.approx(up, abs=1e-3)
        scalars = step.scalars()
        assert scalars["output_headroom/0 (Linear)"] == found.headroom
        gradients = step.gradients["2 (Linear)"]
        assert scalars["gradient_footroom/2 (Linear)"] == gradients.footroom
    rooms = [step.outputs["0 (Linear)"].headroom for step in health.steps]
    row = next(row for row in health.report().layers().rows if "0 (L" in row[0])
    assert row[3] == f"{rooms[2]:.1f}" and row[4] == _course(rooms)
    text = repr(health.report())
    assert "  ".join(row) in re.sub(" {2,}", "  ", text)
    assert max(map(len, text.splitlines())) <= 80


def test_headroom_before_an_overflow_is_told_beside_it():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Identity())
    nn.init.ones_(model[0].weight)
    sizes = torch.tensor([2.0**10, 2.0**15, 2.0**17])
    health = sick_runs.looked_at(
        model, lambda step: model(sizes[step, None]).sum(), 3, within=half()
    )
    row = health.report().layers().rows[0]
    assert row[:5] == ("0 (Linear)", "FP16", "3.28e+04", "1.0", "50!")
    picture = assert_legible(pictures.headroom(health.report()))
    assert picture.claim.endswith("end of FP16: 1.0 powers of two left, then overflow")


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E5M2])
def test_gradients_of_a_simulation_are_judged_by_the_format_they_were_rounded_to(fmt):
    model = seeded(mlp)
    x, y = regression()
    health = sick_runs.looked_at(
        model, lambda _: F.mse_loss(model(x), y), within=simulated(fmt, model=model)
    )
    gradients = health.steps[0].gradients.values()
    assert [(*s[:2], s.total) for s in gradients] == [
        (fmt.name, False, 64 * n) for n in (16, 16, 4)
    ]


@pytest.mark.parametrize(("between", "size"), [(nn.Tanh, 1e-9), (nn.LayerNorm, 1e-12)])
def test_gradients_that_a_simulation_is_about_to_flush_are_lost(between, size):
    """All of them, too, where a layer in FP32 has zeros of its own."""
    middle = nn.LayerNorm(16) if between is nn.LayerNorm else between()
    model = seeded(lambda: nn.Sequential(nn.Linear(8, 16), middle, nn.Linear(16, 4)))
    x, _ = regression()
    health = sick_runs.looked_at(
        model,
        lambda _: size * F.mse_loss(model(x), 1 - x[:, :4]),
        3,
        within=simulated(FP16, model=model),
    )
    assert health.report().codes == ["gradient-underflow"]


def test_updates_that_change_no_bit_are_counted():
    """w = 1 in BF16 has ulp 2^-7; an update of 2^-10 is an eighth of it and rounds away.

    What is measured is how far a weight moved, not what the optimizer would have liked.
    """
    model = nn.Linear(4, 1, bias=False).to(torch.bfloat16)

    def step(weights, rate):
        with torch.no_grad():
            model.weight.copy_(torch.tensor(weights))
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with Health(model, optimizer) as health:
            model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
            health.step(1.0)
        (found,) = health.steps
        return found.unmoved, found.updated

    assert step([[1.0, 1.0, 0.0, 2.0**-20]], 2.0**-10) == (2, 4)
    assert step([[1.0] * 4], 2.0**-10) == (4, 4)
    assert step([[1.0] * 4], 2.0**-8) == (0, 4)


@pytest.mark.parametrize(("start", "codes"), [
    (2.0**16, ["backward-never-finite"]),  # halved 165 times a scale is 0, and stays 0
    (2.0**120, ["scale-finds-its-level"]),  # it found none: all steps were skipped
    # FP32 does not hold its reciprocal, nor the squares of such gradients.
    (2.0**-130, ["nonfinite-weights", "zero-gradients"]),
])  # fmt: skip
def test_the_scaler_s_own_numbers_are_no_symptom(start, codes):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    scaler = torch.amp.GradScaler("cpu", start)
    with Health(model, optimizer, scaler=scaler) as health:
        for _ in range(200 if start == 2.0**16 else 3):
            optimizer.zero_grad()
            scaler.scale(loss := model(torch.ones(1, 2)).sum()).backward()
            if start > 1:
                model.weight.grad.fill_(torch.nan)
            scaler.step(optimizer)
            scaler.update()
            health.step(loss)
    report = health.report()
    assert report.codes == codes and (start != 2.0**16 or health.steps[-1].scale == 0)


def watched_and_not(make, step, sizes=(1.0, 1.0, 1.0)):
    """Run steps of these sizes, which give the same with and without a watch; return the watch."""
    results = []
    for watched in (False, True):
        model = make()
        with Health(model) if watched else MagicMock() as health:
            for size in sizes:
                seen = step(model, size)
                health.step(0.0)
        results.append((seen, [p.grad.tolist() for p in model.parameters()]))
    assert results[0] == results[1]
    return health


def test_watching_does_not_disturb_a_simulation():
    x, y = regression()

    def step(model, size):
        with simulated(FP16, model=model) as sim:
            F.mse_loss(model(x), y).backward()
        return sim.by_layer

    watched_and_not(lambda: seeded(mlp), step)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
def test_watching_fp8_layers_changes_nothing_and_leaves_nothing(scaling):
    x, y = regression()
    how = {"scaling": scaling, "filter": lambda *_: True}

    def step(model, size):
        F.mse_loss(model(x), y).backward()

    health = watched_and_not(lambda: convert_linears(seeded(mlp), **how), step)
    layers = [m for m in health.model if isinstance(m, Fp8Linear)]
    assert [layer.on_cast for layer in layers] == [None, None]
    roles = {name.split()[-1] for name in health.steps[0].fp8}
    # Cast anew for the second product.
    again = SCALINGS[scaling].input.block is not None
    assert {"input", "weight", "grad_output"} == roles - {"grad_weight", "grad_input"}
    assert len(roles) == 3 + 2 * again
    snr = [cast.snr for step in health.steps for cast in step.fp8.values()]
    assert all(9 < x < 50 for x in snr) and len(snr) == (30 if again else 18)


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2])
@pytest.mark.parametrize("scale", [2.0**-9, 1.0, 100.0])
def test_numbers_that_fp8_loses_are_counted_as_torch_casts_them(fmt, scale):
    """Halfway to the smallest number, one step of float32 to both sides, and around the largest."""
    ends = (
        torch.tensor([fmt.min_subnormal / 2, fmt.min_subnormal, fmt.max_finite]) / scale
    )
    sides = [torch.nextafter(ends, torch.tensor(to)) for to in (0.0, math.inf)]
    x = torch.cat([ends, *sides, torch.tensor([0.0, 3.0])])
    x = torch.cat([x, -x])
    x = torch.cat([x, 2 * x])
    most = fmt.max_finite
    factor = torch.tensor(scale)
    cast = (x * scale).clamp(-most, most).to(fmt.torch_dtype).float()
    found = casts_of(x, cast / scale, factor, fmt).tolist()
    some = x != 0
    assert found[:3] == [scale, x.abs().max(), some.sum()]
    assert found[3] == ((cast == 0) & some).sum() > 0
    assert found[4] == tally((x * scale).numpy(), fmt).overflow > 0
    wide = x.double()
    noise = x.double() - (cast / scale).double()
    assert found[5:] == pytest.approx(
        [float((t**2).sum()) for t in (wide, noise)], rel=1e-12
    )


@pytest.mark.slow
def test_watching_fp8_layers_of_torchao_counts_what_they_cast_and_changes_nothing(
    monkeypatch,
):
    """In traced steps each cast is seen: its losses are those of the tensors that torchao made."""
    from torchao.float8 import (
        Float8LinearConfig,
        convert_to_float8_training,
        float8_linear,
    )
    from torchao.prototype.moe_training import mxfp8_linear

    cast = float8_linear.hp_tensor_to_float8_dynamic
    kernel = mxfp8_linear.KernelPreference.EMULATED
    x, y = regression(inputs=32, outputs=32)
    made = []

    def seen(x, *args, **how):
        low = cast(x, *args, **how)
        made[-1].append((x * low._scale, low._data.float(), torch.ones(())))
        return low

    def make(recipe):
        if recipe is None:
            how = {"kernel_preference": kernel, "wgrad_with_hp": True}
            return nn.Sequential(mxfp8_linear.MXFP8Linear(32, 32, **how))
        config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
        model = mlp(inputs=32, outputs=32)
        return convert_to_float8_training(model, config=config)

    def step(model, size):
        made.append([])
        (size * F.mse_loss(model(x * size**0.5), y)).backward()

    monkeypatch.setattr(float8_linear, "hp_tensor_to_float8_dynamic", seen)
    for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp", None):
        made.clear()
        health = watched_and_not(
            lambda recipe=recipe: seeded(lambda: make(recipe)), step, (1.0, 1e-24, 1.0)
        )
        first, second, third = (step.fp8 for step in health.steps)
        assert len(first) == (len(made[0]) if recipe else 4) and not health.seen.error
        assert all(25 < c.snr < 33 and not c.saturated for c in first.values())
        assert third == {}, "it was not traced"
        for operand in second.values() if recipe else ():
            found = (casts_of(*one, FORMATS[operand.fmt]).tolist() for one in made[1])
            wanted = pytest.approx([*operand[2:]], rel=1e-6)
            assert any(one == wanted for one in found)
        assert ("no-fp8-scale" in health.report().codes) == bool(recipe)  # below 1e-12


def test_an_operand_without_a_scale_is_told_from_one_with_outliers():
    gradient = torch.full((64, 32), 1e-3)
    for large, small, options, codes in (
        (1.0, 1e-3, {}, []),
        (1e5, 1e-3, {"backward_format": FP8_E4M3}, []),
        (1e9, 1e-3, {"scaling": "mxfp8"}, []),
        (1e-9, 1e-9, {"scaling": "none"}, ["no-fp8-scale"]),
        (1e-9, 1e-9, {"scaling": "delayed"}, []),
    ):
        gradient[:] = small
        gradient[:, 0] = large
        layer = Fp8Linear(32, 32, **options)
        with Health(layer) as health:
            layer(torch.randn(64, 32)).backward(gradient)
            health.step(0.0)
        assert health.report().codes == codes, (large, options)
        for found in health.report().findings[: len(codes)]:
            assert found.observed.startswith("Fp8Linear grad_output lost more than")


def test_the_fp8_operands_of_micro_batches_are_counted_together():
    model = convert_linears(nn.Sequential(nn.Linear(4, 2)), scaling="none")
    with Health(model) as health:
        for size in (1e-4, 1.0, 1e4):
            model(torch.full((8, 4), size)).sum().backward()
        health.step(0.0)
        health.step(0.0)
    cast = health.steps[0].fp8["0 (Fp8Linear) input"]
    assert cast[:4] == ("FP8_E4M3", "none", 1.0, 1e4)
    assert cast[4:7] == (96, 32, 32)
    assert cast.snr == pytest.approx(10 * math.log10(1e8 / (1e4 - 448) ** 2), rel=1e-3)
    assert health.steps[1].fp8 == {}


def test_after_closing_nothing_of_the_watch_is_left():
    loop = sick_runs.Loop(seeded(mlp), regression(), scale=1024.0)
    loop.run(2)
    model = loop.model
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert not {"step", "unscale_"} & vars(loop.scaler).keys()
    with pytest.raises(RuntimeError, match="must be closed"), Health(model) as health:
        health.__enter__()


def test_a_report_has_a_table_of_fp8_operands_where_there_are_some():
    report = CASES["stale-amax"].broken().report
    page = report._repr_html_()
    step = report.steps[12]
    assert page.count("<table>") == 1 + page.count("<thead>") == 3
    named = re.findall(r'<th scope="row"[^>]*>([^<]*)</th>', page)
    assert {"steps", "loss", *step.gradients} <= set(named)
    assert "0 (Fp8Linear) input" in named and "2 (Fp8Linear) weight" not in named
    name = "0 (Fp8Linear) input"
    line = next(r for r in repr(report).splitlines() if r.startswith(name))
    row = [cell.strip() for cell in line.split("  ") if cell]
    assert [*row[:2], row[4]] == [name, "FP8_E4M3", "16 steps"]
    assert 2 * step.fp8[name].flushed > step.fp8[name].nonzero
    other = CASES["endless-backoff"].broken().report
    assert "operand in FP8" not in repr(other) and "overflow-forward" in repr(other)
    assert "<b>problem: overflow-forward.</b>" in other._repr_html_()


@pytest.mark.parametrize(
    "name", mostly_slow(["endless-backoff", "loss-meter"], ["endless-backoff"])
)
def test_the_figure_of_a_report_is_legible_and_says_the_gravest_finding(name):
    report = CASES[name].broken().report
    picture = pictures.health(report)
    assert_legible(picture)
    assert report.findings[0].observed.startswith(picture.claim)
    assert all(code in picture.alt for code in report.codes)


def test_an_optimizer_that_skips_by_itself_is_seen_to_skip():
    fused = partial(torch.optim.Adam, fused=True)
    loop = sick_runs.Loop(
        seeded(mlp), regression(), optimizer=fused, lr=1e-3, scale=2.0**30
    )
    steps = loop.run(20).steps
    skipped = [step.skipped for step in steps]
    scales = [step.scale for step in steps] + [loop.scaler.get_scale()]
    assert skipped == [b < a for a, b in itertools.pairwise(scales)]
    assert set(skipped) == {True, False}


@pytest.mark.parametrize(("options", "code"), [
    ({}, None), ({"clip": "after"}, None), ({"clip": "before"}, "clip-before-unscale"),
    ({"beside": True}, "step-beside-scaler"), ({"twice": True}, "unscaled-twice"),
], ids=str)  # fmt: skip
def test_our_scaler_is_watched_as_torch_s(options, code):
    seen = []
    start = {"init_scale": 2.0**22, "growth_interval": 3}
    for scaler in (
        torch.amp.GradScaler("cpu", **start),
        GradScaler(LossScaler(**start)),
    ):
        loop = sick_runs.Loop(seeded(mlp), regression(), scaler=scaler)
        report = loop.run(12, **options)
        weights = [p.tolist() for p in loop.model.parameters()]
        seen.append(repr((report.steps, report.codes, report.evidence, weights)))
        assert {"step", "unscale_"}.isdisjoint(vars(scaler))
        assert code is None or code in report.codes
        assert len({step.scale for step in report.steps}) > 2
        assert any(step.skipped for step in report.steps) or "beside" in options
    assert seen[0] == seen[1]


def masked(gradient):
    gradient[: len(gradient) // 2] = 0
    return gradient


def test_clipped_values_of_scaled_gradients_are_told_as_a_clipped_norm_is():
    model = seeded(mlp)
    x, y = regression()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    report = sick_runs.trained(
        sick_runs.watched(model, lr=1e-3, scaler=scaler),
        lambda _: F.mse_loss(model(x), y),
        6,
        between=lambda: nn.utils.clip_grad_value_(model.parameters(), 1.0),
    )
    assert "clip-before-unscale" in report.codes


CHANGES = {
    "averaged over micro-batches": lambda gradient: gradient / 4,
    "masked": masked,
    "multiplied": lambda gradient: 0.3 * gradient,
    "taken away": lambda gradient: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_gradients_that_something_else_changed_are_not_clipped(change):
    model = seeded(mlp)
    x, y = regression()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

    def between():
        some = change in ("masked", "taken away")
        for p in [model[0].weight] if some else model.parameters():
            p.grad = CHANGES[change](p.grad)

    report = sick_runs.trained(
        sick_runs.watched(model, lr=1e-3, scaler=scaler),
        lambda _: F.mse_loss(model(x), y),
        6,
        between=between,
    )
    assert "clip-before-unscale" not in report.codes


class Adapted(nn.Module):
    """A frozen FP16 base with a mask of infinities, and a small FP32 layer beside it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4).half().requires_grad_(False)
        self.adapter = nn.Linear(4, 4)
        mask = torch.full((4, 4), -math.inf).triu_(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        if not hasattr(
            self, "late"
        ):  # as models do that learn the length from the data
            self.register_buffer("late", self.mask.clone(), persistent=False)
        scores = (x @ x.T)[:4, :4] + self.mask + self.late
        return self.base(x.half()).float() + self.adapter(x) + scores.softmax(1)


def overflow(model, *_):
    model.kept.fill_(math.inf)


@pytest.mark.parametrize(
    "fault", [None, "NaN from the first", "infinity under the watch"]
)
def test_a_buffer_of_nan_or_that_overflows_is_a_fault_and_a_mask_is_none(fault):
    """Nor are frozen weights in FP16."""
    model = seeded(Adapted)
    model.register_buffer("kept", torch.zeros(1))
    if fault == "NaN from the first":
        model.mask[0, 0] = math.nan
    elif fault:
        model.register_forward_hook(overflow)
    health = sick_runs.watched(model, lr=1e-3)
    x = torch.randn(4, 4)
    report = sick_runs.trained(health, lambda _: model(x).square().mean(), 3)
    assert ("nonfinite-buffers" in report.codes) == bool(fault)
    assert "half-parameters" not in report.codes


def test_a_watch_that_is_closed_within_another_leaves_no_tracer():
    models = [seeded(mlp), seeded(mlp)]
    first, second = (Health(m, torch.optim.SGD(m.parameters())) for m in models)
    first.__enter__()
    with second:
        first.close()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_a_step_that_is_told_of_after_the_watch_was_closed_starts_no_tracing():
    model = nn.Linear(2, 1)
    with Health(model) as health:
        loss = model(torch.ones(1, 2)).sum()
    health.step(loss)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_modules_that_run_again_in_another_thread_do_not_name_the_nodes_of_this_one():
    """On CUDA a checkpoint runs them in the thread of the backward pass, which counts from 0."""
    tracer = Tracer(MagicMock(), MagicMock(), MagicMock())
    tracer.begin(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    for name in ("0", "1"):
        tracer.enter_module(name)
        model(torch.ones(1, 2))
        tracer.leave_module()
    before = list(tracer.events)

    def again():
        tracer.enter_module("0")
        tracer.leave_module()

    thread = threading.Thread(target=again)
    thread.start()
    thread.join()
    assert tracer.events == before == sorted(before, key=lambda event: event[0])
    again()
    assert len(tracer.events) == len(before) + 2


# What a watch was not given ---------------------------------------------------------------


def test_a_watch_that_was_never_told_of_a_step_says_so():
    model = seeded(mlp)
    x, y = regression()
    with sick_runs.watched(model) as health:
        F.mse_loss(model(x), y).backward()
        health.optimizer.step()
    report = health.report()
    assert report.codes == ["no-steps"]
    assert "1 forward passes and 1 updates" in report.findings[0].observed
    assert "No problems found" not in repr(report)
    with Health(model) as health:
        pass
    assert "no forward passes and no updates" in health.report().findings[0].observed


def test_a_loop_that_calls_another_model_is_told():
    model = seeded(mlp)
    twin = seeded(mlp)
    x, y = regression()
    with sick_runs.watched(model) as health:
        F.mse_loss(twin(x), y).backward()
        health.optimizer.step()
        health.step(1.0)
    assert [f.code for f in health.report().findings] == ["modules-unseen"]
    with Health(model) as health:
        health.step(F.mse_loss(twin(x), y))
    assert [f.code for f in health.report().findings] == ["modules-unseen"]


def test_a_loss_that_is_not_finite_in_step_0_is_found_there():
    model = seeded(mlp)
    with Health(model) as health:
        loss = model(torch.full((1, 8), torch.inf)).sum() * 0
        health.step(loss)
    (finding,) = (f for f in health.report().findings if f.code == "overflow-forward")
    assert "first in step 0" in finding.observed


WATCHES = pytest.mark.parametrize("watch", [Health, Digest])


@WATCHES
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("other", [copy.deepcopy, lambda model: nn.Linear(3, 1)])
def test_an_optimizer_of_another_model_is_refused(watch, make, other):
    """Nothing of the watched model moved, so that two runs were equal, and a sick one well."""
    model = seeded(mlp)
    optimizer = make(other(model).parameters(), lr=0.1)
    said = f"^{watch.__name__}: optimizer must update parameters of the model; got {make.__name__}"
    with pytest.raises(ValueError, match=said):
        watch(model, optimizer)


@WATCHES
def test_several_optimizers_at_once_are_refused_in_plain_words(watch):
    """They raised an AttributeError."""
    model = seeded(mlp)
    both = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model[::2]]
    with pytest.raises(TypeError, match=r"optimizer must be one optimizer; got .*list"):
        watch(model, both)


@pytest.mark.slow
@WATCHES
def test_an_optimizer_of_part_of_a_model_or_of_wide_copies_is_watched(watch):
    model = seeded(mlp)
    beside = nn.Parameter(torch.ones(3))
    part = torch.optim.SGD([beside, model[2].bias], lr=0.1)
    for around in (model, nn.Sequential(model), torch.compile(model, backend="eager")):
        assert watch(around, part).optimizer is part
        whole = torch.optim.LBFGS(around.parameters())
        assert watch(model, whole).optimizer is whole
    low = copy.deepcopy(model).half()
    masters = torch.optim.SGD([p.detach().float() for p in low.parameters()], lr=0.1)
    assert watch(low, masters).optimizer is masters
    # What is trained is its input.
    frozen = seeded(mlp).requires_grad_(False)
    prompt = torch.optim.SGD([beside], lr=0.1)
    assert watch(frozen, prompt).optimizer is prompt


def test_the_numbers_of_a_step_are_a_flat_dictionary():
    model = convert_linears(nn.Sequential(nn.Linear(4, 2)), scaling="none")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Health(model, optimizer) as health:
        assert health.scalars() == {}
        model(torch.full((8, 4), 1e-4)).sum().backward()
        optimizer.step()
        health.step(torch.tensor(math.inf))
    scalars = health.scalars()
    assert all(type(x) is float for x in scalars.values())
    assert (scalars["loss"], scalars["scale"], scalars["skipped"]) == (
        math.inf,
        1.0,
        0.0,
    )
    assert scalars["gradient_norm"] == health.steps[0].gradient_norm
    assert scalars["flushed/0 (Fp8Linear) input"] == 1.0
    assert scalars["gradient_zeros/0 (Fp8Linear)"] == 0.0


def test_a_watch_that_is_paused_looks_at_nothing():
    model = seeded(mlp)
    with Health(model) as health:
        health.pause()
        model(torch.full((2, 8), torch.inf))
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
        health.resume()
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        health.step(loss)
    assert health.report().codes == []
    assert health.steps[0].gradients["0 (Linear)"].total == 32


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device beside the CPU"
)
def test_a_model_on_two_devices_is_watched():
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.here, self.there = nn.Linear(8, 16), nn.Linear(16, 4).cuda()

        def forward(self, x):
            return self.there(self.here(x).cuda()).cpu()

    model = seeded(Split)
    x, y = regression()
    health = sick_runs.watched(model, optimizer=torch.optim.AdamW, lr=1e-2)
    report = sick_runs.trained(health, lambda _: F.mse_loss(model(x), y), 3)
    assert report.findings == []
    assert list(health.steps[2].gradients) == ["here (Linear)", "there (Linear)"]
    assert health.steps[2].updated == sum(p.numel() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-12), (torch.complex64, 1e-5)]
)
def test_a_network_in_float64_or_complex_numbers_is_watched_to_its_end(dtype, close):
    """Float64 is what one runs to tell numerics from training."""
    model = seeded(mlp).to(dtype)
    x, y = (t.to(dtype) for t in regression())
    health = sick_runs.watched(model)
    sick_runs.trained(health, lambda _: (model(x) - y).abs().square().mean(), 6)
    assert health.report().findings == []
    expected = float(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
    assert health.steps[-1].gradient_norm == pytest.approx(expected, rel=close)
    with torch.no_grad():
        parts = model[0].weight.view(torch.float64 if close < 1e-6 else torch.float32)
        parts.view(-1)[-1] = math.inf  # of a complex number the imaginary part
    with sick_runs.watched(model, lr=0.0) as health:
        health.step(1.0)
    assert health.steps[0].nonfinite_weights == 1


@pytest.mark.parametrize("steps", [0, 3])
def test_a_run_that_an_exception_ended_is_told_so(steps):
    model = seeded(mlp)
    health = Health(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), health:
        for _ in range(steps):
            model(torch.ones(2, 8)).mean().backward()
            health.step(1.0)
        model(torch.ones(2, 3))
    (told,) = health.report().findings
    assert told.code == "ended-by-exception"
    assert f"in step {steps}: RuntimeError: mat1 and mat2" in told.observed


# Optimizers ------------------------------------------------------------------------------


@pytest.mark.parametrize("for_each", [True, False])
def test_an_optimizer_within_the_backward_pass_is_watched(for_each):
    """It updates each parameter as soon as its gradient is there, and drops the gradient."""
    plain = seeded(mlp)
    model = seeded(mlp)
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        (own[p] if for_each else one).step()
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    x, y = regression()
    after = sick_runs.watched(plain)
    sick_runs.trained(after, lambda _: F.mse_loss(plain(x), y), 4)
    with Health(model, None if for_each else one) as health:
        for _ in range(4):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            health.step(loss)
    assert health.report().findings == []
    for step, alike in zip(health.steps, after.steps, strict=True):
        for name in ("gradient_norm", "norm_at_optimizer", "weight_norm", "updated"):
            assert getattr(step, name) == pytest.approx(getattr(alike, name), rel=1e-6)


@pytest.mark.parametrize("start", [1024.0, 2.0**40])
def test_all_optimizers_of_a_model_are_watched_with_the_first(start):
    """Their scaler unscales and steps each; the gradients of both are one norm."""
    model = seeded(mlp)
    steppers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model[::2]]
    scaler = torch.amp.GradScaler("cpu", start)
    x, y = regression()
    with Health(model, steppers[0], scaler=scaler) as health:
        for _ in range(4):
            with half():
                out = model(x)
            loss = F.mse_loss(out.float(), y)
            scaler.scale(loss).backward()
            for stepper in steppers:
                scaler.unscale_(stepper)
                scaler.step(stepper)
                stepper.zero_grad()
            scaler.update()
            health.step(loss)
    skips = start > 1024
    assert health.report().codes == ["scale-finds-its-level"] * skips
    step = health.steps[-1]
    assert step.skipped == skips and step.updated == 212 * (not skips)
    if not skips:
        assert step.norm_at_optimizer == pytest.approx(step.gradient_norm, rel=1e-6)


def test_the_gradients_that_a_generator_leaves_in_its_critic_are_not_piled_up():
    """The critic's own zero_grad removes them before the critic's next update."""
    make = seeded(mlp)
    judge = nn.Linear(4, 1)
    judges = torch.optim.SGD(judge.parameters(), 1e-3)
    x, y = regression()

    def loss_of(_):
        judges.zero_grad()
        loss = judge(make(x).detach()).square().mean()
        (loss + (judge(y) - 1).square().mean()).backward()
        judges.step()
        return (judge(make(x)) - 1).square().mean()

    model = nn.ModuleDict({"make": make, "judge": judge})
    makes = torch.optim.SGD(make.parameters(), 1e-3)
    assert sick_runs.trained(Health(model, makes), loss_of, 6).codes == []


def test_a_watch_whose_step_is_never_called_forgets_old_results(monkeypatch):
    monkeypatch.setattr("mplab.health.watch._KEPT", 50)
    model = nn.Linear(2, 2)
    with Health(model) as health:
        for _ in range(200):
            model(torch.ones(1, 2)).sum().backward()
            assert len(health._flags) + len(health._tracer.events) < 200


def test_a_long_step_after_the_first_is_remembered_whole(monkeypatch):
    """Many modules times many micro-batches: the origin of a failure would be forgotten."""
    monkeypatch.setattr("mplab.health.watch._KEPT", 50)
    model = nn.Linear(2, 2)
    with Health(model) as health:
        for batches in (1, 200):
            for _ in range(batches):
                loss = model(torch.ones(1, 2)).sum()
                loss.backward()
            kept = len(health._flags)
            health.step(loss)
    assert kept >= 200


@pytest.mark.parametrize("scale", [None, 2.0**10])
@pytest.mark.parametrize("broken", [False, True])
def test_a_step_may_leave_the_loss_out_and_an_error_of_the_watch_ends_no_run(
    scale, broken, monkeypatch
):
    """It is where the backward passes of the step began, over the scale."""
    model = seeded(mlp)
    x, y = regression()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", scale or 1.0, enabled=scale is not None)
    if broken:
        monkeypatch.setattr("mplab.health.watch.largest_of", lambda t: 1 / 0)
    losses = []
    with Health(model, optimizer, scaler=scaler) as health:
        health.step()  # nothing to record
        for _ in range(3):
            optimizer.zero_grad()
            parts = [F.mse_loss(model(x[k::2]), y[k::2]) / 2 for k in range(2)]
            for part in parts:
                scaler.scale(part).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(sum(parts).detach()))
            health.step()
    if broken:
        assert "ZeroDivisionError" in health.seen.error and health.steps == []
    else:
        assert [step.loss for step in health.steps] == pytest.approx(losses)
        assert health.report().findings == []


@pytest.mark.parametrize(
    ("fault", "drops"),
    [("scaled-loss", False), ("loss-not-scaled", False), ("loss-not-scaled", True)],
)
def test_the_loss_that_is_told_is_compared_with_where_the_backward_pass_began(
    fault, drops
):
    model = seeded(mlp)
    x, y = regression()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", 2.0**10, growth_interval=3)
    scaler.scale(torch.ones(()))
    with Health(model, optimizer, scaler=scaler) as health:
        for _ in range(12):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            began = scaler.scale(loss) if fault == "scaled-loss" else loss
            if drops:
                scaler.scale(loss)
            began.backward()
            scaler.step(optimizer)
            scaler.update()
            health.step(began)
    assert health.report().codes == [fault]
    assert all(step.loss < 2 for step in health.steps), "without the scale"
    (found,) = [f for f in health.report().findings if f.code == fault]
    assert found.level == ("watch" if fault == "scaled-loss" else "problem")


def test_an_infinite_gradient_that_no_optimizer_holds_was_not_replaced():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    report = sick_runs.trained(
        Health(model, torch.optim.SGD(model[1].parameters(), lr=0.1)),
        lambda _: model(torch.ones(1, 2)).square().sum(),
        3,
        between=lambda: model[0].weight.grad.fill_(torch.inf),
    )
    assert "replaced-gradients" not in report.codes


def test_gradients_set_to_zero_are_not_clipped_and_losses_are_scaled_in_lists():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Health(model, sgd, scaler=scaler) as health:
        for _ in range(4):
            sgd.zero_grad()
            out = model(torch.randn(8, 4))
            losses = scaler.scale([out.square().mean(), out.abs().mean()])
            total = sum(losses)
            total.backward()
            for p in model[0].parameters():
                p.grad.zero_()
            scaler.step(sgd)
            scaler.update()
            health.step(total.detach())
    assert health.report().codes == ["scaled-loss"]
