"""Computing in a format: operations, sums, updates, time steps, linear systems, matrix units."""

from mplab.arithmetic.architectures import (
    ARCHITECTURES as ARCHITECTURES,
    MatrixUnit as MatrixUnit,
    unit_of as unit_of,
)
from mplab.arithmetic.bounds import (
    linear_bound as linear_bound,
    probabilistic_bound as probabilistic_bound,
    roundings as roundings,
)
from mplab.arithmetic.emulation import (
    emulation_bound as emulation_bound,
    matmul_fp64 as matmul_fp64,
    slice_bits as slice_bits,
    split as split,
)
from mplab.arithmetic.float_array import FloatArray as FloatArray
from mplab.arithmetic.integration import (
    integrate as integrate,
    step_is_lost as step_is_lost,
)
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
from mplab.arithmetic.orders import reveal_order as reveal_order
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
from mplab.arithmetic.updates import (
    METHODS as METHODS,
    Descent as Descent,
    Weights as Weights,
    fit_by_gradient_descent as fit_by_gradient_descent,
    update_trajectory as update_trajectory,
)
