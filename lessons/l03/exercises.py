"""The exercises of the lesson on rounding: ties, a rounding function, a probability."""

import math
from fractions import Fraction

import numpy as np

from mplab import BF16, FP8_E4M3, FP16, Rounding, round_to, ulp
from mplab.course.exercise import ROUND_ONCE, Exercise, known


def _round(x: float) -> float:
    return float(round_to(x, FP8_E4M3))


def _in_mode(mode: Rounding, x: float) -> float:
    return float(round_to(x, FP8_E4M3, rounding=mode))


def _floor_half(x: float) -> float:
    """floor(v + 1/2) of a signed number: ties go up."""
    gap = float(ulp(x, FP8_E4M3))
    return math.copysign(math.floor(x / gap + 0.5) * gap, x)


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


def _chance(x: float) -> float:
    """The probability of the upper neighbour, exact."""
    gap = Fraction(float(ulp(x, BF16)))
    units = Fraction(x) / gap
    return float(units - math.floor(units))


def _chance_without(x: float) -> float:
    """The same, as if every gap were the one after 1."""
    return x * 128 - math.floor(x * 128)


def _away(x: float) -> float:
    return _chance(abs(x))


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
            (
                [8.0, 8.0, 16.0, 16.0],
                "12 is a value as well, and its last significand bit is 0: 1.10 in binary.",
            ),
            (
                [8.0, 10.0, 14.0, 16.0],
                "10 and 14 are even integers, but their last significand bit is 1.",
            ),
        ),
    ),
    "round_e4m3": Exercise(
        answer=_round,
        uses=("ulp", "values"),
        reason="Divide by the gap at x, round to the nearest integer, ties to even, multiply back.",
        cases=_ROUND_CASES,
        fmt=FP8_E4M3,
        misconceptions=known(
            (
                lambda x: _in_mode(Rounding.TIES_TO_AWAY, x),
                "A tie goes to the neighbour with an even last bit, not away from zero.",
            ),
            (
                _floor_half,
                "floor(v + 0.5) sends every tie upward; an even neighbour may be below.",
            ),
            (
                lambda x: _in_mode(Rounding.TOWARD_ZERO, x),
                "Dropping the bits past the fourth rounds toward zero, not to the nearest.",
            ),
            (
                lambda x: _round(float(round_to(x, FP16))),
                "FP16 on the way can turn a number beside a tie into the tie: round once.",
            ),
            (
                lambda x: _round(float(np.float32(x))),
                ROUND_ONCE,
            ),
            (
                _no_subnormals,
                "Below 2^-6 the gap stays 2^-9: subnormals have fewer than four bits.",
            ),
        ),
    ),
    "chance_up": Exercise(
        answer=_chance,
        uses=("round_to", "next_up", "next_down", "ulp"),
        reason="The chance is the distance from the lower neighbour, in gaps of BF16 at x.",
        cases=_CHANCE_CASES,
        tolerance=1e-12,
        misconceptions=known(
            (
                lambda x: float(_chance(x) > 0) / 2,
                "A fair coin would shift the mean; the nearer neighbour must be likelier.",
            ),
            (
                lambda x: 1 - _chance(x) if _chance(x) else 0.0,
                "That is the chance of the lower neighbour; the nearer one is the likelier.",
            ),
            (
                lambda x: float(_chance(x) > 0.5),
                "That rounds to nearest; a stochastic rounding can go either way.",
            ),
            (
                _chance_without,
                "The gap is 2^-7 only from 1 to 2; measure in gaps of BF16 at x.",
            ),
            (
                _away,
                "Up means toward +infinity, also for a negative number: mind the floor.",
            ),
        ),
    ),
}
