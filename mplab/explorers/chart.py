"""Pictures in SVG for the explorers: words, boxes, lines."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from mplab.pictures.canvas import CARD, CARD_CLASS, INK

LINE = "#707075"  # axes and outlines

SIZE, LEAST = 13, 10
"""Of letters: as drawn, and in the narrowest window, where a picture is scrolled, not smaller."""

FONT = f'font-family="system-ui, DejaVu Sans, sans-serif" font-size="{SIZE}"'


def svg(parts: Iterable[str], *, width: int, height: float, description: str) -> str:
    """A picture on its own white background, with a description for screen readers.

    It is as wide as there is room, at most `width`.

    Examples:
        >>> svg([], width=600, height=9, description="a < b")[:45]
        '<svg role="img" aria-label="a &lt; b" viewBox'
    """
    least = width * LEAST // SIZE
    return (
        f'<svg role="img" aria-label="{escape(description, quote=True)}" '
        f'viewBox="0 0 {width} {height:.0f}" {FONT} fill="{INK}" class="{CARD_CLASS}" '
        f'style="width:100%;min-width:{least}px;max-width:{width}px;{CARD}">'
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", more: str = "") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, more: str) -> str:
    """A rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {more}/>'


def line(path: str, *, colour: str = LINE, more: str = "") -> str:
    """A line along an SVG path."""
    return f'<path d="{path}" fill="none" stroke="{colour}" {more}/>'
