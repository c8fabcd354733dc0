"""The explorer of bits: one number in every format at once."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ipywidgets
from ipywidgets.widgets.widget_bool import ToggleButtonStyle

from mplab.explorers import _svg as svg
from mplab.explorers._entry import (
    Number,
    exact,
    first_words,
    hexadecimal,
    in_full,
    is_code,
    read_number,
    shown,
)
from mplab.explorers._explorer import Explorer
from mplab.explorers._explorer import svg as framed
from mplab.numbers.codes import decode, encode, fields, next_down, next_up, ulp
from mplab.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Event,
    Format,
    require_format,
)
from mplab.numbers.rounding import events, round_to
from mplab.pictures.canvas import FIELDS, power_of_two, style

SHOWN = (FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2)


@dataclass(frozen=True)
class Reading:
    """What a format makes of a number: the nearest value, ties to even, and what was lost.

    `error` is in units in the last place at the number; None where the value is infinite or
    NaN. `kind` is zero, subnormal, normal, infinity or NaN.
    """

    fmt: Format
    code: int
    value: float
    error: float | None
    events: Event
    kind: str


def reading(number: Number, fmt: Format) -> Reading:
    """Enter a number into a format.

    Exactness:
        Correctly rounded from the exact number; the error is a quotient rounded to float64.

    Examples:
        >>> reading(Fraction(1, 10), FP16)
        Reading(fmt=<Format FP16: E5M10, bias 15>, code=11878, value=0.0999755859375, \
error=-0.4, events=<Event.INEXACT: 1>, kind='normal')
    """
    value = float(round_to(number, fmt))
    error = None
    if math.isfinite(value):
        exactly = Fraction(number)
        error = float((Fraction(value) - exactly) / Fraction(float(ulp(number, fmt))))
    raised = Event(int(events(number, fmt)))
    return Reading(fmt, int(encode(value, fmt)), value, error, raised, kind_of(value, fmt))


def kind_of(value: float, fmt: Format) -> str:
    """Zero, subnormal, normal, infinity or NaN."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity"
    if value == 0:
        return "zero"
    return "subnormal" if abs(value) < fmt.min_normal else "normal"


