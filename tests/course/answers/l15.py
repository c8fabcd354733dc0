"""Answers to the exercises of lesson 15, right ones and wrong ones."""

import math

import numpy as np

from mplab import FP16, FP32, round_to
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


def by_norm(a, x, b):
    norm = np.linalg.norm
    size = norm(a, np.inf) * norm(x, np.inf) + norm(b, np.inf)
    return norm(b - a @ x, np.inf) / size if size > 0 else 0.0


def judged(size, off=lambda r: np.abs(r).max()):
    def answer(a, x, b):
        top = off(b - a @ x)
        return top / size(a, x, b) if top else 0.0

    return answer


def most(v):
    return np.abs(v).max()


def rows(a):
    return np.abs(a).sum(axis=1).max()


def by_exponents(a, b, x, lower, upper):
    r = b - np.array([math.fsum(row * x) for row in a])
    e = math.frexp(max(abs(v) for v in r))[1]
    d = round_to(np.ldexp(r, 1 - e), FP16)
    for triangle, low in ((lower, True), (upper, False)):
        d = solve_triangular(triangle, d, FP16, lower=low)
    return x + np.ldexp(d, e - 1)


def correction(
    residual=lambda a, b, x: b - a @ x,
    scale=lambda r: 2.0 ** -math.floor(math.log2(np.abs(r).max())),
    fmt=FP16,
    after=lambda x, d, s: x + d / s,
):
    def answer(a, b, x, lower, upper):
        r = residual(a, b, x)
        if not r.any():
            return x
        s = scale(r)
        y = solve_triangular(lower, round_to(s * r, fmt), fmt, lower=True)
        with np.errstate(all="ignore"):
            return after(x, solve_triangular(upper, y, fmt, lower=False), s)

    return answer


RIGHT = {
    "corrections_needed": [13, 13.0],
    "system_backward_error": [by_loops, by_norm],
    "refine_once": [by_exponents],
}

BY_LIBRARY = {"system_backward_error": [lambda a, x, b: backward_error(a, x, b)]}

WRONG = {
    "system_backward_error": [
        (judged(lambda a, x, b: rows(a) + most(b)), "row sum"),
    ],
    "refine_once": [
        (correction(fmt=FP32), "Residual in float64"),
    ],
}
