"""Tensors stored in eight bits or fewer: codes, and scales for the whole or for blocks of it.

A scale multiplies before the cast; `dequantize` divides by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.numbers.checks import quoted, require_rounding
from mplab.numbers.codes import encode, values
from mplab.numbers.formats import FORMATS, FP8_E8M0, Format, Overflow, Rounding, require_format
from mplab.numbers.rounding import Stream
from mplab.numbers.tensors import round_tensor
from mplab.scaling.amax import ScaleRule, scale_for

__all__ = [
    "MX_BLOCK",
    "Quantized",
    "ScaleRule",
    "amax_of",
    "dequantize",
    "fake_quantize",
    "multiply_and_round",
    "quantize",
    "scale_for",
]

MX_BLOCK = (32,)
"""The block of the OCP MX formats: 32 elements along the last axis."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor as codes of a format, and the scales that multiplied it before the cast.

    Args:
        codes: uint8, shape `(...)`.
        scale: float32: a scalar, or one element for each block.
        fmt: the format of the codes.
        block: the shape of a block along the last axes, or None for one scale.
    """

    codes: Tensor
    scale: Tensor
    fmt: Format
    block: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_format("Quantized", self.fmt)
        for name, dtype in (("codes", torch.uint8), ("scale", torch.float32)):
            given = getattr(self, name)
            if not isinstance(given, Tensor) or given.dtype != dtype:
                kind = given.dtype if isinstance(given, Tensor) else quoted(given)
                raise TypeError(
                    f"Quantized: {name} must be a tensor of {dtype}; got {kind}. "
                    f"Use quantize, or Quantized.of for float8 data."
                )
        outer: tuple[int, ...] = ()
        if self.block is not None:
            outer = _blocks("Quantized", tuple(self.codes.shape), self.block)
        if tuple(self.scale.shape) != outer:
            raise ValueError(
                f"Quantized: scale must have the shape {outer}, one for each block; got "
                f"{tuple(self.scale.shape)}. Use quantize."
            )

    @classmethod
    def of(cls, data: Tensor, *, scale: float | Tensor = 1.0) -> Quantized:
        """The same from a tensor of one of torch's float8 dtypes, bit for bit.

        Examples:
            >>> Quantized.of(torch.tensor([448.0]).to(torch.float8_e4m3fn)).codes
            tensor([126], dtype=torch.uint8)
        """
        known = {f.torch_dtype: f for f in FORMATS.values() if f.bits == 8}
        if not isinstance(data, Tensor) or data.dtype not in known:
            given = data.dtype if isinstance(data, Tensor) else type(data).__name__
            raise TypeError(
                f"Quantized.of: data must be a tensor of a float8 dtype; got {given}. "
                f"Use quantize for other tensors."
            )
        factor = _number_of("Quantized.of", scale, data.device)
        if factor.ndim:
            raise ValueError(
                f"Quantized.of: scale must be one number; got shape {tuple(factor.shape)}. "
                f"For blocks, make Quantized(codes, scale, fmt, block)."
            )
        return cls(data.detach().view(torch.uint8), factor, known[data.dtype])

    @property
    def data(self) -> Tensor:
        """The codes as a tensor of torch's float8 dtype, sharing their memory.

        Raises:
            TypeError: torch has no such dtype.
        """
        if self.fmt.torch_dtype is None:
            raise TypeError(
                f"Quantized: fmt must be one of torch's float8 dtypes; got {self.fmt.name}. "
                f"Use .codes."
            )
        return self.codes.view(self.fmt.torch_dtype)

    @property
    def values(self) -> Tensor:
        """The values of the codes as float32, without the scale."""
        table = torch.from_numpy(values(self.fmt).astype(np.float32)).to(self.codes.device)
        return table[self.codes.int()]

    @property
    def scale_codes(self) -> Tensor:
        """The codes of E8M0 scales as MX stores them: of 1/scale, which multiplies afterwards.

        Raises:
            ValueError: a scale is no power of two.
        """
        inverse = 1 / self.scale.double().cpu().numpy()
        return torch.from_numpy(np.asarray(encode(inverse, FP8_E8M0))).to(self.scale.device)


def amax_of(tensor: Tensor, *, block: tuple[int, ...] | None = None) -> Tensor:
    """The largest magnitude of a tensor, or of each block of it.

    NaN if there is a NaN; 0 if there is no element.

    Args:
        tensor: floating point, shape `(...)`.
        block: the shape of a block along the last axes; None for the whole tensor.

    Returns:
        Of the tensor's dtype: a scalar, or the shape of the tensor with the last axes divided
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
        shape = () if block is None else _split("amax_of", magnitude, block)[1]
        return magnitude.new_zeros(shape)
    if block is None:
        return magnitude.amax()
    split, _, inner = _split("amax_of", magnitude, block)
    return split.amax(inner)


