"""The explorer of spacing: the values of two formats on one line, and what rounds to each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import ipywidgets
import numpy as np

from mplab.explorers import _svg as svg
from mplab.explorers._entry import (
    MODES,
    exact,
    first_words,
    read_number,
    require_kind,
    short,
    shown,
)
from mplab.explorers._explorer import Explorer
from mplab.explorers._explorer import svg as framed
from mplab.numbers.checks import integer
from mplab.numbers.codes import decode, encode
from mplab.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    Format,
    Rounding,
)
from mplab.numbers.rounding import round_to
from mplab.pictures.canvas import power_of_two, style

FORMATS = (FP8_E4M3, FP8_E5M2, BF16, FP16, FP32)

MOST = 130
"""Values drawn one by one; more are drawn as a band."""


class Bin(NamedTuple):
    """What rounds to a value: all of `low` to `high`, or `tent`: ever less likely towards both."""

    value: float
    low: float
    high: float
    tent: bool


def values_between(low: float, high: float, fmt: Format) -> tuple[int, int]:
    """Ranks of the first and the last finite value from `low` to `high`, counted from 0.

    There are `last - first + 1` values; −0 and 0 count as one.

    Examples:
        >>> values_between(1.0, 2.0, FP8_E4M3)
        (56, 64)
    """
    first = round_to(low, fmt, rounding=Rounding.TOWARD_POSITIVE)
    last = round_to(high, fmt, rounding=Rounding.TOWARD_NEGATIVE)
    first = min(max(first, -fmt.max_finite), fmt.max_finite)
    last = min(max(last, -fmt.max_finite), fmt.max_finite)
    if first > high or last < low:
        return 0, -1
    return _rank(float(first), fmt), _rank(float(last), fmt)


def _rank(value: float, fmt: Format) -> int:
    code = int(encode(abs(value), fmt))
    return -code if value < 0 else code


def at_rank(rank: int, fmt: Format) -> float:
    """The value with this many values between it and 0, on the side of the rank's sign."""
    value = float(decode(abs(rank), fmt))
    return -value if rank < 0 else value


def bins(first: int, last: int, fmt: Format, mode: Rounding) -> list[Bin]:
    """What rounds to each value of a run of ranks, judged by rounding itself.

    Bins at the ends of the range stop half a gap, or a gap, past the last value; there
    overflow begins.

    Examples:
        >>> bins(56, 56, FP8_E4M3, Rounding.TIES_TO_EVEN)
        [Bin(value=1.0, low=0.96875, high=1.0625, tent=False)]
        >>> bins(56, 56, FP8_E4M3, Rounding.TOWARD_ZERO)
        [Bin(value=1.0, low=1.0, high=1.125, tent=False)]
    """
    found = []
    for rank in range(first, last + 1):
        value = at_rank(rank, fmt)
        below, above = (_edge(rank, rank + step, fmt, mode) for step in (-1, 1))
        found.append(Bin(value, below, above, mode is Rounding.STOCHASTIC))
    return found


def _edge(rank: int, neighbour: int, fmt: Format, mode: Rounding) -> float:
    """How far towards a neighbour numbers still round to the value of a rank."""
    value, other = at_rank(rank, fmt), _beyond(neighbour, fmt)
    if mode is Rounding.STOCHASTIC:
        return other
    middle = (value + other) / 2
    near, far = (value + middle) / 2, (middle + other) / 2
    if round_to(far, fmt, rounding=mode) == value:
        return other
    return middle if round_to(near, fmt, rounding=mode) == value else value


def _beyond(rank: int, fmt: Format) -> float:
    """The value of a rank; past the largest, where it would be if the range went on."""
    if abs(rank) <= fmt.max_code:
        return at_rank(rank, fmt)
    step = fmt.max_finite - at_rank(fmt.max_code - 1, fmt)
    return (fmt.max_finite + step) * (1 if rank > 0 else -1)


