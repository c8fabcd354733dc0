"""Loss scales as small state machines, without torch.

A step multiplies the loss by `scale`, divides the gradients by it, and calls `update` with
whether any gradient was infinite or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mplab.formats import FP32
from mplab.rounding import round_to


class LossScaler:
    """The loss scale of mixed-precision training, event for event that of torch.

    Dynamic: a step with an infinite or NaN gradient is skipped and the scale multiplied by
    `backoff_factor`; after `growth_interval` good steps in a row it is multiplied by
    `growth_factor`, unless it would become infinite. Static: the scale stays, and no step is
    skipped.

    Args:
        init_scale: the first scale; a power of two scales exactly.
        growth_factor: above 1.
        backoff_factor: between 0 and 1.
        growth_interval: good steps in a row before the scale grows.
        dynamic: False for a static scale.

    Raises:
        TypeError: an argument of another type.
        ValueError: an argument out of its range.

    Exactness:
        The scale is a float32; each product is formed in float64 and rounded once. Bit-exact
        with `torch.amp.GradScaler` on the random sequences of events in tests/test_scaling.py.

    Source:
        `torch.amp.GradScaler` and `torch._amp_update_scale_` of torch 2.13.

    Examples:
        >>> scaler = LossScaler(growth_interval=2)
        >>> [scaler.update(found) for found in (True, False, False, False)]
        [True, False, False, False]
        >>> scaler.scale
        65536.0
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
    ) -> None:
        if not isinstance(dynamic, bool):
            raise TypeError(f"LossScaler: dynamic must be True or False; got {dynamic!r}.")
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

    def __repr__(self) -> str:
        kind = "dynamic" if self.dynamic else "static"
        return f"<LossScaler: {kind}, scale {self.scale:g}>"

    @property
    def scale(self) -> float:
        """What to multiply the loss of this step by; a value of float32."""
        return self._scale

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
            return False
        if found_nonfinite:
            self._scale = _in_float32(self._scale * self._backoff_factor)
            self._growth_tracker = 0
            return True
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = _in_float32(self._scale * self._growth_factor)
            self._scale = grown if math.isfinite(grown) else self._scale
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
        expected = self.state_dict()
        if set(state_dict) != set(expected):
            raise ValueError(
                f"LossScaler: state_dict must have the keys {', '.join(expected)}; got "
                f"{', '.join(map(str, state_dict)) or 'none'}. Use what state_dict() returned."
            )
        loaded = LossScaler(
            growth_factor=state_dict["growth_factor"],
            backoff_factor=state_dict["backoff_factor"],
            growth_interval=state_dict["growth_interval"],
            dynamic=self.dynamic,
        )
        loaded._scale = _in_float32(_number("scale", state_dict["scale"]))
        if not 0 <= loaded._scale < math.inf:  # zero is where backing off ends
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


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"LossScaler: {name} must be an integer; got {value!r}.")
    if value < least:
        raise ValueError(f"LossScaler: {name} must be at least {least}; got {value!r}.")
    return value
