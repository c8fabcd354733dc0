"""Read and write the bits of a format without rounding: codes, fields and values."""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mplab.common.words import integer
from mplab.numbers.checks import quoted
from mplab.numbers.formats import (
    FP64,
    Format,
    FormatLike,
    Rounding,
    Specials,
    format_of,
)
from mplab.numbers.inputs import (
    PIECE,
    as_float64,
    in_pieces,
    on_tensors,
)
from mplab.numbers.rounding import round_to
from mplab.numbers.steps import CODES, NUMBERS, take

_TABLE_BITS = 20
"""Formats up to this width are decoded from a table (2^20 float64 take 8 MiB)."""


class Fields(NamedTuple):
    """The three fields of a code, each an integer array of the codes' shape."""

    sign: np.ndarray
    biased_exponent: np.ndarray
    trailing_significand: np.ndarray


def code_dtype(fmt: Format) -> np.dtype[Any]:
    """Return the unsigned integer dtype that holds a code: uint8, uint16, uint32 or uint64."""
    return np.dtype(f"u{next(size for size in (1, 2, 4, 8) if fmt.bits <= 8 * size)}")


def _require_codes(function: str, codes: object, fmt: Format) -> np.ndarray:
    """Return `codes` as an integer array; raise if an element is not a code of `fmt`."""
    array = np.asarray(codes)
    whole = array.dtype.kind in "iu" and not isinstance(codes, np.ma.MaskedArray)
    if isinstance(codes, int | list | tuple) and array.size and not whole:
        # NumPy makes floats of integers past int64 beside smaller ones.
        array = np.asarray(codes, object)
        whole = all(type(code) is int for code in array.flat)
    if not whole:
        raise TypeError(
            f"{function}: codes must be integers without a mask; got {type(codes).__name__} of "
            f"{np.asarray(codes).dtype}. To turn numbers into codes, use encode(x, {fmt.name})."
        )
    most = (1 << fmt.bits) - 1
    if array.size and (array.min() < 0 or array.max() > most):
        wrong = (array < 0) | (array > most)
        raise ValueError(
            f"{function}: codes must lie in 0 .. 0x{most:X} ({fmt.name} has "
            f"{fmt.bits} bits); got {integer(int(array[wrong].flat[0]))}. Mask or shift the extra "
            f"bits away."
        )
    return array.astype(code_dtype(fmt)) if array.dtype == object else array


def fields(codes: object, fmt: FormatLike) -> Fields:
    """Split codes into sign, biased exponent and trailing significand.

    Args:
        codes: integers of any shape.
        fmt: the format of the codes.

    Returns:
        Three arrays of the codes' shape; the sign of an unsigned format is 0.

    Raises:
        TypeError: the codes are not integers.
        ValueError: a code needs more bits than the format has, or the format is in two's
            complement, which has no such fields.

    Examples:
        >>> fields(0xC000, FP16)
        Fields(sign=array(1, dtype=uint16), biased_exponent=array(16, dtype=uint16), \
trailing_significand=array(0, dtype=uint16))
    """
    fmt = format_of(fmt, function="fields")
    if fmt.specials is Specials.TWOS_COMPLEMENT:
        raise ValueError(
            f"fields: fmt must have fields of its own for sign and size; got {fmt.name}, in two's "
            f"complement. Use decode."
        )
    array = _require_codes("fields", codes, fmt).astype(code_dtype(fmt))
    magnitude = array & ((fmt.sign_code or (1 << fmt.bits)) - 1)
    trailing = fmt.precision - 1
    return Fields(
        np.asarray((array & fmt.sign_code) != 0).astype(array.dtype),
        np.asarray(magnitude >> trailing),
        np.asarray(magnitude & ((1 << trailing) - 1)),
    )


def in_hex(code: int, fmt: Format) -> str:
    """Write a code in hexadecimal, with all digits of its format.

    Examples:
        >>> in_hex(1, FP16)
        '0x0001'
    """
    return f"0x{code:0{-(-fmt.bits // 4)}X}"


