"""How a class did: what became of each part of an assignment."""

from __future__ import annotations

from collections.abc import Mapping

from mplab.pictures import canvas as c

_COLOURS = ("#371279", "#8E7CC3", "#D9C7E8", "#FFFFFF")
"""From what went best to what went worst; a darker one for each of at most four kinds."""

_FEW = 0.04
"""The share of a bar that holds no number."""


@c.in_house_style
def class_parts(parts: Mapping[str, Mapping[str, int]]) -> c.Picture:
    """What became of each part of an assignment: a bar of its submissions, by kind.

    Args:
        parts: by the name of the part, how many submissions are of each kind; at most four kinds,
            in all parts the same, the best first.

    Returns:
        A figure whose title names the part that the fewest have right.
    """
    kinds = list(next(iter(parts.values())))
    picture = c.Picture(height=1.3 + 0.3 * len(parts), width=7.6)
    axes = picture.subplots()
    most = max(1, *(sum(found.values()) for found in parts.values()))
    left = dict.fromkeys(parts, 0)
    for kind, colour in zip(kinds, _COLOURS[: len(kinds)], strict=True):
        numbers = [found[kind] for found in parts.values()]
        bars = axes.barh(
            range(len(parts)), numbers, left=[*left.values()], height=0.72, color=colour,
            edgecolor=c.FAINT, linewidth=0.6, label=kind,
        )  # fmt: skip
        words = [str(n) if n > _FEW * most else "" for n in numbers]
        ink = "white" if colour == _COLOURS[0] else c.INK
        axes.bar_label(bars, words, label_type="center", color=ink, fontsize=9)
        left = {name: left[name] + found[kind] for name, found in parts.items()}
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlim(0, most)
    axes.set_xticks(c.whole_ticks(0, most, count=8))
    axes.set_xlabel("graded submissions")
    picture.legend(loc="outside lower right", ncols=len(kinds), frameon=False)
    name, least = min(parts.items(), key=lambda part: part[1][kinds[0]])
    claim = f"“{name}” is {kinds[0]} in {least[kinds[0]]} of {sum(least.values())} submissions"
    claim += ", the fewest of all parts" if len(parts) > 1 else ""
    details = "; ".join(
        f"{name}: {c.listed(f'{number} {kind}' for kind, number in found.items())}"
        for name, found in parts.items()
    )
    return c.titled(picture, claim, f"Stacked bars by part. {details}.")
