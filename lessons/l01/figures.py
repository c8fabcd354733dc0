"""The figures of lesson 1: flushed gradients, and the digits that trained networks paint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from mplab.pictures import canvas as c
from mplab.pictures.training import run_name, summed
from mplab.training.history import History
from mplab.training.loop import train
from mplab.training.tasks import TASKS, Split


@c.in_house_style
def flushed_share(history: History) -> c.Picture:
    """Share of each layer's gradients that became zero in a simulated run.

    Args:
        history: a simulated run that recorded gradients.

    Returns:
        A figure with one column of bars for each recorded step.
    """
    steps = sorted(history.flushed)
    picture = c.Picture(height=1.3 + 0.34 * len(history.flushed[steps[0]]))
    grid = picture.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    for axes, step in zip(grid, steps, strict=True):
        _draw_flushed(axes, step, history)
    grid[0].invert_yaxis()
    grid[0].set_ylabel("layer, the input at the top")
    total = {step: summed(history.flushed[step]) for step in steps}
    parts = [f"{c.percent(*total[step])} at step {step}" for step in steps[1:]]
    start = f"{c.percent(*total[steps[0]])} of the gradients are flushed to 0 at step {steps[0]}"
    claim = f"{run_name(history)}: {c.listed([start, *parts])}"
    layers = "; ".join(
        f"step {step}: "
        + ", ".join(f"{name} {c.percent(*pair)}" for name, pair in history.flushed[step].items())
        for step in steps
    )
    return c.titled(picture, claim, f"Bar charts by layer. {layers}.")


def _draw_flushed(axes: Axes, step: int, history: History) -> None:
    """Bars for one step, each with its number."""
    layers = history.flushed[step]
    values = [100 * lost / max(1, total) for lost, total in layers.values()]
    colour = c.style(history.compute_format).colour
    bars = axes.barh(list(layers), values, color=colour, height=0.62)
    axes.bar_label(bars, [c.percent(*pair) for pair in layers.values()], padding=4)
    axes.set_xlim(0, 132)
    axes.set_xticks([0, 50, 100])
    axes.set_title(f"step {step}")
    axes.set_xlabel("flushed to 0 (%)")


# The digits that a trained network paints --------------------------------------------------
class PaintedDigits(NamedTuple):
    """Test images, and what a network paints for each of them after training.

    Attributes:
        images: the test images, float32 of shape (images, 64), 0 for white to 1 for black.
        painted: what the network gives for them, of that shape, by the name of the run.
        r2: the share of the variation between test images that it reproduces, by that name.
    """

    images: np.ndarray
    painted: dict[str, np.ndarray]
    r2: dict[str, float]


SIDE_BY_SIDE = {
    "fp32": "FP32",
    "fp16-naive": "simulated FP16",
    "fp16-scaled": "simulated FP16\nwith a loss scale",
    "amp-fp16-naive": "real FP16 (torch.amp)",
    "amp-fp16": "real FP16 (torch.amp)\nwith a loss scale",
}
"""The recipes that the picture compares, and what its rows call them."""


def measure_painted_digits(
    recipes: Sequence[str] = tuple(SIDE_BY_SIDE), *, seed: int = 3
) -> PaintedDigits:
    """Train the digits' autoencoder by each recipe, and keep what it paints.

    Args:
        recipes: names in `mplab.training.RECIPES`.
        seed: of the first weights.
    """
    task = TASKS["digits-autoencoder"]
    painted, r2, images = {}, {}, np.empty(0)
    for name in recipes:
        given: list[tuple[Tensor, Tensor]] = []

        def metrics(
            output: Tensor, split: Split, given: list[tuple[Tensor, Tensor]] = given
        ) -> dict[str, float]:
            given.append((output, split.test[1]))
            return task.metrics(output, split)

        keeping = replace(task, metrics=metrics)
        run = train(keeping, name, seed=seed, record_gradients_at=(), progress=False)
        output, target = (tensor.detach().cpu().numpy() for tensor in given[-1])
        images, painted[name], r2[name] = target, output, run.metrics["r2"]
    return PaintedDigits(images, painted, r2)


@c.in_house_style
def plot_painted_digits(found: PaintedDigits, *, count: int = 8) -> c.Picture:
    """Draw some test images, and below them what each network paints for them.

    Args:
        found: from `measure_painted_digits`.
        count: how many images, the first of the test set.
    """
    rows = [("test images", found.images)]
    rows += [
        (f"{SIDE_BY_SIDE.get(name, name)}\nR² {found.r2[name]:.2f}", images)
        for name, images in found.painted.items()
    ]
    picture = c.Picture(height=0.5 + 0.72 * len(rows))
    grid = picture.subplots(len(rows), count, squeeze=False)
    for (words, images), line in zip(rows, grid, strict=True):
        line[0].set_ylabel(words, rotation=0, ha="right", va="center", fontsize=9.5)
        for axes, image in zip(line, images, strict=False):
            axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=c.BAND, linewidth=0.6)
    said = [_in_one_line(name) for name, r2 in found.r2.items() if r2 < 0.1]
    claim = "Every network tells the digits apart."
    if said:
        claim = f"Nearly the same picture for every digit: {c.listed(said)}."
    shares = "; ".join(f"{_in_one_line(name)} {r2:.2f}" for name, r2 in found.r2.items())
    return c.titled(picture, claim, f"Rows of {count} images of digits. R²: {shares}.")


def _in_one_line(name: str) -> str:
    """What a sentence calls a recipe."""
    return SIDE_BY_SIDE.get(name, name).replace(" (torch.amp)", "").replace("\n", " ")
