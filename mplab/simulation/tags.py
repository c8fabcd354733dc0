"""The format of each storage and each autograd node, as the simulator remembers them.

A storage carries its tag as an attribute: all views share it, also those that autograd makes
when it saves a tensor. The tag goes when the memory goes, so reused memory has no old tag.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from threading import get_ident
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from mplab.numbers import kernels
from mplab.numbers.formats import Format, Overflow, Rounding, Tininess
from mplab.numbers.rounding import Stream, Tally, checked_keys, checked_parameters
from mplab.numbers.tensors import round_tensor
from mplab.numbers.threads import DIVISIBLE

KEPT_NODES = 1 << 17
"""At least this many nodes of a graph are remembered."""

next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""The number that the next autograd node of this thread will get."""

_ATTRIBUTE = "_mplab"
_COPY = "_mplab_copy"


class Counter:
    """Counts of the roundings of one operation in one layer; loops add to the array."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.total = 0
        self.counts = np.zeros(8, np.int64)
        self.counts_at: int = self.counts.ctypes.data

    def result(self) -> Tally:
        """Everything counted so far."""
        counted = Tally() + self.tally
        counted.add_counts(self.total, self.counts)
        return counted


def rounding_parameters(
    function: str,
    fmt: Format,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.IEEE,
) -> Any:
    """Return the constants that rounding float32 tensors to a format needs.

    Raises:
        ValueError: the format does not fit in float32, or lacks signs or zero.
    """
    rules = (rounding, overflow, False, False, Tininess.AFTER)
    parameters = checked_parameters(function, fmt, np.dtype(np.float32), *rules)
    if parameters is None or not (fmt.signed and fmt.has_zero):
        raise ValueError(
            f"{function}: fmt must have signs and zero, and fit in float32; got {fmt.name}. "
            f"Use FP16, BF16, FP8_E4M3, FP8_E5M2 or the like."
        )
    return parameters


class Rounder:
    """Round tensors to one format, with options that are checked once."""

    def __init__(
        self, fmt: Format, rounding: Rounding, overflow: Overflow, stream: Stream | None
    ) -> None:
        if stream is None or rounding is not Rounding.STOCHASTIC:
            checked_keys("simulated", rounding, stream)
        self.parameters = rounding_parameters("simulated", fmt, rounding, overflow)
        self.fmt = fmt
        self.rounding = rounding
        self.overflow = overflow
        self.stream = stream
        self._parameters_at: int = self.parameters.numbers.ctypes.data

    @cached_property
    def kernel_dtype(self) -> torch.dtype | None:
        """The dtype whose kernels of torch's round as this does, if there are such kernels."""
        as_torch = self.rounding, self.overflow
        if as_torch != (Rounding.TIES_TO_EVEN, Overflow.IEEE):
            return None
        dtype = self.fmt.torch_dtype
        return dtype if dtype in (torch.float16, torch.bfloat16) else None

    @cached_property
    def _loop(self) -> Callable[..., None]:
        return self._compiled(counting=False)

    @cached_property
    def _counting_loop(self) -> Callable[..., None]:
        return self._compiled(counting=True)

    def _compiled(self, *, counting: bool) -> Callable[..., None]:
        special_cases = self.parameters.special_cases
        return kernels.loop_at(int(self.rounding), special_cases, counting=counting)

    def __call__(self, x: Tensor, out: Tensor, counter: Counter | None) -> Tensor:
        """Round `x` into `out`, which may be `x`: `round_tensor` without its checks."""
        # a listener may round, too: it is taken away while it runs
        if _listeners and (hear := _listeners.pop(get_ident(), None)) is not None:
            try:
                return hear(self, x, out, counter)
            finally:
                _listeners[get_ident()] = hear
        size = x.numel()
        here = out is x
        x_at = x.data_ptr()
        # No memory: empty, on the meta device, or zeros of forward differentiation.
        if not x_at:
            return out if here else out.zero_()
        plain = x.is_cpu and size < DIVISIBLE and not x.is_neg()
        if plain and not (x.is_contiguous() and (here or out.is_contiguous())):
            # dimensions in another order; random bits depend on the index in this order
            plain = (
                self.stream is None
                and (here or x.stride() == out.stride())
                and is_dense(x)
            )
        if not plain:
            return round_tensor(
                x,
                self.fmt,
                rounding=self.rounding,
                overflow=self.overflow,
                stream=self.stream,
                out=out,
                tally=None if counter is None else counter.tally,
            )
        key0, key1 = (0, 0) if self.stream is None else self.stream.keys()(0)
        out_at = x_at if here else out.data_ptr()
        parameters_at = self._parameters_at
        if counter is None:
            self._loop(x_at, out_at, size, parameters_at, key0, key1)
        else:
            counter.total += size
            counts_at = counter.counts_at
            self._counting_loop(
                x_at, out_at, size, parameters_at, key0, key1, counts_at
            )
        return out

    def add_up(self, terms: Tensor) -> Tensor:
        """Add rows one after the other, rounding after each addition."""
        total = torch.zeros_like(terms[0])
        self(total, total, None)
        if self.stream is None and total.is_cpu and not _listeners:
            # a ufunc takes two thirds of the loop's time for each row
            add = np.add
            rounded = kernels.ufunc(self.parameters, self.rounding)
            sums = total.numpy().reshape(-1)
            bits = sums.view(np.int32)
            for row in terms.numpy().reshape(len(terms), -1):
                add(sums, row, sums)
                rounded(bits, bits)
            return total
        for row in terms:
            total += row
            self(total, total, None)
        return total

    def leaves_unchanged(self, tag: FormatTag) -> bool:
        """Whether this rounder would leave numbers with a tag unchanged."""
        into = tag.into
        return into is self or (into is not None and into.fmt == self.fmt)


