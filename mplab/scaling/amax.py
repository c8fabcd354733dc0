"""Scales of tensors for FP8: from the current or earlier largest magnitudes, or fixed.

A tensor with the largest magnitude `amax` is multiplied by `update(amax)` before the cast, so that
it fills the range of the format. This module does not need torch.
"""

import math
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from mplab.numbers.checks import between, integer, one_of, quoted
from mplab.numbers.formats import FP8_E4M3, FP32, Format, FormatLike, format_of
from mplab.numbers.inputs import as_float64
from mplab.numbers.rounding import round_to
from mplab.numbers.steps import take
from mplab.scaling.loss import in_float32, require_keys


class ScaleRule(Enum):
    """The rule that computes a scale from the largest magnitude, amax.

    `MX` (also called `FLOOR`), `CEIL`, `EVEN` and `RCEIL` are the rules of the MX formats.
    """

    POWER_OF_TWO = "the largest power of two that keeps amax within max_finite"
    RATIO = "max_finite / amax, rounded to float32"
    MX = "2^(emax - floor(log2(amax))), as in the OCP MX formats: the top may saturate"
    CEIL = (
        "2^(emax - ceil(log2(amax))): nothing saturates, since nothing lies past 2^emax"
    )
    EVEN = (
        "MX of amax rounded to the precision of the format: less of the top saturates"
    )
    RCEIL = "1 / 2^ceil(log2(amax / max_finite)): the largest E8M0 scale that saturates nothing"
    NVFP4 = "E4M3 for each block beside float32 for the tensor: as NVFP4 does, in `quantize` alone"
    FLOOR = MX  # torchao's name for it


_E8M0 = (ScaleRule.MX, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL)
"""The rules of the MX formats, whose scales are stored in E8M0."""


def scale_for(
    amax: Any,
    fmt: FormatLike,
    *,
    rule: ScaleRule = ScaleRule.POWER_OF_TWO,
    margin: int = 0,
) -> Any:
    """Compute the scale that fits a tensor with this largest magnitude into a format.

    An infinite or NaN amax gives NaN, so that the whole tensor becomes NaN: saturation would
    hide the infinity from a loss scaler. So does an amax past float32 whose scale would lie below
    the limits under Returns, or under `RATIO` be subnormal. A zero amax gives 1, because any scale
    works for zeros; under the rules of the MX formats it gives the largest scale, 2^127.

    Args:
        amax: the largest magnitude, a number or an array `(...)`; rounded to float32 if that
            holds it.
        fmt: the format to fill.
        rule: the rule; not `NVFP4`, which needs the amax of all blocks.
        margin: leave a factor of 2^margin of the range unused, an integer of any size.

    Returns:
        A float32 value, a number or an array like `amax`, never 0 or infinite: it is limited to
        2^−149 .. 2^127, under `RATIO` to the largest float32, and under the rules of the MX
        formats to 2^−127 .. 2^127. Multiply by it before the cast.

    Raises:
        TypeError: amax holds no real numbers, or `rule` is not a `ScaleRule`.
        ValueError: amax is negative, or the rule is `NVFP4`.

    Exactness:
        Exact for powers of two, computed without quotient or logarithm; `RATIO` is correctly
        rounded, of an amax that float32 holds. `MX`, `CEIL`, `EVEN` and `RCEIL` give the inverse
        of an E8M0 scale.

    Source:
        `MX` is OCP Microscaling Formats v1.0 as torchao's mx_tensor.py reads its §6.3; all four
        are torchao's ScaleCalculationMode, compared code by code in
        tests/scaling/test_torchao.py, which counts where torchao differs. `RCEIL` is also Mishra
        et al. (2025), arXiv:2506.08027. The others are as in recipe_common.cuh of Transformer
        Engine, which however gives 1 for an infinite or NaN amax.

    Examples:
        >>> scale_for(3.0, FP8_E4M3)
        128.0
        >>> scale_for(3.0, FP8_E4M3, rule=ScaleRule.RATIO)
        149.3333282470703
        >>> scale_for(2.0**-100 * 1.9, FP8_E4M3, rule=ScaleRule.MX) == 2.0**108
        True
    """
    if not isinstance(rule, ScaleRule):
        raise TypeError(
            f"scale_for: rule must be a ScaleRule; got {quoted(rule)}. Use ScaleRule.RCEIL."
        )
    if rule is ScaleRule.NVFP4:
        raise ValueError(
            f"scale_for: rule must be one that needs a single amax; got {rule}. "
            f"Use quantize(tensor, FP4_E2M1, scale=ScaleRule.NVFP4, block=(16,))."
        )
    margin = integer("scale_for", "margin", margin, least=-math.inf, most=math.inf)
    fmt = format_of(fmt, function="scale_for")
    shift = max(-_FAR, min(margin, _FAR))
    given = largest(amax)
    if (given < 0).any():
        raise ValueError(
            f"scale_for: amax must not be negative; got {float(given.min())!r}. Use abs()."
        )
    scale = scales(given, fmt, rule, shift)
    return float(scale) if isinstance(amax, float | int) else scale[()]


