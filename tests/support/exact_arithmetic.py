"""The second voice for arithmetic: results by comparison, never by rounding a float.

Two layers. Single operations: the exact result as a Fraction, rounded by `oracle`. All pairs of
an 8-bit format: a float64 that is the exact result, or lies on its side of every value and
midpoint, is placed among the values of the format.
"""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, isqrt, nan, remainder

import numpy as np
import oracle

from mplab import Overflow, Rounding

DETERMINISTIC = [m for m in Rounding if m is not Rounding.STOCHASTIC]
DIVIDE_BY_ZERO = 16

# One operation at a time ----------------------------------------------------------------


def exact_result(name, *operands):
    """Fraction, or the float (nan, an infinity, a zero's sign) where IEEE 754 has a rule.

    A zero from an exact cancellation is returned as Fraction(0): its sign depends on the mode.
    A square root carries a last digit far below any format's that says whether it is cut.
    """
    if any(isnan(x) for x in operands):
        return nan
    if name == "subtract":
        a, b = operands
        return exact_result("add", a, -b)
    if name == "fma":
        a, b, c = operands
        product = exact_result("multiply", a, b)
        return _sum(product, c)
    how = {
        "add": _sum,
        "multiply": _product,
        "divide": _quotient,
        "sqrt": _root,
        "remainder": _rest,
    }
    return how[name](*operands)


def _sum(a, b):
    a_special, b_special = (isinstance(x, float) and not abs(x) < inf for x in (a, b))
    if a_special or b_special:
        if (a_special and isnan(a)) or (b_special and isnan(b)):
            return nan
        if a_special and b_special:
            return a if a == b else nan
        return a if a_special else b
    total = Fraction(a) + Fraction(b)
    if total == 0 and a == 0 and _negative(a) == _negative(b):
        return -0.0 if _negative(a) else 0.0
    return total


def _negative(x):
    return x < 0 if isinstance(x, Fraction) and x != 0 else copysign(1.0, x) < 0


def _product(a, b):
    sign = -1.0 if _negative(a) != _negative(b) else 1.0
    if isinf(a) or isinf(b):
        return nan if a == 0 or b == 0 else sign * inf
    return Fraction(a) * Fraction(b) if a and b else sign * 0.0


def _quotient(a, b):
    sign = -1.0 if _negative(a) != _negative(b) else 1.0
    if isinf(a) or b == 0:
        return nan if (isinf(a) and isinf(b)) or a == b == 0 else sign * inf
    return Fraction(a) / Fraction(b) if a and not isinf(b) else sign * 0.0


def _root(a):
    if a == 0 or (isinf(a) and a > 0):
        return a
    if a < 0:
        return nan
    n = Fraction(a) * 4**800
    whole = isqrt(n.numerator // n.denominator)
    return (whole + (Fraction(1, 2) if whole * whole != n else 0)) / Fraction(2**800)


def _rest(a, b):
    if isinf(a) or b == 0:
        return nan
    exact = remainder(a, b)
    return Fraction(exact) if exact else exact


def nearest(q, fmt, overflow=Overflow.IEEE):
    """A Fraction rounded once to nearest, as a Fraction; zeros lose their sign."""
    return Fraction(oracle.round_fraction(q, fmt, Rounding.TIES_TO_EVEN, overflow))


def rounded(name, operands, fmt, rounding, overflow=Overflow.IEEE):
    """What the operation must give, as a float."""
    exact = exact_result(name, *operands)
    if isinstance(exact, Fraction) and exact == 0:
        exact = -0.0 if rounding is Rounding.TOWARD_NEGATIVE else 0.0
    return oracle.round_fraction(exact, fmt, rounding, overflow)


def exceptions(
    name, operands, fmt, rounding, tininess, overflow=Overflow.IEEE, *, signaling=False
):
    """What the operation must raise, as bits; `signaling`: one of its operands is such a NaN."""
    if signaling:
        return oracle.INVALID
    exact = exact_result(name, *operands)
    if isinstance(exact, float) and isnan(exact):
        return 0 if any(isnan(x) for x in operands) else oracle.INVALID
    if name == "divide" and operands[1] == 0 and not isinf(operands[0]):
        return DIVIDE_BY_ZERO
    return oracle.events_of(exact, fmt, rounding, overflow, tininess)


# All pairs of a small format ------------------------------------------------------------


def pairs(name, fmt, rounding, a, b=None, c=None):
    """What an operation on finite arrays must give; no quotient may have the divisor 0.

    Sums and products are exact in float64 for formats of at most four bits of precision whose sums
    span at most 53 bits; the callers check that.
    """
    if name in ("add", "subtract", "fma"):
        first = a * b if name == "fma" else a
        second = {"add": b, "subtract": -b, "fma": c}[name]
        exact = first + second
        if rounding is Rounding.TOWARD_NEGATIVE:
            plus = ~np.signbit(first) & ~np.signbit(second)
            exact = np.where((exact == 0) & ~plus, -0.0, exact)
    elif name == "multiply":
        exact = a * b
    elif name == "divide":
        size = _beside(np.abs(a / b), lambda q: np.abs(a) - q * np.abs(b))
        exact = np.where(np.signbit(a) == np.signbit(b), size, -size)
    elif name == "remainder":
        each = [
            nan if y == 0 else remainder(x, y)
            for x, y in zip(a.flat, b.flat, strict=True)
        ]
        exact = np.reshape(each, a.shape)
    elif name == "sqrt":
        size = np.abs(a)
        exact = np.copysign(_beside(np.sqrt(size), lambda root: size - root * root), a)
        exact[a < 0] = nan
    else:
        raise NotImplementedError(f"pairs: a new operation needs a branch; got {name}")
    return oracle.table_of(fmt).place(exact).round(rounding, Overflow.IEEE)


def _beside(near, rest):
    """Cut results to 24 bits, and go off them to the side of what is left, if anything is.

    `rest` multiplies back, which is exact with so few bits; no value or midpoint has as many.
    """
    cut = near.astype(np.float32).astype(np.float64)
    left = rest(cut)
    side = np.where(left > 0, inf, -inf)
    return np.where(left == 0, cut, np.nextafter(cut, side))
