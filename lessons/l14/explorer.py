"""The explorer of conditioning: is it the problem that is hard, or the formula that is bad?"""

from __future__ import annotations

import math
from functools import cache
from html import escape

import ipywidgets
import numpy as np

from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.lessons.l14.figures import PROBLEMS, FormulaErrors, measure_formula_errors, medians
from mplab.numbers.formats import BF16, FP16, FP32, Format
from mplab.pictures.canvas import BAND, power_of_two

FORMATS = {fmt.name: fmt for fmt in (FP32, FP16, BF16)}

TOLERATED = 4
"""So many times what rounding the data alone does, and the formula is to blame."""

SPOILT = 2.0**-4
"""A relative error past which little is left of a result."""

_of = cache(measure_formula_errors)


class ErrorBudget(Explorer):
    """Is it the problem that is hard, or the formula that is bad?

    Three problems with two formulas each, on data from easy to hard. A bar for what rounding the
    data alone may do to the result, which is condition times u, and one for the error of each
    formula: medians over 64 random data.

    Attributes:
        problem: the choice of a problem.
        fmt: the choice of a format.
        level: the slider from one end of the data to the other.

    Examples:
        >>> budget = ErrorBudget()
        >>> budget.level.value = 12
        >>> [verdict for _, _, verdict in budget.verdicts]
        ["the formula's fault", 'as good as its data']
    """

    def __init__(self) -> None:
        self.problem = ipywidgets.Dropdown(
            options=[(problem.asks, name) for name, problem in PROBLEMS.items()],
            description="problem",
            layout={"width": "min(30rem, 98%)"},
        )
        self.fmt = ipywidgets.Dropdown(options=list(FORMATS), description="format")
        self.level = ipywidgets.IntSlider(
            min=0,
            max=len(PROBLEMS["variance"].levels) - 1,
            value=4,
            description="data",
            readout=False,
            layout={"width": "min(36rem, 98%)"},
        )
        question = "Is it the problem that is hard, or the formula that is bad?"
        super().__init__(question, [self.problem, self.fmt, self.level])

    @property
    def found(self) -> FormulaErrors:
        """The errors at all levels."""
        return _of(self.problem.value, FORMATS[self.fmt.value])

    @property
    def due(self) -> float:
        """What rounding the data alone may do to the result: condition times u, at most 1."""
        found = self.found
        condition = float(np.median(found.conditions[self.level.value]))
        return min(1.0, condition * found.fmt.unit_roundoff)

    @property
    def verdicts(self) -> list[tuple[str, float, str]]:
        """Each formula, its median error, and who is to blame."""
        found = self.found.errors
        errors = {name: float(medians(x)[self.level.value]) for name, x in found.items()}
        # no error: the rounded data have one and the same value, and nothing is left to be found
        shown = {name: 1.0 if error != error else error for name, error in errors.items()}
        return [(name, error, self._verdict(error)) for name, error in shown.items()]

    def _verdict(self, error: float) -> str:
        if error > TOLERATED * self.due or error >= 1 > self.due:
            return "the formula's fault"
        return "only more bits help" if max(error, self.due) > SPOILT else "as good as its data"

    def draw(self) -> tuple[str, str]:
        """The bars, and who is to blame in words."""
        problem, fmt = PROBLEMS[self.problem.value], FORMATS[self.fmt.value]
        where = f"{problem.axis}: {problem.levels[self.level.value][0]}"
        bars = [("condition × u", self.due, "what rounding the data may do"), *self.verdicts]
        words = "; ".join(f"{name}: {_size(error)}, {said}" for name, error, said in bars)
        sentence = f"{problem.asks} in {fmt.name}, {where}. C{words[1:]}."
        return _bars_svg(fmt, bars, sentence), sentence


def _size(error: float) -> str:
    return "everything lost" if error >= 1 else f"{100 * error:.2g} percent"


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP, ROW = 780, 250, 540, 14, 40

LOW, HIGH = -30, 0  # exponents of the scale

_COLOURS = ("#606B99", "#882255", "#117733")


def _x(error: float) -> float:
    exponent = math.log2(error) if error > 0 else LOW
    return LEFT + (max(exponent, LOW) - LOW) / (HIGH - LOW) * (RIGHT - LEFT)


def _bars_svg(fmt: Format, bars: list[tuple[str, float, str]], description: str) -> str:
    bottom = TOP + ROW * len(bars)
    parts = []
    for k in range(LOW, HIGH + 1, 6):
        at = _x(2.0**k)
        parts.append(
            f'<path d="M{at:.1f} {TOP}V{bottom + 5}" stroke="{BAND}" stroke-opacity="0.5"/>'
            f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{power_of_two(2.0**k)}</text>"
        )
    for row, ((name, error, said), colour) in enumerate(zip(bars, _COLOURS, strict=True)):
        top, end = TOP + ROW * row, _x(error)
        parts.append(
            f'<text x="{LEFT - 8}" y="{top + 25}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{LEFT}" y="{top + 10}" width="{end - LEFT:.1f}" height="{ROW - 18}" '
            f'fill="{colour}"/><text x="{RIGHT + 10}" y="{top + 25}">{escape(said)}</text>'
        )
    u = _x(fmt.unit_roundoff)
    parts.append(
        f'<path d="M{u:.1f} {TOP - 6}V{bottom}" stroke="black" stroke-width="1.5"/>'
        f'<text x="{(LEFT + RIGHT) / 2}" y="{bottom + 42}" text-anchor="middle">'
        f"relative error (black line: u of {fmt.name})</text>"
    )
    label = f"Bars of relative errors. {description}"
    return svg(parts, width=WIDTH, height=bottom + 52, description=label)
