"""Scales for low precision: of the loss, of a tensor and of its blocks.

`GradScaler` and tensors in FP8, FP6 and FP4 need torch, which is imported on first use; the rules
for loss scales and for tensor scales do not need it.
"""

from typing import TYPE_CHECKING

from mplab.numbers.fronts import lazily

lazily(__name__)

if TYPE_CHECKING:
    from mplab.scaling.amax import (
        CurrentScaling as CurrentScaling,
        DelayedScaling as DelayedScaling,
        FixedScaling as FixedScaling,
        ScaleRule as ScaleRule,
        scale_for as scale_for,
    )
    from mplab.scaling.grad_scaler import GradScaler as GradScaler
    from mplab.scaling.loss import LossScaler as LossScaler
    from mplab.scaling.quantized import (
        MX_BLOCK as MX_BLOCK,
        Quantized as Quantized,
        amax_of as amax_of,
        dequantize as dequantize,
        fake_quantize as fake_quantize,
        hadamard as hadamard,
        quantize as quantize,
    )
    from mplab.scaling.rules import (
        DoublingScaler as DoublingScaler,
        FlooredScaler as FlooredScaler,
        KerasScaler as KerasScaler,
        LossScaleLimits as LossScaleLimits,
        NudgedScaler as NudgedScaler,
        ScalerStep as ScalerStep,
        Trace as Trace,
        scaler_steps as scaler_steps,
        simulate_scaler as simulate_scaler,
    )
