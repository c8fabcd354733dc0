"""What the scalers check of their arguments and of saved states, in the name of who was asked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mplab.numbers.formats import FP32
from mplab.numbers.rounding import round_to


def in_float32(number: float) -> float:
    """The float32 nearest to a number."""
    return float(round_to(number, FP32))


def number(where: str, name: str, value: Any) -> float:
    """A float of an int or a float; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{where}: {name} must be a number; got {value!r}. Convert it with float(...)."
        )
    return float(value)


def factor(where: str, name: str, value: Any, above: float, below: float) -> float:
    """A number between two bounds, both excluded."""
    given = number(where, name, value)
    if not above < given < below:
        raise ValueError(
            f"{where}: {name} must lie between {above} and {below}, both excluded; got "
            f"{value!r}. torch uses 2.0 to grow and 0.5 to back off."
        )
    return given


def positive(where: str, name: str, value: Any) -> float:
    """A positive and finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(
            f"{where}: {name} must be a positive number; got {value!r}. Leave it out for the usual."
        )
    return float(value)


def count(where: str, name: str, value: Any, least: int) -> int:
    """An integer that is not below `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{where}: {name} must be an integer; got {value!r}.")
    if value < least:
        raise ValueError(f"{where}: {name} must be at least {least}; got {value!r}.")
    return value


def require_keys(where: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuse a state that has other keys than the one it is to replace."""
    if set(given) != set(expected):
        raise ValueError(
            f"{where}: state_dict must have the keys {', '.join(expected) or 'of none'}; got "
            f"{', '.join(map(str, given)) or 'none'}. Use what state_dict() returned."
        )
