"""The exercises on linear systems: the backward error of a solution, and one correction of it."""

from collections.abc import Callable

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP16, arithmetic
from mplab.course.exercises.exercise import Exercise, known

Solution = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


# Backward errors -------------------------------------------------------------------------
def _judged_by(size: Solution) -> Solution:
    def answer(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
        off = float(np.abs(b - a @ x).max())
        return off / size(a, x, b) if off else 0.0

    return answer


def _row_sum(a: np.ndarray) -> float:
    return float(np.abs(a).sum(axis=1).max())


def _largest(x: np.ndarray) -> float:
    return float(np.abs(x).max())


def _euclidean(a: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    norm = np.linalg.norm
    off = float(norm(b - a @ x))
    return off / float(norm(a) * norm(x) + norm(b)) if off else 0.0


_SKEW = np.array([[1.0, -8.0], [2.0, 4.0]])

_JUDGED = tuple(
    tuple(map(np.array, case))
    for case in (
        ([[2.0]], [3.0], [7.0]),
        ([[2.0]], [3.0], [6.0]),
        (_SKEW, [2.0, 1.0], [-6.0, 9.0]),
        (_SKEW, [2.0, 1.0], [-7.0, 8.0]),  # negative residual
        (_SKEW, [-3.0, 0.5], [0.0, 0.0]),
        (_SKEW, np.zeros(2), np.zeros(2)),  # exact, and nothing to compare with
        ([[2.0**-4]], [1.0], [2.0**-3]),
        (_SKEW * 2.0**60, np.array([2.0, 1.0]) / 2**60, [-6.0, 8.0]),
        (np.arange(9.0).reshape(3, 3), [1.0, -2.0, 1.5], np.ones(3)),
        # The largest of b is negative, and the residual small, but not 0.
        (_SKEW, [-2.0, -1.0], [6.0, -8.0 - 2.0**-40]),
    )
)


# One correction --------------------------------------------------------------------------
def _half(x: np.ndarray) -> np.ndarray:
    """Round to FP16 with NumPy: cases are made at import, which would load the library's loops."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float64)


def _residual_in_fp16(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    residual = _half(_half(b) - _half(_half(a) @ _half(x)))
    # Of a matrix of zeros, b itself is the residual.
    refined = solutions.refine_once(np.zeros_like(a), residual, x, lower, upper)
    return np.asarray(refined)


def _unscaled(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    solve = arithmetic.solve_triangular
    y = solve(lower, _half(b - a @ x), FP16, lower=True)
    return np.asarray(x + solve(upper, y, FP16, lower=False))


def _given(a: np.ndarray, x: np.ndarray, off: np.ndarray) -> tuple[np.ndarray, ...]:
    """A system, a solution with this residual, and FP16 factors of the matrix, without pivoting."""
    rest = _half(a)
    lower = np.eye(len(a))
    for k in range(len(a) - 1):
        lower[k + 1 :, k] = _half(rest[k + 1 :, k] / rest[k, k])
        rest[k + 1 :] = _half(
            rest[k + 1 :] - _half(np.outer(lower[k + 1 :, k], rest[k]))
        )
        rest[k + 1 :, k] = 0.0
    return (a, a @ x + off, x, lower, rest)


def _correction_cases() -> list[tuple[np.ndarray, ...]]:
    """Numbers of so few bits that every residual is exact in float64."""
    rng = np.random.default_rng(15)
    small = np.array([[4.0, 2.0], [1.0, 3.0]])
    odd = 1 + 3 * 2.0**-14
    ones = np.ones(2)
    cases = [
        _given(np.diag([2.0, 4.0]), ones / 2, np.array([1.0, 2.0])),
        _given(small, ones, np.array([1.0, 0.5])),
        _given(small, ones, np.zeros(2)),  # nothing to correct
        _given(small, odd * ones, np.array([3.0, -1.0]) * 2.0**-28),
        _given(odd * small, ones, np.array([-5.0, 1.0]) * 2.0**-12),
        _given(small * 2.0**-12, ones, np.array([2.0**-13, 2.0**-14])),
    ]
    # The second enters as a subnormal.
    wide = np.array([1.5 * 2.0**-6, -1365 * 2.0**-36, 1.5 * 2.0**-6])
    cases += [_given(np.eye(3), np.ones(3), wide), _given(np.eye(3), np.ones(3), -wide)]
    for n in (3, 4, 5):
        a = np.rint(rng.standard_normal((n, n)) * 2**18) / 2**18 + 4 * np.eye(n)
        x = np.rint(rng.standard_normal(n) * 2**18) / 2**18
        cases.append(_given(a, x, np.rint(rng.standard_normal(n) * 2**9) / 2**30))
    return cases


EXERCISES: dict[str, Exercise] = {
    "corrections_needed": Exercise(
        answer=13,
        reason="The error is (2^-4)^(k + 1) after k corrections; find the least k for 2^-53.",
        misconceptions=known(
            (14, "The first solution already has one factor of 2^-4."),
            (5, "That is u alone; the condition takes 7 of its 11 bits."),
            (12, "Then the error is 2^-52: one more."),
        ),
    ),
    "system_backward_error": Exercise(
        answer=solutions.system_backward_error,
        reason="Divide max |residual| by (max row sum of |a|) · max |x| + max |b|; 0 gives 0.",
        argument="a, x, b",
        cases=_JUDGED,
        tolerance=1e-12,
        misconceptions=known(
            (
                _euclidean,
                "That is the 2-norm or the Frobenius norm; take the infinity norm.",
            ),
            (
                _judged_by(lambda a, x, b: _largest(b) or np.nan),
                "Beside b alone it does not say how little a must change.",
            ),
            (
                _judged_by(lambda a, x, b: _row_sum(a) * _largest(x)),
                "b may change, too: add it.",
            ),
        ),
    ),
    "refine_once": Exercise(
        answer=solutions.refine_once,
        uses=("round_to", "solve_triangular"),
        reason="Residual in float64; a power of two; FP16 solves, lower first; back; add to x.",
        argument="a, b, x, lower, upper",
        cases=_correction_cases(),
        misconceptions=known(
            (
                _residual_in_fp16,
                "In FP16 the residual consists of rounding errors: compute it in float64.",
            ),
            (
                _unscaled,
                "Unscaled, a residual or d leaves FP16's range below, as small gradients do.",
            ),
        ),
    ),
}
