"""One training step in a recipe's arithmetic: simulated, or torch's own.

A recipe whose policy is "as-written" is both: the steps of `Real` on low tensors, simulated.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from mplab.numbers.formats import FP32
from mplab.numbers.options import Stream, Tally
from mplab.scaling.grad_scaler import GradScaler
from mplab.simulation.context import simulated
from mplab.simulation.linears import convert_linears
from mplab.simulation.policies import AS_WRITTEN
from mplab.training.optimizers import LowOptimizer
from mplab.training.recipes import Recipe

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function of predictions and targets that returns a scalar."""


class _Engine:
    """The parts of a training step that do not depend on who computes."""

    optimizer: Any
    scaler: Any
    simulation: AbstractContextManager[Any] = nullcontext()

    def __init__(self, model: nn.Module, loss: Loss, recipe: Recipe) -> None:
        self.model = model
        self.loss = loss
        self.recipe = recipe
        self.network = Checkpointed(model) if recipe.checkpointing else model
        # What was counted before the run was broken off and continued.
        self.earlier: dict[str, dict[str, Tally]] = {}

    def simulated(self, *, tally: bool) -> AbstractContextManager[Any]:
        """A context that simulates the recipe; FP8 layers, and torch's own steps, need none."""
        recipe = self.recipe
        if not recipe.simulated or recipe.fp8 is not None:
            return nullcontext()
        fmt = recipe.compute_format
        return simulated(fmt, policy=recipe.policy, model=self.model, tally=tally)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, without a scale; it and its backward pass run within `simulation`."""
        return self.loss(self.network(inputs), targets)

    def unscale(self) -> None:
        """Unscale the gradients, and shrink them together to `max_norm` if the recipe clips."""
        self.scaler.unscale_(self.optimizer)
        if self.recipe.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_norm)

    def tallies(self) -> dict[str, dict[str, Tally]]:
        """Counts of the roundings so far, by operation and by layer, where they are counted."""
        if not isinstance(self.simulation, simulated):
            return {}
        found = {
            "operation": self.simulation.by_operation,
            "layer": self.simulation.by_layer,
        }
        for kind, earlier in self.earlier.items():
            sums = dict(earlier)
            for name, counted in found[kind].items():
                sums[name] = sums.get(name, Tally()) + counted
            found[kind] = sums
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state on which the next step depends, without the model and the tallies."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], tallies: dict[str, dict[str, Tally]]
    ) -> None:
        """Continue from the state that `state_dict` and `tallies` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.earlier = tallies


class Simulated(_Engine):
    """Training steps in simulated arithmetic, with this package's loss scaler and optimizer.

    The weights, and so their gradients, are float32 tensors whatever format their values are in:
    every recipe scales its loss in the same way, a recipe without a scale by 1.

    Args:
        model: on the device it is to be trained on; its weights enter `weight_format`.
        loss: a function of predictions and targets.
        optimizer: an optimizer of the parameters of `model`.
        recipe: the arithmetic.
        seed: seed of stochastic rounding.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        seed: int,
    ) -> None:
        super().__init__(model, loss, recipe)
        self.scaler = GradScaler(recipe.scaler())
        self.optimizer = LowOptimizer(
            optimizer,
            recipe.weight_format,
            optimizer_format=recipe.optimizer_format,
            update_rounding=recipe.update_rounding,
            stream=Stream(seed),
        )
        if recipe.fp8 is not None:  # such layers round for themselves
            convert_linears(model, scaling=recipe.fp8)
        self.simulation = self.simulated(tally=True)

    def backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Run forward and backward with the scaled loss; return scale and unscaled loss."""
        self.optimizer.optimizer.zero_grad()
        with self.simulation:
            loss = self.forward(inputs, targets)
            self.scaler.scale(loss).backward()
        return self.scaler.get_scale(), loss.detach()

    def update(self) -> bool:
        """Unscale, clip, and update the weights or skip; return whether the step was skipped."""
        self.unscale()
        self.scaler.step(self.optimizer)
        return bool(self.scaler.update())

    def predict(self, inputs: Tensor) -> Tensor:
        """The predictions, in the recipe's arithmetic, without a count of roundings."""
        with _evaluating(self.model), self.simulated(tally=False):
            return self.model(inputs).float()  # type: ignore[no-any-return]


