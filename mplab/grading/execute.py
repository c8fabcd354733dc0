"""nbgrader's step that runs a notebook, replaced: in the sandbox, and graded outside it.

`nbgrader_config.py` names this class, so that `nbgrader autograde` and formgrader use it too.
"""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool, Dict, Unicode

from mplab.grading._exercises import seed_for
from mplab.grading._notebooks import Refused, defused, read_files
from mplab.grading._running import graded_name, refused_outcomes, run_notebook, write_outcomes
from mplab.grading.folder import Course
from mplab.grading.sandbox import Died, Lane, Limits, NoSandbox, require_sandbox

_LANES: dict[tuple[str, bool], Lane] = {}


def lane_for(warm: str, *, trusted: bool, limits: Limits | None = None) -> Lane:
    """The warm process of this grader for an assignment; kept until the grader ends.

    Raises:
        NoSandbox: there is none, and the submissions are not trusted.
    """
    key = (warm, trusted)
    if key not in _LANES:
        if not trusted:
            require_sandbox()
        _LANES[key] = Lane(warm=warm, trusted=trusted, limits=limits)
    return _LANES[key]


@atexit.register
def close_lanes() -> None:
    """End every warm process of this grader."""
    while _LANES:
        _LANES.popitem()[1].close()


class SandboxedExecute(NbGraderPreprocessor):
    """Run a submission in the sandbox and write its points where nbgrader looks for them."""

    root = Unicode(help="The course folder.").tag(config=True)
    limits = Dict(help="Fields of mplab.grading.sandbox.Limits that differ.").tag(config=True)
    trusted = Bool(False, help="Run without a sandbox: every submission is harmless.").tag(
        config=True
    )
    kept = Dict(help="Outputs of the checks that keep their points, by id.").tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Run and grade one notebook."""
        about = resources["nbgrader"]
        for cell in nb.cells:
            if cell.cell_type == "raw":  # copied into pages as it stands
                cell.cell_type = "markdown"
            if cell.cell_type == "markdown":
                cell.source = defused(cell.source)
                cell.pop("attachments", None)
        course = Course(Path(self.root))
        assignment = course.assignment(about["assignment"])
        refused = nb.metadata.get("mplab", {}).get("refused")
        if refused:
            _refuse(nb, assignment.graded, f"Not graded: {refused}.")
            return nb, resources

        def seed(name: str, part: str) -> int:
            return seed_for(course.key(), about["assignment"], about["student"], name, part)

        lane = lane_for(assignment.warm, trusted=self.trusted, limits=Limits(**self.limits))
        try:
            files = read_files(Path(resources["metadata"]["path"]))
            with lane.session(files) as session:
                remark = run_notebook(nb, session, assignment.graded, seed).remark
            if remark:
                nb.metadata["mplab"] = {"remark": remark}
        except (Died, Refused) as death:
            _refuse(nb, assignment.graded, f"Not graded: {death}.")
        for cell in nb.cells:
            if (name := graded_name(cell)) in self.kept:
                cell.outputs = self.kept[name]
        if lane not in _LANES.values():
            raise NoSandbox("this grader was ended while the submission ran")
        return nb, resources


def _refuse(notebook: NotebookNode, graded: Any, reason: str) -> None:
    for cell in notebook.cells:
        name = graded_name(cell)
        if name is not None:
            write_outcomes(cell, refused_outcomes(graded[name], reason))
