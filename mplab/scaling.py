"""Scales as small state machines, without torch: of the loss, and of tensors in FP8.

Loss scaling: a step multiplies the loss by `scale`, divides the gradients by it, and calls
`update` with whether any gradient was infinite or NaN.

FP8 scaling: a tensor with the largest magnitude `amax` is multiplied by `update(amax)` before
it is cast, so that it fills the range of the format.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from mplab.formats import FP32, Format, require_format
from mplab.rounding import round_to


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


# FP8 -------------------------------------------------------------------------------------


class ScaleRule(Enum):
    """How a scale follows from the largest magnitude, amax, of what it scales."""

    POWER_OF_TWO = "the largest power of two that keeps amax within max_finite"
    RATIO = "max_finite / amax, rounded to float32"
    MX = "2^(emax - floor(log2(amax))), as in the OCP MX formats: the top may saturate"


def scale_for(
    amax: Any,
    fmt: Format,
    *,
    rule: ScaleRule = ScaleRule.POWER_OF_TWO,
    margin: int = 0,
) -> Any:
    """The scale that fits a tensor with this largest magnitude into a format.

    An infinite or NaN amax gives NaN, so that the whole tensor becomes NaN: saturation would
    hide the infinity from a loss scaler. A zero amax gives 1, since any scale serves zeros;
    under `ScaleRule.MX` the largest scale, 2^127.

    Args:
        amax: the largest magnitude, one or an array `(...)`; taken as float32.
        fmt: the format to fill.
        rule: how the scale follows from amax.
        margin: leave 2^margin of the range unused.

    Returns:
        A value of float32 like `amax`, never 0 or infinite. It multiplies before the cast.

    Raises:
        ValueError: amax is negative.

    Exactness:
        Exact for powers of two; `RATIO` is correctly rounded. `MX` gives the inverse of an
        E8M0 scale.

    Source:
        For `MX` OCP Microscaling Formats v1.0, as torchao's mx_tensor.py reads its §6.3
        (ScaleCalculationMode.FLOOR; `POWER_OF_TWO` on blocks is its RCEIL but for the rounding
        of a quotient). For the others recipe_common.cuh of Transformer Engine, which however
        gives 1 for an infinite or NaN amax.

    Examples:
        >>> scale_for(3.0, FP8_E4M3)
        128.0
        >>> scale_for(3.0, FP8_E4M3, rule=ScaleRule.RATIO)
        149.3333282470703
        >>> scale_for(2.0**-100 * 1.9, FP8_E4M3, rule=ScaleRule.MX) == 2.0**108
        True
    """
    fmt = require_format("scale_for", fmt)
    if not isinstance(rule, ScaleRule):
        raise TypeError(f"scale_for: rule must be a ScaleRule; got {rule!r}. Use ScaleRule.MX.")
    with np.errstate(over="ignore"):
        given = np.asarray(amax, np.float32)
    if (given < 0).any():
        raise ValueError(
            f"scale_for: amax must not be negative; got {float(given.min())!r}. Use abs()."
        )
    finite = np.isfinite(given)
    used = np.where(finite & (given > 0), given, np.float32(1))
    if rule is ScaleRule.RATIO:
        wide = np.ldexp(fmt.max_finite / used.astype(np.float64), -margin)
        scale = np.minimum(wide, FP32.max_finite).astype(np.float32)
    else:
        scale = np.ldexp(np.float32(1), _scale_exponent(used, fmt, rule) - margin)
    zero_scale = 2.0**127 if rule is ScaleRule.MX else 1.0
    scale = np.where(finite, np.where(given > 0, scale, zero_scale), np.nan).astype(np.float32)
    return float(scale) if isinstance(amax, float | int) else scale


def _scale_exponent(amax: np.ndarray, fmt: Format, rule: ScaleRule) -> np.ndarray:
    """The exponent of a power of two: amax = m·2^e with m in [1/2, 1)."""
    m, e = np.frexp(amax)
    if rule is ScaleRule.MX:
        return np.asarray(np.clip(fmt.emax - (e - 1), -127, 127))  # what E8M0 holds
    largest, exponent = math.frexp(fmt.max_finite)
    return np.asarray(np.clip(exponent - e - (m > largest), -126, 127))


class FixedScaling:
    """An FP8 scale that stays as it is; 1 is no scaling at all.

    Examples:
        >>> FixedScaling().update(1e-9)
        1.0
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def update(self, amax: float) -> float:
        """The scale for the next tensor, whatever its largest magnitude."""
        return self.scale

    def state_dict(self) -> dict[str, Any]:
        """The state: none."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state."""
        _require_keys("FixedScaling", state_dict, self.state_dict())


