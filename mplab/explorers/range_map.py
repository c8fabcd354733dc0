"""The explorer of loss scales: a gradient histogram over the bands of a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import ipywidgets
import numpy as np
from numpy.typing import NDArray

from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.numbers.formats import FP16, Format
from mplab.pictures.canvas import (
    BAND,
    bands,
    percent,
    power_of_two,
    spread,
    style,
    whole_ticks,
)
from mplab.training.exponents import (
    ExponentHistogram,
    Shares,
    pooled,
    shares,
    window,
    zone_of,
    zone_words,
    zones,
)
from mplab.training.history import History


class RangeMap(Explorer):
    """Which loss scale keeps the gradients inside a format?

    A histogram of the gradients' exponents over the zones of the format. Moving the scale
    moves the gradients: filled bars keep full precision, pale ones are subnormal, hollow
    ones are lost.

    Args:
        source: a run (its first recorded step is shown), one histogram, or one for each
            layer by name.
        fmt: the format of the backward pass.

    Attributes:
        scale: the slider of the loss scale; its value is the exponent.
        layer: the choice of the layer, where there are several.
        shares: what the format makes of the gradients at this scale.

    Exactness:
        That of `mplab.training.exponents.shares`.

    Examples:
        >>> import numpy as np
        >>> from mplab.training import exponent_histogram
        >>> explorer = RangeMap(exponent_histogram(np.array([3e-9, 3e-6])))
        >>> explorer.shares
        Shares(flushed=1, subnormal=1, normal=0, overflow=0)
        >>> explorer.scale.value = 16
        >>> explorer.shares
        Shares(flushed=0, subnormal=0, normal=2, overflow=0)
    """

    def __init__(
        self,
        source: History | ExponentHistogram | Mapping[str, ExponentHistogram],
        fmt: Format = FP16,
    ) -> None:
        self.fmt = fmt
        self.layers = _layers(source)
        every = self.layers[next(iter(self.layers))]
        top = int(every.exponents[-1])
        last = max(0, zones(fmt).overflow + 5 - top)
        self.window = window(every, fmt, shifts=(0, last))
        self.scale = ipywidgets.IntSlider(
            min=0,
            max=last,
            description="loss scale 2^",
            style={"description_width": "initial"},
            layout={"width": "min(36rem, 98%)"},
        )
        self.layer = ipywidgets.Dropdown(options=list(self.layers), description="layer")
        controls = [self.scale] if len(self.layers) == 1 else [self.scale, self.layer]
        super().__init__(f"Which loss scale keeps the gradients inside {fmt.name}?", controls)

    @property
    def shares(self) -> Shares:
        """How many of the chosen gradients land in each zone."""
        return shares(self.layers[self.layer.value], self.fmt, loss_scale=self._loss_scale)

    @property
    def _loss_scale(self) -> float:
        return 2.0**self.scale.value

    def draw(self) -> tuple[str, str]:
        """The histogram at this scale, and its counts in words."""
        sentence = self._sentence()
        histogram = self.layers[self.layer.value]
        counts = np.asarray(histogram.counts) / max(1, int(np.sum(histogram.counts)))
        where = np.asarray(histogram.exponents) + self.scale.value
        picture = _histogram_svg(where, counts, self.fmt, self.window, sentence)
        return picture, sentence

    def _sentence(self) -> str:
        """The state in words."""
        part, scale = self.shares, self._loss_scale
        words = (
            f"Loss scale {power_of_two(scale)} = {scale:,.0f}, {self.layer.value}: "
            f"{percent(part.flushed, part.total)} flushed to 0, "
            f"{percent(part.subnormal, part.total)} subnormal, "
            f"{percent(part.normal, part.total)} normal, "
            f"{percent(part.overflow, part.total)} overflow."
        )
        if part.overflow:
            return words + " One overflow is enough: a loss scaler would skip this step."
        return words


def _layers(
    source: History | ExponentHistogram | Mapping[str, ExponentHistogram],
) -> dict[str, ExponentHistogram]:
    """The histograms to choose from, all of them pooled first where there are several."""
    if isinstance(source, History):
        source = source.gradients[min(source.gradients)]
    if isinstance(source, ExponentHistogram):
        return {"all gradients": source}
    layers = dict(source)
    return layers if len(layers) == 1 else {"all layers": pooled(layers.values()), **layers}


# SVG -------------------------------------------------------------------------------------
WIDTH, HEIGHT = 760, 262

LEFT, RIGHT, TOP, BOTTOM = 58, 746, 30, 204  # the plot's box

LETTER = 7.4  # room for one letter of FONT


def _histogram_svg(
    where: NDArray[np.int64],
    counts: NDArray[np.float64],
    fmt: Format,
    shown: tuple[int, int],
    description: str,
) -> str:
    """Bars a binade wide over the zones of a format, as an SVG on its own white background."""
    low, high = shown
    width = (RIGHT - LEFT) / (high - low)

    def x(exponent: float) -> float:
        return LEFT + (exponent - low) * width

    parts = _zones_svg(fmt, shown, x)
    colour = style(fmt).colour
    for exponent, share, zone in zip(
        where, counts / counts.max(), zone_of(where, fmt), strict=True
    ):
        fill, opacity = (("white", 1), (colour, 0.35), (colour, 1), ("white", 1))[zone]
        height = share * (BOTTOM - TOP - 12)
        if share:
            parts.append(
                f'<rect x="{x(exponent) + 0.07 * width:.1f}" y="{BOTTOM - height:.1f}" '
                f'width="{0.86 * width:.1f}" height="{height:.1f}" fill="{fill}" '
                f'fill-opacity="{opacity}" stroke="{colour}"/>'
            )
    parts += _axes_svg(low, high, float(counts.max()), x)
    label = f"Histogram over the zones of {fmt.name}. {description}"
    return svg(parts, width=WIDTH, height=HEIGHT, description=label)


def _zones_svg(fmt: Format, shown: tuple[int, int], x: Callable[[float], float]) -> list[str]:
    """Grey bands where the format loses numbers or digits, with a word over each zone."""
    low, high = shown
    parts = [
        f'<rect x="{x(a):.1f}" y="{TOP}" width="{x(b) - x(a):.1f}" height="{BOTTOM - TOP}" '
        f'fill="{BAND}" fill-opacity="{strength}"/>'
        for a, b, strength in bands(fmt, low, high)
    ]
    words = zone_words(fmt, low, high)
    places = spread(
        [(x(a) + x(b)) / 2 for _, a, b in words],
        [LETTER * len(word) + 8 for word, _, _ in words],
        low=LEFT,
        high=RIGHT,
    )
    middle = 'text-anchor="middle"'
    parts += [
        f'<text x="{place:.1f}" y="{TOP - 10}" {middle}>{word}</text>'
        for place, (word, _, _) in zip(places, words, strict=True)
    ]
    return parts


def _axes_svg(low: int, high: int, top: float, x: Callable[[float], float]) -> list[str]:
    """The axes: exponents below, and the share of the gradients at the left."""
    line = 'stroke="#707075"'
    parts = [f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" {line}/>']
    for k in whole_ticks(low, high, count=12):
        parts.append(
            f'<path d="M{x(k):.1f} {BOTTOM}v5" {line}/>'
            f'<text x="{x(k):.1f}" y="{BOTTOM + 21}" text-anchor="middle">'
            f"{power_of_two(2.0**k)}</text>"
        )
    for percentage in whole_ticks(0, 100 * top, count=3):
        y = BOTTOM - percentage / (100 * top) * (BOTTOM - TOP - 12)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}h-5" {line}/>'
            f'<text x="{LEFT - 9}" y="{y + 4:.1f}" text-anchor="end">{percentage}</text>'
        )
    return [
        *parts,
        f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 46}" text-anchor="middle">'
        "gradient × loss scale, absolute value</text>",
        f'<text transform="translate(16 {(TOP + BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        "share (%)</text>",
    ]
