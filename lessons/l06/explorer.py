"""The explorer of one step of a matrix unit: which bits are kept, and which are cut."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import ipywidgets

from mplab.arithmetic.matrix_steps import Row, StepBits, step_bits
from mplab.explorers.chart import LINE, svg
from mplab.explorers.widget import Explorer
from mplab.numbers.formats import FP8_E4M3, FP16, Format
from mplab.pictures.canvas import BAND, INK, STYLES, power_of_two

UNITS: dict[str, tuple[str, Format]] = {
    "Hopper, E4M3": ("hopper", FP8_E4M3),
    "Hopper, FP16": ("hopper", FP16),
    "Ampere, FP16": ("ampere", FP16),
    "Volta, FP16": ("volta", FP16),
    "Blackwell, E4M3": ("blackwell", FP8_E4M3),
}

SMALLEST, LARGEST = -12, 16  # exponents of a product that both formats can make


class MatrixStep(Explorer):
    """How small may a product be before a step cuts it away?

    One step adds a large product, a small one of six significant bits and, if you like, the
    large one with the other sign. Bits right of the line are cut.

    Attributes:
        unit: the choice of architecture and input format.
        large: the slider of the exponent of the large product.
        small: that of the small one.
        back: whether the large product is subtracted again.
        step: the bits.

    Exactness:
        That of `mplab.arithmetic.mma`.

    Examples:
        >>> explorer = MatrixStep()
        >>> explorer.large.value, explorer.small.value = 4, -12
        >>> [float(row.value) for row in explorer.step.rows[-2:]]
        [0.0, 0.0]
    """

    def __init__(self) -> None:
        wide = {"style": {"description_width": "initial"}, "layout": {"width": "min(36rem, 98%)"}}
        ends = {"min": SMALLEST, "max": LARGEST}
        self.unit = ipywidgets.Dropdown(options=list(UNITS), description="unit")
        self.large = ipywidgets.IntSlider(value=4, description="large product 2^", **ends, **wide)
        self.small = ipywidgets.IntSlider(value=-5, description="small product 2^", **ends, **wide)
        self.back = ipywidgets.Checkbox(
            value=True, indent=False, description="then subtract the large product again"
        )
        question = "How small may a product be before the step cuts it away?"
        super().__init__(question, [self.unit, self.large, self.small, self.back])

    @property
    def step(self) -> StepBits:
        """The bits of the step."""
        architecture, fmt = UNITS[self.unit.value]
        large, small = _halves(self.large.value), _halves(self.small.value)
        a = [1.5 * large[0], 1.375 * small[0], -1.5 * large[0]]
        b = [1.5 * large[1], 1.25 * small[1], 1.5 * large[1]]
        count = 3 if self.back.value else 2
        return step_bits(a[:count], b[:count], architecture=architecture, input_format=fmt)

    def draw(self) -> tuple[str, str]:
        """The rows of bits, and what becomes of the small product in words."""
        step = self.step
        sentence = (
            f"{self.unit.value}: the large product has exponent {self.large.value}, the small one "
            f"{self.small.value}. {_words(step)}"
        ).replace(" -", " −")
        return _rows_svg(step, sentence), sentence


def _halves(exponent: int) -> tuple[float, float]:
    """Two powers of two whose product is 2^exponent, as equal as can be."""
    return 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


def _words(step: StepBits) -> str:
    small = step.rows[1]
    bits = [cell for cell in step.cells(small) if cell.bit]
    lowest = small.lowest_kept
    ones = bin(small.value.numerator).count("1")
    lost = ones - sum(cell.kept for cell in bits)
    fate = "all of them" if lost == ones else f"{lost} of them" if lost else "none of them"
    exact = float(step.rows[-1].value - Fraction(step.error))
    return (
        f"Terms are aligned to {power_of_two(2.0**step.top)} and keep bits down to "
        f"{power_of_two(2.0**lowest)}. Of the small product, {ones} bits are 1; the cut takes "
        f"{fate}. Exact result {exact:.6g}, written {float(step.rows[-1].value):.6g}."
    )


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP, ROW = 760, 174, 750, 30, 30


def _rows_svg(step: StepBits, description: str) -> str:
    high = max([step.top, *(cell.exponent for row in step.rows for cell in step.cells(row))])
    width = (RIGHT - LEFT) / (high - step.bottom + 1)

    def x(exponent: float) -> float:
        return LEFT + (high - exponent) * width

    bottom = TOP + ROW * len(step.rows)
    parts = []
    for number, row in enumerate(step.rows):
        top = TOP + ROW * number + 8 * (number >= len(step.terms))
        parts += _row_svg(step, row, top, x, width)
    cut = x(step.low) + width
    line = TOP + ROW * len(step.terms) + 4
    parts.append(
        f'<path d="M{cut:.1f} {TOP - 22}V{bottom + 8}" stroke="black" stroke-width="1.5"/>'
        f'<text x="{cut - 6:.1f}" y="{TOP - 10}" text-anchor="end">kept</text>'
        f'<text x="{cut + 6:.1f}" y="{TOP - 10}">cut</text>'
        f'<path d="M8 {line}H{RIGHT}" stroke="{BAND}"/>'
    )
    for e in range(step.bottom, high + 1):
        if (e - step.low) % 4 == 0:
            parts.append(
                f'<text x="{x(e) + width / 2:.1f}" y="{bottom + 28}" text-anchor="middle">'
                f"{power_of_two(2.0**e)}</text>"
            )
    label = f"Rows of bits under powers of two. {description}"
    return svg(parts, width=WIDTH, height=bottom + 38, description=label)


def _row_svg(
    step: StepBits, row: Row, top: int, x: Callable[[float], float], width: float
) -> list[str]:
    """The words, the sign and the bits of one number."""
    sign = "−" if row.value < 0 else "+" if row.value else "0"
    parts = [
        f'<text x="{LEFT - 22}" y="{top + 18}" text-anchor="end">{row.words}</text>'
        f'<text x="{LEFT - 11}" y="{top + 18}" text-anchor="middle">{sign}</text>'
    ]
    colour, cut = STYLES["FP32"].colour, STYLES["FP8_E4M3"].colour
    for cell in step.cells(row):
        fill = (colour if cell.kept else cut) if cell.bit else "white"
        parts.append(
            f'<rect x="{x(cell.exponent):.1f}" y="{top + 2}" width="{width:.1f}" '
            f'height="{ROW - 5}" fill="{fill}" stroke="{BAND}"/>'
            f'<text x="{x(cell.exponent) + width / 2:.1f}" y="{top + 18}" text-anchor="middle" '
            f'font-size="11" fill="{INK if cell.kept or cell.bit else LINE}">{cell.bit}</text>'
        )
    return parts
