"""The explorer of splits: which bits of a row depend on the number of parts of its sums."""

from functools import cache
from itertools import pairwise

import numpy as np

from mplab import BF16, FP16, FP32, Format, encode, round_to
from mplab.arithmetic import Accumulation, matmul
from mplab.common.words import plural
from mplab.course.explorers.chart import Drawing
from mplab.course.explorers.widget import Explorer, choice, slider
from mplab.course.pictures.canvas import BAND, INK

WAYS: dict[str, Accumulation] = {
    "FP32": {"accumulator_format": FP32},
    "FP32, the result in BF16": {"accumulator_format": FP32, "output_format": BF16},
    "FP16": {"accumulator_format": FP16},
    "BF16": {"accumulator_format": BF16},
}

TERMS, NUMBERS, MOST = 256, 12, 16


def _stored(way: str) -> Format:
    """The format of the row."""
    return WAYS[way].get("output_format") or WAYS[way]["accumulator_format"]


@cache
def _codes(way: str, parts: int) -> tuple[int, ...]:
    """The bits of the row."""
    rng = np.random.default_rng(19)
    x = round_to(rng.standard_normal((1, TERMS)), BF16)
    w = round_to(rng.standard_normal((TERMS, NUMBERS)), BF16)
    row = matmul(x, w, split_k=parts, **WAYS[way])[0]
    return tuple(encode(row, _stored(way)).tolist())


class SplitRow(Explorer):
    """Which bits of a row depend on the split?

    A row of 12 numbers, each a sum of 256 products of numbers of BF16. The terms are cut into
    parts, each part is summed, and then the sums of the parts are added.

    Attributes:
        parts: the slider of the number of parts.
        way: the choice of an accumulator.

    Examples:
        >>> row = SplitRow()
        >>> row.parts.value = 1
        >>> row.changed
        0
    """

    def __init__(self) -> None:
        self.parts = slider("parts", 1, MOST, 4)
        self.way = choice("accumulator", WAYS)
        super().__init__(
            "Which bits of a row depend on the split?", [self.parts, self.way]
        )

    @property
    def flips(self) -> list[int]:
        """The bits of each number that differ from those of the sum in one part."""
        pairs = zip(
            *(_codes(self.way.value, parts) for parts in (self.parts.value, 1)),
            strict=True,
        )
        return [code ^ whole for code, whole in pairs]

    @property
    def changed(self) -> int:
        """How many numbers of the row differ from those of the sum in one part."""
        return sum(flip != 0 for flip in self.flips)

    def draw(self) -> tuple[str, str]:
        """Draw the bits, and say how many numbers have changed."""
        parts = self.parts.value
        others = [_codes(self.way.value, n) for n in range(1, MOST + 1)]
        sentence = (
            f"Accumulator {self.way.value}, {plural(parts, 'part')}: {self.changed} of "
            f"{NUMBERS} numbers differ from those of one part. Splits of 1 to {MOST} parts make "
            f"{plural(len(set(others)), 'different row')}."
        )
        fmt = _stored(self.way.value)
        return _bits(others[parts - 1], self.flips, fmt, parts, sentence), sentence


LEFT, CELL, LINE, GAP = 92, 20, 22, 8


def _bits(
    codes: tuple[int, ...], flips: list[int], fmt: Format, parts: int, description: str
) -> str:
    drawing = Drawing()
    whole = CELL * 32 + 2 * GAP
    drawing.text(LEFT - 8, 26, "256 terms", "end")
    ends = [LEFT + whole * (c * TERMS // parts) / TERMS for c in range(parts + 1)]
    for begin, end in pairwise(ends):
        drawing.box(begin + 1, 12, end - begin - 2, 18, BAND, 'fill-opacity="0.5"')
    y = 46
    for k, (code, flip) in enumerate(zip(codes, flips, strict=True)):
        y += LINE
        drawing.text(LEFT - 8, y, str(k + 1), "end")
        for place in range(fmt.bits):
            gaps = (place > 0) + (place > fmt.exponent_bits)
            x, at = LEFT + CELL * (place + 0.5) + GAP * gaps, fmt.bits - 1 - place
            other = flip >> at & 1
            if other:
                drawing.box(x - CELL / 2 + 1, y - 15, CELL - 2, LINE - 2, INK)
            drawing.text(x, y, str(code >> at & 1), "middle", 'fill="white"' * other)
    words = (
        f"numbers 1 to {NUMBERS}: sign, exponent, significand; filled: unlike one part"
    )
    drawing.text(LEFT, y + 30, words)
    return drawing.svg(f"Bits. {description}", width=780, height=y + 42)
