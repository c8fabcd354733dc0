"""Run operations on float32 tensors in a low format, below autograd.

`Mode` sees every operation, finds its format from the policy and from the tags of its inputs or
its autograd node, rounds inputs and results, and counts the roundings.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mplab.numbers.formats import FP32, Format
from mplab.simulation.low_kernels import check_number, join, rounded_number
from mplab.simulation.operations import (
    COMPOSITE,
    Keywords,
    Rule,
    Scope,
    common_format,
    refuse,
    results_of,
    rule_of,
    tag_as_fp32,
    tensors_of,
    written_format,
)
from mplab.simulation.policies import Policy, Run
from mplab.simulation.tags import (
    ALWAYS_FP32,
    KEPT_NODES,
    Counter,
    FormatTag,
    Graph,
    LayerContext,
    Node,
    RoundedCopy,
    Rounder,
    has_storage,
    holds_float32,
    is_plain,
    low_rounder,
    rounder_of,
    set_tag,
    shared_tensor,
    tag_of,
    tags_of,
    this_graph,
)

_ACCUMULATE_GRAD = 2**64 - 1  # the number of every node that adds into a .grad

_current_node = torch._C._current_autograd_node

_grad_enabled = torch._C.is_grad_enabled

_graph_task = torch._C._current_graph_task_id

_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks

_FLOAT32 = torch.float32
_STRIDED = torch.strided

_FP32_PRECISION = FP32.precision

_FIRST_SWEEP = 1 << 10
"""Once this many results are remembered, the dead ones among them are forgotten."""

_TAKE_SCALARS = ("mul", "div")
"""Their kernels for the CPU do not round a second operand that is a scalar."""

OUTSIDE = "outside modules"
"""The layer name of operations outside all modules."""


def _recomputes(node: Any) -> bool:
    """Whether a checkpoint runs a forward pass again in this node, with gradients on."""
    return isinstance(node, BackwardCFunction) or _saving_hooks(True) is not None


def _number_of(node: Any) -> int:
    """The number of an autograd node, or of the node of the operation that it wraps."""
    wraps = type(node).__name__ == "CopySlices"  # made right after that node
    return int(node._sequence_nr()) - wraps


def node_of_backward(graph: Graph) -> Node | None:
    """The node whose backward pass runs, or None in a forward pass, also one that is run again."""
    node = _current_node()
    if node is None or (_grad_enabled() and _recomputes(node)):
        return None
    return graph.nodes.get(_number_of(node)) or Node(None)


class RuleTable(dict[int, Rule]):
    """The rules of one scope by the operation's address, because its own hash is slow."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self.scope = scope
        # Kept alive, so that no other gets its address.
        self._operations: list[Any] = []

    def of(self, operation: Any) -> Rule:
        """Return the rule of an operation; it is made on first use."""
        rule = self.get(id(operation))  # `Mode` looks first, for speed
        if rule is None:
            self._operations.append(operation)
            rule = self[id(operation)] = rule_of(operation, self.scope)
        return rule


@lru_cache(maxsize=1 << 10)
def rules_in(scope: Scope) -> RuleTable:
    """The rules of a scope, the same for all contexts."""
    return RuleTable(scope)


class Ran(NamedTuple):
    """An operation as a mode ran it."""

    rule: Rule
    run: Run | None
    """How, in a forward pass or in a user's own backward function; None in a backward pass."""
    into: Rounder | None
    """Rounds to the format of the result; None for FP32."""
    node: Node | None
    """Of the backward pass, if any."""
    given: Sequence[Any]
    """The arguments before the casts."""
    taken: Sequence[Any]
    """The arguments after the casts."""
    out: Any
    reason: str = ""
    """For the format, if neither the rule nor the node gives it."""
    option: Any = None
    """A factor `alpha` or a rounding mode that goes by name."""
    by_torch: bool = False
    """Whether torch's own low kernel gave the result."""


