"""The exercises on time steps: where a state freezes, compensation, and what chance costs."""

import numpy as np

import mplab.lessons.solutions as solutions
from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, Format, round_to, ulp, values
from mplab.course.exercises.exercise import Exercise, known


# Where a cup stops -----------------------------------------------------------------------
def _step_rounded_too(k: float, room: float, dt: float, fmt: Format) -> float:
    t = float(round_to(90.0, fmt))
    while True:
        step = float(round_to(dt * k * (t - room), fmt))
        if (new := float(round_to(t - step, fmt))) == t:
            return t
        t = new


def _below_half_an_ulp(k: float, room: float, dt: float, fmt: Format) -> float:
    """The hottest temperature that a step of less than half an ulp would leave."""
    t = np.unique(values(fmt))
    t = t[(t >= room) & (t <= round_to(90.0, fmt))]
    lost = dt * k * (t - room) < np.asarray(ulp(t, fmt)) / 2
    return float(t[lost].max())


_CUPS = (
    (0.125, 20.0, 1.0, FP16),
    (0.125, 20.0, 0.125, FP16),
    (0.125, 20.0, 2.0**-6, FP16),
    (0.125, 20.0, 0.125, BF16),
    (0.125, 20.0, 0.25, BF16),
    (0.25, 4.0, 0.5, BF16),
    (0.125, 20.0, 1.0, FP8_E4M3),
    (0.25, 20.0, 1.0, FP8_E4M3),
    (0.0625, 24.0, 1.0, FP8_E4M3),
    (0.25, 16.0, 0.5, FP8_E5M2),
    (0.125, 16.0, 1.0, BF16),
    (0.125, 20.0, 2.0**-8, BF16),
    (0.125, 0.0, 1.0, FP16),
    (0.125, 20.0, 0.5, FP8_E5M2),  # 90 is stored as 96, and would go to 80
    (0.125, 20.0, 1.0, FP8_E5M2),  # a step of 7.5 from 80 is lost, one of 8 is not
)


# Compensation ----------------------------------------------------------------------------
def _wrong_sign(t: float, lost: float, step: float) -> tuple[float, float]:
    new, left = solutions.kahan_step(t, lost, step)
    return new, -left


def _not_stored(t: float, lost: float, step: float) -> tuple[float, float]:
    new, _ = solutions.kahan_step(t, lost, step)
    return new, step + lost - (new - t)


_STEPS = (
    (64.0, 0.0, 0.625),
    (64.0, 0.0, 0.375),
    (64.0, 0.0, 0.125),
    (64.0, 0.125, 0.0625),
    (64.0, 0.25, 2.0**-10),  # too small to change the lost part
    (64.0, 0.25, 2.0**-9),
    (64.0, -0.125, -(2.0**-11)),
    (64.0, -0.125, -(2.0**-10)),
    (20.5, 0.03125, -0.046875),
    (20.5, -0.03125, -0.1),
    (1.0, 2.0**-9, 0.1),
    (1.5, 0.001953125, 0.3 + 2.0**-20),
    (-3.0, 0.0078125, 0.005),
    (1.25, 0.00665283203125, 104.5),  # the step is larger than what it is added to
    (1.75, 0.00016117095947265625, 65.5),
    (2.0**-17, 2.0**-26, 2.0**-19 + 2.0**-27),
)


# Chance ----------------------------------------------------------------------------------
_WALKS = (
    (0.125, 1.0), (0.5, 1.0), (1.0, 1.0), (0.75, 1.0), (2.0**-10, 2.0**-7), (1.5, 1.0),
    (2.25, 1.0), (3.0, 0.5), (2.0**-9, 2.0**-8), (0.6875, 0.125), (3.0, 4.0),
)  # fmt: skip


EXERCISES: dict[str, Exercise] = {
    "frozen_at": Exercise(
        answer=solutions.frozen_at,
        reason="Round t - dt·k·(t - room) to nearest, from 90 in fmt on, until t stays as it is.",
        argument="k, room, dt, fmt",
        cases=_CUPS,
        misconceptions=known(
            (
                _below_half_an_ulp,
                "Half an ulp is a tie, and an even significand keeps it: that freezes, too.",
            ),
            (
                lambda k, room, dt, fmt: solutions.frozen_at(k, 0.0, dt, fmt),
                "A cup loses k times its distance from the room, not k times its temperature.",
            ),
            (
                _step_rounded_too,
                "Round the sum alone: the step is not stored.",
            ),
        ),
        uses=("round_to", "next_up", "next_down", "ulp", "values"),
    ),
    "kahan_step": Exercise(
        answer=solutions.kahan_step,
        reason="due = step + lost; new = t + due; lost = due - (new - t): four roundings, no more.",
        argument="t, lost, step",
        cases=_STEPS,
        misconceptions=known(
            (
                lambda t, lost, step: solutions.kahan_step(t, 0.0, step),
                "The lost part must go into the next step, or it is lost for good.",
            ),
            (_wrong_sign, "The lost part has the wrong sign."),
            (
                _not_stored,
                "The lost part, too, is stored in BF16: only eight bits of it are kept.",
            ),
        ),
        uses=("round_to",),
    ),
    "variance_ratio": Exercise(
        answer=solutions.variance_ratio,
        reason="The mean square of a rounded step over delta²: which two steps, how often each?",
        argument="delta, ulp",
        cases=_WALKS,
        tolerance=1e-12,
        misconceptions=known(
            (lambda delta, ulp: 1.0, "The mean is right; the mean square is not."),
            (
                lambda delta, ulp: ulp / delta,
                "That holds up to one ulp; a longer step leaves only its fraction to chance.",
            ),
            (
                lambda delta, ulp: (ulp / delta) ** 2,
                "Not every step moves by an ulp: a share delta/ulp of them does.",
            ),
        ),
    ),
}
