"""Which functions of NumPy a FloatArray takes: those that round nothing, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_MOVING = """
    append array_split atleast_1d atleast_2d atleast_3d block broadcast_arrays broadcast_to choose
    column_stack compress concat concatenate copy delete diag diagflat diagonal dsplit dstack
    expand_dims extract flip fliplr flipud hsplit hstack insert matrix_transpose moveaxis
    permute_dims ravel real repeat reshape resize roll rollaxis rot90 select split squeeze stack
    swapaxes take take_along_axis tile transpose tril trim_zeros triu unstack vsplit vstack where
    linalg.diagonal linalg.matrix_transpose fft.fftshift fft.ifftshift
"""
_CHOOSING = """
    amax amin clip full_like intersect1d max min nanmax nanmin ones_like partition setdiff1d
    setxor1d sort union1d unique unique_all unique_counts unique_inverse unique_values zeros_like
"""
_ASKING = """
    argmax argmin argpartition argsort digitize isin lexsort nanargmax nanargmin searchsorted
    all any argwhere array_equal array_equiv count_nonzero flatnonzero iscomplexobj isneginf
    isposinf isrealobj may_share_memory ndim nonzero result_type shape shares_memory size
    array2string array_repr array_str save savetxt savez savez_compressed
    empty_like
"""


def _found(words: str) -> frozenset[Any]:
    """The functions of these names that this NumPy has."""
    found = []
    for word in words.split():
        room, _, name = word.rpartition(".")
        home = getattr(np, room) if room else np
        found += [getattr(home, name)] if hasattr(home, name) else []
    return frozenset(found)


GIVING_VALUES: frozenset[Any] = _found(_MOVING + _CHOOSING + "fabs fmax fmin maximum minimum")
"""Functions that move or choose values, ufuncs among them. What they give is of the format."""

ROUNDING_NOTHING: frozenset[Callable[..., Any]] = _found(_MOVING + _CHOOSING + _ASKING)
"""The same, and functions that compare values or ask for a shape. They take the values."""

UFUNCS_ROUNDING_NOTHING: frozenset[Any] = _found(
    "fabs fmax fmin isfinite isinf isnan logical_and logical_not logical_or logical_xor maximum "
    "minimum signbit"
)
"""The same of the functions that work element by element."""

_TAKEN = {"where", "axis", "keepdims", "initial"}
"""Options of ufuncs that neither change a dtype nor write somewhere."""

UFUNCS_OF_THE_FORMAT: dict[Any, tuple[str, str]] = {
    np.add: ("__add__", "__radd__"),
    np.subtract: ("__sub__", "__rsub__"),
    np.multiply: ("__mul__", "__rmul__"),
    np.divide: ("__truediv__", "__rtruediv__"),
    np.matmul: ("__matmul__", "__rmatmul__"),
    np.negative: ("__neg__", ""),
    np.positive: ("__pos__", ""),
    np.absolute: ("__abs__", ""),
    np.sqrt: ("sqrt", ""),
    np.equal: ("__eq__", "__eq__"),
    np.not_equal: ("__ne__", "__ne__"),
    np.less: ("__lt__", "__gt__"),
    np.less_equal: ("__le__", "__ge__"),
    np.greater: ("__gt__", "__lt__"),
    np.greater_equal: ("__ge__", "__le__"),
}
"""What the operators do: the method of a FloatArray on the left, and of one on the right.

An array on the left of an operator asks for the ufunc, so these have to be known.
"""


def takes(function: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Whether a function of NumPy with these options gives the values as they were."""
    given = {name for name in ("dtype", "out") if options.get(name) is not None}
    return function in ROUNDING_NOTHING and not given


def ufunc_takes(ufunc: Any, method: str, options: dict[str, Any]) -> bool:
    """The same of a ufunc, also of `np.maximum.reduce` and its kind."""
    methods = {"__call__", "reduce", "accumulate", "outer"}
    return ufunc in UFUNCS_ROUNDING_NOTHING and method in methods and not options.keys() - _TAKEN


def refused(name: str, fmt: str) -> TypeError:
    """What to raise for any other function."""
    return TypeError(
        f"{name}: arguments must not be FloatArrays, which round at every step; got {fmt}. "
        f"Use x @ y, x.sum() or mplab.arithmetic, or, to compute in float64, {name}(x.values)."
    )
