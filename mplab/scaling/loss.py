"""The loss scale as a small state machine, without torch.

A step multiplies the loss by `scale`, divides the gradients by it, and tells `update` whether any
gradient was infinite or NaN.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from mplab.numbers.checks import between, integer
from mplab.numbers.formats import FP32
from mplab.numbers.rounding import round_to


def in_float32(number: float) -> float:
    """Round a number to float32."""
    return float(round_to(number, FP32))


def require_keys(
    where: str, state: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Raise if a state does not have the expected keys."""
    if set(state) != set(expected):
        raise ValueError(
            f"{where}: state_dict must have the keys {', '.join(expected) or '(none)'}; got "
            f"{', '.join(map(str, state)) or 'none'}. Use what state_dict() returned."
        )


class LossScaler:
    """The loss scale of mixed-precision training, step for step that of torch.

    Dynamic: a step with an infinite or NaN gradient is skipped and the scale multiplied by
    `backoff_factor`; after `growth_interval` good steps in a row it is multiplied by
    `growth_factor`, unless it would become infinite. Static: the scale never changes, and no step
    is skipped, unless `static_skips`: then a scale that is too large stops training for good.

    Args:
        init_scale: the first scale; a power of two scales exactly.
        growth_factor: above 1.
        backoff_factor: between 0 and 1.
        growth_interval: good steps in a row before the scale grows.
        dynamic: False for a static scale.
        static_skips: whether a static scale skips steps with an infinite or NaN gradient.

    Raises:
        ValueError: an argument is out of its range.

    Exactness:
        The scale is a float32; each product is computed in float64 and rounded once. Bit-exact
        with `torch.amp.GradScaler` on all sequences of eight steps in tests/scaling/test_loss.py.

    Source:
        `torch.amp.GradScaler` and `torch._amp_update_scale_` of torch 2.13.

    Examples:
        >>> scaler = LossScaler(growth_interval=2)
        >>> [scaler.update(found) for found in (True, False, False, False)]
        [True, False, False, False]
        >>> scaler.scale
        65536.0
    """

    _limit = FP32.max_finite
    """The scale does not grow past this limit."""

    wants_mean: ClassVar[bool] = False
    """Whether callers pass the mean magnitude of the gradients to `update`, which takes a pass over
    them; else they pass only `found_nonfinite`."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        static_skips: bool = False,
    ) -> None:
        where = type(self).__name__
        self.dynamic = dynamic
        self.static_skips = static_skips
        self._scale: float = between(where, "init_scale", in_float32(init_scale), 0)
        self._growth_factor = between(where, "growth_factor", growth_factor, 1)
        self._backoff_factor = between(where, "backoff_factor", backoff_factor, 0, 1)
        self._growth_interval = integer(
            where, "growth_interval", growth_interval, least=1
        )
        self._growth_tracker = 0

    def __repr__(self) -> str:
        kind = "dynamic" if self.dynamic else "static"
        return f"<{type(self).__name__}: {kind}, scale {self.scale:g}>"

    @property
    def scale(self) -> float:
        """The factor of the loss of this step; a float32 value."""
        return self._scale

    @property
    def skips_nonfinite(self) -> bool:
        """Whether steps with an infinite or NaN gradient are skipped."""
        return self.dynamic or self.static_skips

    def update(
        self, found_nonfinite: bool, *, mean_abs_gradient: float = math.inf
    ) -> bool:
        """End a step, and update the scale.

        Args:
            found_nonfinite: whether any gradient of this step was infinite or NaN.
            mean_abs_gradient: the mean magnitude of all unscaled gradients, for rules with
                `wants_mean`.

        Returns:
            Whether the step is skipped: the optimizer must not use these gradients.
        """
        if not self.dynamic:
            return bool(found_nonfinite) and self.static_skips
        if found_nonfinite:
            self._scale = in_float32(self._scale * self._backoff_factor)
            self._growth_tracker = 0
            return True
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = in_float32(self._scale * self._growth_factor)
            self._scale = grown if grown <= self._limit else self._scale
            self._growth_tracker = 0
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the state, with the keys of `torch.amp.GradScaler.state_dict`."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state of this class or of `torch.amp.GradScaler`.

        Raises:
            ValueError: the keys differ, or a value is out of its range; the state is then
                unchanged.
        """
        where = type(self).__name__
        given = state_dict
        require_keys(where, given, self.state_dict())
        scale = in_float32(given["scale"])
        if not 0 <= scale <= self._limit:  # repeated backoff ends at zero
            raise ValueError(
                f"{where}: scale must be finite and not negative; got {scale!r}. Use what "
                f"state_dict() returned."
            )
        loaded = {
            "_scale": scale,
            "_growth_factor": between(
                where, "growth_factor", given["growth_factor"], 1
            ),
            "_backoff_factor": between(
                where, "backoff_factor", given["backoff_factor"], 0, 1
            ),
            "_growth_interval": integer(
                where, "growth_interval", given["growth_interval"], least=1
            ),
            "_growth_tracker": integer(
                where, "_growth_tracker", given["_growth_tracker"]
            ),
        }
        vars(self).update(loaded)
