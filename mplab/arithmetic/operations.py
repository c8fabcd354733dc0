"""Arithmetic in a format: every operation rounds once, by `round_to`.

Each operation first computes its result in float64, then rounds it to the format. Where rounding
to float64 could change the result, it rounds to odd: it cuts, and sets the last bit if anything
was lost. Rounding from there to at least two bits less is correct in any mode, and so are its
events. Results of elementary functions lie on the right side of every value and midpoint; see
`elementary`. Formats of more than 25 bits of precision, or with exponents near the ends of float64,
are refused.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, Unpack

import numpy as np

from mplab.arithmetic import elementary
from mplab.numbers import rounding as rounding
from mplab.numbers.checks import quoted
from mplab.numbers.codes import encode, values
from mplab.numbers.formats import (
    Event,
    Format,
    FormatLike,
    Rounding,
    Tininess,
    format_of,
)
from mplab.numbers.rounding import RoundingRules, Tally, require_values, round_to


class Rules(RoundingRules, total=False):
    """The options of every operation, all of them keywords.

    `rounding`: the direction, ties to even if omitted. `overflow`: the result past the largest
    finite value. `flush_inputs`: take subnormal operands as zero. `flush_outputs`: replace
    subnormal results by zero. `stream`: source of random bits for `Rounding.STOCHASTIC`.
    `tally`: counters to add to; their x is the exact result.
    """

    tally: Tally | None


class _Operation(NamedTuple):
    """How to compute one operation in float64, where all its operands are exact."""

    compute: Callable[..., Any]
    """The result, rounded to nearest; or, of a sum, its two addends, both exact."""
    is_sum: bool = False
    twice_is_once: bool = False
    """Whether double rounding to nearest, in float64 and then in the format, is innocuous."""
    few: bool = False
    """Whether it has so few operands, in 16 bits, that a table of all results is faster."""


# The operations ------------------------------------------------------------------------
def add(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Add a + b, rounded once.

    ∞ − ∞ gives NaN (INVALID). x − x gives +0, or −0 in `TOWARD_NEGATIVE`; the sum of two zeros of
    the same sign keeps that sign.

    Args:
        a: values of `fmt`, any shape that broadcasts with `b`; NaN is always allowed.
        b: values of `fmt`.
        fmt: the format of operands and result.
        **rules: see `Rules`.

    Returns:
        float64, every element a value of `fmt`. Where `fmt` lacks infinity, NaN, −0, a sign or
        zero, `round_to` determines the result.

    Raises:
        TypeError: an operand holds no numbers, or a rule is of the wrong type or unknown.
        ValueError: an operand is not a value of `fmt`; a stream is missing; `fmt` has more than
            25 bits of precision, or exponents beyond ±450.

    Exactness:
        Correctly rounded in every mode and format. For `STOCHASTIC` the probability is that
        of the result rounded to odd in float64, within a relative 2^−52 of the exact result.

    Source:
        IEEE 754-2019 §5.4.1, §6.3. In the nearest modes rounding twice equals rounding once,
        because 53 ≥ 2p+1: Figueroa 1995, Roux 2014. In other modes, and for the events, the
        two-sum of Knuth and rounding to odd: Boldo and Melquiond 2008.

    Examples:
        >>> float(add(2048.0, 1.0, FP16)), float(add(2048.0, 3.0, FP16))
        (2048.0, 2052.0)
        >>> raised(add, 2048.0, 1.0, FP16)
        <Event.INEXACT: 1>
    """
    return _operate(add, (a, b), fmt, rules)


