"""What a submission keeps when one of its exercises is graded anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from mplab.grading._notebooks import read_files
from mplab.grading._running import graded_name


class Kept(NamedTuple):
    """The outputs of the checks that keep their points, and the answers that they belong to."""

    outputs: dict[str, list[Any]]
    answers: Any


def read_kept(graded: Path, source: Path, exercise: str) -> Kept:
    """What a graded submission keeps; nothing without `exercise`, or where nothing is graded."""
    if not exercise or not graded.is_dir():
        return Kept({}, None)
    cells = [cell for notebook in _notebooks(graded) for cell in notebook.cells]
    names = ((graded_name(cell), cell) for cell in cells)
    outputs = {name: cell.outputs for name, cell in names if name and name != exercise}
    return Kept(outputs, read_answers(graded, source))


def read_answers(folder: Path, source: Path) -> Any:
    """The cells and files of a submission, in a folder that the grader wrote.

    Files of the teacher's, in `source`, stand in the place of a student's and are none.
    """
    cells = [cell for notebook in _notebooks(folder) for cell in notebook.cells]
    code = [cell for cell in cells if cell.cell_type == "code"]
    own = [cell.source for cell in code if not cell.metadata.get("nbgrader", {}).get("locked")]
    files = read_files(folder)
    return own, {name: files[name] for name in files if not (source / name).exists()}


def _notebooks(folder: Path) -> list[Any]:
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ipynb"))]
    return [nbformat.v4.reads(text) for text in texts]
