"""The exercises of the lesson on the ends of the range: squares, saturation, counting."""

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import FP8_E4M3, FP16, round_to
from mplab.course.exercises.exercise import ROUND_ONCE, Exercise, known


def _never_nan(x: float) -> float:
    return 448.0 if np.isnan(x) else float(solutions.saturating_cast(x))


def _clamped_only(x: float) -> float:
    return min(max(x, -448.0), 448.0) if x == x else x


_SATURATION_CASES = (
    1.0,
    1000.0,
    465.0,
    464.0,
    -465.0,
    -1e6,
    448.0,
    449.0,
    0.1,
    -0.1,
    17.0,
    17.004,
    0.005,  # a subnormal number
    17 + 2.0**-25,  # in float32 a tie
    np.inf,
    -np.inf,
    np.nan,
    0.0,
    -0.0,
    2.0**-12,
)


def _by_result(x: np.ndarray) -> list[int]:
    """Looks at the results alone."""
    r = np.abs(round_to(x, FP16))
    return [
        int(np.sum(r == 0)),
        int(np.sum((r > 0) & (r < 2.0**-14))),
        int(np.sum(np.isinf(r))),
    ]


_NORMAL = 2.0**-14 - 2.0**-25

_LEAST_ABOVE = float(np.nextafter(2.0**-25, 1))

_COUNT_CASES = tuple(
    np.array(x)
    for x in (
        [1.0],
        [1e-9, 1e-6, 1e6],
        [-1e-9, -1e-6, -1e6, 2.0],
        [0.0, -0.0, 1.0],
        [np.inf, -np.inf, np.nan],
        [3e-8, 4e-8, 5e-8],
        [2.0**-25, _LEAST_ABOVE, 2.0**-24, 2.0**-14],
        [65504.0, 65510.0, 65519.9, 65520.0, 65536.0],
        [0.99999 * 2.0**-14, 0.9 * 2.0**-14],
        [_NORMAL, np.nextafter(_NORMAL, 0)],  # the tie below the normal numbers
        [],
        np.ldexp(np.random.default_rng(2).standard_normal(500), -20),
    )
)

EXERCISES: dict[str, Exercise] = {
    "largest_square": Exercise(
        answer=255.875,
        reason="Below 256 the numbers of FP16 are 1/8 apart; which is the last before 256?",
        misconceptions=known(
            (
                256.0,
                "256 squared is 65536, and everything from 65520 on becomes infinity.",
            ),
            (
                255.0,
                "Its square does not overflow, but there are FP16 numbers from 255 to 256.",
            ),
            (
                65504.0**0.5,
                "That is the root of the largest number, but not in FP16.",
            ),
        ),
    ),
    "saturating_cast": Exercise(
        answer=solutions.saturating_cast,
        uses=("round_to",),
        reason="Clamp to -448 .. 448, then round the float64 once; let a NaN be a NaN.",
        cases=_SATURATION_CASES,
        fmt=FP8_E4M3,
        misconceptions=known(
            (
                lambda x: float(round_to(x, FP8_E4M3)),
                "Not saturated, or too late: past 464 the cast itself gives NaN. Clamp before it.",
            ),
            (_never_nan, "A NaN is an alarm: saturation must not turn it into 448."),
            (
                _clamped_only,
                "Clamping does not round: the result must be a value of E4M3.",
            ),
        ),
    ),
    "count_fates": Exercise(
        answer=solutions.count_fates,
        uses=("round_to",),
        reason="Round first; then compare the numbers before and after rounding.",
        cases=_COUNT_CASES,
        misconceptions=known(
            (
                _by_result,
                "A number that was 0 is not flushed; infinity did not overflow.",
            ),
            (lambda x: solutions.count_fates(x.astype(np.float32)), ROUND_ONCE),
        ),
    ),
}
