"""What torch's low kernels do otherwise than a float32 kernel whose result is rounded once.

A low kernel converts the Python numbers that it is given to the dtype, and refuses some that the
dtype lacks; it takes constants, such as the largest finite number, from the dtype; and it may keep
a running sum in the dtype. Which operation does so depends on the device: `Policy.kernels` names
it. What is known and not simulated has a mark, which `explain` shows.
"""

import math
from collections.abc import Callable
from ctypes import c_float
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mplab.numbers.codes import next_down, next_up
from mplab.numbers.devices import widest
from mplab.numbers.formats import Format, Overflow, Rounding
from mplab.numbers.rounding import round_to
from mplab.simulation.policies import names_in
from mplab.simulation.tags import Rounder, low_rounder

Call = Callable[..., Any]
"""Runs an operation in float32."""


# Numbers -----------------------------------------------------------------------------------
CHECKED_ARGUMENTS = names_in(
    "value fill_value min max min_val max_val lambd alpha exponent eps from to"
)
"""The arguments that a kernel checks, if it checks any."""


def check_number(value: Any, into: Rounder) -> None:
    """Let torch refuse a number past the range of a dtype in which it computes."""
    dtype = into.fmt.torch_dtype
    number = type(value) in (float, int)
    past = number and into.fmt.max_finite < abs(value) < math.inf
    if past and dtype in (torch.float16, torch.bfloat16):
        torch.full((2,), value, dtype=dtype)  # torch lets one number pass


def rounded_number(value: Any, into: Rounder) -> Any:
    """Round a Python number to the format by way of float32, as torch does; keep what fits."""
    if type(value) not in (float, int) or not value:
        return value
    number = _rounded(float(value), into.fmt, into.rounding, into.overflow)
    return value if number == value else number


def join(tensors: list[Any], into: Rounder) -> list[Any]:
    """Convert tensors of integers beside a low one to the format, as torch does first."""
    kinds = [isinstance(t, Tensor) and t.dtype for t in tensors]
    if torch.float32 not in kinds or len({kind for kind in kinds if kind}) < 2:
        return tensors
    return [
        _low(into, t.float()) if kind in _INTEGERS and t.dim() else t
        for t, kind in zip(tensors, kinds, strict=True)
    ]


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@lru_cache(maxsize=1 << 10)
def _rounded(
    value: float, fmt: Format, rounding: Rounding, overflow: Overflow
) -> float:
    # not by torch: a training step that reads a tensor could not be replayed
    if rounding is Rounding.STOCHASTIC:
        rounding = Rounding.TIES_TO_EVEN
    single = c_float(value).value
    return float(round_to(single, fmt, rounding=rounding, overflow=overflow))


def _low(into: Rounder, t: Tensor) -> Tensor:
    """Round a fresh tensor, in its own memory."""
    return into(t, t, None)


# Operations that are computed in another way -------------------------------------------------
def _replace_nan(
    call: Call,
    into: Rounder,
    x: Tensor,
    nan: float | None = None,
    positive: float | None = None,
    negative: float | None = None,
) -> Any:
    """Infinities become the largest numbers of the format."""
    limit = into.fmt.max_finite
    return call(
        x,
        nan,
        limit if positive is None else positive,
        -limit if negative is None else negative,
    )


def _root(call: Call, into: Rounder, x: Tensor) -> Tensor:
    """By way of float64, because a vector library's root in float32 may be off by an ulp.

    At a tie of the format that counts; an ulp of float64 cannot reach one. Apple's GPUs have no
    float64, and no such library.
    """
    return call(x) if x.is_mps else x.double().sqrt().float()


def _power(call: Call, into: Rounder, x: Any, exponent: Any) -> Any:
    """In BF16 the third power and the power of -2 are made from the rounded square.

    FP16, unlike float32 and BF16, has no square root in place of a power of 0.5 or -0.5, and so
    gives 0 and infinities at -0 and -infinity.
    """
    dtype = into.fmt.torch_dtype
    number = isinstance(exponent, int | float)
    if number and exponent in (3, -2) and dtype is torch.bfloat16:
        square = _low(into, x * x)
        return square * x if exponent == 3 else 1 / square
    if number and abs(exponent) == 0.5:
        root = _root(torch.sqrt, into, x)
        if dtype is torch.float16:
            root = torch.where(x == -math.inf, math.inf, root.abs())
        return root if exponent > 0 else 1 / root
    return call(x, exponent)


