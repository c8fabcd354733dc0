"""What assignments and values as text say to odd calls: the function and the argument, by name."""

import json

import numpy as np
import pytest
from odd_calls import HUGE, ODD, Asked, refusal_test

from mplab import FP16
from mplab.course import Exercise
from mplab.grading import Graded, Part, decode_value, encode_value, load_public
from mplab.grading._exercises import grade_exercise
from mplab.grading._values import Foreign

WORD = (tuple(x for x in ODD["object"] if not isinstance(x, str)), (None, 5, FP16))
NUMBER = ("real", (-1.0,))
EXERCISE = Exercise(abs, "Because.", cases=[1.0])
PART = Part("all", 1.0, "Look again.", [1.0])
GRADED = Graded("f", EXERCISE, [PART])
NO_VALUES = (
    *(object(), len, {1.0}, b"1", 1j, np.ones(2, complex), HUGE, -HUGE, {1: 2}, slice(None)),
    *([[[[[[[[1]]]]]]]], [1] * 30_000, "x" * 20_000, np.ones(1 << 18), np.array(["a"])),
    *(np.datetime64("2020", "D"), np.array([None]), np.ma.masked, range(3), np.longdouble(1)),
    np.ma.array([1.0, 2.0], mask=[0, 1]),
)
NO_TEXTS = (
    *(object(), len, {1.0}, b"1", 1j, 1, 1.5, "1", [], (), {}, {"a": 1, "b": 2}, {5: "x"}),
    *({None: "x"}, {HUGE: "x"}, {"int": 5}, {"int": "5"}, {"float": "1.5"}, {"x": "y"}),
    *({"float": "0x1.8p+5000"}, {"dict": [["a"]]}, {"dict": [[1, None]]}, {"list": "ab"}),
    *({"tuple": {}}, {"text": "x" * 20_000}),
    *({"format": "FP3"}, {"facts": "x"}, {"facts": "x 5 5 1 IEEE 9 9"}, np.ones(2), np.ma.masked),
    {"float": "0x1.0000000000000p+9999"},
    *(
        {"array": "float64", "shape": [1], "data": "AAAAAAAAAAA=", **odd}
        for odd in (
            {"array": "object"}, {"array": 5}, {"shape": 1}, {"shape": [HUGE]}, {"shape": [-1]},
            {"shape": [True]}, {"shape": [2]}, {"shape": [1] * 9}, {"data": 5}, {"data": "%"},
            {"shape": [0, 1 << 20, 1 << 20, 1 << 20, 1 << 20], "data": ""},
            {"array": "bool", "data": "Ag=="},
        )
    ),
)  # fmt: skip


def asked(function, call, right, **kinds):
    return Asked(function, call, right, kinds)


GRADING = [
    asked("Part", Part, {"name": "all", "points": 1.0, "hint": "Look.", "cases": [1.0]},
          name=WORD, points=NUMBER, hint=WORD,
          cases=(tuple(x for x in ODD["object"]
                       if not (callable(x) or isinstance(x, list | tuple))), ("ab", 5, iter([1])))),
    asked("Graded", Graded,
          {"asks": "f", "exercise": EXERCISE, "parts": [PART], "seconds": 20.0},
          asks=WORD, exercise=("object", (None, Exercise)), seconds=NUMBER,
          parts=(tuple(x for x in ODD["object"] if not isinstance(x, list) or x),
                 (None, PART, [EXERCISE], {"all": PART}))),
    asked("cases", GRADED.cases, {"part": PART, "seed": 0}, part=("object", (None, Part)),
          seed="count"),
    asked("load_public", load_public, {"path": "checks.json"},
          path=("object", (None, 5, "no/such", "x" * 5000, "\0"))),
    asked("encode_value", encode_value, {"value": 1.0}, value=(NO_VALUES,)),
    asked("decode_value", decode_value, {"data": {"int": "0x1"}}, data=(NO_TEXTS,)),
]  # fmt: skip


test_every_odd_call_is_refused_by_name = refusal_test(GRADING, untried=("load_public",))


@pytest.mark.parametrize("odd", [*NO_VALUES, *NO_TEXTS], ids=lambda odd: type(odd).__name__)
def test_what_cannot_cross_is_foreign_and_no_other_error(odd):
    with pytest.raises(Foreign):
        decode_value(odd)


@pytest.mark.parametrize(
    "table",
    ["[]", "5", '"a"', "{}", '{"exercises": []}', '{"exercises": {"a": []}}', "[" * 9, "\x00",
     '{"exercises": {"a": {"reason": "", "argument": "x", "tolerance": 0, "format": null, '
     '"sealed": []}}}', '{"exercises": {"a": {"reason": "", "argument": "x", "tolerance": "0", '
     '"format": "FP3", "cases": 5, "outcomes": 5}}}'],
)  # fmt: skip
def test_a_file_that_is_no_public_table_is_refused_by_name(tmp_path, table):
    file = tmp_path / "checks.json"
    file.write_text(table)
    with pytest.raises(ValueError, match="load_public: path must be the checks"):
        load_public(file)


# What a message may tell -------------------------------------------------------------------
class Raising:
    """A submission whose every case ends in an exception that tells its argument."""

    def __init__(self, name):
        self.name = name

    def ask(self, name, cases, *, seconds=None, uses=None):
        told = [{"raised": self.name, "message": f"my secret {json.dumps(case)}"} for case in cases]
        return {"values": told}


@pytest.mark.parametrize(
    "raised", ["ValueError", "KeyError", "OSError", "SecretError", "my secret"]
)
def test_the_message_of_a_hidden_case_tells_nothing_that_the_submission_wrote(raised):
    exercise = Exercise(lambda x: x, "Because.", cases=[1.0])
    parts = [Part("shown", 1, "Look."), Part("listed", 1, "Look.", [0.5]),
             Part("drawn", 1, "Look.", lambda rng: [rng.normal() for _ in range(2)])]  # fmt: skip
    shown, *hidden = (
        outcome.message
        for outcome in grade_exercise(Graded("f", exercise, parts), Raising(raised), lambda part: 0)
    )
    known = raised if raised in ("ValueError", "KeyError") else "an exception"
    assert shown.startswith(f"The first of them raised {raised}: ")
    assert "my secret" in shown
    assert hidden[0] == f"The first of them raised {known}. Look."
    assert hidden[1] == f"2 of 2 cases are wrong. The first of them raised {known}. Look."


def test_an_answer_that_is_no_value_is_told_in_words_of_ours():
    class Foreigner:
        def ask(self, name, cases, *, seconds=None, uses=None):
            return {"values": [{"foreign": "a socket"}] * len(cases)}

    graded = Graded("f", EXERCISE, [PART])
    (outcome,) = grade_exercise(graded, Foreigner(), lambda part: 0)
    assert outcome.message == ("The first of them gave no value that can be handed in. Look again.")
