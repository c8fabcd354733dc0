"""One step of a matrix unit, and what long products lose."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from mplab import FP8_E4M3, FP16, FP32, Rounding, round_to
from mplab.arithmetic import mma
from mplab.arithmetic.architectures import Input, MatrixUnit, unit_of
from mplab.common.words import number
from mplab.course.pictures import canvas
from mplab.lessons import recordings
from mplab.lessons.l06.matrix_steps import StepBits, step_bits


# Long products ---------------------------------------------------------------------------
class DepthErrors(NamedTuple):
    """Largest errors of a matrix product, by the number of terms in each element.

    Attributes:
        depths: the numbers of terms.
        chained: errors relative to the sum of |products|, all steps inside the unit.
        promoted: the same with promotion.
        every: after how many terms a sum is promoted.
        signed: whether the operands had random signs.
    """

    depths: np.ndarray
    chained: np.ndarray
    promoted: np.ndarray
    every: int
    signed: bool = False


def measure_depth_errors(
    *,
    architecture: str = "hopper",
    every: int = 128,
    most: int = 4096,
    signed: bool = False,
) -> DepthErrors:
    """Errors of FP8 products of random matrices, with and without promotion.

    Elements are drawn from the normal distribution; without `signed` their signs are dropped.

    Exactness:
        The products they are compared with are exact: sums of 8-bit products in float64.
    """
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal((32, most)) for _ in range(2)]
    a, b = (round_to(x if signed else np.abs(x), FP8_E4M3) for x in drawn)
    depths = every << np.arange((most // every).bit_length())
    errors: list[list[float]] = [[], []]
    for depth in depths:
        x = a[:, :depth]
        y = b[:, :depth].T
        for kept, promote in zip(errors, (None, every), strict=True):
            got = mma(
                x,
                y,
                architecture=architecture,
                input_format=FP8_E4M3,
                promote_every=promote,
            )
            kept.append(float((np.abs(got - x @ y) / (np.abs(x) @ np.abs(y))).max()))
    return DepthErrors(depths, np.array(errors[0]), np.array(errors[1]), every, signed)


def plot_depth_errors(errors: DepthErrors) -> canvas.Picture:
    """The error of FP8 products against depth: all steps in the unit, or promoted to FP32."""
    lines = [
        canvas.Line(errors.depths, values, words, look, {"marker": look.marker})
        for look, values, words in (
            (canvas.NEUTRAL[0], errors.chained, "all in the unit"),
            (canvas.NEUTRAL[1], errors.promoted, f"promoted every {errors.every}"),
        )
    ]
    alone, left = (
        f"{part[-1] * 100:.2g}%" for part in (errors.chained, errors.promoted)
    )
    claim = (
        f"Products of {'either sign' if errors.signed else 'one sign'}: at K = "
        f"{errors.depths[-1]} the unit alone is off by up to {alone}; promoting every "
        f"{errors.every} terms leaves {left}."
    )
    quantities = "terms per element K", "largest error / sum of |products|"
    return canvas.line_chart(lines, *quantities, claim, log="xy")


def _named(architecture: str) -> str:
    return {"rtx_blackwell": "RTX Blackwell"}.get(
        architecture, architecture.capitalize()
    )


class CutErrors(NamedTuple):
    """Relative errors of the same products in a unit that cuts, and in two that do not exist.

    Attributes:
        cut: the unit as it is: it cuts where terms are aligned, and where the sum is written.
        rounded: to nearest at both places.
        terms: products in each sum.
        architecture: whose unit.
        written: to nearest where terms are aligned, cut where the sum is written.
    """

    cut: np.ndarray
    rounded: np.ndarray
    terms: int
    architecture: str
    written: np.ndarray


def measure_cut_errors(*, architecture: str = "hopper", terms: int) -> CutErrors:
    """Errors of products of random FP16 matrices, elements in [1/2, 1] with all their bits.

    Exactness:
        The products they are compared with are exact: multiples of 2^−22 below 2^30 in float64.
    """
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.uniform(0.5, 1, (16, terms)), FP16) for _ in range(2))
    unit = unit_of(architecture, FP16)
    nearest = Rounding.TIES_TO_EVEN
    writes = replace(unit, alignment=nearest)
    cut, rounded, written = (
        (mma(a, b.T, architecture=kind) / (a @ b.T) - 1).ravel()
        for kind in (unit, replace(writes, writing=nearest), writes)
    )
    return CutErrors(cut, rounded, terms, architecture, written)


@canvas.in_house_style
def plot_cut_errors(errors: CutErrors) -> canvas.Picture:
    """Draw how far sums are from the exact ones, with two cuts a step (the unit), one or none."""
    picture = canvas.Picture(height=3.4)
    axes = picture.subplots()
    unit = FP32.unit_roundoff
    shown = [values / unit for values in (errors.rounded, errors.written, errors.cut)]
    low = min(map(np.min, shown))
    high = max(map(np.max, shown))
    bins = np.linspace(min(low, 0.0), max(high, 0.0), 61).tolist()
    faces = ("white", canvas.BAND, canvas.NEUTRAL[0].colour)
    names = (
        "if it rounded",
        "if it cut only\nwhat it writes",
        f"as {_named(errors.architecture)} cuts",
    )
    for values, face, name in zip(shown, faces, names, strict=True):
        counts, *_ = axes.hist(
            values, bins=bins, facecolor=face, edgecolor=canvas.INK, linewidth=0.7
        )
        middle = float(np.mean(values))
        axes.text(middle, float(np.max(counts)) * 1.05, name, ha="center", va="bottom")
    axes.axvline(0, ymax=0.8, color="black", linewidth=1)
    axes.margins(y=0.2)
    axes.set_xlabel("relative error, in units of 2⁻²⁴ (FP32's u)")
    axes.set_ylabel("number of sums")
    below = int(np.sum(errors.cut < 0))
    part = "all" if below == errors.cut.size else f"{below} of"
    words = (
        f"FP16 operands in [½, 1]: {part} {errors.cut.size} cut sums are too small, by "
        f"{-np.mean(shown[2]):.0f} u on average. Cutting only what it writes would cost "
        f"{-np.mean(shown[1]):.0f} u, rounding {abs(np.mean(shown[0])):.1g} u."
    )
    detail = (
        f"Three histograms of {errors.cut.size} sums of {errors.terms} products each."
    )
    return canvas.titled(picture, words, detail)


# One step --------------------------------------------------------------------------------
@canvas.in_house_style
def bits_of_a_step(
    a: Any,
    b: Any,
    *,
    c: float = 0.0,
    architecture: str | MatrixUnit = "hopper",
    input_format: Input = FP8_E4M3,
) -> canvas.Picture:
    """Where the bits of each product go in one step of a matrix unit.

    Args:
        a: a few values of `input_format`, no more than the unit takes at once.
        b: what to multiply them by.
        c: what to add to, an FP32 value.
        architecture: as in `mplab.arithmetic.mma`, if the unit aligns all terms at once.
        input_format: of `a` and `b`, or a pair with one for each.

    Returns:
        A figure of one row per term, aligned to the largest exponent, then the sum and what is
        written. Bits past the line are cut.
    """
    step = step_bits(a, b, c=c, architecture=architecture, input_format=input_format)
    picture = canvas.Picture(height=1.5 + 0.36 * len(step.rows), width=9.4)
    _draw_rows(picture.subplots(), step)
    lose = "loses" if step.losing == 1 else "lose"
    off = f"off by {number(step.error, digits=2)}" if step.error else "exact"
    name = _named(architecture) if isinstance(architecture, str) else "this unit"
    claim = (
        f"{step.losing} of {len(step.terms)} terms {lose} bits to the alignment; what {name} "
        f"writes is {off}."
    )
    words = "; ".join(f"{row.words}: {float(row.value):.8g}" for row in step.rows)
    return canvas.titled(picture, claim, f"Rows of bits under powers of two. {words}.")


def _draw_rows(axes: Axes, step: StepBits) -> None:
    """One row of cells for each number, the highest exponent on the left."""
    high = (
        max(
            [
                step.top,
                *(cell.exponent for row in step.rows for cell in step.cells(row)),
            ]
        )
        + 1
    )
    colour = canvas.FACES[5]
    cut = canvas.BAD
    for y, row in enumerate(step.rows):
        axes.text(high + 0.9, y, row.words, ha="right", va="center", fontsize=9)
        sign = "−" if row.value < 0 else "+" if row.value else "0"
        axes.text(high + 0.2, y, sign, ha="center", va="center")
        for cell in step.cells(row):
            face = (colour if cell.kept else cut) if cell.bit else "white"
            axes.add_patch(
                Rectangle(
                    (cell.exponent - 0.5, y - 0.42),
                    1,
                    0.84,
                    facecolor=face,
                    edgecolor=canvas.BAND,
                    linewidth=0.6,
                )
            )
            ink = canvas.INK if cell.bit or cell.kept else canvas.FAINT
            axes.text(
                cell.exponent,
                y,
                str(cell.bit),
                ha="center",
                va="center",
                fontsize=8,
                color=ink,
            )
    _frame(axes, len(step.rows), high, step.bottom, step.low)


def _frame(axes: Axes, count: int, high: int, bottom: int, low: int) -> None:
    """The axis of exponents, the line where the alignment cuts, and the words about it."""
    axes.set_xlim(high + 4.5, min(bottom, low - 3) - 0.7)
    axes.set_ylim(count - 0.4, -1.1)
    axes.axvline(low - 0.5, color="black", linewidth=1.2)
    axes.axhline(count - 2.5, color=canvas.BAND, linewidth=0.8)
    axes.text(low - 0.3, -0.85, "kept", ha="right", va="center", fontsize=9)
    axes.text(low - 0.8, -0.85, "cut", ha="left", va="center", fontsize=9)
    ticks = [e for e in range(bottom, high) if (e - low) % 4 == 0]
    axes.set_xticks(ticks, [canvas.power_of_two(2.0**e) for e in ticks])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("weight of the bit")


# The matrix unit -------------------------------------------------------------------------
@canvas.in_house_style
def recorded_units(*, where: recordings.Where = None) -> canvas.Picture | None:
    """Draw how many random sums of the recorded device each model of a unit gives bit for bit.

    Args:
        where: a folder; None for the recordings that came with the package.

    Returns:
        A figure with a row for each format and a column for each architecture, whose title
        names the models that are never wrong; None without a recording of blocks.
    """
    recording = recordings.first("tensorcores", where=where)
    blocks = recording.data.get("blocks", {}) if recording else {}
    blocks = {
        name: row
        for name, row in blocks.items()
        if row.get("blocks") and row.get("differing")
    }
    if recording is None or not blocks:
        return None
    models = list(dict.fromkeys(m for row in blocks.values() for m in row["differing"]))
    picture = canvas.Picture(height=1.6 + 0.4 * len(blocks), width=8.6)
    axes = picture.subplots()
    for y, row in enumerate(blocks.values()):
        for x, model in enumerate(models):
            _cell(axes, x, y, row["differing"].get(model), row["blocks"])
    axes.set_xticks(range(len(models)), [model.replace("_", "\n") for model in models])
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(blocks)), blocks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlim(-0.5, len(models) - 0.5)
    axes.set_ylim(len(blocks) - 0.5, -0.5)
    right = {
        model: [
            name for name, row in blocks.items() if row["differing"].get(model) == 0
        ]
        for model in models
    }
    told = [
        f"{model} for {canvas.listed(names)}" for model, names in right.items() if names
    ]
    claim = (
        f"Models without a wrong bit: {'; '.join(told) or 'none'} ({recording.words})"
    )
    return canvas.titled(picture, claim, f"Table. {_counts(blocks)}.")


def _cell(axes: Axes, x: int, y: int, wrong: int | None, total: int) -> None:
    """Draw the share that a model gets right, in teal if it is all."""
    if wrong is None:
        words, face = "no such\nmodel", "#EDEDEE"
    else:
        words = f"{canvas.percent(total - wrong, total)}\nof {total:,}"
        face = canvas.GOOD if wrong == 0 else canvas.BAD
    box: Any = {"facecolor": face, "alpha": 0.28, "edgecolor": "none"}
    axes.add_patch(Rectangle((x - 0.47, y - 0.43), 0.94, 0.86, **box))
    axes.text(x, y, words, ha="center", va="center", fontsize=8.5, color=canvas.INK)


def _counts(blocks: dict[str, Any]) -> str:
    parts: Iterable[str] = (
        f"{name}: "
        + ", ".join(
            f"{model} {wrong:,} wrong" for model, wrong in row["differing"].items()
        )
        + f" of {row['blocks']:,}"
        for name, row in blocks.items()
    )
    return "; ".join(parts)
