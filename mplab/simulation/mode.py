"""Compute operations on low tensors in float32, round once and count, below autograd.

The tensors are float16, bfloat16 or float8: torch itself does promotion, casts, the dtypes of
gradients, checkpoints and errors. Only the kernels are replaced. A format that torch lacks borrows
a dtype that holds its values.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

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
from mplab.simulation.autocast import Casts, fake_mode, on_below_mode, transformations
from mplab.simulation.low_kernels import check_number, rounded_number
from mplab.simulation.operations import (
    CONVERSIONS,
    EXACT,
    EXPLICIT,
    FILLS,
    MOVING,
    PRODUCTS,
    Keywords,
    Rule,
    Scope,
    argument,
    asked_dtype,
    rules_in,
    tensors_in,
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

_SCRATCH = ("_ctc_loss",)
"""Their second result is memory for the backward pass, not all of which is written: it stays FP32.
"""

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

_TAKE_SCALARS = ("mul", "div")
"""Their kernels for the CPU do not round a second operand that is a scalar."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

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
    rounder: Rounder | None = None
    """Of the inputs' format, if a low kernel does more there than a float32 kernel and a rounding.
    """
    counts: bool = False
    """Whether torch's own kernel rounds, which is counted."""


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
        observers: called with each operation that ran, except views: with its rule, its layer,
            whether a backward pass ran it, its arguments by position, its results, and why it ran
            so.
        cause: why operations run as they do now, if a policy's kernel called them.
        steps: for each optimizer's step that runs, the regions around it.
        regions: how many regions of torch's profiler were entered and not left.
        compiles: whether `torch.compile` was loaded when the context began.
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
        formats = dict.fromkeys([fmt, *(own for _, own in policy.layers)])
        self.dtypes = dtypes_for(list(formats), dtype, policy)
        held = {own: each for each, own in self.dtypes.items() if own in FORMATS}
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
        # The dtypes in which torch has kernels that compute in their format.
        self.with_kernels = {torch.float16, torch.bfloat16} - self._borrowed
        # Outside the context, torch's own kernels would round to another format or otherwise.
        self._guards = bool(self._borrowed) or not self._usual
        self._plans: dict[Any, _Plan] = {}
        self.has_run = False
        """Whether any tensor of the format was computed."""
        self.counters = defaultdict[tuple[str, str, bool], Counter](Counter)
        self.outside = Place(OUTSIDE, rules_in(Scope(policy, inside=False)), self.dtype)
        self.place = self.outside
        self.observers: list[Callable[[Rule, str, bool, Any, Any, str], None]] = []
        self.leave: Any = None  # weakly: leaves the context of this mode
        self.casts = Casts(self.cast_for_policy)
        self.cause = ""
        self.discards_scalars = False
        self.switched_off = False  # whether the program did that by CUDA's name
        self.depth = 0
        self.regions = 0
        self.steps: list[int] = []
        # What was computed and lives: its graph may outlive the context.
        self.results = WeakValueDictionary[int, Tensor]()
        self.thread = this_thread()
        self.compiles = False

    def enter(self, place: Place) -> None:
        """Run what follows in a layer, or outside."""
        self.thread.note(self.place)
        self.place = place

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

    supports_higher_order_operators = True

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Whether torch may run compiled functions within; `simulated` has them run eagerly.

        Where torch.compile was not loaded when the context began, torch itself does, unless one
        must be compiled as a whole.
        """
        return self.compiles

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # With True torch wraps __torch_dispatch__, at half a microsecond a call
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # The modes of contexts around the innermost one stay on torch's stack. Fake tensors are
        # shapes alone, in which torch.export runs a program.
        inside = self.thread.innermost is self
        if not inside or FakeTensor in types or fake_mode() is not None:
            return func(*args, **kwargs)
        if not _PLAIN.issuperset(types):
            return NotImplemented
        rule = self.place.rules[func]
        if rule is None:  # an operator of functions, such as flex_attention
            with self:
                return func.py_kernels[EXPLICIT](*args, **kwargs)
        place, backward = self.running()
        self._where = place.name, backward
        if backward:
            self.casts.forget()  # as at the end of a region of autocast
        if rule.view:
            out = rule.call(*args, **kwargs)
            if rule.nests:
                self._nest(rule.nests)
        elif rule.parts is not None and _has_visible_parts(rule, args, kwargs):
            # Where autocast called the operation, it has cast its inputs, and leaves its parts.
            with self, nullcontext() if self.cause else on_below_mode():
                return func._op_dk(rule.parts, *args, **kwargs)
        else:
            out = self._run(rule, args, kwargs)
        if self._guards:  # also what is wide may follow from a low tensor
            for t in tensors_in(out):
                self.results[id(t)] = t
        if current_node() is not None:  # nodes that a backward pass made
            self.thread.note(place)
        return out

    def _nest(self, nests: int) -> None:
        """Count regions of torch's profiler: an optimizer's step ends with that around it."""
        # Regions are counted because torch's handles of them cannot be compared. So a step that
        # raises with a region of its own still open does not end before its context does.
        self.regions += nests
        if self.steps and self.regions < self.steps[-1]:
            self.steps.pop()

    def _run(self, rule: Rule, args: Any, kwargs: Keywords) -> Any:
        """Run an operation as planned for its signature, and tell the observers."""
        if rule.writes:
            self.casts.notice(t for (t,) in _written(rule, (args, kwargs)))
        # What torch would give hangs on dtypes and kinds of arguments: it is asked once for each.
        key = (rule, *map(_signature, args))
        if kwargs:
            key = (*key, *kwargs, *map(_signature, kwargs.values()))
        plan = self._plans.get(key)
        known = plan is not None
        if plan is None:
            if len(self._plans) > _KEPT_SIGNATURES:
                self._plans.clear()
            plan = self._plan(rule, args, kwargs)
        out = plan.run(self, rule, args, kwargs, plan)
        # It did not raise; but of nothing at all torch checks less.
        if not known and all(t.numel() for t in tensors_in((args, kwargs))):
            self._plans[key] = plan
        if not (known or self.has_run):
            seen = tensors_in((args, kwargs, out))
            self.has_run = any(t.dtype is self.dtype for t in seen)
        for observer in self.observers:
            observer(rule, *self._where, args, out, self.cause or rule.reason)
        return out

    def format_of(self, t: Tensor) -> Format:
        """The format of a tensor's numbers, by its dtype."""
        rounder = self.rounders.get(t.dtype)
        return FP32 if rounder is None else rounder.fmt

    def _counter(self, name: str, x: Tensor) -> Counter | None:
        discarded = self.discards_scalars and not x.dim()
        if discarded or not self.tally:
            return None
        return self.counters[name, *self._where]

    # What torch would give ----------------------------------------------------------------
    def _plan(self, rule: Rule, args: Any, kwargs: Keywords) -> _Plan:
        """Find out what to do for a signature of an operation, at its first call."""
        low = _low_tensors(args, kwargs)
        asked = asked_dtype(rule, args, kwargs)
        dtypes = {t.dtype for t in low}
        unknown = not all(map(_is_real, low))  # sparse, or shapes alone
        if unknown or not (low or asked in FORMATS):
            return _Plan(Mode._leave)
        if rule.name in CONVERSIONS:
            into_tensor = rule.name == "copy"
            source = args[into_tensor]
            dtype = args[0].dtype if into_tensor else asked or source.dtype
            if source.dtype is not dtype and _is_real(source):
                return _Plan(Mode._convert, (dtype,))
        silent = rule.own or rule.draws or rule.name in MOVING
        exact = rule.name in EXACT
        if self._is_at_hand(rule, low):
            return _Plan(Mode._call_torch, counts=not (silent or exact))
        if not low or silent or (exact and not self._borrowed):
            return _Plan(Mode._call_torch)
        alike = dtypes == {a.dtype for a in args if isinstance(a, Tensor)}
        # Of products no kernel is asked: in FP16 one may take seconds on a CPU.
        if rule.name in PRODUCTS and alike and len(dtypes) == 1 and "out" not in kwargs:
            return self._computed(rule, args, kwargs, tuple(dtypes))
        # Torch's own kernel is asked for the dtypes of the results, or for its error.
        own_args, own_kwargs = args, kwargs
        if rule.writes:
            own_args, own_kwargs = _map(_copy, (args, kwargs))
        try:
            with _disable_current_modes():  # nobody else need see this
                out = rule.call(*own_args, **own_kwargs)
        except (RuntimeError, NotImplementedError) as error:
            return self._assumed(error, rule, args, kwargs)
        results = list(tensors_in(out))
        if not all(map(_is_real, results)):
            return _Plan(Mode._call_torch)
        return self._computed(rule, args, kwargs, tuple(t.dtype for t in results))

    def _computed(
        self, rule: Rule, args: Any, kwargs: Keywords, dtypes: tuple[torch.dtype, ...]
    ) -> _Plan:
        """Plan to compute in float32, and to round results to these dtypes."""
        low = _low_tensors(args, kwargs)
        rounder = None
        special = rule.writes or rule.own_way or rule.rounded or rule.checked
        if special or len(low) < len(list(tensors_in((args, kwargs)))):
            rounder = self.rounders.get(_common(rule, args, kwargs))
        return _Plan(Mode._compute, dtypes, rounder)

    def _assumed(
        self, error: Exception, rule: Rule, args: Any, kwargs: Keywords
    ) -> _Plan:
        """Plan as if torch had a kernel for the dtype of the inputs, where it has none."""
        dtypes = {t.dtype for t in _low_tensors(args, kwargs)}
        passes: tuple[str, ...] = _NO_KERNEL
        if self.policy.kernels == "cuda":  # which refuses other numbers than the CPU
            passes = (*passes, "without overflow")
        missing = any(text in str(error) for text in passes)
        if rule.own or rule.draws or len(dtypes) != 1 or not missing:
            raise error
        if rule.name in _SCRATCH:
            return self._computed(rule, args, kwargs, (*dtypes, torch.float32))
        return self._computed(rule, args, kwargs, tuple(dtypes))

    def _is_at_hand(self, rule: Rule, low: list[Tensor]) -> bool:
        """Whether torch's own kernel gives the results: here, and rounding as this does."""
        if self.policy.kernels != "cpu" or not self._usual:
            return False
        if rule.name in PRODUCTS or (self._borrowed and not low):
            return False
        return all(t.is_cpu and t.dtype in self.with_kernels for t in low)

    # Kernels ------------------------------------------------------------------------------
    def _round(self, rule: Rule, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Round fresh float32 numbers in place, and store them in the dtype."""
        if self.tally or not self._usual or dtype in self._borrowed:
            name = "cast" if rule.name in CONVERSIONS else rule.name
            self.rounders[dtype](x, x, self._counter(name, x))
        return cast(x, dtype)

    def _leave(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run what is not low, or not simulated; but a matrix unit reads FP32 in its own format."""
        if self.operands is not None and rule.name in _OPERANDS:
            args = list(args)
            for i in _OPERANDS[rule.name]:
                t = args[i]
                if isinstance(t, Tensor) and t.dtype is torch.float32:
                    rounded = torch.empty_like(t)
                    args[i] = self.operands(t, rounded, self._counter("cast", t))
        return rule.call(*args, **kwargs)

    def _call_torch(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run torch's own low kernel, and count what one rounding of a float32 result does.

        A plan knows no shapes: for some, torch has no kernel though it had one for others.
        """
        counts = plan.counts and self.tally
        before = args, kwargs
        if counts and rule.writes:
            before = _map(_copy, before)
        try:
            out = rule.call(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            plan = self._assumed(error, rule, args, kwargs)
            return self._compute(rule, args, kwargs, plan)
        if counts:
            wide_args, wide_kwargs = _map(self._widened, before)
            wide = rule.call(*wide_args, **wide_kwargs)
            for t, real in zip(tensors_in(wide), tensors_in(out), strict=True):
                if real.dtype in FORMATS and _is_real(t):
                    self.rounders[real.dtype](t, t, self._counter(rule.name, t))
        # What draws or fills does not know that the dtype stands for another format.
        if self._borrowed and (rule.name not in MOVING or rule.name in FILLS):
            for t in tensors_in(out):
                if t.dtype in self._borrowed and _is_real(t) and not t._is_zerotensor():
                    t.copy_(self._round(rule, t.float(), t.dtype))
        return out

    def cast_for_policy(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert an operation's input, past the mode where nobody looks.

        That takes a third of the time; a step of an MLP is a sixth faster.
        """
        looks = self.observers or torch._C._len_torch_dispatch_stack() > 1
        unusual = self._guards or transformations() or type(t) not in _PLAIN
        traced = torch._C._get_tracing_state() is not None  # sizes are tensors then
        if looks or unusual or traced or not _is_real(t):
            return t.to(dtype)
        # A private guard of torch: below it no mode is asked, and a mode added later is not either,
        # which is why `looks` counts those on the stack.
        with torch._C._DisableTorchDispatch():
            if self.tally and t.dtype not in FORMATS:
                place, backward = self.running()
                self._where = place.name, backward
                counter = self._counter("cast", t)
                self.rounders[dtype](t, torch.empty_like(t), counter)
            return cast(t, dtype)

    def _convert(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Convert to a dtype or copy into a tensor of one."""
        (dtype,) = plan.dtypes
        into_tensor = rule.name == "copy"
        source = args[into_tensor]
        if source.dtype in self._borrowed:
            source = self._widened(source)
        # Usual roundings are left to torch's cast; here they are only counted.
        rounds = not self._usual or dtype in self._borrowed
        counts = self.tally and source.dtype not in FORMATS
        if dtype in FORMATS and (rounds or counts):
            source = self._round(rule, source.to(torch.float32, copy=True), dtype)
        if into_tensor:
            return rule.call(args[0], source, *args[2:], **kwargs)
        here = kwargs.get("device", source.device) == source.device
        if here and "memory_format" not in kwargs:
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

    def _compute(self, rule: Rule, args: Any, kwargs: Keywords, plan: _Plan) -> Any:
        """Run the float32 kernel, round its results, and store them where torch would."""
        rounder = plan.rounder
        wide_args = [_map(self._widened, a) for a in args]
        wide_kwargs = _map(self._widened, kwargs)
        out = run_low(rule, wide_args, wide_kwargs, rounder)
        written: dict[int, Tensor] = {}
        for old, new in _written(rule, (args, kwargs), (wide_args, wide_kwargs)):
            if old is not new:  # a widened copy was written to
                if old.shape != new.shape:  # `out=`
                    old.resize_(new.shape)
                old.copy_(self._round(rule, new, old.dtype))
            elif rounder is not None and rule.joins and old.dtype is torch.float32:
                # computed in the inputs' dtype, and widened only then
                low = _common(rule, args, kwargs)
                old.copy_(self._round(rule, old, low))
            written[id(new)] = old
        return self._stored(rule, out, plan.dtypes, written)

    def _stored(
        self,
        rule: Rule,
        out: Any,
        dtypes: tuple[torch.dtype, ...],
        written: Mapping[int, Tensor],
    ) -> Any:
        """Round the results, and store them in these dtypes; `written` is stored already."""
        dtype = dtypes[-1] if dtypes else None
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


# Low kernels ---------------------------------------------------------------------------------
def run_low(rule: Rule, args: Any, kwargs: Keywords, rounder: Rounder | None) -> Any:
    """Run an operation in float32, by what a low kernel does otherwise if a rounder is given."""
    if rounder is None:
        return rule.call(*args, **kwargs)
    args = round_operands(rule, args, rounder)
    if kwargs.get("dtype") in (None, torch.float32):
        for i, name in rule.checked:
            check_number(argument(args, kwargs, i, name), rounder)
    for i, name in rule.rounded:
        if i < len(args):
            args[i] = rounded_number(args[i], rounder)
        elif name in kwargs:
            kwargs = kwargs | {name: rounded_number(kwargs[name], rounder)}
    if rule.own_way is None:
        return rule.call(*args, **kwargs)
    written = [name for _, name in rule.writes]
    others = {name: x for name, x in kwargs.items() if name not in written}
    call = getattr(torch.ops.aten, rule.name)  # which writes to nothing
    out = rule.own_way(call, rounder, *args, **others)
    for i, name in rule.writes:
        target = argument(args, kwargs, i, name)
        if name in kwargs:  # `out=`
            target.resize_(out.shape)
        out = target.copy_(out)
    return out


def round_operands(rule: Rule, args: Any, rounder: Rounder) -> list[Any]:
    """Round FP32 scalars and integers to the low format of the other inputs, as torch does."""
    rounded = list(args)
    written = [i for i, _ in rule.writes]
    for i in rule.positions:
        t = args[i] if i < len(args) and i not in written else None
        if not isinstance(t, Tensor):
            continue
        if t.dim():
            if rule.joins and t.dtype in _INTEGERS:
                wide = t.float()
                rounded[i] = rounder(wide, wide, None)
            continue
        if rule.name != "fill" and any(i == at for at, _ in rule.checked):
            check_number(t.item(), rounder)
        taken = i == 1 and rule.name in _TAKE_SCALARS
        if t.dtype is torch.float32 and not taken:
            rounded[i] = rounder(t, torch.empty_like(t), None)
    return rounded


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
            names = ", ".join(map(str, usual))
            raise ValueError(
                f"simulated: a dtype that is still free, of {names}, must hold the values of fmt; "
                f"got {fmt.name}. Use another policy."
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
def _low_tensors(args: Any, kwargs: Keywords) -> list[Tensor]:
    """The tensors of low dtypes among arguments."""
    return [t for t in tensors_in((args, kwargs)) if t.dtype in FORMATS]


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each in a list, a tuple or a dictionary."""
    if isinstance(value, list | tuple):
        return type(value)(_map(function, each) for each in value)
    if isinstance(value, dict):
        return {name: _map(function, each) for name, each in value.items()}
    return function(value)


def _has_visible_parts(rule: Rule, args: Any, kwargs: Keywords) -> bool:
    """Whether an operation runs as its parts: nested tensors have kernels of their own for some."""
    if any(t.is_nested for t in tensors_in((args, kwargs))):
        return False
    return rule.composite or bool(_low_tensors(args, kwargs))


def _written(rule: Rule, *calls: tuple[Any, Keywords]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors that an operation writes to, in one call and in another."""
    for i, name in rule.writes:
        values = [argument(args, kwargs, i, name) for args, kwargs in calls]
        yield from zip(*map(tensors_in, values), strict=True)


def _common(rule: Rule, args: Any, kwargs: Keywords) -> Any:
    """The one dtype that the inputs have, if it is one; scalars count if all are such."""
    given = [args[i] for i in rule.positions if i < len(args)]
    written = [name for _, name in rule.writes]
    given += [value for name, value in kwargs.items() if name not in written]
    numbers = [t for t in tensors_in(given) if t.is_floating_point()]
    ruling = [t for t in numbers if t.dim()] or numbers
    dtypes = {t.dtype for t in ruling}
    return dtypes.pop() if len(dtypes) == 1 else None


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
