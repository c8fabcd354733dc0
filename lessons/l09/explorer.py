"""The explorer of loss scaling: the state machine of a scaler, one step at a time."""

import math
from collections.abc import Callable, Sequence

import ipywidgets
import numpy as np

from mplab import FORMATS, FP16
from mplab.course.explorers.chart import BOLD, DASHED, Chart, Drawing, Scale
from mplab.course.explorers.widget import Explorer, choice, slider, stops
from mplab.course.pictures.canvas import (
    BAD,
    BAND,
    INK,
    LOST,
    power_of_two,
    style,
    whole_ticks,
)
from mplab.scaling import (
    DoublingScaler,
    FlooredScaler,
    KerasScaler,
    LossScaleLimits,
    LossScaler,
    NudgedScaler,
    ScalerStep,
    scaler_steps,
)
from mplab.training import History, Recipe

RULES: dict[str, Callable[[float, int], LossScaler]] = {
    "dynamic (torch)": lambda start, n: LossScaler(start, growth_interval=n),
    "static, skips": lambda start, _: LossScaler(
        start, dynamic=False, static_skips=True
    ),
    "doubles each good step": lambda start, _: DoublingScaler(start),
    "×1.1 if gradients are small": lambda start, n: NudgedScaler(
        start, growth_interval=n
    ),
    "never below 1": lambda start, n: FlooredScaler(start, growth_interval=n),
    "Keras": lambda start, n: KerasScaler(start, growth_interval=n),
}
"""The rules by name, each made from the first scale and the growth interval."""

INTERVALS = (5, 10, 25, 50, 100, 500, 2000)


def example() -> LossScaleLimits:
    """A run made up to show all cases: a calm start, a phase of large gradients, smaller ones."""
    steps = np.arange(120)
    limits = np.where(steps < 50, 2.0**19, np.where(steps < 70, 2.0**14, 2.0**22))
    return LossScaleLimits(limits, np.where(steps < 70, 1e-3, 5e-8))


class ScalerTimeline(Explorer):
    """What does the scaler do in this step, and why?

    The loss scale over the steps of a run, with the state of the rule at one of them: the
    scale, the good steps counted so far, whether a gradient was infinite or NaN, and what
    follows from that.

    Args:
        source: a run with a dynamic loss scale, whose own rule is then shown; or what
            `mplab.lessons.l09.limits.headroom` measured, on which any rule can be tried; or the
            limits alone. Left out, a run made up to show all cases.

    Attributes:
        rule: the choice of the rule.
        start: the slider of the first scale's exponent.
        interval: the slider of the growth interval.
        step: the slider of the step.
        scaler_steps: what the rule does at each step.

    Exactness:
        That of `mplab.scaling.LossScaler`.

    Examples:
        >>> explorer = ScalerTimeline([4.0] * 8)
        >>> explorer.start.value = 3
        >>> explorer.scaler_steps[0].next_scale
        4.0
    """

    def __init__(
        self,
        source: History | LossScaleLimits | Sequence[float] | np.ndarray | None = None,
    ) -> None:
        self._run = source if isinstance(source, History) else None
        self._recorded = [] if self._run is None else _recorded(self._run)
        self._played: dict[tuple[str, int, int], list[ScalerStep]] = {}
        if isinstance(source, History):
            self._headroom = LossScaleLimits(np.zeros(len(self._recorded)), np.zeros(0))
        elif isinstance(source, LossScaleLimits):
            self._headroom = source
        elif source is None:
            self._headroom = example()
        else:
            self._headroom = LossScaleLimits(
                np.asarray(source, float), np.full(len(source), 1e-3)
            )
        self.rule = choice("rule", RULES)
        self.start = slider("first scale 2^", 0, 40, 16)
        self.interval = stops("growth interval", INTERVALS, 25)
        self.step = slider("step", 0, len(self._headroom.limits) - 1, 0)
        self.on_page = {
            "first scale 2^": (0, 8, 12, 15, 16, 20, 24),
            "growth interval": (5, 25, 100, 2000),
            "step": {*self._moves, *range(0, self.step.max + 1, 16)},
        }
        self.back, self.forth = (
            ipywidgets.Button(description=words, layout={"width": "12rem"})
            for words in ("previous move of scale", "next move of scale")
        )
        buttons = ipywidgets.HBox(
            [self.back, self.forth], layout={"flex_flow": "row wrap"}
        )
        choices = (
            [] if self._run is not None else [self.rule, self.start, self.interval]
        )
        if not choices:  # a run has its own rule
            self.rule.disabled = self.start.disabled = self.interval.disabled = True
        question = "What does the scaler do in this step, and why?"
        super().__init__(question, [*choices, self.step, buttons])
        self.back.on_click(lambda _: self.show_errors_of(lambda: self._jump(-1)))
        self.forth.on_click(lambda _: self.show_errors_of(lambda: self._jump(1)))

    @property
    def scaler_steps(self) -> list[ScalerStep]:
        """What the rule does, step by step."""
        if self._run is not None:
            return self._recorded
        place = self.rule.value, self.start.value, self.interval.value
        if place not in self._played:
            rule = RULES[place[0]](2.0 ** place[1], place[2])
            limits, means = self._headroom
            self._played[place] = list(
                scaler_steps(rule, limits, mean_abs_gradient=means)
            )
        return self._played[place]

    @property
    def _moves(self) -> list[int]:
        """The steps that are skipped or change the scale."""
        return [
            i
            for i, t in enumerate(self.scaler_steps)
            if t.skipped or t.next_scale != t.scale
        ]

    def _jump(self, way: int) -> None:
        """Go to the nearest such step in a direction."""
        there = [i for i in self._moves if (i - self.step.value) * way > 0]
        if there:
            self.step.value = min(there) if way > 0 else max(there)

    def draw(self) -> tuple[str, str]:
        """Draw the scale over the steps and the state at one of them; say in words what follows."""
        played, step = self.scaler_steps, self.step.value
        limits = None if self._run is not None else self._headroom.limits
        limit = None if limits is None else float(limits[step])
        interval = self._interval()
        sentence = _sentence(self._name(), step, played[step], limit, interval)
        totals = f" {sum(t.skipped for t in played)} of {len(played)} steps are skipped in all."
        return _picture(
            played, step, limits, interval, sentence + totals
        ), sentence + totals

    def _interval(self) -> int | None:
        """Good steps in a row before the scale grows; None where the rule does not count them."""
        if self._run is not None:
            return int(_rule_of(self._run).state_dict()["growth_interval"])
        if self.rule.value.startswith(("static", "doubles")):
            return None
        return int(self.interval.value)

    def _name(self) -> str:
        return self._run.recipe if self._run is not None else str(self.rule.value)


