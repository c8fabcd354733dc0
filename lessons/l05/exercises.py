"""The exercises on long sums: where they stop, and two methods that do better."""

from collections.abc import Callable
from functools import partial

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, FP16, round_to
from mplab.course.exercise import Exercise, known


def _rounded(x: float) -> float:
    """One rounding to FP16; sums and differences of two FP16 values are exact in float64."""
    return float(round_to(float(x), FP16))


def _one_by_one(x: np.ndarray) -> float:
    total = 0.0
    for term in x:
        total = _rounded(total + float(term))
    return total


def _once_at_the_end(x: np.ndarray) -> float:
    return _rounded(float(np.sum(x)))


# Pairwise --------------------------------------------------------------------------------
def _neighbours(x: np.ndarray) -> float:
    terms = [float(term) for term in x]
    while len(terms) > 1:
        terms = [
            _rounded(sum(terms[i : i + 2])) if i + 1 < len(terms) else terms[i]
            for i in range(0, len(terms), 2)
        ]
    return terms[0] if terms else 0.0


_RANDOM = np.random.default_rng(5).integers(0, 2048, 100) / 2048

_SIGNED = np.random.default_rng(6).integers(-2047, 2048, 77) / 256

_PAIRWISE_CASES = (
    np.array([1.5]),
    np.array([1.0, 2.0]),
    np.array([1.0, 2.0, 4.0]),
    np.array([2048.0, 1.0, 1.0]),
    np.array([2048.0, 1.0, 1.0, 1.0, 1.0]),
    np.array([1.0, 2048.0, 1.0, 2.0, 3.0]),
    np.array([]),
    _RANDOM,
    _SIGNED,
    np.ones(2500),
)


# Kahan -----------------------------------------------------------------------------------
def _kahan(
    x: np.ndarray,
    *,
    sign: float = -1.0,
    op: Callable[[float], float] = _rounded,
) -> float:
    total = lost = 0.0
    for term in map(float, x):
        corrected = op(term + sign * lost)
        new = _rounded(total + corrected)
        lost = op(op(new - total) - corrected)
        total = new
    return total


_KAHAN_CASES = (
    np.array([1.5]),
    np.array([1.0, 2.0, 3.0]),
    np.array([2048.0, 1.0, 1.0]),
    np.array([2048.0, 1.0, 1.0, 1.0, 1.0]),
    np.array([]),
    np.array([1.5, 1344.0, 1.8125]),  # the term after a loss is itself rounded
    np.array([0.25, 896.0, 2.5]),  # here even Kahan's sum is not the nearest number
    np.array([-1536.0, 3.875, 1280.0]),
    _RANDOM,
    np.tile([0.7001953125, 0.0999755859375], 700),
    np.ones(2500),
)

EXERCISES: dict[str, Exercise] = {
    "stopped_counter": Exercise(
        answer=64.0,
        reason="Find where the gap between neighbours is first so wide that 0.25 is half of it.",
        fmt=BF16,
        misconceptions=known(
            (256.0, "256 is where ones stop; smaller steps stop earlier."),
            (
                128.0,
                "Already before 128 the gap is 0.5, and 0.25 only reaches the midpoint.",
            ),
            (
                32.0,
                "From 32 to 64 the gap is 0.25, so every step still lands on a number.",
            ),
        ),
    ),
    "pairwise_sum": Exercise(
        answer=solutions.pairwise_sum,
        uses=("round_to", "add"),
        reason="Split at len(x) // 2, sum each half the same way, and round their sum once.",
        cases=_PAIRWISE_CASES,
        fmt=FP16,
        misconceptions=known(
            (
                _one_by_one,
                "This adds one by one: every term passes through all later roundings.",
            ),
            (
                _once_at_the_end,
                "Every addition must round to FP16, not only the last one.",
            ),
            (
                _neighbours,
                "That is pairwise too, but it begins with neighbours; split into halves instead.",
            ),
        ),
    ),
    "kahan_sum": Exercise(
        answer=solutions.kahan_sum,
        uses=("round_to", "add", "subtract"),
        reason="Correct the term, add it, and find the part of it that the total did not take.",
        cases=_KAHAN_CASES,
        fmt=FP16,
        misconceptions=known(
            (
                _one_by_one,
                "This is the plain sum: the lost part is 0, or never reaches the next term.",
            ),
            (
                partial(_kahan, sign=1.0),
                "The correction has the wrong sign: it doubles the loss.",
            ),
            (
                partial(_kahan, op=float),
                "All four operations round to FP16, not only the total.",
            ),
        ),
    ),
}
