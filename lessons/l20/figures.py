"""Rounding with a bias: attention whose ties break one way, and directions lost in few bits."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mplab import BF16, Format, round_to, ulp
from mplab.course.pictures import canvas as c

KEYS = 64
"""The keys of a row of attention."""


# Attention -------------------------------------------------------------------------------
def weights_of(
    below: float, *, tied: int = 2, moved: float = 0.0, fmt: Format = BF16
) -> np.ndarray:
    """The weights exp(score − m) of a row of 64 keys, rounded.

    Args:
        below: how far the scores of all other keys lie below the largest.
        tied: how many keys have the largest score.
        moved: how far m lies above the largest score.
        fmt: the format of the weights.
    """
    scores = np.full(KEYS, -below)
    scores[:tied] = 0.0
    return np.asarray(round_to(np.exp(scores - moved), fmt))


def output_errors(
    weights: np.ndarray,
    *,
    sign: float = -1.0,
    fmt: Format = BF16,
    draws: int = 20_000,
    seed: int = 0,
) -> np.ndarray:
    """Errors of outputs Σ P·V that are rounded once, in gaps of the format.

    Args:
        weights: of the keys, P.
        sign: of the values V, whose magnitudes are drawn from 1 to 2; 0 draws their signs.
        fmt: of values and outputs.
        draws: how many outputs.
        seed: of the values.
    """
    rng = np.random.default_rng(seed)
    values = round_to(rng.uniform(1, 2, (draws, len(weights))), fmt)
    values *= sign or rng.choice([-1.0, 1.0], values.shape)
    exact = values @ weights
    return np.asarray((round_to(exact, fmt) - exact) / ulp(exact, fmt))


class Biases(NamedTuple):
    """Mean errors of outputs, in gaps.

    Attributes:
        axis: the quantity along `x`.
        x: shape (n,).
        curves: the mean errors, of that shape, by case.
    """

    axis: str
    x: np.ndarray
    curves: dict[str, np.ndarray]


def measure_rests(*, fmt: Format = BF16, seed: int = 0) -> Biases:
    """The bias of outputs, by how far all other scores lie below the largest.

    Args:
        fmt: of weights, values and outputs.
        seed: of the values.
    """
    below = np.arange(5, 20.5, 0.5)
    cases = {
        "two keys at the maximum": (2, -1.0),
        "one key": (1, -1.0),
        "two keys, random signs": (2, 0.0),
    }
    curves = {}
    for name, (tied, sign) in cases.items():
        rows = [weights_of(b, tied=tied, fmt=fmt) for b in below]
        errors = [output_errors(row, sign=sign, fmt=fmt, seed=seed) for row in rows]
        curves[name] = np.array([error.mean() for error in errors])
    return Biases("other scores lie below the largest by", below, curves)


def plot_rests(found: Biases) -> c.Picture:
    """The bias against the distance of the other scores.

    Args:
        found: from `measure_rests`.

    Returns:
        A figure whose title says how large the bias becomes on both sides.
    """
    two = next(iter(found.curves.values()))
    claim = (
        f"Two keys share the maximum: the mean error lies between {two.max():+.2f} and "
        f"{two.min():+.2f} gaps, and the other keys decide where."
    ).replace("-", "−")
    return _plot(found, claim)


def measure_moves(*, seed: int = 0) -> Biases:
    """The bias in BF16 of two keys at the maximum, by how far m lies above the largest score.

    Args:
        seed: of the values.
    """
    moved = np.sort([*np.arange(0, 1.51, 1 / 16), np.log(2), np.log(4)])
    errors = [output_errors(weights_of(12, moved=m), seed=seed) for m in moved]
    biases = np.array([error.mean() for error in errors])
    return Biases("m lies above the largest score by", moved, {"mean error": biases})


def plot_moves(found: Biases) -> c.Picture:
    """The bias against the place of m.

    Args:
        found: from `measure_moves`.

    Returns:
        A figure whose title says where a bias is left.
    """
    (biases,) = found.curves.values()
    biased = np.abs(biases) > 0.1
    peaks = [f"{p:g}" for p in round_to(np.exp(-found.x[biased]), BF16)]
    rest = np.abs(biases[~biased]).max()
    claim = (
        f"Rounding has a bias where the largest P is {c.listed(peaks)}; "
        f"elsewhere the mean error is at most {rest:.2f} gaps."
    )
    return _plot(found, claim)


def _plot(found: Biases, claim: str) -> c.Picture:
    lines = [
        c.Line(found.x, biases, name, look, {"marker": look.marker, "markersize": 4})
        for (name, biases), look in zip(found.curves.items(), c.NEUTRAL, strict=False)
    ]
    zero = c.Line(found.x[[0, -1]], [0, 0], "", c.REFERENCE, {"linewidth": 0.9})
    return c.line_chart([zero, *lines], found.axis, "mean error (gaps)", claim)


class Growth(NamedTuple):
    """Sums of errors over more and more outputs, in gaps.

    Attributes:
        counts: how many outputs, shape (n,).
        sums: root mean squares over draws, of that shape, by case.
    """

    counts: np.ndarray
    sums: dict[str, np.ndarray]


def measure_growth(*, draws: int = 8, seed: int = 0) -> Growth:
    """How errors of outputs add up, with P = 1 and with the maximum moved by 1.

    Args:
        draws: how many sums for each number of outputs.
        seed: of the values.
    """
    counts = 2 ** np.arange(4, 15)
    sums = {}
    for name, moved in (("P = 1", 0.0), ("m moved by 1", 1.0)):
        errors = [
            output_errors(
                weights_of(12, moved=moved), draws=counts[-1], seed=seed + draw
            )
            for draw in range(draws)
        ]
        added = np.cumsum(errors, axis=1)[:, counts - 1]
        sums[name] = np.sqrt(np.mean(added**2, axis=0))
    return Growth(counts, sums)


def plot_growth(found: Growth) -> c.Picture:
    """The sums of errors against their number, beside T and √T.

    Args:
        found: from `measure_growth`.

    Returns:
        A figure whose title compares the sums at the end.
    """
    lines = [
        c.Line(found.counts, sums, name, look, {"marker": look.marker})
        for (name, sums), look in zip(found.sums.items(), c.NEUTRAL, strict=False)
    ]
    first = [sums[0] for sums in found.sums.values()]
    steps = found.counts / found.counts[0]
    laws = ("like T", first[0] * steps), ("like √T", first[1] * np.sqrt(steps))
    for name, law in laws:
        lines.append(c.Line(found.counts, law, name, c.REFERENCE, {"linewidth": 0.9}))
    biased, free = (f"{sums[-1]:,.0f}" for sums in found.sums.values())
    claim = (
        f"Over {found.counts[-1]:,} outputs biased errors add up to {biased} gaps, "
        f"errors without a bias to {free}."
    )
    return c.line_chart(lines, "outputs T", "sum of errors (gaps)", claim, log="xy")


# Directions ------------------------------------------------------------------------------
LARGE, SIZE = 8, 64


def gradient_of(
    small: float, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix with 8 singular values of 1 and 56 small ones, and both factors of these.

    Args:
        small: each of the 56.
        seed: of the directions.
    """
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((SIZE, SIZE)))[0] for _ in range(2))
    values = np.where(np.arange(SIZE) < LARGE, 1.0, small)
    return (left * values) @ right.T, left[:, LARGE:], right[:, LARGE:]


