"""The figure of FP8 scaling: where tensors saturate and where they become zero."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from mplab.course.pictures import canvas as c
from mplab.numbers.formats import FP8_E4M3, Format, Overflow
from mplab.numbers.rounding import tally
from mplab.scaling.amax import CurrentScaling, DelayedScaling, FixedScaling


def band_between(axes: Axes, lower: np.ndarray, upper: np.ndarray) -> None:
    """Draw grey between two heights, a step wide around each whole number."""
    edges = np.arange(len(lower) + 1) - 0.5
    low, high = (np.append(heights, heights[-1]) for heights in (lower, upper))
    axes.fill_between(
        edges,
        low,
        high,
        step="post",
        color=c.BAND,
        alpha=c.LOST,
        linewidth=0,
    )


# The scales of tensors -------------------------------------------------------------------
class Window(NamedTuple):
    """The effect of an FP8 scaling on a sequence of tensors."""

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
    """Scale and cast one tensor after the other, and count what is lost.

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
    """Draw where the largest number of each tensor lies in the range that its scale allows.

    Args:
        windows: by the name of the scaling, from `follow`, on the same tensors.

    Returns:
        A figure with a panel for each scaling: grey above is what saturates, grey below what
        becomes zero. Its title counts the tensors that lose most of their numbers.
    """
    picture = c.Picture(height=1.4 + 1.45 * len(windows))
    rows = picture.subplots(len(windows), 1, sharex=True, sharey=True, squeeze=False)[
        :, 0
    ]
    low, high = _heights(windows.values())
    for axes, (name, window) in zip(rows, windows.items(), strict=True):
        _draw_window(axes, window, low, high)
        words = f"{name}\n{_fate(window)}"
        axes.text(1.02, 0.5, words, transform=axes.transAxes, va="center")
        c.binary_axis(axes.yaxis, "", count=5)
    for y, va, word in ((0.95, "top", "saturates"), (0.06, "bottom", "becomes 0")):
        rows[0].text(0.012, y, word, transform=rows[0].transAxes, va=va)
    rows[-1].set_xlabel("tensor, one in each step")
    rows[-1].locator_params("x", integer=True)
    picture.supylabel("largest magnitude", fontsize=10)
    counts = {
        name: int(np.sum(w.saturated + w.flushed > 0.5)) for name, w in windows.items()
    }
    parts = c.listed(f"{count} with {name}" for name, count in counts.items())
    total = len(next(iter(windows.values())).amaxes)
    fates = "; ".join(
        f"{name}: {_fate(w)}".replace("\n", ", ") for name, w in windows.items()
    )
    return c.titled(
        picture,
        f"Tensors of {total} that lose most of their numbers: {parts}",
        f"Line charts, one for each scaling. {fates}.",
    )


def _heights(windows: Iterable[Window]) -> tuple[float, float]:
    """Return the range of exponents that all panels show."""
    ends = [_ends(window) for window in windows]
    low = min(bottom.min() for bottom, _ in ends)
    high = max(top.max() for _, top in ends)
    return low - 2, high + 4


def _ends(window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Return the exponents below which numbers become zero, and above which they saturate."""
    bottom = np.log2(window.fmt.min_subnormal / 2 / window.scales)
    return bottom, np.log2(window.fmt.max_finite / window.scales)


def _draw_window(axes: Axes, window: Window, low: float, high: float) -> None:
    """Draw bands past the two ends of the range, and the largest magnitudes as dots."""
    steps = np.arange(len(window.scales))
    look = c.style(window.fmt)
    bottom, top = _ends(window)
    band_between(axes, top, np.full_like(top, high))
    band_between(axes, np.full_like(top, low), bottom)
    axes.plot(
        steps, np.log2(window.amaxes), look.marker, color=look.colour, markersize=4
    )
    axes.set_ylim(low, high)
    axes.set_xlim(-0.5, len(steps) - 0.5)


def _fate(window: Window) -> str:
    """Say the worst losses in words."""
    saturated = c.percent(float(window.saturated.max()), 1)
    flushed = c.percent(float(window.flushed.max()), 1)
    return f"up to {saturated} saturate\nand {flushed} become 0"
