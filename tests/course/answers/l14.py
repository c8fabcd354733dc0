"""Answers to the exercises of lesson 14, right ones and wrong ones."""

import math

import numpy as np


def by_logaddexp(x):
    return float(np.logaddexp.reduce(x))


def exactly(a, b, result):
    """Sums without rounding."""
    products = [float(x) * float(y) for x, y in zip(a, b, strict=True)]
    off = abs(math.fsum([-result, *products]))
    size = math.fsum(map(abs, products))
    return 0.0 if off == 0 else math.inf if size == 0 else off / size


def at_most_all(a, b, result):
    """As if no element could change by more than itself."""
    found = exactly(a, b, result)
    return found if found <= 1 else math.inf


RIGHT = {
    "bits_left": [4, 4.0],
    "log_sum_exp": [by_logaddexp],
    "dot_backward_error": [exactly],
}

WRONG = {
    "log_sum_exp": [
        (lambda x: by_logaddexp(x) / math.log(2), "Subtract the largest"),
    ],
    "dot_backward_error": [
        (lambda a, b, result: exactly(a, b, result) / len(a), "Divide the error"),
        (at_most_all, "Divide the error"),
    ],
}
