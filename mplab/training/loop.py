"""One training run: its steps, its checkpoints, and the resulting history.

An interrupted run continues from its checkpoint with the same bits.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mplab.common.files import replace_file
from mplab.common.installation import environment
from mplab.common.progress import counted
from mplab.numbers.checks import integer
from mplab.numbers.devices import forked_randomness, widest
from mplab.numbers.formats import FP32
from mplab.simulation.linears import conversion
from mplab.training.engines import Engine
from mplab.training.exponents import ExponentHistogram, exponent_histogram
from mplab.training.history import History, Sample, sample, settings_from
from mplab.training.recipes import Recipe, recipe_of
from mplab.training.tasks import Batch, Split, Task, metrics_of, task_of


class Watcher(Protocol):
    """An observer of a training run, called after each step."""

    def step(self, loss: float, scale: float, skipped: bool) -> None:
        """Called after a step with its loss, its loss scale, and whether its update was skipped."""

    def close(self) -> None:
        """Called when the run has ended, or was interrupted by an error."""


def train(
    task: str | Task,
    recipe: str | Recipe,
    *,
    seed: int = 0,
    steps: int | None = None,
    device: str | None = None,
    progress: bool = True,
    record_gradients_at: Sequence[int] = (0,),
    watch: Callable[[nn.Module, torch.optim.Optimizer], Watcher] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int = 50,
) -> History:
    """Train a task with a recipe.

    The seed decides the initial weights, the batches and all other randomness, alike for all
    recipes. On a CPU a run uses one thread, and on one machine the same seed gives the same
    history bit for bit, also if the run was interrupted and continued from its checkpoint. Another
    processor may add float32 numbers in another order; in the end two runs may then differ as
    much as two seeds do.

    Args:
        task: a name in `TASKS`, or a task.
        recipe: a name in `RECIPES`, or a recipe.
        seed: seed of weights, batches, stochastic rounding and the network's own randomness;
            from 0 to 2^64 − 1.
        steps: instead of the task's.
        device: where it runs; if omitted, torch's own mixed precision takes CUDA if available,
            and all other recipes the CPU.
        progress: show a bar.
        record_gradients_at: steps at which to record the activation gradients by layer.
        watch: called before the first step with the model and its optimizer; returns a
            `Watcher`, which is called after each step and closed at the end.
        checkpoint: a file to continue from if it exists, and to save to. A checkpoint of another
            run, or of other versions or another system, is refused. It stays when the run is
            complete, and gives the same history again until it is deleted.
        save_every: steps between checkpoints; the last step is always saved.

    Returns:
        The history, which saves to one file.

    Raises:
        TypeError: the task's metrics are not a dict of one number for each name.
        ValueError: an unknown name, a seed or a number of steps that is negative, a step to
            record that the run does not have, a checkpoint that does not belong to this run, or a
            batch that is larger than the data.

    Examples:
        >>> run = train("digits-autoencoder", "fp32", steps=3, progress=False)
        >>> run.loss.shape, run.device
        ((3,), 'cpu')
    """
    task = task_of(task, "train")
    recipe = recipe_of(recipe, "train")
    seed = integer("train", "seed", seed, most=2**64 - 1)
    count = integer("train", "steps", task.steps if steps is None else steps)
    recorded = tuple(
        integer("train", "record_gradients_at", step, most=max(0, count - 1))
        for step in record_gradients_at
    )
    save_every = integer("train", "save_every", save_every, least=1)
    path = None if checkpoint is None else Path(checkpoint)
    place = torch.device(device or default_device(recipe))
    with _one_thread(place), own_randomness(seed, place):
        run = _Run(task, recipe, seed, place, count, recorded)
        if path is not None and path.exists():
            run.resume(path)
        if count and not run.rows:  # fail early on invalid metrics
            run.metrics()
        watcher: Any = None if watch is None else watch(run.model, run.optimizer)
        try:
            done = len(run.rows)
            name = f"{task.name} {recipe.name}"
            for _ in counted(
                range(done, count), name, progress=progress, total=count, initial=done
            ):
                run.step()
                done = len(run.rows)
                if watch is not None:
                    watcher.step(*run.rows[-1])
                if path is not None and (done % save_every == 0 or done == count):
                    run.save(path)
        finally:
            if watch is not None:
                watcher.close()
        return run.history()


def default_device(recipe: Recipe) -> str:
    """The device of a run that names none: "cuda" or "cpu"."""
    real = not recipe.simulated and recipe.compute_format != FP32
    return "cuda" if real and torch.cuda.is_available() else "cpu"


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """Use one thread on a CPU: small products are faster, and sums keep their order."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random state, and restore it afterwards."""
    with forked_randomness([device]):
        torch.manual_seed(seed)
        yield


