"""Integrate differential equations whose state is stored in a format."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mplab.arithmetic.float_array import FloatArray
from mplab.arithmetic.updates import Weights
from mplab.numbers.checks import integer, one_of
from mplab.numbers.codes import require_values
from mplab.numbers.formats import FormatLike
from mplab.numbers.inputs import as_float64
from mplab.numbers.rounding import round_to

_Rate = Callable[[Any], Any]


def integrate(
    f: Callable[[Any], Any],
    start: Any,
    dt: float,
    steps: int,
    fmt: FormatLike,
    *,
    scheme: str = "euler",
    method: str = "nearest",
    seed: int = 0,
) -> np.ndarray:
    """Integrate y′ = f(y) with the state stored in a format; return it after each time step.

    Increments are computed in float64 and added to the state like updates to `Weights`. To round
    every operation of f as well, let f compute with a `FloatArray` and return one.

    Args:
        f: takes the state, float64 of the shape of `start`, and returns its rate of change, of
            the same shape.
        start: numbers of any shape (...), rounded to `fmt` first.
        dt: the time step.
        steps: number of steps, not negative.
        fmt: the format of the state.
        scheme: "euler", "midpoint" or "rk4" (of order 1, 2 and 4). The intermediate states that
            f receives are not rounded.
        method: one of `METHODS`: how an increment is added.
        seed: the seed of "stochastic".

    Returns:
        float64, shape (steps + 1, ...), every element a value of `fmt`.

    Raises:
        ValueError: f returns another shape; the scheme or the method is unknown.

    Exactness:
        Increments are added as updates to `Weights` are.

    Source:
        Hairer, Nørsett and Wanner 1993, Solving Ordinary Differential Equations I, §II.1.

    Examples:
        >>> coffee = lambda t: -0.1 * (t - 20)
        >>> [
        ...     float(integrate(coffee, 90.0, dt, round(100 / dt), FP16)[-1])
        ...     for dt in (1, 0.1, 0.01)
        ... ]
        [20.0625, 20.78125, 35.625]
    """
    rate = _checked("integrate", f)
    steps = integer("integrate", "steps", steps)
    increment = _SCHEMES[one_of("integrate", "scheme", scheme, _SCHEMES)]
    first = np.asarray(round_to(start, fmt))
    state = Weights(first.ravel(), fmt, method=method, seed=seed)
    seen = [state.values]
    # A run that diverges ends in NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            state.add(increment(rate, state.values.reshape(first.shape), dt).ravel())
            seen.append(state.values)
    return np.stack(seen).reshape(steps + 1, *first.shape)


def step_is_lost(f: Callable[[Any], Any], y: Any, dt: float, fmt: FormatLike) -> Any:
    """Tell whether an Euler step from y, rounded to nearest, leaves y unchanged.

    This happens if dt·f(y), rounded to FP32, is less than half the distance to the next value of
    the format on its side, or exactly half of it and the significand of y is even.

    Args:
        f: as in `integrate`.
        y: values of `fmt`, any shape (...).
        dt: the time step.
        fmt: the format of the state.

    Returns:
        Booleans, shape (...): False where y or the step is NaN.

    Exactness:
        Exact: it is the step that `integrate` takes.

    Examples:
        >>> [
        ...     bool(step_is_lost(lambda y: 1.0, 64.0, dt, BF16))
        ...     for dt in (0.25, 0.25 + 2.0**-20)
        ... ]
        [True, False]
        >>> [
        ...     bool(step_is_lost(lambda y: -1.0, 64.0, dt, BF16))
        ...     for dt in (0.125, 0.126)
        ... ]
        [True, False]
    """
    rate = _checked("step_is_lost", f)
    state = Weights(require_values("step_is_lost", "y", y, fmt), fmt)
    before = state.values
    with np.errstate(over="ignore", invalid="ignore"):
        state.add(_euler(rate, before, dt))
    return state.values == before


def _euler(f: _Rate, y: Any, dt: float) -> Any:
    return dt * f(y)


def _midpoint(f: _Rate, y: Any, dt: float) -> Any:
    return dt * f(y + dt / 2 * f(y))


def _rk4(f: _Rate, y: Any, dt: float) -> Any:
    k1 = f(y)
    k2 = f(y + dt / 2 * k1)
    k3 = f(y + dt / 2 * k2)
    k4 = f(y + dt * k3)
    return dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


_SCHEMES = {"euler": _euler, "midpoint": _midpoint, "rk4": _rk4}


def _checked(function: str, f: Any) -> _Rate:
    """Wrap f so that it returns float64 of the shape of the state, or raises."""

    def rate(y: np.ndarray) -> np.ndarray:
        given = f(y.copy())  # f may write to its argument
        found = as_float64(
            function, given.values if isinstance(given, FloatArray) else given, "f"
        )
        if found.shape != y.shape:
            raise ValueError(
                f"{function}: f must give the shape of the state, {y.shape}; got {found.shape}. "
                f"Give a rate for each of its numbers."
            )
        return found

    return rate
