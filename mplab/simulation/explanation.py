"""Record in which format each operation ran, and why."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves

from mplab.common.tables import Table, Tabular
from mplab.numbers.formats import FP32, Format
from mplab.simulation.dispatch import OUTSIDE, LayeredMode, Ran
from mplab.simulation.low_kernels import MARKED_BY_OPTION
from mplab.simulation.operations import CONVERSIONS, COPIES, results_of
from mplab.simulation.policies import Policy, Run
from mplab.simulation.tags import is_plain

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
    """Collect the operations that a mode runs, as its `record`."""

    def __init__(self, mode: LayeredMode) -> None:
        self.mode = mode
        self.rows = list[Row]()

    def __call__(self, ran: Ran) -> None:
        """Record one operation, unless it has no floating-point input or result."""
        rule = ran.rule
        into = ran.into
        node = ran.node
        before = _tensors(ran.given)
        after = _tensors(ran.taken)
        numbers = [
            t
            for t in results_of(ran.out)
            if isinstance(t, Tensor) and t.is_floating_point()
        ]
        if not numbers or not before or rule.name in _MEMORY:
            return
        why = _why(ran, scalar=not numbers[0].dim())
        usual = rule.name in MARKED_BY_OPTION and (
            {ran.option, *ran.given[2:3]} <= {None, 1, -1}
        )
        if rule.mark and into is not None and not (usual or ran.by_torch):
            why = f"{why}; {rule.mark}"
        phase = "forward" if node is None else "backward"
        module = self.mode.place.name if node is None else node.layer or OUTSIDE
        fmt = FP32 if into is None else into.fmt
        shape = tuple(numbers[0].shape)
        pairs = list(zip(before, after, strict=True))
        inputs = tuple(
            self.mode.format_of(new) if old is new or into is None else into.fmt
            for old, new in pairs
        )
        cast = sum(old is not new for old, new in pairs)
        self.rows.append(
            Row(
                phase,
                module,
                rule.name,
                fmt,
                inputs,
                cast,
                shape,
                why,
            )
        )


def _why(ran: Ran, *, scalar: bool) -> str:
    """Why an operation ran in its format."""
    rule = ran.rule
    run = ran.run
    name = FP32.name if ran.into is None else ran.into.fmt.name
    if ran.reason:
        return ran.reason
    if scalar and rule.keeps_scalars_fp32:
        return "a result without dimensions stays FP32"
    if ran.node is not None:
        own = "a backward of one's own: widest input"
        return "as its forward operation" if run is None else own
    if rule.written is not None:
        return f"writes to memory in {name}"
    if run is Run.WIDEST:
        return f"{rule.reason}, {name}"
    if run is Run.LOWER and ran.into is None:
        return "of gradients or scalars alone: FP32"
    return rule.reason


def _tensors(values: Any) -> list[Tensor]:
    """The dense tensors of floating-point numbers among the arguments, without scalars."""
    return [
        t
        for t in tree_leaves(values)
        if is_plain(t) and t.is_floating_point() and t.dim()
    ]
