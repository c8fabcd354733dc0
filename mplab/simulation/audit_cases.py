"""What `mplab.simulation.audit` compares with torch's kernels: operations and their inputs.

Every operation is one below autograd, `torch.ops.aten.…`. Those of one or two numbers get all
codes of a format; the others get normally distributed numbers, and numbers whose sums are exact
in float32, where no order of summation can make a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mplab.numbers.formats import Format

_aten = torch.ops.aten


class Case(NamedTuple):
    """One operation on one set of inputs."""

    title: str
    operation: Any
    """A packet of `torch.ops.aten`."""
    args: tuple[Any, ...]
    """Tensors are float32 and hold values of the format."""
    kwargs: dict[str, Any]
    inputs: str
    """What the inputs are, in words."""
    terms: int = 0
    """How many products a result is the sum of; 0 if it is no such sum. Then `operation` of the
    absolute values bounds what another order of summation can change."""

    @property
    def name(self) -> str:
        """The name of the operation."""
        return str(self.operation.__name__)


def all_codes(fmt: Format) -> Tensor:
    """The 65,536 values of FP16 or BF16, in the order of their codes, as float32."""
    codes = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    return codes.view(fmt.torch_dtype).float()


_TYPICAL = (0.0, -0.0, 1.0, -1.0, 0.5, 0.25, 0.1, 0.9, 0.999, 2.0, 3.0, -3.0, 0.75, 1e-3, 1e-5,
            6e-8, 100.0, 6e4, float("inf"), float("nan"))  # fmt: skip


def some_codes(fmt: Format, count: int) -> Tensor:
    """Typical numbers, and `count` codes at random, as float32."""
    order = torch.randperm(65536, generator=torch.Generator().manual_seed(1))[:count]
    return torch.cat([torch.tensor(_TYPICAL).to(fmt.torch_dtype).float(), all_codes(fmt)[order]])


# Of one number ---------------------------------------------------------------------------
_UNARY = """
    sigmoid tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos
    atan sinh cosh asinh acosh atanh erf erfc erfinv lgamma digamma abs neg sign ceil floor round
    trunc frac relu nan_to_num gelu silu mish softplus elu hardswish hardsigmoid hardtanh
    leaky_relu log_sigmoid_forward
"""

_WITH_NUMBERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "x + 0.1": (_aten.add, (0.1,)),
    "x - 0.1": (_aten.sub, (0.1,)),
    "0.1 - x": (_aten.rsub, (0.1,)),
    "x * 0.1": (_aten.mul, (0.1,)),
    "x / 3": (_aten.div, (3.0,)),
    "clamp(x, -0.1, 0.7)": (_aten.clamp, (-0.1, 0.7)),
    **{f"x ** {p}": (_aten.pow, (p,)) for p in (2, 3, 0.5, -0.5, -1, -2, 1.7)},
    "elu(x, 0.3)": (_aten.elu, (0.3,)),
    "leaky_relu(x, 0.1)": (_aten.leaky_relu, (0.1,)),
    "softplus(x, 2.5, 3)": (_aten.softplus, (2.5, 3.0)),
}


def of_one_number(fmt: Format) -> Iterator[Case]:
    """Functions of one number, on all codes."""
    x, inputs = all_codes(fmt), "all codes"
    for name in _UNARY.split():
        yield Case(name, getattr(_aten, name), (x,), {}, inputs)
    yield Case("gelu, tanh", _aten.gelu, (x,), {"approximate": "tanh"}, inputs)
    for title, (operation, numbers) in _WITH_NUMBERS.items():
        yield Case(title, operation, (x, *numbers), {}, inputs)


# Of two numbers --------------------------------------------------------------------------
_BINARY = """
    add sub mul div atan2 pow fmod remainder maximum minimum hypot logaddexp copysign xlogy
    sigmoid_backward tanh_backward silu_backward gelu_backward mish_backward hardswish_backward
    hardsigmoid_backward _prelu_kernel
