"""Assignments: solutions earn all, stubs nothing, and wrong answers are met by their hints."""

import json
import re

import corpus
import nbformat
import pytest

pytestmark = pytest.mark.slow

# From the answers, which a test below holds to be those of the exercises: to load an assignment
# takes seconds, which collecting the tests should not.
EXERCISES = [
    (name, exercise) for name in corpus.NAMES for exercise in corpus.answers(name).RIGHT
]
WRONG = [
    pytest.param(name, exercise, wrong, id=f"{name}-{exercise}-{i}")
    for name in corpus.NAMES
    for exercise, entries in corpus.answers(name).WRONG.items()
    for i, wrong in enumerate(entries)
]
every_assignment = pytest.mark.parametrize("name", corpus.NAMES)
every_exercise = pytest.mark.parametrize(
    ("name", "exercise"), EXERCISES, ids=[f"{n}-{e}" for n, e in EXERCISES]
)
every_wrong = pytest.mark.parametrize(("name", "exercise", "wrong"), WRONG)


@every_assignment
def test_every_exercise_has_two_right_answers_and_five_wrong_ones(name):
    programs, graded = corpus.answers(name), corpus.assignment(name).graded
    assert set(programs.RIGHT) == set(graded)
    for exercise, entry in graded.items():
        known = len(entry.exercise.misconceptions)
        assert known + len(programs.WRONG.get(exercise, ())) >= 5, exercise
        assert programs.RIGHT[exercise]  # and the solution
    assert len(corpus.NAMES) == len(list(corpus.ROOT.glob("*/exercises.py")))


@every_exercise
def test_the_solution_and_another_program_earn_everything(name, exercise):
    for source in (None, *corpus.answers(name).RIGHT[exercise]):
        judgement = corpus.judge(name, exercise, corpus.answer(name, exercise, source))
        assert judgement.passed, judgement.message
        assert set(judgement.earned) == {judgement.wanted}


@every_exercise
def test_a_stub_is_not_attempted_and_earns_nothing(name, exercise):
    source = corpus.stubbed(corpus.cells(name)[f"{exercise}-answer"])
    if not callable(corpus.assignment(name).graded[exercise].exercise.answer):
        with pytest.raises(NotImplementedError):
            corpus.answer(name, exercise, source)
        return
    judgement = corpus.judge(name, exercise, corpus.answer(name, exercise, source))
    assert "not attempted" in judgement.message
    assert set(judgement.earned) == {0}


@every_wrong
def test_a_wrong_answer_gets_the_reason_and_loses_hidden_points(name, exercise, wrong):
    judgement = corpus.judge(name, exercise, corpus.edited(name, exercise, *wrong))
    reason = corpus.public(name)[exercise].reason
    assert corpus.problem(judgement, reason) is None


@every_exercise
def test_a_misconception_gets_its_sentence_and_loses_hidden_points(name, exercise):
    for wrong, sentence in (
        corpus.assignment(name).graded[exercise].exercise.misconceptions
    ):
        judgement = corpus.judge(name, exercise, wrong)
        assert corpus.problem(judgement, sentence) is None


@every_exercise
def test_knowing_the_notebook_s_cases_by_heart_earns_no_hidden_part(name, exercise):
    graded = corpus.assignment(name).graded[exercise]
    if not callable(graded.exercise.answer):
        return
    judgement = corpus.judge(name, exercise, corpus.recited(name, exercise))
    assert judgement.passed
    assert max(judgement.earned) == 0


@every_exercise
def test_students_get_different_hidden_cases(name, exercise):
    graded = corpus.assignment(name).graded[exercise]
    if callable(graded.exercise.answer):
        drawn = {
            repr([graded.cases(part, seed) for part in corpus.hidden_parts(graded)])
            for seed in (1, 2)
        }
        assert len(drawn) == 2


@every_assignment
def test_a_notebook_imports_numpy_mplab_and_torch_only_where_it_trains(name):
    text = "\n".join(corpus.cells(name).values())
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) - {"math"}
    assert imported <= {"numpy", "mplab"} | (
        {"torch"} if name in ("a5", "a7") else set()
    )


@every_assignment
def test_one_question_is_graded_by_hand_and_stands_in_a_cell_of_its_own(name):
    notebook = nbformat.read(corpus.ROOT / name / f"{name}.ipynb", as_version=4)
    by_hand = [
        i
        for i, cell in enumerate(notebook.cells)
        if (mark := cell.metadata.get("nbgrader", {})).get("grade")
        and mark.get("solution")
    ]
    assert len(by_hand) == 1
    assert notebook.cells[by_hand[0]].cell_type == "markdown"
    question = notebook.cells[by_hand[0] - 1]
    assert question.cell_type == "markdown" and "nbgrader" not in question.metadata


@every_assignment
def test_a_notebook_is_stored_without_outputs(name):
    raw = json.loads((corpus.ROOT / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert not any(
        cell.get("outputs") or cell.get("execution_count") for cell in raw["cells"]
    )
