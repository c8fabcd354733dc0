"""The figures of linear systems: what they measure, and whether they can be read."""

from fractions import Fraction

import numpy as np
import pytest
from legible import assert_legible

from mplab import BF16, FP16
from mplab.arithmetic import refine
from mplab.lessons.l15 import figures
from mplab.lessons.l15.figures import RefinementCosts

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [2, 16, 64])
@pytest.mark.parametrize("condition", [1.0, 2.0**7, 1e5, 1e10])
def test_a_random_system_has_the_condition_asked_for_and_an_exact_solution(
    condition, size
):
    for seed in range(3):
        a, b, x = figures.random_system(condition, size=size, seed=seed)
        values = np.linalg.svd(a, compute_uv=False)
        assert np.isclose(values[0] / values[-1], condition, rtol=0.05)
        ratios = values[1:] / values[:-1]
        assert np.allclose(ratios, condition ** (-1 / (size - 1)), rtol=0.05)
        for row, right in zip(a.tolist(), b.tolist(), strict=True):
            exact = sum(
                Fraction(v) * int(w) for v, w in zip(row, x.tolist(), strict=True)
            )
            assert exact == Fraction(right)
        assert set(x) <= set(range(-9, 10))


@pytest.mark.parametrize("method", ["classic", "gmres"])
def test_costs_are_the_steps_of_refine_and_nan_where_it_did_not_converge(method):
    costs = figures.measure_refinement_costs(
        BF16, method=method, size=8, draws=2, seed=3
    )
    assert costs.conditions.tolist() == [4.0**k for k in range(17)]
    for i, j in ((0, 0), (3, 1), (8, 0), (16, 1)):
        a, b, _ = figures.random_system(4.0**i, size=8, seed=3 + j)
        found = refine(a, b, factor_format=BF16, method=method)
        steps = found.steps if method == "classic" else found.inner_steps / found.steps
        assert (
            costs.taken[i, j] == steps
            if found.converged
            else np.isnan(costs.taken[i, j])
        )
    assert np.isnan(costs.taken).any() == (method == "classic")


def costs_of(taken, method="classic", size=8):
    return RefinementCosts(
        FP16, method, size, 4.0 ** np.arange(len(taken)), np.array(taken)
    )


def test_the_reach_ends_before_the_first_system_that_fails():
    nan = np.nan
    assert costs_of([[1.0, 2.0], [2.0, nan], [3.0, 3.0]]).reach == 1
    assert costs_of([[1.0, 2.0], [2.0, 2.0], [3.0, 3.0]]).reach == 16
    assert costs_of([[1.0, nan], [2.0, 2.0]]).reach == 0


def test_refinements_are_legible_and_say_who_converged():
    a, b, _ = figures.random_system(2**7, size=16)
    found = {
        "FP16": refine(a, b, factor_format=FP16),
        "FP16 of 2²⁰·A": refine(2.0**20 * a, b, factor_format=FP16, scale=False),
        "E4M3, no end": refine(a, b, factor_format=FP16, residual_format=FP16),
        "one": refine(a, b, factor_format=FP16, limit=1),
    }
    picture = assert_legible(figures.plot_refinements(found))
    stays = [
        f"{found[name].backward_errors[-1]:.0e}" for name in ("E4M3, no end", "one")
    ]
    assert picture.claim == (
        f"FP16 converges in {found['FP16'].steps} steps; FP16 of 2²⁰·A has no factors; "
        f"E4M3, no end stays at {stays[0]}; one stays at {stays[1]}."
    )
    assert len(picture.axes[0].lines) == 4  # three with a history, and 2^-52
    for line, name in zip(
        picture.axes[0].lines, ("FP16", "E4M3, no end", "one"), strict=False
    ):
        drawn = np.maximum(found[name].backward_errors, 2.0**-60)
        np.testing.assert_array_equal(line.get_ydata(), drawn)
