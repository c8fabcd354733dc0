"""How large the error of a long sum can be, how large it tends to be, and how large it was."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Unpack

import numpy as np

from mplab.arithmetic import _checks
from mplab.arithmetic.reductions import (
    Accumulation,
    accumulate,
    output_of,
    parsed_order,
    require_accumulation,
)
from mplab.numbers import checks
from mplab.numbers.checks import integer
from mplab.numbers.formats import FP32, Format, Rounding, require_format
from mplab.numbers.rounding import round_to


def roundings(n: int, order: str = "sequential") -> int:
    """The most additions that one of n terms passes through on its way into the sum.

    Compensated orders count as 2, the leading term of their bound.

    Examples:
        >>> [roundings(1024, o) for o in ("sequential", "blocked(32)", "pairwise", "kahan")]
        [1023, 62, 10, 2]
    """
    n = _count("roundings", n)
    name, block = parsed_order("roundings", order)
    if name in ("kahan", "neumaier"):
        return min(2, max(n - 1, 0))
    if name == "pairwise":
        return max(n - 1, 0).bit_length()
    if name == "blocked" and n > block:
        return block - 1 + -(-n // block) - 1
    return max(n - 1, 0)


def linear_bound(n: int, fmt: Format) -> float:
    """n·u: bounds the error of n additions to nearest, relative to the sum of the |terms|.

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
    return _count("linear_bound", n) * require_format("linear_bound", fmt).unit_roundoff


def gamma(n: int, fmt: Format) -> float:
    """γ_n = n·u / (1 − n·u): bounds the relative error of n roundings in a row; ∞ if n·u ≥ 1.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, Lemma 3.1.

    Examples:
        >>> gamma(1024, FP16), gamma(2048, FP16)
        (1.0, inf)
    """
    worst = _count("gamma", n) * require_format("gamma", fmt).unit_roundoff
    return worst / (1 - worst) if worst < 1 else math.inf


def probabilistic_bound(n: int, fmt: Format, *, confidence: float = 1.0) -> float:
    """λ·√n·u: what n roundings add up to if their errors are independent and of mean zero.

    Each λ raises the probability: at least 1 − 2·exp(−λ²/2) to first order. It fails where
    errors are not of mean zero, as when small terms stagnate against a large sum.

    Args:
        n: how many roundings.
        fmt: the format they round to.
        confidence: λ, positive.

    Source:
        Higham and Mary 2019, A new approach to probabilistic rounding error analysis.

    Examples:
        >>> probabilistic_bound(1024, FP16)
        0.015625
    """
    u = require_format("probabilistic_bound", fmt).unit_roundoff
    confidence = checks.real("probabilistic_bound", "confidence", confidence, positive=True)
    return confidence * math.sqrt(_count("probabilistic_bound", n)) * u


def _count(function: str, n: object) -> int:
    """A number of terms or of roundings."""
    return integer(function, "n", n, advice="Count the additions.")


class RunningError(NamedTuple):
    """A computed sum, and how far from the exact one it can lie."""

    value: float
    bound: float


def running_error(a: Any, b: Any = None, **how: Unpack[Accumulation]) -> RunningError:
    """A sum, or an inner product, with a bound on its error found along the way.

    Each rounding to nearest adds at most u times its own result, or half the least subnormal
    where that is subnormal; in the other modes, twice as much. A result of `max_finite` or more
    may have overflowed and makes the bound infinite.

    Args:
        a: values of FP32 or narrower, shape (n,).
        b: what to multiply them by; None to sum.
        **how: see `mplab.arithmetic.Accumulation`; order sequential or reversed.

    Returns:
        The value, and the bound on |value − exact|.

    Exactness:
        The bound is rigorous; it is itself computed in float64 and raised by 2^−40 of itself
        to cover that.

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, §3.3.

    Examples:
        >>> running_error(np.full(1000, 0.125), accumulator_format=FP16)
        RunningError(value=125.0, bound=30.548095703152782)
    """
    accumulator = require_accumulation("running_error", how)
    order = how.get("order", "sequential")
    if order not in ("sequential", "reversed"):
        raise ValueError(
            f"running_error: order must be sequential or reversed; got {order!r}. "
            f"Compare with exact_sum for the others."
        )
    left = _checks.operand("running_error", "a", a, FP32)
    right = np.ones_like(left) if b is None else _checks.operand("running_error", "b", b, FP32)
    if left.ndim != 1 or left.shape != right.shape:
        raise ValueError(
            f"running_error: a and b must be vectors of one length; got shapes {left.shape} and "
            f"{right.shape}. Ravel them."
        )
    output = output_of(how)
    how["output_format"] = None
    product = how.get("product_format")
    rows = accumulate("running_error", left[None, :], right[:, None], how, traced=True)
    value, running = float(rows[0][0, 0]), rows[1]
    bound = _errors(running, accumulator)
    if product is not None:
        up = round_to(np.abs(left * right), product, rounding=Rounding.TOWARD_POSITIVE)
        bound += _errors(up, product)
    if output != accumulator:
        rules: Any = {k: how[k] for k in ("rounding", "overflow", "stream") if k in how}
        value = float(round_to(value, output, **rules))
        bound += _errors(np.array([value]), output)
    mode = how.get("rounding", Rounding.TIES_TO_EVEN)
    nearest = mode in (Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY)
    return RunningError(value, float(bound * (1 if nearest else 2) * (1 + 2.0**-40)))


def _errors(results: np.ndarray, fmt: Format) -> float:
    """The sum over results of the most that rounding to nearest can have cost each."""
    magnitudes = np.abs(results)
    if not np.all(magnitudes < fmt.max_finite):  # where overflow ends, directed or saturating
        return math.inf
    subnormal = fmt.min_subnormal / 2
    costs = np.where(magnitudes < fmt.min_normal, subnormal, fmt.unit_roundoff * magnitudes)
    if not fmt.has_zero:  # whatever lies below the least value has become it
        costs = np.where(magnitudes == fmt.min_normal, fmt.min_normal, costs)
    return float(costs.sum())


def exact_sum(a: Any, b: Any = None) -> float:
    """The sum of a, or of a·b, rounded once to float64: what to measure errors against.

    NaN, ∞ · 0 and ∞ − ∞ give NaN.

    Args:
        a: values of FP32 or narrower, any shape.
        b: what to multiply them by, of the shape of `a`; None to sum.

    Raises:
        ValueError: the shapes differ, or an element is no value of FP32.

    Exactness:
        Correctly rounded to float64: the products are exact, and their sum is math.fsum's.

    Examples:
        >>> exact_sum(np.array([1.0, 2.0**-100, -1.0])) == 2.0**-100
        True
    """
    left = _checks.operand("exact_sum", "a", a, FP32)
    right = np.ones_like(left) if b is None else _checks.operand("exact_sum", "b", b, FP32)
    if left.shape != right.shape:
        raise ValueError(
            f"exact_sum: a and b must have one shape; got {left.shape} and {right.shape}. "
            f"Broadcast them first."
        )
    with np.errstate(invalid="ignore"):  # inf * 0, inf - inf
        terms = left * right
        if not np.isfinite(terms).all():
            return float(terms.sum())
    return math.fsum(terms.ravel().tolist())