def cosine(
    update: np.ndarray, exact: np.ndarray, left: np.ndarray, right: np.ndarray
) -> float:
    """The cosine between two updates within the directions of the small singular values."""
    a, b = (left.T @ x @ right for x in (update, exact))
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


class Directions(NamedTuple):
    """How well updates keep the directions of small singular values.

    Attributes:
        small: the singular values, shape (n,).
        cosines: of that shape, by format.
    """

    small: np.ndarray
    cosines: dict[Format, np.ndarray]


def measure_directions(
    orthogonalise: Callable[[np.ndarray, Format | None], np.ndarray],
    formats: Sequence[Format],
    *,
    seed: int = 0,
) -> Directions:
    """The cosine between updates computed in formats and in float64.

    Args:
        orthogonalise: computes an update from a gradient, in a format or, for None, in float64.
        formats: to compute in.
        seed: of the directions.
    """
    small = 2.0 ** -np.arange(2, 19)
    cosines: dict[Format, list[float]] = {fmt: [] for fmt in formats}
    for value in small.tolist():
        gradient, left, right = gradient_of(value, seed=seed)
        exact = orthogonalise(gradient, None)
        for fmt in formats:
            found = cosine(orthogonalise(gradient, fmt), exact, left, right)
            cosines[fmt].append(found)
    return Directions(small, {fmt: np.array(rows) for fmt, rows in cosines.items()})


def plot_directions(found: Directions) -> c.Picture:
    """The cosine against the small singular values.

    Args:
        found: from `measure_directions`.

    Returns:
        A figure whose title says from which size on the directions are mostly lost.
    """
    lines, lost = [], []
    for fmt, cosines in found.cosines.items():
        look = c.style(fmt)
        lines.append(
            c.Line(found.small, cosines, fmt.name, look, {"marker": look.marker})
        )
        if (below := found.small[cosines < 0.5]).size:
            lost.append(f"{c.power_of_two(float(below.max()))} in {fmt.name}")
    claim = "No format loses most of the directions."
    if lost:
        claim = f"From {c.listed(lost)} on, directions are mostly noise."
    quantities = "small singular values (the large ones are 1)", "cosine with float64"
    return c.line_chart(
        lines, *quantities, claim, log="x", finish=lambda axes: axes.invert_xaxis()
    )