def subtract(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Subtract a − b, rounded once. See `add`.

    Examples:
        >>> float(subtract(1.0, 0.0009765625, FP16))
        0.9990234375
    """
    return _operate(subtract, (a, b), fmt, rules)


def multiply(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Multiply a · b, rounded once. 0 · ∞ gives NaN (INVALID). See `add`.

    Exactness:
        Correctly rounded in every mode and format: float64 holds every product of two
        significands of at most 25 bits.

    Examples:
        >>> float(multiply(256.0, 256.0, FP16)), float(multiply(20.0, 24.0, FP8_E4M3))
        (inf, nan)
    """
    return _operate(multiply, (a, b), fmt, rules)


def divide(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Divide a / b, rounded once.

    x/0 gives the infinity of its sign (DIVIDE_BY_ZERO); 0/0 and ∞/∞ give NaN (INVALID). In a
    format without infinity, x/0 gives the overflow result. See `add` for arguments and errors.

    Exactness:
        Correctly rounded in every mode and format.

    Source:
        The case 53 ≥ 2p of Figueroa 1995 and Roux 2014, which here holds in every mode: a
        quotient that is not itself a value or midpoint v of the format differs from v by
        |a − v·b| / b, relatively at least 2^−(2p+1), so rounding to float64 cannot reach v.

    Examples:
        >>> float(divide(1.0, 3.0, BF16))
        0.333984375
        >>> raised(divide, 1.0, 0.0, BF16)
        <Event.DIVIDE_BY_ZERO: 16>
    """
    return _operate(divide, (a, b), fmt, rules)


def sqrt(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute √a, rounded once. A negative number gives NaN (INVALID), −0 gives −0. See `add`.

    Exactness:
        Correctly rounded in every mode and format.

    Source:
        The case 53 ≥ 2p+2 of Figueroa 1995 and Roux 2014, which here holds in every mode: a
        root that is not itself a value or midpoint v of the format differs from v by
        |a − v²| / (√a + v), relatively at least 2^−(2p+2), so rounding to float64 cannot reach v.

    Examples:
        >>> float(sqrt(2.0, FP8_E4M3)), float(sqrt(-0.0, FP16))
        (1.375, -0.0)
    """
    return _operate(sqrt, (a,), fmt, rules)


def fma(a: Any, b: Any, c: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute a · b + c with one rounding (fused multiply-add).

    0 · ∞ + c gives NaN (INVALID unless c is a quiet NaN). See `add` for arguments and errors.

    Exactness:
        Correctly rounded in every mode and format. No wider format makes rounding twice safe
        here, so the sum is always rounded to odd first.

    Source:
        Boldo and Melquiond 2008, Emulation of FMA and correctly rounded sums.

    Examples:
        >>> x = 1 + 2.0**-9
        >>> (
        ...     float(fma(x, x, -1.0, FP16)),
        ...     float(subtract(multiply(x, x, FP16), 1.0, FP16)),
        ... )
        (0.003910064697265625, 0.00390625)
    """
    return _operate(fma, (a, b, c), fmt, rules)


# Elementary functions ------------------------------------------------------------------
def exp(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute e^a, rounded once. e^−∞ gives +0. See `add` for arguments and errors.

    Exactness:
        Correctly rounded in every mode and format. For `STOCHASTIC` the probability is that of
        NumPy's result in float64, within a relative 2^−46 of the exact result.

    Source:
        The test of a rounding by the error of the result: Ziv 1991. Where it fails, the function
        is computed by mpmath with as many bits as it needs; see `elementary`.

    Examples:
        >>> float(exp(1.0, FP16)), float(exp(12.0, FP16)), float(exp(-18.0, FP16))
        (2.71875, inf, 0.0)
    """
    return _operate(exp, (a,), fmt, rules)


def log(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute ln a, rounded once. ±0 gives −∞ (DIVIDE_BY_ZERO), a < 0 NaN (INVALID). See `exp`.

    Examples:
        >>> float(log(3.0, FP16)), raised(log, 0.0, FP16)
        (1.0986328125, <Event.DIVIDE_BY_ZERO: 16>)
    """
    return _operate(log, (a,), fmt, rules)


def sin(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the sine of an angle in radians, rounded once. ±∞ gives NaN (INVALID). See `exp`.

    Examples:
        >>> float(sin(3.140625, FP16)), float(sin(65504.0, FP16))
        (0.0009675025939941406, 0.9755859375)
    """
    return _operate(sin, (a,), fmt, rules)


def cos(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the cosine of an angle in radians, rounded once. See `sin`.

    Examples:
        >>> float(cos(0.0078125, BF16)), float(cos(0.0078125, FP32))
        (1.0, 0.999969482421875)
    """
    return _operate(cos, (a,), fmt, rules)


def tanh(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the hyperbolic tangent, rounded once. See `exp`.

    Examples:
        >>> float(tanh(3.0, BF16)), float(tanh(4.0, FP8_E4M3))
        (0.99609375, 1.0)
    """
    return _operate(tanh, (a,), fmt, rules)


def raised(operation: Callable[..., Any], *arguments: Any, **rules: Any) -> Any:
    """Return the IEEE 754 exceptions that an operation with these arguments raises.

    Besides the events of rounding: INVALID where numbers give NaN, DIVIDE_BY_ZERO where finite
    numbers have an infinite quotient or logarithm. A signaling NaN operand raises INVALID in every
    operation, a quiet NaN does not.

    Args:
        operation: `add`, `subtract`, `multiply`, `divide`, `sqrt`, `fma` or an elementary
            function.
        *arguments: its operands, then the format.
        **rules: its options, and `tininess` as in `mplab.events`.

    Returns:
        An `Event` for scalars; for arrays its bits, uint8 of the shape of the result.

    Source:
        IEEE 754-2019 §7; §6.2 and §7.2 for signaling NaNs.

    Examples:
        >>> raised(
        ...     multiply,
        ...     np.array([1.0, 2.0**-14, 0.0]),
        ...     np.array([3.0, 0.75, np.inf]),
        ...     FP16,
        ... )
        array([0, 0, 8], dtype=uint8)
    """
    if not any(operation is known for known in _OPERATIONS):
        names = ", ".join(known.__name__ for known in _OPERATIONS)
        given = quoted(operation)
        raise ValueError(
            f"raised: operation must be one of {names}; got {given}. Pass one."
        )
    tininess = rules.pop("tininess", Tininess.AFTER)
    *operands, named = arguments
    fmt = format_of(named, function="raised")
    exact = _Exact(operation, tuple(operands), fmt, rules, watched=True)
    rules.pop("tally", None)
    flags = np.asarray(rounding.events(exact.wide, fmt, tininess=tininess, **rules))
    flags = np.where(exact.divided_by_zero, int(Event.DIVIDE_BY_ZERO), flags)
    flags = flags | np.where(exact.invalid, int(Event.INVALID), 0)
    return Event(int(flags)) if flags.ndim == 0 else flags.astype(np.uint8)


# From operands to the result ------------------------------------------------------------
def _operate(
    operation: Callable[..., Any],
    operands: tuple[Any, ...],
    fmt: FormatLike,
    rules: Rules,
) -> Any:
    fmt = format_of(fmt, function=operation.__name__)
    watched = rules.get("tally") is not None
    options = dict(rules)
    exact = _Exact(operation, operands, fmt, options, watched=watched)
    return round_to(exact.wide, fmt, **options)  # type: ignore[arg-type]


class _Exact:
    """The result of an operation before rounding to the format, and its exceptions so far.

    Attributes:
        wide: float64, exact, or rounded in a way that does not change the result in the format.
        invalid: if watched, where numbers gave NaN, or a NaN was signaling.
        divided_by_zero: if watched, where finite numbers have an infinite quotient or logarithm.
    """

    def __init__(
        self,
        operation: Callable[..., Any],
        operands: tuple[Any, ...],
        fmt: Format,
        rules: dict[str, Any],
        *,
        watched: bool,
    ) -> None:
        name = operation.__name__
        self.mode = rules.get("rounding", Rounding.TIES_TO_EVEN)
        flush = rules.pop("flush_inputs", False)
        if type(flush) is not bool:
            raise TypeError(
                f"{name}: flush_inputs must be True or False; got {flush!r}."
            )
        if fmt.precision > 25 or fmt.emax > 450 or fmt.emin - fmt.precision < -450:
            raise ValueError(  # 53 > 2p + 2; products and quotients stay in range
                f"{name}: fmt must have at most 25 bits of precision and exponents from -450 to "
                f"450, so that float64 holds its products; got {fmt!r}. Use a narrower format."
            )
        floor = fmt.min_normal if flush else 0.0
        given = [
            _flushed(require_values(name, argument, x, fmt), floor)
            for argument, x in zip("abc", operands, strict=False)
        ]
        numbers = np.broadcast_arrays(*given)
        with np.errstate(all="ignore"):
            self.wide = self._before_rounding(operation, numbers, fmt, watched)
        if not watched:
            return
        are_nan = np.any([np.isnan(x) for x in numbers], axis=0)
        self.invalid = np.isnan(self.wide) & ~are_nan
        self.invalid |= np.any([_is_signaling(x) for x in numbers], axis=0)
        self.divided_by_zero = np.zeros(np.shape(self.wide), bool)
        if operation in (divide, log):
            self.divided_by_zero = (
                (numbers[-1] == 0) & np.isfinite(numbers[0]) & np.isinf(self.wide)
            )

    def _before_rounding(
        self, operation: Callable[..., Any], numbers: Any, fmt: Format, watched: bool
    ) -> Any:
        how = _OPERATIONS[operation]
        if how.few and fmt.bits <= 16 and numbers[0].size >= _MANY and fmt.has_nan:
            return _results(operation, fmt)[encode(numbers[0], fmt)]
        if not how.is_sum:
            return how.compute(*numbers)
        addends = how.compute(*numbers)
        to_nearest = self.mode in (Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY)
        if how.twice_is_once and to_nearest and not watched:
            return np.add(*addends)
        downward = self.mode is Rounding.TOWARD_NEGATIVE
        return exact_sum_to_odd(*addends, downward=downward)


def _is_signaling(x: np.ndarray) -> Any:
    """Find the NaNs whose first bit of the trailing significand is 0."""
    return np.isnan(x) & (
        np.ascontiguousarray(x).view(np.int64) & (1 << 51) == 0
    ).reshape(x.shape)


def _flushed(array: np.ndarray, floor: float) -> np.ndarray:
    """Replace numbers below `floor` in size by zeros of their sign."""
    if not floor:
        return array
    return np.where(np.abs(array) < floor, np.copysign(0.0, array), array)


def exact_sum_to_odd(x: Any, y: Any, *, downward: bool = False) -> np.ndarray:
    """Add float64 x + y, rounded to odd, so that rounding again equals rounding once.

    An exact zero is −0 if `downward`, as in `TOWARD_NEGATIVE`, unless both numbers are +0.

    Examples:
        >>> odd = exact_sum_to_odd(np.ones(3), np.array([2.0**-60, -(2.0**-60), 0.0]))
        >>> [float(x).hex() for x in odd]
        ['0x1.0000000000001p+0', '0x1.fffffffffffffp-1', '0x1.0000000000000p+0']
    """
    from mplab.arithmetic import loops

    left, right = np.broadcast_arrays(np.asarray(x, np.float64), y)
    out = np.empty(left.shape)
    flat = (
        np.ascontiguousarray(part, np.float64).reshape(-1) for part in (left, right)
    )
    mode = Rounding.TOWARD_NEGATIVE if downward else Rounding.TIES_TO_EVEN
    loops.add_to_odd(*flat, out.reshape(-1), int(mode))
    return out


_MANY = 1 << 12
"""Fewest operands for which the table of an elementary function is made."""


@cache
def _results(operation: Callable[..., Any], fmt: Format) -> np.ndarray:
    """List the results of an elementary function in float64, by the codes of its operands."""
    return np.asarray(_OPERATIONS[operation].compute(values(fmt)))


_OPERATIONS: dict[Callable[..., Any], _Operation] = {
    add: _Operation(lambda a, b: (a, b), is_sum=True, twice_is_once=True),
    subtract: _Operation(lambda a, b: (a, -b), is_sum=True, twice_is_once=True),
    multiply: _Operation(np.multiply),
    divide: _Operation(np.divide),
    sqrt: _Operation(np.sqrt),
    fma: _Operation(lambda a, b, c: (a * b, c), is_sum=True),
    exp: _Operation(elementary.EXP.nearest, few=True),
    log: _Operation(elementary.LOG.nearest, few=True),
    sin: _Operation(elementary.SIN.nearest, few=True),
    cos: _Operation(elementary.COS.nearest, few=True),
    tanh: _Operation(elementary.TANH.nearest, few=True),
}
