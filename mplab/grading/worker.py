"""Grade one submission in the sandbox and return its notebooks, in a worker of any executor.

A worker reads the course and writes nothing: the process that gave it the work owns the gradebook.
"""

from __future__ import annotations

import copy
import logging
import multiprocessing.util
import signal
import threading
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from nbformat import NotebookNode

from mplab.grading.execute import (
    close_sandboxes,
    graded_name,
    refused_outcomes,
    run_notebook,
    warm_sandbox,
    write_outcomes,
)
from mplab.grading.exercises import seed_for
from mplab.grading.folder import Course
from mplab.grading.isolation import die_with_parent
from mplab.grading.journal import digest
from mplab.grading.sandbox import Limits
from mplab.grading.submissions import (
    RejectedSubmission,
    add_note,
    escape_html_in_markdown,
    read_submission,
)

_ONE = threading.Lock()
"""A process has one sandbox, so its threads take turns."""


class Job(NamedTuple):
    """The settings that all submissions of one command share; `run` names the command."""

    root: str
    assignment: str
    trusted: bool
    run: str
    account: bool = False


class GradedNotebooks(NamedTuple):
    """A submission that has run: its notebooks with points in their checks."""

    student: str
    digest: str
    notebooks: dict[str, NotebookNode]
    remark: str
    seconds: float


def start_worker() -> None:
    """Prepare a process of a local pool: it ends with its parent, and its sandbox with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    die_with_parent()
    multiprocessing.util.Finalize(None, close_sandboxes, exitpriority=1)


def stop_worker() -> None:
    """End the sandbox of an idle worker."""
    if _ONE.acquire(blocking=False):
        try:
            close_sandboxes()
            _load_job.cache_clear()
        finally:
            _ONE.release()


def grade_submission(job: Job, student: str, pause: float = 0.0) -> GradedNotebooks:
    """Grade a submission after a pause.

    Any submission comes back with its points, or with none and the reason. An exception is a
    technical failure, and no fault of the submission.
    """
    time.sleep(pause)
    with _ONE:
        return _load_job(job).grade(student)


@lru_cache(1)
def _load_job(job: Job) -> _Grader:
    """Load what a command's submissions share, for each command anew: a release may change."""
    close_sandboxes()
    return _Grader(job)


class _Grader:
    def __init__(self, job: Job) -> None:
        self._job, self._course = job, Course(Path(job.root))
        self._skeletons = self._course.skeletons(job.assignment)
        self._limits = Limits(**self._course.config().Limits)

    def grade(self, student: str) -> GradedNotebooks:
        start = time.perf_counter()
        assignment = self._job.assignment
        found = digest(self._course, assignment, student)
        refused = ""
        try:
            folder = self._course.root / "submitted" / student / assignment
            notebooks, remarks = read_submission(folder, self._skeletons)
            missing = sorted(self._skeletons.keys() - notebooks.keys())
            remarks += [f"{name}.ipynb is missing." for name in missing]
            note = f"**Note:** {' '.join(remarks)}" if remarks else ""
        except RejectedSubmission as reason:
            # What `collect` could not take, or else what is wrong with what it took.
            received = self._course.read("received", assignment, student)
            refused = received.get("reason") or str(reason)
            notebooks = copy.deepcopy(self._skeletons)
            remarks = [f"not graded: {refused}"]
            note = f"**Not graded:** {refused}."
        if note:
            for notebook in notebooks.values():
                add_note(notebook, note)
        remarks += [
            self._run(book, student, refused) for _, book in sorted(notebooks.items())
        ]
        seconds = time.perf_counter() - start
        return GradedNotebooks(
            student, found, notebooks, " ".join(filter(None, remarks)), seconds
        )

    def _run(self, notebook: NotebookNode, student: str, refused: str) -> str:
        """Run a rebuilt notebook in the sandbox, and write outputs and points into it.

        Args:
            notebook: rebuilt from a submission, or from the release if the submission was refused.
            student: whose it is.
            refused: why it was refused, so that nothing is run; empty if it was not.

        Returns:
            A remark for the teacher; empty if there is nothing to say.

        Raises:
            NoSandbox: there is no sandbox, or it ended through no fault of the submission.
        """
        for cell in notebook.cells:
            if cell.cell_type == "raw":  # copied into pages as it stands
                cell.cell_type = "markdown"
            if cell.cell_type == "markdown":
                cell.source = escape_html_in_markdown(cell.source)
        job, course = self._job, self._course
        exercises = course.assignment(job.assignment)
        if not refused:
            seed = partial(seed_for, course.key(), job.assignment, student)
            sandbox = warm_sandbox(
                exercises.warm,
                trusted=job.trusted,
                account=job.account,
                limits=self._limits,
            )
            files = course.files(job.assignment)
            return run_notebook(
                notebook,
                lambda: sandbox.session(files),
                exercises.graded,
                seed,
                seconds=self._limits.total_seconds,
            ).remark
        for cell in notebook.cells:
            if name := graded_name(cell):
                reason = f"Not graded: {refused}."
                write_outcomes(cell, refused_outcomes(exercises.graded[name], reason))
        return ""
