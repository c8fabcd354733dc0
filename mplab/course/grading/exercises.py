"""Graded exercises: a reference, public cases in the notebook, and hidden cases outside it.

An assignment's `exercises.py` holds `GRADED`, exercises by the id of their grade cell. Only
the teacher has this file, and only the grader reads it. It gives the public table that goes out
with the notebook (`public_table`) and the grade (`ask_parts`, `outcomes_of`).
"""

from __future__ import annotations

import builtins
import hmac
import json
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mplab.course.exercises.calls import refusal
from mplab.course.exercises.exercise import (
    CHANGES_ARGUMENTS,
    Exercise,
    HashedValue,
    Misconception,
    equal,
    misconception_of,
)
from mplab.course.exercises.lessons import EXERCISES
from mplab.course.grading.serialization import (
    UnsupportedValue,
    decode_own,
    decode_value,
    encode_value,
    key_of,
)
from mplab.numbers import codes, rounding
from mplab.numbers.checks import quoted
from mplab.numbers.formats import FORMATS

if TYPE_CHECKING:
    from mplab.course.grading.sandbox import Session

_MAX_CASES = 2_000
"""The most cases of one part, which are sent to a submission at once."""


MOST_INTERRUPTS = 2
"""How often an exercise may run too long before nothing more is asked of it."""

ALL_INTERRUPTS = 8
"""How often a submission may."""

NOT_ASKED = "Not asked: what came before it ran too long and was stopped."


@dataclass(frozen=True)
class Part:
    """A group of cases that earn points only if all of them are right.

    Args:
        name: what the cases have in common, for the feedback.
        points: earned if all cases are right; 0 otherwise.
        hint: one sentence for students who fail this part, but not all, without the answer.
        cases: the cases, or a function that makes them from a generator seeded for each student.
            None: the public cases, or the value if the exercise asks for one.
    """

    name: str
    points: float
    hint: str
    cases: Sequence[Any] | Callable[[np.random.Generator], Iterable[Any]] | None = None


@dataclass(frozen=True)
class Graded:
    """An exercise of an assignment.

    Args:
        asks: the name in the notebook that holds the answer, a function or a value.
        exercise: the reference, the public cases and the misconceptions.
        parts: what is graded; at least one has cases that the notebook does not show.
        seconds: time limit for the cases of one part.
    """

    asks: str
    exercise: Exercise
    parts: Sequence[Part]
    seconds: float = 20.0

    @property
    def points(self) -> float:
        """The points of all parts, of which 0.1 and 0.2 are 0.3."""
        return round(float(sum(part.points for part in self.parts)), 9)

    def cases(self, part: Part, seed: int) -> list[Any]:
        """Return a part's cases for a student's seed; [None] if the exercise asks for a value."""
        if not callable(self.exercise.answer):
            return [None]
        cases = self.exercise.cases if part.cases is None else part.cases
        return list(cases(np.random.default_rng(seed)) if callable(cases) else cases)


class Assignment(NamedTuple):
    """The contents of an assignment's `exercises.py`."""

    graded: dict[str, Graded]
    warm: str
    rubric: Mapping[str, Mapping[str, float]]
    """The parts that a person gives points for, by the id of the cell of a written answer."""


def load_assignment(path: Path) -> Assignment:
    """Run a teacher's `exercises.py`; return its `GRADED`, and `WARM` and `RUBRIC` if given.

    Raises:
        ValueError: it has no `GRADED`, or an exercise in it cannot be graded.
    """
    module = ModuleType(f"mplab_exercises_{path.parent.name}")
    module.__file__ = str(path)
    try:
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
        graded = getattr(module, "GRADED", None)
        if not isinstance(graded, dict) or not graded:
            raise TypeError(f"it must define GRADED, a dictionary; got {graded!r}")
        broken = {name: _broken_rule(entry) for name, entry in graded.items()}
    except Exception as error:
        raise ValueError(
            f"{path} must run to its end; got\n{traceback.format_exc()}"
        ) from error
    for name, problem in broken.items():
        if problem:
            raise ValueError(f"{path}: {name}: {problem}.")
    return Assignment(
        graded, str(getattr(module, "WARM", "")), getattr(module, "RUBRIC", {})
    )


