"""Grade one submission in the sandbox and return its notebooks: the work of any executor.

A worker reads the course and writes nothing: the process that gave it the work owns the gradebook.
"""

from __future__ import annotations

import json
import logging
import multiprocessing.util
import signal
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from mplab.grading.execute import close_lanes, execute
from mplab.grading.folder import Course
from mplab.grading.isolation import die_with_parent
from mplab.grading.journal import digest
from mplab.grading.submissions import Refused, add_note, read_submission, refusal

_ONE = threading.Lock()
"""A process has one sandbox, so its threads take turns."""


class Job(NamedTuple):
    """The settings that all submissions of one command share; `run` names the command."""

    root: str
    assignment: str
    trusted: bool
    run: str
    account: bool = False


class Work(NamedTuple):
    """A submission that has run: its notebooks as JSON with points in their checks."""

    student: str
    digest: str
    notebooks: dict[str, str]
    remark: str
    seconds: float


def start_worker() -> None:
    """Prepare a process of a local pool: it ends with its parent, and its sandbox with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    die_with_parent()
    multiprocessing.util.Finalize(None, close_lanes, exitpriority=1)


def stop_worker() -> None:
    """End the sandbox of an idle worker."""
    if _ONE.acquire(blocking=False):
        try:
            close_lanes()
            _load_job.cache_clear()
        finally:
            _ONE.release()


def grade_submission(job: Job, student: str, pause: float = 0.0) -> Work:
    """Grade a submission after a pause.

    Any submission comes back with its points, or with none and the reason. An exception is a
    technical failure, and no fault of the submission.
    """
    time.sleep(pause)
    with _ONE:
        return _load_job(job).grade(student)


@lru_cache(1)
def _load_job(job: Job) -> _Grader:
    """Load what all submissions of a command need; anew for each command: a release may change."""
    close_lanes()
    return _Grader(job)


class _Grader:
    def __init__(self, job: Job) -> None:
        self._job, self._course = job, Course(Path(job.root))
        self._skeletons = self._course.skeletons(job.assignment)
        self._limits = dict(self._course.config().Limits)

    def grade(self, student: str) -> Work:
        start, assignment = time.perf_counter(), self._job.assignment
        found, refused = digest(self._course, assignment, student), ""
        try:
            folder = self._course.root / "submitted" / student / assignment
            notebooks, remarks = read_submission(folder, self._skeletons)
            missing = sorted(self._skeletons.keys() - notebooks.keys())
            remarks += [f"{name}.ipynb is missing." for name in missing]
            for notebook in notebooks.values() if remarks else ():
                add_note(notebook, f"**Note:** {' '.join(remarks)}")
        except Refused as reason:
            refused = str(reason)
            notebooks = {n: refusal(nb, refused) for n, nb in self._skeletons.items()}
            remarks = [f"not graded: {refused}"]
        for _, notebook in sorted(notebooks.items()):
            remark = execute(
                notebook,
                self._course,
                (assignment, student),
                refused=refused,
                trusted=self._job.trusted,
                account=self._job.account,
                limits=self._limits,
            )
            remarks.append(remark)
        texts = {stem: json.dumps(notebook) for stem, notebook in notebooks.items()}
        seconds = time.perf_counter() - start
        return Work(student, found, texts, " ".join(filter(None, remarks)), seconds)
