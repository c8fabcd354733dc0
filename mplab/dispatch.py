"""How an operation on float32 tensors is run in a low format, below autograd.

`Mode` sees every operation, finds its format from `mplab.policies` and from the marks of
its inputs or the node it belongs to, rounds what has to be rounded, and counts.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from mplab.marks import (
    KEPT_NODES,
    Cast,
    Counter,
    Mark,
    Node,
    Rounder,
    mark_of,
    marks_of,
    next_number,
    set_mark,
    shared_tensor,
    this_graph,
)
from mplab.policies import CONVERSIONS, Rule, rule_of

_ACCUMULATE_GRAD = 2**64 - 1  # the number of every node that adds into a .grad

_current_node = torch._C._current_autograd_node
_graph_task = torch._C._current_graph_task_id
_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_FLOAT32, _STRIDED = torch.float32, torch.strided

_rules: dict[Any, Rule] = {}

OUTSIDE = "outside modules"
"""The name of the layer of what no module runs."""


def _recomputes(node: Any) -> bool:
    """Whether a forward pass is being run again inside this node, by a checkpoint."""
    return torch.is_grad_enabled() and (
        isinstance(node, BackwardCFunction) or _saving_hooks(True) is not None
    )


def _refuse(rule: Rule, t: Tensor) -> None:
    """Raise for numbers that cannot be simulated; let integers and scalars pass."""
    numbers = t.is_floating_point() or t.is_complex() or t.is_quantized
    if numbers and t.dim() and rule.name not in CONVERSIONS:
        # a ValueError, since the operators of Tensor hide a TypeError
        raise ValueError(
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
        self.layer = OUTSIDE
        self.epoch = 0
        self.latest: weakref.ref[Tensor] | None = None
        self.graph = this_graph()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch wraps __torch_dispatch__, at half a microsecond a call

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        graph = self.graph
        if graph.innermost is not self:  # an inner context decides
            return func(*args, **kwargs)
        rule = _rules.get(func)
        if rule is None:
            rule = _rules[func] = rule_of(func)
        node = _current_node()
        if rule.view:
            out = func(*args, **kwargs)
            if graph.next != next_number():
                self._note_view(rule, args, kwargs, out)
            if node is not None and rule.name in ("detach", "expand"):
                self._follow_gradient(node, rule, args[0])
            return out
        if rule.composite:  # some arrive whole, in inference mode most
            with self:
                return func.decompose(*args, **kwargs)
        if rule.name == "add" and _graph_task() != -1:
            shared = shared_tensor(args)
            if shared is not None:
                return self._sum(shared, rule, func, args, kwargs)
        if node is not None and not _recomputes(node):
            return self._backward(node, rule, func, args, kwargs)
        return self._forward(rule, func, args, kwargs, None)

    def _forward(
        self, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any], custom: Node | None
    ) -> Any:
        """Run a forward operation, or one of a user's own backward function (`custom`)."""
        tensors = _tensors(rule, args, kwargs)
        exact = rule.exact
        if rule.lower and custom is None:
            into: Rounder | None = self.into
            args, kwargs = self._cast_all(rule, args, kwargs, self.into, None)
        else:
            into, same = _widest(rule, tensors, gradients=custom is not None)
            numbers = rule.plain and len(tensors) < len(rule.positions)
            exact = exact and same and not numbers
            if rule.written is not None:
                into = _written_format(rule, args, kwargs)
            elif rule.wide and custom is None:
                into = None
        out = func(*args, **kwargs)
        if into is not None:
            if not isinstance(out, Tensor) or out.dim():
                self._finish(rule, out, into, exact, custom)
            else:
                into = None  # a scalar stays FP32
        if self.graph.next != next_number():
            layer = self.layer if custom is None else custom.layer
            self._note(Node(into, layer, marks_of(tensors)), out)
        return out

    def _note_view(self, rule: Rule, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Remember the node of a view, whose memory and mark are those of its input."""
        marks = marks_of(_tensors(rule, args, kwargs))
        into = marks[0].into if marks and marks[0].made_by is None else None
        self._note(Node(into, self.layer, marks), out)

    def _follow_gradient(self, node: Any, rule: Rule, t: Tensor) -> None:
        """Mark a gradient that becomes a .grad, or comes from a scalar, as FP32."""
        number = node._sequence_nr()
        if rule.name == "detach" and number == _ACCUMULATE_GRAD:
            set_mark(t, None)
        elif rule.name == "expand" and not t.dim() and mark_of(t) is None:
            set_mark(t, Mark(None, self.graph.nodes.get(number)))

    def _note(self, node: Node, out: Any) -> None:
        """Remember the autograd node of this operation, and its result."""
        self.graph.note(node)
        self.latest = weakref.ref(out) if isinstance(out, Tensor) else None

    def _backward(self, node: Any, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation of a backward pass in the format of its node."""
        number = node._sequence_nr()
        if type(node).__name__ == "CopySlices":
            number -= 1  # it was made right after the node of the operation that it wraps
        known = self.graph.nodes.get(number)
        if isinstance(node, BackwardCFunction):
            return self._forward(rule, func, args, kwargs, known or Node(None))
        if known is None:  # adds into .grad, or was made outside
            self._check_remembered(number)
            return func(*args, **kwargs)
        into = known.into
        if into is not None:
            args, kwargs = self._cast_all(rule, args, kwargs, into, known)
        out = func(*args, **kwargs)
        self._finish(rule, out, into, rule.exact, known)
        if self.graph.next != next_number():
            self.graph.note(Node(into, known.layer))
        return out

    def _check_remembered(self, number: int) -> None:
        if number < self.graph.forgotten:
            raise RuntimeError(
                f"simulated: backward() must follow within {KEPT_NODES} differentiable "
                f"operations; got more. Use a smaller graph, or checkpointing."
            )

    def _sum(self, shared: Mark, rule: Rule, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Add two gradients of one tensor, for autograd, in the format of that tensor."""
        into, total, other = shared.gradient_format, args[0], args[1]
        mark = mark_of(total)
        maker = mark.made_by if mark is not None else None
        node = Node(into, maker.layer if maker is not None else "", (shared,))
        if into is not None:
            if rule.written is None:
                total = self._cast(rule, total, into, node)
            elif mark is not None and not into.serves(mark):
                into(total, total, self._counter("cast", node))
            args = (total, self._cast(rule, other, into, node), *args[2:])
        out = func(*args, **kwargs)
        self._finish(rule, out, into, False, node)
        if self.graph.next != next_number():
            self.graph.note(node)
        return out

    def _finish(
        self, rule: Rule, out: Any, into: Rounder | None, exact: bool, node: Node | None
    ) -> None:
        """Round fresh results in place, and mark them."""
        results = (out,) if isinstance(out, Tensor) else out or ()
        for t in results if not rule.one_result else results[:1]:
            if isinstance(t, Tensor) and t.dtype is _FLOAT32 and t.dim() and t.layout is _STRIDED:
                if into is not None and not exact:
                    plain = t if rule.written is None else t.detach()
                    into(plain, plain, self._counter(rule.name, node))
                set_mark(t, Mark(into, node))

    def _counter(self, name: str, node: Node | None) -> Counter | None:
        if self.counters is None:
            return None
        key = (name, self.layer)
        if node is not None:
            key = (f"{name.partition('_backward')[0]} backward", f"{node.layer} backward")
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
        mark = mark_of(t)
        if mark is not None:
            if mark.into is into or into.serves(mark):
                return t
            if mark.cast is not None:
                kept = mark.cast.view_for(t, into, self.epoch)
                if kept is not None:
                    return kept
        if not t.dim():
            return t
        base = t if t._base is None else t._base
        gradient = mark is not None and mark.made_by is not None
        if gradient or (base.is_leaf and base.requires_grad and not base.is_inference()):
            return self._cast_once(t, base, into, node)
        # what the forward pass kept is cast again: autocast would have kept the cast
        counter = self._counter("cast", None) if node is None else None
        return into(t.detach(), torch.empty_like(t), counter)

    def _cast_once(self, t: Tensor, base: Tensor, into: Rounder, node: Node | None) -> Tensor:
        """A weight, a gradient, or a view of it, from a copy that is rounded once."""
        mark = mark_of(base)
        if mark is None:
            mark = Mark(None)
            set_mark(base, mark)
        if mark.cast is None or not mark.cast.fits(base, into):
            mark.cast = Cast(base, into)
        cast = mark.cast
        if not cast.is_fresh(base, self.epoch):
            into(base.detach(), cast.rounded, self._counter("cast", node))
            cast.time = (base._version, self.epoch)
        kept = cast.view_for(t, into, self.epoch)
        if kept is None:
            return into(t.detach(), torch.empty_like(t), None)
        return kept


def _tensors(rule: Rule, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that count for the format, those in lists included."""
    if rule.plain:
        return [t for t in args[: len(rule.positions)] if isinstance(t, Tensor)]
    found: list[Tensor] = []
    given = [args[i] for i in rule.positions if i < len(args)]
    for t in given + [kwargs.get(name) for name in rule.keywords]:
        if isinstance(t, Tensor):
            found.append(t)
        elif isinstance(t, list | tuple):
            found += [x for x in t if isinstance(x, Tensor)]
    return found


def _widest(rule: Rule, tensors: list[Tensor], *, gradients: bool) -> tuple[Rounder | None, bool]:
    """The format that type promotion gives, and whether all inputs are of it.

    Scalars do not count, and outside a backward pass a gradient counts as FP32, since that of
    a weight is. Two low formats meet in FP32.
    """
    low: Rounder | None = None
    wide = scalars = False
    for t in tensors:
        if t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
            _refuse(rule, t)
            scalars = scalars or t.is_floating_point()
        elif not t.dim():
            scalars = True
        else:
            mark = mark_of(t)
            into = mark.into if mark and (gradients or mark.made_by is None) else None
            wide = wide or into is None or (low is not None and low.fmt != into.fmt)
            low = low or into
    if low is not None and rule.name.startswith("_foreach"):
        raise ValueError(
            f"simulated: {rule.name} must be given FP32 tensors; got tensors in {low.fmt.name}. "
            f"Use a loop over the single operation."
        )
    return (None, False) if wide else (low, not scalars)


def _written_format(rule: Rule, args: Any, kwargs: dict[str, Any]) -> Rounder | None:
    """The format of the tensor that an operation writes to, which it keeps."""
    t = kwargs[rule.written] if isinstance(rule.written, str) else args[rule.written]
    if not isinstance(t, Tensor) or t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
        return None
    mark = mark_of(t)
    if mark is None or not t.dim():
        return None
    if mark.into is None or mark.made_by is not None:  # FP32, or a gradient in a user's hands
        set_mark(t, None)
        return None
    return mark.into
