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


RIGHT = {
    "lost_beside_48": [2.0, 2],
    "nvfp4_scales": [in_blocks, one_by_one],
    "stochastic_e2m1": [by_table, by_ceiling],
}


WRONG = {
    "stochastic_e2m1": [
        (lambda x, u: by_table(x, u * 0.5), "distance from the lower"),
    ],
}