class NumberLine(Explorer):
    """How far apart are the numbers, and what rounds to each of them?

    Two formats over one stretch of the number line. Ticks are values; the areas over them
    show what rounds to each, in the chosen mode. Zoom with the slider.

    Args:
        first: the upper format.
        second: the lower one.
        around: the middle of the stretch.
        zoom: its width is 2^zoom.

    Attributes:
        around: where the middle is typed.
        zoom: the slider of the width.
        first: the choice of the upper format.
        second: that of the lower one.
        mode: that of the rounding mode.
        window: the ends of the stretch.
        counts: how many values of each format lie in it.

    Exactness:
        Counts are exact; the ends of areas are where `mplab.round_to` changes.

    Examples:
        >>> line = NumberLine(around="1.5", zoom=0)
        >>> line.window, line.counts
        ((1.0, 2.0), {'FP8_E4M3': 9, 'FP8_E5M2': 5})
    """

    def __init__(
        self,
        first: Format = FP8_E4M3,
        second: Format = FP8_E5M2,
        *,
        around: str | float = "1",
        zoom: int = 1,
    ) -> None:
        given = [first, second]
        for name, fmt in (("first", first), ("second", second)):
            require_kind("NumberLine", name, fmt, Format)
        integer("NumberLine", "zoom", zoom, least=-math.inf)
        words = first_words("NumberLine", "around", around, lambda typed: _middle(typed, first))
        choices = [(f.name, f) for f in dict.fromkeys((*FORMATS, *given))]
        wide = {"description_width": "initial"}
        self.around = ipywidgets.Text(
            value=words, description="around", continuous_update=False, style=wide
        )
        self.zoom = ipywidgets.IntSlider(
            value=zoom,
            min=-20,
            max=18,
            description="width 2^",
            style=wide,
            layout={"width": "min(36rem, 98%)"},
        )
        self.first, self.second = (
            ipywidgets.Dropdown(options=choices, value=fmt, description=place, style=wide)
            for fmt, place in zip(given, ("above", "below"), strict=True)
        )
        self.mode = ipywidgets.Dropdown(
            options=[(mode.name.lower().replace("_", " "), mode) for mode in MODES],
            value=Rounding.TIES_TO_EVEN,
            description="rounding",
            style=wide,
        )
        self._middle = _middle(words, first)
        controls = [self.around, self.zoom, self.first, self.second, self.mode]
        super().__init__("How far apart are the numbers, and what rounds to each?", controls)

    @property
    def window(self) -> tuple[float, float]:
        """The ends of the stretch; wider than asked where float64 could not tell them apart."""
        half = max(2.0 ** (self.zoom.value - 1), abs(self._middle) * 2.0**-40)
        return self._middle - half, self._middle + half

    @property
    def counts(self) -> dict[str, int]:
        """How many values of each format lie in the window."""
        found = {}
        for fmt in (self.first.value, self.second.value):
            low, high = values_between(*self.window, fmt)
            found[fmt.name] = high - low + 1
        return found

    def draw(self) -> tuple[str, str]:
        """Two rows of ticks and areas over one axis, and their numbers in words."""
        note = ""
        try:
            self._middle = _middle(self.around.value, self.first.value)
        except ValueError as mistake:
            note = f"{mistake} "
        low, high = self.window
        sentence = note + self._sentence()

        def x(value: float) -> float:
            return LEFT + (value - low) / (high - low) * (RIGHT - LEFT)

        parts: list[str] = []
        for fmt, top in ((self.first.value, 34), (self.second.value, 134)):
            parts += _row_svg(fmt, self.mode.value, (low, high), top, x)
        parts += _axis_svg(low, high, x)
        label = f"Values on a line from {short(low)} to {short(high)}. {sentence}"
        return framed(parts, width=WIDTH, height=HEIGHT, description=label, largest=1.35), sentence

    def _sentence(self) -> str:
        low, high = self.window
        words = [f"From {short(low)} to {short(high)}"]
        words.append(
            ", ".join(
                f"{name} has {count:,} value{'' if count == 1 else 's'}"
                for name, count in self.counts.items()
            )
        )
        around = [
            _around(fmt, self._middle, self.mode.value)
            for fmt in dict.fromkeys((self.first.value, self.second.value))
        ]
        return f"{' '.join(words)}. {' '.join(around)}"


def _middle(typed: str, fmt: Format) -> float:
    """The middle that was typed, finite in FP32."""
    number = read_number(typed, fmt)
    if not -FP32.max_finite <= number <= FP32.max_finite:  # NaN too
        raise ValueError(f"The middle must be finite and in FP32's range; got {typed}.")
    return float(number)


