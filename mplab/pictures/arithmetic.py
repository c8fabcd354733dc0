"""The figures of arithmetic: errors of long sums, and where the bits go in a matrix unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from mplab.bounds import linear_bound, probabilistic_bound
from mplab.formats import FP8_E4M3, FP16, Format, Rounding
from mplab.pictures.canvas import (
    BAND,
    INK,
    STYLES,
    End,
    Picture,
    in_house_style,
    label_ends,
    power_of_two,
    style,
    titled,
)
from mplab.reductions import Accumulation, cumsum, sum
from mplab.rounding import round_to
from mplab.tensorcore import MatrixUnit, mma, unit_of

_DASHES = {"sequential": "solid", "pairwise": "dotted", "kahan": "dashed", "neumaier": "dashed"}

# Errors of long sums ---------------------------------------------------------------------


class ErrorCurve(NamedTuple):
    """Errors of sums of growing length in one format and order, relative to the sum of |terms|."""

    fmt: Format
    order: str
    lengths: np.ndarray
    errors: np.ndarray


def measured_errors(
    fmt: Format, *, order: str = "sequential", most: int = 1 << 14, draws: int = 16, seed: int = 0
) -> ErrorCurve:
    """The root mean square error of sums of 2, 4, 8 .. `most` random terms.

    The terms are FP16 values in [0, 1), the same for every format and order; a narrower format
    rounds them as it adds.

    Exactness:
        The sums they are compared with are exact: multiples of 2^−24 below 2^29 in float64.

    Examples:
        >>> measured_errors(FP16, most=8).lengths
        array([2, 4, 8])
    """
    rng = np.random.default_rng(seed)
    terms = round_to(rng.random((most, draws)), FP16, rounding=Rounding.TOWARD_ZERO)
    exact = np.cumsum(terms, axis=0)
    lengths = 1 << np.arange(1, most.bit_length())
    how: Accumulation = {"accumulator_format": fmt, "order": order}
    if order in ("sequential", "kahan"):
        sums = cumsum(terms, axis=0, **how)[lengths - 1]
    else:
        sums = np.stack([sum(terms[:n], axis=0, **how) for n in lengths])
    relative = (sums - exact[lengths - 1]) / exact[lengths - 1]
    return ErrorCurve(fmt, order, lengths, np.sqrt(np.mean(relative**2, axis=1)))


@in_house_style
def error_growth(curves: Sequence[ErrorCurve], *, bounds_of: Format) -> Picture:
    """Errors against the number of terms, with the bounds n·u and √n·u of one format.

    Errors of zero are not drawn.

    Args:
        curves: from `measured_errors`, of one range of lengths.
        bounds_of: the format whose bounds are drawn.

    Returns:
        A figure whose title says which curve ends highest and which lowest.
    """
    if not curves:
        raise ValueError("error_growth: curves must not be empty; got none. Measure some first.")
    picture = Picture(height=4.4)
    axes = picture.subplots()
    _log_axes(axes, "number of terms n", "error / sum of |terms|")
    ends = [_draw_errors(axes, curve) for curve in curves if np.any(curve.errors > 0)]
    lengths = curves[0].lengths
    for bound, name in ((linear_bound, "n·u"), (probabilistic_bound, "√n·u")):
        limits = [min(1.0, bound(int(n), bounds_of)) for n in lengths]
        axes.plot(lengths, limits, color="black", linewidth=0.9)
        words = f"{name} for {bounds_of.name}"
        ends.append(End(axes, float(lengths[-1]), limits[-1], words, "black"))
    last = {f"{curve.fmt.name} {curve.order}": float(curve.errors[-1]) for curve in curves}
    worst, best = max(last, key=lambda k: last[k]), min(last, key=lambda k: last[k])
    sentence = (
        f"After {int(lengths[-1]):,} terms the error is {last[worst]:.2g} in {worst}, "
        f"{last[best]:.2g} in {best}."
    )
    every = "; ".join(f"{name} {error:.2g}" for name, error in last.items())
    titled(picture, sentence, f"Line chart, both axes logarithmic. At the end: {every}.")
    label_ends(picture, ends)
    return picture


def _draw_errors(axes: Axes, curve: ErrorCurve) -> End:
    look = style(curve.fmt)
    shown = np.where(curve.errors > 0, curve.errors, np.nan)
    dash = _DASHES.get(curve.order, "dashdot")
    axes.plot(
        curve.lengths, shown, color=look.colour, linestyle=dash, marker=look.marker, markevery=2
    )
    at = int(np.flatnonzero(curve.errors > 0)[-1])
    words = f"{curve.fmt.name} {curve.order}"
    return End(axes, float(curve.lengths[at]), float(curve.errors[at]), words, look.colour)


def _log_axes(axes: Axes, x: str, y: str) -> None:
    """Both axes to base 2, ticks written 2^k."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(base=2, numticks=9))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _: power_of_two(v)))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(x)
    axes.set_ylabel(y)


