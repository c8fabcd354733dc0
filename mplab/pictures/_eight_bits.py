"""The figures of training in eight bits: runs by their seeds, and errors by their blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab.numbers.formats import FP8_E4M3
from mplab.pictures import canvas as c


# Seeds -----------------------------------------------------------------------------------
@c.in_house_style
def by_seed(
    results: Mapping[str, Sequence[float]], *, metric: str = "test accuracy", source: str = ""
) -> c.Picture:
    """What runs of several seeds reach, a row for each way of training.

    Args:
        results: the metric of each seed, in one order, by the way of training; the first way
            is what the others are compared with.
        metric: what is measured.
        source: where the results come from, if not from runs made here.

    Returns:
        A figure whose title says by how much each way changes the metric, seed by seed.
    """
    names, values = list(results), np.array(list(results.values()), float)
    picture = c.Picture(height=1.7 + 0.42 * len(names))
    axes = picture.subplots()
    axes.axvspan(values[0].min(), values[0].max(), color=c.BAND, alpha=c.COARSE, linewidth=0)
    for row, (name, scores) in enumerate(zip(names, values, strict=True)):
        look = look_of(name)
        axes.plot(
            scores,
            np.full(len(scores), row),
            look.marker or "o",
            color=look.colour,
            markersize=7,
            alpha=0.75,
        )
        axes.text(1.02, row, _range(scores), transform=axes.get_yaxis_transform(), va="center")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(f"{metric}, one mark a seed (grey: the range of {names[0]})")
    changes = [
        f"{_range(v - values[0], sign='+')} with {n}" for n, v in zip(names, values, strict=True)
    ]
    seeds = values.shape[1]
    each = "1 seed" if seeds == 1 else f"each of {seeds} seeds"
    reached = "; ".join(f"{n}: {_range(v)}" for n, v in zip(names, values, strict=True))
    claim = (
        f"{metric[0].upper()}{metric[1:]} against {names[0]}, on {each}: {c.listed(changes[1:])}"
    )
    claim += f" ({source})" * bool(source)
    return c.titled(picture, claim, f"Marks in rows. {reached}.")


def look_of(name: str) -> c.Style:
    """The palette's entry for the format that a way of training begins with."""
    names = {"E4M3": "FP8_E4M3", "E5M2": "FP8_E5M2", "FP8": "FP8_E4M3"}
    first = name.split()[0].strip(",:")
    return c.STYLES.get(names.get(first, first), c.STYLES["FP8_E4M3"])


def _range(values: np.ndarray, *, sign: str = "") -> str:
    """The least and the greatest, or the only one, in three decimals."""
    ends = [f"{value:{sign}.3f}" for value in (values.min(), values.max())]
    words = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    return words.replace("-", "−").replace("+0.000", "0.000").replace("−0.000", "0.000")


# Blocks ----------------------------------------------------------------------------------
@c.in_house_style
def block_errors(
    exact: np.ndarray, quantized: Mapping[str, np.ndarray], *, block: int = 32
) -> c.Picture:
    """The relative error of each block of a row of numbers, by the way it was scaled.

    Args:
        exact: the numbers, shape (blocks * block,).
        quantized: what was made of them, by the name of the way, the first hollow.
        block: how many numbers are a block.

    Returns:
        A figure whose title gives the median error of the blocks: the root of the sum of
        squared errors, over that of squares.
    """
    numbers = np.asarray(exact, float)
    errors = {
        name: _block_errors(numbers, np.asarray(x, float), block) for name, x in quantized.items()
    }
    picture = c.Picture(height=3.4)
    axes = picture.subplots()
    ends = [
        _draw_blocks(axes, found, name, hollow=place == 0)
        for place, (name, found) in enumerate(errors.items())
    ]
    axes.set_xlabel(f"block of {block} numbers")
    c.binary_axis(axes.yaxis, "relative error of the block", count=7)
    lowest = min(float(np.log2(e[e > 0]).min()) if (e > 0).any() else -8 for e in errors.values())
    axes.set_ylim(lowest - 1, 1)
    medians = [f"{c.percent(float(np.median(e)), 1)} with {name}" for name, e in errors.items()]
    c.titled(
        picture,
        f"The median error of {numbers.size // block} blocks is {c.listed(medians)}",
        "; ".join(
            f"{name}: errors from {c.percent(float(e.min()), 1)} to {c.percent(float(e.max()), 1)}"
            for name, e in errors.items()
        ),
    )
    c.label_ends(picture, ends)
    return picture


def _block_errors(exact: np.ndarray, made: np.ndarray, block: int) -> np.ndarray:
    """The norm of each block's error over that of the block."""
    off, whole = ((x.reshape(-1, block) ** 2).sum(1) for x in (made - exact, exact))
    return np.asarray(np.sqrt(off / np.where(whole > 0, whole, 1)))


def _draw_blocks(axes: Axes, errors: np.ndarray, name: str, *, hollow: bool) -> c.End:
    """Marks for the blocks; exact blocks have none."""
    look = c.style(FP8_E4M3)
    with np.errstate(divide="ignore"):
        heights = np.where(errors > 0, np.log2(errors), np.nan)
    face = "white" if hollow else look.colour
    axes.plot(heights, look.marker, color=look.colour, markerfacecolor=face, markersize=6)
    last = int(np.flatnonzero(np.isfinite(heights))[-1]) if (errors > 0).any() else 0
    return c.End(axes, last, float(np.nan_to_num(heights[last])), name, look.colour)
