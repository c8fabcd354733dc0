"""The second voice for arithmetic: results by comparison, never by rounding a float.

Two layers. Single operations: the exact result as a Fraction, rounded by `oracle`. All pairs of
an 8-bit format: the magnitude of the exact result is located among the format's values by
bisection, with comparisons that float64 makes exactly (t <= |a + b|, t·|b| <= |a|, t² <= a).
"""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, isqrt, nan

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
    return {"add": _sum, "multiply": _product, "divide": _quotient, "sqrt": _root,
            }[name](*operands)  # fmt: skip


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


class Magnitudes:
    """The finite magnitudes of a format in order, and the next one past them."""

    def __init__(self, fmt):
        self.table = oracle.table_of(fmt)
        self.values = np.append(
            self.table.values, self.table.values[-1] + self.table.gaps[-1]
        )

    def round(self, compare, negative, rounding):
        """Round magnitudes known only through `compare(t)`: the sign of t − |exact|, per element.

        Returns the rounded numbers with their signs; exact zeros get the sign in `negative`.
        """
        last = self.table.last
        low, high = np.zeros(negative.shape, int), np.full(negative.shape, last + 1)
        if compare(np.full(negative.shape, self.values[0])).max(initial=0) > 0:
            raise ValueError("a magnitude below the least value")
        # Low <= |exact|, and < high or beyond.
        for _ in range(int(np.ceil(np.log2(last + 2)))):
            middle = (low + high + 1) // 2
            fits = compare(self.values[middle]) <= 0
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        # Found, not looked up.
        place = oracle.Place(self.table, np.where(negative, -1.0, 1.0))
        beyond, place.index = low > last, np.minimum(low, last)
        exact = compare(self.values[place.index]) == 0
        place.side = -compare(self.table.midpoints[place.index])
        excess = np.where(exact, 0.0, self.table.gaps[place.index] / 2)
        place.excess = np.where(beyond, inf, excess)
        return place.round(rounding, Overflow.IEEE)


def pairs(name, fmt, rounding, a, b=None, c=None):
    """What an operation on finite arrays must give; None where a rule of IEEE 754 decides.

    The comparisons hold in float64 for formats of at most four bits of precision whose sums
    span at most 53 bits; the callers check that.
    """
    shape = a.shape
    if name in ("add", "subtract", "fma"):
        first = a * b if name == "fma" else a
        second = {"add": b, "fma": c}[name] if name != "subtract" else -b
        total = first + second
        exact, negative = np.abs(total), np.signbit(total)
        if rounding is Rounding.TOWARD_NEGATIVE:
            plus = ~np.signbit(first) & ~np.signbit(second)
            negative = np.where(exact == 0, ~plus, negative)
        return Magnitudes(fmt).round(lambda t: np.sign(t - exact), negative, rounding)
    if name == "sqrt":
        top = np.where(a < 0, 0.0, np.abs(a))
        result = Magnitudes(fmt).round(
            lambda t: np.sign(t * t - top), np.signbit(a), rounding
        )
        return np.where(a < 0, nan, result)
    negative = np.signbit(a) != np.signbit(b)
    if name == "multiply":
        exact = np.abs(a * b)
        return Magnitudes(fmt).round(lambda t: np.sign(t - exact), negative, rounding)
    if name == "divide":
        top, bottom = np.abs(a), np.where(b == 0, 1.0, np.abs(b))
        result = Magnitudes(fmt).round(
            lambda t: np.sign(t * bottom - top), negative, rounding
        )
        return np.where(b == 0, nan, result)
    raise ValueError(name)
