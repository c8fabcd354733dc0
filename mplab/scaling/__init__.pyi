from .amax import (
    CurrentScaling as CurrentScaling,
    DelayedScaling as DelayedScaling,
    FixedScaling as FixedScaling,
    ScaleRule as ScaleRule,
    scale_for as scale_for,
)
from .grad_scaler import GradScaler as GradScaler
from .loss import LossScaler as LossScaler
from .quantized import (
    MX_BLOCK as MX_BLOCK,
    Quantized as Quantized,
    amax_of as amax_of,
    dequantize as dequantize,
    fake_quantize as fake_quantize,
    hadamard as hadamard,
    quantize as quantize,
)
from .rules import (
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
