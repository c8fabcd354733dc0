"""What makes a figure legible: every text lies within it, stands out, and touches no other."""

import re
from itertools import combinations
from typing import NamedTuple
from unittest import mock
from xml.etree import ElementTree

import numpy as np
from coloraide import Color
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

CONTRAST = 4.5
"""WCAG 2.1, criterion 1.4.3."""


class Drawn(NamedTuple):
    """A text as it is drawn: its words, its box in pixels, its colour and what lies behind it."""

    words: str
    box: object
    colour: tuple
    behind: tuple


def texts_on(figure):
    """Each text that the Agg renderer draws, on the rest of the figure."""
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # settles the layout
    found = []

    def record(text, renderer, *args, **kwargs):
        if text.get_visible() and text.get_text().strip():
            found.append((text, Text.get_window_extent(text, renderer)))

    # Once is enough.
    settled = mock.patch.object(figure, "get_layout_engine", return_value=None)
    with mock.patch.object(Text, "draw", record), settled:
        canvas.draw()
    image = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    return [
        Drawn(text.get_text(), box, seen_colour(text), ground(image, box))
        for text, box in found
    ]


def seen_colour(text):
    """A text's colour over white, as it may let it through."""
    alpha = 1.0 if text.get_alpha() is None else text.get_alpha()
    return tuple(alpha * part + 1 - alpha for part in to_rgb(text.get_color()))


def ground(image, box):
    """The colour of most pixels behind a box; white where the box is past the edge."""
    left, bottom = max(0, int(box.x0)), max(0, int(box.y0))
    part = image[bottom : int(box.y1) + 1, left : int(box.x1) + 1].reshape(-1, 3)
    if not len(part):
        return (1.0, 1.0, 1.0)
    packed = part.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    values, counts = np.unique(packed, return_counts=True)
    most = int(values[counts.argmax()])
    return ((most >> 16) / 255, (most >> 8 & 255) / 255, (most & 255) / 255)


def contrast(a, b):
    """The contrast ratio of two colours, by WCAG 2.1."""
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    """Relative luminance of red, green and blue in [0, 1]."""
    light = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour
    ]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def drawn_texts(figure):
    """Each text that the Agg renderer draws, with its box in pixels."""
    return [(text.words, text.box) for text in texts_on(figure)]


def assert_legible(figure):
    """The figure; fail on a text that its edge clips, that touches another, or that is faint."""
    texts = texts_on(figure)
    assert texts, "the figure has no words"
    width, height = figure.bbox.size
    clipped = [
        text
        for text, box, *_ in texts
        if box.x0 < -0.5
        or box.y0 < -0.5
        or box.x1 > width + 0.5
        or box.y1 > height + 0.5
    ]
    assert clipped == [], f"clipped: {clipped}"
    overlapping = [
        (first.words, second.words)
        for first, second in combinations(texts, 2)
        for a, b in [(first.box, second.box)]
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1
        and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert overlapping == [], f"overlapping: {overlapping}"
    faint = [
        f"{text.words!r}: {contrast(text.colour, text.behind):.2f}"
        for text in texts
        if contrast(text.colour, text.behind) < CONTRAST
    ]
    assert faint == [], f"faint: {faint}"
    return figure


def words_of(figure):
    """The set of texts that a figure draws."""
    return {text.words for text in texts_on(figure)}


def assert_words_stand_out(svg):
    """Fail on a text of an SVG that is faint on what was painted before it, in light or dark."""
    colours = dict(re.findall(r"(--c\w+):([^;]*);", svg))
    svg = re.sub(r"var\((--c\w+)\)", lambda found: colours[found[1]], svg)
    both = r"light-dark\(([^,]*),oklch\(from \S+ calc\(([\d.]+) - l\) c h\)\)"
    _assert_stand_out(re.sub(both, r"\1", svg))
    _assert_stand_out(re.sub(both, lambda at: _turned(at[1], float(at[2])), svg))


def _turned(colour, light):
    """The colour with `light` less its own light, in OKLCH."""
    seen = Color(to_hex(colour)).convert("oklch")
    return seen.set("l", light - seen["l"]).convert("srgb").clip().to_string(hex=True)


def _assert_stand_out(svg):
    root = ElementTree.fromstring(svg)
    usual = re.search(r"fill:([^;]+)", root.get("style"))[1]
    boxes, faint = [], []
    for part in root.iter():
        kind = part.tag.rpartition("}")[2]
        if kind == "rect" and part.get("fill", "none") != "none":
            boxes.append(part)
        if kind != "text" or part.get("transform"):
            continue
        behind = (1.0, 1.0, 1.0)
        for box in boxes:
            behind = painted(box, middle_of(part), behind)
        colour = to_rgb(part.get("fill", usual))
        if contrast(colour, behind) < CONTRAST:
            faint.append(f"{part.text!r}: {contrast(colour, behind):.2f}")
    assert faint == [], f"faint: {faint}"


def middle_of(text):
    """About where the middle of a text of an SVG is."""
    size = float(text.get("font-size", 13))
    width = 0.53 * size * len(text.text or "")
    x = (
        float(text.get("x"))
        - {"start": -0.5, "middle": 0, "end": 0.5}[text.get("text-anchor", "start")]
        * width
    )
    return x, float(text.get("y")) - 0.35 * size


def painted(box, place, behind):
    """The colour at a place after a box was painted over another colour."""
    x, y, width, height = (float(box.get(k, 0)) for k in ("x", "y", "width", "height"))
    if not (x <= place[0] <= x + width and y <= place[1] <= y + height):
        return behind
    alpha = float(box.get("fill-opacity") or box.get("opacity") or 1)
    return tuple(
        alpha * a + (1 - alpha) * b
        for a, b in zip(to_rgb(box.get("fill")), behind, strict=True)
    )
