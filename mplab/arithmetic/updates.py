"""Weights stored in a format, and four methods to add updates to them."""

from typing import Any

import numpy as np

from mplab.arithmetic.operations import exact_sum_to_odd
from mplab.arithmetic.reductions import require_signs
from mplab.numbers.checks import one_of
from mplab.numbers.codes import require_values
from mplab.numbers.formats import FP32, Format, FormatLike, Rounding, format_of
from mplab.numbers.inputs import as_float64
from mplab.numbers.options import Stream
from mplab.numbers.rounding import round_to

METHODS = ("nearest", "stochastic", "kahan", "master")
"""How w + Δ is stored: rounded to nearest; rounded up or down with the probability that makes
the mean right; rounded to nearest, with the rounding error kept in a second number of the format;
in FP32, of which the weight is a rounded copy."""


class Weights:
    """Weights stored in a format, to which updates are added.

    Args:
        values: the initial weights, values of `fmt`, any shape.
        fmt: the format of the weights.
        method: one of `METHODS`.
        seed: the seed of "stochastic".

    Attributes:
        values: the current weights, float64, every element a value of `fmt`.

    Raises:
        TypeError: `values` holds no numbers.
        ValueError: the method is unknown; an element is not a value of `fmt`; FP32 lacks
            values of `fmt` with "master"; `fmt` has no signs with "kahan".

    Exactness:
        An update is rounded to FP32 first, unless FP32 lacks values of `fmt`. Every addition
        after that is correctly rounded; stochastic ones as `mplab.Stream` says.

    Source:
        The compensation is that of Kahan 1965, with all four of its additions in `fmt`.

    Examples:
        >>> for method in METHODS:
        ...     w = Weights(np.ones(1), BF16, method=method)
        ...     for _ in range(64):
        ...         w.add(2.0**-12)
        ...     print(method, w.values)
        nearest [1.]
        stochastic [1.0078125]
        kahan [1.015625]
        master [1.015625]
    """

    def __init__(
        self, values: Any, fmt: FormatLike, *, method: str = "nearest", seed: int = 0
    ) -> None:
        self.fmt = fmt = format_of(fmt, function="Weights")
        self.method = one_of("Weights", "method", method, METHODS)
        if method == "kahan":
            require_signs("Weights", "fmt", fmt)
        self.values = np.array(require_values("Weights", "values", values, fmt))
        self._stream = Stream(seed)
        self._lost = np.zeros_like(self.values)  # the compensation of "kahan", negated
        if method == "master" and not fmt.fits(FP32):
            raise ValueError(
                f"Weights: fmt must fit in FP32 with method='master'; got {fmt.name}. "
                f"Take method='kahan'."
            )
        self._master = self.values

    def add(self, update: Any) -> None:
        """Add an update, whose shape must broadcast to that of the weights."""
        delta = as_float64("Weights.add", update, "update")
        if self.fmt.fits(FP32):
            delta = round_to(delta, FP32)
        delta = np.broadcast_to(delta, self.values.shape)  # weights never grow
        if self.method == "kahan":
            owed = _sum(delta, -self._lost, self.fmt)
            moved = _sum(self.values, owed, self.fmt)
            gone = _sum(moved, -self.values, self.fmt)
            self._lost = _sum(gone, -owed, self.fmt)
            self.values = moved
        elif self.method == "master":
            self._master = _sum(self._master, delta, FP32)
            self.values = round_to(self._master, self.fmt)
        elif self.method == "stochastic":
            rules = {"rounding": Rounding.STOCHASTIC, "stream": self._stream}
            self.values = _sum(self.values, delta, self.fmt, **rules)
        else:
            self.values = _sum(self.values, delta, self.fmt)


def _sum(x: Any, y: Any, fmt: Format, **rules: Any) -> Any:
    """Add numbers that need not be values of the format, rounded once."""
    return round_to(exact_sum_to_odd(x, y), fmt, **rules)