def is_dense(t: Tensor) -> bool:
    """Whether a tensor fills its memory without holes, in some order of its dimensions.

    Examples:
        >>> t = torch.zeros(4, 3)
        >>> is_dense(t.t()), is_dense(t[:, :2]), is_dense(t[:1].expand(2, 3))
        (True, False, False)
    """
    expected = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


Listener = Callable[[Rounder, Tensor, Tensor, Counter | None], Tensor]

_listeners: dict[int, Listener] = {}  # by thread


@contextmanager
def intercept_rounding(listener: Listener) -> Iterator[None]:
    """Call `listener` instead of each rounding in this thread; it rounds, or calls the rounder."""
    before = _listeners.get(get_ident())
    _listeners[get_ident()] = listener
    try:
        yield
    finally:
        del _listeners[get_ident()]
        if before is not None:
            _listeners[get_ident()] = before


class FormatTag:
    """The rounder that made the numbers of a storage, and for a gradient, the node."""

    __slots__ = ("_cast", "into", "made_by", "on_use")

    def __init__(self, into: Rounder | None, made_by: Node | None = None) -> None:
        self.into = into  # None for FP32
        self.made_by = made_by  # for a gradient
        self.on_use: Callable[[Tensor], bool] | None = None
        """Called when an operation uses the tensor, whose autograd node is then known; until
        it returns True."""
        self._cast: weakref.ref[RoundedCopy] | None = None

    @property
    def cast(self) -> RoundedCopy | None:
        """The rounded copy, while its tensor's memory exists; nodes keep tags alive for longer."""
        return None if self._cast is None else self._cast()

    def keep(self, t: Tensor, cast: RoundedCopy) -> None:
        """Keep the rounded copy of a tensor with this tag."""
        setattr(t.untyped_storage(), _COPY, cast)
        self._cast = weakref.ref(cast)


class RoundedCopy:
    """A copy of a weight or gradient in a low format, for all operations that use it."""

    __slots__ = ("__weakref__", "address", "into", "rounded", "time", "views")

    def __init__(self, base: Tensor, into: Rounder) -> None:
        self.address = base.data_ptr()
        self.into = into
        self.rounded = torch.empty_like(base)
        views = (self.rounded, self.rounded.t()) if base.dim() == 2 else (self.rounded,)
        self.views = {(view.shape, view.stride()): view for view in reversed(views)}
        self.time = (-1, -1)  # version and epoch of what was rounded

    def fits(self, base: Tensor, into: Rounder) -> bool:
        """Whether this can be the copy of a tensor."""
        same = self.views.get((base.shape, base.stride())) is self.rounded
        return same and self.into is into and self.address == base.data_ptr()

    def is_fresh(self, base: Tensor, epoch: int) -> bool:
        """Whether the tensor is unchanged since it was rounded."""
        return self.time == (base._version, epoch)

    def view_for(self, t: Tensor, into: Rounder, epoch: int) -> Tensor | None:
        """The view that replaces `t`, if this is a fresh copy of it or of its transpose."""
        if (
            self.into is into
            and self.address == t.data_ptr()
            and self.is_fresh(t, epoch)
        ):
            return self.views.get((t.shape, t.stride()))
        return None


class LayerContext(NamedTuple):
    """Where operations run: in which layer, by which rules, and into which low format."""

    name: str
    rules: Any
    into: Rounder


