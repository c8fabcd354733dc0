"""What explorers of numbers are given, and numbers as readers type them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Real

import numpy as np

from mplab.numbers.checks import quoted
from mplab.numbers.codes import decode
from mplab.numbers.formats import Format
from mplab.numbers.words import number as in_digits

Number = Fraction | float
"""An exact number; a float stands for NaN, ±infinity and −0, which no Fraction is."""

_PRODUCT = re.compile(r"([+-]?)(?:([0-9.]+)\s*[*·×]\s*)?2\s*(?:\^|\*\*)\s*([+-]?[0-9]{1,4})")

_HEX_FLOAT = re.compile(r"([+-]?)0x([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]{1,5}))?")

_FURTHEST = 5000
"""Exponents of 2, and of 10, up to this size are taken: past all formats, and quick to compute."""

_LONGEST = 1200
"""Characters that are read: a double has up to 1,075 decimals."""


def read_number(typed: str, fmt: Format) -> Number:
    """The exact number that a reader typed.

    Args:
        typed: a decimal, a fraction, a power of two, a hexadecimal number as 0x1.8p3, or a code
            of `fmt` as 0x… or 0b….
        fmt: the format of codes.

    Raises:
        ValueError: it is none of these.

    Examples:
        >>> read_number("0.1", FP16), read_number("3*2^-4", FP16), read_number("0x3C01", FP16)
        (Fraction(1, 10), Fraction(3, 16), Fraction(1025, 1024))
        >>> read_number("-0", FP16), read_number("0xFC00", FP16), read_number("0x1.8p3", FP16)
        (-0.0, -inf, Fraction(12, 1))
    """
    words = typed.strip().replace("−", "-").lower()
    if len(words) <= _LONGEST:
        if is_code(words):
            return exact(float(decode(_code(words, fmt), fmt)))
        if found := _HEX_FLOAT.fullmatch(words):
            return _hexadecimal_number(found, typed)
        if product := _PRODUCT.fullmatch(words):
            sign, factor, exponent = product.groups()
            if abs(int(exponent)) > _FURTHEST:
                raise _too_far(typed)
            return _decimal(f"{sign}{factor or 1}", typed) * Fraction(2) ** int(exponent)
        elif "/" in words:
            above, _, below = words.partition("/")
            if divisor := _decimal(below, typed):
                return _decimal(above, typed) / divisor
        else:
            return _decimal(words, typed)
    raise _mistake(typed)


def is_code(typed: str) -> bool:
    """Whether what was typed is a code: 0x… or 0b… without a point and without an exponent.

    Examples:
        >>> is_code("0x2E66"), is_code("0x1.8p3"), is_code("12")
        (True, False, False)
    """
    words = typed.strip().lower()
    return words.startswith(("0x", "0b")) and "." not in words and "p" not in words


def _hexadecimal_number(found: re.Match[str], typed: str) -> Number:
    """The number of a sign, hexadecimal digits with a point, and an exponent of 2."""
    sign, whole, part, exponent = (group or "" for group in found.groups())
    if not whole + part:
        raise _mistake(typed)
    power = int(exponent or 0)
    if abs(power) > _FURTHEST:
        raise _too_far(typed)
    number = int(whole + part, 16) * Fraction(2) ** (power - 4 * len(part))
    if not number:
        return -0.0 if sign == "-" else number
    return -number if sign == "-" else number


def _code(words: str, fmt: Format) -> int:
    try:
        code = int(words, 0)
    except ValueError:
        raise _mistake(words) from None
    if code >> fmt.bits:
        raise ValueError(f"{words} needs more than the {fmt.bits} bits of {fmt.name}.")
    return code


def _decimal(words: str, typed: str) -> Number:
    try:
        number = Decimal(words)
    except InvalidOperation:
        raise _mistake(typed) from None
    if number.is_nan() or number.is_infinite():
        return math.nan if number.is_nan() else float(number)
    if number.is_zero():
        return -0.0 if number.is_signed() else Fraction(0)
    if abs(number.adjusted()) > _FURTHEST:
        raise _too_far(typed)
    return Fraction(number)


def _too_far(typed: str) -> ValueError:
    return ValueError(
        f"{_quoted(typed)} is too far from 1. Type an exponent of {_FURTHEST:,} or less, with "
        "either sign."
    )


def _quoted(typed: str) -> str:
    """What was typed, as a message repeats it."""
    return f"“{typed}”" if len(typed) <= 30 else f"“{typed[:30]}…”"


def first_words(
    function: str, argument: str, given: object, read: Callable[[str], Number]
) -> tuple[str, Number]:
    """What an explorer starts with, as it would be typed, and the number that it is.

    Args:
        function: the explorer's name, for messages.
        argument: that of its argument.
        given: words, or a number.
        read: reads the words, or raises a ValueError that says why not.

    Raises:
        TypeError: `given` is neither.
        ValueError: `read` refuses the words.
    """
    rule = f"{function}: {argument} must be a number that can be shown, or words for one"
    if isinstance(given, bool | np.bool_) or not isinstance(given, str | Real):
        raise TypeError(f"{rule}; got {quoted(given)}. Pass 0.1 or '0.1'.")
    try:
        words = str(given)
        return words, read(words)
    except ValueError as mistake:
        raise ValueError(f"{rule}; got {quoted(given)}. {mistake}") from None


def least_of(fmt: Format) -> float:
    """The least finite value of a format."""
    return -fmt.max_finite if fmt.signed else float(decode(0, fmt))


def read_within(what: str, typed: str, fmt: Format, within: Format) -> Number:
    """The number that a reader typed, which a format's range must hold.

    Args:
        what: the number's name in the message.
        typed: what was typed.
        fmt: the format of codes.
        within: the format whose range it is.

    Raises:
        ValueError: it cannot be read, is not finite, or is not in the range of `within`.

    Examples:
        >>> read_within("The middle", "-449", FP16, FP8_E4M3)
        Traceback (most recent call last):
        ValueError: The middle must be finite and from −448 to 448, the range of FP8_E4M3; got -449.
    """
    low = least_of(within)
    number = read_number(typed, fmt)
    if not low <= number <= within.max_finite:  # NaN too
        raise ValueError(
            f"{what} must be finite and from {in_digits(low)} to {in_digits(within.max_finite)}, "
            f"the range of {within.name}; got {typed}."
        )
    return number


def require_kind(function: str, argument: str, given: object, kind: type) -> None:
    """Refuse what is not of a type, by name."""
    if not isinstance(given, kind):
        raise TypeError(
            f"{function}: {argument} must be a {kind.__name__} of mplab; got {quoted(given)}. "
            f"Import one from mplab."
        )


def _mistake(typed: str) -> ValueError:
    return ValueError(
        f"{_quoted(typed)} cannot be read. Type a number such as 0.1, 1e-8, 1/3, 3*2^-4, 0x1.8p3, "
        "inf or nan, or a code such as 0x2E66."
    )


def exact(value: float) -> Number:
    """A float as an exact number."""
    special = not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0)
    return value if special else Fraction(value)
