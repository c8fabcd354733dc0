"""Tensors stored in eight bits or fewer: codes, with one scale or a scale for each block.

`quantize` multiplies by the scale before the cast; `dequantize` divides by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.numbers.checks import quoted
from mplab.numbers.codes import encode, values
from mplab.numbers.devices import widest
from mplab.numbers.formats import (
    FP8_E4M3,
    FP8_E8M0,
    FP32,
    Format,
    FormatLike,
    Overflow,
    Rounding,
    Specials,
    format_of,
)
from mplab.numbers.options import Stream
from mplab.numbers.rounding import round_to
from mplab.numbers.steps import take
from mplab.numbers.tensors import round_tensor
from mplab.scaling.amax import ScaleRule, largest, scales, two_levels

MX_BLOCK = (32,)
"""The block of the OCP MX formats: 32 elements along the last axis."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor as codes of a format, with the scales that multiplied it before the cast.

    Where torch has the format, `codes.view(fmt.torch_dtype)` is the same memory as torch's tensor,
    and `data.view(torch.uint8)` are the codes of a tensor of torch's.

    Args:
        codes: uint8, shape `(...)`.
        scale: float32: a scalar, or one element for each block.
        fmt: the format of the codes.
        block: the shape of a block along the last axes, or None for one scale.
        tensor_scale: under `ScaleRule.NVFP4` the factor of all values in `dequantize`, a float32
            scalar; else None.
    """

    codes: Tensor
    scale: Tensor
    fmt: Format
    block: tuple[int, ...] | None = None
    tensor_scale: Tensor | None = None

    def __post_init__(self) -> None:
        wanted = {"codes": torch.uint8, "scale": torch.float32}
        if self.tensor_scale is not None:
            wanted["tensor_scale"] = torch.float32
        for name, dtype in wanted.items():
            if getattr(self, name).dtype != dtype:
                raise TypeError(
                    f"Quantized: {name} must be a tensor of {dtype}; got "
                    f"{getattr(self, name).dtype}. Use quantize, or .view(torch.uint8)."
                )
        outer: tuple[int, ...] = ()
        if self.block is not None:
            outer = _blocks("Quantized", tuple(self.codes.shape), self.block)
        _require_shape("Quantized", "scale", self.scale, outer)
        if self.tensor_scale is not None:
            _require_shape("Quantized", "tensor_scale", self.tensor_scale, ())

    @property
    def values(self) -> Tensor:
        """The values of the codes as float32, without the scale."""
        table = torch.from_numpy(values(self.fmt).astype(np.float32)).to(
            self.codes.device
        )
        return table[self.codes.int()]

    @property
    def scale_codes(self) -> Tensor:
        """The codes of the block factors in `dequantize`, as MX and NVFP4 store them.

        They are E8M0 codes of 1/scale, or with a tensor_scale E4M3 codes of
        1/(scale · tensor_scale).

        Raises:
            ValueError: a scale is not a power of two, or does not come from `ScaleRule.NVFP4`.
        """
        if self.tensor_scale is not None:
            return _codes(_block_scales(self.scale, self.tensor_scale), FP8_E4M3)
        inverse = 1 / self.scale.cpu().double().numpy()
        return torch.from_numpy(np.asarray(encode(inverse, FP8_E8M0))).to(
            self.scale.device
        )


def amax_of(tensor: Tensor, *, block: tuple[int, ...] | None = None) -> Tensor:
    """Return the largest magnitude of a tensor, or of each of its blocks.

    It is NaN if there is a NaN, and 0 if there are no elements.

    Args:
        tensor: floating point, shape `(...)`.
        block: the shape of a block along the last axes; None for the whole tensor.

    Returns:
        A tensor of the same dtype: a scalar, or the shape of `tensor` with the last axes divided
        by the block.

    Raises:
        TypeError: the tensor is not floating point.
        ValueError: the block does not divide the shape.

    Examples:
        >>> amax_of(torch.tensor([[1.0, -3.0, 2.0, 0.5]]), block=(2,))
        tensor([[3., 2.]])
    """
    magnitude = _floating("amax_of", tensor).abs()
    if not tensor.numel():
        shape = () if block is None else _view_in_blocks("amax_of", magnitude, block)[1]
        return magnitude.new_zeros(shape)
    if block is None:
        return magnitude.amax()
    split, _, inner = _view_in_blocks("amax_of", magnitude, block)
    return split.amax(inner)


def quantize(
    tensor: Tensor,
    fmt: FormatLike,
    *,
    scale: float | Tensor | ScaleRule = ScaleRule.POWER_OF_TWO,
    block: tuple[int, ...] | None = None,
    tensor_scale: float | Tensor | None = None,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.SATURATE,
    stream: Stream | None = None,
) -> Quantized:
    """Multiply a tensor by a scale and cast it to a format of eight bits or fewer.

    NaN gives the NaN of the format. If a rule finds an infinity or a NaN, or in float64 a number
    too large for a scale in float32, the scale is NaN (see `scale_for`), and so are all the numbers
    that it scales. MXFP8, MXFP6 and MXFP4 are
    `scale=ScaleRule.RCEIL, block=MX_BLOCK`, or another rule of MX; DeepSeek-V3's tiles are
    `block=(1, 128)` for activations and `(128, 128)` for weights; one scale per row is
    `block=tensor.shape[-1:]`.

    NVFP4 is `FP4_E2M1, scale=ScaleRule.NVFP4, block=(16,)`, for weights also `block=(16, 16)`. It
    has two scales: a float32 for the tensor, `tensor_scale`, and an E4M3 value for each block.
    `tensor_scale=1.0` leaves out the first. Block scales are at least 2^−6: blocks below
    1/28672 of the tensor's amax lose digits.

    Args:
        tensor: floating point, shape `(...)`, on any device; 16-bit dtypes are widened.
        fmt: the format; at most 8 bits.
        scale: a number; a tensor with one element for each block; or the rule that computes it
            from the largest magnitude.
        block: the shape of a block along the last axes; None for one scale.
        tensor_scale: for `ScaleRule.NVFP4`, the factor in `dequantize`, at least 2^−121; None for
            amax / (448 · max_finite).
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: the result past the largest finite value.
        stream: source of random bits.

    Returns:
        Codes and scales. Autograd records nothing.

    Raises:
        TypeError: the tensor is not floating point; the format is too wide.
        ValueError: the format does not fit in float32; the block does not divide the shape; a
            scale is not positive or has another shape; a NaN for a format without NaN, unless a
            rule sets the scale; a negative number for an unsigned format without NaN; a
            `tensor_scale` without `ScaleRule.NVFP4`; under this rule, a format that is unsigned or
            has a range near that of float32.

    Exactness:
        The product with the scale is computed in the tensor's dtype (float32 at least) and
        rounded to the format once more; with a power of two the product is exact, unless it leaves
        the range of that dtype. Bit-exact
        with torch's own product and cast on the data of tests/scaling/test_quantized.py. NVFP4's
        scales are quotients rounded to float32 one by one, bit-exact with torchao's on the data of
        tests/scaling/test_torchao.py.

    Source:
        See `scale_for`; the scale multiplies as in torchao and Transformer Engine. NVFP4
        (arXiv:2509.25149) is as in torchao's nvfp4_tensor.py. Transformer Engine's core_nvfp4.cuh
        computes the quotients in another order, and its block scales may be subnormal.

    Examples:
        >>> quantized = quantize(torch.tensor([0.001, 0.003]), FP8_E4M3)
        >>> quantized.scale
        tensor(131072.)
        >>> dequantize(quantized)
        tensor([0.0010, 0.0029])
    """
    fmt = format_of(fmt, function="quantize")
    if fmt.bits > 8:
        raise TypeError(
            f"quantize: fmt must have at most 8 bits; got {fmt.name} with {fmt.bits}. "
            f"Use round_tensor, or tensor.to(...)."
        )
    wide = _widened("quantize", tensor)
    factor, whole = scales_of("quantize", wide, fmt, scale, block, tensor_scale)
    rules: Any = {"rounding": rounding, "overflow": overflow, "stream": stream}
    saturate = overflow is Overflow.SATURATE and stream is None  # a 0 is no member
    if rounding is Rounding.TIES_TO_EVEN and saturate and wide.device.type == "cpu":
        product = _product(wide, factor, fmt, block, rounding)
        found = take("quantize", fmt, product.reshape(-1).numpy())
        if found is not None:
            codes = torch.from_numpy(found).reshape(wide.shape)
            return Quantized(codes, factor, fmt, block, whole)
    rounded = multiply_and_round(wide, factor, fmt, block=block, **rules)
    if not (fmt.signed or fmt.has_nan) and bool((rounded.isnan() & (wide < 0)).any()):
        raise ValueError(
            f"quantize: tensor must not hold negative numbers, which {fmt.name} lacks; got "
            f"{float(wide.min())}. Add a zero point first, or take a signed format."
        )
    return Quantized(_codes(rounded, fmt), factor, fmt, block, whole)


def dequantize(quantized: Quantized) -> Tensor:
    """Divide the values of the codes by their scales.

    With a `tensor_scale`, multiply them by the stored scales, `scale_codes` and `tensor_scale`.

    Returns:
        float32, of the shape of the codes.

    Exactness:
        Correctly rounded; exact where the scale is a power of two and the result is not
        subnormal in float32.
    """
    return _unscaled(
        quantized.values, quantized.scale, quantized.block, quantized.tensor_scale
    )


def fake_quantize(
    tensor: Tensor,
    fmt: FormatLike,
    *,
    scale: float | Tensor | ScaleRule = ScaleRule.POWER_OF_TWO,
    block: tuple[int, ...] | None = None,
    tensor_scale: float | Tensor | None = None,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.SATURATE,
    stream: Stream | None = None,
) -> Tensor:
    """Quantize and dequantize a tensor without storing codes, in a format of any width.

    No gradient passes: autograd records nothing, because rounding has slope 0 almost everywhere.
    For a straight-through gradient, add a zero that has a gradient, as in the example.

    Args:
        tensor: as in `quantize`.
        fmt: the format; it must fit in float32.
        scale: as in `quantize`.
        block: as in `quantize`.
        tensor_scale: as in `quantize`.
        rounding: as in `quantize`.
        overflow: as in `quantize`.
        stream: as in `quantize`.

    Returns:
        A tensor of the shape of `tensor`; float64 stays float64, everything else is float32.
        It does not require a gradient.

    Examples:
        >>> x = torch.tensor([0.7, 300.0], requires_grad=True)
        >>> fake_quantize(x, FP8_E4M3)
        tensor([  0.6875, 288.0000])
        >>> straight = fake_quantize(x, FP8_E4M3) + (x - x.detach())
        >>> straight.sum().backward()
        >>> straight.detach(), x.grad
        (tensor([  0.6875, 288.0000]), tensor([1., 1.]))
    """
    fmt = format_of(fmt, function="fake_quantize")
    wide = _widened("fake_quantize", tensor)
    factor, whole = scales_of("fake_quantize", wide, fmt, scale, block, tensor_scale)
    rounded = multiply_and_round(
        wide,
        factor,
        fmt,
        block=block,
        rounding=rounding,
        overflow=overflow,
        stream=stream,
    )
    return _unscaled(rounded, factor, block, whole)


def hadamard(
    tensor: Tensor, signs: Tensor | None = None, *, inverse: bool = False
) -> Tensor:
    """Apply a random Hadamard transform, which spreads an outlier over its block.

    Each block along the last axis is multiplied by the signs and then by Sylvester's Hadamard
    matrix, divided by √n. Because this is orthonormal, a matrix product does not change, up to
    rounding, if both factors are transformed with the same signs along the summed axis.

    Args:
        tensor: floating point, shape `(..., k·n)`; 16-bit dtypes are widened to float32.
        signs: n numbers 1 or −1, n a power of two; None for sixteen ones. Random signs are
            `torch.randint(0, 2, (16,), generator=generator) * 2 - 1`.
        inverse: undo the transform that had the same signs.

    Returns:
        A new tensor of the shape of `tensor`, through which gradients pass.

    Raises:
        ValueError: the signs are not 1 or −1, or their number is not a power of two or does not
            divide the last axis.

    Exactness:
        Sums in pairs, in a fixed order: log2(n) roundings, and one more in the division by √n
        unless n is a power of 4.

    Source:
        The recipe of NVFP4, arXiv:2509.25149, with n = 16.

    Examples:
        >>> hadamard(torch.tensor([8.0, 0, 0, 0]), torch.tensor([-1, 1, 1, 1]))
        tensor([-4., -4., -4., -4.])
    """
    _floating("hadamard", tensor)
    signs = torch.ones(16, dtype=torch.int64) if signs is None else signs
    n = signs.numel() if signs.ndim == 1 else 0
    if not n or n & (n - 1) or not {-1, 1}.issuperset(signs.tolist()):
        raise ValueError(
            f"hadamard: signs must be a tensor of 1 and -1, its length a power of two; got "
            f"{quoted(signs)}. Use torch.randint(0, 2, (16,)) * 2 - 1."
        )
    if not tensor.ndim or tensor.shape[-1] % n:
        raise ValueError(
            f"hadamard: tensor must have a last axis that the {n} signs divide; got shape "
            f"{tuple(tensor.shape)}. Pad it with zeros first."
        )
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32)).reshape(-1, n)
    signs = signs.to(wide)
    columns = list((wide if inverse else wide * signs).unbind(-1))
    for bit in (1 << k for k in range(n.bit_length() - 1)):
        for i in range(n):
            if not i & bit:
                a = columns[i]
                b = columns[i + bit]
                columns[i], columns[i + bit] = a + b, a - b
    mixed = torch.stack(columns, -1) / math.sqrt(n)
    return (mixed * signs if inverse else mixed).reshape(tensor.shape)


def multiply_and_round(
    tensor: Tensor,
    scale: Tensor,
    fmt: Format,
    *,
    block: tuple[int, ...] | None = None,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.SATURATE,
    stream: Stream | None = None,
) -> Tensor:
    """Multiply a tensor by its scales and round it: the values whose codes `quantize` stores.

    Args:
        tensor: float32 or float64, shape `(...)`.
        scale: a scalar, or one element for each block.
        fmt: the format to round to.
        block: the shape of a block along the last axes; None for one scale.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: the result past the largest finite value.
        stream: source of random bits.

    Returns:
        A new tensor of the dtype and shape of `tensor`, values of `fmt` or NaN.

    Raises:
        ValueError: the block does not divide the shape; `scale` has another shape.
    """
    product = _product(tensor, scale, fmt, block, rounding)
    rules: Any = {"rounding": rounding, "overflow": overflow, "stream": stream}
    if product.device.type == "cpu" and product.is_contiguous():
        array = product.numpy()  # which takes a small tensor half the time
        round_to(array, fmt, out=array, **rules)
    else:
        round_tensor(product, fmt, out=product, **rules)
    return product.to(tensor.dtype)


def _product(
    tensor: Tensor,
    scale: Tensor,
    fmt: Format,
    block: tuple[int, ...] | None,
    rounding: Rounding,
) -> Tensor:
    """Multiply a tensor by its scales, in float64 if float32 would round what it need not."""
    if block is None:
        outer: tuple[int, ...] = ()
        split = tensor.detach()
        factor = scale
    else:
        split, outer, inner = _view_in_blocks("quantize", tensor.detach(), block)
        factor = _beside(scale, inner) if scale.shape == outer else scale
    _require_shape("quantize", "scale", scale, outer)
    if _needs_width(tensor, scale, fmt, rounding):
        split = split.double()
    return (split * factor.to(split.dtype)).reshape(tensor.shape)


def _needs_width(
    tensor: Tensor, scale: Tensor, fmt: Format, rounding: Rounding
) -> bool:
    """Whether float32 may round a product with powers of two, which float64 holds exactly."""
    if tensor.dtype != torch.float32 or tensor.is_mps or not fmt.fits(FP32):
        return False
    # What float32 holds as a subnormal rounds to 0, unless the format reaches as low.
    if rounding is Rounding.TIES_TO_EVEN and fmt.min_subnormal > 2.0**-100:
        return False
    return bool(((torch.frexp(scale)[0] == 0.5) | scale.isnan()).all())


def _codes(rounded: Tensor, fmt: Format) -> Tensor:
    """Encode values of a format on any device, without rounding."""
    if rounded.device.type == "cpu":
        flat = rounded.reshape(-1).numpy()
        found = take("encode", fmt, flat)  # None where a NaN has no code
        if found is not None:
            return torch.from_numpy(found).reshape(rounded.shape)
    if fmt.torch_dtype is not None:
        codes = rounded.float().to(fmt.torch_dtype).view(torch.uint8)
    else:  # a code is the position of its value in the format
        top = fmt.max_code + fmt.has_infinity
        ordered = torch.from_numpy(values(fmt)[: top + 1].copy())
        wide = rounded.to(widest(rounded)).abs().contiguous()
        places = torch.searchsorted(ordered.to(wide.device, wide.dtype), wide)
        twos = fmt.specials is Specials.TWOS_COMPLEMENT
        negative = 2 * fmt.sign_code - places if twos else places + fmt.sign_code
        codes = torch.where(rounded.signbit(), negative, places).to(torch.uint8)
    # A sum shows a NaN in a fifth of the time of looking at each number.
    if rounded.sum().isnan():
        codes = torch.where(rounded.isnan(), fmt.nan_code or 0, codes)
    return codes


def scales_of(
    function: str,
    wide: Tensor,
    fmt: Format,
    scale: float | Tensor | ScaleRule,
    block: tuple[int, ...] | None,
    tensor_scale: float | Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Compute the scale by its rule, or check the caller's; under NVFP4 also the tensor scale."""
    if not fmt.fits(FP32):
        raise ValueError(
            f"{function}: fmt must fit in float32; got {fmt.name}. Take a narrower one."
        )
    outer = () if block is None else _blocks(function, tuple(wide.shape), block)
    if tensor_scale is not None and scale is not ScaleRule.NVFP4:
        raise ValueError(
            f"{function}: tensor_scale must be None without ScaleRule.NVFP4; got "
            f"{quoted(tensor_scale)}. Leave it out, or pass scale=ScaleRule.NVFP4."
        )
    if isinstance(scale, ScaleRule):
        amax = amax_of(wide, block=block).cpu().numpy()
        if scale is not ScaleRule.NVFP4:
            found = scales(largest(amax.reshape(-1)), fmt, scale).reshape(outer)
            return torch.from_numpy(found).to(wide.device), None
        if not fmt.signed or FP8_E4M3.max_finite * fmt.max_finite > FP32.max_finite:
            raise ValueError(
                f"{function}: fmt must be signed, and 448 times its max_finite fit in float32, "
                f"with ScaleRule.NVFP4; got {fmt.name}. Use FP4_E2M1, or another rule."
            )
        if tensor_scale is not None:
            given = _number_of(function, "tensor_scale", tensor_scale, wide.device)
            _require_shape(function, "tensor_scale", given, ())
            tensor_scale = given.item()
        factors, whole = two_levels(amax, fmt, tensor_scale)
        both = (
            torch.from_numpy(np.asarray(n)).to(wide.device) for n in (factors, whole)
        )
        return next(both), next(both)
    factor = _number_of(function, "scale", scale, wide.device)
    _require_shape(function, "scale", factor, outer)
    if not fmt.has_nan and bool(wide.isnan().any()):
        raise ValueError(
            f"{function}: tensor must not hold NaN, which {fmt.name} lacks; got "
            f"{int(wide.isnan().sum())}. Use a ScaleRule: the scale then becomes NaN."
        )
    return factor, None


