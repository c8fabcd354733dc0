"""Answers to the exercises of lesson 05, right ones and wrong ones."""

from fractions import Fraction

import numpy as np

from mplab import FP16
from mplab.arithmetic import add, subtract

HALF = np.float16


def pairwise(x):
    """By NumPy's own float16."""
    if len(x) == 0:
        return 0.0
    if len(x) == 1:
        return float(x[0])
    middle = len(x) // 2
    return float(HALF(pairwise(x[:middle])) + HALF(pairwise(x[middle:])))


def kahan(x):
    total = lost = HALF(0)
    for term in x.astype(HALF):
        corrected = term - lost
        new = total + corrected
        lost = (new - total) - corrected
        total = new
    return float(total)


def pairwise_by_add(x):
    """With the library's addition, which lesson 4 has used."""
    if len(x) < 2:
        return float(x[0]) if len(x) else 0.0
    at = len(x) // 2
    return float(add(pairwise_by_add(x[:at]), pairwise_by_add(x[at:]), FP16))


def kahan_by_operations(x):
    total = lost = 0.0
    for term in x.tolist():
        corrected = subtract(term, lost, FP16)
        new = add(total, corrected, FP16)
        lost = subtract(subtract(new, total, FP16), corrected, FP16)
        total = new
    return float(total)


def two_sum_by_fractions(a, b):
    s = a + b
    return s, float(Fraction(float(a)) + Fraction(float(b)) - Fraction(float(s)))


def two_product_by_fractions(a, b):
    p = a * b
    return p, float(Fraction(float(a)) * Fraction(float(b)) - Fraction(float(p)))


def two_product_in_order(a, b, order=((0, 0), (1, 0), (0, 1), (1, 1))):
    """The products of halves in some order, with Python's numbers for the factor."""
    cut = {10: 2**6 + 1, 23: 2**12 + 1, 52: 2**27 + 1}[np.finfo(a.dtype).nmant]
    halves = []
    for x in (a, b):
        c = cut * x
        halves.append((c - (c - x), x - (c - (c - x))))
    e = -(a * b)
    for i, j in order:
        e += halves[0][i] * halves[1][j]
    return np.array([a * b, e])


def turned_twice(answer):
    """The same as minus what is too much: −0 where nothing was lost."""

    def turned(a, b):
        result, lost = answer(a, b)
        return result, -(0 - lost)

    return turned


def kahan_less_the_rest(x):
    """Subtracts what was lost from the total at the end."""
    total = lost = np.float16(0)
    for term in x.astype(np.float16):
        corrected = term - lost
        new = total + corrected
        total, lost = new, new - total - corrected
    return total - lost


RIGHT = {
    "stopped_counter": [64.0, np.float32(64)],
    "pairwise_sum": [pairwise, pairwise_by_add],
    "kahan_sum": [kahan, kahan_by_operations],
    "two_sum": [two_sum_by_fractions, turned_twice(two_sum_by_fractions)],
    "two_product": [
        two_product_in_order,
        two_product_by_fractions,
        turned_twice(two_product_by_fractions),
    ],
}

WRONG = {
    "pairwise_sum": [
        (lambda x: pairwise(x) if len(x) else None, "round their sum"),
        (lambda x: pairwise(x[:-1]), "round their sum"),
    ],
    "kahan_sum": [
        (kahan_less_the_rest, "did not take"),
        (lambda x: kahan(x[1:]), "did not take"),
    ],
    "two_sum": [
        (lambda a, b: (a + b, -two_sum_by_fractions(a, b)[1]), "what both still have"),
    ],
    "two_product": [
        (
            lambda a, b: two_product_in_order(a, b, ((1, 1), (0, 1), (1, 0), (0, 0))),
            "high times high minus p",
        ),
    ],
}
