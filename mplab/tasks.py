"""What there is to learn: data, a network, a loss and an optimizer, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mplab.data import load_digits

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""


class Split(NamedTuple):
    """Inputs and targets for training and for testing."""

    train: Batch
    test: Batch

    def to(self, device: torch.device) -> Split:
        """The same on a device."""
        return Split(*(tuple(t.to(device) for t in part) for part in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Task:
    """Something to learn, and how.

    Args:
        name: how the task is called.
        steps: how many steps a run takes.
        batch: examples per step; None takes all.
        data: makes the inputs and targets.
        model: makes the network, from torch's current random state.
        loss: of predictions and targets, a scalar.
        metrics: of test predictions and the split, by name.
        optimizer: of the parameters.
    """

    name: str
    steps: int
    batch: int | None
    data: Callable[[], Split]
    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Callable[[Tensor, Split], dict[str, float]]
    optimizer: Callable[[Any], torch.optim.Optimizer]


_TRAINING_IMAGES = 1400


def _digits() -> tuple[Tensor, Tensor]:
    """Images as (1797, 64) in 0 .. 16 and labels, in an order of their own."""
    digits = load_digits()
    order = torch.randperm(len(digits.labels), generator=torch.Generator().manual_seed(12345))
    images = torch.from_numpy(digits.images.reshape(-1, 64)).float()[order]
    return images, torch.from_numpy(digits.labels)[order]


def _split(inputs: Tensor, targets: Tensor) -> Split:
    n = _TRAINING_IMAGES
    return Split((inputs[:n], targets[:n]), (inputs[n:], targets[n:]))


def _autoencoder_data() -> Split:
    images, _ = _digits()
    known = images[:_TRAINING_IMAGES]
    return _split((images - known.mean()) / known.std(), images / 16)


def _autoencoder() -> nn.Module:
    widths = [64, 48, 32, 16, 32, 48, 64]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def _r2(output: Tensor, split: Split) -> dict[str, float]:
    """1 − squared error / squared error of always answering the mean training image."""
    target = split.test[1]
    mean = split.train[1].mean(0)
    return {"r2": 1 - float(((output - target) ** 2).sum() / ((mean - target) ** 2).sum())}


def _classifier_data() -> Split:
    images, labels = _digits()
    known = images[:_TRAINING_IMAGES]
    return _split(((images - known.mean()) / known.std()).view(-1, 1, 8, 8), labels)


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def _accuracy(output: Tensor, split: Split) -> dict[str, float]:
    return {"accuracy": float((output.argmax(1) == split.test[1]).float().mean())}


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "digits-autoencoder",
            steps=400,
            batch=None,
            data=_autoencoder_data,
            model=_autoencoder,
            loss=F.mse_loss,
            metrics=_r2,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        ),
        Task(
            "digits-cnn",
            steps=160,
            batch=128,
            data=_classifier_data,
            model=_cnn,
            loss=F.cross_entropy,
            metrics=_accuracy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        ),
    )
}
"""The named tasks: both on the digits of `mplab.data`."""
