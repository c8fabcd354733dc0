"""One training step in a recipe's arithmetic: simulated, or torch's own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.backends import mha

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


class Engine:
    """The steps of a run in a recipe's arithmetic.

    A simulated recipe has this package's loss scaler and optimizer. Its weights, and so their
    gradients, are float32 tensors whatever format their values are in: every recipe scales its loss
    in the same way, a recipe without a scale by 1. All other recipes take torch's own scaler and
    optimizer, and tensors in `weight_format`; as written, each operation on them is simulated.

    Args:
        model: on the device it is to be trained on; its weights enter `weight_format`.
        loss: a function of predictions and targets.
        optimizer: an optimizer of the parameters of `model`.
        recipe: the arithmetic.
        seed: seed of stochastic rounding.

    Attributes:
        simulation: the context of forward and backward.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        *,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.loss = loss
        self.recipe = recipe
        self.device = next(model.parameters()).device
        self.zero_grad = optimizer.zero_grad
        self.optimizer: Any = optimizer
        self.scaler: Any
        # What was counted before the run was broken off and continued.
        self.earlier: dict[str, dict[str, Tally]] = {}
        self.is_torchs = not recipe.simulated or recipe.policy == AS_WRITTEN.name
        if self.is_torchs:
            model.to(recipe.weight_format.torch_dtype)
            self.scaler = torch.amp.GradScaler(
                self.device.type,
                init_scale=recipe.init_scale or 1.0,
                growth_factor=recipe.growth_factor,
                backoff_factor=recipe.backoff_factor,
                growth_interval=recipe.growth_interval,
                enabled=recipe.init_scale is not None,
            )
        else:
            self.scaler = GradScaler(recipe.scaler())
            self.optimizer = LowOptimizer(
                optimizer,
                recipe.weight_format,
                optimizer_format=recipe.optimizer_format,
                update_rounding=recipe.update_rounding,
                stream=Stream(seed),
            )
        if recipe.fp8 is not None:  # such layers round for themselves
            convert_linears(model, scaling=recipe.fp8, real=not recipe.simulated)
        self.simulation = self._simulated(tally=True)

    def _simulated(self, *, tally: bool) -> AbstractContextManager[Any]:
        """A context that simulates the recipe; FP8 layers, and torch's own steps, need none."""
        recipe = self.recipe
        if not recipe.simulated or recipe.fp8 is not None:
            return nullcontext()
        fmt = recipe.compute_format
        return simulated(fmt, policy=recipe.policy, model=self.model, tally=tally)

    def _autocast(self) -> AbstractContextManager[Any]:
        """A context that lowers operations as torch's own mixed precision does."""
        recipe = self.recipe
        plain = recipe.compute_format == FP32 or recipe.fp8 is not None
        if plain or not self.is_torchs or recipe.weight_format != FP32:
            return nullcontext()
        return torch.amp.autocast(
            self.device.type, dtype=recipe.compute_format.torch_dtype
        )

    def _outputs(self, inputs: Tensor) -> Tensor:
        weights = self.recipe.weight_format
        if self.is_torchs and inputs.is_floating_point():
            inputs = inputs.to(weights.torch_dtype)
        outputs: Tensor = self.model(inputs)
        if self.is_torchs and weights != FP32:
            outputs = outputs.float()  # losses in 16 bits are no recipe's
        return outputs

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, without a scale; it and its backward pass run within `simulation`."""
        with self._autocast():
            return self.loss(self._outputs(inputs), targets)

    def backward(self, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
        """Run forward and backward with the scaled loss; return scale and unscaled loss."""
        self.zero_grad()
        with self.simulation:
            loss = self.forward(inputs, targets)
            self.scaler.scale(loss).backward()
        return self.scaler.get_scale(), loss.detach()

    def unscale(self) -> None:
        """Unscale the gradients, and shrink them together to `max_norm` if the recipe clips."""
        self.scaler.unscale_(self.optimizer)
        if self.recipe.max_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.max_norm)

    def update(self) -> bool:
        """Unscale, clip, and update the weights or skip; return whether the step was skipped."""
        stepping: AbstractContextManager[Any] = nullcontext()
        if self.is_torchs:  # as written, the optimizer's operations are simulated, too
            stepping = self.simulation
        with stepping:
            self.unscale()
            self.scaler.step(self.optimizer)
        found: Any = {}
        # torch's `update` does not tell; nor does its scale, once it is 0; nor do hooks, because a
        # fused optimizer runs when it skips. This method is private to torch.
        if self.is_torchs and self.scaler.is_enabled():
            found = self.scaler._found_inf_per_device(self.optimizer)
        return bool(self.scaler.update()) or any(found.values())

    def predict(self, inputs: Tensor) -> Tensor:
        """The predictions, in the recipe's arithmetic, without a count of roundings."""
        within = self._simulated(tally=False)
        with _evaluating(self.model), within, self._autocast():
            return self._outputs(inputs).float()

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


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Turn off gradients, dropout and updates of delayed scales.

    Also turn off torch's fast path for encoder layers, which would read the weights of the layers
    that round without calling these layers.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            yield
    finally:
        mha.set_fastpath_enabled(fast)
        for module, training in modes:  # some may be in evaluation throughout
            module.training = training
