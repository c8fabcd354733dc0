"""The figures of lesson 1: flushed gradients, and the digits that trained networks paint."""

from matplotlib.axes import Axes

from mplab.pictures import canvas as c
from mplab.pictures.training import run_name, summed
from mplab.training import History
from mplab.training.digits import (
    PaintedDigits,
    measure_painted_digits as measure_painted_digits,
)


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
        + ", ".join(
            f"{name} {c.percent(*pair)}" for name, pair in history.flushed[step].items()
        )
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
SIDE_BY_SIDE = {
    "fp32": "FP32",
    "fp16-naive": "simulated FP16",
    "fp16-scaled": "simulated FP16\nwith a loss scale",
    "amp-fp16-naive": "real FP16",
    "amp-fp16": "real FP16\nwith a loss scale",
}
"""The recipes that the picture compares, and what its rows call them."""


@c.in_house_style
def plot_painted_digits(*found: PaintedDigits, count: int = 8) -> c.Picture:
    """Draw some test images, and below them what each network paints for them.

    Args:
        *found: what `measure_painted_digits` gave, once or more; the rows are in the order of
            `SIDE_BY_SIDE`, and a row of real FP16 names its device.
        count: how many images, the first of the test set.
    """
    runs = {
        name: part.runs[name]
        for name in SIDE_BY_SIDE
        for part in found
        if name in part.runs
    }
    painted = {name: images for part in found for name, images in part.painted.items()}
    r2 = {name: run.metrics["r2"] for name, run in runs.items()}
    rows = [("test images", found[0].images)]
    for name, run in runs.items():
        words = SIDE_BY_SIDE[name].replace(
            "real FP16", f"real FP16 on {run.device.upper()}"
        )
        rows += [(f"{words}\nR² {r2[name]:.2f}", painted[name])]
    picture = c.Picture(height=0.5 + 0.72 * len(rows))
    grid = picture.subplots(len(rows), count, squeeze=False)
    for (words, images), line in zip(rows, grid, strict=True):
        line[0].set_ylabel(words, rotation=0, ha="right", va="center", fontsize=9.5)
        for axes, image in zip(line, images, strict=False):
            axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=c.BAND, linewidth=0.6)
    called = {name: SIDE_BY_SIDE[name].replace("\n", " ") for name in r2}
    said = [called[name] for name, share in r2.items() if share < 0.1]
    claim = "Every network tells the digits apart."
    if said:
        cured = {"fp16-scaled", "amp-fp16"} & r2.keys() and "scale" not in " ".join(
            said
        )
        start = "Without a loss scale, nearly" if cured else "Nearly"
        claim = f"{start} the same picture for every digit: {c.listed(said)}."
    shares = "; ".join(f"{called[name]} {share:.2f}" for name, share in r2.items())
    return c.titled(picture, claim, f"Rows of {count} images of digits. R²: {shares}.")
