"""The figures of rounding: profiles, rounding twice, what errors add up to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from mplab.arithmetic.reductions import cumsum
from mplab.numbers.codes import ulp
from mplab.numbers.formats import Format, Rounding
from mplab.numbers.rounding import Stream, round_to
from mplab.numbers.words import number
from mplab.pictures import canvas as c


def mode_words(mode: Rounding) -> str:
    """A mode as readers see it.

    Examples:
        >>> mode_words(Rounding.TIES_TO_EVEN)
        'ties to even'
    """
    return mode.name.lower().replace("_", " ")


def _rounded(x: np.ndarray, fmt: Format, mode: Rounding, seed: int = 0) -> np.ndarray:
    stream = Stream(seed) if mode is Rounding.STOCHASTIC else None
    return np.asarray(round_to(x, fmt, rounding=mode, stream=stream))


# Profiles --------------------------------------------------------------------------------
@c.in_house_style
def rounding_profile(
    fmt: Format, modes: Sequence[Rounding], low: float, high: float, *, seed: int = 0
) -> c.Picture:
    """What each mode makes of the numbers from `low` to `high`, and by how much it misses.

    Args:
        fmt: the format.
        modes: one column each.
        low: where the axis begins.
        high: where it ends.
        seed: of stochastic rounding.

    Returns:
        A figure whose title names the largest error of each mode, in ulps.
    """
    picture = c.Picture(height=4.6, width=2.6 + 2.3 * len(modes))
    grid = picture.subplots(2, len(modes), sharex=True, sharey="row", squeeze=False)
    x = np.linspace(low, high, 1281)
    found = np.unique(_rounded(x, fmt, Rounding.TIES_TO_EVEN))
    middles = (found[1:] + found[:-1]) / 2
    worst = {}
    for (above, below), mode in zip(grid.T, modes, strict=True):
        result = _rounded(x, fmt, mode, seed)
        errors = (result - x) / ulp(x, fmt)
        _draw_profile(above, x, result, fmt)
        if mode in _NEAREST:
            above.plot(middles, _rounded(middles, fmt, mode), "o", color="black", markersize=4)
        above.set_title(mode_words(mode))
        below.axhline(0, color=c.BAND, linewidth=0.8)
        below.plot(x, errors, ".", color=c.style(fmt).colour, markersize=2)
        below.set_ylim(-1.1, 1.1)
        worst[mode] = float(np.abs(errors).max())
    grid[0, 0].set_ylabel(f"value in {fmt.name}")
    grid[1, 0].set_ylabel("error (ulp)")
    picture.supxlabel("number", fontsize=10)
    sentence = f"From {number(low)} to {number(high)} {_misses(worst)}"
    if all(mode in _NEAREST for mode in modes) and len(modes) > 1:
        fates = np.stack([_rounded(middles, fmt, mode) for mode in modes])
        parted = int(np.sum(np.any(fates != fates[0], axis=0)))
        sentence += f"; they part at {parted} of {middles.size} ties (black dots)"
    return c.titled(
        picture, sentence, "Stairs above, their errors below, one column for each mode."
    )


_NEAREST = (Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY)


def _misses(worst: dict[Rounding, float]) -> str:
    """The largest error of each mode in words; once, where all have the same."""
    names = c.listed([mode_words(mode) for mode in worst])
    amounts = {_at_most(error) for error in worst.values()}
    if len(amounts) == 1:
        verb = "miss" if len(worst) > 1 else "misses"
        return f"{names} {verb} by {amounts.pop()}"
    each = [f"{mode_words(mode)} by {_at_most(error)}" for mode, error in worst.items()]
    return f"the modes miss: {c.listed(each)}"


def _at_most(error: float) -> str:
    """An error in words; a whole ulp is never reached."""
    return "nearly 1 ulp" if f"{error:.2f}" == "1.00" else f"up to {error:.2f} ulp"


def _draw_profile(axes: Axes, x: np.ndarray, result: np.ndarray, fmt: Format) -> None:
    """The stairs of a mode as dots, which may lie two deep, with the diagonal they approximate."""
    axes.plot(x, x, color="black", linewidth=0.7)
    axes.plot(x, result, ".", color=c.style(fmt).colour, markersize=2.5)


# Rounding twice --------------------------------------------------------------------------
@c.in_house_style
def double_rounding(x: float | str, first: Format, second: Format) -> c.Picture:
    """A number's way into a narrow format: at once, and through another format.

    The right panel is the first rounding under a magnifying glass: the step to `first` is often
    too small to be seen among the numbers of `second`.

    Args:
        x: the number; a decimal string is taken exactly.
        first: the format on the way.
        second: the narrow format.

    Returns:
        A figure whose title says whether the two ways end at the same value.
    """
    once = float(round_to(x, second))
    halfway = float(round_to(x, first))
    twice = float(round_to(halfway, second))
    exact = float(x)
    gap = float(ulp(exact, second))
    picture = c.Picture(height=3.6, width=8.6)
    axes, near = picture.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    low = float(round_to(x, second, rounding=Rounding.TOWARD_NEGATIVE))
    axes.set_xlim(low - 0.4 * gap, low + 1.4 * gap)
    axes.set_ylim(2.5, -0.5)
    ways = (
        ("at once", [exact, once], [0, 2], second),
        (f"through {first.name}", [exact, halfway, twice], [0, 1, 2], first),
    )
    for value in (low, low + gap):
        axes.plot([value, value], [1.9, 2.1], color=c.style(second).colour, linewidth=3)
    for words, places, heights, fmt in ways:
        look = c.style(fmt)
        axes.plot(places, heights, color=look.colour, linestyle=look.dash, marker=look.marker)
        side = 1 if places[-1] >= exact else -1
        middle, height = (places[-2] + places[-1]) / 2, (heights[-2] + heights[-1]) / 2
        axes.annotate(
            words,
            (middle, height),
            (8 * side, 0),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="bottom",
            color=c.INK,
            fontweight="bold",
        )
    axes.axvline(low + gap / 2, color=c.BAND, linestyle="dotted")
    axes.set_yticks([0, 1, 2], ["exact", first.name, second.name])
    axes.set_xticks(
        [low, low + gap / 2, low + gap],
        [number(low), f"{number(low + gap / 2)}\nmiddle", number(low + gap)],
    )
    axes.set_xlabel("value")
    _magnify(near, exact, first, second, low + gap / 2)
    end = "the same" if once == twice else f"{number(twice)} through {first.name}"
    sentence = f"{x} rounds to {number(once)} at once, to {end}"
    return c.titled(
        picture,
        sentence,
        f"Two ways down, over {first.name} through {number(halfway)}; magnified at the right.",
    )


def _magnify(axes: Axes, exact: float, first: Format, second: Format, middle: float) -> None:
    """The step from the exact number to `first`, between the two neighbours there."""
    modes = Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE
    around = {float(round_to(exact, first, rounding=mode)) for mode in modes}
    values = sorted(value for value in around if math.isfinite(value))
    margin = 0.6 * float(ulp(exact, first))
    look = c.style(first)
    axes.set_xlim(min(exact, *values) - margin, max(exact, *values) + margin)
    for value in values:
        axes.plot([value, value], [0.9, 1.1], color=look.colour, linewidth=3)
    halfway = float(round_to(exact, first))
    axes.plot([exact, halfway], [0, 1], color=look.colour, linestyle=look.dash, marker=look.marker)
    axes.plot([exact], [0], "o", color="black", markersize=5)
    axes.annotate(number(exact), (exact, 0), (8, 2), textcoords="offset points", va="bottom")
    if axes.get_xlim()[0] < middle < axes.get_xlim()[1]:
        axes.axvline(middle, color=c.BAND, linestyle="dotted")
    words = [number(value) + "\nmiddle" * (value == middle) for value in values]
    axes.set_xticks(values, words)
    axes.set_xlabel(f"magnified: the numbers of {first.name}")


# What errors add up to -------------------------------------------------------------------
@c.in_house_style
def mean_errors(
    x: np.ndarray, fmt: Format, modes: Sequence[Rounding], *, seed: int = 0
) -> c.Picture:
    """The mean of the signed errors of each mode over many numbers, in ulps.

    Args:
        x: numbers.
        fmt: the format they enter.
        modes: one bar each.
        seed: of stochastic rounding.

    Returns:
        A figure whose title names the mode that shifts the mean most, and the least.
    """
    gaps = ulp(x, fmt)
    shifts = {m: float(np.mean((_rounded(x, fmt, m, seed) - x) / gaps)) for m in modes}
    picture = c.Picture(height=1.2 + 0.4 * len(modes))
    axes = picture.subplots()
    axes.axvline(0, color=c.BAND, linewidth=0.8)
    axes.barh(range(len(modes)), list(shifts.values()), height=0.6, color=c.style(fmt).colour)
    axes.set_yticks(range(len(modes)), [mode_words(mode) for mode in modes])
    axes.set_ylim(len(modes) - 0.5, -0.5)
    axes.set_xlim(-0.75, 0.75)
    for row, shift in enumerate(shifts.values()):
        side = "right" if shift < 0 else "left"
        words = _signed(shift)
        axes.text(shift + (0.02 if shift >= 0 else -0.02), row, words, ha=side, va="center")
    axes.set_xlabel(f"mean error (ulp of {fmt.name})")
    most = max(shifts, key=lambda m: abs(shifts[m]))
    least = min(shifts, key=lambda m: abs(shifts[m]))
    sentence = (
        f"Over {len(x):,} numbers {mode_words(most)} is off by {_signed(shifts[most], digits=2)} "
        f"ulp on average, {mode_words(least)} by {_signed(shifts[least])}"
    )
    return c.titled(picture, sentence, "Bars, one for each mode.")


def _signed(x: float, *, digits: int = 4) -> str:
    """A number with its sign, and a true minus; what rounds to 0 has none."""
    words = f"{x:+z.{digits}f}".replace("-", "−")
    return words.lstrip("+") if not float(f"{x:.{digits}f}") else words


class Sum(NamedTuple):
    """A running sum: the format of the accumulator, and how it rounds."""

    fmt: Format
    rounding: Rounding = Rounding.TIES_TO_EVEN

    @property
    def name(self) -> str:
        """The format; the mode where it is not the usual one."""
        usual = self.rounding is Rounding.TIES_TO_EVEN
        return self.fmt.name if usual else f"{self.fmt.name} {mode_words(self.rounding)}"


@c.in_house_style
def running_sums(
    start: float, term: float, times: int, sums: Sequence[Sum | Format], *, seed: int = 0
) -> c.Picture:
    """What becomes of a number to which the same term is added again and again.

    Args:
        start: the first value.
        term: what is added; rounded to each accumulator's format first, to nearest.
        times: how often.
        sums: the accumulators, each a format or a `Sum`.
        seed: of stochastic rounding.

    Returns:
        A figure whose title says where each sum ends, and where it should.
    """
    picture = c.Picture(height=3.8, width=8.4)
    axes = picture.subplots()
    exact = start + term * times
    way = [0, times], [start, exact]
    ends, words = [c.curve(axes, *way, "exact", c.REFERENCE, linewidth=1)], []
    shown = np.unique(np.linspace(0, times, 600).astype(int))
    for entry in sums:
        how = entry if isinstance(entry, Sum) else Sum(entry)
        running = _running(start, term, times, how, seed)
        look = c.style(how.fmt)
        dash = "dotted" if how.rounding is Rounding.STOCHASTIC else look.dash
        ends.append(c.curve(axes, shown, running[shown], how.name, look, linestyle=dash))
        words.append(f"{how.name} ends at {number(float(running[-1]))}")
    axes.set_xlabel(f"times {number(term)} was added")
    axes.set_ylabel("running sum")
    sentence = f"The exact sum is {number(exact)}; {c.listed(words)}"
    c.titled(picture, sentence, "Line chart of running sums.")
    c.label_ends(picture, ends)
    return picture


def _running(start: float, term: float, times: int, how: Sum, seed: int) -> np.ndarray:
    """The running sums of one accumulator, `start` first."""
    terms = np.full(times + 1, float(round_to(term, how.fmt)))
    terms[0] = float(round_to(start, how.fmt))
    stream = Stream(seed) if how.rounding is Rounding.STOCHASTIC else None
    return cumsum(terms, accumulator_format=how.fmt, rounding=how.rounding, stream=stream)
