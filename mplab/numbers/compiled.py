"""Functions compiled by numba, with a cache on disk where there can be one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cfunc, njit
from numpy._core.umath import _UFUNC_API


class Compiled:
    """A function compiled by numba, cached on disk where possible, else in memory only.

    numba raises when no folder is writable, either at decoration or, if an unwritable
    folder already holds the cache, when it saves.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        try:
            self._call = njit(nogil=True, cache=True)(function)
        except RuntimeError:
            self._call = njit(nogil=True)(function)

    def ready(self, *signature: Any) -> Callable[..., None]:
        """The function itself, compiled for these types, which spares a call in Python."""
        try:
            self._call.compile(signature)
        except OSError:
            self._call = njit([signature], nogil=True)(self._function)
        return self._call

    def __call__(self, *arguments: Any) -> None:
        """Run the loop."""
        try:
            self._call(*arguments)
        except OSError:
            self._call = njit(nogil=True)(self._function)
            self._call(*arguments)


def callback(signature: Any, function: Callable[..., None]) -> Any:
    """A function for C, which finds it at its `address`; the caller keeps it alive."""
    try:
        return cfunc(signature, cache=True)(function)
    except (RuntimeError, OSError):
        return cfunc(signature)(function)


class Ufunc(NamedTuple):
    """A NumPy ufunc, with what it reads: NumPy keeps only pointers."""

    call: Any
    kept: tuple[Any, ...]


def make_ufunc(name: str, loop: Any, kinds: Sequence[int], data: np.ndarray) -> Ufunc:
    """A NumPy ufunc of one input and one output.

    Args:
        name: what it is called in errors of NumPy's.
        loop: a `callback`, with the arguments of a `PyUFuncGenericFunction`, the last of them
            the address of `data`.
        kinds: NumPy's numbers of the types of input and output, one pair after another.
        data: what the loop reads.

    Source:
        NumPy 2 reference, C API: `PyUFunc_FromFuncAndData`.
    """
    pairs = len(kinds) // 2
    loops = (ctypes.c_void_p * pairs)(*[loop.address] * pairs)
    addresses = (ctypes.c_void_p * pairs)(*[data.ctypes.data] * pairs)
    types, called = bytes(kinds), name.encode()
    kept = loops, addresses, types, called, loop, data
    return Ufunc(_from_func_and_data()(*kept[:3], pairs, 1, 1, -1, called, None, 0), kept)


@cache
def _from_func_and_data() -> Callable[..., Any]:
    """NumPy's C function of this name: the second in the table that compiled extensions import."""
    table_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    table = ctypes.cast(table_of(_UFUNC_API, None), ctypes.POINTER(ctypes.c_void_p))
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    arguments = (pointer, pointer, text, number, number, number, number, text, text, number)
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(table[1] or 0)
