"""Watch which functions of mplab an answer calls: it must not call the one it should write."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from mplab.numbers.formats import Overflow

_PACKAGE = Path(__file__).parents[2]
LIBRARY = str(_PACKAGE) + os.sep
_LESSONS = str(_PACKAGE.parent / "lessons") + os.sep
_OURS = (LIBRARY, f"{_LESSONS}l", f"{_LESSONS}solutions")
"""Path prefixes of the library's files and, in a checkout, of the code of lessons."""

_SANDBOX = os.path.join(LIBRARY, "course", "grading", "kernel.py")
"""The file that runs a submission and captures its output."""

_WRAPPER = "on_tensors.<locals>.call"
"""The decorator of functions that take tensors, too: the name of its `function` counts."""

_FREE = {"<module>", "__getattr__", "_ShortNames"}
"""Functions that run on `import mplab`, on the first use of a room, and on any import."""

_CALLED_BY_TORCH = {
    "_kernel.<locals>.run",
    "Mode.__torch_dispatch__",
    "Kernels.__del__",
    "simulated._before_module",
    "simulated._after_module",
    "simulated._after_step",
    "simulated._before_step",
    "simulated._before_step.<locals>.simulated_closure",
}
"""Of the simulation: torch and Python call them while an object `simulated` lives."""


def watched(
    answer: Callable[..., Any], uses: Sequence[str] | None, found: list[str]
) -> Callable[..., Any]:
    """Wrap an answer so that its forbidden calls of mplab are appended to `found`.

    A call counts wherever it comes from: helpers and other cells, another name, a callback. Calls
    inside the library do not count, nor do attributes of a format. Code in another thread,
    compiled code, and code that uses `sys.setprofile` itself are not seen.

    Args:
        answer: a function.
        uses: the functions and classes that may be called, and "overflow" if the argument of that
            name may be used; None for all.
        found: receives the name of each call that is not allowed.
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
        inside = frame
        if code.co_qualname in _CALLED_BY_TORCH:
            return
        values = frame.f_locals
        name = code.co_qualname.partition(".")[0]
        if code.co_qualname == _WRAPPER:
            name = values["function"].__name__
            values = values["options"]
        attribute = name == "Format" and code.co_name != "__post_init__"
        if name not in allowed and not attribute:
            found.append(name)
        elif values.get("overflow") is Overflow.SATURATE and "overflow" not in allowed:
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
    """Write the sentence for an answer that calls a function it may not use."""
    names = ", ".join(name for name in uses if name != "overflow")
    allowed = f"you may call only {names}" if names else "you may not call mplab"
    return (
        f"The answer calls mplab's {called}; in this exercise {allowed}."
        " Write the steps yourself."
    )