class Node:
    """A node of the autograd graph: format, place and inputs of its forward operation."""

    __slots__ = ("arrives", "inputs", "into", "place", "scalars")

    def __init__(
        self,
        into: Rounder | None,
        place: LayerContext | None = None,
        inputs: tuple[FormatTag, ...] = (),
    ) -> None:
        self.into = into
        self.place = place
        self.inputs = inputs
        self.scalars = False  # whether some inputs have no dimensions
        self.arrives = into  # the format of its result, so of the gradient that arrives

    @property
    def layer(self) -> str:
        """The name of the layer."""
        return "" if self.place is None else self.place.name


ALWAYS_FP32 = Node(None)
"""The node of each .grad and of results computed from one: FP32 in any further computation."""


class Graph:
    """The autograd nodes that a thread has seen, by the numbers that torch gives them."""

    def __init__(self) -> None:
        self.innermost: Any = None
        """The active mode that decides."""
        self.nodes: dict[int, Node] = {}
        self.next = 0
        self.forgotten = 0
        self._thread = get_ident()

    def has_grown(self) -> bool:
        """Whether nodes were made since the last call of `note`, in the thread of this graph.

        A backward pass on CUDA runs in a thread of its own, which counts its nodes from 0.
        """
        return self.next != next_number() and get_ident() == self._thread

    def note(self, node: Node) -> None:
        """Remember the nodes made since the last call as those of this operation.

        An operation has one node, or several in a transformation of `torch.func`. Nodes that only
        pass gradients on, made without an operation, may come first.
        """
        first = self.next
        self.next = next_number()
        self.nodes[first] = node
        for number in range(first + 1, self.next):
            self.nodes[number] = node
        if len(self.nodes) > 2 * KEPT_NODES:
            self.forgotten = self.next - KEPT_NODES
            self.nodes = {
                n: node for n, node in self.nodes.items() if n >= self.forgotten
            }


class _Thread(threading.local):
    def __init__(self) -> None:
        self.graph = Graph()


_thread = _Thread()


def this_graph() -> Graph:
    """The graph of the calling thread."""
    return _thread.graph


has_storage: Callable[[Any], bool] = torch._C._has_storage
"""Whether a tensor has memory of its own, as one in a transformation of `torch.func` has not."""


def is_plain(t: object) -> TypeGuard[Tensor]:
    """Whether this is a tensor that has a storage."""
    return isinstance(t, Tensor) and t.layout is torch.strided


def holds_float32(t: object) -> TypeGuard[Tensor]:
    """Whether this is a dense tensor of float32 numbers: no others are simulated."""
    return is_plain(t) and t.dtype is torch.float32


def tag_of(t: Tensor) -> FormatTag | None:
    """The tag of the memory of a plain tensor."""
    tag: FormatTag | None = getattr(t.untyped_storage(), _ATTRIBUTE, None)
    return tag


def set_tag(t: Tensor, tag: FormatTag | None) -> None:
    """Mark the memory of a plain tensor."""
    setattr(t.untyped_storage(), _ATTRIBUTE, tag)


def rounder_of(t: object) -> Rounder | None:
    """The rounder that made the numbers of a tensor; None for FP32, and for anything else."""
    tag = tag_of(t) if is_plain(t) else None
    return None if tag is None else tag.into


def low_rounder(t: Tensor) -> Rounder | None:
    """The rounder of a plain tensor that is low, and no gradient in a user's hands."""
    tag = tag_of(t) if t.layout is torch.strided else None
    return None if tag is None or tag.made_by is not None else tag.into


def tags_of(tensors: Sequence[Tensor]) -> tuple[FormatTag, ...]:
    """The tags of a node's inputs; inputs in FP32 get a tag, to identify them."""
    tags = []
    for t in tensors:
        if t.layout is torch.strided:
            tag = tag_of(t)
            if tag is None:
                tag = FormatTag(None)
                set_tag(t, tag)
            elif tag.on_use is not None and tag.on_use(t):
                tag.on_use = None
            tags.append(tag)
    return tuple(tags)


def shared_tensor(args: Sequence[Any]) -> FormatTag | None:
    """The tag of the tensor of which the first two arguments are gradients, or None."""
    tags = [tag_of(t) for t in args[:2] if is_plain(t)]
    makers = [
        tag.made_by for tag in tags if tag is not None and tag.made_by is not None
    ]
    if len(makers) < 2:
        return None
    return next((tag for tag in makers[0].inputs if tag in makers[1].inputs), None)
