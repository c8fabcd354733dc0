"""Any torch module in a low format: policies, kernels below autograd, layers of few bits.

Which layer tolerates which format is seen by running one layer at a time in it:

    >>> import torch
    >>> from mplab import FP16, FP32
    >>> from mplab.simulation import EVERYTHING, simulated
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    >>> x = torch.full((4, 8), 1e5)
    >>> exact = model(x)
    >>> def cost(name, fmt):
    ...     with simulated(
    ...         FP32, policy=EVERYTHING.with_layers({name: fmt}), model=model
    ...     ):
    ...         return ((model(x) - exact).norm() / exact.norm()).item()
    >>> cost("0", FP16)  # its input is past the range
    nan
"""

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
    AS_WRITTEN as AS_WRITTEN,
    CPU_AUTOCAST as CPU_AUTOCAST,
    CUDA_AUTOCAST as CUDA_AUTOCAST,
    EVERYTHING as EVERYTHING,
    KERAS_MIXED as KERAS_MIXED,
    POLICIES as POLICIES,
    Policy as Policy,
    Run as Run,
)
