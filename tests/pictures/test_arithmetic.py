"""The figures of arithmetic: what they claim, and whether they can be read."""

import numpy as np
import pytest
from legible import assert_legible, drawn_texts

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, round_to
from mplab import pictures as figures
from mplab.arithmetic import bounds, mma
from mplab.arithmetic.matrix_steps import step_bits


def test_errors_are_measured_against_exact_sums():
    curve = figures.measured_errors(FP16, most=4096, draws=4)
    assert curve.lengths.tolist() == [2**k for k in range(1, 13)]
    limits = [bounds.linear_bound(int(n), FP16) for n in curve.lengths]
    assert np.all(curve.errors <= limits)
    better = figures.measured_errors(FP16, order="pairwise", most=4096, draws=4)
    assert better.errors[-1] < curve.errors[-1] / 4


@pytest.mark.slow
def test_error_growth_names_every_curve_and_both_bounds():
    kinds = [(FP16, "sequential"), (FP16, "pairwise"), (FP16, "kahan"), (FP32, "sequential")]
    curves = [figures.measured_errors(f, order=o, most=8192, draws=4) for f, o in kinds]
    picture = figures.error_growth(curves, bounds_of=FP16)
    assert_legible(picture)
    words = {text for text, _ in drawn_texts(picture)}
    assert {"FP16 sequential", "FP16 pairwise", "FP32 sequential", "n·u for FP16"} <= words
    assert "in FP16 sequential" in picture.claim and "in FP32 sequential" in picture.claim


def test_stagnation_says_where_each_format_stops():
    picture = figures.stagnation([FP32, FP16, BF16, FP8_E4M3, FP8_E5M2])
    assert_legible(picture)
    stops = "2048 in FP16, 256 in BF16, 16 in FP8_E4M3, 8 in FP8_E5M2"
    assert picture.claim == f"Adding ones stops at {stops}."
    assert figures.stagnation([FP32], most=64).claim == "No sum of ones has stopped."


def test_promotion_repairs_fp8_on_hopper_but_has_little_to_repair_on_blackwell():
    hopper, blackwell = (
        figures.errors_by_depth(architecture=x, most=1024) for x in ("hopper", "blackwell")
    )
    assert hopper.depths.tolist() == [128, 256, 512, 1024]
    assert hopper.chained[-1] > 10 * hopper.promoted[-1]
    assert blackwell.chained[-1] < 2.0**-18
    picture = figures.promotion(hopper)
    assert_legible(picture)
    said = "Products of one sign: at K = 1024 the unit alone is off by up to"
    assert picture.claim.startswith(said)


def test_products_of_either_sign_lose_little_and_the_figure_says_of_which_sign_they_are():
    one, either = (figures.errors_by_depth(signed=x, most=1024) for x in (False, True))
    assert either.chained[-1] < one.chained[-1] / 50
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.standard_normal((32, 1024)), FP8_E4M3) for _ in range(2))
    off = np.abs(mma(a, b.T, input_format=FP8_E4M3) - a @ b.T) / (np.abs(a) @ np.abs(b).T)
    assert either.chained[-1] == off.max()
    picture = figures.promotion(either)
    assert_legible(picture)
    assert picture.claim.startswith("Products of either sign: at K = 1024 the unit alone is off")
    assert f"up to {either.chained[-1] * 100:.2g}%;" in picture.claim


@pytest.mark.slow
def test_bits_of_a_step_shows_what_is_cut():
    a = np.array([1.5, 1.125, -0.40625, 1.5 * 2.0**-6, 1.5 * 2.0**-6])
    b = np.array([1.75, 1.5 * 2.0**-8, 1.375, 1.5 * 2.0**-7, 1.25 * 2.0**-6])
    picture = figures.bits_of_a_step(a, b, c=3 * 2.0**-14)
    assert_legible(picture)
    error = 2.0**-15 + 2.0**-14 + 2.0**-15 + 2.0**-14  # cut off two products, and off C
    lost = f"3 of 6 terms lose bits to the alignment; what Hopper writes is off by −{error:.2g}."
    assert picture.claim == lost
    words = [text for text, _ in drawn_texts(picture)]
    assert "1.5·2⁻⁶ × 1.5·2⁻⁷" in words and "kept" in words and "cut" in words
    sixteen = figures.bits_of_a_step(
        np.array([1.0, 2.0**-12, 1.0]), np.array([1.0, 2.0**-13, -1.0]), input_format=FP16
    )
    assert_legible(sixteen)
    assert sixteen.claim.startswith(
        "0 of 3 terms lose bits to the alignment; what Hopper writes is e"
    )
    mixed = figures.bits_of_a_step(
        np.array([2.0**-9, 1.0]),
        np.array([2.0**15, 2.0**-12]),
        architecture="rtx_blackwell",
        input_format=(FP8_E4M3, FP8_E5M2),
    )
    assert_legible(mixed)
    assert "what RTX Blackwell writes is exact" in mixed.claim
    with pytest.raises(ValueError, match="bits_of_a_step: architecture must be one whose unit"):
        figures.bits_of_a_step([1.0], [1.0], architecture="cdna3", input_format=FP16)
    with pytest.raises(ValueError, match="bits_of_a_step: a and b must be vectors of at most 32"):
        figures.bits_of_a_step(np.ones(33), np.ones(33))


def test_the_cells_of_a_row_are_its_bits():
    a = np.array([1.5, -0.40625, 1.875 * 2.0**-6])
    step = step_bits(a, np.array([1.75, 1.375, 1.875 * 2.0**-6]), c=2.0**-13)
    assert (step.top, step.low) == (0, -13)
    for row in step.rows:
        value = sum(cell.bit * 2.0**cell.exponent for cell in step.cells(row))
        assert value == abs(row.value)
    product = [cell for cell in step.cells(step.rows[2]) if cell.bit]
    assert [(cell.exponent, cell.kept) for cell in product] == [
        *((-11, True), (-12, True), (-13, True)),
        (-18, False),
    ]
    far = step_bits(np.array([2.0**8, 2.0**-9]), np.array([2.0**8, 2.0**-9]))
    assert far.bottom == far.low - 12
    assert not any(cell.bit for cell in far.cells(far.rows[1]))
    ones = step_bits(np.ones(4), np.ones(4), c=16384.0)
    assert (ones.top, ones.low, ones.losing, ones.error) == (14, 1, 4, -4.0)
