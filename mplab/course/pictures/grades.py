"""The figure of a class's grades."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from mplab.course.pictures import canvas as c

_COLOURS = ("#371279", "#8E7CC3", "#D9C7E8", "#FFFFFF")
"""The colours of at most four kinds, from the best (dark) to the worst (white)."""


_FEW = 0.04
"""Parts of a bar up to this share have no room for a number."""


@c.in_house_style
def class_parts(parts: Mapping[str, Mapping[str, int]]) -> c.Picture:
    """Draw a bar for each part of an assignment: its submissions by kind of result.

    Args:
        parts: by name, how many submissions are of each kind; at most four kinds, the same in all
            parts, the best first.

    Returns:
        A figure whose title names the part that the fewest submissions have right.
    """
    kinds = list(next(iter(parts.values())))
    picture = c.Picture(height=1.3 + 0.3 * len(parts), width=7.6)
    axes = picture.subplots()
    most = max(1, *(sum(found.values()) for found in parts.values()))
    table = np.array([list(found.values()) for found in parts.values()])
    plain = ("",) * len(kinds)
    c.bars(
        axes,
        parts,
        table,
        kinds,
        faces=_COLOURS,
        hatches=plain,
        edge=c.FAINT,
    )
    drawn: Any = axes.containers  # all of them are bars
    for bars in drawn:
        words = [f"{n:.0f}" if n > _FEW * most else "" for n in bars.datavalues]
        ink = "white" if bars.get_label() == kinds[0] else c.INK
        axes.bar_label(bars, words, label_type="center", color=ink, fontsize=9)
    axes.set_xlim(0, most)
    axes.set_xticks(c.whole_ticks(0, most, count=8))
    axes.set_xlabel("graded submissions")
    key = axes.get_legend_handles_labels()  # empty where nobody handed anything in
    picture.legend(*key, loc="outside lower right", ncols=len(kinds), frameon=False)
    name, least = min(parts.items(), key=lambda part: part[1][kinds[0]])
    claim = f"“{name}” is {kinds[0]} in {least[kinds[0]]} of {sum(least.values())} submissions"
    claim += ", the fewest of all parts" if len(parts) > 1 else ""
    details = "; ".join(
        f"{name}: {c.listed(f'{number} {kind}' for kind, number in found.items())}"
        for name, found in parts.items()
    )
    return c.titled(picture, claim, f"Stacked bars by part. {details}.")
