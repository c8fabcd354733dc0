"""Statistics of a class in an assignment: how often each part was right, and what was wrong."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from mplab.course.grading.execute import graded_name, one_line, read_outcomes
from mplab.course.grading.exercises import Graded, Outcome
from mplab.course.grading.exporting import NOTHING, Grade, grades
from mplab.course.grading.folder import Course, read_notebooks
from mplab.course.grading.tables import write_table

RIGHT = "right"
KNOWN = "a known mistake"  # a misconception of the exercise
OTHER = "wrong otherwise"
MISSED = "not attempted"


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
    results: dict[tuple[str, str, float], Counter[tuple[str, str]]] = {}
    for name, exercise in exercises.items():
        for part in exercise.parts:
            results[name, part.name, part.points] = Counter()
    owners = {g.owner: None for g in found if g.score is not None and not g.refused}
    for owner in owners:  # a dictionary keeps their order
        folder = course.root / "autograded" / owner / assignment
        for notebook in read_notebooks(folder).values():
            for cell in notebook.cells:
                checked = graded_name(cell)
                if checked not in exercises:
                    continue
                for outcome in read_outcomes(cell):
                    key = checked, outcome.part, outcome.points
                    kind = _classify(outcome, exercises[checked])
                    results.setdefault(key, Counter())[kind] += 1
    counts = []
    for key, times in results.items():
        for kind, number in times.most_common():
            counts.append(Count(*key, *kind, number))
    return people, counts


def _state(grade: Grade) -> str:
    """Return the state of a student's grade; nothing handed in is not 0."""
    if grade.score is None:
        return NOTHING if grade.remark == NOTHING else "not graded yet"
    if grade.refused:
        return "refused, with no points"
    return "written work to be graded by hand" if grade.by_hand else "graded"


def _classify(outcome: Outcome, exercise: Graded) -> tuple[str, str]:
    """Find the kind of an outcome, and for a wrong one the sentence in the feedback."""
    if outcome.earned == outcome.points:
        return RIGHT, RIGHT
    message = outcome.message
    for misconception in exercise.exercise.misconceptions:
        sentence = one_line(misconception.sentence)
        if message.endswith(sentence):
            return KNOWN, sentence
    if message.startswith("Not attempted"):
        return MISSED, MISSED
    sentences = [exercise.exercise.reason, *(part.hint for part in exercise.parts)]
    for hint in map(one_line, sentences):
        if hint and message.endswith(hint):
            return OTHER, hint
    return OTHER, message


def bars_of(counts: list[Count]) -> dict[str, dict[str, int]]:
    """Count the submissions of each kind, by part, for a picture."""
    bars: dict[str, dict[str, int]] = {}
    for count in counts:
        kinds = dict.fromkeys((RIGHT, KNOWN, OTHER, MISSED), 0)
        bar = bars.setdefault(f"{count.exercise}: {count.part}", kinds)
        bar[count.kind] += count.number
    return bars


def write_statistics(counts: list[Count], path: Path) -> None:
    """Write the counts as CSV; no cell is a formula."""
    write_table(path, [Count._fields, *counts])
