"""The explorers in the page's own language: their modules, and the facts they are given."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from mplab.numbers.formats import Format
from mplab.pictures.canvas import style

_FOLDER = Path(__file__).parent / "page"

_NUMBERS = count()


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


def alive(state: dict[str, Any]) -> str:
    """An explorer as HTML that lives without a kernel.

    What all explorers share stands in front of each; `once` leaves it on a page once.

    Args:
        state: what its widget holds, its module and its style among it.
    """
    place = f"mplab-{next(_NUMBERS)}"
    own = {name: value for name, value in state.items() if not name.startswith("_")}
    held = json.dumps(own).replace("<", "\\u003c")  # a script would end at </script>
    return (
        f'{_SHARED}<div id="{place}">This explorer needs JavaScript.</div>'
        f'<script type="module">const {{{_NAMES}}} = globalThis.mplab;\n'
        f"{state['_esm'].removeprefix(_CORE)}\nrender({{model: plainModel({held}), "
        f'el: document.getElementById("{place}")}});</script>'
    )


def once(page: str) -> str:
    """A page with several live explorers, with what they share in front of the first alone."""
    head, shared, tail = page.partition(_SHARED)
    return head + shared + tail.replace(_SHARED, "")


_NAMES = ", ".join(re.findall(r"^export (?:const|function) (\w+)", _CORE, re.MULTILINE))

_SHARED = (
    f'<style>{css()}</style><script type="module">{_CORE}\n'
    f"globalThis.mplab = {{{_NAMES}}};</script>"
)