class BitExplorer(Explorer):
    """Which bits make this number, and what do the other formats make of it?

    Click a bit (or move to it with Tab and press Space), step to a neighbour, or type a
    number or a code: all formats show what they hold instead, and by how much they miss.

    Args:
        number: what to start with: anything that can be typed, or a float.
        fmt: the format whose bits can be clicked.

    Attributes:
        entry: where a number or a code is typed.
        format: the choice of the format.
        bits: one button for each bit of this format, that of weight 2^0 first.
        code: the code in the chosen format.
        number: the exact number that every format is asked for.
        readings: what each format makes of it, by name.
        digits: the value in the chosen format in full, as a sum of powers of two, and the
            nearest double.

    Exactness:
        That of `mplab.round_to`, once from the exact number.

    Examples:
        >>> explorer = BitExplorer("0.1")
        >>> hex(explorer.code), explorer.readings["BF16"].value
        ('0x2e66', 0.10009765625)
        >>> explorer.bits[15].value = True
        >>> explorer.readings["FP8_E4M3"].value
        -0.1015625
    """

    def __init__(self, number: str | float = "0.1", fmt: Format = FP16) -> None:
        first = require_format("BitExplorer", fmt)
        words = first_words("BitExplorer", "number", number, lambda typed: read_number(typed, fmt))
        formats = SHOWN if first in SHOWN else (*SHOWN, first)
        self._formats = formats
        self.entry = ipywidgets.Text(
            value=words,
            description="number or code",
            continuous_update=False,
            style={"description_width": "initial"},
            layout={"width": "min(22rem, 98%)"},
        )
        self.format = ipywidgets.Dropdown(
            options=[(f.name, f) for f in formats],
            value=first,
            description="bits of",
            style={"description_width": "initial"},
            layout={"width": "14rem"},
        )
        self._note = ""
        self._settling = False
        self.number: Number = Fraction(0)
        self.code = 0
        self._take(words)
        self._bits = _buttons(formats, self.number)
        self.down, self.up = (
            ipywidgets.Button(description=step, layout={"width": "10rem"})
            for step in ("next value down", "next value up")
        )
        self._rows = {fmt: _rows(fmt, bits) for fmt, bits in self._bits.items()}
        self.digits = ipywidgets.HTML()
        self._settle()
        top = ipywidgets.HBox([self.entry, self.format], layout={"flex_flow": "row wrap"})
        steps = ipywidgets.HBox([self.down, self.up], layout={"flex_flow": "row wrap"})
        controls = [top, *self._rows.values(), steps]
        super().__init__("Which bits make this number?", controls, below=[self.digits])
        self.entry.observe(lambda _: self._when(self._typed), names="value")
        self.format.observe(lambda _: self._when(self._reformatted), names="value")
        for bit in itertools.chain(*self._bits.values()):
            bit.observe(lambda _: self._when(self._flipped), names="value")
        self.down.on_click(lambda _: self._when(lambda: self._step(next_down)))
        self.up.on_click(lambda _: self._when(lambda: self._step(next_up)))

    @property
    def fmt(self) -> Format:
        """The format whose bits are shown as buttons."""
        return self.format.value

    @property
    def bits(self) -> list[ipywidgets.ToggleButton]:
        """The buttons of that format."""
        return self._bits[self.fmt]

    @property
    def readings(self) -> dict[str, Reading]:
        """What each format makes of the number, by the format's name."""
        return {fmt.name: reading(self.number, fmt) for fmt in self._formats}

    # What the reader does ----------------------------------------------------------------

    def _when(self, action: Any) -> None:
        """Follow the reader, unless it is this explorer that moves its own controls."""
        if self._settling:
            return

        def follow() -> None:
            self._note = ""
            action()
            self._settle()
            self.redraw()

        self.visibly(follow)

    def _typed(self) -> None:
        try:
            self._take(self.entry.value)
        except ValueError as mistake:
            self._note = str(mistake)

    def _take(self, typed: str) -> None:
        """The number that was typed; a code is taken bit for bit, as NaNs have many."""
        self.number = read_number(typed, self.fmt)
        if is_code(typed):
            self.code = int(typed.strip().lower(), 0)
        else:
            self.code = reading(self.number, self.fmt).code

    def _reformatted(self) -> None:
        self.code = reading(self.number, self.fmt).code
        if is_code(self.entry.value):
            self._write(hexadecimal(self.code, self.fmt))

    def _flipped(self) -> None:
        self._show_code(sum(bit.value << weight for weight, bit in enumerate(self.bits)))

    def _step(self, neighbour: Any) -> None:
        value = float(neighbour(decode(self.code, self.fmt), self.fmt))
        if not math.isnan(value):
            self._show_code(int(encode(value, self.fmt)))

    def _show_code(self, code: int) -> None:
        """Make the value of a code the number that all formats are asked for."""
        self.code = code
        self.number = exact(float(decode(code, self.fmt)))
        self._write(hexadecimal(code, self.fmt))

    def _write(self, words: str) -> None:
        self._settling = True
        try:
            self.entry.value = words
        finally:
            self._settling = False

    def _settle(self) -> None:
        """Bring the buttons of the format to the code, and show no others."""
        self._settling = True
        try:
            for bit, look in zip(self.bits, _looks(self.code, self.fmt), strict=True):
                with bit.hold_sync():  # one message to the page, not one for each trait
                    for trait, value in look.items():
                        setattr(bit, trait, value)
            for fmt, rows in self._rows.items():
                rows.layout.display = "flex" if fmt is self.fmt else "none"
        finally:
            self._settling = False

    # What is shown -----------------------------------------------------------------------

    def draw(self) -> tuple[str, str]:
        """Every format's bits and value, and the chosen one in words."""
        readings = self.readings
        self.digits.value = _digits_html(self.code, self.fmt, self.number)
        rows = [_key_svg()] + [
            _row_svg(read, KEY + ROW * i, chosen=read.fmt is self.fmt)
            for i, read in enumerate(readings.values())
        ]
        sentence = " ".join([self._note, self._sentence(readings[self.fmt.name])]).strip()
        title = f"The bits of {shown(self.number)} in each format."
        summary = " ".join(_summary(read) for read in readings.values())
        height = KEY + ROW * len(readings) + 6
        description = f"{title} {summary}"
        picture = framed(rows, width=WIDTH, height=height, description=description, largest=1.35)
        return picture, sentence

    def _sentence(self, mine: Reading) -> str:
        """How the code is read, what is lost, and its neighbours."""
        fmt, value = self.fmt, float(decode(self.code, self.fmt))
        words = f"{fmt.name} {hexadecimal(self.code, fmt)}: {_explained(self.code, fmt)}"
        if mine.events:
            amount = "" if mine.error is None else f"error {_ulps(mine)}, "
            words += f" You asked for {shown(self.number)}: {amount}{_events(mine.events)}."
            if Event.OVERFLOW in mine.events:
                words += f" The largest number of {fmt.name} is {shown(exact(fmt.max_finite))}."
        if not math.isfinite(value):
            return words
        for where, step in (("below", next_down), ("above", next_up)):
            other = float(step(value, fmt))
            code = hexadecimal(int(encode(other, fmt)), fmt)
            words += f" Next {where}: {shown(other)} ({code}{_away(value, other)})."
        return words


