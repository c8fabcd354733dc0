"""The explorer of rounding: which bits decide, and what each mode makes of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import ipywidgets
import numpy as np

from mplab.explorers import _svg as svg
from mplab.explorers._entry import (
    MODES,
    exact,
    first_words,
    hexadecimal,
    read_number,
    require_kind,
    short,
    shown,
)
from mplab.explorers._explorer import Explorer
from mplab.explorers._explorer import svg as framed
from mplab.numbers.checks import integer
from mplab.numbers.codes import encode, ulp
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, Rounding, require_format
from mplab.numbers.rounding import Stream, round_to
from mplab.pictures.canvas import BAND, percent, style

FORMATS = (FP8_E4M3, FP8_E5M2, BF16, FP16)

DRAWS = 1000
"""How many times stochastic rounding is tried."""


class Discarded(NamedTuple):
    """What a format cannot keep: the first bit past its last one, the next, and any later one."""

    guard: int
    round: int
    sticky: int

    @property
    def verdict(self) -> str:
        """Where the number lies between its neighbours, on the way from 0."""
        if not any(self):
            return "exact"
        if not self.guard:
            return "short of the middle"
        return "past the middle" if self.round or self.sticky else "a tie"


class RoundingLab(Explorer):
    """Which bits decide where a number goes?

    The bits of a number, cut where the format ends: the bits it keeps, then guard, round
    and sticky. Below, what each of the six modes makes of it. The slider adds eighths of
    an ulp to the magnitude, which are exactly the patterns of those three bits: a negative
    number moves away from 0, as a positive one does.

    Args:
        number: what to start with: anything that can be typed, or a float.
        fmt: the format to enter.
        mode: the mode to point out.
        seed: of the draws of stochastic rounding.

    Attributes:
        entry: where a number is typed.
        eighths: the slider of what is added to its magnitude, in eighths of an ulp.
        format: the choice of the format.
        mode: that of the rounding mode.
        x: the exact number that is rounded.
        neighbours: the values at or around it, lower and upper.
        discarded: its guard, round and sticky bits.
        results: what each mode without chance makes of it.
        chance_up: the probability that stochastic rounding takes the upper neighbour.
        times_up: how often it did, in 1,000 draws.

    Exactness:
        `x` and `chance_up` are exact; results are those of `mplab.round_to`.

    Examples:
        >>> lab = RoundingLab("17", FP8_E4M3)
        >>> lab.neighbours, lab.discarded
        ((16.0, 18.0), Discarded(guard=1, round=0, sticky=0))
        >>> lab.results[Rounding.TIES_TO_EVEN], lab.chance_up
        (16.0, Fraction(1, 2))
    """

    def __init__(
        self,
        number: str | float = "17",
        fmt: Format = FP8_E4M3,
        *,
        mode: Rounding = Rounding.TIES_TO_EVEN,
        seed: int = 0,
    ) -> None:
        first = require_format("RoundingLab", fmt)
        words = first_words("RoundingLab", "number", number, lambda typed: _finite(typed, fmt))
        require_kind("RoundingLab", "mode", mode, Rounding)
        if mode not in MODES:
            raise ValueError(
                f"RoundingLab: mode must be one of the lessons; got {mode!r}. Choose from the menu."
            )
        self.seed = integer("RoundingLab", "seed", seed, most=2**64 - 1)
        wide = {"description_width": "initial"}
        self.entry = ipywidgets.Text(
            value=words, description="number", continuous_update=False, style=wide
        )
        self.eighths = ipywidgets.IntSlider(
            min=0,
            max=16,
            description="away from 0, in eighths of an ulp",
            style=wide,
            layout={"width": "min(36rem, 98%)"},
        )
        self.format = ipywidgets.Dropdown(
            options=[(f.name, f) for f in dict.fromkeys((*FORMATS, first))],
            value=first,
            description="format",
            style=wide,
        )
        self.mode = ipywidgets.Dropdown(
            options=[(name_of(m), m) for m in MODES],
            value=mode,
            description="rounding",
            style=wide,
        )
        self._base = _finite(words, first)
        controls = [self.entry, self.eighths, self.format, self.mode]
        super().__init__("Which bits decide where a number goes?", controls)

    @property
    def fmt(self) -> Format:
        """The format to enter."""
        return self.format.value

    @property
    def x(self) -> Fraction:
        """The exact number that is rounded."""
        step = Fraction(float(ulp(self._base, self.fmt))) * (-1 if self._base < 0 else 1)
        return self._base + step * self.eighths.value / 8

    @property
    def neighbours(self) -> tuple[float, float]:
        """The values at or next to the number, the lower one first."""
        modes = Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE
        low, high = (float(round_to(self.x, self.fmt, rounding=mode)) for mode in modes)
        return low, high

    @property
    def discarded(self) -> Discarded:
        """The guard, round and sticky bits of the number."""
        eighths = _units(self.x, self.fmt) * 8
        rest = int(eighths) % 8
        return Discarded(rest >> 2, rest >> 1 & 1, int(bool(rest & 1) or int(eighths) != eighths))

    @property
    def results(self) -> dict[Rounding, float]:
        """What each mode makes of the number, all but the one that rolls dice."""
        return {
            mode: float(round_to(self.x, self.fmt, rounding=mode))
            for mode in MODES
            if mode is not Rounding.STOCHASTIC
        }

    @property
    def chance_up(self) -> Fraction:
        """The probability that stochastic rounding takes the upper neighbour."""
        units = _units(self.x, self.fmt)
        away = units - int(units)  # of the neighbour that is further from 0
        return away if self.x >= 0 or not away else 1 - away

    @property
    def times_up(self) -> int:
        """How often stochastic rounding takes the upper neighbour in 1,000 draws."""
        low, high = self.neighbours
        if low == high:
            return 0
        drawn = round_to(
            np.full(DRAWS, float(self.x)),
            self.fmt,
            rounding=Rounding.STOCHASTIC,
            stream=Stream(self.seed),
        )
        return int(np.sum(drawn != low))

    def draw(self) -> tuple[str, str]:
        """The bits, the place between the neighbours, and the result of each mode."""
        note = ""
        try:
            self._base = _finite(self.entry.value, self.fmt)
        except ValueError as mistake:
            note = f"{mistake} "
        sentence = note + self._sentence()
        parts = [*_bits_svg(self.x, self.fmt, self.discarded, self._seen), *self._place_svg()]
        parts += self._modes_svg()
        label = f"The bits of {shown(self.x)} and its place between its neighbours. {sentence}"
        return framed(parts, width=WIDTH, height=HEIGHT, description=label, largest=1.35), sentence

    def _sentence(self) -> str:
        low, high = self.neighbours
        bits = self.discarded
        words = f"{shown(self.x)} in {self.fmt.name}: "
        if bits.verdict == "exact":
            words += f"it is the value {shown(exact(low))}; every mode keeps it."
        else:
            words += (
                f"between {shown(exact(low))} and {shown(exact(high))}; guard {bits.guard}, round "
                f"{bits.round}, sticky {bits.sticky}: {bits.verdict}{self._seen}. "
            )
            words += f"{name_of(self.mode.value).capitalize()} gives {self._result()}."
        return words

    @property
    def _seen(self) -> str:
        """What a verdict about the magnitude needs where the line runs the other way."""
        return ", seen from 0" if self.x < 0 and self.discarded.verdict.endswith("middle") else ""

    def _result(self) -> str:
        """The result of the chosen mode, in words."""
        low, high = self.neighbours
        if self.mode.value is not Rounding.STOCHASTIC:
            value = self.results[self.mode.value]
            return f"{shown(exact(value))} ({hexadecimal(int(encode(value, self.fmt)), self.fmt)})"
        chance = float(self.chance_up)
        return (
            f"{shown(exact(high))} with probability {chance:.4g}, else {shown(exact(low))}; "
            f"in {DRAWS:,} draws it gave {shown(exact(high))} {self.times_up} times"
        )

    # SVG ---------------------------------------------------------------------------------

    def _place_svg(self) -> list[str]:
        """The number between its neighbours, with their middle."""
        low, high = self.neighbours
        colour = style(self.fmt).colour
        y, left, right = 132, 60, WIDTH - 60
        parts = [svg.line(f"M{left} {y}H{right}")]
        is_value, middle = low == high, (left + right) / 2
        part = self.chance_up
        if is_value or not math.isfinite(low) or not math.isfinite(high):
            part = Fraction(1, 2)
        for place, value in [(middle, low)] if is_value else [(left, low), (right, high)]:
            parts.append(svg.line(f"M{place} {y - 10}v20", colour=colour, more='stroke-width="3"'))
            parts.append(svg.text(place, y + 27, short(value), anchor="middle"))
        if not is_value:
            parts.append(svg.line(f"M{middle} {y - 8}v16", more='stroke-dasharray="3 2"'))
            parts.append(svg.text(middle, y + 27, "middle", anchor="middle"))
        x = left + float(part) * (right - left)
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="6"/>')
        parts.append(
            svg.text(min(max(x, 110), WIDTH - 110), y - 16, short(self.x), anchor="middle")
        )
        return parts

    def _modes_svg(self) -> list[str]:
        """One line for each mode, the chosen one marked."""
        low, high = self.neighbours
        parts = []
        for number, mode in enumerate(MODES):
            x, y = (12, 240)[number // 3], 190 + 24 * (number % 3)
            if mode is self.mode.value:
                parts.append(svg.box(x - 8, y - 16, 224, 23, f'fill="{BAND}" fill-opacity="0.3"'))
            if mode is not Rounding.STOCHASTIC:
                result = short(self.results[mode])
            elif low == high:
                result = short(low)
            else:
                result = f"{high:.4g} at {percent(float(self.chance_up), 1)}".replace("-", "−")
            parts.append(svg.text(x, y, name_of(mode)))
            parts.append(svg.text(x + 210, y, result, anchor="end", more='font-weight="bold"'))
        return parts


def name_of(mode: Rounding) -> str:
    """A mode as readers see it: "ties to even"."""
    return mode.name.lower().replace("_", " ")


def _finite(typed: str, fmt: Format) -> Fraction:
    """The finite number that was typed; not past the format's largest value."""
    number = read_number(typed, fmt)
    if not -fmt.max_finite <= number <= fmt.max_finite:  # NaN too
        raise ValueError(
            f"The number must be finite and at most {short(fmt.max_finite)}, the largest of "
            f"{fmt.name}; got {typed}."
        )
    return Fraction(number)


