"""The figure of a health report: what a run did, on one page."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mplab.formats import FORMATS
from mplab.health.records import Shares, Step, pooled_layers
from mplab.health.reports import Report
from mplab.pictures.canvas import (
    BAND,
    COARSE,
    LOST,
    REFERENCE,
    STYLES,
    Picture,
    binary_axis,
    in_house_style,
    percent,
    require_some,
    style,
    titled,
)

_RAW = STYLES["FP32"]
_LIMIT = 12  # rows of layers that can be read


@in_house_style
def health(report: Report) -> Picture:
    """The loss, the gradient's norm, and what the format loses of each layer's gradients.

    Args:
        report: of `mplab.health.Health`, with at least one step.

    Returns:
        A figure whose title is the gravest finding.
    """
    require_some("health", "report.steps", report.steps)
    layers = dict(list(pooled_layers(report.steps).items())[:_LIMIT])
    picture = Picture(height=3.6 + 0.3 * len(layers), width=8.6)
    grid = picture.add_gridspec(
        2 if layers else 1, 2, height_ratios=[2.4, 0.6 + 0.3 * len(layers)] if layers else None
    )
    _draw_loss(picture.add_subplot(grid[0, 0]), report.steps)
    _draw_norms(picture.add_subplot(grid[0, 1]), report.steps)
    if layers:
        axes = picture.add_subplot(grid[1, :])
        _draw_layers(axes, layers)
        key = axes.get_legend_handles_labels()
        picture.legend(*key, loc="outside lower center", ncols=4, frameon=False)
    words = "; ".join(
        f"{name}: {percent(s.zeros, s.total)} zero, {percent(s.subnormal, s.total)} subnormal"
        for name, s in layers.items()
        if s.total
    )
    codes = ", ".join(f.code for f in report.findings) or "none"
    return titled(
        picture, _claim(report), f"Loss, gradient norms, and layers. Findings: {codes}. {words}."
    )


def _claim(report: Report) -> str:
    """The gravest finding's first sentence; without one, how many steps were skipped."""
    if not report.codes:
        skipped = sum(step.skipped for step in report.steps)
        found = f"; {skipped} skipped while the scale found its level" if skipped else ""
        return f"Nothing conspicuous in {len(report.steps)} steps{found}"
    observed = report.findings[0].observed
    return observed.split(". ")[0].removesuffix(".")


def _draw_loss(axes: Axes, steps: list[Step]) -> None:
    """The loss; crosses mark skipped steps, a band those without a finite loss."""
    loss = np.array([step.loss for step in steps])
    finite = np.isfinite(loss)
    axes.plot(
        np.where(finite, loss, np.nan), color=_RAW.colour, marker="o", markevery=_every(steps)
    )
    low = float(loss[finite].min()) if finite.any() else 0.0
    skipped = np.array([step.skipped for step in steps])
    where = np.flatnonzero(skipped)
    heights = np.where(finite, loss, low)[where]
    axes.plot(where, heights, "x", color=REFERENCE.colour, markersize=7)
    for i in np.flatnonzero(~finite):
        axes.axvspan(i - 0.5, i + 0.5, color=BAND, alpha=LOST, linewidth=0)
    notes = ["x: skipped"] * bool(skipped.any()) + ["grey: not finite"] * bool(not finite.all())
    axes.set_title("loss" + f" ({', '.join(notes)})" * bool(notes))
    _step_axis(axes, steps)
    if not finite.any():
        axes.set_yticks([])


def _draw_norms(axes: Axes, steps: list[Step]) -> None:
    """The gradient's norm right after the backward pass, and what the optimizer received."""
    after = [_exponent(step.gradient_norm) for step in steps]
    received = [_exponent(step.norm_at_optimizer) for step in steps]
    axes.plot(
        after,
        color=_RAW.colour,
        marker="o",
        markevery=_every(steps),
        label="after backward, ÷ scale",
    )
    axes.plot(
        received,
        color=STYLES["FP8_E4M3"].colour,
        marker="^",
        ls="dashed",
        markevery=_every(steps),
        label="at the optimizer",
    )
    if np.isfinite(after + received).any():
        binary_axis(axes.yaxis, "", count=6)
        low, high = np.nanmin([*after, *received]), np.nanmax([*after, *received])
        margin = 0.3 + 0.05 * (high - low)
        axes.set_ylim(math.floor(low) - margin, high + 4 * margin + 0.4 * (high - low))  # the key
    else:
        axes.set_yticks([])
        none = all(step.gradient_norm is None for step in steps)
        words = "not observed" if none else "never finite"
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center")
    axes.set_title("norm of the gradient")
    _step_axis(axes, steps)
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")


def _draw_layers(axes: Axes, layers: dict[str, Shares]) -> None:
    """Bars of the shares that are zero, subnormal, near overflow, or not finite."""
    names = list(layers)
    fmt = FORMATS[next(iter(layers.values())).fmt]
    colour = style(fmt).colour
    parts = {
        "zero": ([s.zeros for s in layers.values()], "white", colour),
        "subnormal": ([s.subnormal for s in layers.values()], (colour, 0.35), colour),
        "near the largest": ([s.near for s in layers.values()], colour, colour),
        "infinite or NaN": (
            [s.nonfinite for s in layers.values()],
            REFERENCE.colour,
            REFERENCE.colour,
        ),
    }
    left = np.zeros(len(names))
    for label, (counts, face, edge) in parts.items():
        share = np.array(
            [100 * c / max(1, s.total) for c, s in zip(counts, layers.values(), strict=True)]
        )
        axes.bar(0, 0, color=face, edgecolor=edge, label=label)  # for the key alone
        here = np.flatnonzero(share)
        axes.barh(here, share[here], left=left[here], color=face, edgecolor=edge, height=0.62)
        left += share
    axes.axvspan(0, 100, color=BAND, alpha=COARSE / 2, linewidth=0, zorder=0)
    axes.set_xlim(0, 100)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    would = " would hold" if next(iter(layers.values())).what_if else " holds"
    axes.set_title(f"what {fmt.name}{would} of the gradients at each module's output")
    axes.set_xlabel("share of the gradients (%); the rest has full precision")


def _step_axis(axes: Axes, steps: list[Step]) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _exponent(x: float | None) -> float:
    return math.log2(x) if x is not None and x > 0 and math.isfinite(x) else math.nan


def _every(steps: list[Step]) -> int:
    return max(1, len(steps) // 8)
