"""Arithmetic in a format: every operation rounds once, by `round_to`.

Each operation first computes its result in float64, then rounds it to the format. Where rounding
to float64 could change the result, it rounds to odd: it cuts, and sets the last bit if anything
was lost. Rounding from there to at least two bits less is correct in any mode, and so are its
events. Results of elementary functions lie on the right side of every value and midpoint; see
`elementary`. Numbers of more than 25 bits of precision, or near the ends of float64, go through
Fractions, slowly. By default rules, float32 operands of at most 11 bits of precision, neither tiny
nor huge, are computed in float32, which has 2p + 2 bits for them.
"""

import operator
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from math import isqrt
from typing import Any, NamedTuple, Unpack

import numpy as np

from mplab.arithmetic import elementary
from mplab.numbers.checks import quoted
from mplab.numbers.codes import look_up, require_values, values
from mplab.numbers.formats import (
    Event,
    Format,
    FormatLike,
    Rounding,
    Tininess,
    format_of,
)
from mplab.numbers.inputs import as_array, widen
from mplab.numbers.options import RoundingRules, Tally
from mplab.numbers.rounding import events, round_to
from mplab.numbers.steps import take


class Rules(RoundingRules, total=False):
    """The options of every operation, all of them keywords.

    `rounding`: the direction, ties to even if omitted. `overflow`: the result past the largest
    finite value. `flush_inputs`: take subnormal operands as zero. `flush_outputs`: replace
    subnormal results by zero. `stream`: source of random bits for `Rounding.STOCHASTIC`.
    `tally`: counters to add to; their x is the exact result.
    """

    tally: Tally | None


class _Operation(NamedTuple):
    """How to compute one operation in float64, and as Fractions where float64 is too small."""

    nearest: Any
    """The result, rounded to nearest in float64, special values included; None if rounding it to
    nearest once more would differ from rounding once."""
    exact: Callable[..., Fraction]
    """The result for finite operands as a Fraction; an irrational one has a sticky last bit."""
    addends: Callable[..., tuple[Any, Any]] | None = None
    """The two addends of a sum, both exact in float64; the sum may need rounding to odd."""
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
        ValueError: an operand is not a value of `fmt`, or a stream is missing.

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
    return operate(add, (a, b), fmt, rules)


