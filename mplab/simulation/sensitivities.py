"""Per-layer sensitivity to low precision, and a policy found from the measurements."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mplab.common.progress import counted
from mplab.common.tables import Table, Tabular
from mplab.numbers.formats import FP32, Format
from mplab.numbers.rounding import Tally
from mplab.simulation.context import simulated
from mplab.simulation.fp8 import Fp8Linear
from mplab.simulation.operations import Rule
from mplab.simulation.policies import CUDA_AUTOCAST, Policy, Run, policy_named
from mplab.simulation.tags import rounding_parameters, this_graph

FEW = 4
"""The number of batches if `steps` is not given."""


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
class FoundPolicy(Tabular):
    """A policy within a budget, and the measurements of a step under it.

    Attributes:
        policy: to use as `simulated(FP32, policy=found.policy, model=model)`.
        measure: of a step under this policy.
        budget: the most that its loss may differ from the FP32 loss.
        fp32_loss: the loss in FP32.
        layers: each layer with its format, and why not a cheaper one.
    """

    policy: Policy
    measure: Measure
    budget: float
    fp32_loss: float
    layers: tuple[tuple[str, Format, str], ...]

    @property
    def table(self) -> Table:
        """The layers as text."""
        off = abs(self.measure.loss - self.fp32_loss)
        caption = (
            f"Measured together: loss {self.measure.loss:.6g}, {off:.2g} from FP32 where "
            f"{self.budget:.2g} is allowed; gradients off by {self.measure.gradient_error:.2g}"
        )
        rows = tuple((name, fmt.name, why) for name, fmt, why in self.layers)
        return Table(caption, ("layer", "format", "why none cheaper"), rows)


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
    _step: _Step = field(compare=False)

    @property
    def table(self) -> Table:
        """The measures as text."""
        caption = (
            f"{self.model} under {self.policy!r}, one layer low, {self.batches} "
            f"batch{'es' * (self.batches > 1)}"
        )
        header = (
            "layer",
            "format",
            "loss",
            "output error",
            "gradient error",
            "worst in",
        )
        lines = {("(none)", FP32): self.fp32, **self.measures}.items()
        rows = []
        for (layer, fmt), m in lines:
            numbers = (
                f"{m.loss:.6g}",
                f"{m.output_error:.2g}",
                f"{m.gradient_error:.2g}",
            )
            rows.append(
                (
                    layer,
                    fmt.name,
                    *numbers,
                    m.worst,
                    _lost(m.forward),
                    _lost(m.backward),
                )
            )
        return Table(caption, (*header, "forward", "backward"), tuple(rows))

    def find_policy(
        self, budget: float, *, gradient_budget: float = 0.5, progress: bool = True
    ) -> FoundPolicy:
        """Lower as many layers as a budget allows, to the formats that were measured.

        Formats of fewer bits come first, and for each format the layers that cost least. Each
        layer is lowered on top of the earlier ones, all are measured together, and a layer that
        exceeds the budget is raised again: errors of layers may add up or cancel. The returned
        policy was itself measured, on the same batches, with the weights that the model had.

        Args:
            budget: the most that the loss may differ from the FP32 loss, in units of the loss.
            gradient_budget: the largest `gradient_error` allowed. The loss alone does not show a
                backward pass that flushes everything: 1 would let a module lose its gradient.
            progress: show a bar.

        Returns:
            The policy, its measurements, and for each layer why it has no cheaper format.

        Raises:
            RuntimeError: as in `sensitivity`.

        Exactness:
            The loss is within the budget on these batches, and is reproduced bit for bit under
            this policy (tests/simulation/test_sensitivities.py); on other batches, or after
            training, it may not be.
        """
        _require_outside("find_policy")

        def excess(m: Measure) -> str:
            if not abs(m.loss - self.fp32.loss) <= budget:
                return f"loss {m.loss:.6g}"
            over = not m.gradient_error <= gradient_budget
            return (
                f"gradient of {m.worst} off by {m.gradient_error:.2g}" if over else ""
            )

        chosen, measure = dict[str, Format](), self.fp32
        why: dict[str, list[str]] = {layer: [] for layer, _ in self.measures}
        order = sorted(self.measures.items(), key=self._cost)
        for (layer, fmt), alone in counted(order, "find_policy", progress=progress):
            if layer in chosen:
                continue
            tried, words = alone, "alone"
            if not excess(alone) and chosen:
                tried, words = (
                    self._step.measure({**chosen, layer: fmt}),
                    "with the others",
                )
            if problem := excess(tried):
                why[layer].append(f"{fmt.name} {words}: {problem}")
            else:
                chosen[layer], measure = fmt, tried
        layers = ((name, chosen.get(name, FP32), "; ".join(why[name])) for name in why)
        policy = _only(
            self.policy, {name: chosen[name] for name in why if name in chosen}
        )
        return FoundPolicy(policy, measure, budget, self.fp32.loss, tuple(layers))

    def _cost(self, item: tuple[tuple[str, Format], Measure]) -> tuple[float, ...]:
        """Sort key of the search: bits, then the cost of the layer alone."""
        (_, fmt), m = item
        off = abs(m.loss - self.fp32.loss)
        return fmt.bits, off if math.isfinite(off) else math.inf, m.gradient_error


def sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    formats: Iterable[Format],
    *,
    policy: Policy | str = CUDA_AUTOCAST,
    layers: Iterable[str] | None = None,
    steps: int | None = None,
    loss_scale: float = 1.0,
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
        loss: loss(model, batch) returns a scalar; it must use the model that it is given.
        formats: the low formats to try.
        policy: which operations of a layer are low, or its name in `POLICIES`; layers that it puts
            in FP32 stay there.
        layers: names of the layers to try; None tries all.
        steps: how many of the batches to take; None takes up to `FEW`.
        loss_scale: the loss is multiplied by it before the backward pass, as `GradScaler` does.
        progress: show a bar.

    Returns:
        The measures, to print, to show in Jupyter, for `mplab.pictures.sensitivity`, and to
        search for a policy. It keeps a copy of the model and the batches.

    Raises:
        ValueError: a format that lacks signs or zero, or does not fit in float32; no batch, or
            fewer than `steps`; a layer that the model does not have; a model with an `Fp8Linear`;
            in FP32, a loss or a gradient that is not finite.
        RuntimeError: called inside `simulated`; `find_policy` likewise.

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
        >>> found.find_policy(0.1, progress=False).policy
        CUDA_AUTOCAST.with_layers({'*': FP32, '0': FP16, '2': FP16})
    """
    _require_outside("sensitivity")
    if low := [
        name or "model" for name, m in model.named_modules() if isinstance(m, Fp8Linear)
    ]:
        raise ValueError(
            f"sensitivity: model must have no layers of few bits, since all is compared with FP32; "
            f"got Fp8Linear in {', '.join(low[:3])}. Measure it before convert_linears."
        )
    policy = policy_named("sensitivity", policy)
    tried = dict.fromkeys(formats)
    for fmt in tried:
        rounding_parameters("sensitivity", fmt)
    with _own_randomness(model):
        stored = _stored(batches, steps)
    step = _Step(model, stored, loss, policy, loss_scale)
    low_layers = step.low_layers()
    names = low_layers if layers is None else dict.fromkeys(layers)
    if unknown := [name for name in names if name not in low_layers]:
        raise ValueError(
            f"sensitivity: layers must be names of modules with operations that {policy.constant} "
            f"runs low; got {unknown[0]!r}. It has {', '.join(low_layers[:9])}."
        )
    fp32 = step.measure({})
    every = [(name, fmt) for name in names for fmt in tried]
    runs = counted(every, "sensitivity", progress=progress)
    measures = {(name, fmt): step.measure({name: fmt}) for name, fmt in runs}
    return Sensitivity(type(model).__name__, policy, len(stored), fp32, measures, step)


