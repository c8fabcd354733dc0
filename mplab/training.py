"""Training runs to compare: a task, a recipe, and the history that comes out.

A task is data, a network, a loss and an optimizer. A recipe says in which format it is
trained: plainly in FP32, simulated in any format, or by torch's own automatic mixed
precision. Weights and optimizer are FP32 in all of them.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mplab
from mplab.formats import BF16, FP16, FP32, Format
from mplab.history import ExponentHistogram, History, exponent_histogram
from mplab.rounding import Tally
from mplab.scaling import LossScaler
from mplab.simulate import simulated
from mplab.tasks import TASKS, Batch, Split, Task

__all__ = [
    "RECIPES",
    "TASKS",
    "ExponentHistogram",
    "History",
    "Recipe",
    "Task",
    "exponent_histogram",
    "train",
]


@dataclass(frozen=True)
class Recipe:
    """In which format a task is trained, and with which loss scale.

    Args:
        name: how the recipe is called.
        compute_format: the format of the operations that mixed precision lowers.
        simulated: rounded in software, in any format; otherwise torch itself computes, in
            FP32 plainly, in FP16 and BF16 by `torch.amp`.
        init_scale: the first loss scale; None trains without one.
        dynamic: whether the scale follows overflows and skips their steps.
        growth_factor: as in `LossScaler`.
        backoff_factor: as in `LossScaler`.
        growth_interval: as in `LossScaler`.
    """

    name: str
    compute_format: Format
    simulated: bool = False
    init_scale: float | None = None
    dynamic: bool = True
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000

    def __post_init__(self) -> None:
        if not self.simulated and self.compute_format not in (FP32, FP16, BF16):
            raise ValueError(
                f"Recipe: compute_format must be FP32, FP16 or BF16 for torch's own arithmetic; "
                f"got {self.compute_format.name}. Set simulated=True."
            )
        if self.init_scale is not None:
            self.scaler()  # checks the numbers
            if not self.simulated and not self.dynamic:
                raise ValueError(
                    "Recipe: dynamic must be True for torch's own arithmetic, since "
                    "torch.amp.GradScaler has no static scale; got False. Set simulated=True."
                )

    def scaler(self) -> LossScaler:
        """A fresh loss scaler; one that stays at 1 for a recipe without a scale."""
        if self.init_scale is None:
            return LossScaler(1.0, dynamic=False)
        return LossScaler(
            self.init_scale,
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
            dynamic=self.dynamic,
        )


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("fp32", FP32),
        Recipe("fp16-naive", FP16, simulated=True),
        Recipe("fp16-scaled", FP16, simulated=True, init_scale=65536.0),
        Recipe("bf16", BF16, simulated=True),
        Recipe("amp-fp16-naive", FP16),
        Recipe("amp-fp16", FP16, init_scale=65536.0),
        Recipe("amp-bf16", BF16),
    )
}
"""The named recipes."""


# Runs ------------------------------------------------------------------------------------


def train(
    task: str | Task,
    recipe: str | Recipe,
    *,
    seed: int = 0,
    steps: int | None = None,
    device: str | None = None,
    progress: bool = True,
    record_gradients_at: Sequence[int] = (0,),
) -> History:
    """Train a task by a recipe.

    The seed decides the first weights and the batches, alike for all recipes. On a CPU a
    run uses one thread, and the same seed gives the same history bit for bit.

    Args:
        task: a name in `TASKS`, or a task.
        recipe: a name in `RECIPES`, or a recipe.
        seed: of the weights and the batches.
        steps: instead of the task's.
        device: of torch's own arithmetic; None takes CUDA if there is one for mixed
            precision, else the CPU. Simulated runs stay on the CPU unless told otherwise.
        progress: show a bar.
        record_gradients_at: steps at which to record the activation gradients by layer.

    Returns:
        The history, which saves to one file.

    Raises:
        ValueError: an unknown name, or a negative number of steps.

    Examples:
        >>> run = train("digits-autoencoder", "fp32", steps=3, progress=False)
        >>> run.loss.shape, run.device
        ((3,), 'cpu')
    """
    chosen: Task = _named("task", task, TASKS)
    how: Recipe = _named("recipe", recipe, RECIPES)
    count = chosen.steps if steps is None else steps
    if count < 0:
        raise ValueError(f"train: steps must not be negative; got {count}. Use 0 or more.")
    place = torch.device(device or _device_for(how))
    with _one_thread(place):
        run = _Run(chosen, how, seed, place)
        for step in _counted(count, chosen, how, progress):
            run.step(record=step in record_gradients_at)
        return run.history()


def _named(kind: str, wanted: Any, known: dict[str, Any]) -> Any:
    if not isinstance(wanted, str):
        return wanted
    if wanted not in known:
        raise ValueError(
            f"train: {kind} must be one of {', '.join(known)}; got {wanted!r}. Choose one of them."
        )
    return known[wanted]


def _device_for(recipe: Recipe) -> str:
    real = not recipe.simulated and recipe.compute_format is not FP32
    return "cuda" if real and torch.cuda.is_available() else "cpu"


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, small products are faster on one thread, and sums keep their order."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _counted(steps: int, task: Task, recipe: Recipe, progress: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(range(steps), desc=f"{task.name} {recipe.name}", leave=False, disable=not progress)


def _batches(split: Split, size: int | None, seed: int) -> Iterator[Batch]:
    """Batches for ever, each epoch in an order of its own."""
    inputs, targets = split.train
    generator = torch.Generator().manual_seed(seed)
    while True:
        if size is None:
            yield inputs, targets
            continue
        order = torch.randperm(len(inputs), generator=generator).to(inputs.device)
        for begin in range(0, len(inputs) - size + 1, size):
            chosen = order[begin : begin + size]
            yield inputs[chosen], targets[chosen]


class _Run:
    """One training run, step by step."""

    def __init__(self, task: Task, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.task, self.recipe, self.seed, self.device = task, recipe, seed, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = task.model().to(device)
        self.split = task.data().to(device)
        self.batches = _batches(self.split, task.batch, seed)
        self.optimizer = task.optimizer(self.model.parameters())
        self.scaler = recipe.scaler()
        self.amp = torch.amp.GradScaler(
            device.type,
            init_scale=recipe.init_scale or 1.0,
            growth_factor=recipe.growth_factor,
            backoff_factor=recipe.backoff_factor,
            growth_interval=recipe.growth_interval,
            enabled=not recipe.simulated and recipe.init_scale is not None,
        )
        self.losses: list[float] = []
        self.scales: list[float] = []
        self.skipped: list[bool] = []
        self.gradients: dict[int, dict[str, ExponentHistogram]] = {}
        self.flushed: dict[int, dict[str, tuple[int, int]]] = {}
        self.simulation = simulated(recipe.compute_format, model=self.model)

    def step(self, *, record: bool) -> None:
        """One step: forward, backward, and an update unless the scaler skips it."""
        inputs, targets = next(self.batches)
        number = len(self.losses)
        reference = self._reference(inputs, targets) if record else {}
        self.optimizer.zero_grad()
        with _recording(self.model, record) as seen:
            scale, loss = self._backward(inputs, targets)
        self.losses.append(float(loss))
        self.scales.append(scale)
        self.skipped.append(self._update())
        if record:
            self.gradients[number] = {
                layer: exponent_histogram(gradient / scale) for layer, gradient in seen.items()
            }
            self.flushed[number] = {
                layer: (
                    int(((gradient != 0) & (seen[layer] == 0)).sum()),
                    int((gradient != 0).sum()),
                )
                for layer, gradient in reference.items()
            }

    def _backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Forward and backward of the scaled loss; the scale, and the loss without it."""
        if self.recipe.simulated:
            scale = self.scaler.scale
            with self.simulation:
                loss = self.task.loss(self.model(inputs), targets)
                (loss * scale).backward()  # type: ignore[no-untyped-call]
            return scale, loss.detach()
        with self._autocast():
            loss = self.task.loss(self.model(inputs), targets)
        scale = self.amp.get_scale()
        self.amp.scale(loss).backward()  # type: ignore[no-untyped-call]
        return scale, loss.detach()

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.recipe.simulated or self.recipe.compute_format is FP32:
            return nullcontext()
        return torch.amp.autocast(self.device.type, dtype=self.recipe.compute_format.torch_dtype)

    def _update(self) -> bool:
        """Unscale, and update the weights or skip; whether the step was skipped."""
        if not self.recipe.simulated:
            before = self.amp.get_scale()
            self.amp.step(self.optimizer)
            self.amp.update()
            return self.amp.get_scale() < before
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        found = not all(bool(torch.isfinite(g).all()) for g in gradients)
        inverse = 1 / self.scaler.scale
        skip = self.scaler.update(found)
        if not skip:
            for gradient in gradients:
                gradient.mul_(inverse)
            self.optimizer.step()
        return skip

    def _reference(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The activation gradients that FP32 has at the present weights, by layer."""
        model = copy.deepcopy(self.model)
        with _recording(model, True) as seen:
            self.task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        return seen

    def history(self) -> History:
        """What the run has come to, evaluated on the test data in the recipe's own format."""
        inputs = self.split.test[0]
        within: AbstractContextManager[Any] = self._autocast()
        tally: dict[str, dict[str, Tally]] = {}
        if self.recipe.simulated:
            within = simulated(self.recipe.compute_format, model=self.model, tally=False)
            tally = {"operation": self.simulation.by_operation, "layer": self.simulation.by_layer}
        with torch.no_grad(), within:
            output = self.model(inputs).float()
        cuda = self.device.type == "cuda"
        return History(
            task=self.task.name,
            recipe=self.recipe.name,
            seed=self.seed,
            device=torch.cuda.get_device_name(self.device) if cuda else self.device.type,
            simulated=self.recipe.simulated,
            loss=np.array(self.losses),
            loss_scale=np.array(self.scales),
            skipped=np.array(self.skipped, bool),
            metrics=self.task.metrics(output, self.split),
            gradients=self.gradients,
            flushed=self.flushed,
            tally=tally,
            environment={
                "mplab": mplab.__version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
                "platform": platform.platform(),
            },
        )


@contextmanager
def _recording(model: nn.Module, wanted: bool) -> Iterator[dict[str, Tensor]]:
    """Collect the gradients with respect to the output of every layer with weights.

    They are named "layer 1", "layer 2", … in the order of the model.
    """
    seen: dict[str, Tensor] = {}
    handles = []
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    for number, layer in enumerate(layers if wanted else [], 1):
        name = f"layer {number}"
        seen[name] = torch.empty(0)

        def keep(_layer: nn.Module, _inputs: Any, output: Tensor, name: str = name) -> None:
            def save(gradient: Tensor) -> None:
                seen[name] = gradient.detach().clone().double()

            output.register_hook(save)  # type: ignore[no-untyped-call]

        handles.append(layer.register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
