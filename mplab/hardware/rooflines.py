"""What a format gains in a matrix product, and what it costs: speed against two limits, and errors.

A product can be no faster than its multiplications and no faster than the memory that it reads
and writes; the two limits together are called the roofline. The figures here are measured on the
device at hand or read from a recording, never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from mplab.hardware._timing import clock_of, seconds_of
from mplab.hardware.recordings import first
from mplab.numbers.checks import integer, named_format, number_that, one_of, real
from mplab.numbers.formats import BF16, FP16, FP32, Format
from mplab.simulation.checks import device_of, items, seed_of


class Product(NamedTuple):
    """One square product.

    Attributes:
        size: rows of each matrix.
        fmt: the format's name.
        per_second: operations in a second; an addition and a multiplication are two.
        per_byte: operations for each byte of the three matrices.
    """

    size: int
    fmt: str
    per_second: float
    per_byte: float


class Roofline(NamedTuple):
    """Products, and the memory's speed.

    Attributes:
        where: the device, and how its figures came here.
        bytes_per_second: of a copy, read and written.
        products: by format and size.
    """

    where: str
    bytes_per_second: float
    products: tuple[Product, ...]

    def peak(self, fmt: str) -> float:
        """The most operations in a second that were seen in a format.

        Args:
            fmt: the format's name.

        Raises:
            ValueError: there is no product in a format of this name.
        """
        one_of("Roofline.peak", "fmt", fmt, dict.fromkeys(p.fmt for p in self.products))
        return max(p.per_second for p in self.products if p.fmt == fmt)


_LARGEST = 2**31 - 1
"""Rows of a matrix that nobody has the memory for."""


def _sizes(where: str, sizes: Any) -> list[int]:
    """The sizes of square matrices."""
    given = items(where, "sizes", sizes, "integers")
    found = [integer(where, "sizes", size, least=1, most=_LARGEST) for size in given]
    if not found:
        raise ValueError(f"{where}: sizes must hold at least one; got none. Leave it out.")
    return found


def _formats(where: str, formats: Any, device: torch.device) -> list[Format]:
    """The formats, in each of which torch multiplies on the device."""
    found = items(where, "formats", formats, "formats")
    if not found:
        raise ValueError(f"{where}: formats must hold at least one; got none. Leave it out.")
    for fmt in found:
        dtype = named_format(where, "formats", fmt).torch_dtype
        try:
            one = torch.ones(1, 1, device=device, dtype=dtype) if dtype is not None else None
            fits = one is not None and torch.matmul(one, one).dtype is dtype
        except RuntimeError:  # NotImplementedError is one
            fits = False
        if not fits:
            raise ValueError(
                f"{where}: formats must be such that torch multiplies in them on {device}; got "
                f"{fmt.name}. Use FP32, FP16 and BF16."
            )
    return found


def work_per_byte(size: int, fmt: Format) -> float:
    """Operations of a square product for each byte that it must at least move.

    Raises:
        TypeError: `size` is no integer, or `fmt` no format.
        ValueError: `size` is less than 1.

    Examples:
        >>> work_per_byte(96, FP32), work_per_byte(96, FP16)
        (16.0, 32.0)
    """
    size = integer("work_per_byte", "size", size, least=1, most=_LARGEST)
    named_format("work_per_byte", "fmt", fmt)
    return 2 * size**3 / (3 * size * size * fmt.bits / 8)


def measured(
    sizes: Sequence[int] = (32, 64, 128, 256, 512),
    formats: Sequence[Format] = (FP32, FP16, BF16),
    *,
    device: str = "cpu",
    seconds: float = 0.5,
) -> Roofline:
    """Time products on the device at hand.

    Args:
        sizes: of the square matrices.
        formats: in which torch multiplies.
        device: "cpu" or "cuda".
        seconds: a format is left out from the size on whose single product takes longer.

    Raises:
        TypeError: an argument of another type.
        ValueError: no size or no format, a size of less than 1, a format in which torch does not
            multiply, a device that torch cannot use here, or negative seconds.
    """
    where = "measured"
    rule = "a number of seconds, not negative"
    seconds = number_that(where, "seconds", seconds, rule, lambda limit: limit >= 0)
    place = device_of(where, device)
    sizes, formats = _sizes(where, sizes), _formats(where, formats, place)
    timed = partial(seconds_of, clock=clock_of(device), turn=5e-3)
    count = 1 << 24
    x, out = (torch.ones(count, device=device) for _ in range(2))
    copied = 8 * count / timed(lambda: out.copy_(x))
    rows = []
    for fmt in formats:
        for size in sizes:
            a = torch.ones(size, size, device=device, dtype=fmt.torch_dtype)
            taken = timed(partial(torch.matmul, a, a))
            rows.append(Product(size, fmt.name, 2 * size**3 / taken, work_per_byte(size, fmt)))
            if taken > seconds:
                break
    cuda = place.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else "this machine's CPU"
    words = f"measured on {name}"
    if not cuda:
        words += f", {torch.get_num_threads()} thread" + "s" * (torch.get_num_threads() > 1)
    return Roofline(words, copied, tuple(rows))


def recorded() -> Roofline | None:
    """The recording of speed that came with the package; None where there is none."""
    recording = first("speed")
    rows = [r for r in recording.data.get("matmul", []) if "per_second" in r] if recording else []
    if recording is None or not rows or "copy" not in recording.data:
        return None
    products = (Product(r["size"], r["format"], r["per_second"], r["per_byte"]) for r in rows)
    copied = float(recording.data["copy"]["bytes_per_second"])
    return Roofline(recording.words, copied, tuple(products))


class ProductError(NamedTuple):
    """How far a product is from the exact one of the unrounded matrices.

    Attributes:
        size: rows of each matrix.
        fmt: the format's name.
        error: length of the difference, of the exact product's length.
    """

    size: int
    fmt: str
    error: float


def matmul_errors(
    sizes: Sequence[int] = (16, 32, 64, 128, 256),
    formats: Sequence[Format] = (FP32, FP16, BF16),
    *,
    device: str = "cpu",
    mean: float = 0.0,
    seed: int = 0,
) -> list[ProductError]:
    """Errors of torch's products of random matrices, rounded to a format before.

    Args:
        sizes: of the square matrices.
        formats: in which torch multiplies.
        device: "cpu" or "cuda".
        mean: of the normal numbers in the matrices.
        seed: of the matrices.

    Raises:
        TypeError: an argument of another type.
        ValueError: as in `measured`; a mean that is not finite, or a negative seed.

    Exactness:
        The product they are compared with is torch's in float64.
    """
    where = "matmul_errors"
    mean = real(where, "mean", mean)
    generator = torch.Generator().manual_seed(seed_of(where, seed))
    place = device_of(where, device)
    sizes, formats = _sizes(where, sizes), _formats(where, formats, place)
    rows = []
    for size in sizes:
        a, b = (
            torch.randn(size, size, generator=generator, dtype=torch.float64) + mean
            for _ in range(2)
        )
        exact = a @ b
        for fmt in formats:
            low = (t.to(device, fmt.torch_dtype) for t in (a, b))
            got = torch.matmul(*low).cpu().double()
            rows.append(ProductError(size, fmt.name, float((got - exact).norm() / exact.norm())))
    return rows
