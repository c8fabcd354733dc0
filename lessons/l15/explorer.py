"""The explorer of refinement: do factors of a low format lead to FP64's digits?"""

import math
from functools import cache

import numpy as np

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32
from mplab.arithmetic import Refinement, refine
from mplab.common.words import plural, superscript
from mplab.course.explorers.chart import Chart, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, tick
from mplab.course.pictures.canvas import power_of_two, style
from mplab.lessons.l15.figures import random_system

FORMATS = {fmt.name: fmt for fmt in (FP32, FP16, BF16, FP8_E4M3, FP8_E5M2)}

METHODS = {"classic": "the factors alone", "gmres": "GMRES, helped by the factors"}

SIZE = 32
"""The number of unknowns."""


@cache
def _refined(level: int, fmt: str, method: str, power: int, scale: bool) -> Refinement:
    a, b, _ = random_system(2.0**level, size=SIZE)
    a = np.ldexp(a, power)
    return refine(a, b, factor_format=FORMATS[fmt], method=method, scale=scale)


class Refiner(Explorer):
    """Do factors of this format lead to a backward error of 2⁻⁵²?

    One system of 32 equations for each condition, multiplied by a power of two. The backward
    error is drawn after each correction.

    Attributes:
        level: the slider of the condition, a power of two.
        fmt: the choice of a format for the factors.
        method: the choice of what computes a correction.
        power: the slider of the power of two that multiplies the system's matrix.
        scale: whether that power is taken out again before the matrix is rounded.

    Examples:
        >>> refiner = Refiner()
        >>> refiner.found.steps, refiner.found.converged
        (6, True)
    """

    def __init__(self) -> None:
        self.level = slider("condition 2^", 0, 32, 7)
        self.fmt = choice("factors", FORMATS, value="FP16")
        self.method = choice(
            "corrections", [(words, name) for name, words in METHODS.items()]
        )
        self.power = slider("A times 2^", -30, 30, 0)
        self.scale = tick("scale A first")
        self.on_page = {
            "condition 2^": (0, 4, 7, 10, 12, 13, 14, 15, 16, 18, 20, 24, 28, 32),
            "A times 2^": (-30, -24, -20, -17, -16, -15, -14, -8, 0, 8, 17, 18, 24, 30),
        }
        question = "Do factors of this format lead to a backward error of 2⁻⁵²?"
        super().__init__(
            question, [self.level, self.fmt, self.method, self.power, self.scale]
        )

    @property
    def found(self) -> Refinement:
        """The solution at this position, and its history."""
        where = self.level.value, self.fmt.value, self.method.value, self.power.value
        return _refined(*where, self.scale.value)

    def draw(self) -> tuple[str, str]:
        """Draw the backward errors, and say whether and why refinement ends."""
        found = self.found
        a = f"A times 2{superscript(self.power.value)}"
        scaled = "scaled first" if self.scale.value else "as it is"
        sentence = (
            f"Condition 2{superscript(self.level.value)}, {a}, {scaled}, "
            f"factors in {self.fmt.value}, corrections by {METHODS[self.method.value]}: "
            f"{_outcome(found)}"
        )
        errors = found.backward_errors.tolist()
        last = max(10, len(errors) - 1)
        chart = Chart(
            Scale(0, last, 70, 750, inset=12), Scale(-60, 0, 262, 16, log=True)
        )
        chart.ticks_y((2.0**k for k in range(-60, 1, 12)), power_of_two, grid=True)
        chart.ticks_x(range(0, last + 1, 1 + last // 26))
        aim = chart.y(2.0**-52)
        chart.line(f"M70 {aim:.1f}H750", "black", 1.5)
        chart.text(750, aim + 16, "2⁻⁵²: converged", "end")
        chart.below("backward error after each correction")
        if errors:
            colour = style(self.fmt.value).colour
            chart.curve(range(len(errors)), errors, colour, 2, dots=True)
        else:
            chart.text(110, 106, found.reason)
        return chart.svg(
            f"A line of backward errors. {sentence}", width=780, height=314
        ), sentence


def _outcome(found: Refinement) -> str:
    if not len(found.backward_errors):
        return f"{found.reason}."
    first, last = (_size(found.backward_errors[k]) for k in (0, -1))
    steps = plural(found.steps, "correction")
    if found.inner_steps:
        steps += f" with {found.inner_steps} inner steps, n = {SIZE}"
    if found.converged:
        return f"converged, from {first} to {last} in {steps}."
    return f"not converged, from {first} to {last} in {steps}: {found.reason}."


def _size(error: float) -> str:
    if not math.isfinite(error):
        return "infinity"
    return f"2{superscript(round(math.log2(error)))}" if error else "0"
