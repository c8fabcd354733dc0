"""The figures of meters, long products and updates: what they claim, and how they look."""

import numpy as np
import pytest
from legible import assert_legible, drawn_texts

from mplab import BF16, FP8_E4M3, FP16, FP32, round_to, ulp
from mplab import pictures as figures
from mplab.arithmetic import descend, mma, path


def words_of(picture):
    return {text for text, _ in drawn_texts(picture)}


def lines_of(picture, panel=0):
    return [line.get_ydata() for line in picture.axes[panel].get_lines()]


def test_the_loss_meter_draws_what_a_loop_would_report():
    losses = round_to(np.linspace(2.3, 2.7, 4000), FP32)
    picture = figures.loss_meter(losses, [BF16, FP32])
    assert_legible(picture)
    assert picture.claim == (
        "The loss goes from 2.3 to 2.7; the meter reports 0.256 in BF16 and 2.5 in FP32."
    )
    total, means = 0.0, []
    for n, loss in enumerate(losses[:500], start=1):
        total = float(round_to(total + loss, BF16))
        means.append(total / n)
    np.testing.assert_array_equal(lines_of(picture)[1][:500], means)


@pytest.mark.slow
def test_mixed_signs_hide_the_growth_of_errors():
    positive, mixed = (figures.measured_errors(FP16, signed=x) for x in (False, True))
    assert mixed.errors[-1] < positive.errors[-1] / 1000
    picture = figures.error_growth([positive, mixed], bounds_of=FP16)
    assert_legible(picture)
    assert {"FP16 sequential", "FP16 sequential, mixed signs"} <= words_of(picture)


def test_the_sum_must_be_wide_and_the_products_need_not():
    found = figures.product_errors(FP16, most=4096)
    narrow, wide = found.errors[None, FP16][-1], found.errors[FP16, FP32][-1]
    assert narrow > 1000 * wide
    assert found.errors[FP16, FP32][-1] < found.errors[FP16, FP32][0]
    picture = figures.accumulators(found)
    assert_legible(picture)
    assert picture.claim == (
        f"Operands from 0 to 1: after 4,096 products, an FP16 sum is off by {narrow:.2g}; FP16 "
        f"products in an FP32 sum, by {wide:.2g}."
    )


def test_products_of_small_operands_are_measured_and_say_so():
    found = figures.product_errors(FP16, most=64, below=2.0**-12)
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.random((6, 64)) * 2.0**-12, FP16) for _ in range(2))
    rounded = (a[:, None] * b[None]).astype(np.float16).astype(float).sum(-1)
    off = np.sqrt(np.mean((rounded / (a @ b.T) - 1) ** 2))
    assert found.errors[FP16, FP32][-1] == pytest.approx(off, rel=1e-6)
    picture = figures.accumulators(found)
    assert_legible(picture)
    assert picture.claim.startswith("Operands from 0 to 2⁻¹²: after 64 products, ")


@pytest.mark.slow
def test_cut_sums_lie_on_one_side_and_rounded_ones_on_both():
    errors = figures.cut_errors(terms=1024)
    assert np.all(errors.cut < 0)
    assert np.min(errors.rounded) < 0 < np.max(errors.rounded)
    assert abs(errors.rounded.mean()) < abs(errors.cut.mean()) / 20
    picture = figures.cutting(errors)
    assert_legible(picture)
    assert picture.claim.startswith("FP16 operands in [½, 1]: all 256 cut sums are too small, by ")
    some = errors._replace(cut=np.append(errors.cut, 1e-9))
    assert "[½, 1]: 256 of 257 cut sums are too small" in figures.cutting(some).claim


@pytest.mark.slow
def test_the_figure_of_cuts_tells_the_cut_of_products_from_that_of_the_sum():
    """The operands have all bits of FP16: with 8 bits, a product loses little to the alignment."""
    errors = figures.cut_errors(terms=4096)
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.uniform(0.5, 1, (16, 4096)), FP16) for _ in range(2))
    exact = a @ b.T
    np.testing.assert_array_equal(errors.cut, (mma(a, b.T) / exact - 1).ravel())
    cut, written = -errors.cut.mean() / 2.0**-24, -errors.written.mean() / 2.0**-24
    assert 400 < cut < 450
    assert written < cut / 5
    picture = figures.cutting(errors)
    assert_legible(picture)
    assert f"by {cut:.0f} u on average; by {written:.0f} u if only what is written" in picture.claim
    assert {"if it rounded", "if it cut only\nwhat it writes"} <= words_of(picture)


def test_weight_paths_say_how_far_each_weight_came():
    paths = path(np.array([0.1, 0.4, 1.0, 2.0]), 0.003, 1000, BF16)
    picture = figures.weight_paths(paths, update=0.003)
    assert_legible(picture)
    assert picture.claim == (
        "1,000 updates of 0.003 should add 3 to each weight. In BF16 they add 0.9, 0.6, 0 and 0."
    )
    assert "0.1 → 1" in words_of(picture)


def test_the_staircase_is_the_limit_of_rounding():
    formats = [FP32, FP16, BF16, FP8_E4M3]
    picture = figures.least_updates(formats, update=0.003)
    assert_legible(picture)
    for line, fmt in zip(picture.axes[0].get_lines(), formats, strict=False):
        weights, limits = line.get_xdata(), line.get_ydata()
        on = round_to(weights, fmt) == weights
        assert on.sum() > 10
        above = round_to(weights[on] + 1.01 * limits[on], fmt)
        below = round_to(weights[on] + 0.99 * limits[on], fmt)
        assert np.all(above > weights[on])
        np.testing.assert_array_equal(below, weights[on])
    assert f"2⁻⁸ in {BF16.name}" in picture.claim
    assert ulp(1.0, BF16) == 2.0**-7
    assert "Δ = 0.003" in words_of(picture)


@pytest.mark.slow
def test_descents_compare_losses_and_the_weights_that_move():
    runs = [descend(BF16, method=m, steps=1500) for m in ("nearest", "master", "stochastic")]
    picture = figures.descents(runs)
    assert_legible(picture)
    assert picture.claim.startswith(
        f"With BF16 weights the last loss is {runs[0].loss[-1]:.2g} to nearest (0%), "
    )
    np.testing.assert_array_equal(lines_of(picture)[0], runs[0].loss)
    assert {"BF16, to nearest", "BF16, FP32 master", "loss"} <= words_of(picture)
    assert_legible(figures.descents(runs[:1]))


def test_the_scatter_of_coins_is_drawn_about_the_exact_line():
    many = path(np.ones(300), -2e-4, 1000, BF16, method="stochastic", seed=1)
    picture = figures.stochastic_spread(many, update=-2e-4)
    assert_legible(picture)
    assert picture.claim == (
        f"300 weights rounded by coin average {many[-1].mean():.4f}, where 0.8 is exact; single "
        f"ones scatter by ±{many[-1].std():.2g}."
    )
    assert {"to nearest", "exact", "one of them", "their mean"} <= words_of(picture)
