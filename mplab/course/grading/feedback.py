"""Make nbgrader's feedback pages, with nothing of a student's that a browser would run.

A page is rendered in a process of its own with a time limit, because some texts take a Markdown
parser or a highlighter hours. Such a page is shown as plain text.
"""

import html
import json
import logging
import multiprocessing.connection
import re
import resource
import signal
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nbgrader
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import Exporter, ResourcesDict
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbformat import NotebookNode, from_dict, read as read_notebook, v4, writes
from traitlets import Float, List, Unicode

from mplab.common.files import replace_file
from mplab.course.grading.folder import Course
from mplab.course.grading.journal import (
    select_students,
    submitted_students,
    team_owners,
)
from mplab.course.grading.platforms import moodle_prefix, read_label
from mplab.course.grading.sanitise import rendered_markdown, sanitise
from mplab.course.grading.submissions import mark_of, marked

POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'\">"
)

NOT_READ = -1.0
"""The points of an answer that a person still has to read; the page says so in words."""

_NBGRADER = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader"

_BOOTSTRAP = "static/node_modules/bootstrap/dist/css"

_STYLE = "<style>pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere }</style>"
"""Wraps lines, because hints are sentences and would run out of their box."""

_WAIT = 10.0  # times the limit: on a busy machine a process gets less than a second each second

_PAGE_MEMORY = 2 << 30

_PAGE_BYTES = 64 << 20
"""All pasted pictures and outputs that a submission may have fit in."""

_PLAIN_LENGTH = 100_000
"""Characters of a cell or an output on a page of plain text: a million take nbconvert seconds."""

_PROCESSES = multiprocessing.get_context("forkserver")
"""Forks from a process without threads, unlike a server."""
_PROCESSES.set_forkserver_preload(
    ["__main__", "mplab.grading.feedback", "matplotlib.mathtext"]
)


def in_process(
    seconds: float, most: int, work: Callable[..., str], *arguments: Any
) -> str | None:
    """Call a function on somebody's text in a process of its own, with limits.

    Returns:
        Its result; None if it died, took too long, or has more than `most` bytes.
    """
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
    # It would warn of missing alternative texts.
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    sender.send_bytes(work(*arguments).encode())


class _Typesetter(HTMLExporter):
    """The exporter that runs in the process of a page."""

    template_name: Any = Unicode("feedback").tag(config=True)
    extra_template_basedirs: Any = List([str(_NBGRADER / "templates")]).tag(config=True)
    extra_template_paths: Any = List([str(_NBGRADER / _BOOTSTRAP)]).tag(config=True)
    default_preprocessors: Any = List([])

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        cell = context.get("cell") or {}  # in a macro, as for a comment, there is none
        return rendered_markdown(source, cell.get("attachments"))


class FeedbackExporter(_Typesetter):
    """Exports a graded notebook to HTML for its author; the page may load or run nothing.

    The notebook is rebuilt, sanitised, and rendered in bounded time.
    """

    seconds = Float(10.0, help="Time to typeset a page; after it, plain text.").tag(
        config=True
    )
    default_preprocessors: Any = List([CSSHTMLHeaderPreprocessor]).tag(config=True)
    plain = Unicode("", help="Why the last page is plain text; empty if it is not.")

    def from_notebook_node(
        self, nb: NotebookNode, resources: Any = None, **kwargs: Any
    ) -> tuple[Any, ResourcesDict]:
        """Convert to a page.

        Raises:
            RuntimeError: not even a page of plain text was ready in time.
        """
        nb, resources = Exporter.from_notebook_node(self, nb, resources, **kwargs)
        text = json.dumps(sanitise(nb, late_outputs=False))
        words = json.loads(json.dumps(resources, default=str))
        self.plain = ""
        for plain in (False, True):
            page = in_process(self.seconds, _PAGE_BYTES, _typeset, text, words, plain)
            if page is not None:
                return _with_policy(page), resources
            self.plain = f"it could not be typeset in {self.seconds:g} seconds"
        raise RuntimeError(
            f"{type(self).__name__}: a page must be written in {self.seconds:g} seconds; it "
            "was not, not even as plain text. Look at the notebook."
        )


