"""Grade every submission of an assignment: in parallel and resumable.

Any `concurrent.futures` executor runs the submissions; this process alone writes the gradebook.
One failure affects no other submission.
"""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import NamedTuple

import numpy as np
from sqlalchemy.exc import OperationalError

from mplab.common.words import plural
from mplab.course.grading.bubblewrap import read_libraries
from mplab.course.grading.execute import (
    GradedNotebooks,
    Job,
    close_sandboxes,
    grade_submission,
    start_worker,
    stop_worker,
    technical_reason,
)
from mplab.course.grading.folder import Course
from mplab.course.grading.gradebook import renew_penalties, save
from mplab.course.grading.journal import (
    is_graded,
    select_students,
    submitted_students,
    superseded,
)
from mplab.course.grading.sandbox import require_sandbox
from mplab.numbers.formats import FP16
from mplab.numbers.rounding import round_to

_PAUSES = (0.0, 1.0, 5.0)
"""Seconds to wait before each attempt; if the last one fails, the submission stays ungraded."""

_LOG_SECONDS = 15.0

_CONNECT_SECONDS = 10


class SubmissionResult(NamedTuple):
    """The result of one submission; from `digest` on, what the journal holds."""

    student: str
    done_before: bool
    digest: str = ""
    score: float | None = None
    max_score: float | None = None
    remark: str = "not graded yet: the grader was killed, or its disk full"
    seconds: float = 0.0


_Workers = tuple[Executor, Callable[[], int]]
"""An executor, and how many submissions it holds at once: enough that no worker is idle."""


def autograde(
    course: Course,
    assignment: str,
    *,
    students: Sequence[str] = (),
    jobs: int = 1,
    dask: str = "",
    force: bool = False,
    trusted: bool = False,
    log: Callable[[str], None] = print,
) -> list[SubmissionResult]:
    """Grade the submissions that are new, or whose grade is out of date.

    After a technical failure, such as a locked gradebook or a killed worker, a submission is tried
    again; if every attempt fails, it stays ungraded until the next call.

    Args:
        course: the course.
        assignment: a released assignment.
        students: ids to grade, each for its whole team; everybody who submitted if empty.
        jobs: worker processes that run submissions; this process writes the gradebook.
        dask: the address of a Dask scheduler whose workers run the submissions instead.
        force: grade again what has been graded. The same answers get the same points.
        trusted: run without a sandbox.
        log: called with each line about the progress.

    Returns:
        One line per submission. Without a score, it could not be graded for a technical reason.

    Raises:
        NoSandbox: there is no sandbox, and the submissions are not trusted.
        ValueError: the gradebook cannot be written, another call is grading in this course, the
            scheduler cannot be reached, or `students` holds an id without a submission.
    """
    if not trusted and not dask:
        require_sandbox()
    course.skeletons(assignment)  # raises if it has not been released
    course.extensions(assignment)  # raises if its table is broken
    with _lock(course):
        present, strangers = submitted_students(course, assignment)
        for name in strangers:
            log(f"{name[:80]!a}: not graded: no student of the roster has this id")
        for name, other in superseded(course, assignment).items():
            log(
                f"{name}: not graded: {other} of the same team handed in later, or stands first"
            )
        chosen = select_students(course, assignment, students, present)
        todo = chosen
        if not force:
            todo = [name for name in chosen if not is_graded(course, assignment, name)]
        job = Job(course, assignment, trusted, uuid.uuid4().hex)
        workers = partial(_cluster, dask) if dask else _processes
        try:
            course.record_students()
            if todo and not (trusted or dask):
                read_libraries()
            _grade_all(workers, jobs, todo, job, log)
        except OperationalError as error:
            raise ValueError(
                f"autograde: the gradebook must be open for writing; got {error.orig}. End what "
                "uses it, and run the same command again."
            ) from error
        try:
            with course.gradebook() as book:
                renew_penalties(course, book, assignment)
        except OperationalError:
            log("what lateness costs is not renewed, because the gradebook is in use")
        return [
            SubmissionResult(
                name, name not in todo, **course.read("journal", assignment, name)
            )
            for name in sorted(chosen)
        ]


@contextmanager
def _lock(course: Course) -> Iterator[None]:
    """Lock a course: one process at a time writes its gradebook; the lock ends with the process."""
    with (course.root / ".mplab" / "lock").open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise ValueError(
                f"autograde: another autograde is running in {course.root}. Wait until it ends: "
                "what it has graded is not graded again."
            ) from error
        yield


