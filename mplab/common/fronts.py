"""Lazy fronts: `lazy_loader`, and the command that installs what a name lacks."""

from collections.abc import Callable
from typing import Any

import lazy_loader

from mplab.common.installation import missing_message


def lazily(
    front: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Let a front import each name of its stub, `__init__.pyi`, on first use.

    So a file of a room runs without packages that only other files of it need.

    Args:
        front: the `__name__` of the module that calls this.
        file: its `__file__`.

    Returns:
        Its `__getattr__`, `__dir__` and `__all__`.
    """
    load, names, offered = lazy_loader.attach_stub(front, file)

    def get(name: str) -> Any:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "mplab"):
                raise
            message = f"{front}.{name} {missing_message(package)}"
            raise ModuleNotFoundError(message, name=package) from error

    return get, names, offered
