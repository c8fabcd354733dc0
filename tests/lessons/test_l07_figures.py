"""The figures of lesson 7: weight updates."""

import numpy as np
import pytest
from legible import assert_legible, words_of

from mplab import BF16, FP8_E4M3, FP16, FP32, round_to, ulp
from mplab.lessons.l07 import figures
from mplab.lessons.l07.descent import fit_by_gradient_descent, update_trajectory

pytestmark = pytest.mark.slow


def test_weight_paths_say_how_far_each_weight_came():
    paths = update_trajectory(np.array([0.1, 0.4, 1.0, 2.0]), 0.003, 1000, BF16)
    picture = assert_legible(figures.weight_paths(paths, update=0.003))
    assert picture.claim == (
        "1,000 updates of 0.003 should add 3 to each weight. In BF16 they add 0.9, 0.6, 0 and 0."
    )
    assert "0.1 → 1" in words_of(picture)


def test_the_staircase_is_the_limit_of_rounding():
    formats = [FP32, FP16, BF16, FP8_E4M3]
    picture = assert_legible(figures.least_updates(formats, update=0.003))
    for line, fmt in zip(picture.axes[0].get_lines(), formats, strict=False):
        weights = line.get_xdata()
        limits = line.get_ydata()
        on = round_to(weights, fmt) == weights
        assert on.sum() > 10
        above, below = (
            round_to(weights[on] + k * limits[on], fmt) for k in (1.01, 0.99)
        )
        assert np.all(above > weights[on]) and np.all(below == weights[on])
    assert f"2⁻⁸ in {BF16.name}" in picture.claim
    assert ulp(1.0, BF16) == 2.0**-7
    assert "Δ = 0.003" in words_of(picture)


def test_descents_compare_losses_and_the_weights_that_move():
    runs = [
        fit_by_gradient_descent(BF16, method=m, steps=1500)
        for m in ("nearest", "master", "stochastic")
    ]
    picture = assert_legible(figures.descents(runs))
    worst = max(runs[1].loss[-1], runs[2].loss[-1])
    assert picture.claim == (
        f"BF16 weights rounded to nearest stop moving, at a loss of {runs[0].loss[-1]:.2g}; "
        f"those with an FP32 master and those rounded by coin go on to a loss of {worst:.2g} or "
        "less."
    )
    np.testing.assert_array_equal(picture.axes[0].lines[0].get_ydata(), runs[0].loss)
    assert {"BF16, to nearest", "BF16, FP32 master", "loss"} <= words_of(picture)
    assert_legible(figures.descents(runs[:1]))


def test_the_scatter_of_coins_is_drawn_about_the_exact_line():
    many = update_trajectory(
        np.ones(300), -2e-4, 1000, BF16, method="stochastic", seed=1
    )
    picture = assert_legible(figures.stochastic_spread(many, update=-2e-4))
    assert picture.claim == (
        f"300 weights rounded by coin average {many[-1].mean():.4f}, where 0.8 is exact; single "
        f"ones scatter by ±{many[-1].std():.2g}."
    )
    assert {"to nearest", "exact", "one of them", "their mean"} <= words_of(picture)
