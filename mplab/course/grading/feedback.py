"""Make feedback pages, with nothing of a student's that a browser would run.

A page is typeset in a process of its own with a time limit, because some texts take a Markdown
parser hours. Such a page is shown as plain text.
"""

import io
import json
import multiprocessing.connection
import os
import re
import resource
import signal
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nbformat import NotebookNode, read as read_notebook, v4, writes
from tornado.template import Template

from mplab.common.files import replace_file
from mplab.course.grading.folder import Course
from mplab.course.grading.gradebook import points_so_far, renew_penalties
from mplab.course.grading.journal import (
    select_students,
    submitted_students,
    team_owners,
)
from mplab.course.grading.platforms import moodle_prefix, read_label
from mplab.course.grading.sanitise import cell_as_html, cell_as_text, shown
from mplab.course.grading.submissions import mark_of

_SECONDS = 10.0
"""Time to typeset a page; after it, plain text."""

_PAGE = Template((Path(__file__).parent / "page" / "feedback.html").read_text("utf-8"))

_WAIT = 10.0  # times the limit: on a busy machine a process gets less than a second each second

_PAGE_MEMORY = 2 << 30

_PAGE_BYTES = 64 << 20
"""All pasted pictures and outputs that a submission may have fit in."""

_PROCESSES = multiprocessing.get_context("forkserver")
"""Forks from a process without threads, unlike a server."""


def in_process(
    seconds: float, most: int, work: Callable[..., str], *arguments: Any
) -> str | None:
    """Call a function on somebody's text in a process of its own, with limits.

    Returns:
        Its result; None if it died, took too long, or has more than `most` bytes.
    """
    # Else each process would import it: 1.4 seconds of CPU time for a page of `review`.
    _PROCESSES.set_forkserver_preload([work.__module__, "mplab.course.grading.warm"])
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(
        target=_limited, args=(sender, seconds, work, *arguments)
    )
    process.start()
    sender.close()
    try:
        if receiver.poll(_WAIT * seconds):
            return receiver.recv_bytes(most).decode()
    except (EOFError, OSError):  # it died, or has written too much: None says so
        pass
    finally:
        process.kill()
        process.join()
        receiver.close()
    return None


