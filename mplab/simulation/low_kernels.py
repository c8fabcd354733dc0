"""What torch's low kernels do otherwise than a float32 kernel whose result is rounded once.

A low kernel converts the Python numbers that it is given to the dtype, and refuses some that the
dtype lacks; it takes constants, such as the largest finite number, from the dtype; and it may keep
a running sum in the dtype. Which operation does so depends on the device: `Policy.kernels` names
it. What is known and not simulated has a mark, which `explain` shows.
"""

import math
from collections.abc import Callable
from ctypes import c_float
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mplab.numbers.codes import next_down, next_up
from mplab.numbers.formats import Format, Overflow, Rounding
from mplab.numbers.rounding import round_to
from mplab.simulation.policies import names_in
from mplab.simulation.rounders import Rounder

Call = Callable[..., Any]
"""Runs an operation in float32."""


# Numbers -----------------------------------------------------------------------------------
CHECKED_ARGUMENTS = names_in(
    "value fill_value min max min_val max_val lambd alpha exponent eps from to"
)
"""The arguments that a kernel checks, if it checks any."""


def check_number(value: Any, rounder: Rounder) -> None:
    """Let torch refuse a number past the range of a dtype in which it computes."""
    dtype = rounder.fmt.torch_dtype
    number = type(value) in (float, int)
    past = number and rounder.fmt.max_finite < abs(value) < math.inf
    if past and dtype in (torch.float16, torch.bfloat16):
        torch.full((2,), value, dtype=dtype)  # torch lets a single number pass


def rounded_number(value: Any, rounder: Rounder) -> Any:
    """Round a Python number to the format by way of float32, as torch does; keep what fits."""
    if type(value) not in (float, int) or not value:
        return value
    number = _rounded(float(value), rounder.fmt, rounder.rounding, rounder.overflow)
    return value if number == value else number


@lru_cache(maxsize=1 << 10)
def _rounded(
    value: float, fmt: Format, rounding: Rounding, overflow: Overflow
) -> float:
    if rounding is Rounding.STOCHASTIC:
        rounding = Rounding.TIES_TO_EVEN
    single = c_float(value).value
    return float(round_to(single, fmt, rounding=rounding, overflow=overflow))


def _low(rounder: Rounder, t: Tensor) -> Tensor:
    """Round a fresh tensor, in its own memory."""
    return rounder(t, t, None)


# Operations that are computed in another way -------------------------------------------------
def _replace_nan(
    call: Call,
    rounder: Rounder,
    x: Tensor,
    nan: float | None = None,
    positive: float | None = None,
    negative: float | None = None,
) -> Any:
    """Infinities become the largest numbers of the format."""
    limit = rounder.fmt.max_finite
    return call(
        x,
        nan,
        limit if positive is None else positive,
        -limit if negative is None else negative,
    )


def _root(call: Call, rounder: Rounder, x: Tensor) -> Tensor:
    """By way of float64, because a vector library's root in float32 may be off by an ulp.

    At a tie of the format that counts; an ulp of float64 cannot reach one. Apple's GPUs have no
    float64, and no such library.
    """
    return call(x) if x.is_mps else x.double().sqrt().float()


def _cross(call: Call, rounder: Rounder, a: Any, b: Any, *, dim: int = -1) -> Any:
    """Both products are rounded before they are subtracted."""
    a, b = torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
    first = _low(rounder, a.roll(-1, dim) * b.roll(-2, dim))
    return first - _low(rounder, a.roll(-2, dim) * b.roll(-1, dim))


