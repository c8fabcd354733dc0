"""How often a submission was tried, and why again: beside the journal, which says what it got."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mplab.course.files import replace_file

_CUT_OFF = "the grader ended early, or is at it"
"""What is known of a try that has not ended."""


class Tries(NamedTuple):
    """How often a submission was tried, why the last try that failed did, and whether one did not.

    A submission that is graded anew is counted anew.
    """

    student: str
    times: int
    reason: str
    graded: bool


def read_tries(root: Path, assignment: str, students: Sequence[str]) -> list[Tries]:
    """Of these students, those whose submission a technical failure has met."""
    found = [_read(root, assignment, student) for student in students]
    return [tries for tries in found if tries.times > tries.graded]


def begin(root: Path, assignment: str, student: str) -> Tries:
    """Count a try that begins; what was known before it."""
    before = _read(root, assignment, student)
    if before.graded:
        before = Tries(student, 0, "", False)
    _write(root, assignment, before._replace(times=before.times + 1, reason=_CUT_OFF))
    return before


def end(root: Path, assignment: str, before: Tries, failure: str = "") -> None:
    """Write down how the try that followed `before` ended; what holds that up costs no grade."""
    times, reason = before.times + 1, failure or before.reason
    _write(root, assignment, Tries(before.student, times, reason, not failure))


def _place(root: Path, assignment: str, student: str) -> Path:
    return root / ".mplab" / "tries" / assignment / f"{student}.json"


def _read(root: Path, assignment: str, student: str) -> Tries:
    try:
        record = json.loads(_place(root, assignment, student).read_text(encoding="utf-8"))
        return Tries(student, *record)
    except (OSError, ValueError, TypeError):
        return Tries(student, 0, "", False)


def _write(root: Path, assignment: str, tries: Tries) -> None:
    place = _place(root, assignment, tries.student)
    with suppress(OSError):
        if tries.graded and tries.times == 1:
            place.unlink(missing_ok=True)
            return
        replace_file(place, json.dumps(tries[1:]).encode())
