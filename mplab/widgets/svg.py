"""Pieces of SVG that explorers share: words, boxes, and a picture on its own white background."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from mplab.pictures.canvas import INK
from mplab.widgets.explorer import FONT

LINE = "#707075"  # axes and outlines


def picture(parts: Iterable[str], *, width: int, height: float, label: str) -> str:
    """An SVG image of these parts with a label for screen readers, as wide as there is room."""
    return (
        f'<svg role="img" aria-label="{escape(label, quote=True)}" '
        f'viewBox="0 0 {width} {height:.0f}" {FONT} fill="{INK}" '
        f'style="width:100%;max-width:{1.35 * width:.0f}px;background:#fff">'
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
