"""FP64 matrix products on units for low formats: the Ozaki scheme, with slices of few bits.

The numbers of each row of A, and of each column of B, share a power of two, on whose grid they are
cut into slices, which are small integers. The unit adds products of slices exactly, in any order,
and their sums are added as integers. So the only errors are the bits beyond the last slice, the
pairs of slices that are not multiplied, and one rounding.
"""

import math
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from mplab.arithmetic.architectures import MatrixUnit, unit_of
from mplab.arithmetic.reductions import require_product
from mplab.numbers.checks import integer
from mplab.numbers.formats import FP16, FP32, Format, FormatLike, format_of
from mplab.numbers.inputs import as_float64

_ENOUGH = 2.0**-52
"""Allowed error of the slices relative to |A||B|: below 2^−51 with the final rounding."""

_LEAST = 2.0**-450
"""Least size of nonzero numbers in bounds, so that no product of two sizes underflows."""


def slice_bits(k: int, fmt: FormatLike, accumulator_bits: int) -> int:
    """Compute how many bits a slice may have so that k products of two slices add up exactly.

    A slice of b bits is a signed integer of at most 2^(b−1) in size. The format must hold it, and
    the accumulator must hold k·4^(b−1).

    Args:
        k: products in a sum, at least 1.
        fmt: the format of the slices.
        accumulator_bits: the accumulator holds all integers up to this power of two: 24 for
            FP32, 14 for FP8 on Hopper.

    Raises:
        ValueError: the format lacks -1, 0 or 1, or not even one bit is possible.

    Exactness:
        Exact, in integers.

    Source:
        Mukunoki, Ozaki, Ogita and Imamura 2020, DGEMM using tensor cores, and its accurate and
        reproducible versions.

    Examples:
        >>> (
        ...     slice_bits(64, FP16, 24),
        ...     slice_bits(64, BF16, 24),
        ...     slice_bits(1024, FP8_E4M3, 14),
        ... )
        (10, 9, 3)
    """
    k = integer("slice_bits", "k", k, least=1)
    fmt = format_of(fmt, function="slice_bits")
    held = integer("slice_bits", "accumulator_bits", accumulator_bits, most=1000)
    if not (fmt.signed and fmt.has_zero and fmt.min_subnormal <= 1 <= fmt.max_finite):
        raise ValueError(
            f"slice_bits: fmt must hold -1, 0 and 1, the integers of one bit; got {fmt.name}. "
            f"Use a signed format with small enough steps, such as FP8_E4M3."
        )
    bits = _slice_bits(k, min(fmt.precision, fmt.emax), held)
    if bits < 1:
        raise ValueError(
            f"slice_bits: k must be at most 2^accumulator_bits; got {k} and {accumulator_bits} "
            f"bits. Add fewer products at a time."
        )
    return bits


