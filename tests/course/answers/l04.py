"""Answers to the exercises of lesson 04, right ones and wrong ones."""

import math

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

WRONG = {
    "saturating_cast": [
        (e4m3, "the cast itself gives NaN"),
        (lambda x: np.clip(e4m3(x), -448.0, 448.0), "the cast itself gives NaN"),
        (lambda x: np.nan_to_num(clamped(x), nan=448.0), "turn it into 448"),
        (lambda x: e4m3(min(x, 448.0)) if x == x else x, "clamp at both ends"),
        (
            lambda x: e4m3(x) if math.isinf(x) else clamped(x),
            "takes infinities as well",
        ),
    ],
    "count_fates": [
        (lambda x: counts(x[x > 0]), "Negative numbers vanish"),
        (
            limits(np.nextafter(2.0**-24, 0), 2.0**-14 - 2.0**-25, 65520.0),
            "not flushed",
        ),
        (limits(2.0**-14, 2.0**-14, 65520.0), "Below 2^-14 come the subnormals"),
        (limits(2.0**-25, 2.0**-14 - 2.0**-25, 65504.5), "decided after rounding"),
        (lambda x: [0, 0, 0], "Round first"),
    ],
}
