"""The figures of lesson 1: the rescue, flushed gradients, and the digits that networks paint."""

from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes

from mplab import FP16
from mplab.common.progress import counted
from mplab.course.pictures import canvas as c
from mplab.course.pictures.training import (
    draw_exponents,
    draw_zones,
    loss_axis,
    run_name,
    summed,
)
from mplab.lessons.l01.digits import (
    PaintedDigits,
    measure_painted_digits as measure_painted_digits,
    paint as paint,
)
from mplab.training import History
from mplab.training.exponents import (
    exponent_of,
    pooled,
    shares,
    window,
    zone_words,
)

WITHOUT, WITH = "without a scale", "with a loss scale"

SCALE = 2.0**16
"""The loss scale with which gradients are drawn: the first one of `torch.amp.GradScaler`."""


def bar(steps: int) -> Iterable[int]:
    """The numbers of the steps, behind a progress bar that disappears at the end."""
    return counted(range(steps), "real FP16", progress=True)


@c.in_house_style
def rescue(
    fp32: History,
    simulated: Sequence[History],
    real: Mapping[str, Sequence[float]],
) -> c.Picture:
    """Gradients below FP16's floor, the same after one multiplication, and what that changes.

    Args:
        fp32: the run in FP32, with its gradients of the first step.
        simulated: the simulated run without a loss scale, and the one with it.
        real: the losses of PyTorch's own mixed precision, step by step, as `WITHOUT` and `WITH`;
            there may be fewer steps of it.
    """
    picture = c.Picture(height=3.8, width=9.4)
    before, after, curves = picture.subplots(1, 3, width_ratios=[1, 1, 1.4])
    scaled = f"times {c.power_of_two(SCALE)}"
    flushed = [
        _draw_gradients(before, fp32, 1.0, "gradients"),
        _draw_gradients(after, fp32, SCALE, scaled),
    ]
    before.set_ylabel("share (%)")
    after.set_yticklabels([])
    steps = range(len(fp32.loss))
    ends = [c.curve(curves, steps, fp32.loss, "FP32", c.style("FP32"))]
    for words, run in zip((WITHOUT, WITH), simulated, strict=True):
        curves.plot(real[words], color=c.style(FP16).colour, linewidth=5, alpha=0.3)
        ends.append(c.curve(curves, steps, run.loss, words, c.style(FP16)))
    curves.set_yscale("log")
    taken = len(real[WITH])
    curves.set_title(f"FP16, dashed: simulated, broad: real, {taken} steps")
    curves.set_xlabel("training step")
    loss_axis(curves, fp32.task)
    parts = []
    for words, run in zip((WITHOUT, WITH), simulated, strict=True):
        ratios = [_ratio(list(losses), fp32) for losses in (run.loss, real[words])]
        level = max(abs(ratio - 1) for ratio in ratios) <= 0.1
        end = "within 10% of it" if level else f"at {c.span(ratios)}× FP32's loss"
        parts.append(f"{end} {words.replace('a loss scale', 'one')}")
    details = (
        f"Two histograms of gradients: {flushed[0]} are flushed to 0 in FP16, and {flushed[1]}"
        f" {scaled}. Beside them the losses of five runs over {len(fp32.loss)} steps."
    )
    claim = f"FP16 ends {', and '.join(parts)}, simulated and real"
    c.titled(picture, claim, details)
    c.label_ends(picture, ends)
    return picture


def _ratio(losses: Sequence[float], fp32: History) -> float:
    """The last ten losses over those of FP32 in the same steps."""
    steps = slice(len(losses) - 10, len(losses))
    return float(sum(losses[steps]) / sum(fp32.loss[steps]))


def _draw_gradients(axes: Axes, run: History, factor: float, title: str) -> str:
    """Draw the first step's gradients times a factor over FP16's zones; return what is lost."""
    gradients = pooled(run.gradients[0].values())
    low, high = window(gradients, FP16, shift=exponent_of(SCALE))
    draw_zones(axes, FP16, low, high)
    draw_exponents(axes, gradients, FP16, factor)
    for words, start, end in zone_words(FP16, low, high):
        axes.text(
            (start + end) / 2,
            0.98,
            words,
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="top",
            fontsize=8.5,
        )
    c.binary_axis(axes.xaxis, "absolute value, first step", count=5)
    axes.set_ylim(0, 33)
    found = shares(gradients, FP16, loss_scale=factor)
    flushed = c.percent(found.flushed, found.total)
    axes.set_title(f"{title}: {flushed} become 0")
    return flushed


