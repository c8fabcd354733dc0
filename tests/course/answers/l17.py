"""Answers to the exercises of lesson 17, right ones and wrong ones."""

import math

import numpy as np

from mplab.arithmetic import split


def by_formula(k, p, held, q):
    b = min(math.floor((held + 2 - math.log2(k)) / 2), p + 1)
    s = math.ceil(q / b)
    return s * (s + 1) // 2


def by_trial(k, p, held, q):
    b = 1
    while b <= p and k * 4**b <= 2**held:
        b += 1
    s = -(-q // b)
    return sum(range(s + 1))


def cost(
    by_sum=lambda k, held: (held + 2 - math.log2(k)) / 2,
    most=1,
    s=math.ceil,
    pairs=None,
):
    def answer(k, p, held, q):
        n = s(q / min(math.floor(by_sum(k, held)), p + most))
        return pairs(n) if pairs else n * (n + 1) // 2

    return answer


def on_a_grid(x, widths):
    e = np.frexp(np.abs(x).max())[1] + 1
    parts = []
    for b in widths:
        e = e - b
        parts.append(np.rint(np.ldexp(x, -e)))
        x = x - np.ldexp(parts[-1], e)
    return np.array(parts)


def sliced(top=lambda x: 2.0 ** np.frexp(np.abs(x).max())[1], whole=np.rint, first=2.0):
    def answer(x, widths):
        unit, parts = first * top(x), []
        for width in widths:
            unit = unit * 2.0**-width
            part = whole(x / unit)
            x = x - part * unit
            parts.append(part)
        return np.array(parts)

    return answer


def by_the_library(x, widths):
    return split(x, len(widths), widths[0])[0]


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


def until(size, product=None):
    def answer(k, q):
        found, n, m = 1, 0, 256
        while not found > size(k, q):
            if product or math.gcd(found, m) == 1:
                found, n = found * (product or (lambda m: m))(m), n + 1
            m -= 1
        return n

    return answer


def two_k(k, q):
    return 2 * k * 4**q


RIGHT = {
    "unit_products": [by_formula, by_trial],
    "split_row": [on_a_grid],
    "moduli_needed": [from_a_list],
}

WRONG = {
    "unit_products": [
        (cost(lambda k, held: (held + 2) / 2), "k products add up"),
        (cost(lambda k, held: held + 2 - math.log2(k)), "twice their bits"),
        (cost(most=99), "only slices up to p + 1"),
        (cost(pairs=lambda n: n * n), "below the bits"),
        (cost(s=math.floor), "round s up"),
    ],
    "split_row": [
        (sliced(top=lambda x: 2.0 ** np.frexp(np.abs(x))[1]), "share their unit"),
        (
            sliced(top=lambda x: 2.0 ** np.ceil(np.log2(np.abs(x).max() or 1))),
            "for 1.0 it is 2",
        ),
        (sliced(whole=np.trunc), "too much for the next"),
        (sliced(first=1.0), "takes a bit"),
        (by_the_library, "One power of two above the row"),
    ],
    "moduli_needed": [
        (until(two_k, lambda m: 256), "Only one modulus"),
        (until(two_k, lambda m: m), "share the factor 2"),
        (until(lambda k, q: k * 4**q), "has a sign"),
        (until(lambda k, q: 2 * 4**q), "k times as large"),
        (until(lambda k, q: 2 * k * 2**q), "has 2q bits"),
    ],
}
