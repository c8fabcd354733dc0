"""Per-layer sensitivity to low precision."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from glob import escape
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mplab.common.progress import counted
from mplab.common.tables import Table, Tabular
from mplab.numbers.devices import forked_randomness, widest
from mplab.numbers.formats import FP32, Format
from mplab.numbers.rounding import Tally
from mplab.simulation.context import simulated
from mplab.simulation.dispatch import Mode, Ran
from mplab.simulation.fp8 import Fp8Linear
from mplab.simulation.policies import CUDA_AUTOCAST, Policy, Run, policy_named
from mplab.simulation.tags import rounding_parameters, this_graph


class Measure(NamedTuple):
    """Results of a step with some layers low, and their distance from the same step in FP32."""

    loss: float
    """The mean over the batches."""
    output_error: float
    """‖output − exact‖ / ‖exact‖, where exact is the FP32 output; inf where one is not finite."""
    gradient_error: float
    """The same for the gradient of a module's own parameters, in the worst module."""
    worst: str
    """The module with the greatest gradient error."""
    forward: Tally
    """Counts of the roundings in these layers in the forward pass."""
    backward: Tally
    """The same counts in the backward pass."""


@dataclass(frozen=True, repr=False)
class Sensitivity(Tabular):
    """Measurements of a model with one layer at a time in a low format; prints as a table.

    Attributes:
        model: the name of the model's class.
        policy: which operations of a layer are low.
        batches: the number of batches.
        fp32: a second step with no layer low: its errors are 0 if the loss gives the same numbers
            twice, else they are the errors to expect by chance.
        measures: by layer and format, the layers in the order in which they run.
    """

    model: str
    policy: Policy
    batches: int
    fp32: Measure
    measures: dict[tuple[str, Format], Measure]

    @property
    def table(self) -> Table:
        """The measures as text."""
        plural = "es" if self.batches > 1 else ""
        caption = f"{self.model} under {self.policy!r}, one layer low, {self.batches} batch{plural}"
        header = (
            "layer",
            "format",
            "loss",
            "output error",
            "gradient error",
            "worst in",
            "forward",
            "backward",
        )
        lines = {("(none)", FP32): self.fp32, **self.measures}
        rows = [
            (
                layer,
                fmt.name,
                f"{m.loss:.6g}",
                f"{m.output_error:.2g}",
                f"{m.gradient_error:.2g}",
                m.worst,
                _lost(m.forward),
                _lost(m.backward),
            )
            for (layer, fmt), m in lines.items()
        ]
        return Table(caption, header, tuple(rows))


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    formats: Iterable[Format],
    *,
    policy: Policy | str = CUDA_AUTOCAST,
    steps: int = 4,
    progress: bool = True,
) -> Sensitivity:
    """Measure what each layer costs when it alone runs in a low format, forward and backward.

    A layer is a module with operations of its own that the policy runs low; modules within it
    are layers of their own. Loss and output show the forward pass alone; the gradients of all
    parameters, summed over the batches, show both. All steps run on copies of the model, with
    the same batches and the same random numbers of torch, so the model, its `.grad`, its buffers
    and torch's random state stay as they are.

    Args:
        model: any float32 module that can be copied, on one device.
        batches: the batches for `loss`, such as a `DataLoader`.
        loss: loss(model, batch) returns a scalar, perhaps times a loss scale; it must use the model
            that it is given.
        formats: the low formats to try.
        policy: which operations of a layer are low, or its name in `POLICIES`; layers that it puts
            in FP32 stay there, and are not tried.
        steps: how many of the batches to take, at most.
        progress: show a bar.

    Returns:
        The measures, to print, to show in Jupyter, and for `mplab.pictures.sensitivity`. Errors of
        several low layers may add up or cancel: measure a choice of several as a whole, under
        `simulated` with `policy.with_layers({…})`.

    Raises:
        ValueError: a format that lacks signs or zero, or does not fit in float32; no batch; a model
            with an `Fp8Linear`; in FP32, a loss or a gradient that is not finite.
        RuntimeError: called inside `simulated`.

    Exactness:
        Where nothing is low the numbers are those of plain FP32, bit for bit
        (tests/simulation/test_sensitivities.py). Errors are sums of squares in float64.

    Examples:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> def loss(model, batch):
        ...     return model(batch).square().mean()
        >>> found = sensitivity(model, [torch.ones(3, 2)], loss, [FP16], progress=False)
        >>> [(layer, fmt.name) for layer, fmt in found.measures]
        [('0', 'FP16'), ('2', 'FP16')]
    """
    if this_graph().innermost is not None:  # where FP32 is not FP32
        raise RuntimeError(
            "sensitivity: it must be called outside of simulated; got a call inside. Leave the "
            "with statement first."
        )
    low = [
        name or "model" for name, m in model.named_modules() if isinstance(m, Fp8Linear)
    ]
    if low:
        raise ValueError(
            f"sensitivity: model must have no layers of few bits, since all is compared with FP32; "
            f"got Fp8Linear in {', '.join(low[:3])}. Measure it before convert_linears."
        )
    policy = policy_named("sensitivity", policy)
    tried = dict.fromkeys(formats)
    for fmt in tried:
        rounding_parameters("sensitivity", fmt)
    with _own_randomness(model):
        stored = list(islice(batches, steps))
    if not stored:
        raise ValueError(
            "sensitivity: batches must hold at least one; got none. A generator that was used up "
            "must be made anew."
        )
    step = _Step(model, stored, loss, policy)
    every = [(name, fmt) for name in step.low_layers() for fmt in tried]
    fp32 = step.measure({})
    runs = counted(every, "sensitivity", progress=progress)
    measures = {(name, fmt): step.measure({name: fmt}) for name, fmt in runs}
    return Sensitivity(type(model).__name__, policy, len(stored), fp32, measures)


