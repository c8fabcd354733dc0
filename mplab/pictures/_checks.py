"""What the figures check of their numbers, arrays and words, in the name of who was asked."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Rational, Real
from pathlib import Path
from typing import Any

import numpy as np

from mplab.numbers.checks import integer, quoted, real
from mplab.numbers.formats import Format
from mplab.numbers.inputs import as_array

_FARTHEST = 4000
"""Decimal exponents of numbers that can be compared, and printed, in no time."""


# Numbers ---------------------------------------------------------------------------------
def interval(function: str, low: Any, high: Any) -> None:
    """Two finite numbers, the lower first."""
    if real(function, "low", low) >= real(function, "high", high):
        raise ValueError(
            f"{function}: low and high must be two numbers, the lower first; got {quoted(low)} and "
            f"{quoted(high)}. Exchange them."
        )


def exact(function: str, argument: str, x: Any) -> Fraction:
    """One finite number, none of its digits lost; decimal strings too."""
    problem = (
        f"{function}: {argument} must be one finite number; got {quoted(x)}. Write it like 0.1, "
        "'0.1' or Fraction(1, 10)."
    )
    if isinstance(x, bool | np.bool_) or not isinstance(x, str | Decimal | Real):
        raise TypeError(problem)
    try:
        number = Decimal(x) if isinstance(x, str) else x
        if isinstance(number, Decimal) and not abs(number.adjusted()) <= _FARTHEST:
            raise ValueError
        kept = number if isinstance(number, Decimal | Rational) else float(number)
        fraction = Fraction(kept)
        if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) > 3 * _FARTHEST:
            raise ValueError
        return fraction
    except (InvalidOperation, OverflowError, ValueError):
        raise ValueError(problem) from None


def seed(function: str, value: Any, *, most: float | None = None) -> int:
    """A seed; `most` is given where it goes into a `Stream`."""
    bounds = {} if most is None else {"most": most}
    return integer(function, "seed", value, advice="Choose another seed.", **bounds)


def exponents(function: str, window: Any, formats: Iterable[Format]) -> tuple[int, int]:
    """Two whole exponents of float64, the lower first, with numbers of each format between."""
    problem = (
        f"{function}: window must be two whole exponents from -1074 to 1023, the lower first, with "
        f"numbers of each format between them; got {quoted(window)}. Pass one like (-30, 18)."
    )
    if not isinstance(window, list | tuple | np.ndarray) or np.shape(window) != (2,):
        raise TypeError(problem)
    for part in window:
        if isinstance(part, bool | np.bool_) or not isinstance(part, int | np.integer):
            raise TypeError(problem)
    low, high = map(int, window)
    ends = [(fmt.emin - fmt.precision + 1, fmt.emax + 1) for fmt in formats]
    within = all(max(low, first) < min(high, last) for first, last in ends)
    if not -1074 <= low < high <= 1023 or not within:
        raise ValueError(problem)
    return low, high


# Arrays ----------------------------------------------------------------------------------
def row(function: str, argument: str, data: Any, *, positive: bool = False) -> np.ndarray:
    """Finite numbers in a row, at least one, as a float array of their own width."""
    return _array(function, argument, data, positive=positive)


def paths(function: str, data: Any) -> np.ndarray:
    """Finite weights before and after each of some updates, shape (steps + 1, weights)."""
    shape = "shape (steps + 1, weights)"
    found = _array(function, "paths", data, shape=shape, ndim=2)
    if len(found) < 2:
        raise ValueError(_array_problem(function, "paths", data, shape))
    return found


def matrix(function: str, argument: str, data: Any) -> np.ndarray:
    """Finite numbers in rows and columns, at least one, as float64."""
    return _array(function, argument, data, shape="rows and columns", ndim=2).astype(np.float64)


def _array(
    function: str,
    argument: str,
    data: Any,
    *,
    shape: str = "a row",
    ndim: int = 1,
    positive: bool = False,
) -> np.ndarray:
    kind = "positive" if positive else "finite"
    problem = _array_problem(function, argument, data, f"{kind} numbers in {shape}")
    masked = isinstance(data, np.ma.MaskedArray)
    if isinstance(data, str | bytes | Mapping | type) or masked:  # a mask would be lost
        raise TypeError(problem)
    try:
        array = np.asarray(data)
        if array.dtype.kind not in "fiu":  # a dtype of ml_dtypes, or fractions
            numbers = array.dtype.kind == "O" and all(_is_number(x) for x in array.flat)
            array = array.astype(np.float64) if numbers else np.asarray(as_array("", data))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise TypeError(problem) from None
    if array.ndim != ndim or not array.size:
        raise ValueError(problem)
    if not np.isfinite(array).all() or (positive and not (array > 0).all()):
        raise ValueError(problem)
    return array


def _is_number(x: object) -> bool:
    return isinstance(x, Real) and not isinstance(x, bool)


def _array_problem(function: str, argument: str, data: Any, rule: str) -> str:
    shape = getattr(data, "shape", None)
    given = quoted(data) if shape is None else f"{quoted(data)} of shape {tuple(shape)}"
    return f"{function}: {argument} must be {rule}; got {given}. Pass an array of them."


def rows(
    function: str,
    argument: str,
    data: Mapping[str, Any],
    *,
    like: np.ndarray | None = None,
    positive: bool = False,
) -> dict[str, np.ndarray]:
    """Rows of finite numbers by name, of one length: that of `like`."""
    found = {str(k): row(function, argument, x, positive=positive) for k, x in data.items()}
    sizes = {len(x) for x in found.values()} | ({len(like)} if like is not None else set())
    if len(sizes) > 1:
        raise ValueError(
            f"{function}: {argument} must be rows of one length; got "
            f"{', '.join(map(str, sorted(sizes)))}. Cut them."
        )
    return found


# Words -----------------------------------------------------------------------------------
def word(function: str, argument: str, value: Any, *, empty: bool = True) -> str:
    """A string, perhaps an empty one."""
    if not isinstance(value, str) or not (value or empty):
        raise TypeError(
            f"{function}: {argument} must be a string{'' if empty else ', not empty'}; got "
            f"{quoted(value)}. Pass some words."
        )
    return value


def path(function: str, argument: str, value: Any) -> str | os.PathLike[str]:
    """A path, of whatever is there."""
    if isinstance(value, str | os.PathLike) and value:
        return value
    raise TypeError(
        f"{function}: {argument} must be a path; got {quoted(value)}. Pass a string or a Path."
    )


def folder(function: str, where: Any) -> str | os.PathLike[str] | None:
    """A folder that is there, or None."""
    if where is None or (isinstance(where, str | os.PathLike) and Path(where).is_dir()):
        return where
    kind = ValueError if isinstance(where, str | os.PathLike) else TypeError
    raise kind(
        f"{function}: where must be a folder, or None for the recordings that came with the "
        f"package; got {quoted(where)}. Correct the path."
    )


def names(function: str, argument: str, data: Any, choices: Collection[str]) -> Sequence[str]:
    """Some words, each one of the choices."""
    right = isinstance(data, list | tuple) and data
    if not right or not all(isinstance(x, str) and x in choices for x in data):
        raise ValueError(
            f"{function}: {argument} must be a list of some of {', '.join(choices)}; got "
            f"{quoted(data)}. Put one in a list of its own."
        )
    return list(data)
