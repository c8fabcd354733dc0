"""Memory and time of a training step, part by part.

Mixed precision keeps FP32 parameters, gradients and optimizer state, and adds low copies of
weights; it saves memory in the activations.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from mplab.numbers.checks import integer
from mplab.training.engines import Engine
from mplab.training.loop import Batches, own_randomness
from mplab.training.recipes import Recipe, recipe_of
from mplab.training.tasks import Task, task_of

STAGES = ("data", "forward", "backward", "unscale", "optimizer", "scaler")
"""The parts of a step, in order."""


# Memory ----------------------------------------------------------------------------------
class _Copies(TorchDispatchMode):
    """Collect the memory of the copies that autocast makes of parameters, by address."""

    def __init__(self, parameters: set[int]) -> None:
        super().__init__()
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
        parameters: the parameters, in FP32 unless the recipe keeps them low.
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
    device: str = "cpu",
    checkpointed: bool = False,
) -> Memory:
    """Measure the memory of one training step.

    A simulation computes in FP32, so of a simulated recipe the step of torch's own arithmetic
    in the same format is measured.

    Args:
        task: a name in `mplab.training.TASKS`, or a task.
        recipe: a name in `mplab.training.RECIPES`, or a recipe without FP8 layers.
        device: "cpu" or "cuda".
        checkpointed: recompute each child of a `Sequential` in the backward pass; saves memory
            where a child is a block of several layers, and costs some where it is one layer.

    Raises:
        ValueError: an unknown name; a recipe that torch's own arithmetic has not, or with FP8
            layers; checkpointing of a model that is not a `Sequential`.
    """
    how = recipe_of(recipe, "memory")
    if how.fp8 is not None:
        raise ValueError(
            "memory: recipe must have no FP8 layers, because what they keep is not told apart; got "
            f"{how.name}. Use 'fp32', 'amp-fp16' or 'amp-bf16'."
        )
    place = torch.device(device)
    cuda = place.type == "cuda"
    with own_randomness(0, place):
        real = replace(how, simulated=False)
        engine, batches = _begin("memory", task, real, place, checkpointed)
        x, y = (t.to(place) for t in batches.next())
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        activations, copies, loss = kept_bytes(
            lambda: engine.forward(x, y), engine.model, (x, y)
        )
        engine.scaler.scale(loss).backward()
        engine.update()
    parameters = list(engine.model.parameters())
    state = (t for s in engine.optimizer.state.values() for t in s.values())
    return Memory(
        recipe=how.name,
        simulated=how.simulated,
        parameters=sum(p.nbytes for p in parameters),
        gradients=sum(p.grad.nbytes for p in parameters if p.grad is not None),
        optimizer=sum(t.nbytes for t in state if isinstance(t, Tensor)),
        activations=activations,
        copies=copies,
        peak=torch.cuda.max_memory_allocated() if cuda else None,
        checkpointed=checkpointed,
    )


# A step in parts -------------------------------------------------------------------------
def _begin(
    where: str,
    task: str | Task,
    recipe: Recipe,
    device: torch.device,
    checkpointed: bool = False,
) -> tuple[Engine, Batches]:
    """The engine and the batches of a step."""
    what = task_of(task, where)
    if what.batch is not None:
        integer(where, "batch", what.batch, least=1)
    model = copy.deepcopy(what.model()).to(device)  # it may be the caller's own
    if checkpointed:
        if not isinstance(model, nn.Sequential):
            raise ValueError(
                f"{where}: checkpointed must be False, or the model must be a Sequential; got a "
                f"{type(model).__name__}. Put its blocks in one."
            )
        model = nn.Sequential(*map(_Whole, model))
    optimizer = what.optimizer(model.parameters())
    engine = Engine(model, what.loss, optimizer, recipe)
    return engine, Batches(what.data(), what.batch, seed=0)


class _Whole(nn.Module):
    """A part that is computed again as a whole, also where it is a `Sequential`."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        """The part's output."""
        return checkpoint(self.part, x, use_reentrant=False)


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
    task: str | Task, recipe: str | Recipe, *, steps: int = 10, device: str = "cpu"
) -> Times:
    """Time each stage of a training step: on CUDA by events, else by the wall clock.

    Args:
        task: a name in `mplab.training.TASKS`, or a task.
        recipe: a name in `mplab.training.RECIPES`, or a recipe.
        steps: number of timed steps, after two to warm up.
        device: "cpu" or "cuda".

    Raises:
        ValueError: an unknown name, or no step.
    """
    count = integer("stage_times", "steps", steps, least=1)
    how = recipe_of(recipe, "stage_times")
    place = torch.device(device)
    with own_randomness(0, place):
        engine, batches = _begin("stage_times", task, how, place)
        clock = _Clock(place)
        for number in range(count + 2):
            if number == 2:
                clock.laps.clear()
            engine.model.zero_grad()
            with clock("data"):
                x, y = (t.to(place) for t in batches.next())
            with engine.simulation:
                with clock("forward"):
                    loss = engine.forward(x, y)
                with clock("backward"):
                    engine.scaler.scale(loss).backward()
            with clock("unscale"):
                engine.unscale()
            with clock("optimizer"):
                engine.scaler.step(engine.optimizer)
            with clock("scaler"):
                engine.scaler.update()
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "cpu"
    return Times(how.name, name, how.simulated, clock.medians(), len(x))


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
        event = torch.cuda.Event(enable_timing=True)
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
