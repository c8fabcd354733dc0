"""The exercises of the clinic: clipping in the right units, and a diagnosis from observables."""

from collections.abc import Callable

import numpy as np

from mplab.course.exercise import Exercise, known


# Clipping --------------------------------------------------------------------------------
def _clip(g: np.ndarray, limit: float) -> np.ndarray:
    norm = float(np.sqrt(np.sum(g * g)))
    return g * (limit / norm) if norm > limit else g


def _unscale_then_clip(g: np.ndarray, scale: float, limit: float) -> np.ndarray:
    return _clip(g / scale, limit)


def _always_to_the_limit(g: np.ndarray, scale: float, limit: float) -> np.ndarray:
    norm = float(np.sqrt(np.sum(g * g)))
    return g * (limit / norm) if norm else g


_CLIP_CASES = (
    (np.array([6.0]) * 1024, 1024.0, 1.0),
    (np.array([3.0, -4.0]) * 16384, 16384.0, 1.0),
    (np.array([0.3, 0.4]) * 16384, 16384.0, 1.0),
    (np.array([0.3, 0.4]) * 256, 256.0, 2.0),
    (np.array([3.0, -4.0]) * 2, 2.0, 5.0),
    (np.array([0.25, 0.125]), 4.0, 1.0),
    (np.array([0.0, 0.0]), 1024.0, 1.0),
    (np.random.default_rng(13).standard_normal(40) * 65536, 65536.0, 0.5),
)


# Diagnosis -------------------------------------------------------------------------------
def _in_order(
    *rules: Callable[[float, float, float, float, float], int],
) -> Callable[..., int]:
    """The first rule with an answer decides."""

    def name(finite: float, zeros: float, lost: float, moved: float, repeats: float) -> int:
        return next((n for n in (r(finite, zeros, lost, moved, repeats) for r in rules) if n), 0)

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
)

EXERCISES: dict[str, Exercise] = {
    "norm_at_optimizer": Exercise(
        answer=2.0**-14,
        reason="Which norm do the scaled gradients have after clipping? Divide that by the scale.",
        misconceptions=known(
            (1.0, "That was asked for; the division by the scale comes after it."),
            (6.0, "The scaled norm is 6·2^14, far above the limit: it is clipped."),
            (6 * 2.0**-14, "Clipping leaves a norm of 1, whatever it was before; 6 is gone."),
            (2.0**14, "Unscaling divides by the scale."),
        ),
    ),
    "unscale_and_clip": Exercise(
        answer=_unscale_then_clip,
        reason="Divide by the scale first; then shrink to the limit if the norm is above it.",
        argument="g, scale, limit",
        cases=_CLIP_CASES,
        tolerance=1e-6,  # clip_grad_norm_ of torch adds 1e-6 to the norm
        misconceptions=known(
            (
                lambda g, scale, limit: _clip(g, limit) / scale,
                "The limit is for true gradients; here it meets the scaled ones.",
            ),
            (
                lambda g, scale, limit: _clip(g, limit),
                "The optimizer must receive gradients without the scale.",
            ),
            (lambda g, scale, limit: g / scale, "The gradients are unscaled but not clipped."),
            (
                lambda g, scale, limit: _always_to_the_limit(g / scale, scale, limit),
                "Gradients with a norm below the limit stay as they are.",
            ),
            (
                lambda g, scale, limit: np.clip(g / scale, -limit, limit),
                "The limit is for the norm of all together, so that their direction stays.",
            ),
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
                "Zero gradients come before lost updates: what is zero cannot be lost later.",
            ),
            (
                _in_order(_gradients, _updates, _stale),
                "A loss that is not finite is a fault of its own: the forward pass made it.",
            ),
        ),
    ),
}
