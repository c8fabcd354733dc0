"""The clinic: broken runs show their observable, cured ones do not, and remedies fail."""

import math

import pytest
import torch
from tiers import mostly_slow

from mplab.lessons.l13.clinic import CASES, TREATMENTS, Case, scale_too_high

QUICK = ("half-adam", "clip-before-unscale", "one-block", "endless-backoff")
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_the_observable_tells_the_broken_run_from_the_cured_one_and_the_usual_remedy_fails(
    case,
):
    assert not case.is_healthy(case.broken()) and not case.is_healthy(case.wrong_fix())
    assert case.is_healthy(case.fixed())


@every_case
def test_the_health_report_names_the_fault_of_all_twelve_and_says_nothing_of_the_cured_run(
    case,
):
    findings = {c.finding for c in CASES.values()}
    assert findings & set(case.broken().report.codes) == {case.finding}
    assert (
        case.finding in case.wrong_fix().report.codes
        and case.fixed().report.codes == []
    )


@pytest.mark.parametrize("name", mostly_slow(CASES, QUICK))
def test_a_run_is_the_same_each_time_and_leaves_torch_s_randomness_alone(name):
    case = CASES[name]
    state = torch.get_rng_state()
    # Not from the cache.
    runs = (
        case.run("broken"),
        Case.run.__wrapped__(case, "broken"),
    )
    assert torch.equal(state, torch.get_rng_state())
    first, second = ([x.hex() for x in (run.observed, *run.losses)] for run in runs)
    assert first == second


def test_nan_is_never_healthy():
    case = CASES["half-adam"]
    assert not case.is_healthy(case.fixed()._replace(observed=math.nan))


# Look-alikes -----------------------------------------------------------------------------


def test_a_scale_too_high_skips_as_well_but_its_loss_is_finite():
    twin = scale_too_high()
    broken = CASES["endless-backoff"].broken()
    assert CASES["endless-backoff"].is_healthy(twin)
    assert twin.report.codes == ["scale-finds-its-level"]
    skips = [sum(step.skipped for step in run.report.steps) for run in (twin, broken)]
    assert 5 < skips[0] < 20 == skips[1]


def test_a_floor_under_the_scale_keeps_the_scale_and_not_the_run():
    scales = [
        CASES["endless-backoff"].run(t).report.steps[-1].scale for t in TREATMENTS
    ]
    assert scales[0] < 1 and scales[1:] == [128, 65536]


def test_the_two_ways_to_nan_weights_differ_in_when_and_in_the_calls():
    half = CASES["half-adam"].broken().report
    second = CASES["second-step"].broken().report
    assert half.steps[0].nonfinite_weights
    assert [bool(step.nonfinite_weights) for step in second.steps] == [False] * 6 + [
        True
    ] * 4
    assert not half.evidence.misuses
    assert len(second.evidence.misuses["step-beside-scaler"]) == 10
    assert CASES["second-step"].fixed().report.steps[6].skipped


# Numbers that can be computed another way ------------------------------------------------


def test_clipping_of_scaled_gradients_divides_the_limit_by_the_scale():
    case = CASES["clip-before-unscale"]
    assert case.broken().observed == pytest.approx(1 / 16384, rel=1e-4)
    due = min(65536 / 16384, case.wrong_fix().report.steps[0].gradient_norm)
    assert case.wrong_fix().observed == pytest.approx(due, rel=1e-4)


def test_a_meter_in_bf16_stops_at_1024():
    """Above 1024 a BF16 number is 8 from the next, and 2.3 to 2.7 are less than half of that."""
    losses = CASES["loss-meter"].broken().losses
    assert 1024 / 2000 == losses[-1] < losses[0]


def test_a_spike_spoils_as_many_steps_as_the_history_is_long():
    case = CASES["stale-amax"]
    assert case.broken().observed == 16 and case.wrong_fix().observed == 40 - 12
    broken = case.broken().losses
    cured = case.fixed().losses
    assert broken[:11] == pytest.approx(cured[:11], rel=0.05)
    # All that was learnt is unheard of.
    assert min(broken[12:28]) > 1 > 0.25 > max(cured[12:28])
    assert broken[-1] < 0.05  # and it was not lost
