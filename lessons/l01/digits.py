"""Train the autoencoder of lesson 1, and keep what it paints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mplab.training.history import History
from mplab.training.loop import train
from mplab.training.recipes import Recipe
from mplab.training.tasks import TASKS, Split


class PaintedDigits(NamedTuple):
    """Test images, and what a network paints for each of them after training.

    Attributes:
        images: the test images, float32 of shape (images, 64), 0 for white to 1 for black.
        painted: the network's output for them, of the same shape, by the name of the run.
        r2: the share of the variation between test images that each network reproduces: 1 is
            perfect, and 0 is no better than painting the mean training image every time.
        runs: the history of the training, where `train` made it.
    """

    images: np.ndarray
    painted: dict[str, np.ndarray]
    r2: dict[str, float]
    runs: dict[str, History]


def measure_painted_digits(
    *recipes: str | Recipe,
    seed: int = 3,
    record_gradients_at: Sequence[int] = (),
    progress: bool = True,
) -> PaintedDigits:
    """Train the task "sigmoid-autoencoder" by each recipe, and keep what it paints.

    Args:
        *recipes: recipes, or names in `mplab.training.RECIPES`.
        seed: seed of the initial weights.
        record_gradients_at: the steps at which to record gradients; () for real FP16.
        progress: show a bar for each run.
    """
    task = TASKS["sigmoid-autoencoder"]
    outputs: list[Tensor] = []

    def metrics(output: Tensor, split: Split) -> dict[str, float]:
        outputs.append(output)
        return task.metrics(output, split)

    painted = {}
    runs = {}
    for recipe in recipes:
        run = train(
            replace(task, metrics=metrics),
            recipe,
            seed=seed,
            record_gradients_at=record_gradients_at,
            progress=progress,
        )
        runs[run.recipe] = run
        painted[run.recipe] = outputs[-1].cpu().numpy()
    r2 = {name: run.metrics["r2"] for name, run in runs.items()}
    return PaintedDigits(task.data().test[1].numpy(), painted, r2, runs)


def paint(models: Mapping[str, nn.Module]) -> PaintedDigits:
    """Let networks paint the test images, in FP32.

    Args:
        models: networks that were trained on "sigmoid-autoencoder", by name, on any device.
    """
    task = TASKS["sigmoid-autoencoder"]
    split = task.data()
    inputs, images = split.test
    painted = {}
    r2 = {}
    for name, model in models.items():
        device = next(model.parameters()).device
        with torch.no_grad():
            output = model(inputs.to(device)).cpu()
        painted[name] = output.numpy()
        r2[name] = task.metrics(output, split)["r2"]
    return PaintedDigits(images.numpy(), painted, r2, {})
