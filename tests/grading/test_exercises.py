"""Exercises: one reference decides in the notebook and in the grade, and does not leak."""

import json
import math

import corpus
import numpy as np
import pytest
from cases import run_script
from corpus import Answering
from nbformat import v4

import mplab
from mplab.course import EXERCISES, Exercise, Misconception, equal
from mplab.course.grading import Graded, Part, load_public
from mplab.course.grading.execute import write_outcomes
from mplab.course.grading.exercises import (
    Outcome,
    load_assignment,
    public_table,
    seed_for,
)

pytestmark = pytest.mark.slow


class Replying:
    """A student's kernel without the kernel: what it replies to the cases."""

    interrupts = 0

    def __init__(self, reply):
        self.reply = reply

    def ask(self, name, cases, *, seconds=None, uses=None):
        return self.reply(cases)


def graded(**changes):
    exercise = Exercise(
        answer=lambda a, b: a / b,
        reason="Divide.",
        cases=[(1.0, 2.0)],
        misconceptions=(Misconception(lambda a, b: a * b, "That multiplies."),),
        **changes,
    )
    parts = (
        Part("shown", 1, "Look again."),
        Part("hidden", 2, "Think of zero.",
             lambda rng: [(rng.normal(), 4.0), (1.0, 0.0)]),
    )  # fmt: skip
    return Graded("quotient", exercise, parts)


def test_points_of_a_tenth_add_up():
    parts = [Part(str(points), points, "Look.") for points in (0.1, 0.2)]
    assert Graded("quotient", graded().exercise, parts).points == 0.3
    outcomes = [Outcome(part.name, part.points, part.points, "") for part in parts]
    cell = v4.new_code_cell()
    write_outcomes(cell, outcomes)
    assert cell.outputs[1]["data"]["text/plain"] == "0.3"


@pytest.mark.parametrize(
    "sent", ["0x1.8p-3,0x1p0", ["x"], None, "round_to ", "x with overflow"]
)
def test_a_name_that_a_submission_sends_is_printed_only_if_it_is_mplab_s(sent):
    """It printed 80 characters of the submission's choice: a hidden input at a time."""

    exercise = graded()
    right = Answering(exercise.exercise.answer)

    def outcomes(called):
        kernel = Replying(lambda cases: right.ask("", cases) | {"called": [called]})
        return corpus.grade_exercise(exercise, kernel, len)

    for outcome in outcomes(sent):
        assert outcome.message.startswith("The answer calls mplab's functions; in this")
        assert outcome.earned == 0
    message = outcomes("round_to with overflow")[0].message
    assert message.startswith("The answer calls mplab's round_to with overflow; in")


def earned(kernel, exercise=None, seed=0):
    outcomes = corpus.grade_exercise(exercise or graded(), kernel, lambda part: seed)
    return [outcome.earned for outcome in outcomes], [
        outcome.message for outcome in outcomes
    ]


@pytest.mark.parametrize(("answer", "points", "messages"), [
    (lambda a, b: a / b, [1, 2], ["", ""]),  # its exception is right, too
    (lambda a, b: a / b if b else 0.0, [1, 0], ["", "1 of 2 cases are wrong. Think of zero."]),
    (lambda a, b: a * b, [0, 0], ["That multiplies.", "2 of 2 cases are wrong. That multiplies."]),
    # Named only if all parts show it: with a right bias, wrong subnormals were called a wrong bias.
    (lambda a, b: a * b if b == 2 else a / b, [0, 2], ["Look again.", ""]),
    # No part is right: the fault lies deeper than what a part's hint speaks of.
    (lambda a, b: a * b if b else 1.0, [0, 0], ["Divide.", "2 of 2 cases are wrong. Divide."]),
])  # fmt: skip
def test_each_part_is_earned_alone_and_says_what_is_wrong(answer, points, messages):
    assert earned(Answering(answer)) == (points, messages)


def test_an_answer_that_prints_instead_of_returning_is_told_so():
    told = "The function returned None: does it print its answer instead?"
    assert earned(Answering(lambda a, b: None)) == ([0, 0], [told, told])


def test_no_message_holds_a_hidden_case_or_its_answer():
    _, messages = earned(Answering(lambda a, b: 77.0))
    case = np.random.default_rng(0).normal()
    assert not any(str(case)[:6] in m or str(case / 4)[:6] in m for m in messages)


