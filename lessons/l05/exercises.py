"""The exercises on sums: where they stop, two methods that do better, and what a rounding lost."""

from collections.abc import Callable
from functools import partial

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, FP16, round_to
from mplab.course.exercises.exercise import Exercise, known


def _rounded(x: float) -> float:
    """One rounding to FP16; sums and differences of two FP16 values are exact in float64."""
    return float(round_to(float(x), FP16))


def _one_by_one(x: np.ndarray) -> float:
    total = 0.0
    for term in x:
        total = _rounded(total + float(term))
    return total


def _once_at_the_end(x: np.ndarray) -> float:
    return _rounded(float(np.sum(x)))


# Pairwise --------------------------------------------------------------------------------
def _neighbours(x: np.ndarray) -> float:
    terms = [float(term) for term in x]
    while len(terms) > 1:
        terms = [
            _rounded(sum(terms[i : i + 2])) if i + 1 < len(terms) else terms[i]
            for i in range(0, len(terms), 2)
        ]
    return terms[0] if terms else 0.0


_RANDOM = np.random.default_rng(5).integers(0, 2048, 100) / 2048

_SIGNED = np.random.default_rng(6).integers(-2047, 2048, 77) / 256

_PAIRWISE_CASES = tuple(
    np.array(x)
    for x in (
        [1.5],
        [1.0, 2.0],
        [1.0, 2.0, 4.0],
        [2048.0, 1.0, 1.0],
        [2048.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, 2048.0, 1.0, 2.0, 3.0],
        [],
        _RANDOM,
        _SIGNED,
        np.ones(2500),
    )
)


# Kahan -----------------------------------------------------------------------------------
def _kahan(
    x: np.ndarray,
    *,
    sign: float = -1.0,
    op: Callable[[float], float] = _rounded,
) -> float:
    total = lost = 0.0
    for term in map(float, x):
        corrected = op(term + sign * lost)
        new = _rounded(total + corrected)
        lost = op(op(new - total) - corrected)
        total = new
    return total


_KAHAN_CASES = tuple(
    np.array(x)
    for x in (
        [1.5],
        [1.0, 2.0, 3.0],
        [2048.0, 1.0, 1.0],
        [2048.0, 1.0, 1.0, 1.0, 1.0],
        [],
        [1.5, 1344.0, 1.8125],  # the term after a loss is itself rounded
        [0.25, 896.0, 2.5],  # here even Kahan's sum is not the nearest number
        [-1536.0, 3.875, 1280.0],
        [-0.078125, 21.0, 120.0],  # what is lost at the end would change the total
        _RANDOM,
        np.tile([0.7001953125, 0.0999755859375], 700),
        np.ones(2500),
    )
)


_NOTHING_WIDER = (
    "For two numbers of float64 there is nothing wider: use their own operations."
)


# What a rounding lost --------------------------------------------------------------------
def _larger_first(a: np.floating, b: np.floating) -> tuple[np.floating, np.floating]:
    s = a + b
    return s, b - (s - a)


def _sum_in_fp64(a: np.floating, b: np.floating) -> tuple[np.floating, float]:
    s = a + b
    return s, float(a) + float(b) - float(s)


def _product_in_fp64(a: np.floating, b: np.floating) -> tuple[np.floating, float]:
    p = a * b
    return p, float(a) * float(b) - float(p)


def _turned_round(a: np.floating, b: np.floating) -> tuple[np.floating, np.floating]:
    p, e = solutions.two_product(a, b)
    return p, 0 - e


def _cases(*pairs: tuple[float, float]) -> tuple[tuple[np.floating, ...], ...]:
    """Each pair in each type. Only in float64 is there nothing wider in which to find the loss."""
    return tuple(
        (kind(a), kind(b))
        for kind in (np.float16, np.float64, np.float32)
        for a, b in pairs
    )


def _with_type(pair: tuple[np.floating, np.floating]) -> str:
    a, b = pair
    return f"{a}, {b} in {a.dtype}"


_SUM_CASES = _cases(
    (1.0, 2.0), (1.0, 0.0007), (0.0007, 1.0), (0.3, -900.7), (-2.5, 2.5), (1 / 3, 0.1),
    (1e-3, 0.7), (-0.1, 0.0999), (0.0, 0.3), (1 / 3, 1e-7), (-900.7, 0.3),
)  # fmt: skip

_PRODUCT_CASES = _cases(
    (1.5, 2.0), (1 / 3, 3.3), (1.999, 1.999), (-0.7, 99.1), (14.3, -8.9), (1.1, 1.1), (0.9, 0.9),
    (30.1, 30.7), (-1 / 7, -7.0),
)  # fmt: skip

EXERCISES: dict[str, Exercise] = {
    "stopped_counter": Exercise(
        answer=64.0,
        reason="Find where the gap between neighbours is first so wide that 0.25 is half of it.",
        fmt=BF16,
        misconceptions=known(
            (256.0, "256 is where ones stop; smaller steps stop earlier."),
            (
                128.0,
                "Already before 128 the gap is 0.5, and 0.25 only reaches the midpoint.",
            ),
            (
                32.0,
                "From 32 to 64 the gap is 0.25, so every step still lands on a number.",
            ),
        ),
    ),
    "pairwise_sum": Exercise(
        answer=solutions.pairwise_sum,
        uses=("round_to", "add"),
        reason="Split at len(x) // 2, sum each half the same way, and round their sum once.",
        cases=_PAIRWISE_CASES,
        fmt=FP16,
        misconceptions=known(
            (
                _one_by_one,
                "This adds one by one: every term passes through all later roundings.",
            ),
            (
                _once_at_the_end,
                "Every addition must round to FP16, not only the last one.",
            ),
            (
                _neighbours,
                "That is pairwise too, but it begins with neighbours; split into halves instead.",
            ),
        ),
    ),
    "kahan_sum": Exercise(
        answer=solutions.kahan_sum,
        uses=("round_to", "add", "subtract"),
        reason="Correct the term, add it, and find the part of it that the total did not take.",
        cases=_KAHAN_CASES,
        fmt=FP16,
        misconceptions=known(
            (
                _one_by_one,
                "This is the plain sum: the lost part is 0, or never reaches the next term.",
            ),
            (
                partial(_kahan, sign=1.0),
                "The correction has the wrong sign: it doubles the loss.",
            ),
            (
                partial(_kahan, op=float),
                "All four operations round to FP16, not only the total.",
            ),
        ),
    ),
    "two_sum": Exercise(
        answer=solutions.two_sum,
        reason="Find what s took of b, then what it took of a; the loss is what both still have.",
        argument="a, b",
        cases=_SUM_CASES,
        signed_zeros=False,
        show=_with_type,
        misconceptions=known(
            (
                _larger_first,
                "This is Kahan's correction: it may miss the loss where |a| < |b|.",
            ),
            (
                _sum_in_fp64,
                _NOTHING_WIDER,
            ),
        ),
    ),
    "two_product": Exercise(
        answer=solutions.two_product,
        reason="Begin with high times high minus p; each further product of halves comes to it.",
        argument="a, b",
        cases=_PRODUCT_CASES,
        signed_zeros=False,
        show=_with_type,
        misconceptions=known(
            (
                _product_in_fp64,
                _NOTHING_WIDER,
            ),
            (
                _turned_round,
                "The sign is turned round: e is what must come to p.",
            ),
        ),
    ),
}
