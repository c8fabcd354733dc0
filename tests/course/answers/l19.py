"""Answers to the exercises of lesson 19, right ones and wrong ones."""

from collections import Counter
from itertools import permutations

import numpy as np

from mplab import BF16, round_to


def one_by_one(a, b):
    counts = {}
    for order in permutations(range(len(a))):
        total = 0.0
        for k in order:
            total = float(round_to(total + float(round_to(a[k] * b[k], BF16)), BF16))
        counts[total] = counts.get(total, 0) + 1
    return counts


def all_at_once(a, b):
    terms = np.array(list(permutations(round_to(a * b, BF16)))).T
    total = np.zeros(terms.shape[1])
    for term in terms:
        total = round_to(total + term, BF16)
    return Counter(total.tolist())


def rounded_at_the_end(a, b):
    terms = np.array(list(permutations(round_to(a * b, BF16)))).T
    return Counter(round_to(terms.sum(0), BF16).tolist())


def exact_products(a, b):
    total = 0.0
    for term in np.array(list(permutations(a * b))).T:
        total = round_to(total + term, BF16)
    return Counter(total.tolist())


def permuted_apart(a, b):
    total = 0.0
    for factor, factors in zip(a, np.array(list(permutations(b))).T, strict=True):
        total = round_to(total + round_to(factor * factors, BF16), BF16)
    return Counter(total.tolist())


def tiles(kernel, x, w):
    found = np.zeros((len(x), w.shape[1]), np.float32)
    for start in range(0, len(x), 8):
        some = x[start : start + 8]
        filled = np.zeros((8, x.shape[1]), np.float32)
        filled[: len(some)] = some
        found[start : start + 8] = kernel(filled, w)[: len(some)]
    return found


def row_by_row(kernel, x, w):
    """Eight copies of each row."""
    return np.array([kernel(np.tile(row, (8, 1)), w)[0] for row in x])


def no_filling(kernel, x, w):
    return np.concatenate([kernel(x[k : k + 8], w) for k in range(0, len(x), 8)])


def words_in_order(a, b):
    for k, ((_, x), (_, y)) in enumerate(zip(a, b, strict=True)):
        if (x.view(np.int32) != y.view(np.int32)).any():
            return k
    return None


def where(differ, places=lambda a: range(len(a))):
    def answer(a, b):
        found = [k for k in places(a) if differ(a[k][1], b[k][1])]
        return found[0] if found else None

    return answer


def bits(x, y):
    return x.tobytes() != y.tobytes()


def not_cut(kernel, x, w):
    filled = np.concatenate([x, np.zeros((-len(x) % 8, x.shape[1]), np.float32)])
    return np.concatenate(
        [kernel(filled[k : k + 8], w) for k in range(0, len(filled), 8)]
    )


RIGHT = {
    "count_orders": [one_by_one, all_at_once],
    "invariant_matmul": [tiles, row_by_row],
    "first_divergence": [words_in_order],
}

WRONG = {
    "count_orders": [
        (rounded_at_the_end, "after each addition"),
        (exact_products, "before it is added"),
        (permuted_apart, "keeps its two factors"),
        (lambda a, b: dict.fromkeys(one_by_one(a, b), 1), "not the sums"),
        (lambda a, b: len(one_by_one(a, b)), "in every order"),
    ],
    "invariant_matmul": [
        (lambda kernel, x, w: kernel(x, w), "Neither a seed nor a flag"),
        (
            lambda kernel, x, w: np.vstack([kernel(row[None], w) for row in x]),
            "bits for one row",
        ),
        (no_filling, "fill it up"),
        (not_cut, "without those that filled it up"),
        (lambda kernel, x, w: -tiles(kernel, x, w), "must have 8 rows"),
    ],
    "first_divergence": [
        (
            where(bits, lambda a: [k for k in range(len(a)) if a[k][0] == "loss"]),
            "A loss may",
        ),
        (
            where(lambda x, y: not np.allclose(x, y, equal_nan=True)),
            "One ulp is a difference",
        ),
        (where(bits, lambda a: [len(a) - 1]), "last weights"),
        (where(lambda x, y: (x != y).any()), "A NaN equals"),
        (lambda a, b: 0, "Compare the bits"),
    ],
}
