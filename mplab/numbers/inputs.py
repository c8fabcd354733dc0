"""Convert the numbers that users pass to float32 or float64 without rounding."""

import sys
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from mplab.common.words import integer
from mplab.numbers.formats import FORMATS

_SIGNALING_NAN = 0x7FF4_0000_0000_0000
_LEAST = np.array([2.0**-149], np.float32)
"""A subnormal number: it becomes 0 in a thread whose CPU flushes them."""

_NARROW = {fmt.dtype_name for fmt in FORMATS.values()}
"""The dtypes that float32 holds."""


def is_tensor(x: object) -> bool:
    """Tell whether `x` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def array_of(x: Any) -> np.ndarray:
    """Return a tensor as an array; NumPy lacks most floats of fewer than 32 bits."""
    plain = x.detach().cpu().resolve_neg()
    if plain.is_floating_point() and plain.itemsize < 4:
        plain = plain.float()
    array: np.ndarray = plain.numpy()
    return array


_Function = TypeVar("_Function", bound=Callable[..., Any])


def on_tensors(function: _Function) -> _Function:
    """Let a function of arrays also take a torch tensor first, and give a tensor on its device."""

    @wraps(function)
    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        if not is_tensor(x):
            return function(x, *arguments, **options)
        import torch

        result = function(array_of(x), *arguments, **options)
        return torch.from_numpy(np.asarray(result)).to(x.device)

    return cast(_Function, call)


PIECE = 1 << 14
"""Numbers whose temporary arrays stay in a core's cache, and in memory that is not given back."""


def in_pieces(function: _Function) -> _Function:
    """Let a function of each number alone take a large array in pieces: in half the time."""

    @wraps(function)
    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        if type(x) is not np.ndarray or x.size < 2 * PIECE:
            return function(x, *arguments, **options)
        flat = x.reshape(-1)
        first = function(flat[:PIECE], *arguments, **options)
        out = np.empty(flat.size, first.dtype)
        out[:PIECE] = first
        for at in range(PIECE, flat.size, PIECE):
            piece = slice(at, at + PIECE)
            out[piece] = function(flat[piece], *arguments, **options)
        return out.reshape(x.shape)

    return cast(_Function, call)


def as_float64(function: str, x: Any, argument: str = "x") -> np.ndarray:
    """Convert any input of `round_to` to a native float64 array; see `as_array`."""
    return widen(as_array(function, x, argument))


def as_array(function: str, x: Any, argument: str = "x") -> Any:
    """Convert any input of `round_to` to a float32 or float64 array or NumPy scalar.

    Raises:
        TypeError: `x` holds Booleans, or anything else that is not a number.
        ValueError: an array or list holds an integer that float64 cannot hold exactly.
    """
    if isinstance(x, float):  # also np.float64
        return np.float64(x)
    # Not bool, not an Enum.
    if isinstance(x, str | Decimal | Fraction) or type(x) is int:
        return _exact(function, x)
    if isinstance(x, list | tuple):
        return _listed(function, x, argument)
    if _is_array(x):
        if x.dtype.char in "fd":
            return x if isinstance(x, np.generic) else x.view(np.ndarray)
        if x.dtype.kind in "iu":
            return _from_integers(function, x, argument)
        if x.dtype.name in _NARROW:
            with np.errstate(invalid="ignore"):  # signaling NaNs
                return x.astype(np.float32)
    kind = f"dtype {x.dtype}" if hasattr(x, "dtype") else "no dtype"
    raise TypeError(_refusal(function, argument, f"{type(x).__name__} with {kind}"))


def _is_array(x: object) -> bool:
    """Whether `x` is an array or number of NumPy, without a mask, which would be lost."""
    return isinstance(x, np.ndarray | np.generic) and not np.ma.isMA(x)


def _refusal(function: str, argument: str, given: str) -> str:
    return (
        f"{function}: {argument} must be an array of float32, float64, float16, integers or an "
        f"ml_dtypes format, a list of Python numbers, a float, int, Decimal, Fraction or decimal "
        f"string; got {given}. Convert it, for instance with "
        f"np.asarray({argument}, dtype=np.float64), or a torch tensor with "
        f"{argument}.double().numpy()."
    )


