"""Numbers as readers type them, and as explorers say them."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from mplab.numbers.codes import decode
from mplab.numbers.formats import Format

Number = Fraction | float
"""An exact number; a float stands for NaN, ±infinity and −0, which no Fraction is."""

_PRODUCT = re.compile(r"([+-]?)(?:([0-9.]+)\s*[*·×]\s*)?2\s*(?:\^|\*\*)\s*([+-]?[0-9]{1,4})")

_FURTHEST = 1000
"""Exponents of 2 up to this size are taken."""


def read_number(typed: str, fmt: Format) -> Number:
    """The exact number that a reader typed.

    Args:
        typed: a decimal, a fraction, a power of two, or a code of `fmt` as 0x… or 0b….
        fmt: the format of codes.

    Raises:
        ValueError: it is none of these.

    Examples:
        >>> read_number("0.1", FP16), read_number("3*2^-4", FP16), read_number("0x3C01", FP16)
        (Fraction(1, 10), Fraction(3, 16), Fraction(1025, 1024))
        >>> read_number("-0", FP16), read_number("0xFC00", FP16)
        (-0.0, -inf)
    """
    words = typed.strip().replace("−", "-").lower()
    if len(words) <= 60:
        if words.startswith(("0x", "0b")):
            return exact(float(decode(_code(words, fmt), fmt)))
        if product := _PRODUCT.fullmatch(words):
            sign, factor, exponent = product.groups()
            if abs(int(exponent)) <= _FURTHEST:
                return _decimal(f"{sign}{factor or 1}", typed) * Fraction(2) ** int(exponent)
        elif "/" in words:
            above, _, below = words.partition("/")
            if divisor := _decimal(below, typed):
                return _decimal(above, typed) / divisor
        else:
            return _decimal(words, typed)
    raise _mistake(typed)


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
    if abs(number.adjusted()) > 300:
        raise ValueError(f"{typed} is too far from 1; the exponent must be 300 or less.")
    return Fraction(number)


def _mistake(typed: str) -> ValueError:
    return ValueError(
        f"“{typed[:30]}” cannot be read. Type a number such as 0.1, 1e-8, 1/3, 3*2^-4, inf or "
        "nan, or a code such as 0x2E66."
    )


def exact(value: float) -> Number:
    """A float as an exact number."""
    special = not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0)
    return value if special else Fraction(value)


def shown(number: Number) -> str:
    """A number in at most 17 digits, with an ellipsis where there are more.

    Examples:
        >>> shown(Fraction(1, 10)), shown(Fraction(1, 3)), shown(2.0**-24), shown(-np.inf)
        ('0.1', '0.33333333333333333…', '5.9604644775390625e−8', '−infinity')
    """
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "infinity" if number > 0 else "−infinity"
    fraction = Fraction(number)
    digits = Decimal(fraction.numerator) / Decimal(fraction.denominator)  # 28 digits
    words = f"{digits:.17g}"
    if "e" not in words and "." in words:
        words = words.rstrip("0").rstrip(".")
    mark = "" if Fraction(Decimal(words)) == fraction else "…"
    sign = "-" if isinstance(number, float) and math.copysign(1, number) < 0 and not number else ""
    return f"{sign}{words}{mark}".replace("-", "−")


def short(number: Number) -> str:
    """A number in six digits, for pictures."""
    if isinstance(number, float) and not math.isfinite(number):
        return shown(number)
    return f"{float(number):.6g}".replace("-", "−")


def hexadecimal(code: int, fmt: Format) -> str:
    """A code with as many digits as the format needs.

    Examples:
        >>> hexadecimal(126, FP8_E4M3), hexadecimal(1, FP16)
        ('0x7E', '0x0001')
    """
    return f"0x{code:0{-(-fmt.bits // 4)}X}"
