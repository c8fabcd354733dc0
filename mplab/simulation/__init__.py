"""Any torch module in a low format: policies, the modes below autograd, layers of few bits."""

from mplab.numbers.installation import needs

needs("mplab.simulation", "torch")

from mplab.simulation.casts import SCALINGS, Cast, Scaling
from mplab.simulation.context import explain, simulated
from mplab.simulation.explanation import Explanation
from mplab.simulation.fp8 import Fp8Linear
from mplab.simulation.linears import conversion, convert_linears
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
    "SCALINGS",
    "Cast",
    "Explanation",
    "FoundPolicy",
    "Fp8Linear",
    "Policy",
    "Run",
    "Scaling",
    "Sensitivity",
    "conversion",
    "convert_linears",
    "explain",
    "sensitivity",
    "simulated",
]
