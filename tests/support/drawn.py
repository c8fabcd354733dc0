"""What was drawn when somebody looked at it: a change of the drawing is a change of a text."""

import pathlib

import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.path import Path
from matplotlib.spines import Spine
from matplotlib.text import Annotation, Text

GETTERS = {
    Axis: "label_text ticklocs majorticklabels scale view_interval tick_params",
    Line2D: "xydata linestyle drawstyle marker markersize fillstyle markerfacecolor "
    "markeredgecolor markeredgewidth markevery linewidth",
    Rectangle: "bbox",
    Patch: "facecolor edgecolor hatch linewidth",
    Collection: "paths array clim facecolor edgecolor linewidth",
    Text: "text position ha va rotation fontsize fontweight",
    Annotation: "xy anncoords arrowprops",
    Line2D | Text: "color",
    Line2D | Patch | Collection: "alpha zorder label",
    Legend: "_ncols _outside_loc",
}
"""What is asked of each kind of artist. Where the layout puts it in the figure is not."""


def assert_as_it_was(text, test, name):
    """Fail on a text other than the one that is kept beside the test."""
    room = pathlib.Path(test).parent
    kept = room / "drawn" / name
    if not kept.exists() or text != kept.read_text("utf-8"):
        new = room.parents[1] / "artefacts" / "drawn" / room.name / name
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        pytest.fail(f"Look at it. If it is meant: cp '{new}' '{kept}'")


def told(figure):
    """A line for each part of a figure: what it is, and what the last of its kind was not."""
    lines = [figure.claim, figure.alt, said(figure.get_size_inches())]
    last = {}
    for part in parts(figure):
        asked = [names for kind, names in GETTERS.items() if isinstance(part, kind)]
        facts = {name: said(known(part, name)) for name in " ".join(asked).split()}
        if not (part.get_visible() and facts) or facts.get("text") == "''":
            continue
        kind = type(part).__name__.removeprefix("FillBetween")  # since Matplotlib 3.10
        new = [f"{n} {f}" for n, f in facts.items() if last.get((kind, n)) != f]
        lines.append(", ".join([kind, *new]))
        last |= {(kind, n): f for n, f in facts.items()}
    return "\n".join(lines) + "\n"


def known(part, name):
    return getattr(part, f"get_{name}", lambda: getattr(part, name))()


def parts(artist: Artist):
    """All parts of an artist; an axis tells of its ticks itself."""
    yield artist
    for child in () if isinstance(artist, Axis | Spine) else artist.get_children():
        yield from parts(child)


def said(value):
    """A value in words: of a long array the ends and the sum."""
    value = getattr(value, "bounds", value)
    if isinstance(value, list) and value and isinstance(value[0], Text):
        value = [text.get_text() for text in value]
    if isinstance(value, list) and value and isinstance(value[0], Path):
        value = np.concatenate([path.vertices for path in value])
    table = np.ma.filled(np.ma.asarray(value), np.nan)
    if table.dtype.kind not in "bif":
        return "''" if str(value).startswith("_") else repr(value)
    table = table.round(6) + 0.0
    words = [f"{number:.3g}" for number in table.ravel()]
    if len(words) <= 24:
        return " ".join(words)
    columns = (
        np.nansum(table, 0).ravel() if table.shape[1:] == (2,) else [np.nansum(table)]
    )
    total = " ".join(f"{number:.5g}" for number in columns)
    total = f"{total} over {len(words)}, {np.isnan(table).sum()} NaN"
    return " ".join([*words[:6], "…", *words[-6:], "sum", total])
