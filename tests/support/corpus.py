"""Answers that students give, and what the checks of the assignments say to them.

A wrong answer is the notebook's own solution with one piece of its text replaced, as
`(before, after)`: it goes on being the program that the notebook holds. The mistakes that have a
sentence of their own are the misconceptions of the exercise. A right one is another program.
"""

import sys
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat
from answers import TESTS, answers_in

from mplab.common.files import course_folder
from mplab.course import EXERCISES
from mplab.course.exercises.calls import watched
from mplab.course.exercises.exercise import noticing_changes, verdict_on
from mplab.course.grading import load_public
from mplab.course.grading.exercises import (
    ask_parts,
    load_assignment,
    outcomes_of,
    public_table,
)
from mplab.course.grading.serialization import decode_value, encode_value, key_of

ROOT = course_folder("lessons") / "assignments"
NAMES = sorted(path.stem for path in (TESTS / "grading" / "answers").glob("*.py"))
SEEDS = (1, 2, 3)
"""Students whose hidden cases a wrong answer has to fail."""


def answers(name):
    """The module of right and wrong answers to an assignment."""
    return answers_in("grading")[name]


@cache
def assignment(name):
    return load_assignment(ROOT / name / "exercises.py")


def reference(name, exercise):
    return assignment(name).graded[exercise].exercise.answer


def hidden_cases(name, exercise, part=None, seed=0):
    """The hidden cases of an exercise, or of one of its parts, for one student."""
    graded = assignment(name).graded[exercise]
    parts = [p for p in hidden_parts(graded) if part in (None, p.name)]
    assert parts, part
    return [case for p in parts for case in graded.cases(p, seed)]


@cache
def public(name):
    """The exercises as the notebook knows them: from the text of checks.json."""
    before = dict(EXERCISES)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "checks.json")
            path.write_text(public_table(assignment(name).graded), encoding="utf-8")
            return {exercise: EXERCISES[exercise] for exercise in load_public(path)}
    finally:
        EXERCISES.clear()
        EXERCISES.update(before)


@cache
def cells(name):
    """The code of set-up, helpers and answers by grade_id; a cell without one only shows."""
    notebook = nbformat.read(ROOT / name / f"{name}.ipynb", as_version=4)
    marks = [(cell.metadata.get("nbgrader", {}), cell) for cell in notebook.cells]
    return {
        mark["grade_id"]: cell.source
        for mark, cell in marks
        if cell.cell_type == "code" and mark and not mark["grade"]
    }


def stubbed(source):
    """An answer cell as it is released."""
    before, rest = source.split("### BEGIN SOLUTION")
    return f"{before}raise NotImplementedError{rest.split('### END SOLUTION')[1]}"


def answer(name, exercise, source=None):
    """What the notebook holds under an exercise's name, with another text in its answer cell."""
    space = {}
    for cell, text in cells(name).items():
        if cell == f"{exercise}-answer" and source is not None:
            text = source
        exec(
            "\n".join(
                line
                for line in text.splitlines()
                if not line.startswith("load_public(")
            ),
            space,
        )
    return space[assignment(name).graded[exercise].asks]


class Answering:
    """A student's kernel without the kernel: values cross as text."""

    interrupts = 0

    def __init__(self, answer):
        self.answer = answer

    def ask(self, name, cases, *, seconds=None, uses=None):
        if cases is None:
            return {"values": [{"value": encode_value(self.answer)}]}
        called, changed = [], []
        answer = noticing_changes(watched(self.answer, uses, called), changed)
        values = [self.outcome(answer, decode_value(case)) for case in cases]
        return {"values": values, "called": called[:1], "changed": bool(changed)}

    def outcome(self, answer, arguments):
        try:
            return {"value": encode_value(answer(*arguments))}
        except Exception as error:
            return {"raised": type(error).__name__, "message": str(error)}


class Judgement(NamedTuple):
    """What becomes of an answer."""

    passed: bool
    message: str
    earned: list[float]
    """The points of the hidden parts, for each of the students."""
    wanted: float


def hidden_parts(graded):
    """The parts that the notebook does not show; where a value is asked, all."""
    kept = tuple(part for part in graded.parts if part.cases is not None)
    return kept if callable(graded.exercise.answer) else tuple(graded.parts)


@cache
def _drawn(name, exercise, seed):
    """The exercise for one student, its cases drawn and its reference's outcomes looked up."""
    graded = assignment(name).graded[exercise]
    known = {}

    def reference(*arguments):
        key = key_of(arguments)
        if key not in known:
            known[key] = replace(graded.exercise, cases=[arguments]).outcomes(
                graded.exercise.answer
            )[0]
        if isinstance(known[key], Exception):
            raise known[key]
        return known[key]

    function = callable(graded.exercise.answer)
    # They word feedback that is not read.
    quick = replace(graded.exercise, misconceptions=())
    parts = [replace(p, cases=graded.cases(p, seed)) for p in hidden_parts(graded)]
    return replace(
        graded,
        exercise=replace(quick, answer=reference) if function else quick,
        parts=parts if function else hidden_parts(graded),
    )


def grade_exercise(graded, answering, seed):
    """Ask a submission for values and compare them with the reference's."""
    replies = []
    ask_parts(graded, answering, seed, replies)
    return outcomes_of(graded, replies)


def judge(name, exercise, given):
    """Show an answer to the notebook's check and to the grader, as several students."""
    verdict = verdict_on(exercise, public(name)[exercise], given)
    earned = [
        sum(
            outcome.earned
            for outcome in grade_exercise(hidden, Answering(given), lambda _: 0)
        )
        for hidden in (_drawn(name, exercise, seed) for seed in SEEDS)
    ]
    wanted = sum(
        part.points for part in hidden_parts(assignment(name).graded[exercise])
    )
    return Judgement(verdict.passed, verdict.message, earned, wanted)


def edited(name, exercise, before, after):
    """The notebook's solution with a piece of it replaced, wherever it stands."""
    source = cells(name)[f"{exercise}-answer"]
    if before not in source:
        raise ValueError(
            f"{name} {exercise}: the solution does not contain {before!r}."
        )
    return answer(name, exercise, source.replace(before, after))


def problem(judgement, hint):
    """What is amiss with the judgement on a wrong answer; None if both checks find it."""
    if judgement.passed:
        return "the notebook's check passes it"
    if hint not in judgement.message:
        return f"the hint is not {hint!r}: {judgement.message}"
    if max(judgement.earned) >= judgement.wanted:
        return f"the hidden check passes it: {judgement.earned} of {judgement.wanted}"
    return None


def recited(name, exercise):
    """An answer that knows the notebook's cases by heart, and nothing else."""
    known = public(name)[exercise]
    first, *_ = known.outcomes(known.answer)
    table = {
        key_of(case if isinstance(case, tuple) else (case,)): outcome
        for case, outcome in zip(known.cases, known.outcomes(known.answer), strict=True)
    }

    def answer(*arguments):
        sys.setprofile(None)  # as if key_of were its own
        outcome = table.get(key_of(arguments), first)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return answer
