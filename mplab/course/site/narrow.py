"""Draw a lesson's figures a second time, for the pages of `mplab export-html` on a phone."""

from itertools import pairwise
from textwrap import fill
from typing import Any

from IPython.core.getipython import get_ipython
from matplotlib.gridspec import GridSpec
from matplotlib.text import Text

from mplab.course.pictures.canvas import (
    Picture,
    in_house_style,
    part_ends,
    part_spans,
    titled,
)

WIDTH = 4.0  # inches, 400 pixels: in a column of 308 pixels no letter is under 9


def show_wide_and_narrow() -> None:
    """Let this kernel show each figure as it is, and drawn anew for narrow windows."""
    shell: Any = get_ipython()
    shell.display_formatter.mimebundle_formatter.for_type(Picture, wide_and_narrow)


def wide_and_narrow(picture: Picture) -> dict[str, Any]:
    """Return a figure as HTML with two images, and as PNG for links; leave it narrow.

    A wide table scrolls instead.
    """
    wide = picture._repr_mimebundle_()["text/html"]
    png = picture.png()
    if max(len(axes.texts) for axes in picture.axes) > 60:
        html = f'<div class="scrolled">{wide}</div>'
    else:
        make_narrow(picture)
        source = f'<source media="(max-width: 600px)" srcset="{picture.address()}">'
        html = f"<picture>{source}{wide}</picture>"
    return {"text/html": html, "image/png": png}


@in_house_style
def make_narrow(picture: Any) -> None:
    """Lay a figure out for a phone: panels below each other, long words on several lines."""
    panels = [axes for axes in picture.axes if axes.get_subplotspec() is not None]
    places = [axes.get_subplotspec() for axes in panels]
    columns = max(cell.get_gridspec().ncols for cell in places)
    height = picture.get_figheight()
    if 1 < columns < 5:
        order = sorted(range(len(places)), key=lambda i: places[i].colspan.start)
        grid = GridSpec(len(order), 1, figure=picture)
        for row, i in enumerate(order):
            panels[i].set_subplotspec(grid[row])
            panels[i].tick_params(labelleft=True, labelbottom=True)
        height *= 0.8 * columns
    alt = picture.alt
    lines = picture.get_suptitle().count("\n")
    picture.set_size_inches(WIDTH, height)
    picture.draw_without_rendering()  # so that words are measured in pixels of this size
    titled(picture, picture.claim, "").alt = alt
    picture.set_figheight(height + 0.2 * (picture.get_suptitle().count("\n") - lines))
    for key in [*picture.legends]:
        names = [text.get_text() for text in key.get_texts()]
        below = {"loc": "outside lower center", "ncols": 2, "frameon": False}
        picture.legend(key.legend_handles, names, **below)
        key.remove()
    for axes in picture.axes:
        notes, above = _wrap(axes)
        _thin(picture, axes.xaxis)
        part_ends(picture, axes, notes)
        part_spans(picture, axes, above)


def _wrap(axes: Any) -> tuple[list[Any], list[Any]]:
    """Wrap long labels; return the names of curves, and the words above the axes."""
    axes.set_title(fill(axes.get_title(loc="left"), 44), loc="left")
    _fill(axes.xaxis.label, 38)  # `set_xlabel` would undo its alignment
    _fill(axes.yaxis.label, 26)
    notes = [t for t in axes.texts if isinstance(getattr(t, "anncoords", ""), tuple)]
    above = [
        t for t in axes.texts if t.get_va() == "bottom" and t.get_position()[1] == 1
    ]
    for text in notes:
        _fill(text, 14)
    for text in above:
        _fill(text, 10)
    names = [label.get_text().replace(".", ". ") for label in axes.get_yticklabels()]
    # Not a formula's source.
    if any(len(name) > 14 and "$" not in name for name in names):
        axes.set_yticks(
            axes.get_yticks(), [fill(name, 14).replace(". ", ".") for name in names]
        )
    return notes, above


def _fill(text: Text, room: int) -> None:
    """Break each line of a text at this many letters."""
    text.set_text("\n".join(fill(line, room) for line in text.get_text().split("\n")))


def _thin(picture: Picture, axis: Any) -> None:
    """Drop every other tick label of an axis while two touch."""
    for _ in range(3):
        picture.draw_without_rendering()
        words = [label for label in axis.get_majorticklabels() if label.get_text()]
        boxes = sorted(
            (word.get_window_extent() for word in words), key=lambda box: box.x0
        )
        if all(a.x1 + 3 < b.x0 for a, b in pairwise(boxes)):
            return
        low, high = sorted(axis.get_view_interval())
        places = [place for place in axis.get_majorticklocs() if low <= place <= high]
        axis.set_ticks(
            places[::2], axis.get_major_formatter().format_ticks(places)[::2]
        )
