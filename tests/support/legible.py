"""What makes a figure legible: every text lies within it, and no two overlap."""

from itertools import combinations
from unittest import mock

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def drawn_texts(figure):
    """Each text that the Agg renderer draws, with its box in pixels."""
    found = []
    draw = Text.draw

    def record(text, renderer, *args, **kwargs):
        draw(text, renderer, *args, **kwargs)
        if text.get_visible() and text.get_text().strip():
            found.append((text.get_text(), Text.get_window_extent(text, renderer)))

    FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # settles the layout
    with mock.patch.object(Text, "draw", record):
        figure.draw_without_rendering()
    return found


def assert_legible(figure):
    """Fail on a text that is clipped by the figure's edge or touches another."""
    texts = drawn_texts(figure)
    assert texts, "the figure has no words"
    width, height = figure.bbox.size
    clipped = [
        text
        for text, box in texts
        if box.x0 < -0.5 or box.y0 < -0.5 or box.x1 > width + 0.5 or box.y1 > height + 0.5
    ]
    assert clipped == [], f"clipped: {clipped}"
    overlapping = [
        (first, second)
        for (first, a), (second, b) in combinations(texts, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1
    ]
    assert overlapping == [], f"overlapping: {overlapping}"
