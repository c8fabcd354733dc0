"""Find folders of the course and marks in a lesson's text, and write files atomically."""

import os
import time
from pathlib import Path
from typing import Literal

from mplab.common.installation import PACKAGE

PREDICTION = r"\*\*Predict(?:[.:]\*\*|\*\* )"
"""How a lesson's prediction begins; "At each **Predict**, write" does not count."""

PICTURE = r"!\[(.*?)\]\((l\d\d/.*?\.png)\)\n*"
"""A figure in the text of a lesson, for readers of a lesson that has not run."""


def course_folder(name: Literal["lessons", "data"]) -> Path:
    """Return the folder of the lessons or of the data that belong to this package.

    Raises:
        FileNotFoundError: the folder does not exist.

    Examples:
        >>> course_folder("data").joinpath("digits.npy").exists()
        True
    """
    # In an installation the folders are inside the package: look there first, because any package
    # may put a folder "data" beside ours. In a checkout they are at the top.
    for folder in (PACKAGE / "_course" / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"course_folder: {name} must lie in {PACKAGE / '_course'} or {PACKAGE.parent}; got neither."
        " Install mplab again."
    )


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically: completely or not at all, even if the process is killed.

    A missing folder is made. If two processes write the same file, it has the content of one of
    them.

    Raises:
        OSError: the file cannot be written; an old file is unchanged.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _rename(partial, target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(target)  # a full disk names none
        raise


def _rename(partial: Path, target: Path) -> None:
    """Put a file in the place of another, for which Windows waits until nobody has that open."""
    for _ in range(20):  # a second: a scanner or an indexer is done by then
        try:
            partial.replace(target)
            return
        except PermissionError:
            time.sleep(0.05)
    partial.replace(target)
