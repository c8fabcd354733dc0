"""Compute operations on low tensors in float32, round once and count, below autograd.

The tensors are float16, bfloat16 or float8: torch itself does promotion, casts, the dtypes of
gradients, checkpoints and errors. Only the kernels are replaced. A format that torch lacks borrows
a dtype that holds its values.
"""

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from mplab.numbers.formats import (
    FP8_E4M3,
    FP8_E5M2,
    FP32,
    Format,
    Overflow,
    Rounding,
)
from mplab.numbers.options import Stream
from mplab.simulation.autocast import Casts, fake_mode, included, transformations
from mplab.simulation.low_kernels import check_number, join, rounded_number
from mplab.simulation.operations import (
    EXPLICIT,
    Keywords,
    Rule,
    Scope,
    rules_in,
)
from mplab.simulation.places import (
    FORMATS,
    OUTSIDE,
    Place,
    current_node,
    recomputes,
    this_thread,
)
from mplab.simulation.policies import Policy
from mplab.simulation.rounders import Counter, Rounder

_NO_KERNEL = (
    "not implemented for",
    "not supported for",
    "Unsupported",
    "could not create a primitive",
    "doesn't handle types other than",
)
"""What torch says where it has no kernel for a dtype: then one is assumed."""

_PLAIN = frozenset(
    {
        Tensor,
        torch.nn.Parameter,
        torch.nn.UninitializedParameter,
        torch.nn.UninitializedBuffer,
    }
)
"""What a mode may compute with; a DTensor hands over the tensors that it holds."""

_KEPT_SIGNATURES = 1 << 12

_FIRST_SWEEP = 1 << 10
"""Once this many results are remembered, the dead ones among them are forgotten."""

_TAKE_SCALARS = ("mul", "div")
"""Their kernels for the CPU do not round a second operand that is a scalar."""

_OPERANDS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "_addmm_activation": (1, 2),
    "convolution": (0, 1),
    "convolution_backward": (0, 1, 2),
}
"""The operands of products of float32 tensors, which a matrix unit takes in TF32."""


class _Plan(NamedTuple):
    """What to do for one signature of an operation."""

    run: Callable[..., Any]
    """A method of the mode; it takes the mode, the rule, the arguments, and this plan."""
    dtypes: tuple[torch.dtype, ...] = ()
    """Of the results that are tensors; the last one stands for any further."""
    plain: bool = False
    """Whether a conversion changes the dtype alone."""


