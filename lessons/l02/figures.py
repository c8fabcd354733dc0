"""Gaps and ranges of formats."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab import Format, ulp
from mplab.common.words import number
from mplab.course.pictures import canvas as c
from mplab.course.pictures.formats import INTEGERS, magnitudes

WINDOW = (-30, 18)
"""The exponents at which the axis of magnitudes begins and ends."""


@c.in_house_style
def spacing(formats: Sequence[Format]) -> c.Picture:
    """The gap from each magnitude to the next number, both axes to base 2.

    Args:
        formats: one line each, beside that of INT8.

    Returns:
        A figure whose title says how the gaps grow, and whose details name those at 1.
    """
    picture = c.Picture(height=4.3)
    axes = picture.subplots()
    stairs, gaps = [], []
    for fmt in formats:
        x = magnitudes(fmt, WINDOW, each=1)
        look = c.style(fmt)
        stairs.append(
            (np.log2(x), np.log2(ulp(x, fmt)), fmt.name, look.colour, look.dash)
        )
        gaps.append(f"{c.power_of_two(float(ulp(1.0, fmt)))} in {fmt.name}")
    top = np.array([0, math.log2(127)])
    stairs.append((top, 0 * top, INTEGERS, "black", "dotted"))
    levels = _levels([(float(x[-1]), float(gap[-1])) for x, gap, *_ in stairs])
    ends = []
    for (x, gap, name, colour, dash), level in zip(stairs, levels, strict=True):
        axes.step(x, gap, where="post", color=colour, linestyle=dash)
        end = float(x[-1]), float(gap[-1])
        ends.append(_end(axes, end, level, name, colour))
    c.binary_axis(axes.xaxis, "magnitude")
    c.binary_axis(axes.yaxis, "distance to the next number", count=9)
    sentence = f"Gaps double at each power of two above the subnormal numbers; {INTEGERS}'s are 1"
    details = (
        f"Stairs, level at the left, among the subnormal numbers. The gap after 1 is "
        f"{c.listed([*gaps, f'1 in {INTEGERS}'])}."
    )
    c.titled(picture, sentence, details)
    c.label_ends(picture, ends)
    return picture


def _levels(ends: Sequence[tuple[float, float]]) -> list[float]:
    """Return the height of each name: that of its line's end, or the nearest free one.

    Lines that end further right choose first; names stand 2 apart, so no leader hides another.
    """
    taken: dict[int, float] = {}
    for place in sorted(range(len(ends)), key=lambda i: -ends[i][0]):
        steps = sorted(
            range(-4 * len(ends), 4 * len(ends) + 1), key=lambda k: (abs(k), -k)
        )
        heights = [ends[place][1] + k for k in steps]
        taken[place] = next(
            h for h in heights if all(abs(h - y) >= 2 for y in taken.values())
        )
    return [taken[place] for place in range(len(ends))]


def _end(
    axes: Axes, end: tuple[float, float], level: float, name: str, colour: str
) -> c.End:
    """Draw a dot where a line ends, and a leader to its name, dotted grey unlike lines of data."""
    right = float(WINDOW[1])
    if end[0] < right:
        axes.scatter([end[0]], [end[1]], s=16, color=colour)
    axes.plot(
        [end[0], right],
        [end[1], level],
        color=c.BAND,
        linestyle="dotted",
        linewidth=0.8,
    )
    return c.End(axes, right, level, name, colour)


@c.in_house_style
def dynamic_ranges(formats: Sequence[Format]) -> c.Picture:
    """Draw each format's range, from its smallest to its largest positive number.

    Args:
        formats: one bar each, above that of INT8.

    Returns:
        A figure whose title says how many powers of two the widest and the narrowest span.
    """
    bars = [
        (
            fmt.name,
            math.log2(fmt.min_subnormal),
            fmt.emin,
            math.log2(fmt.max_finite),
            c.style(fmt),
        )
        for fmt in formats
    ]
    rows = [
        (name, low, emin, high, look.colour) for name, low, emin, high, look in bars
    ]
    rows.append((INTEGERS, 0.0, 0, math.log2(127), "black"))
    picture = c.Picture(height=1.2 + 0.42 * len(rows))
    axes = picture.subplots()
    spans = {}
    for row, (name, low, emin, high, colour) in enumerate(rows):
        axes.barh(row, emin - low, left=low, height=0.6, color=colour, alpha=0.35)
        axes.barh(row, high - emin, left=emin, height=0.6, color=colour)
        spans[name] = round(high - low)
        axes.text(high + 4, row, f"{spans[name]}", va="center", ha="left", fontsize=9)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + 12)
    c.binary_axis(axes.xaxis, "magnitude; pale: subnormal numbers")
    most = max(spans, key=lambda k: spans[k])
    least = min(spans, key=lambda k: spans[k])
    sentence = (
        f"From its smallest to its largest number {most} spans {spans[most]} powers of two, "
        f"{least} {spans[least]}"
    )
    words = "; ".join(
        f"{name} {c.power_of_two(2.0 ** round(low))} to {number(2.0**high)}"
        for name, low, _, high, _ in rows
    )
    return c.titled(picture, sentence, f"Bars over powers of two. {words}.")
