"""The explorer of weight updates: where w + Δ lands, and where w is after many updates."""

import numpy as np

from mplab import BF16, FP8_E4M3, FP16, Format, next_down, next_up, round_to
from mplab.common.words import number
from mplab.course.explorers.chart import Chart, Drawing, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, stops
from mplab.course.pictures.canvas import percent, power_of_two, style
from mplab.lessons.l07.descent import update_trajectory

FORMATS: dict[str, Format] = {"BF16": BF16, "FP16": FP16, "E4M3": FP8_E4M3}

WEIGHTS = (0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)

METHOD_NAMES = {
    "to nearest": "nearest",
    "stochastic": "stochastic",
    "Kahan": "kahan",
    "FP32 master": "master",
}


class UpdateStagnation(Explorer):
    """Which updates move a weight, and how do small ones survive?

    Above, the neighbours of the weight, the midpoints between them, and the update as an arrow.
    Below, the weight over many equal updates against the exact line.

    Args:
        seed: the seed of stochastic rounding.

    Attributes:
        weight: the slider of the first weight.
        update: the slider of the update's exponent.
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
        self.weight = stops("weight", WEIGHTS, 1.0)
        self.update = slider("|Δ| = 2^", -16, -2, -9)
        self.direction = choice("direction", ["up", "down"])
        self.fmt = choice("format", FORMATS)
        self.method = choice("rounding", METHOD_NAMES)
        self.steps = stops(
            "updates", [(f"{n:,}", n) for n in (1, 4, 16, 64, 256, 1024)], 256
        )
        controls = [
            self.weight,
            self.update,
            self.direction,
            self.fmt,
            self.method,
            self.steps,
        ]
        self.on_page = {"weight": (0.5, 0.75, 1.0, 1.5, 2.0), "updates": (1, 256)}
        question = "Which updates move a weight, and how do small ones survive?"
        super().__init__(question, controls)

    @property
    def delta(self) -> float:
        """The update."""
        return (1.0 if self.direction.value == "up" else -1.0) * 2.0**self.update.value

    @property
    def path(self) -> np.ndarray:
        """The weights before and after each update, shape (steps + 1,)."""
        return update_trajectory(
            self.weight.value,
            self.delta,
            self.steps.value,
            FORMATS[self.fmt.value],
            method=METHOD_NAMES[self.method.value],
            seed=self.seed,
        )

    def draw(self) -> tuple[str, str]:
        """Draw the number line and the chart, and say both in words."""
        weights = self.path
        fmt = FORMATS[self.fmt.value]
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
        return _picture(weights, self.delta, fmt, sentence), sentence


def _share_of_gap(weight: float, delta: float, fmt: Format) -> float:
    """The update as a share of the gap to the next number in its direction."""
    other = float((next_up if delta > 0 else next_down)(weight, fmt))
    return abs(delta) / abs(other - weight)


def _landing(weight: float, delta: float, fmt: Format) -> str:
    lands = float(round_to(weight + delta, fmt))
    return "returns to the weight" if lands == weight else f"goes to {lands:g}"


def _picture(weights: np.ndarray, delta: float, fmt: Format, description: str) -> str:
    drawing = Drawing()
    _number_line(drawing, float(weights[0]), delta, fmt)
    _over_updates(drawing, weights.tolist(), delta, fmt)
    label = f"A number line, and a chart of the weight. {description}"
    return drawing.svg(label, width=720, height=340)


def _number_line(drawing: Drawing, weight: float, delta: float, fmt: Format) -> None:
    """The weight, its neighbours, the midpoints, and the update."""
    below, above = float(next_down(weight, fmt)), float(next_up(weight, fmt))
    reach = 1.48 * (above - weight)  # from the weight to the edge of the line
    x = Scale(weight - reach, weight + reach, 34, 626)
    line = 62
    drawing.line(f"M30 {line}H630")
    for value in (below, weight, above):
        drawing.line(f"M{x(value):.1f} {line - 9}v18", "black", 2)
        drawing.text(x(value), line + 26, f"{value:.10g}", "middle")
    for middle in ((below + weight) / 2, (weight + above) / 2):
        drawing.line(f"M{x(middle):.1f} {line - 14}v28", more='stroke-dasharray="3 3"')
        drawing.text(x(middle), line + 42, "½", "middle")
    colour = style(fmt).colour
    end = x(weight + delta)
    back = -7 if delta > 0 else 7
    drawing.line(f"M{x(weight):.1f} {line - 22}H{end:.1f}", colour, 3)
    drawing.area(f"M{end:.1f} {line - 22}l{back} -5v10z", colour)
    past = " (past the edge)" if abs(delta) > reach else ""
    size = f"Δ = {'−' if delta < 0 else ''}{power_of_two(abs(delta))}{past}"
    drawing.text(x(weight), line - 38, size, "middle")


def _over_updates(on: Drawing, weights: list[float], delta: float, fmt: Format) -> None:
    """The weight over the updates, and the exact line."""
    steps = len(weights) - 1
    exact = weights[0] + steps * delta
    low = min(*weights, exact)
    high = max(*weights, exact)
    chart = Chart(
        Scale(0, steps, 70, 590),
        Scale(low, high if high > low else low + abs(delta), 300, 130, inset=6),
        on,
    )
    chart.frame()
    chart.curve([0, steps], [weights[0], exact])
    chart.curve(range(steps + 1), weights, style(fmt).colour, 2.5)
    ends = ("exact", exact), ("stored", weights[-1])
    chart.name_ends(
        [(value, f"{name} {number(value, digits=5)}") for name, value in ends]
    )
    chart.ticks_y([weights[0]], "{:g}".format)
    chart.ticks_x([0, steps], "{:,}".format)
    chart.below("updates", 30)
