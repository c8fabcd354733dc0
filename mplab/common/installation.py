"""The installed version of mplab, its folder, and packages that are missing."""

import platform
import re
from importlib.util import find_spec
from pathlib import Path

VERSION = "0.2.0"

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of mplab."""


def version_of(package: str) -> str:
    """Return the version of a package, or "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # 30 ms, rarely needed

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def environment() -> dict[str, str]:
    """Return the versions and the platform on which bits may depend."""
    return {
        "mplab": VERSION,
        "torch": version_of("torch"),
        "numpy": version_of("numpy"),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def how_to_install(package: str) -> str:
    """Return the command that installs a package: mplab's smallest extra with it, if there is one.

    Examples:
        >>> how_to_install("somebody_else")
        'pip install somebody_else'
        >>> how_to_install("python_dateutil")
        "pip install 'mplab[grade]'"
    """
    extras = [extra for extra, packages in _extras().items() if package in packages]
    least = min(extras, key=lambda extra: len(_extras()[extra]), default=None)
    return f"pip install 'mplab[{least}]'" if least else f"pip install {package}"


def _extras() -> dict[str, set[str]]:
    """Return the packages of each extra; empty if mplab is not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("mplab") or []
    except PackageNotFoundError:
        return {}
    found: dict[str, set[str]] = {}
    for line in lines:
        extra = re.search(r"extra\s*==\s*[\"'](\w+)", line)
        if extra:
            name = re.split(r"[^\w.-]", line)[0].replace("-", "_")
            found.setdefault(extra[1], set()).add(name)
    return found


def missing_message(package: str) -> str:
    """Write the message that a package is not installed and how to install it."""
    return f"needs {package}, which is not installed. Install it: {how_to_install(package)}"


def require_packages(room: str, *packages: str) -> None:
    """Raise if a package is not installed.

    Args:
        room: the module that is about to be imported.
        packages: the packages that it imports.

    Raises:
        ModuleNotFoundError: a package is not installed; the message says how to install it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(
                f"{room} {missing_message(package)}", name=package
            )
