"""The figures of scales: of the loss, of tensors in FP8, and of what FP16 flushes without one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from mplab.numbers.formats import FP8_E4M3, FP16, FP32, Format, Overflow
from mplab.numbers.rounding import tally
from mplab.pictures import canvas as c
from mplab.pictures.training import summed
from mplab.scaling.amax import CurrentScaling, DelayedScaling, FixedScaling
from mplab.scaling.rules import Trace
from mplab.training.history import History


# The scale of the loss -------------------------------------------------------------------
@c.in_house_style
def scale_rules(traces: Mapping[str, Trace]) -> c.Picture:
    """Loss scales by several rules on the same steps, one panel for each; crosses are skipped.

    Args:
        traces: by the name of the rule, from `mplab.scaling.play`.

    Returns:
        A figure whose title counts the steps that each rule skips.
    """
    picture = c.Picture(height=1.3 + 1.0 * len(traces))
    rows = picture.subplots(len(traces), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    with np.errstate(divide="ignore"):
        heights = np.log2(
            [[t.scales, np.minimum(t.limits, t.scales.max())] for t in traces.values()]
        )
    low, high = heights[np.isfinite(heights)].min() - 1, heights.max() + 3
    for axes, (name, trace) in zip(rows, traces.items(), strict=True):
        _draw_rule(axes, trace, high)
        words = f"{name}\n{int(trace.skipped.sum())} skipped"
        axes.text(1.02, 0.5, words, transform=axes.transAxes, va="center")
        c.binary_axis(axes.yaxis, "", count=4)
    rows[0].set_ylim(low, high)
    rows[0].text(0.99, 0.93, "overflow", transform=rows[0].transAxes, va="top", ha="right")
    rows[-1].set_xlabel("training step")
    picture.supylabel("loss scale", fontsize=10)
    counts = c.listed(f"{int(trace.skipped.sum())} by {name}" for name, trace in traces.items())
    total = len(next(iter(traces.values())).scales)
    ends = "; ".join(f"{name} ends at {trace.scales[-1]:.4g}" for name, trace in traces.items())
    details = f"Line charts, one for each rule; crosses mark skipped steps. {ends}."
    return c.titled(picture, f"Steps skipped of {total}: {counts}", details)


def _draw_rule(axes: Axes, trace: Trace, high: float) -> None:
    """A scale, the grey band where it overflows, and crosses on the steps that are lost."""
    with np.errstate(divide="ignore"):
        height, limit = np.log2(trace.scales), np.log2(trace.limits)
    _band(axes, limit, np.full(len(limit), high))
    steps = np.arange(len(height))
    axes.step(steps, height, where="mid", color=c.style(FP16).colour, linewidth=1.4)
    lost = np.flatnonzero(trace.skipped)
    axes.plot(lost, height[lost], "x", color=c.REFERENCE.colour, markersize=4)
    axes.set_xlim(-0.5, len(height) - 0.5)


def _band(axes: Axes, lower: np.ndarray, upper: np.ndarray) -> None:
    """Grey between two heights, a step wide around each whole number."""
    edges = np.arange(len(lower) + 1) - 0.5
    low, high = (np.append(heights, heights[-1]) for heights in (lower, upper))
    axes.fill_between(edges, low, high, step="post", color=c.BAND, alpha=c.LOST, linewidth=0)


@c.in_house_style
def clipped_norms(
    scales: np.ndarray, norms: Mapping[str, np.ndarray], *, max_norm: float
) -> c.Picture:
    """How long the gradient is that reaches the weights, over the loss scale it came with.

    Args:
        scales: powers of two, shape (n,).
        norms: by the order of the calls, the lengths that arrived, each of shape (n,).
        max_norm: what the gradient was clipped to.

    Returns:
        A figure whose title says whether the length depends on the scale.
    """
    picture = c.Picture(height=3.4)
    axes = picture.subplots()
    axes.axhline(np.log2(max_norm), color=c.REFERENCE.colour, linewidth=0.8)
    axes.annotate(
        "max_norm",
        (0.01, np.log2(max_norm)),
        (0, 7),  # clear of the markers of a curve that stays on the line
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
    )
    ends = []
    for place, (name, lengths) in enumerate(norms.items()):
        look = (c.style(FP32), c.style(FP16))[place % 2]
        height = np.log2(lengths)
        ends.append(c.curve(axes, np.log2(scales), height, name, look, marker=look.marker))
    axes.margins(y=0.2)
    c.binary_axis(axes.xaxis, "loss scale")
    c.binary_axis(axes.yaxis, "length of the gradient\nthat arrives", count=6)
    found = c.listed(f"{name} {_lengths(lengths)}" for name, lengths in norms.items())
    claim = f"The length that arrives: {found}"
    c.titled(picture, claim, f"Line chart over the loss scale; max_norm is {max_norm:g}.")
    c.label_ends(picture, ends)
    return picture


def _lengths(lengths: np.ndarray) -> str:
    """Where lengths go, in words."""
    first, last = (f"{x:.2g}" for x in (lengths[0], lengths[-1]))
    return (
        f"always {first}"
        if np.allclose(lengths, lengths[0], rtol=1e-3)
        else (f"from {first} to {last}")
    )


# The scales of tensors -------------------------------------------------------------------
class Window(NamedTuple):
    """What an FP8 scaling did to a row of tensors."""

    fmt: Format
    amaxes: np.ndarray
    scales: np.ndarray
    saturated: np.ndarray
    """The share of each tensor's numbers past the largest finite value."""
    flushed: np.ndarray
    """The share of each tensor's numbers that became zero."""


