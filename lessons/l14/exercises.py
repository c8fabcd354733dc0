"""The exercises on formulas: what cancellation costs, and how far a result is from an exact one."""

import math
from collections.abc import Callable

import numpy as np

import mplab.lessons.solutions as solutions
from mplab.course.exercises.exercise import Exercise, known


# The logarithm of summed exponentials ----------------------------------------------------
def _shifted_by(shift: Callable[[np.ndarray], float]) -> Callable[[np.ndarray], float]:
    def answer(x: np.ndarray) -> float:
        by = float(shift(x))
        with np.errstate(all="ignore"):
            return float(by + np.log(np.exp(x - by).sum()))

    return answer


def _not_added_back(x: np.ndarray) -> float:
    top = float(x.max())
    return float(np.log(np.exp(x - top).sum())) if math.isfinite(top) else top


_SCORE_CASES = tuple(
    np.array(x)
    for x in (
        [1.0, 2.0, 3.0],
        [5.0],
        [1000.0, 1000.0],
        [-1000.0, -1001.0, -1003.0],
        [900.0, -900.0],
        [-900.0, -900.0, 3.0],
        [-np.inf, 2.0, 2.0],  # one place is masked
        [-np.inf, -np.inf],  # all are
        np.random.default_rng(14).standard_normal(50) * 300,
    )
)


# Backward errors -------------------------------------------------------------------------
def _ratio(off: float, size: float) -> float:
    if size:
        return float(off / size)
    return math.inf if off else 0.0


def _forward_error(a: np.ndarray, b: np.ndarray, result: float) -> float:
    return _ratio(abs(result - (a * b).sum()), abs((a * b).sum()))


def _against_norms(a: np.ndarray, b: np.ndarray, result: float) -> float:
    size = math.sqrt((a * a).sum()) * math.sqrt((b * b).sum())
    return _ratio(abs(result - (a * b).sum()), size)


def _not_divided(a: np.ndarray, b: np.ndarray, result: float) -> float:
    return float(abs(result - (a * b).sum()))


_PRODUCT_CASES = tuple(
    (np.array(a), np.array(b), result)
    for a, b, result in (
        ([2.0], [3.0], 6.0),
        ([2.0], [3.0], 6.75),
        ([1.0, 2.0], [4.0, 3.0], 9.0),
        ([1.0, -1.0], [1024.0, 1023.0], 0.0),  # all digits cancelled
        ([5.0, 5.0], [7.0, -7.0], 0.5),
        ([0.0, 0.0], [1.0, 2.0], 0.0),
        ([0.0], [8.0], 1.0),  # no relative change of 0 helps
        ([1.0, -1.0], [1.0, 1.0], 6.0),  # a change of three times itself does
        ([1.0, 2.0**-30], np.ones(2), 1.0),  # float32 has no such sum
        (np.arange(1.0, 9.0), [1.0, -2.0] * 4, -60.0),
    )
)

EXERCISES: dict[str, Exercise] = {
    "bits_left": Exercise(
        answer=4,
        reason="FP32 has 24 bits; the formula loses log2 of the square of mean / deviation.",
        misconceptions=known(
            (
                14,
                "10 bits are what the condition takes; this formula takes them twice.",
            ),
            (3, "FP32 stores 23 bits and has 24: the leading 1 is not stored."),
            (20, "About 20 bits cancel; the answer is the number of bits left."),
        ),
    ),
    "log_sum_exp": Exercise(
        answer=solutions.log_sum_exp,
        reason="Subtract the largest score before exp, add it after log, and look at infinities.",
        cases=_SCORE_CASES,
        tolerance=1e-12,
        misconceptions=known(
            (
                _shifted_by(lambda _: 0.0),
                "exp overflows, or all of it underflows: shift first.",
            ),
            (
                _not_added_back,
                "The number subtracted before exp must be added again after log.",
            ),
            (
                _shifted_by(np.max),
                "If all scores are -inf, -inf - (-inf) is NaN: say -inf.",
            ),
        ),
    ),
    "dot_backward_error": Exercise(
        answer=solutions.dot_backward_error,
        reason="Divide the error of the result by how far small changes of a can move it.",
        argument="a, b, result",
        cases=_PRODUCT_CASES,
        tolerance=1e-12,
        misconceptions=known(
            (
                _forward_error,
                "That is the forward error: changes of a move the sum of |a·b|.",
            ),
            (
                _against_norms,
                "Each element may change in proportion to itself, not to the norm.",
            ),
            (
                _not_divided,
                "That is an absolute error; divide it by how far the sum can be moved.",
            ),
        ),
    ),
}
