"""The figures of health: the report of one run, and where two runs first differ."""

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from mplab.common.words import plural
from mplab.course.pictures import canvas as c
from mplab.health.comparison import Comparison, Difference
from mplab.health.records import (
    Magnitudes,
    Step,
    least_headroom,
    magnitudes_by_layer,
    pooled_gradients,
)
from mplab.health.reports import Report
from mplab.numbers.formats import FORMATS

# The report of a run ---------------------------------------------------------------------
_RAW = c.NEUTRAL[2]
_RECEIVED = c.NEUTRAL[0]

_READABLE = 12
"""The most layers that a figure names legibly."""


@c.in_house_style
def health(report: Report) -> c.Picture:
    """Draw the loss, the gradient's norm, and how many of each layer's gradients are zero.

    Args:
        report: of `mplab.health.Health`, with at least one step.

    Returns:
        A figure whose title is the gravest finding.
    """
    all_layers = pooled_gradients(report.steps)
    layers = _worst(all_layers)
    picture = c.Picture(height=3.6 + 0.3 * len(layers), width=8.6)
    grid = picture.add_gridspec(
        2 if layers else 1,
        2,
        height_ratios=[2.4, 0.6 + 0.3 * len(layers)] if layers else None,
    )
    _draw_loss(picture.add_subplot(grid[0, 0]), report.steps)
    _draw_norms(picture.add_subplot(grid[0, 1]), report.steps)
    if layers:
        axes = picture.add_subplot(grid[1, :])
        _draw_layers(axes, layers, of=len(all_layers))
    words = "; ".join(
        f"{name}: {c.percent(s.zeros, s.total)} zero"
        for name, s in layers.items()
        if s.total
    )
    codes = ", ".join(f.code for f in report.findings) or "none"
    return c.titled(
        picture,
        _claim(report),
        f"Loss, gradient norms, and layers. Findings: {codes}. {words and f'{words}.'}",
    )


def _claim(report: Report) -> str:
    """Return the gravest finding's first sentence; without one, how many steps were skipped."""
    if not report.codes:
        skipped = sum(step.skipped for step in report.steps)
        found = (
            f"; {skipped} skipped while the scale found its level" if skipped else ""
        )
        return f"No problems found in {plural(len(report.steps), 'step')}{found}"
    observed = report.findings[0].observed
    return observed.split(". ")[0].removesuffix(".")


def _draw_loss(axes: Axes, steps: list[Step]) -> None:
    """Draw the loss; crosses mark skipped steps, bands steps without a finite loss."""
    loss = np.array([step.loss for step in steps])
    finite = np.isfinite(loss)
    axes.plot(
        np.where(finite, loss, np.nan),
        color=_RAW.colour,
        marker="o",
        markevery=_every(steps),
    )
    low = float(loss[finite].min()) if finite.any() else 0.0
    skipped = np.array([step.skipped for step in steps])
    where = np.flatnonzero(skipped)
    heights = np.where(finite, loss, low)[where]
    axes.plot(where, heights, "x", color=c.REFERENCE.colour, markersize=7)
    for i in np.flatnonzero(~finite):
        axes.axvspan(i - 0.5, i + 0.5, color=c.BAND, alpha=c.LOST, linewidth=0)
    notes = []
    if skipped.any():
        notes.append("x: skipped")
    if not finite.all():
        notes.append("grey: not finite")
    axes.set_title(f"loss ({', '.join(notes)})" if notes else "loss")
    _step_axis(axes, steps)
    if not finite.any():
        axes.set_yticks([])


def _draw_norms(axes: Axes, steps: list[Step]) -> None:
    """Draw the gradient's norm right after the backward pass, and as the optimizer received it."""
    after = [_exponent(step.gradient_norm) for step in steps]
    received = [_exponent(step.norm_at_optimizer) for step in steps]
    for norms, look, dash, words in (
        (after, _RAW, "solid", "after backward, ÷ scale"),
        (received, _RECEIVED, "dashed", "at the optimizer"),
    ):
        line: Any = {"color": look.colour, "marker": look.marker, "linestyle": dash}
        axes.plot(norms, **line, markevery=_every(steps), label=words)
    if np.isfinite(after + received).any():
        c.binary_axis(axes.yaxis, "", count=6)
        low = np.nanmin([*after, *received])
        high = np.nanmax([*after, *received])
        margin = 0.3 + 0.05 * (high - low)
        # The key.
        axes.set_ylim(math.floor(low) - margin, high + 4 * margin + 0.4 * (high - low))
    else:
        axes.set_yticks([])
        none = all(step.gradient_norm is None for step in steps)
        words = "not observed" if none else "never finite"
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center")
    axes.set_title("norm of the gradient")
    _step_axis(axes, steps)
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