def quantize(
    tensor: Tensor,
    fmt: Format,
    *,
    scale: float | Tensor | ScaleRule = ScaleRule.POWER_OF_TWO,
    block: tuple[int, ...] | None = None,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.SATURATE,
    stream: Stream | None = None,
) -> Quantized:
    """Multiply a tensor by a scale and cast it to a format of eight bits or fewer.

    NaN gives the NaN of the format. Where a rule finds an infinity or a NaN, the scale is NaN
    (see `scale_for`), and so is everything that it scales. MXFP8, MXFP6 and MXFP4 are
    `scale=ScaleRule.MX, block=MX_BLOCK`; DeepSeek-V3's tiles are `block=(1, 128)` for
    activations and `(128, 128)` for weights.

    Args:
        tensor: floating point, shape `(...)`, on any device; 16-bit dtypes are widened.
        fmt: the format; at most 8 bits.
        scale: a number; a tensor, with one element for each block; or the rule to find it
            from the largest magnitude.
        block: the shape of a block along the last axes; None for one scale.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: what lies past the largest finite value.
        stream: source of random bits.

    Returns:
        Codes and scales. Autograd records nothing.

    Raises:
        TypeError: the tensor is not floating point; the format is too wide.
        ValueError: the block does not divide the shape; the scale is not positive or has
            another shape; a NaN in a format that has none, without a rule.

    Exactness:
        The product with the scale is formed in the tensor's dtype (float32 at least) and
        rounded to the format once more; with a power of two the product is exact. Bit-exact
        with torch's own product and cast on the data of tests/scaling/test_quantized.py.

    Source:
        See `scale_for`; a scale that multiplies is that of torchao and Transformer Engine.

    Examples:
        >>> quantized = quantize(torch.tensor([0.001, 0.003]), FP8_E4M3)
        >>> quantized.scale
        tensor(131072.)
        >>> dequantize(quantized)
        tensor([0.0010, 0.0029])
    """
    fmt = require_format("quantize", fmt)
    if fmt.bits > 8:
        raise TypeError(
            f"quantize: fmt must have at most 8 bits; got {fmt.name} with {fmt.bits}. "
            f"Use round_tensor, or tensor.to(...)."
        )
    require_rounding("quantize", rounding, overflow, stream)
    wide = _widened("quantize", tensor)
    factor = _scale_of("quantize", wide, fmt, scale, block)
    rounded = multiply_and_round(
        wide, factor, fmt, block=block, rounding=rounding, overflow=overflow, stream=stream
    )
    return Quantized(_codes(rounded, fmt), factor, fmt, block)


def dequantize(quantized: Quantized) -> Tensor:
    """The values of the codes divided by their scales.

    Returns:
        float32, of the shape of the codes.

    Exactness:
        Correctly rounded; exact where the scale is a power of two and the result no
        subnormal of float32.
    """
    if not isinstance(quantized, Quantized):
        raise TypeError(
            f"dequantize: quantized must be a Quantized; got {quoted(quantized)}. "
            f"Use quantize first."
        )
    return _divide(quantized.values, quantized.scale, quantized.block)


