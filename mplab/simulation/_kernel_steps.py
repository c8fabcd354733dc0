"""Torch's half-precision kernels on a CPU, step by step, in float32.

Each function takes the rounding to the format and the operation's arguments, and returns
float32 results that are still to be rounded, or None for arguments that it does not cover.
What they do was found by comparing bits, and `mplab audit` compares them again; the first line
of a docstring is what it prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mplab.numbers.formats import FP32, Format
from mplab.simulation._products import (
    is_scalar,
    paired_product,
    product,
    sum_in_lanes,
    sum_in_registers,
)

Round = Callable[[Tensor], Tensor]
"""Rounds a float32 tensor to the format."""


# Products and convolutions ------------------------------------------------------------
def mm(_: Round, a: Tensor, b: Tensor) -> Tensor:
    """Adds the products in the order of `mplab.simulation._products`."""
    return product(a, b)


def addmm(_: Round, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Adds the products in the known order, and what is given last or first."""
    return product(a, b, c) if alpha == beta == 1 else None


def mm_in_pairs(_: Round, a: Tensor, b: Tensor) -> Tensor | None:
    """Adds the products of BF16 two by two, the second one first."""
    return paired_product(a, b)


def addmm_in_pairs(
    _: Round, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor | None:
    """Adds the products of BF16 two by two, the second one first, and what is given last."""
    return paired_product(a, b, c) if alpha == beta == 1 else None


def bmm(_: Round, a: Tensor, b: Tensor) -> Tensor:
    """Adds the products of small matrices one by one, of others as `mm` does."""
    if a.shape[1] * a.shape[2] * b.shape[2] < 400:
        return sum_in_lanes(a, b, lanes=1)
    return torch.stack([product(x, y) for x, y in zip(a, b, strict=True)])


def _is_plain(weight: Tensor, stride: Any, dilation: Any, transposed: bool, groups: int) -> bool:
    return weight.dim() == 4 and not transposed and groups == 1 and set(dilation) == {1}


def convolution(
    _: Round, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int,
) -> Tensor | None:  # fmt: skip
    """Adds the products of unfolded images in four lanes, and the bias last."""
    if not _is_plain(weight, stride, dilation, transposed, groups):
        return None
    high, wide = weight.shape[2:]
    columns = F.unfold(x, (high, wide), padding=padding, stride=stride)
    out = sum_in_lanes(weight.flatten(1), columns, lanes=4)
    if bias is not None:
        out = bias[:, None] + out
    rows = (x.shape[2] + 2 * padding[0] - high) // stride[0] + 1
    return out.view(len(x), len(weight), rows, -1)


def convolution_backward(
    r: Round, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    """Rounds the weights' gradient after each image, and the input's where windows overlap."""
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


def add(r: Round, a: Tensor, b: Any, *, alpha: Any = 1) -> Tensor | None:
    """Rounds Python numbers first, and without vector instructions the product."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dim() and b.dim() and alpha == 1:
        return None
    term = _low(r, alpha) * _low(r, b)
    if is_scalar():
        term = r(term) if isinstance(term, Tensor) else _low(r, term)
    sum_: Tensor = _low(r, a) + term
    return sum_


def sub(r: Round, a: Tensor, b: Any, *, alpha: Any = 1) -> Tensor | None:
    """Rounds Python numbers first."""
    return add(r, a, b, alpha=-alpha)


def rsub(r: Round, a: Tensor, b: Any, alpha: Any = 1) -> Tensor | None:
    """Rounds Python numbers first."""
    return add(r, b, a, alpha=-alpha)


def power(r: Round, x: Tensor, exponent: Any) -> Tensor | None:
    """Rounds the exponent first."""
    if isinstance(exponent, Tensor) or exponent in (2, 3, -1, -2):
        return None
    if exponent in (0.5, -0.5):
        return square_root_power(r, x, exponent)
    return torch.pow(x, _low(r, exponent))


def power_by_squares(r: Round, x: Tensor, exponent: Any) -> Tensor | None:
    """Rounds the square, or the exponent first."""
    if isinstance(exponent, Tensor) or exponent in (2, 0.5, -1):
        return None
    if exponent == -0.5:
        return rsqrt(r, x)
    if exponent not in (3, -2):
        return power(r, x, exponent)
    square = r(x * x)
    return square * x if exponent == 3 else 1 / square


def sqrt(_: Round, x: Tensor) -> Tensor:
    """Is correctly rounded, which float32 sqrt is not."""
    return x.double().sqrt().float()


def rsqrt(r: Round, x: Tensor) -> Tensor | None:
    """Rounds the square root, without vector instructions."""
    return 1 / r(sqrt(r, x)) if is_scalar() else None


def sigmoid_backward(r: Round, grad: Tensor, y: Tensor) -> Tensor:
    """Rounds each step: r(g · r(1 − y)) · y."""
    return r(grad * r(1 - y)) * y


def logit_backward(r: Round, grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor | None:
    """Rounds each step: g / r(x · r(1 − x))."""
    if eps is not None:
        return None
    return torch.where((x < 0) | (x > 1), math.nan, grad / r(x * r(1 - x)))


def nan_to_num(
    fmt: Format, _: Round, x: Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Tensor:
    """Takes the format's own largest value."""
    posinf = fmt.max_finite if posinf is None else posinf
    return torch.nan_to_num(x, nan, posinf, -fmt.max_finite if neginf is None else neginf)


def xlogy(r: Round, a: Tensor, b: Tensor) -> Tensor:
    """Rounds the logarithm."""
    return torch.where(b.isnan(), math.nan, torch.where(a == 0, 0.0, a * r(torch.log(b))))


def erf(_: Round, x: Tensor) -> Tensor:
    """Takes a polynomial."""
    return erf_by_polynomial(x)


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


def gelu(_: Round, x: Tensor, *, approximate: str = "none") -> Tensor | None:
    """Takes erf from a polynomial, or without vector instructions from C."""
    if approximate != "none":
        return None
    return x * 0.5 * (1 + _erf_of_gelu(x * math.sqrt(0.5)))


def gelu_backward(_: Round, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    """Takes erf from a polynomial, or without vector instructions from C."""
    if approximate != "none":
        return None
    density = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * (1 + _erf_of_gelu(x * math.sqrt(0.5))) + x * density)


def _erf_of_gelu(x: Tensor) -> Tensor:
    return torch.erf(x.double()).float() if is_scalar() else erf_by_polynomial(x)


def square_root_power(_: Round, x: Tensor, exponent: float) -> Tensor:
    """Follows the rules of C for zeros and -infinity, where float32 takes sqrt and rsqrt."""
    at_zero, at_infinity = (0.0, math.inf) if exponent > 0 else (math.inf, 0.0)
    y = torch.where(x == 0, at_zero, (x.double() ** exponent).float())
    return torch.where(x == -math.inf, at_infinity, y)


def _flush(x: Tensor) -> Tensor:
    return torch.where(x.abs() < FP32.min_normal, 0 * x, x)


def flushed_gelu(_: Round, x: Tensor, *, approximate: str = "none") -> Tensor | None:
    """Flushes results below the normal numbers of float32, which is oneDNN's way."""
    if not torch.backends.mkldnn.enabled:
        return gelu(_, x, approximate=approximate)
    return _flush(F.gelu(x)) if approximate == "none" else None


def flushed_gelu_backward(_: Round, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    """Flushes results below the normal numbers of float32, which is oneDNN's way."""
    if not torch.backends.mkldnn.enabled:
        return gelu_backward(_, grad, x, approximate=approximate)
    return _flush(torch.ops.aten.gelu_backward(grad, x)) if approximate == "none" else None


def glu_backward(r: Round, grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """Rounds the sigmoid."""
    a, b = x.chunk(2, dim)
    gate = r(torch.sigmoid(b))
    return torch.cat([gate * grad, (1 - gate) * gate * a * grad], dim)


# Losses ----------------------------------------------------------------------------------
def mse_loss(r: Round, a: Tensor, b: Tensor, reduction: int = 1) -> Tensor | None:
    """Rounds the difference."""
    return r(a - b) * r(a - b) if reduction == 0 else None


def smooth_l1_loss(
    r: Round, a: Tensor, b: Tensor, reduction: int = 1, beta: float = 1.0
) -> Tensor | None:
    """Rounds the difference."""
    if reduction or beta != 1:
        return None
    z = r(a - b).abs()
    return torch.where(z < 1, 0.5 * z * z, z - 0.5)


def mse_loss_backward(r: Round, grad: Tensor, a: Tensor, b: Tensor, reduction: int) -> Any:
    """Rounds the difference, and twice it."""
    return r(2 * r(a - b)) * grad if reduction == 0 else None


def huber_loss_backward(
    r: Round, grad: Tensor, a: Tensor, b: Tensor, reduction: int, delta: float
) -> Tensor | None:
    """Rounds the difference."""
    if reduction or delta != 1:
        return None
    z = r(a - b)
    return torch.where(z < -1, -grad, torch.where(z > 1, grad, z * grad))


# Pooling ---------------------------------------------------------------------------------
def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    return numbers[0], numbers[-1]


def max_pool_backward(
    r: Round, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, indices: Tensor,
) -> Tensor | None:  # fmt: skip
    """Rounds each sum where windows overlap."""
    if not stride or all(k <= s for k, s in zip(_pair(kernel), _pair(stride), strict=True)):
        return None
    total, places = torch.zeros_like(x).flatten(-2), indices.flatten(-2)
    parts = grad.flatten(-2)
    for k in range(parts.shape[-1]):
        place, part = places[..., k : k + 1], parts[..., k : k + 1]
        total.scatter_(-1, place, r(total.gather(-1, place) + part))
    return total.view(x.shape)


def avg_pool_backward(
    r: Round, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor: int | None,
) -> Tensor | None:  # fmt: skip
    """Rounds each part, and each sum where windows overlap."""
    (high, wide), (down, right) = _pair(kernel), _pair(stride or kernel)
    if any(padding) or ceil_mode:
        return None
    total, parts = torch.zeros_like(x), r(grad / (divisor or high * wide))
    for i in range(grad.shape[-2]):
        for j in range(grad.shape[-1]):
            rows, columns = slice(i * down, i * down + high), slice(j * right, j * right + wide)
            window = total[..., rows, columns]
            window.copy_(r(window + parts[..., i : i + 1, j : j + 1]))
    return total


# Sums that are rounded on the way --------------------------------------------------------
def embedding_backward(
    r: Round, grad: Tensor, indices: Tensor, count: int, padding: int, by_frequency: bool
) -> Tensor | None:
    """Rounds each sum of rows."""
    if padding >= 0 or by_frequency:
        return None
    rows = grad.reshape(-1, grad.shape[-1])
    return index_put(r, rows.new_zeros(count, rows.shape[1]), [indices.reshape(-1)], rows, True)


def index_put(
    r: Round, base: Tensor, indices: list[Tensor], rows: Tensor, accumulate: bool = False
) -> Tensor | None:
    """Rounds each sum of rows."""
    if not accumulate or len(indices) != 1 or indices[0].dim() != 1 or rows.dim() != base.dim():
        return None
    total = base.clone()
    for place, row in zip(indices[0].tolist(), rows, strict=True):
        total[place] = r(total[place] + row)
    return total


def prod(r: Round, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
    """Rounds each product."""
    total = torch.ones_like(x.select(dim, 0))
    for k in range(x.shape[dim]):
        total = r(total * x.select(dim, k))
    return total.unsqueeze(dim) if keepdim else total


def logsumexp(r: Round, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor:
    """Rounds each step."""
    largest = x.amax(tuple(dim), keepdim=True)
    total = r(torch.exp(r(x - largest))).sum(tuple(dim), keepdim=True)
    out = r(torch.log(r(total))) + largest
    return out if keepdim else out.squeeze(tuple(dim))


def softmax(r: Round, x: Tensor, dim: int, to_float: bool) -> Tensor | None:
    """Rounds the exponentials before dividing, but sums them unrounded."""
    if dim % x.dim() == x.dim() - 1:
        return None
    powers = torch.exp(x - x.amax(dim, keepdim=True))
    return r(powers) / powers.sum(dim, keepdim=True)


def log_softmax(r: Round, x: Tensor, dim: int, to_float: bool) -> Tensor | None:
    """Rounds the sum of exponentials, and its logarithm."""
    if dim % x.dim() != x.dim() - 1:
        return None
    largest = x.amax(dim, keepdim=True)
    total = r(torch.exp(x - largest).sum(dim, keepdim=True))
    return x - largest - r(torch.log(total))


def batch_norm(
    r: Round, x: Tensor, weight: Tensor, bias: Tensor, mean: Any, var: Any, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Rounds mean and deviation."""
    if not training:
        return None
    dims, shape = [0, *range(2, x.dim())], (1, -1, *(1 for _ in x.shape[2:]))
    middle = r(x.mean(dims))
    inverse = r(1 / torch.sqrt(x.var(dims, unbiased=False) + eps))
    slope = weight * inverse
    start = bias - middle * slope
    return x * slope.view(shape) + start.view(shape), middle, inverse


def layer_norm_backward(
    r: Round, grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, inverse: Tensor,
    weight: Tensor | None, bias: Tensor | None, mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:  # fmt: skip
    """Rounds each sum of the gradients of weight and bias."""
    if len(shape) != 1 or not all(mask):
        return None
    args = (grad, x, shape, mean, inverse, weight, bias, mask)
    out = torch.ops.aten.native_layer_norm_backward(*args)
    terms = grad * ((x - mean) * inverse)
    return out[0], _row_by_row(r, terms), _row_by_row(r, grad)


def _row_by_row(r: Round, terms: Tensor) -> Tensor:
    total = torch.zeros_like(terms[0])
    for row in terms.flatten(0, -2):
        total = r(total + row)
    return total


def attention(r: Round, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor]:
    """Rounds the exponentials before the second product."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    return (r(powers) @ value / powers.sum(-1, keepdim=True),)
