"""The exercises of the clinic: a norm in the wrong units, and a diagnosis from observables."""

import mplab.lessons.solutions as solutions
from mplab.course.exercises.exercise import Exercise, known


# Diagnosis -------------------------------------------------------------------------------
def _finite_last(
    finite: float, zeros: float, lost: float, moved: float, repeats: float
) -> int:
    found = solutions.name_the_fault(1.0, zeros, lost, moved, repeats)
    return found or int(finite < 1)


def _updates_first(
    finite: float, zeros: float, lost: float, moved: float, repeats: float
) -> int:
    if finite == 1 and lost > 0.5:
        return 3
    return solutions.name_the_fault(finite, zeros, lost, moved, repeats)


def _repeats_alone(
    finite: float, zeros: float, lost: float, moved: float, repeats: float
) -> int:
    """As if the weights always moved."""
    return solutions.name_the_fault(finite, zeros, lost, 1.0, repeats)


_SHARES = (
    (1.0, 0.02, 0.1, 1.0, 0.0),
    (0.0, 0.0, 0.0, 0.0, 0.0),
    (1.0, 1.0, 0.0, 0.0, 1.0),
    (1.0, 0.0, 1.0, 0.0, 1.0),
    (1.0, 0.0, 0.0, 1.0, 1.0),
    (1.0, 0.1, 0.0, 0.0, 1.0),
    (0.9, 1.0, 0.0, 0.0, 1.0),
    (0.5, 0.0, 0.9, 0.2, 0.0),
    (1.0, 0.9, 0.9, 0.1, 0.9),
    (1.0, 0.5, 0.5, 0.5, 0.5),
    (1.0, 0.0, 0.0, 0.5, 1.0),
    (1.0, 0.0, 0.0, 1.0, 0.5),
    (0.999, 0.0, 0.0, 1.0, 0.0),
    (1.0, 0.501, 0.0, 1.0, 0.0),
    (1.0, 0.499, 0.501, 1.0, 0.0),
    (1.0, 0.499, 0.499, 0.501, 0.501),
    (1.0, 0.0, 0.0, 0.501, 0.499),
    (1.0, 0.6, 0.9, 0.9, 0.9),  # all but the first say yes
    (1.0, 0.0, 0.6, 0.9, 0.9),
)

EXERCISES: dict[str, Exercise] = {
    "norm_at_optimizer": Exercise(
        answer=2.0**-14,
        reason="Which norm do the scaled gradients have after clipping? Divide that by the scale.",
        misconceptions=known(
            (1.0, "That was asked for; the division by the scale comes after it."),
            (
                6 * 2.0**-14,
                "Clipping leaves a norm of 1, whatever it was before; 6 is gone.",
            ),
            (2.0**14, "Unscaling divides by the scale."),
        ),
    ),
    "name_the_fault": Exercise(
        answer=solutions.name_the_fault,
        reason="Ask in the order given, and let the first yes decide; half is not more than half.",
        argument="finite, zeros, lost, moved, repeats",
        cases=_SHARES,
        misconceptions=known(
            (
                _finite_last,
                "Ask first whether the loss is finite: no other observable means anything before.",
            ),
            (
                _repeats_alone,
                "A loss that repeats is stale only if the weights moved.",
            ),
            (
                _updates_first,
                "Zero gradients come before lost updates: a gradient of zero cannot be lost later.",
            ),
        ),
    ),
}
