"""Each fault in each way to train: the report names it, and is silent about the run without it."""

import math
from contextlib import contextmanager, suppress

import pytest
import torch
from networks import Within
from sick_runs import Changed, half, regression, seeded
from torch import nn

from mplab import FP16
from mplab.health import Health
from mplab.simulation import simulated

STEPS = 24

MODES = {
    "autocast": {},
    "simulated": {"simulate": True},
    "FP64": {"dtype": torch.float64},
    "complex": {"dtype": torch.complex64},
    "ended by an exception": {"ends": True},
    "two optimizers": {"optimizers": 2},
    "accumulation": {"parts": 2},
    "clipping": {"clip": 1.0},
    "the norm alone": {"clip": math.inf},
}


class Ended(Exception):
    """An error of the program."""


def overflowing(x):
    """Past the largest number of the dtype; of FP16 in float32, which may stand for it."""
    most = 65504.0 if x.dtype is torch.float32 else torch.finfo(x.dtype).max
    return ((x.abs() + 2) * most).to(x.dtype)


def endless(x):
    return Changed.apply(x, lambda gradient: gradient / 0.0)


def from_third_step(change):
    calls = iter(range(10**6))
    return lambda x: change(x) if next(calls) > 5 else x


FAULTS = {
    "overflow-forward": {"within": from_third_step(overflowing)},
    "hidden-infinity": {"within": lambda x: x + 1 / overflowing(x)},
    "backward-never-finite": {"within": endless, "steps": 20},
    "zero-gradients": {"within": lambda x: 0 * x},
    "no-gradients": {
        "loss": lambda loss, i: loss.detach().requires_grad_(),
        "scaled": False,  # a scaler refuses to step
    },
    "gradient-underflow": {"loss": lambda loss, i: 1e-12 * loss},
    "no-update": {"steps_optimizer": False},
    "nonfinite-buffers": {"buffer": math.inf},
    "kept-gradients": {"clears": False},
    "clip-before-unscale": {"clips_scaled": True},
    "step-beside-scaler": {"beside": True},
    "unscaled-twice": {"twice": True},
}
OF_SCALERS = {"clip-before-unscale", "step-beside-scaler", "unscaled-twice"}
"""These faults need a gradient scaler, which a run in FP64 or in complex numbers has not."""

ALSO = {
    "overflow-forward": {"nonfinite-weights"},
}
"""Findings that come with the fault by right: nothing skips."""

OTHERWISE = {
    ("backward-never-finite", "FP64"): "nonfinite-weights",
    ("backward-never-finite", "complex"): "nonfinite-weights",
}
"""Without a scaler nothing skips; FP16 is only what such a run is judged by."""


def run(
    *, simulate=False, dtype=torch.float32, ends=False, optimizers=1, parts=1, clip=0.0,
    within=lambda x: x, steps=STEPS, loss=lambda loss, i: loss,
    steps_optimizer=True, buffer=0.0, clips_scaled=False, beside=False, scaled=True,
    twice=False, clears=True,
):  # fmt: skip
    layers = nn.Linear(8, 16), nn.Tanh(), Within(within), nn.Linear(16, 4)
    model = seeded(lambda: nn.Sequential(*layers)).to(dtype)
    model.register_buffer("kept", torch.zeros(1))
    x, y = (t.to(dtype) for t in regression())
    low = dtype is torch.float32
    parameters = list(model.parameters())
    groups = [parameters[k::optimizers] for k in range(optimizers)]
    steppers = [torch.optim.SGD(group, lr=0.01) for group in groups]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=low and scaled)

    @contextmanager
    def numbers():
        if low and not simulate:
            with half():
                yield
        elif low:
            with simulated(FP16, model=model):
                yield
        else:
            yield

    def losses(i):
        for part in range(parts):
            with numbers():
                out = model(x[part::parts])
                missed = (out.to(dtype) - y[part::parts]).abs().square().mean()
                one = loss(missed, i)
                scaler.scale(one / parts).backward()
            yield one.detach() / parts

    health = Health(model, steppers[0], scaler=scaler)
    with suppress(Ended), health:
        for i in range(steps):
            for stepper in steppers if clears else ():
                stepper.zero_grad()
            total = sum(losses(i))
            if clips_scaled:
                nn.utils.clip_grad_norm_(parameters, 1e-3)
            for stepper in steppers if steps_optimizer else ():
                if twice:  # as for each of several micro-batches
                    scaler.unscale_(stepper)
                    scaler.update()
                if clip or clips_scaled:
                    scaler.unscale_(stepper)
                if clip:
                    nn.utils.clip_grad_norm_(stepper.param_groups[0]["params"], clip)
                scaler.step(stepper)
                if beside:
                    stepper.step()
            if steps_optimizer:
                scaler.update()
            model.kept.fill_(buffer)
            health.step(total)
        if ends:
            raise Ended
    return health.report()


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("mode", MODES)
def test_a_healthy_run_is_silent_in_each_mode(mode):
    found = [f.code for f in run(**MODES[mode]).findings]
    assert found == ["ended-by-exception"] * ("ends" in MODES[mode])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("mode", MODES)
def test_each_fault_is_named_in_each_mode(mode):
    missed = {}
    for fault, options in FAULTS.items():
        if fault in OF_SCALERS and "dtype" in MODES[mode]:
            continue
        if fault == "gradient-underflow" and "dtype" in MODES[mode]:
            continue  # nothing is lost
        report = run(**MODES[mode] | options)
        found = [f.code for f in report.findings]
        if OTHERWISE.get((fault, mode), fault) not in found or report.evidence.error:
            missed[fault] = found, report.evidence.error
        more = set(report.codes) - {fault, *ALSO.get(fault, ())}
        if more - {OTHERWISE.get((fault, mode))}:
            missed[fault] = found
        if "ends" in MODES[mode]:
            assert "ended-by-exception" in found
    assert missed == {}