# A step that can be run again and again -----------------------------------------------------
class _Step:
    """A forward and a backward pass over stored batches, each time on a copy of the model."""

    def __init__(
        self,
        model: nn.Module,
        batches: Any,
        loss: Any,
        policy: Policy,
        loss_scale: float,
    ) -> None:
        self.model, self.batches, self.loss = copy.deepcopy(model), batches, loss
        self.model.zero_grad()
        self.policy, self.loss_scale = policy, loss_scale
        self.outputs: list[Tensor] = []
        self.gradients: dict[str, list[Tensor]] = {}

    def low_layers(self) -> list[str]:
        """Run in FP32, keep the results, and list the layers that the policy would run low."""
        wide = tuple((key, fmt) for key, fmt in self.policy.layers if fmt == FP32)
        found: dict[str, None] = {}

        def note(
            rule: Rule, run: Any, into: Any, node: Any, *_: Any, **__: Any
        ) -> None:
            low = (
                run in (Run.LOWER, Run.OUTPUT)
                and into is not None
                and rule.written is None
            )
            if node is None and low:
                found[within._mode.place.name] = None

        model = copy.deepcopy(self.model)
        within = simulated(FP32, policy=replace(self.policy, layers=wide), model=model)
        within._mode.record = note
        losses, self.outputs, self.gradients = self._run(model, within)
        numbers = {"the loss": losses, **self.gradients}
        wrong = [
            k
            for k, own in numbers.items()
            if not all(bool(t.isfinite().all()) for t in own)
        ]
        if wrong or not self.gradients:
            raise ValueError(
                f"sensitivity: loss must be finite in FP32, and give the parameters finite "
                f"gradients; got {wrong[0] if wrong else 'no gradient'} with loss_scale="
                f"{self.loss_scale:g}. Let it call the model that it is given; lower the scale."
            )
        own_names = {name or type(model).__name__ for name, _ in model.named_modules()}
        return [name for name in found if name in own_names]

    def measure(self, formats: Mapping[str, Format]) -> Measure:
        """Run with these formats for some layers and FP32 for all others, and compare."""
        model = copy.deepcopy(self.model)
        within = simulated(FP32, policy=_only(self.policy, formats), model=model)
        losses, outputs, gradients = self._run(model, within)
        errors = {
            name: _error(own, self.gradients[name]) for name, own in gradients.items()
        }
        worst = max(errors, key=errors.__getitem__)
        tallies = within.by_layer
        forward, backward = (
            sum((tallies.get(name + suffix, Tally()) for name in formats), Tally())
            for suffix in ("", " backward")
        )
        loss, off = (
            math.fsum(map(float, losses)) / len(losses),
            _error(outputs, self.outputs),
        )
        name = worst if errors[worst] else ""
        return Measure(loss, off, errors[worst], name, forward, backward)

    def _run(
        self, model: nn.Module, within: simulated
    ) -> tuple[list[Tensor], list[Tensor], dict[str, list[Tensor]]]:
        """Return the losses, the outputs, and the gradients by module."""
        outputs: list[Tensor] = []

        def keep(_: Any, __: Any, output: Any) -> None:
            numbers = (t for t in tree_leaves(output) if isinstance(t, Tensor))
            outputs.extend(t.detach().clone() for t in numbers if t.is_floating_point())

        model.register_forward_hook(keep)
        losses = []
        with _own_randomness(model), torch.enable_grad(), within:
            for batch in copy.deepcopy(self.batches):  # a loss may change them
                loss = self.loss(model, batch)
                torch.autograd.backward(loss * self.loss_scale)
                losses.append(loss.detach())
        gradients = dict[str, list[Tensor]]()
        for name, module in model.named_modules():
            own = [
                p.grad.to_dense()
                for p in module.parameters(False)
                if p.grad is not None
            ]
            gradients |= {name or type(model).__name__: own} if own else {}
        return losses, outputs or losses, gradients


