"""The explorer of FP8 scales: a row of tensors with a spike, and what a history makes of it."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets
import numpy as np

from mplab.explorers.chart import box, line, svg, text
from mplab.explorers.widget import Explorer
from mplab.numbers.formats import FP8_E4M3, FP8_E5M2, Format
from mplab.pictures.canvas import BAND, LOST, percent, power_of_two, style, whole_ticks
from mplab.pictures.scaling import Window, follow
from mplab.scaling.amax import CurrentScaling, DelayedScaling

FORMATS: dict[str, Format] = {"E4M3": FP8_E4M3, "E5M2": FP8_E5M2}

RULES = ("the largest in the history", "the latest", "the tensor itself")

STEPS, SIZE, SPIKE_AT = 48, 400, 14


class AmaxHistory(Explorer):
    """What does one spike cost, when it comes and afterwards?

    48 tensors of normally distributed numbers, one a step, enter FP8; the one of step 14 is
    larger than the others by a power of two. Above, the largest magnitude of each between what
    saturates and what becomes 0 at its scale; below, the shares that do.

    Args:
        seed: of the tensors.

    Attributes:
        spike: the slider of the spike's exponent.
        rule: the choice of the magnitude that the scale follows.
        history: the slider of how many tensors are remembered.
        margin: that of the powers of two left unused.
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
        wide = {"style": {"description_width": "5.5rem"}, "layout": {"width": "min(36rem, 98%)"}}
        self.spike = ipywidgets.IntSlider(18, min=0, max=24, description="spike 2^", **wide)
        self.rule = ipywidgets.Dropdown(options=RULES, description="scale from", **wide)
        self.history = ipywidgets.SelectionSlider(
            options=[1, 2, 4, 8, 16, 32], value=16, description="history", **wide
        )
        self.margin = ipywidgets.IntSlider(0, min=0, max=12, description="margin 2^", **wide)
        self.fmt = ipywidgets.Dropdown(options=list(FORMATS), description="format", **wide)
        self.step = ipywidgets.IntSlider(
            SPIKE_AT + 1, min=0, max=STEPS - 1, description="look at step", **wide
        )
        controls = [self.spike, self.rule, self.history, self.margin, self.fmt, self.step]
        super().__init__("What does one spike cost, when it comes and afterwards?", controls)

    @property
    def tensors(self) -> np.ndarray:
        """The tensors, shape (steps, elements)."""
        grown = self._tensors.copy()
        grown[SPIKE_AT] *= 2.0**self.spike.value
        return grown

    @property
    def window(self) -> Window:
        """Scales and shares of all steps."""
        fmt, margin = FORMATS[self.fmt.value], self.margin.value
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
        """The two charts, and both in words."""
        window, at = self.window, self.step.value
        sentence = f"{self._setting()} {self._fate(window)} {_at_step(window, at)}"
        return _charts(window, at, sentence), sentence

    def _setting(self) -> str:
        """What the controls say."""
        remembered = {
            RULES[0]: f"the largest magnitude of the last {self.history.value} tensors",
            RULES[1]: f"the tensor before, whatever else of {self.history.value} is remembered",
            RULES[2]: f"each tensor itself; no history, of {self.history.value} or any length",
        }[self.rule.value]
        unused = f", {power_of_two(2.0**self.margin.value)} of the range is left unused"
        return (
            f"{self.fmt.value}, scale from {remembered}{unused if self.margin.value else ''}; "
            f"step {SPIKE_AT} is {power_of_two(2.0**self.spike.value)} times as large."
        )

    def _fate(self, window: Window) -> str:
        """What the spike costs."""
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


# SVG -------------------------------------------------------------------------------------
WIDTH, HEIGHT, LEFT, RIGHT = 720, 372, 74, 704

TOP, MIDDLE, LOW, BOTTOM = 22, 206, 232, 322  # the upper and the lower chart

WIDE = (RIGHT - LEFT) / STEPS

HALO = 'paint-order="stroke" stroke="#d7d7d9" stroke-width="5"'  # the cursor may pass behind

LEAST, MOST = -36, 32  # exponents of the upper chart: all that the controls can reach


def _charts(window: Window, at: int, description: str) -> str:
    cursor = _x(at)
    parts = [
        *_range_chart(window),
        *_share_chart(window),
        line(f"M{cursor:.1f} {TOP}V{BOTTOM}", colour="black", more='stroke-dasharray="3 3"'),
        text(LEFT + 6, TOP + 15, "saturates", more=HALO),
        text(LEFT + 6, MIDDLE - 7, "becomes 0", more=HALO),
        text(cursor, TOP - 7, f"step {at}", anchor="middle" if 2 < at < 45 else _side(at)),
    ]
    label = f"Two charts over {STEPS} steps. {description}"
    return svg(parts, width=WIDTH, height=HEIGHT, description=label)


