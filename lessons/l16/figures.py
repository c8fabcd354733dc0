"""Time steps: where a state freezes, errors against the step, and cycles."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mplab import Format, round_to, values
from mplab.common.words import number, plural
from mplab.course.pictures import canvas as c
from mplab.lessons.l16.integration import integrate, step_is_lost

HOT, ROOM, RATE = 90.0, 20.0, 0.1
"""A cup of coffee: degrees at the start, degrees of the room, and the share of the difference that
it loses in a minute."""


def cooling(t: Any) -> Any:
    """The rate of a cup of coffee, in degrees per minute."""
    return -RATE * (t - ROOM)


# Measurements ----------------------------------------------------------------------------
class FreezingPoints(NamedTuple):
    """Where a cup of coffee that begins at 90 degrees stops, in a room of 20.

    Attributes:
        fmt: the format of its temperature.
        steps: time steps in minutes, shape (n,).
        predicted: the hottest temperature that a step to nearest leaves as it is, of that shape.
        run_steps: the steps of runs, shape (m,).
        reached: where these are after 100 minutes, of that shape.
    """

    fmt: Format
    steps: np.ndarray
    predicted: np.ndarray
    run_steps: np.ndarray
    reached: np.ndarray


def measure_freezing_points(fmt: Format) -> FreezingPoints:
    """Where the rule says that a cup of coffee stops, and where runs do.

    Args:
        fmt: the format of its temperature.

    Examples:
        >>> found = measure_freezing_points(BF16)
        >>> found.run_steps[[0, 4]], found.reached[[0, 4]]
        (array([1.    , 0.0625]), array([20.5, 40. ]))
    """
    steps = 2.0 ** (np.arange(-64, 1) / 8)
    predicted = hottest_frozen(fmt, steps)
    run_steps = 2.0 ** np.arange(0, -8, -1)
    reached = [
        integrate(cooling, HOT, dt, round(100 / dt), fmt)[-1]
        for dt in run_steps.tolist()
    ]
    return FreezingPoints(fmt, steps, predicted, run_steps, np.array(reached))


def temperatures(fmt: Format) -> np.ndarray:
    """All values of a format from the room's temperature to the coffee's."""
    all_values = np.unique(values(fmt))
    t: np.ndarray = all_values[
        (all_values >= ROOM) & (all_values <= round_to(HOT, fmt))
    ]
    return t


def hottest_frozen(fmt: Format, steps: np.ndarray) -> np.ndarray:
    """The hottest temperature, from 90 degrees down, that each step to nearest leaves as it is."""
    t = temperatures(fmt)
    return np.array(
        [t[step_is_lost(cooling, t, dt, fmt)].max() for dt in steps.tolist()]
    )


class SimulationErrors(NamedTuple):
    """Errors of simulations in a format.

    Attributes:
        fmt: the format of the state.
        method: one of `mplab.arithmetic.METHODS`.
        subject: what has an error.
        quantity: the kind of the errors, and their unit.
        axis: the quantity along `x`.
        x: powers of two, or products of one number with them, shape (n,).
        errors: of that shape.
    """

    fmt: Format
    method: str
    subject: str
    quantity: str
    axis: str
    x: np.ndarray
    errors: np.ndarray


def measure_step_errors(
    fmt: Format, *, method: str = "nearest", seed: int = 0
) -> SimulationErrors:
    """Errors of 32 cups of coffee after 10 minutes, for Euler steps from long to short.

    The root of the mean square over cups, since the best step of one is not that of another.

    Args:
        fmt: the format of the temperatures.
        method: one of `mplab.arithmetic.METHODS`.
        seed: of the first temperatures, 60 to 95 degrees, and of stochastic rounding.

    Exactness:
        Compared with the solution of the equation for the rounded first temperatures.
    """
    start = round_to(np.random.default_rng(seed).uniform(60, 95, 32), fmt)
    exact = ROOM + (start - ROOM) * np.exp(-10 * RATE)
    counts = 2 ** np.arange(2, 14)
    errors = []
    for count in counts.tolist():
        end = integrate(
            cooling, start, 10 / count, count, fmt, method=method, seed=seed
        )[-1]
        errors.append(np.sqrt(np.mean((end - exact) ** 2)))
    said = "32 cups after 10 minutes", "error (degrees)", "time step (minutes)"
    return SimulationErrors(fmt, method, *said, 10 / counts, np.array(errors))


def measure_grid_errors(
    fmt: Format, *, method: str = "nearest", seed: int = 0
) -> SimulationErrors:
    """Relative errors of a heated rod, for grids from coarse to fine.

    u_t = u_xx + π² sin πx with u = 0 at the start and at both ends, until t = ½, where u is nearly
    sin πx. Second differences, and Euler steps of a quarter of the squared grid spacing.

    Args:
        fmt: the format of the temperatures.
        method: one of `mplab.arithmetic.METHODS`.
        seed: of stochastic rounding.

    Exactness:
        Compared with the solution of the equation, in the Euclidean norm.
    """
    sizes = 2 ** np.arange(3, 7)
    errors = []
    for n in sizes.tolist():
        form = np.sin(np.pi * np.arange(1, n) / n)
        end = integrate(
            _heated(n, form),
            0 * form,
            0.25 / n**2,
            2 * n**2,
            fmt,
            method=method,
            seed=seed,
        )[-1]
        exact = form * (1 - np.exp(-(np.pi**2) / 2))
        errors.append(np.linalg.norm(end - exact) / np.linalg.norm(exact))
    said = "a heated rod", "relative error", "intervals of the grid"
    return SimulationErrors(fmt, method, *said, sizes, np.array(errors))


def _heated(n: int, form: np.ndarray) -> Callable[[np.ndarray], Any]:
    def rate(u: np.ndarray) -> Any:
        padded = np.pad(u, 1)
        return (padded[2:] - 2 * u + padded[:-2]) * n**2 + np.pi**2 * form

    return rate


# Figures ---------------------------------------------------------------------------------
def time_courses(runs: Mapping[str, np.ndarray], *, until: float) -> c.Picture:
    """States over time, of runs that may have steps of different length.

    Args:
        runs: by name, shape (steps + 1,), each from 0 to `until`; what is called "exact" is black.
        until: the time of the last states, in minutes.

    Returns:
        A figure whose title says how far apart the runs end.
    """
    lines, ends = [], {}
    for k, (name, run) in enumerate(runs.items()):
        look = c.REFERENCE if name == "exact" else c.NEUTRAL[k % len(c.NEUTRAL)]
        how = {"linewidth": 0.9 if name == "exact" else None}
        lines.append(c.Line(np.linspace(0, until, len(run)), run, name, look, how))
        ends[name] = float(run[-1])
    low, high = min(ends, key=lambda k: ends[k]), max(ends, key=lambda k: ends[k])
    apart = number(ends[high] - ends[low], digits=3)
    claim = f"After {until:g} minutes {high} ends {apart} °C above {low}."
    if ends[low] == ends[high]:
        claim = (
            f"After {until:g} minutes all runs end at {number(ends[low], digits=5)} °C."
        )
    said = c.listed(f"{number(end, digits=5)} ({name})" for name, end in ends.items())
    quantities = "minutes", "temperature (°C)"
    return c.line_chart(
        lines,
        *quantities,
        claim,
        f"Ends: {said}.",
        finish=lambda axes: axes.margins(x=0.01),
    )


def plot_freezing_points(found: Sequence[FreezingPoints]) -> c.Picture:
    """The hottest temperature that a step leaves as it is, against the step, and where runs end.

    Args:
        found: from `measure_freezing_points`, one for each format.

    Returns:
        A figure whose title says how many runs end where the rule says.
    """
    lines = []
    right = 0
    runs = 0
    for points in found:
        look = c.style(points.fmt)
        lines.append(
            c.Line(points.steps[::-1], points.predicted[::-1], points.fmt.name, look)
        )
        marks = {"linestyle": "", "marker": look.marker}
        lines.append(c.Line(points.run_steps, points.reached, "", look, marks))
        said = points.predicted[np.searchsorted(points.steps, points.run_steps)]
        right, runs = right + int(np.sum(said == points.reached)), runs + len(said)
    claim = f"{right} of {runs} runs stop where the rule says, the hotter the finer the step."
    details = "Lines: predicted; marks: runs of 100 minutes."
    quantities = "time step (minutes)", "temperature (°C)"
    return c.line_chart(
        lines,
        *quantities,
        claim,
        details,
        log="x",
        finish=lambda axes: axes.invert_xaxis(),
    )


def plot_simulation_errors(curves: Sequence[SimulationErrors]) -> c.Picture:
    """Errors of simulations, a line for each format and method.

    Args:
        curves: from `measure_step_errors` or `measure_grid_errors`, all of one kind.

    Returns:
        A figure whose title says how small the error becomes with the best line, and the worst.
    """
    # Of one kind.
    ((subject, axis, quantity),) = {(k.subject, k.axis, k.quantity) for k in curves}
    lines, lowest = [], []
    for curve in curves:
        look, (dash, words) = c.style(curve.fmt), c.METHOD_STYLES[curve.method]
        name = f"{curve.fmt.name} {words}"
        how = {"linestyle": dash, "marker": look.marker}
        lines.append(c.Line(curve.x, curve.errors, name, look, how))
        best = int(np.argmin(curve.errors))
        lowest.append((float(curve.errors[best]), name, float(curve.x[best])))
    falls = curves[0].x[0] > curves[0].x[-1]  # finer steps or grids to the right
    lowest.sort()
    said = [f"{error:.2g} with {name}" for error, name, _ in lowest]
    claim = f"Of {subject}: the error is at best {said[0]}"
    claim += f", {said[-1]}." if len(said) > 1 else "."
    places = c.listed(f"{e:.2g} ({name}) at {x:.2g}" for e, name, x in lowest)
    return c.line_chart(
        lines,
        axis,
        quantity,
        claim,
        f"Lowest: {places}.",
        log="xy",
        finish=lambda axes: axes.xaxis.set_inverted(falls),
    )


@c.in_house_style
def orbits(runs: Mapping[str, np.ndarray]) -> c.Picture:
    """The states of runs in three numbers x, y and z: z against x, a panel for each run.

    Args:
        runs: by name, shape (steps + 1, 3).

    Returns:
        A figure whose title counts the different states of each run, and says its cycle's length.
    """
    picture = c.Picture(height=3.9, width=8.4)
    panels = picture.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
    said = []
    for k, (axes, (name, run)) in enumerate(zip(panels, runs.items(), strict=True)):
        places = np.unique(run[:, ::2], axis=0)
        # 20,000 dots are megabytes of SVG: pixels, of a grey for light and dark pages.
        dots = {"color": c.FAINT, "markeredgewidth": 0, "rasterized": True}
        axes.plot(*places.T, "s", markersize=1.2, **dots)
        axes.set_title(name)
        axes.set_xlabel("x")
        if not k:
            axes.set_ylabel("z")
        states, length = cycle(run)
        ending = f", then the last {length:,} again and again" if length else ""
        said.append(f"{name} visits {plural(states, 'state')}{ending}")
    steps = len(run) - 1
    sentence = f"In {steps:,} steps {'; '.join(said)}."
    return c.titled(picture, sentence, "Points, z against x.")


def cycle(run: np.ndarray) -> tuple[int, int]:
    """The number of different states of a run, and the length of the cycle it ends in, or 0."""
    seen: dict[bytes, int] = {}
    length = 0
    for n, state in enumerate(run):
        first = seen.setdefault(state.tobytes(), n)
        if first < n and not length and np.array_equal(run[first : first - n], run[n:]):
            length = n - first
    return len(seen), length
