"""How torch's own half-precision kernels on a CPU round, where they do not round just once.

`mplab.simulate` computes in float32 and rounds each result once. Some kernels round between
their steps, or add float32 numbers in another order. A replica does so too, step by step, on
float32 tensors and through the one door: `simulated(..., native=True)` runs the replicas in
place of the operations, and `mplab.audit` counts how many differing results they explain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mplab.formats import BF16, FP16, Format, Overflow, Rounding
from mplab.products import holds_here, product, sum_in_lanes, sum_in_registers

Round = Callable[[Tensor], Tensor]
"""Rounds a float32 tensor to the format."""


class Replica(NamedTuple):
    """What a kernel does between its input and its last rounding."""

    how: str
    """In words."""
    compute: Callable[..., Any]
    """Takes the rounding and the operation's arguments; returns float32 results that are still
    to be rounded, or None for arguments that it does not cover."""
    formats: tuple[Format, ...] = (FP16, BF16)


# Products and convolutions ------------------------------------------------------------


def _mm(_: Round, a: Tensor, b: Tensor) -> Tensor:
    return product(a, b)


def _addmm(_: Round, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return product(a, b, c) if alpha == beta == 1 else None


def _bmm(_: Round, a: Tensor, b: Tensor) -> Tensor:
    if a.shape[1] * a.shape[2] * b.shape[2] < 400:
        return sum_in_lanes(a, b, lanes=1)
    return torch.stack([product(x, y) for x, y in zip(a, b, strict=True)])


def _is_plain(weight: Tensor, stride: Any, dilation: Any, transposed: bool, groups: int) -> bool:
    return weight.dim() == 4 and not transposed and groups == 1 and set(dilation) == {1}


def _convolution(
    _: Round, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Tensor | None:  # fmt: skip
    """Unfolded, each image as a product."""
    if not _is_plain(weight, stride, dilation, transposed, groups):
        return None
    high, wide = weight.shape[2:]
    columns = F.unfold(x, (high, wide), padding=padding, stride=stride)
    out = sum_in_lanes(weight.flatten(1), columns, lanes=4)
    if bias is not None:
        out = bias[:, None] + out
    rows = (x.shape[2] + 2 * padding[0] - high) // stride[0] + 1
    return out.view(len(x), len(weight), rows, -1)


def _convolution_backward(
    r: Round, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    if not _is_plain(weight, stride, dilation, transposed, groups):
        return None
    return (
        _input_gradient(r, grad, x, weight, stride, padding) if mask[0] else None,
        _weight_gradient(r, grad, x, weight, stride, padding) if mask[1] else None,
        grad.sum((0, 2, 3)) if mask[2] else None,
    )


def _weight_gradient(
    r: Round, grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any
) -> Tensor:
    """The sum over images is rounded after each of them."""
    columns = F.unfold(x, weight.shape[2:], padding=padding, stride=stride)
    total = torch.zeros_like(weight).flatten(1)
    for part in sum_in_registers(grad.flatten(2), columns.mT):
        total = r(total + part)
    return total.view(weight.shape)


def _input_gradient(
    r: Round, grad: Tensor, x: Tensor, weight: Tensor, stride: Any, padding: Any
) -> Tensor:
    """The product is rounded, and so is each sum where windows of the kernel overlap."""
    (high, wide), (rows, columns) = weight.shape[2:], grad.shape[2:]
    parts = r(sum_in_lanes(weight.flatten(1).t(), grad.flatten(2), lanes=1))
    parts = parts.view(len(x), x.shape[1], high, wide, rows, columns)
    padded = F.pad(torch.zeros_like(x), (padding[1], padding[1], padding[0], padding[0]))
    down, right = (slice(0, n * s, s) for n, s in zip((rows, columns), stride, strict=True))
    for i in range(high):
        for j in range(wide):
            window = padded[:, :, i:, j:][:, :, down, right]
            window.copy_(r(window + parts[:, :, i, j]))
    inside = padded[:, :, padding[0] :, padding[1] :]
    return inside[:, :, : x.shape[2], : x.shape[3]].contiguous()


# Elementwise -----------------------------------------------------------------------------


def _low(r: Round, number: Any) -> Any:
    """A Python number, or a tensor without dimensions, in the format; other tensors are."""
    if isinstance(number, Tensor):
        return (
            r(number.reshape(1))[0] if not number.dim() and number.is_floating_point() else number
        )
    return r(torch.tensor([float(number)])).item()


def _add(r: Round, a: Tensor, b: Any, *, alpha: Any = 1) -> Tensor | None:
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() and b.dim() and alpha == 1:
        return None
    sum_: Tensor = _low(r, a) + _low(r, alpha) * _low(r, b)
    return sum_


def _sub(r: Round, a: Tensor, b: Any, *, alpha: Any = 1) -> Tensor | None:
    return _add(r, a, b, alpha=-alpha)


def _rsub(r: Round, a: Tensor, b: Any, alpha: Any = 1) -> Tensor | None:
    return _add(r, b, a, alpha=-alpha)


def _power(r: Round, x: Tensor, exponent: Any) -> Tensor | None:
    if isinstance(exponent, Tensor) or exponent in (2, 3, -1, -2, 0.5, -0.5):
        return None
    return torch.pow(x, _low(r, exponent))


def _small_power(r: Round, x: Tensor, exponent: Any) -> Tensor | None:
    if isinstance(exponent, Tensor) or exponent not in (3, -2):
        return _power(r, x, exponent)
    square = r(x * x)
    return square * x if exponent == 3 else 1 / square


def _sqrt(_: Round, x: Tensor) -> Tensor:
    return x.double().sqrt().float()


def _sigmoid_backward(r: Round, grad: Tensor, y: Tensor) -> Tensor:
    return r(grad * r(1 - y)) * y


def _logit_backward(r: Round, grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor | None:
    if eps is not None:
        return None
    return torch.where((x < 0) | (x > 1), math.nan, grad / r(x * r(1 - x)))


def _log_sigmoid_backward(r: Round, grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return torch.ops.aten.log_sigmoid_backward(grad, x, r(torch.exp(-x.abs())))  # type: ignore[no-any-return]


def _nan_to_num(
    fmt: Format, x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Tensor:
    posinf = fmt.max_finite if posinf is None else posinf
    return torch.nan_to_num(x, nan, posinf, -fmt.max_finite if neginf is None else neginf)


def _xlogy(r: Round, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b.isnan(), math.nan, torch.where(a == 0, 0.0, a * r(torch.log(b))))


def erf_by_polynomial(x: Tensor) -> Tensor:
    """The error function with five coefficients, as torch's vectors compute it.

    Its absolute error is small, so its relative error near zero is not.

    Args:
        x: float32.

    Returns:
        float32 of the shape of `x`.

    Exactness:
        Approximate, absolute error ≤ 5e-7 on [-4, 4].

    Source:
        Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26.

    Examples:
        >>> x = torch.linspace(-4, 4, 1001)
        >>> bool((erf_by_polynomial(x) - torch.erf(x)).abs().max() < 5e-7)
        True
    """
    size = x.abs()
    t = 1 / (1 + 0.3275911 * size)
    sum_ = torch.zeros_like(x)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        sum_ = sum_ * t + coefficient
    return torch.copysign(1 - sum_ * t * torch.exp(-size * size), x)


def _gelu(_: Round, x: Tensor, *, approximate: str = "none") -> Tensor | None:
    if approximate != "none":
        return None
    return x * 0.5 * (1 + erf_by_polynomial(x * math.sqrt(0.5)))


def _gelu_backward(_: Round, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    if approximate != "none":
        return None
    density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * (1 + erf_by_polynomial(x * math.sqrt(0.5))) + x * density)


# Losses ----------------------------------------------------------------------------------


def _mse_loss(r: Round, a: Tensor, b: Tensor, reduction: int = 1) -> Tensor | None:
    return r(a - b) * r(a - b) if reduction == 0 else None


def _smooth_l1_loss(
    r: Round, a: Tensor, b: Tensor, reduction: int = 1, beta: float = 1.0
) -> Tensor | None:
    if reduction or beta != 1:
        return None
    z = r(a - b).abs()
    return torch.where(z < 1, 0.5 * z * z, z - 0.5)


def _mse_loss_backward(r: Round, grad: Tensor, a: Tensor, b: Tensor, reduction: int) -> Any:
    return r(2 * r(a - b)) * grad if reduction == 0 else None


def _huber_loss_backward(
    r: Round, grad: Tensor, a: Tensor, b: Tensor, reduction: int, delta: float
) -> Tensor | None:
    if reduction or delta != 1:
        return None
    z = r(a - b)
    return torch.where(z < -1, -grad, torch.where(z > 1, grad, z * grad))


# Pooling ---------------------------------------------------------------------------------


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    return numbers[0], numbers[-1]


def _max_pool_backward(
    r: Round, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, indices: Tensor,
) -> Tensor | None:  # fmt: skip
    """Where windows overlap, gradients are added one by one and rounded each time."""
    if not stride or all(k <= s for k, s in zip(_pair(kernel), _pair(stride), strict=True)):
        return None
    total, places = torch.zeros_like(x).flatten(-2), indices.flatten(-2)
    parts = grad.flatten(-2)
    for k in range(parts.shape[-1]):
        place, part = places[..., k : k + 1], parts[..., k : k + 1]
        total.scatter_(-1, place, r(total.gather(-1, place) + part))
    return total.view(x.shape)


# The table -------------------------------------------------------------------------------

_ORDER = "adds the float32 products in another order"
_SCALAR = "rounds the Python number first"

REPLICAS: dict[str, tuple[Replica, ...]] = {
    "mm": (Replica(_ORDER, _mm, (FP16,)),),
    "addmm": (Replica(_ORDER, _addmm, (FP16,)),),
    "bmm": (Replica(_ORDER, _bmm, (FP16,)),),
    "convolution": (Replica(_ORDER, _convolution, (FP16,)),),
    "convolution_backward": (
        Replica(
            "rounds the weights' gradient after each image, and the sums of the input's gradient "
            "where windows overlap",
            _convolution_backward,
            (FP16,),
        ),
    ),
    "add": (Replica(_SCALAR, _add),),
    "sub": (Replica(_SCALAR, _sub),),
    "rsub": (Replica(_SCALAR, _rsub),),
    "pow": (
        Replica("rounds the exponent first", _power, (FP16,)),
        Replica("rounds the square, or the exponent first", _small_power, (BF16,)),
    ),
    "sqrt": (Replica("is correctly rounded, where float32 sqrt is not", _sqrt, (FP16,)),),
    "sigmoid_backward": (
        Replica("rounds each step: r(g · r(1 − y)) · y", _sigmoid_backward, (FP16,)),
    ),
    "logit_backward": (Replica("rounds each step: g / r(x · r(1 − x))", _logit_backward),),
    "log_sigmoid_backward": (Replica("keeps exp(−|x|) rounded", _log_sigmoid_backward),),
    "nan_to_num": (
        Replica("takes its own largest value", lambda r, *a: _nan_to_num(FP16, *a), (FP16,)),
        Replica("takes its own largest value", lambda r, *a: _nan_to_num(BF16, *a), (BF16,)),
    ),
    "xlogy": (Replica("rounds the logarithm", _xlogy),),
    "gelu": (Replica("takes erf from a polynomial", _gelu, (FP16,)),),
    "gelu_backward": (Replica("takes erf from a polynomial", _gelu_backward, (FP16,)),),
    "erf": (Replica("takes a polynomial", lambda _, x: erf_by_polynomial(x)),),
    "mse_loss": (Replica("rounds the difference", _mse_loss),),
    "mse_loss_backward": (Replica("rounds the difference, and twice it", _mse_loss_backward),),
    "smooth_l1_loss": (Replica("rounds the difference", _smooth_l1_loss, (FP16,)),),
    "huber_loss": (Replica("rounds the difference", _smooth_l1_loss, (BF16,)),),
    "huber_loss_backward": (Replica("rounds the difference", _huber_loss_backward),),
    "max_pool2d_with_indices_backward": (Replica("rounds each sum", _max_pool_backward),),
}
"""By the name of the operation below autograd; at most one replica for a format."""


def replica_of(name: str, fmt: Format) -> Replica | None:
    """The replica of an operation in a format, if there is one.

    Examples:
        >>> replica_of("sigmoid_backward", FP16).how
        'rounds each step: r(g · r(1 − y)) · y'
        >>> replica_of("sigmoid_backward", BF16) is None
        True
    """
    return next((found for found in REPLICAS.get(name, ()) if fmt in found.formats), None)


def native(name: str, operation: Any, into: Callable[..., Tensor]) -> Any:
    """The replica of an operation as a function of its arguments, or the operation itself.

    Args:
        name: of the operation, below autograd.
        operation: what to call where there is no replica.
        into: an `mplab.marks.Rounder`.
    """
    replica = replica_of(name, into.fmt)  # type: ignore[attr-defined]
    if replica is None:
        return operation

    def rounded(t: Tensor) -> Tensor:
        return into(t, torch.empty_like(t), None)

    def run(*args: Any, **kwargs: Any) -> Any:
        out = replica.compute(rounded, *args, **kwargs)
        return operation(*args, **kwargs) if out is None else out

    return run


def require_native(fmt: Format, rounding: Rounding, overflow: Overflow) -> None:
    """Refuse what `simulated(..., native=True)` cannot keep.

    Raises:
        ValueError: torch has no kernels that round to this format, or so.
        RuntimeError: this machine's kernels add in another order than the replicas.
    """
    ieee = rounding is Rounding.TIES_TO_EVEN and overflow is Overflow.IEEE
    if fmt not in (FP16, BF16) or not ieee:
        raise ValueError(
            f"simulated: native must be False unless torch has kernels for the format and they "
            f"round as asked; got {fmt.name}, {rounding.name}, {overflow.name}. Use FP16 or BF16, "
            f"to nearest, without saturation."
        )
    if fmt is FP16 and not holds_here():
        raise RuntimeError(
            "simulated: native must be False on this machine, whose FP16 kernels add in another "
            "order than those that mplab.products knows. Run mplab audit to see which differ."
        )
