"""Answers to the exercises of lesson 01, right ones and wrong ones."""

import math

import numpy as np


def count(x):
    """Flushed share, written with loops and comparisons instead of `round_to`."""
    nonzero = [abs(float(v)) for v in x if v != 0]
    return sum(v <= 2.0**-25 for v in nonzero) / len(nonzero) if nonzero else 0.0


def half(x):
    """Flushed share by NumPy's own float16."""
    with np.errstate(under="ignore"):
        kept = np.count_nonzero(x.astype(np.float16))
    nonzero = np.count_nonzero(x)
    return (nonzero - kept) / nonzero if nonzero else 0.0


def by_exponent(gradient):
    """Smallest scale from the exponent; a power of two is a tie and needs one step more."""
    significand, exponent = math.frexp(abs(gradient))
    return 2.0 ** max(0, -24 - exponent + (significand == 0.5))


def by_float32(gradient):
    scale = 1.0
    while np.float16(np.float32(gradient * scale)) == 0:
        scale *= 2
    return scale


def by_logarithm(gradient):
    return 2.0 ** max(0, math.floor(-25 - math.log2(abs(gradient))) + 1)


RIGHT = {
    "flush_threshold": [2.0**-25, np.float32(2.0**-25)],
    "flushed_share": [half, lambda x: np.float32(count(x))],
    "smallest_scale": [by_exponent],
}

WRONG = {
    "smallest_scale": [
        (by_float32, "A logarithm, or float32"),
        (by_logarithm, "A logarithm, or float32"),
    ],
}
