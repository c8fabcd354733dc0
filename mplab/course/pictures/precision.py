"""The figures of a precision policy: what runs in which format, and what that costs."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mplab.common.words import plural
from mplab.course.pictures import canvas as c
from mplab.numbers.formats import FP32, Format
from mplab.simulation.explanation import Explanation, Row

_ROW, _COLUMN, _LETTER = 0.18, 0.27, 0.068  # inches

_SHORTER = (
    (r"_for_cpu|_backward(_data)?$|_forward$|^_+|^native_", ""),
    (r"scaled_dot_product\w*attention", "attention"),
)


@c.in_house_style
def precision_map(explanation: Explanation) -> c.Picture:
    """Draw modules by operations, each cell with the colour and the marker of its format.

    Args:
        explanation: what `mplab.simulation.explain` found.

    Returns:
        A figure with a panel for the forward and one for the backward pass, whose title says how
        many operations ran in which format. Two markers in one cell: two formats.

    Examples:
        >>> import torch
        >>> from mplab.simulation import explain
        >>> precision_map(explain(torch.nn.Linear(2, 2), torch.ones(1, 2))).claim
        'CUDA_AUTOCAST runs 3 of 3 operations of Linear in FP16'
    """
    rows = explanation.rows
    modules = list(dict.fromkeys(row.module for row in rows))
    phases = [phase for phase in ("forward", "backward") if _of(rows, phase)]
    columns = {
        phase: list(dict.fromkeys(_short(r.operation) for r in _of(rows, phase)))
        for phase in phases
    }
    widths = [len(columns[phase]) for phase in phases]
    beside = _LETTER * max(map(len, modules)) + _COLUMN * sum(widths)
    below = _LETTER * max(len(name) for names in columns.values() for name in names)
    picture = c.Picture(
        height=1.6 + _ROW * len(modules) + below, width=max(7.6, 0.8 + beside)
    )
    grid = picture.subplots(
        1, len(phases), sharey=True, squeeze=False, gridspec_kw={"width_ratios": widths}
    )[0]
    for axes, phase in zip(grid, phases, strict=True):
        _panel(axes, _of(rows, phase), modules, columns[phase])
        axes.set_title(phase)
    formats = list(
        dict.fromkeys(
            row.format for row in sorted(rows, key=lambda r: r.format == FP32)
        )
    )
    key = []
    for fmt in formats:
        look = c.style(fmt)
        mark: Any = {
            "marker": look.marker or "o",
            "color": look.colour,
            "linestyle": "",
        }
        key.append(Line2D([], [], **mark, label=fmt.name))
    picture.legend(
        handles=key, loc="outside lower right", ncols=len(key), frameon=False
    )
    return c.titled(picture, _claim(explanation, formats), _details(rows, modules))


def _short(operation: str) -> str:
    """Shorten an operation's name: drop what only torch's kernels need."""
    for pattern, instead in (*_SHORTER, *_SHORTER[:1]):
        operation = re.sub(pattern, instead, operation)
    return operation


def _of(rows: Sequence[Row], phase: str) -> list[Row]:
    return [row for row in rows if row.phase == phase]


def _panel(
    axes: Axes, rows: Sequence[Row], modules: list[str], columns: list[str]
) -> None:
    """Draw a marker in each cell; several formats stand side by side."""
    cells: dict[tuple[str, str], dict[Format, None]] = {}
    for row in rows:
        cells.setdefault((row.module, _short(row.operation)), {})[row.format] = None
    for (module, operation), formats in cells.items():
        for i, fmt in enumerate(formats):
            x = columns.index(operation) + 0.36 * (i - (len(formats) - 1) / 2)
            look = c.style(fmt)
            size = 6.5 if len(formats) == 1 else 4.5
            axes.plot(
                x, modules.index(module), look.marker or "o", color=look.colour, ms=size
            )
    axes.set_xticks(range(len(columns)), columns, rotation=90)
    axes.set_yticks(range(len(modules)), modules)
    axes.set_xlim(-0.6, len(columns) - 0.4)
    axes.set_ylim(len(modules) - 0.4, -0.6)
    axes.grid(color="#E4E4E8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[["left", "bottom"]].set_visible(False)


def _claim(explanation: Explanation, formats: list[Format]) -> str:
    """Say how many operations ran in which format."""
    rows = explanation.rows
    counts = [(fmt, sum(row.format == fmt for row in rows)) for fmt in formats]
    (first, count), *rest = counts
    choices = len(explanation.policy.layers)
    start = explanation.policy.constant
    if choices:
        start += f" with {plural(choices, 'choice')} of layers"
    start += f" runs {count} of {len(rows)} operations of "
    start += f"{explanation.model} in {first.name}"
    others = [f"{n} in {fmt.name}" for fmt, n in rest]
    return f"{start}, {c.listed(others)}" if others else start


def _details(rows: Sequence[Row], modules: list[str]) -> str:
    """Say each module's share of operations in a low format, for a reader who cannot see it."""
    shares = []
    for module in modules:
        here = [row.format for row in rows if row.module == module]
        low = sum(fmt != FP32 for fmt in here)
        shares.append(f"{module}: {c.percent(low, len(here))} of {len(here)}")
    return f"Modules by operations; operations in a low format: {'; '.join(shares)}."


