"""The exercises on four bits: the two levels of scales of NVFP4, and rounding at random to E2M1."""

from collections.abc import Callable

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP4_E2M1, FP8_E4M3, round_to
from mplab.course.exercises.exercise import Exercise, known

LARGEST = FP4_E2M1.max_finite
LARGEST_SCALE, LEAST_SCALE = FP8_E4M3.max_finite, FP8_E4M3.min_normal

# Scales ----------------------------------------------------------------------------------
Scales = Callable[[np.ndarray], np.ndarray]


def _in_rows(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.abs(x).reshape(-1, 16).max(axis=1))


def _wanted(x: np.ndarray) -> np.ndarray:
    """The scales of the blocks before they are rounded."""
    return _in_rows(x) / np.abs(x).max() * LARGEST_SCALE


def _without_tensor_scale(x: np.ndarray) -> np.ndarray:
    scales = np.clip(_in_rows(x) / LARGEST, LEAST_SCALE, LARGEST_SCALE)
    return np.asarray(round_to(scales, FP8_E4M3))


_RNG = np.random.default_rng(18)

_TENSORS = (
    np.repeat([6.0, 3.0], 16),
    np.repeat([1.0, 0.33, -0.7], 16) * np.tile(np.linspace(-1, 1, 16), 3),
    np.repeat([1.0, 1e-3, 2e-5, 0.0], 16),  # the least scale of a block
    _RNG.standard_normal(64) * np.repeat([1.0, 0.05, 30.0, 1e-4], 16),
    np.repeat([448.0, 17 * (1 - 1e-4), 17 * (1 + 1e-4)], 16),  # 17 lies halfway
    np.repeat([448.0, 17 * (1 + 1e-10)], 16),  # in float32 it is 17
    np.concatenate([_RNG.standard_normal(160), np.full(16, -2000.0)]),
)

# Rounding at random ----------------------------------------------------------------------
Rounded = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _step(magnitude: np.ndarray) -> np.ndarray:
    """The gap from each magnitude's lower neighbour in E2M1 to its upper one."""
    return np.where(magnitude < 2, 0.5, np.where(magnitude < 4, 1.0, 2.0))


def _swapped(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    magnitude = np.minimum(np.abs(x), LARGEST)
    step = _step(magnitude)
    share, lower = np.modf(magnitude / step)
    up = (share > 0) & (u < 1 - share)
    return np.asarray(np.copysign((lower + up) * step, x))


def _half_steps(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    return np.asarray(
        np.copysign(np.ceil(np.minimum(np.abs(x), LARGEST) * 2 - u) / 2, x)
    )


def _upward(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Round from the neighbour below, which lies farther from 0 if x is negative."""
    kept = np.clip(x, -LARGEST, LARGEST)
    step = _step(np.abs(kept))
    return np.asarray(np.copysign(np.ceil(kept / step - u) * step, x))


_DRAWS = np.array([0.0, 0.125, 0.5, 0.875])

_ROUNDED_CASES = tuple(
    tuple(map(np.array, case))
    for case in (
        ([1.25], [0.25]),
        ([0.5, 1.0, 4.0, 6.0, -0.0], [0.0, 0.5, 0.0, 0.0, 0.0]),
        ([0.1, 0.2, 0.25, 0.3], np.full(4, 0.5)),
        (
            [2.25, 2.75, 3.25, 4.5, 5.5],
            [0.5, 0.5, 0.125, 0.125, 0.5],
        ),
        ([-0.125, -1.25, -2.25, -5.0], [0.5, 0.375, 0.125, 0.25]),
        ([6.5, -7.75, 1000.0], [0.0, 0.125, 0.875]),
        *((np.linspace(-6.5, 6.5, 105), np.full(105, u)) for u in _DRAWS),
        (np.full(16, 2.5), np.arange(16) / 16),
        ([1.125], [0.25 - 2.0**-40]),  # in float32 equal
    )
)

EXERCISES: dict[str, Exercise] = {
    "lost_beside_48": Exercise(
        answer=2.0,
        reason="48 becomes 6, so 8 times what is stored comes back; up to 1/4 is stored as 0.",
        misconceptions=known(
            (4.0, "4 is stored as 0.5, the smallest positive number; half of it?"),
            (0.25, "So it is without a scale; here numbers are divided by 8 first."),
            (
                1 / 32,
                "Small numbers are divided by 8 like all others: more of them become 0.",
            ),
        ),
    ),
    "nvfp4_scales": Exercise(
        answer=solutions.nvfp4_scales,
        uses=("round_to",),
        reason="Block's amax / 6 / (tensor's amax / 2688), at least 2^-6, rounded once to E4M3.",
        cases=_TENSORS,
        fmt=FP8_E4M3,
        tolerance=1e-12,
        misconceptions=known(
            (
                lambda x: np.clip(_wanted(x), LEAST_SCALE, LARGEST_SCALE),
                "A block's scale is stored in eight bits: round it to E4M3.",
            ),
            (
                lambda x: round_to(_wanted(x), FP8_E4M3),
                "Scales below 2^-6 are raised to it; a scale of 0 could not be divided by.",
            ),
            (
                _without_tensor_scale,
                "Divide by the scale of the tensor first, so that the largest block gets 448.",
            ),
        ),
    ),
    "stochastic_e2m1": Exercise(
        answer=solutions.stochastic_e2m1,
        uses=("round_to", "next_up", "next_down", "ulp"),
        reason="Up in magnitude, to 6 at most, if u < (distance from the lower one) / gap.",
        argument="x, u",
        cases=_ROUNDED_CASES,
        fmt=FP4_E2M1,
        misconceptions=known(
            (_half_steps, "From 2 on neighbours are 1 apart, from 4 on 2."),
            (
                _swapped,
                "The nearer the upper neighbour is, the more often it must be chosen.",
            ),
            (_upward, "Round the magnitude, and put the sign back after it."),
        ),
    ),
}
