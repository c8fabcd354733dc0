"""The scale of the loss: by several rules, and before clipping."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from mplab import FP16
from mplab.course.pictures import canvas as c
from mplab.course.pictures.scaling import band_between
from mplab.scaling import Trace


# The scale of the loss -------------------------------------------------------------------
@c.in_house_style
def scale_rules(traces: Mapping[str, Trace]) -> c.Picture:
    """Loss scales by several rules on the same steps, a panel each; crosses mark skipped steps.

    Args:
        traces: by the name of the rule, from `mplab.scaling.simulate_scaler`.

    Returns:
        A figure whose title says which rule skips most steps, and which least.
    """
    picture = c.Picture(height=1.3 + 1.0 * len(traces))
    rows = picture.subplots(len(traces), 1, sharex=True, sharey=True, squeeze=False)[
        :, 0
    ]
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
    rows[0].text(
        0.99, 0.93, "overflow", transform=rows[0].transAxes, va="top", ha="right"
    )
    rows[-1].set_xlabel("training step")
    picture.supylabel("loss scale", fontsize=10)
    counts = {name: int(trace.skipped.sum()) for name, trace in traces.items()}
    least, most = min(counts.values()), max(counts.values())
    best, worst = (
        [name for name, count in counts.items() if count == end]
        for end in (least, most)
    )
    total = len(next(iter(traces.values())).scales)
    skip = "skip" if len(worst) > 1 else "skips"
    claim = f"Of {total} steps {c.listed(worst)} {skip} {most}"
    claim += f", {c.listed(best)} only {least}" if least < most else ""
    ends = "; ".join(
        f"{name} ends at {trace.scales[-1]:.4g}" for name, trace in traces.items()
    )
    details = f"Line charts, one for each rule; crosses mark skipped steps. {ends}."
    return c.titled(picture, claim, details)


def _draw_rule(axes: Axes, trace: Trace, high: float) -> None:
    """A scale, the grey band where it overflows, and crosses on the steps that are lost."""
    with np.errstate(divide="ignore"):
        height, limit = np.log2(trace.scales), np.log2(trace.limits)
    band_between(axes, limit, np.full(len(limit), high))
    steps = np.arange(len(height))
    axes.step(steps, height, where="mid", color=c.style(FP16).colour, linewidth=1.4)
    lost = np.flatnonzero(trace.skipped)
    axes.plot(lost, height[lost], "x", color=c.REFERENCE.colour, markersize=4)
    axes.set_xlim(-0.5, len(height) - 0.5)


@c.in_house_style
def clipped_norms(
    scales: np.ndarray, norms: Mapping[str, np.ndarray], *, max_norm: float
) -> c.Picture:
    """Draw the norm of the gradient that reaches the weights, against the loss scale.

    Args:
        scales: powers of two, shape (n,).
        norms: by the order of the calls, the norms that arrived, each of shape (n,).
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
        look = c.NEUTRAL[place % 2]
        height = np.log2(lengths)
        ends.append(
            c.curve(axes, np.log2(scales), height, name, look, marker=look.marker)
        )
    axes.margins(y=0.2)
    c.binary_axis(axes.xaxis, "loss scale")
    c.binary_axis(axes.yaxis, "length of the gradient\nthat arrives", count=6)
    found = ", ".join(
        f"{_lengths(lengths)} if {name}" for name, lengths in norms.items()
    )
    claim = f"The length that arrives is {found}"
    c.titled(
        picture, claim, f"Line chart over the loss scale; max_norm is {max_norm:g}."
    )
    c.label_ends(picture, ends)
    return picture


def _lengths(lengths: np.ndarray) -> str:
    """Say where the norms begin and end."""
    first, last = (f"{x:.2g}" for x in (lengths[0], lengths[-1]))
    return (
        f"always {first}"
        if np.allclose(lengths, lengths[0], rtol=1e-3)
        else (f"from {first} to {last}")
    )
