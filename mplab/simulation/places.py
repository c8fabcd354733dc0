"""Where operations run: the thread, the layer, and the layers of autograd's nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from mplab.numbers.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, Format

OUTSIDE = "outside modules"
"""The layer name of operations outside all modules."""

_KEPT_NODES = 1 << 17
"""The layers of at least this many nodes are remembered, some 70 MB at most."""

next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The number that the next autograd node of this thread will get."""

current_node: Callable[[], Any] = torch._C._current_autograd_node

_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class Place(NamedTuple):
    """Where operations run: in which layer, by which rules, and what is low there."""

    name: str
    rules: Any
    dtype: torch.dtype


class Thread:
    """What a thread simulates, and where the autograd nodes that it made belong.

    Attributes:
        innermost: the active mode that decides.
    """

    def __init__(self) -> None:
        self.innermost: Any = None
        self._places: dict[int, Place] = {}
        self._next = 0
        self._thread = get_ident()

    def begin(self) -> None:
        """Leave out the nodes made outside simulations so far."""
        if self.innermost is not None:
            self.note(self.innermost.place)
        self._next = next_number()

    def note(self, place: Place) -> None:
        """Remember the place of the nodes made since the last call.

        A backward pass on CUDA runs in a thread of its own, which counts its nodes from 0.
        """
        # Autograd numbers the nodes of a thread one after the other, before a mode sees operations.
        last = next_number()
        if last == self._next or get_ident() != self._thread:
            return
        for number in range(self._next, last):
            self._places[number] = place
        self._next = last
        if len(self._places) > 2 * _KEPT_NODES:
            # Rarely, and half at once: it takes as long as the nodes took.
            oldest = last - _KEPT_NODES
            kept = {n: own for n, own in self._places.items() if n >= oldest}
            self._places = kept

    def place_of(self, node: Any) -> Place | None:
        """Where the forward operation of a node ran, if that is known."""
        wraps = type(node).__name__ == "CopySlices"  # made right after that node
        return self._places.get(node._sequence_nr() - wraps)


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()


_local = _Local()


def this_thread() -> Thread:
    """The calling thread."""
    return _local.thread


def recomputes(node: Any) -> bool:
    """Whether a checkpoint runs a forward pass again in this node, with gradients on."""
    # The reentrant kind is a function of autograd's own; the other kind unpacks saved tensors.
    return isinstance(node, BackwardCFunction) or _saving_hooks(True) is not None


def is_plain(t: object) -> TypeGuard[Tensor]:
    """Whether this is a tensor that has memory of its own, dense."""
    return isinstance(t, Tensor) and t.layout is torch.strided


def low_format_of(t: Tensor) -> Format | None:
    """The format that a low dtype stands for in the active simulation, if any; else its own."""
    if t.dtype not in FORMATS:
        return None
    mode = this_thread().innermost
    fmt: Format = FORMATS[t.dtype] if mode is None else mode.format_of(t)
    return fmt


FORMATS: dict[torch.dtype, Format] = {
    fmt.torch_dtype: fmt for fmt in (FP16, BF16, FP8_E4M3, FP8_E5M2)
}
"""The low dtypes that a program may use."""
