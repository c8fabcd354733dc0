"""The explorer of four bits: one block with an outlier, and which of its numbers survive."""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

import ipywidgets
import numpy as np
import torch

from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.numbers.formats import FP4_E2M1
from mplab.pictures.canvas import BAND, power_of_two
from mplab.scaling.amax import ScaleRule
from mplab.scaling.quantized import dequantize, hadamard, quantize

WAYS = {
    "MXFP4 (RCEIL): the scale lets nothing saturate": ScaleRule.RCEIL,
    "MXFP4 (floor): the scale follows from the exponent alone": ScaleRule.MX,
    "NVFP4: the scale is E4M3, and the block its tensor's largest": ScaleRule.NVFP4,
}

OUTLIERS = tuple(m * 2.0**k for k in range(7) for m in (1.25, 1.875))

PLACE = 5
"""Where the outlier stands."""

QUIET = (0.31, -1.12, 0.84, -0.27, 1.53, 0.0, -0.58, 0.92, 0.11, -0.73, 1.21, -0.42, 0.66, -1.37,
         0.19, -0.95)  # fmt: skip
"""The other fifteen, as normally distributed numbers lie."""


class Fate(NamedTuple):
    """A number of the block, what stands for it in four bits, and what comes back."""

    exact: float
    stored: float
    back: float

    @property
    def survives(self) -> bool:
        """Whether it is off by a quarter at most, the unit roundoff of E2M1."""
        return abs(self.back - self.exact) <= abs(self.exact) * FP4_E2M1.unit_roundoff


class FourBitBlock(Explorer):
    """Which of sixteen numbers survive four bits, when one of them is an outlier?

    A column for each number: where it is, and where it comes back. Below stands what is stored,
    a value of E2M1; with the Hadamard transform that of a mixture of all sixteen.

    Attributes:
        way: the choice of a format and its scale.
        outlier: the slider of the outlier's size.
        turned: whether a Hadamard transform goes before the cast, and its inverse after it.

    Examples:
        >>> block = FourBitBlock()
        >>> block.outlier.value = 0
        >>> sum(fate.survives for fate in block.fates)
        14
    """

    def __init__(self) -> None:
        self.way = ipywidgets.Dropdown(
            options=list(WAYS), description="format", layout={"width": "min(34rem, 98%)"}
        )
        self.outlier = ipywidgets.IntSlider(
            min=0,
            max=len(OUTLIERS) - 1,
            value=9,
            description="outlier",
            readout=False,
            layout={"width": "min(36rem, 98%)"},
        )
        self.turned = ipywidgets.Checkbox(value=False, description="Hadamard transform first")
        question = "One block, one outlier: which of the sixteen survive?"
        super().__init__(question, [self.way, self.outlier, self.turned])

    @property
    def fates(self) -> list[Fate]:
        """What becomes of each number."""
        exact = torch.tensor(QUIET)
        exact[PLACE] = OUTLIERS[self.outlier.value]
        given = hadamard(exact) if self.turned.value else exact
        scale = WAYS[self.way.value]
        found = quantize(given, FP4_E2M1, scale=scale, block=(16,))
        back = dequantize(found)
        if self.turned.value:
            back = hadamard(back, inverse=True)
        return [Fate(*row) for row in torch.stack([exact, found.values, back], 1).tolist()]

    def draw(self) -> tuple[str, str]:
        """The columns, and how many survive in words."""
        fates = self.fates
        exact, _, back = np.array(fates).T
        count, zeros = sum(fate.survives for fate in fates), int(np.sum(back == 0))
        kind = self.way.value.partition(":")[0]
        turned = " after a Hadamard transform" * self.turned.value
        error = float(np.linalg.norm(back - exact) / np.linalg.norm(exact))
        sentence = (
            f"An outlier of {OUTLIERS[self.outlier.value]:g} in {kind}{turned}. Survivors: {count} "
            f"of 16; zeros: {zeros}. The outlier comes back as {back[PLACE]:.3g}; the error of the "
            f"whole block is {100 * error:.1f} percent."
        )
        return _columns(fates, sentence), sentence


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, TOP, COLUMN = 780, 92, 14, 42

LOW, HIGH, UNIT = -4, 8, 16  # exponents of the scale, and points for each

BOTTOM = TOP + UNIT * (HIGH - LOW)

GOOD, BAD = "#117733", "#882255"


def _y(value: float) -> float:
    """The height of a magnitude; 0 lies below the scale."""
    if value == 0:
        return BOTTOM + 17
    return BOTTOM - UNIT * (min(max(math.log2(abs(value)), LOW), HIGH) - LOW)


def _columns(fates: list[Fate], description: str) -> str:
    right = LEFT + COLUMN * len(fates)
    parts = [
        f'<path d="M{LEFT} {_y(2.0**k):.1f}H{right}" stroke="{BAND}" stroke-opacity="0.5"/>'
        f'<text x="{LEFT - 8}" y="{_y(2.0**k) + 4:.1f}" text-anchor="end">'
        f"{power_of_two(2.0**k)}</text>"
        for k in range(LOW, HIGH + 1, 2)
    ]
    rows = (("becomes 0", 22), ("stored", 48), ("number", 70))
    parts += [
        f'<text x="{LEFT - 8}" y="{BOTTOM + down}" text-anchor="end">{words}</text>'
        for words, down in rows
    ]
    for k, fate in enumerate(fates):
        x, colour = LEFT + COLUMN * (k + 0.5), GOOD if fate.survives else BAD
        parts.append(
            f'<path d="M{x - 14:.0f} {_y(fate.exact):.1f}h28" stroke="black" stroke-width="2"/>'
            f'<path d="M{x:.0f} {_y(fate.exact):.1f}V{_y(fate.back):.1f}" stroke="{colour}"/>'
            + _mark(x, _y(fate.back), colour, round_one=fate.survives)
        )
        for value, down in ((f"{fate.stored:g}", 48), (f"{fate.exact:g}", 70)):
            words = escape(value.replace("-", "−"))
            parts.append(
                f'<text x="{x:.0f}" y="{BOTTOM + down}" text-anchor="middle">{words}</text>'
            )
    parts.append(
        f'<text x="{(LEFT + right) / 2:.0f}" y="{BOTTOM + 98}" text-anchor="middle">magnitude: '
        "line, the number; green circle, back within a quarter; red square, not</text>"
    )
    label = f"Sixteen columns. {description}"
    return svg(parts, width=WIDTH, height=BOTTOM + 110, description=label)


def _mark(x: float, y: float, colour: str, *, round_one: bool) -> str:
    if round_one:
        return f'<circle cx="{x:.0f}" cy="{y:.1f}" r="6" fill="{colour}"/>'
    return f'<rect x="{x - 5:.0f}" y="{y - 5:.1f}" width="10" height="10" fill="{colour}"/>'