@c.in_house_style
def sensitivity(
    errors: Mapping[Format, Mapping[str, float]],
) -> c.Picture:
    """Draw the error that each layer causes when it alone runs in a low format.

    Args:
        errors: for each format the relative error of the model's output, by the layer that ran
            in it, in one order of layers; `help(mplab.simulation)` measures it.

    Returns:
        A figure with a row for each layer, whose title names the costliest layer in each format
        and the most that any other costs.
    """
    errors = {  # NaN is as bad as infinity, and can be compared
        fmt: {n: math.inf if math.isnan(e) else e for n, e in found.items()}
        for fmt, found in errors.items()
    }
    layers = list(next(iter(errors.values())))
    picture = c.Picture(height=1.7 + 0.44 * len(layers))
    axes = picture.subplots()
    every = [cost for found in errors.values() for cost in found.values()]
    finite = [cost for cost in every if math.isfinite(cost)]
    edge = math.ceil(math.log2(max([1.0, *finite]))) + 2.0
    _draw_costs(axes, errors, layers, edge)
    label = "relative error of the output, with this layer alone in the format"
    c.binary_axis(axes.xaxis, label, count=12)
    if finite != every:
        axes.axvspan(edge - 1, edge + 1, color=c.BAND, alpha=c.LOST, linewidth=0)
        c.label_spans(picture, axes, [("inf, NaN", edge - 1, edge + 1)])
    key = axes.get_legend_handles_labels()
    picture.legend(*key, loc="outside lower right", ncols=len(errors), frameon=False)
    details = "; ".join(
        f"{fmt.name}: " + ", ".join(f"{name} {_cost(e)}" for name, e in found.items())
        for fmt, found in errors.items()
    )
    claims = "; ".join(_costliest(fmt, found) for fmt, found in errors.items())
    return c.titled(picture, f"Alone {claims}", f"Marks in rows. {details}.")


def _draw_costs(
    axes: Axes,
    errors: Mapping[Format, Mapping[str, float]],
    layers: list[str],
    edge: float,
) -> None:
    """Mark each error in its layer's row, infinities at the edge; formats stand apart."""
    for i, (fmt, found) in enumerate(errors.items()):
        look = c.style(fmt)
        costs = np.array([found[name] for name in layers], float)
        rows = np.flatnonzero(costs > 0)
        x = np.minimum(np.log2(costs[rows]), edge)
        y = rows + 0.2 * (i - (len(errors) - 1) / 2)
        axes.plot(
            x, y, look.marker or "o", color=look.colour, markersize=7, label=fmt.name
        )
    c.rows(axes, layers)
    axes.grid(axis="y", color="#E4E4E8", linewidth=0.6)
    axes.set_axisbelow(True)


def _costliest(fmt: Format, found: Mapping[str, float]) -> str:
    """Name the layer that costs most, and what the others cost; or say that all cost alike."""
    *others, (name, most) = sorted(found.items(), key=lambda item: item[1])
    if others and most < 1.2 * others[-1][1]:
        return f"in {fmt.name}, no layer costs more than {_cost(most)}"
    words = f"in {fmt.name}, {name} costs {_cost(most)}"
    return f"{words}, any other at most {_cost(others[-1][1])}" if others else words


def _cost(error: float) -> str:
    """Write an error in two digits, as a percentage."""
    return f"{float(f'{100 * error:.2g}'):g}%" if math.isfinite(error) else "all"
