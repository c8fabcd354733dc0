"""One notebook from its first cell to its last, and the points that its answers earn."""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from mplab.grading._exercises import Graded, Outcome, grade_exercise
from mplab.grading.sandbox import Died, Session

_OUTCOME = re.compile(r"^[✔✘] (.*): ([\d.e+-]+) of ([\d.e+-]+)$(?:\n    (.*))?", re.MULTILINE)
"""An outcome as a grade cell shows it."""

_TEXT = 20_000  # characters of one output in the feedback


class Report(NamedTuple):
    """What became of each exercise, and what the teacher should know of the run, if anything."""

    outcomes: dict[str, list[Outcome]]
    remark: str


def run_notebook(
    notebook: NotebookNode,
    session: Session,
    graded: Mapping[str, Graded],
    seed: Callable[[str, str], int],
) -> Report:
    """Run the cells in order; at each grade cell, ask for values and write the points.

    Args:
        notebook: rebuilt from a submission; outputs are written into it.
        session: where its cells run.
        graded: the exercises by the id of their grade cell.
        seed: the seed for an exercise and a part.

    Returns:
        The outcomes. A kernel that dies ends the run; what was earned before stays.
    """
    outcomes: dict[str, list[Outcome]] = {}
    ended = ""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        name = graded_name(cell)
        try:
            if name is None:
                if not ended:
                    cell.outputs = _outputs(session, cell.source)
                continue
            if not ended:
                outcomes[name] = grade_exercise(graded[name], session, partial(seed, name))
        except Died as death:
            where = f"in the check of {name}" if name else f"in cell {number}"
            ended = f"The kernel ended {where}: {death}."
            cell.outputs = [] if name else [nbformat.v4.new_output("stream", text=ended + "\n")]
        if name is not None:
            outcomes.setdefault(name, refused_outcomes(graded[name], ended))
            write_outcomes(cell, outcomes[name])
    slow = f"Stopped {session.interrupts}× for running too long." * (session.interrupts > 0)
    return Report(outcomes, f"{slow} {ended}".strip())


def _outputs(session: Session, source: str) -> list[NotebookNode]:
    """What a cell shows when it is run, and whether it was stopped."""
    before = session.interrupts
    outputs = [_output(o) for o in session.run(source).outputs]
    if session.interrupts > before:
        outputs.append(nbformat.v4.new_output("stream", text="Stopped: it ran too long.\n"))
    return outputs


def graded_name(cell: NotebookNode) -> str | None:
    """The id of a cell whose points come from its exercise; None for any other cell."""
    mark = cell.metadata.get("nbgrader", {})
    if cell.cell_type == "code" and mark.get("grade") and not mark.get("solution"):
        return str(mark["grade_id"])
    return None


def refused_outcomes(graded: Graded, reason: str) -> list[Outcome]:
    """No points, and why."""
    return [Outcome(part.name, part.points, 0.0, reason) for part in graded.parts]


def write_outcomes(cell: NotebookNode, outcomes: list[Outcome]) -> None:
    """Write the points where nbgrader looks for them, and what they are for where people look.

    nbgrader takes the first result that a grade cell shows as its points, and an error or
    anything on stderr as none.
    """
    lines = []
    for part in outcomes:
        mark = "✔" if part.earned == part.points else "✘"
        text = f"{mark} {part.part}: {part.earned:g} of {part.points:g}"
        lines.append(f"{text}\n    {one_line(part.message)}" if part.message else text)
    earned = sum(part.earned for part in outcomes)
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="\n".join(lines) + "\n"),
        nbformat.v4.new_output("execute_result", {"text/plain": repr(float(earned))}),
    ]


def read_outcomes(cell: NotebookNode) -> list[Outcome]:
    """The outcomes that `write_outcomes` wrote into a cell; none in one that it did not write."""
    text = cell.outputs[0].get("text", "") if cell.get("outputs") else ""
    return [
        Outcome(part, float(points), float(earned), message or "")
        for part, earned, points, message in _OUTCOME.findall(text)
    ]


def one_line(message: str) -> str:
    """A message that looks like nothing but a message, whatever a student's exception says.

    It has no second line, nothing that moves a cursor or turns the direction of reading, and no
    sign like those in front of the points.
    """
    plain = (c if c.isprintable() else " " for c in message)
    return " ".join("".join("?" if unicodedata.category(c) == "So" else c for c in plain).split())


def _output(raw: Mapping[str, Any]) -> NotebookNode:
    """A student's output as one of the few kinds that feedback shows."""
    text = {key: value[:_TEXT] for key, value in raw.items() if isinstance(value, str)}
    if "image" in raw and _is_png(raw["image"]):
        data = {"image/png": raw["image"], "text/plain": text.get("text", "")}
        return nbformat.v4.new_output("display_data", data)
    if "error" in text:
        return nbformat.v4.new_output(
            "error",
            ename=text["error"],
            evalue=text.get("message", ""),
            traceback=text.get("trace", "").split("\n"),
        )
    if "shown" in text:
        return nbformat.v4.new_output("display_data", {"text/plain": text["shown"]})
    name = "stderr" if raw.get("stream") == "stderr" else "stdout"
    return nbformat.v4.new_output("stream", name=name, text=text.get("text", ""))


def _is_png(image: Any) -> bool:
    try:
        content = base64.b64decode(image, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return False
    return content.startswith(b"\x89PNG\r\n\x1a\n")
