"""The explorer of conditioning: is it the problem that is hard, or the formula that is bad?"""

from functools import cache

import numpy as np

from mplab import BF16, FP16, FP32
from mplab.course.explorers.chart import Bar, Scale, bars
from mplab.course.explorers.widget import Explorer, choice, slider
from mplab.course.pictures.canvas import BAD, FAINT, GOOD, power_of_two
from mplab.lessons.l14.figures import (
    PROBLEMS,
    FormulaErrors,
    measure_formula_errors,
    medians,
)

FORMATS = {fmt.name: fmt for fmt in (FP32, FP16, BF16)}

TOLERATED = 4
"""Blame the formula above this multiple of the error that rounding the data causes."""

SPOILT = 2.0**-4
"""A relative error above which little is left of a result."""

_of = cache(measure_formula_errors)


class ErrorBudget(Explorer):
    """Is it the problem that is hard, or the formula that is bad?

    Three problems with two formulas each, on data from easy to hard. One bar for the
    error that rounding the data alone may cause, which is condition times u, and one for the error
    of each formula: medians over 64 random draws of the data.

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
        self.problem = choice(
            "problem", [(p.asks, name) for name, p in PROBLEMS.items()]
        )
        self.fmt = choice("format", FORMATS)
        self.level = slider(
            "data", 0, len(PROBLEMS["variance"].levels) - 1, 4, readout=False
        )
        question = "Is it the problem that is hard, or the formula that is bad?"
        super().__init__(question, [self.problem, self.fmt, self.level])

    @property
    def found(self) -> FormulaErrors:
        """The errors at all levels."""
        return _of(self.problem.value, FORMATS[self.fmt.value])

    @property
    def due(self) -> float:
        """The error that rounding the data alone may cause: condition times u, at most 1."""
        found = self.found
        condition = float(np.median(found.conditions[self.level.value]))
        return min(1.0, condition * found.fmt.unit_roundoff)

    @property
    def verdicts(self) -> list[tuple[str, float, str]]:
        """Each formula, its median error, and who is to blame."""
        found = self.found.errors
        errors = {
            name: float(medians(x)[self.level.value]) for name, x in found.items()
        }
        # NaN: the rounded data all have the same value, and nothing is left to compute
        shown = {
            name: 1.0 if error != error else error for name, error in errors.items()
        }
        return [(name, error, self._verdict(error)) for name, error in shown.items()]

    def _verdict(self, error: float) -> str:
        if error > TOLERATED * self.due or error >= 1 > self.due:
            return "the formula's fault"
        return (
            "only more bits help"
            if max(error, self.due) > SPOILT
            else "as good as its data"
        )

    def draw(self) -> tuple[str, str]:
        """Draw the bars, and say who is to blame."""
        problem, fmt = PROBLEMS[self.problem.value], FORMATS[self.fmt.value]
        where = f"{problem.axis}: {problem.levels[self.level.value][0]}"
        rows = [
            ("condition × u", self.due, "what rounding the data may do"),
            *self.verdicts,
        ]
        words = "; ".join(
            f"{name}: {_size(error)}, {said}" for name, error, said in rows
        )
        sentence = f"{problem.asks} in {fmt.name}, {where}. C{words[1:]}."
        picture = bars(
            [Bar(*row, colour) for row, colour in zip(rows, (FAINT, BAD, GOOD), strict=True)],
            Scale(-30, 0, 250, 540, log=True),
            f"Bars of relative errors. {sentence}",
            width=780, row=40, ticks=[2.0**k for k in range(-30, 1, 6)], tick_words=power_of_two,
            mark=fmt.unit_roundoff, axis=f"relative error (line: u of {fmt.name})",
        )  # fmt: skip
        return picture, sentence


def _size(error: float) -> str:
    """An error in words; a small one as a share, because 0.0000027 percent says nothing."""
    if error >= 1:
        return "everything lost"
    return f"{100 * error:.2g} percent" if error >= 0.001 else f"a share of {error:.1g}"
