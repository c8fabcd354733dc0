"""The figures of lesson 6: one step of a matrix unit, and what long products lose."""

from fractions import Fraction

import numpy as np
import pytest
from legible import assert_legible, drawn_texts, words_of
from matrix_oracle import block

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Rounding, round_to
from mplab.arithmetic import MatrixUnit, mma
from mplab.lessons.l06 import figures
from mplab.lessons.l06.matrix_steps import step_bits

pytestmark = pytest.mark.slow


def test_promotion_repairs_fp8_on_hopper_but_has_little_to_repair_on_blackwell():
    hopper, blackwell = (
        figures.measure_depth_errors(architecture=x, most=1024)
        for x in ("hopper", "blackwell")
    )
    assert hopper.depths.tolist() == [128, 256, 512, 1024]
    assert hopper.chained[-1] > 10 * hopper.promoted[-1]
    assert blackwell.chained[-1] < 2.0**-18
    picture = assert_legible(figures.plot_depth_errors(hopper))
    assert picture.claim.startswith(
        "Products of one sign: at K = 1024 the unit alone is off by "
    )


def test_products_of_either_sign_lose_little_and_the_figure_says_of_which_sign_they_are():
    one, either = (
        figures.measure_depth_errors(signed=x, most=1024) for x in (False, True)
    )
    assert either.chained[-1] < one.chained[-1] / 50
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.standard_normal((32, 1024)), FP8_E4M3) for _ in range(2))
    off = np.abs(mma(a, b.T, input_format=FP8_E4M3) - a @ b.T) / (
        np.abs(a) @ np.abs(b).T
    )
    assert either.chained[-1] == off.max()
    picture = assert_legible(figures.plot_depth_errors(either))
    assert picture.claim.startswith(
        "Products of either sign: at K = 1024 the unit alone is off"
    )
    assert f"up to {either.chained[-1] * 100:.2g}%;" in picture.claim


def test_bits_of_a_step_shows_what_is_cut():
    a = np.array([1.5, 1.125, -0.40625, 1.5 * 2.0**-6, 1.5 * 2.0**-6])
    b = np.array([1.75, 1.5 * 2.0**-8, 1.375, 1.5 * 2.0**-7, 1.25 * 2.0**-6])
    picture = assert_legible(figures.bits_of_a_step(a, b, c=3 * 2.0**-14))
    error = 2.0**-15 + 2.0**-14 + 2.0**-15 + 2.0**-14  # cut off two products, and off C
    lost = f"3 of 6 terms lose bits to the alignment; what Hopper writes is off by −{error:.2g}."
    assert picture.claim == lost
    words = [text for text, _ in drawn_texts(picture)]
    assert "1.5·2⁻⁶ × 1.5·2⁻⁷" in words and "kept" in words and "cut" in words
    a = np.array([1.0, 2.0**-12, 1.0])
    b = np.array([1.0, 2.0**-13, -1.0])
    sixteen = assert_legible(figures.bits_of_a_step(a, b, input_format=FP16))
    assert sixteen.claim.startswith(
        "0 of 3 terms lose bits to the alignment; what Hopper writes "
    )


def test_the_cells_of_a_row_are_its_bits():
    a = np.array([1.5, -0.40625, 1.875 * 2.0**-6])
    step = step_bits(a, np.array([1.75, 1.375, 1.875 * 2.0**-6]), c=2.0**-13)
    assert (step.top, step.low) == (0, -13)
    for row in step.rows:
        value = sum(cell.bit * 2.0**cell.exponent for cell in step.cells(row))
        assert value == abs(row.value)
    product = [cell for cell in step.cells(step.rows[2]) if cell.bit]
    assert [(cell.exponent, cell.kept) for cell in product] == [
        (-11, True),
        (-12, True),
        (-13, True),
        (-18, False),
    ]
    far = step_bits(np.array([2.0**8, 2.0**-9]), np.array([2.0**8, 2.0**-9]))
    assert far.bottom == far.low - 12
    assert not any(cell.bit for cell in far.cells(far.rows[1]))
    ones = step_bits(np.ones(4), np.ones(4), c=16384.0)
    assert (ones.top, ones.low, ones.losing, ones.error) == (14, 1, 4, -4.0)


def test_the_figure_of_cuts_tells_the_cut_of_products_from_that_of_the_sum():
    """The operands have all bits of FP16: with 8 bits, a product loses little to the alignment."""
    errors = figures.measure_cut_errors(terms=4096)
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.uniform(0.5, 1, (16, 4096)), FP16) for _ in range(2))
    np.testing.assert_array_equal(errors.cut, (mma(a, b.T) / (a @ b.T) - 1).ravel())
    cut = -errors.cut.mean() / 2.0**-24
    written = -errors.written.mean() / 2.0**-24
    assert np.all(errors.cut < 0)
    assert errors.rounded.min() < 0 < errors.rounded.max()
    picture = assert_legible(figures.plot_cut_errors(errors))
    assert (
        f"Cutting only what it writes would cost {written:.0f} u, rounding"
        in picture.claim
    )
    said = f"all 256 cut sums are too small, by {cut:.0f} u on average."
    assert said in picture.claim
    assert {"if it rounded", "if it cut only\nwhat it writes"} <= words_of(picture)


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("alignment", [Rounding.TOWARD_ZERO, Rounding.TIES_TO_EVEN])
def test_the_bits_of_a_step_are_those_of_its_unit(alignment, normalised):
    unit = MatrixUnit(8, 12, products_normalised=normalised, alignment=alignment)
    rng = np.random.default_rng(17)
    for _ in range(40):
        a, b = block("far", (FP16, FP16), FP32, rng, (1, 8, 1))[:2]
        step = step_bits(a[0], b[:, 0], architecture=unit, input_format=FP16)
        *_, total, written = step.rows
        register = Fraction(2) ** written.lowest_kept
        assert written.value == int(total.value / register) * register
        assert written.value == mma(a, b, architecture=unit)[0, 0]


def test_the_bits_of_a_step_of_two_formats_have_the_least_exponent_of_each():
    mixed = {"input_format": (FP8_E4M3, FP8_E5M2)}
    step = step_bits([2.0**-9, 1.0], [2.0**15, 2.0**-5], **mixed)
    assert (step.top, step.low, step.losing) == (9, -4, 1)
    assert step_bits(
        [2.0**15, 1.0], [2.0**-9, 2.0**-5], input_format=mixed["input_format"][::-1]
    )
    other = [
        (MatrixUnit(4, 8, **x), FP16)
        for x in ({"zeros_align": True}, {"exponent_floor": 0})
    ]
    for architecture, fmt in (
        ("cdna3", FP16),
        ("cdna1", FP16),
        ("hopper", float),
        *other,
    ):
        with pytest.raises(
            ValueError, match=r"^step_bits: architecture must be one whose"
        ):
            step_bits([1.0], [1.0], architecture=architecture, input_format=fmt)


def test_the_bits_of_a_subnormal_result_end_where_fp32_does():
    step = step_bits([1.5 * 2.0**-75], [2.0**-75], c=2.0**-140, input_format=BF16)
    assert step.low == -151 and step.rows[-1].lowest_kept == -149
