"""The device's own matrix products, in a format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mplab.numbers.formats import FP8_E4M3, TF32, Format


@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Matrix products and convolutions of float32 tensors in TF32 on CUDA, or in FP32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def product(a: Tensor, b: Tensor, fmt: Format, *, fast: bool = True) -> Tensor:
    """The device's own product of float32 tensors that hold values of a format.

    On a CPU it is FP32's, which is no matrix unit's.

    Args:
        a: on the left.
        b: on the right.
        fmt: in which the device multiplies; for E5M2 `b` becomes E4M3.
        fast: for FP8, whether partial sums stay in the unit.

    Raises:
        RuntimeError: the device cannot multiply this format.
    """
    if a.device.type != "cuda":
        return a @ b
    if fmt == TF32:
        with tf32(True):
            return a @ b
    dtype = fmt.torch_dtype
    if fmt.bits == 16:
        return torch.mm(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    right = b.t().contiguous().to(partner(fmt).torch_dtype).t()  # column-major, as it must be
    one = torch.ones((), device=a.device)
    result: Tensor = torch._scaled_mm(
        a.to(dtype), right, scale_a=one, scale_b=one, out_dtype=torch.float32, use_fast_accum=fast
    )
    return result


def partner(fmt: Format) -> Format:
    """The format of the second operand: the kernel multiplies E4M3 by either, not E5M2 by E5M2."""
    return FP8_E4M3 if fmt.bits == 8 else fmt
