"""The exercises on matrix units: align, cut, add, and promote."""

import math
from collections.abc import Callable

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP32, Rounding, round_to
from mplab.course.exercises.exercise import Exercise, known

FRACTION_BITS, BLOCK = 13, 128


# One step --------------------------------------------------------------------------------
def _exponent(x: float) -> int:
    return math.frexp(x)[1] - 1


def _added(a: np.ndarray, b: np.ndarray, cut: Callable[[float], float]) -> float:
    """Sum products after `cut` at the last place kept below their largest exponent."""
    pairs = [(float(x), float(y)) for x, y in zip(a, b, strict=True) if x * y != 0]
    if not pairs:
        return 0.0
    last = 2.0 ** (max(_exponent(x) + _exponent(y) for x, y in pairs) - FRACTION_BITS)
    return float(sum(cut(x * y / last) for x, y in pairs)) * last


_RNG = np.random.default_rng(8)

_E4M3 = _RNG.choice([-1.0, 1.0], (2, 32)) * _RNG.integers(8, 16, (2, 32))  # four bits

_E4M3 = np.ldexp(_E4M3, _RNG.integers(-9, 4, (2, 32)))

_STEP_CASES = tuple(
    tuple(map(np.array, case))
    for case in (
        ([1.0, 2.0], [3.0, 0.5]),
        ([1.0, 2.0**-6], [1.0, 2.0**-7]),
        ([1.0, 2.0**-6], [1.0, 1.75 * 2.0**-7]),
        ([1.0, 1.5 * 2.0**-6, -1.0], [1.0, 2.0**-8, 1.0]),
        ([1.0, -1.5 * 2.0**-6], [1.0, 1.5 * 2.0**-6]),
        ([1.5, 2.0**-6, -1.5], [1.5, 2.0**-7, 1.5]),
        ([16.0, 2.0**-5, 2.0**-5], [16.0, 2.0**-1, 2.0**-1]),
        ([2.0**-6, 0.0, 2.0**-6], [2.0**-6, 1.0, 1.125 * 2.0**-6]),
        ([0.0], [2.0]),
        ([16.0, 2.0**-6], [0.0, 1.125 * 2.0**-6]),
        ([1.125 * 2.0**-1, 1.125 * 2.0**-6], [1.0, 1.125 * 2.0**-6]),
        ([2.0**-6, 2.0**-6], [1.125 * 2.0**-4, 1.375 * 2.0**-6]),
        (_E4M3[0], _E4M3[1]),
    )
)


# Promotion -------------------------------------------------------------------------------
def _cut(x: float) -> float:
    return float(round_to(x, solutions.REGISTER, rounding=Rounding.TOWARD_ZERO))


def _wide(x: float) -> float:
    return float(round_to(x, FP32))


def _to_register(x: float) -> float:
    return float(round_to(x, solutions.REGISTER))


def _in_blocks(
    x: np.ndarray,
    inner: Callable[[float], float] = _cut,
    outer: Callable[[float], float] = _wide,
    length: int = BLOCK,
) -> float:
    total = 0.0
    for start in range(0, len(x), length):
        part = 0.0
        for term in x[start : start + length]:
            part = inner(part + float(term))
        total = outer(total + part)
    return total


def _never_promoted(x: np.ndarray) -> float:
    return _in_blocks(x, length=max(1, len(x)))


_RISING = np.ldexp(1.0 * _RNG.integers(8, 16, 600), _RNG.integers(-5, 0, 600))

# Each alone is cut, and 128 end a block.
_BESIDE_LARGE = np.array([256.0] + [0.015625] * 128)

# 2^23 + 1/2.
_BESIDE_TOTAL = np.concatenate([np.full(128, 65536.0), np.full(3 * 128, 0.00390625)])

# 2^23 + 3/4.
_PAST_TOTAL = np.concatenate([np.full(128, 65536.0), np.full(128, 0.005859375)])

_PROMOTED_CASES = (
    np.array([1.0, 2.0]),
    np.array([3.0, 2.0]) / 512,
    np.array([16384.0, 1.0, 1.0]) / 64,
    np.array([256.0, 0.03515625, 0.03515625]),
    np.ones(300),
    np.concatenate([np.full(128, 240.0), np.full(128, 0.9375)]),
    np.concatenate([np.full(140, 240.0), np.full(30, 0.9375)]),
    np.array([]),
    _BESIDE_LARGE,
    -_BESIDE_LARGE,
    _BESIDE_TOTAL,
    _PAST_TOTAL,
    _RISING,
)

EXERCISES: dict[str, Exercise] = {
    "last_bit_kept": Exercise(
        answer=2.0**-22,
        reason="Add the exponents of each pair, take the largest sum, and go 25 places down.",
        fmt=FP32,
        misconceptions=known(
            (
                2.0**-25,
                "The 25 places count from the largest exponent, which here is not 0.",
            ),
            (
                2.0**-21,
                "1.5 · 1.5 is 2.25, but the product is not normalised: its exponent is the sum.",
            ),
            (
                2.0**-20,
                "The exponent of a product is the sum of both: 4 and -1 make 3.",
            ),
        ),
    ),
    "step_sum": Exercise(
        answer=solutions.step_sum,
        uses=("round_to", "ulp"),
        reason="Find the largest e_a + e_b, cut every product toward zero there, then add.",
        argument="a, b",
        cases=_STEP_CASES,
        fmt=FP32,
        misconceptions=known(
            (lambda a, b: float(a @ b), "Nothing is cut here; this is the exact sum."),
            (
                lambda a, b: _added(a, b, round),
                "The alignment cuts; it does not round to nearest.",
            ),
            (
                lambda a, b: _added(a, b, math.floor),
                "A cut goes toward zero, also for negative products; floor goes down.",
            ),
        ),
    ),
    "promoted_sum": Exercise(
        answer=solutions.promoted_sum,
        uses=("round_to", "add", "Format"),
        reason="Blocks of 128, each from zero and cut at every step; their sums added in FP32.",
        argument="x",
        cases=_PROMOTED_CASES,
        fmt=FP32,
        misconceptions=known(
            (_never_promoted, "Nothing is promoted: the block never ends."),
            (
                lambda x: _in_blocks(x, outer=_cut),
                "The total is FP32; kept in the short register it would cut every block's sum.",
            ),
            (
                lambda x: _in_blocks(x, inner=_to_register),
                "In a block the register cuts toward zero; it does not round to nearest.",
            ),
        ),
    ),
}
