"""The figures of lesson 5: errors of sums and products, and sums that stop."""

import numpy as np
import pytest
from legible import assert_legible, words_of

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, round_to
from mplab.arithmetic import bounds
from mplab.lessons.l05 import figures

pytestmark = pytest.mark.slow


def test_errors_are_measured_against_exact_sums():
    curve = figures.measure_sum_errors(FP16, most=4096, draws=4)
    assert curve.lengths.tolist() == [2**k for k in range(1, 13)]
    limits = [bounds.linear_bound(int(n), FP16) for n in curve.lengths]
    assert np.all(curve.errors <= limits)
    better = figures.measure_sum_errors(FP16, order="pairwise", most=4096, draws=4)
    assert better.errors[-1] < curve.errors[-1] / 4


def test_error_growth_names_every_curve_and_both_bounds():
    kinds = [
        (FP16, "sequential"),
        (FP16, "pairwise"),
        (FP16, "kahan"),
        (FP32, "sequential"),
    ]
    curves = [
        figures.measure_sum_errors(f, order=o, most=8192, draws=4) for f, o in kinds
    ]
    picture = assert_legible(figures.plot_sum_errors(curves, bounds_of=FP16))
    named = {"FP16 sequential", "FP16 pairwise", "FP32 sequential", "n·u for FP16"}
    assert named <= words_of(picture)
    assert "FP16 sequential is off by 50%" in picture.claim
    within = "FP16 pairwise, FP16 Kahan and FP32 sequential by at most one rounding."
    assert picture.claim.endswith(within)


def test_stagnation_says_where_each_format_stops():
    picture = assert_legible(figures.stagnation([FP32, FP16, BF16, FP8_E4M3, FP8_E5M2]))
    stops = "2048 in FP16, 256 in BF16, 16 in FP8_E4M3, 8 in FP8_E5M2"
    assert picture.claim == f"Adding ones stops at {stops}."
    assert figures.stagnation([FP32]).claim == "No sum of ones has stopped."


def test_mixed_signs_hide_the_growth_of_errors():
    positive, mixed = (
        figures.measure_sum_errors(FP16, signed=x) for x in (False, True)
    )
    assert mixed.errors[-1] < positive.errors[-1] / 1000
    picture = assert_legible(figures.plot_sum_errors([positive, mixed], bounds_of=FP16))
    assert {"FP16 sequential", "FP16 sequential, mixed signs"} <= words_of(picture)


def test_the_sum_must_be_wide_and_the_products_need_not():
    found = figures.measure_product_errors(FP16, most=4096)
    narrow = found.errors[None, FP16][-1]
    wide = found.errors[FP16, FP32][-1]
    assert narrow > 1000 * wide
    assert found.errors[FP16, FP32][-1] < found.errors[FP16, FP32][0]
    picture = assert_legible(figures.plot_product_errors(found))
    assert picture.claim == (
        f"Operands from 0 to 1: after 4,096 products, an FP16 sum is off by {narrow:.1%}; an FP32 "
        "sum of exact products by about 2⁻²⁰, and of FP16 products by about 2⁻¹⁸."
    )


def test_products_of_small_operands_are_measured_and_say_so():
    found = figures.measure_product_errors(FP16, most=64, below=2.0**-12)
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.random((6, 64)) * 2.0**-12, FP16) for _ in range(2))
    rounded = (a[:, None] * b[None]).astype(np.float16).astype(float).sum(-1)
    off = np.sqrt(np.mean((rounded / (a @ b.T) - 1) ** 2))
    assert found.errors[FP16, FP32][-1] == pytest.approx(off, rel=1e-6)
    picture = assert_legible(figures.plot_product_errors(found))
    assert picture.claim.startswith("Operands from 0 to 2⁻¹²: after 64 products, ")
