"""What the checks of the course say to odd calls: the function and the argument, by name."""

import math
from fractions import Fraction

import numpy as np
import pytest
from odd_calls import HUGE, ODD, Asked, refusal_test

from mplab import FP16
from mplab.course import Arguments, Exercise, Misconception, Sealed, check, equal
from mplab.course.files import course_folder, replace_file

WORD = (tuple(x for x in ODD["object"] if not isinstance(x, str)), (None, 5, FP16))
VALUE = Exercise(1.0, "Because.")
NO_VALUES = (
    *(None, object(), len, {}, {1.0}, "1", b"1", 1j, np.ones(2, complex), HUGE, [HUGE], ["a"]),
    *([None], [[1.0], [1.0, 2.0]], np.datetime64("2020", "D"), np.ma.masked, slice(None)),
    np.ma.array([1.0, 2.0], mask=[0, 1]),
)


def asked(function, call, right, **kinds):
    return Asked(function, call, right, kinds)


COURSE = [
    asked("check", check, {"name": "flush_threshold", "answer": 2.0**-25, "seconds": 10.0},
          name="word", seconds=("extended", (0, -1.0, float("nan"), HUGE))),
    asked(
        "Exercise",
        Exercise,
        {"answer": abs, "reason": "Because.", "argument": "x", "cases": [1.0],
         "misconceptions": [Misconception(max, "No.")], "fmt": None, "tolerance": 0.0},
        reason=WORD, argument=WORD, tolerance=("real", (-1.0,)),
        fmt=(tuple(x for x in ODD["format"] if x is not None),),
        cases=(tuple(x for x in ODD["object"] if not isinstance(x, list | tuple | np.ndarray)),
               (None, [], "ab", 5, iter([1]))),
        misconceptions=(tuple(x for x in ODD["object"] if not isinstance(x, list) or x),
                        (None, "ab", [(1, "No.")], Misconception(max, "No."),
                         [Misconception(max, 5)])),
    ),
    asked("equal", equal, {"a": 1.0, "b": 1.0, "exercise": VALUE},
          exercise=("object", (None, Exercise, 0.0))),
    asked("Sealed.of", Sealed.of, {"value": 1.0}, value=(NO_VALUES,)),
    asked("Arguments", lambda values: Arguments(values), {"values": [1.0]},
          values=((None, 5, "ab", b"ab", 1.0, len),)),
    asked("course_folder", course_folder, {"name": "data"}, name="word"),
    asked("replace_file", replace_file, {"path": "/dev/null/x", "content": b""},
          path=(tuple(x for x in ODD["object"] if not isinstance(x, str)), (None, 5, "")),
          content=(tuple(x for x in ODD["object"] if not isinstance(x, bytes)), (None, "text", 5))),
]  # fmt: skip


test_every_odd_call_is_refused_by_name = refusal_test(COURSE, untried=("replace_file",))


@pytest.mark.parametrize("odd", [*NO_VALUES, True], ids=lambda odd: type(odd).__name__)
def test_an_odd_answer_is_wrong_and_no_error(odd):
    assert equal(odd, 0.5, VALUE) is False
    assert equal(odd, Sealed.of(0.5), VALUE) is False
    assert not check("flush_threshold", odd)


def test_what_is_right_though_unusual_stays_right():
    assert Sealed.of(Fraction(1, 2)) == Sealed.of(0.5) == Sealed.of(np.float16(0.5))
    assert not equal(np.array([0.5 + 1j]), [0.5], VALUE)
    assert Sealed.of(True) == Sealed.of(1)
    assert check("flush_threshold", 2.0**-25, seconds=math.inf)
    assert check("flush_threshold", 2.0**-25, seconds=np.float32(3))
    assert Arguments(()) == ()
    assert Exercise(abs, "Because.", cases=range(3)).outcomes(abs) == [0, 1, 2]
    assert Exercise(abs, "Because.", cases=np.ones(2)).outcomes(abs) == [1.0, 1.0]
