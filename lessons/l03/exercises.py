"""The exercises of the lesson on rounding: ties, a rounding function, a probability."""

import math

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP8_E4M3, Rounding, round_to
from mplab.course.exercises.exercise import ROUND_ONCE, Exercise, known


def _ties_away(x: float) -> float:
    return float(round_to(x, FP8_E4M3, rounding=Rounding.TIES_TO_AWAY))


def _no_subnormals(x: float) -> float:
    """Keeps four bits however small the number is."""
    if x == 0:
        return x
    gap = 2.0 ** (math.frexp(x)[1] - 4)
    return math.copysign(round(abs(x) / gap) * gap, x)


_ROUND_CASES = (
    1.0,
    1.1,
    1.2,
    17.0,
    19.0,
    21.0,
    23.0,
    -17.0,
    -19.0,
    -1.1,
    0.7,
    100.0,
    1.99,
    17.004,
    18.996,
    0.02,
    3 * 2.0**-10,
    2.0**-10,
    5 * 2.0**-10,
    1.1 * 2.0**-10,
    -(2.0**-8.5),
    0.0,
    -0.0,
    -(2.0**-12),
    448.0,
    440.0,
    463.0,
    232.0,
    248.0,
    17 + 2.0**-25,
    -(19 - 2.0**-25),  # in float32 these become ties
    *np.random.default_rng(3).normal(0, 8, 60).tolist(),
    *(2.0 ** np.random.default_rng(4).uniform(-11, 8, 60)).tolist(),
)


_CHANCE_CASES = (
    1.0,
    1 + 2.0**-8,
    1 + 2.0**-9,
    1 + 3 * 2.0**-9,
    3 + 2.0**-8,
    256.5,
    300.25,
    0.1,
    0.3,
    -(1 + 2.0**-9),
    -(1 + 3 * 2.0**-9),
    -0.1,
    2.0**-20 * (1 + 2.0**-10),
    1e-30,
    -77.77,
    1 - 2.0**-10,  # of its two neighbours only 1 has the gap of 2^-7
    -(1 - 2.0**-10),
)

EXERCISES: dict[str, Exercise] = {
    "four_ties": Exercise(
        answer=[8.0, 12.0, 12.0, 16.0],
        reason="From 8 to 16 E5M2 has 8, 10, 12, 14 and 16, with codes 0x48, 0x49, 0x4A ...",
        misconceptions=known(
            (
                [10.0, 12.0, 14.0, 16.0],
                "All four are ties; here a tie goes to the even code, not away from zero.",
            ),
            (
                [8.0, 10.0, 12.0, 14.0],
                "All four are ties; a tie goes to the even code, not always down.",
            ),
            (
                [9.0, 11.0, 13.0, 15.0],
                "With three significant bits there is no odd integer from 8 to 16.",
            ),
        ),
    ),
    "round_e4m3": Exercise(
        answer=solutions.round_e4m3,
        uses=("ulp", "values"),
        reason="Divide by the gap at x, round once to an integer, ties to even, and multiply back.",
        cases=_ROUND_CASES,
        fmt=FP8_E4M3,
        misconceptions=known(
            (
                _ties_away,
                "A tie goes to the neighbour with an even last bit, not away from zero.",
            ),
            (
                lambda x: float(round_to(np.float32(x), FP8_E4M3)),
                ROUND_ONCE,
            ),
            (
                _no_subnormals,
                "Below 2^-6 the gap stays 2^-9: subnormals have fewer than four bits.",
            ),
        ),
    ),
    "chance_up": Exercise(
        answer=solutions.chance_up,
        uses=("round_to", "next_up", "next_down", "ulp"),
        reason="The chance is the distance from the lower neighbour, in gaps of BF16 at x.",
        cases=_CHANCE_CASES,
        tolerance=1e-12,
        misconceptions=known(
            (
                lambda x: -solutions.chance_up(x) % 1,
                "That is the chance of the lower neighbour; the nearer one is the likelier.",
            ),
            (
                lambda x: x * 128 % 1,
                "The gap is 2^-7 only from 1 to 2; measure in gaps of BF16 at x.",
            ),
            (
                lambda x: solutions.chance_up(abs(x)),
                "Up means toward +infinity, also for a negative number: mind the floor.",
            ),
        ),
    ),
}
