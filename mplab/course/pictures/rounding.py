"""The figures of rounding: its profile, running sums, and what a meter of the loss reports."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mplab.arithmetic.reductions import cumsum
from mplab.common.words import number, plural
from mplab.course.pictures import canvas as c
from mplab.numbers.codes import next_up, ulp, values
from mplab.numbers.formats import Format, Rounding
from mplab.numbers.options import Stream
from mplab.numbers.rounding import round_to


def mode_words(mode: Rounding) -> str:
    """Write a rounding mode in words.

    Examples:
        >>> mode_words(Rounding.TIES_TO_EVEN)
        'ties to even'
    """
    return mode.name.lower().replace("_", " ")


def rounded(x: np.ndarray, fmt: Format, mode: Rounding, seed: int = 0) -> np.ndarray:
    """Round `x` to `fmt`; `seed` is the seed of stochastic rounding."""
    stream = Stream(seed) if mode is Rounding.STOCHASTIC else None
    return np.asarray(round_to(x, fmt, rounding=mode, stream=stream))


# Profiles --------------------------------------------------------------------------------
@c.in_house_style
def rounding_profile(
    fmt: Format, modes: Sequence[Rounding], low: float, high: float, *, seed: int = 0
) -> c.Picture:
    """Draw how each mode rounds the numbers from `low` to `high`, and its errors.

    Args:
        fmt: the format.
        modes: one column each.
        low: where the axis begins.
        high: where it ends.
        seed: the seed of stochastic rounding.

    Returns:
        A figure whose title names the largest error of each mode, in ulps.
    """
    picture = c.Picture(height=4.6, width=2.6 + 2.3 * len(modes))
    grid = picture.subplots(2, len(modes), sharex=True, sharey="row", squeeze=False)
    x = np.linspace(low, high, 1281)
    found = _values_near(x, fmt)
    after = next_up(found, fmt)
    middles = (found[:-1] + after[:-1]) / 2
    if np.any(after[:-1] != found[1:]):  # too many to draw
        middles = middles[:0]
    ends = [np.nextafter(found, side) for side in (-np.inf, np.inf)]
    edges = np.concatenate([*ends, (found + after) / 2])
    edges = edges[(edges >= low) & (edges <= high)]
    worst = {}
    for (above, below), mode in zip(grid.T, modes, strict=True):
        result = rounded(x, fmt, mode, seed)
        units = ulp(x, fmt)
        errors = (result - x) / units
        places, stairs, saw = c.in_runs([result, units], x, result, errors)
        above.plot(x, x, color="black", linewidth=0.7)
        thick: Any = {"color": c.style(fmt).colour, "solid_capstyle": "round"}
        above.plot(places, stairs, linewidth=2.5, **thick)
        if mode in _NEAREST:
            above.plot(
                middles, rounded(middles, fmt, mode), "o", color="black", markersize=4
            )
        above.set_title(mode_words(mode))
        below.axhline(0, color=c.BAND, linewidth=0.8)
        below.plot(places, saw, linewidth=2, **thick)
        below.set_ylim(-1.1, 1.1)
        at_edges = (rounded(edges, fmt, mode, seed) - edges) / ulp(edges, fmt)
        errors = np.abs(np.concatenate([errors, at_edges]))
        worst[mode] = max(errors[np.isfinite(errors)].tolist(), default=np.inf)
    grid[0, 0].set_ylabel(f"value in {fmt.name}")
    grid[1, 0].set_ylabel("error (ulp)")
    picture.supxlabel("number", fontsize=10)
    sentence = f"From {number(low)} to {number(high)} {_misses(worst)}"
    if middles.size and all(mode in _NEAREST for mode in modes) and len(modes) > 1:
        fates = np.stack([rounded(middles, fmt, mode) for mode in modes])
        parted = int(np.sum(np.any(fates != fates[0], axis=0)))
        sentence += f"; they part at {parted} of {middles.size} ties (dots)"
    return c.titled(
        picture, sentence, "Stairs above, their errors below, one column for each mode."
    )


def _values_near(x: np.ndarray, fmt: Format) -> np.ndarray:
    """Return the finite values that `x` rounds to; of a format of 8 bits all those between, too."""
    found = np.unique(rounded(x, fmt, Rounding.TIES_TO_EVEN))
    found = found[np.isfinite(found)]
    if fmt.bits > 8 or not found.size:
        return np.asarray(found)
    every = np.unique(values(fmt))
    return np.asarray(every[(every >= found[0]) & (every <= found[-1])])


_NEAREST = (Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY)


def _misses(worst: dict[Rounding, float]) -> str:
    """Say the largest error of each mode; once, if all have the same."""
    names = c.listed([mode_words(mode) for mode in worst])
    amounts = {_at_most(error) for error in worst.values()}
    if len(amounts) == 1:
        verb = "miss" if len(worst) > 1 else "misses"
        return f"{names} {verb} by {amounts.pop()}"
    each = [f"{mode_words(mode)} by {_at_most(error)}" for mode, error in worst.items()]
    return f"the modes miss: {c.listed(each)}"


def _at_most(error: float) -> str:
    """Say an error in words; a whole ulp is never reached."""
    return "nearly 1 ulp" if f"{error:.2f}" == "1.00" else f"up to {error:.2f} ulp"


class RunningSum(NamedTuple):
    """A running sum: the format of the accumulator, and how it rounds."""

    fmt: Format
    rounding: Rounding = Rounding.TIES_TO_EVEN

    @property
    def name(self) -> str:
        """The format, and the mode if it is not the usual one."""
        usual = self.rounding is Rounding.TIES_TO_EVEN
        return (
            self.fmt.name if usual else f"{self.fmt.name} {mode_words(self.rounding)}"
        )


def running_sums(
    start: float,
    term: float,
    times: int,
    sums: Sequence[RunningSum | Format],
    *,
    seed: int = 0,
) -> c.Picture:
    """Draw running sums: the same term is added to a number again and again.

    Args:
        start: the first value.
        term: what is added; rounded to each accumulator's format first, to nearest.
        times: how often.
        sums: the accumulators, each a format or a `RunningSum`.
        seed: the seed of stochastic rounding.

    Returns:
        A figure whose title says where each sum ends, and where it should.
    """
    exact = start + term * times
    lines = [c.Line([0, times], [start, exact], "exact", c.REFERENCE, {"linewidth": 1})]
    words = []
    shown = np.unique(np.linspace(0, times, 600).astype(int))
    for entry in sums:
        accumulator = entry if isinstance(entry, RunningSum) else RunningSum(entry)
        running = _running(start, term, times, accumulator, seed)
        look = c.style(accumulator.fmt)
        dash = "dotted" if accumulator.rounding is Rounding.STOCHASTIC else look.dash
        lines.append(
            c.Line(shown, running[shown], accumulator.name, look, {"linestyle": dash})
        )
        words.append(f"{accumulator.name} ends at {number(float(running[-1]))}")
    claim = f"The exact sum is {number(exact)}; {c.listed(words)}"
    return c.line_chart(lines, f"times {number(term)} was added", "running sum", claim)


def _running(
    start: float, term: float, times: int, accumulator: RunningSum, seed: int
) -> np.ndarray:
    """Compute the running sums of one accumulator, `start` first."""
    terms = np.full(times + 1, float(round_to(term, accumulator.fmt)))
    terms[0] = float(round_to(start, accumulator.fmt))
    stream = Stream(seed) if accumulator.rounding is Rounding.STOCHASTIC else None
    return cumsum(
        terms,
        accumulator_format=accumulator.fmt,
        rounding=accumulator.rounding,
        stream=stream,
    )


def loss_meter(losses: Any, formats: Sequence[Format]) -> c.Picture:
    """Draw the mean of all losses so far, as a running sum in each format would report it.

    Args:
        losses: one for each step, values of FP32.
        formats: the formats of the running sum.

    Returns:
        A figure whose title says what the first format reports at the end.
    """
    values = np.asarray(losses, np.float64)
    counts = np.arange(1, len(values) + 1)
    lines = [c.Line(counts, values, "the loss itself", c.REFERENCE, {"linewidth": 0.9})]
    reports = []
    for fmt in formats:
        means = cumsum(values, accumulator_format=fmt) / counts
        lines.append(
            c.Line(counts, means, f"its mean, summed in {fmt.name}", c.style(fmt))
        )
        reports.append(f"{number(means[-1], digits=3)} in {fmt.name}")
    claim = (
        f"The loss goes from {number(values[0], digits=3)} to {number(values[-1], digits=3)}; "
        f"the meter reports {c.listed(reports)}."
    )
    quantities = "step", "loss"
    return c.line_chart(
        lines,
        *quantities,
        claim,
        f"Over {plural(len(values), 'step')}.",
        finish=lambda axes: axes.set_ylim(bottom=min(0, axes.get_ylim()[0])),
    )