@np.errstate(over="ignore", under="ignore")
def scales(
    amax: np.ndarray, fmt: Format, rule: ScaleRule, shift: int = 0
) -> np.ndarray:
    """Compute the scales of magnitudes from `largest`: `scale_for` without its checks."""
    least = -149  # exponents in float32
    of_zero = 1.0
    if rule in _E8M0:
        least = -127
        of_zero = 2.0**127
    usable = (amax > 0) & (amax < np.inf)
    used = np.where(usable, amax, 1)
    if rule is ScaleRule.RATIO:
        wide = np.ldexp(fmt.max_finite / used, -shift)
        scale = np.clip(wide, FP32.min_subnormal, FP32.max_finite).astype(np.float32)
        small_enough = wide >= FP32.min_normal
    else:
        wanted = _scale_exponent(used, fmt, rule) - shift
        scale = np.ldexp(np.float32(1), np.minimum(np.maximum(wanted, least), 127))
        small_enough = wanted >= least
    usable &= small_enough | (used <= FP32.max_finite)
    others = np.where(amax == 0, np.float32(of_zero), np.float32(np.nan))
    return np.where(usable, scale, others)


_FAR = 10_000
"""A margin beyond all formats; larger margins give the same scales."""


def largest(amax: Any) -> np.ndarray:
    """Round largest magnitudes to float32 where that holds them; return float64."""
    entered = take("enter", FP32, amax)
    if entered is not None:
        return np.asarray(entered)
    wide = as_float64("scale_for", amax, "amax")
    with np.errstate(over="ignore", under="ignore"):
        single = wide.astype(np.float32)
    return np.where(np.isinf(single), wide, single)


def _scale_exponent(amax: np.ndarray, fmt: Format, rule: ScaleRule) -> np.ndarray:
    """Compute the exponent of the scale: amax = m·2^e, m in [1/2, 1), so floor(log2) is e - 1."""
    m, e = np.frexp(amax)
    most = {  # of m for which the floor will do
        ScaleRule.MX: 1.0,
        ScaleRule.CEIL: 0.5,
        ScaleRule.EVEN: math.nextafter(1 - 2.0 ** -(fmt.precision + 1), 0),
    }.get(rule, math.frexp(fmt.max_finite)[0])
    return np.asarray((fmt.emax + 1) - e - (m > most))


_LEAST_TENSOR_SCALE = 2.0**-121
"""Least tensor scale: with the least block scale, 2^−6, the factor is 2^127, still finite."""


def two_levels(
    amax: np.ndarray, fmt: Format, tensor_scale: float | None
) -> tuple[Any, Any]:
    """Compute the scales of `ScaleRule.NVFP4`: the factor of each block, and the tensor scale.

    Args:
        amax: the largest magnitude of each block.
        fmt: the format to fill.
        tensor_scale: the caller's choice, or None to compute it.

    Returns:
        float32, an array like `amax` and a scalar; NaN where an amax is not finite in float32.
    """
    given = largest(amax)
    blocks = np.where(given <= FP32.max_finite, given, np.nan).astype(np.float32)
    most = np.float32(fmt.max_finite)
    if tensor_scale is None:
        tensor_scale = blocks.max(initial=0) / (FP8_E4M3.max_finite * most)
    whole = np.maximum(np.float32(tensor_scale), np.float32(_LEAST_TENSOR_SCALE))
    with np.errstate(over="ignore"):
        wanted = np.clip(
            blocks / most / whole, FP8_E4M3.min_normal, FP8_E4M3.max_finite
        )
    return np.float32(1) / whole / round_to(wanted, FP8_E4M3), whole


