"""Memory and time of a training step, part by part.

Mixed precision keeps FP32 parameters, gradients and optimizer state, and adds low copies of
weights; it saves memory in the activations.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from mplab.numbers.checks import integer
from mplab.numbers.formats import FP32
from mplab.scaling.grad_scaler import GradScaler
from mplab.simulation.context import simulated
from mplab.training.loop import known, own_randomness
from mplab.training.recipes import RECIPES, Recipe
from mplab.training.tasks import TASKS, Task

STAGES = ("data", "forward", "backward", "unscale", "optimizer", "scaler")
"""The parts of a step, in order."""


# Memory ----------------------------------------------------------------------------------
class _Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collect the memory of the copies that autocast makes of parameters, by address."""

    def __init__(self, parameters: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = parameters
        self.pieces: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        is_copy = func is torch.ops.aten._to_copy.default
        if is_copy and _address(args[0]) in self.parameters:
            self.pieces[_address(result)] = result
        return result


def _address(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


def kept_bytes(
    compute: Callable[[], Tensor], model: nn.Module, batch: Sequence[Tensor]
) -> tuple[int, int, Tensor]:
    """Measure the bytes that autograd keeps while `compute` runs.

    It counts the distinct pieces of memory of saved tensors, without parameters and the batch.

    Returns:
        Bytes of activations, bytes of low copies of weights, and the result of `compute`.
    """
    parameters = {_address(p) for p in model.parameters()}
    known = parameters | {_address(t) for t in batch}
    pieces: dict[int, Any] = {}

    def pack(t: Tensor) -> Tensor:
        if _address(t) not in known:
            pieces[_address(t)] = t.untyped_storage()  # held: no address is reused
        return t

    copies = _Copies(parameters)
    with copies, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = compute()
    sizes = {address: storage.nbytes() for address, storage in pieces.items()}
    copied = sum(size for address, size in sizes.items() if address in copies.pieces)
    return sum(sizes.values()) - copied, copied, result


@dataclass(frozen=True)
class Memory:
    """Bytes of a training step by component.

    Attributes:
        recipe: the name of the recipe.
        simulated: whether the recipe simulates its format; the bytes are those of the real one.
        parameters: the parameters, all in FP32.
        gradients: the gradients of the parameters.
        optimizer: the optimizer's state after a step.
        activations: what autograd keeps for the backward pass, without copies of weights.
        copies: low copies of weights.
        peak: on CUDA, the most memory that torch's allocator had allocated during the step.
        checkpointed: whether blocks kept only their inputs.
    """

    recipe: str
    simulated: bool
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    copies: int
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
    """Measure the memory of one training step.

    A simulation computes in FP32, so of a simulated recipe the step of torch's own arithmetic
    in the same format is measured.

    Args:
        task: a name in `mplab.training.TASKS`, or a task.
        recipe: a name in `mplab.training.RECIPES`, or a recipe.
        batch: number of examples; None takes the task's.
        device: "cpu" or "cuda".
        checkpointed: recompute each child of a `Sequential` in the backward pass; saves memory
            where a child is a block of several layers, and costs some where it is one layer.

    Raises:
        ValueError: an unknown name; a recipe that needs more than autocast's policy and a loss
            scale, or a format that torch does not compute in; more examples than the task has;
            checkpointing of a model that is not a `Sequential`.
    """
    how: Recipe = known("recipe", recipe, RECIPES, where="memory")
    real = replace(how, simulated=False)
    with own_randomness(0, torch.device(device)):
        step = _Step("memory", task, real, batch, device, checkpointed)
        model = step.model
        x, y = step.data()
        cuda = step.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        activations, copies, loss = kept_bytes(lambda: step.loss(x, y), model, (x, y))
        step.scaler.scale(loss).backward()
        for call in step.after_backward():
            call()
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    state = (t for s in step.optimizer.state.values() for t in s.values())
    return Memory(
        recipe=how.name,
        simulated=how.simulated,
        parameters=sum(p.nbytes for p in model.parameters()),
        gradients=gradients,
        optimizer=sum(t.nbytes for t in state if isinstance(t, Tensor)),
        activations=activations,
        copies=copies,
        peak=torch.cuda.max_memory_allocated() if cuda else None,
        checkpointed=checkpointed,
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
        if checkpointed and not isinstance(self.model, nn.Sequential):
            raise ValueError(
                f"{where}: checkpointed must be False, or the model must be a Sequential; got a "
                f"{type(self.model).__name__}. Put its blocks in one."
            )
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
            if not self.checkpointed:
                return self.task.loss(self.model(x), y)
            for part in self.model.children():
                x = checkpoint(part, x, use_reentrant=False)
            return self.task.loss(x, y)

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
    count = integer("stage_times", "steps", steps, least=1)
    with own_randomness(0, torch.device(device)):
        step = _Step("stage_times", task, recipe, batch, device, False)
        clock = _Clock(step.device)
        for number in range(count + 2):
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
