"""The explorer of FP8 scales: a row of tensors with a spike, and scales from a history."""

import numpy as np

from mplab import FP8_E4M3, FP8_E5M2, Format
from mplab.course.explorers.chart import Chart, Drawing, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, stops
from mplab.course.pictures.canvas import (
    BAND,
    LOST,
    percent,
    power_of_two,
    style,
    whole_ticks,
)
from mplab.course.pictures.scaling import Window, follow
from mplab.scaling import CurrentScaling, DelayedScaling

FORMATS: dict[str, Format] = {"E4M3": FP8_E4M3, "E5M2": FP8_E5M2}

RULES = ("the largest in the history", "the latest", "the tensor itself")

STEPS, SIZE, SPIKE_AT = 48, 400, 14


class AmaxHistory(Explorer):
    """What does one spike cost, when it comes and afterwards?

    48 tensors of normally distributed numbers, one a step, enter FP8; the one of step 14 is
    larger than the others by a power of two. Above, the largest magnitude of each, between the
    ranges that saturate and become 0 at its scale; below, the shares that do.

    Args:
        seed: the seed of the tensors.

    Attributes:
        spike: the slider of the spike's exponent.
        rule: the choice of the magnitude that sets the scale.
        history: the slider of how many tensors are remembered.
        margin: the slider of the powers of two left unused.
        fmt: the choice of format.
        step: the slider of the step that the sentence is about.
        window: scales and shares of all steps.

    Exactness:
        Scales are those of `mplab.scaling`, shares are counts of rounded numbers.

    Examples:
        >>> explorer = AmaxHistory()
        >>> explorer.spoilt  # the spike, and all that the history holds it for
        17
        >>> explorer.rule.value = "the tensor itself"
        >>> explorer.spoilt
        0
    """

    def __init__(self, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        drift = np.cumsum(rng.normal(0, 0.12, STEPS))
        self._tensors = rng.normal(size=(STEPS, SIZE)) * np.exp2(drift)[:, None]
        self.spike = slider("spike 2^", 0, 24, 18)
        self.rule = choice("scale from", RULES)
        self.history = stops("history", [1, 2, 4, 8, 16, 32], 16)
        self.margin = slider("margin 2^", 0, 12, 0)
        self.fmt = choice("format", FORMATS)
        self.step = slider("look at step", 0, STEPS - 1, SPIKE_AT + 1)
        self.on_page = {
            "spike 2^": (0, 2, 3, 4, 5, 6, 8, 14, 18, 24),
            "history": (1, 4, 16),
            "margin 2^": (0, 4, 8),
            "look at step": (0, SPIKE_AT, 15, 18, 19, 30, 31),
        }
        controls = [
            self.spike,
            self.rule,
            self.history,
            self.margin,
            self.fmt,
            self.step,
        ]
        super().__init__(
            "What does one spike cost, when it comes and afterwards?", controls
        )

    @property
    def tensors(self) -> np.ndarray:
        """The tensors, shape (steps, elements)."""
        grown = self._tensors.copy()
        grown[SPIKE_AT] *= 2.0**self.spike.value
        return grown

    @property
    def window(self) -> Window:
        """Scales and shares of all steps."""
        fmt = FORMATS[self.fmt.value]
        margin = self.margin.value
        if self.rule.value == RULES[2]:
            return follow(CurrentScaling(fmt, margin=margin), self.tensors, fmt=fmt)
        scaling = DelayedScaling(
            fmt,
            margin=margin,
            amax_history_len=self.history.value,
            amax_compute="max" if self.rule.value == RULES[0] else "most_recent",
        )
        return follow(scaling, self.tensors, fmt=fmt)

    @property
    def spoilt(self) -> int:
        """How many tensors lose more than half of their numbers."""
        window = self.window
        return int(np.sum(window.saturated + window.flushed > 0.5))

    def draw(self) -> tuple[str, str]:
        """Draw the two charts, and say both in words."""
        window, at = self.window, self.step.value
        sentence = f"{self._setting()} {self._fate(window)} {_at_step(window, at)}"
        return _charts(window, at, sentence), sentence

    def _setting(self) -> str:
        """The setting of the controls, in words."""
        remembered = {
            RULES[0]: f"the largest magnitude of the last {self.history.value} tensors",
            RULES[
                1
            ]: f"the latest tensor alone, though {self.history.value} are remembered",
            RULES[2]: "each tensor itself, whatever the history holds",
        }[self.rule.value]
        unused = f", {power_of_two(2.0**self.margin.value)} of the range is left unused"
        return (
            f"{self.fmt.value}, scale from {remembered}{unused if self.margin.value else ''}; "
            f"step {SPIKE_AT} is {power_of_two(2.0**self.spike.value)} times as large."
        )

    def _fate(self, window: Window) -> str:
        """The cost of the spike, in words."""
        saturated = percent(float(window.saturated[SPIKE_AT]), 1)
        zeros = window.flushed[SPIKE_AT + 1 :]
        starved = int(np.sum(zeros > 0.5))
        then = (
            f"{starved} of the tensors after it become mostly 0"
            if starved
            else f"at most {percent(float(zeros.max()), 1)} of a tensor after it becomes 0"
        )
        return f"Of the spike {saturated} saturates; {then}."


def _at_step(window: Window, at: int) -> str:
    saturated, flushed = window.saturated[at], window.flushed[at]
    return (
        f"Step {at}: largest magnitude {window.amaxes[at]:.3g}, "
        f"scale {power_of_two(window.scales[at])}, {percent(float(saturated), 1)} saturated, "
        f"{percent(float(flushed), 1)} became 0."
    )


STEP = Scale(0, STEPS, 74, 704)

HALO = 'paint-order="stroke" stroke="#d7d7d9" stroke-width="5"'  # the cursor may pass behind


def _charts(window: Window, at: int, description: str) -> str:
    drawing = Drawing()
    cursor = STEP(at + 0.5)
    _ranges(drawing, window)
    _shares(drawing, window)
    drawing.line(f"M{cursor:.1f} 22V322", "black", more='stroke-dasharray="3 3"')
    drawing.text(80, 37, "saturates", more=HALO)
    drawing.text(80, 199, "becomes 0", more=HALO)
    side = "start" if at <= 2 else "end" if at >= 45 else "middle"
    drawing.text(cursor, 15, f"step {at}", side)
    label = f"Two charts over {STEPS} steps. {description}"
    return drawing.svg(label, width=720, height=372)


def _ranges(on: Drawing, window: Window) -> None:
    """Grey bands past both ends of the range, and the largest magnitudes."""
    # All that the controls can reach.
    chart = Chart(STEP, Scale(-36, 32, 206, 22, log=True), on)
    fmt = window.fmt
    for limit, edge in ((fmt.max_finite, 22), (fmt.min_subnormal / 2, 206)):
        way = chart.stairs((limit / window.scales).tolist())
        chart.area(f"M74 {edge}{way}V{edge}Z", BAND, LOST)
    for step, amax in enumerate(window.amaxes.tolist()):
        edge_of = 'stroke="white" stroke-width="0.6"'
        chart.dot(STEP(step + 0.5), chart.y(amax), 3.4, style(fmt).colour, edge_of)
    chart.frame()
    chart.ticks_y(
        [2.0**k for k in whole_ticks(-36, 32, count=5)], power_of_two, mark=True
    )
    chart.upright(18, 114, "largest magnitude")


def _shares(on: Drawing, window: Window) -> None:
    """Bars for what is lost: filled what saturates, pale what becomes 0."""
    chart = Chart(STEP, Scale(0, 100, 322, 232), on)
    colour = style(window.fmt).colour
    edge = f'stroke="{colour}"'
    pale = f'{edge} fill-opacity="0.3"'
    for step, shares in enumerate(zip(window.saturated, window.flushed, strict=True)):
        left = STEP(step + 0.12)
        bottom = chart.y(0)
        total = 0.0
        for share, look in zip(shares, (edge, pale), strict=True):
            total += 100 * float(share)
            if share:
                top = chart.y(total)
                chart.box(
                    left, top, 0.76 * (STEP(1) - STEP(0)), bottom - top, colour, look
                )
                bottom = top
    for left, words, look in ((380, "saturated", edge), (540, "became 0", pale)):
        chart.box(left, 214, 11, 11, colour, look)
        chart.text(left + 16, 224, words)
    chart.frame()
    chart.ticks_y([0, 50, 100], mark=True)
    for step in range(0, STEPS, 8):
        chart.text(STEP(step + 0.5), 341, str(step), "middle")
    chart.below("step, one tensor in each")
    chart.upright(18, 277, "share (%)")
