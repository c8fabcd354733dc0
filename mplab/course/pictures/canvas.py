"""The parts of every figure: the palette, words, and a Figure with alt text.

pyplot is not used, so no figure is left open, and the reader's settings stay as they are.
"""

import base64
import io
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from matplotlib.transforms import ScaledTranslation

from mplab.common.words import superscript
from mplab.numbers.formats import Format
from mplab.training.exponents import exponent_of, zones

P = ParamSpec("P")

Drawn = TypeVar("Drawn", bound="Picture | None")


# The palette -----------------------------------------------------------------------------
class Style(NamedTuple):
    """The look of a line in all figures: the marker and the dash repeat the colour."""

    colour: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]]


STYLES: dict[str, Style] = {  # blue: wide; green and violet: 16 bits; reds: 8 bits
    "FP32": Style("#5790FC", "o", "solid"),
    "FP16": Style("#117733", "s", "dashed"),
    "BF16": Style("#7A21DD", "D", "dashdot"),
    "FP8_E4M3": Style("#EE6677", "^", "solid"),
    "FP8_E5M2": Style("#882255", "v", "dashed"),
}

REFERENCE = Style("#000000", "", "solid")  # exact values, and formats without a colour

NEUTRAL = (
    Style("#B07D00", "X", "solid"),
    Style("#00777D", "p", (0, (6, 1.5, 1, 1.5, 1, 1.5))),
    Style("#45484F", "P", (0, (8, 2))),
    Style("#9094A0", "*", (0, (1.5, 1))),
)
"""Ochre, teal, ink and grey, for lines, bars and boxes that stand for no format."""

FACES = (*(look.colour for look in NEUTRAL), "#E4C97F", "#A9CDCF")
"""The colours of areas that stand for no format: the neutral ones, and two of them paler."""

BAD = NEUTRAL[0].colour
GOOD = NEUTRAL[1].colour

METHOD_STYLES: dict[str, tuple[Any, str]] = {
    "nearest": ("solid", "to nearest"),
    "stochastic": ("dotted", "stochastic"),
    "kahan": (NEUTRAL[2].dash, "Kahan"),
    "master": (NEUTRAL[1].dash, "FP32 master"),
}
"""The dash and the name of each way of adding updates; the colour is that of the format."""

FIELDS = {"sign": "#663D1F", "exponent": "#371279", "trailing significand": "#606B99"}
"""The colours of a code's fields: none is a format's, and white words are readable on each."""

BAND = "#9C9CA1"  # grey, for bands only

INK = "#1A1A1A"  # words

FAINT = "#707075"  # words that matter less, and axes

LOST, COARSE = 0.42, 0.18  # opacity of a band over white: lost numbers, lost digits

_HOUSE: Any = {  # Any: only newer versions of matplotlib type each key
    **{
        key: value
        for key, value in matplotlib.rcParamsDefault.items()
        if key != "backend"
    },
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    # The first comes with matplotlib, the second is as wide, where a page has no other.
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "font.size": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
}


def light_dark(colour: str) -> str:
    """Give a colour in CSS a second one for dark pages: its hue, and its light turned.

    On #1b1b1b, which is white turned, contrasts are about those of the first on white.

    Examples:
        >>> light_dark("#117733")
        'light-dark(#117733,oklch(from #117733 calc(1.22 - l) c h))'
    """
    return f"light-dark({colour},oklch(from {colour} calc(1.22 - l) c h))"


_COLOUR = r'#[\dA-Fa-f]{6}\b|(?<=")(?:black|white)(?=")'


def named_colours(svg: str) -> tuple[str, str]:
    """Write each colour of an SVG as a variable; return it, and CSS that defines the variables.

    The definitions hold a second colour for dark pages.

    Examples:
        >>> named, colours = named_colours('<path fill="black"/>')
        >>> named, colours[:24]
        ('<path fill="var(--cblack)"/>', '--cblack:light-dark(blac')
    """

    def name(colour: str) -> str:
        return f"--c{colour.removeprefix('#')}"

    colours = dict.fromkeys(re.findall(_COLOUR, svg))
    named = re.sub(_COLOUR, lambda found: f"var({name(found[0])})", svg)
    return named, "".join(f"{name(each)}:{light_dark(each)};" for each in colours)


