"""The explorer of one step of a matrix unit: which bits are kept, and which are cut."""

from fractions import Fraction

from mplab import FP8_E4M3, FP16, Format
from mplab.course.explorers.chart import LINE, Drawing, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, tick
from mplab.course.pictures.canvas import BAND, FACES, INK, power_of_two
from mplab.lessons.l06.matrix_steps import AlignedNumber, StepBits, step_bits

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
        small: the slider of the exponent of the small product.
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
        self.unit = choice("unit", UNITS)
        self.large = slider("large product 2^", SMALLEST, LARGEST, 4)
        self.small = slider("small product 2^", SMALLEST, LARGEST, -5)
        self.back = tick("then subtract the large product again", True)
        self.on_page = {"large product 2^": (-12, -6, 0, 2, 4, 5, 8, 12, 15)}
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
        return step_bits(
            a[:count], b[:count], architecture=architecture, input_format=fmt
        )

    def draw(self) -> tuple[str, str]:
        """Draw the rows of bits, and say the fate of the small product."""
        step = self.step
        sentence = (
            f"{self.unit.value}: the large product has exponent {self.large.value}, the small one "
            f"{self.small.value}. {_words(step)}"
        ).replace(" -", " −")
        return _rows(step, sentence), sentence


def _halves(exponent: int) -> tuple[float, float]:
    """Two powers of two whose product is 2^exponent, as equal as possible."""
    return 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


def _words(step: StepBits) -> str:
    small = step.rows[1]
    bits = [cell for cell in step.cells(small) if cell.bit]
    lowest = small.lowest_kept
    ones = bin(small.value.numerator).count("1")
    lost = ones - sum(cell.kept for cell in bits)
    fate = (
        "all of them" if lost == ones else f"{lost} of them" if lost else "none of them"
    )
    exact = float(step.rows[-1].value - Fraction(step.error))
    return (
        f"Terms are aligned to {power_of_two(2.0**step.top)} and keep bits down to "
        f"{power_of_two(2.0**lowest)}. Of the small product, {ones} bits are 1; the cut takes "
        f"{fate}. Exact result {exact:.6g}, written {float(step.rows[-1].value):.6g}."
    )


TOP, ROW = 30, 30


def _rows(step: StepBits, description: str) -> str:
    high = max(
        [step.top, *(cell.exponent for row in step.rows for cell in step.cells(row))]
    )
    drawing = Drawing()
    # The left of a bit's cell.
    x = Scale(step.bottom - 1, high, 750, 174)
    bottom = TOP + ROW * len(step.rows)
    for number, row in enumerate(step.rows):
        _row(
            drawing, step, row, TOP + ROW * number + 8 * (number >= len(step.terms)), x
        )
    cut = x(step.low - 1)
    drawing.line(f"M{cut:.1f} {TOP - 22}V{bottom + 8}", "black", 1.5)
    drawing.text(cut - 6, TOP - 10, "kept", "end")
    drawing.text(cut + 6, TOP - 10, "cut")
    drawing.line(f"M8 {TOP + ROW * len(step.terms) + 4}H750", BAND)
    for e in range(step.bottom, high + 1):
        if (e - step.low) % 4 == 0:
            drawing.text(x(e - 0.5), bottom + 28, power_of_two(2.0**e), "middle")
    label = f"Rows of bits under powers of two. {description}"
    return drawing.svg(label, width=760, height=bottom + 38)


def _row(
    drawing: Drawing, step: StepBits, row: AlignedNumber, top: int, x: Scale
) -> None:
    """The words, the sign and the bits of one number."""
    drawing.text(152, top + 18, row.words, "end")
    drawing.text(
        163, top + 18, "−" if row.value < 0 else "+" if row.value else "0", "middle"
    )
    colour = FACES[5]
    cut = FACES[4]
    for cell in step.cells(row):
        left, right = x(cell.exponent), x(cell.exponent - 1)
        fill = (colour if cell.kept else cut) if cell.bit else "white"
        drawing.box(left, top + 2, right - left, ROW - 5, fill, f'stroke="{BAND}"')
        ink = INK if cell.kept or cell.bit else LINE
        more = f'font-size="11" fill="{ink}"'
        drawing.text((left + right) / 2, top + 18, str(cell.bit), "middle", more)
