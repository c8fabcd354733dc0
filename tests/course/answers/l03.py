"""Answers to the exercises of lesson 03, right ones and wrong ones."""

import math
from fractions import Fraction

from mplab import BF16, FP8_E4M3, FP16, Rounding, round_to, ulp, values


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


def chance_in_gaps_at(neighbour):
    """In gaps at a neighbour of x, which may be a power of two that x does not reach."""

    def answer(x):
        low, high = (
            float(round_to(x, BF16, rounding=mode))
            for mode in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE)
        )
        near = {"low": low, "high": high, "nearest": float(round_to(x, BF16))}
        return (x - low) / float(ulp(near[neighbour], BF16))

    return answer


RIGHT = {
    "four_ties": [[8, 12, 12, 16], (8.0, 12.0, 12.0, 16.0)],
    "round_e4m3": [by_ulp, by_search],
    "chance_up": [chance],
}

WRONG = {
    "round_e4m3": [
        (lambda x: float(round_to(round_to(x, FP16), FP8_E4M3)), "round once"),
    ],
    "chance_up": [
        (chance_in_gaps_at(neighbour), "in gaps of BF16 at x")
        for neighbour in ("low", "high", "nearest")
    ],
}
