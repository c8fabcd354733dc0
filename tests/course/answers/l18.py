"""Answers to the exercises of lesson 18, right ones and wrong ones."""

import numpy as np

from mplab import FP8_E4M3, round_to


def one_by_one(x):
    top = max(abs(v) for v in x)
    scales = []
    for start in range(0, len(x), 16):
        amax = max(abs(v) for v in x[start : start + 16])
        scales.append(float(round_to(max(448 * amax / top, 2.0**-6), FP8_E4M3)))
    return scales


def by_ceiling(x, u):
    """By the spacing of the numbers."""
    size = np.minimum(abs(x), 6)
    step = np.where(size < 2, 0.5, np.where(size < 4, 1, 2))
    return np.copysign(np.ceil(size / step - u) * step, x)


RIGHT = {
    "lost_beside_48": [2.0, 2],
    "nvfp4_scales": [one_by_one],
    "stochastic_e2m1": [by_ceiling],
}


WRONG = {
    "nvfp4_scales": [
        (lambda x: one_by_one(x.astype(np.float32)), "rounded once"),
    ],
    "stochastic_e2m1": [
        (lambda x, u: by_ceiling(x, u * 0.5), "distance from the lower"),
        (lambda x, u: by_ceiling(x, u.astype(np.float32)), "distance from the lower"),
    ],
}
