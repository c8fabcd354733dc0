"""The exercises on FP8: the scale of a tensor, from itself and from the tensors before it."""

import math

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP8_E4M3
from mplab.course.exercises.exercise import Exercise, known

LARGEST = FP8_E4M3.max_finite


# One tensor ------------------------------------------------------------------------------
def _by_exponents(amax: float) -> float:
    return 2.0 ** (FP8_E4M3.emax - (math.frexp(amax)[1] - 1)) if amax else 1.0


def _by_logarithm(amax: float) -> float:
    return 2.0 ** math.floor(math.log2(LARGEST / amax)) if amax else 1.0


_MAGNITUDES = (
    1.0,
    3.0,
    448.0,
    449.0,
    3.5,
    3.6,
    1.9,
    1e-6,
    1e6,
    0.0,
    math.nextafter(3.5, 4),
    math.nextafter(7.0, 8),
)


# A row of tensors ------------------------------------------------------------------------
def _with_its_own(amaxes: np.ndarray, length: int) -> np.ndarray:
    ends = range(1, len(amaxes) + 1)
    largest = [np.max(amaxes[max(0, end - length) : end]) for end in ends]
    return np.array([solutions.fp8_scale(amax) for amax in largest])


_RNG = np.random.default_rng(12)

_CALM = np.ones(4)

_ROWS = tuple(
    (np.array(amaxes), length)
    for amaxes, length in (
        (_CALM, 2),
        ([1.0, 1.0, 1e5, 1.0, 1.0, 1.0], 2),
        ([1.0, 1.0, 1e5, 1.0, 1.0, 1.0], 1),
        ([4.0, 1.0, 1.0, 1.0, 1.0, 1.0], 3),
        ([448.0, 447.5, 448.5, 1.0], 1),
        ([0.0, 0.25, 0.25, 1.0], 2),  # a history of zeros; then all below 1
        (np.exp2(_RNG.normal(0, 6, 40)), 8),
    )
)

EXERCISES: dict[str, Exercise] = {
    "flushed_by_stale_scale": Exercise(
        answer=math.ldexp(1.0, -4),
        reason="A scaled number becomes 0 up to 2^-10, half the smallest number; undo the scale.",
        misconceptions=known(
            (
                2.0**-3,
                "That is the smallest number that E4M3 has here; half of it ties with 0, which "
                "is even.",
            ),
            (
                2.0**-10,
                "So it is without a scale; here numbers are multiplied by 2^-6 first.",
            ),
            (
                2.0**-16,
                "The scale shrinks numbers, so more of them become 0: divide by it.",
            ),
        ),
    ),
    "fp8_scale": Exercise(
        answer=solutions.fp8_scale,
        reason="The largest power of two for which amax times it is at most 448.",
        argument="amax",
        cases=_MAGNITUDES,
        misconceptions=known(
            (
                lambda amax: LARGEST / amax if amax else 1.0,
                "This fills the range, but a scale that is no power of two rounds when it "
                "multiplies.",
            ),
            (
                _by_exponents,
                "The exponents fit, but 448 is 1.75 * 2^8: above 1.75 the top saturates.",
            ),
            (
                _by_logarithm,
                "Just past 3.5 a logarithm, or float32, is rounded to where 448 fits; amax times "
                "this scale lies past it.",
            ),
        ),
    ),
    "delayed_scales": Exercise(
        answer=solutions.delayed_scales,
        reason="The scale of tensor k follows from at most `length` tensors before it, not it.",
        argument="amaxes, length",
        cases=_ROWS,
        misconceptions=known(
            (
                _with_its_own,
                "A tensor's own magnitude is known only after its cast; it counts from the next.",
            ),
            (
                lambda amaxes, length: solutions.delayed_scales(amaxes, len(amaxes)),
                "Magnitudes older than `length` tensors are forgotten.",
            ),
            (
                lambda amaxes, length: solutions.delayed_scales(amaxes, 1),
                "The largest of the history decides, not the latest.",
            ),
        ),
    ),
}
