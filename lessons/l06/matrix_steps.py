"""Show the bits of one step of a matrix unit: which the alignment keeps, and which it cuts."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mplab.arithmetic.architectures import Input, MatrixUnit, pair_of, unit_of
from mplab.arithmetic.matrix_units import mma
from mplab.common.words import number, superscript
from mplab.numbers.checks import quoted
from mplab.numbers.formats import FP8_E4M3, FP32, Format, Rounding
from mplab.numbers.inputs import as_float64

_SHOWN_PAST_THE_CUT = 12


class Cell(NamedTuple):
    """One bit of a number: its weight is 2^exponent."""

    exponent: int
    bit: int
    kept: bool


class AlignedNumber(NamedTuple):
    """A label, an exact number, and the exponent of the last bit that is kept."""

    words: str
    value: Fraction
    lowest_kept: int


class StepBits(NamedTuple):
    """The terms of a step, their sum and the written result, aligned to one exponent.

    Attributes:
        rows: the products, C if it is not zero, the sum, and the written result.
        top: the exponent that all terms are aligned to.
        low: the exponent of the last bit that the alignment keeps.
        error: the written result minus the exact one.
    """

    rows: tuple[AlignedNumber, ...]
    top: int
    low: int
    error: float

    @property
    def terms(self) -> tuple[AlignedNumber, ...]:
        """The rows that are added."""
        return self.rows[:-2]

    @property
    def losing(self) -> int:
        """Number of terms that lose bits in the alignment."""
        return sum(
            bool(row.value % Fraction(2) ** row.lowest_kept) for row in self.terms
        )

    @property
    def bottom(self) -> int:
        """The least exponent to show: limited, because small terms can reach far past the cut."""
        deepest = min(_lowest_bit(row.value, self.low) for row in self.rows)
        return max(min(deepest, self.low - 1), self.low - _SHOWN_PAST_THE_CUT)

    def cells(self, row: AlignedNumber) -> Iterator[Cell]:
        """Yield the bits of a row to show; none if its value is zero."""
        first = max(_leading_bit(row.value), self.top) if row.value else self.bottom - 1
        for exponent in range(first, self.bottom - 1, -1):
            bit = int(abs(row.value) / Fraction(2) ** exponent) % 2
            yield Cell(exponent, bit, exponent >= row.lowest_kept)


def step_bits(
    a: Any,
    b: Any,
    *,
    c: float = 0.0,
    architecture: str | MatrixUnit = "hopper",
    input_format: Input = FP8_E4M3,
) -> StepBits:
    """Compute the bits of c + Σ a·b in one step of a matrix unit.

    Args:
        a: finite values of `input_format`, at most as many as the unit takes at once.
        b: the values to multiply them by.
        c: the value to add, FP32.
        architecture: as in `mplab.arithmetic.mma`; the unit must align all terms at once,
            but no zeros, to an exponent of at least −126.
        input_format: the format of `a` and `b`, or a pair of formats.

    Exactness:
        The written result is that of `mma`; the rows are exact, and so is the error up to its
        rounding to float64.

    Examples:
        >>> step = step_bits([1.0, 2.0**-6], [1.0, 1.5 * 2.0**-7])
        >>> step.top, step.low, step.losing, step.error == -(2.0**-14)
        (0, -13, 1, True)
    """
    unit = unit_of(architecture, input_format)
    if not unit.at_once or unit.zeros_align or unit.exponent_floor != FP32.emin:
        raise ValueError(
            f"step_bits: architecture must be one whose unit aligns all terms but zeros to one "
            f"exponent, −126 at least; got {quoted(architecture)}. Take 'hopper'."
        )
    formats = pair_of(input_format)
    left = as_float64("step_bits", a, "a")
    right = as_float64("step_bits", b, "b")
    if not 0 < left.size <= unit.terms or left.shape != right.shape or left.ndim != 1:
        raise ValueError(
            f"step_bits: a and b must be vectors of at most {unit.terms} terms; got shapes "
            f"{left.shape} and {right.shape}. Show one step."
        )
    written = mma(
        left[None, :],
        right[:, None],
        np.array([[c]]),
        architecture=unit,
        input_format=input_format,
    )[0, 0]
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    exponents = [_exponent_of_product(x, y, unit, *formats) for x, y in pairs if x * y]
    top = max([*exponents, *([_exponent(c, FP32.emin)] if c else []), FP32.emin])
    low = top - (unit.fraction_bits or 0)
    terms = [
        AlignedNumber(f"{_word(x)} × {_word(y)}", Fraction(x) * Fraction(y), low)
        for x, y in pairs
    ]
    terms += [AlignedNumber(f"C = {_word(c)}", Fraction(c), low)] if c else []
    step = Fraction(2) ** low
    cut = int if unit.alignment is Rounding.TOWARD_ZERO else round
    total = sum((cut(row.value / step) * step for row in terms), Fraction(0))
    leading = max(_leading_bit(total), FP32.emin)
    last = max(low, leading - unit.written_bits) if total else low
    result = Fraction(float(written))
    error = float(result - sum((row.value for row in terms), Fraction(0)))
    rows = (
        *terms,
        AlignedNumber("sum", total, last),
        AlignedNumber("written", result, last),
    )
    return StepBits(rows, top, low, error)


def _exponent_of_product(
    x: float, y: float, unit: MatrixUnit, of_x: Format, of_y: Format
) -> int:
    if unit.products_normalised:
        return math.frexp(x * y)[1] - 1
    return _exponent(x, of_x.emin) + _exponent(y, of_y.emin)


def _exponent(x: float, emin: int) -> int:
    return max(math.frexp(x)[1] - 1, emin)


def _word(x: float) -> str:
    """Write a number for a row, small and large ones with a power of two."""
    if x == 0 or 0.5 <= abs(x) < 1000:
        return number(x)
    significand, exponent = math.frexp(abs(x))
    power = "2" + superscript(exponent - 1)
    words = power if significand == 0.5 else f"{2 * significand:g}·{power}"
    return f"−{words}" if x < 0 else words


def _lowest_bit(value: Fraction, default: int) -> int:
    """Return the exponent of the last set bit of a dyadic number."""
    if not value:
        return default
    trailing = (value.numerator & -value.numerator).bit_length() - 1
    return trailing - value.denominator.bit_length() + 1


def _leading_bit(value: Fraction) -> int:
    return math.frexp(float(abs(value)))[1] - 1