def subtract(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Subtract a − b, rounded once. See `add`.

    Examples:
        >>> float(subtract(1.0, 0.0009765625, FP16))
        0.9990234375
    """
    return operate(subtract, (a, b), fmt, rules)


def multiply(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Multiply a · b, rounded once. 0 · ∞ gives NaN (INVALID). See `add`.

    Exactness:
        Correctly rounded in every mode and format: float64 holds every product of two
        significands of at most 25 bits.

    Examples:
        >>> float(multiply(256.0, 256.0, FP16)), float(multiply(20.0, 24.0, FP8_E4M3))
        (inf, nan)
    """
    return operate(multiply, (a, b), fmt, rules)


def divide(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Divide a / b, rounded once.

    x/0 gives the infinity of its sign (DIVIDE_BY_ZERO); 0/0 and ∞/∞ give NaN (INVALID). In a
    format without infinity, x/0 gives what `round_to` makes of one. See `add` for arguments and
    errors.

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
    return operate(divide, (a, b), fmt, rules)


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
    return operate(sqrt, (a,), fmt, rules)


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
    return operate(fma, (a, b, c), fmt, rules)


def remainder(a: Any, b: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the remainder a − n·b, with n the integer nearest to a/b, ties to even.

    x rem 0 and ∞ rem y give NaN (INVALID); x rem ∞ is x. A zero has the sign of a. See `add`.

    Exactness:
        Exact: the remainder is a value of the format, if that is signed.

    Source:
        IEEE 754-2019 §5.3.1.

    Examples:
        >>> float(remainder(7.0, 4.0, FP16)), float(remainder(6.0, 4.0, FP16))
        (-1.0, -2.0)
    """
    return operate(remainder, (a, b), fmt, rules)


# Elementary functions ------------------------------------------------------------------
def exp(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute e^a, rounded once. e^−∞ gives +0. See `add` for arguments and errors.

    Exactness:
        Correctly rounded in every mode and format. For `STOCHASTIC` the probability is that of
        NumPy's result in float64, within a relative 2^−46 of the exact result; NumPy's last bit
        is the machine's, and so is one draw in about 2^29 for FP32, fewer for lower formats.

    Source:
        The test of a rounding by the error of the result: Ziv 1991. Where it fails, the function
        is computed by mpmath with as many bits as it needs; see `elementary`.

    Examples:
        >>> float(exp(1.0, FP16)), float(exp(12.0, FP16)), float(exp(-18.0, FP16))
        (2.71875, inf, 0.0)
    """
    return operate(exp, (a,), fmt, rules)


def exp2(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute 2^a, rounded once. See `exp`.

    Examples:
        >>> float(exp2(-24.0, FP16)), float(exp2(0.5, FP8_E4M3))
        (5.960464477539063e-08, 1.375)
    """
    return operate(exp2, (a,), fmt, rules)


def log(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute ln a, rounded once. ±0 gives −∞ (DIVIDE_BY_ZERO), a < 0 NaN (INVALID). See `exp`.

    Examples:
        >>> float(log(3.0, FP16)), raised(log, 0.0, FP16)
        (1.0986328125, <Event.DIVIDE_BY_ZERO: 16>)
    """
    return operate(log, (a,), fmt, rules)


def log2(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the logarithm to base 2, rounded once. See `log`.

    Examples:
        >>> float(log2(2.0**-24, FP16)), float(log2(3.0, BF16))
        (-24.0, 1.5859375)
    """
    return operate(log2, (a,), fmt, rules)


def sin(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the sine of an angle in radians, rounded once. ±∞ gives NaN (INVALID). See `exp`.

    Examples:
        >>> float(sin(3.140625, FP16)), float(sin(65504.0, FP16))
        (0.0009675025939941406, 0.9755859375)
    """
    return operate(sin, (a,), fmt, rules)


def cos(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the cosine of an angle in radians, rounded once. See `sin`.

    Examples:
        >>> float(cos(0.0078125, BF16)), float(cos(0.0078125, FP32))
        (1.0, 0.999969482421875)
    """
    return operate(cos, (a,), fmt, rules)


def tanh(a: Any, fmt: FormatLike, **rules: Unpack[Rules]) -> Any:
    """Compute the hyperbolic tangent, rounded once. See `exp`.

    Examples:
        >>> float(tanh(3.0, BF16)), float(tanh(4.0, FP8_E4M3))
        (0.99609375, 1.0)
    """
    return operate(tanh, (a,), fmt, rules)


def raised(operation: Callable[..., Any], *arguments: Any, **rules: Any) -> Any:
    """Return the IEEE 754 exceptions that an operation with these arguments raises.

    Besides the events of rounding: INVALID where numbers give NaN, DIVIDE_BY_ZERO where finite
    numbers have an infinite quotient or logarithm. A signaling NaN operand raises INVALID in every
    operation, a quiet NaN does not.

    Args:
        operation: `add`, `subtract`, `multiply`, `divide`, `sqrt`, `fma`, `remainder` or an
            elementary function.
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
        raise ValueError(
            f"raised: operation must be one of {names}; got {quoted(operation)}. Pass one."
        )
    tininess = rules.pop("tininess", Tininess.AFTER)
    *operands, named = arguments
    fmt = format_of(named, function="raised")
    exact = _exact(operation, tuple(operands), fmt, rules, watched=True)
    rules.pop("tally", None)
    flags = np.asarray(events(exact.wide, fmt, tininess=tininess, **rules))
    flags = np.where(exact.past, int(Event.OVERFLOW | Event.INEXACT), flags)
    numbers = np.broadcast_arrays(*map(widen, exact.operands))
    if operation in (divide, log, log2):
        by_zero = (numbers[-1] == 0) & np.isfinite(numbers[0]) & np.isinf(exact.wide)
        flags = np.where(by_zero, int(Event.DIVIDE_BY_ZERO), flags)
    invalid = np.isnan(exact.wide) & ~np.any([np.isnan(x) for x in numbers], axis=0)
    invalid |= np.any([_is_signaling(x) for x in numbers], axis=0)
    flags = flags | np.where(invalid, int(Event.INVALID), 0)
    return Event(int(flags)) if flags.ndim == 0 else flags.astype(np.uint8)


# From operands to the result ------------------------------------------------------------
def operate(
    operation: Callable[..., Any],
    operands: tuple[Any, ...],
    fmt: FormatLike,
    rules: Rules,
) -> Any:
    """Compute the result of an operation."""
    fmt = format_of(fmt, function=operation.__name__)
    if (
        not rules
        and _fits(fmt)
        and (found := _at_once(operation, operands, fmt)) is not None
    ):
        return found
    watched = rules.get("tally") is not None
    options = dict(rules)
    wide = _exact(operation, operands, fmt, options, watched=watched).wide
    # In place, because new memory costs more than the rounding.
    out = wide if np.ndim(wide) else None
    # `[()]`: of a 0-d array a NumPy scalar, as the short way returns
    return round_to(wide, fmt, out=out, **options)[()]  # type: ignore[arg-type]


def _at_once(
    operation: Callable[..., Any], operands: tuple[Any, ...], fmt: Format
) -> Any:
    """Compute an operation on common operands, by default rules; None for the long way."""
    if not _OPERATIONS[operation].few:
        return take(operation.__name__, fmt, *operands)
    return look_up(operands[0], fmt, lambda: _results(operation, fmt))


class _Exact(NamedTuple):
    """The result of an operation before rounding to the format.

    Attributes:
        wide: float64, exact, or rounded in a way that does not change the result in the format.
        past: where the exact result is at least 2^1024, for which float64 has no finite number.
        operands: the numbers that entered, in float32 or float64.
    """

    wide: Any
    past: Any
    operands: list[Any]


def _exact(
    operation: Callable[..., Any],
    operands: tuple[Any, ...],
    fmt: Format,
    rules: dict[str, Any],
    *,
    watched: bool,
) -> _Exact:
    """Compute an operation; `watched`: its events must be right, too."""
    entry = _OPERATIONS[operation]
    name = operation.__name__
    mode = rules.get("rounding", Rounding.TIES_TO_EVEN)
    to_nearest = mode in (Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY)
    flush = rules.pop("flush_inputs", False)
    if type(flush) is not bool:
        raise TypeError(f"{name}: flush_inputs must be True or False; got {flush!r}.")
    floor = fmt.min_normal if flush else 0.0
    past: Any = False
    numbers = [
        _flushed(require_values(name, argument, x, fmt), floor)
        for argument, x in zip("abc", operands, strict=False)
    ]
    with np.errstate(all="ignore"):
        if entry.addends and (watched or not to_nearest or not entry.nearest):
            downward = mode is Rounding.TOWARD_NEGATIVE
            wide = exact_sum_to_odd(*entry.addends(*numbers), downward=downward)
        else:
            wide = entry.nearest(*numbers)
        if not _fits(fmt):
            every = np.broadcast_arrays(*numbers)
            hard = fmt.precision > 25 or _near_the_ends(*every, wide)
            wide, past = slowly(entry.exact, wide, every, where=hard)
            chance = past & (mode is Rounding.STOCHASTIC)
            wide = np.where(chance, np.copysign(np.inf, wide), wide)[()]
    return _Exact(wide, past, numbers)


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


@cache
def _fits(fmt: Format) -> bool:
    """Tell whether 53 > 2p+2, and products and quotients stay within the range of float64."""
    return fmt.precision <= 25 and fmt.emin - fmt.precision >= -450 and fmt.emax <= 450


def _near_the_ends(*numbers: Any) -> Any:
    """Find where an operand or result is so large or small that float64 may not be enough."""
    sizes = [np.abs(x) for x in numbers]
    return np.any([(x > 2.0**450) | ((x > 0) & (x < 2.0**-450)) for x in sizes], axis=0)


def slowly(
    exact: Callable[..., Fraction], nearest: Any, numbers: Any, *, where: Any = True
) -> tuple[np.ndarray, np.ndarray]:
    """Compute results of finite operands as Fractions, where float64 may not be enough.

    Also return where they are at least 2^1024 in size.
    """
    wide = np.array(nearest, np.float64)
    past = np.zeros(wide.shape, bool)
    usable = where & ~np.isnan(wide) & np.all([np.isfinite(x) for x in numbers], axis=0)
    for at in map(tuple, np.argwhere(usable)):
        try:
            q = exact(*(Fraction(float(x[at])) for x in numbers))
        except ZeroDivisionError:
            continue  # x/0 is an infinity already
        if q:
            wide[at] = as_array("arithmetic", q)
            past[at] = abs(q) >= 1 << 1024
    return wide, past


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
    loops.odd_adder()(*flat, out.reshape(-1), int(mode))
    return out


@cache
@np.errstate(all="ignore")
def _results(operation: Callable[..., Any], fmt: Format) -> np.ndarray:
    """List the results of an elementary function by the codes of its operands."""
    return np.asarray(round_to(_OPERATIONS[operation].nearest(values(fmt)), fmt))


# The operations in float64 -------------------------------------------------------------
def _product(a: Any, b: Any) -> Any:
    """Multiply; finite numbers never give an infinity, which might meet −∞ before `slowly`."""
    product = a * b
    past = np.isinf(product) & np.isfinite(a) & np.isfinite(b)
    if past.any():
        product = np.where(past, np.copysign(np.finfo(float).max, product), product)
    return product


def _remainder(a: Any, b: Any) -> Any:
    rest = np.fmod(np.abs(a), 2 * np.abs(b))
    divisor = np.abs(b)
    once = rest - divisor
    twice = once - divisor
    rest = np.where(
        rest + rest > divisor, np.where(once + once >= divisor, twice, once), rest
    )
    return np.where(np.signbit(a), -rest, rest)


def _exact_root(a: Fraction) -> Fraction:
    """Cut √a to 70 bits or more, and add half a unit if anything was cut."""
    scale = 4 ** (70 + max(a.denominator.bit_length() - a.numerator.bit_length(), 0))
    scaled, rest = divmod(a.numerator * scale, a.denominator)
    root = isqrt(scaled)
    inexact = rest != 0 or root * root != scaled
    return Fraction(2 * root + inexact, 2 * isqrt(scale))


def _elementary(function: elementary.Elementary) -> _Operation:
    return _Operation(function.nearest, function.exact, few=True)


_OPERATIONS: dict[Callable[..., Any], _Operation] = {
    add: _Operation(operator.add, operator.add, lambda a, b: (a, b)),
    subtract: _Operation(operator.sub, operator.sub, lambda a, b: (a, -b)),
    multiply: _Operation(operator.mul, operator.mul),
    divide: _Operation(np.divide, operator.truediv),
    sqrt: _Operation(np.sqrt, _exact_root),
    fma: _Operation(
        None, lambda a, b, c: a * b + c, lambda a, b, c: (_product(a, b), c)
    ),
    remainder: _Operation(_remainder, lambda a, b: a - round(a / b) * b),
    exp: _elementary(elementary.EXP),
    exp2: _elementary(elementary.EXP2),
    log: _elementary(elementary.LOG),
    log2: _elementary(elementary.LOG2),
    sin: _elementary(elementary.SIN),
    cos: _elementary(elementary.COS),
    tanh: _elementary(elementary.TANH),
}