def _number_of(function: str, name: str, scale: Any, device: torch.device) -> Tensor:
    """Convert the caller's scale to a float32 tensor; raise if it is not positive and finite."""
    if not isinstance(scale, Tensor):
        scale = float(scale)
    elif scale.is_complex():  # whose imaginary part would be lost
        raise TypeError(f"{function}: {name} must be real; got {scale.dtype}.")
    factor = torch.as_tensor(scale, dtype=torch.float32, device=device).detach()
    if bool((factor <= 0).any()) or bool(factor.isinf().any()):
        raise ValueError(
            f"{function}: {name} must be positive and finite in float32; got {quoted(scale)}. "
            f"Use a ScaleRule to find one."
        )
    return factor


def _require_shape(
    function: str, name: str, given: Tensor, shape: tuple[int, ...]
) -> None:
    if tuple(given.shape) != shape:
        raise ValueError(
            f"{function}: {name} must have the shape {shape}, one number for each block; got "
            f"{tuple(given.shape)}. Give quantize the block, and a ScaleRule to find its scales."
        )


def _unscaled(
    numbers: Tensor, scale: Tensor, block: tuple[int, ...] | None, whole: Tensor | None
) -> Tensor:
    """Undo the scaling of numbers, block by block."""
    split = numbers
    inner = tuple[int, ...]()
    if block is not None:
        split, _, inner = _view_in_blocks("dequantize", numbers, block)
    if whole is None:
        return (split / _beside(scale, inner)).reshape(numbers.shape)
    return (split * _beside(_block_scales(scale, whole), inner) * whole).reshape(
        numbers.shape
    )