def test_a_missing_answer_a_stub_and_a_value_for_a_function_say_so():
    def stub(a, b):
        raise NotImplementedError

    absent = Replying(lambda cases: {"missing": True})
    assert earned(absent) == (
        [0, 0],
        ["The notebook defines no quotient at this point."] * 2,
    )
    assert earned(Answering(stub)) == ([0, 0], ["Not attempted."] * 2)
    value = Graded(
        "n", Exercise(answer=2, reason="2 is right."), (Part("the value", 1, "?"),)
    )
    told = "Not attempted: nothing is called n at this point."
    assert earned(absent, value) == ([0], [told])


NO_NAMES = [
    "SystemExit", "KeyboardInterrupt", "UnicodeDecodeError", "ExceptionGroup", "BaseException",
    "print", "x" * 10_000, "_Unreadable", ["ZeroDivisionError"],
]  # fmt: skip
LIES = [
    {}, {"values": None}, {"values": {}}, {"values": [1] * 3}, {"values": []}, {"points": 3},
    {"values": [{"value": {"eval": "1"}}] * 2}, {"values": [{"raised": "ZeroDivisionError"}] * 2},
    {"values": [{"value": True}] * 2}, {"interrupted": True}, {"kind": {}},
    {"values": [{"value": {"float": "nan"}}] * 2}, {"values": [None, None]},
    *({"values": [{"raised": name, "message": 5}] * 2} for name in NO_NAMES),
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=range(len(LIES)))
def test_a_reply_that_lies_earns_nothing_and_hurts_nobody(lie):
    assert earned(Replying(lambda cases: lie))[0] == [0, 0]


def test_after_two_things_that_ran_too_long_nothing_more_is_asked():
    def endless(cases):
        stopped.interrupts += 1
        return {"interrupted": True}

    exercise = Exercise(abs, "Because.", cases=[1.0])
    entry = Graded("f", exercise, [Part(str(i), 1, "Look.", [1.0]) for i in range(4)])
    stopped = Replying(endless)
    _, said = earned(stopped, entry)
    assert stopped.interrupts == 2
    assert ["Stopped" in text for text in said] == [True] * 2 + [False] * 2
    assert said[2].startswith("Not asked: what came before it ran too long")


def test_none_is_no_nan():
    exercise = Exercise(abs, "Because.", cases=[1.0])
    for given, wanted in (
        (None, math.nan),
        ([1.0, None], [1.0, math.nan]),
        (math.nan, None),
    ):
        assert not equal(given, wanted, exercise) and equal(wanted, wanted, exercise)
    assert equal(None, None, exercise)


@pytest.fixture
def known():
    """Exercises that a test loads are unknown after it."""
    before = dict(EXERCISES)
    yield
    EXERCISES.clear()
    EXERCISES.update(before)


def test_a_sealed_value_is_recognised_and_cannot_be_read(tmp_path, known):
    exercise = Exercise(
        answer=496, reason="Count.", misconceptions=(Misconception(512, "All."),)
    )
    entry = Graded("count", exercise, (Part("it", 1, "Count."),))
    table = public_table({"count": entry})
    assert "496" not in table
    (tmp_path / "checks.json").write_text(table)
    load_public(tmp_path / "checks.json")
    assert mplab.check("count", 496) and mplab.check("count", np.float32(496))
    assert "All." in mplab.check("count", 512).message
    for wrong in ("496", [496], 495, math.nan, None, {}):
        assert not mplab.check("count", wrong)
    assert [earned(Answering(n), entry)[0] for n in (496, 497)] == [[1], [0]]


def test_one_argument_that_is_a_tuple_stays_one(tmp_path, known):
    exercise = Exercise(lambda pair: pair[0], "The first.", cases=[((2, 3),)])
    (tmp_path / "checks.json").write_text(
        public_table({"first": Graded("first", exercise, ())})
    )
    load_public(tmp_path / "checks.json")
    assert mplab.check("first", lambda pair: pair[0])


@pytest.mark.parametrize("signed", [False, True, None])
def test_what_zeros_count_as_is_in_the_table_and_an_older_one_tells_them_apart(
    tmp_path, known, signed
):
    exercise = Exercise(
        lambda x: 0.0, "It is 0.", cases=[1.0], signed_zeros=bool(signed)
    )
    table = json.loads(public_table({"none": Graded("none", exercise, ())}))
    if signed is None:
        del table["exercises"]["none"]["signed_zeros"]
    (tmp_path / "checks.json").write_text(json.dumps(table))
    load_public(tmp_path / "checks.json")
    assert bool(mplab.check("none", lambda x: -0.0)) == (signed is False)