def _away(value: float, other: float) -> str:
    """How far a neighbour is, which is a power of two; nothing where it is infinite or NaN."""
    return f", {power_of_two(abs(other - value))} away" if math.isfinite(other) else ""


def _parts(fmt: Format) -> list[tuple[str, int, int]]:
    """Fields of a code, each with its name, highest and lowest bit."""
    trailing = fmt.precision - 1
    parts = [
        ("sign", fmt.bits - 1, fmt.bits - 1),
        ("exponent", fmt.exponent_bits + trailing - 1, trailing),
        ("trailing significand", trailing - 1, 0),
    ]
    return [part for part in parts[not fmt.signed :] if part[1] >= part[2]]


def _looks(code: int, fmt: Format) -> list[dict[str, Any]]:
    """The traits of the button of each bit, that of weight 2^0 first."""
    looks = []
    for name, high, low in _parts(fmt)[::-1]:
        for weight in range(low, high + 1):
            bit = code >> weight & 1
            words = {"description": str(bit), "tooltip": f"bit {weight}, {name}: {bit}"}
            looks.append({"value": bool(bit), **words})
    return looks


def _buttons(
    formats: Sequence[Format], number: Number
) -> dict[Format, list[ipywidgets.ToggleButton]]:
    """A button for each bit of each format, all in the page from the start.

    Another format then changes what is shown, and no button: making 32, or telling 32 what they
    are now, takes a page 50 ms.
    """
    shared = {
        "layout": ipywidgets.Layout(width="1.9rem", padding="0", margin="1px"),
        "style": ToggleButtonStyle(),
    }
    return {
        fmt: [
            ipywidgets.ToggleButton(**look, **shared, _dom_classes=(_class(name),))
            for look, name in zip(_looks(code, fmt), _field_of_bits(fmt), strict=True)
        ]
        for fmt in formats
        for code in [reading(number, fmt).code]
    }


def _field_of_bits(fmt: Format) -> list[str]:
    """The field of each bit, that of weight 2^0 first."""
    return [name for name, high, low in _parts(fmt)[::-1] for _ in range(low, high + 1)]


def _class(field: str) -> str:
    """The class of the buttons and the label of a field, which gives them its colour."""
    return f"mplab-{field.split()[0]}"


