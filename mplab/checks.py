"""The checks of the exercises: the smallest counterexample first, never the solution.

An exercise is a reference, cases in order of growing difficulty, and the misconceptions
it is meant to find, each as the answer that somebody holding it would give. A wrong
answer that agrees with a misconception on every case is told so, in one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from mplab.codes import encode
from mplab.formats import FP16, Format
from mplab.rounding import round_to


class Misconception(NamedTuple):
    """A wrong answer that people give, and the sentence that sets it right.

    The answer is what its holder would hand in: a function of one case, or a value.
    """

    answer: Any
    sentence: str


@dataclass(frozen=True)
class Exercise:
    """An exercise that can be checked at once.

    Args:
        answer: the right answer: a function of one case, or a value.
        reason: one sentence on what matters in a case, for wrong answers of no known kind.
        argument: the name of the argument, for the counterexample.
        cases: arguments to try, the simplest first; unused if `answer` is a value.
        misconceptions: known wrong answers.
        fmt: the format of the result, whose codes a counterexample then shows.
        tolerance: relative difference that still counts as equal; 0 compares numbers.
    """

    answer: Any
    reason: str
    argument: str = "x"
    cases: Sequence[Any] = (None,)
    misconceptions: Sequence[Misconception] = ()
    fmt: Format | None = None
    tolerance: float = 0.0

    def outcomes(self, answer: Any) -> list[Any]:
        """What an answer gives on every case; an exception stands for the value it took."""
        if not callable(self.answer):
            return [answer]
        return [_outcome(answer, case) for case in self.cases]


def _outcome(answer: Callable[[Any], Any], case: Any) -> Any:
    """The value of an answer on a copy of the case, or the exception it raised."""
    try:
        return answer(case.copy() if isinstance(case, np.ndarray) else case)
    except NotImplementedError:
        raise
    except Exception as error:
        return error


@dataclass(frozen=True)
class Verdict:
    """Whether an answer passed, and what to tell its author. True if it passed."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        colour = "#117733" if self.passed else "#882255"
        return (
            f'<pre role="status" style="border-left:4px solid {colour};padding-left:8px">'
            f"{escape(self.message)}</pre>"
        )


def check(name: str, answer: Any) -> Verdict:
    """Check the answer to an exercise.

    Args:
        name: the exercise.
        answer: what it asks for: a function, or a value.

    Returns:
        A verdict that prints itself. A stub that still raises `NotImplementedError` is not
        wrong, only not attempted.

    Raises:
        ValueError: there is no exercise of this name.

    Examples:
        >>> check("flush_threshold", 2.0**-24)
        flush_threshold: not yet.
          yours    = 2^-24
          2^-24 is itself a number of FP16, so it survives; so does what is nearer to it.
    """
    if name not in EXERCISES:
        raise ValueError(
            f"check: name must be an exercise; got {name!r}. Known: {', '.join(EXERCISES)}."
        )
    exercise = EXERCISES[name]
    if answer is None:
        return Verdict(False, f"{name}: not attempted yet. Put your answer in place of None.")
    if callable(exercise.answer) and not callable(answer):
        return Verdict(
            False, f"{name}: hand in the function itself; got {type(answer).__name__}: {answer!r}."
        )
    try:
        given = exercise.outcomes(answer)
    except NotImplementedError:
        return Verdict(False, f"{name}: not attempted yet. Replace the line that raises.")
    wanted = exercise.outcomes(exercise.answer)
    pairs = enumerate(zip(given, wanted, strict=True))
    wrong = [i for i, pair in pairs if not _equal(*pair, exercise)]
    if not wrong:
        cases = f" in all {len(wanted)} cases" if len(wanted) > 1 else ""
        return Verdict(True, f"{name}: right{cases}.")
    return Verdict(False, _counterexample(name, exercise, given, wanted, wrong))