"""

_MORE_BINARY: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "threshold_backward": (_aten.threshold_backward, (0,)),
    "hardtanh_backward": (_aten.hardtanh_backward, (-1, 1)),
    "leaky_relu_backward": (_aten.leaky_relu_backward, (0.01, False)),
    "softplus_backward": (_aten.softplus_backward, (1, 20)),
    "logit_backward": (_aten.logit_backward, (None,)),
    "lerp": (_aten.lerp, (0.3,)),
    "mse_loss, elementwise": (_aten.mse_loss, (0,)),
    "smooth_l1_loss, elementwise": (_aten.smooth_l1_loss, (0, 1.0)),
    "huber_loss, elementwise": (_aten.huber_loss, (0, 1.0)),
}


def of_two_numbers(fmt: Format, count: int) -> Iterator[Case]:
    """Functions of two numbers, on all codes with `count` and some typical ones."""
    some = some_codes(fmt, count)
    a, b = all_codes(fmt).repeat(len(some)), some.repeat_interleave(65536)
    inputs = f"all codes × {len(some)}"
    for name in _BINARY.split():
        yield Case(name, getattr(_aten, name), (a, b), {}, inputs)
    yield Case("gelu_backward, tanh", _aten.gelu_backward, (a, b), {"approximate": "tanh"}, inputs)
    yield Case("add, alpha = 0.1", _aten.add, (a, b), {"alpha": 0.1}, inputs)
    for title, (operation, numbers) in _MORE_BINARY.items():
        yield Case(title, operation, (a, b, *numbers), {}, inputs)
    yield Case("elu_backward", _aten.elu_backward, (a, 1, 1, 1, False, b), {}, inputs)
    c = b.flip(0)
    for name in ("addcmul", "addcdiv"):
        yield Case(f"{name}, 0.3", getattr(_aten, name), (a, b, c), {"value": 0.3}, inputs)
    buffer = _aten.log_sigmoid_forward(b.to(fmt.torch_dtype))[1].float()
    yield Case("log_sigmoid_backward", _aten.log_sigmoid_backward, (a, b, buffer), {}, inputs)
    for name, last in (("mse", (0,)), ("smooth_l1", (0, 1.0)), ("huber", (0, 1.0))):
        operation = getattr(_aten, f"{name}_loss_backward")
        yield Case(f"{name}_loss_backward", operation, (a, b, c, *last), {}, inputs)


# Of many numbers -------------------------------------------------------------------------
Make = Callable[..., Tensor]
"""Makes a tensor of a shape."""


def _normal(fmt: Format) -> Make:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator).to(fmt.torch_dtype).float()


def _eighths(fmt: Format) -> Make:
    """Multiples of 1/8 up to 1: thousands of their products have an exact float32 sum."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randint(-8, 9, shape, generator=generator) / 8


def of_many_numbers(fmt: Format, scale: int = 1) -> Iterator[Case]:
    """Products, sums, norms, pooling and the like, on random and on exactly summed numbers."""
    for make, inputs in ((_normal(fmt), "normal"), (_eighths(fmt), "exact sums")):
        for part in (_products, _convolutions, _sums, _norms, _pooling, _scattering):
            for title, name, args, terms in part(make, fmt, scale):
                yield Case(title, getattr(_aten, name), args, {}, inputs, terms)


_Part = Iterator[tuple[str, str, tuple[Any, ...], int]]


def _products(t: Make, fmt: Format, scale: int) -> _Part:
    a, b = t(64 * scale, 50), t(50, 60)
    turned_a, turned_b = a.t().contiguous().t(), b.t().contiguous().t()
    yield "mm", "mm", (a, b), 50
    yield "mm, first transposed", "mm", (turned_a, b), 50
    yield "mm, second transposed", "mm", (a, turned_b), 50
    yield "mm, both transposed", "mm", (turned_a, turned_b), 50
    yield "addmm", "addmm", (t(60), a, turned_b), 51
    yield "bmm", "bmm", (t(4 * scale, 16, 20), t(4 * scale, 20, 18)), 20
    yield "bmm, small", "bmm", (t(4 * scale, 4, 5), t(4 * scale, 5, 6)), 5
    yield "baddbmm", "baddbmm", (t(4, 16, 18), t(4, 16, 20), t(4, 20, 18)), 21
    yield "mv", "mv", (a, t(50)), 50
    yield "dot", "dot", (t(500), t(500)), 500


def _convolutions(t: Make, fmt: Format, scale: int) -> _Part:
    once, rest = ([1, 1], [1, 1], [1, 1]), (False, [0, 0], 1)
    x, w, b, grad = t(8 * scale, 3, 9, 9), t(5, 3, 3, 3), t(5), t(8 * scale, 5, 9, 9)
    yield "conv2d", "convolution", (x, w, b, *once, *rest), 28
    one = ([1], [1], [1], False, [0], 1)
    yield "conv1d", "convolution", (t(8, 3, 9), t(5, 3, 3), b, *one), 10
    name = "convolution_backward"
    for title, mask in (("input", [True, False, False]), ("weight", [False, True, False]),
                        ("bias", [False, False, True])):  # fmt: skip
        args = (grad, x, w, [5], *once, *rest, mask)
        yield f"conv2d, gradient of the {title}", name, args, 81 * 8 * scale
    args = (grad[:1], x[:1], w, [5], *once, *rest, [False, True, False])
    yield "conv2d, of the weight, one image", name, args, 81


def _sums(t: Make, fmt: Format, scale: int) -> _Part:
    x = t(64 * scale, 200)
    yield "sum of rows", "sum", (x, [1]), 200
    yield "sum of columns", "sum", (x, [0]), 64 * scale
    yield "mean", "mean", (x, [1]), 200
    yield "cumsum", "cumsum", (x, 1), 200
    yield "prod", "prod", (t(64 * scale, 20), 1), 0
    yield "linalg_vector_norm", "linalg_vector_norm", (x, 2, [1]), 0
    yield "logsumexp", "logsumexp", (x, [1]), 0
    yield "mse_loss, mean", "mse_loss", (x, t(64 * scale, 200)), 0
    y, grad = t(640, 20), t(640, 20)
    for name in ("_softmax", "_log_softmax"):
        yield f"{name[1:]} of rows", name, (y, 1, False), 0
        yield f"{name[1:]} of columns", name, (y, 0, False), 0
        low = getattr(_aten, name)(y, 1, False).to(fmt.torch_dtype).float()
        yield f"{name[1:]}_backward", f"{name}_backward_data", (grad, low, 1, fmt.torch_dtype), 0


