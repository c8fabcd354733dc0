"""The exercises on weight updates: which are lost, and how a coin saves their mean."""

from collections.abc import Callable

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, FP16, Rounding, round_to, ulp
from mplab.course.exercises.exercise import ROUND_ONCE, Exercise, known


# Lost updates ----------------------------------------------------------------------------
def _share(flags: np.ndarray) -> float:
    return float(np.mean(flags)) if flags.size else 0.0


def _dead(w: np.ndarray, delta: np.ndarray) -> np.ndarray:
    return np.asarray(round_to(w + delta, BF16) == w)


def _below_half_an_ulp(w: np.ndarray, delta: np.ndarray) -> float:
    dead = np.abs(delta) < np.asarray(ulp(w, BF16)) / 2
    return _share(dead[delta != 0])


_RNG = np.random.default_rng(10)

_WEIGHTS, _UPDATES = (
    np.ldexp(
        _RNG.choice([-1.0, 1.0], 400) * _RNG.integers(128, 256, 400),
        _RNG.integers(*powers),
    )
    for powers in ((-10, -6, 400), (-18, -14, 400))
)

_DEAD_CASES = tuple(
    tuple(map(np.array, case))
    for case in (
        ([1.0], [0.5]),
        ([1.0], [0.001]),
        ([1.0, 1.0], [0.001, 0.0]),
        ([1.0, 4.0], [0.006, 0.006]),
        ([1.0], [-0.003]),
        ([-1.0], [0.003]),  # toward 0, where numbers are denser
        ([1.0, 1.0078125], [0.00390625, 0.00390625]),
        ([1.015625, 1.0], [0.00390625, 0.00390625 + 2.0**-20]),
        ([1.0], [2.0**-8 + 2.0**-40]),  # in float32 a tie
        ([1.0078125], [2.0**-8 - 2.0**-40]),
        ([-1.5, 1.75], [0.003, -0.006]),
        ([2.0**20, 129 * 2.0**13], [1.0, 4096.0]),  # beyond FP16
        ([2.0**-30], [2.0**-31]),  # np.isclose sees no difference
        ([1.0], [0.0]),
        (_WEIGHTS, _UPDATES),
    )
)


# Coins -----------------------------------------------------------------------------------
def _ends(x: float) -> tuple[float, float]:
    low = float(round_to(x, BF16, rounding=Rounding.TOWARD_NEGATIVE))
    return low, float(round_to(x, BF16, rounding=Rounding.TOWARD_POSITIVE))


def _coin_of(
    chance: Callable[[float, float, float], float],
) -> Callable[[float, float], float]:
    def rounded(x: float, r: float) -> float:
        low, high = _ends(x)
        return high if low < high and r < chance(x, low, high) else low

    return rounded


def _away_from_zero(x: float, r: float) -> float:
    """Right for positive numbers, mirrored for negative ones."""
    return float(np.copysign(solutions.stochastic_round(abs(x), r), x))


_COIN_CASES = (
    *((1.0 + BF16.epsilon / 4, r) for r in (0.0, 0.24, 0.25, 0.26, 0.49, 0.51, 0.9)),
    *((1.0 + 3 * BF16.epsilon / 4, r) for r in (0.3, 0.74, 0.76)),
    (1.0, 0.0),
    (3.0, 0.5),
    *((5.0 + 2.0**-8, r) for r in (0.1, 0.2)),
    *((-1.0 - BF16.epsilon / 4, r) for r in (0.2, 0.5, 0.76)),
    (0.1, 0.3),
    (-0.1, 0.3),
    (0.0, 0.0),
    (1.0 + 2.0**-40, 0.0),  # in float32 a number of BF16
    (1.0 + BF16.epsilon / 4, 0.25 - 2.0**-40),  # in float32 equal shares
)

EXERCISES: dict[str, Exercise] = {
    "largest_dead_update": Exercise(
        answer=2.0**-8,
        reason="Find the next FP16 number above 8, go half way, and ask where the tie goes.",
        fmt=FP16,
        misconceptions=known(
            (
                2.0**-7,
                "That is the whole way to the next number, which 8 then reaches.",
            ),
            (2.0**-11, "That is u, half the gap after 1; it grows with the weight."),
            (
                2.0**-9,
                "Half the way down: below 8 the numbers are twice as dense as above.",
            ),
        ),
    ),
    "dead_share": Exercise(
        answer=solutions.dead_share,
        uses=("round_to", "next_up", "next_down", "ulp"),
        reason="Of the updates that are not 0, count those after which w is still w.",
        argument="w, delta",
        cases=_DEAD_CASES,
        tolerance=1e-6,  # torch's means are FP32
        misconceptions=known(
            (
                lambda w, delta: _share(_dead(w, delta)),
                "An update of 0 has nothing to lose: leave it out of the count.",
            ),
            (
                _below_half_an_ulp,
                "Half an ulp is the right size, but ask rounding about ties and about going down "
                "from a power of two.",
            ),
            (
                lambda w, delta: _share(
                    np.asarray(round_to(np.float32(w + delta), BF16) == w)[delta != 0]
                ),
                ROUND_ONCE,
            ),
        ),
    ),
    "stochastic_round": Exercise(
        answer=solutions.stochastic_round,
        uses=("round_to", "next_up", "next_down", "ulp"),
        reason="Up if r is less than the share of the way that x has come from low to high.",
        argument="x, r",
        cases=_COIN_CASES,
        fmt=BF16,
        misconceptions=known(
            (
                _coin_of(lambda x, low, high: 0.5),
                "A fair coin has the wrong mean: the nearer neighbour must be likelier.",
            ),
            (
                _coin_of(lambda x, low, high: (high - x) / (high - low)),
                "The chances are swapped: the nearer x is to high, the likelier is high.",
            ),
            (
                _away_from_zero,
                "Up is toward plus infinity, also for negative x, where it is toward zero.",
            ),
        ),
    ),
}
