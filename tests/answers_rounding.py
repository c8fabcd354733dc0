"""Answers to the exercises of `mplab.checks.rounding`, right ones and wrong ones."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np


def gap(x, digits, least):
    """The gap of a format with so many stored digits and this smallest exponent."""
    exponent = math.frexp(x)[1] - 1 if x else least
    return 2.0 ** (max(exponent, least) - digits)


def by_gap(x):
    """Python's round of a float goes to even."""
    step = gap(x, 3, -6)
    return math.copysign(round(abs(x) / step) * step, x)


def by_dtype(x):
    """Through float32 odd-rounding is not needed here: none of the cases lies within its reach."""
    return float(np.float32(x).astype(ml_dtypes.float8_e4m3fn))


def with_step(operation):
    def answer(x):
        step = gap(x, 3, -6)
        return math.copysign(operation(abs(x) / step) * step, x)

    return answer


def chance(x):
    step = Fraction(gap(x, 7, -126))
    return float(Fraction(x) / step % 1)


RIGHT = {
    "four_ties": [[16, 20, 20, 24], (16.0, 20.0, 20.0, 24.0), np.array([16, 20, 20, 24])],
    "round_e4m3": [by_gap, by_dtype],
    "chance_up": [chance, lambda x: (x / gap(x, 7, -126)) % 1],
}

WRONG = {
    "four_ties": [
        ([18, 20, 22, 24], "not away from zero"),
        ([16, 18, 20, 22], "not always down"),
        ([17, 19, 21, 23], "no odd integer"),
        ([16, 16, 24, 24], "not the one before it"),
        ([16, 18, 22, 24], "last significand bit is 1"),
        ([16, 20, 20], "even integers 16, 18, 20"),
        (16.0, "even integers 16, 18, 20"),
    ],
    "round_e4m3": [
        (with_step(lambda v: math.floor(v + 0.5)), "not away from zero"),
        (with_step(math.floor), "toward zero, not to the nearest"),
        (with_step(lambda v: math.ceil(v - 0.5)), "may be the upper"),
        (
            lambda x: math.copysign(math.floor(x / gap(x, 3, -6) + 0.5) * gap(x, 3, -6), x),
            "sends every tie upward",
        ),
        (lambda x: by_gap(float(np.float16(x))), "round once"),
        (
            lambda x: math.copysign(round(abs(x) / gap(x, 3, -99)) * gap(x, 3, -99), x),
            "Below 2^-6 the gap stays",
        ),
        (
            lambda x: by_gap(x) if abs(by_gap(x)) >= 2.0**-6 else math.copysign(0, x),
            "Subnormals are values too",
        ),
        (lambda x: math.copysign(round(abs(x) * 8) / 8, x), "only from 1 to 2"),
        (lambda x: x, "Divide by the gap"),
    ],
    "chance_up": [
        (lambda x: 0.5 if chance(x) else 0.0, "A fair coin"),
        (lambda x: (1 - chance(x)) % 1, "the chance of the lower neighbour"),
        (lambda x: 1.0 if chance(x) > 0.5 else 0.0, "rounds to nearest"),
        (lambda x: (x * 128) % 1, "only from 1 to 2"),
        (lambda x: chance(abs(x)), "mind the floor"),
        (lambda x: chance(x) / 2, "distance from the lower neighbour"),
    ],
}
