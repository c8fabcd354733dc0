"""Check answers to exercises: show the smallest counterexample, never the solution.

An exercise has a right answer, cases in order of growing difficulty, and misconceptions, each with
the wrong answer that follows from it. A wrong answer gets the sentence of a misconception only if
the two agree in every case. All others get the reason, which is true of any wrong answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import starmap
from sysconfig import get_path
from traceback import extract_tb
from typing import Any, NamedTuple

import numpy as np

from mplab.course.exercises.calls import LIBRARY, refusal, watched
from mplab.course.exercises.limit import ends_within
from mplab.numbers.codes import encode, in_hex
from mplab.numbers.formats import Format

TIME_LIMIT = 10.0
"""Seconds that an answer may take for all cases; right answers take less than one second."""

ROUND_ONCE = (
    "float32 on the way can turn a number beside a tie into the tie: round once. "
    "(torch's .half() of a float64 tensor goes through float32.)"
)
"""The sentence for answers that round to float32 before they round to the format."""

CHANGES_ARGUMENTS = (
    "The answer changes its arguments, which others go on using: work on a copy."
)
"""The sentence for answers that are right, but change what they were given."""

_INSTALLED = LIBRARY, get_path("stdlib"), get_path("purelib")
"""Where no line of an answer stands; a decorator such as `np.errstate` may call it from there."""

_SHOWN = 12
"""Number of elements of an array that a counterexample prints."""


class Arguments(tuple[Any, ...]):
    """A case of several arguments: the same as a plain tuple; earlier assignments use the name."""


@dataclass(frozen=True)
class HashedValue:
    """A hashed value: an answer can be compared with it, but the value cannot be read from it."""

    digest: str

    @classmethod
    def of(cls, value: Any) -> HashedValue:
        """Hash a number or an array of numbers; −0 is not 0, and 254 is 254.0.

        Raises:
            ValueError: it is neither.
        """
        try:
            number = np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                "Exercise: an answer that is a value must be a number or an array of numbers; got "
                f"{value!r:.80}. Ask for a function that returns it."
            ) from error
        return cls(
            hashlib.sha256(f"{number.shape}".encode() + number.tobytes()).hexdigest()
        )


class Misconception(NamedTuple):
    """A common wrong answer, and the sentence that corrects it.

    The answer is a function of one case, or a value, as in `Exercise`.
    """

    answer: Any
    sentence: str


def but(answer: Callable[..., Any], sentence: str, **changes: Any) -> Misconception:
    """Make a misconception of an answer: the same function, with these options changed."""
    return Misconception(partial(answer, **changes), sentence)


def known(*pairs: tuple[Any, str]) -> tuple[Misconception, ...]:
    """Make the misconceptions of an exercise from pairs of a wrong answer and its sentence."""
    return tuple(starmap(Misconception, pairs))


@dataclass(frozen=True)
class Exercise:
    """An exercise that can be checked automatically.

    Args:
        answer: the right answer: a function of one case, or a value.
        reason: one sentence on what matters in the cases, for all other wrong answers.
        argument: the name of the argument, for the counterexample.
        cases: arguments to try, the simplest first; a tuple for several arguments; unused if
            `answer` is a value.
        misconceptions: known wrong answers.
        fmt: the format of the result; counterexamples then show its codes.
        tolerance: relative difference that still counts as equal; 0 compares numbers.
        signed_zeros: whether −0 differs from 0.
        uses: functions and classes of mplab that an answer may call, by name, and "overflow" if
            the argument of that name may be used; None for all. Attributes of a format are free.
        show: writes a case for the counterexample.
    """

    answer: Any
    reason: str
    argument: str = "x"
    cases: Sequence[Any] = (None,)
    misconceptions: Sequence[Misconception] = ()
    fmt: Format | None = None
    tolerance: float = 0.0
    signed_zeros: bool = True
    uses: Sequence[str] | None = ()
    show: Callable[[Any], str] = lambda case: _text(case, None)

    def __post_init__(self) -> None:
        if not len(self.cases):
            raise ValueError(
                "Exercise: cases must not be empty; got none. Every answer would pass: give one."
            )
        if isinstance(self.uses, str):
            raise TypeError(
                f"Exercise: uses must be a list of names, or None; got {self.uses!r}. Every "
                "answer that calls it would be refused: put it in a list."
            )
        if isinstance(self.misconceptions, Misconception):
            raise TypeError(
                "Exercise: misconceptions must be a list of them; got one. Put it in a list."
            )

    def outcomes(self, answer: Any) -> list[Any]:
        """Return the values of an answer for all cases; an exception takes the place of a value."""
        outcomes: list[Any] = []
        self.take(outcomes, answer)
        return outcomes

    def take(self, outcomes: list[Any], answer: Any) -> None:
        """Append the outcomes one by one, because an interruption could break a generator."""
        if not callable(self.answer):
            outcomes.append(answer)
            return
        for case in self.cases:
            outcomes.append(_outcome(answer, case))


def _outcome(answer: Callable[..., Any], case: Any) -> Any:
    """Return the value of an answer on a copy of the case, or the exception it raised."""
    arguments = case if isinstance(case, tuple) else (case,)
    try:
        return answer(*(_copied(x) for x in arguments))
    except NotImplementedError:
        raise
    except Exception as error:
        return error


def _copied(x: Any) -> Any:
    """Copy what an answer could change in place, so that the next answer gets the same case."""
    if type(x) in (list, tuple):
        return type(x)(_copied(item) for item in x)
    if type(x) is dict:
        return {key: _copied(item) for key, item in x.items()}
    return x.copy() if isinstance(x, np.ndarray) else x


def noticing_changes(
    answer: Callable[..., Any], changed: list[Any]
) -> Callable[..., Any]:
    """Wrap an answer so that arguments which it changes in place are appended to `changed`."""

    def wrapped(*arguments: Any) -> Any:
        before = [_frozen(x) for x in arguments]
        outcome = answer(*arguments)
        if [_frozen(x) for x in arguments] != before:
            changed.append(arguments)
        return outcome

    return wrapped


def _frozen(x: Any) -> Any:
    """Describe what an answer could change in place, bit by bit, in a form that compares."""
    if isinstance(x, np.ndarray):
        return x.shape, x.tobytes()
    if type(x) in (list, tuple):
        return [_frozen(item) for item in x]
    if type(x) is dict:
        return [(key, _frozen(item)) for key, item in x.items()]
    return repr(x)


@dataclass(frozen=True)
class Verdict:
    """Whether an answer passed, and the message to its author. True if it passed."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        colour = "#00777D" if self.passed else "#B07D00"
        return (
            f'<pre role="status" style="border-left:4px solid {colour};padding-left:8px">'
            f"{escape(self.message)}</pre>"
        )