class Ran(NamedTuple):
    """An operation as it ran, for those who observe a mode.

    Attributes:
        rule: the operation's properties.
        layer: the layer that it belongs to.
        backward: whether it belongs to a backward pass.
        args: its arguments, as it got them.
        kwargs: those that go by name.
        wide: its float32 results before they were rounded; empty where nothing was rounded.
        out: what it gave.
        fmt: the format of its first result.
        reason: why it ran in this format.
        by_torch: whether torch's own low kernel gave the result.
    """

    rule: Rule
    layer: str
    backward: bool
    args: Sequence[Any]
    kwargs: Keywords
    wide: Sequence[Tensor]
    out: Any
    fmt: Format
    reason: str
    by_torch: bool


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run the operations of a thread, with layers, counters and observers.

    Args:
        fmt: the low format.
        policy: which operation runs in which format, and the kernels to follow.
        dtype: what the program writes for `fmt`; if None, the format's own, else bfloat16 or
            float16, whichever holds its values.
        rounding: the direction of all roundings.
        overflow: what becomes of values past the largest finite one.
        stream: source of random bits.
        tally: whether to count what the roundings do.

    Attributes:
        observers: called with each operation that ran, except views.
        cause: why operations run as they do now, if a policy's kernel called them.
        steps: for each optimizer's step that runs, the regions around it.
        regions: how many regions of torch's profiler were entered and not left.
        discards_scalars: whether a result without dimensions will be computed again, in FP32.

    Raises:
        ValueError: no such dtype holds the values of `fmt`.
    """

    def __init__(
        self,
        fmt: Format,
        policy: Policy,
        *,
        dtype: torch.dtype | None,
        rounding: Rounding,
        overflow: Overflow,
        stream: Stream | None,
        tally: bool,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy = policy
        self.tally = tally
        formats = [fmt]
        for _, own in policy.layers:
            if own not in formats:
                formats.append(own)
        self.dtypes = dtypes_for(formats, dtype, policy)
        held = {}
        for each, own_dtype in self.dtypes.items():
            if own_dtype in FORMATS:
                held[own_dtype] = each
        self.rounders = {
            own: Rounder(each, rounding, _overflow(own, each, overflow), stream)
            for own, each in (FORMATS | held).items()
        }
        self.dtype = self.dtypes[fmt]
        # A format that no dtype holds: the operands of products are rounded to it.
        self.operands: Rounder | None = None
        if self.dtype is torch.float32 and fmt != FP32:
            self.operands = Rounder(fmt, rounding, overflow, stream)
        self._usual = rounding is Rounding.TIES_TO_EVEN and overflow is Overflow.IEEE
        self._borrowed = frozenset(own for own in held if FORMATS[own] != held[own])
        # Outside the context, torch's own kernels would round to another format or otherwise.
        self._guards = bool(self._borrowed) or not self._usual
        self._plans: dict[Any, _Plan] = {}
        self.has_run = False
        """Whether any tensor of the format was computed."""
        self.counters: dict[tuple[str, str, bool], Counter] = {}
        self.outside = Place(OUTSIDE, rules_in(Scope(policy, inside=False)), self.dtype)
        self.place = self.outside
        self.rules = self.outside.rules
        self.observers: list[Callable[[Ran], None]] = []
        self.leave: Any = None  # weakly: leaves the context of this mode
        self.casts = Casts(self.converted)
        self.cause = ""
        self.discards_scalars = False
        self.switched_off = False  # whether the program did that by CUDA's name
        self.depth = 0
        self.regions = 0
        self.steps: list[int] = []
        self.results: list[weakref.ref[Tensor]] = []
        self._next_sweep = _FIRST_SWEEP
        self.thread = this_thread()

    def enter(self, place: Place) -> None:
        """Run what follows in a layer, or outside."""
        self.thread.note(self.place)
        self.place = place
        self.rules = place.rules

    def end_step(self) -> None:
        """Leave an optimizer's step, in which nothing is cast; weights may have changed unseen."""
        self.steps.pop()
        self.casts.forget()

    def running(self) -> tuple[Place, bool]:
        """The place that an operation belongs to, and whether a backward pass runs it.

        What a checkpoint runs again outside modules belongs where it ran before.
        """
        node = current_node()
        if node is None:
            return self.place, False
        self.thread.note(self.place)  # the nodes of the forward pass
        own = self.thread.place_of(node) or self.outside
        if not (torch.is_grad_enabled() and recomputes(node)):
            return own, True
        return (own if self.place is self.outside else self.place), False

    def keep(self, out: Any) -> None:
        """Remember a result for as long as it lives: its graph may outlive the context."""
        kept = self.results
        kept += [weakref.ref(t) for t in _tensors(out)]
        if len(kept) > self._next_sweep:
            kept[:] = [result for result in kept if result() is not None]
            self._next_sweep = _FIRST_SWEEP + 2 * len(kept)

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether torch may run compiled functions within; `simulated` has them run eagerly."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # with True torch wraps __torch_dispatch__, at half a microsecond a call
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        inside = self.thread.innermost is self
        if not inside or FakeTensor in types or fake_mode() is not None:
            return func(*args, **kwargs)
        if not _PLAIN.issuperset(types):
            return NotImplemented
        rule = self.rules.get(id(func))
        if rule is None:
            if isinstance(func, torch._ops.HigherOrderOperator):  # flex_attention, say
                with self:
                    return func.py_kernels[EXPLICIT](*args, **kwargs)
            rule = self.rules.of(func)
        if rule.view:
            out = rule.call(*args, **kwargs)
            if rule.nests:
                self.regions += rule.nests
                if self.steps and self.regions < self.steps[-1]:
                    self.end_step()
            if self._guards:
                self.keep(out)
            if current_node() is not None:
                self.thread.note(self.running()[0])
            return out
        place, backward = self.running()
        self._where = place.name, backward
        if backward:
            self.casts.spent = True
        if rule.parts is not None:  # some arrive whole, in inference mode most of them
            whole = rule.composite and not self.cause
            whole = whole and torch.is_inference_mode_enabled()
            low = _low_tensors(args, kwargs)
            if whole or (low and all(map(_is_real, low))):
                with self, included() if whole and _is_cast() else nullcontext():
                    return func._op_dk(rule.parts, *args, **kwargs)
        key = (rule, *map(_signature, args))
        if kwargs:
            key = (*key, *kwargs, *map(_signature, kwargs.values()))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > _KEPT_SIGNATURES:
                self._plans.clear()
            plan = self._plans[key] = self._plan(rule, args, kwargs)
        if self.observers:
            self._unrounded: list[Tensor] = []
        out = plan.run(self, rule, args, kwargs, plan)
        if self._guards:  # also what is wide may follow from a low tensor
            self.keep(out)
        if not self.has_run and plan.run is not Mode._wide:
            seen = [*_low_tensors(args, kwargs), *_tensors(out)]
            self.has_run = any(t.dtype is self.dtype for t in seen)
        if self.observers and plan.run is not Mode._leave:
            self._offer(rule, args, kwargs, out, plan)
        if current_node() is not None:
            self.thread.note(place)
        return out

    def _wide(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run an operation on float32, or of something else than numbers."""
        if self.operands is not None and rule.name in _OPERANDS:
            args = [
                self._rounded_operand(a) if i in _OPERANDS[rule.name] else a
                for i, a in enumerate(args)
            ]
        if isinstance(rule.written, int) and rule.written < len(args):
            self.casts.notice(args[rule.written])
        return rule.call(*args, **kwargs)

    def _rounded_operand(self, t: Any) -> Any:
        if not isinstance(t, Tensor) or t.dtype is not torch.float32:
            return t
        assert self.operands is not None
        return self.operands(t, torch.empty_like(t), self._counter("cast", t))

    def _offer(
        self, rule: Rule, args: Any, kwargs: Keywords, out: Any, plan: _Plan
    ) -> None:
        """Tell the observers what ran."""
        layer, backward = self._where
        found = next(iter(_tensors(out)), None)
        fmt = FP32 if found is None else self.format_of(found)
        reason = self.cause or rule.reason
        wide = tuple(self._unrounded)
        by_torch = plan.run is Mode._call_torch and not rule.own
        ran = Ran(rule, layer, backward, args, kwargs, wide, out, fmt, reason, by_torch)
        for observer in self.observers:
            observer(ran)

    def format_of(self, t: Tensor) -> Format:
        """The format of a tensor's numbers, by its dtype."""
        rounder = self.rounders.get(t.dtype)
        return FP32 if rounder is None else rounder.fmt

    def _counter(self, name: str, x: Tensor) -> Counter | None:
        discarded = self.discards_scalars and not x.dim()
        if discarded or not self.tally:
            return None
        key = name, *self._where
        counter = self.counters.get(key)
        if counter is None:  # not setdefault, which would make a counter each time
            counter = self.counters[key] = Counter()
        return counter

    # What torch would give ----------------------------------------------------------------
    def _plan(self, rule: Rule, args: Any, kwargs: Keywords) -> _Plan:
        """Find out what to do for a signature of an operation, at its first call."""
        low = _low_tensors(args, kwargs)
        asked = _asked_dtype(rule, args, kwargs)
        if not low and asked not in FORMATS:
            return _Plan(Mode._wide)
        if not all(map(_is_real, low)):
            return _Plan(Mode._leave)
        if rule.converts:
            into_tensor = rule.name == "copy"
            source = args[into_tensor]
            dtype = args[0].dtype if into_tensor else asked or source.dtype
            if source.dtype is dtype or not _is_real(source):
                return _Plan(Mode._move)
            others = kwargs.keys() - {"dtype", "layout", "device"}
            here = source.is_cpu and kwargs.get("device", source.device).type == "cpu"
            return _Plan(Mode._convert, (dtype,), here and not (into_tensor or others))
        if self._is_at_hand(rule, low):
            return _Plan(Mode._call_torch)
        if not low or rule.draws or rule.own:
            return _Plan(Mode._move)
        tensors = [a for a in args if isinstance(a, Tensor)]
        simple = rule.simple and len(low) == len(tensors) and not kwargs
        run = Mode._compute_simply if simple else Mode._compute
        alike = {t.dtype for t in tensors} == {low[0].dtype}
        if rule.product and alike and "out" not in kwargs:
            return _Plan(run, (low[0].dtype,))
        # Torch's own kernel is asked for the dtypes of the results, or for its error.
        apart, apart_by_name = _apart(rule, args, kwargs)
        try:
            with _disable_current_modes():  # nobody else need see this
                out = rule.call(*apart, **apart_by_name)
        except (RuntimeError, NotImplementedError) as error:
            return _Plan(run, self._assumed(error, low))
        results = list(_tensors(out))
        if rule.moves or not all(map(_is_real, results)):
            return _Plan(Mode._move)
        if rule.exact and not self._borrowed:
            return _Plan(Mode._move)
        return _Plan(run, tuple(t.dtype for t in results))

    def _assumed(self, error: Exception, low: list[Tensor]) -> tuple[torch.dtype, ...]:
        """The dtype of results where torch has no kernel for that of the inputs."""
        dtypes = {t.dtype for t in low}
        passes: tuple[str, ...] = _NO_KERNEL
        if self.policy.kernels == "cuda":  # which refuses other numbers than the CPU
            passes = (*passes, "without overflow")
        if len(dtypes) > 1 or not any(text in str(error) for text in passes):
            raise error
        return tuple(dtypes)

    def _is_at_hand(self, rule: Rule, low: list[Tensor]) -> bool:
        """Whether torch's own kernel gives the results: here, and rounding as this does."""
        if self.policy.kernels != "cpu" or not self._usual:
            return False
        if rule.product or (self._borrowed and not low):
            return False
        return all(
            t.is_cpu and self.rounders[t.dtype].kernel_dtype is t.dtype for t in low
        )

    # Kernels ------------------------------------------------------------------------------
    def _round(self, rule: Rule, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Round fresh float32 numbers in place, and store them in the dtype."""
        if self.observers:
            self._unrounded.append(x.clone())
        if self.tally or not self._usual or dtype in self._borrowed:
            name = "cast" if rule.converts else rule.name
            self.rounders[dtype](x, x, self._counter(name, x))
        return cast(x, dtype)

    def _leave(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run an operation that is not simulated: on shapes alone, or sparse."""
        return rule.call(*args, **kwargs)

    def _move(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run torch's own kernel, which rounds nothing, or draws random numbers."""
        out = rule.call(*args, **kwargs)
        for t in _tensors(out) if self._borrowed and not rule.moves else ():
            if t.dtype in self._borrowed and _is_real(t) and not t._is_zerotensor():
                t.copy_(self._round(rule, t.float(), t.dtype))
        return out

    def _call_torch(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run torch's own low kernel, and count what one rounding of a float32 result does."""
        looks = self.tally or bool(self.observers)
        counts = looks and not (rule.exact or rule.moves or rule.own or rule.draws)
        before, before_named = args, kwargs
        if counts and rule.writes:
            before, before_named = _apart(rule, args, kwargs)
        try:
            out = rule.call(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            assumed = self._assumed(error, _low_tensors(args, kwargs))
            return self._compute(rule, args, kwargs, _Plan(Mode._compute, assumed))
        if counts:
            wide = rule.call(
                *self._all_widened(before), **self._all_widened(before_named)
            )
            for t, real in zip(_tensors(wide), _tensors(out), strict=True):
                if real.dtype in FORMATS and _is_real(t):
                    if self.observers:
                        self._unrounded.append(t.clone())
                    self.rounders[real.dtype](t, t, self._counter(rule.name, t))
        return out

    def converted(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert a tensor for the policy, past the mode where nobody looks: in half the time."""
        looks = self.observers or torch._C._len_torch_dispatch_stack() > 1
        narrows = t.dtype is torch.float32
        as_torch = self._usual and not self._borrowed
        if looks or not (as_torch and (narrows or dtype is torch.float32)):
            return t.to(dtype)
        if not (t.is_cpu and _is_real(t) and type(t) in _PLAIN) or transformations():
            return t.to(dtype)
        if narrows and self.tally:
            place, backward = self.running()
            self._where = place.name, backward
            counter = self._counter("cast", t)
        # A private guard of torch: below it no mode is asked, and a mode added later is not either,
        # which is why `looks` counts those on the stack.
        with torch._C._DisableTorchDispatch():
            if narrows and self.tally:
                self.rounders[dtype](t, torch.empty_like(t), counter)
            return cast(t, dtype)

    def _convert(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Convert to a dtype or copy into a tensor of one."""
        (dtype,) = plan.dtypes
        into_tensor = rule.name == "copy"
        source = args[into_tensor]
        if source.dtype in self._borrowed:
            source = self._widened(source)
        if dtype in FORMATS:
            if not self._usual or dtype in self._borrowed:
                source = self._round(rule, source.to(torch.float32, copy=True), dtype)
            elif self.tally and source.dtype not in FORMATS:
                wide = source.float()
                if self.observers:
                    self._unrounded.append(wide)
                counter = self._counter("cast", wide)
                self.rounders[dtype](wide, torch.empty_like(wide), counter)
        if into_tensor:
            return rule.call(args[0], source, *args[2:], **kwargs)
        if plan.plain:
            return cast(source, dtype)
        return rule.call(source, *args[1:], **kwargs)

    def _widened(self, t: Any) -> Any:
        """A float32 copy; of a borrowed dtype also rounded, as it may come from outside."""
        if not isinstance(t, Tensor):
            by_position = isinstance(t, torch.dtype) and t in FORMATS  # of a gradient
            return torch.float32 if by_position else t
        if t.dtype not in FORMATS:
            return t
        wide = t.float()
        if t.dtype in self._borrowed and not t._is_zerotensor():
            self.rounders[t.dtype](wide, wide, None)
        return wide

    def _all_widened(self, values: Any) -> Any:
        """All arguments of a call, by position or by name."""
        if isinstance(values, dict):
            return {name: _map(self._widened, a) for name, a in values.items()}
        return [_map(self._widened, a) for a in values]

    def _compute_simply(
        self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan
    ) -> Any:
        """Run the float32 kernel, where all tensors are low and nothing else is to be done."""
        out = rule.call(*map(self._widened, args))
        return self._stored(rule, out, plan.dtypes)

    def _compute(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run the float32 kernel, round its results, and store them where torch would."""
        dtype = self._common(rule, args, kwargs)
        into = self.rounders.get(dtype)
        wide_args = self._all_widened(args)
        wide_kwargs = self._all_widened(kwargs)
        if into is not None:
            wide_args = round_scalars(rule, wide_args, into)
        out = run_low(rule, wide_args, wide_kwargs, into)
        written: dict[int, Tensor] = {}
        for old, new in _written(rule, (args, kwargs), (wide_args, wide_kwargs)):
            if old is not new:
                if old.shape != new.shape:  # `out=`
                    old.resize_(new.shape)
                old.copy_(self._round(rule, new, old.dtype))
            elif into is not None and rule.joins and old.dtype is torch.float32:
                # computed in the inputs' dtype, and widened only then
                old.copy_(self._round(rule, old, dtype))
            written[id(new)] = old
        return self._stored(rule, out, plan.dtypes, written)

    def _stored(
        self,
        rule: Rule,
        out: Any,
        dtypes: tuple[torch.dtype, ...],
        written: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> Any:
        """Round the results, and store them in these dtypes; `written` is stored already."""
        dtype = dtypes[-1] if dtypes else None
        if isinstance(out, Tensor) and not written:
            low = dtypes[0] in FORMATS and out.dtype is torch.float32
            return self._round(rule, out, dtypes[0]) if low else out
        wanted = iter(dtypes)

        def stored_as_torch_would(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            own = next(wanted, dtype)
            if id(t) in written:
                return written[id(t)]
            if own not in FORMATS or t.dtype is not torch.float32:
                return t
            return self._round(rule, t, own)

        return _map(stored_as_torch_would, out)

    def _common(self, rule: Rule, args: Any, kwargs: Keywords) -> Any:
        """The one low dtype that the inputs have; scalars count if all are such."""
        given = [args[i] for i in rule.positions if i < len(args)]
        given += [kwargs.get(name) for name in rule.keywords if name != rule.written]
        numbers = [t for t in _tensors(given) if t.is_floating_point()]
        ruling = [t for t in numbers if t.dim()] or numbers
        dtypes = {t.dtype for t in ruling}
        return dtypes.pop() if len(dtypes) == 1 else None


# Low kernels ---------------------------------------------------------------------------------
def run_low(rule: Rule, args: Any, kwargs: Keywords, into: Rounder | None) -> Any:
    """Run an operation in float32, by what a low kernel does otherwise if `into` is low."""
    if into is None or into.fmt.precision >= FP32.precision:
        return rule.call(*args, **kwargs)
    if rule.joins:
        args = join(list(args), into)
    asked = kwargs.get("dtype")
    if asked is None or asked is torch.float32:
        for i, name in rule.checked:
            check_number(args[i] if i < len(args) else kwargs.get(name), into)
    for i, name in rule.rounded:
        if i < len(args):
            if not isinstance(args[i], Tensor):
                args = list(args)
                args[i] = rounded_number(args[i], into)
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
        kept = whole or t.dtype is not torch.float32
        return t if kept else into(t, torch.empty_like(t), None)

    found = list(args)
    for i in rule.positions:
        if i < len(found):
            found[i] = held(i, found[i])
    return found


# Dtypes and formats --------------------------------------------------------------------------
def holds(dtype: torch.dtype, fmt: Format) -> bool:
    """Whether every value of a format is one of a low dtype's.

    Examples:
        >>> holds(torch.bfloat16, FP8_E4M3), holds(torch.float16, BF16)
        (True, False)
    """
    own = FORMATS[dtype]
    return (
        fmt.precision <= own.precision
        and fmt.max_finite <= own.max_finite
        and fmt.min_subnormal >= own.min_subnormal
    )


def dtypes_for(
    formats: Sequence[Format], asked: torch.dtype | None, policy: Policy
) -> dict[Format, torch.dtype]:
    """The dtypes that hold the formats of a simulation: their own, or borrowed ones.

    Of formats that torch lacks, or in which it promotes nothing, the first that is free of bfloat16
    and float16. A single format that neither holds is stored in float32.
    """
    found: dict[Format, torch.dtype] = {}
    own = {its: each for each, its in FORMATS.items()}
    if not policy.written:  # torch promotes nothing in one byte
        del own[FP8_E4M3], own[FP8_E5M2]
    usual = (torch.bfloat16, torch.float16) if asked is None else (asked,)
    for fmt in sorted(formats, key=lambda fmt: fmt not in own):
        first = (own[fmt],) if asked is None and fmt in own else ()
        free = [each for each in (*first, *usual) if each not in found.values()]
        held = [each for each in free if each in FORMATS and holds(each, fmt)]
        alone = len(formats) == 1 and not policy.written and asked is None
        if held:
            found[fmt] = held[0]
        elif alone or fmt == FP32:
            found[fmt] = torch.float32
        else:
            one = "no dtype left" if asked is None else f"{asked} does not hold"
            if policy.written and asked is None:
                one = "neither bfloat16 nor float16 holds"
            raise ValueError(
                f"simulated: a dtype of the program must hold the values of fmt; got {fmt.name}, "
                f"which {one}. Use another policy."
            )
    return found


def _overflow(dtype: torch.dtype, fmt: Format, asked: Overflow) -> Overflow:
    """As torch casts to the dtype: its casts to float8_e4m3fn saturate since 2.12."""
    infinite = torch.full((1,), math.inf, dtype=torch.float32)
    largest = infinite.to(dtype).float()
    saturates = bool(largest.isfinite())
    if fmt == FORMATS[dtype] and saturates:
        return Overflow.SATURATE
    return asked


_CASTS = {
    torch.float32: Tensor.float,
    torch.float16: Tensor.half,
    torch.bfloat16: Tensor.bfloat16,
}
"""They take two thirds of the time of `to`."""


def cast(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a tensor, as quickly as torch can."""
    method = _CASTS.get(dtype)
    return t.to(dtype) if method is None else method(t)


def _is_real(t: Tensor) -> bool:
    """Whether a tensor is dense, has memory, and holds no complex numbers."""
    dense = t.layout is torch.strided and not (t.is_meta or t.is_nested)
    return dense and not t.is_complex()


# Arguments -----------------------------------------------------------------------------------
def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments, those in lists included."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        for each in values.values():
            yield from _tensors(each)
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _tensors(each)


def _low_tensors(args: Any, kwargs: Keywords) -> list[Tensor]:
    """The tensors of low dtypes among arguments; no operation takes lists of lists."""
    found = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        for t in value if isinstance(value, list | tuple) else (value,):
            if isinstance(t, Tensor) and t.dtype in FORMATS:
                found.append(t)
    return found


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each in a list or tuple."""
    if isinstance(value, list | tuple):
        return type(value)(_map(function, each) for each in value)
    return function(value)


def _is_cast() -> bool:
    """Whether the program has autocast on.

    Below a mode it is always off, so the state at the entry to the dispatcher is asked.
    """
    with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
        return any(map(torch.is_autocast_enabled, ("cpu", "cuda")))


def _asked_dtype(rule: Rule, args: Any, kwargs: Keywords) -> Any:
    """The dtype that is asked for; in inference mode `to` arrives whole, with it by position."""
    at = rule.dtype_at
    return args[at] if at is not None and at < len(args) else kwargs.get("dtype")


def _written(rule: Rule, *calls: tuple[Any, Keywords]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors that an operation writes to, in one call and in another."""
    for i, name in rule.writes:
        values = [args[i] if i < len(args) else by.get(name) for args, by in calls]
        yield from zip(*map(_tensors, values), strict=True)


def _apart(rule: Rule, args: Any, kwargs: Keywords) -> tuple[list[Any], Keywords]:
    """The arguments with copies of those that the operation writes to."""
    apart = list(args)
    apart_by_name = dict(kwargs)
    for i, name in rule.writes:
        if i < len(args):
            apart[i] = _map(_copy, args[i])
        elif name in kwargs:
            apart_by_name[name] = _map(_copy, kwargs[name])
    return apart, apart_by_name


def _copy(t: Any) -> Any:
    return t.clone() if isinstance(t, Tensor) else t


def _signature(value: Any) -> Any:
    """What may decide how an operation runs: dtypes, flags, kinds; no shape, no number."""
    if isinstance(value, Tensor):
        place = value.is_cpu or value.device.type
        return value.dtype, value.dim() > 0, place, value.layout, value.is_nested
    kind = type(value)
    if kind in (int, float, complex):
        return kind
    if kind in (list, tuple):
        return tuple(map(_signature, value))
    return value
