"""What the arithmetic checks of its arguments, in the name of who was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from mplab.numbers.checks import quoted, require_rounding, switch
from mplab.numbers.formats import Format, Overflow, Rounding
from mplab.numbers.inputs import as_array, widen
from mplab.numbers.rounding import Stream, require_tally, require_values


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


def require_rules(function: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse options of other names than the known ones, or of the wrong type.

    Raises:
        TypeError: there is one.
        ValueError: `Rounding.STOCHASTIC` has no stream.
    """
    for name in given:
        if name not in known:  # else a misspelt one would do nothing
            raise TypeError(
                f"{function}: options must be among {', '.join(known)}; got {name!r}. "
                f"Correct its name."
            )
    for name in ("flush_inputs", "flush_outputs"):
        switch(function, name, given.get(name, False))
    require_tally(function, given.get("tally"))
    rounding, overflow = Rounding.TIES_TO_EVEN, Overflow.IEEE
    require_rounding(
        function,
        given.get("rounding", rounding),
        given.get("overflow", overflow),
        given.get("stream"),
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
