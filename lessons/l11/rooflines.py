"""Rooflines and errors of matrix products in several formats.

A product can be no faster than its multiplications and no faster than its memory traffic; the two
limits together are called the roofline. All speeds are measured on the
device at hand or read from a recording, never assumed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch

from mplab.common.words import plural
from mplab.lessons.recordings import first
from mplab.numbers.checks import quoted
from mplab.numbers.formats import BF16, FP16, FP32, Format


class Product(NamedTuple):
    """The speed of one square matrix product.

    Attributes:
        size: rows of each matrix.
        fmt: the format's name.
        per_second: operations per second; an addition and a multiplication are two.
        per_byte: operations per byte of the three matrices.
    """

    size: int
    fmt: str
    per_second: float
    per_byte: float


class Roofline(NamedTuple):
    """The speed of matrix products and of the memory.

    Attributes:
        where: the device, and whether it was measured or recorded.
        bytes_per_second: bytes that a copy reads and writes per second.
        products: the products by format and size.
    """

    where: str
    bytes_per_second: float
    products: tuple[Product, ...]

    def peak(self, fmt: str) -> float:
        """The most operations per second in a format, given by its name."""
        return max(p.per_second for p in self.products if p.fmt == fmt)


def lap(call: Callable[[], object], repeats: int, device: str | torch.device) -> float:
    """Time `repeats` calls and return the seconds of one; on CUDA, until the device is done."""
    if torch.device(device).type != "cuda":
        start = perf_counter()
        for _ in range(repeats):
            call()
        return (perf_counter() - start) / repeats
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def seconds_of(
    call: Callable[[], object],
    device: str | torch.device,
    *,
    rounds: int = 3,
    turn: float = 2e-3,
    warm: int = 1,
) -> float:
    """Measure the median time of one call, repeated in each round for about `turn` seconds.

    A single short call would measure the clock, or on CUDA the launch from Python.
    """
    for _ in range(warm):
        call()
    repeats = max(1, int(turn / max(1e-6, lap(call, 1, device))))
    return median(lap(call, repeats, device) for _ in range(rounds))


def work_per_byte(size: int, fmt: Format) -> float:
    """Arithmetic intensity: operations of a square product per byte that it must at least move.

    Examples:
        >>> work_per_byte(96, FP32), work_per_byte(96, FP16)
        (16.0, 32.0)
    """
    return 2 * size**3 / (3 * size * size * fmt.bits / 8)


def _dtype(function: str, fmt: Format) -> torch.dtype:
    """The torch dtype of products in `fmt`; TF32 would run in FP32."""
    dtype: torch.dtype | None = fmt.torch_dtype
    if dtype is None:
        raise ValueError(
            f"{function}: formats must be formats that torch stores; got {quoted(fmt.name)}. "
            "Use FP32, FP16 and BF16."
        )
    return dtype


def measured(
    sizes: Sequence[int] = (32, 64, 128, 256, 512),
    formats: Sequence[Format] = (FP32, FP16, BF16),
    *,
    device: str = "cpu",
    seconds: float = 0.5,
) -> Roofline:
    """Measure products and memory speed on the device at hand.

    Args:
        sizes: sizes of the square matrices.
        formats: formats in which torch multiplies.
        device: "cpu" or "cuda".
        seconds: a format's larger products are left out once one takes longer than this.
    """
    timed = partial(seconds_of, device=device, turn=5e-3)
    count = 1 << 24
    x = torch.ones(count, dtype=torch.float32, device=device)
    out = torch.empty_like(x)
    copied = 8 * count / timed(lambda: out.copy_(x))
    rows = []
    for fmt in formats:
        for size in sizes:
            a = torch.ones(size, size, device=device, dtype=_dtype("measured", fmt))
            taken = timed(partial(torch.matmul, a, a))
            rows.append(
                Product(size, fmt.name, 2 * size**3 / taken, work_per_byte(size, fmt))
            )
            if taken > seconds:
                break
    cuda = torch.device(device).type == "cuda"
    cpu = f"this machine's CPU, {plural(torch.get_num_threads(), 'thread')}"
    name = torch.cuda.get_device_name(device) if cuda else cpu
    return Roofline(f"measured on {name}", copied, tuple(rows))


def recorded() -> Roofline | None:
    """Load the recorded speeds that came with the package; None if there are none."""
    recording = first("speed")
    data = recording.data if recording else {}
    rows = [row for row in data.get("matmul", []) if "per_second" in row]
    if recording is None or not rows:
        return None
    products = (
        Product(row["size"], row["format"], row["per_second"], row["per_byte"])
        for row in rows
    )
    copied = float(data["copy"]["bytes_per_second"])  # recorded before the products
    return Roofline(recording.words, copied, tuple(products))


class ProductError(NamedTuple):
    """The error of a product relative to the exact product of the unrounded matrices.

    Attributes:
        size: rows of each matrix.
        fmt: the format's name.
        error: norm of the difference, relative to the norm of the exact product.
        magnitude: the standard deviation of the numbers.
    """

    size: int
    fmt: str
    error: float
    magnitude: float = 1.0


def matmul_errors(
    sizes: Sequence[int] = (16, 32, 64, 128, 256),
    formats: Sequence[Format] = (FP32, FP16, BF16),
    *,
    device: str = "cpu",
    magnitude: float = 1.0,
    seed: int = 0,
) -> list[ProductError]:
    """Measure the errors of torch's products of random matrices that are rounded to a format.

    Args:
        sizes: sizes of the square matrices.
        formats: formats in which torch multiplies.
        device: "cpu" or "cuda".
        magnitude: the standard deviation of the numbers.
        seed: seed of the matrices.

    Exactness:
        The reference is torch's product in float64.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for size in sizes:
        a, b = (
            torch.randn(size, size, generator=generator, dtype=torch.float64)
            * magnitude
            for _ in range(2)
        )
        exact = a @ b
        for fmt in formats:
            low = (t.to(device, _dtype("matmul_errors", fmt)) for t in (a, b))
            got = torch.matmul(*low).cpu().double()
            error = float((got - exact).norm() / exact.norm())
            rows.append(ProductError(size, fmt.name, error, magnitude))
    return rows
