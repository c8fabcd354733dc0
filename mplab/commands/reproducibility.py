"""Whether this machine computes the same bits as others: digests of results, to be compared.

`python -m mplab.commands.reproducibility > mplab/commands/reproducibility.txt` writes them anew.

All inputs are whole numbers times powers of two, without a library's random numbers, elementary
functions or products. `condition`, `refine`, `emulation_bound` and `fit_by_gradient_descent` are
missing: they begin with float64 products or factors of this machine's BLAS.

Seen equal on an AMD EPYC (Zen 4); there also with NumPy's baseline, numba's generic code, torch
without vectors, and OpenBLAS as for Nehalem, Haswell, SkylakeX and Zen; on Nehalem, Haswell, EPYC
and ARM64, emulated by qemu; with NumPy 2.0.0 (numba 0.61.0, ml_dtypes 0.5.0, Python 3.12), 2.4.6
(3.11) and 2.5.5 (3.13).
"""

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from mplab.arithmetic import (
    linear,
    matrix_units,
    operations,
    reductions,
    updates,
)
from mplab.arithmetic.architectures import ARCHITECTURES
from mplab.lessons.l07.descent import update_trajectory
from mplab.lessons.l16.integration import integrate
from mplab.lessons.l17 import emulation
from mplab.numbers import codes
from mplab.numbers.formats import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    Overflow,
    Rounding,
)
from mplab.numbers.options import Stream
from mplab.numbers.rounding import events, round_to, tally

STORED = Path(__file__).with_suffix(".txt")
"""The digests that every machine must have, a line each."""

_BASIC: tuple[Callable[..., Any], ...] = (
    operations.add,
    operations.subtract,
    operations.multiply,
    operations.divide,
    operations.remainder,
)
"""The operations of two operands; nothing asks for a new one, so add it here."""
_ELEMENTARY: tuple[Callable[..., Any], ...] = (
    operations.exp,
    operations.exp2,
    operations.log,
    operations.log2,
    operations.sin,
    operations.cos,
    operations.tanh,
)
_SUMS: tuple[Callable[..., Any], ...] = (
    reductions.sum,
    reductions.mean,
    reductions.variance,
    reductions.norm,
    reductions.softmax,
)
_RUNNING_ORDERS = ("sequential", "reversed", "kahan")
"""Those that have a sum after each term, for `cumsum`."""
_ORDERS = (*_RUNNING_ORDERS, "pairwise", "blocked(7)")
_LOW = (FP16, BF16, FP32)


def differing() -> list[str]:
    """List what this machine computes otherwise."""
    found = dict(digests())
    stored = stored_digests()
    names = dict.fromkeys([*stored, *found])
    return [name for name in names if found.get(name) != stored.get(name)]


def digests() -> Iterator[tuple[str, str]]:
    """Compute a digest for each function and format."""
    for part in (_numbers, _operations, _reductions, _matrix_units, _linear_algebra):
        yield from part()


def stored_digests() -> dict[str, str]:
    """Read the digests that every machine must have."""
    lines = STORED.read_text(encoding="utf-8").splitlines()
    return dict(line.rsplit(maxsplit=1) for line in lines)


def _digest(*results: Any) -> str:
    """Digest the bits of arrays; all NaNs are alike."""
    total = sha256()
    for x in map(np.asarray, results):
        if x.dtype.kind == "f":  # as integers: a thread may take subnormals as zero
            nan = np.isnan(x)
            x = x.view(f"i{x.itemsize}").copy()
            x[nan] = -1
        total.update(x.tobytes())
    return total.hexdigest()[:10]


# Inputs ---------------------------------------------------------------------------------
def _integers(count: int, seed: int) -> np.ndarray:
    """Random integers of 64 bits, as SplitMix64 by Steele, Lea and Flood (2014) has them."""
    z = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 40)
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _random(count: int, low: int, high: int, seed: int) -> np.ndarray:
    """Random numbers of both signs, with exponents from `low` up to `high`."""
    words = _integers(count, seed)
    exponents = _integers(count, seed + 100) % np.uint64(high - low)
    fields = (exponents.astype(np.int64) + low + 1023).astype(np.uint64)
    sign_and_fraction = words & np.uint64(0x800FFFFFFFFFFFFF)
    return (sign_and_fraction | fields << np.uint64(52)).view(np.float64)


