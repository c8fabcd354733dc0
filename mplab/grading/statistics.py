"""Statistics of a class in an assignment: how often each part was right, and what was wrong."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import nbformat

from mplab.grading.execute import graded_name, one_line, read_outcomes
from mplab.grading.exercises import Graded
from mplab.grading.exporting import NOTHING, Grade, escape_formula, grades, write_rows
from mplab.grading.folder import Course

RIGHT, KNOWN, OTHER, MISSED = (
    "right",
    "a known mistake",
    "wrong otherwise",
    "not attempted",
)
"""The results of a part; a known mistake is a misconception of the exercise."""


class Count(NamedTuple):
    """The number of submissions with one result in a part."""

    exercise: str
    part: str
    points: float
    kind: str
    found: str
    number: int


def statistics(
    course: Course, assignment: str
) -> tuple[dict[str, list[str]], list[Count]]:
    """Count the results of the submissions of an assignment, part by part.

    Args:
        course: the course.
        assignment: a released assignment.

    Returns:
        The students by the state of their grade: complete, or what is missing; and the counts.

    Raises:
        ValueError: there is no such assignment, or it is not in the gradebook.
    """
    found = grades(course, [assignment])
    people: dict[str, list[str]] = {}
    for grade in found:
        people.setdefault(_state(grade), []).append(grade.student.id)
    exercises = course.assignment(assignment).graded
    results: dict[tuple[str, str, float], Counter[tuple[str, str]]] = {
        (name, part.name, float(f"{part.points:g}")): Counter()
        for name, exercise in exercises.items()
        for part in exercise.parts
    }
    for owner in dict.fromkeys(
        g.owner for g in found if g.score is not None and not g.refused
    ):
        for path in sorted(
            (course.root / "autograded" / owner / assignment).glob("*.ipynb")
        ):
            for cell in nbformat.read(path, as_version=4).cells:
                name = graded_name(cell) or ""
                for part in read_outcomes(cell) if name in exercises else []:
                    right = part.earned == part.points
                    met = (
                        (RIGHT, RIGHT)
                        if right
                        else _classify(part.message, exercises[name])
                    )
                    key = (name, part.part, part.points)
                    results.setdefault(key, Counter())[met] += 1
    counts = [
        Count(*k, *met, n)
        for k, times in results.items()
        for met, n in times.most_common()
    ]
    return people, counts


def _state(grade: Grade) -> str:
    """Return the state of a student's grade; nothing handed in is not 0."""
    if grade.score is None:
        return NOTHING if grade.remark == NOTHING else "not graded yet"
    if grade.refused:
        return "refused, with no points"
    return "written work to be graded by hand" if grade.by_hand else "graded"


def _classify(message: str, exercise: Graded) -> tuple[str, str]:
    """Classify a part that is not right: its kind, and the sentence in the feedback."""
    for known in exercise.exercise.misconceptions:
        if message.endswith(one_line(known.sentence)):
            return KNOWN, one_line(known.sentence)
    if message.startswith("Not attempted"):
        return MISSED, MISSED
    hints = (one_line(part.hint) for part in exercise.parts)
    return OTHER, next(
        (hint for hint in hints if hint and message.endswith(hint)), message
    )


def bars_of(counts: list[Count]) -> dict[str, dict[str, int]]:
    """Count the submissions of each kind, by part, for a picture."""
    bars: dict[str, dict[str, int]] = {}
    for count in counts:
        kinds = dict.fromkeys((RIGHT, KNOWN, OTHER, MISSED), 0)
        bars.setdefault(f"{count.exercise}: {count.part}", kinds)[count.kind] += (
            count.number
        )
    return bars


def write_statistics(counts: list[Count], path: Path) -> None:
    """Write the counts as CSV; no cell is a formula."""
    rows = [
        [escape_formula(f"{x:g}" if isinstance(x, float) else str(x)) for x in row]
        for row in counts
    ]
    write_rows(path, [list(Count._fields), *rows])
