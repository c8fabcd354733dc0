"""Answers to the exercises of lesson 18, right ones and wrong ones."""

import numpy as np

from mplab import FP8_E4M3, round_to

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def in_blocks(x):
    blocks = np.abs(x).reshape(-1, 16).max(axis=1)
    tensor_scale = np.abs(x).max() / 2688
    return round_to(np.maximum(blocks / 6 / tensor_scale, 2**-6), FP8_E4M3)


def one_by_one(x):
    top, scales = max(abs(v) for v in x), []
    for start in range(0, len(x), 16):
        amax = max(abs(v) for v in x[start : start + 16])
        scales.append(float(round_to(max(448 * amax / top, 2.0**-6), FP8_E4M3)))
    return scales


def only_448(x):
    blocks = np.abs(x).reshape(-1, 16).max(axis=1)
    return round_to(np.maximum(blocks / 6 / (blocks.max() / 448), 2**-6), FP8_E4M3)


def not_rounded(x):
    blocks = np.abs(x).reshape(-1, 16).max(axis=1)
    return np.maximum(448 * blocks / blocks.max(), 2**-6)


def power_of_two(x):
    return 2.0 ** np.floor(np.log2(in_blocks(x)))


def not_raised(x):
    blocks = np.abs(x).reshape(-1, 16).max(axis=1)
    return round_to(448 * blocks / blocks.max(), FP8_E4M3)


def one_scale(x):
    return np.array([np.abs(x).max() / 2688])


def by_table(x, u):
    """Between two entries of the list of all values."""
    size = np.minimum(np.abs(x), 6)
    k = np.minimum(np.searchsorted(E2M1, size, side="right") - 1, 6)
    low, high = E2M1[k], E2M1[k + 1]
    return np.copysign(np.where(u < (size - low) / (high - low), high, low), x)


def by_ceiling(x, u):
    """By the spacing of the numbers."""
    size = np.minimum(abs(x), 6)
    step = np.where(size < 2, 0.5, np.where(size < 4, 1, 2))
    return np.copysign(np.ceil(size / step - u) * step, x)


def half_steps(x, u):
    return np.copysign(np.ceil(np.minimum(abs(x), 6) / 0.5 - u) * 0.5, x)


def toward_positive(x, u):
    kept = np.clip(x, -6, 6)
    step = np.where(abs(kept) < 2, 0.5, np.where(abs(kept) < 4, 1, 2))
    return np.copysign(np.ceil(kept / step - u) * step, x)


RIGHT = {
    "lost_beside_48": [2.0, 2],
    "nvfp4_scales": [in_blocks, one_by_one],
    "stochastic_e2m1": [by_table, by_ceiling],
}


def at_most_by_table(x, u):
    magnitude = np.minimum(abs(x), 6)
    below = np.clip(np.searchsorted(E2M1, magnitude, "right") - 1, 0, 6)
    low, high = E2M1[below], E2M1[below + 1]
    share = (magnitude - low) / (high - low)
    return np.copysign(np.where(u <= share, high, low), x)


WRONG = {
    "nvfp4_scales": [
        (only_448, "amax / 2688"),
        (not_rounded, "round it to E4M3"),
        (power_of_two, "That is MX"),
        (not_raised, "raised to it"),
        (one_scale, "amax of the block"),
    ],
    "stochastic_e2m1": [
        (half_steps, "1 apart"),
        (toward_positive, "Round the magnitude"),
        (lambda x, u: abs(by_table(x, u)), "stay negative"),
        (at_most_by_table, "less, not at most"),
        (lambda x, u: by_table(x, u * 0.5), "distance from the lower"),
    ],
}
