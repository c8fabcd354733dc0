"""Histograms of exponents, and the zones in which a format flushes, holds or overflows.

A histogram counts numbers by exponent, and a format has zones of exponents: numbers in them
become zero, subnormal, normal, or overflow. So one histogram answers for every format and for
every loss scale that is a power of two.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mplab.numbers.formats import Format
from mplab.numbers.inputs import array_of, as_float64, is_tensor


class ExponentHistogram(NamedTuple):
    """How many numbers have each exponent e, where 2^e ≤ |x| < 2^(e+1).

    `exponents` ascends without gaps, int64 of shape (k,); `counts` has the same shape; zeros,
    and numbers that are infinite or NaN, are counted apart.
    """

    exponents: np.ndarray
    counts: np.ndarray
    zeros: int
    nonfinite: int


def exponent_histogram(x: Any) -> ExponentHistogram:
    """Count the exponents of an array's or a tensor's elements.

    Args:
        x: numbers as in `mplab.round_to`, any shape, or a torch tensor of floats or integers.

    Raises:
        TypeError: `x` is complex, has a mask, or holds no numbers.
        ValueError: an integer is none that float64 holds.

    Exactness:
        Exact: exponents are read, not computed by a logarithm.

    Examples:
        >>> exponent_histogram(np.array([0.75, 1.0, -1.5, 0.0, np.inf]))
        ExponentHistogram(exponents=array([-1,  0]), counts=array([1, 2]), zeros=1, nonfinite=1)
    """
    if is_tensor(x):
        x = array_of(x)
    values = as_float64("exponent_histogram", x).ravel()
    finite = np.isfinite(values)
    numbers = values[finite & (values != 0)]
    zeros = int(np.count_nonzero(values == 0))
    nonfinite = int(values.size - np.count_nonzero(finite))
    if not numbers.size:
        empty = np.zeros(0, np.int64)
        return ExponentHistogram(empty, empty.copy(), zeros, nonfinite)
    exponents = np.frexp(numbers)[1].astype(np.int64) - 1
    low = int(exponents.min())
    high = int(exponents.max())
    counts = np.bincount(exponents - low, minlength=high - low + 1)
    return ExponentHistogram(np.arange(low, high + 1), counts, zeros, nonfinite)


def pooled(histograms: Iterable[ExponentHistogram]) -> ExponentHistogram:
    """Merge several histograms into one."""
    several = list(histograms)
    filled = [h for h in several if len(h.exponents)]
    low = min((int(h.exponents[0]) for h in filled), default=0)
    high = max((int(h.exponents[-1]) for h in filled), default=-1)
    counts = np.zeros(high - low + 1, dtype=np.int64)
    for h in filled:
        first = int(h.exponents[0])
        last = int(h.exponents[-1])
        counts[first - low : last - low + 1] += h.counts
    zeros = sum(h.zeros for h in several)
    nonfinite = sum(h.nonfinite for h in several)
    return ExponentHistogram(np.arange(low, high + 1), counts, zeros, nonfinite)


# Zones of a format -----------------------------------------------------------------------
class Zones(NamedTuple):
    """Exponents at which a format changes: |x| below 2^flushed becomes zero, and so on."""

    flushed: int
    subnormal: int
    overflow: int


def zones(fmt: Format) -> Zones:
    """Return the exponents that bound zero, subnormal, normal and overflow in `fmt`.

    Exactness:
        With ties to even a value of exactly 2^flushed, half the smallest subnormal, becomes
        zero too; values within the binade of `max_finite` that round past it overflow
        although their exponent does not say so (FP16: from 65520 to 65536).

    Examples:
        >>> zones(FP16)
        Zones(flushed=-25, subnormal=-14, overflow=16)
    """
    return Zones(fmt.emin - fmt.precision, fmt.emin, fmt.emax + 1)


def zone_of(exponents: NDArray[np.int64], fmt: Format) -> NDArray[np.intp]:
    """Return 0, 1, 2 or 3 for exponents that become zero, subnormal, normal, or overflow."""
    return np.searchsorted(np.array(zones(fmt)), exponents, side="right")


def exponent_of(scale: float) -> int:
    """The exponent k of a positive power of two 2^k.

    Raises:
        ValueError: `scale` is not a power of two; scaling by it would also round.
    """
    significand, exponent = math.frexp(scale)
    if significand != 0.5:
        raise ValueError(
            f"exponent_of: scale must be a positive power of two; got {scale!r}. "
            "Other scales move numbers within their binade, which exponents cannot show."
        )
    return exponent - 1


class ZoneCounts(NamedTuple):
    """How many nonzero finite numbers become zero, subnormal, normal, or overflow."""

    flushed: int
    subnormal: int
    normal: int
    overflow: int

    @property
    def total(self) -> int:
        """The sum of the four counts."""
        return sum(self)


def shares(
    histogram: ExponentHistogram, fmt: Format, *, loss_scale: float = 1.0
) -> ZoneCounts:
    """Count how many numbers, times `loss_scale`, fall into each zone of `fmt`.

    Exactness:
        Exact for each number whose binade lies within one zone; see `zones` for the rest.
    """
    zone = zone_of(np.asarray(histogram.exponents) + exponent_of(loss_scale), fmt)
    counts = np.bincount(zone, weights=histogram.counts, minlength=4)
    return ZoneCounts(*(int(count) for count in counts))


# For figures -----------------------------------------------------------------------------
def window(
    histogram: ExponentHistogram, fmt: Format, *, shift: int = 0
) -> tuple[int, int]:
    """The range of exponents to plot: room for zones, labels, and bars shifted up by `shift`."""
    edges = zones(fmt)
    present = np.asarray(histogram.exponents)
    low = min([edges.flushed, *present[:1]])
    high = max([edges.overflow, *(present[-1:] + shift + 1)])
    room = math.ceil(0.13 * (edges.overflow - low))
    return min(int(low) - 1, edges.flushed - room), max(
        int(high) + 1, edges.overflow + room
    )


def zone_words(fmt: Format, low: float, high: float) -> list[tuple[str, float, float]]:
    """The zones from `low` to `high`, each with its label."""
    edges = zones(fmt)
    return [
        ("flushed to 0", low, edges.flushed),
        ("subnormal", edges.flushed, edges.subnormal),
        (f"normal in {fmt.name}", edges.subnormal, edges.overflow),
        ("overflow", edges.overflow, high),
    ]