def _worst(layers: dict[str, Magnitudes]) -> dict[str, Magnitudes]:
    """Choose the layers with most zeros, as many as can be read, in the model's order."""

    def zero(name: str) -> float:
        return layers[name].zeros / max(1, layers[name].total)

    kept = sorted(layers, key=zero, reverse=True)[:_READABLE]
    return {name: sizes for name, sizes in layers.items() if name in kept}


def _draw_layers(axes: Axes, layers: dict[str, Magnitudes], *, of: int) -> None:
    """Draw bars of the shares that are zero."""
    first = next(iter(layers.values()))
    colour = c.style(first.fmt).colour
    shares = [100 * s.zeros / max(1, s.total) for s in layers.values()]
    axes.barh(range(len(layers)), shares, 0.6, color=(colour, 0.6), edgecolor=colour)
    c.rows(axes, layers)
    axes.set_xlim(0, 100)
    which = "each module's output"
    if of > len(layers):
        which = f"the {len(layers)} outputs of {of} with most of them"
    would = f"would be zero in {first.fmt}" if first.what_if else "are zero"
    axes.set_title(f"gradients that {would}, at {which}")
    axes.set_xlabel("share of the gradients (%)")


def _step_axis(axes: Axes, steps: list[Step]) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _exponent(x: float | None) -> float:
    return math.log2(x) if x is not None and x > 0 and math.isfinite(x) else math.nan


