"""What the rooms check of their options, in the name of the function that was asked."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

import numpy as np

from mplab.numbers.formats import FORMATS, Format, Overflow, Rounding
from mplab.numbers.rounding import Stream

_HUGE = 1 << 1000
"""What no count reaches, and float64 holds."""

_HEAD = 40
"""Characters of an argument that a message quotes before it cuts."""


def quoted(value: object) -> str:
    """An argument as a message quotes it: one line, and not a long one.

    Examples:
        >>> quoted("half"), quoted(10**5000)
        ("'half'", 'an integer of thousands of digits')
    """
    try:
        words = " ".join(repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        words = "an integer of thousands of digits"
    return words if len(words) <= _HEAD else f"{words[:_HEAD]}... ({type(value).__name__})"


def switch(function: str, argument: str, value: object) -> bool:
    """True or False; nothing that merely counts as one of them."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{function}: {argument} must be True or False; got {quoted(value)}. Pass one of them."
        )
    return bool(value)


def integer(
    function: str,
    argument: str,
    value: Any,
    *,
    least: float = 0,
    most: float = _HUGE,
    advice: str = "",
) -> int:
    """An integer from `least` to `most`; Booleans are none. `advice` ends the message."""
    rule = "" if least == -math.inf else ", not negative" if least == 0 else f", at least {least}"
    problem = (
        f"{function}: {argument} must be an integer{rule}; got {quoted(value)}. "
        f"{advice or 'Pass another one, or int(...).'}"
    )
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(problem) from None
    if not least <= found <= most:
        raise ValueError(problem)
    return found


def number_that(
    function: str, argument: str, value: Any, rule: str, holds: Callable[[float], bool]
) -> float:
    """A number that a float can hold and for which `holds`; Booleans are none."""
    problem = f"{function}: {argument} must be {rule}; got {quoted(value)}. Pass one like 1.0."
    no_number = isinstance(value, bool | np.bool_ | np.ma.core.MaskedConstant)
    if no_number or not isinstance(value, Real):
        raise TypeError(problem)
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(problem) from None
    if not holds(found):
        raise ValueError(problem)
    return found


def real(
    function: str, argument: str, value: Any, *, positive: bool = False, most: float = math.inf
) -> float:
    """A finite number up to `most`; Booleans are none."""
    rule = f"a {'positive, ' * positive}finite number"
    rule += f", at most {most:g}" if most < math.inf else ""

    def holds(x: float) -> bool:
        return math.isfinite(x) and x <= most and (x > 0 or not positive)

    return number_that(function, argument, value, rule, holds)


def instance(function: str, argument: str, value: Any, kind: type, rule: str, advice: str) -> Any:
    """An object of a type; `rule` says what it must be."""
    if not isinstance(value, kind):
        raise TypeError(f"{function}: {argument} must be {rule}; got {quoted(value)}. {advice}")
    return value


def named_format(function: str, argument: str, fmt: Any) -> Format:
    """A format that an argument of another name than `fmt` gives."""
    advice = f"Use one of {', '.join(FORMATS)}, or define a Format."
    return instance(function, argument, fmt, Format, "an mplab Format", advice)  # type: ignore[no-any-return]


def text(function: str, argument: str, value: Any) -> str:
    """A string."""
    return instance(function, argument, value, str, "a string", "Pass a str.")  # type: ignore[no-any-return]


def one_of(function: str, argument: str, value: Any, choices: Iterable[str | None]) -> Any:
    """One of some words, or None where that is among them."""
    known = tuple(choices)
    if not (value is None or isinstance(value, str)) or value not in known:
        raise ValueError(
            f"{function}: {argument} must be one of {', '.join(map(str, known))}; got "
            f"{quoted(value)}. Choose one of them."
        )
    return value


def require_rounding(function: str, rounding: Any, overflow: Any, stream: Any) -> None:
    """Refuse a direction, an overflow or a stream that is none.

    Raises:
        TypeError: one of them is of another type.
        ValueError: `Rounding.STOCHASTIC` has no stream.
    """
    for name, value, kind in (("rounding", rounding, Rounding), ("overflow", overflow, Overflow)):
        if type(value) is not kind:
            raise TypeError(
                f"{function}: {name} must be a member of {kind.__name__}; got {quoted(value)}. "
                f"Leave it out for the usual."
            )
    needed = rounding is Rounding.STOCHASTIC
    if not isinstance(stream, Stream) and (needed or stream is not None):
        raise (ValueError if needed else TypeError)(
            f"{function}: stream must be a Stream with Rounding.STOCHASTIC, else None; got "
            f"{quoted(stream)}. Pass stream=Stream(seed) and reuse it from call to call."
        )
