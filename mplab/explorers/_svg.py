"""Pieces of SVG that explorers share: words, boxes, lines."""

from __future__ import annotations

from html import escape

LINE = "#707075"  # axes and outlines


def text(x: float, y: float, words: str, *, anchor: str = "start", more: str = "") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, more: str) -> str:
    """A rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {more}/>'


def line(path: str, *, colour: str = LINE, more: str = "") -> str:
    """A line along an SVG path."""
    return f'<path d="{path}" fill="none" stroke="{colour}" {more}/>'
