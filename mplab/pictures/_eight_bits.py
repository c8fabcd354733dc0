"""The figures of training in eight bits: runs by their seeds, and errors by their blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from mplab.numbers.checks import integer, quoted
from mplab.numbers.formats import FP8_E4M3
from mplab.pictures import _checks
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

    Raises:
        ValueError: there are fewer than two ways, or their seeds differ in number.
    """
    _checks.word("by_seed", "metric", metric, empty=False)
    _checks.word("by_seed", "source", source)
    values = _rectangle(results)
    names = list(results)
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


def _rectangle(results: Mapping[str, Sequence[float]]) -> np.ndarray:
    """The results as an array, a row for each way."""
    if not isinstance(results, Mapping) or results:
        c.require_named("by_seed", "results", results, Sequence, np.ndarray)
    if not all(isinstance(name, str) and name.strip() for name in results):
        raise TypeError(
            f"by_seed: results must be a mapping from names; got the keys {quoted(list(results))}. "
            "Name each way of training."
        )
    scores: Any
    for scores in results.values():
        if isinstance(scores, str | bytes) or (isinstance(scores, np.ndarray) and not scores.ndim):
            _checks.row("by_seed", "results", scores)
    lengths = {len(scores) for scores in results.values()}
    if len(results) < 2 or len(lengths) != 1 or lengths == {0}:
        given = ", ".join(f"{name}: {len(scores)}" for name, scores in results.items())
        raise ValueError(
            f"by_seed: results must hold at least two ways with the same number of seeds; got "
            f"{given or 'none'}. Train each way on the same seeds."
        )
    return np.array(list(_checks.rows("by_seed", "results", results).values()), float)


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

    Raises:
        ValueError: the numbers are no whole blocks.
    """
    c.require_named("block_errors", "quantized", quantized)
    integer("block_errors", "block", block, least=1)
    numbers = np.asarray(_checks.row("block_errors", "exact", exact), float)
    if numbers.size % block:
        raise ValueError(
            f"block_errors: exact must be whole blocks of {block} numbers; got shape "
            f"{numbers.shape}. Cut it, or change block."
        )
    made = _checks.rows("block_errors", "quantized", quantized, like=numbers)
    errors = {name: _block_errors(numbers, np.asarray(x, float), block) for name, x in made.items()}
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
