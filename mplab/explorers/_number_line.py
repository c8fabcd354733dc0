"""The explorer of spacing: the values of two formats on one line, and what rounds to each."""

from __future__ import annotations

import math

import traitlets

from mplab.explorers._entry import first_words, read_within, require_kind
from mplab.explorers.modules import PageExplorer, module
from mplab.numbers.checks import integer
from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Format
from mplab.pictures.formats import number_lines

FORMATS = (FP8_E4M3, FP8_E5M2, BF16, FP16, FP32)

_NARROWEST, _WIDEST = -20, 18  # ends of the slider


class NumberLine(PageExplorer):
    """How far apart are the numbers, and what rounds to each of them?

    Two formats over one stretch of the number line. Ticks are values; the areas over them
    show what rounds to each, in the chosen mode. Zoom with the slider. It lives in the page,
    without Python.

    Args:
        first: the upper format.
        second: the lower one.
        around: the middle of the stretch.
        zoom: its width is 2^zoom.

    Attributes:
        around: the middle, as it was typed; setting it, as each of these, shows another.
        zoom: the exponent of the width.
        first: the name of the upper format.
        second: that of the lower one.
        mode: that of the rounding mode.
        formats: the facts of all formats that are offered.

    Raises:
        TypeError: an argument is of another kind.
        ValueError: `around` cannot be read, or is not finite in FP32.

    Exactness:
        Counts are exact; the ends of areas are where `mplab.round_to` changes.

    Examples:
        >>> line = NumberLine(around="1.5", zoom=0)
        >>> line.around, line.first, line.mode
        ('1.5', 'FP8_E4M3', 'TIES_TO_EVEN')
    """

    _esm = module("number_line.js")
    around = traitlets.Unicode().tag(sync=True)
    zoom = traitlets.Int().tag(sync=True)
    first = traitlets.Unicode().tag(sync=True)
    second = traitlets.Unicode().tag(sync=True)
    mode = traitlets.Unicode("TIES_TO_EVEN").tag(sync=True)

    def __init__(
        self,
        first: Format = FP8_E4M3,
        second: Format = FP8_E5M2,
        *,
        around: str | float = "1",
        zoom: int = 1,
    ) -> None:
        for name, fmt in (("first", first), ("second", second)):
            require_kind("NumberLine", name, fmt, Format)
        integer("NumberLine", "zoom", zoom, least=-math.inf)
        zoom = min(max(zoom, _NARROWEST), _WIDEST)
        words, middle = first_words(
            "NumberLine",
            "around",
            around,
            lambda typed: read_within("The middle", typed, first, FP32),
        )
        few = [fmt for fmt in dict.fromkeys((first, second)) if fmt.bits <= 16]  # can be drawn
        half = max(2.0 ** (zoom - 1), abs(float(middle)) * 2.0**-40)  # as in the module
        ends = float(middle) - half, float(middle) + half
        super().__init__(
            (*FORMATS, first, second),
            lambda: number_lines(few, *ends) if few else None,
            around=words,
            zoom=zoom,
            first=first.name,
            second=second.name,
        )
