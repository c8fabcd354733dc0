"""The explorer of weight updates: where w + Δ lands, and where w is after many of them."""

from __future__ import annotations

import ipywidgets
import numpy as np

from mplab.arithmetic.updates import path
from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.numbers.codes import next_down, next_up
from mplab.numbers.formats import BF16, FP8_E4M3, FP16, Format
from mplab.numbers.rounding import round_to
from mplab.numbers.words import number
from mplab.pictures.canvas import percent, power_of_two, style

FORMATS: dict[str, Format] = {"BF16": BF16, "FP16": FP16, "E4M3": FP8_E4M3}

WEIGHTS = (0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)

METHOD_NAMES = {
    "to nearest": "nearest",
    "stochastic": "stochastic",
    "Kahan": "kahan",
    "FP32 master": "master",
}


class UpdateStagnation(Explorer):
    """When does an update move a weight, and what keeps the small ones?

    Above, the neighbours of the weight, the midpoints between them, and the update as an arrow.
    Below, the weight over many equal updates against the exact line.

    Args:
        seed: of stochastic rounding.

    Attributes:
        weight: the slider of the first weight.
        update: that of the update's exponent.
        direction: whether the update goes up or down.
        fmt: the choice of format.
        method: the choice of how updates are added.
        steps: the slider of how many updates.
        path: the weights before and after each update.

    Exactness:
        That of `mplab.arithmetic.Weights`.

    Examples:
        >>> explorer = UpdateStagnation()
        >>> float(explorer.path[-1])
        1.0
        >>> explorer.method.value = "FP32 master"
        >>> float(explorer.path[-1])
        1.5
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        wide = {"style": {"description_width": "5.5rem"}, "layout": {"width": "min(36rem, 98%)"}}
        self.weight = ipywidgets.SelectionSlider(
            options=WEIGHTS, value=1.0, description="weight", **wide
        )
        self.update = ipywidgets.IntSlider(
            value=-9, min=-16, max=-2, description="|Δ| = 2^", **wide
        )
        self.direction = ipywidgets.Dropdown(options=["up", "down"], description="direction")
        self.fmt = ipywidgets.Dropdown(options=list(FORMATS), description="format")
        self.method = ipywidgets.Dropdown(options=list(METHOD_NAMES), description="rounding")
        self.steps = ipywidgets.SelectionSlider(
            options=[(f"{n:,}", n) for n in (1, 4, 16, 64, 256, 1024)],
            value=256,
            description="updates",
            **wide,
        )
        controls = [self.weight, self.update, self.direction, self.fmt, self.method, self.steps]
        question = "When does an update move a weight, and what keeps the small ones?"
        super().__init__(question, controls)

    @property
    def delta(self) -> float:
        """The update."""
        return (1.0 if self.direction.value == "up" else -1.0) * 2.0**self.update.value

    @property
    def path(self) -> np.ndarray:
        """The weights before and after each update, shape (steps + 1,)."""
        return path(
            self.weight.value,
            self.delta,
            self.steps.value,
            FORMATS[self.fmt.value],
            method=METHOD_NAMES[self.method.value],
            seed=self.seed,
        )

    def draw(self) -> tuple[str, str]:
        """The number line and the chart, and both in words."""
        weights, fmt = self.path, FORMATS[self.fmt.value]
        share = _share_of_gap(self.weight.value, self.delta, fmt)
        side = "less than" if share < 0.5 else "more than" if share > 0.5 else "exactly"
        words = {
            "to nearest": f"{side} half, so rounding to nearest "
            + _landing(self.weight.value, self.delta, fmt),
            "stochastic": "which is how often a coin takes it there",
            "Kahan": "and what rounding loses is kept in a second number",
            "FP32 master": "and an FP32 copy of the weight takes all of it",
        }[self.method.value]
        exact = self.weight.value + self.steps.value * self.delta
        size = power_of_two(abs(self.delta))
        sentence = (
            f"An update of {size} = {abs(self.delta):.3g} is {percent(min(share, 1), 1)} of the "
            f"way from {self.weight.value:g} {self.direction.value} to the next {self.fmt.value} "
            f"number{' or beyond' if share > 1 else ''}, {words}. After {self.steps.value:,} "
            f"updates the weight is {weights[-1]:.6g}; exactly it would be {exact:.6g}."
        ).replace(" -", " −")
        return _svg(weights, self.delta, fmt, sentence), sentence


def _share_of_gap(weight: float, delta: float, fmt: Format) -> float:
    """How much of the way to the next number in its direction an update is."""
    other = float((next_up if delta > 0 else next_down)(weight, fmt))
    return abs(delta) / abs(other - weight)


def _landing(weight: float, delta: float, fmt: Format) -> str:
    lands = float(round_to(weight + delta, fmt))
    return "returns to the weight" if lands == weight else f"goes to {lands:g}"


# SVG -------------------------------------------------------------------------------------
WIDTH, HEIGHT, LEFT, RIGHT = 720, 340, 70, 590

LINE = 62  # height of the number line

TOP, BOTTOM = 130, 300  # of the chart


def _svg(weights: np.ndarray, delta: float, fmt: Format, description: str) -> str:
    parts = [*_number_line(float(weights[0]), delta, fmt), *_chart(weights, delta, fmt)]
    label = f"A number line, and a chart of the weight. {description}"
    return svg(parts, width=WIDTH, height=HEIGHT, description=label)


def _number_line(weight: float, delta: float, fmt: Format) -> list[str]:
    """The weight, its neighbours, the midpoints, and the update."""
    below, above = float(next_down(weight, fmt)), float(next_up(weight, fmt))
    gap = above - weight

    def x(value: float) -> float:
        return (LEFT + RIGHT) / 2 + (value - weight) / gap * (RIGHT - LEFT) / 2.6

    parts = [f'<path d="M{LEFT - 40} {LINE}H{RIGHT + 40}" stroke="#707075"/>']
    for value in (below, weight, above):
        parts.append(
            f'<path d="M{x(value):.1f} {LINE - 9}v18" stroke="black" stroke-width="2"/>'
            f'<text x="{x(value):.1f}" y="{LINE + 26}" text-anchor="middle">{value:.7g}</text>'
        )
    for middle in ((below + weight) / 2, (weight + above) / 2):
        parts.append(
            f'<path d="M{x(middle):.1f} {LINE - 14}v28" stroke="#707075" stroke-dasharray="3 3"/>'
            f'<text x="{x(middle):.1f}" y="{LINE + 26}" text-anchor="middle">½</text>'
        )
    colour = style(fmt).colour
    end = min(max(x(weight + delta), LEFT - 36), RIGHT + 36)
    past = "" if end == x(weight + delta) else " (past the edge)"
    side = 1 if delta > 0 else -1
    head = f"M{end:.1f} {LINE - 22}l{-7 * side} -5v10z"
    size = f"Δ = {'−' if delta < 0 else ''}{power_of_two(abs(delta))}{past}"
    parts.append(
        f'<path d="M{x(weight):.1f} {LINE - 22}H{end:.1f}" stroke="{colour}" stroke-width="3"/>'
        f'<path d="{head}" fill="{colour}"/>'
        f'<text x="{x(weight):.1f}" y="{LINE - 38}" text-anchor="middle">{size}</text>'
    )
    return parts


def _chart(weights: np.ndarray, delta: float, fmt: Format) -> list[str]:
    """The weight over the updates, and the exact line."""
    steps = len(weights) - 1
    start, exact = float(weights[0]), float(weights[0]) + steps * delta
    low, high = min(*weights, exact), max(*weights, exact)
    room = (high - low) or abs(delta)

    def y(value: float) -> float:
        return BOTTOM - 6 - (value - low) / room * (BOTTOM - TOP - 12)

    def x(step: float) -> float:
        return LEFT + step / steps * (RIGHT - LEFT)

    colour = style(fmt).colour
    last, ideal = y(float(weights[-1])), y(exact)
    apart = max(0.0, 18 - abs(last - ideal)) / 2 * (1 if last >= ideal else -1)
    words = [number(value, digits=5) for value in (exact, float(weights[-1]))]
    way = "".join(
        f"{'M' if i == 0 else 'L'}{x(i):.1f} {y(float(w)):.1f}" for i, w in enumerate(weights)
    )
    return [
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#707075"/>',
        f'<path d="M{x(0):.1f} {y(start):.1f}L{x(steps):.1f} {ideal:.1f}" stroke="black"/>',
        f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="2.5"/>',
        f'<text x="{RIGHT + 8}" y="{ideal + 4 - apart:.1f}">exact {words[0]}</text>',
        f'<text x="{RIGHT + 8}" y="{last + 4 + apart:.1f}">stored {words[1]}</text>',
        f'<text x="{LEFT - 8}" y="{y(start) + 4:.1f}" text-anchor="end">{start:g}</text>',
        f'<text x="{LEFT}" y="{BOTTOM + 20}" text-anchor="middle">0</text>',
        f'<text x="{RIGHT}" y="{BOTTOM + 20}" text-anchor="middle">{steps:,}</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 30}" text-anchor="middle">updates</text>',
    ]