def verdict_on(
    name: str, exercise: Exercise, answer: Any, *, seconds: float = TIME_LIMIT
) -> Verdict:
    """Check an answer to an exercise; see `mplab.check`."""
    if answer is None:
        return Verdict(
            False, f"{name}: not attempted yet. Put your answer in place of None."
        )
    if callable(exercise.answer) and not callable(answer):
        return Verdict(
            False,
            f"{name}: hand in the function itself; got {type(answer).__name__}: {answer!r}.",
        )
    outcomes: list[Any] = []
    called: list[str] = []
    changed: list[Any] = []
    if callable(exercise.answer):
        answer = watched(answer, exercise.uses, called)
        answer = noticing_changes(answer, changed)
    try:
        in_time = ends_within(seconds, lambda: exercise.take(outcomes, answer))
    except NotImplementedError:
        return Verdict(
            False, f"{name}: not attempted yet. Replace the line that raises."
        )
    if not in_time:
        return Verdict(False, _unfinished(name, exercise, len(outcomes), seconds))
    got = [_without_torch(outcome) for outcome in outcomes]
    wanted = exercise.outcomes(exercise.answer)
    pairs = enumerate(zip(got, wanted, strict=True))
    wrong = [i for i, pair in pairs if not equal(*pair, exercise)]
    if wrong:
        return Verdict(False, _counterexample(name, exercise, got, wanted, wrong))
    if called:
        return Verdict(
            False, f"{name}: right, but …\n  {refusal(called[0], exercise.uses or ())}"
        )
    if changed:
        return Verdict(
            False,
            f"{name}: right, but …\n  {CHANGES_ARGUMENTS}",
        )
    cases = f" in all {len(wanted)} cases" if len(wanted) > 1 else ""
    return Verdict(True, f"{name}: right{cases}.")


