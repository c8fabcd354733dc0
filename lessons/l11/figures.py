"""Matrix products, the larger network, recorded runs, and a step: errors, speed and memory."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab.common.words import number
from mplab.course.pictures import canvas as c
from mplab.course.pictures.training import METRICS, by_seed, look_of
from mplab.lessons import recordings
from mplab.lessons.l11.rooflines import ProductError, Roofline
from mplab.lessons.l11.stages import STAGES, Memory, Times
from mplab.training import RECIPES

NAMES = {
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


def plot_matmul_errors(rows: Sequence[ProductError]) -> c.Picture:
    """The error of products by size and format.

    Args:
        rows: what `mplab.lessons.l11.rooflines.matmul_errors` measured, of one magnitude.

    Returns:
        A figure whose title gives the magnitude, and the error at the largest size.
    """
    lines = []
    for name in dict.fromkeys(row.fmt for row in rows):
        here = [row for row in rows if row.fmt == name]
        look = c.style(name)
        x, y = [row.size for row in here], [row.error for row in here]
        lines.append(c.Line(x, y, name, look, {"marker": look.marker}))
    largest = max(row.size for row in rows)
    last = [f"{_about(row.error)} in {row.fmt}" for row in rows if row.size == largest]
    details = "; ".join(f"{row.fmt} {row.size}: {row.error:.2g}" for row in rows)
    claim = (
        f"Numbers near {rows[0].magnitude:g}: products of size {largest} "
        f"are off by about {c.listed(last)}"
    )
    quantities = "size of the matrices", "relative error of the product"
    return c.line_chart(lines, *quantities, claim, f"{details}.", log="xy")


def _about(error: float) -> str:
    """Write an error as a power of two; where FP16 overflows, it is infinite or NaN."""
    if not error or not np.isfinite(error):
        return number(error)
    return c.power_of_two(2.0 ** round(np.log2(error)))


# The larger network ----------------------------------------------------------------------
@c.in_house_style
def recorded_network(*, where: recordings.Where = None) -> c.Picture | None:
    """Speed and memory of the larger network by recipe, as multiples of FP32's.

    Args:
        where: a folder; None for the recordings that came with the package.

    Returns:
        A figure whose title gives the multiples of the fastest recipe; None without a recording
        of FP32 and another recipe.
    """
    recording = recordings.first("larger", where=where)
    rows = (
        [r for r in recording.data.get("runs", []) if "problem" not in r]
        if recording
        else []
    )
    if recording is None or len(rows) < 2 or rows[0]["recipe"] != "fp32":
        return None
    names = [NAMES.get(row["recipe"], row["recipe"]) for row in rows]
    speed = [row["words_per_second"] / rows[0]["words_per_second"] for row in rows]
    measured = all(row["peak_bytes"] for row in rows)
    memory = (
        [row["peak_bytes"] / rows[0]["peak_bytes"] for row in rows] if measured else []
    )
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
    """Draw a bar for each name, in the colour of its format, with its number."""
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        axes.barh(row, value, color=look_of(name).colour, height=0.62)
        axes.text(value, row, f" {value:.2f}×", va="center")
    c.rows(axes, names)
    axes.set_xlim(0, 1.18 * max(values))


# The time of a step ----------------------------------------------------------------------
@c.in_house_style
def plot_stage_times(rows: Sequence[Times]) -> c.Picture:
    """The time of a step by stage, one bar for each recipe.

    Args:
        rows: what `mplab.lessons.l11.stages.stage_times` measured.

    Returns:
        A figure whose title gives the time and the longest stage of each; its key lists the
        stages of these recipes: without a loss scale there is no unscaling and no scaler.
    """
    picture = c.Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    table = 1e3 * np.array([[_seconds(row, stage) for stage in STAGES] for row in rows])
    whole = table.sum(1)
    shares = 100 * table / whole[:, None]
    names = [row.recipe + (" (simulator)" if row.simulated else "") for row in rows]
    axes = picture.subplots()
    c.bars(axes, names, table, STAGES)
    picture.legend(loc="outside lower center", ncols=len(STAGES), frameon=False)
    axes.set_xlim(0, max(whole))
    axes.set_xlabel("time of a step (ms)")
    for place, row in enumerate(rows):
        words = f"{whole[place]:.3g} ms\n{row.throughput:,.0f} examples/s"
        axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center")
    longest = [
        f"{time:.3g} ms in {name}, {part.max():.0f}% of it {STAGES[int(part.argmax())]}"
        for name, part, time in zip(names, shares, whole, strict=True)
    ]
    claim = f"A step takes {'; '.join(longest)}"
    details = "; ".join(
        f"{name}: "
        + ", ".join(f"{s} {v:.0f}%" for s, v in zip(STAGES, row, strict=True) if v)
        for name, row in zip(names, shares, strict=True)
    )
    return c.titled(picture, claim, f"Stacked bars on {rows[0].device}. {details}.")


def _seconds(row: Times, stage: str) -> float:
    """The seconds of a stage; 0 if the recipe has no loss scale, and so no such stage."""
    recipe = RECIPES.get(row.recipe)
    idle = (
        recipe is not None
        and recipe.init_scale is None
        and stage in ("unscale", "scaler")
    )
    return 0.0 if idle else row.seconds.get(stage, 0.0)


# Products --------------------------------------------------------------------------------
def plot_roofline(roof: Roofline | None) -> c.Picture | None:
    """The speed of products against their operations per byte, under the limit of memory.

    Args:
        roof: measured or recorded; None draws nothing.

    Returns:
        A figure whose title compares each format with FP32 at the largest common size.
    """
    if roof is None:
        return None
    lines = []
    names = list(dict.fromkeys(p.fmt for p in roof.products))
    for name in names:
        here = [p for p in roof.products if p.fmt == name]
        look = c.style(name)
        x, y = [p.per_byte for p in here], [p.per_second / 1e9 for p in here]
        lines.append(c.Line(x, y, name, look, {"marker": look.marker}))
    rates, places = (
        [p.per_second / 1e9 for p in roof.products],
        [p.per_byte for p in roof.products],
    )
    low = min(places)
    memory = roof.bytes_per_second / 1e9
    high = max(rates) / memory
    limit = np.array([low, min(max(high, 2 * low), max(places))])
    speeds = limit * memory
    lines.append(
        c.Line(limit, speeds, "limit of memory", c.REFERENCE, {"linewidth": 1})
    )
    bottom, top = min(*rates, speeds[0]) / 2, max(rates) * 3
    claim = _roofline_claim(roof, names)
    every = "; ".join(f"{p.fmt} {p.size}: {p.per_second:.3g}/s" for p in roof.products)
    details = f"{roof.where[0].upper()}{roof.where[1:]}. {every}."
    quantities = "operations per byte", "billion operations per second"

    def finish(axes: Axes) -> None:
        axes.set_ylim(bottom, top)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,.10g}")

    return c.line_chart(
        lines,
        *quantities,
        claim,
        details,
        log="xy",
        finish=finish,
    )


def _roofline_claim(roof: Roofline, names: Sequence[str]) -> str:
    if "FP32" not in names or len(names) == 1:
        return f"Speed of products, {roof.where}"
    speeds = {
        name: {p.size: p.per_second for p in roof.products if p.fmt == name}
        for name in names
    }
    size = max(set.intersection(*map(set, speeds.values())))
    wide = speeds.pop("FP32")[size]
    paces = c.listed(
        f"{_pace(own[size] / wide)} in {name}" for name, own in speeds.items()
    )
    return f"Beside FP32, products of size {size} {paces} ({roof.where})"


def _pace(ratio: float) -> str:
    if ratio < 1:
        return f"take {1 / ratio:.2g} times as long"
    return f"are {ratio:.2g} times as fast"


# Recorded runs ---------------------------------------------------------------------------
def recorded_runs(
    task: str,
    *,
    recipes: Sequence[str] = ("fp32", "amp-fp16-naive", "amp-fp16", "amp-bf16"),
    where: recordings.Where = None,
) -> c.Picture | None:
    """Draw the metric that recorded runs of a task reached, with a row for each recipe.

    Args:
        task: a name in `mplab.training.TASKS`.
        recipes: the recipes shown, the first to compare with; runs with TF32 products are left out.
        where: a folder; None for the recordings that came with the package.

    Returns:
        The figure of `by_seed`, with the seeds recorded for all these recipes; None if there are
        none.
    """
    recording = recordings.first("training", where=where)
    if recording is None:
        return None
    by_recipe: dict[str, dict[int, dict[str, float]]] = {}
    for row in recording.data.get("runs", []):
        if row["task"] == task and not row["tf32"] and "problem" not in row:
            by_recipe.setdefault(row["recipe"], {})[row["seed"]] = row["metrics"]
    found = {name: by_recipe[name] for name in recipes if name in by_recipe}
    if len(found) < 2:
        return None
    first, *others = found.values()
    common = sorted(set(first).intersection(*others))
    if not common:
        return None
    metric = next(iter(first[common[0]]))
    results = {
        NAMES.get(name, name): [float(runs[seed][metric]) for seed in common]
        for name, runs in found.items()
    }
    return by_seed(results, metric=METRICS.get(metric, metric), source=recording.words)


# The memory of a step --------------------------------------------------------------------
_COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "low copies of weights",
)


@c.in_house_style
def plot_memory(rows: Sequence[Memory]) -> c.Picture:
    """Draw the memory of a training step by component, one bar for each recipe.

    Args:
        rows: what `stages.memory` measured, FP32 first. For a simulated recipe the bar shows
            what its format takes in hardware; the simulator itself keeps FP32.

    Returns:
        A figure whose title says what mixed precision saves, and what it does not.
    """
    unit, size = _unit(max(sum(_parts(row)) for row in rows))
    picture = c.Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    table = np.array([_parts(row) for row in rows]) / size
    axes = picture.subplots()
    c.bars(axes, [_recipe_words(row) for row in rows], table, _COMPONENTS)
    picture.legend(loc="outside lower center", ncols=3, frameon=False)
    axes.set_xlabel(f"memory ({unit})")
    details = "; ".join(
        f"{_recipe_words(row)}: "
        + ", ".join(
            f"{part} {count}"
            for part, count in zip(_COMPONENTS, _parts(row), strict=True)
        )
        for row in rows
    )
    return c.titled(picture, _memory_claim(rows), f"Stacked bars, bytes. {details}.")


def _memory_claim(rows: Sequence[Memory]) -> str:
    first = rows[0]
    others = [row for row in rows[1:] if not row.checkpointed]
    if not others:
        return f"{first.recipe} takes {sum(_parts(first)):,} bytes"
    same = all(row.parameters == first.parameters for row in others)
    saved = min(others, key=lambda row: sum(_parts(row)[3:]))
    ratio = sum(_parts(saved)[3:]) / max(1, sum(_parts(first)[3:]))
    words = "keeps every parameter in FP32" if same else "changes the parameters"
    return (
        f"Mixed precision {words}; activations with the copies of weights take "
        f"{ratio:.2f}× those of {first.recipe} ({_recipe_words(saved)})"
    )


def _parts(row: Memory) -> list[int]:
    """Return bytes by component."""
    return [
        row.parameters,
        row.gradients,
        row.optimizer,
        row.activations,
        row.copies,
    ]


def _recipe_words(row: Memory) -> str:
    words = f"{row.recipe} (in hardware)" if row.simulated else row.recipe
    return f"{words}, checkpointed" if row.checkpointed else words


def _unit(most: float) -> tuple[str, float]:
    units = ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)
    return next((unit for unit in units if most >= unit[1]), ("bytes", 1.0))
