"""Watch which functions of mplab an answer calls: it may not call the one it should write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from mplab.numbers.formats import Overflow

_PACKAGE = Path(__file__).parents[1]
_LIBRARY = str(_PACKAGE) + os.sep
_OURS = (_LIBRARY, str(_PACKAGE.parent / "lessons" / "l"))
"""How the files of the library begin, and in a checkout those of single lessons."""

_SANDBOX = os.path.join(_LIBRARY, "grading", "kernel.py")
"""The file that runs a submission and captures its output."""

_FREE = {"<module>", "__getattr__"}
"""The functions that run on `import mplab` and when a room is first named."""


def watched(
    answer: Callable[..., Any], uses: Sequence[str] | None, found: list[str]
) -> Callable[..., Any]:
    """Wrap an answer so that `found` gets the names of mplab that it calls and `uses` lacks.

    A call counts wherever it comes from: helpers and other cells, another name, a callback. What
    the library calls itself does not, nor the attributes of a format. Code of another thread,
    compiled code, and code that takes `sys.setprofile` for itself is not seen.

    Args:
        answer: a function.
        uses: functions and classes that may be called, and "overflow" if the argument of that
            name may be; None for all.
        found: gets a name for each call that is not allowed.
    """
    if uses is None:
        return answer
    allowed = {*uses, *_FREE}
    inside: FrameType | None = None

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal inside
        code = frame.f_code
        if event == "return" and frame is inside:
            inside = None
        file = code.co_filename
        ours = file.startswith(_OURS) and file != _SANDBOX
        if event != "call" or inside is not None or not ours:
            return
        inside, name = frame, code.co_qualname.partition(".")[0]
        attribute = name == "Format" and code.co_name != "__post_init__"
        if name not in allowed and not attribute:
            found.append(name)
        elif frame.f_locals.get("overflow") is Overflow.SATURATE and "overflow" not in allowed:
            found.append(f"{name} with overflow")

    def call(*arguments: Any) -> Any:
        before = sys.getprofile()
        try:
            sys.setprofile(look)
            return answer(*arguments)
        finally:
            sys.setprofile(before)

    return call


def refusal(called: str, uses: Sequence[str]) -> str:
    """The sentence for an answer that calls a function it may not use."""
    allowed = ", ".join(name for name in uses if name != "overflow") or "nothing"
    return (
        f"The answer calls {called} of mplab; this exercise may use {allowed} of it. "
        "Write the steps yourself."
    )