def _rule_of(run: History) -> LossScaler:
    """Make the rule that a run used, fresh."""
    settings = {k: v for k, v in run.settings.items() if k in _OF_RULE}
    if settings.get("init_scale") is None or not settings.get("dynamic", True):
        raise ValueError(
            f"ScalerTimeline: source must be a run with a dynamic loss scale; got {run.recipe}. "
            "Train with 'fp16-scaled'."
        )
    return Recipe(
        run.recipe, FORMATS[run.compute_format], simulated=True, **settings
    ).scaler()


_OF_RULE = ("init_scale", "dynamic", "scale_rule", "growth_factor", "backoff_factor",
            "growth_interval")  # fmt: skip


def _recorded(run: History) -> list[ScalerStep]:
    """Replay a run's own rule on the overflows that the run met."""
    rule = _rule_of(run)
    limits = np.where(run.skipped, 0.0, np.inf)
    played = list(scaler_steps(rule, limits))
    if [turn.scale for turn in played] != run.loss_scale.tolist():
        raise ValueError(
            f"ScalerTimeline: source must hold the scales that its recipe makes; got {run!r}. "
            "Train again with this version."
        )
    return played


# Words -----------------------------------------------------------------------------------
def amount(scale: float) -> str:
    """Write a loss scale for readers.

    Examples:
        >>> amount(65536.0), amount(1126.4), amount(math.inf), amount(0.0)
        ('2¹⁶', '1,126', 'infinity', '0')
    """
    if scale == math.inf:
        return "infinity"
    if math.frexp(scale)[0] == 0.5:
        return power_of_two(scale)
    return f"{scale:,.0f}" if 1000 <= scale < 1e9 else f"{scale:.4g}"


def _sentence(
    name: str, step: int, turn: ScalerStep, limit: float | None, interval: int | None
) -> str:
    """What happens in a step, and why."""
    scale = amount(turn.scale)
    start = f"Step {step}, {name}: the loss is multiplied by {scale}. "
    if not turn.found_nonfinite:
        good = "Every gradient is finite, so all are divided by the scale and the weights move. "
        return start + good + _after_good(turn, interval)
    bears = ""
    if limit is not None:
        most = f"the step bears a scale of {amount(limit)} at most"
        bears = f" ({most if limit else 'no scale helps here'})"
    bad = f"A gradient is infinite or NaN{bears}, so found_inf is true. "
    if not turn.skipped:
        return start + bad + "Nothing checks for it: the weights take it, and are lost."
    skip = "The step is skipped: weights and optimizer stay as they are. "
    return start + bad + skip + _after_bad(turn, interval)


