"""The explorer of biased rounding: the errors of many outputs of attention, as a histogram."""

import math

import numpy as np

from mplab import BF16, round_to
from mplab.course.explorers.chart import Chart, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, tick
from mplab.course.pictures.canvas import BAD, BAND, GOOD
from mplab.lessons.l20.figures import output_errors, weights_of

MOVES = {"0: P = 1": 0.0, "ln 2: P = 1/2": math.log(2), "1: P = 0.37": 1.0}
OUTPUTS = 4096
BINS = np.linspace(-0.5, 0.5, 33)


class BiasedErrors(Explorer):
    """When do correct roundings err to one side?

    Outputs of a row of 64 keys, each rounded once to BF16, and their errors in gaps.

    Attributes:
        tied: the slider of the keys that share the largest score.
        below: the slider of how far all other scores lie below it.
        moved: the choice of how far m lies above the largest score.
        mixed: whether the values have random signs, instead of being negative.

    Examples:
        >>> errors = BiasedErrors()
        >>> errors.moved.value = "1: P = 0.37"
        >>> bool(abs(errors.found.mean()) < 0.02)
        True
    """

    def __init__(self) -> None:
        self.tied = slider("keys at the maximum", 1, 4, 2)
        self.below = slider("others below by", 5, 20, 12)
        self.moved = choice("m moved by", MOVES)
        self.mixed = tick("values of random signs")
        controls = [self.tied, self.below, self.moved, self.mixed]
        super().__init__("When do correct roundings err to one side?", controls)

    @property
    def found(self) -> np.ndarray:
        """The errors, in gaps."""
        moved = MOVES[self.moved.value]
        weights = weights_of(self.below.value, tied=self.tied.value, moved=moved)
        sign = 0.0 if self.mixed.value else -1.0
        return output_errors(weights, sign=sign, draws=OUTPUTS)

    def draw(self) -> tuple[str, str]:
        """Draw the histogram, and say what the errors add up to."""
        errors = self.found
        mean = float(errors.mean())
        peak = float(round_to(math.exp(-MOVES[self.moved.value]), BF16))
        said = f"{mean:+.2f}".replace("-", "−")
        sentence = (
            f"Keys at the maximum: {self.tied.value}; others {self.below.value} below; largest P "
            f"{peak:.3g}. No error is above half a gap; their mean is {said}. Over "
            f"{OUTPUTS:,} outputs they add up to {abs(errors.sum()):,.0f} gaps; without a bias "
            f"it would be about {errors.std() * math.sqrt(OUTPUTS):.0f}."
        )
        return _histogram(errors, sentence), sentence


def _histogram(errors: np.ndarray, description: str) -> str:
    counts, _ = np.histogram(errors, BINS)
    shares = 100 * counts / len(errors)
    chart = Chart(Scale(-0.5, 0.5, 72, 740, inset=14), Scale(0, 100, 226, 14))
    chart.ticks_y(range(0, 101, 25), "{} %".format, grid=True)
    chart.ticks_x(
        (-0.5, -0.25, 0, 0.25, 0.5), lambda value: f"{value:g}".replace("-", "−")
    )
    for share, left, right in zip(shares, BINS[:-1], BINS[1:], strict=True):
        top = chart.y(share)
        chart.box(
            chart.x(left), top, chart.x(right) - chart.x(left) - 1, 226 - top, BAND
        )
    mean = float(errors.mean())
    at = chart.x(mean)
    chart.line(f"M{at:.1f} 14V226", BAD if abs(mean) > 0.02 else GOOD, 3)
    chart.text(at + 8, 28, "mean")
    chart.frame()
    chart.below("error of an output, in gaps of BF16")
    return chart.svg(description, width=780, height=280)