def _around(fmt: Format, middle: float, mode: Rounding) -> str:
    """The bin of the value at or just below the middle, in words."""
    if abs(middle) > fmt.max_finite:
        return f"{fmt.name} ends at {short(fmt.max_finite)}."
    rank = _rank(float(round_to(middle, fmt, rounding=Rounding.TOWARD_NEGATIVE)), fmt)
    (found,) = bins(rank, rank, fmt, mode)
    how = "some of what lies" if found.tent else "what lies"
    ends = f"between {shown(exact(found.low))} and {shown(exact(found.high))}"
    included = "" if found.tent else f" ({_included(found, fmt, mode)})"
    return f"In {fmt.name} {how} {ends}{included} becomes {shown(exact(found.value))}."


def _included(found: Bin, fmt: Format, mode: Rounding) -> str:
    """Which ends of a bin go to its value: all that tells one rounding of ties from the other."""
    low, high = (float(round_to(end, fmt, rounding=mode)) == found.value for end in found[1:3])
    if low == high:
        return "both included" if low else "both excluded"
    return f"the {'first' if low else 'second'} included"


# SVG -------------------------------------------------------------------------------------
WIDTH, HEIGHT = 440, 286

LEFT, RIGHT = 14, 426

LANE = 44  # height of the areas over the ticks


def _row_svg(
    fmt: Format,
    mode: Rounding,
    window: tuple[float, float],
    top: float,
    x: Callable[[float], float],
) -> list[str]:
    """A format's name, the areas of its bins, and a tick for each value."""
    colour, base = style(fmt).colour, top + LANE + 14
    first, last = values_between(*window, fmt)
    words = f"{fmt.name}: {last - first + 1:,} values"
    parts = [
        svg.box(LEFT, top - 14, 10, 10, f'fill="{colour}"'),
        svg.text(LEFT + 16, top - 5, words, more='font-weight="bold"'),
        svg.line(f"M{LEFT} {base}H{RIGHT}"),
    ]
    if last - first + 1 > MOST:
        a, b = (x(at_rank(rank, fmt)) for rank in (first, last))
        parts.append(svg.box(a, base - LANE, b - a, LANE, f'fill="{colour}" fill-opacity="0.35"'))
        parts.append(
            svg.text(
                (a + b) / 2, base - LANE / 2 + 4, "too dense to draw: zoom in", anchor="middle"
            )
        )
        return parts
    for number, found in enumerate(bins(first, last, fmt, mode)):
        parts += _bin_svg(found, fmt, number, base, x)
    return parts


def _bin_svg(
    found: Bin, fmt: Format, number: int, base: float, x: Callable[[float], float]
) -> list[str]:
    """A rectangle over what rounds to a value, or a tent whose height is the probability."""
    colour, middle = style(fmt).colour, x(found.value)
    low, high = (min(max(x(end), LEFT), RIGHT) for end in (found.low, found.high))
    if found.tent:
        ends = x(found.low), x(found.high)
        path = f"M{ends[0]:.1f} {base}L{middle:.1f} {base - LANE}L{ends[1]:.1f} {base}Z"
        area = (
            f'<path d="{path}" fill="{colour}" fill-opacity="0.16" stroke="{colour}" '
            'stroke-opacity="0.5"/>'
        )
    else:
        opacity = 0.38 if number % 2 else 0.16
        area = svg.box(
            low, base - LANE, high - low, LANE, f'fill="{colour}" fill-opacity="{opacity}"'
        )
    tick = svg.line(
        f"M{middle:.1f} {base - LANE - 4}V{base + 6}", colour=colour, more='stroke-width="1.8"'
    )
    return [area, tick]


def _axis_svg(low: float, high: float, x: Callable[[float], float]) -> list[str]:
    """Five numbers under the line, and the width in words."""
    base = HEIGHT - 48
    parts = [svg.line(f"M{LEFT} {base}H{RIGHT}")]
    for number, value in enumerate(np.linspace(low, high, 5)):
        anchor = ("start", "middle", "middle", "middle", "end")[number]
        parts.append(svg.line(f"M{x(value):.1f} {base}v5"))
        parts.append(svg.text(x(value), base + 20, _tick(float(value), high - low), anchor=anchor))
    words = f"number; the stretch is {_width(high - low)} wide"
    parts.append(svg.text((LEFT + RIGHT) / 2, base + 40, words, anchor="middle"))
    return parts


def _width(width: float) -> str:
    """A power of two as such, another width in digits."""
    return power_of_two(width) if math.frexp(width)[0] == 0.5 else short(width)


def _tick(value: float, width: float) -> str:
    """A tick's number with the digits that tell it from its neighbours."""
    digits = 6 if width > 1e-3 * abs(value) else 10
    return f"{value:.{digits}g}".replace("-", "−")