# A step that can be run again and again -----------------------------------------------------
@dataclass
class _Step:
    """A forward and a backward pass over stored batches, each time on a copy of the model.

    `low_layers` must run first: its outputs and gradients are those to compare with.
    """

    model: nn.Module
    batches: list[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    policy: Policy
    outputs: list[Tensor] = field(default_factory=list)
    gradients: dict[str, list[Tensor]] = field(default_factory=dict)

    def low_layers(self) -> list[str]:
        """Run in FP32, keep the results, and list the layers that the policy would run low."""
        wide = tuple((key, fmt) for key, fmt in self.policy.layers if fmt == FP32)
        found: dict[str, None] = {}

        def note(mode: Mode, ran: Ran) -> None:
            forward = ran.node is None and ran.rule.written is None
            low = ran.into is not None and ran.run in (Run.LOWER, Run.OUTPUT)
            if forward and low:
                found[mode.place.name] = None

        policy = replace(self.policy, layers=wide)
        _, losses, self.outputs, self.gradients = self._run(policy, note)
        numbers = {"the loss": losses, **self.gradients}
        wrong = [
            name
            for name, own in numbers.items()
            if not all(bool(t.isfinite().all()) for t in own)
        ]
        if wrong or not self.gradients:
            raise ValueError(
                f"sensitivity: loss must be finite in FP32, and give the parameters finite "
                f"gradients; got {wrong[0] if wrong else 'no gradient'}. Let it call the model "
                f"that it is given, and multiply by no scale that is too large."
            )
        kind = type(self.model).__name__
        own_names = {name or kind for name, _ in self.model.named_modules()}
        return [name for name in found if name in own_names]

    def measure(self, formats: Mapping[str, Format]) -> Measure:
        """Run with these formats for some layers and FP32 for all others, and compare."""
        own: dict[str | type, Format] = {escape(n): fmt for n, fmt in formats.items()}
        policy = replace(self.policy, layers=()).with_layers({"*": FP32, **own})
        within, losses, outputs, gradients = self._run(policy)
        errors = {
            name: _error(own, self.gradients[name]) for name, own in gradients.items()
        }
        worst = max(errors, key=errors.__getitem__)
        forward = Tally()
        backward = Tally()
        for name in formats:
            forward += within.by_layer.get(name, Tally())
            backward += within.by_layer.get(f"{name} backward", Tally())
        return Measure(
            math.fsum(map(float, losses)) / len(losses),
            _error(outputs, self.outputs),
            errors[worst],
            worst if errors[worst] else "",
            forward,
            backward,
        )

    def _run(
        self, policy: Policy, note: Callable[[Mode, Ran], None] | None = None
    ) -> tuple[simulated, list[Tensor], list[Tensor], dict[str, list[Tensor]]]:
        """Return the context, the losses, the outputs, and the gradients by module."""
        model = copy.deepcopy(self.model)
        model.zero_grad()
        within = simulated(FP32, policy=policy, model=model)
        if note is not None:
            within._mode.record = partial(note, within._mode)
        outputs: list[Tensor] = []

        def keep(_: Any, __: Any, output: Any) -> None:
            outputs.extend(
                t.detach().clone()
                for t in tree_leaves(output)
                if isinstance(t, Tensor) and t.is_floating_point()
            )

        model.register_forward_hook(keep)
        losses = []
        with _own_randomness(model), torch.enable_grad(), within:
            for batch in copy.deepcopy(self.batches):  # a loss may change them
                loss = self.loss(model, batch)
                torch.autograd.backward(loss)
                losses.append(loss.detach())
        gradients = dict[str, list[Tensor]]()
        for name, module in model.named_modules():
            own = [p.grad for p in module.parameters(False) if p.grad is not None]
            if own:
                key = name or type(model).__name__
                gradients[key] = [gradient.to_dense() for gradient in own]
        return within, losses, outputs or losses, gradients


@contextmanager
def _own_randomness(model: nn.Module) -> Iterator[None]:
    """Seed torch's random numbers, and restore their state afterwards."""
    with forked_randomness({p.device for p in model.parameters()}):
        torch.manual_seed(0)
        yield


def _error(found: list[Tensor], exact: list[Tensor]) -> float:
    """The norm of the difference over the norm of `exact`; infinite where not finite."""
    a, b = (torch.cat([t.flatten().to(widest(t)) for t in x]) for x in (found, exact))
    if len(a) != len(b):
        return math.inf
    off = float(torch.where(a == b, 0.0, a - b).norm())
    whole = float(torch.where(b.isfinite(), b, 0.0).norm())
    if not off:
        return 0.0
    return off / whole if whole and math.isfinite(off) else math.inf


def _lost(tally: Tally) -> str:
    """The shares that overflowed or were flushed, in words."""
    fates = {"overflow": tally.overflow, "flushed": tally.flushed}
    lost = [f"{n / tally.total:.2g} {fate}" for fate, n in fates.items() if n]
    return ", ".join(lost) or "–"