def follow(
    scaling: FixedScaling | CurrentScaling | DelayedScaling,
    tensors: Iterable[np.ndarray],
    *,
    fmt: Format = FP8_E4M3,
) -> Window:
    """Scale one tensor after the other and cast it, and count what is lost.

    Examples:
        >>> row = [np.array([1.0, 0.5]), np.array([1e6, 5e5]), np.array([1.0, 0.5])]
        >>> follow(DelayedScaling(FP8_E4M3, amax_history_len=2), row).saturated
        array([0., 1., 0.])
    """
    rows = []
    for x in tensors:
        amax = float(np.abs(x).max())
        scale = scaling.update(amax)
        counts = tally(np.asarray(x * scale, float), fmt, overflow=Overflow.SATURATE)
        rows.append((amax, scale, counts.overflow / x.size, counts.flushed / x.size))
    return Window(fmt, *np.array(rows).T)


@c.in_house_style
def scaling_windows(windows: Mapping[str, Window]) -> c.Picture:
    """Where the largest number of each tensor lies in the range that its scale makes room for.

    Args:
        windows: by the name of the scaling, from `follow`, on the same tensors.

    Returns:
        A figure with a panel for each scaling: grey above is what saturates, grey below what
        becomes zero. Its title counts the tensors that lose most of their numbers.
    """
    picture = c.Picture(height=1.4 + 1.45 * len(windows))
    rows = picture.subplots(len(windows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    low, high = _heights(windows.values())
    for axes, (name, window) in zip(rows, windows.items(), strict=True):
        _draw_window(axes, window, low, high)
        words = f"{name}\n{_fate(window)}"
        axes.text(1.02, 0.5, words, transform=axes.transAxes, va="center")
        c.binary_axis(axes.yaxis, "", count=5)
    for y, va, word in ((0.95, "top", "saturates"), (0.06, "bottom", "becomes 0")):
        rows[0].text(0.012, y, word, transform=rows[0].transAxes, va=va)
    rows[-1].set_xlabel("tensor, one in each step")
    picture.supylabel("largest magnitude", fontsize=10)
    counts = {name: int(np.sum(w.saturated + w.flushed > 0.5)) for name, w in windows.items()}
    parts = c.listed(f"{count} with {name}" for name, count in counts.items())
    total = len(next(iter(windows.values())).amaxes)
    fates = "; ".join(f"{name}: {_fate(w)}".replace("\n", ", ") for name, w in windows.items())
    return c.titled(
        picture,
        f"Tensors of {total} that lose most of their numbers: {parts}",
        f"Line charts, one for each scaling. {fates}.",
    )


def _heights(windows: Iterable[Window]) -> tuple[float, float]:
    """The exponents that all panels show."""
    tops = [np.log2(w.fmt.max_finite / w.scales) for w in windows]
    lows = [top - np.log2(2 * w.fmt.max_finite / w.fmt.min_subnormal)
            for top, w in zip(tops, windows, strict=True)]  # fmt: skip
    return min(map(np.min, lows)) - 2, max(map(np.max, tops)) + 4


def _draw_window(axes: Axes, window: Window, low: float, high: float) -> None:
    """Bands past the two ends of the range, and the largest magnitudes as dots."""
    steps, look = np.arange(len(window.scales)), c.style(window.fmt)
    top = np.log2(window.fmt.max_finite / window.scales)
    bottom = np.log2(window.fmt.min_subnormal / 2 / window.scales)
    for lower, upper in ((top, np.full_like(top, high)), (np.full_like(top, low), bottom)):
        _band(axes, lower, upper)
    axes.plot(steps, np.log2(window.amaxes), look.marker, color=look.colour, markersize=4)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.5, len(steps) - 0.5)


def _fate(window: Window) -> str:
    """The worst that happened, in words."""
    saturated, flushed = (float(part.max()) for part in (window.saturated, window.flushed))
    return f"up to {c.percent(saturated, 1)} saturate\nand {c.percent(flushed, 1)} become 0"


# Gradients without a scale ---------------------------------------------------------------
@c.in_house_style
def shares_and_outcomes(
    runs: Mapping[str, tuple[History, History]], *, metric: str = "r2", label: str = "test R²"
) -> c.Picture:
    """What share of the gradients is flushed at first, and what the run has learnt at its end.

    Args:
        runs: by name, a run in FP32 and one in FP16 that recorded gradients.
        metric: of the runs, the higher the better.
        label: what it is called.

    Returns:
        A figure with two joined marks for each, FP32's and FP16's; its title names the run that
        loses most gradients at first and the one that falls farthest below FP32.
    """
    picture = c.Picture(height=3.9)
    axes = picture.subplots()
    ends, facts = [], {}
    for name, (wide, low) in runs.items():
        lost, total = summed(low.flushed[min(low.flushed)])
        found = wide.metrics[metric], low.metrics[metric]
        facts[name] = (lost / max(1, total), *found)
        share = 100 * facts[name][0]
        axes.plot([share, share], found, color=c.INK, linewidth=0.8)
        for fmt, value in zip((FP32, FP16), found, strict=True):
            look = c.style(fmt)
            axes.plot(share, value, look.marker, color=look.colour, markersize=8)
        ends.append(c.End(axes, share, sum(found) / 2, name, c.INK))
    axes.axhline(0, color=c.REFERENCE.colour, linewidth=0.8)
    axes.set_xlim(-3, 100)
    axes.set_ylim(min(-0.05, *(low - 0.05 for _, _, low in facts.values())), 1)
    axes.set_xlabel("gradients flushed at the first step (%)")
    axes.set_ylabel(f"{label} (FP32 ●, FP16 ■)")
    words = "; ".join(
        f"{name}: {c.percent(share, 1)}, {wide:.2f} in FP32 and {low:.2f} in FP16"
        for name, (share, wide, low) in facts.items()
    )
    c.titled(picture, _outcome_claim(facts, label), f"Scatter chart of pairs. {words}.")
    c.label_ends(picture, ends)
    return picture


def _outcome_claim(facts: Mapping[str, tuple[float, float, float]], label: str) -> str:
    """Who loses most at first, and who falls farthest below FP32."""
    most = max(facts, key=lambda name: facts[name][0])
    worst = max(facts, key=lambda name: facts[name][1] - facts[name][2])

    def went(name: str) -> str:
        share, wide, low = facts[name]
        return f"{c.percent(share, 1)} at first and reaches {label} {low:.2f} (FP32: {wide:.2f})"

    first = f"{most} flushes most gradients, {went(most)}"
    return f"{first}: it falls farthest" if most == worst else f"{first}; {worst} {went(worst)}"


@c.in_house_style
def flushed_over_steps(runs: Mapping[str, History]) -> c.Picture:
    """The share of each layer's gradients that is flushed, at each recorded step.

    Args:
        runs: by name, runs that recorded gradients.

    Returns:
        A figure with one panel for each run: layers down, steps across, dark where all is lost.
    """
    deepest = max(len(run.flushed[min(run.flushed)]) for run in runs.values())
    picture = c.Picture(height=1.5 + 0.3 * deepest, width=9.4 if len(runs) > 1 else 7.6)
    grid = picture.subplots(1, len(runs), squeeze=False)[0]
    for axes, (name, run) in zip(grid, runs.items(), strict=True):
        _draw_shares(axes, run)
        axes.set_title(name)
    grid[0].set_ylabel("layer, the input at the top")
    claims = c.listed(f"{_first_layer(run)} in {name}" for name, run in runs.items())
    details = " ".join(f"{name}: {_last_row(run)}." for name, run in runs.items())
    claim = f"Flushed in layer 1, from the first step to the last: {claims}"
    return c.titled(picture, claim, f"Tables of shares by layer and step. {details}")


def _draw_shares(axes: Axes, run: History) -> None:
    """A cell for each layer and step, with its share in percent."""
    steps = sorted(run.flushed)
    layers = list(run.flushed[steps[0]])
    table = np.array([[_share(run, step, layer) for step in steps] for layer in layers])
    colours = LinearSegmentedColormap.from_list("flushed", ["white", c.style(FP16).colour])
    axes.imshow(table, cmap=colours, vmin=0, vmax=1, aspect="auto")
    for (row, column), share in np.ndenumerate(table):
        ink = "white" if share >= 0.9 else "black"  # of both the one with contrast 4.5
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", color=ink)
    axes.set_xticks(range(len(steps)), [str(step) for step in steps])
    axes.set_yticks(range(len(layers)), [name.removeprefix("layer ") for name in layers])
    axes.set_xlabel("training step (cells: % flushed)")


def _share(run: History, step: int, layer: str) -> float:
    lost, total = run.flushed[step][layer]
    return lost / max(1, total)


def _first_layer(run: History) -> str:
    layer = next(iter(run.flushed[min(run.flushed)]))
    first, last = (c.percent(_share(run, step(run.flushed), layer), 1) for step in (min, max))
    return f"{first} to {last}"


def _last_row(run: History) -> str:
    last = max(run.flushed)
    shares = (f"{name} {c.percent(_share(run, last, name), 1)}" for name in run.flushed[last])
    return f"at step {last} " + ", ".join(shares)
