"""The explorer of bits: one number in every format at once."""

from __future__ import annotations

from fractions import Fraction

import traitlets

from mplab.explorers._entry import first_words, read_number
from mplab.explorers.modules import PageExplorer, module
from mplab.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    require_format,
)
from mplab.pictures.canvas import FIELDS
from mplab.pictures.formats import bit_fields

SHOWN = (FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2)


class BitExplorer(PageExplorer):
    """Which bits make this number, and what do the other formats make of it?

    Click a bit, drag over several (or move to them with Tab and the arrows, and press Space), move
    the exponent or the significand, step to a neighbour, or type a number or a code: all formats
    show what they hold instead, and by how much they miss. It lives in the page, without Python.

    Args:
        number: what to start with: anything that can be typed, or a float.
        fmt: the format whose bits can be clicked.

    Attributes:
        entry: the number or code that was typed; setting it shows another.
        format: the name of the format whose bits are shown; setting it chooses another.
        formats: the facts of all formats that are shown.

    Raises:
        TypeError: `number` or `fmt` is none.
        ValueError: the number cannot be read.

    Exactness:
        That of `mplab.round_to`, once from the exact number.

    Examples:
        >>> explorer = BitExplorer("0.1")
        >>> explorer.entry, explorer.format
        ('0.1', 'FP16')
    """

    _esm = module("bit_explorer.js")
    entry = traitlets.Unicode().tag(sync=True)
    format = traitlets.Unicode().tag(sync=True)
    colours = traitlets.Dict(FIELDS).tag(sync=True)

    def __init__(self, number: str | float = "0.1", fmt: Format = FP16) -> None:
        first = require_format("BitExplorer", fmt)
        words, exact = first_words(
            "BitExplorer", "number", number, lambda typed: read_number(typed, fmt)
        )
        formats = tuple(dict.fromkeys((*SHOWN, first)))
        super().__init__(
            formats,
            lambda: bit_fields(exact, formats) if isinstance(exact, Fraction) else None,
            entry=words,
            format=first.name,
        )
