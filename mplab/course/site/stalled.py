"""The slider of the page "Why did my FP16 training stall?", from recorded runs."""

import json
import math
from typing import Any

import numpy as np

from mplab.common.words import superscript
from mplab.course.explorers.chart import DASHED, Chart, Scale
from mplab.course.explorers.freezing import Control, Frozen, pack
from mplab.course.explorers.range_map import RangeMap
from mplab.course.pictures.canvas import percent, style
from mplab.course.site.frame import FILES
from mplab.course.site.lesson_page import frozen_explorer_html
from mplab.numbers.formats import FP16, FP32
from mplab.training.exponents import ExponentHistogram

RECORDED: dict[str, Any] = json.loads((FILES / "stalled.json").read_text("utf-8"))
"""What `data/record_stall.py` wrote."""

LEVEL = 1.1
"""A loss of at most this many times that of FP32 is as good."""

_LOSSES = (0.02, 0.05, 0.1, 0.2)
"""The ticks of the lower axis, in which the recorded losses lie."""

_TOP = 300
_BOTTOM = 452
_HEIGHT = 500


def gradients() -> ExponentHistogram:
    """Return the histogram of gradients of the run in FP32."""
    exponents = np.array(RECORDED["exponents"])
    return ExponentHistogram(
        exponents, np.array(RECORDED["counts"]), RECORDED["zeros"], 0
    )


def stalled_explorer() -> str:
    """Write an explorer whose one slider moves the gradients and the loss curve together."""
    shown = RangeMap(gradients())
    states = []
    for power in RECORDED["fp16"]:
        shown.scale.value = int(power)
        sentence = _sentence(power, shown)
        states.append((_picture(power, shown, sentence), sentence))
    scales = ["2" + superscript(int(power)) for power in RECORDED["fp16"]]
    frozen = Frozen(
        question="Which loss scale lets the loss fall?",
        controls=[Control("slider", "loss scale", scales, start=0, readout=True)],
        buttons=[],
        positions=len(states),
        start=states[0],
        packed=pack(states, {}),
    )
    return frozen_explorer_html(frozen)


def _sentence(power: str, shown: RangeMap) -> str:
    """Say what becomes of the gradients and of the loss at this scale."""
    part = shown.shares
    lost = percent(part.flushed, part.total)
    ends = RECORDED["fp16"][power]["loss"]
    wide = RECORDED["fp32"]["loss"][-1]
    words = f"{lost} of these gradients become 0 in FP16, and "
    if ends[-1] is None:
        step = RECORDED["every"] * ends.index(None)
        return (
            f"{words}from step {step} on the loss is NaN: the gradients of the first steps"
            " are larger, and one of them passed 65,504, the end of FP16."
        )
    if ends[-1] > LEVEL * wide:
        return (
            f"{words}the loss stalls: it ends at {ends[-1]:.3f}, in FP32 at {wide:.3f}."
        )
    return f"{words}the loss falls as in FP32, to {ends[-1]:.3f}."


def _picture(power: str, shown: RangeMap, sentence: str) -> str:
    """Draw the gradients over the zones of FP16, and below them the losses."""
    picture = shown.histogram_chart()
    wide = RECORDED["fp32"]["loss"]
    steps = [RECORDED["every"] * i for i in range(len(wide))]
    ends = math.log2(_LOSSES[0]), math.log2(_LOSSES[-1])
    chart = Chart(
        Scale(0, steps[-1], 58, 660),
        Scale(*ends, _BOTTOM, _TOP, log=True),
        on=picture,
    )
    chart.frame()
    chart.ticks_x(range(0, steps[-1] + 1, 200), mark=True)
    chart.ticks_y(_LOSSES, mark=True)
    chart.below("training step", 40)
    chart.upright(16, (_TOP + _BOTTOM) / 2, "loss")
    colour = style(FP16).colour
    for other in RECORDED["fp16"].values():
        _curve(chart, steps, other["loss"], colour, 1, 'stroke-opacity="0.2"')
    _curve(chart, steps, wide, style(FP32).colour, 2)
    losses = RECORDED["fp16"][power]["loss"]
    _curve(chart, steps, losses, colour, 3, DASHED)
    finite = [loss for loss in losses if loss is not None]
    words = "FP16" if len(finite) == len(losses) else "FP16: NaN"
    chart.name_ends([(wide[-1], "FP32"), (finite[-1], words)])
    label = f"Gradients of step {RECORDED['moment']} in FP32 times the loss scale over the zones"
    return chart.svg(
        f"{label} of FP16, and losses. {sentence}", width=760, height=_HEIGHT
    )


def _curve(
    chart: Chart,
    steps: list[int],
    losses: list[float | None],
    colour: str,
    width: float,
    more: str = "",
) -> None:
    """Draw losses as far as they are finite."""
    finite = [loss for loss in losses if loss is not None]
    chart.curve(steps[: len(finite)], finite, colour, width, more=more)