def run_low(rule: Rule, args: Any, kwargs: Keywords, into: Rounder | None) -> Any:
    """Run an operation in float32, by what a low kernel does otherwise if `into` is low."""
    if into is None or into.fmt.precision >= _FP32_PRECISION:
        return rule.call(*args, **kwargs)
    if rule.joins:
        args = join(list(args), into)
    asked = kwargs.get("dtype")
    if asked is None or asked is _FLOAT32:
        for i, name in rule.checked:
            check_number(args[i] if i < len(args) else kwargs.get(name), into)
    for i, name in rule.rounded:
        if i < len(args):
            if not isinstance(args[i], Tensor):
                args = [*args[:i], rounded_number(args[i], into), *args[i + 1 :]]
        elif name in kwargs:
            kwargs = kwargs | {name: rounded_number(kwargs[name], into)}
    if rule.own_way is None:
        return rule.call(*args, **kwargs)
    if isinstance(rule.written, str):  # `out=`
        given = {name: x for name, x in kwargs.items() if name != rule.written}
        out = rule.own_way(rule.call, into, *args, **given)
        return kwargs[rule.written].resize_(out.shape).copy_(out)
    out = rule.own_way(rule.call, into, *args, **kwargs)
    if rule.written is not None and out is not args[0]:
        return args[0].copy_(out)
    return out


def round_scalars(rule: Rule, args: Any, into: Rounder) -> Any:
    """Round FP32 scalars to the low format of the other inputs, as torch's kernels do."""

    def held(i: int, t: Any) -> Any:
        if not isinstance(t, Tensor) or t.dim():
            return t
        whole = i == rule.written or (i == 1 and rule.name in _TAKE_SCALARS)
        checked = any(i == place for place, _ in rule.checked)
        if checked and rule.name != "fill":
            check_number(t.item(), into)
        kept = whole or t.dtype is not _FLOAT32
        return t if kept else into(t, torch.empty_like(t), None)

    return [held(i, t) if i in rule.positions else t for i, t in enumerate(args)]


class LayeredMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Know the layer in which an operation runs, and count the roundings there.

    Args:
        into: rounds to the low format.
        policy: which operation runs in which format.
        tally: whether to count what the roundings do.
    """

    def __init__(self, into: Rounder, policy: Policy, *, tally: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy = policy
        self.tally = tally
        self.counters: dict[tuple[str, str, bool], Counter] = {}
        rules = rules_in(Scope(policy, inside=False))
        self.outside = LayerContext(OUTSIDE, rules, into)
        self.entered: list[LayerContext] = []
        self.move(self.outside)
        # Called for each operation, except views.
        self.record: Callable[[Ran], None] | None = None
        self.epoch = 0
        self.results: list[weakref.ref[Tensor]] = []
        self._next_sweep = _FIRST_SWEEP
        self.graph = this_graph()

    def move(self, place: LayerContext) -> None:
        """Continue in another layer."""
        self.place = place
        # Those of its policy, or of a function run as a whole.
        self.rules: RuleTable = place.rules

    def enter(self, place: LayerContext) -> None:
        """Enter a layer."""
        self.entered.append(place)
        self.move(place)

    def leave(self) -> None:
        """Return to the layer that called this one."""
        if self.entered:
            self.entered.pop()
            self.move(self.entered[-1] if self.entered else self.outside)

    def format_of(self, t: Tensor) -> Format:
        """The format of a tensor's numbers."""
        rounder = rounder_of(t)
        return FP32 if rounder is None else rounder.fmt

    def keep(self, out: Any) -> None:
        """Remember a result for as long as it lives: its graph may outlive the context.

        This includes results without a node: a user's own autograd function may still give one.
        """
        kept = self.results
        if isinstance(out, Tensor):
            kept.append(weakref.ref(out))
        else:
            kept += [weakref.ref(t) for t in results_of(out) if isinstance(t, Tensor)]
        if len(kept) > self._next_sweep:
            kept[:] = [result for result in kept if result() is not None]
            self._next_sweep = _FIRST_SWEEP + 2 * len(kept)

    def _counter(self, name: str, node: Node | None) -> Counter | None:
        if not self.tally:
            return None
        layer = self.place.name if node is None else node.layer
        key = name, layer, node is not None
        counter = self.counters.get(key)
        if counter is None:  # not setdefault, which would make a counter each time
            counter = self.counters[key] = Counter()
        return counter


