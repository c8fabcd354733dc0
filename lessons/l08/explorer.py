"""The explorer of training runs: side by side, from the loss down to the bits of one gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ipywidgets
import numpy as np

from mplab.explorers import chart as svg
from mplab.explorers.chart import svg as framed
from mplab.explorers.widget import Explorer
from mplab.numbers.codes import encode
from mplab.numbers.formats import FORMATS, FP32, Format
from mplab.numbers.rounding import round_to
from mplab.numbers.words import number as in_digits
from mplab.pictures.canvas import BAND, INK, STYLES, bands, percent, power_of_two
from mplab.pictures.training import run_name, scale_words
from mplab.training.exponents import ExponentHistogram
from mplab.training.history import History, Sample


class TrainingTheatre(Explorer):
    """Where and when does a run go wrong?

    Runs of one task side by side. Choose a step, a layer and one of its gradients, by mouse or
    by keyboard: each run shows its loss, what became of each layer's gradients, the exponents
    of the chosen layer's, and one gradient with its bits.

    Args:
        runs: two to four runs of one task that recorded gradients at some common steps. The
            others are compared with the first, which should be one in FP32.

    Attributes:
        step: the slider of the recorded step.
        layer: the buttons of the layer.
        gradient: the buttons of the kept gradients of that layer.
        parting: the first recorded step from which on some run's loss is more than a tenth
            above the first run's; None if there is none.

    Exactness:
        Losses are means of up to ten steps before the chosen one. The histogram of a run is
        of its own gradients without loss scale; the gradient is as it was in the backward
        pass, times the loss scale.

    Examples:
        >>> from mplab.training import train
        >>> how = {"steps": 2, "progress": False, "record_gradients_at": (0, 1)}
        >>> names = ("fp32", "fp16-naive")
        >>> theatre = TrainingTheatre([train("digits-autoencoder", r, **how) for r in names])
        >>> theatre.layer.value
        'layer 1'
    """

    def __init__(self, runs: Sequence[History]) -> None:
        if len({run.task for run in runs}) > 1:
            raise ValueError("TrainingTheatre: runs must be of one task. Train them on the same.")
        self.runs = list(runs)
        steps = sorted(set.intersection(*(set(run.samples) for run in self.runs)))
        layers = list(self.runs[0].samples[steps[0]])
        wide = {"description_width": "5rem"}
        self.step = ipywidgets.SelectionSlider(
            options=steps, description="step", style=wide, layout={"width": "min(36rem, 98%)"}
        )
        narrow = {"button_width": "auto", **wide}
        self.layer = ipywidgets.ToggleButtons(options=layers, description="layer", style=narrow)
        first = self.runs[0].samples[steps[0]][layers[0]]
        self.gradient = ipywidgets.ToggleButtons(
            options=[(f"#{i + 1}", i) for i in range(len(first.places))],
            description="gradient",
            style=narrow,
        )
        self.parting = _parting(self.runs, steps)
        self.jump = ipywidgets.Button(
            description="to where they part",
            disabled=self.parting is None,
            layout={"width": "12rem"},
        )
        super().__init__(
            "Where and when does a run go wrong?",
            [self.step, self.jump, self.layer, self.gradient],
        )
        self.jump.on_click(lambda _: self.visibly(self._to_parting))

    def _to_parting(self) -> None:
        if self.parting is not None:
            self.step.value = self.parting

    def draw(self) -> tuple[str, str]:
        """All runs at the chosen step, layer and gradient, and the same in words."""
        step, layer, number = self.step.value, self.layer.value, self.gradient.value
        words = [_words(run, step, layer, number) for run in self.runs]
        parts = "No run ends a tenth above the first."
        if self.parting is not None:
            parts = f"The losses part at step {self.parting}."
        sentence = f"Step {step}, {layer}, gradient #{number + 1}. {' '.join(words)} {parts}"
        width = max(LEAST_COLUMN, WIDTH // len(self.runs))
        columns = [
            _column(run, i * width, width - GAP, step, layer, number, self._losses())
            for i, run in enumerate(self.runs)
        ]
        height = BITS + 74
        label = f"{len(self.runs)} runs side by side. {sentence}"
        picture = framed(columns, width=width * len(self.runs), height=height, description=label)
        return picture, sentence

    def _losses(self) -> tuple[float, float]:
        """The logarithms between which all losses lie."""
        finite = np.concatenate([run.loss[np.isfinite(run.loss)] for run in self.runs])
        logs = np.log(finite[finite > 0])
        return (float(logs.min()), float(logs.max()) + 1e-9) if logs.size else (0.0, 1.0)


def _loss_at(run: History, step: int) -> float:
    """The mean of up to ten losses that end with this step."""
    return float(np.mean(run.loss[max(0, step - 9) : step + 1]))


def _parting(runs: Sequence[History], steps: Sequence[int], *, more: float = 1.1) -> int | None:
    """The first of the steps from which on some run stays more than a tenth above the first."""
    found: int | None = None
    for step in reversed(steps):
        wide = _loss_at(runs[0], step)
        if not any(not _loss_at(run, step) <= more * wide for run in runs[1:]):  # NaN parts, too
            return found
        found = step
    return found


# Words -----------------------------------------------------------------------------------
def _format(run: History, value: float) -> Format:
    """The format that a gradient was kept in: the run's, or FP32 where that has no such value."""
    fmt = _backward_format(run)
    kept = math.isnan(value) or float(round_to(value, fmt)) == value
    return fmt if kept else FP32


