"""The ends of a range: what vanishes, what overflows, and how much of it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab import Format, Overflow, Tally, decode, round_to
from mplab.common.words import number
from mplab.course.pictures import canvas as c
from mplab.training.exponents import zones


# Where numbers land ----------------------------------------------------------------------
@c.in_house_style
def landing(numbers: Mapping[str, float], formats: Sequence[Format]) -> c.Picture:
    """Where numbers fall in each format: normal, subnormal, zero, or past the end.

    Args:
        numbers: positive numbers by the words that name them.
        formats: one row each.

    Returns:
        A figure whose title says what becomes of the last number.
    """
    places = [math.log2(x) for x in numbers.values()]
    picture = c.Picture(height=1.6 + 0.5 * len(formats))
    axes = picture.subplots()
    low = (
        min([*(zones(fmt).flushed for fmt in formats if fmt.emin > -100), *places]) - 4
    )
    high = (
        max([*(zones(fmt).overflow for fmt in formats if fmt.emax < 100), *places]) + 3
    )
    axes.set_xlim(low, high)
    axes.set_ylim(len(formats) - 0.4, -1.3)
    for row, fmt in enumerate(formats):
        _draw_zones(axes, row, fmt, low, high)
        for place, x in zip(places, numbers.values(), strict=True):
            _draw_fate(axes, row, place, float(round_to(x, fmt)), fmt)
    for place, words in zip(places, numbers, strict=True):
        axes.text(place, -0.95, words, ha="center", va="center", fontsize=9)
        axes.plot(
            [place, place], [-0.7, len(formats) - 0.5], color=c.INK, linewidth=0.6
        )
    axes.set_yticks(range(len(formats)), [fmt.name for fmt in formats])
    axes.tick_params(axis="y", length=0)
    c.binary_axis(
        axes.xaxis,
        "magnitude; faint grey: subnormal, deep grey: becomes 0 or overflows",
    )
    name, last = list(numbers.items())[-1]
    fates = [f"{number(float(round_to(last, fmt)))} in {fmt.name}" for fmt in formats]
    sentence = f"{name} becomes {c.listed(fates)}"
    every = "; ".join(
        f"{words} in {fmt.name}: {number(float(round_to(x, fmt)))}"
        for words, x in numbers.items()
        for fmt in formats
    )
    return c.titled(picture, sentence, f"Rows of bands over powers of two. {every}.")


def _draw_zones(axes: Axes, row: int, fmt: Format, low: float, high: float) -> None:
    """A row of bands: what a format loses, holds coarsely, and holds in full."""
    axes.plot([low, high], [row, row], color=c.style(fmt).colour, linewidth=1)
    for a, b, strength in c.bands(fmt, low, high):
        if b > a:
            axes.barh(row, b - a, left=a, height=0.7, color=c.BAND, alpha=strength)


def _draw_fate(axes: Axes, row: int, place: float, value: float, fmt: Format) -> None:
    """A marker: filled where the value is normal, pale where subnormal, a cross where lost."""
    look = c.style(fmt)
    marker = look.marker or "o"
    if value == 0 or not math.isfinite(value):
        axes.plot(place, row, "x", color=c.INK, markersize=9, markeredgewidth=2)
        return
    face = look.colour if value >= fmt.min_normal else "white"
    axes.plot(place, row, marker, color=look.colour, markerfacecolor=face, markersize=8)


# Near zero -------------------------------------------------------------------------------
@c.in_house_style
def near_zero(fmt: Format) -> c.Picture:
    """The values next to 0, with subnormal numbers and with all of them flushed to 0.

    Args:
        fmt: a format of few bits, so that its values can be told apart.

    Returns:
        A figure whose title compares the gap next to 0 with the gap after it.
    """
    high = 8 * fmt.min_normal
    grid = decode(np.arange(2 ** (fmt.precision + 1) + 1), fmt)
    picture = c.Picture(height=2.5)
    axes = picture.subplots()
    rows = (("gradual underflow", False), ("flush to zero", True))
    for row, (_, flush) in enumerate(rows):
        kept = np.unique(round_to(grid, fmt, flush_outputs=flush))
        axes.plot([0, high], [row, row], color=c.BAND, linewidth=0.8)
        axes.vlines(
            kept, row - 0.28, row + 0.28, color=c.style(fmt).colour, linewidth=1.6
        )
    axes.set_yticks([0, 1], [words for words, _ in rows])
    axes.set_ylim(1.5, -0.6)
    axes.set_xlim(-0.01 * high, 1.01 * high)
    ticks = [0.0, fmt.min_normal, high / 2, high]
    axes.set_xticks(ticks, [number(tick) for tick in ticks])
    axes.set_xlabel(
        f"values of {fmt.name}; the smallest normal number is {number(fmt.min_normal)}"
    )
    ratio = fmt.min_normal / fmt.min_subnormal
    sentence = (
        f"Flushed, the gap next to 0 is {number(ratio)} times the gap after it; with subnormal "
        "numbers the two are equal"
    )
    return c.titled(picture, sentence, f"Ticks on two lines from 0 to {number(high)}.")


# The other end ---------------------------------------------------------------------------
@c.in_house_style
def end_of_range(formats: Sequence[Format]) -> c.Picture:
    """Draw what numbers near the largest become, under each rule of overflow.

    Args:
        formats: one panel each.

    Returns:
        A figure whose title says where each format overflows, and to what.
    """
    picture = c.Picture(height=3.3, width=3.0 + 2.8 * len(formats))
    words = []
    for axes, fmt in zip(
        picture.subplots(1, len(formats), squeeze=False)[0], formats, strict=True
    ):
        step = math.ldexp(1.0, fmt.emax - fmt.precision + 1)
        limit = fmt.max_finite + step / 2  # a tie: it goes to the even side
        x = np.linspace(fmt.max_finite - 3 * step, fmt.max_finite + 3 * step, 961)
        result = round_to(x, fmt)
        saturated = round_to(x, fmt, overflow=Overflow.SATURATE)
        colour = c.style(fmt).colour
        axes.plot(*c.in_runs(saturated, x, saturated), color=c.BAND, linewidth=6)
        lost = x[~np.isfinite(result)]
        top = fmt.max_finite + 1.6 * step
        shown = np.where(np.isfinite(result), result, top)
        axes.plot(*c.in_runs(shown, x, shown), color=colour, linewidth=3)
        what = number(float(round_to(4 * fmt.max_finite, fmt)))
        axes.text(
            lost.mean(), top + 0.2 * step, what, ha="center", va="bottom", color=c.INK
        )
        axes.text(
            lost.mean(), fmt.max_finite - 0.3 * step, "saturated", ha="center", va="top"
        )
        axes.set_ylim(fmt.max_finite - 3.3 * step, top + 1.1 * step)
        ticks = [fmt.max_finite - 2 * step, fmt.max_finite, fmt.max_finite + 2 * step]
        axes.set_xticks(ticks, [number(tick) for tick in ticks])
        axes.set_yticks(ticks[:2], [number(tick) for tick in ticks[:2]])
        axes.set_title(fmt.name)
        past = "from" if not math.isfinite(float(round_to(limit, fmt))) else "past"
        words.append(f"{fmt.name} gives {what} {past} {number(limit)}")
    picture.supxlabel("number", fontsize=10)
    picture.supylabel("result", fontsize=10)
    details = "Stairs; coloured: the rule of the format, grey: saturation."
    return c.titled(picture, c.listed(words), details)


# How many --------------------------------------------------------------------------------
_FATES = ("normal", "subnormal", "becomes 0", "overflows")


def fates_of(tally: Tally) -> dict[str, int]:
    """Count a tally's numbers by fate; each number has only one.

    Numbers that were 0 or infinite before count as normal here: nothing happened to them.

    Examples:
        >>> from mplab import FP16, tally
        >>> fates_of(tally(np.array([1.0, 1e-9, 1e-6, 1e6]), FP16))
        {'normal': 1, 'subnormal': 1, 'becomes 0': 1, 'overflows': 1}
    """
    lost = tally.subnormal + tally.flushed + tally.overflow
    counts = (tally.total - lost, tally.subnormal, tally.flushed, tally.overflow)
    return dict(zip(_FATES, counts, strict=True))


@c.in_house_style
def fates(tallies: Mapping[str, Tally]) -> c.Picture:
    """Draw what became of many numbers, one bar for each tally.

    Args:
        tallies: from `mplab.tally` or `round_to(..., tally=)`, by the words that name them.

    Returns:
        A figure whose title names the tally that lost most, and the one that lost least.
    """
    picture = c.Picture(height=1.5 + 0.4 * len(tallies))
    axes = picture.subplots()
    faces = c.FACES[1], c.FACES[5], c.INK, c.BAD
    counts = np.array([[*fates_of(tally).values()] for tally in tallies.values()])
    shares = 100 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    c.bars(axes, tallies, shares, _FATES, faces=faces, hatches=("", "", "", "///"))
    axes.set_xlim(0, 100)
    axes.set_xlabel("numbers (%)")
    picture.legend(loc="outside lower center", ncols=4, frameon=False)
    lost = {
        name: counted.flushed + counted.overflow for name, counted in tallies.items()
    }
    most = max(lost, key=lambda k: lost[k])
    least = min(lost, key=lambda k: lost[k])
    sentence = (
        f"{most} loses {c.percent(lost[most], tallies[most].total)} of the numbers to zero and "
        f"overflow, {least} {c.percent(lost[least], tallies[least].total)}"
    )
    words = "; ".join(
        f"{name}: "
        + ", ".join(f"{count} {fate}" for fate, count in fates_of(counted).items())
        for name, counted in tallies.items()
    )
    return c.titled(picture, sentence, f"Bars of shares. {words}.")
