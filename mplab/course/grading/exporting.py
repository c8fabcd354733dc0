"""Export grades: as CSV for people, or into the file of Moodle or Canvas."""

import html
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from mplab.common.files import replace_file
from mplab.course.grading.dates import lateness_in_words
from mplab.course.grading.folder import Course
from mplab.course.grading.gradebook import points_so_far, read_parts, renew_penalties
from mplab.course.grading.journal import handed_in, team_owners
from mplab.course.grading.platforms import People
from mplab.course.grading.tables import (
    CourseTable,
    Student,
    fill_in,
    read_table,
    write_table,
)
from mplab.course.grading.worksheets import participant_number

BY_HAND = "to be graded by hand"
"""The remark on a score that still lacks points given by hand."""

NOTHING = "nothing submitted"
"""The remark if nothing was handed in."""


class Grade(NamedTuple):
    """A student's points in an assignment; None where nothing was submitted or graded.

    If a person still has to grade, the score is the sum so far. The owner is the one who handed in:
    the student, or another member of the team. The parts are those of rubrics.
    """

    student: Student
    assignment: str
    score: float | None
    max_score: float
    remark: str
    by_hand: bool = False
    owner: str = ""
    parts: str = ""

    @property
    def refused(self) -> bool:
        """Whether the submission has no points because it could not be graded."""
        return self.remark.startswith("not graded: ")

    @property
    def final(self) -> float | None:
        """The score, if a platform may take it: None while a person still has to grade."""
        return None if self.by_hand else self.score


def grades(course: Course, assignments: list[str]) -> list[Grade]:
    """Return the grades of every student, including those who submitted nothing.

    Raises:
        ValueError: an assignment is not in the gradebook.
    """
    found = []
    with course.gradebook() as gradebook:
        roster = {student.id: student for student in course.roster()}
        for other in gradebook.students:
            names = (other.first_name or "", other.last_name or "", other.email or "")
            roster.setdefault(other.id, Student(other.id, *names))
        known = {assignment.name: assignment for assignment in gradebook.assignments}
        for name in assignments or sorted(known):
            if name not in known:
                raise ValueError(
                    f"{name} is not in the gradebook. Release it first: mplab grade release {name}."
                )
            renew_penalties(course, gradebook, name)
            owners = team_owners(course, name)
            for student in roster.values():
                owner = owners.get(student.id, student.id)
                found.append(_grade(course, gradebook, known[name], student, owner))
    return found


def _grade(
    course: Course, gradebook: Any, assignment: Any, student: Student, owner: str
) -> Grade:
    points = float(assignment.max_score)
    record = course.read("journal", assignment.name, owner)
    remarks = [*filter(None, [record.get("remark", "").rstrip(".")])]
    score = None
    by_hand = False
    parts = ""
    if "digest" in record:  # the gradebook holds this submission's points
        submission = gradebook.find_submission(assignment.name, owner)
        if submission.total_seconds_late > 0:
            late = timedelta(seconds=submission.total_seconds_late)
            remarks.append(f"{lateness_in_words(late)} late")
        by_hand = bool(submission.needs_manual_grade)
        if by_hand:
            remarks.append(BY_HAND)
        penalty = float(submission.late_submission_penalty or 0)
        score = sum(map(points_so_far, submission.notebooks))
        score = max(0.0, score - penalty)
        parts = _parts(submission)
    elif not remarks:
        there = handed_in(course, assignment.name, owner)
        remarks.append("not graded yet" if there else NOTHING)
    if owner != student.id:
        remarks.append(f"handed in by {owner}")
    return Grade(
        student,
        assignment.name,
        score,
        points,
        remark="; ".join(remarks),
        by_hand=by_hand,
        owner=owner,
        parts=parts,
    )


def _parts(submission: Any) -> str:
    """Write the points that a person gave for rubric parts, unless the answer waits again."""
    texts = []
    for row in submission.notebooks:
        waiting = {grade.name for grade in row.grades if grade.needs_manual_grade}
        for comment in row.comments:
            if comment.name not in waiting:
                parts, _ = read_parts(comment.manual_comment or "")
                texts += [f"{comment.name}: {name}: {n}" for name, n in parts.items()]
    return "; ".join(texts)


