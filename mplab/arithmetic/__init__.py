"""Computing in a format: operations, sums, updates, linear systems, matrix units."""

from mplab.arithmetic.architectures import (
    ARCHITECTURES as ARCHITECTURES,
    MatrixUnit as MatrixUnit,
    unit_of as unit_of,
)
from mplab.arithmetic.float_array import FloatArray as FloatArray
from mplab.arithmetic.linear import (
    Factors as Factors,
    Refinement as Refinement,
    backward_error as backward_error,
    condition as condition,
    lu as lu,
    refine as refine,
    solve_triangular as solve_triangular,
)
from mplab.arithmetic.matrix_units import mma as mma
from mplab.arithmetic.operations import (
    Rules as Rules,
    add as add,
    cos as cos,
    divide as divide,
    exp as exp,
    exp2 as exp2,
    fma as fma,
    log as log,
    log2 as log2,
    multiply as multiply,
    raised as raised,
    remainder as remainder,
    sin as sin,
    sqrt as sqrt,
    subtract as subtract,
    tanh as tanh,
)
from mplab.arithmetic.reductions import (
    ORDERS as ORDERS,
    Accumulation as Accumulation,
    cumsum as cumsum,
    distinct_sums as distinct_sums,
    dot as dot,
    matmul as matmul,
    mean as mean,
    norm as norm,
    softmax as softmax,
    sum as sum,
    variance as variance,
)
from mplab.arithmetic.updates import METHODS as METHODS, Weights as Weights
from mplab.common.fronts import require_unmoved as _require_unmoved


def __getattr__(name: str) -> None:
    _require_unmoved(__name__, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
