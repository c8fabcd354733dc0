"""Steps with values of a format, each in one call; the loops that take them are in `step_loops`."""

from typing import Any

import numpy as np

from mplab.numbers.formats import FP32, Format
from mplab.numbers.inputs import widen
from mplab.numbers.threads import DIVISIBLE, parallel

NUMBERS: dict[Any, str] = {
    np.dtype(np.float32): "f",
    np.dtype(np.float64): "d",
    float: "d",
    np.float64: "d",
}
CODES: dict[Any, str] = {np.dtype(kind): kind for kind in "BHI"}
"""The dtypes of codes that steps take."""

_ARRAY = np.ndarray
"""Python finds a global faster than an attribute, and a short call looks for it twice."""

_UFUNCS: dict[Any, Any] = {}
"""The ufuncs of steps, found without a function of Python's cache, and so without numba."""


def take(step: str, fmt: Format, *operands: Any, kinds: Any = NUMBERS) -> Any:
    """Take a step with values of a format in one call; see `mplab.numbers.step_loops`.

    Args:
        step: one of the steps there.
        fmt: the format.
        *operands: arrays of one dtype, or floats.
        kinds: the dtypes that the step takes.

    Returns:
        What the step's ufunc does; None where the caller must go the long way, because an operand
        is no value, or has no finite result, or is of another kind.
    """
    kind: Any = None
    for x in operands:
        if type(x) is _ARRAY:
            found = kinds.get(x.dtype) if x.ndim else None
        else:
            found = kinds.get(type(x))
        if found is None or (found != kind and kind is not None):
            return None
        kind = found
    ready = _ready(step, fmt, kind)
    first = operands[0]
    while ready:
        call, dtype, misses, wider, _ = ready
        before = misses[0]
        if type(first) is _ARRAY and first.size >= DIVISIBLE:
            result = _in_threads(call, dtype, operands)
        else:
            result = call(*operands)
        if misses[0] == before:
            return result
        ready = wider and _ready(step, fmt, wider)
    return None


def _in_threads(call: Any, dtype: Any, operands: tuple[Any, ...]) -> np.ndarray:
    """Call a ufunc on pieces of large arrays of one shape; on others at once."""
    first = operands[0]
    if any(np.shape(x) != first.shape or not x.flags.c_contiguous for x in operands):
        return np.asarray(call(*operands))
    out = np.empty(first.shape, dtype)
    flat = [x.reshape(-1) for x in (*operands, out)]
    parallel(lambda a, b: call(*(x[a:b] for x in flat)), first.size, wrap=first.size)
    return out


def _ready(step: str, fmt: Format, kind: str) -> Any:
    """Return the ufunc of a step, made at its first use; () where there is none."""
    ready = _UFUNCS.get((step, fmt, kind))
    if ready is None:
        from mplab.numbers.step_loops import ufunc_of

        ready = _UFUNCS[step, fmt, kind] = ufunc_of(step, fmt, kind) or ()
    return ready


def narrow(function: str, wide: np.ndarray, fmt: Format) -> np.ndarray:
    """Convert float64 to float32 without rounding, also where the CPU flushes subnormals."""
    codes = _ready("encode", FP32, "d")[0](wide)
    single: np.ndarray = np.asarray(codes).view(np.float32)
    same = widen(single).view(np.int64) == wide.view(np.int64)
    if not (same | np.isnan(wide)).all():
        raise ValueError(
            f"{function}: x must be float64 here; got float32, which cannot hold every result in "
            f"{fmt.name}. Convert it first."
        )
    return single
