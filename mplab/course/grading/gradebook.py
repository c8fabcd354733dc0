"""Write a graded submission into nbgrader's gradebook and into `autograded`."""

import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nbformat import NotebookNode, writes
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import compute_checksum, determine_grade, parse_utc

from mplab.course.grading.dates import read_time, show_time
from mplab.course.grading.folder import Course
from mplab.course.grading.submissions import answers_of, marked

_PART = re.compile(r"- (.+): ([\d.e+-]+) of ([\d.e+-]+)")
"""A part of a rubric, as it stands on top of the comment that the student reads."""


def with_parts(rubric: Mapping[str, float], given: Sequence[float], words: str) -> str:
    r"""Write a rubric's points on top of a comment, because nbgrader keeps one number per cell.

    Examples:
        >>> print(with_parts({"the choice": 1, "a reason": 1}, [1, 0.5], "Which tie?"))
        - the choice: 1 of 1
        - a reason: 0.5 of 1
        <BLANKLINE>
        Which tie?
        >>> read_parts("- the choice: 1 of 1\n\nWhich tie?")
        ({'the choice': '1'}, 'Which tie?')
    """
    pairs = zip(rubric.items(), given, strict=True)
    lines = [f"- {name}: {points:g} of {most:g}" for (name, most), points in pairs]
    return "\n\n".join(filter(None, ["\n".join(lines), words]))


def read_parts(comment: str) -> tuple[dict[str, str], str]:
    """Split a comment into the points of a rubric's parts, by name, and the words after them."""
    lines = comment.splitlines()
    parts: dict[str, str] = {}
    while lines and (found := _PART.fullmatch(lines[0])):
        parts[found[1]] = found[2]
        del lines[0]
    return parts, "\n".join(lines).strip()


def save(
    course: Course,
    assignment: str,
    student: str,
    notebooks: Mapping[str, NotebookNode],
) -> tuple[float, float, bool]:
    """Save a graded submission: its points, its graded notebooks, and digests of its answers.

    Points given by a person stay while the answer is unchanged; a changed answer waits for a
    person again. Extensions and times that no longer apply are removed.

    Returns:
        The score, the maximum score, and whether it was late.
    """
    with course.marking(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy's, about nbgrader's rows
        time = course.read("received", assignment, student).get("time", "")
        answers: dict[str, str] = {}
        for stem, notebook in notebooks.items():
            answers |= answers_of(stem, notebook)
        before = course.read("answers", assignment, student)
        same = {name for name, answer in answers.items() if before.get(name) == answer}
        with course.gradebook() as book:
            book.update_or_create_student(student)
            submission = book.update_or_create_submission(assignment, student)
            submission.timestamp = parse_utc(time) if time else None
            for row in submission.notebooks:
                _save_points(row, notebooks.get(row.name), same)
            book.db.commit()
            _save_penalties(course, assignment, [submission])
            book.db.commit()
            late = submission.total_seconds_late > 0
            score = sum(map(points_so_far, submission.notebooks))
            found = score, float(submission.max_score), late
        folder = course.root / "autograded" / student / assignment
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for stem, notebook in notebooks.items():
            (folder / f"{stem}.ipynb").write_text(writes(notebook), "utf-8")
        course.write("answers", assignment, student, answers)
        return found


def _save_points(row: Any, notebook: NotebookNode | None, same: set[str]) -> None:
    """Save the points of a notebook; a missing notebook earns none."""
    cells = {} if notebook is None else marked(notebook)
    for grade in row.grades:
        cell = cells.get(grade.name)
        grade.auto_score = 0.0 if cell is None else determine_grade(cell)[0]
        by_hand = grade.manual_score is not None
        if not (by_hand and f"{row.name}/{grade.name}" in same):
            grade.needs_manual_grade = by_hand or grade.auto_score is None
    for comment in row.comments:
        cell = cells.get(comment.name)
        unchanged = cell and cell.metadata.nbgrader.get("checksum") == compute_checksum(
            cell
        )
        comment.auto_comment = "No response." if unchanged else None


def points_so_far(row: Any) -> float:
    """Sum the points of a notebook without those that a person gave for an earlier answer.

    Args:
        row: its row in the gradebook, which still holds them.
    """
    points = [g.auto_score if g.needs_manual_grade else g.score for g in row.grades]
    return float(sum(filter(None, points)))


def set_due(course: Course, assignment: str, text: str) -> str:
    """Set when an assignment is due, in the course's time zone; return it in words.

    Raises:
        ValueError: `text` is no time, or there is no such assignment.
    """
    course.assignment(assignment)
    try:
        time = read_time(text, course.zone())
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"due: TIME must be such as 2026-11-30 12:00; got {text!r} ({error})."
        ) from error
    with course.gradebook() as book:
        row = book.update_or_create_assignment(assignment)
        row.duedate = time.replace(tzinfo=None)  # in UTC, as nbgrader holds it
        book.db.commit()  # nbgrader's own would print a traceback
    return due_words(course, assignment)


def due_words(course: Course, assignment: str) -> str:
    """Say when an assignment is due; empty if nobody has set it."""
    with course.gradebook() as book:
        dates = {row.name: row.duedate for row in book.assignments}
    if (due := dates.get(assignment)) is None:
        return ""
    return f"{assignment} is due {show_time(due, course.zone())}"


def renew_penalties(course: Course, book: Any, assignment: str) -> None:
    """Update who was late, and what it costs: dates, points by hand or settings may have changed.

    Args:
        course: the course.
        book: its gradebook, open; it is written only if something has changed.
        assignment: an assignment in it.
    """
    _save_penalties(course, assignment, book.assignment_submissions(assignment))
    book.db.commit()


def _save_penalties(
    course: Course, assignment: str, submissions: Iterable[Any]
) -> None:
    """Save extensions, and the late penalties of nbgrader's settings, if any."""
    step = AssignLatePenalties(config=course.config())
    step.init_plugin()
    penalty = step.plugin_inst.late_submission_penalty
    extensions = course.extensions(assignment)
    for submission in submissions:
        student = submission.student.id
        submission.extension = None
        if submission.assignment.duedate:  # to which nbgrader adds it
            submission.extension = extensions.get(student)
        late = submission.total_seconds_late
        for row in submission.notebooks:
            score = points_so_far(row) if late > 0 else 0.0
            points = penalty(student, score, late) if late > 0 else None
            row.late_submission_penalty = None
            if points:
                row.late_submission_penalty = min(max(points, 0), score)
