"""The explorer of four bits: one block with an outlier, and which of its numbers survive."""

from typing import NamedTuple

import numpy as np
import torch

from mplab import FP4_E2M1
from mplab.course.explorers.chart import Chart, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, tick
from mplab.course.pictures.canvas import BAD, GOOD, power_of_two
from mplab.scaling import ScaleRule, dequantize, hadamard, quantize

WAYS = {
    "MXFP4 (RCEIL): the scale lets nothing saturate": ScaleRule.RCEIL,
    "MXFP4 (floor): the scale follows from the exponent alone": ScaleRule.MX,
    "NVFP4: the scale is in E4M3, for the tensor's largest block": ScaleRule.NVFP4,
}

OUTLIERS = tuple(m * 2.0**k for k in range(7) for m in (1.25, 1.875))

PLACE = 5
"""The place of the outlier."""

QUIET = (0.31, -1.12, 0.84, -0.27, 1.53, 0.0, -0.58, 0.92, 0.11, -0.73, 1.21, -0.42, 0.66, -1.37,
         0.19, -0.95)  # fmt: skip
"""The other fifteen numbers, like draws from a normal distribution."""


class Fate(NamedTuple):
    """A number of the block, the value stored for it, and the number that comes back."""

    exact: float
    stored: float
    back: float

    @property
    def survives(self) -> bool:
        """Whether its error is at most a quarter, the unit roundoff of E2M1."""
        return abs(self.back - self.exact) <= abs(self.exact) * FP4_E2M1.unit_roundoff


class FourBitBlock(Explorer):
    """Which of sixteen numbers survive four bits, when one of them is an outlier?

    A column for each number, before and after quantization. Below stands the stored value of
    E2M1; with the Hadamard transform, it is that of a mixture of all sixteen.

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
        self.way = choice("format", WAYS)
        self.outlier = slider("outlier", 0, len(OUTLIERS) - 1, 9, readout=False)
        self.turned = tick("Hadamard transform first")
        question = "One block, one outlier: which of the sixteen survive?"
        super().__init__(question, [self.way, self.outlier, self.turned])

    @property
    def fates(self) -> list[Fate]:
        """Each number before and after quantization."""
        exact = torch.tensor(QUIET)
        exact[PLACE] = OUTLIERS[self.outlier.value]
        given = hadamard(exact) if self.turned.value else exact
        scale = WAYS[self.way.value]
        found = quantize(given, FP4_E2M1, scale=scale, block=(16,))
        back = dequantize(found)
        if self.turned.value:
            back = hadamard(back, inverse=True)
        return [
            Fate(*row) for row in torch.stack([exact, found.values, back], 1).tolist()
        ]

    def draw(self) -> tuple[str, str]:
        """Draw the columns, and say how many survive."""
        fates = self.fates
        exact, _, back = np.array(fates).T
        count = sum(fate.survives for fate in fates)
        zeros = int(np.sum(back == 0))
        kind = self.way.value.partition(":")[0]
        turned = " after a Hadamard transform" * self.turned.value
        error = float(np.linalg.norm(back - exact) / np.linalg.norm(exact))
        sentence = (
            f"An outlier of {OUTLIERS[self.outlier.value]:g} in {kind}{turned}. Survivors: {count} "
            f"of 16; zeros: {zeros}. The outlier comes back as {back[PLACE]:.3g}; the error of the "
            f"whole block is {100 * error:.1f} percent."
        )
        return _columns(fates, sentence), sentence


def _columns(fates: list[Fate], description: str) -> str:
    chart = Chart(Scale(0, 16, 92, 764), Scale(-4, 8, 206, 14, log=True))
    chart.ticks_y((2.0**k for k in range(-4, 9, 2)), power_of_two, grid=True)
    for words, down in (("becomes 0", 22), ("stored", 48), ("number", 70)):
        chart.text(84, 206 + down, words, "end")
    for k, fate in enumerate(fates):
        x = chart.x(k + 0.5)
        colour = GOOD if fate.survives else BAD
        exact, back = (chart.y(abs(v)) if v else 223 for v in (fate.exact, fate.back))
        chart.line(f"M{x - 14:.0f} {exact:.1f}h28", "black", 2)
        chart.line(f"M{x:.0f} {exact:.1f}V{back:.1f}", colour)
        if fate.survives:
            chart.dot(x, back, 6, colour)
        else:
            chart.box(x - 5, back - 5, 10, 10, colour)
        for value, down in ((fate.stored, 48), (fate.exact, 70)):
            chart.text(x, 206 + down, f"{value:g}".replace("-", "−"), "middle")
    chart.below(
        "magnitude; line: number; circle: back within a quarter; square: farther off",
        98,
    )
    return chart.svg(f"Sixteen columns. {description}", width=780, height=316)