@cache
def _wide(dtype: Any) -> Any:
    """Numbers of every size, the ends of the range and what is rare."""
    bits = np.dtype(dtype).itemsize * 8
    words = _integers(3000, 1) >> np.uint64(64 - bits)
    ends = [0, 1, 2, (1 << bits - 1) - 1, 1 << bits - 1, (1 << bits - 1) + 1]
    numbers = np.concatenate([words, np.array(ends, np.uint64)])
    anywhere = numbers.astype(f"u{bits // 8}").view(dtype)
    near = _random(3000, -30, 20, 2).astype(dtype)
    halves = np.arange(-999, 1000) / np.float64(8)  # exact, and halfway between others
    special = [np.inf, -np.inf, 65519.0, 65520.0, 57344.0, 61440.0, 448.0, 464.0, 480.0]
    return np.concatenate(
        [anywhere, near, halves.astype(dtype), np.array(special, dtype)]
    )


@cache
def _values(fmt: Format, count: int, low: int, high: int, seed: int) -> Any:
    return round_to(_random(count, low, high, seed), fmt, overflow=Overflow.SATURATE)


def _modes(*, stochastic: bool = True) -> list[dict[str, Any]]:
    """The options for each rounding mode."""
    modes: list[dict[str, Any]] = [
        {"rounding": mode} for mode in Rounding if mode is not Rounding.STOCHASTIC
    ]
    if stochastic:
        modes.append({"rounding": Rounding.STOCHASTIC, "stream": Stream(5)})
    return modes


# Parts ----------------------------------------------------------------------------------
def _numbers() -> Iterator[tuple[str, str]]:
    for name, fmt in FORMATS.items():
        for dtype in (np.float64, np.float32):
            x = _wide(dtype)
            rounded = [round_to(x, fmt, **how) for how in _modes()]
            yield f"round_to {name} {dtype.__name__}", _digest(*rounded)
            raised = [events(x, fmt, **how).astype(np.int64) for how in _modes()]
            counts = [list(tally(x, fmt, **how).as_dict().values()) for how in _modes()]
            yield f"events {name} {dtype.__name__}", _digest(*raised, *counts)
        near = _values(fmt, 3000, -30, 20, 3)
        yield f"encode {name}", _digest(codes.encode(near, fmt))
        yield (
            f"neighbours {name}",
            _digest(
                codes.next_up(near, fmt),
                codes.next_down(near, fmt),
                codes.ulp(near, fmt),
            ),
        )
        if fmt.bits <= 16:
            yield f"decode {name}", _digest(codes.decode(np.arange(2**fmt.bits), fmt))


def _operations() -> Iterator[tuple[str, str]]:
    for fmt in (FP16, BF16, FP32, TF32, FP8_E4M3):
        span = (-6, 6) if fmt.bits == 8 else (-14, 10)
        a, b, c = (_values(fmt, 1000, *span, seed) for seed in (4, 5, 6))
        for f in _BASIC:
            results = [f(a, b, fmt, **how) for how in _modes()]
            yield f"{f.__name__} {fmt.name}", _digest(*results)
        results = [operations.fma(a, b, c, fmt, **how) for how in _modes()]
        yield f"fma {fmt.name}", _digest(*results)
        x = codes.decode(np.arange(2**fmt.bits), fmt) if fmt.bits <= 16 else a
        results = [operations.sqrt(x, fmt, **how) for how in _modes()]
        yield f"sqrt {fmt.name}", _digest(*results)
        for f in _ELEMENTARY:
            # Not stochastic: there NumPy's own float64 result gives the probability.
            results = [f(x, fmt, **how) for how in _modes(stochastic=False)]
            raised = operations.raised(f, x, fmt).astype(np.int64)
            yield f"{f.__name__} {fmt.name}", _digest(*results, raised)


