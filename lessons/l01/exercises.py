"""The exercises on gradients that a format flushes, and on the loss scale that lifts them."""

import math

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP16, round_to
from mplab.course.exercises.exercise import ROUND_ONCE, Exercise, known

_TIE = FP16.min_subnormal / 2


def _zeros_counted(x: np.ndarray) -> float:
    return float(np.mean(round_to(x, FP16) == 0)) if x.size else 0.0


def _all_subnormals(x: np.ndarray) -> float:
    nonzero = np.abs(x[x != 0])
    return float(np.mean(nonzero < FP16.min_normal)) if nonzero.size else 0.0


_SMALLEST = FP16.min_subnormal

_SHARE_CASES = tuple(
    np.array(x)
    for x in (
        [1.0],
        [1e-9, 1.0],
        [0.0, 1e-9, 1.0, 0.0],
        [-1e-9, -1.0, 2.0],
        [FP16.min_normal / 2, 1.0],
        [0.75 * _SMALLEST, 0.25 * _SMALLEST],
        [_TIE, np.nextafter(_TIE, 1), 1.0, -_TIE],
        [0.0, -0.0],
        [],
        np.ldexp(np.random.default_rng(1).standard_normal(1000), -25),
    )
)


def _scale_to(target: float, gradient: float) -> float:
    """The smallest power of two, at least 1, that lifts |gradient| to `target`."""
    return max(1.0, 2.0 ** math.ceil(math.log2(target / abs(gradient))))


_SCALE_CASES = (
    1.0,
    1e-3,
    1e-8,
    1e-6,
    2e-7,
    -1e-10,
    _TIE,
    -_TIE,
    _SMALLEST,
    0.75 * _SMALLEST,
    2.0**-60,
    float(np.nextafter(_TIE, 1)),  # in float32 the tie
)

EXERCISES: dict[str, Exercise] = {
    "flush_threshold": Exercise(
        answer=_TIE,
        reason="Find the midpoint of the two neighbours, and which of them has the tie.",
        misconceptions=known(
            (
                _SMALLEST,
                "2^-24 is a number of FP16, so it survives, and so does any number near it.",
            ),
            (
                FP16.min_normal,
                "2^-14 is the smallest normal number; the subnormals go on below it.",
            ),
            (
                FP16.epsilon,
                "epsilon is the gap after 1, a matter of precision; here the range ends.",
            ),
        ),
    ),
    "flushed_share": Exercise(
        answer=solutions.flushed_share,
        uses=("round_to",),
        reason="Of the elements that are not 0 before rounding, count those that are 0 after it.",
        cases=_SHARE_CASES,
        tolerance=1e-6,  # torch's means are FP32
        misconceptions=known(
            (
                _zeros_counted,
                "A zero that was zero before rounding has not been flushed.",
            ),
            (lambda x: solutions.flushed_share(x.astype(np.float32)), ROUND_ONCE),
            (
                _all_subnormals,
                "Subnormal numbers, from 2^-24 to 2^-14, are coarse but they are not zero.",
            ),
        ),
    ),
    "smallest_scale": Exercise(
        answer=solutions.smallest_scale,
        uses=("round_to",),
        reason="The scaled gradient must round to something other than 0; half the scale must not.",
        argument="gradient",
        cases=_SCALE_CASES,
        misconceptions=known(
            (
                lambda gradient: solutions.smallest_scale(np.float32(gradient)),
                "A logarithm, or float32, can turn a number beside a tie into the tie: scale the "
                "gradient as it is, and round once.",
            ),
            (
                lambda gradient: _scale_to(_SMALLEST, gradient),
                "The gradient need not reach the smallest subnormal: it only has to round to it.",
            ),
            (
                lambda gradient: _scale_to(_TIE, gradient),
                "At exactly half the smallest subnormal there is a tie, and it goes to 0.",
            ),
        ),
    ),
}