@in_house_style
def stagnation(formats: Sequence[Format], *, most: int = 1 << 13) -> Picture:
    """Running sums of ones in each format: where adding 1 no longer changes them.

    Args:
        formats: the accumulators, drawn in their colours.
        most: how many ones.

    Returns:
        A figure whose title says where each format stops.
    """
    picture = Picture(height=4.0, width=8.4)
    axes = picture.subplots()
    _log_axes(axes, "ones added", "running sum")
    counts = np.arange(1, most + 1)
    ends: list[End] = []
    stops: list[str] = []
    for fmt in formats:
        running = cumsum(np.ones(most), accumulator_format=fmt)
        look, last = style(fmt), float(running[-1])
        axes.plot(counts, running, color=look.colour, linestyle=look.dash)
        stuck = last < most
        words = f"{fmt.name} stops at {last:g}" if stuck else f"{fmt.name} goes on"
        ends.append(End(axes, float(most), last, words, look.colour))
        if stuck:
            stops.append(f"{last:g} in {fmt.name}")
    claim = f"Adding ones stops at {', '.join(stops)}." if stops else "No sum of ones has stopped."
    titled(picture, claim, "Line chart of running sums, both axes logarithmic.")
    label_ends(picture, ends)
    return picture


# Matrix units ----------------------------------------------------------------------------


class DepthErrors(NamedTuple):
    """Largest relative errors of a matrix product by the number of terms in each element."""

    depths: np.ndarray
    chained: np.ndarray
    promoted: np.ndarray
    every: int


