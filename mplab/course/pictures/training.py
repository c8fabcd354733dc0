"""The table of training runs, and their figures: losses, gradients, loss scales and seeds."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.typing import FillStyleType
from numpy.typing import NDArray

from mplab.common.tables import Table
from mplab.course.pictures import canvas as c
from mplab.numbers.formats import FP16, FP32, Format
from mplab.training.exponents import (
    ExponentHistogram,
    ZoneCounts,
    exponent_of,
    pooled,
    shares,
    window,
    zone_of,
    zone_words,
)
from mplab.training.history import History

# Runs ------------------------------------------------------------------------------------
LOSSES = {"mse_loss": "mean squared error", "cross_entropy": "cross entropy"}


UNSCALED = " without scaling"  # how the name of an FP16 run without a loss scaler ends


_TWINS: tuple[tuple[FillStyleType, Any], ...] = (
    ("full", None),
    ("left", (0, (5, 1, 1, 1, 1, 1))),
    ("right", (0, (1.5, 1))),
)
"""Marker fill and dash (None: the format's own) of several runs of one format in a panel."""


UPDATES = {"stochastic": "stochastic ", "kahan": "Kahan "}


def run_name(history: History) -> str:
    """Name a run in a few words: its formats, and whether its loss was scaled."""
    name = history.compute_format
    low = history.settings.get("weight_format", FP32.name)
    if low != FP32.name and history.settings.get("optimizer_format") == low:
        name = f"pure {name}" if name == low else f"{name} on pure {low}"
    elif low != FP32.name:
        update = UPDATES.get(history.settings.get("update_rounding", ""), "")
        name += f" with {update}{low} weights"
    way = history.settings.get("fp8")
    if way is not None:  # a name such as nvfp4 includes its format
        name = (
            way if "fp" in way else f"{name} {way} scaling".replace("none", "without")
        )
    if np.any(history.loss_scale != 1):
        static = "" if history.settings.get("dynamic", True) else "static "
        return f"{name} with {static}loss scaling"
    return name + UNSCALED if history.compute_format == FP16.name else name


def run_place(history: History) -> str:
    """Say where the arithmetic came from: the simulator, or torch on a device."""
    if history.simulated:
        return "simulated"
    plain = (
        history.compute_format == FP32.name
        or history.settings.get("fp8") is not None
        or history.settings.get("weight_format", FP32.name) != FP32.name
    )
    device = history.device.replace("cpu", "CPU")
    return f"{'torch' if plain else 'torch AMP'} on {device}"


def final_loss(history: History) -> float:
    """Return the mean loss of the last ten steps."""
    return float(np.mean(history.loss[-10:]))


def alike(histories: Sequence[History]) -> dict[tuple[str, str], list[History]]:
    """Group the runs that differ only by their seeds, by name and place.

    If two recipes would have one name, as two kinds of loss scaling do, the recipe is added.
    """
    groups: dict[tuple[str, str, str], list[History]] = {}
    for run in histories:
        groups.setdefault((run_name(run), run_place(run), run.recipe), []).append(run)
    counts = Counter((name, place) for name, place, _ in groups)
    return {
        (f"{name} ({recipe})" if counts[name, place] > 1 else name, place): runs
        for (name, place, recipe), runs in groups.items()
    }


def _panels(histories: Sequence[History]) -> dict[str, list[History]]:
    """Group the runs by place; each panel begins with the FP32 runs to compare with."""
    wide = [history for history in histories if history.compute_format == FP32.name]
    places: dict[str, list[History]] = {}
    for history in histories:
        if history.compute_format != FP32.name:
            places.setdefault(run_place(history), list(wide)).append(history)
    return places or {"": wide}


def _end(axes: Axes, values: NDArray[np.float64], text: str, run: History) -> c.End:
    """Return a curve's end, its last finite value; the name says so if it is not the last value."""
    finite = np.flatnonzero(np.isfinite(values))
    last = int(finite[-1]) if len(finite) else 0
    text += "" if last == len(values) - 1 else f"\n(until step {last})"
    return c.End(
        axes, last, float(values[last]), text, c.style(run.compute_format).colour
    )


# Losses ----------------------------------------------------------------------------------
@c.in_house_style
def loss_curves(histories: Sequence[History]) -> c.Picture:
    """Draw the training loss over steps, simulated and real runs side by side.

    Args:
        histories: runs of one task. FP32 runs appear in every panel, to compare with.

    Returns:
        A figure whose title says which runs end with FP32 and which above it.
    """
    panels = _panels(histories)
    most = max(len(alike(runs)) for runs in panels.values())
    picture = c.Picture(
        height=3.6 + 0.3 * max(0, most - 6), width=7.6 if len(panels) == 1 else 9.4
    )
    grid = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    ends: list[c.End] = []
    seeds = len({run.seed for run in histories})
    kind = f"median and range of {seeds} seeds" if seeds > 1 else ""
    for axes, (place, runs) in zip(grid, panels.items(), strict=True):
        axes.set_yscale("log")
        axes.set_title("\n".join(filter(None, (place, kind))))
        axes.set_xlabel("training step")
        ends += _draw_losses(axes, runs)
    loss_axis(grid[0], histories[0].task)
    groups = alike(histories)
    ends_at = "; ".join(
        f"{n} ({where}) {_loss_words(runs)}" for (n, where), runs in groups.items()
    )
    chart = ", ".join(filter(None, ("Line chart of the training loss", kind)))
    c.titled(picture, _loss_claim(histories), f"{chart}. {ends_at}.")
    c.label_ends(picture, ends)
    return picture


def _draw_losses(axes: Axes, runs: Sequence[History]) -> list[c.End]:
    """Draw the curves of a panel; curves of one format differ by dash and marker fill."""
    ends: list[c.End] = []
    seen: Counter[tuple[str, bool]] = Counter()
    for place, ((name, _), same) in enumerate(alike(runs).items()):
        look = same[0].compute_format, UNSCALED in name
        ends.append(_draw_loss(axes, same, name, place=place, twin=seen[look]))
        seen[look] += 1
    return ends


def _draw_loss(
    axes: Axes, runs: Sequence[History], name: str, *, place: int, twin: int
) -> c.End:
    """Draw the median of some seeds over their range; hollow markers: FP16 without loss scaling."""
    look = c.style(runs[0].compute_format)
    fill, dash = _TWINS[twin % len(_TWINS)]
    steps = min(len(run.loss) for run in runs)
    losses = np.array([run.loss[:steps] for run in runs])
    middle = np.median(losses, axis=0)
    if len(runs) > 1:
        edges = losses.min(0), losses.max(0)
        axes.fill_between(
            range(steps), *edges, color=look.colour, alpha=0.18, linewidth=0
        )
    axes.plot(
        middle,
        color=look.colour,
        linestyle=dash or look.dash,
        marker=look.marker,
        fillstyle=fill,
        markerfacecolor="white" if UNSCALED in name else look.colour,
        markerfacecoloralt="white",
        markevery=(
            (2 * place + 1) * steps // 64,
            max(1, steps // 8),
        ),  # apart on equal curves
    )
    end = _end(axes, middle, name, runs[0])
    if end.x < steps - 1:  # it may lie below another curve up to here
        axes.plot(end.x, end.y, "X", color=look.colour, markersize=13, zorder=4)
    return end


def loss_axis(axes: Axes, task: str) -> None:
    """Label a logarithmic axis with plain decimals."""
    from mplab.training.tasks import TASKS

    kind = LOSSES.get(TASKS[task].loss.__name__) if task in TASKS else None
    axes.set_ylabel("training loss" + (f" ({kind})" if kind else ""))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _loss_claim(histories: Sequence[History]) -> str:
    """Say which runs end within a tenth of FP32's loss, and how far from it the others end."""
    wide = [run for run in histories if run.compute_format == FP32.name]
    others = [run for run in histories if run.compute_format != FP32.name]
    usable = all(0 < final_loss(run) < math.inf for run in wide)
    if not (wide and others and usable):
        return "; ".join(
            f"{n} {_loss_words(runs)}" for (n, _), runs in alike(histories).items()
        )
    ratios: dict[str, list[float]] = {}
    by_seed = {run.seed: final_loss(run) for run in reversed(wide)}
    usual = final_loss(wide[0])
    for (name, _), runs in alike(others).items():
        found = [final_loss(run) / by_seed.get(run.seed, usual) for run in runs]
        ratios.setdefault(name, []).extend(found)
    close = [
        name for name, found in ratios.items() if all(abs(r - 1) <= 0.1 for r in found)
    ]
    parts = [
        f"{name} ends {_times(r)}" for name, r in ratios.items() if name not in close
    ]
    if close:
        verb = "end" if len(close) > 1 else "ends"
        named = any(FP32.name in part for part in parts)
        parts.append(
            f"{c.listed(close)} {verb} within 10% of {'it' if named else FP32.name}"
        )
    return "; ".join(parts)


def _times(ratios: Sequence[float]) -> str:
    """Say how far above or below FP32's loss some runs end."""
    return _without(ratios) or f"at {c.span(ratios)}× FP32's loss"


def _without(losses: Sequence[float]) -> str:
    """Say how many losses are not finite; nothing if all are."""
    lost = int(np.sum(~np.isfinite(losses)))
    some = f" in {lost} of {len(losses)} runs" if lost < len(losses) else ""
    return f"without a finite loss{some}" if lost else ""


def _loss_words(runs: Sequence[History]) -> str:
    losses = [final_loss(run) for run in runs]
    return f"ends {_without(losses) or f'at a loss of {np.median(losses):.3g}'}"


# Gradients -------------------------------------------------------------------------------
@c.in_house_style
def gradient_exponents(
    layers: Mapping[str, ExponentHistogram], fmt: Format
) -> c.Picture:
    """Draw histograms of each layer's gradient exponents, over the zones of a format.

    Args:
        layers: one histogram for each layer, from the input to the output.
        fmt: the format that the gradients would be rounded to.

    Returns:
        A figure with one row for each layer: filled bars keep full precision, pale ones
        become subnormal, and hollow ones are lost, to zero or past the largest value.
    """
    picture = c.Picture(height=1.7 + 0.62 * max(3, len(layers)))
    rows = picture.subplots(len(layers), 1, sharex=True, sharey=True, squeeze=False)[
        :, 0
    ]
    low, high = window(pooled(layers.values()), fmt)
    found = {name: shares(histogram, fmt) for name, histogram in layers.items()}
    fates = {name: _fate(found[name], h.nonfinite) for name, h in layers.items()}
    for axes, (name, histogram) in zip(rows, layers.items(), strict=True):
        draw_zones(axes, fmt, low, high)
        draw_exponents(axes, histogram, fmt)
        words = f"{name}\n{fates[name]}"
        axes.text(1.01, 0.5, words, transform=axes.transAxes, va="center")
    key = "filled: all digits · pale: subnormal · hollow: becomes 0 or overflows"
    c.binary_axis(rows[-1].xaxis, f"gradient, absolute value\n{key}")
    picture.supylabel("share of the layer's gradients (%)", fontsize=10)
    details = "; ".join(f"{name}: {fate}" for name, fate in fates.items())
    details = details.replace("\n", ", ")
    lost = sum(histogram.nonfinite for histogram in layers.values())
    claim = _range_claim(found, fmt) + (f"; {lost:,} are inf or NaN" if lost else "")
    c.titled(picture, claim, f"One histogram a layer. {details}.")
    c.label_spans(picture, rows[0], zone_words(fmt, low, high))
    return picture


def draw_zones(axes: Axes, fmt: Format, low: int, high: int) -> None:
    """Draw grey bands where `fmt` loses numbers or digits."""
    for start, end, strength in c.bands(fmt, low, high):
        axes.axvspan(start, end, color=c.BAND, alpha=strength, linewidth=0, zorder=0)
    axes.set_xlim(low, high)


def draw_exponents(
    axes: Axes, histogram: ExponentHistogram, fmt: Format, loss_scale: float = 1.0
) -> None:
    """Draw bars a binade wide: filled, pale, or hollow, by what `fmt` makes of them."""
    where = np.asarray(histogram.exponents) + exponent_of(loss_scale)
    height = 100 * np.asarray(histogram.counts) / max(1, int(np.sum(histogram.counts)))
    colour = c.style(fmt).colour
    faces = ("white", (colour, 0.35), colour, "white")
    for zone, face in enumerate(faces):
        here = zone_of(where, fmt) == zone
        axes.bar(
            where[here] + 0.5, height[here], width=0.86, color=face, edgecolor=colour
        )


def _fate(part: ZoneCounts, nonfinite: int) -> str:
    """Say how much of a layer's gradients is lost, or was not finite before."""
    if not part.total:
        return "all are 0, inf or NaN" if nonfinite else "all are 0"
    words = f"{c.percent(part.flushed, part.total)} flushed"
    if part.overflow:
        words += f"\n{c.percent(part.overflow, part.total)} overflow"
    return words + (f"\n{nonfinite:,} inf or NaN" if nonfinite else "")


def _range_claim(layers: Mapping[str, ZoneCounts], fmt: Format) -> str:
    """Say what `fmt` loses of all these gradients, and in which layers it loses most."""
    parts = []
    for words, zone in (
        ("flushes {} of these gradients to 0", 0),
        ("overflows on {}", 3),
    ):
        pairs = {name: (part[zone], part.total) for name, part in layers.items()}
        if any(lost for lost, _ in pairs.values()):
            parts.append(words.format(c.percent(*summed(pairs))) + _worst(pairs))
    if not parts:
        return f"{fmt.name} flushes none of these gradients to 0 and overflows on none"
    return f"{fmt.name} {' and '.join(parts)}"


def summed(pairs: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Add up the parts and the wholes of all layers."""
    parts = sum(part for part, _ in pairs.values())
    wholes = sum(whole for _, whole in pairs.values())
    return parts, wholes


def _worst(pairs: Mapping[str, tuple[int, int]]) -> str:
    """Name the layers with the largest share, in brackets; none if they are like the rest."""
    share = {name: part / max(1, whole) for name, (part, whole) in pairs.items()}
    names = [name for name in pairs if share[name] == max(share.values())]
    there = c.percent(*pairs[names[0]])
    return (
        "" if there == c.percent(*summed(pairs)) else f" ({there} in {c.listed(names)})"
    )


# The loss scale --------------------------------------------------------------------------
@c.in_house_style
def loss_scale(histories: Sequence[History]) -> c.Picture:
    """Draw the loss scale over steps; a cross marks a step that was skipped.

    Args:
        histories: runs; only runs with loss scaling show something.

    Returns:
        A figure whose title says how many steps were skipped and where the scale went.
    """
    picture = c.Picture(height=3.2)
    axes = picture.subplots()
    ends = []
    seen: dict[str, list[str]] = {}
    for run in histories:
        look = c.style(run.compute_format)
        kinds = seen.setdefault(run.compute_format, [])
        if run.recipe not in kinds:
            kinds.append(run.recipe)
        dash = _TWINS[kinds.index(run.recipe) % len(_TWINS)][1] or look.dash
        height = np.log2(np.where(run.loss_scale > 0, run.loss_scale, np.nan))
        axes.step(range(len(height)), height, where="mid", color=look.colour, ls=dash)
        lost = np.flatnonzero(run.skipped)
        axes.plot(lost, height[lost], "x", color=c.REFERENCE.colour, markersize=7)
        ends.append(_end(axes, height, f"{run_name(run)}\n({run_place(run)})", run))
    axes.margins(y=0.12)
    axes.set_xlabel("training step")
    c.binary_axis(axes.yaxis, "loss scale (power of two)", count=8)
    claims = "; ".join(_scale_claim(run) for run in histories)
    c.titled(
        picture, claims, "Line chart of the loss scale; crosses mark skipped steps."
    )
    c.label_ends(picture, ends)
    return picture


def _scale_claim(run: History) -> str:
    """Say how often a run skipped a step, and how its scale changed."""
    skipped = int(run.skipped.sum())
    first = run.loss_scale[0]
    last = run.loss_scale[-1]
    steps = f"{skipped} of {len(run.skipped)} steps (crosses)" if skipped else "no step"
    if np.all(run.loss_scale == first):
        path = f"its loss scale stays at {scale_words(first)}"
    else:
        path = f"its loss scale goes from {scale_words(first)} to {scale_words(last)}"
    return f"{run_name(run)} ({run_place(run)}) skips {steps}; {path}"


def scale_words(scale: float) -> str:
    """Write a loss scale as a power of two, or in digits if it is none."""
    return c.power_of_two(scale) if math.frexp(scale)[0] == 0.5 else f"{scale:.4g}"


# Seeds -----------------------------------------------------------------------------------
@c.in_house_style
def by_seed(
    results: Mapping[str, Sequence[float]],
    *,
    metric: str = "test accuracy",
    source: str = "",
) -> c.Picture:
    """Draw the metric that runs of several seeds reach, a row for each way of training.

    Args:
        results: for each way of training, its metric by seed, in one order of seeds; the others
            are compared with the first way.
        metric: what is measured.
        source: where the results come from, if not from runs made here.

    Returns:
        A figure whose title says by how much each way changes the metric, seed by seed; of more
        than two ways, the lowest and the highest.
    """
    names = list(results)
    values = np.array(list(results.values()), float)
    picture = c.Picture(height=1.7 + 0.42 * len(names))
    axes = picture.subplots()
    ends = np.nanmin(values[0]), np.nanmax(values[0])
    axes.axvspan(*ends, color=c.BAND, alpha=c.COARSE, linewidth=0)
    for row, (name, scores) in enumerate(zip(names, values, strict=True)):
        look = look_of(name)
        marks: Any = {"color": look.colour, "markersize": 7, "alpha": 0.75}
        axes.plot(scores, np.full(len(scores), row), look.marker or "o", **marks)
        axes.text(
            1.02, row, _range(scores), transform=axes.get_yaxis_transform(), va="center"
        )
    c.rows(axes, names)
    axes.set_xlabel(f"{metric}, one mark a seed (grey: the range of {names[0]})")
    changes = [
        f"{_range(v - values[0], sign='+')} with {n}"
        for n, v in zip(names, values, strict=True)
    ][1:]
    if len(changes) > 2:  # the rows show all of them
        means = np.mean(values[1:] - values[0], axis=1)
        order = np.nan_to_num(means, nan=-np.inf).argsort()
        changes = [f"lowest {changes[order[0]]}", f"highest {changes[order[-1]]}"]
    each = "1 seed" if values.shape[1] == 1 else f"each of {values.shape[1]} seeds"
    reached = "; ".join(f"{n}: {_range(v)}" for n, v in zip(names, values, strict=True))
    against = f"{metric[0].upper()}{metric[1:]} against {names[0]}, on {each}"
    claim = f"{against}: {c.listed(changes)}"
    if source:
        claim += f" ({source})"
    return c.titled(picture, claim, f"Marks in rows. {reached}.")


def look_of(name: str) -> c.Style:
    """Return the look of the format that a way of training begins with, or a neutral one."""
    names = {"E4M3": "FP8_E4M3", "E5M2": "FP8_E5M2", "FP8": "FP8_E4M3"}
    first = name.partition(" ")[0].strip(",:")
    return c.STYLES.get(names.get(first, first), c.NEUTRAL[2])


def _range(values: np.ndarray, *, sign: str = "") -> str:
    """Write the least and the greatest finite value, or the only one, in three decimals."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "not finite"
    ends = [f"{value:{sign}.3f}" for value in (finite.min(), finite.max())]
    words = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
    if finite.size < values.size:
        words += f" and {values.size - finite.size} not finite"
    return words.replace("-", "−").replace("+0.000", "0.000").replace("−0.000", "0.000")


# The table -------------------------------------------------------------------------------
METRICS = {"r2": "test R²", "accuracy": "test accuracy"}


def results_table(histories: Sequence[History]) -> Table:
    """Tabulate how runs ended: loss, metrics, skipped steps, and the last step's loss scale.

    Runs that differ only by their seeds share a row: the median, and in brackets the range.
    """
    keys = list(dict.fromkeys(key for run in histories for key in run.metrics))
    names = tuple(METRICS.get(key, key) for key in keys)
    header = (
        "run",
        "where",
        "training loss",
        *names,
        "skipped steps",
        "last loss scale",
    )
    rows = tuple(
        (
            name,
            place,
            _middle([final_loss(run) for run in runs], ".4f"),
            *(
                _middle([run.metrics[k] for run in runs if k in run.metrics], ".3f")
                for k in keys
            ),
            _middle([int(run.skipped.sum()) for run in runs], ".0f")
            + f" of {len(runs[0].skipped)}",
            _last_scales(runs),
        )
        for (name, place), runs in alike(histories).items()
    )
    seeds = sorted({run.seed for run in histories})
    which = f"seed{'s' if len(seeds) > 1 else ''} {c.listed(map(str, seeds))}"
    return Table(f"{histories[0].task}, {which}", header, rows)


def _middle(values: Sequence[float], digits: str) -> str:
    """Write the median, and the range if there is one."""
    if not values:
        return "–"
    middle = format(np.median(values), digits)
    low = format(np.min(values), digits)
    high = format(np.max(values), digits)
    return middle if low == high else f"{middle} ({low} to {high})"


def _last_scales(runs: Sequence[History]) -> str:
    if not any(np.any(run.loss_scale != 1) for run in runs):
        return "none"
    words = [*map(scale_words, sorted({float(run.loss_scale[-1]) for run in runs}))]
    return words[0] if len(words) == 1 else f"{words[0]} to {words[-1]}"
