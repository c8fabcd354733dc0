"""How an operation on float32 tensors is run in a low format, below autograd.

Each storage has a mark that says which format its numbers belong to, and each node of the
autograd graph is remembered with the format that its forward operation ran in. `Mode` sees
every operation, finds its format from these and from `mplab.policies`, rounds what has to
be rounded, and counts.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from mplab import kernels
from mplab.formats import Format, Overflow, Rounding, Tininess, require_format
from mplab.policies import CONVERSIONS, Rule, rule_of
from mplab.rounding import Stream, Tally, checked_facts, checked_keys
from mplab.tensors import round_tensor

_MARK = "_mplab"  # attribute of a storage: views share it, and it goes when the memory goes
_ACCUMULATE_GRAD = 2**64 - 1  # the number of every node that adds into a .grad
_KEPT = 1 << 17  # nodes remembered at least, by number

_current_node = torch._C._current_autograd_node
_graph_task = torch._C._current_graph_task_id
_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_FLOAT32, _STRIDED = torch.float32, torch.strided


class Counter:
    """What the roundings of one operation in one layer met, in arrays that the loops add to."""

    def __init__(self) -> None:
        self.tally, self.total, self.counts = Tally(), 0, np.zeros(8, np.int64)

    def result(self) -> Tally:
        """Everything counted so far."""
        counted = Tally() + self.tally
        counted.add_counts(self.total, self.counts)
        return counted


class Rounder:
    """The door into one format, its options checked once."""

    def __init__(
        self, fmt: Format, rounding: Rounding, overflow: Overflow, stream: Stream | None
    ) -> None:
        self.fmt = require_format("simulated", fmt)
        rules = (rounding, overflow, False, False, Tininess.AFTER)
        facts = checked_facts("simulated", fmt, np.dtype(np.float32), *rules)
        if facts is None or not (fmt.signed and fmt.has_zero):
            raise ValueError(
                f"simulated: fmt must have signs and zero, and fit in float32; got {fmt.name}. "
                f"Use FP16, BF16, FP8_E4M3, FP8_E5M2 or the like."
            )
        checked_keys("simulated", rounding, stream and Stream(stream.seed))
        self.facts, self.rounding, self.overflow, self.stream = facts, rounding, overflow, stream

    def __call__(self, x: Tensor, out: Tensor, counter: Counter | None) -> Tensor:
        """Round `x` into `out`, which may be `x`: `round_tensor` without its checks."""
        if not (x.is_cpu and x.is_contiguous() and out.is_contiguous()):
            return round_tensor(
                x,
                self.fmt,
                rounding=self.rounding,
                overflow=self.overflow,
                stream=self.stream,
                out=out,
                tally=None if counter is None else counter.tally,
            )
        bits = x.numpy().reshape(-1).view(np.int32)
        into = bits if out is x else out.numpy().reshape(-1).view(np.int32)
        keys = None if self.stream is None else checked_keys("", self.rounding, self.stream)
        counts = None
        if counter is not None:
            counter.total += bits.size
            counts = counter.counts
        kernels.run(bits, into, self.facts, self.rounding, keys=keys, counts=counts)
        return out


class Mark:
    """What a storage holds: numbers that came through which door, and by whom."""

    __slots__ = ("cast", "into", "made_by")

    def __init__(self, into: Rounder | None, made_by: Node | None = None) -> None:
        self.into = into  # None for FP32
        self.made_by = made_by  # for a gradient
        self.cast: Cast | None = None  # the same numbers in a low format


class Cast:
    """A weight or gradient, rounded once for all operations that use it."""

    __slots__ = ("into", "place", "rounded", "time")

    def __init__(self, place: Any, into: Rounder, rounded: Tensor) -> None:
        self.place, self.into, self.rounded = place, into, rounded
        self.time: Any = None  # of what was rounded last


class Node:
    """A node of the autograd graph: what its forward operation ran in, where, and on what."""

    __slots__ = ("inputs", "into", "layer")

    def __init__(
        self, into: Rounder | None, layer: str = "", inputs: tuple[Mark, ...] = ()
    ) -> None:
        self.into, self.layer = into, layer
        self.inputs = inputs  # those whose gradients are of a low format


class Graph:
    """What a thread has seen of its autograd graph, by the numbers that torch gives to nodes."""

    def __init__(self) -> None:
        self.innermost: Mode | None = None
        self.nodes: dict[int, Node] = {}
        self.next = 0
        self.forgotten = 0
        self.last = Node(None)

    def skip(self) -> None:
        """Leave out the nodes made since the last time: they were made outside."""
        self.next = _next_number()

    def note(self, node: Node) -> None:
        """Record the nodes made since the last time; the newest belongs to this operation."""
        newest = _next_number() - 1
        for number in range(self.next, newest):
            self.nodes[number] = self.last  # made after it, to wrap it
        self.nodes[newest] = self.last = node
        self.next = newest + 1
        if len(self.nodes) > 2 * _KEPT:
            self.forgotten = self.next - _KEPT
            self.nodes = {n: node for n, node in self.nodes.items() if n >= self.forgotten}


class _Thread(threading.local):
    def __init__(self) -> None:
        self.graph = Graph()


_thread = _Thread()


def this_graph() -> Graph:
    """The graph of the calling thread."""
    return _thread.graph


def _mark_of(t: Tensor) -> Mark | None:
    mark: Mark | None = getattr(t.untyped_storage(), _MARK, None)
    return mark


def _set_mark(t: Tensor, mark: Mark | None) -> None:
    setattr(t.untyped_storage(), _MARK, mark)


def _forget_marks(args: Any) -> None:
    for t in args:
        if isinstance(t, Tensor) and t.layout is _STRIDED:
            _set_mark(t, None)


def _recomputes(node: Any) -> bool:
    """Whether a forward pass is being run again inside this node, by a checkpoint."""
    return torch.is_grad_enabled() and (
        isinstance(node, BackwardCFunction) or _saving_hooks(True) is not None
    )


def _refuse(rule: Rule, t: Tensor) -> None:
    """Raise for numbers that cannot be simulated; let integers and scalars pass."""
    numbers = t.is_floating_point() or t.is_complex() or t.is_quantized
    if numbers and t.dim() and rule.name not in CONVERSIONS:
        raise TypeError(
            f"simulated: tensors must be dense float32; got {t.dtype}, {t.layout}, of shape "
            f"{tuple(t.shape)} in {rule.name}. Convert it with .float() or .to_dense(), or "
            f"compute this outside the with statement."
        )


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation below autograd, forward and backward."""

    def __init__(self, into: Rounder, tally: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.into = into
        self.counters: dict[tuple[str, str], Counter] | None = {} if tally else None
        self.layer = ""
        self.epoch = 0
        self.latest: weakref.ref[Tensor] | None = None
        self.graph = _thread.graph
        self.rules: dict[Any, Rule] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__, at half a microsecond a call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.graph.innermost is not self:  # an inner context decides
            return func(*args, **kwargs)
        rule = self.rules.get(func)
        if rule is None:
            rule = self.rules[func] = rule_of(func)
        if rule.composite:  # in inference mode they arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        node = _current_node()
        if rule.view:
            return self._view(node, rule, func, args, kwargs)
        if node is not None and not _recomputes(node):
            return self._backward(node, rule, func, args, kwargs)
        if rule.name == "add" and _graph_task() != -1:
            makers = _makers(args)
            if len(makers) == 2:
                return self._sum(makers, rule, func, args, kwargs)
        return self._run(rule, func, args, kwargs)

    def _view(self, node: Any, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation whose result shares the memory of its input, and so the mark."""
        if rule.name == "detach" and node is not None and node._sequence_nr() == _ACCUMULATE_GRAD:
            _forget_marks(args)  # this gradient becomes a .grad
        out = func(*args, **kwargs)
        if self.graph.next != _next_number():
            t = args[rule.positions[0]]
            mark = _mark_of(t) if t.layout is _STRIDED and t.dtype is _FLOAT32 else None
            into = mark.into if mark is not None and mark.made_by is None else None
            self._note(Node(into, self.layer, () if mark is None else (mark,)), out)
        return out

    def _run(
        self, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any], custom: Node | None = None
    ) -> Any:
        """Run a forward operation, or one of a user's own backward function (`custom`)."""
        exact = rule.exact
        if rule.lower and custom is None:
            into: Rounder | None = self.into
            given = args, kwargs
            args, kwargs = self._cast_all(rule, args, kwargs, self.into, None)
            made = self.graph.next != _next_number()
            inputs = _low_marks(_tensors(rule, *given)) if made else ()
        else:
            tensors = _tensors(rule, args, kwargs)
            into, inputs, same = _widest(rule, tensors, gradients=custom is not None)
            exact = exact and same
            if rule.written is not None:
                into = _written_format(rule, args, kwargs, inputs)
            elif rule.wide and custom is None:
                into = None
        out = func(*args, **kwargs)
        if into is not None:
            if rule.lower or not isinstance(out, Tensor) or out.dim():
                self._finish(rule, out, into, exact, custom)
            else:
                into = None  # a scalar stays FP32
        if self.graph.next != _next_number():
            layer = self.layer if custom is None else custom.layer
            self._note(Node(into, layer, inputs), out)
        return out

    def _note(self, node: Node, out: Any) -> None:
        """Remember the autograd node of this operation, and its result."""
        self.graph.note(node)
        self.latest = weakref.ref(out) if isinstance(out, Tensor) else None

    def _backward(self, node: Any, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation of a backward pass in the format of its node."""
        number = node._sequence_nr()
        known = self.graph.nodes.get(number)
        if isinstance(node, BackwardCFunction):
            return self._run(rule, func, args, kwargs, custom=known or Node(None))
        if known is None:
            self._check_unknown(number, args)
            return func(*args, **kwargs)
        into = known.into
        if into is not None:
            args, kwargs = self._cast_all(rule, args, kwargs, into, known)
        out = func(*args, **kwargs)
        if into is not None or known.inputs:
            exact = rule.exact and all(t.dim() for t in _tensors(rule, args, kwargs))
            self._finish(rule, out, into, exact, known)
        if self.graph.next != _next_number():
            self.graph.note(Node(into, known.layer))
        return out

    def _check_unknown(self, number: int, args: Any) -> None:
        """A node of no simulated operation: .grad is FP32, and so is what was made outside."""
        if number == _ACCUMULATE_GRAD:
            _forget_marks(args)
        elif number < self.graph.forgotten:
            raise RuntimeError(
                f"simulated: backward() must follow within {_KEPT} differentiable operations; got "
                f"more. Use a smaller graph, or checkpointing."
            )

    def _sum(
        self, makers: list[Node], rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Add two gradients of one tensor, for autograd, in the format of that tensor."""
        shared = tuple(mark for mark in makers[0].inputs if mark in makers[1].inputs)
        into = _gradient_format(shared[0]) if shared else None
        node = Node(into, makers[0].layer, shared)
        if into is not None:
            total, other = args
            if rule.written is None:
                total = self._cast(rule, total, into, node)
            elif _format_of(total) is not into:
                into(total, total, self._counter("cast", node))
            args = (total, self._cast(rule, other, into, node))
        out = func(*args, **kwargs)
        self._finish(rule, out, into, False, node)
        if self.graph.next != _next_number():
            self.graph.note(Node(into, node.layer))
        return out

    def _finish(
        self, rule: Rule, out: Any, into: Rounder | None, exact: bool, node: Node | None
    ) -> None:
        """Round fresh results in place, and mark them."""
        results = (out,) if isinstance(out, Tensor) else out or ()
        for t in results if not rule.one_result else results[:1]:
            if isinstance(t, Tensor) and t.dtype is _FLOAT32 and t.dim() and t.layout is _STRIDED:
                if into is not None and not exact:
                    into(t, t, self._counter(rule.name, node))
                setattr(t.untyped_storage(), _MARK, Mark(into, node))

    def _counter(self, name: str, node: Node | None) -> Counter | None:
        if self.counters is None:
            return None
        key = (name, self.layer)
        if node is not None:
            key = (f"{name.removesuffix('_backward')} backward", f"{node.layer} backward")
        return self.counters.setdefault(key, Counter())

    # Inputs as autocast casts them

    def _cast_all(
        self, rule: Rule, args: Any, kwargs: dict[str, Any], into: Rounder, node: Node | None
    ) -> tuple[Any, dict[str, Any]]:
        count, cast = len(args), None
        for i in rule.positions:
            if i < count:
                t = args[i]
                new = self._cast(rule, t, into, node)
                if new is not t and i != rule.written:
                    cast = cast or list(args)
                    cast[i] = new
        for name in rule.keywords:
            if name in kwargs and name != rule.written:
                kwargs = kwargs | {name: self._cast(rule, kwargs[name], into, node)}
        return cast or args, kwargs

    def _cast(self, rule: Rule, t: Any, into: Rounder, node: Node | None) -> Any:
        """`t` in the format of `into`: itself if it is, else a rounded copy."""
        if not isinstance(t, Tensor):
            many = isinstance(t, list | tuple)
            return [self._cast(rule, x, into, node) for x in t] if many else t
        if t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
            _refuse(rule, t)
            return t
        mark: Mark | None = getattr(t.untyped_storage(), _MARK, None)
        if mark is not None and (mark.into is into or _same_format(mark.into, into)):
            return t
        if not t.dim():
            return t
        base = t if t._base is None else t._base
        gradient = mark is not None and mark.made_by is not None
        if gradient or (base.is_leaf and base.requires_grad):
            return self._cast_once(t, base, into, node)
        # what the forward pass kept is cast again: autocast would have kept the cast
        counter = self._counter("cast", None) if node is None else None
        return into(t.detach(), torch.empty_like(t), counter)

    def _cast_once(self, t: Tensor, base: Tensor, into: Rounder, node: Node | None) -> Tensor:
        """A weight, a gradient, or a view of it, from a copy that is rounded once."""
        mark = _mark_of(base)
        if mark is None:
            mark = Mark(None)
            _set_mark(base, mark)
        cast = mark.cast
        place, time = (base.data_ptr(), base.shape, base.stride()), (base._version, self.epoch)
        if cast is None or cast.into is not into or cast.place != place:
            cast = mark.cast = Cast(place, into, torch.empty_like(base))
        if cast.time != time:
            into(base.detach(), cast.rounded, self._counter("cast", node))
            cast.time = time
        rounded = cast.rounded
        if t is base:
            return rounded
        if rounded.stride() != base.stride():
            return into(t.detach(), torch.empty_like(t), None)
        offset = t.storage_offset() - base.storage_offset()
        return rounded.as_strided(t.shape, t.stride(), offset)


def _tensors(rule: Rule, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that count for the format, those in lists included."""
    found: list[Tensor] = []
    given = [args[i] for i in rule.positions if i < len(args)]
    for t in given + [kwargs.get(name) for name in rule.keywords] if rule.keywords else given:
        if isinstance(t, Tensor):
            found.append(t)
        elif isinstance(t, list | tuple):
            found += [x for x in t if isinstance(x, Tensor)]
    return found


def _makers(args: Any) -> list[Node]:
    """The nodes that made those arguments that are gradients."""
    marks = [_mark_of(t) for t in args if isinstance(t, Tensor) and t.layout is _STRIDED]
    return [mark.made_by for mark in marks if mark is not None and mark.made_by is not None]


def _widest(
    rule: Rule, tensors: list[Tensor], *, gradients: bool
) -> tuple[Rounder | None, tuple[Mark, ...], bool]:
    """The format that type promotion gives; the marks of low inputs; whether all are of it.

    Scalars do not count, and outside a backward pass a gradient counts as FP32, since that of
    a weight is. Two low formats meet in FP32.
    """
    low: list[Mark] = []
    wide = scalars = False
    for t in tensors:
        if t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
            _refuse(rule, t)
            scalars = True
        elif not t.dim():
            scalars = True
        else:
            mark = _mark_of(t)
            if mark is None or mark.into is None or (mark.made_by and not gradients):
                wide = True
            else:
                low.append(mark)
    into = low[0].into if low and not wide else None
    if into is not None and not all(_same_format(mark.into, into) for mark in low):
        into = None
    if low and rule.name.startswith("_foreach"):
        raise TypeError(
            f"simulated: {rule.name} must be given FP32 tensors; got tensors in a low format. "
            f"Use a loop over the single operation."
        )
    return into, tuple(low), into is not None and not scalars


def _written_format(
    rule: Rule, args: Any, kwargs: dict[str, Any], low: tuple[Mark, ...]
) -> Rounder | None:
    """The format of the tensor that an operation writes to, which it keeps."""
    t = kwargs[rule.written] if isinstance(rule.written, str) else args[rule.written]
    if not isinstance(t, Tensor) or t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
        return None
    mark = _mark_of(t)
    if mark is None or not t.dim():
        return None
    if mark not in low:  # FP32, or a gradient in a user's hands
        _set_mark(t, None)
        return None
    return mark.into


def _gradient_format(mark: Mark) -> Rounder | None:
    """The format of a tensor's gradients: a weight's are added before its cast is undone."""
    return mark.into if mark.cast is None else mark.cast.into


def _low_marks(tensors: list[Tensor]) -> tuple[Mark, ...]:
    """The marks of those tensors whose gradients are of a low format."""
    marks = [_mark_of(t) for t in tensors if t.layout is _STRIDED]
    return tuple(mark for mark in marks if mark is not None and _gradient_format(mark))


def _same_format(first: Rounder | None, second: Rounder) -> bool:
    return first is not None and first.fmt is second.fmt


def _format_of(t: Tensor) -> Rounder | None:
    mark = _mark_of(t)
    return mark.into if mark else None
