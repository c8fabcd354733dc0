"""The figures of time steps: what they measure, and whether they can be read."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from mplab import BF16, FP8_E4M3, FP16, encode, next_down, round_to
from mplab.lessons.l16 import figures
from mplab.lessons.l16.figures import cycle

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP16, BF16], ids=lambda fmt: fmt.name)
def test_the_freezing_line_is_the_rule_of_half_the_gap_below_with_its_ties(fmt):
    """In Fractions; the rate times the step is exact but for the tenth, which is FP64's."""
    found = figures.measure_freezing_points(fmt)
    np.testing.assert_array_equal(
        found.reached, found.predicted[np.searchsorted(found.steps, found.run_steps)]
    )
    for dt, line in zip(found.run_steps.tolist(), found.reached.tolist(), strict=True):
        t = float(round_to(90.0, fmt))
        while True:
            step = Fraction(1, 10) * Fraction(dt) * (Fraction(t) - 20)
            below = float(next_down(t, fmt))
            half = (Fraction(t) - Fraction(below)) / 2
            if step < half or (step == half and encode(t, fmt) % 2 == 0):
                break
            t = below
        assert line == t


def test_errors_of_cups_are_those_of_a_loop():
    found = figures.measure_step_errors(BF16)
    start = round_to(np.random.default_rng(0).uniform(60, 95, 32), BF16)
    t = start
    exact = 20 + (start - 20) * np.exp(-1)
    for _ in range(4):
        t = round_to(t + (2.5 * -0.1 * (t - 20)).astype(np.float32), BF16)
    assert found.x[0] == 2.5
    assert found.errors[0] == pytest.approx(sqrt(np.mean((t - exact) ** 2)), rel=1e-12)


def test_a_cycle_is_what_repeats_until_the_end():
    states = np.array([5, 1, 2, 3, 1, 2, 3, 1.0])[:, None]
    assert cycle(states) == (4, 3)
    # A state again, and then another.
    assert cycle(np.array([1, 2, 1, 3.0])[:, None]) == (
        3,
        0,
    )
    assert cycle(np.array([7, 7.0])[:, None]) == (1, 1)
    assert cycle(np.arange(4.0)[:, None]) == (4, 0)
