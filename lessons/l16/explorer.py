"""The explorer of time steps: does a cup of coffee cool down to the room, or stop before?"""

from __future__ import annotations

import math
from functools import cache

import ipywidgets
import numpy as np

from mplab.arithmetic.integration import freezes, integrate
from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.lessons.l16.figures import HOT, RATE, ROOM, cooling, temperatures
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16
from mplab.numbers.words import number, superscript
from mplab.pictures.canvas import BAND, COARSE, style

FORMATS = {fmt.name: fmt for fmt in (FP16, BF16, FP8_E4M3, FP8_E5M2)}

METHODS = {
    "to nearest": "nearest",
    "stochastic": "stochastic",
    "Kahan": "kahan",
    "FP32 master": "master",
}

MINUTES = 64


@cache
def _cooled(power: int, fmt: str, method: str) -> np.ndarray:
    dt = 2.0**power
    return integrate(cooling, HOT, dt, round(MINUTES / dt), FORMATS[fmt], method=method)


@cache
def _lost(power: int, fmt: str) -> tuple[tuple[float, float], ...]:
    t = temperatures(FORMATS[fmt])
    edges = np.diff(freezes(cooling, t, 2.0**power, FORMATS[fmt]), prepend=0, append=0)
    low, end = np.flatnonzero(edges).reshape(-1, 2).T
    return tuple(zip(t[low].tolist(), t[end - 1].tolist(), strict=True))


class FreezingCup(Explorer):
    """Does the cup cool down to the room, or stop before?

    A cup of coffee of 90 degrees in a room of 20 loses in each minute a tenth of its distance
    from the room. Euler's method takes 64 minutes in equal steps. Where it is grey, a step to
    nearest is lost.

    Attributes:
        power: the slider of the time step, a power of two in minutes.
        fmt: the choice of the temperature's format.
        method: the choice of how a step is added.

    Examples:
        >>> cup = FreezingCup()
        >>> float(cup.path[-1]), cup.line
        (22.5, 22.5)
    """

    def __init__(self) -> None:
        wide = {"width": "min(36rem, 98%)"}
        self.power = ipywidgets.IntSlider(
            min=-4, max=3, value=-2, description="step 2^", layout=wide
        )
        self.fmt = ipywidgets.Dropdown(options=list(FORMATS), value="BF16", description="format")
        self.method = ipywidgets.Dropdown(options=list(METHODS), description="rounding")
        question = "Does the cup cool down to the room, or stop before?"
        super().__init__(question, [self.power, self.fmt, self.method])

    @property
    def path(self) -> np.ndarray:
        """The temperatures before and after each step, shape (steps + 1,)."""
        return _cooled(self.power.value, self.fmt.value, METHODS[self.method.value])

    @property
    def line(self) -> float:
        """The hottest temperature at which a step to nearest is lost."""
        return self.lost[-1][1]

    @property
    def lost(self) -> tuple[tuple[float, float], ...]:
        """Between which temperatures, from cold to hot, each step to nearest is lost."""
        return _lost(self.power.value, self.fmt.value)

    def draw(self) -> tuple[str, str]:
        """The temperatures over the minutes, the exact ones, what freezes, and where they end."""
        path = self.path
        moved = np.flatnonzero(np.diff(path))
        last = 2.0**self.power.value * (int(moved[-1]) + 1 if len(moved) else 0)
        end = "is still moving" if last == MINUTES else f"last moves after {last:g} minutes"
        sentence = (
            f"{self.fmt.value}, steps of 2{superscript(self.power.value)} minutes, "
            f"{self.method.value}: the cup {end} and ends at {number(float(path[-1]))} °C, where "
            f"{_exact(MINUTES):.3f} would be exact. To nearest, a step from "
            f"{number(self.line)} °C is lost."
        )
        return _cup_svg(path, self.lost, self.fmt.value, sentence), sentence


def _exact(minutes: float) -> float:
    return ROOM + (HOT - ROOM) * math.exp(-RATE * minutes)


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 720, 60, 600, 16, 262

LOW, HIGH = 15, 98  # degrees


def _x(minutes: float) -> float:
    return LEFT + (RIGHT - LEFT) * minutes / MINUTES


def _y(degrees: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (min(max(degrees, LOW), HIGH) - LOW) / (HIGH - LOW)


def _cup_svg(
    path: np.ndarray, lost: tuple[tuple[float, float], ...], fmt: str, description: str
) -> str:
    colour, step = style(fmt).colour, MINUTES / (len(path) - 1)
    parts = [
        f'<rect x="{LEFT}" y="{_y(high):.1f}" width="{RIGHT - LEFT}" '
        f'height="{_y(low) - _y(high):.1f}" fill="{BAND}" fill-opacity="{COARSE}"/>'
        for low, high in lost
    ]
    for t in range(20, 91, 10):
        parts.append(f'<text x="{LEFT - 8}" y="{_y(t) + 4:.1f}" text-anchor="end">{t} °C</text>')
    for minutes in range(0, MINUTES + 1, 16):
        parts.append(
            f'<text x="{_x(minutes):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{minutes}</text>'
        )
    run = "L".join(f"{_x(n * step):.1f} {_y(t):.1f}" for n, t in enumerate(path.tolist()))
    ideal = "L".join(f"{_x(m):.1f} {_y(_exact(m)):.1f}" for m in range(MINUTES + 1))
    end, due = _y(float(path[-1])), _y(_exact(MINUTES))
    apart = max(0.0, 18 - abs(end - due)) / 2
    words = f"{fmt} {number(float(path[-1]), digits=5)}"
    parts += [
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#707075"/>',
        f'<path d="M{ideal}" fill="none" stroke="black"/>',
        f'<path d="M{run}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
        f'<text x="{RIGHT + 8}" y="{end + 4 - apart:.1f}">{words}</text>',
        f'<text x="{RIGHT + 8}" y="{due + 4 + apart:.1f}">exact</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 42}" text-anchor="middle">'
        f"minutes (grey: where a step to nearest is lost)</text>",
    ]
    label = f"A line of temperatures over time. {description}"
    return svg(parts, width=WIDTH, height=BOTTOM + 52, description=label)
