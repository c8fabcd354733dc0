"""The health report names what is wrong with a broken run, and is silent about its healthy twin."""

import pytest
import torch
from sick_runs import (
    BROKEN_AND_HEALTHY,
    Loop,
    clipped,
    half,
    high_scale,
    large_feature,
    mlp,
    regression,
    seeded,
)
from torch import nn

from mplab import pictures
from mplab.health import Health
from mplab.health.records import pooled_layers
from mplab.training import TASKS


@pytest.mark.parametrize("case", BROKEN_AND_HEALTHY)
def test_the_report_names_the_fault(case):
    make, broken, finding, _ = BROKEN_AND_HEALTHY[case]
    report = make(**broken)
    assert finding in report.codes, report


@pytest.mark.parametrize("case", BROKEN_AND_HEALTHY)
def test_the_report_finds_no_fault_in_the_healthy_twin(case):
    make, _, _, healthy = BROKEN_AND_HEALTHY[case]
    report = make(**healthy)
    assert report.codes == [], report


@pytest.mark.parametrize("task", ["digits-autoencoder", "digits-cnn"])
def test_zeros_of_relu_are_told_from_zeros_that_fp16_makes(task):
    """Both networks have many zeros in FP16 without a scale; only the autoencoder's are losses."""
    chosen = TASKS[task]
    torch.manual_seed(0)
    model = chosen.model()
    x, y = (t[:128] for t in chosen.data().train)
    optimizer = chosen.optimizer(model.parameters())
    with Health(model, optimizer) as health:
        for _ in range(6):
            optimizer.zero_grad()
            with half():
                out = model(x)
            loss = chosen.loss(out.float(), y)
            (loss / 8).backward()  # as from eight times the batch
            optimizer.step()
            health.step(loss)
    most = max(s.zeros / s.total for s in pooled_layers(health.steps).values())
    assert most > 0.5
    expected = ["gradient-underflow"] if task == "digits-autoencoder" else []
    assert health.report().codes == expected


def test_a_scale_that_falls_although_the_loss_is_finite_is_no_fault():
    report = high_scale()
    assert report.codes == []
    assert [f.code for f in report.findings] == ["scale-finds-its-level"]
    skipped = sum(step.skipped for step in report.steps)
    assert 0 < skipped < 20
    told = f"Nothing conspicuous in 30 steps; {skipped} skipped while the scale found its level"
    assert pictures.health(report).claim == told


def test_a_loss_that_is_not_finite_is_told_from_an_overflowing_backward_pass():
    report = large_feature(standardised=False)
    assert "scale-finds-its-level" not in [f.code for f in report.findings]
    (finding,) = (f for f in report.findings if f.code == "overflow-forward")
    assert "20 of 20 steps" in finding.observed
    assert all(step.skipped for step in report.steps)


def test_a_gradient_without_a_value_at_any_scale_is_told_from_a_scale_too_high():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g / 0.0

    class Layer(nn.Module):
        def forward(self, x):
            return Bad.apply(x)

    model = nn.Sequential(nn.Linear(8, 4), Layer())
    report = Loop(model, regression(), scale=8.0).run(12)
    assert "backward-never-finite" in report.codes
    origin = next(o for step in report.steps for o in step.origins)
    assert (origin.phase, origin.module, origin.operation) == ("backward", "1 (Layer)", "div")


# Clipping and calls ----------------------------------------------------------------------


def test_clipping_before_unscale_is_seen_by_its_norms():
    report = clipped("before")
    assert report.codes == ["clip-before-unscale"]
    assert report.steps[0].norm_at_optimizer == pytest.approx(1 / 16384, rel=1e-4)
    assert report.steps[0].gradient_norm > 1
    raw, now, scale = report.evidence.clipped_scaled
    assert (round(now, 4), scale) == (1.0, 16384.0)
    assert raw == pytest.approx(16384 * report.steps[0].gradient_norm, rel=1e-5)


def test_clipping_after_unscale_is_right_and_no_clipping_too():
    for order in ("after", ""):
        report = clipped(order)
        assert report.codes == []
    assert clipped("after").steps[0].norm_at_optimizer == pytest.approx(1.0, rel=1e-4)


def test_a_second_step_beside_the_scaler_is_counted():
    loop = Loop(seeded(mlp), regression(), scale=1024.0)
    report = loop.run(4, beside=True)
    assert report.codes == ["step-beside-scaler"]
    assert report.evidence.beside == 4
    assert Loop(seeded(mlp), regression(), scale=1024.0).run(4).codes == []