def _broken_rule(entry: Graded) -> str | None:
    """Return the first rule that an exercise breaks; None if it breaks none."""
    if isinstance(entry.parts, Part):
        return "parts must be a list of them; got one: put it in a list"
    if not entry.parts or not all(0 < part.points < math.inf for part in entry.parts):
        return "each exercise needs parts, and each part points"
    function = callable(entry.exercise.answer)
    if function and all(part.cases is None for part in entry.parts):
        return "at least one part needs cases that the notebook does not show"
    for part in entry.parts:
        cases = entry.cases(part, 0)
        if not 0 < len(cases) <= _MAX_CASES:
            return f"{part.name}: 1 to {_MAX_CASES} cases; got {len(cases)}"
    return None


def seed_for(key: bytes, *words: str) -> int:
    """Derive a seed from these words; nobody can compute it without the key.

    Examples:
        >>> seed_for(b"key", "a1", "s01") == seed_for(b"key", "a1", "s01")
        True
        >>> seed_for(b"key", "a1", "s01") == seed_for(b"key", "a1", "s02")
        False
    """
    message = json.dumps(words).encode()
    return int.from_bytes(hmac.digest(key, message, "sha256")[:16], "big")


class Outcome(NamedTuple):
    """The result of one part, for the grade and the feedback."""

    part: str
    points: float
    earned: float
    message: str


def ask_parts(
    graded: Graded,
    session: Session,
    seed: Callable[[str], int],
    replies: list[Reply],
) -> None:
    """Ask for the parts that have no reply yet, and append each, so that it stays after a crash.

    Args:
        graded: the exercise.
        session: the submission. Its replies are not trusted.
        seed: the seed of a part, by its name.
        replies: those that are there.
    """
    stopped = session.interrupts
    for part in graded.parts[len(replies) :]:
        cases = graded.cases(part, seed(part.name))
        if session.interrupts < min(stopped + MOST_INTERRUPTS, ALL_INTERRUPTS):
            replies.append(_reply_to(graded, cases, session))
        else:
            replies.append(Reply(cases, message=NOT_ASKED))


def outcomes_of(graded: Graded, replies: Sequence[Reply]) -> list[Outcome]:
    """Return the outcome of each part from its reply."""
    hint = known = ""
    if any(reply.wrong for reply in replies):
        hint = known = _misconception(graded.exercise, replies)
    if len(replies) > 1 and all(reply.wrong for reply in replies):
        hint = hint or graded.exercise.reason  # a part's own hint would miss the point
    outcomes = []
    for part, reply in zip(graded.parts, replies, strict=True):
        message = reply.message
        if reply.wrong:
            message = _explanation(
                reply,
                hint or part.hint,
                named=bool(known),
                by_call=callable(graded.exercise.answer),
            )
        earned = 0.0 if message else part.points
        outcomes.append(Outcome(part.name, part.points, earned, message))
    return outcomes


class Reply(NamedTuple):
    """What a submission gave for the cases of one part."""

    cases: list[Any]
    given: Sequence[Any] = ()
    """A value or an exception for each case; nothing if it gave none that can be compared."""
    wrong: Sequence[int] = ()
    """The cases that differ from the reference."""
    message: str = ""
    """The reason why the part earns nothing although no case differs."""
    missing: bool = False
    """Whether nothing of the name was there."""


def _reply_to(graded: Graded, cases: list[Any], session: Session) -> Reply:
    """Ask a submission for the cases of one part, and compare."""
    uses = graded.exercise.uses
    encoded = None
    if callable(graded.exercise.answer):
        encoded = [encode_value(_arguments_of(case)) for case in cases]
    answer = session.ask(graded.asks, encoded, seconds=graded.seconds, uses=uses)
    if answer.get("interrupted"):
        return Reply(cases, message=f"Stopped after {graded.seconds:g} seconds.")
    if answer.get("missing"):
        message = f"The notebook defines no {graded.asks} at this point."
        if encoded is None:
            message = f"Not attempted: nothing is called {graded.asks} at this point."
        return Reply(cases, message=message, missing=True)
    values = answer.get("values")
    if not isinstance(values, list) or len(values) != len(cases):
        message = "The answer is unreadable."
        if "kind" in answer:
            message = f"{graded.asks} is not a function."
        return Reply(cases, message=message)
    got = [_read_outcome(entry) for entry in values]
    exercise = replace(graded.exercise, cases=cases)
    wanted = exercise.outcomes(exercise.answer)
    wrong = [i for i in range(len(cases)) if not equal(got[i], wanted[i], exercise)]
    if wrong:
        return Reply(cases, got, wrong)
    called = answer.get("called")
    message = ""
    if uses is not None and isinstance(called, list) and called:
        message = refusal(_public_name(called[0]), uses)
    elif answer.get("changed"):
        message = CHANGES_ARGUMENTS
    return Reply(cases, got, message=message)


