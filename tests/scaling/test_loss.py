"""The loss scale, against torch's own; and the scales of tensors in FP8."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mplab import FP8_E4M3, FP8_E5M2, Overflow, round_to
from mplab.scaling import CurrentScaling, DelayedScaling, FixedScaling, LossScaler, scale_for


def torch_scaler(init_scale=65536.0, **options):
    """torch's scaler and a function that ends a step with or without an infinity."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, **options)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    taken = []
    optimizer.register_step_post_hook(lambda *_: taken.append(True))

    def step(found_nonfinite):
        scaler.scale(torch.zeros(()))  # makes the scale, lazily
        parameter.grad = torch.tensor([math.inf if found_nonfinite else 1.0])
        taken.clear()
        scaler.step(optimizer)
        scaler.update()
        return not taken

    return scaler, step


def bits(x):
    return np.float32(x).view(np.uint32).item()


def assert_identical(events, init_scale, **options):
    ours = LossScaler(init_scale, **options)
    theirs, step = torch_scaler(init_scale, **options)
    for number, found in enumerate(events):
        assert ours.update(found) == step(found), f"step {number}"
        assert bits(ours.scale) == bits(theirs.get_scale()), f"step {number}"
        assert ours.state_dict() == theirs.state_dict(), f"step {number}"


SCALES = st.floats(min_value=2.0**-126, max_value=2.0**127, width=32)


@settings(deadline=None)  # the first call compiles the rounding
@given(
    events=st.lists(st.booleans(), min_size=1, max_size=60),
    init_scale=st.sampled_from([65536.0, 2.0**28, 1.0, 3.0]) | SCALES,
    growth_factor=st.sampled_from([2.0, 1.1, 1.5, 1e3]),
    backoff_factor=st.sampled_from([0.5, 0.9, 0.125, 0.3]),
    growth_interval=st.integers(1, 7),
)
def test_every_state_and_event_is_that_of_torch(events, init_scale, **options):
    assert_identical(events, init_scale, **options)


@pytest.mark.parametrize("growth_interval", [1, 2, 3])
def test_every_sequence_of_eight_steps_goes_as_in_torch(growth_interval):
    for events in itertools.product([False, True], repeat=8):
        assert_identical(events, 65536.0, growth_interval=growth_interval)


def test_the_defaults_and_their_growth_interval_are_those_of_torch():
    events = [False] * 1999 + [True] + [False] * 2001 + [True, True, False]
    assert_identical(events, 65536.0)


@pytest.mark.parametrize("found", [True, False])
def test_the_scale_stays_finite_going_up_and_ends_at_zero_going_down_as_in_torch(found):
    assert_identical([found] * 300, 2.0**-100 if found else 2.0**100, growth_interval=1)


def test_a_bad_step_starts_the_count_of_good_steps_again():
    scaler = LossScaler(8.0, growth_interval=3)
    trace = []
    for found in (False, False, True, False, False, False):
        scaler.update(found)
        trace.append(scaler.scale)
    assert trace == [8, 8, 4, 4, 4, 8]


def test_a_static_scale_never_changes_and_never_skips():
    scaler = LossScaler(2.0**28, growth_interval=1, dynamic=False)
    assert [scaler.update(found) for found in (True, False, True)] == [False] * 3
    assert scaler.scale == 2.0**28


def test_the_scale_is_a_float32():
    assert LossScaler(0.1).scale == float(np.float32(0.1)) != 0.1


def test_a_state_moves_between_this_scaler_and_torch_in_both_directions():
    ours, (theirs, step) = LossScaler(growth_interval=4), torch_scaler(growth_interval=4)
    for found in (True, False, False):
        ours.update(found)
    theirs.load_state_dict(ours.state_dict())
    step(False)
    ours.update(False)
    back = LossScaler()
    back.load_state_dict(theirs.state_dict())
    assert back.state_dict() == ours.state_dict() == theirs.state_dict()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"init_scale": 0.0}, "init_scale must be positive"),
        ({"init_scale": -1.0}, "init_scale must be positive"),
        ({"init_scale": 1e39}, "init_scale must be positive and finite in float32; got 1e[+]39"),
        ({"init_scale": math.nan}, "init_scale must be positive"),
        ({"growth_factor": 1.0}, "growth_factor must lie between 1 and inf"),
        ({"growth_factor": math.inf}, "growth_factor must lie between 1 and inf"),
        ({"backoff_factor": 1.0}, "backoff_factor must lie between 0 and 1"),
        ({"backoff_factor": 0.0}, "backoff_factor must lie between 0 and 1"),
        ({"growth_interval": 0}, "growth_interval must be at least 1; got 0"),
    ],
)
def test_an_argument_out_of_range_is_refused(options, error):
    with pytest.raises(ValueError, match=f"LossScaler: {error}"):
        LossScaler(**options)


@pytest.mark.parametrize(
    "options",
    [{"init_scale": "8"}, {"init_scale": True}, {"growth_interval": 2.0}, {"dynamic": 1}],
)
def test_an_argument_of_another_type_is_refused(options):
    with pytest.raises(TypeError, match=f"LossScaler: {next(iter(options))} must be "):
        LossScaler(**options)


def test_an_event_must_be_a_bool():
    with pytest.raises(TypeError, match="found_nonfinite must be True or False; got nan"):
        LossScaler().update(math.nan)


@pytest.mark.parametrize("change", [{"extra": 1}, {"scale": -1.0}, {"_growth_tracker": -1}])
def test_a_bad_state_is_refused_and_leaves_the_scaler_as_it_was(change):
    scaler = LossScaler(4.0)
    with pytest.raises(ValueError, match="LossScaler"):
        scaler.load_state_dict(scaler.state_dict() | {"growth_factor": 3.0} | change)
    assert scaler.state_dict() == LossScaler(4.0).state_dict()


