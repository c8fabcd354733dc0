"""The exercises on FP64 from low formats: what slices cost, a row in slices, and moduli."""

import math
from collections.abc import Callable
from functools import partial
from itertools import count

import numpy as np

from mplab.course.exercise import Arguments, Exercise, known


# What slices cost ------------------------------------------------------------------------
def _exact_bits(k: int, held: int) -> int:
    return (((1 << held) // k).bit_length() + 1) // 2


def _products(
    k: int,
    p: int,
    held: int,
    q: int,
    *,
    bits: Callable[[int, int], int] = _exact_bits,
    most: int = 1,
    up: bool = True,
    all_pairs: bool = False,
) -> int:
    """Products of a unit; `most` is how many bits more than p a slice may have."""
    b = min(bits(k, held), p + most)
    slices = math.ceil(q / b) if up else q // b
    return slices**2 if all_pairs else slices * (slices + 1) // 2


_COSTS = tuple(
    Arguments(case)
    for case in (
        (64, 11, 24, 53), (64, 8, 24, 53), (64, 6, 31, 53), (1024, 4, 14, 53), (1024, 11, 24, 53),
        (1, 11, 24, 53), (1, 30, 24, 24), (4096, 24, 24, 53), (65, 11, 24, 60), (63, 11, 24, 60),
        (3, 24, 24, 60), (100, 20, 31, 106), (1 << 20, 11, 24, 20), (16, 4, 14, 10),
        (1 << 24, 4, 24, 3),
    )
)  # fmt: skip


# A row in slices -------------------------------------------------------------------------
def _top(x: np.ndarray) -> np.ndarray:
    """The least power of two above all magnitudes, and 1 for zeros."""
    return np.asarray(2.0 ** np.frexp(np.abs(x).max())[1])


def _split_row(
    x: np.ndarray,
    widths: list[int],
    *,
    top: Callable[[np.ndarray], np.ndarray] = _top,
    whole: Callable[[np.ndarray], np.ndarray] = np.rint,
    shift: int = 1,
) -> np.ndarray:
    unit, rest, parts = top(x) * 2.0**shift, x, []
    for bits in widths:
        unit = unit / 2.0**bits
        part = whole(rest / unit)
        rest = rest - part * unit
        parts.append(part)
    return np.array(parts)


def _of_each(x: np.ndarray) -> np.ndarray:
    return np.asarray(2.0 ** np.frexp(np.abs(x))[1])


def _all_of_x(x: np.ndarray, widths: list[int]) -> np.ndarray:
    return np.rint(x / (2 * _top(x) / 2.0 ** np.cumsum(widths)[:, None]))


def _at_least(x: np.ndarray) -> np.ndarray:
    return np.asarray(2.0 ** np.ceil(np.log2(np.abs(x).max() or 1.0)))


_ODD = np.array([0.7998046875, -0.3, 0.0451, 0.0071, 1 / 3])  # no slice is -0

_ROWS = (
    Arguments((np.array([0.75, 0.171875]), [4, 4])),
    Arguments((np.array([1.0, 0.5]), [4])),
    Arguments((np.zeros(3), [4, 3])),
    Arguments((np.array([-0.75, 0.15625, 0.09375]), [4, 3])),
    Arguments((_ODD, [10, 9, 8, 7])),
    Arguments((_ODD * 2.0**60, [7, 7, 7, 7, 7, 7, 7, 7])),
    Arguments((np.array([-0.9, 0.3, 0.0451]) * 2.0**-40, [3, 10, 12, 11])),
    Arguments((np.array([3.0, -2.5, 1.5, 0.5]), [3, 2])),
)


# Moduli ----------------------------------------------------------------------------------
def _coprime(n: int) -> int:
    """The product of the n largest integers up to 256 without a common factor."""
    product = 1
    for m in range(256, 1, -1):
        if n and math.gcd(product, m) == 1:
            product, n = product * m, n - 1
    return product


def _needed(
    k: int,
    q: int,
    *,
    product: Callable[[int], int] = _coprime,
    size: Callable[[int, int], int],
) -> int:
    return next(n for n in count(1) if product(n) > size(k, q))


_moduli_needed = partial(_needed, size=lambda k, q: 2 * k * 4**q)

_SUMS = tuple(
    Arguments(case)
    for case in (
        (1, 3), (2, 3), (8125, 1), (1, 4), (64, 53), (1, 53), (4096, 53), (1 << 16, 53), (64, 24),
        (100, 60), (1000, 40), (1 << 20, 64), (3, 17), (7, 30), (5000, 100),
    )
)  # fmt: skip


EXERCISES: dict[str, Exercise] = {
    "unit_products": Exercise(
        answer=_products,
        reason="b from k·4^(b-1) <= 2^held, at most p + 1; s slices hold q bits; count the pairs.",
        argument="k, p, held, q",
        cases=_COSTS,
        misconceptions=known(
            (
                partial(_products, bits=lambda k, held: (held + 2) // 2),
                "k products add up: their number takes bits of the accumulator, too.",
            ),
            (
                partial(
                    _products, bits=lambda k, held: math.floor(held + 2 - math.log2(k))
                ),
                "A product of two slices has twice their bits.",
            ),
            (
                partial(_products, most=1 << 20),
                "The format holds only slices up to p + 1 bits.",
            ),
            (
                partial(_products, all_pairs=True),
                "Pairs with s + t past n + 1 are left out: they lie below the bits that are kept.",
            ),
            (
                partial(_products, up=False),
                "The last bits need a slice, too: round s up.",
            ),
        ),
    ),
    "split_row": Exercise(
        answer=_split_row,
        reason="One power of two above the row; each unit 2^-b times the one before; ties to even.",
        argument="x, widths",
        cases=_ROWS,
        misconceptions=known(
            (
                partial(_split_row, top=_of_each),
                "Numbers of one row must share their unit, or their products cannot be added.",
            ),
            (_all_of_x, "Go on with the remainders, not with x again."),
            (
                partial(_split_row, top=_at_least),
                "The power of two lies above all magnitudes: for 1.0 it is 2.",
            ),
            (
                partial(_split_row, whole=np.trunc),
                "After a cut the remainder is up to a whole unit, too much for the next slice.",
            ),
            (
                partial(_split_row, shift=0),
                "The sign takes a bit: |slice| is at most 2^(b-1).",
            ),
        ),
    ),
    "moduli_needed": Exercise(
        answer=_moduli_needed,
        reason="The product of the moduli must exceed 2·k·4^q, and no two may share a factor.",
        argument="k, q",
        cases=_SUMS,
        misconceptions=known(
            (
                partial(
                    _needed, product=lambda n: 256**n, size=lambda k, q: 2 * k * 4**q
                ),
                "Only one modulus can be 256; the others are smaller.",
            ),
            (
                partial(
                    _needed,
                    product=lambda n: math.perm(256, n),
                    size=lambda k, q: 2 * k * 4**q,
                ),
                "256 and 254 share the factor 2: their remainders say the same twice.",
            ),
            (
                partial(_needed, size=lambda k, q: k * 4**q),
                "A sum has a sign: twice as many values must be told apart.",
            ),
            (
                partial(_needed, size=lambda k, q: 2 * 4**q),
                "A sum of k products is k times as large.",
            ),
            (
                partial(_needed, size=lambda k, q: 2 * k * 2**q),
                "A product of two integers of q bits has 2q bits.",
            ),
        ),
    ),
}
