"""Answers to the exercises of lesson 08, right ones and wrong ones."""

import math

import numpy as np


def by_loop(x):
    """Exponents one by one, by doubling and halving."""
    found = []
    for value in x.tolist():
        if value == 0 or not math.isfinite(value):
            continue
        e, size = 0, abs(value)
        while size >= 2:
            e, size = e + 1, size / 2
        while size < 1:
            e, size = e - 1, size * 2
        found.append(e)
    return found


def by_bits(x):
    """Exponents from the bits of float64, none of which is subnormal here."""
    kept = x[np.isfinite(x) & (x != 0)]
    return (kept.view(np.int64) >> 52 & 0x7FF) - 1023


def awake(shares):
    bad = [i for i, share in enumerate(shares) if share >= 0.9]
    after = bad[-1] + 1 if bad else 0
    return after if after < len(shares) else -1


def awake_by_search(shares):
    return next((i for i in range(len(shares)) if max(shares[i:]) < 0.9), -1)


RIGHT = {
    "sigmoids_until_zero": [4, 4.0],
    "exponents": [by_loop, by_bits],
    "awake_from": [awake, awake_by_search],
}