def _counterexample(
    name: str, exercise: Exercise, given: list[Any], wanted: list[Any], wrong: list[int]
) -> str:
    """The first wrong case, and one sentence."""
    first = wrong[0]
    yours = given[first]
    if callable(exercise.answer):
        verb = "differs" if len(wrong) == 1 else "differ"
        lines = [
            f"{name}: {len(wrong)} of {len(wanted)} cases {verb}.",
            f"  {exercise.argument:<8} = {_text(exercise.cases[first], None)}",
            f"  expected = {_text(wanted[first], exercise.fmt)}",
        ]
    else:
        lines = [f"{name}: not yet."]
    if isinstance(yours, Exception):
        lines.append(f"  yours    raised {type(yours).__name__}: {yours}")
    else:
        lines.append(f"  yours    = {_text(yours, exercise.fmt)}")
    return "\n".join([*lines, f"  {_sentence(exercise, given)}"])


def _sentence(exercise: Exercise, given: list[Any]) -> str:
    """That of the misconception which agrees with the answer on every case, else the reason."""
    for misconception in exercise.misconceptions:
        pairs = zip(given, exercise.outcomes(misconception.answer), strict=True)
        if all(_equal(*pair, exercise) for pair in pairs):
            return misconception.sentence
    return exercise.reason


def _equal(a: Any, b: Any, exercise: Exercise) -> bool:
    """Whether two outcomes are the same numbers; NaN equals NaN, and −0 is not 0."""
    if isinstance(a, Exception) or isinstance(b, Exception):
        return type(a) is type(b)
    try:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    except (TypeError, ValueError):
        return False
    if x.shape != y.shape:
        return False
    near = np.abs(x - y) <= exercise.tolerance * np.abs(y)
    same = (x == y) & (np.signbit(x) == np.signbit(y))
    return bool(np.all(same | near & (y != 0) | np.isnan(x) & np.isnan(y)))


def _text(value: Any, fmt: Format | None) -> str:
    """A value as the reader would write it, with its code if it is one of `fmt`."""
    if isinstance(value, np.ndarray) and value.ndim:
        return "[" + ", ".join(_text(v, fmt) for v in value.tolist()) + "]"
    if isinstance(value, float | np.floating):
        value, text = float(value), f"{float(value)!r}"
        exponent = math.frexp(value)[1] - 1 if math.isfinite(value) and value else 0
        if abs(exponent) > 9 and abs(value) == 2.0**exponent:
            text = f"{'-' if value < 0 else ''}2^{exponent}"
        try:
            return text if fmt is None else f"{text} (0x{int(encode(float(value), fmt)):X})"
        except ValueError:
            return text
    return repr(value)


# Lesson 1 --------------------------------------------------------------------------------

_TIE = FP16.min_subnormal / 2


def _flushed_share(x: np.ndarray) -> float:
    nonzero = x[x != 0]
    return float(np.mean(round_to(nonzero, FP16) == 0)) if nonzero.size else 0.0


def _zeros_counted(x: np.ndarray) -> float:
    return float(np.mean(round_to(x, FP16) == 0)) if x.size else 0.0


def _share_of_all(x: np.ndarray) -> float:
    return float(np.mean((round_to(x, FP16) == 0) & (x != 0))) if x.size else 0.0


def _share_below(limit: float, x: np.ndarray) -> float:
    nonzero = np.abs(x[x != 0])
    return float(np.mean(nonzero < limit)) if nonzero.size else 0.0


def _positive_only(x: np.ndarray) -> float:
    nonzero = x[x != 0]
    return float(np.mean(nonzero <= _TIE)) if nonzero.size else 0.0


