"""SVG pictures for the explorers: words and shapes, and charts with two scales."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from mplab.course.pictures.canvas import (
    BAND,
    CARD,
    CARD_CLASS,
    COARSE,
    INK,
    light_dark,
    named_colours,
    spread,
)

SIZE = 13
LEAST = 10
"""Size of the letters: as drawn, and in a narrow window, where a wide picture scrolls."""

FONT = f'font-family="system-ui, DejaVu Sans, sans-serif" font-size="{SIZE}"'

LINE = "#707075"  # axes and outlines

BOLD = 'font-weight="bold"'
DASHED = 'stroke-dasharray="4 3"'

_GRID = 'stroke-opacity="0.5"'


class Drawing:
    """A picture built piece by piece, each placed in pixels from the left and the top."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, words: str, anchor: str = "start", more: str = ""
    ) -> None:
        """Add words at a place; `anchor` says which end of them stands there."""
        if words:
            at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
            self.parts.append(f"<text {at} {more}>{escape(words)}</text>")

    def upright(self, x: float, y: float, words: str) -> None:
        """Add words that run upwards."""
        self.text(x, y, words, "middle", f'transform="rotate(-90 {x:.0f} {y:.0f})"')

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, more: str = ""
    ) -> None:
        """Add a rectangle."""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect {size} fill="{fill}" {more}/>')

    def line(
        self, path: str, colour: str = LINE, width: float = 1, more: str = ""
    ) -> None:
        """Add a line along an SVG path."""
        look = f'fill="none" stroke="{colour}" stroke-width="{width}"'
        self.parts.append(f'<path d="{path}" {look} {more}/>')

    def area(self, path: str, fill: str, opacity: float = 1) -> None:
        """Fill the area that an SVG path encloses."""
        self.parts.append(f'<path d="{path}" fill="{fill}" fill-opacity="{opacity}"/>')

    def dot(self, x: float, y: float, radius: float, fill: str, more: str = "") -> None:
        """Add a filled circle."""
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" {more}/>'
        )

    def svg(
        self, description: str, *, width: int, height: float, panels: int = 1
    ) -> str:
        """Return the SVG, on its own white background, with a description for screen readers.

        It fills the available width, up to `width`. On a phone, a page stacks the `panels`, which
        are equally wide.

        Examples:
            >>> Drawing().svg("a < b", width=600, height=9)[:45]
            '<svg role="img" aria-label="a &lt; b" viewBox'
        """
        least = width * LEAST // SIZE
        stacked = f'data-panels="{panels}" ' * (panels > 1)
        ground = f'<rect width="{width}" height="{height:.0f}" fill="white"/>'
        shapes, colours = named_colours("".join([ground, *self.parts]))
        return (
            f'<svg {stacked}role="img" aria-label="{escape(description, quote=True)}" '
            f'viewBox="0 0 {width} {height:.0f}" {FONT} class="{CARD_CLASS}" '
            f'style="width:100%;min-width:{least}px;max-width:{width}px;{CARD};'
            f'fill:{light_dark(INK)};{colours}">{shapes}</svg>'
        )