def fake_quantize(
    tensor: Tensor,
    fmt: Format,
    *,
    scale: float | Tensor | ScaleRule = ScaleRule.POWER_OF_TWO,
    block: tuple[int, ...] | None = None,
    rounding: Rounding = Rounding.TIES_TO_EVEN,
    overflow: Overflow = Overflow.SATURATE,
    stream: Stream | None = None,
) -> Tensor:
    """What `dequantize` makes of `quantize`, without the codes, and for any width of format.

    No gradient passes: autograd records nothing, as rounding has slope 0 almost everywhere. To
    pass it straight through, add a zero that has one, as in the example.

    Args:
        tensor: as in `quantize`.
        fmt: the format; it must fit in float32.
        scale: as in `quantize`.
        block: as in `quantize`.
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
    fmt = require_format("fake_quantize", fmt)
    require_rounding("fake_quantize", rounding, overflow, stream)
    wide = _widened("fake_quantize", tensor)
    factor = _scale_of("fake_quantize", wide, fmt, scale, block)
    rounded = multiply_and_round(
        wide, factor, fmt, block=block, rounding=rounding, overflow=overflow, stream=stream
    )
    return _divide(rounded, factor, block)


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
    """The values of `fmt` that `quantize` stores as codes: a tensor times its scales, rounded.

    Args:
        tensor: float32 or float64, shape `(...)`.
        scale: a scalar, or one element for each block.
        fmt: the format to enter.
        block: the shape of a block along the last axes; None for one scale.
        rounding: the direction; `STOCHASTIC` needs a `stream`.
        overflow: what lies past the largest finite value.
        stream: source of random bits.

    Returns:
        A new tensor of the dtype and shape of `tensor`, values of `fmt` or NaN.

    Raises:
        ValueError: the block does not divide the shape; `scale` has another shape.
    """
    if block is None:
        outer: tuple[int, ...] = ()
        split, factor = tensor.detach(), scale
    else:
        split, outer, inner = _split("quantize", tensor.detach(), block)
        factor = _beside(scale, inner) if scale.shape == outer else scale
    if scale.shape != outer:
        raise ValueError(
            f"quantize: scale must have the shape {outer}, one for each block; got "
            f"{tuple(scale.shape)}. Give it block={block or '...'} and a rule to find it."
        )
    product = (split * factor.to(split.dtype)).reshape(tensor.shape)
    return round_tensor(
        product, fmt, rounding=rounding, overflow=overflow, stream=stream, out=product
    )


def _codes(rounded: Tensor, fmt: Format) -> Tensor:
    """The codes of values of a format, on any device: nothing is rounded here."""
    if fmt.torch_dtype is not None:
        codes = rounded.float().to(fmt.torch_dtype).view(torch.uint8)
    else:  # their places among the values of the format
        top = fmt.max_code + fmt.has_infinity
        ordered = torch.tensor(values(fmt)[: top + 1], device=rounded.device)
        places = torch.searchsorted(ordered, rounded.double().abs().contiguous())
        codes = torch.where(rounded.signbit(), places + fmt.sign_code, places)
    return torch.where(rounded.isnan(), fmt.nan_code or 0, codes).to(torch.uint8)


def _scale_of(
    function: str,
    wide: Tensor,
    fmt: Format,
    scale: float | Tensor | ScaleRule,
    block: tuple[int, ...] | None,
) -> Tensor:
    """The scale by its rule, or as the caller chose it, checked."""
    outer = () if block is None else _blocks(function, tuple(wide.shape), block)
    if isinstance(scale, ScaleRule):
        largest = amax_of(wide, block=block).cpu().numpy()
        found = scale_for(largest, fmt, rule=scale)
        return torch.from_numpy(np.asarray(found)).to(wide.device)
    factor = _number_of(function, scale, wide.device)
    if tuple(factor.shape) != outer:
        raise ValueError(
            f"{function}: scale must have the shape {outer}, one for each block; got "
            f"{tuple(factor.shape)}. Give it block={block or '...'} and a rule to find it."
        )
    if not fmt.has_nan and bool(wide.isnan().any()):
        raise ValueError(
            f"{function}: tensor must not hold NaN, which {fmt.name} lacks; got "
            f"{int(wide.isnan().sum())}. Use a ScaleRule: the scale then becomes NaN."
        )
    return factor


def _number_of(function: str, scale: Any, device: torch.device) -> Tensor:
    """A scale that the caller chose, as a float32 tensor."""
    real = isinstance(scale, Real) and not isinstance(scale, bool | np.bool_)
    if isinstance(scale, Tensor):
        real = not scale.is_complex() and scale.dtype != torch.bool
    if not real:
        raise TypeError(
            f"{function}: scale must be a number or a tensor of them; got {quoted(scale)}. "
            f"Use a ScaleRule to find one."
        )
    chosen: Tensor | float
    try:
        chosen = scale if isinstance(scale, Tensor) else float(scale)
    except OverflowError:
        chosen = math.inf
    factor = torch.as_tensor(chosen, dtype=torch.float32, device=device).detach()
    if bool((factor <= 0).any()) or bool(factor.isinf().any()):
        raise ValueError(
            f"{function}: scale must be positive and finite in float32; got {quoted(scale)}. "
            f"Use a ScaleRule to find one."
        )
    return factor


def _divide(numbers: Tensor, scale: Tensor, block: tuple[int, ...] | None) -> Tensor:
    """Numbers, each divided by the scale of its block."""
    if block is None:
        return numbers / scale
    split, _, inner = _split("dequantize", numbers, block)
    return (split / _beside(scale, inner)).reshape(numbers.shape)


def _widened(function: str, tensor: object) -> Tensor:
    wide = _floating(function, tensor)
    return wide if wide.dtype in (torch.float32, torch.float64) else wide.float()


def _floating(function: str, tensor: object) -> Tensor:
    """A tensor of 16 bits or more, without its graph."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.itemsize < 2:
        given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise TypeError(
            f"{function}: tensor must be a floating-point tensor of 16 bits or more; got {given}. "
            f"Use Quantized.of for float8 data."
        )
    return tensor.detach()