_SMALLEST = FP16.min_subnormal
_SHARE_CASES = (
    np.array([1.0]),
    np.array([1e-9, 1.0]),
    np.array([0.0, 1e-9, 1.0, 0.0]),
    np.array([-1e-9, -1.0, 2.0]),
    np.array([FP16.min_normal / 2, 1.0]),
    np.array([0.75 * _SMALLEST, 0.25 * _SMALLEST]),
    np.array([_TIE, np.nextafter(_TIE, 1), 1.0, -_TIE]),
    np.array([0.0, -0.0]),
    np.array([]),
    np.ldexp(np.random.default_rng(1).standard_normal(1000), -25),
)


def _smallest_scale(gradient: float) -> float:
    scale = 1.0
    while round_to(gradient * scale, FP16) == 0:
        scale *= 2
    return scale


def _scale_to(target: float, gradient: float) -> float:
    """The smallest power of two, at least 1, that lifts |gradient| to `target`."""
    return max(1.0, 2.0 ** math.ceil(math.log2(target / abs(gradient))))


def _scale_of_positive(gradient: float) -> float:
    return _smallest_scale(gradient) if gradient > 0 else 1.0


_SCALE_CASES = (1.0, 1e-3, 1e-8, 1e-6, 2e-7, -1e-10, _TIE, _SMALLEST, 0.75 * _SMALLEST, 2.0**-60)

EXERCISES: dict[str, Exercise] = {
    "flush_threshold": Exercise(
        answer=_TIE,
        reason="Find the midpoint of the two neighbours, and which of them has the tie.",
        misconceptions=(
            Misconception(
                _SMALLEST,
                "2^-24 is itself a number of FP16, so it survives; so does what is nearer to it.",
            ),
            Misconception(
                FP16.min_normal,
                "2^-14 is the smallest normal number; the subnormals go on below it.",
            ),
            Misconception(
                FP16.epsilon,
                "epsilon is the gap after 1, a matter of precision; here the range ends.",
            ),
            Misconception(
                _TIE / 2,
                "Between this number and its double all are still nearer to 0 than to 2^-24.",
            ),
        ),
    ),
    "flushed_share": Exercise(
        answer=_flushed_share,
        reason="Count what is not zero before rounding and zero after it, of what was not zero.",
        cases=_SHARE_CASES,
        tolerance=1e-12,
        misconceptions=(
            Misconception(
                _zeros_counted, "A zero that was zero before rounding has not been flushed."
            ),
            Misconception(_share_of_all, "The share is of the nonzero elements, not of all."),
            Misconception(
                lambda x: _share_below(FP16.min_normal, x),
                "Subnormal numbers, from 2^-24 to 2^-14, are coarse but they are not zero.",
            ),
            Misconception(
                lambda x: _share_below(_SMALLEST, x),
                "What is nearer to the smallest subnormal than to 0 becomes that, not 0.",
            ),
            Misconception(
                lambda x: _share_below(_TIE, x),
                "A tie between 0 and the smallest subnormal goes to the even one, which is 0.",
            ),
            Misconception(_positive_only, "A negative number can be tiny too: compare magnitudes."),
        ),
    ),
    "smallest_scale": Exercise(
        answer=_smallest_scale,
        reason="The scaled gradient must round to something other than 0; half the scale must not.",
        argument="gradient",
        cases=_SCALE_CASES,
        misconceptions=(
            Misconception(
                lambda gradient: _scale_to(FP16.min_normal, gradient),
                "This lifts the gradient to a normal number; a subnormal one would not be flushed.",
            ),
            Misconception(
                lambda gradient: _scale_to(_SMALLEST, gradient),
                "The gradient need not reach the smallest subnormal: it only has to round to it.",
            ),
            Misconception(
                lambda gradient: _scale_to(_TIE, gradient),
                "At exactly half the smallest subnormal there is a tie, and it goes to 0.",
            ),
            Misconception(
                _scale_of_positive, "A negative gradient is flushed as well: look at its magnitude."
            ),
            Misconception(
                lambda gradient: 65536.0,
                "65536 is where torch's GradScaler starts; what is enough depends on the gradient.",
            ),
        ),
    ),
}
"""The exercises by name."""
