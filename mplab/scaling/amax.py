"""Scales of tensors for FP8: from the largest magnitude, of now, of late, or fixed.

A tensor with the largest magnitude `amax` is multiplied by `update(amax)` before it is cast, so
that it fills the range of the format. None of this needs torch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from mplab.numbers.formats import FP32, Format, require_format
from mplab.scaling._checks import count, in_float32, require_keys


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
        require_keys(type(self).__name__, state_dict, self.state_dict())


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
        where = type(self).__name__
        self.fmt = require_format(where, fmt)
        self.margin = count(where, "margin", margin, -126)
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
        require_keys(type(self).__name__, state_dict, self.state_dict())


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
        where = type(self).__name__
        if amax_compute not in ("max", "most_recent"):
            raise ValueError(
                f"{where}: amax_compute must be 'max' or 'most_recent'; got "
                f"{amax_compute!r}. Use 'max'."
            )
        self.fmt = require_format(where, fmt)
        self.amax_compute = amax_compute
        self.margin = count(where, "margin", margin, -126)
        self.rule = ScaleRule.POWER_OF_TWO if power_of_two else ScaleRule.RATIO
        length = count(where, "amax_history_len", amax_history_len, 1)
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
        self._history.append(in_float32(float(amax)))
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
        require_keys(type(self).__name__, state_dict, self.state_dict())
        history, most = state_dict["amax_history"], self._history.maxlen
        if len(history) > (most or 0):
            raise ValueError(
                f"{type(self).__name__}: amax_history must hold at most {most} numbers; got "
                f"{len(history)}. Make it with amax_history_len={len(history)}."
            )
        self.scale = float(state_dict["scale"])
        self._history = deque(map(float, history), maxlen=most)
