"""Numbers as readers type them, read exactly: the oracle of what the page reads."""

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from mplab.numbers.codes import decode

_PRODUCT = re.compile(
    r"([+-]?)(?:([0-9.]+)\s*[*·×]\s*)?2\s*(?:\^|\*\*)\s*([+-]?[0-9]{1,4})"
)

_HEX_FLOAT = re.compile(
    r"([+-]?)0x([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]{1,5}))?"
)

_FURTHEST = 5000
"""Exponents of 2, and of 10, up to this size are taken: past all formats, and quick to compute."""

_LONGEST = 1200
"""Characters that are read: a double has up to 1,075 decimals."""


def read_number(typed, fmt):
    """The exact number of a decimal, fraction, power of two, hexadecimal number or code."""
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
            return _decimal(f"{sign}{factor or 1}", typed) * Fraction(2) ** int(
                exponent
            )
        elif "/" in words:
            above, _, below = words.partition("/")
            if divisor := _decimal(below, typed):
                return _decimal(above, typed) / divisor
        else:
            return _decimal(words, typed)
    raise _mistake(typed)


def is_code(words):
    """Whether it is 0x… or 0b… without a point and without an exponent."""
    return words.startswith(("0x", "0b")) and "." not in words and "p" not in words


def _hexadecimal_number(found, typed):
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


def _code(words, fmt):
    try:
        code = int(words, 0)
    except ValueError:
        raise _mistake(words) from None
    if code >> fmt.bits:
        raise ValueError(f"{words} needs more than the {fmt.bits} bits of {fmt.name}.")
    return code


def _decimal(words, typed):
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


def _too_far(typed):
    return ValueError(
        f"{_quoted(typed)} is too far from 1. Type an exponent of {_FURTHEST:,} or less, with "
        "either sign."
    )


def _quoted(typed):
    """What was typed, as a message repeats it."""
    return f"“{typed}”" if len(typed) <= 30 else f"“{typed[:30]}…”"


def _mistake(typed):
    return ValueError(
        f"{_quoted(typed)} cannot be read. Type a number such as 0.1, 1e-8, 1/3, 3*2^-4, 0x1.8p3, "
        "inf or nan, or a code such as 0x2E66."
    )


def exact(value):
    """A float as a Fraction; NaN, ±infinity and −0, which no Fraction is, stay floats."""
    special = not math.isfinite(value) or (value == 0 and math.copysign(1, value) < 0)
    return value if special else Fraction(value)


def same(a, b):
    """Whether two numbers are equal, signs of zeros too, or both NaN."""
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (
        a != a and b != b
    )
