"""The figures of recordings: what a machine with a GPU answered, each labelled as recorded.

They are None where nothing of the kind was recorded, so that a lesson can end a cell with one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mplab.hardware import recordings
from mplab.numbers.formats import FP16, Format
from mplab.pictures import canvas as c
from mplab.pictures._eight_bits import by_seed, look_of
from mplab.pictures.pages import METRICS
from mplab.training.exponents import ExponentHistogram, pooled, shares, window, zone_words, zones
from mplab.training.recipes import RECIPES

_NAMES = {
    "fp32": "FP32",
    "fp32-tf32": "FP32 with TF32 products",
    "fp32-checkpointed": "FP32 with checkpoints",
    "amp-bf16-checkpointed": "BF16 with checkpoints",
    "amp-fp16-naive": "FP16 without scaling",
    "amp-fp16": "FP16 with loss scaling",
    "amp-bf16": "BF16",
    "amp-fp8-current": "FP8 with current scaling",
}
"""Recipes as the lessons call them."""

_KNOWN = {**RECIPES, **_NAMES}
"""Recipes of which there may be recordings."""

Where = str | os.PathLike[str] | None


def recorded_runs(
    task: str,
    *,
    recipes: Sequence[str] = ("fp32", "amp-fp16-naive", "amp-fp16", "amp-bf16"),
    where: Where = None,
) -> c.Picture | None:
    """What real runs of a task reached on the recorded device, a row for each recipe.

    Args:
        task: a name in `mplab.training.TASKS`.
        recipes: whose runs are shown, the first to compare with; FP32 without TF32 products.
        where: a folder; None for the recordings that came with the package.

    Returns:
        The figure of `by_seed`, with the seeds that all these recipes were recorded with; None
        without them.
    """
    recording = recordings.first("training", where=where)
    if recording is None:
        return None
    rows = [r for r in recording.data.get("runs", []) if r["task"] == task and "problem" not in r]
    found = {
        name: {r["seed"]: r["metrics"] for r in rows if r["recipe"] == name and not r["tf32"]}
        for name in recipes
    }
    found = {name: runs for name, runs in found.items() if runs}
    common = sorted(set.intersection(*map(set, found.values()))) if found else []
    if len(found) < 2 or not common:
        return None
    metric = next(iter(found[next(iter(found))][common[0]]))
    results = {
        _NAMES.get(name, name): [float(runs[seed][metric]) for seed in common]
        for name, runs in found.items()
    }
    return by_seed(results, metric=METRICS.get(metric, metric), source=recording.words)


# The larger network ----------------------------------------------------------------------
@c.in_house_style
def recorded_network(*, where: Where = None) -> c.Picture | None:
    """Speed and memory of the larger network by recipe, as multiples of FP32's.

    Args:
        where: a folder; None for the recordings that came with the package.

    Returns:
        A figure whose title gives the multiples of the fastest recipe; None without a recording
        of FP32 and another recipe.
    """
    recording = recordings.first("larger", where=where)
    rows = [r for r in recording.data.get("runs", []) if "problem" not in r] if recording else []
    if recording is None or len(rows) < 2 or rows[0]["recipe"] != "fp32":
        return None
    names = [_NAMES.get(row["recipe"], row["recipe"]) for row in rows]
    speed = [row["words_per_second"] / rows[0]["words_per_second"] for row in rows]
    measured = all(row["peak_bytes"] for row in rows)
    memory = [row["peak_bytes"] / rows[0]["peak_bytes"] for row in rows] if measured else []
    picture = c.Picture(height=1.5 + 0.42 * len(rows), width=8.6)
    grid = picture.subplots(1, 1 + measured, sharey=True, squeeze=False)[0]
    for axes, values, words in zip(
        grid, (speed, memory), ("words a second", "most memory at once"), strict=False
    ):
        _bars(axes, names, values)
        axes.set_xlabel(f"{words} (multiple of FP32's)")
    best = int(np.argmax(speed))
    size = f"{recording.data['parameters']:,} parameters"
    claim = f"{names[best]} trains a transformer of {size} {speed[best]:.2f}× as fast as FP32"
    claim += f", in {memory[best]:.2f}× the memory" if measured else ""
    details = "; ".join(
        f"{name}: {rate:.2f}× the words a second"
        + (f", {memory[i]:.2f}× the memory" if measured else "")
        for i, (name, rate) in enumerate(zip(names, speed, strict=True))
    )
    return c.titled(picture, f"{claim} ({recording.words})", f"Bars. {details}.")


def _bars(axes: Axes, names: Sequence[str], values: Sequence[float]) -> None:
    """A bar in the colour of its format and its number, for each name."""
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        axes.barh(row, value, color=look_of(name).colour, height=0.62)
        axes.text(value, row, f" {value:.2f}×", va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.18 * max(values))


@c.in_house_style
def recorded_gradients(
    *, recipe: str = "fp32", fmt: Format = FP16, where: Where = None
) -> c.Picture | None:
    """Exponents of the larger network's gradients, a row for each layer.

    Args:
        recipe: how the backward pass was computed.
        fmt: whose range is drawn, and whose losses the title counts.
        where: a folder; None for the recordings that came with the package.

    Returns:
        A figure with the layers from top to bottom, darker where more of a layer's gradients
        are; None without a recording.
    """
    recording = recordings.first("exponents", where=where)
    runs = recording.data.get("runs", []) if recording else []
    run = next((r for r in runs if r["recipe"] == recipe and "layers" in r), None)
    if recording is None or run is None:
        return None
    layers = {name: _histogram(h) for name, h in run["layers"].items()}
    picture = c.Picture(height=2.0 + 0.16 * len(layers), width=8.6)
    axes = picture.subplots()
    low, high = window(pooled(layers.values()), fmt, shifts=(0, 0))
    cells = np.zeros((len(layers), high - low))
    for row, histogram in zip(cells, layers.values(), strict=True):
        for exponent, count in zip(histogram.exponents, histogram.counts, strict=True):
            row[exponent - low] = 100 * count / histogram.counts.sum()
    places = np.arange(low, high + 1), np.arange(len(layers) + 1)
    mesh = axes.pcolormesh(*places, cells, cmap="Greys", vmin=0)
    bound = zones(fmt)
    for edge in (bound.flushed, bound.subnormal, bound.overflow):
        axes.axvline(edge, color=c.STYLES.get(fmt.name, c.STYLES["FP32"]).colour, linewidth=1.2)
    axes.set_yticks(np.arange(len(layers)) + 0.5, layers, fontsize=8)
    axes.set_ylim(len(layers), 0)
    axes.set_xlim(low, high)
    c.binary_axis(axes.xaxis, "gradient, absolute value")
    picture.colorbar(mesh, label="share of the layer's gradients (%)")
    c.titled(picture, *_lost(layers, fmt, recording, run))
    c.label_spans(picture, axes, zone_words(fmt, low, high))
    return picture


def _histogram(stored: dict[str, Any]) -> ExponentHistogram:
    counts = np.array(stored["counts"], np.int64)
    exponents = stored["lowest"] + np.arange(len(counts))
    return ExponentHistogram(exponents, counts, stored["zeros"], stored["nonfinite"])


def _lost(
    layers: dict[str, ExponentHistogram],
    fmt: Format,
    recording: recordings.Recording,
    run: dict[str, Any],
) -> tuple[str, str]:
    """What the format flushes of all layers, and of each."""
    found = {name: shares(histogram, fmt) for name, histogram in layers.items()}
    share = {name: part.flushed / max(1, part.total) for name, part in found.items()}
    worst = max(share, key=lambda name: share[name])
    flushed, total = sum(p.flushed for p in found.values()), sum(p.total for p in found.values())
    name = _NAMES.get(run["recipe"], run["recipe"])
    claim = (
        f"Of the larger network's gradients in {name}, {fmt.name} without a loss scale flushes "
        f"{c.percent(flushed, total)} to 0"
    )
    if flushed:
        claim += f", most in {worst} ({c.percent(found[worst].flushed, found[worst].total)})"
    details = "; ".join(f"{n}: {c.percent(p.flushed, p.total)} flushed" for n, p in found.items())
    return f"{claim} ({recording.words})", f"A row of shades for each layer. {details}."


# The matrix unit -------------------------------------------------------------------------
@c.in_house_style
def recorded_units(*, where: Where = None) -> c.Picture | None:
    """How many random sums of the recorded device each model of a matrix unit gives bit for bit.

    Args:
        where: a folder; None for the recordings that came with the package.

    Returns:
        A figure with a row for each format and a column for each architecture, whose title
        names the models that are never wrong; None without a recording of blocks.
    """
    recording = recordings.first("tensorcores", where=where)
    blocks = recording.data.get("blocks", {}) if recording else {}
    blocks = {
        name: row for name, row in blocks.items() if row.get("blocks") and row.get("differing")
    }
    if recording is None or not blocks:
        return None
    models = list(dict.fromkeys(m for row in blocks.values() for m in row["differing"]))
    picture = c.Picture(height=1.6 + 0.4 * len(blocks), width=8.6)
    axes = picture.subplots()
    for y, row in enumerate(blocks.values()):
        for x, model in enumerate(models):
            _cell(axes, x, y, row["differing"].get(model), row["blocks"])
    axes.set_xticks(range(len(models)), [model.replace("_", "\n") for model in models])
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(blocks)), blocks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5, len(models) - 0.5)
    axes.set_ylim(len(blocks) - 0.5, -0.5)
    right = {
        model: [name for name, row in blocks.items() if row["differing"].get(model) == 0]
        for model in models
    }
    told = [f"{model} for {c.listed(names)}" for model, names in right.items() if names]
    claim = f"Models without a wrong bit: {'; '.join(told) or 'none'} ({recording.words})"
    return c.titled(picture, claim, f"Table. {_counts(blocks)}.")


def _cell(axes: Axes, x: int, y: int, wrong: int | None, total: int) -> None:
    """The share that a model gets right, on blue where that is all."""
    if wrong is None:
        words, face = "no such\nmodel", "#EDEDEE"
    else:
        words = f"{c.percent(total - wrong, total)}\nof {total:,}"
        face = c.STYLES["FP32" if wrong == 0 else "FP8_E4M3"].colour
    box: Any = {"facecolor": face, "alpha": 0.28, "edgecolor": "none"}
    axes.add_patch(Rectangle((x - 0.47, y - 0.43), 0.94, 0.86, **box))
    axes.text(x, y, words, ha="center", va="center", fontsize=8.5, color=c.INK)


def _counts(blocks: dict[str, Any]) -> str:
    parts: Iterable[str] = (
        f"{name}: "
        + ", ".join(f"{model} {wrong:,} wrong" for model, wrong in row["differing"].items())
        + f" of {row['blocks']:,}"
        for name, row in blocks.items()
    )
    return "; ".join(parts)
