"""The journal of grading: which submissions there are, and which grades are up to date."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from mplab.course.files import replace_file
from mplab.grading.folder import Course, is_student_id
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
    try:
        text = journal_path(course, assignment, student).read_text(encoding="utf-8")
        record = json.loads(text)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_journal(course: Course, assignment: str, student: str, record: dict[str, Any]) -> None:
    """Record the result of grading a submission."""
    replace_file(journal_path(course, assignment, student), json.dumps(record).encode())


def is_graded(course: Course, assignment: str, student: str) -> bool:
    """Whether the gradebook holds the grade of exactly this submission."""
    record = read_journal(course, assignment, student)
    graded = course.root / "autograded" / student / assignment
    return graded.is_dir() and record.get("digest") == digest(course, assignment, student)


def digest(course: Course, assignment: str, student: str) -> str:
    """Hash what a grade depends on: submission, its time, release, exercises, and the key."""
    found = hashlib.sha256(course.key())
    more = course.extensions(assignment).get(student)
    late = bool(read_received(course.root, assignment, student).get("late"))
    if more is not None or late:
        found.update(repr((more, late)).encode())
    folder = course.root / "submitted" / student / assignment
    release = course.root / "release" / assignment
    own = [course.root / "checks" / assignment / "exercises.py", *sorted(release.glob("*"))]
    for path in [*own, *_entries(folder)]:
        status = path.lstat()
        facts = f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0"
        found.update(facts.encode("utf-8", "replace"))
    return found.hexdigest()


def _entries(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        found += [Path(place, name) for name in sorted(names)]
        if len(found) > _ENTRIES:
            break
    return found[:_ENTRIES]
