"""What vanishes of each layer's gradients."""

from __future__ import annotations

from matplotlib.axes import Axes

from mplab.pictures import canvas as c
from mplab.pictures.training import run_name, summed
from mplab.training.history import History


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