def test_another_student_gets_other_hidden_cases_and_the_same_one_the_same():
    def cases(seed):
        asked = []
        earned(Replying(lambda cases: asked.append(cases) or {}), seed=seed)
        return asked[1]

    seeds = [seed_for(b"key", "a1", student, "encode") for student in ("s01", "s02")]
    assert cases(seeds[0]) == cases(seeds[0]) != cases(seeds[1])
    assert seed_for(b"key", "a", "bc") != seed_for(b"key", "ab", "c")
    assert seed_for(b"other", "a1", "s01", "encode") != seeds[0]


IMPORTS = "from mplab.course.grading import *\nfrom mplab.course import *\n"


@pytest.mark.parametrize("body", ["GRADED = {}", "x = 1",
    "GRADED = {'a': Graded('f', Exercise(abs, ''), ())}",
    "GRADED = {'a': Graded('f', Exercise(abs, '', cases=[1.0]), (Part('p', 1, ''),))}",
    "GRADED = {'a': Graded('f', Exercise(abs, ''), (Part('p', 1, '', [1.0])))}",
    "GRADED = {'a': Graded('f', Exercise(abs, ''), (Part('p', 0, '', [1.0]),))}"])  # fmt: skip
def test_exercises_that_cannot_be_graded_are_refused(tmp_path, body):
    (tmp_path / "exercises.py").write_text(IMPORTS + body)
    with pytest.raises(ValueError, match=r"exercises\.py(: | must run)"):
        load_assignment(tmp_path / "exercises.py")


def test_a_student_needs_nothing_of_nbgrader():
    code = "import mplab.course.grading, sys; print(*{n.split('.')[0] for n in sys.modules})"
    loaded_there = set(run_script(code).split())
    assert not {"nbgrader", "nbformat", "sqlalchemy", "psutil"} & loaded_there


@pytest.mark.parametrize("name", corpus.NAMES)
def test_a_table_shows_public_cases_only_and_no_code(name):
    graded = corpus.assignment(name).graded
    table = json.loads(public_table(graded))["exercises"]
    assert set(table) == set(graded)
    for name, entry in table.items():
        exercise = graded[name].exercise
        assert len(entry.get("cases", [])) in (0, len(exercise.cases))
        assert ("sealed" in entry) == (not callable(exercise.answer))


@pytest.mark.parametrize(
    "table",
    ["[]", "5", "{}", '{"exercises": []}', '{"exercises": {"a": []}}', "[" * 9, "\x00",
     '{"exercises": {"a": {"reason": "", "argument": "x", "tolerance": "0", "format": "FP3", '
     '"cases": 5, "outcomes": 5}}}'],
)  # fmt: skip
def test_a_file_that_is_no_public_table_is_refused_by_name(tmp_path, table):
    file = tmp_path / "checks.json"
    file.write_text(table)
    with pytest.raises(ValueError, match="load_public: path must be the checks"):
        load_public(file)


# What a message may tell -------------------------------------------------------------------
@pytest.mark.parametrize(
    "raised", ["ValueError", "KeyError", "OSError", "SecretError", "my secret"]
)
def test_no_message_tells_what_the_submission_wrote_into_an_exception(raised):
    """In the message of a public case there once stood the hidden cases of another exercise."""
    exercise = Exercise(lambda x: x, "Because.", cases=[1.0])
    parts = [Part("shown", 1, "Look."), Part("listed", 1, "Look.", [0.5]),
             Part("drawn", 1, "Look.", lambda rng: [rng.normal() for _ in range(2)])]  # fmt: skip

    def raising(cases):
        told = [f"my secret {json.dumps(case)}" for case in cases]
        return {"values": [{"raised": raised, "message": text} for text in told]}

    _, messages = earned(Replying(raising), Graded("f", exercise, parts))
    known = raised if raised in ("ValueError", "KeyError") else "an exception"
    one = f"The first of them raised {known}. Because."
    assert messages == [one, one, f"Each of the 2 cases raised {known}."]


def test_an_answer_that_is_no_value_is_told_in_words_of_ours():
    exercise = Exercise(abs, "Because.", cases=[1.0])
    entry = Graded("f", exercise, [Part("all", 1.0, "Look again.", [1.0])])
    foreign = Replying(lambda cases: {"values": [{"foreign": "a socket"}]})
    told = "The first of them gave no value that can be handed in. Look again."
    assert earned(foreign, entry) == ([0], [told])