class Mode(LayeredMode):
    """Run every operation below autograd in its format, forward and backward.

    Args:
        into: rounds to the low format.
        policy: which operation runs in which format.
        tally: whether to count what the roundings do.

    Attributes:
        functions: the mode that sees functions above autograd, which its maker sets.
    """

    functions: TorchFunctionMode

    def __init__(self, into: Rounder, policy: Policy, *, tally: bool) -> None:
        super().__init__(into, policy, tally=tally)
        self.lowers_all = Run.LOWER in (policy.inside, policy.outside)
        # In which a checkpoint reruns a part of the forward pass.
        self.rerun_node: Any = None

    def enter_region(self) -> None:
        """Stop casting where a program turned autocast off; only autocast's policies do so."""
        place = self.place
        if not self.lowers_all and place.rules.scope.all is None:
            why = "autocast is off here: runs in the widest format of its inputs"
            place = place._replace(
                rules=rules_in(Scope(self.policy, True, why, Run.WIDEST))
            )
        self.enter(place)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # else torch wraps __torch_dispatch__, at half a microsecond a call
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        graph = self.graph
        # an inner context decides, or nothing is computed: torch.export asks for shapes alone
        if graph.innermost is not self or FakeTensor in types:
            return func(*args, **kwargs)
        rules = self.rules
        rule = rules.get(id(func)) or rules.of(func)
        if rule.view:
            out = rule.call(*args, **kwargs)
            node = _current_node()
            if node is None or _grad_enabled():
                self.keep(out)
            if graph.has_grown():
                self._note_view(rule, args, kwargs)
            if node is not None and rule.makes_gradient_view:
                self._follow_gradient(node, rule, args[0])
            return out
        if rule.composite:  # some arrive whole, in inference mode most of them
            return self._decompose(rule, func, args, kwargs)
        if rule.name == "add" and _graph_task() != -1:
            shared = shared_tensor(args)
            if shared is not None:
                return self._add_gradients_of(shared, rule, args, kwargs)
            made = self._node_of_both(args)
            if made is not None:
                return self._add_gradients(made.arrives, (), rule, args, kwargs)
        node = _current_node()
        if node is not None:
            if node is not self.rerun_node and not (
                _grad_enabled() and _recomputes(node)
            ):
                return self._backward(node, rule, args, kwargs)
            if self.place is self.outside:
                return self._rerun(node, func, args, kwargs)
        return self._forward(rule, args, kwargs, None)

    def _decompose(self, rule: Rule, func: Any, args: Any, kwargs: Keywords) -> Any:
        """Run an operation as the operations it is made of."""
        before = self.rules
        if rule.listed and before.scope.all is None:
            self.rules = rules_in(Scope(self.policy, True, rule.reason, rule.run))
        try:
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        finally:
            self.rules = before

    def _rerun(self, node: Any, func: Any, args: Any, kwargs: Keywords) -> Any:
        """Rerun an operation for a checkpoint, in the layer where it ran before."""
        known = self.graph.nodes.get(node._sequence_nr())
        before = self.rules
        if known is not None and known.place is not None:
            self.move(known.place)
        if before.scope.all is not None:
            self.rules = before
        try:
            return self._forward(self.rules.of(func), args, kwargs, None)
        finally:
            self.move(self.outside)
            self.rules = before

    def _forward(
        self, rule: Rule, args: Any, kwargs: Keywords, custom: Node | None
    ) -> Any:
        """Run a forward operation, or one of a user's own backward function (`custom`)."""
        tensors = tensors_of(rule, args, kwargs)
        run = rule.run if custom is None else Run.WIDEST
        low_input, wide, scalars, computes, numbers = common_format(
            rule, tensors, gradients=custom is not None
        )
        all_cast = run is Run.LOWER and rule.written is None
        # A scalar, or a number in place of a tensor, may be no value of the format.
        exact = (
            rule.exact
            and not scalars
            and (all_cast or not wide)
            and not (rule.plain and len(tensors) < len(rule.positions))
        )
        given = args
        if (
            rule.paired
            and wide
            and low_input is not None
            and run is Run.WIDEST
            and custom is None
        ):
            raise RuntimeError(
                f"simulated: {rule.name} must be given tensors of one format, as in torch; got "
                f"{low_input.fmt.name} and another. Convert one of them: x.to(y.dtype)."
            )
        if rule.written is not None:
            into = written_format(rule, args, kwargs)
        elif run is Run.OUTPUT or (run is Run.LOWER and (rule.listed or computes)):
            into = self.place.into
        elif run is Run.WIDEST and not wide:
            into = low_input
        else:
            into = None
        if run is Run.LOWER and into is not None:
            args, kwargs = self._cast_all(rule, args, kwargs, into, None)
        if into is not None and scalars and not rule.keeps_scalars_fp32:
            args = round_scalars(rule, args, into)
        out = run_low(rule, args, kwargs, into)
        self.keep(out)
        if (
            into is not None
            and rule.keeps_scalars_fp32
            and isinstance(out, Tensor)
            and not out.dim()
        ):
            into = None  # it may be a loss
        elif into is not None:
            self._round_and_tag(rule, out, into, exact, custom)
            if rule.at_hand:
                self._follow_kernel(rule, args, kwargs, into, out)
        elif self.lowers_all and numbers and not computes:
            tag_as_fp32(out)
        if self.graph.has_grown():
            tags = tags_of(tensors)
            node = Node(into, self.place if custom is None else custom.place)
            pairs = zip(tags, tensors, strict=False)
            node.inputs = tuple(tag for tag, t in pairs if t.requires_grad) or tags
            node.scalars = scalars
            if run is Run.OUTPUT:
                # Its backward runs in FP32, too; `arrives` keeps the format of the result.
                node.into = None
            if rule.passes_gradient_on and into is None and low_input is not None:
                self._cast_passing_gradients(out, node, tags)
            self.graph.note(node)
        if self.record is not None:
            self.record(
                Ran(
                    rule,
                    run,
                    into,
                    custom,
                    given=given,
                    taken=args,
                    out=out,
                    option=kwargs.get("alpha", kwargs.get("rounding_mode")),
                )
            )
        return out

    def _cast_passing_gradients(
        self, out: Tensor, node: Node, inputs: Sequence[FormatTag]
    ) -> None:
        """Cast a gradient passed on to a low input, as autograd does, and tag it as that input's.

        Then it can be added to other gradients of that input. No operation makes this cast, so a
        hook on the autograd node does; `out` has that node once an operation uses it.
        """
        graph = self.graph

        def cast(gradient: Tensor | None, tag: FormatTag) -> Tensor | None:
            if gradient is None or tag.into is None or tag.made_by is not None:
                return gradient
            # the clone becomes an operation of this input, and is cast to its format
            number = _number_of(_current_node())
            graph.nodes[number] = Node(tag.into, node.place, (tag,))
            gradient = torch.clone(gradient)
            graph.nodes[number] = node
            return gradient

        def hook(gradients: Any, _: Any) -> Any:
            here = graph.innermost is self and len(gradients) == len(inputs)
            return tuple(map(cast, gradients, inputs)) if here else None

        def attach(t: Tensor) -> bool:
            own: Any = t.grad_fn
            found = own is not None and graph.nodes.get(_number_of(own)) is node
            if found:
                own.register_hook(hook)
            return found

        tag = tag_of(out) or FormatTag(None)
        tag.on_use = attach
        set_tag(out, tag)

    def cast_before_hooks(self, t: Tensor, into: Rounder) -> None:
        """Cast the gradient of a low tensor as it arrives, as autograd does, for hooks to see.

        Without hooks, the operation that takes it casts it.
        """

        def cast(gradient: Tensor | None) -> Tensor | None:
            # None for a result that was not used; is_grads_batched hands over several at once
            if gradient is None or not has_storage(gradient):
                return None
            tag = tag_of(gradient) or FormatTag(None)
            outside = self.graph.innermost is not self
            if outside or into.leaves_unchanged(tag) or not gradient.dim():
                return None
            here: Any = _current_node()
            if not isinstance(here, BackwardCFunction):
                return gradient.clone()  # the node casts it
            if gradient.requires_grad:  # this cast would end its own graph
                return None
            node = self.graph.nodes.get(_number_of(here))
            count = self._counter("cast", node)
            low = into(gradient, torch.empty_like(gradient), count)
            set_tag(low, FormatTag(into, tag.made_by))
            return low

        t.register_hook(cast)  # type: ignore[no-untyped-call]

    def _note_view(self, rule: Rule, args: Any, kwargs: Keywords) -> None:
        """Remember the node of a view, which shares its input's memory and tag."""
        tags = tags_of(tensors_of(rule, args, kwargs))
        into = tags[0].into if tags and tags[0].made_by is None else None
        self.graph.note(Node(into, self.place, tags))

    def _follow_gradient(self, node: Any, rule: Rule, t: Tensor) -> None:
        """Mark a gradient that becomes a .grad, or comes from a scalar, as FP32.

        The .grad of a tensor that the program itself made low is low.
        """
        number = node._sequence_nr()
        if rule.name == "detach" and number == _ACCUMULATE_GRAD:
            into = low_rounder(node.variable)
            if into is None:
                set_tag(t, FormatTag(None, ALWAYS_FP32))
                return
            tag = tag_of(t)
            if tag is None or not into.leaves_unchanged(tag):
                # Autograd casts it to the leaf's dtype, and this memory is the leaf's own now.
                plain = t.detach()
                into(plain, plain, self._counter("cast", Node(into, self.place)))
            set_tag(t, FormatTag(into))
        elif rule.name == "expand" and not t.dim() and tag_of(t) is None:
            set_tag(t, FormatTag(None, self.graph.nodes.get(number)))

    def _backward(self, node: Any, rule: Rule, args: Any, kwargs: Keywords) -> Any:
        """Run an operation of a backward pass in the format of its node."""
        number = _number_of(node)
        known = self.graph.nodes.get(number)
        if isinstance(node, BackwardCFunction):
            return self._forward(rule, args, kwargs, known or Node(None))
        if known is None:  # adds into .grad, or was made outside
            if number < self.graph.forgotten:
                raise RuntimeError(
                    f"simulated: backward() must follow within {KEPT_NODES} differentiable "
                    f"operations; got more. Use a smaller graph, or checkpointing."
                )
            out = rule.call(*args, **kwargs)
            if number == _ACCUMULATE_GRAD:
                into = low_rounder(node.variable)  # of the tensor whose .grad it is
                if into is None:
                    tag_as_fp32(out)
                else:
                    self._round_and_tag(rule, out, into, False, None)
                if self.record is not None:
                    self.record(
                        Ran(
                            rule,
                            None,
                            into,
                            ALWAYS_FP32,
                            given=args,
                            taken=args,
                            out=out,
                            reason="adds into .grad, in the format of its tensor",
                        )
                    )
            return out
        into = known.into
        given = args
        if into is not None:
            if known.scalars and not rule.keeps_scalars_fp32:
                args = round_scalars(rule, args, into)
            args, kwargs = self._cast_all(rule, args, kwargs, into, known)
        elif known.arrives is not None and args:
            args = (self._cast(rule, args[0], known.arrives, known), *args[1:])
        out = run_low(rule, args, kwargs, into)
        self._round_and_tag(rule, out, into, rule.exact, known)
        if rule.at_hand and into is not None:
            self._follow_kernel(rule, args, kwargs, into, out)
        if self.graph.has_grown():
            self.graph.note(Node(into, known.place))
            self.keep(out)
        if self.record is not None:
            self.record(
                Ran(
                    rule,
                    None,
                    into,
                    known,
                    given=given,
                    taken=args,
                    out=out,
                )
            )
        return out

    def _add_gradients_of(
        self, shared: FormatTag, rule: Rule, args: Any, kwargs: Keywords
    ) -> Any:
        """Add two gradients of one tensor, for autograd, in the format of that tensor.

        A weight's gradients arrive at the cast that autocast made of it, and are added there.
        """
        cast = shared.cast
        into = shared.into if cast is None else cast.into
        if cast is not None and into is not shared.into:
            one = args[0]
            whole = cast.rounded
            same_size = one.numel() == whole.numel()
            view = same_size and sorted(one.shape) != sorted(whole.shape)
            if view or any(m and m.into is None for m in map(tag_of, args[:2])):
                into = None  # not all uses were of the one copy that autocast makes of a weight
        return self._add_gradients(into, (shared,), rule, args, kwargs)

    def _node_of_both(self, args: Any) -> Node | None:
        """Find the node of the tensor whose two gradients autograd is adding, or None.

        The current node made the first gradient. The second came through nodes that only
        pass gradients on, as with a skip connection: the first gradient does not know its tensor.
        """
        current = _current_node()
        if current is None or not is_plain(args[1]):
            return None
        known = self.graph.nodes.get(current._sequence_nr())
        second = tag_of(args[1])
        if known is None or second is None or second.made_by is not known:
            return None
        first = tag_of(args[0]) if is_plain(args[0]) else second
        if first is not None and first.made_by is known:
            return None
        for node, result in current.next_functions:  # which of the node's results
            if (
                node is not None
                and tuple(node._input_metadata[result].shape) == args[1].shape
            ):
                made = self.graph.nodes.get(node._sequence_nr())
                cast = made is not None and any(
                    tag.cast is not None for tag in made.inputs
                )
                # A weight's view.
                return None if cast and len(node.next_functions) == 1 else made
        return None

    def _add_gradients(
        self,
        into: Rounder | None,
        inputs: tuple[FormatTag, ...],
        rule: Rule,
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Add two gradients of one tensor in this format."""
        given = args
        total, other = args[:2]
        tag = tag_of(total)
        maker = None if tag is None else tag.made_by
        node = Node(into, None if maker is None else maker.place, inputs)
        if into is not None:
            if rule.written is None:
                total = self._cast(rule, total, into, node)
            elif tag is not None and not into.leaves_unchanged(tag):
                into(total, total, self._counter("cast", node))
            args = (total, self._cast(rule, other, into, node), *args[2:])
        out = rule.call(*args, **kwargs)
        self._round_and_tag(rule, out, into, False, node)
        if self.graph.has_grown():
            self.graph.note(node)
            self.keep(out)
        if self.record is not None:
            self.record(
                Ran(
                    rule,
                    None,
                    into,
                    node,
                    given=given,
                    taken=args,
                    out=out,
                    reason="adds two gradients of one tensor, in its format",
                )
            )
        return out

    def _round_and_tag(
        self, rule: Rule, out: Any, into: Rounder | None, exact: bool, node: Node | None
    ) -> None:
        """Round fresh results in place, and tag them."""
        results = results_of(out)
        if rule.one_result or rule.run is Run.OUTPUT:
            results = results[:1]
        for t in results:
            if (
                not isinstance(t, Tensor)
                or t.dtype is not _FLOAT32
                or t.layout is not _STRIDED
            ):
                if into is not None and isinstance(t, Tensor) and t.is_complex():
                    raise ValueError(
                        f"simulated: {rule.name} must give real numbers in {into.fmt.name}; got "
                        f"{t.dtype}. Turn autocast off here: torch.autocast('cpu', enabled=False)."
                    )
                continue
            if t.dim() or not rule.keeps_scalars_fp32:
                if into is not None and not exact:
                    plain = t if rule.written is None else t.detach()
                    into(plain, plain, self._counter(rule.name, node))
                set_tag(t, FormatTag(into, node))

    def _follow_kernel(
        self, rule: Rule, args: Any, kwargs: Keywords, into: Rounder, out: Any
    ) -> None:
        """Put the results of torch's own low kernel where the rounded and counted ones are."""
        dtype = into.kernel_dtype
        results = results_of(out)
        if dtype is None or not results[0].is_cpu:
            return

        def low(t: Any) -> Any:
            return t.to(dtype) if holds_float32(t) else t

        args = [low(a) if i in rule.positions else a for i, a in enumerate(args)]
        kwargs = {k: low(a) if k in rule.keywords else a for k, a in kwargs.items()}
        for rounded, real in zip(
            results, results_of(rule.call(*args, **kwargs)), strict=True
        ):
            rounded.copy_(real)

    def _cast_all(
        self,
        rule: Rule,
        args: Any,
        kwargs: Keywords,
        into: Rounder,
        node: Node | None,
    ) -> tuple[Any, Keywords]:
        count = len(args)
        cast = None
        for i in rule.positions:
            if i < count:
                t = args[i]
                # what `_cast` does, without its two calls for each input
                if (
                    isinstance(t, Tensor)
                    and t.dtype is _FLOAT32
                    and t.layout is _STRIDED
                ):
                    tag = tag_of(t)
                    if tag is not None and tag.into is into:
                        continue
                    new = self._cast_number(t, tag, into, node)
                else:
                    new = self._cast(rule, t, into, node)
                if new is not t and i != rule.written:
                    cast = cast or list(args)
                    cast[i] = new
        for name in rule.keywords:
            if name in kwargs and name != rule.written:
                kwargs = kwargs | {name: self._cast(rule, kwargs[name], into, node)}
        return cast or args, kwargs

    def _cast(self, rule: Rule, t: Any, into: Rounder, node: Node | None) -> Any:
        """Return `t` itself if it is in the format of `into` already, else a rounded copy."""
        if not isinstance(t, Tensor):
            many = isinstance(t, list | tuple)
            return [self._cast(rule, x, into, node) for x in t] if many else t
        if t.dtype is not _FLOAT32 or t.layout is not _STRIDED:
            refuse(rule, t)
            return t
        return self._cast_number(t, tag_of(t), into, node)

    def _cast_number(
        self, t: Tensor, tag: FormatTag | None, into: Rounder, node: Node | None
    ) -> Tensor:
        """Do the same for a plain float32 tensor with this tag."""
        if tag is not None:
            if tag.into is into or into.leaves_unchanged(tag):
                return t
            cast = tag.cast
            if cast is not None:
                kept = cast.view_for(t, into, self.epoch)
                if kept is not None:
                    return kept
        gradient = tag is not None and tag.made_by is not None
        if not t.dim() and (self.lowers_all or not (node is None or gradient)):
            return t
        base = t if t._base is None else t._base
        if gradient or (
            base.is_leaf and base.requires_grad and not base.is_inference()
        ):
            return self._cast_once(t, base, into, node)
        # a tensor saved by the forward pass is cast again: autocast would have saved the cast
        counter = self._counter("cast", None) if node is None else None
        return into(t, torch.empty_like(t), counter)

    def _cast_once(
        self, t: Tensor, base: Tensor, into: Rounder, node: Node | None
    ) -> Tensor:
        """Cast a weight, a gradient, or a view of one, by way of a copy that is rounded once."""
        tag = tag_of(base)
        if tag is None:
            tag = FormatTag(None)
            set_tag(base, tag)
        cast = tag.cast
        if cast is None or not cast.fits(base, into):
            cast = RoundedCopy(base, into)
            tag.keep(base, cast)
        if not cast.is_fresh(base, self.epoch):
            into(base, cast.rounded, self._counter("cast", node))
            cast.time = (base._version, self.epoch)
        kept = cast.view_for(t, into, self.epoch)
        if kept is None:
            return into(t, torch.empty_like(t), None)
        return kept
