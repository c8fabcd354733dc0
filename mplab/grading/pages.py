"""Write the feedback pages of a class, in parallel."""

import multiprocessing
import re
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
from mplab.grading.submissions import marked

PLATFORM = re.compile(r".+?_\d+_assignsubmission_file_|[^_]+?(_LATE)?_\d+_\d+_")
"""The prefix that Moodle or Canvas puts before the student's own file name."""


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


def write_zip(
    course: Course, assignment: str, students: Sequence[str]
) -> tuple[Path, int]:
    """Zip feedback pages under the names that `collect` saw, for upload to Moodle or Canvas.

    Returns:
        The zip, and the number of students in it: only those from a platform's download.
    """
    feedback = course.root / "feedback"
    path = feedback / f"{assignment}.zip"
    count = 0
    feedback.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student in students:
            label = course.read("received", assignment, student).get("label", "")
            prefix = PLATFORM.match(label)
            if prefix is None:
                continue
            count += 1
            folder = "/" if prefix[0] == label else ""  # one of Moodle's
            for page in (feedback / student / assignment).glob("*.html"):
                archive.write(page, f"{prefix[0]}{folder}{page.name}")
    if not count:
        path.unlink()
    return path, count


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
