"""The second voice: rounding written again from its definition, to judge the library by.

Nothing here reads the library, except the facts of a format: exponent_bits, precision, bias,
specials, signed, has_zero. Numbers are first a `Fraction`, one at a time; then arrays, by a table
of all values of a format, which a test holds against the first.
"""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise
from math import copysign, inf, isinf, isnan, nan

import numpy as np

INEXACT = 1
UNDERFLOW = 2
OVERFLOW = 4
INVALID = 8
ONE_ZERO = ("NAN_NEGATIVE_ZERO", "P3109", "TWOS_COMPLEMENT")

# One number at a time ------------------------------------------------------------------


@cache  # the oracle asks for the same few again and again
def power(e):
    return Fraction(2) ** e


def value_of_code(code, fmt):
    """The value of a code: a Fraction, or one of the floats nan, inf, -inf, -0.0."""
    width = fmt.exponent_bits + fmt.precision - 1
    magnitude = code % 2**width
    negative = code >= 2**width
    kind = fmt.specials.name
    if kind == "TWOS_COMPLEMENT" and negative:
        return (code - 2 ** (width + 1)) * power(2 - fmt.bias - fmt.precision)
    exponent, trailing = divmod(magnitude, 2 ** (fmt.precision - 1))
    if kind == "IEEE" and exponent == 2**fmt.exponent_bits - 1:
        return nan if trailing else (-inf if negative else inf)
    if kind == "NAN_ALL_ONES" and magnitude == 2**width - 1:
        return nan
    if kind in ("NAN_NEGATIVE_ZERO", "P3109") and negative and magnitude == 0:
        return nan
    if kind == "P3109" and magnitude == 2**width - 1:
        return -inf if negative else inf
    if exponent == 0 and fmt.has_zero:
        value = trailing * power(2 - fmt.bias - fmt.precision)
    else:
        value = (2 ** (fmt.precision - 1) + trailing) * power(
            exponent - fmt.bias - fmt.precision + 1
        )
    if negative and value == 0:
        return -0.0
    return -value if negative else value


@cache
def largest(fmt):
    """The largest finite value: the last magnitude code before those that are no numbers."""
    reserved = {"IEEE": 2 ** (fmt.precision - 1), "NAN_ALL_ONES": 1, "P3109": 1}
    reserved = reserved.get(fmt.specials.name, 0)
    return value_of_code(
        2 ** (fmt.exponent_bits + fmt.precision - 1) - 1 - reserved, fmt
    )


@cache
def least_normal(fmt):
    return value_of_code(2 ** (fmt.precision - 1) if fmt.has_zero else 0, fmt)


def exponent_of(q):
    """The e with 2^e <= q < 2^(e+1)."""
    e = q.numerator.bit_length() - q.denominator.bit_length()
    return e if power(e) <= q else e - 1


def mx_exponent(amax, fmt, rule):
    """The exponent that a block with this amax > 0 shares, before it meets the ends of E8M0."""
    if rule.name == "RCEIL":
        k = exponent_of(amax / largest(fmt))
        return k + (amax > power(k) * largest(fmt))
    e = exponent_of(amax)
    if rule.name == "EVEN":
        step = power(e - fmt.precision + 1)
        e = exponent_of(round(amax / step) * step)  # Python's round takes ties to even
    return e - exponent_of(largest(fmt)) + (rule.name == "CEIL" and amax > power(e))


def by_code(fmt):
    """Whether parity is that of codes at one bit of precision: P3109 alone has it so."""
    return fmt.specials.name == "P3109"


def to_grid(q, step, negative, rounding, random, *, odd=None):
    """A magnitude q > 0 to a multiple of `step`, whichever of the two around it is wanted."""
    lower = q // step * step
    upper = lower + step
    if q == lower:
        return q
    below = q - lower
    above = upper - q
    odd = (lower / step) % 2 == 1 if odd is None else odd
    if rounding.name == "TIES_TO_EVEN":
        up = below > above or (below == above and odd)
    elif rounding.name == "TIES_TO_AWAY":
        up = below >= above
    elif rounding.name == "TO_ODD":
        up = not odd
    elif rounding.name == "STOCHASTIC":
        up = below / step * 2**32 // 1 + random >= 2**32
    else:
        up = rounding.name == ("TOWARD_NEGATIVE" if negative else "TOWARD_POSITIVE")
    return upper if up else lower


