"""The exercises on where gradients lie, and on which shares of zeros matter."""

import numpy as np

import mplab.lessons.solutions as solutions
from mplab.course.exercises.exercise import Exercise, known


# Exponents -------------------------------------------------------------------------------
def _numbers(x: np.ndarray) -> np.ndarray:
    return np.asarray(x[np.isfinite(x) & (x != 0)])


def _by_logarithm(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.floor(np.log2(np.abs(_numbers(x)))), np.int64)


def _toward_zero(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.trunc(np.log2(np.abs(_numbers(x)))), np.int64)


_ARRAYS = tuple(
    np.array(x)
    for x in (
        [1.0],
        [2.0, 3.0, 4.0],
        [0.75, 0.5, 0.3],
        [-6.0, 6.0],
        [0.0, 1.0, np.inf, np.nan],
        [0.0, -0.0],
        [2.0**-149, 2.0**-30, 1.5 * 2.0**-25],
        [np.nextafter(8.0, 0.0), 8.0, np.nextafter(0.125, 0.0)],
    )
)


# Waking up -------------------------------------------------------------------------------
def _first_below(shares: list[float]) -> int:
    return next((i for i, share in enumerate(shares) if share < 0.9), -1)


def _length_if_never(shares: list[float]) -> int:
    found = solutions.awake_from(shares)
    return len(shares) if found < 0 else found


def _last_asleep(shares: list[float]) -> int:
    found = solutions.awake_from(shares)
    return found - 1 if found > 0 else found


_SHARES = (
    [0.0, 0.0, 0.0],
    [1.0, 0.2, 0.1],
    [1.0, 1.0, 1.0],
    [1.0, 0.3, 0.95, 0.2],
    [0.1, 0.95],
    [1.0, 0.9, 0.4],
    [0.97],
    [1.0, 0.99, 1.0, 0.88, 0.73, 0.59, 0.52],
    [0.99, 0.77, 0.93, 0.17, 0.13, 0.1, 0.03],
)

EXERCISES: dict[str, Exercise] = {
    "sigmoids_until_zero": Exercise(
        answer=4,
        reason="Add the exponents: -17 from the mean, -2 for each sigmoid, until -25 is reached.",
        misconceptions=known(
            (5, "At exactly 2^-25 there is a tie, and it goes to 0."),
            (8, "A slope of 1/4 takes two powers of two, not one."),
            (13, "The mean has already divided the gradient by 2^17."),
        ),
    ),
    "exponents": Exercise(
        answer=solutions.exponents,
        reason="One exponent e for each finite x other than 0, such that 2^e <= |x| < 2^(e+1).",
        cases=_ARRAYS,
        misconceptions=known(
            (
                _by_logarithm,
                "Just below a power of two a logarithm, or float32, is rounded up to it: read "
                "the exponent of the float64, as np.frexp does.",
            ),
            (
                lambda x: solutions.exponents(x) + 1,
                "np.frexp puts the significand between 1/2 and 1; here it is between 1 and 2.",
            ),
            (
                _toward_zero,
                "Below 1 exponents are negative: round the logarithm down, not to 0.",
            ),
        ),
    ),
    "awake_from": Exercise(
        answer=solutions.awake_from,
        reason="Look from the end: how far back do all shares lie below 0.9?",
        argument="shares",
        cases=_SHARES,
        misconceptions=known(
            (
                _first_below,
                "A layer that falls asleep again was not awake for good: look at the later steps.",
            ),
            (_length_if_never, "A layer that never wakes for good gives -1."),
            (
                _last_asleep,
                "That is the last step asleep; the answer is the step after it.",
            ),
        ),
    ),
}