class Batches:
    """Endless batches, each epoch in a new order."""

    def __init__(self, split: Split, size: int | None, seed: int) -> None:
        self.inputs, self.targets = split.train
        self.size = len(self.inputs) if size is None else size
        self.whole = size is None
        if not 1 <= self.size <= len(self.inputs):
            raise ValueError(
                f"train: task must have a batch of 1 to {len(self.inputs)} examples, as many as "
                f"its data; got {self.size}. Change it, or use None for all."
            )
        self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.zeros(0, dtype=torch.int64)
        self.begin = 0

    def next(self) -> Batch:
        """The next batch, on the device of the data."""
        if self.whole:
            return self.inputs, self.targets
        if self.begin + self.size > len(self.order):
            self.order = torch.randperm(len(self.inputs), generator=self.generator)
            self.begin = 0
        chosen = self.order[self.begin : self.begin + self.size].to(self.inputs.device)
        self.begin += self.size
        return self.inputs[chosen], self.targets[chosen]

    def state_dict(self) -> dict[str, Any]:
        """The state on which the next batches depend."""
        return {
            "generator": self.generator.get_state(),
            "order": self.order,
            "begin": self.begin,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.generator.set_state(state["generator"])
        self.order = state["order"]
        self.begin = state["begin"]


class _Run:
    """One training run, step by step."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        seed: int,
        device: torch.device,
        steps: int,
        recorded: tuple[int, ...],
    ) -> None:
        self.task = task
        self.recipe = recipe
        self.seed = seed
        self.device = device
        self.steps = steps
        self.recorded = recorded
        self.model = task.model().to(device)
        self.split = task.data().to(device)
        self.batches = Batches(self.split, task.batch, seed)
        self.optimizer = task.optimizer(self.model.parameters())
        self.engine = Engine(self.model, task.loss, self.optimizer, recipe, seed=seed)
        # Loss, loss scale, and whether the update was skipped, step by step.
        self.rows: list[tuple[float, float, bool]] = []
        self.gradients: dict[int, dict[str, ExponentHistogram]] = {}
        self.flushed: dict[int, dict[str, tuple[int, int]]] = {}
        self.samples: dict[int, dict[str, Sample]] = {}

    def step(self) -> None:
        """One step: forward, backward, and an update unless the scaler skips it."""
        inputs, targets = self.batches.next()
        number = len(self.rows)
        if number not in self.recorded:
            self._advance(inputs, targets)
            return
        reference = self._reference(inputs, targets)  # of the weights before the step
        with _recording(self.model) as seen:
            scale = self._advance(inputs, targets)
        self._record(number, seen, reference, scale)

    def _advance(self, inputs: Tensor, targets: Tensor) -> float:
        """Run the step, note it, and return its loss scale."""
        scale, loss = self.engine.backward(inputs, targets)
        self.rows.append((float(loss), scale, self.engine.update()))
        return scale

    def _record(
        self,
        number: int,
        seen: dict[str, Tensor],
        reference: dict[str, Tensor],
        scale: float,
    ) -> None:
        """Record the gradients of a step by layer, and those that FP32 has."""
        self.gradients[number] = {}
        self.flushed[number] = {}
        self.samples[number] = {}
        for layer, wide in reference.items():
            exact = wide.cpu()
            stored = seen[layer].cpu()
            nonzero = exact != 0
            lost = nonzero & (stored == 0)
            self.gradients[number][layer] = exponent_histogram(stored / scale)
            self.flushed[number][layer] = int(lost.sum()), int(nonzero.sum())
            self.samples[number][layer] = sample(exact, stored)

    def metrics(self) -> dict[str, float]:
        """The task's metrics on the test data, in the recipe's own format."""
        with forked_randomness([self.device]):
            output = self.engine.predict(self.split.test[0])
            return metrics_of(self.task, output, self.split)

    def _reference(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The activation gradients in FP32 at the present weights, by layer."""
        with forked_randomness([self.device]):
            # Plain layers, whatever the recipe's are.
            model = self.task.model().to(self.device)
            model.load_state_dict(self.model.state_dict(), strict=False)
        # what the step itself will draw
        with forked_randomness([self.device]), _recording(model) as seen:
            self.task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        return seen

    # Checkpoints

    def _identity(self) -> dict[str, Any]:
        """The facts that must agree to continue from a checkpoint bit for bit."""
        return {
            "task": self.task.name,
            "recipe": self.recipe.name,
            "settings": self.recipe.settings(),
            "seed": self.seed,
            "steps": self.steps,
            "device": self.device.type,
            "recorded": list(self.recorded),
            "environment": environment(),
        }

    def save(self, path: Path) -> None:
        """Write the complete state of the run to a file, atomically."""
        state = {
            "identity": self._identity(),
            "history": self.history(evaluate=False).to_json(),
            "model": self.model.state_dict(),
            "engine": self.engine.state_dict(),
            "batches": self.batches.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda random"] = torch.cuda.get_rng_state(self.device)
        content = io.BytesIO()
        torch.save(state, content)
        replace_file(path, content.getvalue())

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint."""
        state = self._read(path)
        self.model.load_state_dict(state["model"])
        history = History.from_json(state["history"])
        self.engine.load_state_dict(state["engine"], history.tally)
        self.batches.load_state_dict(state["batches"])
        torch.set_rng_state(state["random"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda random"], self.device)
        columns = history.loss, history.loss_scale, history.skipped
        self.rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self.gradients = history.gradients
        self.flushed = history.flushed
        self.samples = history.samples

    def _read(self, path: Path) -> dict[str, Any]:
        """The state in a checkpoint of this run."""
        cure = "Delete it to begin the run again."
        content = io.BytesIO(path.read_bytes())
        try:
            state: dict[str, Any] = torch.load(
                content, map_location="cpu", weights_only=True
            )
            found = state["identity"]
            found["settings"] = settings_from(found["settings"])
            found["environment"].pop("processes", None)  # of earlier copies
        except Exception as error:  # torch and pickle raise errors of many kinds
            raise ValueError(
                f"train: checkpoint must be a file that train saved; got {path}, which gives "
                f"{type(error).__name__}. {cure}"
            ) from error
        ours = self._identity()
        for key, wanted in ours.items():
            if found.get(key) != wanted:
                raise ValueError(
                    f"train: checkpoint must be of this run; got {path} with {key} "
                    f"{found.get(key)!r} instead of {wanted!r}. {cure}"
                )
        return state

    def history(self, *, evaluate: bool = True) -> History:
        """The history so far, with metrics if wanted."""
        device = self.device.type
        if device == "cuda":
            device = torch.cuda.get_device_name(self.device)
        loss, scale, skipped = np.array(self.rows, np.float64).reshape(-1, 3).T
        found = environment()
        if self.recipe.fp8 is not None:
            found[f"linear layers in {self.recipe.name}"] = conversion(self.model)
        return History(
            task=self.task.name,
            recipe=self.recipe.name,
            compute_format=self.recipe.compute_format.name,
            seed=self.seed,
            device=device,
            simulated=self.recipe.simulated,
            loss=loss.copy(),
            loss_scale=scale.copy(),
            skipped=skipped.astype(bool),
            metrics=self.metrics() if evaluate else {},
            gradients=dict(self.gradients),
            flushed=dict(self.flushed),
            samples=dict(self.samples),
            tally=self.engine.tallies(),
            environment=found,
            settings=self.recipe.settings(),
        )


@contextmanager
def _recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the gradients with respect to the output of every layer with weights.

    They are named "layer 1", "layer 2", … in the order of the model.
    """
    seen: dict[str, Tensor] = {}
    handles = []
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    for number, layer in enumerate(layers, 1):
        name = f"layer {number}"
        seen[name] = torch.empty(0, dtype=torch.float64)

        def keep(
            _layer: nn.Module, _inputs: Any, output: Tensor, name: str = name
        ) -> None:
            def save(gradient: Tensor) -> None:
                seen[name] = gradient.detach().to(widest(gradient), copy=True)

            if output.requires_grad:  # not in a forward pass that is checkpointed
                output.register_hook(save)  # type: ignore[no-untyped-call]

        handles.append(layer.register_forward_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