def _without_torch(value: Any) -> Any:
    """Convert the tensors of an answer to arrays, because NumPy reads only some tensors."""
    if type(value) in (list, tuple):
        return type(value)(_without_torch(item) for item in value)
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        return value.detach().cpu().double().numpy()
    return value


def _unfinished(name: str, exercise: Exercise, done: int, seconds: float) -> str:
    """Write the message that an answer did not finish, with the case at which it stopped."""
    case = exercise.cases[min(done, len(exercise.cases) - 1)]
    return "\n".join(
        [
            f"{name}: did not finish in {seconds:g} s.",
            f"  {exercise.argument:<8} = {exercise.show(case)}",
            f"  Does every loop end here? If it is only slow: check(…, seconds={10 * seconds:g}).",
        ]
    )


def _counterexample(
    name: str, exercise: Exercise, got: list[Any], wanted: list[Any], wrong: list[int]
) -> str:
    """Write the message with the first wrong case and one sentence."""
    first = wrong[0]
    yours = got[first]
    if callable(exercise.answer):
        verb = "differs" if len(wrong) == 1 else "differ"
        lines = [
            f"{name}: {len(wrong)} of {len(wanted)} cases {verb}.",
            f"  {exercise.argument:<8} = {exercise.show(exercise.cases[first])}",
            f"  expected = {_text(wanted[first], exercise.fmt)}",
        ]
    else:
        lines = [f"{name}: not yet."]
    if isinstance(yours, Exception):
        lines.append(
            f"  yours    raised {type(yours).__name__}: {yours}{_place(yours)}"
        )
    else:
        lines.append(f"  yours    = {_text(yours, exercise.fmt)}")
    if kind := _of_another_kind(yours, wanted[first]):
        return "\n".join([*lines, f"  {kind}"])
    # 2 ^ -25 is -27, and ^ 2 gives back the -25; far below -1000 the power would be 0.
    negative = type(yours) is int and -1000 < yours < 0
    if negative and equal(2.0 ** (yours ^ 2), wanted[first], exercise):
        return "\n".join([*lines, f"  {_NO_POWER}"])
    sentence = misconception_of(exercise, got) or exercise.reason
    return "\n".join([*lines, f"  {sentence}"])


_NO_TEXT = "This is text, and no text is wanted: a number has no quotation marks."

_NO_FUNCTION = (
    "This is a function: hand in a number, such as what a call of it returns."
)

_ONE_NUMBER = "One number is wanted; this is of type {}."

_SEVERAL = "Several numbers are wanted, and this is one."

_RECORD = "A dictionary is wanted; this is of type {}."

_NO_POWER = "In Python ^ is an exclusive or of bits; a power is written 2**k."


def _of_another_kind(yours: Any, wanted: Any) -> str:
    """Return the sentence for an answer whose type cannot be right; empty for any other."""
    if isinstance(yours, str) and not isinstance(wanted, str):
        return _NO_TEXT
    if callable(yours):
        return _NO_FUNCTION
    if isinstance(yours, np.ndarray) and yours.ndim == 0:
        return ""
    if isinstance(wanted, dict) and not isinstance(yours, dict | Exception):
        return _RECORD.format(type(yours).__name__)
    number = (int, float, np.number)
    several = (list, tuple, dict, set, np.ndarray)
    if isinstance(wanted, number) and isinstance(yours, several):
        return _ONE_NUMBER.format(type(yours).__name__)
    if isinstance(wanted, several) and isinstance(yours, number):
        return _SEVERAL
    return ""


def _place(error: Exception) -> str:
    """Return the line of the answer in which it raised an exception."""
    frames = [
        f
        for f in extract_tb(error.__traceback__)
        if not f.filename.startswith(_INSTALLED)
    ]
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return f"\n           in line {own[-1].lineno}: {own[-1].line}" if own else ""


def misconception_of(exercise: Exercise, got: Sequence[Any]) -> str:
    """Return the sentence of the misconception that agrees in every case; empty if none does.

    An answer that agrees in some cases only has another fault, or a second one, and a sentence
    about the first would often say something false of it.
    """
    for wrong, sentence in exercise.misconceptions:
        theirs: Iterable[Any] = [wrong]
        if callable(exercise.answer):
            theirs = (_outcome(wrong, case) for case in exercise.cases)
        if all(equal(*pair, exercise) for pair in zip(got, theirs, strict=True)):
            return sentence
    return ""