def _typeset(notebook: str, resources: Any, plain: bool) -> str:
    """Render a page; called in a process of its own."""
    exporter = _Typesetter()
    # nbconvert's own takes time quadratic in the number of brackets.
    exporter.filters = {"strip_files_prefix": lambda text: text}
    if plain:
        names = ("markdown2html", "highlight_code", "ansi2html")
        exporter.filters |= dict.fromkeys(names, _as_it_stands)
    page, _ = exporter.from_notebook_node(from_dict(json.loads(notebook)), resources)
    return str(page)


def _as_it_stands(text: str, metadata: Any = None) -> str:
    """Show text as it stands; a filter for nbconvert."""
    rest = len(text) - _PLAIN_LENGTH
    end = f"\n[{rest:,} more characters: see the notebook]" if rest > 0 else ""
    return f"<pre>{html.escape(text[:_PLAIN_LENGTH])}{end}</pre>"


def _with_policy(page: str) -> str:
    """Put the content security policy first in the head, and remove all scripts.

    The template's table of contents calls every check "Test cell"; each gets its name instead.
    """
    head, _, body = page.partition("</head>")
    before, found, head = head.partition("<head>")
    if not found:
        raise RuntimeError(
            "FeedbackExporter: the template has no <head> for the policy."
        )
    # MathJax's; only the head has any, which comes from the template alone.
    head = re.sub(r"<script\b.*?</script>", "", head, flags=re.DOTALL)
    body = re.sub(r'(<a href="#([\w.-]+)">)Test cell(?=</a>)', r"\1\2", body)
    body = body.replace(f"Score: {NOT_READ} / ", "not read yet, of ")
    return f"{before}<head>{POLICY}{head}{_STYLE}</head>{body}"


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
    with ThreadPoolExecutor(jobs) as pool:  # typesetting is a process of its own
        pages = list(pool.map(partial(_write_page, course, assignment), chosen))
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
            found = _place_in_upload(course, assignment, student, owner, name)
            if not found:
                others.append(student)
                continue
            prefix, pattern = found
            for page in (feedback / student / assignment).glob(pattern):
                archive.write(page, f"{prefix}{page.name}")
    count = len(owners) - len(others)
    if not count:
        path.unlink()
    return path, count, sorted(others)


def _place_in_upload(
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


def _write_page(course: Course, assignment: str, student: str) -> Page:
    """Write the pages of one student."""
    remark = ""
    waiting = 0
    try:
        exporter = FeedbackExporter(config=course.config())
        graded = course.root / "autograded" / student / assignment
        pages = course.root / "feedback" / student / assignment
        with course.gradebook() as book:
            for row in book.find_submission(assignment, student).notebooks:
                path = graded / f"{row.name}.ipynb"
                if not path.is_file():
                    continue
                notebook = read_notebook(path, as_version=4)
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
                        words = comment.comment or ""
                        # Markdown joins lines unless two blanks end them.
                        mark.comment = re.sub(r"(?<=\S)\n(?=\S)", "  \n", words)
                about = {
                    "notebook": row.name,
                    "score": row.score,
                    "max_score": row.max_score,
                    "late_penalty": row.late_submission_penalty or 0,
                }
                page, _ = exporter.from_notebook_node(notebook, {"nbgrader": about})
                replace_file(pages / path.name, _with_points(notebook, about))
                replace_file(pages / f"{row.name}.html", page.encode())
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
        mark = mark_of(cell)
        if "score" in mark:
            given = "not read yet" if mark.score == NOT_READ else f"{mark.score:g}"
            cells.append(_words(f"{given} of {mark.points:g} points."))
        if mark.get("comment"):
            cells.append(_words(mark.comment))
    found.cells = cells
    return writes(found).encode()


def _words(text: str) -> NotebookNode:
    return v4.new_markdown_cell(f"**Feedback:** {text}")
