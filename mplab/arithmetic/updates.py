"""Weights stored in a format, and four methods to add updates to them."""

from typing import Any, NamedTuple

import numpy as np

from mplab.arithmetic.operations import exact_sum_to_odd
from mplab.numbers.checks import integer, one_of
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
            values of `fmt` with "master".

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
            how = {"rounding": Rounding.STOCHASTIC, "stream": self._stream}
            self.values = _sum(self.values, delta, self.fmt, **how)
        else:
            self.values = _sum(self.values, delta, self.fmt)


def _sum(x: Any, y: Any, fmt: Format, **how: Any) -> Any:
    """Add numbers that need not be values of the format, rounded once."""
    return round_to(exact_sum_to_odd(x, y), fmt, **how)


def update_trajectory(
    start: Any,
    update: float,
    steps: int,
    fmt: FormatLike,
    *,
    method: str = "nearest",
    seed: int = 0,
) -> np.ndarray:
    """Apply equal updates to weights, and return the weights before and after each.

    Args:
        start: numbers of any shape (...), rounded to `fmt` first.
        update: the increment of every step.
        steps: number of steps, not negative.
        fmt: the format of the weights.
        method: one of `METHODS`.
        seed: the seed of "stochastic".

    Returns:
        float64, shape (steps + 1, ...).

    Examples:
        >>> update_trajectory(1.0, 0.004, 3, BF16)
        array([1.       , 1.0078125, 1.015625 , 1.0234375])
    """
    weights = Weights(round_to(start, fmt), fmt, method=method, seed=seed)
    seen = [weights.values]
    for _ in range(integer("update_trajectory", "steps", steps)):
        weights.add(update)
        seen.append(weights.values)
    return np.stack(seen)


class Descent(NamedTuple):
    """A regression trained with its weights in a format.

    Attributes:
        fmt: the format of the weights.
        method: how updates were added to them.
        loss: the mean squared error before each step.
        arrived: the fraction of weights that each step changed.
        gradient: the norm of the gradient at each step.
    """

    fmt: Format
    method: str
    loss: np.ndarray
    arrived: np.ndarray
    gradient: np.ndarray


def fit_by_gradient_descent(
    fmt: FormatLike,
    *,
    method: str = "nearest",
    learning_rate: float = 1e-3,
    steps: int = 3000,
    seed: int = 0,
) -> Descent:
    """Fit 16 weights to 256 noisy examples by gradient descent; only the weights are rounded.

    Args:
        fmt: the format of the weights.
        method: one of `METHODS`.
        learning_rate: the factor of the gradient.
        steps: number of steps, at least 1.
        seed: the seed of the examples and of stochastic rounding.

    Exactness:
        Gradients and losses are computed in float64; their last digits depend on the machine.

    Examples:
        >>> run = fit_by_gradient_descent(BF16, steps=1000)
        >>> bool(run.loss[-1] > 1), bool(run.gradient[-1] > 1)
        (True, True)
    """
    weights = Weights(np.ones(16), fmt, method=method, seed=seed)
    rng = np.random.default_rng(seed)
    examples = rng.standard_normal((256, 16))
    targets = examples @ rng.standard_normal(16) + 0.01 * rng.standard_normal(256)
    rows = []
    for _ in range(integer("fit_by_gradient_descent", "steps", steps, least=1)):
        before = weights.values
        # A run that diverges ends in NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            residual = examples @ before - targets
            gradient = 2 * examples.T @ residual / len(targets)
            weights.add(-learning_rate * gradient)
            moved = np.mean(weights.values != before)
            rows.append((np.mean(residual**2), moved, np.linalg.norm(gradient)))
    loss, arrived, length = np.array(rows).T
    return Descent(weights.fmt, method, loss, arrived, length)
