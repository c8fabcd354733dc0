"""The explorer of long sums: accumulators racing against the exact sum."""

from typing import NamedTuple

import numpy as np

from mplab import BF16, FP8_E4M3, FP16, FP32, Format, Rounding, Stream, round_to
from mplab.arithmetic import cumsum, sum
from mplab.course.explorers.chart import Bar, Scale, bars
from mplab.course.explorers.widget import Explorer, choice, stops
from mplab.course.pictures.canvas import percent, style

MOST = 1 << 14

LENGTHS = tuple(sorted({round(2 ** (k / 2)) for k in range(29)}))
"""The numbers of terms to choose from: powers of two, and one step between each two."""


class Lane(NamedTuple):
    """One accumulator of the race."""

    name: str
    fmt: Format
    order: str = "sequential"
    rounding: Rounding = Rounding.TIES_TO_EVEN


LANES = (
    Lane("E4M3 one by one", FP8_E4M3),
    Lane("BF16 one by one", BF16),
    Lane("FP16 one by one", FP16),
    Lane("BF16 pairwise", BF16, "pairwise"),
    Lane("BF16 Kahan", BF16, "kahan"),
    Lane("BF16 stochastic", BF16, rounding=Rounding.STOCHASTIC),
    Lane("FP32 one by one", FP32),
)


class Standing(NamedTuple):
    """The state of one lane after some terms.

    Attributes:
        lane: the lane.
        total: its running sum.
        exact: the exact sum.
        stalled: the last term that changed the sum; None if it still changes.
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

    A lane for each accumulator, with its running sum as a bar, in shares of the exact sum, which
    is the upright line. All terms are values of E4M3, so every format gets the same.

    Args:
        seed: the seed of the random terms.

    Attributes:
        terms: the choice of terms.
        length: the slider of how many have been added.
        standings: the state of each lane.

    Exactness:
        Every sum is that of `mplab.arithmetic`. The exact ones are exact: sums of fewer than
        2^15 multiples of 2^−9 in float64.

    Examples:
        >>> race = AccumulatorRace()
        >>> race.length.value = 4096
        >>> [standing.total for standing in race.standings]
        [16.0, 256.0, 2048.0, 4096.0, 4096.0, 3856.0, 4096.0]
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
        self.terms = choice("terms", self._terms)
        self.length = stops("how many", [(f"{n:,}", n) for n in LENGTHS], 64)
        question = "Which accumulators keep up with the exact sum, and where do the others stall?"
        super().__init__(question, [self.terms, self.length])

    @property
    def standings(self) -> list[Standing]:
        """The state of each lane after the chosen number of terms."""
        at = LENGTHS.index(self.length.value)
        n = self.length.value
        exact = float(np.sum(self._terms[self.terms.value][:n]))
        return [
            Standing(
                lane, float(totals[at]), exact, stop if stop and stop < n else None
            )
            for lane, (totals, stop) in zip(
                LANES, self._sums[self.terms.value], strict=True
            )
        ]

    def draw(self) -> tuple[str, str]:
        """Draw the lanes, and say each lane's standing in words."""
        standings, n = self.standings, self.length.value
        lanes = "; ".join(
            f"{standing.lane.name}: {standing.words}" for standing in standings
        )
        sentence = (
            f"After {n:,} terms the exact sum is {standings[0].exact:,g}. {lanes}."
        )
        stopped = [
            f"{standing.lane.name} at term {standing.stalled:,}"
            for standing in standings
            if standing.stalled is not None
        ]
        if stopped:
            sentence += f" Stalled: {'; '.join(stopped)}."
        picture = bars(
            [
                Bar(
                    s.lane.name, s.total / s.exact, s.words, style(s.lane.fmt).colour,
                    s.stalled is not None,
                )
                for s in standings
            ],
            Scale(0, 1.25, 138, 520),
            f"Bars of running sums, as shares of the exact one. {sentence}",
            width=760, row=34, ticks=(0, 0.25, 0.5, 0.75, 1, 1.25), tick_words="{:.0%}".format,
            mark=1.0, axis="running sum, as a share of the exact one",
        )  # fmt: skip
        return picture, sentence


def _race(terms: np.ndarray) -> list[tuple[np.ndarray, int | None]]:
    """The sums of each lane at `LENGTHS`, and the last term that changed it if it stalls."""
    places = np.array(LENGTHS) - 1
    found: list[tuple[np.ndarray, int | None]] = []
    for lane in LANES:
        if lane.order == "pairwise":
            sums = [
                sum(terms[:n], accumulator_format=lane.fmt, order="pairwise")
                for n in LENGTHS
            ]
            found.append((np.array(sums), None))
            continue
        stream = Stream(0) if lane.rounding is Rounding.STOCHASTIC else None
        running = cumsum(
            terms,
            accumulator_format=lane.fmt,
            order=lane.order,
            rounding=lane.rounding,
            stream=stream,
        )
        last = int(np.flatnonzero(np.diff(running, prepend=0.0))[-1]) + 1
        found.append((running[places], last if last < MOST // 2 else None))
    return found
