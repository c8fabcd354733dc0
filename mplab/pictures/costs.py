"""The figures of time and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from mplab.pictures.canvas import (
    REFERENCE,
    STYLES,
    Picture,
    in_house_style,
    require_some,
    span,
    titled,
)


@in_house_style
def costs(rows: Sequence[Any]) -> Picture:
    """What rounding costs, as a multiple of a copy: one panel for each size.

    Args:
        rows: what `mplab.bench` measured: each has `name`, `fmt` (empty for a copy), `size`
            and `ratio`, its time in copies.

    Returns:
        A figure whose title compares `round_to` with the fastest other library.
    """
    require_some("costs", "rows", rows)
    rows = [row for row in rows if row.fmt]  # the copies themselves are the line at 1
    sizes = list(dict.fromkeys(row.size for row in rows))
    names = list(dict.fromkeys(row.name for row in rows))
    picture = Picture(height=1.6 + 0.3 * len(names), width=9.4)
    grid = picture.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
    for axes, size in zip(grid, sizes, strict=True):
        axes.set_title(f"{size:,} elements")
        axes.axvline(0, color=REFERENCE.colour, linewidth=1)
        axes.set_xlabel("CPU time, in copies")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{2**k:g}×"))
        for i, fmt in enumerate(dict.fromkeys(row.fmt for row in rows)):
            here = [row for row in rows if row.fmt == fmt and row.size == size]
            x = np.log2([row.ratio for row in here])
            y = [names.index(row.name) + 0.14 * i - 0.21 for row in here]  # apart on equal times
            axes.plot(x, y, STYLES[fmt].marker, color=STYLES[fmt].colour, label=fmt)
    grid[0].set_yticks(range(len(names)), [name.strip() for name in names])
    grid[0].invert_yaxis()
    key = grid[0].get_legend_handles_labels()
    picture.legend(*key, loc="outside lower right", ncols=4, frameon=False)
    details = "; ".join(f"{r.name.strip()} {r.fmt} {r.size:,}: {r.ratio:.2f}" for r in rows)
    return titled(picture, _cost_claim(rows, sizes[-1]), f"Dot plot, times in copies. {details}.")


def _cost_claim(rows: Sequence[Any], size: int) -> str:
    """The span over formats of `round_to`, and of the fastest peer in each format."""
    ours: dict[str, float] = {}
    peers: dict[str, float] = {}
    for row in rows:
        if row.size == size and row.name == "round_to, out=":
            ours[row.fmt] = row.ratio
        elif row.size == size and not row.name.startswith(("round_to", " ")):
            peers[row.fmt] = min(row.ratio, peers.get(row.fmt, math.inf))
    start = f"For {size:,} elements round_to takes {span(ours.values())} copies"
    return f"{start}, the fastest other library {span(peers.values())}" if peers else start
