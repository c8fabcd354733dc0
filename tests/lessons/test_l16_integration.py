"""Time steps in a format: each increment and addition by Fractions, and where a step is lost."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from cases import assert_same_bits
from exact_arithmetic import nearest

from mplab import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    encode,
    round_to,
    values,
)
from mplab.arithmetic import METHODS, FloatArray, Weights
from mplab.lessons.l16.figures import ROOM, cooling
from mplab.lessons.l16.integration import integrate, step_is_lost


# Every step ------------------------------------------------------------------------------
def weighed(scheme, y, dt):
    """The increment of y′ = −y, which schemes of order p give Taylor's first p terms."""
    terms = {"euler": 1, "midpoint": 2, "rk4": 4}[scheme]
    total = Fraction(0)
    term = Fraction(1)
    for n in range(1, terms + 1):
        term = term * -Fraction(dt) / n
        total += term
    return total * y


@pytest.mark.parametrize("scheme", ["euler", "midpoint", "rk4"])
def test_an_increment_is_that_of_its_scheme(scheme):
    """On y′ = −y with numbers of few digits float64 rounds nothing; FP32 as the state nor."""
    for start in (1.0, -3.0, 2.0**10):
        path = integrate(lambda y: -y, start, 2.0**-3, 1, FP32, scheme=scheme)
        want = Fraction(start) + nearest(
            weighed(scheme, Fraction(start), 2.0**-3), FP32
        )
        assert abs(Fraction(float(path[1])) - want) <= abs(want) * Fraction(2) ** -24


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2], ids=lambda f: f.name)
def test_every_step_to_nearest_is_that_of_fractions(fmt):
    for dt in (1.0, 0.1, 0.01):
        path = integrate(cooling, 90.0, dt, 60, fmt)
        y = nearest(Fraction(90), fmt)
        for got in path[1:].tolist():
            y = nearest(y + nearest(Fraction(dt * cooling(float(y))), FP32), fmt)
            assert got == y


@pytest.mark.parametrize("method", METHODS)
def test_increments_are_added_as_weights_add_updates(method):
    start = np.array([[90.0, 70.0, 3.0], [20.0, -5.0, 0.0]])
    path = integrate(cooling, start, 0.25, 40, BF16, method=method, seed=7)
    state = Weights(round_to(start, BF16), BF16, method=method, seed=7)
    for got in path[1:]:
        state.add(0.25 * cooling(state.values))
        assert_same_bits(got, state.values)
    assert path.shape == (41, 2, 3)


def test_a_right_hand_side_of_a_format_rounds_every_operation():
    def rounded(y):
        t = FloatArray(y, FP8_E4M3)
        return FloatArray.rounded(0.1, FP8_E4M3) * (ROOM - t)

    rate = Fraction(0.1015625)
    room = Fraction(ROOM)
    y = nearest(Fraction(90), FP8_E4M3)
    for got in integrate(rounded, 90.0, 1.0, 12, FP8_E4M3)[1:].tolist():
        y = nearest(y + nearest(rate * nearest(room - y, FP8_E4M3), FP8_E4M3), FP8_E4M3)
        assert got == y


def test_the_state_is_rounded_before_the_first_step_and_no_step_leaves_it():
    assert integrate(cooling, 0.1, 1.0, 0, FP16).tolist() == [round_to(0.1, FP16)]
    assert integrate(cooling, np.ones((0, 2)), 1.0, 3, FP16).shape == (4, 0, 2)


def test_a_rate_may_write_to_its_argument():
    path = integrate(lambda y: np.negative(y, out=y), [1.0, 2.0], 0.5, 3, FP16)
    assert_same_bits(path, integrate(np.negative, [1.0, 2.0], 0.5, 3, FP16))


def test_a_run_that_diverges_ends_in_infinity_or_nan():
    assert not np.isfinite(
        integrate(lambda y: y * y, 100.0, 1.0, 40, FP16, scheme="rk4")[-1]
    )


# Where it stops --------------------------------------------------------------------------
FROZEN = {
    FP16: {1.0: 20.0625, 0.1: 20.78125, 0.01: 35.625},
    BF16: {1.0: 20.5, 0.1: 32.5, 0.01: 90.0},
    FP8_E4M3: {1.0: 40.0, 0.1: 88.0, 0.01: 88.0},
}


@pytest.mark.parametrize("fmt", FROZEN, ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dt", [1.0, 0.1, 0.01])
def test_coffee_stays_hot_from_where_half_an_ulp_says(fmt, dt):
    """The rule finds it among the values of the format, in Fractions: four of nine are ties."""
    ordered = np.unique(values(fmt)[np.isfinite(values(fmt))])
    first = np.searchsorted(ordered, ROOM)
    hottest = ROOM
    for below, t in pairwise(
        ordered[first : np.searchsorted(ordered, round_to(90.0, fmt)) + 1]
    ):
        step = (Fraction(t) - 20) / 10 * Fraction(str(dt))
        half = (Fraction(t) - Fraction(below)) / 2
        if step < half or (step == half and encode(t, fmt) % 2 == 0):
            hottest = t
    assert hottest == FROZEN[fmt][dt]
    path = integrate(cooling, 90.0, dt, round(100 / dt), fmt)
    assert path[-1] == hottest
    np.testing.assert_array_equal(
        step_is_lost(cooling, path[:-1], dt, fmt), path[1:] == path[:-1]
    )


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2], ids=lambda f: f.name)
def test_freezing_is_decided_at_half_the_gap_on_each_side_of_each_value(fmt):
    """A step of half the gap freezes even significands alone; FP32's next one, none."""
    ordered = np.unique(values(fmt)[np.isfinite(values(fmt))])
    for i in range(1, len(ordered) - 1):
        y = ordered[i]
        even = (i - len(ordered) // 2) % 2 == 0
        for other in (ordered[i - 1], ordered[i + 1]):
            half = (other - y) / 2
            over = np.nextafter(np.float32(half), np.float32(2 * half))
            under = np.nextafter(np.float32(half), np.float32(0))
            for step, want in (
                (half, even),
                (float(over), False),
                (float(under), True),
            ):
                assert step_is_lost(lambda _, step=step: step, y, 1.0, fmt) == want


def test_compensation_doubles_the_bits_and_no_more():
    """From 64 in BF16, with a rest in BF16; below 64 the values lie half as far apart."""
    moving = {2.0**-10: False, 2.0**-9: True, -(2.0**-11): False, -(2.0**-10): True}
    for step, moves in moving.items():
        path = integrate(lambda y: 1.0 + 0 * y, 64.0, step, 1000, BF16, method="kahan")
        assert (path[-1] != 64) == moves


def test_nan_does_not_freeze_and_rest_does():
    rest = step_is_lost(lambda y: 0 * y, [1.0, np.nan, np.inf], 1.0, FP16)
    assert rest.tolist() == [True, False, False]


def test_a_rate_of_another_shape_is_refused():
    y = [1.0, 2.0]
    for call in (
        lambda f: integrate(f, y, 1.0, 2, FP16),
        lambda f: step_is_lost(f, y, 1.0, FP16),
    ):
        for f in (lambda y: 1.0, lambda y: y[:1], lambda y: np.ones((2, 2))):
            with pytest.raises(
                ValueError, match=r": f must give the shape of the state, \(2,\)"
            ):
                call(f)
        with pytest.raises(TypeError, match=r": f must be an array of"):
            call(lambda y: None)