@c.in_house_style
def flushed_share(history: History) -> c.Picture:
    """Share of each layer's gradients that became zero in a simulated run.

    Args:
        history: a simulated run that recorded gradients.

    Returns:
        A figure with one column of bars for each recorded step.
    """
    steps = sorted(history.flushed)
    picture = c.Picture(height=1.3 + 0.34 * len(history.flushed[steps[0]]))
    grid = picture.subplots(1, len(steps), sharey=True, squeeze=False)[0]
    for axes, step in zip(grid, steps, strict=True):
        _draw_flushed(axes, step, history)
    grid[0].invert_yaxis()
    grid[0].set_ylabel("layer, the input at the top")
    total = {step: summed(history.flushed[step]) for step in steps}
    parts = [f"{c.percent(*total[step])} at step {step}" for step in steps[1:]]
    start = f"{c.percent(*total[steps[0]])} of the gradients are flushed to 0 at step {steps[0]}"
    claim = f"{run_name(history)}: {c.listed([start, *parts])}"
    layers = "; ".join(
        f"step {step}: "
        + ", ".join(
            f"{name} {c.percent(*pair)}" for name, pair in history.flushed[step].items()
        )
        for step in steps
    )
    return c.titled(picture, claim, f"Bar charts by layer. {layers}.")


def _draw_flushed(axes: Axes, step: int, history: History) -> None:
    """Bars for one step, each with its number."""
    layers = history.flushed[step]
    values = [100 * lost / max(1, total) for lost, total in layers.values()]
    colour = c.style(history.compute_format).colour
    bars = axes.barh(list(layers), values, color=colour, height=0.62)
    axes.bar_label(bars, [c.percent(*pair) for pair in layers.values()], padding=4)
    axes.set_xlim(0, 132)
    axes.set_xticks([0, 50, 100])
    axes.set_title(f"step {step}")
    axes.set_xlabel("flushed to 0 (%)")


# The digits that a trained network paints --------------------------------------------------
ROWS = {
    "fp32": "FP32",
    "fp16-naive": "simulated FP16",
    "fp16-scaled": "simulated FP16\nwith a loss scale",
}
"""What the picture calls the simulated recipes; others are called as they are given."""


@c.in_house_style
def plot_painted_digits(*found: PaintedDigits, count: int = 8) -> c.Picture:
    """Draw some test images, and below them what each network paints for them.

    Args:
        *found: what `measure_painted_digits` or `paint` gave, once or more.
        count: how many images, the first of the test set.
    """
    r2: dict[str, float] = {}
    rows = [("test images", found[0].images)]
    for part in found:
        for name, images in part.painted.items():
            words = ROWS.get(name, name)
            r2[words.replace("\n", " ")] = part.r2[name]
            score = f"{part.r2[name]:.2f}".replace("-0.00", "0.00")
            rows.append((f"{words}\nR² {score}", images))
    picture = c.Picture(height=0.5 + 0.72 * len(rows))
    grid = picture.subplots(len(rows), count, squeeze=False)
    for (words, images), line in zip(rows, grid, strict=True):
        line[0].set_ylabel(words, rotation=0, ha="right", va="center", fontsize=9.5)
        for axes, image in zip(line, images, strict=False):
            axes.imshow(
                image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1, interpolation="none"
            )
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=c.BAND, linewidth=0.6)
    shares = "; ".join(f"{name} {share:.2f}" for name, share in r2.items())
    return c.titled(
        picture, _painted_claim(r2), f"Rows of {count} images of digits. R²: {shares}."
    )


def _painted_claim(r2: Mapping[str, float]) -> str:
    """Name the networks that reproduce less than a tenth of what differs between images."""
    alike = [name for name, share in r2.items() if share < 0.1]
    if not alike:
        return "Every network tells the digits apart."
    scaled = [name for name in r2 if "scale" in name]
    cured = scaled and not set(scaled) & set(alike)
    start = "Without a loss scale, nearly" if cured else "Nearly"
    return f"{start} the same picture for every digit: {c.listed(alike)}."
