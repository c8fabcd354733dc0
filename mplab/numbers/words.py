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
