"""Explorers that run in the page, as ES modules: they move without Python."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from mplab.course.explorers.saved import STILL, Displayed
from mplab.course.pictures.canvas import FIELDS, Picture, style
from mplab.course.pictures.formats import bit_fields, number_lines
from mplab.course.pictures.rounding import rounding_profile
from mplab.numbers.codes import decode, ulp
from mplab.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    Rounding,
)

_FOLDER = Path(__file__).parent / "page"

STATIC_NOTE = (
    "Here the picture stands still; with JavaScript in a newer browser,"
    " or in JupyterLab, it moves."
)


def joined(*names: str) -> str:
    """Join modules into one that imports nothing."""
    text = "".join((_FOLDER / name).read_text("utf-8") for name in names)
    return re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)


def module(name: str) -> str:
    """Return the ES module of an explorer, together with the modules that it imports.

    Neither a widget's module nor a page opened from a disk can load a second file.
    """
    return joined("spelling.js", "numbers.js", "focus.js", "parts.js", name)


def css() -> str:
    """Return the style sheet of explorers in the page."""
    return (_FOLDER / "page.css").read_text("utf-8")


def facts(fmt: Format) -> dict[str, Any]:
    """Return the facts of a format as JSON; `makeFormat` derives the rest."""
    return {**asdict(fmt), "specials": fmt.specials.name, "colour": style(fmt).colour}


class PageExplorer(Displayed, anywidget.AnyWidget):
    """An explorer that runs in the page, written in JavaScript.

    A subclass defines `_esm`, its module, and a trait for each word or number of its state.

    Args:
        formats: the formats to choose from.
        static_picture: draws the still picture for a page without JavaScript, or returns None.
        held: the words and numbers to start with.
    """

    _css = css()
    formats: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        formats: Iterable[Format],
        static_picture: Callable[[], Picture | None],
        **held: Any,
    ) -> None:
        self.static_picture = static_picture
        super().__init__(formats=[facts(fmt) for fmt in dict.fromkeys(formats)], **held)

    def still_html(self) -> str:
        """Write the still picture, if there is one."""
        picture = self.static_picture()
        return picture._repr_mimebundle_()["text/html"] if picture else ""

    def saved_html(self) -> str:
        """Write what needs no kernel: it moves once it is seen, where scripts may run."""
        return _html(self, f"{self.still_html()}{STILL}", _ONCE_SEEN)


def to_live_html(explorer: PageExplorer) -> str:
    """Write an explorer as HTML that needs no kernel; without JavaScript it is a still picture."""
    still = f"{explorer.still_html()}<p>{STATIC_NOTE}</p>"
    return _html(explorer, still, "render({ model, el });")


_ONCE_SEEN = """new IntersectionObserver((seen, watch) => {
  if (!seen.some((each) => each.isIntersecting)) return;
  watch.disconnect();
  render({ model: { ...model, inPage: false }, el });
}).observe(el);"""


def _html(explorer: PageExplorer, inside: str, begin: str) -> str:
    """Write an explorer's style sheet, its place, and a script that is its module and `begin`."""
    state = explorer.get_state()
    own = {name: value for name, value in state.items() if not name.startswith("_")}
    held = json.dumps(own).replace("<", "\\u003c")  # a </script> would end the script
    element = f"mplab-{explorer.model_id}"
    return (
        f'<style>{css()}</style><div id="{element}">{inside}</div>'
        f'<script type="module">{state["_esm"]}\n'
        f'const el = document.getElementById("{element}");\n'
        f"const model = plainModel({held});\n{begin}</script>"
    )


SHOWN = (FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2)
"""The formats of a BitExplorer, beside the one that it is given."""

_NARROWEST, _WIDEST = -20, 18  # ends of the number line's slider

_DRAWN = (Rounding.TIES_TO_EVEN, Rounding.TOWARD_ZERO, Rounding.STOCHASTIC)
"""The modes in the still picture of a RoundingLab; in the page there are six."""


def _exact(typed: str | float) -> Fraction | None:
    """Read a decimal or a fraction exactly; None for anything else, such as codes and −0."""
    try:
        exact = Fraction(str(typed))
    except (ValueError, ZeroDivisionError):
        return None
    return None if exact == 0 and str(typed).strip().startswith("-") else exact


