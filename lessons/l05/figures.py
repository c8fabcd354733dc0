"""Errors of long sums and products, and sums that stop."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mplab import FP16, FP32, Format, Rounding, round_to
from mplab.arithmetic import (
    Accumulation,
    cumsum,
    matmul,
    sum,
)
from mplab.course.pictures import canvas as c
from mplab.lessons.l05.bounds import linear_bound, probabilistic_bound

_DASHES = {"sequential": "solid", "pairwise": "dotted", "kahan": "dashed"}


# Errors of long sums ---------------------------------------------------------------------
class ErrorCurve(NamedTuple):
    """Errors of sums of growing length in one format and order, relative to the sum of |terms|."""

    fmt: Format
    order: str
    lengths: np.ndarray
    errors: np.ndarray
    signed: bool = False

    @property
    def name(self) -> str:
        """What the curve is called in a figure."""
        order = self.order.replace("kahan", "Kahan")
        return f"{self.fmt.name} {order}" + (", mixed signs" if self.signed else "")


def measure_sum_errors(
    fmt: Format,
    *,
    order: str = "sequential",
    signed: bool = False,
    most: int = 1 << 14,
    draws: int = 16,
) -> ErrorCurve:
    """The root mean square error of sums of 2, 4, 8 .. `most` random terms.

    The terms are FP16 values in [0, 1), or in (−1, 1) if `signed`, the same for every format and
    order; a narrower format rounds them as it adds.

    Exactness:
        The sums they are compared with are exact: multiples of 2^−24 below 2^29 in float64.

    Examples:
        >>> measure_sum_errors(FP16, most=8).lengths
        array([2, 4, 8])
    """
    rng = np.random.default_rng(0)
    terms = round_to(rng.random((most, draws)), FP16, rounding=Rounding.TOWARD_ZERO)
    if signed:
        terms = terms * rng.choice([-1.0, 1.0], terms.shape)
    exact = np.cumsum(terms, axis=0)
    lengths = 1 << np.arange(1, most.bit_length())
    how: Accumulation = {"accumulator_format": fmt, "order": order}
    if order in ("sequential", "kahan"):
        sums = cumsum(terms, axis=0, **how)[lengths - 1]
    else:
        sums = np.stack([sum(terms[:n], axis=0, **how) for n in lengths])
    relative = (sums - exact[lengths - 1]) / np.cumsum(np.abs(terms), axis=0)[
        lengths - 1
    ]
    return ErrorCurve(
        fmt, order, lengths, np.sqrt(np.mean(relative**2, axis=1)), signed
    )


def plot_sum_errors(curves: Sequence[ErrorCurve], *, bounds_of: Format) -> c.Picture:
    """Errors against the number of terms, with the bounds n·u and √n·u of one format.

    Errors of zero are not drawn.

    Args:
        curves: from `measure_sum_errors`, of one range of lengths.
        bounds_of: the format whose bounds are drawn.

    Returns:
        A figure whose title says which curves end within one rounding, u, and how far the others.
    """
    lengths = curves[0].lengths
    lines = []
    for curve in curves:
        dash = "dashdot" if curve.signed else _DASHES[curve.order]
        look = c.style(curve.fmt)
        shown = np.where(curve.errors > 0, curve.errors, np.nan)
        how = {"linestyle": dash, "marker": look.marker, "markevery": 2}
        lines.append(c.Line(curve.lengths, shown, curve.name, look, how))
    for bound, name in ((linear_bound, "n·u"), (probabilistic_bound, "√n·u")):
        limits = [min(1.0, bound(int(n), bounds_of)) for n in lengths]
        words = f"{name} for {bounds_of.name}"
        lines.append(c.Line(lengths, limits, words, c.REFERENCE, {"linewidth": 0.9}))
    last = {curve.name: float(curve.errors[-1]) for curve in curves}
    unit_roundoff = bounds_of.unit_roundoff
    far = [
        f"{name} is off by {_share(error)}"
        for name, error in last.items()
        if error > unit_roundoff
    ]
    near = [name for name, error in last.items() if error <= unit_roundoff]
    if near:
        far.append(f"{c.listed(near)} by at most one rounding")
    claim = f"After {int(lengths[-1]):,} terms, {', '.join(far)}."
    every = "; ".join(f"{name} {error:.2g}" for name, error in last.items())
    quantities = "number of terms n", "error / sum of |terms|"
    return c.line_chart(lines, *quantities, claim, f"At the end: {every}.", log="xy")


def _share(error: float) -> str:
    """Write an error as a percentage; one near 0 as a power of two, as on the axis."""
    if 0 < error < 0.001:
        return f"about {c.power_of_two(2.0 ** round(np.log2(error)))}"
    return c.percent(error, 1)


def stagnation(formats: Sequence[Format]) -> c.Picture:
    """Running sums of 8,192 ones in each format: where adding 1 no longer changes them.

    Args:
        formats: the accumulators, drawn in their colours.

    Returns:
        A figure whose title says where each format stops.
    """
    most = 1 << 13
    counts = np.arange(1, most + 1)
    lines = []
    stops = []
    for fmt in formats:
        running = cumsum(np.ones(most), accumulator_format=fmt)
        last = float(running[-1])
        words = (
            f"{fmt.name} stops at {last:g}" if last < most else f"{fmt.name} goes on"
        )
        lines.append(c.Line(counts, running, words, c.style(fmt)))
        stops += [f"{last:g} in {fmt.name}"] * (last < most)
    claim = (
        f"Adding ones stops at {', '.join(stops)}."
        if stops
        else "No sum of ones has stopped."
    )
    return c.line_chart(lines, "ones added", "running sum", claim, log="xy")


# Errors of long products -----------------------------------------------------------------
class ProductErrors(NamedTuple):
    """Errors of inner products of growing length, relative to the sum of |products|.

    Attributes:
        lengths: how many products.
        errors: root mean square errors by the formats of products and of accumulator; products
            of None are exact.
        below: the operands lie between 0 and this.
    """

    lengths: np.ndarray
    errors: dict[tuple[Format | None, Format], np.ndarray]
    below: float = 1.0


def measure_product_errors(
    fmt: Format = FP16, *, most: int = 1 << 14, below: float = 1.0
) -> ProductErrors:
    """Errors of inner products of random FP16 vectors, elements between 0 and `below`.

    Args:
        fmt: the format that products, the accumulator or both are rounded to; else products
            are exact and the accumulator is FP32.
        most: the greatest length.
        below: where elements end, a power of two from 2^−24 to 2^15.

    Exactness:
        The sums they are compared with are float64's, within 2^−38 of the exact ones.
    """
    rng = np.random.default_rng(0)
    a, b = (round_to(below * rng.random((6, most)), FP16) for _ in range(2))
    lengths = 1 << np.arange(4, most.bit_length(), 2)
    errors = {}
    for accumulator in (fmt, FP32):
        for product in (None, fmt):
            how: Accumulation = {
                "accumulator_format": accumulator,
                "product_format": product,
            }
            kept = []
            for n in lengths:
                exact = a[:, :n] @ b[:, :n].T
                off = matmul(a[:, :n], b[:, :n].T, **how) / exact - 1
                kept.append(float(np.sqrt(np.mean(off**2))))
            errors[product, accumulator] = np.array(kept)
    return ProductErrors(lengths, errors, below)


def plot_product_errors(found: ProductErrors) -> c.Picture:
    """Errors of inner products: is it the products or the sum that should be wide?"""
    lines = []
    last = {}
    for (product, accumulator), errors in found.errors.items():
        look = c.style(accumulator)
        kind = "exact" if product is None else product.name
        words = f"{kind} products, {accumulator.name} sum"
        last[words] = float(errors[-1])
        how = {
            "linestyle": "solid" if product is None else "dotted",
            "marker": look.marker,
        }
        lines.append(c.Line(found.lengths, errors, words, look, how))
    listing = "; ".join(f"{words} {error:.2g}" for words, error in last.items())
    narrow = next(f for _, f in found.errors if f != FP32)
    limit = "1" if found.below == 1 else c.power_of_two(found.below)
    claim = (
        f"Operands from 0 to {limit}: after {int(found.lengths[-1]):,} products, an "
        f"{narrow.name} sum is off by {_share(last[f'exact products, {narrow.name} sum'])}; "
        f"an FP32 sum of exact products by {_share(last['exact products, FP32 sum'])}, and of "
        f"{narrow.name} products by {_share(last[f'{narrow.name} products, FP32 sum'])}."
    )
    quantities = "products added", "error / sum of |products|"
    return c.line_chart(lines, *quantities, claim, f"At the end: {listing}.", log="xy")
