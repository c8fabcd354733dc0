"""Answers to the exercises of lesson 06, right ones and wrong ones."""

from fractions import Fraction

import numpy as np

from mplab import FP8_E4M3, FP32, Format, Rounding, round_to
from mplab.arithmetic import MatrixUnit, mma

REGISTER = Format("E8M13", exponent_bits=8, precision=14)
PLAIN = MatrixUnit(32, 13)


def by_the_unit(a, b):
    """By the library's own model, which writes all bits that this many terms can have."""
    return float(
        mma(a[None], b[:, None], architecture=PLAIN, input_format=FP8_E4M3)[0, 0]
    )


def by_fractions(a, b):
    def exponent(x):
        return int(np.floor(np.log2(abs(x))))

    pairs = [(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True) if x and y]
    if not pairs:
        return 0.0
    unit = Fraction(2) ** (max(exponent(x) + exponent(y) for x, y in pairs) - 13)
    return float(sum(int(Fraction(x) * Fraction(y) / unit) for x, y in pairs) * unit)


def by_blocks(x, *, inner=REGISTER):
    total = 0.0
    for start in range(0, len(x), 128):
        part = 0.0
        for term in x[start : start + 128].tolist():
            part = float(round_to(part + term, inner, rounding=Rounding.TOWARD_ZERO))
        total = float(round_to(total + part, FP32))
    return total


RIGHT = {
    "last_bit_kept": [2.0**-22, np.ldexp(1.0, -22)],
    "step_sum": [by_fractions],
    "promoted_sum": [by_blocks],
}

BY_LIBRARY = {"step_sum": [by_the_unit]}

WRONG = {
    "step_sum": [
        (lambda a, b: by_fractions(a[:2], b[:2]), "then add"),
    ],
    "promoted_sum": [
        (lambda x: by_blocks(x, inner=FP32), "cut at every step"),
        (lambda x: by_blocks(x[::-1]), "cut at every step"),
    ],
}
