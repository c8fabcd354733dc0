"""Two runs side by side: how far they are apart, and where they part."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from mplab.health.comparison import Comparison, Difference
from mplab.pictures import canvas as c

_READABLE = 12
"""Rows of layers that can be read."""

_APART = LinearSegmentedColormap.from_list("apart", ["#D9C7E8", "#371279"])
"""From one ulp to the most."""


@c.in_house_style
def parting(comparison: Comparison) -> c.Picture:
    """How far two runs are apart by layer and step, and where they part.

    Args:
        comparison: what `mplab.health.compare` found.

    Returns:
        A figure whose title is the verdict. Of many layers it shows those that part first; first
        weights that differ are updates of step −1.
    """
    found = comparison.differences
    layers = list(dict.fromkeys(d.site.layer for d in found))[:_READABLE] or [""]
    first = {_cell(d)[1] for d in found[:1]}
    steps = sorted({*comparison.steps, *first}) or [0]
    rows, columns = ({n: k for k, n in enumerate(names)} for names in (layers, steps))
    picture = c.Picture(height=2.2 + 0.3 * max(3, len(layers)), width=9.0)
    most = max([1.0, *(math.log2(d.ulps) for d in found if math.isfinite(d.ulps))])
    for place, (axes, direction) in enumerate(
        zip(picture.subplots(1, 3, sharey=True), ("forward", "backward", "update"), strict=True)
    ):
        apart = np.full((len(layers), len(steps)), np.nan)
        for d in found:
            way, step = _cell(d)
            if way == direction and d.site.layer in rows:
                at = rows[d.site.layer], columns[step]
                far = math.log2(d.ulps) if math.isfinite(d.ulps) else most
                apart[at] = np.fmax(apart[at], far)
        mesh = axes.pcolormesh(apart, cmap=_APART, vmin=0, vmax=most, edgecolors="white", lw=0.4)
        for d in found[:1]:
            way, step = _cell(d)
            if way == direction:
                x, y = columns[step] + 0.5, rows[d.site.layer] + 0.5
                axes.plot(x, y, "o", mfc="none", mec=c.STYLES["FP8_E4M3"].colour, ms=13, mew=2.5)
        rings = bool(axes.lines)
        axes.set_title(f"{direction}; ring: here they part" if rings else direction)
        shown = c.whole_ticks(0, len(steps) - 1, count=5) or [0]
        axes.set_xticks([k + 0.5 for k in shown], [f"{steps[k]}".replace("-", "−") for k in shown])
        axes.set_xlabel("step" if place != 1 else "step (white: equal, or not there)")
        axes.set_yticks([k + 0.5 for k in range(len(layers))], [n or "the model" for n in layers])
        axes.set_ylim(len(layers), 0)
        axes.tick_params(left=not place)
    bar = picture.colorbar(mesh, ax=picture.axes)
    c.binary_axis(bar.ax.yaxis, "apart by (ulp)", count=6)
    words = "; ".join(f"step {d.step}, {d.site}: {d.apart}" for d in found[:_READABLE])
    of = len({d.site.layer for d in found})
    details = f"The {len(layers)} of {of} layers that part first, by step. First differences: "
    return c.titled(picture, comparison.verdict, f"{details}{words}." if found else "No cell.")


def _cell(d: Difference) -> tuple[str, int]:
    """Panel and step of a difference."""
    return ("update", -1) if d.site.direction == "start" else (d.site.direction, d.step)
