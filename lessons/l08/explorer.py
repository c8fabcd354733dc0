"""The explorer of training runs: side by side, from the loss down to the bits of one gradient."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import ipywidgets
import numpy as np

from mplab import FORMATS, FP32, Format, encode, round_to
from mplab.common.words import number as in_digits
from mplab.course.explorers.chart import BOLD, DASHED, Chart, Drawing, Scale
from mplab.course.explorers.widget import Explorer, stops
from mplab.course.pictures.canvas import INK, STYLES, bands, percent, power_of_two
from mplab.course.pictures.training import run_name, scale_words
from mplab.training import ExponentHistogram
from mplab.training.history import History, Sample


class TrainingTheatre(Explorer):
    """Where and when does a run go wrong?

    Runs of one task side by side. Choose a step, a layer and one of its gradients, by mouse or
    by keyboard: each run shows its loss, the share of each layer's gradients that is flushed,
    the exponents of the chosen layer's gradients, and one gradient with its bits.

    Args:
        runs: two to four runs of one task that recorded gradients at some common steps. The
            others are compared with the first, which should be one in FP32.

    Attributes:
        step: the slider of the recorded step.
        layer: the buttons of the layer.
        gradient: the buttons of the kept gradients of that layer.
        parting: the recorded step from which some run's loss stays more than a tenth above
            the first run's; None if there is none.

    Exactness:
        Losses are means of up to ten steps before the chosen one. The histogram of a run is
        of its own gradients without loss scale; the gradient is as it was in the backward
        pass, times the loss scale.

    Examples:
        >>> from mplab.training import train
        >>> how = {"steps": 2, "progress": False, "record_gradients_at": (0, 1)}
        >>> names = ("fp32", "fp16-naive")
        >>> theatre = TrainingTheatre(
        ...     [train("digits-autoencoder", r, **how) for r in names]
        ... )
        >>> theatre.layer.value
        'layer 1'
    """

    def __init__(self, runs: Sequence[History]) -> None:
        if len({run.task for run in runs}) > 1:
            raise ValueError(
                "TrainingTheatre: runs must be of one task. Train them on the same."
            )
        self.runs = list(runs)
        steps = sorted(set.intersection(*(set(run.samples) for run in self.runs)))
        layers = list(self.runs[0].samples[steps[0]])
        self.step = stops("step", steps, steps[0])
        narrow = {"button_width": "auto", "description_width": "8rem"}
        self.layer = ipywidgets.ToggleButtons(
            options=layers, description="layer", style=narrow
        )
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
        self.jump.on_click(lambda _: self.show_errors_of(self._to_parting))

    def _to_parting(self) -> None:
        if self.parting is not None:
            self.step.value = self.parting

    def draw(self) -> tuple[str, str]:
        """Draw all runs at the chosen step, layer and gradient, and say the same in words."""
        step, layer, number = self.step.value, self.layer.value, self.gradient.value
        words = [_words(run, step, layer, number) for run in self.runs]
        parts = "No run ends a tenth above the first."
        if self.parting is not None:
            parts = f"The losses part at step {self.parting}."
        sentence = (
            f"Step {step}, {layer}, gradient #{number + 1}. {' '.join(words)} {parts}"
        )
        width = max(LEAST_COLUMN, WIDTH // len(self.runs))
        drawing = Drawing()
        for i, run in enumerate(self.runs):
            column = Column(drawing, run, i * width + 8, width - GAP, step, layer)
            column.draw(number, self._losses())
        label = f"{len(self.runs)} runs side by side. {sentence}"
        runs = len(self.runs)
        return drawing.svg(
            label, width=width * runs, height=BITS + 74, panels=runs
        ), sentence

    def _losses(self) -> tuple[float, float]:
        """The logarithms of the least and the largest loss."""
        finite = np.concatenate([run.loss[np.isfinite(run.loss)] for run in self.runs])
        logs = np.log(finite[finite > 0])
        return (
            (float(logs.min()), float(logs.max()) + 1e-9) if logs.size else (0.0, 1.0)
        )


def _loss_at(run: History, step: int) -> float:
    """The mean of up to ten losses that end with this step."""
    return float(np.mean(run.loss[max(0, step - 9) : step + 1]))


def _parting(runs: Sequence[History], steps: Sequence[int]) -> int | None:
    """The step from which some run stays more than a tenth above the first run."""
    found: int | None = None
    for step in reversed(steps):
        wide = _loss_at(runs[0], step)
        # NaN counts, too.
        if not any(not _loss_at(run, step) <= 1.1 * wide for run in runs[1:]):
            return found
        found = step
    return found


# Words -----------------------------------------------------------------------------------
def _format(run: History, value: float) -> Format:
    """The format that a gradient was kept in: the run's, or FP32 if the run's lacks the value."""
    fmt = _backward_format(run)
    kept = math.isnan(value) or float(round_to(value, fmt)) == value
    return fmt if kept else FP32


def _backward_format(run: History) -> Format:
    """The format of the gradients between layers; beside FP8 layers that is FP32."""
    return FP32 if run.settings.get("fp8") else FORMATS[run.compute_format]


def _times(scale: float) -> str:
    """Write a loss scale as a factor; a scale of 1 is left out."""
    return "" if scale == 1 else f" × {scale_words(scale)}"


def _called(run: History) -> str:
    """The run's name, and whether `torch.amp` computed it."""
    return f"{run_name(run)}{', real' if run.recipe.startswith('amp') else ''}"