def unbounded(q, fmt, negative, rounding, random):
    """A magnitude q > 0 rounded to `precision` bits, as if exponents had no end."""
    e = exponent_of(q)
    step = power(e - fmt.precision + 1)
    odd = (e + fmt.bias) % 2 == 1 if fmt.precision == 1 and by_code(fmt) else None
    return to_grid(q, step, negative, rounding, random, odd=odd)


def split(x):
    """Sign and magnitude of a float or Fraction."""
    if isinstance(x, Fraction):
        return x < 0, abs(x)
    negative = str(float(x)).startswith("-")
    return negative, abs(x) if isnan(x) or isinf(x) else abs(Fraction(float(x)))


def round_fraction(
    x, fmt, rounding, overflow, random=None, *, flush_inputs=False, flush_outputs=False
):
    """What a number becomes on entering a format, as a float."""
    negative, q = split(x)
    sign = -1.0 if negative else 1.0
    if flush_inputs and q < least_normal(fmt):
        q = Fraction(0)
    if q != q or (negative and q != 0 and not fmt.signed):
        return nan
    if q == inf:
        return sign * _past_the_end(fmt, overflow)
    if not fmt.has_zero and q < least_normal(fmt):
        return (
            sign * float(least_normal(fmt)) if fmt.signed else float(least_normal(fmt))
        )
    if q == 0:
        result = q
    elif q < least_normal(fmt):
        step = least_normal(fmt) / 2 ** (fmt.precision - 1)
        result = to_grid(q, step, negative, rounding, random)
    else:
        result = unbounded(q, fmt, negative, rounding, random)
    if result > largest(fmt):
        inward = rounding.name in stopping(fmt) or (
            rounding.name == ("TOWARD_POSITIVE" if negative else "TOWARD_NEGATIVE")
        )
        return sign * (float(largest(fmt)) if inward else _past_the_end(fmt, overflow))
    if flush_outputs and result < least_normal(fmt):
        result = Fraction(0)
    if result == 0 and (not fmt.signed or fmt.specials.name in ONE_ZERO):
        return 0.0
    return sign * (result.numerator / result.denominator)


def stopping(fmt):
    """The modes that stop at the largest number on both sides; P3109's infinity is odd."""
    return ("TOWARD_ZERO",) if by_code(fmt) else ("TOWARD_ZERO", "TO_ODD")


def _past_the_end(fmt, overflow):
    if overflow.name == "SATURATE" or fmt.specials.name in ("NONE", "TWOS_COMPLEMENT"):
        return float(largest(fmt))
    return inf if fmt.specials.name in ("IEEE", "P3109") else nan


def events_of(
    x, fmt, rounding, overflow, tininess, random=None, *, signaling=False, **flush
):
    """The exceptions that `round_fraction` with these arguments raises, as bits."""
    negative, q = split(x)
    if q != q:
        return INVALID if signaling else 0
    result = round_fraction(x, fmt, rounding, overflow, random, **flush)
    raised = INEXACT if result != x else 0
    if isnan(result) and (q == inf or (negative and not fmt.signed)):
        return raised | INVALID
    if q == inf:
        return raised
    if q == 0:  # inexact only where there is no zero
        return raised | (UNDERFLOW if raised else 0)
    rounded = unbounded(q, fmt, negative, rounding, random)
    if rounded > largest(fmt):
        raised |= OVERFLOW
    flushed = flush.get("flush_inputs")  # such an input is tiny
    judged = q if flushed or tininess.name == "BEFORE" else rounded
    tiny = judged < least_normal(fmt)
    return raised | (UNDERFLOW if tiny and raised else 0)


# Arrays, for formats whose values fit a table ------------------------------------------


class Table:
    """All magnitudes of a format of at most 20 bits in order, and one step more."""

    def __init__(self, fmt):
        self.fmt = fmt
        count = 2 ** (fmt.exponent_bits + fmt.precision - 1)
        numbers = [value_of_code(code, fmt) for code in range(count)]
        while not isinstance(numbers[-1], Fraction):
            numbers.pop()
        top = power(exponent_of(numbers[-1]) - fmt.precision + 1)
        gaps = [*(b - a for a, b in pairwise(numbers)), top]
        self.values = np.array([float(v) for v in numbers])
        self.gaps = np.array([float(g) for g in gaps])
        self.midpoints = np.array(
            [float(v + g / 2) for v, g in zip(numbers, gaps, strict=True)]
        )
        self.last = len(numbers) - 1
        self.least_normal = float(least_normal(fmt))

    def place(self, x):
        with np.errstate(invalid="ignore"):  # signaling NaNs
            return Place(self, np.asarray(x, np.float64))


