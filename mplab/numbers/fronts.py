"""Lazy imports: a front imports each of its names on first use."""

import ast
import inspect
import sys
from importlib import import_module
from typing import Any

from mplab.numbers.installation import missing_message


def lazily(front: str) -> None:
    """Let a front import each of its names on first use.

    The names are those that it imports `as` themselves under `if TYPE_CHECKING:`, where a type
    checker finds them too. So a file of a room runs without packages that only other files need.

    Args:
        front: the name of the module that calls this.
    """
    module = sys.modules[front]
    nodes = ast.walk(ast.parse(inspect.getsource(module)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    homes = {
        alias.asname: str(n.module) for n in froms for alias in n.names if alias.asname
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {front!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "mplab"):
                raise
            message = f"{front}.{name} {missing_message(package)}"
            raise ModuleNotFoundError(message, name=package) from error
        setattr(module, name, value)
        return value

    vars(module).update(
        __all__=[*homes], __getattr__=get, __dir__=lambda: sorted(homes)
    )
