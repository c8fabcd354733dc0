"""The explorer of slices: do their products fill the accumulator?"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from mplab import FP16, FP32
from mplab.arithmetic import mma
from mplab.common.words import plural, superscript
from mplab.course.explorers.chart import Chart, Scale
from mplab.course.explorers.widget import Explorer, choice, slider
from mplab.course.pictures.canvas import GOOD, INK, power_of_two
from mplab.lessons.l17.emulation import slice_bits, split
from mplab.lessons.l17.figures import KINDS

SUMS, LONGEST = 8, 12
"""Rows, and columns; the most products in a sum, as a power of two."""


class Filling(NamedTuple):
    """Sums of products of slices.

    Attributes:
        path: the magnitude of the sum that grows largest, product by product, shape (k,).
        wrong: how many of the 64 sums the unit gets wrong.
        bound: the exponent of the power of two that no sum can exceed.
        rule: the number of bits that the rule allows.
    """

    path: np.ndarray
    wrong: int
    bound: int
    rule: int


@cache
def _filled(bits: int, level: int, kind: str) -> Filling:
    rng = np.random.default_rng(0)
    k = 1 << level
    a, b = (KINDS[kind](rng, (SUMS, 1 << LONGEST))[:, :k] for _ in range(2))
    left, right = (split(x, 1, bits)[0][0] for x in (a, b))
    paths = np.abs(np.cumsum(left[:, None, :] * right[None, :, :], axis=2)).reshape(
        -1, k
    )
    wrong = int(np.sum(mma(left, right.T) != left @ right.T))
    rule = slice_bits(k, FP16, FP32.precision)
    return Filling(
        paths[paths.max(axis=1).argmax()], wrong, level + 2 * (bits - 1), rule
    )


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
        self.bits = slider("bits", 1, FP16.precision + 1, 10)
        self.level = slider("products 2^", 0, LONGEST, 6)
        self.kind = choice("numbers", KINDS)
        question = (
            "Do sums of products of such slices fit into 24 bits, whatever the numbers?"
        )
        super().__init__(question, [self.bits, self.level, self.kind])

    @property
    def found(self) -> Filling:
        """The sums at this position."""
        return _filled(self.bits.value, self.level.value, self.kind.value)

    def draw(self) -> tuple[str, str]:
        """Draw the sum as it grows, and say whether it fits."""
        found = self.found
        k = 1 << self.level.value
        top = math.log2(found.path.max())
        fits = (
            "fits whatever the numbers"
            if found.bound <= FP32.precision
            else "need not fit"
        )
        sentence = (
            f"{self.bits.value}-bit slices, {plural(k, 'product')}, {self.kind.value}: the "
            f"largest of {SUMS**2} sums comes to 2^{top:.1f}, the unit gets {found.wrong} wrong. "
            f"Any sum is at most 2{superscript(found.bound)} and {fits}; the rule allows "
            f"{found.rule} bits."
        )
        return _growth(found, sentence), sentence


def _growth(found: Filling, description: str) -> str:
    k = len(found.path)
    chart = Chart(Scale(0, k, 60, 640), Scale(0, 36, 292, 14, log=True))  # at most 2^34
    full = chart.y(2.0**FP32.precision)
    chart.band(2.0**FP32.precision, 2.0**36, 0.25)
    chart.text(648, chart.y(2.0**30) + 4, "bits are lost")
    chart.text(648, full + 16, "24 bits are full")
    chart.line(f"M60 {full:.1f}H640", "black", 1.5)
    chart.below(
        "products added so far; solid: the largest of 64 sums; dashed: the largest possible"
    )
    chart.ticks_y((2.0**e for e in range(0, 37, 6)), power_of_two)
    quarters = 4 if k >= 4 else 1
    chart.ticks_x(
        [k * share // quarters for share in range(quarters + 1)], "{:,}".format
    )
    steps = [*range(1, k + 1, max(1, k // 200)), k]
    most = [2.0**found.bound * n / k for n in steps]
    chart.curve(steps, most, INK, 1.5, more='stroke-dasharray="6 4"')
    terms = np.unique(np.linspace(0, k - 1, min(k, 200)).astype(int))
    chart.curve([0, *terms + 1], [1, *found.path[terms]], GOOD, 2)
    return chart.svg(f"A growing sum. {description}", width=780, height=342)