def _nothing(value: Any) -> list[bool]:
    """Return which elements of a value are None; empty if none is."""
    array = np.asarray(value)
    found = [x is None for x in array.flat] if array.dtype.kind == "O" else []
    return found if any(found) else []


_ALONE = dict, list, tuple, str, Format, np.ndarray
"""What in a sequence is compared by itself, and not as one of an array's numbers."""


def equal(a: Any, b: Any, exercise: Exercise) -> bool:
    """Compare an outcome with the wanted one, as numbers; NaN equals NaN.

    −0 is not 0, unless `signed_zeros` is false. Dictionaries are compared key by key, and
    sequences that hold more than numbers item by item.
    """
    if isinstance(a, Exception) or isinstance(b, Exception):
        return type(a) is type(b)
    if isinstance(b, dict):
        same_keys = isinstance(a, dict) and a.keys() == b.keys()
        return same_keys and all(equal(a[key], b[key], exercise) for key in b)
    if isinstance(b, Format):
        return isinstance(a, Format) and a == b
    if isinstance(b, list | tuple) and any(isinstance(item, _ALONE) for item in b):
        items = list(a) if isinstance(a, list | tuple) or np.ndim(a) else []
        return len(items) == len(b) and all(
            equal(*pair, exercise) for pair in zip(items, b, strict=True)
        )
    try:
        kind = np.asarray(a).dtype.kind
        if kind in "US":  # NumPy would read a number from text
            return bool(a == b)
        if kind in "cmM":  # NumPy would drop the imaginary part or the unit
            return False
        if _nothing(a) != _nothing(b):  # NumPy would make NaN of it
            return False
        if isinstance(b, HashedValue):
            return HashedValue.of(a) == b
        x = np.asarray(a, np.float64)
        y = np.asarray(b, np.float64)
    except (TypeError, ValueError, OverflowError):
        return False
    if x.shape != y.shape:
        return False
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        near = np.isfinite(y) & (np.abs(x - y) <= exercise.tolerance * np.abs(y))
    same = x == y
    if exercise.signed_zeros:
        same &= np.signbit(x) == np.signbit(y)
    return bool(np.all(same | near & (y != 0) | np.isnan(x) & np.isnan(y)))


def _text(value: Any, fmt: Format | None) -> str:
    """Write a value for the reader, with its code if it is a value of `fmt`.

    Unsigned integers of NumPy are codes; its floats have enough digits to be unique.
    """
    if isinstance(value, np.ndarray) and not value.ndim:  # repr has too few digits
        value = value[()]
    if isinstance(value, tuple):
        inner = (
            ("({})" if isinstance(v, tuple) else "{}").format(_text(v, fmt))
            for v in value
        )
        return ", ".join(inner)
    if isinstance(value, dict):  # a record: a line for each entry
        return "".join(f"\n    {key:<8} {_text(v, fmt)}" for key, v in value.items())
    if isinstance(value, np.ndarray) and value.ndim:
        first = value.ravel()[:_SHOWN]
        shown = [
            _text(v, fmt)
            for v in (first if value.dtype.kind in "uf" else first.tolist())
        ]
        more = [f"and {value.size - _SHOWN:,} more"] if value.size > _SHOWN else []
        shape = f" of shape {value.shape}" if value.ndim > 1 else ""
        return "[" + ", ".join([*shown, *more]) + "]" + shape
    if isinstance(value, np.unsignedinteger):
        return f"0x{int(value):0{2 * value.itemsize}X}"
    if isinstance(value, float | np.floating):
        value, text = float(value), str(value)
        exponent = math.frexp(value)[1] - 1 if math.isfinite(value) and value else 0
        if abs(exponent) > 9 and abs(value) == 2.0**exponent:
            text = f"{'-' if value < 0 else ''}2^{exponent}"
        try:
            if fmt is None:
                return text
            return f"{text} ({in_hex(int(encode(value, fmt)), fmt)})"
        except ValueError:
            return text
    if isinstance(value, list):
        return "[" + ", ".join(_text(v, fmt) for v in value) + "]"
    return repr(value.item() if isinstance(value, np.generic) else value)
