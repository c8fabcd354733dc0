"""The journal of grading: which submissions there are, and which grades are up to date."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from mplab.course.files import replace_file
from mplab.grading.folder import Course, is_student_id, read_record
from mplab.grading.submissions import NOTEBOOK_BYTES, Refused, read_regular
from mplab.grading.teams import superseded
from mplab.grading.times import read_received

_ENTRIES = 2000
"""The most files of a submission that enter its digest; one with more is refused anyway."""


def submitted_students(course: Course, assignment: str) -> tuple[list[str], list[str]]:
    """List the students with a submission, and the folders that belong to no student.

    A folder's name must be an id of the roster, letter by letter; without a roster, any id of
    plain letters. One submission counts for a team.
    """
    known = {student.id for student in course.roster()}
    folders = sorted((course.root / "submitted").glob(f"*/{assignment}"))
    names = [folder.parent.name for folder in folders]
    usable = [name for name in names if is_student_id(name) and (not known or name in known)]
    others = superseded(course, assignment)
    return [n for n in usable if n not in others], [n for n in names if n not in usable]


def journal_path(course: Course, assignment: str, student: str) -> Path:
    """Return the path of a submission's journal."""
    return course.root / ".mplab" / "journal" / assignment / f"{student}.json"


def read_journal(course: Course, assignment: str, student: str) -> dict[str, Any]:
    """Read what was recorded about a submission; empty if it has not been graded.

    After a technical failure there is a remark, and no score.
    """
    return read_record(journal_path(course, assignment, student))


def write_journal(course: Course, assignment: str, student: str, record: dict[str, Any]) -> None:
    """Record the result of grading a submission."""
    replace_file(journal_path(course, assignment, student), json.dumps(record).encode())


def answers_path(course: Course, assignment: str, student: str) -> Path:
    """Return the file with the digests of the answers that the points in the gradebook are for."""
    return course.root / ".mplab" / "answers" / assignment / f"{student}.json"


def is_graded(course: Course, assignment: str, student: str) -> bool:
    """Whether the gradebook holds the grade of exactly this submission."""
    record = read_journal(course, assignment, student)
    graded = course.root / "autograded" / student / assignment
    return graded.is_dir() and record.get("digest") == digest(course, assignment, student)


def digest(course: Course, assignment: str, student: str) -> str:
    """Hash what a grade depends on: submission, its time, release, exercises, and the key."""
    found = hashlib.sha256(course.key())
    more = course.extensions(assignment).get(student)
    received = read_received(course.root, assignment, student)
    found.update(repr((more, received.get("late"), received.get("time"))).encode())
    folder = course.root / "submitted" / student / assignment
    release = course.root / "release" / assignment
    own = [course.root / "checks" / assignment / "exercises.py", *sorted(release.glob("*"))]
    for path in [*own, *_entries(folder)]:
        try:  # the content, because times change when the same files are brought in again
            content = hashlib.sha256(read_regular(path, NOTEBOOK_BYTES)).digest()
        except Refused as reason:
            content = str(reason).encode()
        found.update(path.name.encode("utf-8", "replace") + b"\0" + content)
    return found.hexdigest()


def _entries(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        found += [Path(place, name) for name in sorted(names)]
        if len(found) > _ENTRIES:
            break
    return found[:_ENTRIES]
