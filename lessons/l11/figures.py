"""The error of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab.hardware import recordings
from mplab.hardware.rooflines import ProductError
from mplab.pictures import canvas as c
from mplab.pictures.recordings import NAMES, Where
from mplab.pictures.training import look_of


@c.in_house_style
def plot_matmul_errors(rows: Sequence[ProductError]) -> c.Picture:
    """The error of products by size and format.

    Args:
        rows: what `mplab.hardware.matmul_errors` measured.

    Returns:
        A figure whose title gives the error at the largest size.
    """
    picture = c.Picture(height=3.6)
    axes = picture.subplots()
    c.log_axes(axes, "size of the matrices", "relative error of the product")
    ends = []
    for name in dict.fromkeys(row.fmt for row in rows):
        here = [row for row in rows if row.fmt == name]
        x, y, look = [row.size for row in here], [row.error for row in here], c.style(name)
        ends.append(c.curve(axes, x, y, name, look, marker=look.marker))
    c.label_ends(picture, ends)
    largest = max(row.size for row in rows)
    last = ", ".join(f"{row.fmt} {row.error:.1g}" for row in rows if row.size == largest)
    details = "; ".join(f"{row.fmt} {row.size}: {row.error:.2g}" for row in rows)
    claim = f"Relative errors of products of size {largest}: {last}"
    return c.titled(picture, claim, f"Line chart. {details}.")


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
    names = [NAMES.get(row["recipe"], row["recipe"]) for row in rows]
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
