"""The explorer of policies: the format in which each runs one operation, and by which rule."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mplab import BF16, FP16, FP32, Format
from mplab.common.words import plural
from mplab.course.explorers.chart import BOLD, Drawing
from mplab.course.explorers.widget import Explorer, choice, tick
from mplab.course.pictures.canvas import listed, style
from mplab.simulation import POLICIES, explain


class Operation(NamedTuple):
    """An operation to ask about."""

    run: Callable[[Tensor, Tensor], Tensor]
    inputs: int
    """How many tensors of numbers it takes."""


_ROWS = torch.arange(4)

OPERATIONS: dict[str, Operation] = {
    "matmul: a @ b": Operation(lambda a, b: a @ b, 2),
    "linear": Operation(F.linear, 2),
    "conv1d": Operation(lambda a, b: F.conv1d(a[None], b[:, :, None]), 2),
    "attention": Operation(
        lambda a, b: F.scaled_dot_product_attention(
            a[None, None], b[None, None], b[None, None]
        ),
        2,
    ),
    "add: a + b": Operation(torch.add, 2),
    "divide: a / b": Operation(torch.div, 2),
    "cat": Operation(lambda a, b: torch.cat([a, b]), 2),
    "relu": Operation(lambda a, b: F.relu(a), 1),
    "gelu": Operation(lambda a, b: F.gelu(a), 1),
    "exp": Operation(lambda a, b: a.exp(), 1),
    "log": Operation(lambda a, b: a.log(), 1),
    "square: a ** 2": Operation(lambda a, b: a**2, 1),
    "sum": Operation(lambda a, b: a.sum(0), 1),
    "mean": Operation(lambda a, b: a.mean(0), 1),
    "prod": Operation(lambda a, b: a.prod(0), 1),
    "vector norm": Operation(lambda a, b: torch.linalg.vector_norm(a, dim=0), 1),
    "softmax": Operation(lambda a, b: a.softmax(-1), 1),
    "layer_norm": Operation(lambda a, b: F.layer_norm(a, (4,)), 1),
    "batch_norm": Operation(lambda a, b: F.batch_norm(a, None, None, training=True), 1),
    "embedding": Operation(lambda a, b: F.embedding(_ROWS, a), 1),
    "mse_loss": Operation(lambda a, b: F.mse_loss(a, b, reduction="none"), 2),
    "cross_entropy": Operation(
        lambda a, b: F.cross_entropy(a, _ROWS, reduction="none"), 1
    ),
}

FORMATS: dict[str, Format] = {"FP16": FP16, "BF16": BF16}

INPUTS = ("low format", "FP32", "one of each")


class Verdict(NamedTuple):
    """The formats in which a policy runs an operation."""

    takes: tuple[Format, ...]
    """The formats in which the operation, or its first step, takes its inputs."""
    rounded: int
    """How many of them were rounded for it."""
    gives: Format
    rule: str
    """The rule that decided."""
    steps: int = 1
    """How many operations torch makes of it."""

    @property
    def note(self) -> str:
        """How many steps it took and how many inputs were rounded, in words; may be empty."""
        steps = [f"in {self.steps} steps, the first shown"] if self.steps > 1 else []
        inputs = plural(self.rounded, "input")
        rounded = [f"{inputs} rounded for it"] if self.rounded else []
        return "; ".join(steps + rounded)


class PolicyExplorer(Explorer):
    """In which format does an operation run, and who decides?

    A row for each policy: the formats in which it lets the operation take its inputs and give
    its result, and the rule that decided. The operation is really run under each of them.

    Attributes:
        operation: the choice of the operation.
        inputs: the choice of the formats that its inputs come in.
        fmt: the choice of the low format.
        chosen: whether the layer that holds the operation is chosen to run in FP32.
        verdicts: the formats in which each policy runs it, by name.

    Exactness:
        That of `mplab.simulation.explain`, which records what ran.

    Examples:
        >>> explorer = PolicyExplorer()
        >>> {name: verdict.gives.name for name, verdict in explorer.verdicts.items()}
        {'CUDA_AUTOCAST': 'FP32', 'CPU_AUTOCAST': 'FP16', 'KERAS_MIXED': 'FP16', \
'EVERYTHING': 'FP16'}
        >>> explorer.chosen.value = True
        >>> {verdict.gives.name for verdict in explorer.verdicts.values()}
        {'FP32'}
    """

    def __init__(self) -> None:
        self.operation = choice("operation", OPERATIONS, value="exp")
        self.inputs = choice("inputs in", INPUTS)
        self.fmt = choice("low format", FORMATS)
        self.chosen = tick("with_layers: this layer in FP32")
        controls = [self.operation, self.inputs, self.fmt, self.chosen]
        super().__init__(
            "In which format does an operation run, and who decides?", controls
        )

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The verdict of each policy, by the policy's name in Python."""
        return _verdicts(
            self.operation.value, self.inputs.value, self.fmt.value, self.chosen.value
        )

    def draw(self) -> tuple[str, str]:
        """Draw a row for each policy, and say the same in words."""
        verdicts = self.verdicts
        parts = [
            f"{name} gives {verdict.gives.name} "
            f"({'; '.join(filter(None, (verdict.rule, verdict.note)))})"
            for name, verdict in verdicts.items()
        ]
        sentence = f"{self._question()}: {'; '.join(parts)}."
        return _table(verdicts, sentence), sentence

    def _question(self) -> str:
        """The operation, its inputs and the low format, in words."""
        low, count = self.fmt.value, OPERATIONS[self.operation.value].inputs
        formats = {"low format": [low, low], "FP32": ["FP32", "FP32"]}.get(
            self.inputs.value, [low, "FP32"]
        )
        come = (
            f"inputs in {listed(formats)}"
            if count == 2
            else f"its one input in {formats[0]}"
        )
        mixed = (
            " (the first of each)"
            if count == 1 and self.inputs.value == INPUTS[2]
            else ""
        )
        place = ", in a layer chosen to run in FP32" if self.chosen.value else ""
        return f"{self.operation.value}, {come}{mixed}, low format {low}{place}"


