"""What the arithmetic checks of its arguments, in the name of who was asked."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from mplab.numbers.formats import FORMATS, Format, Overflow, Rounding, require_format
from mplab.numbers.inputs import as_array, widen
from mplab.numbers.rounding import Stream, require_tally, require_values

_HUGE = 1 << 1000
"""What no count reaches, and float64 holds."""

_HEAD = 40
"""Characters of an argument that a message quotes before it cuts."""


def quoted(value: object) -> str:
    """An argument as a message quotes it: one line, and not a long one."""
    try:
        words = " ".join(repr(value).split())
    except ValueError:  # an integer of more digits than Python prints
        words = "an integer of thousands of digits"
    return words if len(words) <= _HEAD else f"{words[:_HEAD]}... ({type(value).__name__})"


# Numbers and their shapes ----------------------------------------------------------------
def operand(function: str, argument: str, x: Any, fmt: Format) -> np.ndarray:
    """The values of a format as float64; see `mplab.numbers.rounding.require_values`."""
    return require_values(function, argument, numbers(function, argument, x), fmt)


def numbers(function: str, argument: str, x: Any) -> Any:
    """What `round_to` takes, as a float32 or float64 array or scalar; nested lists too."""
    if isinstance(x, str):
        try:
            return as_array(function, x, argument)
        except ValueError:
            raise ValueError(
                f"{function}: {argument} must be a number or an array; got the string "
                f"{quoted(x)}. Write a number like '0.1'."
            ) from None
    if isinstance(x, list | tuple):
        try:
            return as_array(function, x, argument)
        except TypeError:
            pass  # perhaps a list of arrays
        try:
            x = np.asarray(x)
        except (TypeError, ValueError):
            raise ValueError(
                f"{function}: {argument} must be a list whose rows are equally long; got "
                f"{quoted(x)}. Pass one row at a time."
            ) from None
    return as_array(function, x, argument)


def wide(function: str, argument: str, x: Any) -> np.ndarray:
    """The same as float64."""
    return np.asarray(widen(numbers(function, argument, x)))


def broadcast(function: str, arguments: Iterable[str], arrays: Sequence[np.ndarray]) -> Any:
    """Arrays in the one shape that all of theirs broadcast to."""
    try:
        return np.broadcast_arrays(*arrays)
    except ValueError:
        names = " and ".join(name for name, _ in zip(arguments, arrays, strict=False))
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise ValueError(
            f"{function}: {names} must have shapes that broadcast; got {shapes}. Reshape them."
        ) from None


def axis_of(function: str, axis: object, shape: tuple[int, ...]) -> int:
    """A number of an axis of a shape."""
    problem = (
        f"{function}: axis must be an integer that counts one of the axes of the shape "
        f"{shape}; got {quoted(axis)}. Reshape x, or take one axis after the other."
    )
    if isinstance(axis, bool | np.bool_) or not isinstance(axis, Integral):
        raise TypeError(problem)
    if not -len(shape) <= int(axis) < len(shape):
        raise ValueError(problem)
    return int(axis)


# Options ---------------------------------------------------------------------------------
def named_format(function: str, argument: str, fmt: object) -> Format:
    """A format that an argument of another name than `fmt` gives."""
    if argument == "fmt" or isinstance(fmt, Format):
        return require_format(function, fmt)
    raise TypeError(
        f"{function}: {argument} must be an mplab Format; got {quoted(fmt)}. "
        f"Use one of {', '.join(FORMATS)}, or define a Format."
    )


def switch(function: str, argument: str, value: object) -> bool:
    """True or False; nothing that merely counts as one of them."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{function}: {argument} must be True or False; got {quoted(value)}. Pass one of them."
        )
    return bool(value)


def integer(function: str, argument: str, value: Any, *, least: int = 0, what: str = "") -> int:
    """An integer, at least `least`; Booleans are none."""
    rule = "not negative" if least == 0 else f"at least {least}"
    problem = (
        f"{function}: {argument} must be an integer, {rule}; got {quoted(value)}. "
        f"{what or 'Pass a smaller or larger one, or int(...).'}"
    )
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise TypeError(problem) from None
    if not least <= found < _HUGE:
        raise ValueError(problem)
    return found


def real(function: str, argument: str, value: Any, *, positive: bool = False) -> float:
    """A finite number; Booleans are none."""
    rule = "a positive, finite number" if positive else "a finite number"
    problem = f"{function}: {argument} must be {rule}; got {quoted(value)}. Pass one like 1.0."
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(problem)
    try:
        found = float(value)
    except OverflowError:
        raise ValueError(problem) from None
    if not math.isfinite(found) or (positive and found <= 0):
        raise ValueError(problem)
    return found


def one_of(function: str, argument: str, value: object, choices: Iterable[str]) -> str:
    """One of some words."""
    choices = tuple(choices)
    if isinstance(value, str) and value in choices:
        return value
    raise ValueError(
        f"{function}: {argument} must be one of {', '.join(choices)}; got {quoted(value)}. "
        f"Pass one of these words."
    )


def seed_of(function: str, value: object) -> Stream:
    """The stream of random bits that starts from a seed."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return Stream(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{function}: seed must be an integer in 0 .. 2^64-1; got {quoted(value)}. "
            f"Choose another seed."
        ) from None


_KINDS: dict[str, type] = {
    "rounding": Rounding,
    "overflow": Overflow,
    "flush_inputs": bool,
    "flush_outputs": bool,
}


def require_rules(function: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options of other names than the known ones, or of the wrong type.

    Raises:
        TypeError: there is one.
        ValueError: `Rounding.STOCHASTIC` has no stream.
    """
    for name, value in given.items():
        if name not in known:  # else a misspelt one would do nothing
            raise TypeError(
                f"{function}: options must be among {', '.join(known)}; got {name!r}. "
                f"Correct its name."
            )
        kind = _KINDS.get(name)
        if kind is bool:
            switch(function, name, value)
        elif kind is not None and type(value) is not kind:
            raise TypeError(
                f"{function}: {name} must be a member of {kind.__name__}; got {quoted(value)}. "
                f"Use {next(iter(kind))}."  # type: ignore[call-overload]
            )
    require_tally(function, given.get("tally"))
    stream = given.get("stream")
    needed = given.get("rounding") is Rounding.STOCHASTIC
    if not isinstance(stream, Stream) and (needed or stream is not None):
        raise (ValueError if needed else TypeError)(
            f"{function}: stream must be a Stream with Rounding.STOCHASTIC, else None; got "
            f"{quoted(stream)}. Pass stream=Stream(seed) and reuse it from call to call."
        )


def require_operands(
    operation: Callable[..., Any], function: str, count: int, expected: int
) -> None:
    """Refuse another number of operands than an operation has."""
    if count != expected:
        raise TypeError(
            f"{function}: arguments must be the {expected} operand{'s' * (expected > 1)} of "
            f"{operation.__name__} and a format; got {count} and a format. "
            f"See help({operation.__name__})."
        )
