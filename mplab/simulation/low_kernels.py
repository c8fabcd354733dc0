"""What torch's low kernels do otherwise than a float32 kernel whose result is rounded once.

A low kernel converts the Python numbers that it is given to the dtype, and refuses some that the
dtype lacks; it takes constants, such as the largest finite number, from the dtype. Which operation
does so depends on the device: `Policy.kernels` names it.
"""

import math
from collections.abc import Callable
from ctypes import c_float
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from mplab.numbers.codes import next_down, next_up
from mplab.numbers.formats import Format, Overflow, Rounding
from mplab.numbers.rounding import round_to
from mplab.simulation.policies import names_in
from mplab.simulation.tags import Rounder

Call = Callable[..., Any]
"""Runs an operation in float32."""


# Numbers -----------------------------------------------------------------------------------
CHECKED_ARGUMENTS = names_in(
    "value fill_value min max min_val max_val lambd alpha exponent eps from to"
)
"""The arguments that a kernel checks, if it checks any."""


def check_number(value: Any, into: Rounder) -> None:
    """Let torch refuse a number past the range of a dtype in which it computes."""
    dtype, number = into.fmt.torch_dtype, type(value) in (float, int)
    if number and into.fmt.max_finite < abs(value) < math.inf and dtype in _HALVES:
        torch.full((2,), value, dtype=dtype)  # torch lets one number pass


_HALVES = (torch.float16, torch.bfloat16)


def rounded_number(value: Any, into: Rounder) -> Any:
    """Round a Python number to the format by way of float32, as torch does; keep what fits."""
    if type(value) not in (float, int) or not value:
        return value
    number = _rounded(float(value), into.fmt, into.rounding, into.overflow)
    return value if number == value else number


@lru_cache(maxsize=1 << 10)
def _rounded(
    value: float, fmt: Format, rounding: Rounding, overflow: Overflow
) -> float:
    # not by torch: a training step that reads a tensor could not be replayed
    if rounding is Rounding.STOCHASTIC:
        rounding = Rounding.TIES_TO_EVEN
    single = c_float(value).value
    return float(round_to(single, fmt, rounding=rounding, overflow=overflow))


# Operations that are computed in another way -------------------------------------------------
def _replace_nan(call: Call, into: Rounder, x: torch.Tensor, *values: Any) -> Any:
    """Infinities become the largest numbers of the format."""
    limit = into.fmt.max_finite
    nan, positive, negative = (*values, None, None, None)[:3]
    return call(
        x,
        nan,
        limit if positive is None else positive,
        -limit if negative is None else negative,
    )


def _power(call: Call, into: Rounder, x: Any, exponent: Any) -> Any:
    """The third power in BF16 is rounded after each of its two products."""
    number = isinstance(exponent, int | float)
    if number and exponent == 3 and into.fmt.torch_dtype is torch.bfloat16:
        square = x * x
        return into(square, square, None) * x
    return call(x, exponent)


def _next(
    call: Call, into: Rounder, x: torch.Tensor, towards: torch.Tensor
) -> torch.Tensor:
    """The neighbour in the format."""
    up, down = (
        torch.from_numpy(step(x.cpu().numpy(), into.fmt)).to(x)
        for step in (next_up, next_down)
    )
    moved = torch.where(towards > x, up, down)
    return torch.where((x == towards) | towards.isnan(), towards, moved)


OwnWay = Callable[..., Any]
"""Takes the float32 operation, the rounder, and the arguments; returns results to be rounded."""

CONSTANTS: dict[str, OwnWay] = {"nan_to_num": _replace_nan, "nextafter": _next}

BETWEEN: dict[str, OwnWay] = {"pow": _power}
"""Kernels that round between their steps."""


# By device ---------------------------------------------------------------------------------
class Kernels(NamedTuple):
    """What the kernels of a device do."""

    rounding: frozenset[str]
    """Operations that round their numbers to the dtype."""
    checking: frozenset[str]
    """Operations that refuse numbers past the range of the dtype."""
    own_ways: dict[str, OwnWay]
    """Operations that are computed in another way."""


_FILLING = names_in(
    "masked_fill fill full_like new_full constant_pad_nd index_fill scatter threshold "
    "fill_diagonal hardtanh hardshrink softshrink addmv addr index_add logit uniform histc pow"
)

_ROUNDING = names_in("eq ne lt le gt ge remainder fmod pow hardshrink xlogy scatter")

KERNELS = {
    "cpu": Kernels(
        _ROUNDING | names_in("add sub rsub"),
        _FILLING | names_in("clamp clamp_min clamp_max add sub rsub"),
        CONSTANTS | BETWEEN,
    ),
    "cuda": Kernels(_ROUNDING, _FILLING - {"hardtanh"}, CONSTANTS),
}
"""The kernels by the names of `Policy.kernels`.

Source:
    cpu: measured with torch 2.13; tests/simulation/test_low_kernels.py compares each.
    cuda: read in torch's source, not measured. There `add` and `clamp` (CUDAFunctorOnSelf_add,
    TensorCompare.cu) take their numbers in float32; comparisons, remainders and fills convert
    them to the dtype. Where the source was not read, as the CPU.
"""
