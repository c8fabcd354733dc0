"""Weights stored in a format: equal updates in a row, and a regression by gradient descent."""

from typing import Any, NamedTuple

import numpy as np

from mplab import Format, round_to
from mplab.arithmetic import Weights
from mplab.numbers.checks import integer
from mplab.numbers.formats import FormatLike


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
    batch: int = 256,
    seed: int = 0,
) -> Descent:
    """Fit 16 weights to 256 noisy examples by gradient descent; only the weights are rounded.

    Args:
        fmt: the format of the weights.
        method: one of `METHODS`.
        learning_rate: the factor of the gradient.
        steps: number of steps, at least 1.
        batch: examples of a step, 1 to 256, drawn anew for each; all have the exact gradient.
        seed: the seed of the examples, of batches and of stochastic rounding.

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
            drawn = (
                rng.choice(256, batch, replace=False) if batch < 256 else slice(None)
            )
            gradient = 2 * examples[drawn].T @ residual[drawn] / batch
            weights.add(-learning_rate * gradient)
            moved = np.mean(weights.values != before)
            rows.append((np.mean(residual**2), moved, np.linalg.norm(gradient)))
    loss, arrived, length = np.array(rows).T
    return Descent(weights.fmt, method, loss, arrived, length)
