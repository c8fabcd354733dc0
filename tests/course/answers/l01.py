"""Answers to the exercises of lesson 01, right ones and wrong ones."""

import math

import numpy as np

from mplab import FP16, round_to


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


def by_search(gradient):
    return next(2.0**k for k in range(200) if abs(gradient) * 2.0**k > 2.0**-25)


RIGHT = {
    "flush_threshold": [2.0**-25, np.float32(2.0**-25)],
    "flushed_share": [count, half, lambda x: np.float32(count(x))],
    "smallest_scale": [by_exponent, by_search],
}

# Written apart from the sentences they must draw: what somebody would really hand in.
WRONG = {
    "flush_threshold": [(0.0, "midpoint")],
    "flushed_share": [
        (
            lambda x: float((round_to(x, FP16) == 0).mean()) if len(x) else 0.0,
            "zero before",
        ),
        (
            lambda x: sum((round_to(x, FP16) == 0) & (x != 0)) / max(len(x), 1),
            "not of all",
        ),
        (lambda x: _share(np.abs(x[x != 0]) < 2.0**-14), "are not zero"),
        (lambda x: _share(np.abs(x[x != 0]) < 2.0**-24), "nearer to the smallest"),
        (lambda x: _share(x[x != 0] <= 2.0**-25), "compare magnitudes"),
    ],
    "smallest_scale": [
        (lambda g: _lift(g, 2.0**-14), "a normal number"),
        (lambda g: _lift(g, 2.0**-24), "need not reach"),
        (lambda g: _lift(g, 2.0**-25), "there is a tie"),
        (lambda g: by_search(g) if g > 0 else 1.0, "look at its magnitude"),
        (lambda g: 65536.0, "GradScaler"),
    ],
}


def _share(flags):
    return float(flags.mean()) if flags.size else 0.0


def _lift(gradient, target):
    scale = 1.0
    while abs(gradient) * scale < target:
        scale *= 2
    return scale
