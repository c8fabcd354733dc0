"""The explorer of refinement: do factors of a low format lead to FP64's digits?"""

from __future__ import annotations

import math
from functools import cache
from html import escape

import ipywidgets
import numpy as np

from mplab.arithmetic.linear import Refinement, refine
from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.lessons.l15.figures import random_system
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32
from mplab.numbers.words import superscript
from mplab.pictures.canvas import BAND, style

FORMATS = {fmt.name: fmt for fmt in (FP32, FP16, BF16, FP8_E4M3, FP8_E5M2)}

METHODS = {"classic": "the factors alone", "gmres": "GMRES, helped by the factors"}

SIZE = 32
"""Unknowns."""


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
        scale: whether that is taken out again before the matrix is rounded.

    Examples:
        >>> refiner = Refiner()
        >>> refiner.found.steps, refiner.found.converged
        (6, True)
    """

    def __init__(self) -> None:
        wide = {"width": "min(36rem, 98%)"}
        self.level = ipywidgets.IntSlider(
            min=0, max=32, value=7, description="condition 2^", layout=wide
        )
        self.fmt = ipywidgets.Dropdown(options=list(FORMATS), value="FP16", description="factors")
        self.method = ipywidgets.Dropdown(
            options=[(words, name) for name, words in METHODS.items()], description="corrections"
        )
        self.power = ipywidgets.IntSlider(
            min=-30, max=30, value=0, description="A times 2^", layout=wide
        )
        self.scale = ipywidgets.Checkbox(value=False, description="scale A first")
        question = "Do factors of this format lead to a backward error of 2⁻⁵²?"
        super().__init__(question, [self.level, self.fmt, self.method, self.power, self.scale])

    @property
    def found(self) -> Refinement:
        """The solution at this position, and its history."""
        where = self.level.value, self.fmt.value, self.method.value, self.power.value
        return _refined(*where, self.scale.value)

    def draw(self) -> tuple[str, str]:
        """The backward errors, and whether and why they end."""
        found = self.found
        a = f"A times 2{superscript(self.power.value)}"
        scaled = "scaled first" if self.scale.value else "as it is"
        sentence = (
            f"Condition 2{superscript(self.level.value)}, {a}, {scaled}, "
            f"factors in {self.fmt.value}, corrections by {METHODS[self.method.value]}: "
            f"{_outcome(found)}"
        )
        return _history_svg(found, self.fmt.value, sentence), sentence


def _outcome(found: Refinement) -> str:
    if not len(found.backward_errors):
        return f"{found.reason}."
    first, last = (_size(found.backward_errors[k]) for k in (0, -1))
    inner = f" with {found.inner_steps} inner steps, n = {SIZE}" * bool(found.inner_steps)
    steps = f"{found.steps} correction{'s' * (found.steps != 1)}{inner}"
    if found.converged:
        return f"converged, from {first} to {last} in {steps}."
    return f"not converged, from {first} to {last} in {steps}: {found.reason}."


def _size(error: float) -> str:
    if not math.isfinite(error):
        return "infinity"
    return f"2{superscript(round(math.log2(error)))}" if error else "0"


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 780, 70, 750, 16, 262

LOW, AIM = -60, -52  # exponents: of the scale's end, and of what counts as converged


def _y(error: float) -> float:
    exponent = math.log2(error) if error > 0 else LOW
    return TOP + (BOTTOM - TOP) * min(max(exponent, LOW), 0) / LOW


def _history_svg(found: Refinement, fmt: str, description: str) -> str:
    errors, colour = found.backward_errors.tolist(), style(fmt).colour
    last = max(10, len(errors) - 1)
    places = [LEFT + 12 + (RIGHT - LEFT - 24) * k / last for k in range(last + 1)]
    parts = []
    for exponent in range(LOW, 1, 12):
        y, tick = _y(2.0**exponent), f"2{superscript(exponent)}"
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{BAND}" stroke-opacity="0.5"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>'
        )
    for k in range(0, last + 1, 1 + last // 26):
        parts.append(f'<text x="{places[k]:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{k}</text>')
    aim = _y(2.0**AIM)
    dots = list(zip(places, map(_y, errors), strict=False))
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in dots)
    parts.append(
        f'<path d="M{LEFT} {aim:.1f}H{RIGHT}" stroke="black" stroke-width="1.5"/>'
        f'<text x="{RIGHT}" y="{aim + 16:.1f}" text-anchor="end">2⁻⁵²: converged</text>'
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 42}" text-anchor="middle">'
        f"backward error after each correction</text>"
    )
    if dots:
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in dots]
    else:
        parts.append(f'<text x="{LEFT + 40}" y="{TOP + 90}">{escape(found.reason)}</text>')
    label = f"A line of backward errors. {description}"
    return svg(parts, width=WIDTH, height=BOTTOM + 52, description=label)