class FixedScaling:
    """A constant FP8 scale; 1 means no scaling.

    Args:
        scale: positive, and finite in float32.

    Examples:
        >>> FixedScaling().update(1e-9)
        1.0
    """

    def __init__(self, scale: float = 1.0) -> None:
        between(type(self).__name__, "scale", in_float32(scale), 0)
        self.scale = scale

    def update(self, amax: float) -> float:
        """Return the scale for the next tensor, whatever its largest magnitude."""
        return self.scale


class CurrentScaling:
    """FP8 scaling of each tensor by its own largest magnitude.

    A cast to nearest never overflows, but it needs a pass over the tensor before.

    Args:
        fmt: the format to fill.
        margin: leave a factor of 2^margin of the range unused.
        power_of_two: True for powers of two, which scale exactly; False for ratios, which fill
            the range.

    Examples:
        >>> scaling = CurrentScaling(FP8_E4M3)
        >>> [scaling.update(amax) for amax in (1.0, 1.0, 1e5, 1.0)]
        [256.0, 256.0, 0.00390625, 256.0]
    """

    def __init__(
        self, fmt: FormatLike, *, margin: int = 0, power_of_two: bool = True
    ) -> None:
        self.fmt = format_of(fmt)
        self.margin = margin
        self.rule = ScaleRule.POWER_OF_TWO if power_of_two else ScaleRule.RATIO
        self.scale = 1.0
        """The scale of the last tensor."""

    def update(self, amax: float) -> float:
        """Return the scale for a tensor with this largest magnitude."""
        self.scale = scale_for(
            float(amax), self.fmt, rule=self.rule, margin=self.margin
        )
        return self.scale


class DelayedScaling:
    """FP8 scaling of each tensor by the largest magnitudes of earlier tensors.

    A tensor can be cast in the pass that computes it, because its scale is known beforehand. A
    spike overflows, so the cast must saturate; and as long as the spike is in the history,
    the scale is too small and ordinary tensors underflow. A NaN, and a history of zeros, leave the
    scale unchanged; so does an infinity, as long as it is in the history.

    Args:
        fmt: the format to fill.
        amax_history_len: the length of the history, in tensors.
        margin: leave a factor of 2^margin of the range unused.
        amax_compute: "max" of the history, or "most_recent".
        power_of_two: as in `CurrentScaling`.

    Raises:
        ValueError: an argument is out of its range.

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
        fmt: FormatLike,
        *,
        amax_history_len: int = 1024,
        margin: int = 0,
        amax_compute: str = "max",
        power_of_two: bool = True,
    ) -> None:
        where = type(self).__name__
        computes = ("max", "most_recent")
        self.fmt = format_of(fmt)
        self.margin = margin
        self.amax_compute = one_of(where, "amax_compute", amax_compute, computes)
        self.rule = ScaleRule.POWER_OF_TWO if power_of_two else ScaleRule.RATIO
        length = integer(where, "amax_history_len", amax_history_len, least=1)
        self._history: deque[float] = deque(maxlen=length)
        self.scale = 1.0
        """The scale for the next tensor."""

    @property
    def amax_history(self) -> tuple[float, ...]:
        """The largest magnitudes in the history, the latest last."""
        return tuple(self._history)

    def update(self, amax: float) -> float:
        """Return the scale of a tensor, then add its largest magnitude to the history."""
        scale = self.scale
        self._history.append(self._entered(amax))
        chosen = self._history[-1]
        if self.amax_compute == "max":
            chosen = float(np.fmax.reduce(self._history))  # ignores NaN
        if chosen > 0 and math.isfinite(chosen):
            self.scale = scale_for(chosen, self.fmt, rule=self.rule, margin=self.margin)
        return scale

    def _entered(self, amax: float) -> float:
        if amax < 0:
            raise ValueError(
                f"{type(self).__name__}: amax must not be negative; got {amax!r}."
            )
        return in_float32(float(amax))

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and the history."""
        return {"scale": self.scale, "amax_history": list(self._history)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state.

        Raises:
            ValueError: the keys differ, the history is too long, or a value is out of its range;
                the state is then unchanged.
        """
        where = type(self).__name__
        require_keys(where, state_dict, self.state_dict())
        history = state_dict["amax_history"]
        most = self._history.maxlen
        remembered = [self._entered(amax) for amax in history]
        if len(remembered) > (most or 0):
            raise ValueError(
                f"{where}: amax_history must hold at most {most} numbers; got {len(remembered)}. "
                f"Make it with amax_history_len={len(remembered)}."
            )
        self.scale = between(where, "scale", in_float32(float(state_dict["scale"])), 0)
        self._history = deque(remembered, maxlen=most)
