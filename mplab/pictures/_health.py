"""The figures of health: the report of one run, and the cases of the clinic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from mplab.health.broken_runs import TREATMENTS, Outcome
from mplab.health.clinic import Case
from mplab.health.records import Shares, Step, pooled_layers
from mplab.health.reports import Report
from mplab.numbers.formats import FORMATS
from mplab.pictures import canvas as c

# The report of a run ---------------------------------------------------------------------
_RAW = c.STYLES["FP32"]

_LIMIT = 12  # rows of layers that can be read


@c.in_house_style
def health(report: Report) -> c.Picture:
    """The loss, the gradient's norm, and what the format loses of each layer's gradients.

    Args:
        report: of `mplab.health.Health`, with at least one step.

    Returns:
        A figure whose title is the gravest finding.
    """
    all_layers = pooled_layers(report.steps)
    layers = _worst(all_layers)
    picture = c.Picture(height=3.6 + 0.3 * len(layers), width=8.6)
    grid = picture.add_gridspec(
        2 if layers else 1, 2, height_ratios=[2.4, 0.6 + 0.3 * len(layers)] if layers else None
    )
    _draw_loss(picture.add_subplot(grid[0, 0]), report.steps)
    _draw_norms(picture.add_subplot(grid[0, 1]), report.steps)
    if layers:
        axes = picture.add_subplot(grid[1, :])
        _draw_layers(axes, layers, of=len(all_layers))
        key = axes.get_legend_handles_labels()
        picture.legend(*key, loc="outside lower center", ncols=4, frameon=False)
    words = "; ".join(
        f"{name}: {c.percent(s.zeros, s.total)} zero, {c.percent(s.subnormal, s.total)} subnormal"
        for name, s in layers.items()
        if s.total
    )
    codes = ", ".join(f.code for f in report.findings) or "none"
    return c.titled(
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
    axes.plot(where, heights, "x", color=c.REFERENCE.colour, markersize=7)
    for i in np.flatnonzero(~finite):
        axes.axvspan(i - 0.5, i + 0.5, color=c.BAND, alpha=c.LOST, linewidth=0)
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
        color=c.STYLES["FP8_E4M3"].colour,
        marker="^",
        ls="dashed",
        markevery=_every(steps),
        label="at the optimizer",
    )
    if np.isfinite(after + received).any():
        c.binary_axis(axes.yaxis, "", count=6)
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


def _worst(layers: dict[str, Shares]) -> dict[str, Shares]:
    """As many as can be read, those of which the format loses most, in the model's order."""

    def lost(name: str) -> float:
        s = layers[name]
        return (s.zeros + s.subnormal + s.near + s.nonfinite) / max(1, s.total)

    kept = sorted(layers, key=lost, reverse=True)[:_LIMIT]
    return {name: shares for name, shares in layers.items() if name in kept}


