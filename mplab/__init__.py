"""What low precision does to numbers and to training.

Formats and the one door into them, `round_to`, are here. The rooms are loaded when first named:
`mplab.simulation`, `mplab.training`, `mplab.pictures` and the others. Two are not offered, but
imported by name: `mplab.grading` by assignments, `mplab.commands` by the shell.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mplab.numbers import *  # noqa: F403
from mplab.numbers import __all__ as _numbers
from mplab.numbers.installation import VERSION as __version__  # noqa: F401

if TYPE_CHECKING:
    from mplab.course import check

__all__ = [*(name for name in _numbers if name != "set_threads"), "check"]

_ROOMS = (
    *("numbers", "arithmetic", "scaling", "course", "simulation"),
    *("training", "health", "hardware", "pictures", "explorers"),
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"mplab.{name}")
    if name == "check":  # it brings all exercises
        return import_module("mplab.course").check
    raise AttributeError(f"module 'mplab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
