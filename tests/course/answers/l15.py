"""Answers to the exercises of lesson 15, right ones and wrong ones."""

import math

import numpy as np

from mplab import FP16, round_to
from mplab.arithmetic import backward_error, solve_triangular


def by_loops(a, x, b):
    off = row = 0.0
    for coefficients, right in zip(a.tolist(), b.tolist(), strict=True):
        total = math.fsum(c * v for c, v in zip(coefficients, x.tolist(), strict=True))
        off = max(off, abs(right - total))
        row = max(row, sum(map(abs, coefficients)))
    return (
        off / (row * max(map(abs, x.tolist())) + max(map(abs, b.tolist())))
        if off
        else 0.0
    )


def by_exponents(a, b, x, lower, upper):
    r = b - np.array([math.fsum(row * x) for row in a])
    e = math.frexp(max(abs(v) for v in r))[1]
    d = round_to(np.ldexp(r, 1 - e), FP16)
    for triangle, low in ((lower, True), (upper, False)):
        d = solve_triangular(triangle, d, FP16, lower=low)
    return x + np.ldexp(d, e - 1)


def close_to_exact(a, x, b):
    return 0.0 if np.allclose(a @ x, b) else by_loops(a, x, b)


def signed_b(a, x, b):
    off = np.abs(b - a @ x).max()
    return off / (np.abs(a).sum(1).max() * np.abs(x).max() + b.max()) if off else 0.0


def by_length(a, b, x, lower, upper):
    """The Euclidean length of the residual decides its scale."""
    r = b - a @ x
    power = 2.0 ** (1 - math.frexp(np.linalg.norm(r))[1])
    y = solve_triangular(lower, round_to(r * power, FP16), FP16, lower=True)
    return x + solve_triangular(upper, y, FP16, lower=False) / power


RIGHT = {
    "corrections_needed": [13, 13.0],
    "system_backward_error": [by_loops],
    "refine_once": [by_exponents],
}

BY_LIBRARY = {"system_backward_error": [lambda a, x, b: backward_error(a, x, b)]}

WRONG = {
    "refine_once": [
        (by_length, "a power of two"),
    ],
    "system_backward_error": [
        (signed_b, "Divide max |residual|"),
        (close_to_exact, "Divide max |residual|"),
    ],
}
