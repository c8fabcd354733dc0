"""Compile functions with numba, with a cache on disk where a folder is writable."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, config, njit, types
from numpy._core import umath

# NumPy's table of C functions for ufuncs is private to Python. It buys short calls: rounding eight
# numbers takes 0.85 microseconds as a ufunc of our own, 3.3 as a loop of numba's; 100,000 numbers
# 24 and 28. If NumPy moves or renames the table, `_call_loop` calls the loop: the same bits.
_UFUNC_API: Any = getattr(umath, "_UFUNC_API", None)


def compiled(
    signature: tuple[Any, ...], function: Callable[..., None], *variant: object
) -> Callable[..., None]:
    """Compile a function with numba.

    Args:
        signature: the types of its arguments; `readable` for arrays that it only reads. Without
            them numba would look at every call's, and compile once more for what is read-only.
        function: the function to compile.
        *variant: what tells it from others of its name, beside what it closes over.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise RuntimeError(
            "mplab: loops must be compiled; got NUMBA_DISABLE_JIT=1. Unset it."
        )
    loop: Callable[..., None] = _on_disk(
        partial(njit, [signature], nogil=True), function, variant
    )
    return loop


def readable(dtype: Any, dimensions: int) -> Any:
    """Return the type of contiguous arrays that may be read-only, and at odd addresses."""
    return types.Array(dtype, dimensions, "C", readonly=True, aligned=False)


def callback(signature: Any, function: Callable[..., None], *variant: object) -> Any:
    """Compile a function that C calls by its `address`; the caller keeps it alive."""
    return _on_disk(partial(cfunc, signature), function, variant)


def _on_disk(compiler: Any, function: Any, variant: tuple[object, ...]) -> Any:
    """Compile with a cache on disk where a folder is writable, else in memory only.

    Where none is, numba raises at decoration, or on saving if an unwritable folder already holds
    the cache.

    numba has one index for all variants of a function. Two processes that save two variants at the
    same time number them alike, and then one variant runs for the other: the wrong rounding mode.
    So what tells a function from its variants goes into its name, and into its files' names.
    """
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    function.__qualname__ = "-".join(
        map(str, [function.__qualname__, *cells, *variant])
    )
    try:
        return compiler(cache=True)(function)
    except (RuntimeError, OSError):
        return compiler()(function)


class Ufunc(NamedTuple):
    """A NumPy ufunc, and the objects to keep alive for it: NumPy has only pointers to them."""

    call: Any
    kept: tuple[Any, ...]


def make_ufunc(name: str, loop: Any, kinds: Sequence[str], data: np.ndarray) -> Ufunc:
    """Make a NumPy ufunc of one output.

    Args:
        name: the name in NumPy's errors.
        loop: a `callback` with the arguments of a `PyUFuncGenericFunction`; the last one is
            the address of `data`.
        kinds: NumPy's characters for the dtypes of inputs and output, a string for each loop.
        data: the array that the loop reads.

    Source:
        NumPy 2 reference, C API: `PyUFunc_FromFuncAndData`.
    """
    if _UFUNC_API is None:
        return Ufunc(partial(_call_loop, loop, kinds, data), ())
    count = len(kinds)
    inputs = len(kinds[0]) - 1
    loops = (ctypes.c_void_p * count)(*[loop.address] * count)
    addresses = (ctypes.c_void_p * count)(*[data.ctypes.data] * count)
    numbers = bytes(np.dtype(kind).num for kind in "".join(kinds))
    called = name.encode()
    kept = loops, addresses, numbers, called, loop, data
    return Ufunc(
        _from_func_and_data()(*kept[:3], count, inputs, 1, -1, called, None, 0), kept
    )


def _call_loop(loop: Any, kinds: Sequence[str], data: np.ndarray, *arrays: Any) -> Any:
    """Do what a ufunc would, where NumPy lets us make none."""
    inputs = len(kinds[0]) - 1
    operands = np.broadcast_arrays(*arrays[:inputs])
    of = {np.dtype(kind[0]): np.dtype(kind[-1]) for kind in kinds}
    result = np.empty(operands[0].shape, of[operands[0].dtype])
    memory = [*map(np.ascontiguousarray, operands), result]
    count = len(memory)
    if result.size:
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop.address)
        call(
            (ctypes.c_void_p * count)(*[x.ctypes.data for x in memory]),
            (ctypes.c_ssize_t * 1)(result.size),
            (ctypes.c_ssize_t * count)(*[x.itemsize for x in memory]),
            data.ctypes.data,
        )
    if arrays[inputs:]:
        arrays[inputs][...] = result
    return result[()]


@cache
def _from_func_and_data() -> Callable[..., Any]:
    """Look up `PyUFunc_FromFuncAndData`, the second entry of NumPy's C API table for ufuncs."""
    table_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = ctypes.cast(table_of(_UFUNC_API, None), ctypes.POINTER(ctypes.c_void_p))
    pointer = ctypes.c_void_p
    number = ctypes.c_int
    text = ctypes.c_char_p
    numbers = [number] * 4  # of loops, inputs and outputs, and which identity
    arguments = pointer, pointer, text, *numbers, text, text, number
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(table[1] or 0)
