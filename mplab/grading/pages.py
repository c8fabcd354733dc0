"""Write the feedback pages of a class, in parallel."""

import multiprocessing
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from mplab.course.files import replace_file
from mplab.grading.feedback import NOT_READ, FeedbackExporter
from mplab.grading.folder import Course
from mplab.grading.journal import select_students, submitted_students, team_owners
from mplab.grading.platforms import moodle_prefix, read_label
from mplab.grading.sanitise import sanitise
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
            for page in (course.root / "feedback" / owner / assignment).glob("*.*"):
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
    """Zip feedback under the names that `collect` saw, for upload to Moodle or Canvas.

    On Moodle each member of a team gets the page by the number that the worksheet gives them,
    because the number in a team's folder is the team's. Canvas shows any file under the name of
    the notebook that was handed in, so there it is a notebook, too.

    Returns:
        The zip, the number of students in it, and the ids of those for whom no name of a platform
        is known.
    """
    feedback = course.root / "feedback"
    path = feedback / f"{assignment}.zip"
    feedback.mkdir(exist_ok=True)
    names = {s.id: f"{s.first_name} {s.last_name}" for s in course.roster()}
    owners = {student: student for student in students}
    for member, owner in team_owners(course, assignment).items():
        if owner in students:
            owners[member] = owner
    others = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for student, owner in owners.items():
            name = names.get(student) or student
            if not (found := _named(course, assignment, student, owner, name)):
                others.append(student)
                continue
            prefix, pattern = found
            for page in (feedback / student / assignment).glob(pattern):
                archive.write(page, f"{prefix}{page.name}")
    count = len(owners) - len(others)
    if not count:
        path.unlink()
    return path, count, sorted(others)


def _named(
    course: Course, assignment: str, student: str, owner: str, name: str
) -> tuple[str, str] | None:
    """Return what stands before the name of a file in an upload, and which files go there."""
    received = course.read("received", assignment, student)
    label = read_label(received.get("label", ""))
    if label and label.platform == "Canvas":
        return label.prefix, "*.ipynb"
    if label and not received.get("team"):
        return label.prefix, "*.html"
    numbers = course.read("platform", assignment, "list").get("numbers", {})
    if student not in numbers:
        return None
    first = course.read("received", assignment, owner)
    old = first.get("label", "").endswith("_file_")
    return moodle_prefix(name, numbers[student], old=old), "*.html"


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
                replace_file(to.with_suffix(".ipynb"), _with_points(notebook, about))
                replace_file(to, page.encode())
                if exporter.plain and not remark:
                    remark = f"plain text: {exporter.plain}"
    except Exception as error:  # the other pages go on
        return Page(student, False, f"no page: {type(error).__name__}: {error}")
    return Page(student, True, remark, waiting)


def _with_points(graded: NotebookNode, about: Mapping[str, Any]) -> bytes:
    """Write a graded notebook for its author, with points and comments below its cells."""
    points = about["score"] - about["late_penalty"]
    found = sanitise(graded, late_outputs=False)
    cells = [_words(f"{points:g} of {about['max_score']:g} points.")]
    for cell in found.cells:
        cells.append(cell)
        mark = cell.metadata.get("nbgrader", {})
        if "score" in mark:
            given = "not read yet" if mark.score == NOT_READ else f"{mark.score:g}"
            cells.append(_words(f"{given} of {mark.points:g} points."))
        if mark.get("comment"):
            cells.append(_words(mark.comment))
    found.cells = cells
    return nbformat.writes(found).encode()


def _words(text: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(f"**Feedback:** {text}")