def _require_outside(where: str) -> None:
    """Reject calls inside `simulated`, where FP32 is not FP32."""
    if this_graph().innermost is not None:
        raise RuntimeError(
            f"{where}: it must be called outside of simulated; got a call inside. Leave the with "
            f"statement first."
        )


def _only(policy: Policy, formats: Mapping[str, Format]) -> Policy:
    """The policy with these formats for some layers, and FP32 for all others."""
    own: dict[str | type, Format] = {escape(name): fmt for name, fmt in formats.items()}
    return replace(policy, layers=()).with_layers({"*": FP32, **own})


@contextmanager
def _own_randomness(model: nn.Module) -> Iterator[None]:
    """Seed torch's random numbers, and restore their state afterwards."""
    devices = {p.device for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        yield


def _stored(batches: Iterable[Any], steps: int | None) -> list[Any]:
    """The first few batches."""
    stored = list(islice(batches, FEW if steps is None else steps))
    if len(stored) < (steps or 1):
        raise ValueError(
            f"sensitivity: batches must hold at least {steps or 1}; got {len(stored)}. Lower "
            f"steps; a generator that was used up must be made anew."
        )
    return stored


def _error(found: list[Tensor], exact: list[Tensor]) -> float:
    """The norm of the difference over the norm of `exact`; infinite where not finite."""
    if [t.shape for t in found] != [t.shape for t in exact]:
        return math.inf
    pairs = [(a.double(), b.double()) for a, b in zip(found, exact, strict=True)]
    off = sum(float(torch.where(a == b, 0.0, a - b).square().sum()) for a, b in pairs)
    whole = sum(
        float(torch.where(b.isfinite(), b, 0.0).square().sum()) for _, b in pairs
    )
    if not off:
        return 0.0
    return math.sqrt(off / whole) if whole and math.isfinite(off) else math.inf


def _lost(tally: Tally) -> str:
    """The shares that overflowed or were flushed, in words."""
    fates = {"overflow": tally.overflow, "flushed": tally.flushed}
    return (
        ", ".join(f"{n / tally.total:.2g} {fate}" for fate, n in fates.items() if n)
        or "–"
    )