class CurrentScaling:
    """The FP8 scale of each tensor from its own largest magnitude.

    It never overflows, at the price of a pass over the tensor before the cast.

    Args:
        fmt: the format to fill.
        margin: leave 2^margin of the range unused.
        power_of_two: scales exactly; False fills the range with a ratio.

    Examples:
        >>> scaling = CurrentScaling(FP8_E4M3)
        >>> [scaling.update(amax) for amax in (1.0, 1.0, 1e5, 1.0)]
        [256.0, 256.0, 0.00390625, 256.0]
    """

    def __init__(self, fmt: Format, *, margin: int = 0, power_of_two: bool = True) -> None:
        self.fmt = require_format("CurrentScaling", fmt)
        self.margin = _count("margin", margin, -126, where="CurrentScaling")
        self.rule = ScaleRule.POWER_OF_TWO if power_of_two else ScaleRule.RATIO
        self.scale = 1.0
        """That of the last tensor."""

    def update(self, amax: float) -> float:
        """The scale for a tensor with this largest magnitude."""
        self.scale = scale_for(float(amax), self.fmt, rule=self.rule, margin=self.margin)
        return self.scale

    def state_dict(self) -> dict[str, Any]:
        """The state: none, since each scale follows from its tensor."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state."""
        _require_keys("CurrentScaling", state_dict, self.state_dict())


class DelayedScaling:
    """The FP8 scale of each tensor from the largest magnitudes of those before it.

    A tensor can be cast in the pass that makes it, since its scale is known beforehand. A
    spike overflows, so the cast must saturate; and as long as the spike is in the history,
    the scale is too small and calm tensors underflow. A zero or NaN leaves the scale as it was;
    so does an infinity, as long as the history holds it.

    Args:
        fmt: the format to fill.
        amax_history_len: how many tensors are remembered.
        margin: leave 2^margin of the range unused.
        amax_compute: "max" of the history, or "most_recent".
        power_of_two: scales exactly; False fills the range with a ratio.

    Raises:
        ValueError: an argument out of its range.

    Source:
        Transformer Engine, recipe DelayedScaling and delayed_scaling.cu: these defaults, except
        that scales there are ratios.

    Examples:
        >>> scaling = DelayedScaling(FP8_E4M3, amax_history_len=2)
        >>> [scaling.update(amax) for amax in (1.0, 1.0, 1e5, 1.0, 1.0, 1.0)]
        [1.0, 256.0, 256.0, 0.00390625, 0.00390625, 256.0]
    """

    def __init__(
        self,
        fmt: Format,
        *,
        amax_history_len: int = 1024,
        margin: int = 0,
        amax_compute: str = "max",
        power_of_two: bool = True,
    ) -> None:
        if amax_compute not in ("max", "most_recent"):
            raise ValueError(
                f"DelayedScaling: amax_compute must be 'max' or 'most_recent'; got "
                f"{amax_compute!r}. Use 'max'."
            )
        self.fmt = require_format("DelayedScaling", fmt)
        self.amax_compute = amax_compute
        self.margin = _count("margin", margin, -126, where="DelayedScaling")
        self.rule = ScaleRule.POWER_OF_TWO if power_of_two else ScaleRule.RATIO
        length = _count("amax_history_len", amax_history_len, 1, where="DelayedScaling")
        self._history: deque[float] = deque(maxlen=length)
        self.scale = 1.0
        """For the next tensor."""

    @property
    def amax_history(self) -> tuple[float, ...]:
        """The largest magnitudes remembered, the latest last."""
        return tuple(self._history)

    def update(self, amax: float) -> float:
        """The scale for a tensor with this largest magnitude, which comes to be known with it."""
        scale = self.scale
        self._history.append(_in_float32(float(amax)))
        chosen = self._history[-1]
        if self.amax_compute == "max":
            chosen = float(np.fmax.reduce(self._history))  # passes over NaN
        if chosen > 0 and math.isfinite(chosen):
            self.scale = scale_for(chosen, self.fmt, rule=self.rule, margin=self.margin)
        return scale

    def state_dict(self) -> dict[str, Any]:
        """The scale and the history."""
        return {"scale": self.scale, "amax_history": list(self._history)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a state.

        Raises:
            ValueError: other keys, or a longer history; the state is left as it was.
        """
        _require_keys("DelayedScaling", state_dict, self.state_dict())
        history, most = state_dict["amax_history"], self._history.maxlen
        if len(history) > (most or 0):
            raise ValueError(
                f"DelayedScaling: amax_history must hold at most {most} numbers; got "
                f"{len(history)}. Make it with amax_history_len={len(history)}."
            )
        self.scale = float(state_dict["scale"])
        self._history = deque(map(float, history), maxlen=most)


def _require_keys(name: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    if set(given) != set(expected):
        raise ValueError(
            f"{name}: state_dict must have the keys {', '.join(expected) or 'of none'}; got "
            f"{', '.join(map(str, given)) or 'none'}. Use what state_dict() returned."
        )
