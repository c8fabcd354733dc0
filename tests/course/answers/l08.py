"""Answers to the exercises of lesson 08, right ones and wrong ones."""

import numpy as np


def by_bits(x):
    """Exponents from the bits of float64, none of which is subnormal here."""
    kept = x[np.isfinite(x) & (x != 0)]
    return (kept.view(np.int64) >> 52 & 0x7FF) - 1023


def awake_by_search(shares):
    return next((i for i in range(len(shares)) if max(shares[i:]) < 0.9), -1)


def by_frexp_of_float32(x):
    kept = x[np.isfinite(x) & (x != 0)].astype(np.float32)
    return np.frexp(kept)[1] - 1


RIGHT = {
    "sigmoids_until_zero": [4, 4.0],
    "exponents": [by_bits],
    "awake_from": [awake_by_search],
}

WRONG = {
    "exponents": [
        (by_frexp_of_float32, "or float32, is rounded up"),
    ],
}