def _rows(fmt: Format, bits: Sequence[Any]) -> ipywidgets.HBox:
    """The fields of a format with their buttons."""
    groups = [_group(name, bits[low : high + 1]) for name, high, low in _parts(fmt)]
    return ipywidgets.HBox(groups, layout={"flex_flow": "row wrap", "overflow": "visible"})


def _group(name: str, bits: Sequence[Any]) -> ipywidgets.VBox:
    """A field: its name over its buttons, the highest bit on the left."""
    visible = {"overflow": "visible"}  # of the ring around the button in focus
    row = ipywidgets.HBox(bits[::-1], layout={"flex_flow": "row wrap", **visible})
    margin = "0 0.6rem 0 0"
    label = ipywidgets.Label(name, _dom_classes=(_class(name),))
    return ipywidgets.VBox([label, row], layout={"margin": margin, **visible})


def _explained(code: int, fmt: Format) -> str:
    """How a code is read, step by step."""
    sign, biased, trailing = (int(part) for part in fields(code, fmt))
    value = float(decode(code, fmt))
    field = f"sign {sign}, exponent field {biased:0{fmt.exponent_bits}b}"
    kind = kind_of(value, fmt)
    if kind in ("infinity", "NaN"):
        return f"{field} and trailing significand {trailing:0{fmt.precision - 1}b} mean {kind}."
    leading = int(biased > 0)
    exponent = max(biased, 1) - fmt.bias
    significand = leading + trailing * fmt.epsilon
    power = power_of_two(2.0**exponent)
    how = (
        f"= {biased}, less the bias {fmt.bias} gives {power}"
        if leading
        else f"= 0 means no leading 1, and {power}"
    )
    digits = f"{trailing:0{fmt.precision - 1}b}" if fmt.precision > 1 else ""
    return (
        f"{field} {how}; significand {leading}.{digits} in binary = {shown(significand)}. "
        f"Value {shown(exact(value))} ({kind})."
    )


_FOLDED = 130
"""Characters past which digits and sums are folded away."""


def _digits_html(code: int, fmt: Format, number: Number) -> str:
    """The value of a code in full and as a sum of powers of two, and the number as a double."""
    value = float(decode(code, fmt))
    lines = []
    if math.isfinite(value):
        lines.append((f"{fmt.name} in full", in_full(exact(value)), shown(exact(value))))
        if value:
            powers = _sum_of_powers(code, fmt)
            lines.append((f"{fmt.name} as a sum", powers, f"{powers[:60]} …"))
    bits, double = _double(number)
    past = ": past the range" if math.isinf(double) and not isinstance(number, float) else ""
    name = f"nearest double (FP64) 0x{bits:016X}"
    lines.append((name, in_full(exact(double)) + past, shown(exact(double))))
    return "".join(itertools.starmap(_folded_html, lines))


def _folded_html(name: str, words: str, brief: str) -> str:
    """A line with its name; a long one is opened by a click or by Enter."""
    broken = "overflow-wrap:anywhere;line-height:1.5"
    if len(words) <= _FOLDED:
        return f'<div style="{broken}">{name}: {words}</div>'
    return (
        f"<details><summary>{name}: {brief} (all {len(words):,} characters)</summary>"
        f'<div style="{broken}">{words}</div></details>'
    )


def _sum_of_powers(code: int, fmt: Format) -> str:
    """The powers of two that the bits of the significand stand for, the largest first.

    Examples:
        >>> _sum_of_powers(0xBE00, FP16), _sum_of_powers(0x0003, FP16)
        ('−(2⁰ + 2⁻¹)', '2⁻²³ + 2⁻²⁴')
    """
    sign, biased, trailing = (int(part) for part in fields(code, fmt))
    significand = trailing | (biased > 0) << (fmt.precision - 1)
    lowest = max(biased, 1) - fmt.bias - fmt.precision + 1
    powers = [
        power_of_two(2.0 ** (lowest + place))
        for place in range(fmt.precision - 1, -1, -1)
        if significand >> place & 1
    ]
    words = " + ".join(powers)
    return words if not sign else f"−{words}" if len(powers) == 1 else f"−({words})"


