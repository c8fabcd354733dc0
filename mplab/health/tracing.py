"""Which operation makes the first infinity or NaN, of forward, backward and update.

`Tracer` sees every operation below autograd, in whatever format it runs. Looking at each
tensor costs more than computing it, so `mplab.health` lets it look at few steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mplab.formats import FORMATS, Format
from mplab.simulation.dispatch import OUTSIDE
from mplab.simulation.marks import is_plain, next_number

_CONSTANTS = ("empty", "full", "fill", "masked_fill", "where", "scatter", "index_fill", "new_empty")
"""Operations that may write an infinity because they were told to, or memory as they find it."""

_ATTRIBUTE = "_mplab_maker"
_LOW = (torch.float16, torch.bfloat16)

_current_node = torch._C._current_autograd_node


class Origin(NamedTuple):
    """Where a number that is not finite came from.

    Attributes:
        step: of the run, from 0.
        phase: "forward", "backward" or "update".
        module: its name in the model.
        operation: of torch, below autograd; empty where only the module is known.
        what: "infinity", "NaN", or "infinity or NaN".
    """

    step: int
    phase: str
    module: str
    operation: str
    what: str

    def __str__(self) -> str:
        by = f"Operation {self.operation} in {self.module}" if self.operation else self.module
        what = {"infinity": "an infinity", "NaN": "a NaN"}.get(self.what, self.what)
        part = self.phase if self.phase == "update" else f"{self.phase} pass"
        return f"{by} made {what} in the {part} of step {self.step}"


class RoundedIntegers(NamedTuple):
    """Whole numbers that a format could not hold, when they were cast to it."""

    module: str
    largest: float
    fmt: str


def what_of(t: Tensor) -> str:
    """What a tensor holds that is not finite: "NaN", "infinity", or nothing.

    Examples:
        >>> what_of(torch.tensor([1.0, float("inf")])), what_of(torch.ones(2))
        ('infinity', '')
    """
    if not (is_plain(t) and t.is_floating_point() and t.numel()):
        return ""
    low, high = (float(x) for x in torch.aminmax(t.detach() if t.itemsize > 1 else t.float()))
    if low != low:
        return "NaN"
    return "infinity" if low == -torch.inf or high == torch.inf else ""


def format_of_dtype(dtype: torch.dtype) -> Format | None:
    """The format of a torch dtype; None where mplab has none.

    Examples:
        >>> format_of_dtype(torch.bfloat16).name
        'BF16'
    """
    return next((fmt for fmt in FORMATS.values() if fmt.torch_dtype == dtype), None)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at the inputs and results of every operation, while it is on the stack of modes.

    Attributes:
        step: the number of the step that is looked at.
        updating: whether an optimizer is at work.
        origins: the first origin of each phase in this step.
        low: whether an operation had a result in FP16 or BF16 in this step.
        casts: addresses of memory that was cast to a low format in this step.
        integers: the first whole numbers that a cast changed.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.step, self.updating = 0, False
        self.origins: dict[str, Origin] = {}
        self.low = False
        self.casts: set[int] = set()
        self.integers: RoundedIntegers | None = None
        self._stack: list[str] = []
        self._events: list[tuple[int, str]] = []

    def begin(self, step: int) -> None:
        """Forget the step before."""
        self.step, self.low, self.origins, self.casts = step, False, {}, set()
        self._stack, self._events = [], []

    def enter_module(self, name: str) -> None:
        """From here on, operations and autograd nodes are this module's."""
        self._stack.append(name)
        self._events.append((next_number(), name))

    def leave_module(self) -> None:
        """From here on, they are those of the module around it."""
        if self._stack:
            self._stack.pop()
        self._events.append((next_number(), self._stack[-1] if self._stack else OUTSIDE))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        inputs = list(_tensors((args, kwargs)))
        known = [self._known_bad(t) for t in inputs]
        out = func(*args, **kwargs)
        if func.is_view:
            return out
        phase, module = self._place()
        results = list(_tensors(out))
        for t in results:
            what = what_of(t)
            self.low = self.low or t.dtype in _LOW
            if what and not any(known) and not name.removesuffix("_").startswith(_CONSTANTS):
                self._note(phase, module, name, what)
            if is_plain(t):
                setattr(t.untyped_storage(), _ATTRIBUTE, (self.step, phase, module, name, not what))
        if name == "_to_copy" and inputs and results:
            self._look_at_cast(inputs[0], results[0], module)
        return out

    def _known_bad(self, t: Tensor) -> bool:
        """Whether an input is not finite; if it was when it was made, rounding did it."""
        what = what_of(t)
        if what:
            maker = getattr(t.untyped_storage(), _ATTRIBUTE, None)
            if maker is not None and maker[0] == self.step and maker[4]:
                _, phase, module, operation, _ = maker
                self._note(phase, module, operation, what)
        return bool(what)

    def _note(self, phase: str, module: str, operation: str, what: str) -> None:
        self.origins.setdefault(phase, Origin(self.step, phase, module, operation, what))

    def _place(self) -> tuple[str, str]:
        """The phase, and the module that runs or whose forward pass made the autograd node."""
        if self.updating:
            return "update", OUTSIDE
        node: Any = _current_node()
        if node is None:
            return "forward", self._stack[-1] if self._stack else OUTSIDE
        found = bisect_right(self._events, node._sequence_nr(), key=lambda event: event[0])
        return "backward", self._events[found - 1][1] if found else OUTSIDE

    def _look_at_cast(self, before: Tensor, after: Tensor, module: str) -> None:
        """Remember what was cast to a low format, and whether whole numbers were changed."""
        if after.dtype not in _LOW or before.dtype == after.dtype or not is_plain(before):
            return
        self.casts.add(before.data_ptr())
        fmt = format_of_dtype(after.dtype)
        if fmt is None or self.integers is not None or not before.numel():
            return
        values = before.detach().double()
        largest = float(values.abs().max())
        whole = 2.0**fmt.precision < largest <= fmt.max_finite and bool(
            (values == values.round()).all()
        )
        if whole and bool((after.double() != values).any()):
            self.integers = RoundedIntegers(module, largest, fmt.name)


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