_IDLE = re.compile(
    r"(?s)^.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->|(?<=>)\s+(?=<)"
    r'|(?<=<g) id="[\w.]+"| transform="rotate\(-0 [^"]*"'
)
"""Parts of an SVG of matplotlib that no browser shows; nothing refers to the names of groups."""


def _shortened(tag: re.Match[str]) -> str:
    """Write the places in a tag of SVG with two decimals, and the rest without idle signs."""
    few = re.sub(r"(\.\d\d)\d{2,}", r"\1", tag[0]).replace("'", "")
    few = re.sub(r"(?<=[:;MLCQz])\s|\s+(?=[LMCQz\"])", "", few)
    few = re.sub(r"(?<=\d) (?=[-\d])", ",", few).replace('"', "'")
    return _RECTANGLE.sub(r"M\1,\2H\3V\4H\1z", few)


_RECTANGLE = re.compile(
    r"M([-\d.]+),([-\d.]+)L([-\d.]+),\2L\3,([-\d.]+)L\1,\4(?:L\1,\2z?|z)"
)

_BARE = re.compile(r"(?s)<g>((?:(?!<g[ >]|</g>).)*)</g>")

_FONTS = re.compile(r"font-family:([^;]+);")

_ID = re.compile(r"(?<=[#'])[a-z][0-9a-f]{10}\b")
"""matplotlib's name for a clip, a marker or a pattern."""

_LOOK = re.compile(r"(?: clip-path='([^']+)')? style='([^']+)'")


def _on_both_once(svg: str) -> str:
    """Give an SVG of matplotlib colours for dark pages; each colour and each look is told once.

    With both at each shape, six decimals and all spaces, it is six times as long.
    """
    colours = {"#000000": "--0"}

    def variable(found: re.Match[str]) -> str:
        return f"var({colours.setdefault(found[0], f'--{len(colours)}')})"

    named = re.sub(r"#[\dA-Fa-f]{6}\b", variable, _IDLE.sub("", svg))
    short = re.sub(r"<[^>]+>", _shortened, named)  # tags, and no words between them
    for _ in range(4):  # groups in groups
        short = _BARE.sub(r"\1", short)
    fonts = next(_FONTS.finditer(short), [""])[0]  # of most texts; others keep theirs
    short = short.replace(fonts, "")
    ids: dict[str, str] = {}
    short = _ID.sub(lambda found: ids.setdefault(found[0], f"n{len(ids)}"), short)
    looks: dict[tuple[str | Any, ...], str] = {}

    def by_name(look: re.Match[str]) -> str:
        return f" class='{looks.setdefault(look.groups(''), f'k{len(looks)}')}'"

    short = _LOOK.sub(by_name, short)
    rules = "".join(
        f".{name}{{{clip and f'clip-path:{clip};'}{rest}}}"
        for (clip, rest), name in looks.items()
    )
    plain = "".join(f"{name}:{colour};" for colour, name in colours.items())
    both = "".join(f"{name}:{light_dark(colour)};" for colour, name in colours.items())
    look = (
        f"svg{{color-scheme:light dark;{fonts}fill:var(--0);{plain}}}"
        f"@supports(color:light-dark(red,red)){{svg{{{both}}}}}{rules}"
    )
    return re.sub(r"(<svg [^>]*>)", rf"\1<style>{look}</style>", short, count=1)


def style(fmt: Format | str) -> Style:
    """Return the palette's entry for a format or its name; black if it has none."""
    return STYLES.get(fmt if isinstance(fmt, str) else fmt.name, REFERENCE)


# Words -----------------------------------------------------------------------------------
def percent(part: float, whole: float) -> str:
    """Write a share as a percentage: 0% only for none, 100% only for all.

    Examples:
        >>> percent(0, 8), percent(1, 8), percent(1, 10_000), percent(9_999, 10_000)
        ('0%', '12.5%', '<0.1%', '>99.9%')
    """
    if part in (0, whole):
        return "100%" if part else "0%"
    share = 100 * part / whole
    if share < 0.1:
        return "<0.1%"
    return ">99.9%" if share > 99.9 else f"{share:.1f}".removesuffix(".0") + "%"


