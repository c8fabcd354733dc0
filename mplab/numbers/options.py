"""What a rounding takes besides its rules: random bits, and counts to add to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from typing import Any, TypedDict

import numpy as np

from mplab.numbers.checks import integer
from mplab.numbers.formats import Overflow, Rounding

Keys = Callable[[int], tuple[int, int]]
"""The random keys of the k-th 2^32 elements; see `Stream.keys`."""

_MASK64 = (1 << 64) - 1


class Stream:
    """Random bits for stochastic rounding: a pure function of seed, call and index.

    Element i of call k gets the same 32 bits in NumPy and torch, for any chunking and any number
    of threads. Read as a fraction, they are added to the discarded fraction of the number, cut to
    32 bits: if the sum reaches 1, the number is rounded away from zero. So the probability is the
    discarded fraction, exactly if that has at most 32 bits (always for float32 input in the
    normal range).

    With fewer `bits`, as in hardware, the fraction is cut to that many bits: the probability is a
    multiple of 2^−bits, and the mean is nearer to zero than x, by less than 2^−bits of the gap.

    Args:
        seed: an integer in 0 .. 2^64 − 1.
        calls: number of calls that have taken bits before.
        bits: random bits per element, 1 to 32: the leading ones of the element's 32 bits.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: an argument is out of range.

    Source:
        Fitzgibbon and Felix 2025, On stochastic rounding with few random bits: the variant SRFF,
        which needs no rounding of the fraction.

    Examples:
        >>> round_to(
        ...     np.full(4, 2049.0), FP16, rounding=Rounding.STOCHASTIC, stream=Stream(1)
        ... )
        array([2048., 2050., 2050., 2048.])
    """

    def __init__(self, seed: int, *, calls: int = 0, bits: int = 32) -> None:
        self.seed = integer("Stream", "seed", seed, most=_MASK64)
        self.calls = integer("Stream", "calls", calls)
        self.bits = integer("Stream", "bits", bits, least=1, most=32)

    def __repr__(self) -> str:
        few = f", bits={self.bits}" if self.bits < 32 else ""
        return f"Stream({self.seed}, calls={self.calls}{few})"

    def keys(self) -> Keys:
        """Return the keys of the next call, and count the call.

        Returns:
            A function of k that returns two 32-bit keys, for the counter-based mixer, of the k-th
            2^32 elements; the bits above the first key mark the random bits that are left out.
        """
        call = _mix64(self.seed + _mix64(self.calls))
        self.calls += 1
        dropped = (1 << (32 - self.bits)) - 1

        def of_run(run: int) -> tuple[int, int]:
            key = _mix64(call + run)
            return key & 0xFFFFFFFF | dropped << 32, key >> 32

        return of_run


def _mix64(z: int) -> int:
    """Take the SplitMix64 step of Steele, Lea and Flood (2014), a bijection on 64-bit integers."""
    z = (z + 0x9E3779B97F4A7C15) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@dataclass
class Tally:
    """Counts of numbers that were exact, overflowed, underflowed, became zero, ... in rounding.

    `COUNTED` defines each counter; total = exact + inexact + nan. Tallies add: `a + b`, `a += b`.
    """

    total: int = 0
    exact: int = 0
    inexact: int = 0
    underflow: int = 0
    flushed: int = 0
    subnormal: int = 0
    overflow: int = 0
    nan: int = 0
    infinite: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(a + b for a, b in zip(astuple(self), astuple(other), strict=True))
        )

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return asdict(self)

    def add_counts(self, total: int, counts: Any) -> None:
        """Add the eight counts, one per flag bit, that a loop returned for `total` numbers."""
        inexact, underflow, overflow, _, flushed, subnormal, nan, infinite = np.asarray(
            counts
        ).tolist()
        self.total += total
        self.exact += total - inexact - nan
        self.inexact += inexact
        self.underflow += underflow
        self.flushed += flushed
        self.subnormal += subnormal
        self.overflow += overflow
        self.nan += nan
        self.infinite += infinite


COUNTED = {
    "total": "every x",
    "exact": "r = x, infinities included",
    "inexact": "x is not NaN and r != x",
    "underflow": "r != x, and rounded with unbounded exponent x would lie below min_normal",
    "flushed": "x != 0 and r = 0",
    "subnormal": "0 < |r| < min_normal",
    "overflow": "x is finite, and rounded with unbounded exponent it would pass max_finite",
    "nan": "x is NaN",
    "infinite": "x is infinite",
}
"""Definition of each counter of a `Tally`, with x the input and r the result."""


class RoundingRules(TypedDict, total=False):
    """The options that `round_to`, `tally`, `events` and all operations share, as keywords."""

    rounding: Rounding
    overflow: Overflow
    flush_inputs: bool
    flush_outputs: bool
    stream: Stream | None