# FP8 -----------------------------------------------------------------------------------


def slow_delayed(amaxes, length, most_recent, fmt):
    """Scales by the definition: each from a window of the amaxes before it."""
    scale, scales = 1.0, []
    for step, _ in enumerate(amaxes):
        window = amaxes[max(0, step - length) : step]
        known = [a for a in (window[-1:] if most_recent else window) if not math.isnan(a)]
        if known and 0 < max(known) < math.inf:
            scale = scale_for(max(known), fmt)
        scales.append(scale)
    return scales


AMAXES = st.floats(0, 1e6, width=32) | st.sampled_from([0.0, math.inf, math.nan, 1.0, 448.0])


@given(
    amaxes=st.lists(AMAXES, max_size=30),
    length=st.integers(1, 6),
    amax_compute=st.sampled_from(["max", "most_recent"]),
    fmt=st.sampled_from([FP8_E4M3, FP8_E5M2]),
)
def test_a_delayed_scale_follows_from_the_amaxes_before_it(amaxes, length, amax_compute, fmt):
    scaling = DelayedScaling(fmt, amax_history_len=length, amax_compute=amax_compute)
    got = [scaling.update(amax) for amax in amaxes]
    assert got == slow_delayed(amaxes, length, amax_compute == "most_recent", fmt)
    assert repr(scaling.amax_history) == repr(tuple(amaxes[-length:]))


@given(amaxes=st.lists(AMAXES, min_size=2, max_size=20), cut=st.integers(0, 20))
def test_a_saved_delayed_scaling_goes_on_as_if_nothing_had_happened(amaxes, cut):
    through, before = (DelayedScaling(FP8_E4M3, amax_history_len=3) for _ in range(2))
    expected = [through.update(a) for a in amaxes]
    first = [before.update(a) for a in amaxes[:cut]]
    after = DelayedScaling(FP8_E4M3, amax_history_len=3)
    after.load_state_dict(before.state_dict())
    assert first + [after.update(a) for a in amaxes[cut:]] == expected


def cast(x, scale, overflow=Overflow.SATURATE):
    return round_to(np.float32(x * scale), FP8_E4M3, overflow=overflow) / scale


def spike_run(scaling, *, overflow=Overflow.SATURATE):
    """Forty calm tensors but one, 3e5 times as large: for each, clipped and flushed shares."""
    generator = np.random.default_rng(0)
    rows = []
    for step in range(40):
        x = generator.normal(size=500) * (3e5 if step == 20 else 1)
        scale = scaling.update(float(np.abs(x).max()))
        got = cast(x, scale, overflow)
        clipped = np.mean(np.abs(x * scale) > 464) if scale else 0
        rows.append((clipped, np.mean((got == 0) & (x != 0)), bool(np.isnan(got).any())))
    return np.array(rows)


@pytest.mark.parametrize(
    ("scaling", "clipped_at_spike", "steps_flushed"),
    [
        (DelayedScaling(FP8_E4M3, amax_history_len=16), True, 16),
        (DelayedScaling(FP8_E4M3, amax_history_len=4), True, 4),
        (DelayedScaling(FP8_E4M3, amax_history_len=16, amax_compute="most_recent"), True, 1),
        (CurrentScaling(FP8_E4M3), False, 0),
    ],
    ids=["history 16", "history 4", "most recent", "current"],
)
def test_a_spike_clips_one_tensor_and_flushes_the_next_as_long_as_it_is_remembered(
    scaling, clipped_at_spike, steps_flushed
):
    clipped, flushed, _ = spike_run(scaling).T
    assert (clipped[20] > 0.99) == clipped_at_spike
    assert (clipped[1:20] < 0.1).all()
    after = np.flatnonzero(flushed > 0.9)
    assert after.tolist() == list(range(21, 21 + steps_flushed))


def test_without_saturation_delayed_scaling_gives_nan_at_the_spike():
    scaling = DelayedScaling(FP8_E4M3, amax_history_len=16)
    nan = spike_run(scaling, overflow=Overflow.IEEE)[:, 2]
    assert nan[20]


def test_current_scaling_never_leaves_the_range():
    scaling = CurrentScaling(FP8_E4M3, power_of_two=False)
    for amax in (1e-30, 0.3, 448.0, 3e38):
        assert amax * scaling.update(amax) == pytest.approx(448.0, rel=1e-6)
    assert math.isnan(scaling.update(math.inf))


def test_scalings_without_state_say_so():
    for scaling in (CurrentScaling(FP8_E4M3), FixedScaling()):
        assert scaling.state_dict() == {}
        scaling.load_state_dict({})
        with pytest.raises(ValueError, match="must have the keys of none; got scale"):
            scaling.load_state_dict({"scale": 1.0})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"amax_history_len": 0}, "DelayedScaling: amax_history_len must be at least 1"),
        ({"amax_compute": "mean"}, "DelayedScaling: amax_compute must be 'max' or 'most_recent'"),
        ({"margin": -200}, "DelayedScaling: margin must be at least"),
    ],
)
def test_a_bad_option_of_delayed_scaling_is_refused(options, error):
    with pytest.raises(ValueError, match=error):
        DelayedScaling(FP8_E4M3, **options)


def test_a_longer_history_than_there_is_room_for_is_refused():
    state = {"scale": 2.0, "amax_history": [1.0] * 5}
    scaling = DelayedScaling(FP8_E4M3, amax_history_len=4)
    with pytest.raises(ValueError, match="at most 4 numbers; got 5"):
        scaling.load_state_dict(state)
    assert scaling.scale == 1.0
