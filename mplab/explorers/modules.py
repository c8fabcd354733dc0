"""The explorers in the page's own language: their modules, and the facts they are given."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mplab.numbers.formats import Format

_FOLDER = Path(__file__).parent / "page"


def module(name: str) -> str:
    """The ES module of an explorer, with the core in it.

    A widget's module and a page opened from a disk can load no second file, so its imports are
    replaced by what they import.
    """
    own = re.sub(r"^import [^;]*;\n", "", (_FOLDER / name).read_text("utf-8"), flags=re.MULTILINE)
    return (_FOLDER / "numbers.js").read_text("utf-8") + own


def facts(fmt: Format) -> dict[str, Any]:
    """The facts of a format as JSON takes them; what follows from them, `makeFormat` derives."""
    return {**asdict(fmt), "specials": fmt.specials.name}
