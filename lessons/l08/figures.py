"""Gradients that FP16 flushes without a loss scale."""

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from mplab import FP16, FP32, Format
from mplab.course.pictures import canvas as c
from mplab.course.pictures.training import summed
from mplab.lessons import recordings
from mplab.training import History
from mplab.training.exponents import (
    ExponentHistogram,
    pooled,
    shares,
    window,
    zone_words,
    zones,
)


# Gradients without a scale ---------------------------------------------------------------
@c.in_house_style
def shares_and_outcomes(runs: Mapping[str, tuple[History, History]]) -> c.Picture:
    """Draw the share of gradients flushed at first against what the run has learnt at its end.

    Args:
        runs: by name, a run in FP32 and one in FP16 that recorded gradients.

    Returns:
        A figure with two joined marks for each, FP32's and FP16's; its title names the run that
        loses most gradients at first and the one that falls farthest below FP32.
    """
    picture = c.Picture(height=3.9)
    axes = picture.subplots()
    facts = {}
    for name, (wide, low) in runs.items():
        lost, total = summed(low.flushed[min(low.flushed)])
        found = wide.metrics["r2"], low.metrics["r2"]
        facts[name] = (lost / max(1, total), *found)
        share = 100 * facts[name][0]
        axes.plot([share, share], found, color=c.INK, linewidth=0.8)
        for fmt, value in zip((FP32, FP16), found, strict=True):
            look = c.style(fmt)
            axes.plot(share, value, look.marker, color=look.colour, markersize=8)
    axes.axhline(0, color=c.REFERENCE.colour, linewidth=0.8)
    largest = 100 * max(share for share, _, _ in facts.values())
    for name, (share, *scores) in facts.items():
        side, far = ("left", 9) if 200 * share < largest else ("right", -9)
        place = 100 * share, sum(scores) / 2
        how: Any = {"textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(name, place, (far, 0), **how)
    axes.set_xlim(-3, min(100, largest + 6))
    axes.set_ylim(min(-0.05, *(low - 0.05 for _, _, low in facts.values())), 1)
    axes.set_xlabel("gradients flushed at the first step (%)")
    axes.set_ylabel("test R² (FP32 ●, FP16 ■)")
    words = "; ".join(
        f"{name}: {c.percent(share, 1)}, {wide:.2f} in FP32 and {low:.2f} in FP16"
        for name, (share, wide, low) in facts.items()
    )
    return c.titled(picture, _outcome_claim(facts), f"Scatter chart of pairs. {words}.")


def _outcome_claim(facts: Mapping[str, tuple[float, float, float]]) -> str:
    """Name the run that loses most at first, and the one that falls farthest below FP32."""
    most = max(facts, key=lambda name: facts[name][0])
    fall = {name: np.nan_to_num(a - b, nan=np.inf) for name, (_, a, b) in facts.items()}
    worst = max(fall, key=lambda name: fall[name])

    def reached(name: str) -> str:
        share, wide, low = facts[name]
        return (
            f"{c.percent(share, 1)}, and reaches test R² {low:.2f} (FP32: {wide:.2f})"
        )

    first = f"{most} flushes the most gradients at first, {reached(most)}"
    if most == worst:
        return f"{first}: it falls farthest" if fall[worst] > 0 else first
    return f"{first}; {worst} {reached(worst)}"


@c.in_house_style
def flushed_over_steps(runs: Mapping[str, History]) -> c.Picture:
    """The share of each layer's gradients that is flushed, at each recorded step.

    Args:
        runs: by name, runs that recorded gradients.

    Returns:
        A figure with one panel for each run: layers down, steps across, dark where all is lost.
    """
    deepest = max(len(run.flushed[min(run.flushed)]) for run in runs.values())
    picture = c.Picture(height=1.5 + 0.3 * deepest, width=9.4 if len(runs) > 1 else 7.6)
    grid = picture.subplots(1, len(runs), squeeze=False)[0]
    for axes, (name, run) in zip(grid, runs.items(), strict=True):
        _draw_shares(axes, run)
        axes.set_title(name)
    grid[0].set_ylabel("layer, the input at the top")
    picture.supxlabel("training step (cells: % flushed)", fontsize=10)
    claims = "; ".join(f"{name} {_first_layer(run)}" for name, run in runs.items())
    details = " ".join(f"{name}: {_last_row(run)}." for name, run in runs.items())
    claim = f"Flushed in layer 1, from the first step to the last: {claims}"
    return c.titled(picture, claim, f"Tables of shares by layer and step. {details}")


def _draw_shares(axes: Axes, run: History) -> None:
    """A cell for each layer and step, with its share in percent."""
    steps = sorted(run.flushed)
    layers = list(run.flushed[steps[0]])
    table = np.array([[_share(run, step, layer) for step in steps] for layer in layers])
    ends = ["white", c.style(FP16).colour]
    colours = LinearSegmentedColormap.from_list("flushed", ends, N=16)
    columns = range(len(steps))
    # Cells of at most two thirds of the colour: words stand out, on dark pages, too.
    edges = (np.arange(n + 1) - 0.5 for n in table.shape[::-1])
    axes.pcolormesh(*edges, table, cmap=colours, vmin=0, vmax=1.5)
    for (row, column), share in np.ndenumerate(table):
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center")
    axes.set_xticks(columns, [str(step) for step in steps])
    c.rows(axes, [name.removeprefix("layer ") for name in layers])


def _share(run: History, step: int, layer: str) -> float:
    lost, total = run.flushed[step][layer]
    return lost / max(1, total)


def _first_layer(run: History) -> str:
    layer = next(iter(run.flushed[min(run.flushed)]))
    first, last = (
        c.percent(_share(run, step(run.flushed), layer), 1) for step in (min, max)
    )
    return f"{first} to {last}"


def _last_row(run: History) -> str:
    last = max(run.flushed)
    shares = (
        f"{name} {c.percent(_share(run, last, name), 1)}" for name in run.flushed[last]
    )
    return f"at step {last} " + ", ".join(shares)


@c.in_house_style
def recorded_gradients(
    *, fmt: Format = FP16, where: recordings.Where = None
) -> c.Picture | None:
    """Exponents of the larger network's gradients in FP32, a row for each layer.

    Args:
        fmt: the format whose range is drawn, and whose losses the title counts.
        where: a folder; None for the recordings that came with the package.

    Returns:
        A figure with the layers from top to bottom, darker where more of a layer's gradients
        are; None without a recording.
    """
    recording = recordings.first("exponents", where=where)
    runs = recording.data.get("runs", []) if recording else []
    run = next((r for r in runs if r["recipe"] == "fp32" and "layers" in r), None)
    if recording is None or run is None:
        return None
    layers = {name: _histogram(h) for name, h in run["layers"].items()}
    picture = c.Picture(height=2.0 + 0.16 * len(layers), width=8.6)
    axes = picture.subplots()
    low, high = window(pooled(layers.values()), fmt)
    cells = np.zeros((len(layers), high - low))
    for row, histogram in zip(cells, layers.values(), strict=True):
        for exponent, count in zip(histogram.exponents, histogram.counts, strict=True):
            row[exponent - low] = 100 * count / histogram.counts.sum()
    places = np.arange(low, high + 1), np.arange(len(layers) + 1)
    greys = matplotlib.colormaps["Greys"].resampled(32)
    mesh = axes.pcolormesh(*places, cells, cmap=greys, vmin=0)
    bound = zones(fmt)
    for edge in (bound.flushed, bound.subnormal, bound.overflow):
        axes.axvline(edge, color=c.style(fmt).colour, linewidth=1.2)
    axes.set_yticks(np.arange(len(layers)) + 0.5, layers, fontsize=8)
    axes.set_ylim(len(layers), 0)
    axes.set_xlim(low, high)
    c.binary_axis(axes.xaxis, "gradient, absolute value")
    c.colour_bar(picture, mesh, label="share of the layer's gradients (%)")
    c.titled(picture, *_lost(layers, fmt, recording))
    c.label_spans(picture, axes, zone_words(fmt, low, high))
    return picture


def _histogram(stored: dict[str, Any]) -> ExponentHistogram:
    counts = np.array(stored["counts"], np.int64)
    exponents = stored["lowest"] + np.arange(len(counts))
    return ExponentHistogram(exponents, counts, stored["zeros"], stored["nonfinite"])


def _lost(
    layers: dict[str, ExponentHistogram], fmt: Format, recording: recordings.Recording
) -> tuple[str, str]:
    """Say how many gradients the format flushes, of all layers and of each."""
    found = {name: shares(histogram, fmt) for name, histogram in layers.items()}
    share = {name: part.flushed / max(1, part.total) for name, part in found.items()}
    worst = max(share, key=lambda name: share[name])
    flushed, total = (
        sum(p.flushed for p in found.values()),
        sum(p.total for p in found.values()),
    )
    claim = (
        f"Of the larger network's gradients in FP32, {fmt.name} without a loss scale flushes "
        f"{c.percent(flushed, total)} to 0"
    )
    if flushed:
        claim += (
            f", most in {worst} ({c.percent(found[worst].flushed, found[worst].total)})"
        )
    details = "; ".join(
        f"{n}: {c.percent(p.flushed, p.total)} flushed" for n, p in found.items()
    )
    return f"{claim} ({recording.words})", f"A row of shades for each layer. {details}."
