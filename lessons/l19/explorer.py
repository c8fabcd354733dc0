"""The explorer of splits: which bits of a row depend on the number of parts of its sums."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import ipywidgets
import numpy as np

from mplab.arithmetic.reductions import Accumulation, matmul
from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.numbers.codes import encode
from mplab.numbers.formats import BF16, FP16, FP32, Format
from mplab.numbers.rounding import round_to
from mplab.pictures.canvas import BAND

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
    parts, each part is summed, and then the parts are.

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
        wide = {"width": "min(36rem, 98%)"}
        self.parts = ipywidgets.IntSlider(
            min=1, max=MOST, value=4, description="parts", layout=wide
        )
        self.way = ipywidgets.Dropdown(options=list(WAYS), description="accumulator")
        super().__init__("Which bits of a row depend on the split?", [self.parts, self.way])

    @property
    def flips(self) -> list[int]:
        """For each number its bits that differ from those of the sum in one part."""
        pairs = zip(
            *(_codes(self.way.value, parts) for parts in (self.parts.value, 1)), strict=True
        )
        return [code ^ whole for code, whole in pairs]

    @property
    def changed(self) -> int:
        """How many numbers of the row differ from those of the sum in one part."""
        return sum(flip != 0 for flip in self.flips)

    def draw(self) -> tuple[str, str]:
        """The bits, and how many numbers have other ones."""
        parts = self.parts.value
        others = [_codes(self.way.value, n) for n in range(1, MOST + 1)]
        sentence = (
            f"Accumulator {self.way.value}, {parts} part{'s' * (parts > 1)}: {self.changed} of "
            f"{NUMBERS} numbers have other bits than in one part. Splits of 1 to {MOST} parts make "
            f"{len(set(others))} different row{'s' * (len(set(others)) > 1)}."
        )
        fmt = _stored(self.way.value)
        return _bits(others[parts - 1], self.flips, fmt, parts, sentence), sentence


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, TOP, CELL, LINE, GAP = 780, 92, 46, 20, 22, 8

BAD = "#882255"


def _bits(
    codes: tuple[int, ...], flips: list[int], fmt: Format, parts: int, description: str
) -> str:
    whole = CELL * 32 + 2 * GAP
    ends = [LEFT + whole * (c * TERMS // parts) / TERMS for c in range(parts + 1)]
    drawn = [f'<text x="{LEFT - 8}" y="26" text-anchor="end">256 terms</text>']
    drawn += [
        f'<rect x="{begin + 1:.1f}" y="12" width="{end - begin - 2:.1f}" height="18" '
        f'fill="{BAND}" fill-opacity="0.5"/>'
        for begin, end in pairwise(ends)
    ]
    for k, (code, flip) in enumerate(zip(codes, flips, strict=True)):
        y = TOP + LINE * (k + 1)
        drawn.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">number {k + 1}</text>')
        for place in range(fmt.bits):
            gaps = (place > 0) + (place > fmt.exponent_bits)
            x, at = LEFT + CELL * (place + 0.5) + GAP * gaps, fmt.bits - 1 - place
            other = flip >> at & 1
            if other:
                drawn.append(
                    f'<rect x="{x - CELL / 2 + 1:.0f}" y="{y - 15}" width="{CELL - 2}" '
                    f'height="{LINE - 2}" fill="{BAD}"/>'
                )
            ink = ' fill="white"' if other else ""
            drawn.append(
                f'<text x="{x:.0f}" y="{y}" text-anchor="middle"{ink}>{code >> at & 1}</text>'
            )
    bottom = TOP + LINE * (len(codes) + 1) + 8
    drawn.append(
        f'<text x="{LEFT}" y="{bottom}">sign, exponent and significand; dark: another bit than in '
        "one part</text>"
    )
    return svg(drawn, width=WIDTH, height=bottom + 12, description=f"Bits. {description}")
