"""The figures of memory and time by recipe."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab.pictures.canvas import (
    REFERENCE,
    STYLES,
    Picture,
    Table,
    in_house_style,
    percent,
    require_some,
    titled,
)
from mplab.training.stages import STAGES, Memory, Times

_COMPONENTS = ("parameters", "gradients", "optimizer state", "activations", "low copies of weights")
_FACES = (
    STYLES["FP32"].colour,
    STYLES["FP16"].colour,
    STYLES["BF16"].colour,
    STYLES["FP8_E4M3"].colour,
    STYLES["FP8_E5M2"].colour,
    REFERENCE.colour,
)
_HATCHES = ("", "//", "..", "", "xx", "")


def _parts(row: Memory) -> list[int]:
    """Bytes by component, those of the format where a simulator stood in for it."""
    kept = row.would if row.would is not None else row.kept
    casts = row.casts or 0
    return [row.parameters, row.gradients, row.optimizer, kept - casts, casts]


def _name(row: Memory) -> str:
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


@in_house_style
def memory(rows: Sequence[Memory]) -> Picture:
    """Bytes of a training step by component, one bar for each recipe.

    Args:
        rows: what `mplab.training.stages.memory` measured, FP32 first. Of a simulated recipe the
            bar shows what its format would take; the simulator itself keeps FP32.

    Returns:
        A figure whose title says what mixed precision saves, and what it does not.
    """
    require_some("memory", "rows", rows)
    unit, size = _unit(max(sum(_parts(row)) for row in rows))
    picture = Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    axes = picture.subplots()
    table = np.array([_parts(row) for row in rows]) / size
    _stack(axes, [_name(row) for row in rows], table, _COMPONENTS)
    axes.set_xlabel(f"memory ({unit})")
    picture.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    details = "; ".join(
        f"{_name(row)}: "
        + ", ".join(f"{part} {count}" for part, count in zip(_COMPONENTS, _parts(row), strict=True))
        for row in rows
    )
    return titled(picture, _memory_claim(rows), f"Stacked bars, bytes. {details}.")


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
        f"{ratio:.2f}× those of {first.recipe} ({_name(saved)})"
    )


def _stack(axes: Axes, names: list[str], table: np.ndarray, parts: Sequence[str]) -> None:
    """Stacked horizontal bars, one a row; the hatch repeats the colour."""
    left = np.zeros(len(names))
    for i, part in enumerate(parts):
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


@in_house_style
def stage_times(rows: Sequence[Times]) -> Picture:
    """Share of a step's time by stage, one bar for each recipe.

    Args:
        rows: what `mplab.training.stages.stage_times` measured.

    Returns:
        A figure whose title names the largest share.
    """
    require_some("stage_times", "rows", rows)
    picture = Picture(height=1.5 + 0.5 * len(rows), width=8.6)
    axes = picture.subplots()
    table = np.array([[row.seconds.get(stage, 0.0) for stage in STAGES] for row in rows])
    shares = 100 * table / table.sum(1, keepdims=True)
    names = [row.recipe + (" (simulator)" if row.simulated else "") for row in rows]
    _stack(axes, names, shares, STAGES)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of a step's time (%)")
    for place, row in enumerate(rows):
        words = f"{1e3 * sum(row.seconds.values()):.3g} ms a step\n{row.throughput:,.0f} examples/s"
        axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center")
    picture.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False
    )
    where = np.unravel_index(int(shares.argmax()), shares.shape)
    share = percent(float(table[where]), float(table[where[0]].sum()))
    stage, run = STAGES[where[1]], names[where[0]]
    claim = f"Stage “{stage}” takes the largest share of a step: {share} in {run}"
    details = "; ".join(
        f"{name}: " + ", ".join(f"{s} {v:.0f}%" for s, v in zip(STAGES, row, strict=True))
        for name, row in zip(names, shares, strict=True)
    )
    return titled(picture, claim, f"Stacked bars on {rows[0].device}. {details}.")


def memory_table(rows: Sequence[Memory]) -> Table:
    """The same in numbers: bytes by component, and what was predicted."""
    header = ("recipe", *_COMPONENTS[:3], "kept, measured", "kept, predicted", "would keep", "peak")
    cells = tuple(
        (
            _name(row).replace(" (in hardware)", ""),
            *(f"{count:,}" for count in (row.parameters, row.gradients, row.optimizer, row.kept)),
            "–" if row.activations is None else f"{row.activations + (row.casts or 0):,}",
            "–" if row.would is None else f"{row.would:,}",
            "–" if row.peak is None else f"{row.peak:,}",
        )
        for row in rows
    )
    return Table("Bytes of one training step", header, cells)
