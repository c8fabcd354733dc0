"""Scales as small state machines, without torch: of the loss, and of tensors in FP8.

Loss scaling: a step multiplies the loss by `scale`, divides the gradients by it, and calls
`update` with whether any gradient was infinite or NaN.

FP8 scaling: a tensor with the largest magnitude `amax` is multiplied by `update(amax)` before
it is cast, so that it fills the range of the format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mplab.numbers.formats import FP32
from mplab.numbers.rounding import round_to


class LossScaler:
    """The loss scale of mixed-precision training, event for event that of torch.

    Dynamic: a step with an infinite or NaN gradient is skipped and the scale multiplied by
    `backoff_factor`; after `growth_interval` good steps in a row it is multiplied by
    `growth_factor`, unless it would become infinite. Static: the scale stays, and no step is
    skipped, unless `static_skips`: then a scale that is too large stops training for good.

    Args:
        init_scale: the first scale; a power of two scales exactly.
        growth_factor: above 1.
        backoff_factor: between 0 and 1.
        growth_interval: good steps in a row before the scale grows.
        dynamic: False for a static scale.
        static_skips: whether a static scale skips steps with an infinite or NaN gradient.

    Raises:
        TypeError: an argument of another type.
        ValueError: an argument out of its range.

    Exactness:
        The scale is a float32; each product is formed in float64 and rounded once. Bit-exact
        with `torch.amp.GradScaler` on the random sequences of events in tests/scaling/test_loss.py.

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
    """The scale does not grow past this."""

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
        for name, switch in (("dynamic", dynamic), ("static_skips", static_skips)):
            if not isinstance(switch, bool):
                raise TypeError(f"LossScaler: {name} must be True or False; got {switch!r}.")
        self._scale = _in_float32(_number("init_scale", init_scale))
        if not 0 < self._scale < math.inf:
            raise ValueError(
                f"LossScaler: init_scale must be positive and finite in float32; got "
                f"{init_scale!r}. 65536.0 is usual."
            )
        self._growth_factor = _factor("growth_factor", growth_factor, 1, math.inf)
        self._backoff_factor = _factor("backoff_factor", backoff_factor, 0, 1)
        self._growth_interval = _count("growth_interval", growth_interval, 1)
        self._growth_tracker = 0
        self.dynamic = dynamic
        self.static_skips = static_skips

    def __repr__(self) -> str:
        kind = "dynamic" if self.dynamic else "static"
        return f"<{type(self).__name__}: {kind}, scale {self.scale:g}>"

    @property
    def scale(self) -> float:
        """What to multiply the loss of this step by; a value of float32."""
        return self._scale

    @property
    def skips_nonfinite(self) -> bool:
        """Whether steps with an infinite or NaN gradient are skipped."""
        return self.dynamic or self.static_skips

    def update(self, found_nonfinite: bool) -> bool:
        """End a step.

        Args:
            found_nonfinite: whether any gradient of this step was infinite or NaN.

        Returns:
            Whether the step is skipped: the optimizer must not use these gradients.
        """
        if not isinstance(found_nonfinite, bool):
            raise TypeError(
                f"LossScaler.update: found_nonfinite must be True or False; got "
                f"{found_nonfinite!r}. Convert it with bool(...)."
            )
        if not self.dynamic:
            return found_nonfinite and self.static_skips
        if found_nonfinite:
            self._scale = _in_float32(self._scale * self._backoff_factor)
            self._growth_tracker = 0
            return True
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = _in_float32(self._scale * self._growth_factor)
            self._scale = grown if grown <= self._limit else self._scale
            self._growth_tracker = 0
        return False

    def state_dict(self) -> dict[str, Any]:
        """The state, with the keys of `torch.amp.GradScaler.state_dict`."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state, of this class or of `torch.amp.GradScaler`.

        Raises:
            TypeError: a value of another type.
            ValueError: other keys, or a value out of its range; the state is left as it was.
        """
        _require_keys("LossScaler", state_dict, self.state_dict())
        loaded = LossScaler(
            growth_factor=state_dict["growth_factor"],
            backoff_factor=state_dict["backoff_factor"],
            growth_interval=state_dict["growth_interval"],
            dynamic=self.dynamic,
            static_skips=self.static_skips,
        )
        loaded._scale = _in_float32(_number("scale", state_dict["scale"]))
        if not 0 <= loaded._scale <= self._limit:  # zero is where backing off ends
            raise ValueError(
                f"LossScaler: scale must be finite and not negative; got {loaded._scale!r}. "
                f"Use what state_dict() returned."
            )
        loaded._growth_tracker = _count("_growth_tracker", state_dict["_growth_tracker"], 0)
        vars(self).update(vars(loaded))


def _in_float32(number: float) -> float:
    return float(round_to(number, FP32))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"LossScaler: {name} must be a number; got {value!r}. Convert it with float(...)."
        )
    return float(value)


def _factor(name: str, value: Any, above: float, below: float) -> float:
    number = _number(name, value)
    if not above < number < below:
        raise ValueError(
            f"LossScaler: {name} must lie between {above} and {below}, both excluded; got "
            f"{value!r}. torch uses 2.0 to grow and 0.5 to back off."
        )
    return number


def _count(name: str, value: Any, least: int, *, where: str = "LossScaler") -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{where}: {name} must be an integer; got {value!r}.")
    if value < least:
        raise ValueError(f"{where}: {name} must be at least {least}; got {value!r}.")
    return value


def _require_keys(name: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if set(given) != set(expected):
        raise ValueError(
            f"{name}: state_dict must have the keys {', '.join(expected) or 'of none'}; got "
            f"{', '.join(map(str, given)) or 'none'}. Use what state_dict() returned."
        )
