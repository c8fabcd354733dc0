"""The figures of conditioning: what they measure, and whether they can be read."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mplab import BF16, FP16, FP32
from mplab.lessons.l14 import figures
from mplab.lessons.l14.figures import PROBLEMS, _error, medians

pytestmark = pytest.mark.slow

every_problem = pytest.mark.parametrize("name", PROBLEMS)


def drawn(name, fmt, draws=3):
    """Data of a problem by level."""
    rng = np.random.default_rng(1)
    problem = PROBLEMS[name]
    return [problem.draw(rng, level, fmt, draws) for _, level in problem.levels]


@every_problem
def test_the_condition_is_what_small_changes_of_the_data_do_at_most(name):
    """Against random changes of proportion 2^-30, which it bounds and nearly reaches."""
    problem = PROBLEMS[name]
    rng = np.random.default_rng(2)
    tiny = 2.0**-30
    # Before, the roots move by more than a first order.
    for data in drawn(name, FP32)[3:]:
        exact = problem.exact(data)
        condition = problem.condition(data)
        reached = np.zeros_like(condition)
        for _ in range(200):
            signs = [rng.choice([-1.0, 1.0], x.shape) for x in data]
            moved = tuple(x * (1 + tiny * s) for x, s in zip(data, signs, strict=True))
            change = abs(problem.exact(moved) - exact) / abs(exact) / tiny
            reached = np.maximum(reached, change)
        assert np.all((0.1 * condition <= reached) & (reached <= 1.02 * condition))


def test_exact_results_are_those_of_fractions():
    for data in drawn("variance", FP16, 2):
        for column, found in zip(
            data[0].T, PROBLEMS["variance"].exact(data), strict=True
        ):
            x = [Fraction(v) for v in column.tolist()]
            mean = sum(x) / len(x)
            wanted = sum((v - mean) ** 2 for v in x) / len(x)
            assert math.isclose(found, wanted, rel_tol=1e-12)
    for b, c in drawn("small root", FP32, 4):
        for b0, c0, r in zip(b, c, PROBLEMS["small root"].exact((b, c)), strict=True):
            b1, c1, r1 = (Fraction(float(v)) for v in (b0, c0, r))
            slope = 2 * (b1 - r1)  # Newton's step is the error left
            assert abs((r1 * r1 - 2 * b1 * r1 + c1) / slope) < r1 * Fraction(1, 10**9)


def test_without_a_number_the_error_is_everything():
    off = _error(np.array([np.nan, np.inf, -np.inf, 5.0, 1.5]), np.ones(5))
    assert off.tolist() == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_where_rounding_leaves_nothing_to_find_there_is_no_error():
    found = figures.measure_formula_errors("variance", BF16)
    for errors in found.errors.values():
        assert np.isnan(errors[-1]).any()
        assert np.isnan(medians(errors[-1:] + np.nan)[0])
    assert np.isinf(np.median(found.conditions[-1]))
