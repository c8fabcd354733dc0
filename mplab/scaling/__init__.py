"""What a number is multiplied by before it enters a format: of the loss, of a tensor, of a block.

`GradScaler` and the tensors in FP8, FP6 and FP4 need torch, which is loaded when they are first
named; the rules of loss scales and the scales of tensors need none.
"""

from typing import TYPE_CHECKING, Any

from mplab.numbers.installation import needs
from mplab.scaling.amax import (
    CurrentScaling,
    DelayedScaling,
    FixedScaling,
    ScaleRule,
    scale_for,
)
from mplab.scaling.loss import LossScaler
from mplab.scaling.rules import (
    DoublingScaler,
    FlooredScaler,
    Headroom,
    KerasScaler,
    NudgedScaler,
    Trace,
    Turn,
    play,
    turns,
)

if TYPE_CHECKING:
    from mplab.scaling.grad_scaler import GradScaler
    from mplab.scaling.quantized import (
        MX_BLOCK,
        Quantized,
        amax_of,
        dequantize,
        fake_quantize,
        hadamard,
        quantize,
    )

__all__ = [
    "MX_BLOCK",
    "CurrentScaling",
    "DelayedScaling",
    "DoublingScaler",
    "FixedScaling",
    "FlooredScaler",
    "GradScaler",
    "Headroom",
    "KerasScaler",
    "LossScaler",
    "NudgedScaler",
    "Quantized",
    "ScaleRule",
    "Trace",
    "Turn",
    "amax_of",
    "dequantize",
    "fake_quantize",
    "hadamard",
    "play",
    "quantize",
    "scale_for",
    "turns",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mplab.scaling' has no attribute {name!r}")
    needs(f"mplab.scaling.{name}", "torch")
    from mplab.scaling import grad_scaler, quantized

    return getattr(grad_scaler if name == "GradScaler" else quantized, name)


def __dir__() -> list[str]:
    return sorted(__all__)