def _units(x: Fraction, fmt: Format) -> Fraction:
    """|x| in units of the format's last place there."""
    return abs(x) / Fraction(float(ulp(x, fmt)))


WIDTH, HEIGHT, CELL = 460, 256, 26


def _bits_svg(x: Fraction, fmt: Format, discarded: Discarded, seen: str) -> list[str]:
    """The bits that are kept, then guard, round and sticky, with their names and verdict."""
    colour, kept = style(fmt).colour, int(_units(x, fmt))
    sign = "−" if x < 0 else "+"
    parts = [svg.text(14, 52, sign), svg.text(30, 22, "kept")]
    cell = min(CELL, (WIDTH - 150) / fmt.precision)
    for index in range(fmt.precision):
        bit = kept >> (fmt.precision - 1 - index) & 1
        parts += _cell_svg(30 + index * cell, cell, bit, colour)
    edge = 30 + fmt.precision * cell + 7
    parts.append(svg.line(f"M{edge:.1f} 26V66", colour="#1A1A1A", more='stroke-width="2"'))
    for index, (name, bit) in enumerate(zip("GRS", discarded, strict=True)):
        place = edge + 8 + index * (CELL + 4)
        parts += _cell_svg(place, CELL, bit, "#707075")
        parts.append(svg.text(place + CELL / 2, 22, name, anchor="middle"))
    parts.append(svg.text(30, 88, f"cut after bit {fmt.precision}: {discarded.verdict}{seen}"))
    return parts


def _cell_svg(x: float, width: float, bit: int, colour: str) -> list[str]:
    """A bit: filled if it is 1."""
    look = f'fill="{colour}" fill-opacity="{0.4 * bit}" stroke="{colour}"'
    weight = 'font-weight="bold"' if bit else ""
    return [
        svg.box(x, 32, width - 2, 28, look),
        svg.text(x + width / 2 - 1, 51, str(bit), anchor="middle", more=weight),
    ]
