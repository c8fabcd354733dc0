"""Is the problem hard, or is the formula bad?"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from mplab import Format, Rounding, round_to
from mplab.arithmetic import (
    add,
    divide,
    exp,
    log,
    multiply,
    sqrt,
    subtract,
    sum,
    variance,
)
from mplab.common.words import superscript
from mplab.course.pictures import canvas as c

Data = tuple[np.ndarray, ...]


# Problems --------------------------------------------------------------------------------
class Problem(NamedTuple):
    """A problem with data from easy to hard, and two formulas that solve it.

    Attributes:
        asks: what is computed.
        axis: what the levels measure.
        levels: each as an axis writes it, and as a number.
        draw: makes data, from a generator, a level's number, a format and the number of draws.
        condition: how much larger a relative change of the result may be than that of the data.
        exact: the result of the data in float64.
        formulas: by name, the result in a format, every operation rounded; the bad one first.
    """

    asks: str
    axis: str
    levels: tuple[tuple[str, float], ...]
    draw: Callable[[np.random.Generator, float, Format, int], Data]
    condition: Callable[[Data], np.ndarray]
    exact: Callable[[Data], np.ndarray]
    formulas: dict[str, Callable[[Data, Format], np.ndarray]]


def _readings(rng: np.random.Generator, mean: float, fmt: Format, draws: int) -> Data:
    """Readings around random means, `mean` to twice that: a power of two has no rounding error."""
    means = mean * (1 + rng.random(draws))
    return (round_to(rng.standard_normal((256, draws)) + means, fmt),)


def _condition_of_variance(data: Data) -> np.ndarray:
    (x,) = data
    off = x - x.mean(axis=0)
    return np.asarray(2 * np.abs(x * off).sum(axis=0) / (off * off).sum(axis=0))


def _variance(method: str) -> Callable[[Data, Format], np.ndarray]:
    how: Any = {"axis": 0, "order": "pairwise", "method": method}
    return lambda data, fmt: np.asarray(
        variance(data[0], accumulator_format=fmt, **how)
    )


def _equation(rng: np.random.Generator, level: float, fmt: Format, draws: int) -> Data:
    """b, and c near b² · 2^−level, or b² · (1 − 2^level) below zero, where the roots are close."""
    b = round_to(1 + rng.random(draws), fmt)
    near = 2.0 ** (-abs(level) - rng.random(draws) * (1 if level > 0 else 3))
    ratio = near if level > 0 else 1 - near
    return b, round_to(b * b * ratio, fmt, rounding=Rounding.TOWARD_ZERO)


def _condition_of_root(data: Data) -> np.ndarray:
    b, c0 = data
    s = np.sqrt(b * b - c0)
    return np.asarray((3 * b + s) / (2 * s))


def _exact_root(data: Data) -> np.ndarray:
    b, c0 = data
    return np.asarray(c0 / (b + np.sqrt(b * b - c0)))


def _half_distance(data: Data, fmt: Format) -> np.ndarray:
    """√(b² − c); NaN where rounding made the difference negative."""
    b, c0 = data
    return np.asarray(sqrt(subtract(multiply(b, b, fmt), c0, fmt), fmt))


def _scores(rng: np.random.Generator, shift: float, fmt: Format, draws: int) -> Data:
    return (round_to(rng.standard_normal((16, draws)) + shift, fmt),)


def _exact_log_sum(data: Data) -> np.ndarray:
    (x,) = data
    top = x.max(axis=0)
    return np.asarray(top + np.log(np.exp(x - top).sum(axis=0)))


def _condition_of_log_sum(data: Data) -> np.ndarray:
    (x,) = data
    exact = _exact_log_sum(data)
    return np.asarray((np.abs(x) * np.exp(x - exact)).sum(axis=0) / np.abs(exact))


def _log_sum(x: np.ndarray, fmt: Format) -> np.ndarray:
    return np.asarray(log(sum(exp(x, fmt), axis=0, accumulator_format=fmt), fmt))


def _shifted_log_sum(data: Data, fmt: Format) -> np.ndarray:
    (x,) = data
    top = x.max(axis=0)
    rest = _log_sum(subtract(x, np.broadcast_to(top, x.shape), fmt), fmt)
    return np.asarray(add(top, rest, fmt))


def _powers(exponents: Sequence[int]) -> tuple[tuple[str, float], ...]:
    return tuple((f"2{superscript(k)}", 2.0**k) for k in exponents)


PROBLEMS = {
    "variance": Problem(
        "The variance of 256 readings",
        "mean / standard deviation, at least",
        _powers(range(13)),
        _readings,
        _condition_of_variance,
        lambda data: np.asarray(data[0].var(axis=0)),
        {
            "mean of squares − square of mean": _variance("one-pass"),
            "mean of squared distances": _variance("two-pass"),
        },
    ),
    "small root": Problem(
        "The smaller root of r² − 2br + c = 0",
        "c / b²",
        (
            *((f"1 − 2{superscript(k)}", float(k)) for k in range(-20, -1, 3)),
            *((f"2{superscript(-k)}", float(k)) for k in range(1, 12, 2)),
        ),
        _equation,
        _condition_of_root,
        _exact_root,
        {
            "b − √(b² − c)": lambda data, fmt: subtract(
                data[0], _half_distance(data, fmt), fmt
            ),
            "c / (b + √(b² − c))": lambda data, fmt: divide(
                data[1], add(data[0], _half_distance(data, fmt), fmt), fmt
            ),
        },
    ),
    "log-sum-exp": Problem(
        "The logarithm of 16 summed exponentials",
        "scores around",
        tuple(
            (f"{shift}".replace("-", "−"), float(shift)) for shift in range(-32, 17, 4)
        ),
        _scores,
        _condition_of_log_sum,
        _exact_log_sum,
        {
            "log Σ exp x": lambda data, fmt: _log_sum(data[0], fmt),
            "max + log Σ exp(x − max)": _shifted_log_sum,
        },
    ),
}
"""The problems by name."""


# Measured errors -------------------------------------------------------------------------
class FormulaErrors(NamedTuple):
    """Relative errors of the two formulas for a problem, by level and draw.

    Attributes:
        problem: a name of `PROBLEMS`.
        fmt: the format of data, operations and results.
        conditions: shape (levels, draws); infinite where rounding removed all differences.
        errors: by formula, of that shape; at most 1, which also stands for NaN and infinity; NaN
            where the exact result of the rounded data is 0.
    """

    problem: str
    fmt: Format
    conditions: np.ndarray
    errors: dict[str, np.ndarray]


def measure_formula_errors(
    problem: str, fmt: Format, *, draws: int = 64, seed: int = 0
) -> FormulaErrors:
    """Relative errors of two formulas, measured on random data from easy to hard.

    Args:
        problem: "variance", "small root" or "log-sum-exp".
        fmt: the format of the data, of every operation and of the results; far narrower
            than float64's 53 bits.
        draws: how many random draws of data a level has.
        seed: of the data.

    Exactness:
        Compared with float64 on the same rounded data, by formulas without cancellation.

    Examples:
        >>> found = measure_formula_errors("variance", FP16, draws=4)
        >>> found.conditions.shape
        (13, 4)
    """
    rng = np.random.default_rng(seed)
    asked = PROBLEMS[problem]
    data = [asked.draw(rng, level, fmt, draws) for _, level in asked.levels]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exact = [asked.exact(x) for x in data]
        conditions = np.stack([asked.condition(x) for x in data])
        conditions[np.isnan(conditions)] = np.inf  # rounding made all the data equal
        errors = {
            name: np.stack(
                [_error(way(x, fmt), y) for x, y in zip(data, exact, strict=True)]
            )
            for name, way in asked.formulas.items()
        }
    return FormulaErrors(problem, fmt, conditions, errors)


def _error(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    off = np.abs(result - exact) / np.abs(exact)
    # 1 for NaN and infinity.
    return np.where(exact == 0, np.nan, np.where(off <= 1, off, 1.0))


def medians(errors: np.ndarray) -> np.ndarray:
    """The median error of each level; NaN where no draw has one."""
    known = ~np.isnan(errors)
    return np.array(
        [
            np.median(x[k]) if k.any() else np.nan
            for x, k in zip(errors, known, strict=True)
        ]
    )


# Figures ---------------------------------------------------------------------------------
_LEAST = 2.0**-30
"""The least error drawn in place; smaller ones lie at the edge."""


def plot_formula_errors(found: FormulaErrors) -> c.Picture:
    """Median errors of two formulas from easy data to hard, and what the condition explains.

    Args:
        found: from `measure_formula_errors`.

    Returns:
        A figure whose title says where each formula is worst.
    """
    asked = PROBLEMS[found.problem]
    u = found.fmt.unit_roundoff
    places = np.arange(len(asked.levels))
    due = np.minimum(np.median(found.conditions, axis=1) * u, 1.0)
    lines = [c.Line(places, due, "condition × u", c.REFERENCE, {"linewidth": 0.9})]
    worst = []
    for (name, errors), look in zip(found.errors.items(), c.NEUTRAL, strict=False):
        median = np.maximum(medians(errors), _LEAST)
        lines.append(c.Line(places, median, name, look, {"marker": look.marker}))
        largest = np.nanmax(median)
        most = "100%" if largest == 1 else f"{largest:.1g}"
        worst.append(f"{most} with “{_unbroken(name)}”")
    step = -(-len(places) // 9)
    ticks = places[::step], [words for words, _ in asked.levels][::step]
    claim = (
        f"{asked.asks} in {found.fmt.name}: the error reaches {' and '.join(worst)}."
    )
    quantities = asked.axis, "relative error (median)"
    return c.line_chart(
        lines, *quantities, claim, log="y", finish=lambda axes: axes.set_xticks(*ticks)
    )


@c.in_house_style
def blame(found: FormulaErrors) -> c.Picture:
    """Each draw's error against its condition: errors above the line are the formula's fault.

    Args:
        found: from `measure_formula_errors`.

    Returns:
        A figure whose title counts how many errors the condition does not explain.
    """
    u = found.fmt.unit_roundoff
    picture = c.Picture(height=4.4, width=8.4)
    axes = picture.subplots()
    c.log_axes(axes, "condition of the problem", "relative error")
    conditions = found.conditions.ravel()
    finite = conditions[np.isfinite(conditions)]
    limits = np.array([finite.min(), finite.max()])
    axes.plot(limits, np.minimum(4 * limits * u, 1), color="black", linewidth=0.9)
    said = []
    for (name, errors), look in zip(found.errors.items(), c.NEUTRAL, strict=False):
        flat = np.maximum(errors.ravel(), _LEAST)
        over = int(np.sum(flat > np.minimum(4 * conditions * u, 1)))
        how: Any = {"color": look.colour, "markersize": 3, "alpha": 0.6, "zorder": 2}
        axes.plot(conditions, flat, look.marker, label=name, **how)
        said.append(f"{over} of {flat.size} errors of {_unbroken(name)}")
    axes.legend(loc="upper center", frameon=False)
    axes.annotate("4 · condition · u", (limits[-1], min(4 * limits[-1] * u, 1)), ha="right",
                  va="bottom", xytext=(0, 4), textcoords="offset points")  # fmt: skip
    sentence = f"The condition does not explain {c.listed(said)}, in {found.fmt.name}."
    details = "Scatter chart, both axes logarithmic, with the line 4·condition·u."
    return c.titled(picture, sentence, details)


def _unbroken(formula: str) -> str:
    """Keep a formula on one line, with no-break spaces."""
    return formula.replace(" ", "\N{NO-BREAK SPACE}")


# Derivatives -----------------------------------------------------------------------------
class DerivativeErrors(NamedTuple):
    """Errors of (√(x + h) − √x) / h as a derivative, by step h, in one format."""

    fmt: Format
    steps: np.ndarray
    errors: np.ndarray

    @property
    def best(self) -> float:
        """The step with the least error."""
        return float(self.steps[np.argmin(self.errors)])


def measure_derivative_errors(fmt: Format) -> DerivativeErrors:
    """The median relative error of a difference quotient of √x, for 256 x in [1, 2).

    Args:
        fmt: of x, of h, of every operation and of the results.

    Exactness:
        Compared with 1 / (2√x) in float64.
    """
    x = round_to(1 + np.random.default_rng(0).random(256), fmt)
    steps = 2.0 ** -np.arange(0, fmt.precision + 1)
    errors = []
    for h in steps:
        h0 = np.full_like(x, h)
        moved = subtract(sqrt(add(x, h0, fmt), fmt), sqrt(x, fmt), fmt)
        errors.append(np.median(_error(divide(moved, h0, fmt), 0.5 / np.sqrt(x))))
    return DerivativeErrors(fmt, steps, np.array(errors))


def plot_derivative_errors(curves: Sequence[DerivativeErrors]) -> c.Picture:
    """Errors of difference quotients against the step: too long a step, or too short.

    Args:
        curves: from `measure_derivative_errors`, one for each format.

    Returns:
        A figure whose title gives the best step of each format.
    """
    lines, best = [], []
    for curve in curves:
        look = c.style(curve.fmt)
        shown = np.maximum(curve.errors, _LEAST)[::-1]
        how = {"marker": look.marker}
        lines.append(c.Line(curve.steps[::-1], shown, curve.fmt.name, look, how))
        least = f"{curve.errors.min():.1g}"
        best.append(f"{curve.fmt.name}: {least} at {c.power_of_two(curve.best)}")

    def finish(axes: Axes) -> None:
        for curve in curves:
            axes.annotate(
                c.power_of_two(curve.best),
                (curve.best, max(curve.errors.min(), _LEAST)),
                xytext=(0, -12),
                textcoords="offset points",
                ha="center",
                va="top",
            )
        axes.margins(y=0.1)

    claim = f"The best step and its error: {'; '.join(best)}."
    quantities = "step h", "relative error (median)"
    return c.line_chart(lines, *quantities, claim, log="xy", finish=finish)
