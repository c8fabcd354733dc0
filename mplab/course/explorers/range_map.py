"""The explorer of loss scales: a gradient histogram over the bands of a format."""

from collections.abc import Mapping

import numpy as np

from mplab.course.explorers.chart import Chart, Scale
from mplab.course.explorers.widget import Explorer, choice, slider
from mplab.course.pictures.canvas import (
    bands,
    percent,
    power_of_two,
    spread,
    style,
    whole_ticks,
)
from mplab.numbers.formats import FP16, Format
from mplab.training.exponents import (
    ExponentHistogram,
    ZoneCounts,
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
        ZoneCounts(flushed=1, subnormal=1, normal=0, overflow=0)
        >>> explorer.scale.value = 16
        >>> explorer.shares
        ZoneCounts(flushed=0, subnormal=0, normal=2, overflow=0)
    """

    def __init__(
        self,
        source: History | ExponentHistogram | Mapping[str, ExponentHistogram],
        fmt: Format = FP16,
    ) -> None:
        self.fmt = fmt
        self.layers = _layers(source)
        every = self.layers[next(iter(self.layers))]
        top = int(every.exponents[-1]) if len(every.exponents) else zones(fmt).overflow
        last = max(0, zones(fmt).overflow + 5 - top)
        self.window = window(every, fmt, shift=last)
        self.scale = slider("loss scale 2^", 0, last, 0)
        self.layer = choice("layer", self.layers)
        controls = [self.scale] if len(self.layers) == 1 else [self.scale, self.layer]
        super().__init__(
            f"Which loss scale keeps the gradients inside {fmt.name}?", controls
        )

    @property
    def shares(self) -> ZoneCounts:
        """How many of the chosen gradients land in each zone."""
        return shares(
            self.layers[self.layer.value], self.fmt, loss_scale=self._loss_scale
        )

    @property
    def _loss_scale(self) -> float:
        return 2.0**self.scale.value

    def draw(self) -> tuple[str, str]:
        """Draw the histogram at this scale, and say its counts in words."""
        sentence = self._sentence()
        label = f"Histogram over the zones of {self.fmt.name}. {sentence}"
        return self.histogram_chart().svg(label, width=760, height=262), sentence

    def histogram_chart(self) -> Chart:
        """Draw bars a binade wide over the zones of the format."""
        histogram = self.layers[self.layer.value]
        low, high = self.window
        heights = np.asarray(histogram.counts) / max(1, int(np.sum(histogram.counts)))
        where = np.asarray(histogram.exponents) + self.scale.value
        top = float(heights.max(initial=0)) or 1.0
        colour = style(self.fmt).colour
        # a little higher than the highest bar
        chart = Chart(
            Scale(low, high, 58, 746), Scale(0, 100 * top * 174 / 162, 204, 30)
        )
        _zones(chart, self.fmt, low, high)
        width = (746 - 58) / (high - low)
        looks = (("white", 1), (colour, 0.35), (colour, 1), ("white", 1))  # of zones
        zone = zone_of(where, self.fmt)
        for i in np.flatnonzero(heights):
            fill, opacity = looks[zone[i]]
            left = chart.x(where[i]) + 0.07 * width
            at = chart.y(100 * heights[i])
            more = f'fill-opacity="{opacity}" stroke="{colour}"'
            chart.box(left, at, 0.86 * width, 204 - at, fill, more)
        chart.frame()
        chart.ticks_x(whole_ticks(low, high, count=12), _power, down=21, mark=True)
        chart.ticks_y(whole_ticks(0, 100 * top, count=3), mark=True)
        chart.below(
            "gradient × loss scale; filled: all digits, pale: subnormal, hollow: lost",
            46,
        )
        chart.upright(16, 117, "share (%)")
        return chart

    def _sentence(self) -> str:
        """Say the state in words."""
        part = self.shares
        scale = self._loss_scale
        words = (
            f"Loss scale {power_of_two(scale)} = {scale:,.0f}, {self.layer.value}: "
            f"{percent(part.flushed, part.total)} flushed to 0, "
            f"{percent(part.subnormal, part.total)} subnormal, "
            f"{percent(part.normal, part.total)} normal, "
            f"{percent(part.overflow, part.total)} overflow."
        )
        if lost := self.layers[self.layer.value].nonfinite:
            words += f" {lost:,} are inf or NaN at any scale."
        if part.overflow:
            return (
                words + " One overflow is enough: a loss scaler would skip this step."
            )
        return words


def _layers(
    source: History | ExponentHistogram | Mapping[str, ExponentHistogram],
) -> dict[str, ExponentHistogram]:
    """Return the histograms to choose from; if there are several, all pooled come first."""
    if isinstance(source, History):
        source = source.gradients[min(source.gradients)]
    if isinstance(source, ExponentHistogram):
        return {"all gradients": source}
    layers = dict(source)
    if len(layers) == 1:
        return layers
    return {"all layers": pooled(layers.values()), **layers}


LETTER = 7.4  # room for one letter of a picture


def _zones(chart: Chart, fmt: Format, low: int, high: int) -> None:
    """Draw grey bands where the format loses numbers or digits, with a word over each zone."""
    for zone in bands(fmt, low, high):
        chart.zone(*zone)
    words = zone_words(fmt, low, high)
    wanted = [(chart.x(a) + chart.x(b)) / 2 for _, a, b in words]
    sizes = [LETTER * len(word) + 8 for word, _, _ in words]
    places = spread(wanted, sizes, low=58, high=746)
    for place, (word, _, _) in zip(places, words, strict=True):
        chart.text(place, 20, word, "middle")


def _power(exponent: int) -> str:
    return power_of_two(2.0**exponent)
