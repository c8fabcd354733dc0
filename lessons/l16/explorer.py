"""The explorers of time steps: where does a cup of coffee stop, and where the weather?"""

import math
from functools import cache

import numpy as np
import traitlets

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Format
from mplab.common.words import number, superscript
from mplab.course.explorers.chart import Chart, Scale
from mplab.course.explorers.modules import PageExplorer, module
from mplab.course.explorers.widget import Explorer, choice, slider
from mplab.course.pictures.canvas import style
from mplab.lessons.l16 import figures
from mplab.lessons.l16.figures import HOT, RATE, ROOM, cooling, temperatures
from mplab.lessons.l16.integration import integrate, step_is_lost

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
    edges = np.diff(
        step_is_lost(cooling, t, 2.0**power, FORMATS[fmt]), prepend=0, append=0
    )
    low, end = np.flatnonzero(edges).reshape(-1, 2).T
    return tuple(zip(t[low].tolist(), t[end - 1].tolist(), strict=True))


class FreezingCup(Explorer):
    """Does the cup cool down to the room, or stop before?

    A cup of coffee of 90 degrees in a room of 20 loses in each minute a tenth of its distance
    from the room. Euler's method takes 64 minutes in equal steps. In the grey ranges, a step
    rounded to nearest is lost.

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
        self.power = slider("step 2^", -4, 3, -2)
        self.fmt = choice("format", FORMATS, value="BF16")
        self.method = choice("rounding", METHODS)
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
        """The ranges of temperature, from cold to hot, in which each step to nearest is lost."""
        return _lost(self.power.value, self.fmt.value)

    def draw(self) -> tuple[str, str]:
        """The temperatures over time beside the exact ones, and where they freeze."""
        path = self.path
        moved = np.flatnonzero(np.diff(path))
        last = 2.0**self.power.value * (moved.max(initial=-1) + 1)
        ends = {0: "never moves", MINUTES: "is still moving"}
        end = ends.get(last, f"last moves after {last:g} minutes")
        sentence = (
            f"{self.fmt.value}, steps of 2{superscript(self.power.value)} minutes, "
            f"{self.method.value}: the cup {end} and ends at {number(float(path[-1]))} °C, where "
            f"{_exact(MINUTES):.3f} would be exact. To nearest, steps from "
            f"{number(self.line)} °C are lost."
        )
        return self._picture(path.tolist(), sentence), sentence

    def _picture(self, path: list[float], sentence: str) -> str:
        chart = Chart(Scale(0, MINUTES, 60, 600), Scale(15, 98, 262, 16))
        for low, high in self.lost:
            chart.band(low, high)
        chart.ticks_y(range(20, 91, 10))
        chart.ticks_x(range(0, MINUTES + 1, 16))
        chart.frame()
        chart.curve(range(MINUTES + 1), map(_exact, range(MINUTES + 1)))
        step = MINUTES / (len(path) - 1)
        fmt = self.fmt.value
        chart.curve([n * step for n in range(len(path))], path, style(fmt).colour, 2.5)
        chart.name_ends(
            [
                (path[-1], f"{fmt} {number(path[-1], digits=5)}"),
                (_exact(MINUTES), "exact"),
            ]
        )
        chart.below("°C over minutes (grey: steps rounded to nearest are lost)")
        return chart.svg(
            f"A line of temperatures over time. {sentence}", width=720, height=314
        )


def _exact(minutes: float) -> float:
    return ROOM + (HOT - ROOM) * math.exp(-RATE * minutes)


class FrozenWeather(PageExplorer):
    """Which step makes the weather stand still, and what frees it?

    Lorenz's equations from (1, 2, 20), with the method of fourth order: 20,000 steps in FP32, and
    in a format, rounded to nearest and stochastically. Each draws z over x. It runs in the page,
    without Python.

    Args:
        fmt: the format to start with.
        power: the step to start with is 2^−power, 4 to 12.

    Attributes:
        format: the name of the format; setting it or the next one redraws.
        power: the step is 2^−power.
        formats: the facts of FP32 and of all formats that are offered.

    Exactness:
        States are those of `integrate`, bit for bit.

    Source:
        Lorenz 1963, Deterministic Nonperiodic Flow, Journal of the Atmospheric Sciences 20.
    """

    _esm = module("weather.js")
    format = traitlets.Unicode().tag(sync=True)
    power = traitlets.Int().tag(sync=True)

    def __init__(self, fmt: Format = BF16, *, power: int = 6) -> None:
        super().__init__(
            (FP32, BF16, FP16, FP8_E4M3, FP8_E5M2),
            lambda: figures.orbits(
                {
                    "FP32": weather_run(FP32, power),
                    f"{fmt.name} to nearest": weather_run(fmt, power),
                    "stochastic": weather_run(fmt, power, "stochastic"),
                }
            ),
            format=fmt.name,
            power=power,
        )


def weather_run(
    fmt: Format, power: int, method: str = "nearest", steps: int = 4_000
) -> np.ndarray:
    """Return the first states of a run that the explorer of the weather shows."""
    start, dt = (1, 2, 20), 2.0**-power
    return integrate(_lorenz, start, dt, steps, fmt, scheme="rk4", method=method)


def _lorenz(state: np.ndarray) -> np.ndarray:
    x, y, z = state
    return np.array([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])
