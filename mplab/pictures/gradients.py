"""The figures of lost gradients: by layer and step, and against how runs end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from mplab.formats import FP16, FP32
from mplab.history import History
from mplab.pictures.canvas import (
    INK,
    REFERENCE,
    End,
    Picture,
    in_house_style,
    label_ends,
    listed,
    percent,
    require_some,
    style,
    titled,
)


def flushed_at(run: History, step: int) -> tuple[int, int]:
    """How many of all recorded gradients of a step are flushed, and how many there are."""
    pairs = list(run.flushed[step].values())
    return sum(lost for lost, _ in pairs), sum(total for _, total in pairs)


@in_house_style
def shares_and_outcomes(
    runs: Mapping[str, tuple[History, History]], *, metric: str = "r2", label: str = "test R²"
) -> Picture:
    """What share of the gradients is flushed at first, and what the run has learnt at its end.

    Args:
        runs: by name, a run in FP32 and one in FP16 that recorded gradients.
        metric: of the runs, the higher the better.
        label: what it is called.

    Returns:
        A figure with two joined marks for each, FP32's and FP16's; its title names the run that
        loses most gradients at first and the one that falls farthest below FP32.
    """
    require_some("shares_and_outcomes", "runs", runs)
    picture = Picture(height=3.9)
    axes = picture.subplots()
    ends, facts = [], {}
    for name, (wide, low) in runs.items():
        lost, total = flushed_at(low, min(low.flushed))
        found = wide.metrics[metric], low.metrics[metric]
        facts[name] = (lost / max(1, total), *found)
        share = 100 * facts[name][0]
        axes.plot([share, share], found, color=INK, linewidth=0.8)
        for fmt, value in zip((FP32, FP16), found, strict=True):
            look = style(fmt)
            axes.plot(share, value, look.marker, color=look.colour, markersize=8)
        ends.append(End(axes, share, sum(found) / 2, name, INK))
    axes.axhline(0, color=REFERENCE.colour, linewidth=0.8)
    axes.set_xlim(-3, 100)
    axes.set_ylim(min(-0.05, *(low - 0.05 for _, _, low in facts.values())), 1)
    axes.set_xlabel("gradients flushed at the first step (%)")
    axes.set_ylabel(f"{label} (FP32 ●, FP16 ■)")
    words = "; ".join(
        f"{name}: {percent(share, 1)}, {wide:.2f} in FP32 and {low:.2f} in FP16"
        for name, (share, wide, low) in facts.items()
    )
    titled(picture, _outcome_claim(facts, label), f"Scatter chart of pairs. {words}.")
    label_ends(picture, ends)
    return picture


def _outcome_claim(facts: Mapping[str, tuple[float, float, float]], label: str) -> str:
    """Who loses most at first, and who falls farthest below FP32."""
    most = max(facts, key=lambda name: facts[name][0])
    worst = max(facts, key=lambda name: facts[name][1] - facts[name][2])

    def went(name: str) -> str:
        share, wide, low = facts[name]
        return f"{percent(share, 1)} at first and reaches {label} {low:.2f} (FP32: {wide:.2f})"

    first = f"{most} flushes most gradients, {went(most)}"
    return f"{first}: it falls farthest" if most == worst else f"{first}; {worst} {went(worst)}"


@in_house_style
def flushed_over_steps(runs: Mapping[str, History]) -> Picture:
    """The share of each layer's gradients that is flushed, at each recorded step.

    Args:
        runs: by name, runs that recorded gradients.

    Returns:
        A figure with one panel for each run: layers down, steps across, dark where all is lost.
    """
    require_some("flushed_over_steps", "runs", runs)
    for run in runs.values():
        require_some("flushed_over_steps", "run.flushed", run.flushed)
    deepest = max(len(run.flushed[min(run.flushed)]) for run in runs.values())
    picture = Picture(height=1.5 + 0.3 * deepest, width=9.4 if len(runs) > 1 else 7.6)
    grid = picture.subplots(1, len(runs), squeeze=False)[0]
    for axes, (name, run) in zip(grid, runs.items(), strict=True):
        _draw_shares(axes, run)
        axes.set_title(name)
    grid[0].set_ylabel("layer, the input at the top")
    claims = listed(f"{_first_layer(run)} in {name}" for name, run in runs.items())
    details = " ".join(f"{name}: {_last_row(run)}." for name, run in runs.items())
    claim = f"Flushed in layer 1, from the first step to the last: {claims}"
    return titled(picture, claim, f"Tables of shares by layer and step. {details}")


def _draw_shares(axes: Axes, run: History) -> None:
    """A cell for each layer and step, with its share in percent."""
    steps = sorted(run.flushed)
    layers = list(run.flushed[steps[0]])
    table = np.array([[_share(run, step, layer) for step in steps] for layer in layers])
    colours = LinearSegmentedColormap.from_list("flushed", ["white", style(FP16).colour])
    axes.imshow(table, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(table):
        ink = "white" if share > 0.6 else INK
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=ink)
    axes.set_xticks(range(len(steps)), [str(step) for step in steps])
    axes.set_yticks(range(len(layers)), [name.removeprefix("layer ") for name in layers])
    axes.set_xlabel("training step (cells: % flushed)")


def _share(run: History, step: int, layer: str) -> float:
    lost, total = run.flushed[step][layer]
    return lost / max(1, total)


def _first_layer(run: History) -> str:
    layer = next(iter(run.flushed[min(run.flushed)]))
    first, last = (percent(_share(run, step(run.flushed), layer), 1) for step in (min, max))
    return f"{first} to {last}"


def _last_row(run: History) -> str:
    last = max(run.flushed)
    shares = (f"{name} {percent(_share(run, last, name), 1)}" for name in run.flushed[last])
    return f"at step {last} " + ", ".join(shares)
