"""Figures drawn a second time, for the column of a phone."""

import numpy as np
from legible import assert_legible
from matplotlib.text import Text

from mplab.commands.narrow import make_narrow
from mplab.pictures.canvas import STYLES, Line, Picture, line_chart, titled

COLUMN = 308  # pixels at a window of 360


def letters(picture):
    """The heights of all letters in pixels of the page."""
    scale = COLUMN / (picture.get_figwidth() * picture.dpi)
    texts = picture.findobj(Text)
    return [
        t.get_fontsize() * picture.dpi / 72 * scale
        for t in texts
        if t.get_text().strip()
    ]


def test_long_names_of_lines_are_wrapped_and_stay_apart():
    x = np.arange(1.0, 9.0)
    looks = list(STYLES.values())
    lines = [
        Line(x, x + 0.01 * i, f"a long name of line {i}", looks[i]) for i in range(3)
    ]
    claim = (
        "Three lines end nearly in one place, and their names stand below each other"
    )
    picture = line_chart(
        lines, "steps of the run, counted from one on", "loss", claim, "More."
    )
    picture.axes[0].set_yscale("log")  # its words are formulas, which no line may break
    alt = picture.alt
    wide = min(letters(picture))
    make_narrow(picture)
    assert picture.get_figwidth() == 4 and picture.alt == alt and picture.claim == claim
    broken = any("\n" in t.get_text() for t in picture.axes[0].get_yticklabels())
    assert min(letters(picture)) >= 9 > wide and not broken
    assert_legible(picture)


def test_panels_of_a_row_stand_below_each_other_with_their_ticks():
    picture = Picture(height=2.5)
    for axes in picture.subplots(1, 3, sharey=True, subplot_kw={"title": "a panel"}):
        axes.plot([1e3, 2e3], [1, 2])
        axes.set_ylabel("beside\nit", rotation=0, ha="right")
    axes.set_yticks([1, 2], ["layers.0.self_attn", "a"])
    titled(picture, "Three panels", "Details.")
    make_narrow(picture)
    places = [axes.get_window_extent() for axes in picture.axes]
    words = (
        axes.get_yticklabels()[0].get_text(),
        axes.get_ylabel(),
        axes.yaxis.label.get_ha(),
    )
    assert words == ("layers.0.\nself_attn", "beside\nit", "right")
    assert places[0].y0 > places[1].y1 > places[1].y0 > places[2].y1
    assert all(axes.yaxis.get_ticklabels()[1].get_visible() for axes in picture.axes)
    assert_legible(picture)