def _backward_format(run: History) -> Format:
    """That of the gradients between layers; beside FP8 layers they are FP32."""
    return FP32 if run.settings.get("fp8") else FORMATS[run.compute_format]


def _times(scale: float) -> str:
    """A loss scale as a factor; nothing for 1."""
    return "" if scale == 1 else f" × {scale_words(scale)}"


def _words(run: History, step: int, layer: str, number: int) -> str:
    """One run's state."""
    lost, total = run.flushed[step][layer]
    kept = run.samples[step][layer]
    loss = f"{run_name(run)}: loss {_loss_at(run, step):.3g}, "
    share = f"{percent(lost, total)} of the layer's gradients flushed"
    if number >= len(kept.places):
        return f"{loss}{share}."
    return f"{loss}{share}; this one {_fate(run, step, kept, number)}."


def _fate(run: History, step: int, kept: Sample, number: int) -> str:
    """What became of one gradient."""
    exact, stored = float(kept.exact[number]), float(kept.stored[number])
    fmt = _format(run, stored)
    there = (
        f"{_number(exact)}{_times(float(run.loss_scale[step]))} is {_number(stored)} in {fmt.name}"
    )
    return there + (", flushed" if stored == 0 != exact else "")


def _number(value: float) -> str:
    return in_digits(value, digits=3)


# SVG -------------------------------------------------------------------------------------
WIDTH, GAP, LEAST_COLUMN = 860, 26, 270

LOSS, LAYERS, SPREAD = 34, 130, 176  # tops of the bands; that of the layers is its title's

TALL = 66  # of the loss and of the histogram

BITS = SPREAD + TALL + 68


def _column(
    run: History,
    left: float,
    width: float,
    step: int,
    layer: str,
    number: int,
    losses: tuple[float, float],
) -> str:
    """One run: its loss, its layers, the chosen layer, and the chosen gradient."""
    colour = STYLES[run.compute_format].colour if run.compute_format in STYLES else INK
    left += 8
    return "".join(
        [
            svg.box(left, 6, 10, 10, f'fill="{colour}"'),
            svg.text(left + 16, 16, run_name(run), more='font-weight="bold"'),
            *_loss_svg(run, left, width, step, losses, colour),
            *_layers_svg(run, left, width, step, layer, colour),
            *_spread_svg(run.gradients[step][layer], run, left, width, step, colour),
            *_bits_svg(run, left, width, step, run.samples[step][layer], number, colour),
        ]
    )


def _loss_svg(
    run: History, left: float, width: float, step: int, span: tuple[float, float], colour: str
) -> list[str]:
    """The loss on a logarithmic axis that all runs share, and where the step is."""
    low, high = span
    last = max(1, len(run.loss) - 1)
    points = [
        (
            left + i / last * width,
            LOSS + TALL - (math.log(value) - low) / (high - low) * TALL,
        )
        for i, value in enumerate(run.loss.tolist())
        if math.isfinite(value) and value > 0
    ]
    way = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    here = left + step / last * width
    return [
        svg.line(f"M{left} {LOSS}v{TALL}h{width:.1f}"),
        svg.line(f"M{here:.1f} {LOSS}v{TALL}", colour=INK, more='stroke-dasharray="4 3"'),
        svg.line(way or f"M{left} {LOSS}", colour=colour, more='stroke-width="2"'),
        svg.text(left, LOSS + TALL + 16, f"loss {_loss_at(run, step):.3g} at step {step}"),
    ]


