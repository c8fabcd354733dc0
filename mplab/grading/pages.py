"""Write the feedback pages of a class in parallel: only pages that have changed."""

import hashlib
import json
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mplab.course.files import replace_file
from mplab.grading.folder import Course
from mplab.grading.journal import read_journal, submitted_students
from mplab.grading.log import captured_log
from mplab.grading.teams import counting
from mplab.numbers.installation import VERSION


class Page(NamedTuple):
    """The result of writing one student's pages."""

    student: str
    written: bool
    remark: str


def write_feedback(
    course: Course,
    assignment: str,
    *,
    students: Sequence[str] = (),
    jobs: int = 1,
    force: bool = False,
) -> list[Page]:
    """Write the feedback pages of graded submissions that have changed.

    Args:
        course: the course.
        assignment: an assignment of it.
        students: ids, each for its whole team; all if empty.
        jobs: number of processes.
        force: write also the pages that are up to date.

    Returns:
        A result for each graded submission; the other members of a team get copies of its pages.
        The remark says why a page could not be written, or why it is plain text. One failure
        affects no other page.

    Raises:
        ValueError: `students` holds an id without a graded submission.
    """
    present = [
        name
        for name in submitted_students(course, assignment)[0]
        if "digest" in read_journal(course, assignment, name)  # graded, not only tried
    ]
    owners = counting(course, assignment)
    wanted = {owners.get(name, name) for name in students}
    if missing := sorted(wanted - set(present)):
        raise ValueError(f"--student must be an id that has been graded; got {', '.join(missing)}.")
    chosen = [name for name in present if not wanted or name in wanted]
    digests = _digests(course, assignment, chosen)
    todo = [n for n in chosen if force or not _is_written(course, assignment, n, digests[n])]
    pages = {name: Page(name, False, "") for name in chosen}
    with _mapping(min(jobs, len(todo))) as over:
        for page in over(partial(_write, course.root, assignment), todo):
            pages[page.student] = page
            if page.written and not page.remark:
                place = _record(course, assignment, page.student)
                place.parent.mkdir(parents=True, exist_ok=True)
                replace_file(place, digests[page.student].encode())
    for member, owner in owners.items():
        if member != owner and owner in pages:
            for page in (course.root / "feedback" / owner / assignment).glob("*.html"):
                content = page.read_bytes()
                replace_file(course.root / "feedback" / member / assignment / page.name, content)
    return [pages[name] for name in chosen]


@contextmanager
def _mapping(jobs: int) -> Iterator[Callable[..., Any]]:
    """Return `map`, in several processes if `jobs` is more than one."""
    if jobs < 2:
        yield map
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        yield pool.map


def _write(root: Path, assignment: str, student: str) -> Page:
    """Write the pages of one student."""
    from nbgrader.converters import GenerateFeedback

    course = Course(root)
    directory = course.directory(assignment_id=assignment, student_id=student)
    with captured_log() as log, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy's, about how nbgrader makes its rows
        converter = GenerateFeedback(coursedir=directory, config=course.config(), force=True)
        try:
            converter.start()
        except (Exception, SystemExit) as error:  # nbgrader may exit; the other pages go on
            return Page(student, False, f"no page: {log.reason(error)}")
    plain = getattr(converter.exporter, "plain", "")
    return Page(student, True, f"plain text: {plain}" if plain else "")


def _record(course: Course, assignment: str, student: str) -> Path:
    return course.root / ".mplab" / "feedback" / assignment / student


def _is_written(course: Course, assignment: str, student: str, digest: str) -> bool:
    """Whether the pages exist and were written for this digest."""
    graded = course.root / "autograded" / student / assignment
    folder = course.root / "feedback" / student / assignment
    names = [path.stem for path in graded.glob("*.ipynb")]
    record = _record(course, assignment, student)
    return (
        all((folder / f"{name}.html").is_file() for name in names)
        and record.is_file()
        and record.read_text(encoding="utf-8") == digest
    )


def _digests(course: Course, assignment: str, students: Sequence[str]) -> dict[str, str]:
    """Hash what each page depends on: graded notebooks, grades, comments, and settings."""
    settings = (course.root / "nbgrader_config.py").read_bytes() + VERSION.encode()
    found = {}
    with course.gradebook() as gradebook:
        for student in students:
            submission = gradebook.find_submission(assignment, student)
            given: list[Any] = [submission.late_submission_penalty]
            for notebook in submission.notebooks:
                given += sorted((g.name, g.score, g.max_score) for g in notebook.grades)
                given += sorted((c.name, c.comment or "") for c in notebook.comments)
            digest = hashlib.sha256(settings + json.dumps(given).encode())
            folder = course.root / "autograded" / student / assignment
            for path in sorted(folder.glob("*")):
                if path.is_file() and not path.is_symlink():
                    digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
            found[student] = digest.hexdigest()
    return found
