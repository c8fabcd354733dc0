"""Statistics of a class in an assignment: by exercise, part and misconception."""

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from mplab.course.files import replace_file
from mplab.grading.execute import graded_name, one_line, read_outcomes
from mplab.grading.exercises import Graded
from mplab.grading.exporting import NOTHING, Grade, grades, neutral
from mplab.grading.folder import Course
from mplab.grading.journal import read_journal

RIGHT, KNOWN, OTHER, MISSED = "right", "a known mistake", "wrong otherwise", "not attempted"
"""The results of a part; a known mistake is a misconception of the exercise."""

_REFUSED = "refused, with no points"


class Count(NamedTuple):
    """The number of submissions with one result in a part, or in an exercise if `part` is empty."""

    exercise: str
    part: str
    points: float
    kind: str
    found: str
    number: int


class Statistics(NamedTuple):
    """The counts of a class.

    `people` lists the students by the state of their grade: complete, or what is missing.
    """

    people: dict[str, list[str]]
    counts: list[Count]


def statistics(course: Course, assignment: str) -> Statistics:
    """Count the results of the submissions of an assignment.

    Args:
        course: the course.
        assignment: a released assignment.

    Returns:
        For the class, who handed in nothing, and who has no grade yet; for each exercise, the
        points in the gradebook, also points given by hand; for each part, the grader's results.

    Raises:
        ValueError: there is no such assignment, or it is not in the gradebook.
    """
    found = grades(course, [assignment])
    people: dict[str, list[str]] = {}
    for grade in found:
        people.setdefault(_state(grade), []).append(grade.student.id)
    owners = list(dict.fromkeys(g.owner for g in found if _state(g) not in (NOTHING, _REFUSED)))
    graded = [name for name in owners if "digest" in read_journal(course, assignment, name)]
    counts = _exercises(course, assignment, graded) + _parts(course, assignment, graded)
    return Statistics(people, counts)


def _state(grade: Grade) -> str:
    """Return the state of a student's grade; nothing handed in is not 0."""
    if grade.remark == NOTHING:
        return NOTHING
    if grade.score is None:
        return "not graded yet"
    if grade.remark.startswith("not graded: "):
        return _REFUSED
    return "written work to be graded by hand" if grade.by_hand else "graded"


def _exercises(course: Course, assignment: str, students: list[str]) -> list[Count]:
    """Count the submissions by the points that they have in each exercise."""
    states: dict[tuple[str, float], Counter[str]] = {}
    with course.gradebook() as gradebook:
        for student in students:
            submission = gradebook.find_submission(assignment, student)
            for grade in (grade for notebook in submission.notebooks for grade in notebook.grades):
                full, score = float(grade.max_score), float(grade.score)
                some = "some points" if score > 0 else "no points"
                state = "all points" if score >= full else some
                if grade.needs_manual_grade:
                    state = "to be graded by hand"
                states.setdefault((grade.name, full), Counter())[state] += 1
    return [
        Count(name, "", full, state, state, times)
        for (name, full), found in states.items()
        for state, times in found.most_common()
    ]


def _parts(course: Course, assignment: str, students: list[str]) -> list[Count]:
    """Count the results of each part, in the order of the exercises."""
    exercises = course.assignment(assignment).graded
    found: dict[tuple[str, str, float], Counter[tuple[str, str]]] = {
        (name, part.name, float(f"{part.points:g}")): Counter()
        for name, exercise in exercises.items()
        for part in exercise.parts
    }
    for student in students:
        for cell in _cells(course.root / "autograded" / student / assignment):
            name = graded_name(cell)
            for part in read_outcomes(cell) if name in exercises else []:
                key = (str(name), part.part, part.points)
                right = part.earned == part.points
                met = (RIGHT, RIGHT) if right else _met(part.message, exercises[key[0]], part.part)
                found.setdefault(key, Counter())[met] += 1
    return [
        Count(*key, *met, number)
        for key, times in found.items()
        for met, number in times.most_common()
    ]


def _cells(folder: Path) -> list[Any]:
    """Read the cells of the graded notebooks, which the grader wrote."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.ipynb"))]
    return [cell for text in texts for cell in nbformat.v4.reads(text).cells]


def _met(message: str, exercise: Graded, part: str) -> tuple[str, str]:
    """Classify a part that is not right: its kind, and the sentence in the feedback."""
    for known in exercise.exercise.misconceptions:
        if message.endswith(one_line(known.sentence)):
            return KNOWN, one_line(known.sentence)
    if message == "Not attempted.":
        return MISSED, MISSED
    hints = [p.hint for p in exercise.parts if p.name == part]
    ends = (one_line(hint) for hint in hints if hint and message.endswith(one_line(hint)))
    return OTHER, next(ends, message)


def bars_of(found: Statistics) -> dict[str, dict[str, int]]:
    """Count the submissions of each kind, by part, for a picture."""
    bars: dict[str, dict[str, int]] = {}
    for count in (count for count in found.counts if count.part):
        kinds = dict.fromkeys((RIGHT, KNOWN, OTHER, MISSED), 0)
        bars.setdefault(f"{count.exercise}: {count.part}", kinds)[count.kind] += count.number
    return bars


def write_statistics(found: Statistics, assignment: str, path: Path) -> None:
    """Write the counts as CSV, first for the whole class; no cell is a formula."""
    text = io.StringIO(newline="")
    whole = [("", "", "", state, state, len(ids)) for state, ids in found.people.items()]
    rows = [
        [neutral(f"{x:g}" if isinstance(x, float) else str(x)) for x in row]
        for row in [*whole, *found.counts]
    ]
    head = ["assignment", *Count._fields]
    csv.writer(text).writerows([head, *([assignment, *row] for row in rows)])
    replace_file(path, text.getvalue().encode())
