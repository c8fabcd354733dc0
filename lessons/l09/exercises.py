"""The exercises on the state machine of a loss scaler, and on clipping beside it."""

import numpy as np

import mplab.lessons.solutions as solutions
from mplab.course.exercises.exercise import Exercise, known

# The state machine -----------------------------------------------------------------------
State = tuple[float, int]


def _keeps_the_count(
    scale: float, good_steps: int, found_inf: bool, interval: int
) -> State:
    if found_inf:
        return scale / 2, good_steps
    return solutions.next_state(scale, good_steps, False, interval)


def _one_step_late(
    scale: float, good_steps: int, found_inf: bool, interval: int
) -> State:
    if not found_inf and good_steps == interval:
        return scale * 2, 0
    return (scale / 2, 0) if found_inf else (scale, good_steps + 1)


def _never_restarts(
    scale: float, good_steps: int, found_inf: bool, interval: int
) -> State:
    if not found_inf and good_steps + 1 == interval:
        return scale * 2, good_steps + 1
    return solutions.next_state(scale, good_steps, found_inf, interval)


_STATES = (
    (1024.0, 0, False, 3),
    (1024.0, 1, False, 3),
    (1024.0, 2, False, 3),
    (1024.0, 2, True, 3),
    (1024.0, 0, True, 3),
    (65536.0, 0, False, 1),
    (65536.0, 1998, False, 2000),
    (65536.0, 1999, False, 2000),
    (65536.0, 1999, True, 2000),
    (1.0, 5, True, 10),
)


# Clipping --------------------------------------------------------------------------------
def _clipped_first(gradients: np.ndarray, scale: float, max_norm: float) -> np.ndarray:
    return solutions.clipped(gradients, 1.0, max_norm) / scale


def _still_scaled(gradients: np.ndarray, scale: float, max_norm: float) -> np.ndarray:
    return solutions.clipped(gradients, 1.0, max_norm)


def _each_by_itself(gradients: np.ndarray, scale: float, max_norm: float) -> np.ndarray:
    return np.clip(gradients / scale, -max_norm, max_norm)


_GRADIENTS = (
    (np.array([3.0, 4.0]), 1.0, 1.0),
    (np.array([0.3, 0.4]), 1.0, 1.0),
    (np.array([3.0, 4.0]) * 1024, 1024.0, 1.0),
    (np.array([0.3, -0.4]) * 1024, 1024.0, 1.0),
    (np.array([3.0, 4.0]) * 65536, 65536.0, 5.0),
    (np.array([0.0, 0.0]), 65536.0, 1.0),
    (np.array([-6.0, 2.0, 3.0]) * 2.0**20, 2.0**20, 0.5),
    (np.random.default_rng(13).standard_normal(40) * 65536, 65536.0, 0.5),
)

EXERCISES: dict[str, Exercise] = {
    "scale_after": Exercise(
        answer=512.0,
        reason="Write down scale and count after each step; both change at an infinity.",
        misconceptions=known(
            (
                1024.0,
                "Each infinity, the last one too, halves the scale and sets the count to 0.",
            ),
            (
                16384.0,
                "A good step alone doubles nothing: it takes three of them in a row.",
            ),
            (256.0, "Three good steps in a row double the scale."),
        ),
    ),
    "next_state": Exercise(
        answer=solutions.next_state,
        reason="A bad step halves and starts the count again; the last good one of a row doubles.",
        argument="state",
        cases=_STATES,
        misconceptions=known(
            (
                _keeps_the_count,
                "An infinity also sets the count of good steps back to 0.",
            ),
            (
                _one_step_late,
                "The step that completes the row already doubles the scale.",
            ),
            (
                _never_restarts,
                "After doubling the count begins at 0 again, or it never stops.",
            ),
        ),
    ),
    "clipped": Exercise(
        answer=solutions.clipped,
        reason="Divide by the scale; then, only if the norm is above max_norm, shrink them all.",
        argument="given",
        cases=_GRADIENTS,
        tolerance=1e-6,  # clip_grad_norm_ of torch adds 1e-6 to the norm
        misconceptions=known(
            (
                _clipped_first,
                "Clipped before they were divided by the scale, they come out "
                "max_norm / scale long.",
            ),
            (
                _still_scaled,
                "The optimizer wants the gradients without the loss scale.",
            ),
            (
                _each_by_itself,
                "Clipping each number bends the direction: shrink all by one factor.",
            ),
        ),
    ),
}
