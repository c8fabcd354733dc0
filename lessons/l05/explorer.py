"""The explorer of long sums: accumulators racing against the exact sum."""

from __future__ import annotations

import math
from html import escape
from typing import NamedTuple

import ipywidgets
import numpy as np

from mplab.arithmetic.reductions import cumsum, sum
from mplab.explorers.chart import svg
from mplab.explorers.widget import Explorer
from mplab.numbers.formats import BF16, FP8_E4M3, FP16, FP32, Format
from mplab.numbers.rounding import round_to
from mplab.pictures.canvas import BAND, percent, power_of_two, style

MOST = 1 << 14

LENGTHS = tuple(sorted({round(2 ** (k / 2)) for k in range(29)}))
"""How many terms can be chosen: powers of two, and a step between."""


class Lane(NamedTuple):
    """One accumulator of the race."""

    name: str
    fmt: Format
    order: str = "sequential"


LANES = (
    Lane("E4M3 one by one", FP8_E4M3),
    Lane("BF16 one by one", BF16),
    Lane("FP16 one by one", FP16),
    Lane("BF16 pairwise", BF16, "pairwise"),
    Lane("BF16 Kahan", BF16, "kahan"),
    Lane("FP32 one by one", FP32),
)


class Standing(NamedTuple):
    """Where one lane is after some terms.

    Attributes:
        lane: whose.
        total: what it holds.
        exact: what it should hold.
        stalled: the term after which nothing moves it any more, None if it still moves.
    """

    lane: Lane
    total: float
    exact: float
    stalled: int | None

    @property
    def words(self) -> str:
        """The total, and how it compares with the exact sum."""
        off = self.total - self.exact
        if not off:
            return f"{self.total:,g}, exact"
        how = "short" if off < 0 else "too much"
        words = f"{self.total:,.5g}, {percent(abs(off), self.exact)} {how}"
        return words if self.stalled is None else f"{words}, stalled"


class AccumulatorRace(Explorer):
    """Which accumulators keep up with the exact sum, and where do the others stall?

    A lane for each accumulator, with its running sum as a bar on a scale of powers of two; the
    black line is the exact sum. All terms are values of E4M3, so every format gets the same.

    Args:
        seed: of the random terms.

    Attributes:
        terms: the choice of terms.
        length: the slider of how many have been added.
        standings: where each lane is.

    Exactness:
        Every sum is that of `mplab.arithmetic`. The exact ones are exact: sums of fewer than
        2^15 multiples of 2^−9 in float64.

    Examples:
        >>> race = AccumulatorRace()
        >>> race.length.value = 4096
        >>> [standing.total for standing in race.standings]
        [16.0, 256.0, 2048.0, 4096.0, 4096.0, 4096.0]
    """

    def __init__(self, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        random = round_to(rng.random(MOST), FP8_E4M3)
        self._terms = {
            "ones": np.ones(MOST),
            "random, between 0 and 1": random,
            "losses near 2.5": round_to(2 + random, FP8_E4M3),
        }
        self._sums = {name: _race(terms) for name, terms in self._terms.items()}
        self.terms = ipywidgets.Dropdown(options=list(self._terms), description="terms")
        self.length = ipywidgets.SelectionSlider(
            options=[(f"{n:,}", n) for n in LENGTHS],
            value=64,
            description="how many",
            layout={"width": "min(36rem, 98%)"},
        )
        question = "Which accumulators keep up with the exact sum, and where do the others stall?"
        super().__init__(question, [self.terms, self.length])

    @property
    def standings(self) -> list[Standing]:
        """Where each lane is after the chosen number of terms."""
        at, n = LENGTHS.index(self.length.value), self.length.value
        exact = float(np.sum(self._terms[self.terms.value][:n]))
        return [
            Standing(
                lane, float(totals[at]), exact, stop if stop is not None and stop < n else None
            )
            for lane, (totals, stop) in zip(LANES, self._sums[self.terms.value], strict=True)
        ]

    def draw(self) -> tuple[str, str]:
        """The lanes, and each lane's standing in words."""
        standings, n = self.standings, self.length.value
        lanes = "; ".join(f"{standing.lane.name}: {standing.words}" for standing in standings)
        sentence = f"After {n:,} terms the exact sum is {standings[0].exact:,g}. {lanes}."
        stopped = [
            f"{standing.lane.name} at term {standing.stalled:,}"
            for standing in standings
            if standing.stalled is not None
        ]
        if stopped:
            sentence += f" Stalled: {'; '.join(stopped)}."
        return _lanes_svg(standings, sentence), sentence


def _race(terms: np.ndarray) -> list[tuple[np.ndarray, int | None]]:
    """For each lane its sums at `LENGTHS`, and the last term that moved it, if it stalls."""
    places = np.array(LENGTHS) - 1
    found: list[tuple[np.ndarray, int | None]] = []
    for lane in LANES:
        if lane.order == "pairwise":
            sums = [sum(terms[:n], accumulator_format=lane.fmt, order="pairwise") for n in LENGTHS]
            found.append((np.array(sums), None))
            continue
        running = cumsum(terms, accumulator_format=lane.fmt, order=lane.order)
        last = int(np.flatnonzero(np.diff(running, prepend=0.0))[-1]) + 1
        found.append((running[places], last if last < MOST // 2 else None))
    return found


# SVG -------------------------------------------------------------------------------------
WIDTH, LEFT, RIGHT, TOP, LANE = 760, 138, 520, 14, 34

LOW, HIGH = -4, 16  # exponents of the scale


def _lanes_svg(standings: list[Standing], description: str) -> str:
    def x(value: float) -> float:
        exponent = math.log2(value) if value > 0 else LOW
        return LEFT + (max(exponent, LOW) - LOW) / (HIGH - LOW) * (RIGHT - LEFT)

    bottom = TOP + LANE * len(standings)
    parts = []
    for k in range(LOW, HIGH + 1, 2):
        at = x(2.0**k)
        parts.append(
            f'<path d="M{at:.1f} {TOP}V{bottom + 5}" stroke="{BAND}" stroke-opacity="0.5"/>'
            f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">'
            f"{power_of_two(2.0**k)}</text>"
        )
    for row, standing in enumerate(standings):
        top, end = TOP + LANE * row, x(standing.total)
        fill = style(standing.lane.fmt).colour
        parts.append(
            f'<text x="{LEFT - 8}" y="{top + 22}" text-anchor="end">{standing.lane.name}</text>'
            f'<rect x="{LEFT}" y="{top + 8}" width="{end - LEFT:.1f}" height="{LANE - 14}" '
            f'fill="{fill}"/><text x="{RIGHT + 10}" y="{top + 22}">{escape(standing.words)}</text>'
        )
        if standing.stalled is not None:
            parts.append(
                f'<path d="M{end:.1f} {top + 3}v{LANE - 4}" stroke="{fill}" stroke-width="4"/>'
            )
    exact = x(standings[0].exact)
    parts.append(
        f'<path d="M{exact:.1f} {TOP - 6}V{bottom}" stroke="black" stroke-width="1.5"/>'
        f'<text x="{(LEFT + RIGHT) / 2}" y="{bottom + 42}" text-anchor="middle">'
        "running sum (black line: exact)</text>"
    )
    label = f"Bars of running sums. {description}"
    return svg(parts, width=WIDTH, height=bottom + 52, description=label)