@cache
def _verdicts(
    operation: str, inputs: str, low: str, chosen: bool
) -> dict[str, Verdict]:
    model = _Model(OPERATIONS[operation].run, inputs)
    numbers = 1 + torch.arange(16.0).reshape(4, 4) / 8  # values of both low formats
    found = {}
    for policy in POLICIES.values():
        name = policy.constant
        if chosen:
            policy = policy.with_layers({"layer": FP32})
        rows = explain(model, numbers, fmt=FORMATS[low], policy=policy).rows
        steps = [row for row in rows if row.module == "layer"]
        first = steps[0]
        last = steps[-1]
        rounded = sum(row.cast for row in steps)
        decided = first.rule.partition("; ")[0]  # not what is special of a kernel
        found[name] = Verdict(first.inputs, rounded, last.format, decided, len(steps))
    return found


class _Layer(nn.Module):
    """A layer that is one operation."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.run(a, b)


class _Model(nn.Module):
    """Gives the operation inputs in the wanted formats; every policy computes products low."""

    def __init__(self, run: Callable[[Tensor, Tensor], Tensor], inputs: str) -> None:
        super().__init__()
        self.layer = _Layer(run)
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        low = x @ torch.eye(4)
        pair = {"low format": (low, low), "FP32": (x, x)}.get(self.inputs, (low, x))
        output: Tensor = self.layer(*pair)
        return output


NAME, TAKES, GIVES = 12, 330, 600

GREY = 'fill="#4A4A50"'


def _table(verdicts: dict[str, Verdict], description: str) -> str:
    drawing = Drawing()
    top = 34
    for x, words in ((NAME, "policy"), (TAKES, "takes"), (GIVES, "gives")):
        drawing.text(x, 20, words, more=BOLD)
    for name, verdict in verdicts.items():
        drawing.line(f"M{NAME} {top}H788", "#C8C8CC")
        drawing.text(NAME, top + 22, name)
        words = "; ".join(filter(None, (verdict.rule, verdict.note)))
        drawing.text(NAME, top + 45, words, more=GREY)
        _mark(drawing, GIVES, top + 18, verdict.gives)
        for i, fmt in enumerate(verdict.takes):
            _mark(drawing, TAKES + 130 * i, top + 18, fmt)
        top += 58
    return drawing.svg(f"A table of policies. {description}", width=800, height=top)


def _mark(drawing: Drawing, x: float, y: float, fmt: Format) -> None:
    """The marker of a format, in its colour, and its name."""
    look = style(fmt)
    if look.marker == "o":
        drawing.dot(x + 6, y, 6, look.colour)
    elif look.marker == "s":
        # A stroke keeps its width on a phone, where what is filled is squeezed.
        drawing.line(f"M{x + 6} {y - 6}v12", look.colour, 12)
    else:
        drawing.area(f"M{x + 6} {y - 7}l7 7l-7 7l-7 -7z", look.colour)
    drawing.text(x + 26, y + 4, fmt.name)
