"""Elementary functions before they are rounded to a format.

NumPy's float64 results err by a few units in the last place. Rounded to at most 25 bits they
equal the rounded exact results, unless a value or a midpoint of the format lies that near. mpmath
computes these few again, with more and more bits until they are decided. This ends, because a
result is irrational unless it is one of those that the functions below know exactly.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mplab.numbers.codes import times_power_of_two
from mplab.numbers.inputs import as_array, in_pieces

_ERROR = 128
"""Allowed error of NumPy's results, in units in the last place of float64; about 4 were seen."""
_MIDPOINTS = 1 << 27
"""Distance between neighbouring numbers of 26 bits, in units in the last place of float64."""
_BITS = 80
"""Number of bits kept of mpmath's result; half a unit is added in place of the others."""


class Elementary(NamedTuple):
    """An elementary function of one number."""

    approximate: Callable[[Any], Any]
    """NumPy's function."""
    known: Callable[[Any], tuple[Any, Any]]
    """Two numbers for each x. If the result has few bits: the result, twice. If it lies within
    2^-28 of a number of few bits: that number, and any on the same side of it. Otherwise NaN."""
    precise: Callable[[Any, Any], Any]
    """The function in mpmath, which is the first argument."""

    def nearest(self, x: Any) -> Any:
        """Compute float64 results so exact that any rounding to 25 bits or fewer is correct."""
        return _nearest(np.asarray(x), self)

    def decided(self, x: Any, y: Any) -> Any:
        """Move results y, each near a number of 26 bits, to its right side."""
        known, side = self.known(x)
        close = np.abs(y - known) <= 2.0**-44 * np.abs(known)
        settled = ((known == side) | close | (y == 0) | np.isinf(y)) & ~np.isnan(known)
        y = np.where(settled, np.nextafter(known, side), y)
        unsure = ~settled & np.isfinite(x) & np.isfinite(y)
        if (
            unsure.any()
        ):  # a low format has few different numbers there, however many elements
            different, places = np.unique(x[unsure], return_inverse=True)
            exact = [self.exact(Fraction(number)) for number in different.tolist()]
            y[unsure] = np.array([as_array("arithmetic", q) for q in exact])[places]
        return y

    def exact(self, x: Fraction) -> Fraction:
        """Compute the result, or a number between the same two neighbours of 80 bits."""
        import mpmath  # takes as long to load as NumPy

        known, side = self.known(np.float64(x))
        if known == side:
            return Fraction(float(known))
        precision = 2 * _BITS
        while True:
            precision *= 2
            with mpmath.workprec(precision):
                y = self.precise(mpmath, mpmath.mpf(x.numerator) / x.denominator)
                if not mpmath.isfinite(y):
                    raise ZeroDivisionError("the logarithm of 0")
                size = int(mpmath.mag(y))
                if not -1074 < size <= 1024:  # every format overflows or underflows
                    return Fraction(2) ** (1200 if size > 0 else -1200)
                shift = _BITS - size
                scaled = mpmath.ldexp(y, shift)
                error = mpmath.ldexp(1, 100 - precision)
                low = mpmath.floor(scaled - error)
                high = mpmath.floor(scaled + error)
                if low == high:
                    return (int(low) + Fraction(1, 2)) / Fraction(2) ** shift


@in_pieces
def _nearest(x: np.ndarray, function: Elementary) -> np.ndarray:
    y = np.asarray(function.approximate(x))
    near = (y.view(np.int64) + _ERROR) & (_MIDPOINTS - 1) <= 2 * _ERROR
    near &= ~np.isnan(y)
    if near.any():
        y[near] = function.decided(x[near], y[near])
    return y


# Where results are known -----------------------------------------------------------------
def _power(x: Any, limit: float) -> tuple[Any, Any]:
    """Return known powers: nearly 1 near 0, and out of every format's range beyond the limit."""
    cases = [np.abs(x) < 2.0**-30, np.isinf(x), x > limit, x < -limit]
    number = np.select(cases, [1.0, np.nan, 2.0**1000, 2.0**-1000], np.nan)
    return number, 1 + np.sign(x)


def _power_of_two(x: Any) -> tuple[Any, Any]:
    number, side = _power(x, 1000)
    whole = (x == np.rint(x)) & (x >= -1074) & (x < 1024)
    exponent = np.where(whole, x, 0).astype(np.int64)
    exact = times_power_of_two(np.ones_like(exponent), exponent)
    return np.where(whole, exact, number), np.where(whole, exact, side)


def _logarithm_of_two(x: Any) -> tuple[Any, Any]:
    significand, exponent = np.frexp(x)
    exact = np.where(significand == 0.5, exponent - 1.0, np.nan)
    return exact, exact


def _tangent(x: Any) -> tuple[Any, Any]:
    cases = [np.abs(x) < 2.0**-14, np.isinf(x), np.abs(x) > 11]
    return np.select(cases, [x, np.nan, np.copysign(1, x)], np.nan), 0 * x


EXP = Elementary(np.exp, lambda x: _power(x, 700), lambda mp, x: mp.exp(x))
EXP2 = Elementary(np.exp2, _power_of_two, lambda mp, x: mp.power(2, x))
LOG = Elementary(
    np.log,
    lambda x: (np.where(x == 1, 0.0, np.nan), 0.0),
    lambda mp, x: mp.log(x),
)
LOG2 = Elementary(np.log2, _logarithm_of_two, lambda mp, x: mp.log(x, 2))
SIN = Elementary(
    np.sin,
    lambda x: (np.where(np.abs(x) < 2.0**-13, x, np.nan), 0 * x),
    lambda mp, x: mp.sin(x),
)
COS = Elementary(
    np.cos,
    lambda x: (np.where(np.abs(x) < 2.0**-14, 1.0, np.nan), np.where(x == 0, 1.0, 0.0)),
    lambda mp, x: mp.cos(x),
)
TANH = Elementary(
    np.tanh,
    _tangent,
    lambda mp, x: mp.tanh(max(min(x, 500), -500)),  # nearer to 1 than any format shows
)
