"""Any torch module in a low format: policies, the modes below autograd, FP8 layers."""

from mplab.numbers.installation import needs

needs("mplab.simulation", "torch")

from mplab.simulation.context import explain, simulated
from mplab.simulation.explanation import Explanation
from mplab.simulation.fp8 import Fp8Linear, convert_linears
from mplab.simulation.policies import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    EVERYTHING,
    KERAS_MIXED,
    POLICIES,
    Policy,
    Run,
)
from mplab.simulation.sensitivities import FoundPolicy, Sensitivity, sensitivity

__all__ = [
    "CPU_AUTOCAST",
    "CUDA_AUTOCAST",
    "EVERYTHING",
    "KERAS_MIXED",
    "POLICIES",
    "Explanation",
    "FoundPolicy",
    "Fp8Linear",
    "Policy",
    "Run",
    "Sensitivity",
    "convert_linears",
    "explain",
    "sensitivity",
    "simulated",
]
