"""Checks of options, with messages that begin with the name of the called function."""

import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

_HUGE = 1 << 1000
"""Larger than any count, and still a float64."""

_HEAD = 40
"""Number of characters of an argument that a message quotes."""


def quoted(value: object) -> str:
    """Quote an argument for a message, on one short line.

    Examples:
        >>> quoted("half"), quoted(10**5000)
        ("'half'", 'an integer of thousands of digits')
    """
    try:
        words = " ".join(repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        words = "an integer of thousands of digits"
    if len(words) > _HEAD:
        words = f"{words[:_HEAD]}... ({type(value).__name__})"
    return words


def integer(
    function: str,
    argument: str,
    value: Any,
    *,
    least: float = 0,
    most: float = _HUGE,
) -> int:
    """Return `value` as an integer in `least` .. `most`, or raise; Booleans are not integers."""
    rule = f", at least {least}"
    if least == 0:
        rule = ", not negative"
    elif least == -math.inf:
        rule = ""
    if most < _HUGE:
        rule += f", at most {most}"
    problem = f"{function}: {argument} must be an integer{rule}; got {quoted(value)}. "
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(problem + "Convert it with int(...).") from None
    if not least <= found <= most:
        raise ValueError(problem + "Choose another number.")
    return found


def between(
    function: str, argument: str, value: Any, above: float, below: float = math.inf
) -> Any:
    """Return a number if it is strictly between two bounds, or raise; Booleans are none."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not above < value < below:
        rule = "positive" if above == 0 else f"above {above:g}"
        if below == math.inf:
            rule += " and finite"
        else:
            rule += f" and below {below:g}"
        raise ValueError(
            f"{function}: {argument} must be {rule}; got {quoted(value)}. Choose another number."
        )
    return value


def one_of(
    function: str, argument: str, value: Any, choices: Iterable[str | float | None]
) -> Any:
    """Return `value` if it is one of `choices` (words, numbers or None), or raise."""
    known = tuple(choices)
    if isinstance(value, bool | np.ndarray) or value not in known:
        raise ValueError(
            f"{function}: {argument} must be one of {', '.join(map(str, known))}; got "
            f"{quoted(value)}. Choose one of them."
        )
    return value
