"""The exercises on FP8: the scale of a tensor, from itself and from the tensors before it."""

import math
from collections.abc import Callable

import numpy as np

from mplab import FP8_E4M3
from mplab.course.exercise import Exercise, known

LARGEST = FP8_E4M3.max_finite


# One tensor ------------------------------------------------------------------------------
def _scale(amax: float) -> float:
    """The largest power of two that keeps amax within the range: c·2^e with c in [1/2, 1)."""
    if amax == 0:
        return 1.0
    c, e = math.frexp(amax)
    top, exponent = math.frexp(LARGEST)
    return math.ldexp(1.0, exponent - e - (c > top))


def _by_exponents(amax: float) -> float:
    return 2.0 ** (FP8_E4M3.emax - (math.frexp(amax)[1] - 1)) if amax else 1.0


def _one_lower(amax: float) -> float:
    """As if 448 itself were out of range."""
    scale = _scale(amax)
    return scale / 2 if amax * scale == LARGEST else scale


def _power(exponent: Callable[[float], int]) -> Callable[[float], float]:
    return lambda amax: 2.0 ** exponent(LARGEST / amax) if amax else 1.0


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
)


# A row of tensors ------------------------------------------------------------------------
def _chosen(amaxes: np.ndarray, length: int, step: int) -> float:
    return float(np.max(amaxes[max(0, step - length) : step]))


def _delayed(amaxes: np.ndarray, length: int) -> np.ndarray:
    """The scale of each tensor, from the tensors before it."""
    scales = [1.0] + [_scale(_chosen(amaxes, length, k)) for k in range(1, len(amaxes))]
    return np.array(scales[: len(amaxes)])


def _with_its_own(amaxes: np.ndarray, length: int) -> np.ndarray:
    return np.array(
        [_scale(_chosen(amaxes, length, k + 1)) for k in range(len(amaxes))]
    )


def _for_ever(amaxes: np.ndarray, length: int) -> np.ndarray:
    return _delayed(amaxes, len(amaxes))


def _latest(amaxes: np.ndarray, length: int) -> np.ndarray:
    return _delayed(amaxes, 1)


def _one_longer(amaxes: np.ndarray, length: int) -> np.ndarray:
    return _delayed(amaxes, length + 1)


def _current(amaxes: np.ndarray, length: int) -> np.ndarray:
    return np.array([_scale(float(a)) for a in amaxes])


_RNG = np.random.default_rng(12)

_CALM = np.ones(4)

_ROWS = (
    (_CALM, 2),
    (np.array([1.0, 1.0, 1e5, 1.0, 1.0, 1.0]), 2),
    (np.array([1.0, 1.0, 1e5, 1.0, 1.0, 1.0]), 1),
    (np.array([4.0, 1.0, 1.0, 1.0, 1.0, 1.0]), 3),
    (np.array([448.0, 447.5, 448.5, 1.0]), 1),
    (np.exp2(_RNG.normal(0, 6, 40)), 8),
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
            (
                2.0**0,
                "2^-6 is the smallest normal number; below it E4M3 still has subnormals.",
            ),
        ),
    ),
    "fp8_scale": Exercise(
        answer=_scale,
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
                _power(lambda ratio: math.ceil(math.log2(ratio))),
                "Rounded up, amax times the scale lies past 448: round down.",
            ),
            (
                _power(lambda ratio: math.floor(math.log2(ratio))),
                "Just past 3.5 the logarithm is rounded up to a whole number, and amax times the "
                "scale lies past 448.",
            ),
            (_one_lower, "448 itself is a number of E4M3: it may be reached."),
            (
                lambda amax: 1 / _scale(amax),
                "The scale multiplies; this number would divide.",
            ),
        ),
    ),
    "delayed_scales": Exercise(
        answer=_delayed,
        reason="The scale of tensor k follows from at most `length` tensors before it, not it.",
        argument="amaxes, length",
        cases=_ROWS,
        misconceptions=known(
            (
                _with_its_own,
                "A tensor's own magnitude is known only after its cast; it counts from the next.",
            ),
            (_for_ever, "Magnitudes older than `length` tensors are forgotten."),
            (_latest, "The largest of the history decides, not the latest."),
            (_one_longer, "The history holds one tensor too many."),
            (_current, "This is current scaling: each tensor's own magnitude decides."),
        ),
    ),
}
