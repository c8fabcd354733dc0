"""Numbers as tables, titles and axes write them."""

from __future__ import annotations

import math

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscript(exponent: int) -> str:
    """An exponent in raised digits.

    Examples:
        >>> "2" + superscript(-14)
        '2⁻¹⁴'
    """
    return str(exponent).translate(_SUPERSCRIPT)


def number(x: float, *, digits: int = 6) -> str:
    """A number in a few digits, with a true minus.

    Examples:
        >>> number(-0.0999755859375), number(1e30), number(float("inf"))
        ('−0.0999756', '1e+30', '∞')
    """
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    return "NaN" if math.isnan(x) else f"{x:.{digits}g}".replace("-", "−")


def integer(n: int) -> str:
    """An integer in digits, or its length: Python writes no more than 4300 digits.

    Examples:
        >>> integer(-12), integer(10**400)
        ('-12', 'an integer of 1329 bits')
    """
    return str(n) if n.bit_length() <= 128 else f"an integer of {n.bit_length()} bits"
