"""Write the feedback pages of a class, in parallel."""

import multiprocessing
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import nbformat

from mplab.course.files import replace_file
from mplab.grading.feedback import NOT_READ, FeedbackExporter
from mplab.grading.folder import Course
from mplab.grading.journal import select_students, submitted_students, team_owners
from mplab.grading.platforms import moodle_prefix, read_label
from mplab.grading.submissions import marked


class Page(NamedTuple):
    """The result of writing one student's pages.

    `waiting` counts the answers that a person still has to read.
    """

    student: str
    written: bool
    remark: str
    waiting: int = 0


def write_feedback(
    course: Course, assignment: str, *, students: Sequence[str] = (), jobs: int = 1
) -> list[Page]:
    """Write the feedback pages of graded submissions.

    Args:
        course: the course.
        assignment: an assignment of it.
        students: ids, each for its whole team; all if empty.
        jobs: number of processes.

    Returns:
        A result for each graded submission; the other members of a team get copies of its pages.
        The remark says why a page could not be written, or why it is plain text. One failure
        affects no other page.

    Raises:
        ValueError: `students` holds an id without a graded submission.
    """
    present = []
    for name in submitted_students(course, assignment)[0]:
        if "digest" in course.read("journal", assignment, name):  # not only tried
            present.append(name)
    chosen = select_students(course, assignment, students, present)
    work = partial(_write, course.root, assignment)
    if jobs < 2:
        pages = list(map(work, chosen))
    else:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            pages = list(pool.map(work, chosen))
    for member, owner in team_owners(course, assignment).items():
        if member != owner and owner in chosen:
            to = course.root / "feedback" / member / assignment
            for page in (course.root / "feedback" / owner / assignment).glob("*.html"):
                replace_file(to / page.name, page.read_bytes())
    return pages


def without_page(course: Course, assignment: str, students: Sequence[str]) -> list[str]:
    """Return the students whose page is missing, or older than their graded notebook."""
    found = []
    for student in students:
        notebooks = (course.root / "autograded" / student / assignment).glob("*.ipynb")
        pages = course.root / "feedback" / student / assignment
        for notebook in notebooks:
            page = pages / f"{notebook.stem}.html"
            if not page.is_file() or page.stat().st_mtime < notebook.stat().st_mtime:
                found.append(student)
                break
    return found


def write_zip(
    course: Course, assignment: str, students: Sequence[str]
) -> tuple[Path, int, list[str]]:
    """Zip feedback pages under the names that `collect` saw, for upload to Moodle or Canvas.

    On Moodle each member of a team gets the page by the number that the worksheet gives them,
    because the number in a team's folder is the team's.

    Returns:
        The zip, the number of students in it, and the ids of those for whom no name of a platform
        is known.
    """
    feedback = course.root / "feedback"
    path = feedback / f"{assignment}.zip"
    feedback.mkdir(exist_ok=True)
    prefixes = _prefixes(course, assignment, students)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student, prefix in prefixes.items():
            for page in (feedback / student / assignment).glob("*.html"):
                archive.write(page, f"{prefix}{page.name}")
    owners = team_owners(course, assignment)
    members = {who for who, owner in owners.items() if owner in students}
    if not prefixes:
        path.unlink()
    return path, len(prefixes), sorted({*students, *members} - {*prefixes})


def _prefixes(
    course: Course, assignment: str, students: Sequence[str]
) -> dict[str, str]:
    """Return what stands before the name of a page in an upload, by student."""
    numbers = course.read("platform", assignment, "list").get("numbers", {})
    names = {s.id: f"{s.first_name} {s.last_name}" for s in course.roster()}
    owners = team_owners(course, assignment)
    found = {}
    for student in [*students, *(m for m, o in owners.items() if o in students)]:
        received = course.read("received", assignment, student)
        label = read_label(received.get("label", ""))
        if label and not (label.platform == "Moodle" and received.get("team")):
            found[student] = label.prefix
        elif student in numbers:
            owner = course.read("received", assignment, owners.get(student, student))
            form = label or read_label(owner.get("label", ""))
            old = form is not None and form.prefix.endswith("file_/")
            name = names.get(student) or student
            found[student] = moodle_prefix(name, numbers[student], old=old)
    return found


def _write(root: Path, assignment: str, student: str) -> Page:
    """Write the pages of one student."""
    course = Course(root)
    remark = ""
    waiting = 0
    try:
        exporter = FeedbackExporter(config=course.config())
        with course.gradebook() as book:
            for row in book.find_submission(assignment, student).notebooks:
                path = root / "autograded" / student / assignment / f"{row.name}.ipynb"
                if not path.is_file():
                    continue
                notebook = nbformat.read(path, as_version=4)
                cells = marked(notebook)
                for grade in row.grades:
                    given = NOT_READ if grade.needs_manual_grade else grade.score
                    cells[grade.name].metadata.nbgrader.update(
                        score=given, points=grade.max_score
                    )
                    waiting += bool(grade.needs_manual_grade)
                for comment in row.comments:
                    mark = cells[comment.name].metadata.nbgrader
                    if mark.get("score") != NOT_READ:  # else it is about an earlier one
                        mark.comment = comment.comment
                about = {
                    "notebook": row.name,
                    "score": row.score,
                    "max_score": row.max_score,
                    "late_penalty": row.late_submission_penalty or 0,
                }
                page, _ = exporter.from_notebook_node(notebook, {"nbgrader": about})
                to = root / "feedback" / student / assignment / f"{row.name}.html"
                replace_file(to, page.encode())
                if exporter.plain and not remark:
                    remark = f"plain text: {exporter.plain}"
    except Exception as error:  # the other pages go on
        return Page(student, False, f"no page: {type(error).__name__}: {error}")
    return Page(student, True, remark, waiting)
