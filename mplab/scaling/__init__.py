"""Scales for low precision: of the loss, of a tensor and of its blocks.

`GradScaler` and tensors in FP8, FP6 and FP4 need torch, which is imported on first use; the rules
for loss scales and for tensor scales do not need it.
"""

import typing

from mplab.numbers import installation
from mplab.scaling.amax import (
    CurrentScaling as CurrentScaling,
    DelayedScaling as DelayedScaling,
    FixedScaling as FixedScaling,
    ScaleRule as ScaleRule,
    scale_for as scale_for,
)
from mplab.scaling.loss import LossScaler as LossScaler
from mplab.scaling.rules import (
    DoublingScaler as DoublingScaler,
    FlooredScaler as FlooredScaler,
    Headroom as Headroom,
    KerasScaler as KerasScaler,
    NudgedScaler as NudgedScaler,
    Trace as Trace,
    Turn as Turn,
    play as play,
    turns as turns,
)

if typing.TYPE_CHECKING:
    from mplab.scaling.grad_scaler import GradScaler as GradScaler
    from mplab.scaling.quantized import (
        MX_BLOCK as MX_BLOCK,
        Quantized as Quantized,
        amax_of as amax_of,
        dequantize as dequantize,
        fake_quantize as fake_quantize,
        hadamard as hadamard,
        quantize as quantize,
    )

_WITH_TORCH = {
    *("GradScaler", "MX_BLOCK", "Quantized", "amax_of", "dequantize", "fake_quantize"),
    *("hadamard", "quantize"),
}


def __getattr__(name: str) -> typing.Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'mplab.scaling' has no attribute {name!r}")
    installation.needs(f"mplab.scaling.{name}", "torch")
    from mplab.scaling import grad_scaler, quantized

    return getattr(grad_scaler if name == "GradScaler" else quantized, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_WITH_TORCH})
