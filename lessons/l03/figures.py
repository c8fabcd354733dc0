"""Rounding twice, and what errors add up to."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab import Format, Rounding, round_to, ulp
from mplab.common.words import number
from mplab.course.pictures import canvas as c
from mplab.course.pictures.rounding import mode_words, rounded


# Rounding twice --------------------------------------------------------------------------
@c.in_house_style
def double_rounding(x: float | str, first: Format, second: Format) -> c.Picture:
    """Draw how a number is rounded to a narrow format: directly, and through another format.

    The right panel is the first rounding under a magnifying glass: the step to `first` is often
    too small to be seen among the numbers of `second`.

    Args:
        x: the number; a decimal string is taken exactly.
        first: the format in between.
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
        axes.plot(
            places, heights, color=look.colour, linestyle=look.dash, marker=look.marker
        )
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


def _magnify(
    axes: Axes, exact: float, first: Format, second: Format, middle: float
) -> None:
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
    axes.plot(
        [exact, halfway],
        [0, 1],
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
    )
    axes.plot([exact], [0], "o", color="black", markersize=5)
    axes.annotate(
        number(exact), (exact, 0), (8, 2), textcoords="offset points", va="bottom"
    )
    if axes.get_xlim()[0] < middle < axes.get_xlim()[1]:
        axes.axvline(middle, color=c.BAND, linestyle="dotted")
    words = [number(value) for value in values]
    words = [
        f"{w}\nmiddle" if v == middle else w for v, w in zip(values, words, strict=True)
    ]
    axes.set_xticks(values, words)
    axes.set_xlabel(f"magnified: the numbers of {first.name}")


# What errors add up to -------------------------------------------------------------------
@c.in_house_style
def mean_errors(x: np.ndarray, fmt: Format, modes: Sequence[Rounding]) -> c.Picture:
    """The mean of the signed errors of each mode over many numbers, in ulps.

    Args:
        x: numbers.
        fmt: the format they enter.
        modes: one bar each.

    Returns:
        A figure whose title names the mode that shifts the mean most, and the least.
    """
    gaps = ulp(x, fmt)
    shifts = {m: float(np.mean((rounded(x, fmt, m) - x) / gaps)) for m in modes}
    picture = c.Picture(height=1.2 + 0.4 * len(modes))
    axes = picture.subplots()
    axes.axvline(0, color=c.BAND, linewidth=0.8)
    axes.barh(
        range(len(modes)), list(shifts.values()), height=0.6, color=c.style(fmt).colour
    )
    c.rows(axes, [mode_words(mode) for mode in modes])
    axes.set_xlim(-1, 1)  # room for a number beside a bar, on a phone, too
    for row, shift in enumerate(shifts.values()):
        side = "right" if shift < 0 else "left"
        words = _signed(shift)
        axes.text(
            shift + (0.02 if shift >= 0 else -0.02), row, words, ha=side, va="center"
        )
    axes.set_xlabel(f"mean error (ulp of {fmt.name})")
    most = max(shifts, key=lambda m: abs(shifts[m]))
    least = min(shifts, key=lambda m: abs(shifts[m]))
    sentence = (
        f"Over {len(x):,} numbers {mode_words(most)} is off by {_signed(shifts[most], digits=2)} "
        f"ulp on average, {mode_words(least)} by {_signed(shifts[least])}"
    )
    return c.titled(picture, sentence, "Bars, one for each mode.")


def _signed(x: float, *, digits: int = 4) -> str:
    """Write a number with its sign and a true minus; one that rounds to 0 has no sign."""
    words = f"{x:+z.{digits}f}".replace("-", "−")
    return words.lstrip("+") if not float(f"{x:.{digits}f}") else words