def _words(run: History, step: int, layer: str, number: int) -> str:
    """One run's state."""
    lost, total = run.flushed[step][layer]
    kept = run.samples[step][layer]
    loss = f"{_called(run)}: loss {_loss_at(run, step):.3g}, "
    share = f"{percent(lost, total)} of the layer's gradients flushed"
    if number >= len(kept.places):
        return f"{loss}{share}."
    return f"{loss}{share}; this one {_fate(run, step, kept, number)}."


def _fate(run: History, step: int, kept: Sample, number: int) -> str:
    """One gradient as it should be, and as it is."""
    exact, stored = float(kept.exact[number]), float(kept.stored[number])
    fmt = _format(run, stored)
    scaled = f"{_number(exact)}{_times(float(run.loss_scale[step]))}"
    there = f"{scaled} is {_number(stored)} in {fmt.name}"
    return there + (", flushed" if stored == 0 != exact else "")


def _number(value: float) -> str:
    return in_digits(value, digits=3)


WIDTH, GAP, LEAST_COLUMN = 860, 26, 270

LOSS, LAYERS, SPREAD = 34, 130, 176  # tops of the bands; for the layers, of their title

TALL = 66  # of the loss and of the histogram

BITS = SPREAD + TALL + 68


class Column(NamedTuple):
    """One run: its loss, its layers, the chosen layer, and the chosen gradient."""

    on: Drawing
    run: History
    left: float
    width: float
    step: int
    layer: str

    @property
    def colour(self) -> str:
        """The colour of the run's format."""
        known = self.run.compute_format in STYLES
        return STYLES[self.run.compute_format].colour if known else INK

    @property
    def scale(self) -> float:
        """The loss scale of the step."""
        return float(self.run.loss_scale[self.step])

    def draw(self, number: int, losses: tuple[float, float]) -> None:
        """Draw the column."""
        self.on.box(self.left, 6, 10, 10, self.colour)
        self.on.text(self.left + 16, 16, _called(self.run), more=BOLD)
        self._losses(losses)
        self._layers()
        self._spread(self.run.gradients[self.step][self.layer])
        self._bits(self.run.samples[self.step][self.layer], number)

    def _losses(self, span: tuple[float, float]) -> None:
        """The loss on a logarithmic axis that all runs share, and where the step is."""
        last = max(1, len(self.run.loss) - 1)
        across = Scale(0, last, self.left, self.left + self.width)
        chart = Chart(across, Scale(*span, LOSS + TALL, LOSS), self.on)
        chart.frame()
        chart.line(f"M{across(self.step):.1f} {LOSS}v{TALL}", INK, more=DASHED)
        shown = [
            (i, v) for i, v in enumerate(self.run.loss.tolist()) if 0 < v < math.inf
        ]
        chart.curve(
            [i for i, _ in shown], [math.log(v) for _, v in shown], self.colour, 2
        )
        words = f"loss {_loss_at(self.run, self.step):.3g} at step {self.step}"
        chart.text(self.left, LOSS + TALL + 16, words)

    def _layers(self) -> None:
        """A box for each layer, hollow by the share of its gradients that is flushed."""
        layers = self.run.flushed[self.step]
        room = self.width / len(layers)
        for i, (name, (lost, total)) in enumerate(layers.items()):
            x = self.left + i * room
            kept = 1 - lost / total if total else 0.0
            edge, width = (INK, 2.5) if name == self.layer else (self.colour, 1)
            self.on.box(x, LAYERS, room - 4, 18, "white")
            self.on.box(x, LAYERS + 18 * (1 - kept), room - 4, 18 * kept, self.colour)
            outline = f'stroke="{edge}" stroke-width="{width}"'
            self.on.box(x, LAYERS, room - 4, 18, "none", outline)
        words = f"{self.layer}: {percent(*layers[self.layer])} flushed"
        self.on.text(self.left, LAYERS + 35, words)

    def _spread(self, histogram: ExponentHistogram) -> None:
        """The exponents of a layer's gradients as the run had them, over the format's zones."""
        low = -48
        high = 20
        bottom = SPREAD + TALL
        right = self.left + self.width
        chart = Chart(
            Scale(low, high, self.left, right), Scale(0, 1, bottom, SPREAD), self.on
        )
        for start, end, strength in bands(_backward_format(self.run), low, high):
            if chart.x(end) > chart.x(start):
                chart.zone(start, end, strength)
        counts = histogram.counts.tolist()
        shift = round(math.log2(self.scale)) if 0 < self.scale < math.inf else 0
        for exponent, count in zip(histogram.exponents.tolist(), counts, strict=True):
            tall, where = (TALL - 8) * count / max(counts), exponent + shift
            if count and low <= where < high:
                thick = self.width / (high - low) * 0.86
                chart.box(chart.x(where), bottom - tall, thick, tall, self.colour)
        chart.line(f"M{self.left} {bottom}h{self.width:.1f}")
        chart.ticks_x((-40, -20, 0), lambda k: power_of_two(2.0**k), down=18, mark=True)
        total = int(histogram.counts.sum()) + histogram.zeros
        zeros = f"zero: {percent(histogram.zeros, total)}" if total else "none"
        chart.text(right, bottom + 38, zeros, "end")
        chart.text(self.left, bottom + 38, f"gradients{_times(self.scale)}")

    def _bits(self, kept: Sample, number: int) -> None:
        """One gradient: what FP32 has, what the run has, and its bits."""
        if number >= len(kept.places):
            self.on.text(self.left, BITS, "no gradient here")
            return
        exact, stored = float(kept.exact[number]), float(kept.stored[number])
        fmt = _format(self.run, stored)
        code = int(encode(stored, fmt))
        words = f"#{number + 1} should be {_number(exact)}{_times(self.scale)}"
        self.on.text(self.left, BITS, words)
        self.on.text(self.left, BITS + 20, f"is {_number(stored)} in {fmt.name}")
        cell = min(9.2, self.width / 33)
        for i in range(fmt.bits):
            fill = self.colour if code >> (fmt.bits - 1 - i) & 1 else "white"
            x = self.left + i * cell + 2 * (i > 0) + 2 * (i > fmt.bits - fmt.precision)
            self.on.box(x, BITS + 30, cell - 1.6, 14, fill, f'stroke="{self.colour}"')
        self.on.text(self.left, BITS + 62, f"0x{code:0{-(-fmt.bits // 4)}X}")