def _limited(
    sender: multiprocessing.connection.Connection,
    seconds: float,
    work: Callable[..., str],
    *arguments: Any,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    whole = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_AS, (_PAGE_MEMORY, _PAGE_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sender.send_bytes(work(*arguments).encode())


def page_of(notebook: NotebookNode, title: str) -> tuple[str, bool]:
    """Write the page of a notebook that has its points below its cells.

    Args:
        notebook: as its author may see it.
        title: the page's.

    Returns:
        The page, and whether it is plain text.
    """
    texts, plain = typeset(notebook.cells, _SECONDS, _PAGE_BYTES)
    kinds = [cell.metadata.get("kind", cell.cell_type) for cell in notebook.cells]
    page = _PAGE.generate(title=title, cells=zip(kinds, texts, strict=True))
    return page.decode(), plain


def typeset(
    cells: Sequence[NotebookNode], seconds: float, most: int
) -> tuple[list[str], bool]:
    """Write cells as HTML, in a process of its own; past its limits, as plain text.

    Returns:
        The text of each cell, and whether it is plain text.
    """
    made = in_process(seconds, most, _as_html, cells)
    if made is None:
        return [cell_as_text(cell) for cell in cells], True
    return json.loads(made), False


def _as_html(cells: Sequence[NotebookNode]) -> str:
    """Write cells as HTML, in JSON."""
    return json.dumps([cell_as_html(cell) for cell in cells])


# Of a class ------------------------------------------------------------------------------
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
        jobs: how many pages are typeset at once.

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
    with course.gradebook() as book:
        renew_penalties(course, book, assignment)
    with ThreadPoolExecutor(jobs) as pool:  # typesetting is a process of its own
        pages = list(pool.map(partial(_write_page, course, assignment), chosen))
    for member, owner in team_owners(course, assignment).items():
        if member != owner and owner in chosen:
            to = course.root / "feedback" / member / assignment
            # `publish_feedback` puts the owner's secret beside them.
            for page in (course.root / "feedback" / owner / assignment).glob("*.[hi]*"):
                replace_file(to / page.name, page.read_bytes())
    return pages


def without_page(course: Course, assignment: str, students: Sequence[str]) -> list[str]:
    """Return the students whose page is missing, or is that of another graded notebook."""
    found = []
    for student in students:
        notebooks = (course.root / "autograded" / student / assignment).glob("*.ipynb")
        pages = course.root / "feedback" / student / assignment
        for notebook in notebooks:
            page = pages / f"{notebook.stem}.html"
            # It has its notebook's time: an older page looks newer after a clock is set back.
            if not page.is_file() or _time(page) != _time(notebook):
                found.append(student)
                break
    return found


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


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
    made = io.BytesIO()
    feedback.mkdir(exist_ok=True)
    names = {s.id: f"{s.first_name} {s.last_name}" for s in course.roster()}
    present = {*students}
    for member, owner in team_owners(course, assignment).items():
        if owner in students:
            present.add(member)
    numbers = course.read("platform", assignment, "list").get("numbers", {})
    others = []
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for student in sorted(present):
            received = course.read("received", assignment, student)
            label = read_label(received.get("label", ""))
            canvas = label and label.platform == "Canvas"
            if label and (canvas or not received.get("team")):
                prefix = label.prefix
            elif student in numbers:
                prefix = moodle_prefix(names.get(student, student), numbers[student])
            else:
                others.append(student)
                continue
            pages = "*.ipynb" if canvas else "*.html"
            for page in (feedback / student / assignment).glob(pages):
                archive.write(page, f"{prefix}{page.name}")
    count = len(present) - len(others)
    if count:
        replace_file(path, made.getvalue())
    else:
        path.unlink(missing_ok=True)
    return path, count, others


def _write_page(course: Course, assignment: str, student: str) -> Page:
    """Write the pages of one student."""
    remark = ""
    waiting = 0
    try:
        graded = course.root / "autograded" / student / assignment
        pages = course.root / "feedback" / student / assignment
        with course.gradebook() as book:
            for row in book.find_submission(assignment, student).notebooks:
                path = graded / f"{row.name}.ipynb"
                if not path.is_file():
                    continue
                time = _time(path)
                told = with_points(read_notebook(path, as_version=4), row)
                waiting += sum(bool(g.needs_manual_grade) for g in row.grades)
                text, plain = page_of(told, row.name)
                replace_file(pages / path.name, writes(told).encode())
                page = pages / f"{row.name}.html"
                replace_file(page, text.encode())
                os.utime(page, ns=(time, time))
                if plain:
                    remark = f"plain text: not typeset in {_SECONDS:g} seconds"
    except Exception as error:  # the other pages go on
        return Page(student, False, f"no page: {type(error).__name__}: {error}")
    return Page(student, True, remark, waiting)


def with_points(graded: NotebookNode, row: Any) -> NotebookNode:
    """Return what a graded notebook's author may see, with points and comments below its cells.

    Args:
        graded: the notebook.
        row: its row in the gradebook.
    """
    grades = {grade.name: grade for grade in row.grades}
    comments = {comment.name: comment.comment for comment in row.comments}
    found = shown(graded)
    points = points_so_far(row) - (row.late_submission_penalty or 0)
    cells = [_words(f"{points:g} of {row.max_score:g} points.")]
    for cell in found.cells:
        cells.append(cell)
        name = mark_of(cell).get("grade_id")
        comment = comments.get(name)
        if grade := grades.get(name):
            most = f"{grade.max_score:g} points"
            given = f"{grade.score:g} of {most}"
            if grade.needs_manual_grade:
                given = f"not read yet; at most {most}"
                comment = None  # it is about an earlier answer
            cells.append(_words(f"{name}: {given}."))
        if comment:
            # Markdown joins lines unless two blanks end them.
            cells.append(_words(re.sub(r"(?<=\S)\n(?=\S)", "  \n", comment)))
    found.cells = cells
    return found


def _words(text: str) -> NotebookNode:
    metadata = {"kind": "feedback"}
    return v4.new_markdown_cell(f"**Feedback:** {text}", metadata=metadata)
