"""Other rules for the loss scale, from tutorials and from Keras.

Each rule changes one thing in `LossScaler`, so that you can compare the two.
"""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from mplab.numbers.checks import between
from mplab.numbers.inputs import as_float64
from mplab.scaling.loss import LossScaler, in_float32


class DoublingScaler(LossScaler):
    """A rule that doubles the scale after every good step, up to a maximum.

    A bad step halves the scale and is skipped. This rule is worse than a growth interval if the
    maximum overflows: once the scale is the largest that works, every second step is skipped.

    Args:
        init_scale: the first scale.
        max_scale: the largest scale after the first step.

    Examples:
        >>> scaler = DoublingScaler(4.0, max_scale=64.0)
        >>> [scaler.update(scaler.scale > 16.0) for _ in range(7)]
        [False, False, False, True, False, True, False]
    """

    def __init__(
        self, init_scale: float = 65536.0, *, max_scale: float = 2.0**24
    ) -> None:
        super().__init__(init_scale, growth_interval=1)
        self.max_scale = between(
            type(self).__name__, "max_scale", in_float32(max_scale), 0
        )

    def update(
        self, found_nonfinite: bool, *, mean_abs_gradient: float = math.inf
    ) -> bool:
        """End a step; see `LossScaler.update`."""
        skip = super().update(found_nonfinite, mean_abs_gradient=mean_abs_gradient)
        self._scale = min(self._scale, self.max_scale)
        return skip


class NudgedScaler(LossScaler):
    """The dynamic rule, plus a factor 1.1 after each good step with a small mean absolute gradient.

    It is meant to prevent underflow, but the mean does not show underflow: a few large gradients
    of the last layers keep it large while whole layers have zero gradients. And if the mean is
    small because all gradients are, late in training or in a large model, the scale grows back
    into the same overflow every few steps, where the dynamic rule waits for its interval. A scale
    that is not a power of two also rounds each gradient twice more.

    The recipe clips before gradients are unscaled, which bounds their norm by max_norm / scale: see
    tests/scaling/test_grad_scaler.py.

    Args:
        init_scale: the first scale.
        small: the mean absolute gradient, unscaled, below which the scale is nudged.
        nudge: the factor.
        max_scale: no nudge goes above this scale; the dynamic rule may.
        growth_interval: as in `LossScaler`.

    Examples:
        >>> scaler = NudgedScaler(1024.0)
        >>> scaler.update(False, mean_abs_gradient=1e-9), round(scaler.scale, 1)
        (False, 1126.4)
    """

    wants_mean: ClassVar[bool] = True

    def __init__(
        self,
        init_scale: float = 65536.0,
        *,
        small: float = 1e-7,
        nudge: float = 1.1,
        max_scale: float = 65536.0,
        growth_interval: int = 2000,
    ) -> None:
        super().__init__(init_scale, growth_interval=growth_interval)
        self.small = between(type(self).__name__, "small", small, 0)
        self.nudge = between(type(self).__name__, "nudge", nudge, 0)
        self.max_scale = between(
            type(self).__name__, "max_scale", in_float32(max_scale), 0
        )

    def update(
        self, found_nonfinite: bool, *, mean_abs_gradient: float = math.inf
    ) -> bool:
        """End a step; see `LossScaler.update`."""
        skip = super().update(found_nonfinite, mean_abs_gradient=mean_abs_gradient)
        if not skip and mean_abs_gradient < self.small and self._scale < self.max_scale:
            self._scale = min(in_float32(self._scale * self.nudge), self.max_scale)
        return skip


