"""Find the largest loss scale at which no gradient of a step overflows, by trying."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from mplab.scaling.rules import LossScaleLimits
from mplab.training.loop import train
from mplab.training.recipes import Recipe, recipe_of
from mplab.training.tasks import Task, task_of

_FURTHEST = 100
"""Scales from 2^-100 to 2^100 are tried."""


def headroom(
    task: str | Task,
    recipe: str | Recipe = "fp16-scaled",
    *,
    seed: int = 0,
    steps: int | None = None,
    progress: bool = True,
) -> LossScaleLimits:
    """Train, and at each step find which loss scales overflow.

    The backward pass is repeated from the same forward pass with one power of two after the
    other, so that infinities within it count as well, not only those in its results. The
    recipe's own rule still decides the updates, so all rules that are compared on these limits
    (`mplab.scaling.simulate_scaler`) meet the same steps.

    Args:
        task: as in `train`.
        recipe: as in `train`; it must be simulated.
        seed: as in `train`.
        steps: as in `train`.
        progress: show a bar.

    Raises:
        ValueError: as in `train`; or the recipe is not simulated, so that its own scaler would
            also see the repeated passes.

    Exactness:
        The limits are those of the simulated arithmetic, powers of two from 2^-100 to 2^100.

    Examples:
        >>> headroom("digits-cnn", seed=1, steps=2, progress=False).limits.shape
        (2,)
    """
    what = task_of(task, "headroom")
    how = recipe_of(recipe, "headroom")
    if not how.simulated:
        raise ValueError(
            f"headroom: recipe must be simulated; got {how.name}. Use 'fp16-scaled'."
        )
    search = _Search(what)
    probed = replace(what, model=search.model, loss=search.loss)
    train(
        probed, how, seed=seed, steps=steps, progress=progress, record_gradients_at=()
    )
    return LossScaleLimits(
        np.array(search.limits, float), np.array(search.means, float)
    )


class _Search:
    """A task's network and loss; each call of the loss also finds the largest scale."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.weights: list[nn.Parameter] = []
        self.limits: list[float] = []
        self.means: list[float] = []
        self.exponent = 16  # where the search begins: the last step's answer

    def model(self) -> nn.Module:
        network = self.task.model()
        self.weights = list(network.parameters())
        return network

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        loss = self.task.loss(output, targets)
        k = self.exponent
        found = self._gradients(loss, k)
        while found is not None and k < _FURTHEST:
            higher = self._gradients(loss, k + 1)
            if higher is None:
                break
            found = higher
            k += 1
        while found is None and k > -_FURTHEST:
            k -= 1
            found = self._gradients(loss, k)
        if found is None:
            self.limits.append(0.0)
            self.means.append(np.nan)
            return loss
        self.exponent = min(k, 60)
        self.limits.append(2.0**k if k < _FURTHEST else np.inf)
        sums = [np.abs(g.cpu().numpy(), dtype=np.float64).sum() for g in found]
        count = max(1, sum(g.numel() for g in found))
        self.means.append(float(sum(sums)) / count / 2.0**k)
        return loss

    def _gradients(self, loss: Tensor, exponent: int) -> list[Tensor] | None:
        """The gradients of the weights with this scale, or None where one is not finite."""
        scaled = loss * 2.0**exponent
        found = torch.autograd.grad(
            scaled, self.weights, retain_graph=True, allow_unused=True
        )
        present = [gradient for gradient in found if gradient is not None]
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in present)
        return present if finite else None