def _side(at: int) -> str:
    return "start" if at <= 2 else "end"


def _x(step: float) -> float:
    """The middle of a step."""
    return LEFT + (step + 0.5) * WIDE


def _range_chart(window: Window) -> list[str]:
    """Grey bands past both ends of the range, and the largest magnitudes."""

    def y(exponent: float) -> float:
        return MIDDLE - (min(max(exponent, LEAST), MOST) - LEAST) / (MOST - LEAST) * (MIDDLE - TOP)

    look = style(window.fmt)
    grey = f'fill="{BAND}" fill-opacity="{LOST}"'
    top = np.log2(window.fmt.max_finite / window.scales)
    bottom = np.log2(window.fmt.min_subnormal / 2 / window.scales)
    parts = [
        _band([y(k) for k in top], TOP, grey),
        _band([y(k) for k in bottom], MIDDLE, grey),
    ]
    for step, amax in enumerate(window.amaxes):
        here = y(float(np.log2(amax)))
        parts.append(
            f'<circle cx="{_x(step):.1f}" cy="{here:.1f}" r="3.4" fill="{look.colour}" '
            'stroke="white" stroke-width="0.6"/>'
        )
    return [
        *parts,
        *_axis(whole_ticks(LEAST, MOST, count=5), y, lambda k: power_of_two(2.0**k), TOP, MIDDLE),
        _upright("largest magnitude", (TOP + MIDDLE) / 2),
    ]


def _band(heights: list[float], edge: float, look: str) -> str:
    """From an edge of the chart to a height for each step, in one piece."""
    way = "".join(
        f"V{height:.1f}H{LEFT + (step + 1) * WIDE:.1f}" for step, height in enumerate(heights)
    )
    return f'<path d="M{LEFT} {edge}{way}V{edge}Z" {look}/>'


def _share_chart(window: Window) -> list[str]:
    """Bars for what is lost: filled what saturates, pale what becomes 0."""

    def y(share: float) -> float:
        return BOTTOM - share / 100 * (BOTTOM - LOW)

    colour = style(window.fmt).colour
    parts = []
    for step in range(STEPS):
        left, over, under = (
            LEFT + (step + 0.12) * WIDE,
            100 * float(window.saturated[step]),
            100 * float(window.flushed[step]),
        )
        edge = f'stroke="{colour}" fill="{colour}"'
        if over:
            parts.append(box(left, y(over), 0.76 * WIDE, y(0) - y(over), edge))
        if under:
            place = y(over + under), y(over) - y(over + under)
            parts.append(box(left, place[0], 0.76 * WIDE, place[1], f'{edge} fill-opacity="0.3"'))
    key = (
        box(RIGHT - 236, LOW - 18, 11, 11, f'fill="{colour}" stroke="{colour}"'),
        text(RIGHT - 220, LOW - 8, "saturated"),
        box(RIGHT - 128, LOW - 18, 11, 11, f'fill="{colour}" fill-opacity="0.3" stroke="{colour}"'),
        text(RIGHT - 112, LOW - 8, "became 0"),
    )
    ticks = "".join(
        text(_x(step), BOTTOM + 19, str(step), anchor="middle") for step in range(0, STEPS, 8)
    )
    return [
        *parts,
        *key,
        *_axis([0, 50, 100], y, str, LOW, BOTTOM),
        ticks,
        text((LEFT + RIGHT) / 2, BOTTOM + 42, "step, one tensor in each", anchor="middle"),
        _upright("share (%)", (LOW + BOTTOM) / 2),
    ]


def _axis(
    ticks: list[int],
    y: Callable[[float], float],
    words: Callable[[int], str],
    top: float,
    bottom: float,
) -> list[str]:
    """The frame at the left and below, and its ticks."""
    return [
        line(f"M{LEFT} {top}V{bottom}H{RIGHT}"),
        *(line(f"M{LEFT} {y(k):.1f}h-5") for k in ticks),
        *(text(LEFT - 9, y(k) + 4, words(k), anchor="end") for k in ticks),
    ]


def _upright(words: str, middle: float) -> str:
    turn = f'transform="rotate(-90 18 {middle:.0f})"'
    return text(18, middle, words, anchor="middle", more=turn)