def _listed(function: str, x: list[Any] | tuple[Any, ...], argument: str) -> np.ndarray:
    """Convert nested lists of Python floats and ints, or of arrays of one dtype."""
    leaves = list(_leaves(x))
    if all(map(_is_array, leaves)) and len({leaf.dtype for leaf in leaves}) == 1:
        return np.asarray(as_array(function, np.asarray(x), argument))
    for number in leaves:
        if not (isinstance(number, float) or type(number) is int):
            given = (
                f"a {type(x).__name__} with an element of type {type(number).__name__}"
            )
            raise TypeError(_refusal(function, argument, given))
        if type(number) is int and float(_to_odd(Fraction(number))) != number:
            raise ValueError(_not_held(function, argument, number))
    return np.array(x, np.float64)


def _leaves(x: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    for item in x:
        if isinstance(item, list | tuple):
            yield from _leaves(item)
        else:
            yield item


def _from_integers(function: str, x: Any, argument: str) -> Any:
    """Convert integers to float64, or raise where one would be rounded."""
    wide = x.astype(np.float64)
    if x.dtype.itemsize == 8:
        high = (x >> 32).astype(np.float64) * 2.0**32
        held = wide - high == (x & 0xFFFFFFFF).astype(np.float64)  # every step is exact
        if not np.all(held):
            raise ValueError(
                _not_held(function, argument, int(np.asarray(x)[~held].flat[0]))
            )
    return wide if isinstance(x, np.generic) else wide.view(np.ndarray)


def _not_held(function: str, argument: str, number: int) -> str:
    return (
        f"{function}: {argument} must hold integers that float64 holds exactly; got "
        f"{integer(number)}. Pass it alone as a Python int, or round it to float64 first."
    )


def _exact(function: str, x: str | Decimal | Fraction | int) -> np.float64:
    """Round a number to odd in float64, so that rounding again equals rounding once.

    Source:
        Boldo and Melquiond 2008, Emulation of FMA and correctly rounded sums: rounding to
        odd with two more bits, then in the wanted mode, equals one rounding.
    """
    if isinstance(x, str):
        try:
            x = Decimal(x)
        except InvalidOperation:
            raise ValueError(
                f"{function}: got {x!r}; write numbers like '0.1'."
            ) from None
    if isinstance(x, Decimal):
        if x.is_snan():
            return np.float64(np.array(_SIGNALING_NAN, np.int64).view(np.float64))
        if x.is_nan():
            return np.float64(np.nan)
        if x.is_infinite() or x.is_zero():
            return np.float64(float(x))
        # Beyond float64 either way; a Fraction of it would be a huge integer.
        if x.adjusted() > 400:
            x = Decimal((x.as_tuple().sign, (1,), 400))
        elif x.adjusted() < -400:
            x = Decimal((x.as_tuple().sign, (1,), -400))
    return _to_odd(Fraction(x))


def _to_odd(q: Fraction) -> np.float64:
    """Round a Fraction to odd in float64."""
    try:
        nearest = np.float64(float(q))
    except OverflowError:  # the largest float64 is odd
        most = np.finfo(np.float64).max
        return most if q > 0 else -most
    lost = q - Fraction(float(nearest))
    odd = int(nearest.view(np.int64)) & 1
    if odd or not lost:
        return nearest
    return np.float64(np.nextafter(nearest, np.inf if lost > 0 else -np.inf))


def widen(array: np.ndarray) -> np.ndarray:
    """Convert float32 or float64 to native float64, also where the CPU flushes subnormals."""
    if array.dtype.itemsize == 8:
        return np.asarray(array).astype(np.float64, copy=False)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        wide = np.array(array, np.float64)
    flushes = not _LEAST.astype(np.float64).any()
    if not flushes and not np.isnan(wide).any():
        return wide
    bits = array.astype(array.dtype.newbyteorder("="), copy=False).view(np.int32)
    fraction = bits & 0x7FFFFF
    flushed = (wide == 0) & (fraction != 0)
    if flushed.any():
        wide = np.where(flushed, np.copysign(fraction * 2.0**-149, wide), wide)
    signaling = np.isnan(wide) & (fraction < 0x400000)
    if signaling.any():
        quiet = wide.view(np.int64)
        wide = np.where(signaling, _SIGNALING_NAN, quiet).view(np.float64)
    return wide