def _add_products(
    call: Call,
    rounder: Rounder,
    total: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    """`addbmm`: one `addmm` for each matrix, rounded."""
    if not len(first):
        return call(total, first, second, beta=beta)
    for a, b in zip(first, second, strict=True):
        total = _low(rounder, torch.addmm(total, a, b, beta=beta, alpha=alpha))
        beta = 1
    return total


def _convolve_in_time(
    call: Call,
    rounder: Rounder,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    padding: int = 0,
) -> Tensor:
    """`conv_tbc`: one product for each place of the kernel, added and rounded."""
    total = bias.expand_as(call(x, weight, bias, padding)).clone()
    padded = F.pad(x, (0, 0, 0, 0, padding, padding))
    for k, factor in enumerate(weight):
        first = max(padding - k, 0)
        end = min(len(total), len(x) + padding - k)
        part = padded[first + k : end + k] @ factor
        total[first:end] = _low(rounder, total[first:end] + part)
    return total


def _next(call: Call, rounder: Rounder, x: Tensor, towards: Tensor) -> Tensor:
    """The neighbour in the format."""
    up, down = (
        torch.as_tensor(step(x.cpu().numpy(), rounder.fmt), dtype=torch.float64).to(x)
        for step in (next_up, next_down)
    )
    moved = torch.where(towards > x, up, down)
    return torch.where((x == towards) | towards.isnan(), towards, moved)


OwnWay = Callable[..., Any]
"""Takes the float32 operation, the rounder, and the arguments; returns results to be rounded."""

_OWN_WAYS: dict[str, OwnWay] = {
    "sqrt": _root,
    # constants of the dtype
    "nan_to_num": _replace_nan,
    "nextafter": _next,
    # kernels that round between their steps
    "linalg_cross": _cross,
    "addbmm": _add_products,
    "conv_tbc": _convolve_in_time,
}
"""On both devices."""


_index = torch.ops.aten.index
"""Python's x[…] of an operation's index, in which None stands for all places of an axis."""


# Sums that are kept in the format -----------------------------------------------------------
def _occurrences(index: Tensor) -> Tensor:
    """How many times the same number came before, for each place."""
    # In a stable order equal numbers stand together, from `first` on.
    order = index.argsort(stable=True)
    counts = index.bincount()
    first = counts.cumsum(0) - counts
    found = torch.empty_like(index)
    found[order] = (
        torch.arange(len(index), dtype=torch.int64, device=index.device)
        - first[index[order]]
    )
    return found


def add_up(rounder: Rounder, target: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """Add rows of `source` to the rows `target[index]`, in order, rounding after each addition.

    One pass adds the first row for each index, the next the second: no index stands twice in one.
    """
    target = target.clone()
    nth = _occurrences(index)
    order = nth.argsort(stable=True)
    for part in torch.split(order, nth.bincount().tolist()):
        target[index[part]] = _low(rounder, target[index[part]] + source[part])
    return target


def _scatter(rounder: Rounder, x: Tensor, places: Tensor, source: Tensor) -> Tensor:
    """The same for single elements, by their places in the flattened tensor."""
    flat = x.reshape(-1)
    return add_up(rounder, flat, places.reshape(-1), source.reshape(-1)).view(x.shape)


def _places(x: Tensor) -> Tensor:
    """The place of each element in the flattened tensor."""
    return torch.arange(x.numel(), dtype=torch.int64, device=x.device).view(x.shape)


def _put_at(
    call: Call,
    rounder: Rounder,
    x: Tensor,
    index: Any,
    values: Any,
    accumulate: bool = False,
    *unsafe: bool,
) -> Any:
    """`index_put(accumulate=True)`, and so the backward pass of `x[index]`.

    On CUDA only slices of more than 32 elements are rounded after each addition.
    """
    if not accumulate or _slice_size(x, index) <= 32:
        return call(x, index, values, accumulate, *unsafe)
    if len(index) == 1 and index[0].dtype is torch.int64:
        rows = index[0].reshape(-1) % len(x)
        source = values.expand(*index[0].shape, *x.shape[1:])
        return add_up(rounder, x, rows, source.reshape(len(rows), *x.shape[1:]))
    at = _index(_places(x), index)
    return _scatter(rounder, x, at, values.expand(at.shape))


def _slice_size(x: Tensor, index: Any) -> int:
    """Count the elements behind one place, as CUDA does: it moves axes that lie apart to the front.

    A mask stands for as many axes as it has.
    """
    axes: list[bool] = []
    for part in index:
        is_mask = part is not None and part.dtype in (torch.bool, torch.uint8)
        axes += [part is not None] * (part.dim() if is_mask else 1)
    taken = [axis for axis, chosen in enumerate(axes) if chosen] or [-1]
    apart = taken[-1] - taken[0] >= len(taken)
    return math.prod(
        size
        for axis, size in enumerate(x.shape)
        if axis > taken[-1] or (apart and axis not in taken)
    )


def _put(
    call: Call,
    rounder: Rounder,
    x: Tensor,
    index: Any,
    source: Any,
    accumulate: bool = False,
) -> Any:
    if not accumulate:
        return call(x, index, source)
    return _scatter(rounder, x, index % x.numel(), source)


def _add_at(
    call: Call,
    rounder: Rounder,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: float = 1,
) -> Any:
    """`index_add`: one row after the other."""
    if not x.dim():
        return call(x, dim, index, source, alpha=alpha)
    scaled = _low(rounder, source.movedim(dim, 0) * alpha)
    rows = index.reshape(-1).long() % x.shape[dim]
    return add_up(rounder, x.movedim(dim, 0), rows, scaled).movedim(0, dim)


def _scatter_add(
    call: Call,
    rounder: Rounder,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
) -> Any:
    if not x.dim() or not index.numel():
        return call(x, dim, index, source)
    at = _places(x).gather(dim, index)
    return _scatter(rounder, x, at, source[tuple(map(slice, index.shape))])


_PUTTING = ("index_put", "_index_put_impl", "_unsafe_index_put")

_SUMS_CUDA: dict[str, OwnWay] = dict.fromkeys(_PUTTING, _put_at) | {
    "put": _put,
    "index_add": _add_at,
    "scatter_add": _scatter_add,
}


# By device ---------------------------------------------------------------------------------
class Kernels(NamedTuple):
    """What the kernels of a device do, where torch's own are not at hand."""

    rounding: frozenset[str]
    """Operations that round their numbers to the dtype."""
    checking: frozenset[str]
    """Operations that refuse numbers past the range of the dtype."""
    own_ways: dict[str, OwnWay]
    """Operations that are computed in another way."""
    marks: dict[str, str]
    """What `explain` says of an operation, or of one of its overloads."""


_FILLING = names_in(
    "masked_fill fill full_like new_full constant_pad_nd index_fill scatter threshold "
    "fill_diagonal hardtanh hardshrink softshrink addmv addr index_add logit uniform histc pow"
)

_ROUNDING = names_in(
    "eq ne lt le gt ge remainder fmod pow hardshrink xlogy scatter index_add"
)

_ADDING = names_in("add sub rsub")

_KEPT_LOW = names_in(
    "_embedding_bag_backward _embedding_bag_dense_backward index_reduce segment_reduce col2im "
    "unfold_backward avg_pool2d_backward avg_pool3d_backward max_pool3d_with_indices_backward "
    "adaptive_max_pool3d_backward _adaptive_avg_pool2d_backward replication_pad2d_backward "
    "reflection_pad2d_backward histc "
    "embedding_dense_backward adaptive_max_pool2d_backward _unsafe_masked_index_put_accumulate"
)
"""Operations that keep a running sum in the format, here added in float32 and rounded once."""

_ROUNDED_BETWEEN = names_in(
    "linalg_matrix_exp scatter_reduce addmv addr xlogy renorm floor_divide "
    "div.Tensor_mode div.Scalar_mode "
    "sigmoid_backward _softmax_backward_data"
)
"""Operations that round between their steps, here rounded once."""

_MARKS = (
    dict.fromkeys(_KEPT_LOW, "its kernel's running sum in the format is not simulated")
    | dict.fromkeys(
        _ROUNDED_BETWEEN, "its kernel's roundings between steps are not simulated"
    )
    | dict.fromkeys(
        _SUMS_CUDA,
        "a running sum is rounded after each addition; the order varies",
    )
)

KERNELS = {
    "cpu": Kernels(
        _ROUNDING | _ADDING,
        _FILLING | names_in("clamp clamp_min clamp_max add sub rsub"),
        _OWN_WAYS,
        dict.fromkeys(
            ("convolution", "convolution_backward"),
            "torch adds up in the format where oneDNN has no kernel, which is not simulated",
        ),
    ),
    "cuda": Kernels(
        _ROUNDING,
        _FILLING - {"hardtanh"},
        _OWN_WAYS | _SUMS_CUDA,
        _MARKS,
    ),
}
"""The kernels by the names of `Policy.kernels`.

Source:
    cpu: measured with torch 2.13. In FP16 and BF16, rounded to nearest, torch's own kernels give
    the results; these rules are for other formats and roundings. Convolutions are float32's,
    rounded once, as oneDNN's low kernels are. On a processor for which it has none, torch adds the
    gradient of a weight image by image in the format, and overlapping windows alike: of 3,000
    equal images 256 arrive in BF16.
    cuda: read in torch's source, not measured. There `add` and `clamp` (CUDAFunctorOnSelf_add,
    TensorCompare.cu) take their numbers in float32; comparisons, remainders and fills convert
    them to the dtype. Its atomic additions (index_add, put_, scatter_add) and its sorted index_put
    of slices past 32 elements round each sum, in an order that varies: one of
    them is taken. Where the source was not read, as the CPU.
"""
