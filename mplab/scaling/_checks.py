"""What scales check of their arguments and of saved states, in the name of who was asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from mplab.numbers.checks import quoted
from mplab.numbers.formats import FP32
from mplab.numbers.rounding import round_to


# Numbers -----------------------------------------------------------------------------------
def in_float32(number: float) -> float:
    """The float32 nearest to a number."""
    return float(round_to(number, FP32))


def number(where: str, name: str, value: Any) -> float:
    """A float of an integer or a float; anything else is refused."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(
            f"{where}: {name} must be a number; got {quoted(value)}. Convert it with float(...)."
        )
    return _in_float64(value)


def _in_float64(value: Any) -> float:
    """A number, past the range of float64 an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def factor(where: str, name: str, value: Any, above: float, below: float) -> float:
    """A number between two bounds, both excluded."""
    given = number(where, name, value)
    if not above < given < below:
        raise ValueError(
            f"{where}: {name} must lie between {above} and {below}, both excluded; got "
            f"{quoted(value)}. torch uses 2.0 to grow and 0.5 to back off."
        )
    return given


def positive(where: str, name: str, value: Any, *, narrow: bool = False) -> float:
    """A positive and finite number; where `narrow`, also once it is a float32, which it becomes."""
    is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    given = _in_float64(value) if is_number else math.nan
    given = in_float32(given) if narrow else given
    if not 0 < given < math.inf:
        raise ValueError(
            f"{where}: {name} must be a positive number{', finite in float32' * narrow}; got "
            f"{quoted(value)}. Leave it out for the usual."
        )
    return given


def magnitude(where: str, name: str, value: Any) -> float:
    """A number that is not negative, also as an array or a tensor of one; NaN and infinity too."""
    problem = (
        f"{where}: {name} must be one number, not negative; got {quoted(value)}. "
        f"Use the largest magnitude of a tensor."
    )
    shape: Any = getattr(value, "shape", ())
    if shape or isinstance(value, str | bytes | bool | np.bool_):
        raise TypeError(problem)
    try:
        given = _in_float64(value)
    except (TypeError, ValueError):
        raise TypeError(problem) from None
    if given < 0:
        raise ValueError(problem)
    return given


# States ------------------------------------------------------------------------------------
def require_keys(where: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse a state that has other keys than the one it is to replace."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"{where}: state_dict must be a dictionary; got {quoted(given)}. "
            f"Use what state_dict() returned."
        )
    if set(given) != set(expected):
        raise ValueError(
            f"{where}: state_dict must have the keys {', '.join(expected) or 'of none'}; got "
            f"{', '.join(map(str, given)) or 'none'}. Use what state_dict() returned."
        )
