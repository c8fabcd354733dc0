"""Memory and time of a training step, part by part: predicted from shapes, and measured.

Mixed precision keeps FP32 parameters, gradients and optimizer state, and adds low copies of
weights; it saves memory in the activations. The prediction is a sum over layers that a reader can
repeat by hand, and a test compares it with the memory that autograd keeps, byte for byte.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mplab.numbers.checks import integer
from mplab.numbers.formats import FP32
from mplab.scaling.grad_scaler import GradScaler
from mplab.simulation.context import simulated
from mplab.training.activations import children_of, predicted_activations
from mplab.training.loop import known, own_randomness
from mplab.training.recipes import RECIPES, Recipe
from mplab.training.tasks import TASKS, Task

STAGES = ("data", "forward", "backward", "unscale", "optimizer", "scaler")
"""The parts of a step, in order."""


# Memory, measured ------------------------------------------------------------------------
def kept_bytes(
    compute: Callable[[], Tensor], model: nn.Module, batch: Sequence[Tensor]
) -> tuple[int, Tensor]:
    """Measure the bytes that autograd keeps while `compute` runs; return also its result.

    It counts the distinct pieces of memory of saved tensors, without parameters and the batch.
    """
    known = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *batch)}
    pieces: dict[int, Any] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            pieces[storage.data_ptr()] = storage  # held, so that no address is reused
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = compute()
    return sum(storage.nbytes() for storage in pieces.values()), result


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step by component.

    Attributes:
        recipe: the name of the recipe.
        parameters: the parameters, all in FP32.
        gradients: the gradients of the parameters.
        optimizer: the optimizer's state after a step.
        kept: activations and low copies of weights, measured.
        activations: predicted; None where a module has no rule.
        casts: predicted low copies of weights.
        would: for a simulated recipe, what its real format would keep; the simulator keeps `kept`.
        peak: on CUDA, the most memory that torch's allocator had allocated during the step.
        checkpointed: whether blocks kept only their inputs.
    """

    recipe: str
    parameters: int
    gradients: int
    optimizer: int
    kept: int
    activations: int | None
    casts: int | None
    would: int | None
    peak: int | None
    checkpointed: bool


def memory(
    task: str | Task,
    recipe: str | Recipe,
    *,
    batch: int | None = None,
    device: str = "cpu",
    checkpointed: bool = False,
) -> Memory:
    """Measure and predict the memory of one training step.

    Args:
        task: a name in `mplab.training.TASKS`, or a task.
        recipe: a name in `mplab.training.RECIPES`, or a recipe.
        batch: number of examples; None takes the task's.
        device: "cpu" or "cuda".
        checkpointed: recompute each child of a `Sequential` in the backward pass; saves memory
            where a child is a block of several layers, and costs some where it is one layer.

    Raises:
        ValueError: an unknown name; a recipe that needs more than autocast's policy and a loss
            scale; more examples than the task has; checkpointing of a model that is not a
            `Sequential`.
    """
    with own_randomness(0, torch.device(device)):
        return _memory(_Step("memory", task, recipe, batch, device, checkpointed))


def _memory(step: _Step) -> Memory:
    model, (x, y) = step.model, step.data()
    cuda = step.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    with step.simulation:
        kept, loss = kept_bytes(lambda: step.loss(x, y), model, (x, y))
        step.scaler.scale(loss).backward()
    for call in step.after_backward():
        call()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = (t for s in step.optimizer.state.values() for t in s.values())
    low = (
        None
        if step.recipe.compute_format == FP32
        else step.recipe.compute_format.bits / 8
    )
    predicted: tuple[int, int] | None = None
    with suppress(ValueError):  # a module without a rule is only measured
        predicted = predicted_activations(
            model,
            x.shape,
            low_bytes=low,
            loss=step.task.loss,
            cuda=cuda or step.recipe.simulated,
            checkpointed=step.checkpointed,
        )
    activations, casts = predicted or (None, None)
    return Memory(
        recipe=step.recipe.name,
        parameters=sum(p.nbytes for p in model.parameters()),
        gradients=gradients,
        optimizer=sum(t.nbytes for t in state if isinstance(t, Tensor)),
        kept=kept,
        activations=activations,
        casts=casts,
        would=sum(predicted) if step.recipe.simulated and predicted else None,
        peak=torch.cuda.max_memory_allocated() if cuda else None,
        checkpointed=step.checkpointed,
    )