class BitExplorer(PageExplorer):
    """Which bits make this number, and what do the other formats make of it?

    Click a bit, drag over several (or move to them with Tab and the arrows, and press Space), move
    the exponent or the significand, step to a neighbour, or type a number or a code: all formats
    show the number that they store instead, and its error. It runs in the page, without Python.

    Args:
        number: the number to start with: anything that can be typed, or a float.
        fmt: the format whose bits can be clicked.

    Attributes:
        entry: the number or code that was typed; setting it shows another.
        format: the name of the format whose bits are shown; setting it chooses another.
        formats: the facts of all formats that are shown.

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
        formats = tuple(dict.fromkeys((*SHOWN, fmt)))

        def static_picture() -> Picture | None:
            exact = _exact(number)
            typed = str(number)
            if exact is None:
                return None
            return bit_fields(exact if "/" in typed else typed, formats)

        super().__init__(formats, static_picture, entry=str(number), format=fmt.name)


class NumberLine(PageExplorer):
    """How far apart are the numbers, and what rounds to each of them?

    Two formats over one stretch of the number line. Ticks are values; the areas over them
    show what rounds to each, in the chosen mode. Zoom with the slider. It runs in the page,
    without Python.

    Args:
        first: the upper format.
        second: the lower one.
        around: the middle of the stretch.
        zoom: its width is 2^zoom.

    Attributes:
        around: the middle, as it was typed; setting it or one of the next four redraws.
        zoom: the exponent of the width.
        first: the name of the upper format.
        second: the name of the lower format.
        mode: the name of the rounding mode.
        formats: the facts of all formats that are offered.

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
        zoom = min(max(zoom, _NARROWEST), _WIDEST)
        # `number_lines` lists all values of a format, and of wider ones these are too many.
        few = [fmt for fmt in dict.fromkeys((first, second)) if fmt.bits <= 16]

        def static_picture() -> Picture | None:
            exact = _exact(around)
            if exact is None or not few or abs(exact) > FP32.max_finite:
                return None
            middle = float(exact)
            # As in number_line.js: not so narrow that float64 cannot tell its ends apart.
            half = max(2.0 ** (zoom - 1), abs(middle) * 2.0**-40)
            return number_lines(few, middle - half, middle + half)

        super().__init__(
            (FP8_E4M3, FP8_E5M2, BF16, FP16, FP32, first, second),
            static_picture,
            around=str(around),
            zoom=zoom,
            first=first.name,
            second=second.name,
        )


class RoundingLab(PageExplorer):
    """Which bits decide where a number goes?

    The bits of a number, cut where the format ends: the bits it keeps, then guard, round
    and sticky. Below, the result of each of the six modes. The slider adds eighths of
    an ulp to the magnitude, one for each pattern of those three bits; a negative number moves
    away from 0, as a positive one does. It runs in the page, without Python.

    Args:
        number: the number to start with: anything that can be typed, or a float.
        fmt: the format to round to.
        mode: the mode to point out.
        seed: the seed of stochastic rounding.

    Attributes:
        entry: the number that was typed; setting it or one of the next three redraws.
        eighths: what is added to its magnitude, in eighths of an ulp, 0 to 16.
        format: the name of the format.
        mode: the name of the rounding mode.
        seed: the seed of the draws; it does not change.
        formats: the facts of all formats that are offered.

    Exactness:
        The number and its chances are exact; results are those of `mplab.round_to`,
        stochastic ones with the bits of `mplab.Stream(seed)`.

    Examples:
        >>> lab = RoundingLab("17")
        >>> lab.entry, lab.format, lab.mode
        ('17', 'FP8_E4M3', 'TIES_TO_EVEN')
    """

    _esm = module("rounding_lab.js")
    entry = traitlets.Unicode().tag(sync=True)
    eighths = traitlets.Int().tag(sync=True)
    format = traitlets.Unicode().tag(sync=True)
    mode = traitlets.Unicode().tag(sync=True)
    # as text: JavaScript's integers are exact only to 2^53
    seed = traitlets.Int().tag(sync=True, to_json=lambda seed, widget: str(seed))

    def __init__(
        self,
        number: str | float = "17",
        fmt: Format = FP8_E4M3,
        *,
        mode: Rounding = Rounding.TIES_TO_EVEN,
        seed: int = 0,
    ) -> None:
        def static_picture() -> Picture | None:
            exact = _exact(number)
            least = -fmt.max_finite if fmt.signed else float(decode(0, fmt))
            if exact is None or not least <= exact <= fmt.max_finite:
                return None
            middle = float(exact)
            reach = 2 * float(ulp(middle, fmt))
            low = max(middle - reach, least)
            high = min(middle + reach, fmt.max_finite)
            return rounding_profile(fmt, _DRAWN, low, high, seed=seed)

        super().__init__(
            (FP8_E4M3, FP8_E5M2, BF16, FP16, fmt),
            static_picture,
            entry=str(number),
            format=fmt.name,
            mode=mode.name,
            seed=seed,
        )
