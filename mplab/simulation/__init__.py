"""Any torch module in a low format: policies, the modes below autograd, layers of few bits."""

from mplab.numbers.installation import needs as _needs

_needs("mplab.simulation", "torch")

from mplab.simulation.casts import SCALINGS as SCALINGS
from mplab.simulation.casts import Cast as Cast
from mplab.simulation.casts import Scaling as Scaling
from mplab.simulation.context import explain as explain
from mplab.simulation.context import simulated as simulated
from mplab.simulation.explanation import Explanation as Explanation
from mplab.simulation.fp8 import Fp8Linear as Fp8Linear
from mplab.simulation.linears import conversion as conversion
from mplab.simulation.linears import convert_linears as convert_linears
from mplab.simulation.policies import CPU_AUTOCAST as CPU_AUTOCAST
from mplab.simulation.policies import CUDA_AUTOCAST as CUDA_AUTOCAST
from mplab.simulation.policies import EVERYTHING as EVERYTHING
from mplab.simulation.policies import KERAS_MIXED as KERAS_MIXED
from mplab.simulation.policies import POLICIES as POLICIES
from mplab.simulation.policies import Policy as Policy
from mplab.simulation.policies import Run as Run
from mplab.simulation.sensitivities import FoundPolicy as FoundPolicy
from mplab.simulation.sensitivities import Sensitivity as Sensitivity
from mplab.simulation.sensitivities import sensitivity as sensitivity
