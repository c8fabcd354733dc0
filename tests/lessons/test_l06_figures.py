"""The figures of lesson 6: one step of a matrix unit, and what long products lose."""

from fractions import Fraction

import numpy as np
import pytest
from matrix_oracle import block

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Rounding
from mplab.arithmetic import MatrixUnit, mma
from mplab.lessons.l06.matrix_steps import step_bits

pytestmark = pytest.mark.slow


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