def _every(steps: list[Step]) -> int:
    return max(1, len(steps) // 8)


# How near a run was to the ends of a format -----------------------------------------------
@c.in_house_style
def headroom(report: Report) -> c.Picture:
    """Draw where each layer's numbers lay between the ends of its format, over all steps.

    Args:
        report: of `mplab.health.Health`, with at least one step in which a layer ran.

    Returns:
        A figure whose title is the layer that came nearest to the largest finite number. Of many
        layers it shows the nearest, and none in FP32 beside those in a low format.
    """
    every = magnitudes_by_layer(report.steps)
    low_ones = {n: both for n, both in every.items() if not both[0][0].what_if}
    found = low_ones or every
    near = {name: least_headroom([*both[0], *both[1]]) for name, both in found.items()}
    names = sorted(found, key=lambda name: near[name])[:_READABLE]
    layers = {name: both for name, both in found.items() if name in names}
    picture = c.Picture(height=2.1 + 0.3 * max(2, len(layers)), width=9.0)
    panels = picture.subplots(1, 2, sharex=True, sharey=True)
    titles = ("outputs", "gradients at the outputs")
    formats = {FORMATS[outputs[0].fmt] for outputs, _ in layers.values()}
    low = min(math.log2(fmt.min_subnormal) for fmt in formats) - 6
    high = max(fmt.emax for fmt in formats) + 4
    for kind, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for row, both in enumerate(layers.values()):
            _draw_magnitudes(axes, row, both[kind], low, high)
        c.rows(axes, layers)
        axes.set_xlim(low, high)
        axes.set_title(title)
        c.binary_axis(
            axes.xaxis, "magnitude\n(grey: subnormal, or past the ends)", count=8
        )
    key = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    picture.legend(
        key.values(), key, loc="outside lower center", ncols=4, frameon=False
    )
    outputs, gradients = found[names[0]]
    one = outputs[0]
    came = "would come" if one.what_if else "came"
    words = "; ".join(
        f"{name}: outputs {_left(both[0])}, gradients {_left(both[1])}"
        for name, both in layers.items()
    )
    return c.titled(
        picture,
        f"{names[0]} {came} nearest to the end of {one.fmt}: {_left(outputs + gradients)}",
        f"{len(layers)} of {len(found)} layers. {words}.",
    )


def _left(seen: list[Magnitudes]) -> str:
    """Say how many powers of two were left, and whether that was too few."""
    room = least_headroom(seen)
    over = any(sizes.headroom == -math.inf for sizes in seen)
    if not math.isfinite(room):
        return "overflow" if over else "not seen"
    left = f"{room:.1f} powers of two left".replace("-", "−")
    return f"{left}, then overflow" if over else left


def _draw_magnitudes(
    axes: Axes, row: int, seen: list[Magnitudes], low: float, high: float
) -> None:
    """Draw a bar over a layer's numbers in all steps, over grey; marks show how they went."""
    if not seen:
        return
    fmt = FORMATS[seen[0].fmt]
    for start, end, strength in c.bands(fmt, low, high):
        axes.barh(
            row,
            end - start,
            1,
            start,
            color=c.BAND,
            alpha=strength,
            lw=0,
        )
    largest = [_exponent(sizes.largest) for sizes in seen]
    least = [_exponent(sizes.least) for sizes in seen]
    if np.isfinite(largest).any():
        bottom = np.nanmin(least)
        top = np.nanmax(largest)
        label = "from a hundredth of the root mean square to the largest"
        axes.barh(
            row, top - bottom, 0.5, bottom, color=c.style(fmt).colour, label=label
        )
    mark: Any = {"linestyle": "", "color": c.REFERENCE.colour}
    axes.plot(largest[0], row, "o", **mark, mfc="white", label="largest, first step")
    axes.plot(largest[-1], row, "o", **mark, label="last step")
    over = any(sizes.headroom == -math.inf for sizes in seen)
    axes.plot(high - 1.5 if over else math.nan, row, "x", **mark, label="overflow")


# The bar of 50 colours or more is pixels, which stay as they are where the cells turn dark.
_APART = LinearSegmentedColormap.from_list("apart", ["#D9C7E8", "#371279"], N=32)
"""The colours from one ulp to the largest difference."""


@c.in_house_style
def parting(comparison: Comparison) -> c.Picture:
    """Draw how far two runs are apart by layer and step, and where they first differ.

    Args:
        comparison: what `mplab.health.compare` found.

    Returns:
        A figure whose title is the verdict. Of many layers it shows those that differ first;
        initial weights that differ are updates of step −1.
    """
    found = comparison.differences
    layers = list(dict.fromkeys(d.site.layer for d in found))[:_READABLE] or [""]
    first = {_cell(d)[1] for d in found[:1]}
    steps = sorted({*comparison.steps, *first}) or [0]
    rows = {layer: k for k, layer in enumerate(layers)}
    columns = {step: k for k, step in enumerate(steps)}
    picture = c.Picture(height=2.2 + 0.3 * max(3, len(layers)), width=9.0)
    sizes = [d.ulps for d in found if math.isfinite(d.ulps)]
    most = math.log2(max([2.0, *sizes]))
    directions = ("forward", "backward", "update")
    panels = picture.subplots(1, 3, sharey=True)
    for axes, direction in zip(panels, directions, strict=True):
        apart = np.full((len(layers), len(steps)), np.nan)
        for d in found:
            way, step = _cell(d)
            if way == direction and d.site.layer in rows:
                at = rows[d.site.layer], columns[step]
                far = math.log2(max(1.0, d.ulps)) if math.isfinite(d.ulps) else most
                apart[at] = np.fmax(apart[at], far)
        mesh = axes.pcolormesh(
            apart, cmap=_APART, vmin=0, vmax=most, edgecolors="white", lw=0.4
        )
        for d in found[:1]:
            way, step = _cell(d)
            if way == direction:
                x = columns[step] + 0.5
                y = rows[d.site.layer] + 0.5
                axes.plot(
                    x,
                    y,
                    "o",
                    mfc="none",
                    mec=c.BAD,
                    ms=13,
                    mew=2.5,
                )
        rings = bool(axes.lines)
        axes.set_title(f"{direction}; ring: here they part" if rings else direction)
        shown = c.whole_ticks(0, len(steps) - 1, count=5)
        axes.set_xticks(
            [k + 0.5 for k in shown], [f"{steps[k]}".replace("-", "−") for k in shown]
        )
        axes.set_xlabel("step")
        axes.set_yticks(
            [k + 0.5 for k in range(len(layers))], [n or "the model" for n in layers]
        )
        axes.set_ylim(len(layers), 0)
        axes.tick_params(left=axes is panels[0])
    panels[1].set_xlabel("step (empty: equal or absent)")
    bar = c.colour_bar(picture, mesh, ax=picture.axes)
    c.binary_axis(bar.yaxis, "apart by (ulp)", count=6)
    words = "; ".join(f"step {d.step}, {d.site}: {d.apart}" for d in found[:_READABLE])
    of = len({d.site.layer for d in found})
    details = f"The {len(layers)} of {of} layers that part first, by step. First differences: "
    return c.titled(
        picture, comparison.verdict, f"{details}{words}." if found else "No cell."
    )


def _cell(d: Difference) -> tuple[str, int]:
    """Return the panel and the step of a difference."""
    return ("update", -1) if d.site.direction == "start" else (d.site.direction, d.step)