def _cross(call: Call, into: Rounder, a: Any, b: Any, *, dim: int = -1) -> Any:
    """Both products are rounded before they are subtracted."""
    a, b = torch.broadcast_tensors(a, b)  # type: ignore[no-untyped-call]
    first = _low(into, a.roll(-1, dim) * b.roll(-2, dim))
    return first - _low(into, a.roll(-2, dim) * b.roll(-1, dim))


def _logit(call: Call, into: Rounder, x: Tensor, eps: float | None = None) -> Any:
    """log(x / (1 − x)): the difference and the quotient are rounded; so are the two limits."""
    if eps is not None:
        least = rounded_number(eps, into)
        x = x.clamp(least, rounded_number(1 - least, into))
    return _low(into, x / _low(into, 1 - x)).log()


def _add_products(
    call: Call,
    into: Rounder,
    total: Tensor,
    first: Tensor,
    second: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Any:
    """`addbmm`: one `addmm` for each matrix, rounded."""
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        total = _low(into, torch.addmm(total, a, b, beta=1 if i else beta, alpha=alpha))
    return total if len(first) else call(total, first, second, beta=beta)


def _convolve_in_time(
    call: Call,
    into: Rounder,
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
        total[first:end] = _low(into, total[first:end] + part)
    return total


def _next(call: Call, into: Rounder, x: Tensor, towards: Tensor) -> Tensor:
    """The neighbour in the format."""
    up, down = (
        torch.as_tensor(step(x.cpu().numpy(), into.fmt), dtype=torch.float64).to(x)
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
    order = index.argsort(stable=True)
    ordered = index[order]
    places = _arange(len(index), index)
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(starts, places, 0).cummax(0).values
    found = torch.empty_like(index)
    found[order] = places - first
    return found


def add_up(into: Rounder, target: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """Add rows of `source` to the rows `target[index]`, in order, rounding after each addition.

    One pass adds the first row for each index, the next the second: no index stands twice in one.
    """
    target = target.clone()
    nth = _occurrences(index)
    order = nth.argsort(stable=True)
    # One number after the other: a recorder of the step sees that Python reads them, as `tolist`
    # does unseen.
    counts = [int(count) for count in nth.bincount()]
    for part in torch.split(order, counts) if counts else ():
        target[index[part]] = _low(into, target[index[part]] + source[part])
    return target


def _scatter(into: Rounder, x: Tensor, places: Tensor, source: Tensor) -> Tensor:
    """The same for single elements, by their places in the flattened tensor."""
    flat = x.reshape(-1)
    return add_up(into, flat, places.reshape(-1), source.reshape(-1)).view(x.shape)


def _places(x: Tensor) -> Tensor:
    """The place of each element in the flattened tensor."""
    return _arange(x.numel(), x).view(x.shape)


def _put_at(
    call: Call,
    into: Rounder,
    x: Tensor,
    index: Any,
    values: Any,
    accumulate: bool = False,
    *unsafe: bool,
) -> Any:
    """`index_put(accumulate=True)`, and so the backward pass of `x[index]`."""
    if not accumulate:
        return call(x, index, values, False, *unsafe)
    if len(index) == 1 and index[0].dtype is torch.int64 and x.dim() > 1:
        rows = index[0].reshape(-1) % len(x)
        source = values.expand(*index[0].shape, *x.shape[1:])
        return add_up(into, x, rows, source.reshape(len(rows), *x.shape[1:]))
    at = _index(_places(x), index)
    return _scatter(into, x, at, values.expand(at.shape))


def _put_at_by_width(
    call: Call,
    into: Rounder,
    x: Tensor,
    index: Any,
    values: Any,
    *how: Any,
) -> Any:
    """On CUDA only slices of more than 32 elements are rounded after each addition."""
    if _slice_size(x, index) <= 32:
        return call(x, index, values, *how)
    return _put_at(call, into, x, index, values, *how)


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


def _put_where(
    call: Call, into: Rounder, x: Tensor, mask: Any, index: Any, values: Any
) -> Any:
    """`_unsafe_masked_index_put_accumulate`: places outside the mask get nothing."""
    at = _index(_places(x), [i if i is None else i.clamp(0) for i in index])
    mask = mask.expand(at.shape)
    return _scatter(into, x, at[mask], values.expand(at.shape)[mask])


def _put(
    call: Call,
    into: Rounder,
    x: Tensor,
    index: Any,
    source: Any,
    accumulate: bool = False,
) -> Any:
    if not accumulate:
        return call(x, index, source)
    return _scatter(into, x, index % x.numel(), source)


def _embed(
    call: Call,
    into: Rounder,
    grad: Tensor,
    index: Tensor,
    count: int,
    padding: int,
    by_frequency: bool,
) -> Any:
    """The gradient of an embedding whose weight is low.

    By frequency each row's factor is rounded; its product is not, as in a kernel's whole vectors.
    """
    rows = index.reshape(-1)
    grad = grad.reshape(-1, grad.shape[-1])
    if by_frequency:
        factors = _low(into, (1 / rows.bincount().to(widest(rows))).float())
        grad = grad * factors[rows, None]
    kept = rows != padding
    total = grad.new_zeros(count, grad.shape[-1])
    return add_up(into, total, rows[kept], grad[kept])


def _add_at(
    call: Call,
    into: Rounder,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *,
    alpha: float = 1,
    wide_rows: bool = False,
) -> Any:
    """`index_add`; with `wide_rows` rows along the first or last dimension add up in float32."""
    end = x.dim() > 1 and dim % x.dim() in (0, x.dim() - 1)
    wide = wide_rows and end and alpha == 1 and index.dtype is torch.int64
    if wide or not x.dim():
        return call(x, dim, index, source, alpha=alpha)
    scaled = _low(into, source.movedim(dim, 0) * alpha)
    rows = index.reshape(-1).long() % x.shape[dim]
    return add_up(into, x.movedim(dim, 0), rows, scaled).movedim(0, dim)


def _scatter_add(
    call: Call,
    into: Rounder,
    x: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
) -> Any:
    if not x.dim() or not index.numel():
        return call(x, dim, index, source)
    some = tuple(map(slice, index.shape))
    reach = tuple(
        slice(None) if d == dim % x.dim() else part for d, part in enumerate(some)
    )
    return _scatter(into, x, _places(x)[reach].gather(dim, index), source[some])


def _fold(
    call: Call,
    into: Rounder,
    blocks: Tensor,
    size: Any,
    kernel: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> Tensor:
    """`col2im`: one place of the kernel after the other."""
    whole = call(blocks, size, kernel, dilation, padding, stride)
    above, left = padding
    grid = F.pad(torch.zeros_like(whole), (left, left, above, above))
    windows = grid  # seen as windows: their axes, then the axes within each
    for reach, d, step in zip(kernel, dilation, stride, strict=True):
        windows = windows.unfold(-2, d * (reach - 1) + 1, step)
    windows = windows[..., :: dilation[0], :: dilation[1]]
    pieces = blocks.reshape(*whole.shape[:-2], *kernel, *windows.shape[-4:-2])
    for i, j in product(*map(range, kernel)):
        part = windows[..., i, j]
        part.copy_(_low(into, part + pieces[..., i, j, :, :]))
    return F.pad(grid, (-left, -left, -above, -above))


def _slide_back(
    call: Call,
    into: Rounder,
    grad: Tensor,
    shape: Any,
    dim: int,
    size: int,
    step: int,
) -> Any:
    """The gradient of `x.unfold`: one window after the other."""
    if step >= size:
        return call(grad, shape, dim, size, step)
    zeros = grad.new_zeros(shape)
    return _scatter(into, zeros, _places(zeros).unfold(dim, size, step), grad)


def _average_back(
    call: Call,
    into: Rounder,
    grad: Tensor,
    x: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    with_padding: bool,
    divisor: int | None,
) -> Any:
    """The gradient of an average over windows, which may overlap."""
    # one rounding, of the quotient: BF16 holds each count up to 16 · 16
    if not _overlaps(kernel, stride) and max(kernel) <= 16 and not divisor:
        return call(grad, x, kernel, stride, padding, ceil, with_padding, divisor)
    windows = []
    counts = []
    for axis in (0, 1):
        size, step, pad = (  # one number stands for both axes
            (2 * list(given))[axis] for given in (kernel, stride or kernel, padding)
        )
        length = x.shape[axis - 2]
        first = _arange(grad.shape[axis - 2], x) * step - pad
        end = (first + size).clamp(max=length + pad)
        inside = first.clamp(0), end.clamp(max=length)
        windows.append(inside)
        counts.append(end - first if with_padding else inside[1] - inside[0])
    area = divisor or counts[0][:, None] * counts[1]
    return _give_back(into, _divided(into, grad, area), x, *windows)


def _average_adaptively_back(
    call: Call, into: Rounder, grad: Tensor, x: Tensor
) -> Tensor:
    """The same for windows of about equal sizes, whose two sides divide in turn."""
    windows = []
    for length, number in zip(x.shape[-2:], grad.shape[-2:], strict=True):
        ends = _arange(number + 1, x) * length
        windows.append((ends[:-1] // number, -(-ends[1:] // number)))
    high, wide = (end - first for first, end in windows)
    shares = _divided(into, _divided(into, grad, high[:, None]), wide)
    return _give_back(into, shares, x, *windows)


def _give_back(
    into: Rounder, shares: Tensor, x: Tensor, rows: Any, columns: Any
) -> Tensor:
    """Add to each number the shares of the windows that hold it, one window after the other.

    Windows along an axis are their first elements and their ends, neither ever falling: those that
    hold an element follow each other.
    """
    total = torch.zeros_like(x)
    (row, in_rows), (column, in_columns) = (
        _holding(_arange(length, x), *windows)
        for length, windows in zip(x.shape[-2:], (rows, columns), strict=True)
    )
    for down, right in product(range(int(in_rows.max())), range(int(in_columns.max()))):
        i = (row + down).clamp(max=shares.shape[-2] - 1)
        j = (column + right).clamp(max=shares.shape[-1] - 1)
        more = _low(into, total + shares[..., i[:, None], j])
        held = (down < in_rows)[:, None] & (right < in_columns)
        total = torch.where(held, more, total)
    return total


def _holding(elements: Tensor, first: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """The first window that holds each element of an axis, and how many do."""
    before = torch.searchsorted(end, elements, right=True)
    begun = torch.searchsorted(first, elements, right=True)
    return before, (begun - before).clamp(0)


def _arange(length: int, like: Tensor) -> Tensor:
    """Return 0, 1, …, length - 1."""
    return torch.arange(length, dtype=torch.int64, device=like.device)


def _divided(into: Rounder, grad: Tensor, count: Any) -> Tensor:
    """Divide by a count, which torch's own low dtypes round, too."""
    counts = torch.zeros_like(grad) + count
    if into.fmt.torch_dtype in (torch.float16, torch.bfloat16):
        _low(into, counts)
    return _low(into, grad / counts)


def _choose_back(call: Call, into: Rounder, grad: Any, x: Any, *how: Any) -> Any:
    """The gradient of a maximum, where windows overlap: added up in the order of the results."""
    if len(how) > 1 and not _overlaps(how[0], how[1]):
        return call(grad, x, *how)
    planes = _places(x).flatten(-2)[..., :1]
    at = planes + how[-1].flatten(-2)
    return _scatter(into, torch.zeros_like(x), at, grad)


def _overlaps(size: Any, stride: Any) -> bool:
    """Whether windows of this size and stride may overlap; no stride is the size."""
    return any(a > b for a, b in zip(size, stride or size, strict=False))


def _normalize_back(
    call: Call,
    into: Rounder,
    grad: Tensor,
    x: Tensor,
    shape: Any,
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    bias: Any,
    wanted: Any,
) -> Any:
    """The gradients of a layer norm's weight and bias are added up row by row.

    Torch gives each of its threads some rows, and adds up what they found; here there is one.
    """
    out = list(call(grad, x, shape, mean, rstd, weight, bias, wanted))
    given = grad.reshape(mean.numel(), math.prod(shape))
    scale = rstd.reshape(-1, 1)
    shift = -scale * mean.reshape(-1, 1)
    terms = torch.stack([given * (x.reshape(given.shape) * scale + shift), given], 1)
    if len(terms):
        total = into.add_up(terms)
        for place in (1, 2):
            if wanted[place]:
                out[place] = total[place - 1].view(shape)
    return tuple(out)


def _normalize_batch(
    call: Call,
    into: Rounder,
    x: Tensor,
    weight: Any,
    bias: Any,
    *how: Any,
) -> Any:
    """Without FP32 weights and running statistics, those of the batch are stored low, too."""
    *running, training, _momentum, eps = how
    out = call(x, weight, bias, *how)
    if not training or _has_wide(weight, bias, *running) or not x.numel():
        return out
    for t in running:
        if t is not None:
            _low(into, t)
    dims = [d for d in range(x.dim()) if d != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)

    def low(double: Tensor) -> Tensor:
        return _low(into, double.float())

    wide = widest(x)
    exact = x.to(wide)
    count = x.numel() // x.shape[1]
    mean = low(exact.mean(dims))
    variance = exact.var(dims, correction=0)
    if into.fmt.torch_dtype is torch.bfloat16:
        if x.dim() == 2 or not x.is_contiguous():  # the kernel for channels last
            variance = (exact - mean.to(wide).view(shape)).square().mean(dims)
        variance = low(low(variance * count).to(wide) / count).to(wide)
    inverse = low((variance + eps).rsqrt())
    factor = inverse if weight is None else inverse * weight
    shift = -mean * factor if bias is None else bias - mean * factor
    return x * factor.view(shape) + shift.view(shape), mean, inverse


def _normalize(call: Call, into: Rounder, x: Tensor, *how: Any) -> Any:
    """Layer and group norms store the statistics likewise, for their backward pass."""
    out = call(x, *how)
    if not _has_wide(*how):
        for t in out[1:]:
            _low(into, t)
    return out


def _has_wide(*given: Any) -> bool:
    """Whether any of a norm's weights and running statistics is in FP32."""
    return any(isinstance(t, Tensor) and low_rounder(t) is None for t in given)


_PUTTING = ("index_put", "_index_put_impl", "_unsafe_index_put")

_SUMS_CPU: dict[str, OwnWay] = dict.fromkeys(_PUTTING, _put_at) | {
    "put": _put,
    "_unsafe_masked_index_put_accumulate": _put_where,
    "embedding_dense_backward": _embed,
    "col2im": _fold,
    "unfold_backward": _slide_back,
    "avg_pool2d_backward": _average_back,
    "_adaptive_avg_pool2d_backward": _average_adaptively_back,
    "max_pool2d_with_indices_backward": _choose_back,
    "adaptive_max_pool2d_backward": _choose_back,
    "index_add": partial(_add_at, wide_rows=True),
    "native_layer_norm_backward": _normalize_back,
}

_SUMS_CUDA: dict[str, OwnWay] = dict.fromkeys(_PUTTING, _put_at_by_width) | {
    "put": _put,
    "index_add": _add_at,
    "scatter_add": _scatter_add,
}

_ONLY_CPU: dict[str, OwnWay] = {
    "pow": _power,
    "logit": _logit,
    "native_batch_norm": _normalize_batch,
    "_native_batch_norm_legit": _normalize_batch,
    "native_layer_norm": _normalize,
    "native_group_norm": _normalize,
}

_NOT_REPLAYED = names_in(
    "_embedding_bag_backward _embedding_bag_dense_backward index_reduce segment_reduce col2im "
    "unfold_backward avg_pool2d_backward avg_pool3d_backward max_pool3d_with_indices_backward "
    "adaptive_max_pool3d_backward _adaptive_avg_pool2d_backward replication_pad2d_backward "
    "reflection_pad2d_backward histc "
    "embedding_dense_backward adaptive_max_pool2d_backward _unsafe_masked_index_put_accumulate"
)
"""Operations that keep a running sum in the format, here added in float32 and rounded once, except
those that are in a device's own table of sums."""

_ROUNDED_BETWEEN = names_in(
    "linalg_matrix_exp scatter_reduce addmv addr xlogy renorm floor_divide div "
    "sigmoid_backward _softmax_backward_data"
)
"""Operations that round between their steps, here rounded once."""

_AT_HAND = names_in(
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward "
    "_log_softmax nll_loss_forward nll_loss2d_forward"
)
"""Operations that round between their steps, whose results torch's own low kernel gives.

Attention rounds its weights and takes an approximate exponential: of a float32 kernel's results,
rounded once, 27 to 41 % differ. `_log_softmax` keeps its sum and its logarithm low.
"""


# By device ---------------------------------------------------------------------------------
class Kernels(NamedTuple):
    """What the kernels of a device do."""

    rounding: frozenset[str]
    """Operations that round their numbers to the dtype."""
    checking: frozenset[str]
    """Operations that refuse numbers past the range of the dtype."""
    own_ways: dict[str, OwnWay]
    """Operations that are computed in another way."""
    marks: dict[str, str]
    """What `explain` says of an operation."""
    at_hand: frozenset[str]
    """Operations whose results torch's own low kernel gives."""


_FILLING = names_in(
    "masked_fill fill full_like new_full constant_pad_nd index_fill scatter threshold "
    "fill_diagonal hardtanh hardshrink softshrink addmv addr index_add logit uniform histc pow"
)

_ROUNDING = names_in(
    "eq ne lt le gt ge remainder fmod pow hardshrink xlogy scatter index_add"
)

_ADDING = names_in("add sub rsub")

_IN_ORDER = "a running sum is rounded after each addition"

_BETWEEN = "its kernel's roundings between steps are not simulated"

_MARKS = dict.fromkeys(
    _NOT_REPLAYED, "its kernel's running sum in the format is not simulated"
) | dict.fromkeys(_ROUNDED_BETWEEN, _BETWEEN)

MARKED_BY_OPTION = _ADDING | {"div"}
"""Operations whose mark holds where a factor `alpha` or a rounding mode is given."""

# A kernel of the CPU computes most numbers in whole vectors, as many as the processor has room for,
# and what is left over one by one.
_BY_PLACE = "rounded or not, by its place in memory and by the processor"

_NAN_OR_NOT = "a quotient past FP32's range gives NaN or not, by its place in memory"

_MARKS_CPU = dict.fromkeys(_ADDING, f"alpha·y is {_BY_PLACE}") | {
    "pow": f"in BF16 the root in x**-0.5 is {_BY_PLACE}",
    "fmod": _NAN_OR_NOT,
    "remainder": _NAN_OR_NOT,
    "logit_backward": _BETWEEN,
    "special_entr": _BETWEEN,
    **dict.fromkeys(
        names_in("erf gelu rsqrt special_i0e"),
        "its kernel has another formula on some processors",
    ),
    "native_layer_norm_backward": f"{_IN_ORDER}; the order depends on the threads",
    "embedding_dense_backward": f"{_IN_ORDER}; scaled by frequency, a product is {_BY_PLACE}",
    "index_add": f"{_IN_ORDER}; with alpha, a product is {_BY_PLACE}",
    "index_put": f"{_IN_ORDER}; a scalar past the range becomes infinite: torch may refuse it",
}

KERNELS = {
    "cpu": Kernels(
        _ROUNDING | _ADDING,
        _FILLING | names_in("clamp clamp_min clamp_max add sub rsub"),
        _OWN_WAYS | _ONLY_CPU | _SUMS_CPU,
        _MARKS | dict.fromkeys(_SUMS_CPU, _IN_ORDER) | _MARKS_CPU,
        _AT_HAND,
    ),
    "cuda": Kernels(
        _ROUNDING,
        _FILLING - {"hardtanh"},
        _OWN_WAYS | _SUMS_CUDA,
        _MARKS | dict.fromkeys(_SUMS_CUDA, f"{_IN_ORDER}; the order varies"),
        frozenset(),
    ),
}
"""The kernels by the names of `Policy.kernels`.

Source:
    cpu: measured with torch 2.13; tests/simulation/test_low_kernels.py compares each.
    cuda: read in torch's source, not measured. There `add` and `clamp` (CUDAFunctorOnSelf_add,
    TensorCompare.cu) take their numbers in float32; comparisons, remainders and fills convert
    them to the dtype. Its atomic additions (index_add, put_, scatter_add) and its sorted index_put
    of slices past 32 elements round each sum, in an order that varies: one of
    them is taken. Where the source was not read, as the CPU.
"""