def _after_good(turn: ScalerStep, interval: int | None) -> str:
    after = amount(turn.next_scale)
    moved = turn.next_scale != turn.scale
    if interval is None:
        return f"The scale doubles to {after}." if moved else "The scale stays."
    if not turn.next_good_steps:
        what = (
            f"the scale doubles to {after}"
            if moved
            else "the scale stays, at its limit"
        )
        return f"That makes {interval} good steps in a row: {what}, and the count begins again."
    nudge = (
        f" The mean gradient is small, so the scale rises by a tenth to {after}."
        * moved
    )
    more = interval - turn.next_good_steps
    row = (
        "1 good step"
        if turn.next_good_steps == 1
        else f"{turn.next_good_steps} good steps"
    )
    return f"That makes {row} in a row; after {more} more the scale grows.{nudge}"


def _after_bad(turn: ScalerStep, interval: int | None) -> str:
    after = amount(turn.next_scale)
    if turn.next_scale != turn.scale:
        what = f"The scale is halved to {after}"
    elif turn.scale == math.inf:
        what = "Half of infinity is infinity: from here on every step is skipped"
    else:
        what = f"The scale stays at {after}, so only smaller gradients can end this"
    if interval is None:
        return f"{what}."
    if not turn.good_steps:
        return f"{what}; the count of good steps is still 0, of {interval}."
    return f"{what}; the count of good steps falls from {turn.good_steps} to 0, of {interval}."


def _picture(
    played: Sequence[ScalerStep],
    step: int,
    limits: np.ndarray | None,
    interval: int | None,
    description: str,
) -> str:
    heights = [math.log2(turn.scale) for turn in played if 0 < turn.scale < math.inf]
    low, high = min(heights, default=0) - 2, max(heights, default=0) + 3
    if limits is not None:  # grey that decides a step must be visible
        least = math.log2(min(limits)) if min(limits) > 0 else -math.inf
        low = min(low, max(low - 12, least - 2))
    chart = Chart(Scale(0, len(played), 62, 742), Scale(low, high, 196, 26, log=True))
    if limits is not None:
        chart.area(f"M62 26{chart.stairs(limits)}V26z", BAND, LOST)
    _axes(chart, "×: skipped" if limits is None else "grey: overflow · ×: skipped")
    here = chart.x(step + 0.5)
    chart.line(f"M{here:.1f} 26V196", INK, more=DASHED)
    way = chart.stairs(turn.scale for turn in played)
    chart.line(f"M62 {chart.y(played[0].scale):.1f}{way}", style(FP16).colour, 2)
    for i, turn in enumerate(played):
        if turn.skipped:
            at = f"M{chart.x(i + 0.5) - 4:.1f} {chart.y(turn.scale) - 4:.1f}"
            chart.line(f"{at}l8 8m0 -8l-8 8", "black", 1.6)
    ring = f'stroke="{INK}" stroke-width="2"'
    chart.dot(here, chart.y(played[step].scale), 5, "white", ring)
    _boxes(chart, played[step], interval)
    label = (
        f"The loss scale over {len(played)} steps, with the state at one. {description}"
    )
    return chart.svg(label, width=760, height=330)


def _axes(chart: Chart, words: str) -> None:
    chart.frame()
    low, high, *_ = chart.y
    chart.ticks_y(
        [2.0**k for k in whole_ticks(low, high, count=6)], power_of_two, mark=True
    )
    for step in whole_ticks(0, chart.x.high - 1, count=8):
        chart.line(f"M{chart.x(step + 0.5):.1f} 196v5")
        chart.text(chart.x(step + 0.5), 215, str(step), "middle")
    chart.text(62, 17, "loss scale")
    chart.text(742, 17, words, "end")
    chart.below("training step", 36)


def _boxes(drawing: Drawing, turn: ScalerStep, interval: int | None) -> None:
    """The state before, what was found, and the state after, from left to right."""
    before, after = (
        "not counted" if interval is None else f"{count} of {interval}"
        for count in (turn.good_steps, turn.next_good_steps)
    )
    bad = turn.found_nonfinite
    left = 62
    top = 246
    width = 210
    gap = 25
    act = "skipped" if turn.skipped else "taken: NaN" if bad else "taken"
    boxes = (
        ("before", f"scale {amount(turn.scale)}", f"good steps {before}"),
        ("the step", f"found_inf {'true' if bad else 'false'}", f"update {act}"),
        ("after", f"scale {amount(turn.next_scale)}", f"good steps {after}"),
    )
    for title, *lines in boxes:
        colour = BAD if bad and title == "the step" else style(FP16).colour
        drawing.box(
            left, top, width, 76, "white", f'stroke="{colour}" stroke-width="1.6"'
        )
        drawing.text(left + 12, top + 21, title, more=BOLD)
        for k, words in enumerate(lines):
            drawing.text(left + 12, top + 44 + 20 * k, words)
        if title != "before":
            drawing.line(f"M{left - gap + 4} {top + 38}h15l-5 -4m5 4l-5 4", width=1.6)
        left += width + gap
