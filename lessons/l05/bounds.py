"""Error bounds for long sums, rigorous and probabilistic."""

import math

from mplab.arithmetic.reductions import parsed_order
from mplab.numbers.checks import between, integer
from mplab.numbers.formats import FormatLike, format_of


def roundings(n: int, order: str = "sequential") -> int:
    """Return the largest number of additions that any term of a sum of n terms passes through.

    Kahan's order counts as 2, the leading term of its bound.

    Examples:
        >>> [
        ...     roundings(1024, o)
        ...     for o in ("sequential", "blocked(32)", "pairwise", "kahan")
        ... ]
        [1023, 62, 10, 2]
    """
    n = integer("roundings", "n", n)
    name, block = parsed_order("roundings", order)
    if name == "kahan":
        return min(2, max(n - 1, 0))
    if name == "pairwise":
        return max(n - 1, 0).bit_length()
    if name == "blocked" and n > block:
        return block - 1 + -(-n // block) - 1
    return max(n - 1, 0)


def linear_bound(n: int, fmt: FormatLike) -> float:
    """Bound the error of n additions to nearest by n·u, relative to the sum of the |terms|.

    Exactness:
        Rigorous for a sum of values of `fmt` in any order of plain additions, for every n,
        without overflow.

    Source:
        Jeannerod and Rump 2013, Improved error bounds for inner products in floating-point
        arithmetic.

    Examples:
        >>> linear_bound(1024, FP16)
        0.5
    """
    return integer("linear_bound", "n", n) * format_of(fmt).unit_roundoff


def probabilistic_bound(n: int, fmt: FormatLike, *, confidence: float = 1.0) -> float:
    """Bound the error of n roundings by λ·√n·u if errors are independent with mean zero.

    It holds with probability at least 1 − 2·exp(−λ²/2), to first order. It fails where errors do
    not have mean zero, as when small terms stagnate against a large sum.

    Args:
        n: number of roundings.
        fmt: the format of the results.
        confidence: λ, positive; not itself a probability: 2.72 makes the probability 0.95, and 3.9
            makes it 0.999. With 1 nothing is guaranteed: that is the size of a typical error.

    Source:
        Higham and Mary 2019, A new approach to probabilistic rounding error analysis.

    Examples:
        >>> probabilistic_bound(1024, FP16)
        0.015625
    """
    function = "probabilistic_bound"
    factor = float(between(function, "confidence", confidence, 0))
    return factor * math.sqrt(integer(function, "n", n)) * format_of(fmt).unit_roundoff
