"""In which order torch's half-precision kernels on a CPU add products, as far as it is known.

They add in float32 and round the sum once. A product of two FP16 or BF16 numbers is exact in
float32, but for underflow, so the order of the sum is all that is left to know.

Two libraries multiply: oneDNN, where the processor has instructions for the format and
`torch.backends.mkldnn.enabled` is true, and torch's own kernels everywhere else. The order of
the latter is known on every x86 processor (the tests compare each build of them, by
`ATEN_CPU_CAPABILITY`), that of oneDNN for BF16 without AMX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor


def _zeros(a: Tensor, b: Tensor) -> Tensor:
    return a.new_zeros(*_common(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def _common(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return np.broadcast_shapes(tuple(one), tuple(other))


def sum_in_lanes(a: Tensor, b: Tensor, *, lanes: int, start: Tensor | None = None) -> Tensor:
    """`a @ b` in float32: term k to sum k mod `lanes`, the last few to the first sum.

    The sums are added at the end, from the first on. One lane is the plain loop.

    Args:
        a: float32, shape (..., rows, n).
        b: float32, shape (..., n, columns).
        lanes: how many sums.
        start: what the first sum starts with, of a shape that broadcasts to the result.

    Returns:
        float32, shape (..., rows, columns).

    Exactness:
        Bit-exact with torch's FP16 products on the cases in tests/simulation/test_replicas.py.

    Examples:
        >>> big, one = torch.tensor([[2.0**24, 1, 1, 1, -(2.0**24)]]), torch.ones(5, 1)
        >>> sum_in_lanes(big, one, lanes=1).item(), sum_in_lanes(big, one, lanes=4).item()
        (0.0, 3.0)
    """
    count = a.shape[-1]
    whole = count - count % lanes
    sums = [_zeros(a, b) for _ in range(lanes)]
    if start is not None:
        sums[0] += start
    for k in range(count):
        lane = sums[k % lanes if k < whole else 0]
        lane.addcmul_(a[..., :, k, None], b[..., k, None, :])
    total = sums[0]
    for lane in sums[1:]:
        total = total + lane
    return total


def sum_in_registers(
    a: Tensor, b: Tensor, *, width: int = 8, one_by_one: bool | None = None
) -> Tensor:
    """`a @ b` in float32: as eight vector registers of `width` numbers sum it.

    Blocks of 8 · width terms go to 8 · width sums, which are added by halving. What is left
    goes to `width` sums in the same way, and the last terms are added one by one.

    Args:
        a: float32, shape (..., rows, n).
        b: float32, shape (..., n, columns).
        width: numbers in a register; 8 for AVX2, which torch takes here on AVX-512, too.
        one_by_one: add the numbers of the last register from the first on, as the kernels do
            that are compiled without vector instructions; by default, if torch takes those.

    Returns:
        float32, shape (..., rows, columns).

    Exactness:
        Bit-exact with torch's FP16 products on the cases in tests/simulation/test_replicas.py.

    Examples:
        >>> x = torch.tensor([[2.0**24, 1, 1, 1, -(2.0**24)] + 11 * [0.0]])
        >>> ones = torch.ones(16, 1)
        >>> [sum_in_registers(x, ones, one_by_one=way).item() for way in (False, True)]
        [3.0, 0.0]
    """
    left, right = a[..., :, None, :], b.mT[..., None, :, :]
    count, block = a.shape[-1], 8 * width
    blocks, vectors = count - count % block, count - count % (2 * width)
    shape = _common(left.shape[:-1], right.shape[:-1])
    main, tail = a.new_zeros(*shape, block), a.new_zeros(*shape, width)
    for k in range(0, blocks, block):
        main.addcmul_(left[..., k : k + block], right[..., k : k + block])
    for k in range(blocks, vectors, width):
        tail.addcmul_(left[..., k : k + width], right[..., k : k + width])
    least = width if (is_scalar() if one_by_one is None else one_by_one) else 1
    total = _halved(main, least) + _halved(tail, least)
    for k in range(vectors, count):
        total = total.addcmul(left[..., k], right[..., k])
    return total


def sum_in_pairs(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` in float32: one sum, to which of each two terms the second is added first.

    So does the processor's instruction for dot products of BF16 pairs.

    Args:
        a: float32, shape (..., rows, n).
        b: float32, shape (..., n, columns).

    Returns:
        float32, shape (..., rows, columns).

    Exactness:
        Bit-exact with torch's BF16 products on the cases in tests/simulation/test_replicas.py.

    Source:
        VDPBF16PS, whose two additions are rounded one after the other; found by comparing.

    Examples:
        >>> x, ones = torch.tensor([[2.0**24, 1, 1, -(2.0**24)]]), torch.ones(4, 1)
        >>> sum_in_lanes(x, ones, lanes=1).item(), sum_in_pairs(x, ones).item()
        (0.0, 1.0)
    """
    count = a.shape[-1]
    order = [k for first in range(0, count, 2) for k in (first + 1, first) if k < count]
    return sum_in_lanes(a[..., order], b[..., order, :], lanes=1)


def _halved(x: Tensor, least: int) -> Tensor:
    """The sum over the last dimension, a power of two: halves until `least`, then one by one."""
    while x.shape[-1] > least:
        first, second = x.chunk(2, -1)
        x = first + second
    total = x[..., 0]
    for k in range(1, least):
        total = total + x[..., k]
    return total