def _slice_bits(k: int, precision: int, accumulator_bits: int) -> int:
    most = (1 << accumulator_bits) // max(k, 1)
    return min((most.bit_length() + 1) // 2, precision + 1)


@np.errstate(under="ignore")
def split(
    x: Any, slices: int, bits: int, *, axis: int = -1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split numbers into sums of few-bit integers, on one grid along an axis.

    x = Σ parts[s] · 2^(exponents − s·bits) + rest. Each part is rounded to nearest, ties to even.

    Args:
        x: finite numbers, any shape (...).
        slices: number of parts, at least 1.
        bits: bits of each part, 1 to 1000.
        axis: the axis that a product sums along: -1 for the left factor, 0 for the right one.

    Returns:
        The parts, float64, shape (slices, ...), integers of at most 2^(bits−1) in size; the
        exponents of the first part, integers, the shape of `x` but 1 along the axis; the rest,
        float64, the shape of `x`, at most half a unit of the last part.

    Raises:
        TypeError: `x` holds no numbers.
        ValueError: an element is not finite; the axis does not exist.

    Exactness:
        Exact, also for subnormal numbers: parts and rest add up to x.

    Source:
        Ozaki, Ogita, Oishi and Rump 2012, Error-free transformations of matrix multiplication.

    Examples:
        >>> parts, exponents, rest = split([0.75, 0.171875], 2, 4)
        >>> parts.tolist(), exponents.tolist(), rest.tolist()
        ([[6.0, 1.0], [0.0, 6.0]], [-3], [0.0, 0.0])
    """
    array = as_float64("split", x)
    if not np.isfinite(array).all():
        raise ValueError(
            f"split: x must hold finite numbers; got {array[~np.isfinite(array)].flat[0]}. "
            f"Use matmul_fp64, which takes them."
        )
    slices = integer("split", "slices", slices, least=1)
    bits = integer("split", "bits", bits, least=1, most=1000)
    cut = _cut(array, slices, bits, axis)
    return np.stack(cut.parts), cut.exponents, cut.rests[-1]


class _Slices(NamedTuple):
    """Numbers in slices.

    Attributes:
        parts: the slices.
        rests: the remainder before each slice, and after the last.
        exponents: exponents of the unit of the first slice.
        bits: bits of each slice.
    """

    parts: list[np.ndarray]
    rests: list[np.ndarray]
    exponents: np.ndarray
    bits: int

    def part(self, s: int) -> np.ndarray:
        """Return |slice s| over 2^(exponents + bits), a power of two above its row or column."""
        return _size(self.parts[s], -(s + 1) * self.bits)

    def rest(self, s: int) -> np.ndarray:
        """Return the size of the remainder before slice s over the same powers of two."""
        return _size(self.rests[s], -self.exponents - self.bits)


def _size(x: np.ndarray, exponents: Any) -> np.ndarray:
    return np.where(x == 0, 0.0, np.maximum(np.ldexp(np.abs(x), exponents), _LEAST))


def _cut(x: np.ndarray, slices: int, bits: int, axis: int) -> _Slices:
    """Cut numbers into slices; with 0 bits all slices are 0."""
    top = np.abs(x).max(axis=axis, keepdims=True, initial=0.0)
    first = np.frexp(top)[1] + 1 - bits
    parts = []
    rests = [x]
    for s in range(slices):
        unit = first - s * bits
        # Tiny numbers underflow, and their part is 0.
        scaled = np.ldexp(rests[-1], -unit)
        parts.append(np.rint(scaled) + 0.0)  # no −0, which FNUZ formats lack
        rest = np.ldexp(scaled - parts[-1], unit)
        rests.append(np.where(parts[-1] == 0, rests[-1], rest))
    return _Slices(parts, rests, first, bits)


# Products --------------------------------------------------------------------------------
@np.errstate(under="ignore")
def matmul_fp64(
    a: Any,
    b: Any,
    *,
    unit: Format | str = FP16,
    architecture: str | MatrixUnit = "hopper",
    slices: int | None = None,
) -> np.ndarray:
    """Multiply FP64 matrices a @ b on a matrix unit for a low format.

    Of n slices each, slice s of `a` and slice t of `b`, counted from 1, are multiplied if s + t is
    at most n + 1: n·(n+1)/2 products. Where a unit's accumulator is too short for slices as
    wide as its format, sums are promoted to FP32 on the way (see `mma`). With "moduli" each number
    is one wide integer, whose remainders by coprime moduli up to 256 are multiplied in INT8; the
    product is recovered from its remainders.

    NaN and infinities follow IEEE 754; an exact zero is +0; a result past FP64 is infinite.

    Args:
        a: float64, shape (M, K).
        b: float64, shape (K, N).
        unit: the format of the unit; "INT8", with 32-bit sums; or "moduli", on the same unit.
        architecture: the architecture of the unit, as in `mma`.
        slices: number of slices of each factor, or of moduli. None: as few as the sizes of the
            numbers allow if at most 2^−52 · |a| @ |b| is left out. With the final rounding the
            error is then less than 2^−51 · |a| @ |b|, apart from half the least subnormal number.

    Returns:
        float64, shape (M, N).

    Raises:
        TypeError: a factor holds no numbers.
        ValueError: shapes do not fit; the unit is unknown; the numbers differ too much in size
            for the moduli; K is too large for the accumulator.

    Exactness:
        Within `emulation_bound` of the exact product. If `slices` is given, rows do not depend on
        each other; if it is None, one number of slices is chosen for all rows together. The result
        does not depend on the order of the K terms.

    Source:
        Mukunoki, Ozaki, Ogita and Imamura 2020 (slices); Ootomo, Ozaki and Yokota 2024,
        arXiv:2306.11975 (INT8); Ozaki, Uchino and Imamura 2025, arXiv:2504.08009 (moduli).

    Examples:
        >>> a, b = np.array([[0.1, 0.2]]), np.array([[0.3], [1e-9]])
        >>> [float(matmul_fp64(a, b, slices=s)[0, 0]) for s in (1, 2, 6)]
        [0.029997557401657104, 0.03000000059546437, 0.0300000002]
    """
    left, right = _factors("matmul_fp64", a, b)
    first, second, moduli = _cut_both(
        "matmul_fp64", left, right, unit, architecture, slices
    )
    whole = _by_moduli(first, second, moduli) if moduli else _by_slices(first, second)
    shift = (len(first.parts) - 1) * first.bits
    exponents = (first.exponents + second.exponents - shift).astype(object)
    result = np.asarray(_NEAREST(whole, exponents), np.float64)
    if np.isfinite(left).all() and np.isfinite(right).all():
        return result
    with np.errstate(invalid="ignore"):  # of finite numbers only the sign matters
        signs = [np.where(np.isfinite(x), np.sign(x), x) for x in (left, right)]
        special = np.matmul(*signs)
    return np.where(np.isfinite(special), result, special)


@np.errstate(under="ignore")
def emulation_bound(
    a: Any,
    b: Any,
    *,
    unit: Format | str = FP16,
    architecture: str | MatrixUnit = "hopper",
    slices: int | None = None,
) -> np.ndarray:
    """Bound the error of `matmul_fp64` with the same arguments.

    Returns:
        float64, shape (M, N); it holds where the result is finite, and is infinite where
        |a| @ |b| is past FP64.

    Exactness:
        Rigorous: the sizes of the bits beyond the slices and of the products left out, from the
        numbers themselves, and half an ulp. Computed in float64, and raised to cover its rounding.

    Examples:
        >>> a = np.array([[0.1, 0.2]])
        >>> [f"{emulation_bound(a, a.T, slices=s)[0, 0]:.0e}" for s in (1, 2, 6)]
        ['2e-05', '9e-09', '6e-18']
    """
    name = "emulation_bound"
    left, right, _ = _cut_both(name, *_factors(name, a, b), unit, architecture, slices)
    exponents = left.exponents + right.exponents + 2 * left.bits
    with np.errstate(over="ignore"):
        omitted = np.ldexp(_omitted(left, right), exponents)
        rounding = 2.0**-53 * (np.abs(left.rests[0]) @ np.abs(right.rests[0]) + omitted)
        raised = (omitted + rounding) * (
            1 + 2.0**-50 * (left.rests[0].shape[1] + len(left.parts))
        )
    return np.asarray(raised + 2.0**-1073)


def _omitted(left: _Slices, right: _Slices) -> np.ndarray:
    """Bound the part that slices leave out, divided by the same powers of two as in `part`."""
    n = len(left.parts)
    total = left.rest(n) @ right.rest(0)
    for s in range(n):
        total = total + left.part(s) @ right.rest(n - s)
    return np.asarray(total)


def _by_slices(left: _Slices, right: _Slices) -> Any:
    """Sum the products of slices, as Python integers in units of the smallest products.

    float64 holds their sums, as every unit's accumulator does: tests/lessons/test_l17_emulation.py
    multiplies slices by `mma` on each unit, and finds the same.
    """
    total = np.array(0, object)
    for both in range(len(left.parts)):
        group = sum(left.parts[s] @ right.parts[both - s] for s in range(both + 1))
        total = (total << left.bits) + np.asarray(group).astype(np.int64).astype(object)
    return total


def _by_moduli(left: _Slices, right: _Slices, moduli: list[int]) -> Any:
    """Multiply single slices by the Chinese remainder theorem, as Python integers.

    Hardware would split a sum too long for 32 bits into blocks, with the same remainders.
    """
    product = math.prod(moduli)
    total = np.array(0, object)
    for m in moduli:
        half = m // 2  # remainders from -half, so that modulo 256 they fit INT8
        a, b = (np.mod(np.fmod(x.parts[0], m) + half, m) - half for x in (left, right))
        others = product // m
        rest = np.mod(a @ b, m).astype(np.int64).astype(object)
        total = total + rest * (others * pow(others, -1, m))
    return (total + product // 2) % product - product // 2


def _cut_both(
    function: str,
    a: np.ndarray,
    b: np.ndarray,
    unit: Any,
    architecture: Any,
    slices: Any,
) -> tuple[_Slices, _Slices, list[int]]:
    """Cut both factors, NaN and infinity as 0, into as many slices as wanted or needed.

    Also return the moduli, if any.
    """
    a, b = (np.where(np.isfinite(x), x, 0.0) for x in (a, b))
    k = a.shape[1]
    moduli = _coprime()
    bits = _unit_bits(function, k, unit, architecture)
    # Twice the bits of 2^−1074 .. 2^1024.
    most = len(moduli) if unit == "moduli" else 1 << 13
    if slices is not None:
        slices = integer(function, "slices", slices, least=1, most=most)
    for n in count(1) if slices is None else [slices]:
        some = moduli[:n] if unit == "moduli" else []
        if some:
            held = (math.prod(some) - 1) // (2 * max(k, 1))
            bits = (held.bit_length() - 1) // 2 + 1
        left, right = (
            _cut(x, 1 if some else n, bits, axis) for x, axis in ((a, 1), (b, 0))
        )
        sizes = [
            np.ldexp(np.abs(x.rests[0]), -x.exponents - bits) for x in (left, right)
        ]
        enough = _ENOUGH * np.matmul(*sizes)
        if slices is not None or (_omitted(left, right) <= enough).all():
            return left, right, some
        if n == most:
            break
    raise ValueError(
        f"{function}: a and b must have entries of less different size for unit={unit!r}; got "
        f"some for which {most} are too few. Use another unit."
    )


def _unit_bits(function: str, k: int, unit: Any, architecture: Any) -> int:
    """Return the bits of a slice, with which the sums of one step or more are exact."""
    if unit in ("INT8", "moduli"):
        return _slice_bits(k, 6, 31)  # at most 64 in size: INT8 has no +128
    parameters = unit_of(architecture, unit)
    held = min(unit.precision, unit.emax)
    kept = parameters.fraction_bits  # None: every sum is rounded to FP32
    short = 1 + min(
        FP32.precision - 1 if kept is None else kept, parameters.written_bits
    )
    most = _slice_bits(k, held, FP32.precision)
    bits = min(_slice_bits(min(k, parameters.terms), held, short), most)
    if bits < 1:
        raise ValueError(
            f"{function}: a must have at most 2^24 columns, and architecture exact sums; got {k}. "
            f"Add products of fewer columns."
        )
    return bits


def _coprime() -> list[int]:
    """List pairwise coprime integers up to 256, the largest first."""
    found: list[int] = []
    for m in range(256, 1, -1):
        if all(math.gcd(m, other) == 1 for other in found):
            found.append(m)
    return found


def _nearest(whole: int, exponent: int) -> float:
    """Round an integer times a power of two to float64, once."""
    try:
        return float(whole << exponent) if exponent >= 0 else whole / (1 << -exponent)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


_NEAREST = np.frompyfunc(_nearest, 2, 1)


def _factors(function: str, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """Convert two matrices to float64; raise if their shapes do not fit."""
    left = as_float64(function, a, "a")
    right = as_float64(function, b, "b")
    require_product(function, left, right)
    return left, right