# The workers -----------------------------------------------------------------------------
@contextmanager
def _processes(jobs: int) -> Iterator[_Workers]:
    """Start workers on this machine; they end when this process ends, however it does."""
    round_to(np.zeros(1), FP16)  # imports numba once, before the processes fork
    close_sandboxes()
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(
        jobs, multiprocessing.get_context("fork"), start_worker
    ) as pool:
        try:
            yield pool, lambda: 2 * jobs
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # the kernel ends its sandbox with it
            raise


@contextmanager
def _cluster(address: str, _: int) -> Iterator[_Workers]:
    """Use the workers of a Dask scheduler, which see the course folder at the same path."""
    from distributed import Client

    # A lost scheduler is reported below, in one line.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"autograde: dask must be the address of a Dask scheduler; got {address!r} "
            f"({error}). Start one with: dask scheduler."
        ) from error

    def capacity() -> int:
        return 2 * sum(client.nthreads().values()) or 1

    with client:
        try:
            yield client.get_executor(), capacity
            client.run(stop_worker, on_error="ignore")
        except (CancelledError, OSError) as error:
            raise ValueError(
                f"autograde: the scheduler {address} must stay until all is graded; it was lost. "
                "What is done stays; the same command goes on from here."
            ) from error


def _grade_all(
    workers: Callable[[int], AbstractContextManager[_Workers]],
    jobs: int,
    students: Sequence[str],
    job: Job,
    log: Callable[[str], None],
) -> None:
    """Grade the submissions, and record each result as it arrives.

    What fails is tried again after the others, and one at a time: a submission that kills its
    worker harms no other.
    """
    errors: dict[str, Exception] = {}
    for number in range(len(_PAUSES)):
        queue = deque(errors if number else students)
        errors = {}
        while queue:
            with workers(1 if number else jobs) as (executor, capacity):
                room = (lambda: 1) if number else capacity
                errors |= _grade_queue(executor, room, queue, number, job, log)
    for student, error in errors.items():
        _record_failure(job, student, error)


def _grade_queue(
    executor: Executor,
    capacity: Callable[[], int],
    queue: deque[str],
    number: int,
    job: Job,
    log: Callable[[str], None],
) -> dict[str, Exception]:
    """Grade until the queue is empty, or the executor breaks because a worker died.

    Args:
        executor: runs the submissions.
        capacity: how many it holds at once.
        queue: the students that are left.
        number: how often they have been tried.
        job: of all submissions.
        log: called with each line about the progress.

    Returns:
        The students to try again, with what failed.
    """
    failed: dict[str, Exception] = {}
    running: dict[Future[GradedNotebooks], str] = {}
    logged = time.monotonic()
    pause = _PAUSES[number]
    while queue or running:
        try:
            for _ in range(min(len(queue), capacity() - len(running))):
                work = job, queue[0], pause, number > 0
                future = executor.submit(grade_submission, *work)
                running[future] = queue.popleft()
            for future in wait(running, _LOG_SECONDS, FIRST_COMPLETED).done:
                try:
                    _save_result(job, future.result())
                except (BrokenExecutor, CancelledError):
                    raise
                except Exception as error:  # technical: a refusal comes as a result
                    failed[running[future]] = error
                del running[future]
        except BrokenExecutor as error:
            lost = running.values()
            log(f"a worker ended early; graded again: {', '.join(lost)}")
            return failed | dict.fromkeys(lost, error)
        if time.monotonic() - logged > _LOG_SECONDS:
            logged = time.monotonic()
            left = [*running.values(), *queue]
            more = ", …" if len(left) > 5 else ""
            log(f"{plural(len(left), 'submission')} left: {', '.join(left[:5])}{more}")
    return failed


# The gradebook ---------------------------------------------------------------------------
def _save_result(job: Job, work: GradedNotebooks) -> None:
    """Write a graded submission into the gradebook, then the journal.

    A submission that is not in the journal counts as not graded, so that nothing is lost when
    this process is killed in between.
    """
    start = time.perf_counter()
    course = job.course
    assignment = job.assignment
    student = work.student
    course.record("journal", assignment, student).unlink(missing_ok=True)
    score, max_score, late = save(course, assignment, student, work.notebooks)
    remark = work.remark
    if course.read("received", assignment, student).get("late") and not late:
        remark = f"{remark} Canvas says that it was late.".strip()
    seconds = work.seconds + time.perf_counter() - start
    record = {
        "digest": work.digest,
        "score": score,
        "max_score": max_score,
        "remark": remark,
        "seconds": round(seconds, 3),
    }
    course.write("journal", assignment, student, record)


def _record_failure(job: Job, student: str, error: Exception) -> None:
    """Record that a submission could not be graded, for a technical reason."""
    reason = technical_reason(error)
    record = {"remark": f"not graded yet, for a technical reason: {reason}"}
    with suppress(OSError):  # a failure that cannot be recorded counts as not graded
        job.course.write("journal", job.assignment, student, record)