def _block_scales(scale: Tensor, whole: Tensor) -> Tensor:
    """Recover the E4M3 block scales from their float32 inverses; raise if they are not NVFP4's."""
    wanted = 1 / (scale.to(widest(scale)) * whole)
    found = round_tensor(wanted, FP8_E4M3)
    if bool(((found / wanted - 1).abs() > 2.0**-12).any()):
        raise ValueError(
            "Quantized: scale must be one that ScaleRule.NVFP4 finds, beside a tensor_scale; got "
            "others. Use quantize."
        )
    return found.float()


def _widened(function: str, tensor: Tensor) -> Tensor:
    wide = _floating(function, tensor)
    return wide if wide.dtype in (torch.float32, torch.float64) else wide.float()


def _floating(function: str, tensor: Tensor) -> Tensor:
    """Detach a floating-point tensor of 16 bits or more, or raise."""
    given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
    real = isinstance(tensor, Tensor) and tensor.is_floating_point()
    if not real or tensor.itemsize < 2:
        raise TypeError(
            f"{function}: tensor must be a floating-point tensor of 16 bits or more; got "
            f"{given}. For float8 data use Quantized(tensor.view(torch.uint8), …)."
        )
    return tensor.detach()


def _blocks(function: str, shape: tuple[int, ...], block: Any) -> tuple[int, ...]:
    """Return the number of blocks along each axis; raise if blocks do not divide the shape."""
    sizes = block if isinstance(block, tuple | list) else ()
    first = len(shape) - len(sizes)
    positive = bool(sizes) and all(type(size) is int and size > 0 for size in sizes)
    if (
        not positive
        or first < 0
        or any(n % b for n, b in zip(shape[first:], sizes, strict=True))
    ):
        raise ValueError(
            f"{function}: block must divide the last axes of the shape {shape}; got "
            f"{quoted(block)}. Pad the tensor with zeros first, or pass a tuple such as (32,)."
        )
    return shape[:first] + tuple(
        n // b for n, b in zip(shape[first:], sizes, strict=True)
    )


def _view_in_blocks(
    function: str, tensor: Tensor, block: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Split the last axes into blocks; return the view, the shape of blocks, and the inner axes.

    A tensor (a, b) in blocks (s, t) becomes (a/s, s, b/t, t), with inner axes 1 and 3.
    """
    shape = tuple(tensor.shape)
    outer = _blocks(function, shape, block)
    first = len(shape) - len(block)
    sizes = list(shape[:first])
    inner = []
    for n, b in zip(shape[first:], block, strict=True):
        sizes += [n // b, b]
        inner.append(len(sizes) - 1)
    return tensor.reshape(sizes), outer, tuple(inner)


def _beside(scale: Tensor, inner: tuple[int, ...]) -> Tensor:
    """Reshape scales to broadcast with a split tensor."""
    for axis in inner:
        scale = scale.unsqueeze(axis)
    return scale