def _layers_svg(
    run: History, left: float, width: float, step: int, layer: str, colour: str
) -> list[str]:
    """A box for each layer, hollow by the share of its gradients that is flushed."""
    layers = run.flushed[step]
    room = width / len(layers)
    parts = []
    for i, (name, (lost, total)) in enumerate(layers.items()):
        x, kept = left + i * room, 1 - lost / total if total else 0.0
        chosen = name == layer
        edge = INK if chosen else colour
        parts.append(svg.box(x, LAYERS, room - 4, 18, 'fill="white"'))
        parts.append(svg.box(x, LAYERS + 18 * (1 - kept), room - 4, 18 * kept, f'fill="{colour}"'))
        line = f'fill="none" stroke="{edge}" stroke-width="{2.5 if chosen else 1}"'
        parts.append(svg.box(x, LAYERS, room - 4, 18, line))
    lost, total = layers[layer]
    words = f"{layer}: {percent(lost, total)} flushed"
    return [*parts, svg.text(left, LAYERS + 35, words)]


def _spread_svg(
    histogram: ExponentHistogram, run: History, left: float, width: float, step: int, colour: str
) -> list[str]:
    """The exponents of a layer's gradients as the run had them, over the format's zones."""
    fmt, low, high = _backward_format(run), -48, 20
    scale = float(run.loss_scale[step])
    shift = round(math.log2(scale)) if 0 < scale < math.inf else 0
    top, bottom = SPREAD, SPREAD + TALL

    def x(exponent: float) -> float:
        return left + (min(max(exponent, low), high) - low) / (high - low) * width

    parts = [
        svg.box(x(a), top, x(b) - x(a), TALL, f'fill="{BAND}" fill-opacity="{strength}"')
        for a, b, strength in bands(fmt, low, high)
        if x(b) > x(a)
    ]
    most = max(histogram.counts.tolist(), default=1)
    for exponent, count in zip(
        histogram.exponents.tolist(), histogram.counts.tolist(), strict=True
    ):
        tall = (TALL - 8) * count / most
        where, thick = x(exponent + shift), width / (high - low) * 0.86
        if count and low <= exponent + shift < high:
            parts.append(svg.box(where, bottom - tall, thick, tall, f'fill="{colour}"'))
    parts.append(svg.line(f"M{left} {bottom}h{width:.1f}"))
    for k in (-40, -20, 0):
        parts.append(svg.line(f"M{x(k):.1f} {bottom}v4"))
        parts.append(svg.text(x(k), bottom + 18, power_of_two(2.0**k), anchor="middle"))
    total = int(histogram.counts.sum()) + histogram.zeros
    zeros = f"zero: {percent(histogram.zeros, total)}" if total else "none"
    parts.append(svg.text(left + width, bottom + 38, zeros, anchor="end"))
    return [*parts, svg.text(left, bottom + 38, f"gradients{_times(scale)}")]


def _bits_svg(
    run: History,
    left: float,
    width: float,
    step: int,
    kept: Sample,
    number: int,
    colour: str,
) -> list[str]:
    """One gradient: what FP32 has, what the run has, and its bits."""
    if number >= len(kept.places):
        return [svg.text(left, BITS, "no gradient here")]
    exact, stored = float(kept.exact[number]), float(kept.stored[number])
    fmt = _format(run, stored)
    code = int(encode(stored, fmt))
    cell = min(9.2, width / 33)
    parts = []
    for i in range(fmt.bits):
        one = code >> (fmt.bits - 1 - i) & 1
        fill = colour if one else "white"
        field = fmt.precision - 1
        apart = 2 * (i > 0) + 2 * (i >= fmt.bits - field)
        more = f'fill="{fill}" stroke="{colour}"'
        parts.append(svg.box(left + i * cell + apart, BITS + 30, cell - 1.6, 14, more))
    digits = -(-fmt.bits // 4)
    return [
        svg.text(
            left,
            BITS,
            f"#{number + 1} should be {_number(exact)}{_times(float(run.loss_scale[step]))}",
        ),
        svg.text(left, BITS + 20, f"is {_number(stored)} in {fmt.name}"),
        *parts,
        svg.text(left, BITS + 62, f"0x{code:0{digits}X}"),
    ]