class Scale(NamedTuple):
    """A map from values to pixels; values past its ends stop there.

    Attributes:
        low: the least value, or its exponent of 2.
        high: the largest.
        start: the pixel where the axis starts; `low` lies `inset` pixels further in.
        end: the pixel where the axis ends.
        log: whether the scale is logarithmic, to base 2.
        inset: the pixels left free at both ends of the axis.

    Examples:
        >>> (
        ...     Scale(0, 8, 100, 260)(2),
        ...     Scale(-3, 3, 0, 60, log=True)(0.5),
        ...     Scale(0, 1, 50, 10)(7),
        ... )
        (140.0, 20.0, 10.0)
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    inset: float = 0

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.log:
            value = math.log2(value) if value > 0 else self.low
        share = (min(max(value, self.low), self.high) - self.low) / (
            self.high - self.low
        )
        room = self.end - self.start
        inset = math.copysign(self.inset, room)
        return self.start + inset + share * (room - 2 * inset)


class Chart(Drawing):
    """A chart between two axes; `x` and `y` map values to pixels."""

    def __init__(self, x: Scale, y: Scale, on: Drawing | None = None) -> None:
        super().__init__()
        self.x = x
        self.y = y
        if on is not None:
            self.parts = on.parts

    def frame(self) -> None:
        """Add both axes."""
        self.line(f"M{self.x.start} {self.y.end}V{self.y.start}H{self.x.end}")

    def ticks_x(
        self, values: Iterable[float], words: Callable[..., str] = str, *, down: int = 20,
        mark: bool = False, grid: bool = False,
    ) -> None:  # fmt: skip
        """Add words below the chart, with marks or lines through it."""
        for value in values:
            at = self.x(value)
            bottom = self.y.start
            if mark:
                self.line(f"M{at:.1f} {bottom}v5")
            if grid:
                self.line(f"M{at:.1f} {self.y.end}V{bottom + 5}", BAND, more=_GRID)
            self.text(at, bottom + down, words(value), "middle")

    def ticks_y(
        self, values: Iterable[float], words: Callable[..., str] = str, *, mark: bool = False,
        grid: bool = False,
    ) -> None:  # fmt: skip
        """Add words at the left of the chart, with marks or lines through it."""
        for value in values:
            at = self.y(value)
            left = self.x.start
            if mark:
                self.line(f"M{left} {at:.1f}h-5")
            if grid:
                self.line(f"M{left} {at:.1f}H{self.x.end}", BAND, more=_GRID)
            self.text(left - 8, at + 4, words(value), "end")

    def band(self, low: float, high: float, strength: float = COARSE) -> None:
        """Add a grey band between two values of `y`."""
        top, bottom = sorted((self.y(low), self.y(high)))
        width = self.x.end - self.x.start
        self.box(
            self.x.start, top, width, bottom - top, BAND, f'fill-opacity="{strength}"'
        )

    def zone(self, low: float, high: float, strength: float = COARSE) -> None:
        """Add a grey band between two values of `x`."""
        left = self.x(low)
        right = self.x(high)
        height = self.y.start - self.y.end
        self.box(
            left, self.y.end, right - left, height, BAND, f'fill-opacity="{strength}"'
        )

    def curve(
        self, xs: Iterable[float], ys: Iterable[float], colour: str = "black", width: float = 1,
        *, dots: bool = False, more: str = "",
    ) -> None:  # fmt: skip
        """Add a line through points, with dots on them."""
        places = [(self.x(a), self.y(b)) for a, b in zip(xs, ys, strict=True)]
        if places:
            way = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
            self.line(f"M{way}", colour, width, more)
        if dots:
            for a, b in places:
                self.dot(a, b, 4, colour)

    def stairs(self, values: Iterable[float]) -> str:
        """Return the path over steps 0 to 1, 1 to 2 and so on, each at its value, after a start."""
        return "".join(
            f"V{self.y(v):.1f}H{self.x(i + 1):.1f}" for i, v in enumerate(values)
        )

    def name_ends(self, ends: Sequence[tuple[float, str]]) -> None:
        """Add words at the right, each at a value of `y`; overlapping ones are moved apart."""
        wanted = [self.y(value) + 4 for value, _ in ends]
        places = spread(wanted, [18] * len(ends), low=0, high=1e9)
        for at, (_, words) in zip(places, ends, strict=True):
            self.text(self.x.end + 8, at, words)

    def below(self, words: str, down: int = 42) -> None:
        """Add the name of the lower axis."""
        self.text((self.x.start + self.x.end) / 2, self.y.start + down, words, "middle")


class Bar(NamedTuple):
    """A bar: its name, its value, words beside it, its colour, and whether its end is marked."""

    name: str
    value: float
    words: str
    colour: str
    stopped: bool = False


def bars(
    rows: Sequence[Bar], x: Scale, description: str, *, width: int, row: int,
    ticks: Iterable[float], tick_words: Callable[[float], str], mark: float, axis: str,
) -> str:  # fmt: skip
    """Draw horizontal bars on a scale with ticks, and a black line at `mark`."""
    bottom = 14 + row * len(rows)
    chart = Chart(x, Scale(0, 1, bottom, 14))
    chart.ticks_x(ticks, tick_words, grid=True)
    for i, (name, value, words, colour, stopped) in enumerate(rows):
        top = 14 + row * i
        end = x(value)
        chart.text(x.start - 8, top + row / 2 + 5, name, "end")
        chart.box(x.start, top + 8, end - x.start, row - 14, colour)
        chart.text(x.end + 10, top + row / 2 + 5, words)
        if stopped:
            chart.line(f"M{end:.1f} {top + 3}v{row - 4}", colour, 4)
    chart.line(f"M{x(mark):.1f} 8V{bottom}", "black", 1.5)
    chart.below(axis)
    return chart.svg(description, width=width, height=bottom + 52)