def _draw_layers(axes: Axes, layers: dict[str, Shares], *, of: int) -> None:
    """Bars of the shares that are zero, subnormal, near overflow, or not finite."""
    names = list(layers)
    fmt = FORMATS[next(iter(layers.values())).fmt]
    colour = c.style(fmt).colour
    parts = {
        "zero": ([s.zeros for s in layers.values()], "white", colour),
        "subnormal": ([s.subnormal for s in layers.values()], (colour, 0.35), colour),
        "near the largest": ([s.near for s in layers.values()], colour, colour),
        "infinite or NaN": (
            [s.nonfinite for s in layers.values()],
            c.REFERENCE.colour,
            c.REFERENCE.colour,
        ),
    }
    left = np.zeros(len(names))
    for label, (counts, face, edge) in parts.items():
        share = np.array(
            [
                100 * count / max(1, s.total)
                for count, s in zip(counts, layers.values(), strict=True)
            ]
        )
        axes.bar(0, 0, color=face, edgecolor=edge, label=label)  # for the key alone
        here = np.flatnonzero(share)
        axes.barh(here, share[here], left=left[here], color=face, edgecolor=edge, height=0.62)
        left += share
    axes.axvspan(0, 100, color=c.BAND, alpha=c.COARSE / 2, linewidth=0, zorder=0)
    axes.set_xlim(0, 100)
    axes.set_ylim(-0.5, len(names) - 0.5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    would = " would hold" if next(iter(layers.values())).what_if else " holds"
    which = (
        "each module's output" if of == len(names) else f"the {len(names)} worst of {of} outputs"
    )
    axes.set_title(f"what {fmt.name}{would} of the gradients at {which}")
    axes.set_xlabel("share of the gradients (%); the rest has full precision")


def _step_axis(axes: Axes, steps: list[Step]) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(-0.5, len(steps) - 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _exponent(x: float | None) -> float:
    return math.log2(x) if x is not None and x > 0 and math.isfinite(x) else math.nan


def _every(steps: list[Step]) -> int:
    return max(1, len(steps) // 8)


# The cases of the clinic -----------------------------------------------------------------
_WELL, _ILL = c.STYLES["FP32"], c.STYLES["FP8_E4M3"]

_HEADS = {"broken": "as reported", "wrong": "usual remedy", "fixed": "cure"}


def _shown(value: float) -> str:
    if 0 < abs(value) < 0.001:
        head, _, power = f"{value:.0e}".partition("e")
        return f"{head}e{int(power)}".replace("-", "−")
    return f"{value:.3g}"


@c.in_house_style
def clinic(cases: Sequence[Case]) -> c.Picture:
    """What each case's observable is as reported, after the usual remedy, and after the cure.

    Args:
        cases: to run, or to show from an earlier run.

    Returns:
        A figure whose title counts the cures and the remedies that helped.
    """
    rows = [(case, [case.run(treatment) for treatment in TREATMENTS]) for case in cases]
    picture = c.Picture(height=1.1 + 0.36 * len(rows), width=9.4)
    axes = picture.subplots()
    axes.set_axis_off()
    axes.set_xlim(0, 100)
    axes.set_ylim(len(rows) + 0.1, -1.1)
    for place, treatment in enumerate(TREATMENTS):
        axes.text(69 + 12 * place, -0.5, _HEADS[treatment], ha="center", va="center")
    for y, (case, outcomes) in enumerate(rows):
        axes.text(0, y + 0.5, case.name, va="center", fontweight="bold")
        axes.text(21, y + 0.5, case.observable, va="center", fontsize=8)
        for place, outcome in enumerate(outcomes):
            well = case.is_healthy(outcome)
            face = (_WELL.colour, 0.28) if well else (_ILL.colour, 0.28)
            box = Rectangle((63.3 + 12 * place, y + 0.06), 11.4, 0.88, facecolor=face)
            axes.add_patch(box)
            mark = "✓" if well else "✗"
            words = f"{mark} {_shown(outcome.observed)}"
            axes.text(69 + 12 * place, y + 0.5, words, ha="center", va="center", color=c.INK)
    cures = sum(case.is_healthy(outcomes[2]) for case, outcomes in rows)
    remedies = sum(case.is_healthy(outcomes[1]) for case, outcomes in rows)
    claim = (
        f"{cures} of {len(rows)} cures bring the observable into its range, and {remedies} of "
        f"{len(rows)} usual remedies do"
    )
    details = "; ".join(
        f"{case.name}, {case.observable}: "
        + ", ".join(f"{_HEADS[t]} {_shown(case.run(t).observed)}" for t in TREATMENTS)
        for case in cases
    )
    return c.titled(picture, claim, f"Table. {details}.")


# Runs that look alike --------------------------------------------------------------------
_QUESTIONS = ("gradients that are zero", "updates that are lost", "steps that move a weight")


def _share(parts: Iterable[float], whole: float) -> float:
    return 100 * sum(parts) / whole if whole else 0.0


def shares(steps: Sequence[Step]) -> tuple[float, float, float]:
    """Percent of gradients that are zero, of updates that are lost, and of steps that move."""
    layers = [shares for step in steps for shares in step.layers.values()]
    zeros = _share((s.zeros for s in layers), sum(s.total for s in layers))
    lost = _share((s.unmoved for s in steps), sum(s.updated for s in steps))
    moved = _share((step.updated > step.unmoved for step in steps), len(steps))
    return zeros, lost, moved


@c.in_house_style
def look_alikes(cases: Sequence[Case]) -> c.Picture:
    """Runs whose losses look alike, and the shares that tell them apart.

    Args:
        cases: whose reported runs were watched.

    Returns:
        A figure whose title says how much the losses changed.
    """
    runs: list[tuple[Case, Outcome]] = [(case, case.broken()) for case in cases]
    picture = c.Picture(height=1.5 + 0.42 * len(runs), width=9.0)
    grid = picture.subplots(1, 3, sharey=True)
    table = [shares(run.report.steps) for _, run in runs]
    for column, (axes, question) in enumerate(zip(grid, _QUESTIONS, strict=True)):
        values = [row[column] for row in table]
        axes.barh(range(len(runs)), values, color=_ILL.colour if column < 2 else _WELL.colour)
        for y, value in enumerate(values):
            inside = value > 75
            axes.text(
                value - 3 if inside else value + 3,
                y,
                f"{value:.0f}%",
                ha="right" if inside else "left",
                va="center",
            )
        axes.set_title(question, fontsize=10)
        axes.set_xlim(0, 100)
        axes.set_xticks([0, 50, 100])
        axes.set_xlabel("share (%)")
        axes.set_ylim(len(runs) - 0.4, -0.6)
    grid[0].set_yticks(range(len(runs)), [case.name for case, _ in runs])
    change = max(abs(run.losses[-1] / run.losses[0] - 1) for _, run in runs)
    words = f"change by {change:.1%} at most" if change else "never change"
    claim = (
        f"{len(runs)} losses that {words}, and "
        f"{len({tuple(round(v) for v in row) for row in table})} different patterns of shares"
    )
    details = "; ".join(
        f"{case.name}: " + ", ".join(f"{q} {v:.0f}%" for q, v in zip(_QUESTIONS, row, strict=True))
        for (case, _), row in zip(runs, table, strict=True)
    )
    return c.titled(picture, claim, f"Bars. {details}.")
