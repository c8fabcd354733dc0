"""Answers to the exercises of lesson 03, right ones and wrong ones."""

import math
from fractions import Fraction

from mplab import FP8_E4M3, FP16, round_to, ulp, values


def gap(x, digits, least):
    """The gap of a format with so many stored digits and this smallest exponent."""
    exponent = math.frexp(x)[1] - 1 if x else least
    return 2.0 ** (max(exponent, least) - digits)


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


def chance(x):
    step = Fraction(gap(x, 7, -126))
    return float(Fraction(x) / step % 1)


RIGHT = {
    "four_ties": [[8, 12, 12, 16], (8.0, 12.0, 12.0, 16.0)],
    "round_e4m3": [by_ulp, by_search],
    "chance_up": [chance],
}

WRONG = {
    "round_e4m3": [
        (lambda x: float(round_to(round_to(x, FP16), FP8_E4M3)), "round once"),
    ],
}
