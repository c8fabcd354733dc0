"""Answers to the exercises of lesson 04, right ones and wrong ones."""

import ml_dtypes
import numpy as np

from mplab import FP8_E4M3, Overflow, round_to


def e4m3(x):
    """The cast of ml_dtypes, which does not saturate."""
    with np.errstate(all="ignore"):
        return float(np.float32(x).astype(ml_dtypes.float8_e4m3fn))


def clamped(x):
    return e4m3(np.clip(x, -448.0, 448.0))


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
    "saturating_cast": [clamped],
    "count_fates": [counts, limits(2.0**-25, 2.0**-14 - 2.0**-25, 65520.0)],
}

BY_LIBRARY = {
    "saturating_cast": [
        lambda x: float(round_to(x, FP8_E4M3, overflow=Overflow.SATURATE))
    ]
}