def _reductions() -> Iterator[tuple[str, str]]:
    for fmt in (FP16, BF16):
        a, b = (_values(fmt, 600, -8, 4, seed) for seed in (7, 8))
        pair = a.reshape(20, 30), b.reshape(30, 20)
        for accumulator in (fmt, FP32):
            hows: list[dict[str, Any]] = [
                {"accumulator_format": accumulator, "order": order} for order in _ORDERS
            ]
            into = f"{fmt.name} in {accumulator.name}"
            for f in _SUMS:
                yield f"{f.__name__} {into}", _digest(*(f(a, **how) for how in hows))
            running = [
                reductions.cumsum(a, **how) for how in hows[: len(_RUNNING_ORDERS)]
            ]
            yield f"cumsum {into}", _digest(*running)
            products: list[Any] = [reductions.dot(a, b, **how) for how in hows]
            products += [reductions.matmul(*pair, **how) for how in hows]
            yield f"matmul {into}", _digest(*products)


def _matrix_units() -> Iterator[tuple[str, str]]:
    for name, units in ARCHITECTURES.items():
        for fmt in (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2):
            if fmt.name in units:
                a, b = (_values(fmt, 512, -6, 6, seed) for seed in (9, 10))
                product = matrix_units.mma(
                    a.reshape(8, 64),
                    b.reshape(64, 8),
                    architecture=name,
                    input_format=fmt,
                )
                yield f"mma {name} {fmt.name}", _digest(product)
    a, b = (_random(100, -20, 20, seed).reshape(10, 10) for seed in (11, 12))
    yield "matmul_fp64", _digest(emulation.matmul_fp64(a, b))
    yield "split", _digest(*emulation.split(a, 3, 11))


def _linear_algebra() -> Iterator[tuple[str, str]]:
    for fmt in _LOW:
        a = round_to(_random(144, -3, 1, 13).reshape(12, 12) + 4 * np.eye(12), fmt)
        b = _values(fmt, 12, -3, 1, 14)
        factors = linear.lu(a, fmt)
        yield f"lu {fmt.name}", _digest(*factors[:3])
        solution = linear.solve_triangular(np.tril(a), b, fmt, lower=True)
        yield f"solve_triangular {fmt.name}", _digest(solution)
        for method in updates.METHODS:
            path = update_trajectory(1.0, -2e-5, 300, fmt, method=method)
            yield f"update_trajectory {fmt.name} {method}", _digest(path)
        yield (
            f"distinct_sums {fmt.name}",
            _digest(reductions.distinct_sums(b, fmt, orders=50)),
        )
        decay = integrate(lambda y: -y, 1.0, 2.0**-6, 200, fmt)
        yield f"integrate {fmt.name}", _digest(decay)


# This machine's own -----------------------------------------------------------------------
def torch_functions() -> Iterator[tuple[str, str]]:
    """Say of float32 functions of torch how near they are on this machine.

    Torch takes them from vector libraries, which choose their code by the processor.
    """
    import torch

    x = np.arange(0x3F800000, 0x40800000, 53, dtype=np.uint32).view(np.float32)
    tensor = torch.from_numpy(x)
    for f in (operations.sqrt, *_ELEMENTARY):
        result = getattr(torch, f.__name__)(tensor).numpy()
        missed = np.count_nonzero(result != f(x, FP32))
        yield f.__name__, f"{missed:,} of {len(x):,} results are not the nearest"
    two = torch.full((32,), 1 + 2.0**-12, dtype=torch.float32)
    fused = torch.addcmul(torch.full_like(two, -1.0), two, two) != two * two - 1
    yield "addcmul", "rounds once" if fused.all() else "rounds twice"
    zeros = torch.relu(torch.full((32,), -0.0, dtype=torch.float32))
    yield "relu", f"{'-0' if zeros.signbit().all() else '0'} of -0"
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1000, generator=generator, dtype=torch.float32)
    yield "randn", f"numbers with digest {_digest(drawn)}"


if __name__ == "__main__":
    for name, digest in digests():
        print(name, digest)
