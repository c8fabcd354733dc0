"""The exercises on policies: which format an operation gets, and a norm that survives FP16."""

from collections.abc import Callable, Sequence

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, FP16, FP32
from mplab.course.exercises.exercise import Exercise, known

# The rule --------------------------------------------------------------------------------
WIDE, LOW, COARSE = FP32.precision, FP16.precision, BF16.precision

_LOWER, _LISTED_WIDE = ("mm", "convolution"), ("exp", "sum", "softmax")


def _by_rule(unlisted: Callable[[Sequence[int], int], int]) -> Callable[..., int]:
    """Apply the two lists, and `unlisted` to operations on neither."""

    def precision(
        operation: str,
        inputs: Sequence[int],
        lower: Sequence[str],
        wide: Sequence[str],
        low: int,
    ) -> int:
        if operation in lower:
            return low
        return WIDE if operation in wide else unlisted(inputs, low)

    return precision


_CASES = tuple(
    (operation, inputs, _LOWER, _LISTED_WIDE, low)
    for operation, inputs, low in (
        ("mm", (WIDE, WIDE), LOW),
        ("exp", (LOW,), LOW),
        ("relu", (LOW,), LOW),
        ("relu", (WIDE,), LOW),
        ("add", (LOW, LOW), LOW),
        ("add", (LOW, WIDE), LOW),
        ("add", (WIDE, LOW), LOW),
        ("mm", (WIDE, WIDE), COARSE),
        ("add", (COARSE, COARSE), LOW),
        ("mm", (COARSE, COARSE), LOW),
        ("add", (COARSE, LOW), LOW),
        ("add", (LOW, COARSE), LOW),
        ("where", (LOW, WIDE, LOW), LOW),
        ("where", (LOW, LOW, WIDE), LOW),
        ("where", (LOW, LOW, COARSE), LOW),
        ("softmax", (WIDE,), COARSE),
    )
)


# The norm --------------------------------------------------------------------------------
def _norm_with(scale: Callable[[np.ndarray], float]) -> Callable[[np.ndarray], float]:
    """A norm that divides by `scale` first, squares in FP16, and takes the mean in FP64."""

    def norm(x: np.ndarray) -> float:
        divisor = np.float16(scale(x))
        with np.errstate(
            over="ignore", under="ignore", invalid="ignore", divide="ignore"
        ):
            squares = ((x / divisor) ** 2).astype(np.float64)
            return float(np.sqrt(squares.mean()) * float(divisor))

    return norm


_VECTORS = tuple(
    np.array(v, np.float16)
    for v in (
        [3.0, -4.0],
        [0.0, 0.0],
        [300.0, -400.0],
        [-300.0, 0.0],
        [0.0001, 0.0002],
        [60000.0] * 4,
        [2.0**-24] * 3,
        [65504.0, 0.0, 0.0, 0.0],
        np.linspace(-800, 900, 301),
        [1.0] * 3000,
        [1.0] * 70_000,  # more than FP16 counts
        [257.0],  # BF16 has 256 and 258
    )
)

EXERCISES: dict[str, Exercise] = {
    "first_lost_cosine": Exercise(
        answer=16,
        reason="The product of the sums is (16n)^2; FP16 rounds 65520 and more to infinity.",
        misconceptions=known(
            (15, "240 * 240 = 57600 is still within FP16's range."),
            (
                17,
                "256 * 256 = 65536 lies past 65504, and not close enough to be rounded to it.",
            ),
            (4096, "One sum of squares overflows there; their product much earlier."),
        ),
    ),
    "result_precision": Exercise(
        answer=solutions.result_precision,
        reason="Look at the lists first; without a list, one format of all inputs, or else FP32.",
        argument="operation, inputs, lower, wide, low",
        cases=_CASES,
        misconceptions=known(
            (
                _by_rule(lambda inputs, low: low),
                "An operation on no list is not lowered: it follows its inputs.",
            ),
            (
                _by_rule(lambda inputs, low: inputs[0]),
                "All inputs count, not only the first.",
            ),
            (
                _by_rule(lambda inputs, low: max(inputs)),
                "FP16 does not hold BF16's range, nor BF16 its digits: they meet in FP32.",
            ),
        ),
    ),
    "safe_rms": Exercise(
        answer=solutions.safe_rms,
        reason="Root, mean, squares: no square may leave its format's range, no number its digits.",
        cases=_VECTORS,
        tolerance=2e-3,
        misconceptions=known(
            (
                _norm_with(lambda x: 1.0),
                "The squares are already infinite, or 0, before they are widened.",
            ),
            (
                _norm_with(lambda x: 256.0),
                "A fixed divisor saves the large numbers and loses the small ones.",
            ),
            (
                _norm_with(lambda x: float(np.abs(x).max())),
                "Where all numbers are 0, the largest is 0 too: do not divide by it.",
            ),
        ),
    ),
}
