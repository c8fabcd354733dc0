"""The exercises of the clinic: a norm in the wrong units, and a diagnosis from observables."""

from collections.abc import Callable

from mplab.course.exercise import Exercise, known


# Diagnosis -------------------------------------------------------------------------------
def _in_order(
    *rules: Callable[[float, float, float, float, float], int],
) -> Callable[..., int]:
    """The first rule with an answer decides."""

    def name(
        finite: float, zeros: float, lost: float, moved: float, repeats: float
    ) -> int:
        return next(
            (n for n in (r(finite, zeros, lost, moved, repeats) for r in rules) if n), 0
        )

    return name


def _forward(finite: float, *_: float) -> int:
    return int(finite < 1)


def _gradients(_: float, zeros: float, *rest: float) -> int:
    return 2 * (zeros > 0.5)


def _updates(_: float, __: float, lost: float, *rest: float) -> int:
    return 3 * (lost > 0.5)


def _stale(*shares: float) -> int:
    return 4 * (shares[3] > 0.5 and shares[4] > 0.5)


def _repeats(*shares: float) -> int:
    return 4 * (shares[4] > 0.5)


def _moved(*shares: float) -> int:
    return 4 * (shares[3] > 0.5)


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
)

EXERCISES: dict[str, Exercise] = {
    "norm_at_optimizer": Exercise(
        answer=2.0**-14,
        reason="Which norm do the scaled gradients have after clipping? Divide that by the scale.",
        misconceptions=known(
            (1.0, "That was asked for; the division by the scale comes after it."),
            (6.0, "The scaled norm is 6·2^14, far above the limit: it is clipped."),
            (
                6 * 2.0**-14,
                "Clipping leaves a norm of 1, whatever it was before; 6 is gone.",
            ),
            (2.0**14, "Unscaling divides by the scale."),
        ),
    ),
    "name_the_fault": Exercise(
        answer=_in_order(_forward, _gradients, _updates, _stale),
        reason="Ask in the order given, and let the first yes decide; half is not more than half.",
        argument="finite, zeros, lost, moved, repeats",
        cases=_SHARES,
        misconceptions=known(
            (
                _in_order(_gradients, _updates, _stale, _forward),
                "Ask first whether the loss is finite: no other observable means anything before.",
            ),
            (
                _in_order(_forward, _gradients, _updates, _repeats),
                "A loss that repeats is stale only if the weights moved.",
            ),
            (
                _in_order(_forward, _gradients, _updates, _moved),
                "Weights that move are healthy, unless the loss does not notice.",
            ),
            (
                _in_order(_forward, _updates, _gradients, _stale),
                "Zero gradients come before lost updates: a gradient of zero cannot be lost later.",
            ),
            (
                _in_order(_gradients, _updates, _stale),
                "A loss that is not finite is a fault of its own: the forward pass made it.",
            ),
        ),
    ),
}
