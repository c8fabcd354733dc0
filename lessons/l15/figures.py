"""Linear systems: how many steps refinement takes, and where it ends."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mplab import Format
from mplab.arithmetic import Refinement, refine
from mplab.common.words import plural
from mplab.course.pictures import canvas as c


class System(NamedTuple):
    """A system a·x = b without any rounding in it.

    Attributes:
        a: float64, shape (n, n).
        b: float64, shape (n,): exactly a·x.
        x: float64, shape (n,): whole numbers from −9 to 9.
    """

    a: np.ndarray
    b: np.ndarray
    x: np.ndarray


def random_system(
    condition: float, *, size: int = 64, small: int | None = None, seed: int = 0
) -> System:
    """A random system of a given condition number, whose exact solution is known.

    The entries of `a` are cut to so few bits that a·x is exact in float64.

    Args:
        condition: ‖a‖·‖a⁻¹‖ in the 2-norm, 1 to 2^40.
        size: n, 2 to 256.
        small: how many singular values are 1/condition, the others being 1; None lets them fall
            from 1 in equal ratios.
        seed: of `a` and `x`.

    Exactness:
        b is exact; the condition is as asked to 6 percent.

    Examples:
        >>> system = random_system(100, size=8)
        >>> bool(np.all(system.a @ system.x == system.b))
        True
    """
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    values = np.asarray(condition ** -np.linspace(0, 1, size))
    if small is not None:
        values = np.where(np.arange(size) < size - small, 1.0, 1 / condition)
    a = (left * values) @ right
    grid = 2.0 ** (53 - (9 * size).bit_length())  # a sum of `size` products has 53 bits
    a = np.rint(a * grid) / grid
    x = rng.integers(-9, 10, size).astype(np.float64)
    return System(a, a @ x, x)


# What refinement costs -------------------------------------------------------------------
class RefinementCosts(NamedTuple):
    """How many steps refinement took, by condition and system.

    Attributes:
        fmt: the format of the factors.
        method: "classic" or "gmres".
        size: unknowns of each system.
        conditions: of the systems, shape (conditions,).
        taken: shape (conditions, draws): corrections, or GMRES's inner steps for each of them,
            n at most; NaN where the system did not converge.
    """

    fmt: Format
    method: str
    size: int
    conditions: np.ndarray
    taken: np.ndarray

    @property
    def reach(self) -> float:
        """The condition up to which every system converged; 0 if not all of the first did."""
        failed = np.isnan(self.taken).any(axis=1)
        count = int(np.argmax(failed)) if failed.any() else len(failed)
        return float(self.conditions[count - 1]) if count else 0.0


def measure_refinement_costs(
    fmt: Format,
    *,
    method: str = "classic",
    size: int = 64,
    draws: int = 5,
    seed: int = 0,
) -> RefinementCosts:
    """Steps of `refine` for random systems of conditions 1, 4, 16, …, 2^32.

    Args:
        fmt: the format of the factors.
        method: "classic" or "gmres".
        size: unknowns of each system, 2 to 256.
        draws: how many systems of each condition.
        seed: of the first system; each further one has the next seed.

    Exactness:
        A system has converged if its backward error, computed without rounding, is at most 2^−52.
    """
    conditions = 2.0 ** np.arange(0, 33, 2)
    taken = np.full((len(conditions), draws), np.nan)
    for i, condition in enumerate(conditions.tolist()):
        for j in range(draws):
            a, b, _ = random_system(condition, size=size, seed=seed + j)
            found = refine(a, b, factor_format=fmt, method=method)
            if found.converged:
                steps = found.inner_steps / max(found.steps, 1)
                taken[i, j] = found.steps if method == "classic" else steps
    return RefinementCosts(fmt, method, size, conditions, taken)


# Figures ---------------------------------------------------------------------------------
_LEAST = 2.0**-60
"""The least backward error drawn in place; smaller ones lie at the edge."""


def plot_refinements(found: Mapping[str, Refinement]) -> c.Picture:
    """Backward errors step by step, of several refinements.

    Args:
        found: from `refine`, by name; a name that begins with a format has its colour.

    Returns:
        A figure whose title says which have converged, in how many steps.
    """
    lines, said = [], []
    for name, run in found.items():
        look = c.style(name.split(" ")[0])
        if run.converged:
            said.append(f"{name} converges in {plural(run.steps, 'step')}")
        elif not run.steps:
            said.append(f"{name} has no factors")
        else:
            said.append(f"{name} stays at {run.backward_errors[-1]:.0e}")
        shown = np.clip(run.backward_errors, _LEAST, 1.0)
        if len(shown):
            how = {"marker": look.marker or "."}
            lines.append(c.Line(range(len(shown)), shown, name, look, how))

    def finish(axes: Axes) -> None:
        axes.axhline(2.0**-52, color="black", linewidth=0.9)
        axes.set_ylim(_LEAST / 2, 2)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    claim = f"{'; '.join(said)}."
    quantities = "corrections", "backward error (line: 2⁻⁵²)"
    return c.line_chart(lines, *quantities, claim, log="y", finish=finish)


@c.in_house_style
def plot_refinement_costs(curves: Sequence[RefinementCosts]) -> c.Picture:
    """Steps against the condition: where refinement ends, or no longer gains anything.

    A line runs as far as all systems converge. Dotted: where the condition is 1/u.

    Args:
        curves: from `measure_refinement_costs`, one for each format, all of one method.

    Returns:
        A figure whose title says how far each format reaches.
    """
    ((method, size),) = {(curve.method, curve.size) for curve in curves}  # of one kind
    picture = c.Picture(height=4.2, width=8.0)
    axes = picture.subplots()
    ends, said = [], []
    for curve in curves:
        look = c.style(curve.fmt)
        inside = curve.conditions <= curve.reach
        median = np.median(curve.taken[inside], axis=1)
        x = curve.conditions[inside]
        said.append(f"{curve.fmt.name} {_reaches(curve, x[median > size / 2])}")
        axes.axvline(
            1 / curve.fmt.unit_roundoff, color=look.colour, linestyle=":", linewidth=1
        )
        if not inside.any():
            continue
        ends.append(c.curve(axes, x, median, curve.fmt.name, look, marker=look.marker))
    axes.set_xscale("log", base=2)
    axes.set_xlim(curves[0].conditions[0] / 1.5, curves[0].conditions[-1] * 1.5)
    axes.set_ylim(bottom=0)
    c.log_ticks(axes.xaxis)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("condition (dotted: 1/u of each format)")
    axes.set_ylabel(
        "corrections" if method == "classic" else "inner steps a correction"
    )
    sentence = f"Every system converges within 50 corrections: {'; '.join(said)}."
    if method == "gmres":
        axes.axhline(size, color="black", linewidth=0.9)
        last = float(curves[0].conditions[-1])
        ends.append(c.End(axes, last, float(size), f"n = {size}", "black"))
        sentence = (
            f"More than n/2 = {size / 2:g} inner steps a correction: {'; '.join(said)}."
        )
    c.titled(picture, sentence, "Line chart, conditions on a logarithmic axis.")
    c.label_ends(picture, ends)
    return picture


def _reaches(curve: RefinementCosts, dear: np.ndarray) -> str:
    """Say up to which condition corrections converge, or from which one inner steps are costly."""
    if curve.method == "gmres":
        return f"from {c.power_of_two(dear[0])}" if len(dear) else "nowhere"
    return f"up to {c.power_of_two(curve.reach)}" if curve.reach else "nowhere"
