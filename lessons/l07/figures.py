"""Weight updates: which are lost, and what keeps them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from mplab import BF16, FP32, Format, round_to, ulp
from mplab.common.words import number
from mplab.course.pictures import canvas as c
from mplab.lessons.l07.descent import Descent

_WITH = {
    "nearest": "rounded to nearest",
    "stochastic": "rounded by coin",
    "kahan": "with Kahan's correction",
    "master": "with an FP32 master",
}


def weight_paths(paths: np.ndarray, *, update: float) -> c.Picture:
    """BF16 weights over many equal updates, beside where the updates should have led.

    Args:
        paths: from `mplab.lessons.l07.descent.update_trajectory`, shape (steps + 1, weights).
        update: what every step added.

    Returns:
        A figure whose title says how far each weight came.
    """
    steps = len(paths) - 1
    look = c.style(BF16)
    lines = []
    count = np.arange(steps + 1)
    for way in paths.T:
        lines.append(
            c.Line(count, way[0] + update * count, "", c.REFERENCE, {"linewidth": 0.9})
        )
        words = f"{way[0]:.3g} → {way[-1]:.3g}"
        lines.append(c.Line(count, way, words, look, {"linestyle": "solid"}))
    moves = [number(move, digits=2) for move in paths[-1] - paths[0]]
    claim = (
        f"{steps:,} updates of {update:g} should add {steps * update:g} to each weight. "
        f"In BF16 they add {c.listed(moves)}."
    )
    quantities = "updates", "weight"
    return c.line_chart(lines, *quantities, claim, "Thin lines show the exact sums.")


def least_updates(formats: Sequence[Format], *, update: float) -> c.Picture:
    """The largest update that does nothing, against the weight it is added to.

    Args:
        formats: of the weights.
        update: a size of update to mark.

    Returns:
        A figure whose title says what it takes to move a weight of 1 upward.
    """
    edges = np.exp2(np.arange(-8.0, 5.0))
    weights = np.sort(np.concatenate([edges, np.nextafter(edges[1:], 0)]))
    lines = [
        c.Line(weights, ulp(weights, fmt) / 2, fmt.name, c.style(fmt))
        for fmt in formats
    ]
    level = weights[[0, -1]], [update, update]
    lines.append(c.Line(*level, f"Δ = {update:g}", c.REFERENCE, {"linewidth": 0.9}))
    words = c.listed(
        f"{c.power_of_two(float(ulp(1.0, fmt)) / 2)} in {fmt.name}" for fmt in formats
    )
    claim = f"To raise a weight of 1, an update must exceed {words}."
    details = "Staircases: half an ulp of the weight."
    quantities = "weight", "largest update that does nothing"
    return c.line_chart(lines, *quantities, claim, details, log="xy")


@c.in_house_style
def descents(runs: Sequence[Descent]) -> c.Picture:
    """Loss, and share of weights that moved, of regressions with weights in low precision.

    Args:
        runs: from `mplab.lessons.l07.descent.fit_by_gradient_descent`, of equal length.

    Returns:
        A figure of two panels whose title says which weights stop, and at which loss; a run that
        diverges has no name at its end.
    """
    picture = c.Picture(height=5.0, width=8.2)
    above, below = picture.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.set_yscale("log", base=2)
    for part in (above, below):
        part.margins(x=0.01)
    c.log_ticks(above.yaxis, count=7)
    above.set_ylabel("loss")
    below.set_ylabel("weights moved (%)")
    below.set_xlabel("step")
    ends: list[c.End] = []
    for run in runs:
        ends += _draw_descent(above, below, run)
    finite = [run for run in runs if np.isfinite(run.loss[-1])]
    fates = {
        "stop moving, at a loss of {}": [run for run in finite if _late(run) == 0],
        "go on to a loss of {}": [run for run in finite if _late(run) > 0],
        "diverge": [run for run in runs if not np.isfinite(run.loss[-1])],
    }
    parts: list[str] = []
    for fate, some in fates.items():
        if some:
            those = "those " if parts else ""
            ways = c.listed(those + _WITH[run.method] for run in some)
            parts.append(f"{ways} {fate.format(_worst(some))}")
    sentence = f"{runs[0].fmt.name} weights {'; '.join(parts)}."
    c.label_ends(picture, [end for end in ends if np.isfinite(end.y)])
    details = f"Two line charts over {len(runs[0].loss)} steps."
    return c.titled(picture, sentence, details)


def _draw_descent(above: Axes, below: Axes, run: Descent) -> list[c.End]:
    dash, words = c.METHOD_STYLES[run.method]
    look = c.style(FP32 if run.method == "master" else run.fmt)
    steps = np.arange(len(run.loss))
    above.plot(steps, run.loss, color=look.colour, linestyle=dash)
    width = max(1, len(steps) // 40)
    kept = len(steps) // width * width
    share = 100 * run.arrived[:kept].reshape(-1, width).mean(axis=1)
    places = steps[:kept].reshape(-1, width).mean(axis=1)
    below.plot(places, share, color=look.colour, linestyle=dash)
    name = f"{run.fmt.name}, {words}"
    x = float(steps[-1])
    return [
        c.End(above, x, float(run.loss[-1]), name, look.colour),
        c.End(below, x, float(share[-1]), name, look.colour),
    ]


def _worst(runs: Sequence[Descent]) -> str:
    largest = f"{max(run.loss[-1] for run in runs):.2g}"
    return f"{largest} or less" if len(runs) > 1 else largest


def _late(run: Descent) -> float:
    """The share of weights that move in the last tenth of a run."""
    return float(run.arrived[-max(1, len(run.arrived) // 10) :].mean())


@c.in_house_style
def stochastic_spread(paths: np.ndarray, *, update: float) -> c.Picture:
    """Many BF16 weights that took the same updates, each rounded by its own coin.

    Args:
        paths: from `mplab.lessons.l07.descent.update_trajectory` with method "stochastic", shape
            (steps + 1, weights), all from one start.
        update: what every step added.

    Returns:
        A figure whose title compares their mean and their scatter with the exact sum.
    """
    steps = len(paths) - 1
    exact = float(paths[0, 0] + update * (len(paths) - 1))
    picture = c.Picture(height=3.8)
    axes = picture.subplots()
    look = c.style(BF16)
    count = np.arange(steps + 1)
    some = count[:: max(1, steps // 400)]  # a band of all would be 300 kB of SVG
    low, high = np.quantile(paths[some], (0.05, 0.95), axis=1)
    axes.fill_between(some, low, high, color=c.BAND, alpha=0.4, linewidth=0)
    axes.plot(count, paths[:, 0], color=look.colour, linewidth=1)
    axes.plot(count, paths.mean(axis=1), color=c.NEUTRAL[0].colour, linewidth=2.4)
    axes.plot(count, paths[0, 0] + update * count, color="black", linewidth=0.9)
    still = float(round_to(paths[0, 0] + update, BF16))
    axes.set_xlabel("updates")
    axes.set_ylabel("weight")
    ends = [
        c.End(axes, steps, float(paths[-1, 0]), "one of them", look.colour),
        c.End(axes, steps, float(paths[-1].mean()), "their mean", c.NEUTRAL[0].colour),
        c.End(axes, steps, exact, "exact", "black"),
        c.End(axes, steps, float(high[-1]), "nine in ten", c.BAND),
    ]
    if still == paths[0, 0]:
        axes.plot(
            count, np.full(steps + 1, still), color=look.colour, linestyle="dashed"
        )
        ends.append(c.End(axes, steps, still, "to nearest", look.colour))
    sentence = (
        f"{paths.shape[1]:,} weights rounded by coin average {paths[-1].mean():.4f}, where "
        f"{exact:.4g} is exact; single ones scatter by ±{paths[-1].std():.2g}."
    )
    c.label_ends(picture, ends)
    return c.titled(
        picture, sentence, "Line chart with a band that holds nine weights in ten."
    )
