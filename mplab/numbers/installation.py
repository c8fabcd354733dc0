"""This installation: its version and folder, and what it was made without."""

from __future__ import annotations

import platform
import re
from importlib.util import find_spec
from pathlib import Path

VERSION = "0.2.0"

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of mplab."""


def version_of(package: str) -> str:
    """The version of a package, or "" where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 30 ms, which few ever need

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def environment() -> dict[str, str]:
    """The versions and the platform on which bits depend."""
    return {
        "mplab": VERSION,
        "torch": version_of("torch"),
        "numpy": version_of("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def how_to_install(package: str) -> str:
    """The command that installs a package: mplab's smallest extra that brings it, if one does.

    Examples:
        >>> how_to_install("somebody_else")
        'pip install somebody_else'
    """
    extras = [extra for extra, packages in _extras().items() if package in packages]
    least = min(extras, key=lambda extra: len(_extras()[extra]), default=None)
    return f"pip install 'mplab[{least}]'" if least else f"pip install {package}"


def _extras() -> dict[str, set[str]]:
    """The packages that each extra brings; none where mplab was not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("mplab") or []
    except PackageNotFoundError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        if extra := re.search(r"extra\s*==\s*[\"'](\w+)", line):
            name = re.split(r"[^\w.-]", line)[0].replace("-", "_")
            found.setdefault(extra[1], set()).add(name)
    return found


def lacks(package: str) -> str:
    """In words, that a package is not installed, and what to do."""
    return f"needs {package}, which is not installed. Install it: {how_to_install(package)}"


def needs(room: str, *packages: str) -> None:
    """Refuse to go on where a package is not installed.

    Args:
        room: the module that is about to be imported.
        packages: that it imports.

    Raises:
        ModuleNotFoundError: one of them is not installed; says in one line what to do.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"{room} {lacks(package)}", name=package)
