"""Any torch module in a low format: policies, the modes below autograd, layers of few bits."""

from mplab.common.installation import require_packages as _require_packages

_require_packages("mplab.simulation", "torch")

from mplab.simulation.casts import (
    SCALINGS as SCALINGS,
    Cast as Cast,
    Scaling as Scaling,
)
from mplab.simulation.context import explain as explain, simulated as simulated
from mplab.simulation.explanation import Explanation as Explanation
from mplab.simulation.fp8 import Fp8Linear as Fp8Linear
from mplab.simulation.linears import (
    conversion as conversion,
    convert_linears as convert_linears,
)
from mplab.simulation.policies import (
    CPU_AUTOCAST as CPU_AUTOCAST,
    CUDA_AUTOCAST as CUDA_AUTOCAST,
    EVERYTHING as EVERYTHING,
    KERAS_MIXED as KERAS_MIXED,
    POLICIES as POLICIES,
    Policy as Policy,
    Run as Run,
)
from mplab.simulation.sensitivities import (
    Sensitivity as Sensitivity,
    sensitivity as sensitivity,
)
