"""Answers to the exercises of lesson 14, right ones and wrong ones."""

import math

import numpy as np


def by_logaddexp(x):
    return float(np.logaddexp.reduce(x))


def in_pairs(x):
    """Two at a time, the larger one outside."""
    total = -math.inf
    for score in x.tolist():
        high, low = max(total, score), min(total, score)
        total = high if low == -math.inf else high + math.log1p(math.exp(low - high))
    return total


def shifted(shift):
    def answer(x):
        with np.errstate(all="ignore"):
            return float(np.log(np.sum(np.exp(x - shift(x)))) + shift(x))

    return answer


def exactly(a, b, result):
    """Sums without rounding."""
    products = [float(x) * float(y) for x, y in zip(a, b, strict=True)]
    off = abs(math.fsum([-result, *products]))
    size = math.fsum(map(abs, products))
    return 0.0 if off == 0 else math.inf if size == 0 else off / size


def forward(a, b, result):
    off, exact = abs(a @ b - result), abs(a @ b)
    return off / exact if exact else (math.inf if off else 0.0)


def by_norms(a, b, result):
    off, size = abs(a @ b - result), np.linalg.norm(a) * np.linalg.norm(b)
    return off / size if size else (math.inf if off else 0.0)


RIGHT = {
    "bits_left": [4, 4.0],
    "log_sum_exp": [by_logaddexp, in_pairs],
    "dot_backward_error": [exactly],
}

WRONG = {
    "log_sum_exp": [
        (shifted(lambda x: 0.0), "shift first"),
        (shifted(np.max), "is NaN"),
        (shifted(lambda x: max(abs(x))), "largest magnitude"),
        (np.max, "alone"),
        (lambda x: by_logaddexp(x) / math.log(2), "Subtract the largest"),
    ],
    "dot_backward_error": [
        (forward, "forward error"),
        (by_norms, "not to the norm"),
        (lambda a, b, result: abs(result - a @ b), "That is an absolute error"),
        (
            lambda a, b, result: abs(result - a @ b) / (np.abs(a) @ np.abs(b)),
            "Divide the error",
        ),
        (lambda a, b, result: exactly(a, b, result) / len(a), "Divide the error"),
    ],
}
