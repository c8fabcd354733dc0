"""Grading by the workers of a Dask cluster, which share the course's folder and its database."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mplab.grading.autograding import Grader

TELL_SECONDS = 15.0

_CONNECT_SECONDS = 10

_ONE = threading.Lock()
"""nbgrader is patched for the process, so a worker grades one submission at a time."""


class Cluster:
    """Workers of a Dask scheduler.

    Args:
        address: of the scheduler.
        root: the course's folder, which the workers see at the same place.
        assignment: a released assignment.
        old: editions of the journal that count as not written.
        trusted: run without a sandbox.
        exercise: the only one whose points change; all if empty.
    """

    def __init__(
        self,
        address: str,
        root: Path,
        assignment: str,
        old: Mapping[str, int],
        trusted: bool,
        exercise: str,
    ) -> None:
        self._address, self._old = address, old
        self._what = (str(root), assignment, trusted, exercise)

    def grade(self, names: list[str], _: int, tell: Callable[[str], None]) -> list[str]:
        """Grade these, and tell now and then how many are done.

        Returns:
            Those at which workers were killed, again and again.

        Raises:
            ValueError: the scheduler is not there, or was lost.
        """
        from distributed import Client

        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # we say it in a line
        try:
            client = Client(self._address, timeout=_CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"autograde: dask must be the address of a Dask scheduler; got {self._address!r} "
                f"({error}). Start one with: dask scheduler."
            ) from error
        with client:
            if not client.nthreads():
                tell("the scheduler has no workers yet; start some: dask worker --nthreads 1")
            return self._gathered(client, names, tell)

    def _gathered(self, client: Any, names: list[str], tell: Callable[[str], None]) -> list[str]:
        from distributed import CancelledError, KilledWorker, as_completed

        run, suspects, told, said = uuid.uuid4().hex, list[str](), time.monotonic(), set[str]()
        futures = {
            client.submit(_grade, *self._what, run, name, self._old.get(name), pure=False): name
            for name in names
        }
        try:
            for number, future in enumerate(as_completed(futures), 1):
                if time.monotonic() - told > TELL_SECONDS:
                    told = time.monotonic()
                    tell(f"{number} of {len(names)} are graded ...")
                error = future.exception()
                if isinstance(error, KilledWorker):
                    suspects.append(futures[future])
                elif error is not None and repr(error) not in said:
                    said.add(repr(error))
                    tell(f"{futures[future]}: a worker says {type(error).__name__}: {error}")
            client.run(_rest, on_error="ignore")
        except (CancelledError, OSError) as error:
            raise ValueError(
                f"autograde: the scheduler {self._address} must stay until all is graded; it was "
                "lost. What is done stays; the same command goes on from here."
            ) from error
        return suspects


def _grade(
    root: str,
    assignment: str,
    trusted: bool,
    exercise: str,
    run: str,
    student: str,
    old: int | None,
) -> None:
    """Grade a submission; called in a worker."""
    with _ONE:
        _grader(root, assignment, trusted, exercise, run).grade_open(student, old)


@lru_cache(1)
def _grader(root: str, assignment: str, trusted: bool, exercise: str, run: str) -> Grader:
    """The grader of this worker for a run, since the release may change between two."""
    from mplab.grading.autograding import Grader
    from mplab.grading.execute import close_lanes
    from mplab.grading.folder import Course

    close_lanes()
    return Grader(Course(Path(root)), assignment, trusted=trusted, exercise=exercise)


def _rest() -> None:
    """End the sandbox of a worker that has nothing to do."""
    from mplab.grading._database import disconnect
    from mplab.grading.execute import close_lanes

    if _ONE.acquire(blocking=False):
        try:
            close_lanes()
            disconnect()
            _grader.cache_clear()
        finally:
            _ONE.release()