class FlooredScaler(LossScaler):
    """The dynamic rule with a least scale.

    It is meant to stop a scale that falls for ever. But if gradients overflow at the least scale
    itself, for example those of a loss that is summed and not averaged, every step is skipped; the
    dynamic rule goes below 1 and trains.

    Args:
        init_scale: the first scale.
        min_scale: the least scale after the first step.
        growth_interval: as in `LossScaler`.

    Examples:
        >>> scaler = FlooredScaler(2.0)
        >>> [scaler.update(True) for _ in range(3)], scaler.scale
        ([True, True, True], 1.0)
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        *,
        min_scale: float = 1.0,
        growth_interval: int = 2000,
    ) -> None:
        super().__init__(init_scale, growth_interval=growth_interval)
        self.min_scale = between(
            type(self).__name__, "min_scale", in_float32(min_scale), 0
        )

    def update(
        self, found_nonfinite: bool, *, mean_abs_gradient: float = math.inf
    ) -> bool:
        """End a step; see `LossScaler.update`."""
        skip = super().update(found_nonfinite, mean_abs_gradient=mean_abs_gradient)
        self._scale = max(self._scale, self.min_scale)
        return skip


class KerasScaler(LossScaler):
    """The loss scale of Keras: the dynamic rule with another first scale and no upper limit.

    If no gradient ever overflows, for example because all are zero, the scale grows to
    infinity; half of infinity is infinity, and from then on every step is skipped.

    Args:
        init_scale: the first scale.
        growth_interval: good steps in a row before the scale doubles.

    Exactness:
        Bit-exact with Keras on the random sequences of events in tests/scaling/test_rules.py.

    Source:
        `keras.optimizers.LossScaleOptimizer` of Keras 3, its `initial_scale` and
        `dynamic_growth_steps`.

    Examples:
        >>> KerasScaler()
        <KerasScaler: dynamic, scale 32768>
    """

    _limit = math.inf

    def __init__(
        self, init_scale: float = 32768.0, *, growth_interval: int = 2000
    ) -> None:
        super().__init__(init_scale, growth_interval=growth_interval)


class Trace(NamedTuple):
    """The scales of a run and the steps it skipped."""

    limits: np.ndarray
    """The largest scale with which all gradients of the step stay finite."""
    scales: np.ndarray
    skipped: np.ndarray


class LossScaleLimits(NamedTuple):
    """The limits and mean gradients of each step of a run, both of shape (steps,)."""

    limits: np.ndarray
    """The largest power of two with which all gradients of weights stay finite: 0 if there is no
    such power, infinity if every power works."""
    mean_abs_gradient: np.ndarray
    """The mean magnitude of all gradients of weights, unscaled, at that scale."""


class ScalerStep(NamedTuple):
    """One step of a rule: its state before, whether the gradients overflowed, and its state after.

    `good_steps` counts the good steps in a row, toward `growth_interval`.
    """

    scale: float
    good_steps: int
    found_nonfinite: bool
    skipped: bool
    next_scale: float
    next_good_steps: int


def scaler_steps(
    rule: LossScaler,
    limits: Sequence[float] | np.ndarray,
    *,
    mean_abs_gradient: float | Sequence[float] | np.ndarray = 1e-3,
) -> Iterator[ScalerStep]:
    """Run a rule on steps whose gradients overflow above given scales, and yield each step.

    Args:
        rule: continues from its current state.
        limits: for each step, the largest scale with which all gradients stay finite.
        mean_abs_gradient: the mean magnitude of the gradients, once for all or for each step, for
            rules with `wants_mean`.

    Examples:
        >>> next(scaler_steps(LossScaler(8.0), [4.0]))
        ScalerStep(scale=8.0, good_steps=0, found_nonfinite=True, skipped=True, next_scale=4.0, \
next_good_steps=0)
    """
    each = as_float64("scaler_steps", limits, "limits")
    means = np.broadcast_to(
        as_float64("scaler_steps", mean_abs_gradient, "mean_abs_gradient"), each.shape
    )
    for limit, mean in zip(each, means, strict=True):
        scale = rule.scale
        good = _good_steps(rule)
        found = bool(scale > limit)
        more = {"mean_abs_gradient": float(mean)} if rule.wants_mean else {}
        skipped = rule.update(found, **more)
        yield ScalerStep(scale, good, found, skipped, rule.scale, _good_steps(rule))


def _good_steps(rule: LossScaler) -> int:
    return int(rule.state_dict()["_growth_tracker"])


def simulate_scaler(
    rule: LossScaler,
    limits: Sequence[float] | np.ndarray,
    *,
    mean_abs_gradient: float | Sequence[float] | np.ndarray = 1e-3,
) -> Trace:
    """Run a rule on steps as `scaler_steps` does, and collect the results in arrays.

    Args:
        rule: continues from its current state.
        limits: for each step, the largest scale with which all gradients stay finite.
        mean_abs_gradient: the mean magnitude of the gradients, once for all or for each step, for
            rules with `wants_mean`.

    Examples:
        >>> simulate_scaler(LossScaler(8.0), [4.0, 4.0, 4.0]).scales
        array([8., 4., 4.])
    """
    played = list(scaler_steps(rule, limits, mean_abs_gradient=mean_abs_gradient))
    scales = [turn.scale for turn in played]
    skipped = [turn.skipped for turn in played]
    return Trace(np.array(limits, float), np.array(scales), np.array(skipped, bool))
