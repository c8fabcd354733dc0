"""FP64 products from units for low formats: slices, their sums, and their number."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mplab import BF16, FP8_E4M3, FP16, FP32, Format
from mplab.arithmetic import mma
from mplab.course.pictures import canvas as c
from mplab.lessons.l17.emulation import emulation_bound, slice_bits, split

_LOOKS = {**c.STYLES, "INT8": c.NEUTRAL[0], "moduli": c.NEUTRAL[1]}


def _look(name: str) -> c.Style:
    """The look of a curve, that of the unit that its name begins with."""
    return _LOOKS.get(name.split(" ")[0], c.REFERENCE)


# Errors of products ----------------------------------------------------------------------
def emulation_error(found: Any, a: Any, b: Any) -> float:
    """The largest |found − a @ b|, element by element relative to |a| @ |b|.

    Args:
        found: finite numbers, shape (M, N).
        a: finite numbers, shape (M, K).
        b: finite numbers, shape (K, N).

    Returns:
        Infinity if an element is not 0, but |a| @ |b| is 0 there.

    Raises:
        ValueError: a number is not finite, or shapes do not fit.

    Exactness:
        The differences are exact, in integers; their quotients are rounded.

    Examples:
        >>> emulation_error([[0.03]], [[0.1]], [[0.3]]) < 2.0**-53
        True
    """
    c_, a_, b_ = (np.asarray(x, np.float64) for x in (found, a, b))
    if c_.shape != (a_ @ b_).shape or not all(
        np.isfinite(x).all() for x in (c_, a_, b_)
    ):
        raise ValueError(
            "emulation_error: found must be finite and of the shape of a @ b, and so must a and b "
            f"be; got shapes {c_.shape}, {a_.shape} and {b_.shape}. Reshape them."
        )
    (whole, unit), (left, one), (right, other) = map(_integers, (c_, a_, b_))
    low = min(unit, one + other)
    exact, size = (
        (x @ y) << (one + other - low)
        for x, y in ((left, right), (abs(left), abs(right)))
    )
    off = abs((whole << (unit - low)) - exact)
    pairs = zip(off.ravel(), size.ravel(), strict=True)
    return float(max(x and (np.inf if x > y << 1023 else x / y) for x, y in pairs))


def _integers(x: np.ndarray) -> tuple[np.ndarray, int]:
    """The numbers as Python integers, and the exponent of their common unit."""
    significands, exponents = np.frexp(x)
    low = int(exponents.min(where=x != 0, initial=1024))
    shifts = np.maximum(exponents - low, 0).astype(object)
    return np.ldexp(significands, 53).astype(np.int64).astype(
        object
    ) << shifts, low - 53


def plot_emulation_errors(found: Mapping[str, Sequence[float]]) -> c.Picture:
    """Errors of products in 1, 2, 3, … slices, or by as many moduli.

    Args:
        found: errors by way, such as `emulation_error` gives; a name that begins with a unit has
            its colour.

    Returns:
        A figure whose title says with how many slices each comes to 2⁻⁵² or below.
    """
    lines, reached, stuck = [], [], []
    for name, row in found.items():
        look = _look(name)
        errors = np.asarray(row)
        places = np.arange(1, len(errors) + 1)
        how = {"marker": look.marker}
        lines.append(c.Line(places, np.clip(errors, _LEAST, 1.0), name, look, how))
        enough = np.flatnonzero(errors <= 2.0**-52)
        if len(enough):
            reached.append(f"{name} with {enough[0] + 1}")
        else:
            stuck.append(f"{name} ends at {errors[-1]:.0e}")

    def finish(axes: Axes) -> None:
        axes.axhline(2.0**-52, color="black", linewidth=0.9)
        axes.set_ylim(_LEAST, 2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    said = [f"An error of 2⁻⁵² at most: {c.listed(reached)}"] if reached else []
    claim = f"{'; '.join(said + stuck)}."
    counted = "slices of each factor"
    if "moduli" in found:
        counted += ", or moduli"
    error = "error / (|A||B|)   (line: 2⁻⁵²)"
    return c.line_chart(lines, counted, error, claim, log="y", finish=finish)


def _counts(axes: Axes) -> None:
    """Put whole numbers on the y-axis, from 0 upwards."""
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


_LEAST = 2.0**-58
"""The least error drawn in place; smaller ones lie at the edge."""


# Slices ----------------------------------------------------------------------------------
@c.in_house_style
def slice_grid(x: Any) -> c.Picture:
    """The same numbers in three slices of 4 bits: each with its own unit, and all on one grid.

    Args:
        x: finite numbers in a row.

    Returns:
        Two panels; a box is a slice, from its unit upwards, and holds its integer.
    """
    slices, bits = 3, 4
    row = np.asarray(x, np.float64)
    ways = {"each number by itself": row[:, None], "the row on one grid": row[None, :]}
    picture = c.Picture(height=1.6 + 0.62 * len(row), width=8.0)
    panels = picture.subplots(2, 1, sharex=True)
    said = []
    for axes, (way, numbers) in zip(panels, ways.items(), strict=True):
        axes.use_sticky_edges = False  # the last box is drawn whole
        parts, exponents, _ = split(numbers, slices, bits)
        units = np.broadcast_to(exponents, numbers.shape).ravel()
        for i, unit in enumerate(units.tolist()):
            for s, part in enumerate(parts.reshape(slices, -1)[:, i].tolist()):
                low = unit - s * bits
                colour = c.NEUTRAL[2 - s % 2].colour
                axes.barh(
                    i,
                    bits,
                    left=low,
                    color=colour if part else "white",
                    edgecolor="black",
                )
                ink = "white" if part else c.INK
                words = f"{part:.0f}".replace("-", "−")
                axes.text(low + bits / 2, i, words, ha="center", va="center", color=ink)
        axes.set_yticks(
            range(len(row)), [f"{value:.3g}".replace("-", "−") for value in row]
        )
        axes.set_title(way)
        axes.set_ylim(len(row) - 0.4, -0.6)
        said.append(f"{len(set(units.tolist()))} for {way}")
    panels[0].xaxis.set_inverted(True)
    c.binary_axis(panels[1].xaxis, "place of the bits of a slice")
    sentence = f"Units of the first slices: {said[0]}, {said[1]}."
    return c.titled(
        picture, sentence, "Two panels of boxes, one for each slice of a number."
    )


# One bit too many ------------------------------------------------------------------------
class WrongSums(NamedTuple):
    """How many sums of products of slices a unit gets wrong.

    Attributes:
        fmt: of the slices.
        k: products in a sum.
        rule: how many bits the rule allows a slice.
        bits: the bits of a slice that were tried, shape (n,).
        shares: shape (n,), by the kind of the numbers.
    """

    fmt: Format
    k: int
    rule: int
    bits: np.ndarray
    shares: dict[str, np.ndarray]


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "random signs": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.random(shape),
    "nearly equal": lambda rng, shape: rng.uniform(0.97, 0.999, shape),
}
"""Kinds of numbers: drawn from a normal distribution, from [0, 1), and all near the largest."""


def measure_wrong_sums(k: int = 64, *, seed: int = 0) -> WrongSums:
    """The shares of 1,024 sums that Hopper's unit gets wrong, of FP16 slices of 7 to 12 bits.

    Args:
        k: products in a sum, 16 to 4096.
        seed: of the numbers.

    Exactness:
        The unit's result is compared with the sum in integers, which float64 holds.
    """
    tried = np.arange(7, FP16.precision + 2)
    shares = {}
    for kind, draw in KINDS.items():
        rng = np.random.default_rng(seed)
        a, b = draw(rng, (32, k)), draw(rng, (k, 32))
        found = []
        for bits in tried.tolist():
            left, right = split(a, 1, bits)[0][0], split(b, 1, bits, axis=0)[0][0]
            found.append(np.mean(mma(left, right) != left @ right))
        shares[kind] = np.array(found)
    return WrongSums(FP16, k, slice_bits(k, FP16, FP32.precision), tried, shares)


def plot_wrong_sums(found: WrongSums) -> c.Picture:
    """Shares of wrong sums against the bits of a slice, by the kind of the numbers.

    Args:
        found: from `measure_wrong_sums`.

    Returns:
        A figure whose title says from how many bits on each kind shows an error.
    """
    lines, said = [], []
    for look, (kind, shares) in zip(c.NEUTRAL, found.shares.items(), strict=False):
        lines.append(c.Line(found.bits, shares, kind, look, {"marker": look.marker}))
        wrong = found.bits[shares > 0]
        said.append(f"{kind}, {f'from {wrong[0]} bits on' if len(wrong) else 'never'}")

    def finish(axes: Axes) -> None:
        axes.axvline(found.rule, color="black", linewidth=0.9)
        axes.set_ylim(-0.05, 1.05)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    claim = f"Sums are wrong: {'; '.join(said)}."
    quantities = (
        f"bits of a slice (line: the rule for {found.k:,} products)",
        "sums that are wrong",
    )
    return c.line_chart(lines, *quantities, claim, finish=finish)


# Numbers of different size ---------------------------------------------------------------
class SlicesNeeded(NamedTuple):
    """How many slices or moduli a product needs, by how different its numbers are.

    Attributes:
        unit: what multiplies.
        spreads: φ of the numbers (r − ½)·exp(φ·z), with r from [0, 1) and z normally
            distributed; shape (n,).
        counts: shape (n, draws).
    """

    unit: str
    spreads: np.ndarray
    counts: np.ndarray


_UNITS: dict[str, Format | str] = {
    **{fmt.name: fmt for fmt in (FP16, BF16, FP8_E4M3)},
    "INT8": "INT8",
    "moduli": "moduli",
}


def measure_slices_needed(unit: str, *, draws: int = 3, seed: int = 0) -> SlicesNeeded:
    """The least numbers of slices or moduli for which `emulation_bound` is at most 2⁻⁵¹ · |A||B|.

    Factors are 16×64 and 64×16.

    Args:
        unit: "FP16", "BF16", "FP8_E4M3", "INT8" or "moduli".
        draws: products for each φ.
        seed: of the numbers.
    """
    spreads = np.array([0.0, 1.0, 2.0, 4.0, 8.0])
    rng = np.random.default_rng(seed)
    counts = np.zeros((len(spreads), draws), np.int64)
    for i, j in np.ndindex(*counts.shape):
        a, b = (
            (rng.random(shape) - 0.5) * np.exp(spreads[i] * rng.standard_normal(shape))
            for shape in ((16, 64), (64, 16))
        )
        aim = 2.0**-51 * (np.abs(a) @ np.abs(b))
        counts[i, j] = next(
            n
            for n in count(1)
            if (emulation_bound(a, b, unit=_UNITS[unit], slices=n) <= aim).all()
        )
    return SlicesNeeded(unit, spreads, counts)


def plot_slices_needed(curves: Sequence[SlicesNeeded]) -> c.Picture:
    """How many slices or moduli are needed, against the spread of the numbers.

    Args:
        curves: from `measure_slices_needed`, one for each unit.

    Returns:
        A figure whose title says from how many to how many each unit goes.
    """
    lines, said = [], []
    for curve in curves:
        look = _look(curve.unit)
        middle = np.median(curve.counts, axis=1)
        lines.append(
            c.Line(curve.spreads, middle, curve.unit, look, {"marker": look.marker})
        )
        said.append(f"{curve.unit} {middle[0]:g} to {middle[-1]:g}")
    claim = f"Numbers of different size need more slices, or moduli: {'; '.join(said)}."
    quantities = (
        "spread φ of the numbers (r − ½)·exp(φ·z), z normally distributed",
        "slices, or moduli",
    )
    return c.line_chart(lines, *quantities, claim, finish=_counts)
