"""Figures drawn a second time, for the column of a phone."""

import numpy as np
import pytest
from drawn import assert_as_it_was, told
from legible import assert_legible

from mplab.course.pictures.canvas import STYLES, Line, Picture, line_chart, titled
from mplab.course.site.narrow import make_narrow


@pytest.mark.slow
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
    make_narrow(picture)
    assert_as_it_was(told(picture), __file__, "lines.txt")
    assert_legible(picture)


@pytest.mark.slow
def test_panels_of_a_row_stand_below_each_other_with_their_ticks():
    picture = Picture(height=2.5)
    for axes in picture.subplots(1, 3, sharey=True, subplot_kw={"title": "a panel"}):
        axes.plot([1e3, 2e3], [1, 2], label="a line")
        axes.set_ylabel("beside\nit", rotation=0, ha="right")
    axes.set_yticks([1, 2], ["layers.0.self_attn", "a"])
    axes.text(
        1000, 1, "words above it", va="bottom", transform=axes.get_xaxis_transform()
    )
    picture.legend(*axes.get_legend_handles_labels(), loc="outside lower center")
    titled(picture, "Three panels", "Details.")
    make_narrow(picture)
    places = [axes.get_window_extent() for axes in picture.axes]
    assert places[0].y0 > places[1].y1 > places[1].y0 > places[2].y1
    assert_as_it_was(told(picture), __file__, "panels.txt")
    assert_legible(picture)
