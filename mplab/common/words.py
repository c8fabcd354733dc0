"""Write numbers for tables, titles and axes."""

import math

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def superscript(exponent: int) -> str:
    """Write an exponent in superscript digits.

    Examples:
        >>> "2" + superscript(-14)
        '2⁻¹⁴'
    """
    return str(exponent).translate(_SUPERSCRIPT)


def number(x: float, *, digits: int = 6) -> str:
    """Write a number in a few digits, with a true minus sign.

    Examples:
        >>> number(-0.0999755859375), number(1e30), number(float("inf"))
        ('−0.0999756', '1e+30', '∞')
    """
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    return "NaN" if math.isnan(x) else f"{x:.{digits}g}".replace("-", "−")


def plural(count: int, noun: str) -> str:
    """Write a count and its noun.

    Examples:
        >>> plural(1, "step"), plural(1024, "step")
        ('1 step', '1,024 steps')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def integer(n: int) -> str:
    """Write an integer in digits, or its length in bits: Python writes at most 4300 digits.

    Examples:
        >>> integer(-12), integer(10**400)
        ('-12', 'an integer of 1329 bits')
    """
    return str(n) if n.bit_length() <= 128 else f"an integer of {n.bit_length()} bits"