def listed(words: Iterable[str]) -> str:
    """Join words with commas and a final "and".

    Examples:
        >>> listed(["FP32"]), listed(["FP32", "BF16", "FP16"])
        ('FP32', 'FP32, BF16 and FP16')
    """
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def power_of_two(value: float) -> str:
    """Write a power of two, for axes and sentences.

    Examples:
        >>> power_of_two(65536.0), power_of_two(0.5)
        ('2¹⁶', '2⁻¹')
    """
    return "2" + superscript(exponent_of(value))


def span(ratios: Iterable[float]) -> str:
    """Write one factor, or the least and the greatest of several.

    Examples:
        >>> span([1.24]), span([3, 1.5, 2])
        ('1.2', '1.5 to 3.0')
    """
    low, *_, high = sorted([*ratios] * 2)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"


# A card on the page ----------------------------------------------------------------------
CARD = (
    f"background:{light_dark('#ffffff')};padding:8px;border:1px solid "
    f"{light_dark('#C8C8CC')};border-radius:8px;box-sizing:border-box"
)
"""The frame of a picture."""

CARD_CLASS = "mplab-card"

CARD_STYLE = (
    f'<style>:is([data-jp-theme-light="false"], .vscode-dark) .{CARD_CLASS} '
    "{ color-scheme: dark }</style>"
)
"""Turns a card dark where JupyterLab or VS Code says that its theme is dark."""


# A figure that can be read aloud ---------------------------------------------------------
class Picture(Figure):
    """A matplotlib Figure with a description, shown by Jupyter as an image with alt text.

    Attributes:
        alt: what the figure shows, in sentences with its numbers.
    """

    alt: str = ""

    def __init__(self, *, height: float, width: float = 7.6) -> None:
        super().__init__(figsize=(width, height), dpi=100, layout="constrained")

    @property
    def claim(self) -> str:
        """The title, on one line: the sentence that the data show."""
        return " ".join(self.get_suptitle().split())

    def png(self) -> bytes:
        """Return the figure as PNG, with two pixels for each pixel of the page."""
        return self._drawn("png")

    def address(self) -> str:
        """Return a `data:` address that holds the figure as SVG.

        The words of the SVG are text, and its colours are for light and for dark pages.
        """
        drawn = _on_both_once(self._drawn("svg", words="none").decode())
        # GitHub shows no other address of data than one in base64.
        return f"data:image/svg+xml;base64,{base64.b64encode(drawn.encode()).decode()}"

    def save(self, path: str | Path) -> None:
        """Write the figure, and its description in the file's metadata, as .png or .svg."""
        kind = Path(path).suffix.removeprefix(".")
        Path(path).write_bytes(self._drawn(kind))

    def _drawn(self, kind: str, *, words: str = "path") -> bytes:
        buffer = io.BytesIO()
        about = {"Description": self.alt}
        with matplotlib.rc_context({**_HOUSE, "svg.fonttype": words}):
            self.savefig(buffer, format=kind, dpi=2 * self.dpi, metadata=about)
        return buffer.getvalue()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # JupyterLab gives an image/png output no alt text whatever its metadata say.
        image = (
            f'<img src="{self.address()}" alt="{escape(self.alt, quote=True)}" '
            f'width="{round(self.get_figwidth() * self.dpi)}" class="{CARD_CLASS}" '
            f'style="max-width:100%;height:auto;{CARD}"/>{CARD_STYLE}'
        )
        return {"text/html": image, "text/plain": self.alt}


def in_house_style(draw: Callable[P, Drawn]) -> Callable[P, Drawn]:
    """Make a function draw with our settings, whatever the reader's matplotlib settings are."""

    @wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Drawn:
        with matplotlib.rc_context(_HOUSE):
            return draw(*args, **kwargs)

    return wrapped


