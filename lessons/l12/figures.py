"""Errors of blocks that share a scale."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from mplab import FP8_E4M3
from mplab.course.pictures import canvas as c


# Blocks ----------------------------------------------------------------------------------
@c.in_house_style
def block_errors(exact: np.ndarray, quantized: Mapping[str, np.ndarray]) -> c.Picture:
    """The relative error of each block of 32 numbers, by the way it was scaled.

    Args:
        exact: the numbers, shape (32 · blocks,).
        quantized: the quantized numbers, by the name of the way; the first is drawn hollow.

    Returns:
        A figure whose title gives the median error of the blocks: the root of the sum of
        squared errors, over the root of the sum of squares.
    """
    numbers = np.asarray(exact, float)
    errors = {
        name: _block_errors(numbers, np.asarray(x, float))
        for name, x in quantized.items()
    }
    picture = c.Picture(height=3.4)
    axes = picture.subplots()
    ends = [
        _draw_blocks(axes, found, name, hollow=place == 0)
        for place, (name, found) in enumerate(errors.items())
    ]
    axes.set_xlabel("block of 32 numbers")
    c.binary_axis(axes.yaxis, "relative error of the block", count=7)
    lowest = min(
        float(np.log2(e[e > 0]).min()) if (e > 0).any() else -8 for e in errors.values()
    )
    axes.set_ylim(lowest - 1, 1)
    medians = [
        f"{c.percent(float(np.median(e)), 1)} with {name}" for name, e in errors.items()
    ]
    c.titled(
        picture,
        f"The median error of {numbers.size // 32} blocks is {c.listed(medians)}",
        "; ".join(
            f"{name}: errors from {c.percent(float(e.min()), 1)} to {c.percent(float(e.max()), 1)}"
            for name, e in errors.items()
        ),
    )
    c.label_ends(picture, ends)
    return picture


def _block_errors(exact: np.ndarray, made: np.ndarray) -> np.ndarray:
    """The norm of each block's error over that of the block."""
    off, whole = ((x.reshape(-1, 32) ** 2).sum(1) for x in (made - exact, exact))
    return np.asarray(np.sqrt(off / np.where(whole > 0, whole, 1)))


def _draw_blocks(axes: Axes, errors: np.ndarray, name: str, *, hollow: bool) -> c.End:
    """Marks for the blocks; exact blocks have none."""
    look = c.style(FP8_E4M3)
    with np.errstate(divide="ignore"):
        heights = np.where(errors > 0, np.log2(errors), np.nan)
    face = "white" if hollow else look.colour
    axes.plot(
        heights, look.marker, color=look.colour, markerfacecolor=face, markersize=6
    )
    last = int(np.flatnonzero(np.isfinite(heights))[-1]) if (errors > 0).any() else 0
    return c.End(axes, last, float(np.nan_to_num(heights[last])), name, look.colour)
