"""Functions compiled by numba, with a cache on disk where there can be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


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
