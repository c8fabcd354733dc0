"""The exercises on FP64 from low formats: what slices cost, a row in slices, and moduli."""

import math

import numpy as np

import mplab.lessons.solutions as solutions
from mplab.course.exercises.exercise import Exercise, known

# What slices cost ------------------------------------------------------------------------
_COSTS = (
    (64, 11, 24, 53), (64, 8, 24, 53), (64, 6, 31, 53), (1024, 4, 14, 53), (1024, 11, 24, 53),
    (1, 11, 24, 53), (1, 30, 24, 24), (4096, 24, 24, 53), (65, 11, 24, 60), (63, 11, 24, 60),
    (3, 24, 24, 60), (100, 20, 31, 106), (1 << 20, 11, 24, 20), (16, 4, 14, 10),
    (1 << 24, 4, 24, 3),
)  # fmt: skip


# A row in slices -------------------------------------------------------------------------
def _cut(x: np.ndarray, widths: list[int]) -> np.ndarray:
    rest = x
    rows = []
    unit = 2.0 ** (np.frexp(np.abs(x).max())[1] + 1)
    for bits in widths:
        unit /= 2.0**bits
        rows.append(np.trunc(rest / unit))
        rest = rest - rows[-1] * unit
    return np.array(rows)


def _each_by_itself(x: np.ndarray, widths: list[int]) -> np.ndarray:
    columns = [solutions.split_row(x[k : k + 1], widths) for k in range(len(x))]
    return np.hstack(columns)


def _without_sign(x: np.ndarray, widths: list[int]) -> np.ndarray:
    return np.asarray(solutions.split_row(x, [widths[0] + 1, *widths[1:]]))


_ODD = np.array([0.7998046875, -0.3, 0.0451, 0.0071, 1 / 3])  # no slice is -0

_ROWS = (
    (np.array([0.75, 0.171875]), [4, 4]),
    (np.array([1.0, 0.5]), [4]),
    (np.zeros(3), [4, 3]),
    (np.array([-0.75, 0.15625, 0.09375]), [4, 3]),
    (_ODD, [10, 9, 8, 7]),
    (_ODD * 2.0**60, [7, 7, 7, 7, 7, 7, 7, 7]),
    (np.array([-0.9, 0.3, 0.0451]) * 2.0**-40, [3, 10, 12, 11]),
    (np.array([3.0, -2.5, 1.5, 0.5]), [3, 2]),
    (np.array([np.nextafter(8.0, 0.0), 3.0]), [4]),  # its logarithm is 3.0
)


# Moduli ----------------------------------------------------------------------------------
def _with_common_factors(k: int, q: int) -> int:
    """How many of 256, 255, 254 and so on have a product that is large enough."""
    return next(n for n in range(1, 257) if math.perm(256, n) > 2 * k * 4**q)


_SUMS = (
    (1, 3), (2, 3), (8125, 1), (1, 4), (64, 53), (1, 53), (4096, 53), (1 << 16, 53), (64, 24),
    (100, 60), (1000, 40), (1 << 20, 64), (3, 17), (7, 30), (5000, 100),
)  # fmt: skip


EXERCISES: dict[str, Exercise] = {
    "unit_products": Exercise(
        answer=solutions.unit_products,
        reason="b from k·4^(b-1) <= 2^held, at most p + 1; s slices hold q bits; count the pairs.",
        argument="k, p, held, q",
        cases=_COSTS,
        misconceptions=known(
            (
                lambda k, p, held, q: solutions.unit_products(1, p, held, q),
                "k products add up: their number takes bits of the accumulator, too.",
            ),
            (
                lambda k, p, held, q: solutions.unit_products(k, held, held, q),
                "The format holds only slices up to p + 1 bits.",
            ),
        ),
    ),
    "split_row": Exercise(
        answer=solutions.split_row,
        reason="One power of two above the row; each unit 2^-b times the one before; ties to even.",
        argument="x, widths",
        cases=_ROWS,
        signed_zeros=False,
        misconceptions=known(
            (
                _each_by_itself,
                "Numbers of one row must share their unit, or their products cannot be added.",
            ),
            (
                _cut,
                "After a cut the remainder is up to a whole unit, too much for the next slice.",
            ),
            (
                _without_sign,
                "The sign takes a bit: |slice| is at most 2^(b-1).",
            ),
        ),
    ),
    "moduli_needed": Exercise(
        answer=solutions.moduli_needed,
        reason="The product of the moduli must exceed 2·k·4^q, and no two may share a factor.",
        argument="k, q",
        cases=_SUMS,
        misconceptions=known(
            (
                _with_common_factors,
                "256 and 254 share the factor 2: their remainders say the same twice.",
            ),
            (
                lambda k, q: solutions.moduli_needed(1, q),
                "A sum of k products is k times as large.",
            ),
        ),
    ),
}
