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


def finite(x):
    return x[np.isfinite(x) & (x != 0)]


RIGHT = {
    "sigmoids_until_zero": [4, 4.0],
    "exponents": [by_loop, by_bits],
    "awake_from": [awake, awake_by_search],
}

# Written apart from the sentences they must draw: what somebody would really hand in.
WRONG = {
    "sigmoids_until_zero": [(3, "Add the exponents")],
    "exponents": [
        (lambda x: [math.floor(math.log2(abs(v))) for v in finite(x)], "rounded up"),
        (lambda x: [math.frexp(v)[1] for v in finite(x)], "between 1 and 2"),
        (lambda x: [int(math.log2(abs(v))) for v in finite(x)], "not to 0"),
        (lambda x: [round(math.log2(abs(v))) for v in finite(x)], "round down"),
        (
            lambda x: [e for e, v in zip(by_loop(x), finite(x), strict=True) if v > 0],
            "negative",
        ),
    ],
    "awake_from": [
        (lambda s: next((i for i in range(len(s)) if s[i] < 0.9), -1), "for good"),
        (lambda s: len(s) if awake(s) < 0 else awake(s), "gives -1"),
        (lambda s: max(awake(s) - 1, min(awake(s), 0)), "the step after it"),
        (lambda s: awake([x - 1e-9 for x in s]), "not below"),
        (lambda s: awake([x + 0.4 for x in s]), "a third of its gradients"),
        (lambda s: sum(x < 0.9 for x in s), "Look from the end"),
    ],
}