def errors_by_depth(
    *, architecture: str = "hopper", every: int = 128, most: int = 4096, seed: int = 0
) -> DepthErrors:
    """Errors of FP8 products of random positive matrices, with and without promotion.

    Exactness:
        The products they are compared with are exact: sums of 6-bit products in float64.
    """
    rng = np.random.default_rng(seed)
    a, b = (round_to(np.abs(rng.standard_normal((32, most))), FP8_E4M3) for _ in range(2))
    depths = every << np.arange((most // every).bit_length())
    errors: list[list[float]] = [[], []]
    for depth in depths:
        x, y = a[:, :depth], b[:, :depth].T
        for kept, promote in zip(errors, (None, every), strict=True):
            got = mma(x, y, architecture=architecture, input_format=FP8_E4M3, promote_every=promote)
            kept.append(float(np.abs(got / (x @ y) - 1).max()))
    return DepthErrors(depths, np.array(errors[0]), np.array(errors[1]), every)


@in_house_style
def promotion(errors: DepthErrors) -> Picture:
    """The error of FP8 products against depth: all steps in the unit, or promoted to FP32."""
    picture = Picture(height=3.6)
    axes = picture.subplots()
    _log_axes(axes, "terms per element K", "largest relative error")
    fp8, fp32 = STYLES["FP8_E4M3"], STYLES["FP32"]
    ends = []
    for look, values, words in (
        (fp8, errors.chained, "all in the unit"),
        (fp32, errors.promoted, f"promoted every {errors.every}"),
    ):
        axes.plot(errors.depths, values, color=look.colour, marker=look.marker, linestyle=look.dash)
        ends.append(End(axes, float(errors.depths[-1]), float(values[-1]), words, look.colour))
    claim = (
        f"At K = {errors.depths[-1]} the unit alone is off by up to {errors.chained[-1]:.1%}; "
        f"promoting every {errors.every} terms leaves {errors.promoted[-1]:.2%}."
    )
    titled(picture, claim, "Line chart, both axes logarithmic.")
    label_ends(picture, ends)
    return picture


class _Row(NamedTuple):
    """A line of the figure: words, an exact number, and the exponent of its last bit to stay."""

    words: str
    value: Fraction
    lowest_kept: int


@in_house_style
def bits_of_a_step(
    a: Any,
    b: Any,
    *,
    c: float = 0.0,
    architecture: str | MatrixUnit = "hopper",
    input_format: Format = FP8_E4M3,
) -> Picture:
    """Where the bits of each product go in one step of a matrix unit.

    Args:
        a: a few values of `input_format`, no more than the unit takes at once.
        b: what to multiply them by.
        c: what to add to, an FP32 value.
        architecture: as in `mplab.tensorcore.mma`.
        input_format: of `a` and `b`.

    Returns:
        A figure of one row per term, aligned to the largest exponent, then the sum and what is
        written. Bits past the line are cut.
    """
    unit = unit_of(architecture, input_format)
    left, right = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not 0 < left.size <= unit.terms or left.shape != right.shape or left.ndim != 1:
        raise ValueError(
            f"bits_of_a_step: a and b must be vectors of at most {unit.terms} terms; got shapes "
            f"{left.shape} and {right.shape}. Show one step."
        )
    written = mma(
        left[None, :], right[:, None], np.array([[c]]), architecture=unit, input_format=input_format
    )[0, 0]
    rows, top = _rows(left, right, c, unit, input_format, float(written))
    picture = Picture(height=1.5 + 0.36 * len(rows), width=9.4)
    _draw_rows(picture.subplots(), rows, top, top - unit.fraction_bits)
    losing = [row for row in rows[:-2] if row.value % Fraction(2) ** row.lowest_kept]
    error = float(Fraction(float(written)) - _exact(left, right, c))
    off = f"off by {error:.2g}".replace("-", "−") if error else "exact"
    claim = (
        f"{len(losing)} of {len(rows) - 2} terms lose bits to the alignment; what is written is "
        f"{off}."
    )
    words = "; ".join(f"{row.words}: {float(row.value):.8g}" for row in rows)
    return titled(picture, claim, f"Rows of bits under powers of two. {words}.")


def _exact(a: np.ndarray, b: np.ndarray, c: float) -> Fraction:
    total = Fraction(c)
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        total += Fraction(x) * Fraction(y)
    return total


def _exponent(x: float, fmt_emin: int) -> int:
    return max(math.frexp(x)[1] - 1, fmt_emin) if x else fmt_emin


def _rows(
    a: np.ndarray, b: np.ndarray, c: float, unit: MatrixUnit, fmt: Format, written: float
) -> tuple[list[_Row], int]:
    """The rows, and the exponent they are aligned to."""
    pairs = [(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    exponents = [_exponent(x, fmt.emin) + _exponent(y, fmt.emin) for x, y in pairs if x * y]
    top = max([*exponents, *([_exponent(c, -126)] if c else []), -126])
    low = top - unit.fraction_bits
    step = Fraction(2) ** low
    rows = [_Row(f"{_word(x)} × {_word(y)}", Fraction(x) * Fraction(y), low) for x, y in pairs]
    rows += [_Row(f"C = {_word(c)}", Fraction(c), low)] if c else []
    total = Fraction(0)
    for row in rows:
        total += int(row.value / step) * step
    leading = math.frexp(float(total))[1] - 1 if total else top
    last = max(low, leading - unit.written_bits)
    return [*rows, _Row("sum", total, last), _Row("written", Fraction(written), last)], top


def _word(x: float) -> str:
    """A number as the rows name it: small ones with a power of two."""
    if x == 0 or 0.1 < abs(x) < 1000:
        return f"{x:g}".replace("-", "−")
    significand, exponent = math.frexp(x)
    return f"{2 * significand:g}·{power_of_two(2.0 ** (exponent - 1))}".replace("-", "−")


def _draw_rows(axes: Axes, rows: Sequence[_Row], top: int, low: int) -> None:
    """One row of cells for each number, the highest exponent on the left."""
    high = top + 3
    deepest = min(_lowest_bit(row.value, low) for row in rows)
    bottom = max(min(deepest, low), low - 12)
    colour, cut = STYLES["FP32"].colour, STYLES["FP8_E4M3"].colour
    for y, row in enumerate(rows):
        leading = _leading_bit(row.value, low)
        axes.text(high + 0.9, y, row.words, ha="right", va="center", fontsize=9)
        axes.text(high + 0.2, y, "−" if row.value < 0 else "+", ha="center", va="center")
        for e in range(bottom, high):
            bit = int(abs(row.value) / Fraction(2) ** e) % 2
            if not row.value or e > max(leading, top):
                continue
            kept = e >= row.lowest_kept
            face = (colour if kept else cut) if bit else "white"
            corner = (e - 0.5, y - 0.42)
            axes.add_patch(
                Rectangle(corner, 1, 0.84, facecolor=face, edgecolor=BAND, linewidth=0.6)
            )
            ink = "white" if bit else INK if kept else BAND
            axes.text(e, y, str(bit), ha="center", va="center", fontsize=8, color=ink)
    _frame(axes, len(rows), high, bottom, low)


def _lowest_bit(value: Fraction, default: int) -> int:
    """The exponent of the last set bit of a dyadic number."""
    if not value:
        return default
    trailing = (value.numerator & -value.numerator).bit_length() - 1
    return trailing - value.denominator.bit_length() + 1


def _leading_bit(value: Fraction, default: int) -> int:
    return math.frexp(float(abs(value)))[1] - 1 if value else default


def _frame(axes: Axes, count: int, high: int, bottom: int, low: int) -> None:
    """The axis of exponents, the line where the alignment cuts, and the words about it."""
    axes.set_xlim(high + 4.5, min(bottom, low - 3) - 0.7)
    axes.set_ylim(count - 0.4, -1.1)
    axes.axvline(low - 0.5, color="black", linewidth=1.2)
    axes.axhline(count - 2.5, color=BAND, linewidth=0.8)
    axes.text(low - 0.3, -0.85, "kept", ha="right", va="center", fontsize=9)
    axes.text(low - 0.8, -0.85, "cut", ha="left", va="center", fontsize=9)
    ticks = [e for e in range(bottom, high) if (e - low) % 4 == 0]
    axes.set_xticks(ticks, [power_of_two(2.0**e) for e in ticks])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("weight of the bit")
