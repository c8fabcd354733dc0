"""Find the course that comes with the package, and write files whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from mplab.numbers.installation import PACKAGE


def course_folder(name: Literal["lessons", "data"]) -> Path:
    """Return the folder of the lessons or of the data that belong to this package.

    Raises:
        ValueError: there is no such folder.

    Examples:
        >>> course_folder("data").joinpath("digits.npy").exists()
        True
    """
    # Installed, they lie inside the package; first, since any package may leave a folder "data"
    # beside ours. In a checkout they lie at the top.
    for folder in (PACKAGE / "_course" / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise ValueError(
        f"course_folder: {name} must lie in {PACKAGE / '_course'} or {PACKAGE.parent}; got neither."
        " Install mplab again."
    )


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file whole or not at all, also if the process is killed meanwhile.

    The folder is made if it is not there. Two processes that write the same file do not disturb
    each other: it ends as one of them wrote it.

    Raises:
        OSError: the file cannot be written; what was there is as it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
