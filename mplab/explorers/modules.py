"""The explorers in the page's own language: their modules, and the facts they are given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from mplab.numbers.formats import Format
from mplab.pictures.canvas import Picture, style

_FOLDER = Path(__file__).parent / "page"

_NUMBERS = count()

STILL = (
    "Here the picture stands still; with JavaScript in a newer browser, or in JupyterLab, it moves."
)


def _text(*names: str) -> str:
    """Modules as one, which imports nothing."""
    files = [(_FOLDER / name).read_text("utf-8") for name in names]
    return "".join(re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE) for text in files)


_CORE = _text("numbers.js", "parts.js")


def module(name: str) -> str:
    """The ES module of an explorer, with the modules that it imports in it.

    A widget's module and a page opened from a disk can load no second file.
    """
    return _CORE + _text(name)


def css() -> str:
    """How explorers in the page look."""
    return (_FOLDER / "page.css").read_text("utf-8")


def facts(fmt: Format) -> dict[str, Any]:
    """The facts of a format as JSON takes them; what follows from them, `makeFormat` derives."""
    return {**asdict(fmt), "specials": fmt.specials.name, "colour": style(fmt).colour}


class PageExplorer(anywidget.AnyWidget):
    """An explorer in the page's own language, of formats that it offers.

    A subclass gives `_esm`, its module, and the words and numbers that it holds.

    Args:
        formats: those that it offers.
        still: draws its question as it starts, for a page without JavaScript, if that can be drawn.
        held: the words and numbers it starts with.
    """

    _css = css()
    formats: traitlets.List[Any] = traitlets.List().tag(sync=True)

    def __init__(
        self, formats: Iterable[Format], still: Callable[[], Picture | None], **held: Any
    ) -> None:
        self.still = still
        super().__init__(formats=[facts(fmt) for fmt in dict.fromkeys(formats)], **held)


def alive(explorer: PageExplorer) -> str:
    """An explorer as HTML that lives without a kernel, and stands still without JavaScript.

    What all explorers share stands in front of each; `once` leaves it on a page once.
    """
    place, state, picture = f"mplab-{next(_NUMBERS)}", explorer.get_state(), explorer.still()
    own = {name: value for name, value in state.items() if not name.startswith("_")}
    held = json.dumps(own).replace("<", "\\u003c")  # a script would end at </script>
    still = picture._repr_mimebundle_()["text/html"] if picture else ""
    return (
        f'{_SHARED}<div id="{place}">{still}<p>{STILL}</p></div>'
        f'<script type="module">const {{{_NAMES}}} = globalThis.mplab;\n'
        f"{state['_esm'].removeprefix(_CORE)}\nrender({{model: plainModel({held}), "
        f'el: document.getElementById("{place}")}});</script>'
    )


def once(page: str) -> str:
    """A page with several live explorers, with what they share in front of the first alone."""
    head, shared, tail = page.partition(_SHARED)
    return head + shared + tail.replace(_SHARED, "")


_EXPORTED = re.findall(r"^export (?:const|function) (\[.*?\]|\w+)", _CORE, re.MULTILINE)

_NAMES = ", ".join(names.strip("[]") for names in _EXPORTED)

_SHARED = (
    f'<style>{css()}</style><script type="module">{_CORE}\n'
    f"globalThis.mplab = {{{_NAMES}}};</script>"
)