class Real(_Engine):
    """Training steps in torch's arithmetic: plain, mixed precision, or all in one format.

    As written, the steps are the same, and each operation on low tensors is simulated.

    Args:
        model: on the device it is to be trained on; its weights enter `weight_format`.
        loss: a function of predictions, which are widened to FP32, and targets.
        optimizer: an optimizer of the parameters of `model`.
        recipe: the arithmetic; torch rounds to nearest, so no seed is needed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
    ) -> None:
        super().__init__(model, loss, recipe)
        self.optimizer = optimizer
        self.device = next(model.parameters()).device
        self.dtype = recipe.weight_format.torch_dtype
        model.to(self.dtype)
        if recipe.fp8 is not None:
            convert_linears(model, scaling=recipe.fp8, real=True)
        self.scaler = torch.amp.GradScaler(
            self.device.type,
            init_scale=recipe.init_scale or 1.0,
            growth_factor=recipe.growth_factor,
            backoff_factor=recipe.backoff_factor,
            growth_interval=recipe.growth_interval,
            enabled=recipe.init_scale is not None,
        )
        self.simulation = self.simulated(tally=True)

    def _autocast(self) -> AbstractContextManager[Any]:
        plain = self.recipe.compute_format == FP32 or self.recipe.fp8 is not None
        if plain or self.recipe.weight_format != FP32:
            return nullcontext()
        return torch.amp.autocast(
            self.device.type, dtype=self.recipe.compute_format.torch_dtype
        )

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, without a scale."""
        with self._autocast():
            output = self.network(self._cast(inputs))
            if self.dtype != torch.float32:  # losses in 16 bits are no recipe's
                output = output.float()
            return self.loss(output, targets)

    def backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Run forward and backward with the scaled loss; return scale and unscaled loss."""
        self.optimizer.zero_grad()
        scale = self.scaler.get_scale()
        with self.simulation:
            loss = self.forward(inputs, targets)
            self.scaler.scale(loss).backward()
        return scale, loss.detach()

    def _cast(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.dtype) if inputs.is_floating_point() else inputs

    def update(self) -> bool:
        """Unscale, clip, and update the weights or skip; return whether the step was skipped."""
        before = self.scaler.get_scale()
        with self.simulation:
            self.unscale()
            self.scaler.step(self.optimizer)
        self.scaler.update()
        return bool(self.scaler.get_scale() < before)

    def predict(self, inputs: Tensor) -> Tensor:
        """The predictions, in the recipe's arithmetic."""
        within = self.simulated(tally=False)
        with _evaluating(self.model), within, self._autocast():
            return self.model(self._cast(inputs)).float()  # type: ignore[no-any-return]


def engine_for(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    *,
    seed: int = 0,
) -> Simulated | Real:
    """The engine of a recipe; its arguments are those of `Simulated`."""
    if recipe.simulated and recipe.policy != AS_WRITTEN.name:
        return Simulated(model, loss, optimizer, recipe, seed)
    return Real(model, loss, optimizer, recipe)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Turn off gradients, dropout and updates of delayed scales.

    Also turn off torch's fast path for encoder layers, which would read the weights of the layers
    that round without calling these layers.
    """
    model.eval()
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        mha.set_fastpath_enabled(fast)
        model.train()


class Checkpointed(nn.Module):
    """A network that is computed again in the backward pass.

    A `Sequential` of n stages is computed in about √n pieces.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's output."""
        model = self.model
        if isinstance(model, nn.Sequential) and len(model) > 1:
            pieces = math.isqrt(len(model))
            return checkpoint_sequential(model, pieces, inputs, use_reentrant=False)  # type: ignore[no-any-return,no-untyped-call]
        return checkpoint(model, inputs, use_reentrant=False)  # type: ignore[no-any-return]
