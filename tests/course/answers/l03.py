"""Answers to the exercises of lesson 03, right ones and wrong ones."""

import math
from fractions import Fraction

import numpy as np

from mplab import FP8_E4M3, ulp, values


def gap(x, digits, least):
    """The gap of a format with so many stored digits and this smallest exponent."""
    exponent = math.frexp(x)[1] - 1 if x else least
    return 2.0 ** (max(exponent, least) - digits)


def by_gap(x):
    """Python's round of a float goes to even."""
    step = gap(x, 3, -6)
    return math.copysign(round(abs(x) / step) * step, x)


def by_ulp(x):
    """With the library's ulp, which the text gives as a formula."""
    step = float(ulp(x, FP8_E4M3))
    return math.copysign(round(abs(x) / step) * step, x)


def by_search(x):
    """The nearest of all values; of two, the one with the even code."""
    half = values(FP8_E4M3)[:127].tolist()
    return math.copysign(
        half[min(range(127), key=lambda c: (abs(half[c] - abs(x)), c % 2))], x
    )


def with_step(operation):
    def answer(x):
        step = gap(x, 3, -6)
        return math.copysign(operation(abs(x) / step) * step, x)

    return answer


def chance(x):
    step = Fraction(gap(x, 7, -126))
    return float(Fraction(x) / step % 1)


RIGHT = {
    "four_ties": [[8, 12, 12, 16], (8.0, 12.0, 12.0, 16.0)],
    "round_e4m3": [by_gap, by_ulp, by_search],
    "chance_up": [chance, lambda x: (x / gap(x, 7, -126)) % 1],
}

WRONG = {
    "round_e4m3": [
        (with_step(lambda v: math.floor(v + 0.5)), "not away from zero"),
        (with_step(math.floor), "toward zero, not to the nearest"),
        (
            lambda x: math.copysign(
                math.floor(x / gap(x, 3, -6) + 0.5) * gap(x, 3, -6), x
            ),
            "sends every tie upward",
        ),
        (lambda x: by_gap(float(np.float16(x))), "FP16 on the way"),
        (lambda x: by_gap(float(np.float32(x))), "float32 on the way"),
        (lambda x: x, "Divide by the gap"),
    ],
    "chance_up": [
        (lambda x: 0.5 if chance(x) else 0.0, "A fair coin"),
        (lambda x: (1 - chance(x)) % 1, "the chance of the lower neighbour"),
        (lambda x: 1.0 if chance(x) > 0.5 else 0.0, "rounds to nearest"),
        (lambda x: (x * 128) % 1, "only from 1 to 2"),
        (lambda x: chance(abs(x)), "mind the floor"),
    ],
}
