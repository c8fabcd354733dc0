"""The figures of scales: rules for that of the loss, and those of tensors in FP8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from mplab.formats import FP8_E4M3, FP16, FP32, Format, Overflow
from mplab.loss_rules import Trace
from mplab.pictures.canvas import (
    BAND,
    LOST,
    REFERENCE,
    End,
    Picture,
    binary_axis,
    in_house_style,
    label_ends,
    listed,
    percent,
    require_some,
    style,
    titled,
)
from mplab.rounding import tally
from mplab.scaling import CurrentScaling, DelayedScaling, FixedScaling

# The scale of the loss -------------------------------------------------------------------


@in_house_style
def scale_rules(traces: Mapping[str, Trace]) -> Picture:
    """Loss scales by several rules on the same steps, one panel for each; crosses are skipped.

    Args:
        traces: by the name of the rule, from `mplab.loss_rules.play`.

    Returns:
        A figure whose title counts the steps that each rule skips.
    """
    require_some("scale_rules", "traces", traces)
    picture = Picture(height=1.3 + 1.0 * len(traces))
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
        binary_axis(axes.yaxis, "", count=4)
    rows[0].set_ylim(low, high)
    rows[0].text(0.99, 0.93, "overflow", transform=rows[0].transAxes, va="top", ha="right")
    rows[-1].set_xlabel("training step")
    picture.supylabel("loss scale", fontsize=10)
    counts = listed(f"{int(trace.skipped.sum())} by {name}" for name, trace in traces.items())
    total = len(next(iter(traces.values())).scales)
    ends = "; ".join(f"{name} ends at {trace.scales[-1]:.4g}" for name, trace in traces.items())
    details = f"Line charts, one for each rule; crosses mark skipped steps. {ends}."
    return titled(picture, f"Steps skipped of {total}: {counts}", details)


def _draw_rule(axes: Axes, trace: Trace, high: float) -> None:
    """A scale, the grey band where it overflows, and crosses on the steps that are lost."""
    with np.errstate(divide="ignore"):
        height, limit = np.log2(trace.scales), np.log2(trace.limits)
    _band(axes, limit, np.full(len(limit), high))
    steps = np.arange(len(height))
    axes.step(steps, height, where="mid", color=style(FP16).colour, linewidth=1.4)
    lost = np.flatnonzero(trace.skipped)
    axes.plot(lost, height[lost], "x", color=REFERENCE.colour, markersize=4)
    axes.set_xlim(-0.5, len(height) - 0.5)


def _band(axes: Axes, lower: np.ndarray, upper: np.ndarray) -> None:
    """Grey between two heights, a step wide around each whole number."""
    edges = np.arange(len(lower) + 1) - 0.5
    low, high = (np.append(heights, heights[-1]) for heights in (lower, upper))
    axes.fill_between(edges, low, high, step="post", color=BAND, alpha=LOST, linewidth=0)


@in_house_style
def clipped_norms(
    scales: np.ndarray, norms: Mapping[str, np.ndarray], *, max_norm: float
) -> Picture:
    """How long the gradient is that reaches the weights, over the loss scale it came with.

    Args:
        scales: powers of two, shape (n,).
        norms: by the order of the calls, the lengths that arrived, each of shape (n,).
        max_norm: what the gradient was clipped to.

    Returns:
        A figure whose title says whether the length depends on the scale.
    """
    require_some("clipped_norms", "norms", norms)
    picture = Picture(height=3.4)
    axes = picture.subplots()
    axes.axhline(np.log2(max_norm), color=REFERENCE.colour, linewidth=0.8)
    axes.annotate(
        "max_norm",
        (0.01, np.log2(max_norm)),
        (0, 7),  # clear of the markers of a curve that stays on the line
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
    )
    ends = []
    for place, (name, lengths) in enumerate(norms.items()):
        look = (style(FP32), style(FP16))[place % 2]
        height = np.log2(lengths)
        axes.plot(
            np.log2(scales), height, color=look.colour, marker=look.marker, linestyle=look.dash
        )
        ends.append(End(axes, float(np.log2(scales[-1])), float(height[-1]), name, look.colour))
    axes.margins(y=0.2)
    binary_axis(axes.xaxis, "loss scale")
    binary_axis(axes.yaxis, "length of the gradient\nthat arrives", count=6)
    found = listed(f"{name} {_lengths(lengths)}" for name, lengths in norms.items())
    claim = f"The length that arrives: {found}"
    titled(picture, claim, f"Line chart over the loss scale; max_norm is {max_norm:g}.")
    label_ends(picture, ends)
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


@in_house_style
def scaling_windows(windows: Mapping[str, Window]) -> Picture:
    """Where the largest number of each tensor lies in the range that its scale makes room for.

    Args:
        windows: by the name of the scaling, from `follow`, on the same tensors.

    Returns:
        A figure with a panel for each scaling: grey above is what saturates, grey below what
        becomes zero. Its title counts the tensors that lose most of their numbers.
    """
    require_some("scaling_windows", "windows", windows)
    picture = Picture(height=1.4 + 1.45 * len(windows))
    rows = picture.subplots(len(windows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    low, high = _heights(windows.values())
    for axes, (name, window) in zip(rows, windows.items(), strict=True):
        _draw_window(axes, window, low, high)
        words = f"{name}\n{_fate(window)}"
        axes.text(1.02, 0.5, words, transform=axes.transAxes, va="center")
        binary_axis(axes.yaxis, "", count=5)
    for y, va, word in ((0.95, "top", "saturates"), (0.06, "bottom", "becomes 0")):
        rows[0].text(0.012, y, word, transform=rows[0].transAxes, va=va)
    rows[-1].set_xlabel("tensor, one in each step")
    picture.supylabel("largest magnitude", fontsize=10)
    counts = {name: _spoilt(window) for name, window in windows.items()}
    parts = listed(f"{count} with {name}" for name, count in counts.items())
    total = len(next(iter(windows.values())).amaxes)
    fates = "; ".join(f"{name}: {_fate(w)}".replace("\n", ", ") for name, w in windows.items())
    return titled(
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
    steps, look = np.arange(len(window.scales)), style(window.fmt)
    top = np.log2(window.fmt.max_finite / window.scales)
    bottom = np.log2(window.fmt.min_subnormal / 2 / window.scales)
    for lower, upper in ((top, np.full_like(top, high)), (np.full_like(top, low), bottom)):
        _band(axes, lower, upper)
    axes.plot(steps, np.log2(window.amaxes), look.marker, color=look.colour, markersize=4)
    axes.set_ylim(low, high)
    axes.set_xlim(-0.5, len(steps) - 0.5)


def _spoilt(window: Window) -> int:
    """How many tensors lose more than half of their numbers."""
    return int(np.sum(window.saturated + window.flushed > 0.5))


def _fate(window: Window) -> str:
    """The worst that happened, in words."""
    saturated, flushed = (float(part.max()) for part in (window.saturated, window.flushed))
    return f"up to {percent(saturated, 1)} saturate\nand {percent(flushed, 1)} become 0"
