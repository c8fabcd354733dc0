"""The exercises on biased rounding: a mean error, weights without a tie, a singular value."""

from collections.abc import Callable

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, round_to, ulp
from mplab.course.exercises.exercise import Exercise, known

# Mean errors -----------------------------------------------------------------------------
_RNG = np.random.default_rng(20)
_PAIRS = round_to(-_RNG.uniform(1, 2, (400, 2)), BF16).sum(axis=1)

_SUMS = (
    np.array([257.0]),
    np.array([257.0, 259.0]),
    np.array([1.0, -1.0 - 2.0**-9, 3.0]),
    np.array([2.0 - 2.0**-10]),
    _PAIRS,
    _PAIRS - 1e-4,
    -_PAIRS + 1e-4,
    _RNG.standard_normal(200) * 2.0 ** _RNG.integers(-8, 8, 200),
)

# Weights ---------------------------------------------------------------------------------
Weights = Callable[[np.ndarray], np.ndarray]


def _raised(top: Callable[[np.ndarray], bool]) -> Weights:
    """Weights with m moved by 1 where a rule says so."""

    def weights(scores: np.ndarray) -> np.ndarray:
        m = scores.max() + top(scores)
        return np.asarray(round_to(np.exp(scores - m), BF16))

    return weights


_SCORES = tuple(
    map(
        np.array,
        (
            [2.0, 2.0],
            [3.0, 1.0, -2.0],
            [5.0, -3.0, 5.0, 4.0],
            [-7.0, -7.0, -7.0],
            [0.5],
            [900.0, 900.0, 890.0],
            [1.0, 0.0, 0.0],
            [-np.inf, 4.0, 4.0, -np.inf],
            [4.0, 4.0 - 1e-9, -np.inf],
        ),
    )
)


# Singular values -------------------------------------------------------------------------
def _without_the_last_term(s: float) -> int:
    steps = 0
    while s < 0.5:
        s = 3.4445 * s - 4.775 * s**3
        steps += 1
    return steps


EXERCISES: dict[str, Exercise] = {
    "pair_bias": Exercise(
        answer=0.25,
        reason="Half of the sums are ties, and the rest sends each of them up by half a gap.",
        misconceptions=known(
            (-0.25, "These sums are positive: the rest lies above the tie."),
            (0.5, "Only half of the sums are ties; the others are BF16 numbers."),
            (
                0.0,
                "The ties no longer go to the even neighbour: all lie past the middle.",
            ),
        ),
    ),
    "mean_error": Exercise(
        answer=solutions.mean_error,
        uses=("round_to", "ulp"),
        reason="The mean of (rounded - x) / gap, with the gap of BF16 at x.",
        cases=_SUMS,
        tolerance=1e-9,
        misconceptions=known(
            (
                lambda x: np.mean((x - round_to(x, BF16)) / ulp(x, BF16)),
                "An error is what came out minus what was meant.",
            ),
            (
                lambda x: np.mean(np.abs(round_to(x, BF16) - x) / ulp(x, BF16)),
                "Keep the signs: without them every mean error is positive.",
            ),
            (
                lambda x: np.mean(round_to(x, BF16) - x),
                "Divide each error by the gap at its number.",
            ),
        ),
    ),
    "untied_weights": Exercise(
        answer=solutions.untied_weights,
        uses=("round_to",),
        reason="m is the largest score, or 1 more if several scores share it.",
        cases=_SCORES,
        fmt=BF16,
        misconceptions=known(
            (
                _raised(lambda s: False),
                "Where several scores share the maximum, P is 1.",
            ),
            (_raised(lambda s: True), "A single largest score keeps m, and P = 1."),
            (
                _raised(lambda s: (np.exp(s - s.max()) > 0.999).sum() > 1),
                "Scores that are only near to the largest do not share it.",
            ),
        ),
    ),
    "steps_to_half": Exercise(
        answer=solutions.steps_to_half,
        reason="Apply 3.4445 s - 4.775 s³ + 2.0315 s**5 until s is ½ or more, and count.",
        cases=(
            0.5,
            0.49,
            0.2,
            0.146,
            0.1498,
            # On either side of the s that one step takes to ½, where each factor decides.
            0.14977,
            0.14978,
            1.0,
            0.1,
            0.01,
            1e-3,
            1e-4,
            1e-6,
            1e-12,
        ),
        misconceptions=known(
            (
                lambda s: (
                    int(np.ceil(np.log(0.5 / s) / np.log(3.4445))) if s < 0.5 else 0
                ),
                "The two other terms slow the last steps down.",
            ),
            (
                lambda s: solutions.steps_to_half(s) + 1,
                "Count the steps that were taken.",
            ),
            (
                _without_the_last_term,
                "At 0.1498 the term with s**5 decides: apply all three.",
            ),
        ),
    ),
}