def _blocks(function: str, shape: tuple[int, ...], block: Any) -> tuple[int, ...]:
    """The shape of the blocks, once they divide that of the tensor."""
    sizes = block if isinstance(block, tuple | list) else ()
    first = len(shape) - len(sizes)
    positive = bool(sizes) and all(type(size) is int and size > 0 for size in sizes)
    if not positive or first < 0 or any(n % b for n, b in zip(shape[first:], sizes, strict=True)):
        raise ValueError(
            f"{function}: block must divide the last axes of the shape {shape}; got "
            f"{quoted(block)}. Pad the tensor with zeros first, or pass a tuple such as (32,)."
        )
    return shape[:first] + tuple(n // b for n, b in zip(shape[first:], sizes, strict=True))


def _split(
    function: str, tensor: Tensor, block: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Each of the last axes as blocks and places within; the shape of the blocks; the places.

    A tensor (a, b) in blocks (s, t) becomes (a/s, s, b/t, t), with places 1 and 3.
    """
    shape = tuple(tensor.shape)
    outer = _blocks(function, shape, block)
    first = len(shape) - len(block)
    sizes, inner = list(shape[:first]), []
    for n, b in zip(shape[first:], block, strict=True):
        sizes += [n // b, b]
        inner.append(len(sizes) - 1)
    return tensor.reshape(sizes), outer, tuple(inner)


def _beside(scale: Tensor, inner: tuple[int, ...]) -> Tensor:
    """Scales in the shape that multiplies a split tensor."""
    for place in inner:
        scale = scale.unsqueeze(place)
    return scale
