"""Which submissions there are, whose counts for a team, and which grades are up to date."""

import hashlib
from collections.abc import Sequence

from mplab.course.grading.folder import Course
from mplab.course.grading.submissions import (
    NOTEBOOK_BYTES,
    RejectedSubmission,
    notebooks_in,
    read_regular,
)
from mplab.course.grading.tables import is_student_id


def team_owners(course: Course, assignment: str) -> dict[str, str]:
    """Find whose submission counts for each member of a team that handed in.

    The newest counts, by the times that `collect` recorded; if times are equal or missing, the
    submission of the member who stands first in the team.
    """
    found: dict[str, str] = {}
    for members in course.teams(assignment).values():
        times = {}
        for member in members:
            if handed_in(course, assignment, member):
                received = course.read("received", assignment, member)
                times[member] = received.get("time", "")
        if times:  # `max` takes the first of equal ones
            newest = max(times, key=lambda member: times[member])
            found |= dict.fromkeys(members, newest)
    return found


def handed_in(course: Course, assignment: str, student: str) -> bool:
    """Whether a submission of a student is there."""
    return (course.root / "submitted" / student / assignment).is_dir()


def superseded(course: Course, assignment: str) -> dict[str, str]:
    """Find members who handed in too, and whose submission counts instead of theirs."""
    return {
        member: owner
        for member, owner in team_owners(course, assignment).items()
        if member != owner and handed_in(course, assignment, member)
    }


def select_students(
    course: Course, assignment: str, students: Sequence[str], present: list[str]
) -> list[str]:
    """Select from `present` the students named, each for its whole team; all if none is named.

    Raises:
        ValueError: an id names nobody who is present.
    """
    owners = team_owners(course, assignment)
    wanted = {owners.get(name, name) for name in students}
    if missing := sorted(wanted - set(present)):
        wrong = ", ".join(missing)
        raise ValueError(
            f"--student must be an id with a submission (for a page, a graded one); got {wrong}."
        )
    return [name for name in present if not wanted or name in wanted]


def submitted_students(course: Course, assignment: str) -> tuple[list[str], list[str]]:
    """List the students with a submission, and the folders that belong to no student.

    A folder's name must match an id of the roster exactly; without a roster, any id of
    plain letters. One submission counts for a team.
    """
    known = {student.id for student in course.roster()}
    folders = sorted((course.root / "submitted").glob(f"*/{assignment}"))
    names = [folder.parent.name for folder in folders]
    others = superseded(course, assignment)
    students = []
    strangers = []
    for name in names:
        if not is_student_id(name) or (known and name not in known):
            strangers.append(name)
        elif name not in others:
            students.append(name)
    return students, strangers


def is_graded(course: Course, assignment: str, student: str) -> bool:
    """Whether the gradebook holds the grade of exactly this submission."""
    record = course.read("journal", assignment, student)
    graded = course.root / "autograded" / student / assignment
    return graded.is_dir() and record.get("digest") == digest(
        course, assignment, student
    )


def digest(course: Course, assignment: str, student: str) -> str:
    """Hash what a grade depends on: submission, its time, release, exercises, and the key."""
    found = hashlib.sha256(course.key())
    received = course.read("received", assignment, student)
    found.update(repr((received.get("late"), received.get("time"))).encode())
    paths = [course.root / "checks" / assignment / "exercises.py"]
    released = (course.root / "release" / assignment).rglob("*")
    paths += sorted(path for path in released if path.is_file())
    paths += notebooks_in(course.root / "submitted" / student / assignment)
    for path in paths:
        try:  # the content, because times change when the same files are brought in again
            content = hashlib.sha256(read_regular(path, NOTEBOOK_BYTES)).digest()
        except RejectedSubmission as reason:
            content = str(reason).encode()
        found.update(path.name.encode("utf-8", "replace") + b"\0" + content)
    return found.hexdigest()