def _is_flat(matrix: Tensor, down: int) -> bool:
    """Whether columns (`down` 0) or rows (1) lie in memory one after the other."""
    return matrix.stride(down) == 1 and matrix.stride(1 - down) >= max(1, matrix.shape[down])


def product(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor:
    """`start + a @ b` of matrices in the order of torch's FP16 product on a CPU.

    The order depends on which of the two is transposed in memory.

    Args:
        a: float32, shape (rows, n).
        b: float32, shape (n, columns).
        start: what is added, of a shape that broadcasts to the result.

    Returns:
        float32, shape (rows, columns), still to be rounded.

    Exactness:
        Bit-exact with torch 2.13 on x86 where oneDNN does not multiply, on the cases in
        tests/simulation/test_replicas.py.

    Source:
        `gemm_core_` in ATen/native/cpu/BlasKernel.cpp and `fp16_dot_with_fp32_arith` in
        ReducedPrecisionFloatGemvFastPathKernel.cpp of torch; which kernel is taken, and how
        wide a register is, was found by comparing.
    """
    flipped = b.shape[1] == 1  # the result is a column, and torch does not transpose it
    first, second, flat = (a, b, 0) if flipped else (b, a, 1)
    first_turned = not _is_flat(first, flat) and _is_flat(first, 1 - flat)
    second_turned = not _is_flat(second, flat) and _is_flat(second, 1 - flat)
    if second_turned and not first_turned:
        return sum_in_lanes(a, b, lanes=1, start=start)
    in_registers = first_turned and not second_turned
    total = sum_in_registers(a, b) if in_registers else sum_in_lanes(a, b, lanes=4)
    return total if start is None else start + total


LONGEST_PAIRED = 512
"""Terms up to which oneDNN's BF16 sums are one sum of pairs; it cuts longer ones, unknown where."""

_SMALL = 16**3
"""Multiplications up to which torch does not ask oneDNN."""


def paired_product(a: Tensor, b: Tensor, start: Tensor | None = None) -> Tensor | None:
    """`start + a @ b` of matrices in the order of torch's BF16 product on a CPU.

    Args:
        a: float32, shape (rows, n).
        b: float32, shape (n, columns).
        start: what is added, of a shape that broadcasts to the result.

    Returns:
        float32, shape (rows, columns), still to be rounded; None for more than
        `LONGEST_PAIRED` terms.

    Exactness:
        Bit-exact with torch 2.13 on x86 with AVX512-BF16 and without AMX, and everywhere on x86
        with oneDNN off, on the cases in tests/simulation/test_replicas.py.
    """
    if not torch.backends.mkldnn.enabled or a.numel() * b.shape[1] <= _SMALL:
        return product(a, b, start)
    if a.shape[1] > LONGEST_PAIRED:
        return None
    total = sum_in_pairs(a, b)
    return total if start is None else start + total


def canceling(
    rows: int, terms: int, columns: int, *, seed: int = 0, dtype: torch.dtype = torch.float16
) -> tuple[Tensor, Tensor]:
    """Two matrices whose products cancel, so that every other order of summation shows.

    Args:
        rows: of the first.
        terms: its columns, at least 2.
        columns: of the second.
        seed: of the numbers.
        dtype: float16 or bfloat16.

    Returns:
        Of `dtype`, shapes (rows, terms) and (terms, columns).

    Examples:
        >>> a, b = canceling(3, 8, 2)
        >>> (a.double() @ b.double()).abs().max().item()
        0.0
    """
    generator = torch.Generator().manual_seed(seed)
    half = terms // 2
    order = torch.randperm(terms, generator=generator)
    a, b = torch.zeros(rows, terms, dtype=dtype), torch.zeros(terms, columns, dtype=dtype)
    a[:, order[:half]] = torch.randn(rows, half, generator=generator).to(dtype)
    a[:, order[half : 2 * half]] = -a[:, order[:half]]
    b[order[:half]] = torch.randn(half, columns, generator=generator).to(dtype)
    b[order[half : 2 * half]] = b[order[:half]]
    return a, b


def is_scalar() -> bool:
    """Whether torch takes the kernels that are compiled without vector instructions."""
    return torch.backends.cpu.get_cpu_capability() == "DEFAULT"


@contextmanager
def own_kernels() -> Iterator[None]:
    """Inside, torch multiplies by its own kernels, not by oneDNN's."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # torch types no setter
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def holds_here(dtype: torch.dtype = torch.float16) -> bool:
    """Whether this machine's kernels add in the order that is known, in float16 or bfloat16.

    It is measured, once with and once without oneDNN (`torch.backends.mkldnn.enabled`).
    """
    return _holds(dtype, torch.backends.mkldnn.enabled)


@cache
def _holds(dtype: torch.dtype, _: bool) -> bool:
    way = product if dtype == torch.float16 else paired_product
    for terms in (10, 50):
        a, b = canceling(16, terms, 16, dtype=dtype)
        pairs = [(x, y) for x in (a, a.t().contiguous().t()) for y in (b, b.t().contiguous().t())]
        for x, y in pairs:
            ours = way(x.float(), y.float())
            if ours is None or not torch.equal(x.mm(y), ours.to(dtype)):
                return False
    return True
