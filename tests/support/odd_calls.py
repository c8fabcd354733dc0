"""Odd calls: each argument of a function in turn as something that it does not take.

The message of each must name the function, and as its subject the argument.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from fronts import offered

from mplab import FP16, Rounding

HUGE = 10**400
"""An integer that no float holds."""

NOTHING = (None, object(), slice(None), len, FP16, {}, {1.0}, b"1", 1j, np.ones(2, complex))
BOOLEANS = (True, np.bool_(False), np.ones(2, bool))
WORDS = ("no", "", "1e", ["a"], np.array(["a"]), np.array([None]), np.datetime64("2020", "D"))
RAGGED = ([[1.0], [1.0, 2.0]], [[], 1.0])
MASKED = (np.ma.array([1.0, 2.0], mask=[0, 1]), np.ma.masked)
ARRAYS = ([1.0], (1,), [], np.ones(2), np.ones((1, 1)))
ENDLESS = (float("nan"), float("inf"), -float("inf"))
AXES = (5, 2, -3, (0, 1), (0,), 0.0)
NAMES_OF_FORMATS = (16, np.float16, "FP16", [FP16], np.dtype("float16"))

ODD = {
    "values": (*NOTHING, *BOOLEANS, *WORDS, *RAGGED, *MASKED, 0.1, np.float64(1e300), HUGE, -HUGE),
    "numbers": (*NOTHING, *BOOLEANS, *WORDS, *RAGGED, *MASKED),
    "reals": (*NOTHING, *BOOLEANS, *WORDS, *RAGGED, *MASKED, "1.0", Fraction(1, 2)),
    "switch": (*NOTHING, *WORDS, *ARRAYS, *ENDLESS, 0, 1, 1.0, np.array(True), Rounding),
    "count": (*NOTHING, *BOOLEANS, *WORDS, *ARRAYS, *ENDLESS, 1.5, 2.0, "1", -1, -HUGE),
    "whole": (*NOTHING, *BOOLEANS, *WORDS, *ARRAYS, *ENDLESS, 1.5, 2.0, "1"),
    "extended": (*NOTHING, *BOOLEANS, *WORDS, *ARRAYS, "1.0"),
    "real": (*NOTHING, *BOOLEANS, *WORDS, *ARRAYS, *ENDLESS, "1.0", HUGE, -HUGE),
    "word": (*NOTHING, *BOOLEANS, *WORDS, *ARRAYS, *ENDLESS, 5, "Nearest", "sequential "),
    "axis": (*NOTHING[1:], *BOOLEANS, *WORDS, *ARRAYS, *ENDLESS, *AXES, HUGE, -HUGE),
    "format": (*NOTHING[:4], *NOTHING[5:], *BOOLEANS, *WORDS, *ARRAYS, *NAMES_OF_FORMATS),
    "member": (*NOTHING, *BOOLEANS, *WORDS, *ARRAYS, 0, 1, "TIES_TO_EVEN", Rounding),
    "object": (*NOTHING[1:], *BOOLEANS, *WORDS, *ARRAYS, *ENDLESS, 0, 1, Rounding),
}
"""What is odd for each kind of argument."""


@dataclass(frozen=True)
class Asked:
    """A function, arguments that are right, and what kind each of them is.

    Attributes:
        name: what its messages begin with.
        call: takes all arguments as keywords.
        right: arguments with which it works.
        kinds: what is odd for an argument: a kind of `ODD`, more values, or both.
        subjects: other words that a message may call an argument.
    """

    name: str
    call: object
    right: dict
    kinds: dict
    subjects: dict = field(default_factory=dict)

    def odd_calls(self):
        """The arguments of each odd call, and which of them is odd."""
        for argument, kinds in self.kinds.items():
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                for odd in ODD[kind] if isinstance(kind, str) else kind:
                    yield argument, {**self.right, argument: odd}

    def complaints(self):
        """What is wrong with the answers to the odd calls."""
        for argument, arguments in self.odd_calls():
            told = f"{self.name}({argument}={shown(arguments[argument])})"
            names = "|".join(map(re.escape, (argument, *self.subjects.get(argument, ()))))
            subject = re.compile(rf"{re.escape(self.name)}: (\w+(, | and ))*({names})\b")
            try:
                got = self.call(**arguments)
            except (TypeError, ValueError) as error:
                message = str(error)
                if not subject.match(message):
                    yield f"{told}: {type(error).__name__}: {message}"
                elif len(message) > 700 or "; got " not in message or message[-1] not in ".)":
                    yield f"{told}: no advice, or too long: {message}"
            except Exception as error:
                yield f"{told}: {type(error).__name__}: {error}"
            else:
                yield f"{told}: accepted: {shown(got)}"


def refusal_test(everything, untried=()):
    """A test that each odd call is refused by name, and that what it is made from is right.

    `untried` are names whose right calls are left out: slow ones, or those that leave a file.
    """

    @pytest.mark.parametrize("asked", everything, ids=lambda asked: asked.name)
    def refused(asked):
        if asked.name not in untried:
            asked.call(**asked.right)
        complaints = list(asked.complaints())
        assert not complaints, f"{len(complaints)} of them:\n" + "\n".join(complaints)

    return refused


def front_test(everything, front, *, but, least):
    """A test that all names of a front `but` some are asked, in more than `least` odd calls."""

    def asked_often():
        asked = {a.name.split(".")[0] for a in everything}
        assert not set(offered(front)) - set(but) - asked, "names that nobody asks oddly"
        assert sum(1 for a in everything for _ in a.odd_calls()) > least

    return asked_often


def shown(x):
    """An argument in one short line."""
    try:
        return f"{type(x).__name__} {' '.join(repr(x).split())[:60]}"
    except ValueError:
        return f"a huge {type(x).__name__}"


def without(kind, *names):
    """The odd values of a kind without those that are right here."""
    return tuple(x for x in ODD[kind] if not any(x is n for n in names))
