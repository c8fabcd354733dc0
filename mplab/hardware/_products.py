"""The device's own matrix products, in a format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mplab.arithmetic.architectures import Input
from mplab.numbers.formats import FP8_E4M3, FP32, TF32, Format


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Matrix products and convolutions of float32 tensors in TF32 on CUDA, or in FP32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def product(a: Tensor, b: Tensor, fmt: Input, *, fast: bool = True) -> Tensor:
    """The device's own product of tensors that hold values of a format, float64 for FP64.

    On a CPU it is FP32's, which is no matrix unit's.

    Args:
        a: on the left.
        b: on the right.
        fmt: in which the device multiplies, `float` for FP64; a pair has one format for each;
            for E5M2 alone `b` becomes E4M3.
        fast: for FP8, whether partial sums stay in the unit.

    Raises:
        RuntimeError: the device cannot multiply this format.
    """
    if a.device.type != "cuda" or fmt is float or fmt == FP32:
        return a @ b
    if fmt == TF32:
        with tf32(True):
            return a @ b
    first, second = _both(fmt)
    dtype = first.torch_dtype
    if dtype is None or second.torch_dtype is None:
        raise RuntimeError(f"torch has no {first.name} or no {second.name}.")
    if first.bits == 16:
        return torch.mm(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    right = b.t().contiguous().to(second.torch_dtype).t()  # column-major, as it must be
    one = torch.ones((), device=a.device)
    result: Tensor = torch._scaled_mm(
        a.to(dtype), right, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast
    )
    return result


def _both(fmt: Any) -> tuple[Format, Format]:
    return fmt if isinstance(fmt, tuple) else (fmt, partner(fmt))


def partner(fmt: Format) -> Format:
    """The format of the second operand: the kernel multiplies E4M3 by either, not E5M2 by E5M2."""
    return FP8_E4M3 if fmt.bits == 8 else fmt
