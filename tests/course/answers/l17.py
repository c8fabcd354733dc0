"""Answers to the exercises of lesson 17, right ones and wrong ones."""

import math

import numpy as np


def by_formula(k, p, held, q):
    b = min(math.floor((held + 2 - math.log2(k)) / 2), p + 1)
    s = math.ceil(q / b)
    return s * (s + 1) // 2


def on_a_grid(x, widths):
    e = np.frexp(np.abs(x).max())[1] + 1
    parts = []
    for b in widths:
        e = e - b
        parts.append(np.rint(np.ldexp(x, -e)))
        x = x - np.ldexp(parts[-1], e)
    return np.array(parts)


def from_a_list(k, q):
    chosen = []
    while math.prod(chosen) <= 2 * k * 2 ** (2 * q):
        chosen.append(
            max(
                m
                for m in range(2, 257)
                if all(math.gcd(m, other) == 1 for other in chosen)
            )
        )
    return len(chosen)


def mirrored(x, widths):
    """Its zeros are −0."""
    return -on_a_grid(-x, widths)


def by_logarithm(x, widths):
    rest = np.array(x, float)
    rows = []
    largest = float(np.max(np.abs(rest)))
    e = math.floor(math.log2(largest)) + 1 if largest else 0
    for k in range(len(widths)):
        unit = 2.0 ** (e + 1 - sum(widths[: k + 1]))
        rows.append(np.rint(rest / unit))
        rest = rest - rows[-1] * unit
    return np.array(rows)


RIGHT = {
    "unit_products": [by_formula],
    "split_row": [on_a_grid, mirrored],
    "moduli_needed": [from_a_list],
}

WRONG = {
    "split_row": [
        (by_logarithm, "One power of two above"),
    ],
}