def _misconception(exercise: Exercise, replies: Sequence[Reply]) -> str:
    """Return the sentence of the misconception that agrees in every case of every part."""
    if not all(reply.given for reply in replies):
        return ""
    cases = [case for reply in replies for case in reply.cases]
    got = [outcome for reply in replies for outcome in reply.given]
    if not callable(exercise.answer):
        cases = cases[:1]
        got = got[:1]
    return misconception_of(replace(exercise, cases=cases), got)


def _public_name(called: Any) -> str:
    """Return the name of a function that an answer called, if it is one that learners know.

    A submission can replace what watches it, and send a text of its own with a hidden input in it.
    """
    name = str(called).removesuffix(" with overflow")
    found = getattr(codes, name, None) or getattr(rounding, name, None)
    ours = str(getattr(found, "__module__", "")).startswith("mplab.")
    return str(called) if ours and name[0] != "_" else "functions"


def first_wrong(graded: Graded, reply: Reply) -> str:
    """Show the first case that a teacher's own solution gets wrong; empty if there is none."""
    if not reply.wrong:
        return ""
    first = reply.wrong[0]
    exercise = replace(graded.exercise, cases=[reply.cases[first]])
    (wanted,) = exercise.outcomes(exercise.answer)
    return (
        f"for {reply.cases[first]!r:.300} wanted {wanted!r:.300}, "
        f"got {reply.given[first]!r:.300}"
    )