def times_power_of_two(k: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return k·2^q as float64, built from bits so that a CPU cannot flush subnormals."""
    bits = k.astype(np.float64).view(np.int64)
    normal = (bits >> 52) + q >= 1
    subnormal = k << np.clip(q + 1074, 0, 52)
    scaled = np.where(k == 0, 0, np.where(normal, bits + (q << 52), subnormal))
    return np.asarray(scaled, np.int64).view(np.float64)


@cache
def _table(fmt: Format) -> np.ndarray:
    codes = np.arange(1 << fmt.bits, dtype=code_dtype(fmt))
    table: np.ndarray = take("decode", fmt, codes, kinds=CODES)
    table.flags.writeable = False
    return table


def decode(codes: object, fmt: FormatLike) -> Any:
    """Decode codes to their values.

    All NaN codes give NaN.

    Args:
        codes: integers of any shape `(...)`; a torch tensor gives a tensor.
        fmt: the format of the codes.

    Returns:
        float64, shape `(...)`; a float64 scalar for a scalar.

    Raises:
        TypeError: the codes are not integers.
        ValueError: a code needs more bits than the format has.

    Exactness:
        Exact.

    Examples:
        >>> decode(np.array([0x00, 0x7E, 0x7F], np.uint8), FP8_E4M3)
        array([  0., 448.,  nan])
    """
    fmt = format_of(fmt, function="decode")
    found = take("decode", fmt, codes, kinds=CODES)
    return _decoded(codes, fmt) if found is None else found


@on_tensors
def _decoded(codes: object, fmt: Format) -> Any:
    array = _require_codes("decode", codes, fmt).astype(code_dtype(fmt))
    if fmt.bits == 64:
        numbers = array.view(np.float64)
        return np.where(np.isnan(numbers), np.nan, numbers)[()]
    return _surely("decode", fmt, array, CODES)


def values(fmt: FormatLike) -> np.ndarray:
    """List every value of a format, in the order of its codes.

    Returns:
        float64, shape (2^bits,), read-only.

    Raises:
        ValueError: the format has more than 20 bits.

    Examples:
        >>> values(FP4_E2M1)
        array([ 0. ,  0.5,  1. ,  1.5,  2. ,  3. ,  4. ,  6. , -0. , -0.5, -1. ,
               -1.5, -2. , -3. , -4. , -6. ])
    """
    fmt = format_of(fmt, function="values")
    if fmt.bits > _TABLE_BITS:
        raise ValueError(
            f"values: fmt must have at most {_TABLE_BITS} bits; got {fmt.name} with {fmt.bits} "
            f"(2^{fmt.bits} values). Decode a range of codes instead."
        )
    return _table(fmt)


def encode(x: object, fmt: FormatLike) -> Any:
    """Encode numbers that are values of a format to their codes.

    Args:
        x: numbers as in `round_to`, any shape `(...)`.
        fmt: the format.

    Returns:
        uint8, uint16, uint32 or uint64 by the width of the format, shape `(...)`. NaN gives
        `fmt.nan_code`, whatever its sign and payload.

    Raises:
        TypeError: `x` is not made of numbers.
        ValueError: a number is not a value of the format; nothing is rounded here.

    Exactness:
        Exact.

    Examples:
        >>> encode(np.array([1.0, -0.0, 448.0]), FP8_E4M3)
        array([ 56, 128, 126], dtype=uint8)
    """
    fmt = format_of(fmt, function="encode")
    codes = take("encode", fmt, x)
    return _encoded(x, fmt) if codes is None else codes


@on_tensors
def _encoded(x: object, fmt: Format) -> Any:
    if fmt.bits == 64:
        array = _in_fp64("encode", x, as_float64("encode", x))
        return np.where(np.isnan(array), np.nan, array).view(np.uint64)[()]
    array = require_values("encode", "x", x, fmt)
    nan = np.isnan(array)
    if nan.any() and not fmt.has_nan:
        raise ValueError(refusal("encode", "x", np.nan, fmt, "nan"))
    return _surely("encode", fmt, array, NUMBERS)


def _surely(step: str, fmt: Format, array: np.ndarray, kinds: Any) -> Any:
    """Take a step that the numbers allow: if one is missed, another thread missed it."""
    found = None
    while found is None:
        found = take(step, fmt, array.reshape(-1), kinds=kinds)
    return found.reshape(array.shape)[()]


def look_up(x: Any, fmt: Format, list_results: Callable[[], np.ndarray]) -> Any:
    """Find the result for each value of a format in a list by its code.

    None in wide formats, and for numbers that the long way must take.
    """
    codes = take("encode", fmt, x) if fmt.bits <= 16 else None
    return None if codes is None else _taken(codes, list_results())


@in_pieces
def _taken(codes: np.ndarray, results: np.ndarray) -> Any:
    return results.take(codes)


def _in_fp64(function: str, x: Any, array: np.ndarray) -> np.ndarray:
    """Return the numbers, or raise if one was rounded to float64 on its way in."""
    number = Decimal(x) if isinstance(x, str) else x
    # Comparing a signaling NaN raises.
    if isinstance(number, Decimal) and number.is_nan():
        return array
    if isinstance(number, Decimal | Fraction | int) and number != float(array):
        given = integer(x) if type(x) is int else x
        raise ValueError(
            f"{function}: x must hold values of FP64; got {given}. Take float(x)."
        )
    return array


_INFINITY = 0x7FF << 52
_MAGNITUDE = (1 << 63) - 1


def require_values(function: str, argument: str, x: Any, fmt: FormatLike) -> np.ndarray:
    """Convert `x` to float64; raise if an element is neither a value of `fmt` nor NaN.

    Args:
        function: the function that was called, for the message.
        argument: the name of `x` in the message.
        x: as in `round_to`.
        fmt: the format that the numbers must belong to.

    Raises:
        TypeError: `x` holds no numbers.
        ValueError: an element is not a value of `fmt`; nothing is rounded here.

    Examples:
        >>> require_values("dot", "a", np.array([0.5, 0.1], np.float32), FP4_E2M1)
        Traceback (most recent call last):
        ValueError: dot: a must hold values of FP4_E2M1; got 0.10000000149011612, between \
0.0 (0x0) and 0.5 (0x1). Round first: round_to(a, FP4_E2M1).
    """
    fmt = format_of(fmt, function=function)
    if type(x) is np.ndarray and (entered := _entered(x, fmt)) is not None:
        return entered
    array = as_float64(function, x, argument)
    same = np.asarray(round_to(array, fmt)).view(np.int64) == array.view(np.int64)
    if not same.all() and not (same := same | np.isnan(array)).all():
        first = float(array[~same].flat[0])
        written = x if type(x) is int else first
        raise ValueError(refusal(function, argument, first, fmt, quoted(written)))
    return array


def _entered(x: np.ndarray, fmt: Format) -> np.ndarray | None:
    """Return the values of a format in float64; None if some are none, or for the long way."""
    if x.dtype.char == "f":
        wide: np.ndarray | None = take("enter", fmt, x)
        return wide
    for at in range(0, x.size, PIECE):
        if take("enter", fmt, x.reshape(-1)[at : at + PIECE]) is None:
            return None
    return x


def refusal(function: str, argument: str, x: float, fmt: Format, written: str) -> str:
    """Write the message that a number is not a value of `fmt`, with its two neighbours if any.

    Args:
        function: the function that was called.
        argument: the argument that holds the number.
        x: the number.
        fmt: the format.
        written: the number as the caller wrote it.
    """
    what = written
    least = 0.0 if fmt.has_zero else fmt.min_normal
    if least < abs(x) < fmt.max_finite and (x > 0 or fmt.signed):
        sides = (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE)
        beside = [float(round_to(x, fmt, rounding=side)) for side in sides]
        names = [f"{y!r} ({in_hex(int(encode(y, fmt)), fmt)})" for y in beside]
        what += ", between " + " and ".join(names)
    elif abs(x) > fmt.max_finite:
        what += f", past the largest finite value {fmt.max_finite!r}"
    advice = f"Round first: round_to({argument}, {fmt.name})."
    if math.isnan(x):  # rounding would keep it
        advice = "The format has none: replace it first, for instance by np.nan_to_num."
    return (
        f"{function}: {argument} must hold values of {fmt.name}; got {what}. {advice}"
    )


@on_tensors
@in_pieces
def next_up(x: object, fmt: FormatLike) -> Any:
    """Return the least value of the format greater than each `x`.

    NaN gives NaN. Past `max_finite` lies the overflow result: infinity, or NaN where the
    format has no infinity, or `max_finite` itself where it has neither. −min_subnormal
    gives −0 where the format has it.

    Args:
        x: values of `fmt`, any shape `(...)`.
        fmt: the format.

    Returns:
        float64, shape `(...)`.

    Raises:
        TypeError: `x` is not made of numbers.
        ValueError: an element is not a value of `fmt`.

    Exactness:
        Exact.

    Source:
        IEEE 754-2019 §5.3.1 nextUp, for the formats that have infinities.

    Examples:
        >>> float(next_up(1.0, FP16)), float(next_up(65504.0, FP16))
        (1.0009765625, inf)
    """
    return _step("next_up", x, fmt, 1)


@on_tensors
@in_pieces
def next_down(x: object, fmt: FormatLike) -> Any:
    """Return the greatest value of the format less than each `x`: −next_up(−x).

    See `next_up` for shapes, errors and the ends of the range. Below the least value of an
    unsigned format lies NaN, or that value where the format has no NaN.

    Examples:
        >>> float(next_down(1.0, FP16))
        0.99951171875
    """
    return _step("next_down", x, fmt, -1)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def _step(function: str, x: object, fmt: FormatLike, direction: int) -> Any:
    """Take one step along the values of `fmt`, by a table where there are many numbers."""
    fmt = format_of(fmt, function=function)
    if fmt.bits == 64:
        return np.nextafter(
            _in_fp64(function, x, as_float64(function, x)), direction * np.inf
        )[()]
    found = look_up(x, fmt, lambda: _steps(fmt, direction))
    if found is not None:
        return found
    return _onward(require_values(function, "x", x, fmt), fmt, direction)[()]


@cache
def _steps(fmt: Format, direction: int) -> np.ndarray:
    """List the results of a step by the codes of where it starts."""
    return _onward(_table(fmt), fmt, direction)


def _onward(start: np.ndarray, fmt: Format, direction: int) -> np.ndarray:
    """Go on by two float64, and round onwards."""
    towards = Rounding.TOWARD_POSITIVE if direction > 0 else Rounding.TOWARD_NEGATIVE
    # Integers that sort as the numbers do, with −0 just below 0: no step is lost to flushing.
    bits = start.view(np.int64)
    order = (bits ^ (bits >> 63 & _MAGNITUDE)) + 2 * direction
    order = np.clip(order, ~_INFINITY, _INFINITY)
    stepped = np.asarray(order ^ (order >> 63 & _MAGNITUDE)).view(np.float64)
    round_to(stepped, fmt, rounding=towards, out=stepped)
    np.copyto(stepped, np.nan, where=np.isnan(start))
    if direction < 0 and not fmt.signed:
        least = 0.0 if fmt.has_zero else fmt.min_normal
        below = np.nan if fmt.has_nan else least
        stepped = np.where(start == least, below, stepped)
    return stepped


@on_tensors
@in_pieces
def ulp(x: object, fmt: FormatLike) -> Any:
    """Return the unit in the last place (ulp) of the format at each `x`.

    ulp(x) = 2^(e − p + 1) with 2^e ≤ |x| < 2^(e+1), e limited to emin .. emax. At a power of
    two this is the distance to the next value away from zero, twice the distance towards zero;
    at 0 and among subnormals it is `min_subnormal`. NaN gives NaN, infinity gives infinity.

    Args:
        x: numbers, any shape `(...)`; they need not be values of `fmt`.
        fmt: the format.

    Returns:
        float64, shape `(...)`.

    Raises:
        TypeError: `x` is not made of numbers.

    Exactness:
        Exact.

    Examples:
        >>> ulp(np.array([1.0, 1.99, 2.0, 0.0]), FP16)
        array([9.76562500e-04, 9.76562500e-04, 1.95312500e-03, 5.96046448e-08])
    """
    fmt = format_of(fmt, function="ulp")
    numbers = as_float64("ulp", x)
    array = np.atleast_1d(np.ascontiguousarray(numbers))
    magnitude = array.view(np.int64) & _MAGNITUDE
    if fmt.emin - fmt.precision >= FP64.emin:
        # 2^e, or 0 below all normal numbers
        result = (magnitude & _INFINITY).view(np.float64)
        np.clip(result, fmt.min_normal, 2.0**fmt.emax, out=result)
        result *= fmt.epsilon
    else:
        exponent = np.clip((magnitude >> 52) - 1023, fmt.emin, fmt.emax)
        result = times_power_of_two(
            np.ones_like(exponent), exponent - fmt.precision + 1
        )
    magnitude *= magnitude >= _INFINITY
    result = np.maximum(result.view(np.int64), magnitude).view(np.float64)
    return result.reshape(numbers.shape)[()]
