"""Answers to the exercises of lesson 04, right ones and wrong ones."""

import math

import ml_dtypes
import numpy as np

from mplab import FP8_E4M3, Overflow, round_to


def by_gap(x):
    if x != x:
        return x
    size = min(abs(x), 448.0)
    gap = 2.0 ** (max(math.frexp(size)[1] - 1, -6) - 3)
    return math.copysign(round(size / gap) * gap, x)


def by_float32(x):
    """The cast of ml_dtypes, which goes through float32."""
    kept = np.clip(np.float32(x), np.float32(-448), np.float32(448))
    return float(kept.astype(ml_dtypes.float8_e4m3fn))


def counts(x):
    """By NumPy's own float16."""
    with np.errstate(all="ignore"):
        r = np.abs(x.astype(np.float16).astype(float))
    flushed = int(np.sum((r == 0) & (x != 0)))
    return [
        flushed,
        int(np.sum((r > 0) & (r < 2.0**-14))),
        int(np.sum(np.isinf(r) & ~np.isinf(x))),
    ]


def limits(flushed, normal, most):
    def answer(x):
        size = np.abs(x[np.isfinite(x)])
        coarse = (size > flushed) & (size < normal)
        flushes = (size > 0) & (size <= flushed)
        return [int(flushes.sum()), int(coarse.sum()), int((size >= most).sum())]

    return answer


RIGHT = {
    "largest_square": [255.875, np.float16(255.875)],
    "saturating_cast": [by_gap],
    "count_fates": [counts, limits(2.0**-25, 2.0**-14 - 2.0**-25, 65520.0)],
}

BY_LIBRARY = {
    "saturating_cast": [
        lambda x: float(round_to(x, FP8_E4M3, overflow=Overflow.SATURATE))
    ]
}

WRONG = {
    "saturating_cast": [
        (by_float32, "round the float64 once"),
    ],
}
