"""The figures of time steps: what they measure, and whether they can be read."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from legible import assert_legible, words_of

from mplab import BF16, FP8_E4M3, FP16, encode, next_down, round_to
from mplab.lessons.l16 import figures
from mplab.lessons.l16.figures import FreezingPoints, SimulationErrors, cycle
from mplab.lessons.l16.integration import integrate

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


def test_courses_are_legible_and_say_where_they_end():
    path = integrate(lambda t: -0.1 * (t - 20), 90.0, 1.0, 20, FP8_E4M3)
    courses = {"exact": 20 + 70 * np.exp(-0.1 * np.arange(21)), "E4M3": path}
    picture = assert_legible(figures.time_courses(courses, until=20))
    assert picture.claim == "After 20 minutes E4M3 ends 10.5 °C above exact."
    assert "29.473 (exact) and 40 (E4M3)" in picture.alt
    assert {"exact", "E4M3", "minutes"} <= words_of(picture)


def test_the_freezing_lines_are_legible_and_count_their_runs():
    steps = 2.0 ** np.arange(-7, 1)
    line = np.linspace(90, 30, 8)
    found = FreezingPoints(FP16, steps, line, steps[::-1], line[::-1])
    picture = figures.plot_freezing_points(
        [found, found._replace(fmt=BF16, reached=line)]
    )
    assert_legible(picture)
    assert picture.claim.startswith("8 of 16 runs stop where the rule says")


def test_errors_are_legible_and_name_the_least():
    x = 2.0 ** -np.arange(8)
    errors = 2.0 ** abs(np.arange(8) - 5) / 64
    curve = SimulationErrors(FP16, "nearest", "cups", "error", "step", x, errors)
    curves = [curve, curve._replace(fmt=BF16, method="kahan", errors=2 * errors)]
    picture = assert_legible(figures.plot_simulation_errors(curves))
    best = "0.016 with FP16 to nearest, 0.031 with BF16 Kahan"
    assert picture.claim == f"Of cups: the error is at best {best}."
    with pytest.raises(ValueError):
        figures.plot_simulation_errors([curve, curve._replace(axis="intervals")])


def test_orbits_are_legible_and_count_states():
    run = np.array([[1.0, 0, 2], [3, 0, 4], [5, 0, 6]])[[0, 1, 2, 1, 2]]
    picture = assert_legible(
        figures.orbits({"one": run, "two": np.arange(15.0).reshape(5, 3)})
    )
    assert picture.claim == (
        "In 4 steps one visits 3 states, then the last 2 again and again; two visits 5 states."
    )
