"""Record in which format each operation ran, and why."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mplab.common.tables import Table, Tabular
from mplab.numbers.formats import FP32, Format
from mplab.simulation.autocast import CAST
from mplab.simulation.mode import Mode
from mplab.simulation.operations import CONVERSIONS, COPIES, Rule, tensors_in
from mplab.simulation.places import OUTSIDE
from mplab.simulation.policies import Policy, Run

_MEMORY = COPIES - CONVERSIONS - {"clone"}


class Row(NamedTuple):
    """One operation as it ran."""

    phase: str
    """"forward" or "backward"."""
    module: str
    operation: str
    """torch's name for it, below autograd."""
    format: Format
    """The format of the result."""
    inputs: tuple[Format, ...]
    """The formats of its input tensors, without scalars and integers."""
    cast: int
    """How many inputs were rounded for it."""
    shape: tuple[int, ...]
    """The shape of the first result."""
    rule: str
    """Why it ran in this format."""


@dataclass(frozen=True, repr=False)
class Explanation(Tabular):
    """In which format each operation ran under a policy; prints as a table.

    Attributes:
        model: the name of the model's class.
        fmt: the low format.
        policy: the policy.
        rows: the operations in the order in which they ran, without views.
    """

    model: str
    fmt: Format
    policy: Policy
    rows: tuple[Row, ...]

    @cached_property
    def table(self) -> Table:
        """The rows as text."""
        low = sum(row.format != FP32 for row in self.rows)
        caption = (
            f"{self.model} under {self.policy!r}: {low} of {len(self.rows)} operations in a low "
            "format"
        )
        header = ("pass", "module", "operation", "format", "inputs cast", "rule")
        lines = []
        for row in self.rows:
            cast = f"{row.cast} of {len(row.inputs)}" if row.cast else "no"
            lines.append(
                (row.phase, row.module, row.operation, row.format.name, cast, row.rule)
            )
        return Table(caption, header, tuple(lines))


class Recorder:
    """Collect the operations that a mode runs, as one of its observers."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self.rows = list[Row]()
        # What the policy cast, kept so that no memory is used again.
        self._cast: dict[int, Tensor] = {}

    def __call__(
        self, rule: Rule, layer: str, backward: bool, args: Any, out: Any, reason: str
    ) -> None:
        """Record one operation, unless it has no floating-point input or result."""
        floats = [t for t in tensors_in(args) if t.is_floating_point()]
        inputs = [t for t in floats if t.layout is torch.strided and t.dim()]
        numbers = [t for t in tensors_in(out) if t.is_floating_point()]
        if not numbers or not inputs or rule.name in _MEMORY:
            return
        fmt = self.mode.format_of(numbers[0])
        if rule.name in CONVERSIONS and (backward or reason == CAST):
            if fmt != FP32:
                self._cast[_memory(numbers[0])] = numbers[0]
            return
        self.rows.append(
            Row(
                "backward" if backward else "forward",
                layer or OUTSIDE,
                rule.name,
                fmt,
                tuple(map(self.mode.format_of, inputs)),
                sum(_memory(t) in self._cast for t in inputs),
                tuple(numbers[0].shape),
                _why(rule, backward, fmt, reason),
            )
        )


def _why(rule: Rule, backward: bool, fmt: Format, reason: str) -> str:
    """Why an operation ran in its format."""
    why = reason
    if reason != "as written":
        if backward:
            why = "as its forward operation"
        elif rule.written:
            why = f"writes to memory in {fmt.name}"
        elif reason == rule.reason and rule.run is Run.WIDEST:
            why = f"{reason}, {fmt.name}"
    if rule.mark and fmt != FP32:
        why = f"{why}; {rule.mark}"
    return why


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)