table_of = cache(Table)


@dataclass
class Place:
    """Where each of many float64 lies among the magnitudes of a format."""

    table: Table
    x: np.ndarray

    @cached_property
    def magnitude(self):
        return np.abs(self.x)

    @cached_property
    def index(self):
        """Of the next magnitude below or at |x|; −1 where there is none."""
        below = np.searchsorted(self.table.values, self.magnitude, side="right") - 1
        return np.where(np.isnan(self.x), 0, below).astype(np.int32)

    @cached_property
    def _anchor(self):
        return np.maximum(self.index, 0)

    @cached_property
    def excess(self):
        """|x| minus the magnitude below, exact by Sterbenz's lemma (or because that is 0)."""
        with np.errstate(invalid="ignore"):
            return self.magnitude - self.table.values[self._anchor]

    @cached_property
    def side(self):
        """−1, 0, 1: |x| lies below, at, above the midpoint."""
        midpoint = self.table.midpoints[self._anchor]
        return (self.magnitude > midpoint).astype(np.int8) - (self.magnitude < midpoint)

    @cached_property
    def fraction(self):
        """The discarded fraction, cut to 32 bits."""
        exponent = np.frexp(self.table.gaps)[1][self._anchor] - 1
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.ldexp(
                np.where(np.isfinite(self.excess), self.excess, 0), 32 - exponent
            )
        return np.minimum(np.floor(scaled), 2.0**32 - 1).astype(np.int64)

    def _up(self, rounding, random):
        """Whether |x| goes to the magnitude above."""
        table = self.table
        negative = np.signbit(self.x)
        match rounding.name:
            case "TIES_TO_EVEN":
                odd = self.index % 2 == 1
                # No parity among powers of two; but 0 is even.
                if table.fmt.precision == 1 and not by_code(table.fmt):
                    odd = self.index >= int(table.fmt.has_zero)
                return (self.side > 0) | ((self.side == 0) & odd)
            case "TIES_TO_AWAY":
                return self.side >= 0
            case "STOCHASTIC":
                return self.fraction + random >= 2**32
            case "TOWARD_ZERO":
                return np.zeros(self.x.shape, bool)
            case "TO_ODD":
                even = self.index % 2 == 0
                if table.fmt.precision == 1 and not by_code(table.fmt):
                    # all are odd but 0
                    even = self.index < int(table.fmt.has_zero)
                return even & (self.excess > 0)
        outward = negative if rounding.name == "TOWARD_NEGATIVE" else ~negative
        return outward & (self.excess > 0)

    def _index_after(self, rounding, random):
        """Index of the result as if exponents had no end; `last + 1` stands for all beyond."""
        table = self.table
        beyond = self.excess >= table.gaps[self._anchor]
        index = np.where(
            beyond, table.last + 1, self.index + self._up(rounding, random)
        )
        return np.where(self.index < 0, 0, index)  # a format without zero

    def round(
        self,
        rounding,
        overflow,
        random=None,
        *,
        flush_inputs=False,
        flush_outputs=False,
    ):
        """What `round_fraction` gives for each x."""
        table = self.table
        fmt = self.table.fmt
        index = self._index_after(rounding, random)
        values = np.append(table.values, _past_the_end(fmt, overflow))
        if flush_outputs:
            values[values < table.least_normal] = 0.0
        result = values[index]
        inward = np.full(self.x.shape, rounding.name in stopping(fmt))
        if rounding.name == "TOWARD_POSITIVE":
            inward = np.signbit(self.x)
        elif rounding.name == "TOWARD_NEGATIVE":
            inward = ~np.signbit(self.x)
        result[inward & (index > table.last) & np.isfinite(self.x)] = table.values[-1]
        negative = np.signbit(self.x) & fmt.signed
        flushed = (self.magnitude < table.least_normal) & flush_inputs
        if flush_inputs:
            result[flushed] = values[0]
        if fmt.specials.name in ONE_ZERO:
            negative &= result != 0
        result = np.where(negative, -result, result)
        wrong = np.isnan(self.x) | ((self.x < 0) & ~flushed & (not fmt.signed))
        result[wrong] = nan
        return result

    def _tiny(self, rounding, tininess, random, flush_inputs):
        """Whether x, or x rounded without end of exponents, lies below the least normal."""
        table = self.table
        tiny = self.magnitude < table.least_normal
        if tininess.name == "BEFORE" or flush_inputs:
            return tiny
        half_gap = float(least_normal(table.fmt) / 2**table.fmt.precision)
        near = tiny & (self.magnitude > table.least_normal - half_gap)
        # Between (2^p − 1)·half_gap, which is odd, and the least normal. The excess over it is
        # that over the last subnormal, less half_gap; both differences are exact.
        lower = table.least_normal - half_gap
        excess = np.where(near, self.magnitude, lower) - lower
        even = table.fmt.precision == 1 and by_code(table.fmt)  # the code below 1
        match rounding.name:
            case "TIES_TO_EVEN" if even:
                up = 2 * excess > half_gap
            case "TO_ODD" if even:
                up = excess > 0
            case "TIES_TO_EVEN" | "TIES_TO_AWAY":
                up = 2 * excess >= half_gap
            case "STOCHASTIC":
                up = np.floor(excess / half_gap * 2.0**32) + random >= 2**32
            case (
                "TOWARD_ZERO" | "TO_ODD"
            ):  # what lies below the least normal is odd, and stays
                up = np.zeros(near.shape, bool)
            case _:
                up = np.signbit(self.x) == (rounding.name == "TOWARD_NEGATIVE")
        return tiny & ~(near & up)

    def events(
        self, rounding, overflow, tininess, random=None, *, signaling=False, **flush
    ):
        """What `events_of` gives for each x; `signaling` says which NaNs are."""
        result = self.round(rounding, overflow, random, **flush)
        x = self.x
        number = ~np.isnan(self.x)
        inexact = number & (result != x)
        refused = np.isinf(x) | ((x < 0) & (not self.table.fmt.signed))
        invalid = number & np.isnan(result) & refused
        finite = np.isfinite(x) & ~invalid
        beyond = finite & (self._index_after(rounding, random) > self.table.last)
        tiny = (
            finite
            & inexact
            & self._tiny(rounding, tininess, random, flush.get("flush_inputs"))
        )
        raised = inexact * INEXACT + tiny * UNDERFLOW + beyond * OVERFLOW
        return (raised + (invalid | (~number & signaling)) * INVALID).astype(np.uint8)


