"""Answers to the exercises of lesson 20, right ones and wrong ones."""

import math

import numpy as np

from mplab import BF16, round_to, ulp


def one_by_one(x):
    return sum(float(round_to(v, BF16) - v) / float(ulp(v, BF16)) for v in x) / len(x)


def by_sorting(scores):
    first, *others = sorted(scores, reverse=True)
    m = first + 1 if others and others[0] == first else first
    return [float(round_to(math.exp(s - m), BF16)) for s in scores]


def recursive(s):
    return (
        0
        if s >= 0.5
        else 1 + recursive(s * (3.4445 - s * s * (4.775 - 2.0315 * s * s)))
    )


def in_one(s):
    """Starts with a step."""
    steps = 0
    while True:
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
        steps += 1
        if s >= 0.5:
            return steps


def without_the_last_term(s):
    """Differs only between 0.14977 and 0.14982."""
    return 0 if s >= 0.5 else 1 + without_the_last_term(3.4445 * s - 4.775 * s**3)


RIGHT = {
    "pair_bias": [0.25, 1 / 4],
    "mean_error": [one_by_one],
    "untied_weights": [by_sorting],
    "steps_to_half": [recursive],
}


WRONG = {
    "pair_bias": [(0.5, "Only half of the sums"), (1.0, "Half of the sums are ties")],
    "mean_error": [
        (lambda x: one_by_one(np.float32(x).astype(float)), "The mean of"),
        (lambda x: one_by_one(abs(x)), "The mean of"),
        (lambda x: one_by_one(x) * 2, "The mean of"),
    ],
    "untied_weights": [
        (lambda s: round_to(np.exp(s - s.max()) / np.exp(1), BF16), "A single largest"),
        (lambda s: round_to(np.exp(s) / np.exp(s.max() + 1), BF16), "m is the largest"),
    ],
    "steps_to_half": [
        (without_the_last_term, "the term with s**5"),
        (in_one, "Apply"),
        (lambda s: math.ceil(s), "Apply"),
    ],
}