def _arguments_of(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


class _Unreadable(Exception):
    """Stands for an answer that is not a value; it equals no value of a reference."""


class _CustomException(_Unreadable):
    """Stands for an exception that is not built in."""


def _read_outcome(entry: Any, decode: Callable[[Any], Any] = decode_value) -> Any:
    """Read the outcome of one case: a value, or the exception that was raised instead."""
    try:
        if "raised" in entry:
            return exception_named(entry["raised"], entry.get("message"))
        return decode(entry["value"])
    except (UnsupportedValue, RecursionError, LookupError, TypeError, AttributeError):
        return _Unreadable()


def exception_named(name: Any, message: Any) -> Exception:
    """Return the built-in exception of this name; for other names, one that equals no other."""
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    text = message[:300] if isinstance(message, str) else ""
    # These take more than one text.
    special = (SyntaxError, UnicodeError, ExceptionGroup, OSError)
    ours = isinstance(kind, type) and issubclass(kind, Exception)
    if kind is not None and ours and not issubclass(kind, special):
        return kind(text)
    return _CustomException(f"{str(name)[:80]}: {text}")


def _explanation(reply: Reply, hint: str, *, named: bool, by_call: bool) -> str:
    """Explain what is wrong, in one sentence, without the value of a hidden case.

    Args:
        reply: of one part.
        hint: a sentence about the numbers.
        named: whether it names a known mistake; else it gives way where no number came.
        by_call: whether a function was asked, and not a value.
    """
    first = reply.given[reply.wrong[0]]
    if isinstance(first, NotImplementedError):
        return "Not attempted."
    total = len(reply.given)
    kinds = {type(value) for value in reply.given}
    if kinds == {type(None)} and by_call and not named:
        return "The function returned None: does it print its answer instead?"
    if total > 1 and len(kinds) == 1 and isinstance(first, Exception) and not named:
        return f"Each of the {total} cases {_raised(first)}."
    count = f"{len(reply.wrong)} of {total} cases are wrong. " if total > 1 else ""
    if isinstance(first, Exception):
        count += f"The first of them {_raised(first)}. "
    return count + hint


def _raised(error: Exception) -> str:
    """Name the exception that came instead of a value, without its text.

    The text, and the name of a student's own exception, could reveal a hidden case: this one, or
    an earlier one that the submission kept.
    """
    if type(error) is _Unreadable:
        return "gave no value that can be handed in"
    if isinstance(error, _CustomException):
        return "raised an exception"
    return f"raised {type(error).__name__}"


# The public table ------------------------------------------------------------------------
_PUBLIC = ("reason", "argument", "tolerance", "signed_zeros", "uses")
"""What a table holds of an exercise as it is; older tables lack the fourth."""


def _replayed(outcomes: Mapping[str, Any], *arguments: Any) -> Any:
    """Return what a reference gave for these arguments, without its source, or raise it.

    Raises:
        KeyError: these arguments were not recorded.
    """
    outcome = _read_outcome(outcomes[key_of(arguments)], decode_own)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def public_table(graded: Mapping[str, Graded]) -> str:
    """Write the exercises as text for `load_public`: public cases and outcomes, no reference.

    Exactness:
        On the public cases, the notebook's checks decide as the exercises themselves do.

    Raises:
        ValueError: a case or an outcome of an exercise cannot be written.
    """
    table = {}
    for name, entry in graded.items():
        try:
            table[name] = _public_entry(entry.exercise)
        except ValueError as error:
            raise ValueError(
                f"{name}: its cases or outcomes cannot be written into checks.json: {error}"
            ) from error
    return (
        json.dumps({"version": 1, "exercises": table}, indent=1, sort_keys=True) + "\n"
    )


def _public_entry(exercise: Exercise) -> dict[str, Any]:
    fmt = exercise.fmt.name if exercise.fmt and exercise.fmt.name in FORMATS else None
    entry: dict[str, Any] = {name: getattr(exercise, name) for name in _PUBLIC}
    entry["format"] = fmt
    answers = [Misconception(exercise.answer, ""), *exercise.misconceptions]
    if not callable(exercise.answer):
        entry["sealed"] = [
            [text, HashedValue.of(answer).digest] for answer, text in answers
        ]
        return entry
    entry["cases"] = [encode_value(_arguments_of(case)) for case in exercise.cases]
    entry["outcomes"] = [
        [text, [_encode_outcome(o) for o in exercise.outcomes(answer)]]
        for answer, text in answers
    ]
    return entry


def _encode_outcome(outcome: Any) -> dict[str, Any]:
    if isinstance(outcome, Exception):
        return {"raised": type(outcome).__name__, "message": str(outcome)[:300]}
    return {"value": encode_value(outcome)}


def load_public(path: str | Path = "checks.json") -> list[str]:
    """Load an assignment's public exercises, so that `mplab.check` knows them.

    Args:
        path: the table that came with the notebook.

    Returns:
        The names of its exercises.

    Raises:
        ValueError: the file is not such a table.
    """
    try:
        table = json.loads(Path(path).read_bytes())["exercises"]
        exercises = {name: _from_public(entry) for name, entry in table.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"load_public: path must be the checks.json that came with the notebook; got "
            f"{quoted(str(path))} ({str(error)[:200]}). Keep both in one folder."
        ) from error
    EXERCISES.update(exercises)
    return list(exercises)


def _from_public(entry: Mapping[str, Any]) -> Exercise:
    common = {name: entry[name] for name in _PUBLIC if name in entry}
    common["fmt"] = FORMATS[entry["format"]] if entry["format"] else None
    if "sealed" in entry:
        answers = [
            Misconception(HashedValue(digest), text) for text, digest in entry["sealed"]
        ]
    else:
        keys = [json.dumps(case, sort_keys=True) for case in entry["cases"]]
        answers = [
            Misconception(
                partial(_replayed, dict(zip(keys, outcomes, strict=True))), text
            )
            for text, outcomes in entry["outcomes"]
        ]
        cases = [decode_own(case) for case in entry["cases"]]
        # One argument is shown as itself; one that is a tuple would be taken for several.
        common["cases"] = tuple(
            case[0] if len(case) == 1 and type(case[0]) is not tuple else case
            for case in cases
        )
    reference, *wrong = answers  # the first has no sentence: it is right
    return Exercise(answer=reference.answer, misconceptions=tuple(wrong), **common)