def _norms(t: Make, fmt: Format, scale: int) -> _Part:
    x, w, b, grad = t(640 * scale, 32), t(32), t(32), t(640 * scale, 32)
    dtype = fmt.torch_dtype

    def low(*tensors: Tensor) -> list[Tensor]:
        return [each.to(dtype).float() for each in tensors]

    yield "layer_norm", "native_layer_norm", (x, [32], w, b, 1e-5), 0
    saved = low(*_aten.native_layer_norm(x, [32], w, b, 1e-5)[1:])
    args: tuple[Any, ...] = (grad, x, [32], *saved, w, b, [True] * 3)
    yield "layer_norm_backward", "native_layer_norm_backward", args, 0
    x, grad = t(64, 32, 10), t(64, 32, 10)
    yield "group_norm", "native_group_norm", (x, w, b, 64, 32, 10, 4, 1e-5), 0
    saved = low(*_aten.native_group_norm(x, w, b, 64, 32, 10, 4, 1e-5)[1:])
    args = (grad, x, *saved, w, 64, 32, 10, 4, [True] * 3)
    yield "group_norm_backward", "native_group_norm_backward", args, 0
    yield "batch_norm", "native_batch_norm", (x, w, b, None, None, True, 0.1, 1e-5), 0
    saved = low(*_aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[1:])
    args = (grad, x, w, None, None, *saved, True, 1e-5, [True] * 3)
    yield "batch_norm_backward", "native_batch_norm_backward", args, 0


def _pooling(t: Make, fmt: Format, scale: int) -> _Part:
    x = t(8 * scale, 5, 9, 9)
    yield "avg_pool2d", "avg_pool2d", (x, [3, 3]), 9
    args: tuple[Any, ...] = (t(8 * scale, 5, 7, 7), x, [3, 3], [1, 1], [0, 0], False, True, None)
    yield "avg_pool2d_backward, overlapping", "avg_pool2d_backward", args, 9
    yield "adaptive_avg_pool2d", "_adaptive_avg_pool2d", (x, [2, 2]), 25
    _, places = _aten.max_pool2d_with_indices(x, [3, 3], [1, 1])
    args = (t(8 * scale, 5, 7, 7), x, [3, 3], [1, 1], [0, 0], [1, 1], False, places)
    name = "max_pool2d_with_indices"
    yield "max_pool2d", name, (x, [2, 2]), 0
    yield "max_pool2d_backward, overlapping", f"{name}_backward", args, 9
    yield "upsample_bilinear2d", "upsample_bilinear2d", (x, [13, 13], False), 4
    yield "upsample_bicubic2d", "upsample_bicubic2d", (x, [13, 13], False), 0
    grad, sizes = t(8, 5, 18, 18), ([18, 18], [8, 5, 9, 9])
    yield "upsample_nearest2d_backward", "upsample_nearest2d_backward", (grad, *sizes), 4
    args = (grad, *sizes, False)
    yield "upsample_bilinear2d_backward", "upsample_bilinear2d_backward", args, 16


def _scattering(t: Make, fmt: Format, scale: int) -> _Part:
    base, x, where = t(10, 16), t(200, 16), torch.arange(200) % 7
    args: tuple[Any, ...] = (x, where, 10, -1, False)
    yield "embedding_dense_backward", "embedding_dense_backward", args, 29
    yield "index_add", "index_add", (base, 0, where, x), 30
    yield "scatter_add", "scatter_add", (base, 0, where[:, None].expand(200, 16), x), 30
    yield "index_put, accumulating", "index_put", (base, [where], x, True), 30
    yield "glu_backward", "glu_backward", (t(64, 10), t(64, 20), 1), 0
    query, key, value = (t(2, 4, 16, 8) for _ in range(3))
    name = "_scaled_dot_product_flash_attention_for_cpu"
    yield "attention", name, (query, key, value), 0


def cases(fmt: Format, *, quick: bool = False) -> Iterator[Case]:
    """Everything that is compared in one format.

    Args:
        fmt: FP16 or BF16.
        quick: fewer second operands and smaller tensors.

    Examples:
        >>> found = list(cases(mplab.FP16, quick=True))
        >>> {"sigmoid_backward", "mm", "conv2d"} <= {case.title for case in found}
        True
    """
    yield from of_one_number(fmt)
    yield from of_two_numbers(fmt, 2 if quick else 100)
    yield from of_many_numbers(fmt, 1 if quick else 4)