# A step in parts -------------------------------------------------------------------------
class _Step:
    """A training step whose parts can be called one by one."""

    def __init__(
        self,
        where: str,
        task: str | Task,
        recipe: str | Recipe,
        batch: int | None,
        device: str,
        checkpointed: bool,
    ) -> None:
        self.task: Task = known("task", task, TASKS, where=where)
        self.recipe = _plain(where, known("recipe", recipe, RECIPES, where=where))
        self.device = torch.device(device)
        self.checkpointed = checkpointed
        self.model = copy.deepcopy(self.task.model()).to(self.device)
        self.children = children_of(where, self.model) if checkpointed else []
        self.train = self.task.data().train
        self.size = self.task.batch if batch is None else batch
        if self.size is not None:
            integer(where, "batch", self.size, least=1, most=len(self.train[0]))
        self.optimizer = self.task.optimizer(self.model.parameters())
        self.simulation: AbstractContextManager[Any] = nullcontext()
        if self.recipe.simulated:
            fmt = self.recipe.compute_format
            self.simulation = simulated(fmt, model=self.model, tally=False)
        scaled = self.recipe.init_scale is not None
        self.scaler: Any = torch.amp.GradScaler(
            self.device.type, init_scale=self.recipe.init_scale or 1.0, enabled=scaled
        )
        if scaled and self.recipe.simulated:
            self.scaler = GradScaler(self.recipe.scaler())

    def data(self) -> tuple[Tensor, Tensor]:
        """A batch on the device."""
        x, y = self.train
        order = torch.randperm(len(x))[: self.size] if self.size else slice(None)
        return x[order].to(self.device), y[order].to(self.device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss in the recipe's format."""
        real = not self.recipe.simulated and self.recipe.compute_format != FP32
        dtype = self.recipe.compute_format.torch_dtype if real else torch.bfloat16
        with torch.autocast(self.device.type, dtype=dtype, enabled=real):
            for part in self.children:
                x = checkpoint(part, x, use_reentrant=False)
            return self.task.loss(x if self.checkpointed else self.model(x), y)

    def after_backward(self) -> Sequence[Callable[[], Any]]:
        """Unscale the gradients, update the weights, update the scale."""
        scaler, optimizer = self.scaler, self.optimizer
        return (
            partial(scaler.unscale_, optimizer),
            partial(scaler.step, optimizer),
            scaler.update,
        )


def _plain(where: str, recipe: Recipe) -> Recipe:
    """Reject a recipe that needs more than autocast's policy and a loss scale."""
    for name in _BEYOND:
        if getattr(recipe, name) != getattr(RECIPES["fp32"], name):
            raise ValueError(
                f"{where}: recipe must have nothing but a format, autocast's policy and a loss "
                f"scale; got {recipe.name} with {name}. Use 'fp32', 'amp-fp16' or 'amp-bf16'."
            )
    return recipe


_BEYOND = (
    "policy",
    "weight_format",
    "optimizer_format",
    "max_norm",
    "fp8",
    "checkpointing",
)
"""Options of a recipe that a step here does not support."""


@dataclass(frozen=True)
class Times:
    """Seconds per step by stage, the median of several steps.

    Attributes:
        recipe: the name of the recipe.
        device: the device's name.
        simulated: whether the simulator was timed, not a real format.
        seconds: seconds by stage.
        examples: number of examples per step.
    """

    recipe: str
    device: str
    simulated: bool
    seconds: dict[str, float]
    examples: int

    @property
    def throughput(self) -> float:
        """Examples per second."""
        return self.examples / sum(self.seconds.values())


def stage_times(
    task: str | Task,
    recipe: str | Recipe,
    *,
    steps: int = 10,
    batch: int | None = None,
    device: str = "cpu",
) -> Times:
    """Time each stage of a training step: on CUDA by events, else by the wall clock.

    Args:
        task: a name in `mplab.training.TASKS`, or a task.
        recipe: a name in `mplab.training.RECIPES`, or a recipe.
        steps: number of timed steps, after two to warm up.
        batch: number of examples; None takes the task's.
        device: "cpu" or "cuda".

    Raises:
        ValueError: as in `memory`.
    """
    with own_randomness(0, torch.device(device)):
        count = integer("stage_times", "steps", steps, least=1)
        return _stage_times(
            _Step("stage_times", task, recipe, batch, device, False), count
        )


def _stage_times(step: _Step, steps: int) -> Times:
    clock = _Clock(step.device)
    for number in range(steps + 2):
        if number == 2:
            clock.laps.clear()
        step.optimizer.zero_grad()
        with clock("data"):
            x, y = step.data()
        with step.simulation:
            with clock("forward"):
                loss = step.loss(x, y)
            with clock("backward"):
                step.scaler.scale(loss).backward()
        for stage, call in zip(STAGES[3:], step.after_backward(), strict=True):
            with clock(stage):
                call()
    cuda = step.device.type == "cuda"
    name = torch.cuda.get_device_name(step.device) if cuda else "cpu"
    return Times(step.recipe.name, name, step.recipe.simulated, clock.medians(), len(x))


class _Clock:
    """Times by name; on CUDA they are read once all work is done."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.laps: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = self._now()
        yield
        self.laps.append((name, begin, self._now()))

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def medians(self) -> dict[str, float]:
        """Seconds by stage."""
        if self.cuda:
            torch.cuda.synchronize()
        found: dict[str, list[float]] = {}
        for name, begin, end in self.laps:
            taken = begin.elapsed_time(end) / 1e3 if self.cuda else end - begin
            found.setdefault(name, []).append(taken)
        return {name: sorted(laps)[len(laps) // 2] for name, laps in found.items()}