# Random bits ---------------------------------------------------------------------------


def mix64(z):
    """SplitMix64 (Steele, Lea and Flood 2014): the golden-ratio step, then the finaliser."""
    z = (z + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def random_bits(seed, call, index):
    """The 32 bits that element `index` of call number `call` gets from `Stream(seed)`."""
    of_call = mix64((seed + mix64(call)) % 2**64)
    key = mix64((of_call + index // 2**32) % 2**64)
    h = index % 2**32 ^ key % 2**32
    h ^= h >> 16
    h = h * 0x21F0AAAD % 2**32
    h ^= h >> 15
    h ^= key >> 32
    h = h * 0xD35A2D97 % 2**32
    h ^= h >> 15
    h = h * 0x31848BAB % 2**32
    return h ^ (h >> 14)


def random_array(seed, call, count):
    """`random_bits` for indices 0 .. count − 1, as int64."""
    key = mix64((seed + mix64(call)) % 2**64)
    key = mix64(key)
    h = np.arange(count, dtype=np.uint64) ^ np.uint64(key % 2**32)
    h ^= h >> 16
    h = h * 0x21F0AAAD % 2**32
    h ^= h >> 15
    h ^= np.uint64(key >> 32)
    h = h * 0xD35A2D97 % 2**32
    h ^= h >> 15
    h = h * 0x31848BAB % 2**32
    return (h ^ (h >> 14)).astype(np.int64)


# In words --------------------------------------------------------------------------------


def shown(number):
    """A number in at most 17 digits, with an ellipsis where there are more."""
    if isinstance(number, float) and (isnan(number) or isinf(number)):
        return "NaN" if isnan(number) else "infinity" if number > 0 else "−infinity"
    fraction = Fraction(number)
    digits = Decimal(fraction.numerator) / Decimal(fraction.denominator)  # 28 digits
    words = f"{digits:.17g}"
    if "e" not in words and "." in words:
        words = words.rstrip("0").rstrip(".")
    mark = "" if Fraction(Decimal(words)) == fraction else "…"
    sign = (
        "-"
        if isinstance(number, float) and number == 0 and copysign(1, number) < 0
        else ""
    )
    return f"{sign}{words}{mark}".replace("-", "−")