def _double(number: Number) -> tuple[int, float]:
    """The double next to a number, ties to even, and its code: Python's own float."""
    try:
        value = float(number)
    except OverflowError:
        value = math.inf if number > 0 else -math.inf
    return int.from_bytes(struct.pack(">d", value)), value


def _ulps(read: Reading) -> str:
    """The error in three digits; float64 makes 0 of one below 2^−1075 ulp."""
    if not read.error:
        return "below 2⁻¹⁰⁷⁴ ulp" if read.events else "none"
    return f"{read.error:+.3g} ulp".replace("-", "−")


def _events(raised: Event) -> str:
    names = [event.name for event in Event if event in raised]
    return ", ".join(name for name in names if name) or "no event"


def _summary(read: Reading) -> str:
    error = "no finite value" if read.error is None else f"error {_ulps(read)}"
    code = hexadecimal(read.code, read.fmt)
    return f"{read.fmt.name}: {shown(exact(read.value))}, {code}, {error}, {_events(read.events)}."


# SVG -------------------------------------------------------------------------------------
WIDTH, ROW, CELL, KEY = 470, 50, 9.2, 26


def _key_svg() -> str:
    """Which colour is which field."""
    parts = []
    for left, (name, colour) in zip((8, 70, 162), FIELDS.items(), strict=True):
        parts.append(svg.box(left, 8, CELL - 1.6, 14, f'fill="{colour}" stroke="{colour}"'))
        parts.append(svg.text(left + 14, 20, name, more=f'fill="{colour}"'))
    return "".join(parts)


def _row_svg(read: Reading, top: float, *, chosen: bool) -> str:
    """A format's name, value and code; below them its bits, its error and its events."""
    colour, high = style(read.fmt).colour, top + 18
    parts = [svg.box(0, top + 2, WIDTH, ROW - 2, 'fill="#9C9CA1" fill-opacity="0.2"')] * chosen
    parts += [
        svg.box(8, high - 10, 10, 10, f'fill="{colour}"'),
        svg.text(24, high, read.fmt.name, more='font-weight="bold"'),
        svg.text(WIDTH - 106, high, shown(exact(read.value)), anchor="end"),
        svg.text(WIDTH - 8, high, hexadecimal(read.code, read.fmt), anchor="end"),
        _strip_svg(read, 8, top + 26),
        svg.text(310, top + 38, _short_error(read)),
        svg.text(WIDTH - 8, top + 38, _short_events(read), anchor="end"),
    ]
    return "".join(parts)


def _short_error(read: Reading) -> str:
    """The error with three decimals; nothing where there is none."""
    if read.error is None or not (read.error or read.events):
        return ""
    if abs(read.error) < 0.0005:
        return "<0.001 ulp"
    return f"{read.error:+.3f} ulp".replace("-", "−")


def _short_events(read: Reading) -> str:
    """The event that says most, in lower case; what kind of number it is where there is none."""
    for event in (Event.INVALID, Event.OVERFLOW, Event.UNDERFLOW, Event.INEXACT):
        if event in read.events:
            return str(event.name).lower()
    return "exact" if read.kind not in ("infinity", "NaN") else read.kind


def _strip_svg(read: Reading, left: float, top: float) -> str:
    """The bits as cells, filled where they are 1, in the colour of their field."""
    cells = []
    for name, high, low in _parts(read.fmt):
        for weight in range(high, low - 1, -1):
            x = left + (read.fmt.bits - 1 - weight) * CELL
            one = read.code >> weight & 1
            fill, colour = FIELDS[name] if one else "white", FIELDS[name]
            cells.append(svg.box(x, top, CELL - 1.6, 14, f'fill="{fill}" stroke="{colour}"'))
    return "".join(cells)
