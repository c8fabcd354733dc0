"""Run a program's own low tensors with kernels that compute in float32, round once and count.

The tensors are float16, bfloat16 or float8, as the program made them: torch itself does promotion,
casts, the dtypes of gradients, autocast, checkpoints and errors. Only the kernels are replaced,
below autograd. A format that torch lacks borrows a dtype that holds its values.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mplab.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    Format,
    Overflow,
    Rounding,
)
from mplab.numbers.rounding import Stream
from mplab.simulation.dispatch import (
    LayeredMode,
    Ran,
    node_of_backward,
    round_scalars,
    run_low,
)
from mplab.simulation.operations import (
    COMPOSITE,
    CONVERSIONS,
    COPIES,
    TORCH_S,
    Keywords,
    Rule,
)
from mplab.simulation.policies import Policy, names_in
from mplab.simulation.tags import FormatTag, Node, Rounder, set_tag

FORMATS: dict[torch.dtype, Format] = {
    fmt.torch_dtype: fmt for fmt in (FP16, BF16, FP8_E4M3, FP8_E5M2)
}
"""The low dtypes that a program may use."""

_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd

_MEMORY = COPIES | names_in(
    "cat stack index index_select gather flip roll repeat set resize _local_scalar_dense "
    "is_same_size embedding"
)
"""Operations that move numbers: torch's own kernel runs."""

_PRODUCTS = names_in(
    "mm bmm addmm baddbmm _addmm_activation convolution _convolution convolution_backward "
    "mkldnn_convolution mkldnn_convolution_backward"
)
"""Computed in float32 and rounded once, also where torch has a low kernel: in FP16 that takes ten
times as long, and differs by the order of its sums alone."""

_OPAQUE = names_in(
    "mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "_scaled_mm _scaled_mm_v2 _scaled_grouped_mm"
)
"""Keep their steps in a form of their own, or take FP8 alone: torch's own kernels run."""

_NO_KERNEL = ("not implemented for", "not supported for", "Unsupported")
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


class _Plan(NamedTuple):
    """What torch does for one signature of an operation."""

    native: bool
    """Whether its own kernel runs: nothing is rounded, or random numbers are drawn."""
    dtypes: tuple[torch.dtype, ...] = ()
    """Of the results that are tensors; the last one stands for any further."""