def titled(picture: Picture, sentence: str, details: str) -> Picture:
    """Give the figure its title, wrapped to its width, and its description."""
    title = picture.suptitle("", x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    limit = 0.97 * picture.get_figwidth() * picture.dpi
    lines = [""]
    for word in sentence.split(" "):
        title.set_text(f"{lines[-1]} {word}".strip())
        if title.get_window_extent().width > limit:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    title.set_text("\n".join(lines))
    picture.alt = " ".join(f"{sentence.removesuffix('.')}. {details}".split())
    return picture


# Parts of figures ------------------------------------------------------------------------
def spread(
    wanted: Sequence[float], sizes: Sequence[float], *, low: float, high: float
) -> list[float]:
    """Place labels in a row, as close to `wanted` as they can be without overlap.

    Args:
        wanted: the centre each label would have if it were alone, in any order.
        sizes: the labels' extents along the row.
        low: where the row begins.
        high: where it ends; labels that need more room run past it.

    Returns:
        The centres in the order of `wanted`. Until the row's ends are reached, the sum of
        squared moves is the least possible.

    Source:
        Isotonic regression by pooling adjacent violators, applied to each place minus
        the extents of the labels before it.

    Examples:
        >>> spread([0.0, 0.0, 5.0], [1.0, 1.0, 1.0], low=-9, high=9)
        [-0.5, 0.5, 5.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    pools: list[tuple[float, int]] = []  # (mean start, members)
    before = 0.0
    for i in order:
        mean = wanted[i] - sizes[i] / 2 - before
        members = 1
        before += sizes[i]
        while pools and pools[-1][0] > mean:
            other, count = pools.pop()
            mean = (mean * members + other * count) / (members + count)
            members = members + count
        pools.append((mean, members))
    starts = [mean for mean, members in pools for _ in range(members)]
    places = [0.0] * len(wanted)
    done = 0.0
    for i, start in zip(order, starts, strict=True):
        places[i] = max(low, min(start, high - before)) + done + sizes[i] / 2
        done += sizes[i]
    return places


class End(NamedTuple):
    """The end of a line and the words to put there."""

    axes: Axes
    x: float
    y: float
    text: str
    colour: str


def curve(axes: Axes, x: Any, y: Any, name: str, look: Style, **how: Any) -> End:
    """Draw a line in a style, without its marker, and return its end for the name.

    `how` holds further options of `Axes.plot`, such as a marker or another dash.
    """
    axes.plot(x, y, **{"color": look.colour, "linestyle": look.dash, **how})
    known = np.flatnonzero(np.isfinite(y))
    last = int(known[-1]) if len(known) else -1
    return End(axes, float(x[last]), float(y[last]), name, look.colour)


class Line(NamedTuple):
    """A line of a chart: its points, its name, its look, and further options of `Axes.plot`."""

    x: Any
    y: Any
    name: str
    look: Style
    how: Mapping[str, Any] = MappingProxyType({})


@in_house_style
def line_chart(
    lines: Iterable[Line],
    x: str,
    y: str,
    claim: str,
    details: str = "",
    *,
    log: str = "",
    finish: Callable[[Axes], object] | None = None,
) -> Picture:
    """Draw a line chart: each line is named at its end, and the title is a sentence.

    Args:
        lines: in the order in which they are drawn; an empty name is not shown.
        x: the quantity and unit of the axis.
        y: the same for the other axis.
        claim: the title, a sentence that the data show.
        details: what else the figure shows, for a reader who cannot see it.
        log: the axes that are logarithmic, to base 2: "x", "y" or "xy".
        finish: changes the axes before the lines are named.
    """
    picture = Picture(height=4.2, width=8.0)
    axes = picture.subplots()
    log_axes(axes, x, y, log=log)
    ends = [curve(axes, *line[:4], **line.how) for line in lines]
    if finish:
        finish(axes)
    scales = {"": "", "xy": ", both axes logarithmic"}.get(log, f", {log} logarithmic")
    titled(picture, claim, f"Line chart{scales}: {y}, over {x}. {details}")
    label_ends(picture, [end for end in ends if end.text])
    return picture


def in_runs(constant: Any, x: np.ndarray, *rows: np.ndarray) -> list[np.ndarray]:
    """Return what a line needs that has a gap where something changes.

    Args:
        constant: what is constant in a run, of shape (n,) or (k, n).
        x: increasing, of shape (n,); each run is drawn 2^-13 of it longer, as one of a single
            point would not be seen.
        rows: values over `x`, straight in a run.

    Returns:
        `x` and the rows at the ends of each run, and then NaN: each of shape (3 runs,).

    Examples:
        >>> in_runs([7, 7, 8], np.array([0, 4096, 8192]))
        [array([-1.000e+00,  4.097e+03,        nan,  8.191e+03,  8.193e+03,        nan])]
    """
    whole = np.atleast_2d(constant)
    changes = (whole[:, 1:] != whole[:, :-1]).any(axis=0)
    starts = np.flatnonzero(np.append(True, changes))
    stops = np.append(starts[1:], x.size) - 1
    gap = np.full(starts.size, np.nan)
    more = np.ptp(x) / 2**13
    ends = [(x[starts] - more, x[stops] + more)]
    ends += [(row[starts], row[stops]) for row in rows]
    return [np.column_stack([*both, gap]).ravel() for both in ends]


def rows(axes: Axes, names: Collection[str]) -> None:
    """Make a row for each name, from the top down."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.5, -0.5)


_HATCHES = ("", "//", "..", "", "xx", "")


def bars(
    axes: Axes,
    names: Collection[str],
    table: np.ndarray,
    parts: Sequence[str],
    *,
    faces: Sequence[Any] = FACES,
    hatches: Sequence[str] = _HATCHES,
    edge: str = "white",
) -> None:
    """Draw stacked horizontal bars, a row for each name; the hatch repeats the colour.

    A part that no bar has is left out of the key, and the others keep their colours.

    Args:
        axes: the axes to draw on.
        names: the names of the rows, from the top down.
        table: the lengths, of shape (rows, parts).
        parts: their names in the key.
        faces: the colour of each part.
        hatches: the hatch of each part.
        edge: the colour around each part.
    """
    left = np.zeros(len(names))
    for i, part in enumerate(parts):
        here = np.flatnonzero(table[:, i])
        if here.size:
            axes.barh(
                here, table[here, i], 0.62, left[here], linewidth=0.6,
                color=faces[i], hatch=hatches[i], edgecolor=edge, label=part,
            )  # fmt: skip
            left += table[:, i]
    rows(axes, names)


def label_ends(picture: Picture, ends: Sequence[End]) -> None:
    """Name each line where it ends, with a leader; move the names apart within each panel.

    A line that ends early is named beside the panel, where no other line passes; one without a
    finite point is not named.
    """
    leader = {"arrowstyle": "-", "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}
    notes: dict[Axes, list[Annotation]] = {}
    for end in ends:
        if not np.isfinite(end.y):
            continue
        at, unit = _side(end)
        look = {**leader, "color": end.colour, **(_POINTER if at < 20 else {})}
        arrow: Any = {"va": "center", "annotation_clip": False, "arrowprops": look}
        units = (unit, "offset points")
        note = end.axes.annotate(
            end.text, (end.x, end.y), (at, 0), textcoords=units, **arrow
        )
        notes.setdefault(end.axes, []).append(note)
    for axes, here in notes.items():
        part_ends(picture, axes, here)


def part_ends(picture: Picture, axes: Axes, notes: Sequence[Annotation]) -> None:
    """Move the names of lines apart, as little as possible."""
    picture.draw_without_rendering()  # settles the layout, so that places are in pixels
    sizes = [1.15 * note.get_window_extent().height for note in notes]
    wanted = [float(axes.transData.transform(note.xy)[1]) for note in notes]
    box = axes.get_window_extent()
    places = spread(wanted, sizes, low=box.y0, high=box.y1)
    for note, old, new in zip(notes, wanted, places, strict=True):
        note.set_position((note.get_position()[0], (new - old) * 72 / picture.dpi))


_POINTER = {
    "arrowstyle": "-|>,head_width=0.2,head_length=0.45",
    "color": FAINT,
    "linewidth": 0.7,
    "connectionstyle": "arc3,rad=0.08",
    "zorder": 5,
}
"""A long leader: an arrow that points at the line's end, so that nobody takes it for a curve."""


def _side(end: End) -> tuple[float, str]:
    """Return how far right of a line's end its name stands, and the unit of this distance."""
    end.axes.get_xlim()  # settles the limits
    share = (end.axes.transScale + end.axes.transLimits).transform((end.x, end.y))[0]
    return (1.03, "axes fraction") if share < 0.8 else (20, "offset points")


def label_spans(
    picture: Picture, axes: Axes, spans: Sequence[tuple[str, float, float]]
) -> None:
    """Write a word over each span of the x-axis, above the axes; move the words apart."""
    above = axes.get_xaxis_transform() + ScaledTranslation(
        0, 1 / 24, picture.dpi_scale_trans
    )
    words = [
        axes.text((a + b) / 2, 1, word, ha="center", va="bottom", transform=above)
        for word, a, b in spans
    ]
    part_spans(picture, axes, words)


def part_spans(picture: Picture, axes: Axes, words: Sequence[Text]) -> None:
    """Move words above the axes apart, as little as possible."""
    picture.draw_without_rendering()
    to_pixels = axes.transData
    sizes = [word.get_window_extent().width + 8 for word in words]
    wanted = [
        float(to_pixels.transform((word.get_position()[0], 0))[0]) for word in words
    ]
    box = axes.get_window_extent()
    for word, place in zip(
        words, spread(wanted, sizes, low=box.x0, high=box.x1), strict=True
    ):
        word.set_x(float(to_pixels.inverted().transform((place, 0))[0]))


def bands(
    fmt: Format, low: float, high: float
) -> tuple[tuple[float, float, float], ...]:
    """Return the bands where `fmt` loses numbers or digits: start, end (exponents) and opacity.

    Args:
        fmt: the format.
        low: the exponent where the first band begins.
        high: the exponent where the last band ends.
    """
    edges = zones(fmt)
    return (
        (low, edges.flushed, LOST),
        (edges.flushed, edges.subnormal, COARSE),
        (edges.overflow, high, LOST),
    )


def whole_ticks(low: float, high: float, *, count: int) -> list[int]:
    """Return at most about `count` whole numbers, `low` to `high`, 1, 2 or 5 times 10^n apart.

    Examples:
        >>> whole_ticks(-37, 22, count=12)
        [-35, -30, -25, -20, -15, -10, -5, 0, 5, 10, 15, 20]
    """
    return [
        round(tick)
        for tick in _locator(count).tick_values(low, high)
        if low <= tick <= high
    ]


def _locator(count: int) -> MaxNLocator:
    return MaxNLocator(nbins=count, integer=True, steps=[1, 2, 5, 10])


def binary_axis(axis: Axis, label: str, *, count: int = 12) -> None:
    """Put ticks at whole exponents k, written 2^k; the axis itself holds exponents."""
    axis.set_major_locator(_locator(count))
    axis.set_major_formatter(FuncFormatter(lambda k, _: f"2{superscript(round(k))}"))
    axis.set_label_text(label)


def colour_bar(picture: Figure, mesh: QuadMesh, **options: Any) -> Axes:
    """Add the bar of a mesh's colours, without seams between them; return its axes.

    One of 50 colours or more is pixels, which stay light on dark pages: `resampled(32)` of a map.
    """
    bar = picture.colorbar(mesh, **options)
    assert bar.solids is not None
    bar.solids.set_edgecolor("face")
    return bar.ax


def log_axes(axes: Axes, x: str, y: str, *, log: str = "xy") -> None:
    """Label the axes, and make those in `log` logarithmic, with ticks written 2^k."""
    for name, axis, words in (("x", axes.xaxis, x), ("y", axes.yaxis, y)):
        if name in log:
            getattr(axes, f"set_{name}scale")("log", base=2)
            log_ticks(axis)
        axis.set_label_text(words)


def log_ticks(axis: Axis, *, count: int = 9) -> None:
    """Put at most `count` ticks, written 2^k, at powers of two on a logarithmic axis."""
    axis.set_major_locator(LogLocator(base=2, numticks=count))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: power_of_two(v)))
    axis.set_minor_formatter(NullFormatter())