def write_grades(found: Sequence[Grade], path: Path) -> None:
    """Write grades as CSV, a line for each."""
    fields = ("score", "max_score", "remark", "parts")
    rows: list[Sequence[Any]] = [["assignment", *Student._fields[:4], *fields]]
    for grade in found:
        cells = [getattr(grade, field) for field in fields]
        rows.append([grade.assignment, *grade.student[:4], *cells])
    write_table(path, rows)


def fill_in_grades(
    course: Course, of_class: Sequence[Grade], worksheet: Path, *, column: str = ""
) -> tuple[Path, list[Grade], list[Grade]]:
    """Write the grades of one assignment into a copy of the platform's own file.

    Only the cells of final grades change, and on Moodle empty cells for comments.

    Args:
        course: the course, in which `grades-moodle.csv` or `grades-canvas.csv` is written.
        of_class: the grades.
        worksheet: Moodle's grading worksheet, or Canvas's gradebook.
        column: the head of the column in Canvas's gradebook, with or without its number; the
            assignment's name if not given.

    Returns:
        The copy, the grades in it, and the final grades of people who are not in the file.

    Raises:
        ValueError: the file is neither, or its maximum is not the assignment's.
    """
    table = read_table(worksheet)
    assignment = of_class[0].assignment
    place = _grade_column(table, worksheet, column or assignment)
    found = {grade.student.id: grade for grade in of_class}
    known = People([grade.student for grade in of_class], {})
    numbers = course.read("platform", assignment, "list").get("numbers", {})
    people = {number: who for who, number in numbers.items()}
    comments = table.column("comments")
    maximum = table.column("maximum")
    points = of_class[0].max_score
    sign = "."
    cells: dict[tuple[int, int], str] = {}
    written = []
    seen = set()
    whose = known.students(table)
    for index, (number, line) in enumerate(table.lines):
        name = line.get("student", line.get("lastname", "")).strip()
        head = table.columns[place] if name == "Points Possible" else maximum
        if most := line.get(head, "").strip():
            sign = "," if "," in most else "."
            if not _is_number(most, points):  # it would take points for others
                raise ValueError(
                    f"{worksheet}, line {number}: the maximum must be that of {assignment}, "
                    f"{points:g}; got {most}. Set it on the platform, and download the file again."
                )
        listed = participant_number(table.cell(line, "identifier"))
        who = whose[index] or people.get(listed)
        if listed and numbers.get(who, listed) != listed:
            raise ValueError(
                f"{worksheet}, line {number}: {who} has number {numbers[who]} in {assignment}; got "
                f"{listed}: this is the worksheet of another assignment."
            )
        grade = found.get(who or "")
        seen.add(who)
        excused = line[table.columns[place]].strip() in ("EX", "N/A")  # on Canvas
        if grade is None or grade.final is None or excused:
            continue
        cells[index, place] = f"{grade.final:g}".replace(".", sign)
        if comments and grade.remark and not line[comments].strip():
            where = table.columns.index(comments)
            cells[index, where] = html.escape(grade.remark)
        written.append(grade)
    path = course.root / f"grades-{'moodle' if table.is_worksheet else 'canvas'}.csv"
    replace_file(path, fill_in(worksheet, cells))
    others = [grade for who, grade in found.items() if who not in seen]
    return path, written, [grade for grade in others if grade.final is not None]


def _is_number(text: str, number: float) -> bool:
    """Whether a platform's text is a number, of which it shows two decimals."""
    try:
        return abs(float(text.replace(",", ".")) - number) < 0.01
    except ValueError:
        return False


def _grade_column(table: CourseTable, into: Path, wanted: str) -> int:
    """Find the column of the grades: Moodle's, or that of the assignment in Canvas's gradebook."""
    if table.is_worksheet:
        return table.columns.index(table.column("grade"))
    possible = [head for head in table.heads if re.search(r"\(\d+\)\s*$", head)]
    for shape in ("", r"\s*\(\d+\)\s*$"):  # the whole head, then its title
        shown = [re.sub(shape, "", head).strip().casefold() for head in possible]
        if shown.count(wanted.strip().casefold()) == 1:
            head = possible[shown.index(wanted.strip().casefold())]
            return table.heads.index(head)
    raise ValueError(
        "--into must be Moodle's grading worksheet, or Canvas's gradebook with one column "
        f"{wanted}; got {into}, whose assignments are {', '.join(possible) or 'none'}. Name the "
        "column with --column."
    )
