"""The networks of the lesson, and how well they do on the test images."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from torch import nn

from mplab.simulation.linears import convert_linears
from mplab.training.loop import train
from mplab.training.tasks import Task


def network(*widths: int) -> nn.Sequential:
    """Linear layers from width to width, with ReLU between them."""
    pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(
        nn.Flatten(), *[layer for pair in pairs for layer in pair][:-1]
    )


def in_fp8(task: Task, **how: Any) -> Task:
    """The task with the matrix products of its linear layers in FP8.

    Args:
        task: what to train.
        how: options of `convert_linears`.
    """
    name = f"{task.name} in FP8"
    return replace(task, name=name, model=lambda: convert_linears(task.model(), **how))


def scores(task: Task) -> list[float]:
    """The test score of each of three runs, with seeds 0, 1 and 2."""
    runs = [
        train(task, "fp32", seed=seed, record_gradients_at=()) for seed in (0, 1, 2)
    ]
    return [score for run in runs for score in run.metrics.values()]
