"""Look at every operation of a step: where an infinity or NaN is made, and what rounding does.

`Tracer` sees the operations below autograd, those of real low dtypes and of a simulation alike.
Checking a tensor costs more than computing it, so `mplab.health` traces only a few steps.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mplab.health.measures import (
    Watch,
    is_readable,
    largest_of,
    values_of,
    without_modes,
)
from mplab.health.records import (
    Evidence,
    Origin,
    Rounded,
    RoundedIntegers,
)
from mplab.numbers.devices import widest
from mplab.numbers.formats import Format
from mplab.simulation.operations import tensors_in
from mplab.simulation.places import (
    OUTSIDE,
    current_node,
    is_plain,
    low_format_of,
    next_number,
)

_CONSTANTS = (
    "full",
    "fill",
    "masked_fill",
    "where",
    "scatter",
    "index_fill",
    "new_full",
    "lift_fresh",
    "constant_pad_nd",
)
"""Operations that may write an infinity because they were told to."""

_EMPTY = ("empty", "new_empty")
"""Operations that return memory as it is."""

_BETWEEN = ("c10d", "fsdp")
"""Where the namespaces of operations between processes come from."""

_WRITES = (
    "copy_",
    "fill_",
    "zero_",
)
"""Operations that do not read the tensor that they write."""

_ONE_RESULT = ("_ctc_loss", "_scaled_dot_product")
"""Operations whose further results are logarithms for the backward pass, some of them of zero."""

_ORIGIN = "_mplab_origin"
"""Attribute of memory: the origin of its numbers that are not finite, or None."""

_NARROWED = "_mplab_narrowed"
"""Attribute of memory in FP32 that holds numbers of a low format: that format."""

_SUM = "_mplab_sum"
"""Attribute of memory to which numbers are added in place: a `_Sum`."""

_LOW = (torch.float16, torch.bfloat16)

_WIDE_RESULTS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "pow",
    "mul",
    "sum",
)
"""Operations, often in a `forward`, whose results are much larger than their inputs."""

_FOLLOWED = 1 << 14
"""Up to this many numbers of a sum are also added in FP32."""

_FEW_ADDITIONS = 4


class _Sum(NamedTuple):
    """A sum that grows in a low format, and the same in FP32 of its first numbers."""

    place: int
    added: int
    low: Tensor
    wide: Tensor


class _Bad(NamedTuple):
    """An input that is not finite: "NaN" or "infinity", and its origin, if it has one."""

    what: str
    origin: Origin | None


def what_of(t: Tensor) -> str:
    """Say whether a tensor holds a "NaN", an "infinity", or neither ("").

    Examples:
        >>> what_of(torch.tensor([1.0, float("inf")])), what_of(torch.ones(2))
        ('infinity', '')
    """
    if not is_readable(t):
        return ""
    # A sum is finite only where all numbers are, and costs a quarter of finding the largest.
    if math.isfinite(values_of(t).sum()):
        return ""
    largest = float(largest_of(t))
    if math.isfinite(largest):
        return ""
    return "NaN" if math.isnan(largest) else "infinity"


def _not_finite(inputs: Sequence[Tensor]) -> list[_Bad]:
    """The inputs that are not finite."""
    return [
        _Bad(what, getattr(t.untyped_storage(), _ORIGIN, None))
        for t in filter(is_plain, inputs)
        if (what := what_of(t))
    ]


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Check the inputs and results of every operation, while it is on the stack of modes.

    Args:
        seen: where roundings are noted that a reader should know.
        narrowed: called with the phase, the module, the input and the result of each cast to
            eight bits.
        widened: called with the module, the operation and its result where a forward pass may
            have made numbers much larger.

    Attributes:
        step: the number of the current step.
        updating: whether an optimizer is running, or a scaler for it.
        by_closure: whether the optimizer runs forward and backward passes itself.
        error: an error of this tracer, which then checks nothing more.
        origins: the first origin of each phase in this step.
        low: whether an operation had a result in FP16 or BF16 in this step.
        casts: addresses of memory that was cast to a low format in this step, and the formats.
        events: the numbers of the autograd nodes with which modules began, and their names.
    """

    def __init__(
        self,
        seen: Evidence,
        narrowed: Callable[[str, str, Tensor, Tensor], None],
        widened: Callable[[str, str, Tensor], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen
        self._narrowed = narrowed
        self._widened = widened
        self.updating = False
        self.error: Exception | None = None
        self._masks: set[Origin] = set()  # infinities that are meant, of all steps

    def begin(self, step: int) -> None:
        """Begin a step, and forget the one before."""
        self.step = step
        self.low = False
        self.by_closure = False
        self.origins: dict[str, Origin] = {}
        self.casts: dict[int, Format] = {}
        # Of the forward pass's latest result that is not finite.
        self._latest: Origin | None = None
        self._aside: Origin | None = None
        self._stack = [OUTSIDE]
        self.events: list[tuple[int, str]] = []
        self._thread = get_ident()

    def enter_module(self, name: str) -> None:
        """Attribute the following operations and autograd nodes to this module."""
        self._stack.append(name)
        self._begin_nodes(name)

    def leave_module(self) -> None:
        """Return to the module around this one."""
        if len(self._stack) > 1:
            self._stack.pop()
        self._begin_nodes(self._stack[-1])

    def _begin_nodes(self, name: str) -> None:
        """Attribute the following autograd nodes to this module.

        Do nothing in another thread, which counts its nodes from 0: on CUDA a backward pass has its
        own thread, and a checkpoint reruns modules there.
        """
        if get_ident() == self._thread:
            self.events.append((next_number(), name))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled code compiled while it is traced, because its bits might change."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # skip views, whose memory a cast may not have filled yet; subclasses, whose numbers lie
        # elsewhere; operations between processes, whose results have not arrived yet; and backward
        # passes that a probe repeats
        between = any(name in func.namespace for name in _BETWEEN)
        aside = types or between or Watch.repeating or self.error is not None
        if func.is_view or aside:
            return func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        # what some write in place, batch norms without saying so, must be looked at before
        writes = func._schema.is_mutable or "batch_norm" in name
        known: list[_Bad] | None = None
        before = None
        inputs = list(tensors_in((args, kwargs)))
        with self._harmlessly():
            if inputs and name in _WRITES:
                del inputs[0]
            if writes:
                known = _not_finite(inputs)
            if name == "add_" and is_plain(args[0]) and low_format_of(args[0]):
                before = _first(args[0])
        out = func(*args, **kwargs)
        with self._harmlessly():
            if any(t.is_meta for t in (*inputs, *tensors_in(out))):
                return out
            self._look_after(name, args, inputs, known, out)
            if name == "_to_copy":
                self._measure_cast(args[0], out)
            elif name in ("sin", "cos"):
                self._measure_angles(args[0])
            elif before is not None:
                self._follow_sum(before, args[0], args[1], kwargs.get("alpha", 1))
        return out

    @contextmanager
    def _harmlessly(self) -> Iterator[None]:
        """Store an error of the tracer for the watch; the operation continues."""
        try:
            with without_modes():  # autograd's state stays: it tells the phase
                yield
        except Exception as error:
            self.error = error

    def _look_after(
        self,
        name: str,
        args: Any,
        inputs: list[Tensor],
        known: list[_Bad] | None,
        out: Any,
    ) -> None:
        """Mark the memory of results with the origin of their numbers."""
        if name.startswith(_EMPTY):
            return
        phase, module = self._place()
        results = list(tensors_in(out))[: 1 if name.startswith(_ONE_RESULT) else None]
        for t in filter(is_plain, results):
            self.low = self.low or t.dtype in _LOW
            what = what_of(t)
            origin = None
            if what:
                made = Origin(self.step, phase, module, name, what)
                masks = what == "infinity" and _makes_mask(name, inputs, t)
                if known is None:
                    known = _not_finite(inputs)
                origin = self._origin(made, known, inputs, args, masks)
                if origin is not None and phase == "forward":
                    self._latest = origin
            setattr(t.untyped_storage(), _ORIGIN, origin)
            if phase == "forward" and name in _WIDE_RESULTS:
                self._widened(module, name, t)

    def _origin(
        self,
        made: Origin,
        known: Sequence[_Bad],
        inputs: Sequence[Tensor],
        args: Sequence[Any],
        masks: bool,
    ) -> Origin | None:
        """The origin of an infinity or NaN: this operation, or the origin of its inputs."""
        spread = next((bad.origin for bad in known if bad.origin is not None), None)
        if spread is not None:
            # kept, as autocast keeps its copies of weights
            if spread.step < self.step and spread not in self._masks:
                self.origins.setdefault(made.phase, spread)
            return spread
        # intended infinities, such as a mask of a whole row, may give a NaN
        passed_on = made.what != "NaN" or any(bad.what == "NaN" for bad in known)
        constant = made.operation.removesuffix("_").startswith(_CONSTANTS)
        # as clip_grad_norm_(…, inf) multiplies by it
        alone = made.phase == "forward" and not torch.is_grad_enabled()
        endless = any(type(x) is float and math.isinf(x) for x in args)
        asked = made.what == "infinity" and alone and endless
        meant = constant or asked or not inputs
        if meant or (known and passed_on):
            return None
        if masks:  # a row that is masked throughout will be NaN, and no other suffers
            self._aside = self._aside or made
            self._masks.add(made)
            return made
        # masks and positions: large negative numbers that a cast turns into -infinity, and numbers
        # computed in FP32 without gradients in a pass with gradients
        if made.operation == "_to_copy":
            beside = _is_mask(inputs[0])
        else:
            beside = torch.is_grad_enabled() and not any(map(_computes, inputs))
        if beside and made.phase == "forward":
            self._aside = self._aside or made  # in case it is the only one
            return None
        self.origins.setdefault(made.phase, made)
        return made

    def excuses(self, t: Tensor) -> bool:
        """Whether this tracer saw how a result was made, and that its infinities were meant."""
        found = getattr(t.untyped_storage(), _ORIGIN, self)
        return found is None or found in self._masks

    def origins_of(self, loss: Tensor | float) -> dict[str, Origin]:
        """The origins of a step by phase; if the loss is not finite, the one that reached it."""
        origins = dict(self.origins)
        if not math.isfinite(float(loss)):
            found = self._latest or self._aside
            if is_plain(loss):
                found = getattr(loss.untyped_storage(), _ORIGIN, None) or found
            if found is not None:
                origins["forward"] = found
        return origins

    def _place(self) -> tuple[str, str]:
        """The phase, and the module that is running or that made the autograd node."""
        node = current_node()
        # an optimizer computes without gradients, but has its closure compute with them
        in_closure = self.by_closure and (node is not None or torch.is_grad_enabled())
        module = self._stack[-1]
        if self.updating and not in_closure and module == OUTSIDE:
            return "update", OUTSIDE
        if node is None:
            return "forward", module
        found = bisect_right(
            self.events, node._sequence_nr(), key=lambda event: event[0]
        )
        return "backward", self.events[found - 1][1] if found else OUTSIDE

    def _measure_cast(self, before: Tensor, after: Tensor) -> None:
        """Look at a cast to a low format: at one to eight bits, and at whole numbers."""
        if not (is_plain(before) and is_plain(after)):
            return
        fmt = low_format_of(after)
        given = low_format_of(before)
        if fmt is None or given == fmt:
            setattr(after.untyped_storage(), _NARROWED, None if fmt else given)
            return
        self.casts[before.data_ptr()] = fmt
        phase, module = self._place()
        if after.itemsize == 1 and before.numel():
            self._narrowed(phase, module, before, after)
        # scaled gradients of a squared error may be whole numbers by chance
        if self._seen.integers is not None or not before.numel() or phase != "forward":
            return
        largest = float(largest_of(before))
        if not 2.0**fmt.precision < largest <= fmt.max_finite:
            return
        values = before.detach().to(widest(before))
        left = after.to(values.dtype)
        if bool((values == values.round()).all()) and bool((left != values).any()):
            counts = (len(torch.unique(t)) for t in (values, left))
            self._seen.integers = RoundedIntegers(module, largest, fmt.name, *counts)

    def _measure_angles(self, x: Tensor) -> None:
        """Look at the argument of a sine or cosine: half a unit in its last place is an angle."""
        if not is_plain(x):
            return
        fmt = low_format_of(x) or getattr(x.untyped_storage(), _NARROWED, None)
        phase, module = self._place()
        if fmt is None or phase != "forward":
            return
        largest = float(largest_of(x))
        if 0 < largest <= fmt.max_finite:
            error = 2.0 ** (math.frexp(largest)[1] - 1 - fmt.precision)
            found = Rounded(module, fmt.name, largest, error)
            self._seen.angles = _worst(self._seen.angles, found)

    def _follow_sum(
        self, before: Tensor, total: Tensor, part: Any, factor: float
    ) -> None:
        """Add in FP32, too, what is added in place in a low format."""
        fmt = low_format_of(total)
        if not (fmt and is_plain(part) and part.shape == total.shape):
            return
        low = _first(total)
        storage = total.untyped_storage()
        place = total.data_ptr()
        known = getattr(storage, _SUM, None)
        added, wide = 0, before
        # else something was written since
        if known and known.place == place and torch.equal(known.low, before):
            added, wide = known.added, known.wide
        wide = wide + factor * _first(part)
        setattr(storage, _SUM, _Sum(place, added + 1, low, wide))
        error = float((low - wide).norm() / wide.norm())
        if added >= _FEW_ADDITIONS and math.isfinite(error):
            found = Rounded(self._place()[1], fmt.name, added + 1, error)
            self._seen.sums = _worst(self._seen.sums, found)


def _worst(known: Rounded | None, found: Rounded) -> Rounded:
    """Whichever of the two is off by more."""
    if known is None or found.error > known.error:
        return found
    return known


def _first(t: Tensor) -> Tensor:
    """The first numbers of a tensor, in FP32."""
    return t.detach().reshape(-1)[:_FOLLOWED].float()


def _is_mask(t: Tensor) -> bool:
    """Whether a tensor looks like an additive mask: it holds -1e9 or less, or FP16's least."""
    if not (t.is_floating_point() and t.numel()):
        return False
    low = float(t.detach().float().min())
    return low <= -1e9 or low == -65504.0


def _makes_mask(name: str, inputs: Sequence[Tensor], out: Tensor) -> bool:
    """Whether a finite mask was added past the format's least number, or -infinity beside 0."""
    out = values_of(out)
    largest = float(out.max())
    if largest == 0 and not any(map(_computes, inputs)):
        return bool(((out == 0) | (out == -torch.inf)).all())
    read = inputs[name.endswith("_") :]  # what is written in place holds the sum by now
    adds = name in ("add", "add_", "sub", "sub_")
    return adds and any(map(_is_mask, read)) and largest < torch.inf


def _computes(t: Tensor) -> bool:
    """Whether a tensor is in a low format, or lies between the weights and the loss."""
    return t.requires_grad or t.dtype in _LOW
