"""The explorer of slices: do their products fill the accumulator?"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import ipywidgets
import numpy as np

from mplab.arithmetic.emulation import slice_bits, split
from mplab.arithmetic.matrix_units import mma
from mplab.explorers.chart import line, svg, text
from mplab.explorers.widget import Explorer
from mplab.lessons.l17.figures import KINDS
from mplab.numbers.formats import FP16, FP32
from mplab.numbers.words import superscript
from mplab.pictures.canvas import BAND, style

SUMS, LONGEST = 8, 12
"""Rows, and columns; a power of two of products at most."""


class Filling(NamedTuple):
    """Sums of products of slices.

    Attributes:
        path: the sum that grows largest, product by product: its magnitude, shape (k,).
        wrong: how many of the 64 sums the unit gets wrong.
        bound: what no sum can exceed, a power of two.
        rule: how many bits may be taken.
    """

    path: np.ndarray
    wrong: int
    bound: int
    rule: int


@cache
def _filled(bits: int, level: int, kind: str) -> Filling:
    rng, k = np.random.default_rng(0), 1 << level
    a, b = (KINDS[kind](rng, (SUMS, 1 << LONGEST))[:, :k] for _ in range(2))
    left, right = (split(x, 1, bits)[0][0] for x in (a, b))
    paths = np.abs(np.cumsum(left[:, None, :] * right[None, :, :], axis=2)).reshape(-1, k)
    wrong = int(np.sum(mma(left, right.T) != left @ right.T))
    rule = slice_bits(k, FP16, FP32.precision)
    return Filling(paths[paths.max(axis=1).argmax()], wrong, level + 2 * (bits - 1), rule)


class SliceSums(Explorer):
    """Do the products of slices of so many bits fit the accumulator, whatever the numbers?

    A line for the sum that grows largest, of 64; the accumulator holds all integers up to 2²⁴.

    Attributes:
        bits: the slider of a slice's bits.
        level: the slider of the number of products, a power of two.
        kind: the choice of the numbers.

    Examples:
        >>> SliceSums().found.wrong
        0
    """

    def __init__(self) -> None:
        wide = {"width": "min(36rem, 98%)"}
        self.bits = ipywidgets.IntSlider(
            min=1, max=FP16.precision + 1, value=10, description="bits", layout=wide
        )
        self.level = ipywidgets.IntSlider(
            min=0, max=LONGEST, value=6, description="products 2^", layout=wide
        )
        self.kind = ipywidgets.Dropdown(options=list(KINDS), description="numbers")
        question = "Do sums of products of such slices fit into 24 bits, whatever the numbers?"
        super().__init__(question, [self.bits, self.level, self.kind])

    @property
    def found(self) -> Filling:
        """The sums at this position."""
        return _filled(self.bits.value, self.level.value, self.kind.value)

    def draw(self) -> tuple[str, str]:
        """The sum as it grows, and whether it fits, in words."""
        found, k = self.found, 1 << self.level.value
        top = math.log2(found.path.max())
        fits = "fits whatever the numbers" if found.bound <= FP32.precision else "need not fit"
        several = "s" * (k > 1)
        sentence = (
            f"{self.bits.value}-bit slices, {k:,} product{several}, {self.kind.value}: the "
            f"largest of {SUMS**2} sums comes to 2^{top:.1f}, the unit gets {found.wrong} wrong. "
            f"Any sum is at most 2{superscript(found.bound)} and {fits}; the rule allows "
            f"{found.rule} bits."
        )
        return _growth(found, sentence), sentence


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 780, 60, 640, 14, 292

HIGH = 36  # the largest exponent: 4,096 products of 12-bit slices have 2^34


def _y(exponent: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * exponent / HIGH


def _growth(found: Filling, description: str) -> str:
    k = len(found.path)
    full, most = _y(FP32.precision), _y(found.bound)
    parts = [
        f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{full - TOP:.1f}" '
        f'fill="{BAND}" fill-opacity="0.25"/>',
        text(RIGHT + 8, _y(30) + 4, "bits are lost"),
        text(RIGHT + 8, full + 16, "24 bits are full"),
        line(f"M{LEFT} {full:.1f}H{RIGHT}", colour="black", more='stroke-width="1.5"'),
        text(
            *((LEFT + RIGHT) / 2, BOTTOM + 42),
            "products added so far; green: the largest of 64 sums; dashed: the most that can be",
            anchor="middle",
        ),
    ]
    for exponent in range(0, HIGH + 1, 6):
        words = f"2{superscript(exponent)}"
        parts.append(text(LEFT - 8, _y(exponent) + 4, words, anchor="end"))
    for share in range(5 if k >= 4 else 2):
        done = k * share // (4 if k >= 4 else 1)
        parts.append(text(_x(done, k), BOTTOM + 20, f"{done:,}", anchor="middle"))
    terms = np.unique(np.linspace(0, k - 1, min(k, 200)).astype(int))
    sizes = np.log2(np.maximum(found.path[terms], 1.0))
    dots = [f"{_x(n + 1, k):.1f} {_y(y):.1f}" for n, y in zip(terms, sizes, strict=True)]
    steps = [(n, _y(found.bound - math.log2(k / n))) for n in range(1, k + 1, max(1, k // 200))]
    start = f"{_x(0, k):.1f} {_y(0):.1f}"
    bound = "L".join(f"{_x(n, k):.1f} {y:.1f}" for n, y in [*steps, (k, most)])
    colour, dashed = style(FP16).colour, 'stroke-dasharray="6 4" stroke-width="1.5"'
    parts += [
        line(f"M{bound}", colour="#882255", more=dashed),
        line(f"M{'L'.join([start, *dots])}", colour=colour, more='stroke-width="2"'),
    ]
    return svg(parts, width=WIDTH, height=BOTTOM + 50, description=f"A growing sum. {description}")


def _x(done: int, k: int) -> float:
    return LEFT + (RIGHT - LEFT) * done / k