class WrittenMode(LayeredMode):  # type: ignore[no-untyped-call]
    """Compute operations on low tensors in float32, round once, and store the program's dtype.

    Args:
        fmt: what `dtype` means in the program.
        policy: names the kernels to follow.
        dtype: what the program writes for `fmt`; if None, the format's own, else bfloat16 or
            float16, whichever holds its values.
        rounding: the direction of all roundings.
        overflow: what becomes of values past the largest finite one.
        stream: source of random bits.
        tally: whether to count what the roundings do.

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
        self.dtype = _dtype_for(fmt, dtype)
        self.rounders = {
            own: Rounder(each, rounding, _overflow(own, each, overflow), stream)
            for own, each in (FORMATS | {self.dtype: fmt}).items()
        }
        super().__init__(self.rounders[self.dtype], policy, tally=tally)
        self._usual = rounding is Rounding.TIES_TO_EVEN and overflow is Overflow.IEEE
        self._borrowed = frozenset({self.dtype} if FORMATS[self.dtype] != fmt else ())
        self._plans: dict[Any, _Plan] = {}
        self.has_run = False
        """Whether any tensor of the format was computed."""

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether torch may run compiled functions within; `simulated` has them run eagerly."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Keywords | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        graph = self.graph
        if graph.innermost is not self or FakeTensor in types:
            return func(*args, **kwargs)
        if not _PLAIN.issuperset(types):
            return NotImplemented
        if isinstance(func, torch._ops.HigherOrderOperator):  # flex_attention, say
            with self:
                return func.py_kernels[_EXPLICIT](*args, **kwargs)
        rule = self.rules.get(id(func)) or self.rules.of(func)
        low = [t for t in args if isinstance(t, Tensor) and t.dtype in FORMATS]
        if not rule.plain or kwargs:
            low = [t for t in _tensors((args, kwargs)) if t.dtype in FORMATS]
        if not low and not _asks_for_low(args, kwargs):
            out = rule.call(*args, **kwargs)
        elif rule.view and not rule.composite:
            out = rule.call(*args, **kwargs)
            if self._borrowed:
                self.keep(out)
        elif rule.composite:  # some arrive whole, in inference mode most of them
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        elif rule.name.startswith("_foreach") and self.policy.kernels == "cpu":
            with self:  # the CPU runs one operation after the other
                return func._op_dk(_EXPLICIT, *args, **kwargs)
        elif any(t.is_meta or t.layout is not torch.strided for t in low):
            out = rule.call(*args, **kwargs)  # shapes alone; sparse: not simulated
        else:
            out = self._low(func, rule, args, kwargs, low)
        if graph.has_grown():
            node = node_of_backward(graph)
            graph.note(Node(None, self.place if node is None else node.place))
        return out

    def _low(
        self, func: Any, rule: Rule, args: Any, kwargs: Keywords, low: list[Tensor]
    ) -> Any:
        """Run an operation that has low inputs or makes a low tensor."""
        given = args
        node = node_of_backward(self.graph)
        by_torch = False
        if rule.name in CONVERSIONS:
            out = self._convert(rule, args, kwargs, node)
        elif self._is_at_hand(rule, low):
            by_torch = True
            out = self._call_torch(func, rule, args, kwargs, low, node)
        else:
            plan = self._plan(func, rule, args, kwargs, low)
            if plan.native:
                out = rule.call(*args, **kwargs)
                self._round_borrowed(rule, out, node)
            else:
                out = self._compute(func, rule, args, kwargs, plan.dtypes, node)
        if self._borrowed:
            self.keep(out)
        if not self.has_run:
            self.has_run = any(t.dtype is self.dtype for t in [*low, *_tensors(out)])
        if self.record is not None:
            found = next(iter(_tensors(out)), None)
            into = None if found is None else self.rounders.get(found.dtype)
            self.record(
                Ran(
                    rule,
                    None,
                    into,
                    node,
                    given=given,
                    taken=given,
                    out=out,
                    reason="as written",
                    by_torch=by_torch,
                )
            )
        return out

    def format_of(self, t: Tensor) -> Format:
        """The format of a tensor's numbers, by its dtype."""
        rounder = self.rounders.get(t.dtype)
        return FP32 if rounder is None else rounder.fmt

    # What torch would give ----------------------------------------------------------------
    def _plan(
        self, func: Any, rule: Rule, args: Any, kwargs: Keywords, low: list[Tensor]
    ) -> _Plan:
        """Ask torch's own kernel, once for each signature, for the dtypes or for its error."""
        key = (func, _signature(args), _signature(tuple(kwargs.items())))
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > _KEPT_SIGNATURES:
                self._plans.clear()
            plan = self._plans[key] = self._ask(func, rule, args, kwargs, low)
        return plan

    def _ask(
        self, func: Any, rule: Rule, args: Any, kwargs: Keywords, low: list[Tensor]
    ) -> _Plan:
        if not low or _draws(func, rule) or func.namespace not in TORCH_S:
            return _Plan(native=True)
        try:
            out = rule.call(*_apart(func, args), **_apart_by_name(func, kwargs))
        except (RuntimeError, NotImplementedError) as error:
            return _Plan(False, self._assumed(error, low))
        results = list(_tensors(out))
        native = rule.name in _MEMORY | _OPAQUE or not all(map(_is_real, results))
        native = native or (rule.exact and not self._borrowed)
        return _Plan(native, tuple(t.dtype for t in results))

    def _assumed(self, error: Exception, low: list[Tensor]) -> tuple[torch.dtype, ...]:
        """The dtype of results where torch has no kernel for that of the inputs."""
        dtypes = {t.dtype for t in low}
        if len(dtypes) > 1 or not any(text in str(error) for text in _NO_KERNEL):
            raise error
        return tuple(dtypes)

    def _is_at_hand(self, rule: Rule, low: list[Tensor]) -> bool:
        """Whether torch's own kernel gives the results: here, and rounding as this does."""
        if self.policy.kernels != "cpu" or not self._usual:
            return False
        if rule.name in _PRODUCTS or (self._borrowed and not low):
            return False
        return all(
            t.is_cpu and self.rounders[t.dtype].kernel_dtype is t.dtype for t in low
        )

    # Kernels ------------------------------------------------------------------------------
    def _round(
        self, rule: Rule, x: Tensor, dtype: torch.dtype, node: Node | None
    ) -> Tensor:
        """Round fresh float32 numbers in place, and store them in the dtype."""
        if self.tally or not self._usual or dtype in self._borrowed:
            name = "cast" if rule.name in CONVERSIONS else rule.name
            self.rounders[dtype](x, x, self._counter(name, node))
        return x.to(dtype)

    def _round_borrowed(self, rule: Rule, out: Any, node: Node | None) -> None:
        for t in _tensors(out) if self._borrowed and rule.name not in _MEMORY else ():
            if t.dtype in self._borrowed and _is_real(t):
                t.copy_(self._round(rule, t.float(), t.dtype, node))

    def _call_torch(
        self,
        func: Any,
        rule: Rule,
        args: Any,
        kwargs: Keywords,
        low: list[Tensor],
        node: Node | None,
    ) -> Any:
        """Run torch's own low kernel, and count what one rounding of a float32 result does."""
        moves = rule.exact or rule.name in _MEMORY | _OPAQUE
        own = func.namespace not in TORCH_S
        counts = self.tally and not (moves or own or _draws(func, rule))
        before, before_named = args, kwargs
        if counts and _writes(func):
            before, before_named = _apart(func, args), _apart_by_name(func, kwargs)
        try:
            out = rule.call(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            dtypes = self._assumed(error, low)
            return self._compute(func, rule, args, kwargs, dtypes, node)
        if counts:
            wide_args = [_map(self._widened, a) for a in before]
            wide_kwargs = {
                name: _map(self._widened, a) for name, a in before_named.items()
            }
            wide = rule.call(*wide_args, **wide_kwargs)
            for t, real in zip(_tensors(wide), _tensors(out), strict=True):
                if real.dtype in FORMATS and _is_real(t):
                    counter = self._counter(rule.name, node)
                    self.rounders[real.dtype](t, t, counter)
        return out

    def _convert(self, rule: Rule, args: Any, kwargs: Keywords, node: Any) -> Any:
        """Convert to a dtype or copy into a tensor of one."""
        into_tensor = rule.name == "copy"
        if into_tensor:
            source = args[1]
            dtype = args[0].dtype
        else:
            source = args[0]
            dtype = kwargs.get("dtype") or source.dtype
        changes = source.dtype is not dtype and not source.is_complex()
        if changes and source.dtype in self._borrowed:
            source = self._widened(source)
        if changes and dtype in FORMATS:
            as_torch = self._usual and dtype not in self._borrowed
            counts = self.tally and source.dtype not in FORMATS
            if counts or not as_torch:
                fresh = source.to(torch.float32, copy=True)
                rounded = self._round(rule, fresh, dtype, node)
                if not as_torch:  # else counted alone: torch casts
                    source = rounded
        if into_tensor:
            return rule.call(args[0], source, *args[2:], **kwargs)
        return rule.call(source, *args[1:], **kwargs)

    def _widened(self, t: Any, *, tagged: bool = False) -> Any:
        """A float32 copy; of a borrowed dtype also rounded, as it may come from outside."""
        if isinstance(t, torch.dtype):  # of a gradient, by position
            return torch.float32 if t in FORMATS else t
        if not isinstance(t, Tensor) or t.dtype not in FORMATS:
            return t
        wide = t.to(torch.float32)
        rounder = self.rounders[t.dtype]
        if t.dtype in self._borrowed:
            rounder(wide, wide, None)
        if tagged:  # an operation's own way asks which inputs are low
            set_tag(wide, FormatTag(rounder))
        return wide

    def _compute(
        self,
        func: Any,
        rule: Rule,
        args: Any,
        kwargs: Keywords,
        dtypes: tuple[torch.dtype, ...],
        node: Node | None,
    ) -> Any:
        """Run the float32 kernel, round its results, and store them where torch would."""
        into = self._common(rule, args, kwargs)
        tagged = rule.own_way is not None

        def widened(t: Any) -> Any:
            return self._widened(t, tagged=tagged)

        wide_args = [_map(widened, a) for a in args]
        wide_kwargs = {name: _map(widened, a) for name, a in kwargs.items()}
        if into is not None:
            wide_args = round_scalars(rule, wide_args, into)
        out = run_low(rule, wide_args, wide_kwargs, into)
        written: dict[int, Tensor] = {}
        changed: Any = ()
        if _writes(func):
            changed = _written(func, (args, kwargs), (wide_args, wide_kwargs))
        for old, new in changed:
            if old is not new:
                if old.shape != new.shape:  # `out=`
                    old.resize_(new.shape)
                stored = self._round(rule, new, old.dtype, node)
                old.copy_(stored)
            written[id(new)] = old
        wanted = iter(dtypes)
        dtype = dtypes[-1] if dtypes else None

        def stored_as_torch_would(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            own = next(wanted, dtype)
            if id(t) in written:
                return written[id(t)]
            if own not in FORMATS or t.dtype is not torch.float32:
                return t
            return self._round(rule, t, own, node)

        return _map(stored_as_torch_would, out)

    def _common(self, rule: Rule, args: Any, kwargs: Keywords) -> Rounder | None:
        """The rounder of the one low dtype that the inputs have; scalars count if all are such."""
        given = [args[i] for i in rule.positions if i < len(args)]
        given += [kwargs.get(name) for name in rule.keywords]
        numbers = [t for t in _tensors(given) if t.is_floating_point()]
        ruling = [t for t in numbers if t.dim()] or numbers
        dtypes = {t.dtype for t in ruling}
        return self.rounders.get(dtypes.pop()) if len(dtypes) == 1 else None


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


def _dtype_for(fmt: Format, dtype: torch.dtype | None) -> torch.dtype:
    own = [each for each, its in FORMATS.items() if its == fmt]
    usual = [*own, torch.bfloat16, torch.float16]
    for each in usual if dtype is None else [dtype]:
        if each in FORMATS and holds(each, fmt):
            return each
    one = (
        "neither bfloat16 nor float16 holds"
        if dtype is None
        else f"{dtype} does not hold"
    )
    raise ValueError(
        f"simulated: a dtype of the program must hold the values of fmt; got {fmt.name}, which "
        f"{one}. Use another policy."
    )


def _overflow(dtype: torch.dtype, fmt: Format, asked: Overflow) -> Overflow:
    """As torch casts to the dtype: its casts to float8_e4m3fn saturate since 2.12."""
    largest = torch.full((1,), math.inf, dtype=torch.float32).to(dtype).float()
    if fmt == FORMATS[dtype] and largest.isfinite():
        return Overflow.SATURATE
    return asked


def _draws(func: Any, rule: Rule) -> bool:
    """Whether an operation draws random numbers, which must not be drawn twice."""
    random = torch.Tag.nondeterministic_seeded in func.tags
    return random and "attention" not in rule.name  # without dropout


def _is_real(t: Tensor) -> bool:
    """Whether a tensor is dense and holds no complex numbers."""
    return t.layout is torch.strided and not t.is_complex()


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


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to a value, or to each in a list or tuple."""
    if isinstance(value, list | tuple):
        return type(value)(_map(function, each) for each in value)
    return function(value)


@lru_cache(maxsize=1 << 10)
def _writes(func: Any) -> tuple[tuple[int, Any], ...]:
    """The arguments that an operation writes to; schemas of batch norms do not name theirs."""
    unnamed = () if func._schema.is_mutable else ("running_mean", "running_var")
    return tuple(
        (i, argument)
        for i, argument in enumerate(func._schema.arguments)
        if argument.name in unnamed
        or (argument.alias_info is not None and argument.alias_info.is_write)
    )


def _asks_for_low(args: Any, kwargs: Keywords) -> bool:
    """Whether a low dtype is given; in inference mode `to` arrives whole, with it by position."""
    given = (*args, kwargs.get("dtype"))
    return any(isinstance(a, torch.dtype) and a in FORMATS for a in given)


def _written(func: Any, *calls: tuple[Any, Keywords]) -> Iterator[tuple[Tensor, ...]]:
    """The tensors that an operation writes to, in one call and in another."""
    for i, argument in _writes(func):
        found = []
        for args, kwargs in calls:
            if i < len(args):
                found.append(list(_tensors(args[i])))
            else:
                found.append(list(_tensors(kwargs.get(argument.name))))
        yield from zip(*found, strict=True)


def _copy(t: Any) -> Any:
    return t.clone() if isinstance(t, Tensor) else t


def _apart(func: Any, args: Any) -> list[Any]:
    """The arguments with copies of those that the operation writes to."""
    apart = list(args)
    for i, _ in _writes(func):
        if i < len(args):
            apart[i] = _map(_copy, args[i])
    return apart


def _apart_by_name(func: Any, kwargs: Keywords) -> Keywords:
    apart = dict(kwargs)
    for _, argument in _writes(func):
        if argument.name in kwargs:
            apart[argument.name] = _map(_copy, kwargs[argument.name])
    return apart


def _signature(value: Any) -> Any:
    """What may decide the dtypes of results: dtypes, scalars or not, flags; no shape, no number."""
    if isinstance(value, Tensor):
        return value.dtype, not value.dim()
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    if isinstance(value, int | float | complex) and not isinstance(value, bool):
        return type(value)
    return value
