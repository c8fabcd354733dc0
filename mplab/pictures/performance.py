"""The figures of performance: what rounding, products and the steps of training take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from mplab.hardware.rooflines import Roofline
from mplab.numbers.words import superscript
from mplab.pictures import canvas as c
from mplab.training.recipes import RECIPES
from mplab.training.stages import STAGES, Memory, Times

# Rounding --------------------------------------------------------------------------------
_INTO = "round_to, out="

_LINES = {  # what the figure shows of each contender: its words, dash and width
    _INTO: ("with out=", "solid", 2.2),
    "round_to": ("round_to", "dotted", 2.2),
    "NumPy astype": ("NumPy", "dashed", 1.2),
    "ml_dtypes astype": ("ml_dtypes", "dashed", 1.2),
    "torch to": ("torch", "dashdot", 1.2),
    "gfloat": ("gfloat", "dotted", 1.2),
}

_PEERS = {name for name in _LINES if not name.startswith("round_to")}


@c.in_house_style
def costs(rows: Sequence[Any]) -> c.Picture:
    """What rounding costs against the number of elements, in copies: one panel for each format.

    Args:
        rows: those of `make bench`: each has `name`, `fmt` (empty for a
            copy), `size` and `ratio`, its time in copies. Drawn are ties to even from float32.

    Returns:
        A figure whose title compares `round_to` with the fastest other library at the largest
        size, and says from which size on it is the fastest, if not always.
    """
    rows = [row for row in rows if row.name in _LINES]  # a copy is the line at 1
    formats = list(dict.fromkeys(row.fmt for row in rows))
    columns = min(2, len(formats))
    lines = -(-len(formats) // columns)
    picture = c.Picture(height=1.1 + 2.2 * lines, width=6.4)
    grid = picture.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    ends = []
    for axes, fmt in zip(grid.flat, formats, strict=False):
        axes.set_title(fmt)
        axes.axhline(1, color=c.REFERENCE.colour, linewidth=1)
        ends += _cost_lines(axes, [row for row in rows if row.fmt == fmt])
    for axes in [*grid.flat][len(formats) :]:
        axes.set_axis_off()
    first = grid[0, 0]  # which the others share their axes with
    first.set(xscale="log", yscale="log")
    for axis, words in ((first.xaxis, _power_of_ten), (first.yaxis, _times)):
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(words))
    for axes in grid[-1]:
        axes.set_xlabel("elements")
    for axes in grid[:, 0]:
        axes.set_ylabel("CPU time, in copies")
    c.label_ends(picture, ends)
    details = "; ".join(f"{r.name} {r.fmt} {r.size:,}: {r.ratio:.2f}" for r in rows)
    return c.titled(picture, _cost_claim(rows), f"Line chart, times in copies. {details}.")


def _cost_lines(axes: Axes, rows: Sequence[Any]) -> list[c.End]:
    """The lines of one format; ours have its colour."""
    ends = []
    for name, (words, dash, width) in _LINES.items():
        here = [row for row in rows if row.name == name]
        if not here:
            continue
        x, y = [row.size for row in here], [row.ratio for row in here]
        look = c.style(here[0].fmt) if name not in _PEERS else c.REFERENCE
        marker = look.marker if name == _INTO else ""
        how = {"marker": marker, "linestyle": dash, "linewidth": width}
        ends.append(c.curve(axes, x, y, words, look, **how))
    return ends


def _power_of_ten(value: float, _: object) -> str:
    return f"{value:g}" if value < 1000 else "10" + superscript(round(math.log10(value)))


def _times(value: float, _: object) -> str:
    return f"{value:g}×"


def _cost_claim(rows: Sequence[Any]) -> str:
    """The span over formats of `round_to`, and of the fastest peer in each format."""
    sizes = sorted({row.size for row in rows})
    ours, peers = _least(rows, sizes[-1], ours=True), _least(rows, sizes[-1], ours=False)
    claim = f"For {sizes[-1]:,} elements round_to takes {c.span(ours.values())} copies"
    if not peers:
        return claim
    claim += f", the fastest other library {c.span(peers.values())}"
    slower = [size for size in sizes if _is_slower(rows, size)]
    if not slower:
        return claim
    if slower[-1] == sizes[-1]:
        return f"{claim}; in some format that is faster"
    return f"{claim}; it is the fastest from {sizes[sizes.index(slower[-1]) + 1]:,} elements on"


def _least(rows: Sequence[Any], size: int, *, ours: bool) -> dict[str, float]:
    """Copies that `round_to` takes into an array, or the fastest peer, by format."""
    found: dict[str, float] = {}
    for row in rows:
        if row.size == size and (row.name == _INTO if ours else row.name in _PEERS):
            found[row.fmt] = min(row.ratio, found.get(row.fmt, math.inf))
    return found


def _is_slower(rows: Sequence[Any], size: int) -> bool:
    peers = _least(rows, size, ours=False)
    ours = _least(rows, size, ours=True).items()
    return any(ratio >= peers.get(fmt, math.inf) for fmt, ratio in ours)


# Products --------------------------------------------------------------------------------
@c.in_house_style
def roofline(roof: Roofline) -> c.Picture:
    """The speed of products against their operations per byte, under the limit of memory.

    Args:
        roof: measured or recorded.

    Returns:
        A figure whose title compares each format with FP32 at the largest common size.
    """
    picture = c.Picture(height=4.2, width=8.2)
    axes = picture.subplots()
    c.log_axes(axes, "operations per byte", "operations per second")
    ends, names = [], list(dict.fromkeys(p.fmt for p in roof.products))
    for name in names:
        here = [p for p in roof.products if p.fmt == name]
        x, y, look = [p.per_byte for p in here], [p.per_second for p in here], c.style(name)
        ends.append(c.curve(axes, x, y, name, look, marker=look.marker))
    rates = [p.per_second for p in roof.products]
    low, high = min(p.per_byte for p in roof.products), max(rates) / roof.bytes_per_second
    high = min(max(high, 2 * low), max(p.per_byte for p in roof.products))
    ends_of_limit = np.array([low, high])
    limit = ends_of_limit, ends_of_limit * roof.bytes_per_second
    ends.append(c.curve(axes, *limit, "limit of memory", c.REFERENCE, linewidth=1))
    axes.set_ylim(min(*rates, low * roof.bytes_per_second) / 2, max(rates) * 3)
    c.label_ends(picture, ends)
    details = "; ".join(f"{p.fmt} {p.size}: {p.per_second:.3g}/s" for p in roof.products)
    return c.titled(picture, _roofline_claim(roof, names), f"Line chart, {roof.where}. {details}.")


def _roofline_claim(roof: Roofline, names: Sequence[str]) -> str:
    if "FP32" not in names or len(names) == 1:
        return f"Speed of products, {roof.where}"
    parts = []
    for name in names:
        if name == "FP32":
            continue
        own = {p.size: p.per_second for p in roof.products if p.fmt == name}
        wide = {p.size: p.per_second for p in roof.products if p.fmt == "FP32"}
        size = max(own.keys() & wide.keys())
        parts.append(f"{name} {own[size] / wide[size]:.2g}× at size {size}")
    return f"Speed of FP32 products is multiplied: {', '.join(parts)} ({roof.where})"


# The memory of a step --------------------------------------------------------------------
_COMPONENTS = ("parameters", "gradients", "optimizer state", "activations", "low copies of weights")


@c.in_house_style
def memory(rows: Sequence[Memory]) -> c.Picture:
    """Bytes of a training step by component, one bar for each recipe.

    Args:
        rows: what `mplab.training.memory` measured, FP32 first. Of a simulated recipe the
            bar shows what its format would take; the simulator itself keeps FP32.

    Returns:
        A figure whose title says what mixed precision saves, and what it does not.
    """
    unit, size = _unit(max(sum(_parts(row)) for row in rows))
    picture = c.Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    table = np.array([_parts(row) for row in rows]) / size
    axes = _stack(picture, [_recipe_words(row) for row in rows], table, _COMPONENTS, columns=3)
    axes.set_xlabel(f"memory ({unit})")
    details = "; ".join(
        f"{_recipe_words(row)}: "
        + ", ".join(f"{part} {count}" for part, count in zip(_COMPONENTS, _parts(row), strict=True))
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
    """Bytes by component, those of the format where a simulator stood in for it."""
    kept = row.would if row.would is not None else row.kept
    casts = row.casts or 0
    return [row.parameters, row.gradients, row.optimizer, kept - casts, casts]


def _recipe_words(row: Memory) -> str:
    return (
        row.recipe
        + (" (in hardware)" if row.would is not None else "")
        + (", checkpointed" if row.checkpointed else "")
    )


def _unit(most: float) -> tuple[str, float]:
    for name, size in (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if most >= size:
            return name, size
    return "bytes", 1.0


# The time of a step ----------------------------------------------------------------------
@c.in_house_style
def stage_times(rows: Sequence[Times]) -> c.Picture:
    """Share of a step's time by stage, one bar for each recipe.

    Args:
        rows: what `mplab.training.stage_times` measured.

    Returns:
        A figure whose title names the largest share, and whose key the stages that these
        recipes have: without a loss scale there is no unscaling and no scaler.
    """
    picture = c.Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    table = np.array([[_seconds(row, stage) for stage in STAGES] for row in rows])
    shares = 100 * table / table.sum(1, keepdims=True)
    names = [row.recipe + (" (simulator)" if row.simulated else "") for row in rows]
    axes = _stack(picture, names, shares, STAGES, columns=6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of a step's time (%)")
    for place, row in enumerate(rows):
        words = f"{1e3 * sum(row.seconds.values()):.3g} ms a step\n{row.throughput:,.0f} examples/s"
        axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center")
    where = np.unravel_index(int(shares.argmax()), shares.shape)
    share = c.percent(float(table[where]), float(table[where[0]].sum()))
    stage, run = STAGES[where[1]], names[where[0]]
    claim = f"Stage “{stage}” takes the largest share of a step: {share} in {run}"
    details = "; ".join(
        f"{name}: " + ", ".join(f"{s} {v:.0f}%" for s, v in zip(STAGES, row, strict=True) if v)
        for name, row in zip(names, shares, strict=True)
    )
    return c.titled(picture, claim, f"Stacked bars on {rows[0].device}. {details}.")


def _seconds(row: Times, stage: str) -> float:
    """What a stage takes: nothing where the recipe has no loss scale, and so no such stage."""
    recipe = RECIPES.get(row.recipe)
    idle = recipe is not None and recipe.init_scale is None and stage in ("unscale", "scaler")
    return 0.0 if idle else row.seconds.get(stage, 0.0)


# Stacked bars ----------------------------------------------------------------------------
_FACES = tuple(look.colour for look in (*c.STYLES.values(), c.REFERENCE))

_HATCHES = ("", "//", "..", "", "xx", "")


def _stack(
    picture: c.Picture, names: list[str], table: np.ndarray, parts: Sequence[str], *, columns: int
) -> Axes:
    """Stacked horizontal bars, one a row, over their key; the hatch repeats the colour.

    A part that no bar has is left out of the key, and the others keep their colours.
    """
    axes = picture.subplots()
    left = np.zeros(len(names))
    for i, part in enumerate(parts):
        if not table[:, i].any():
            continue
        axes.barh(
            names,
            table[:, i],
            left=left,
            color=_FACES[i],
            hatch=_HATCHES[i],
            edgecolor="white",
            linewidth=0.6,
            height=0.62,
            label=part,
        )
        left += table[:, i]
    axes.invert_yaxis()
    key = axes.get_legend_handles_labels()
    columns = min(columns, len(key[0]))
    picture.legend(*key, loc="outside lower center", ncols=columns, frameon=False)
    return axes
