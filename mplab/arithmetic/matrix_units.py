"""Matrix products as the matrix units of GPUs compute them, bit for bit.

Most units round a sum only once. One step computes D = C + Σ of a few products, all at once:

1. Products are exact, with exponent e_a + e_b and a significand in [1, 4), not normalised; a
   subnormal operand has exponent emin. Block scales add their exponents.
2. Every term is aligned to the largest exponent, keeps F fractional bits, and is cut there.
3. The terms are added exactly.
4. The sum is normalised once and written: cut to FP32, or rounded to nearest in FP16.
5. A product with NaN or ∞ · 0, or a sum ∞ − ∞, is NaN. Finite products cannot overflow.
6. Longer sums are steps chained through C, in ascending k.

Other units differ. FP4 with scales: sixteen products are added exactly, and their exponent is
that of the scales alone. CDNA3: products are added as above, in FP8 even and odd ones separately;
then their sums, and then C, are aligned and rounded down, and the result is rounded to nearest; a
product past FP32 is infinite. CDNA1 and CDNA2: products and sums are rounded to FP32 one by one,
in pairs. FP64, and FP32 where it is multiplied: one fused multiply-add after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mplab.arithmetic.architectures import (
    GROUP,
    Input,
    MatrixUnit,
    named_or_float,
    pair_of,
    unit_of,
)
from mplab.arithmetic.operations import add, fma
from mplab.numbers.checks import integer, quoted
from mplab.numbers.codes import require_values
from mplab.numbers.formats import (
    FP4_E2M1,
    FP8_E8M0,
    FP16,
    FP32,
    Format,
    Rounding,
    Specials,
    format_of,
)
from mplab.numbers.inputs import as_float64
from mplab.numbers.rounding import round_to

_AT_ONCE = 1 << 16
"""Number of products held at a time: they fit into the processor's cache."""

_NEVER = -900
"""An exponent below all others: a term with it does not affect the alignment."""

_FARTHEST = 400
"""Largest size of input exponents with which float64 holds products and aligned terms exactly."""

_UNSIGNED = Format(
    "UE4M3", exponent_bits=4, precision=4, specials=Specials.NAN_ALL_ONES, signed=False
)
"""E4M3 without a sign bit, for scales."""


def mma(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    architecture: str | MatrixUnit = "hopper",
    input_format: Input = FP16,
    output_format: Format | type[float] = FP32,
    scales: tuple[Any, Any] | None = None,
    scale_format: Format = FP8_E8M0,
    promote_every: int | None = None,
) -> np.ndarray:
    """Compute a @ b + c as the matrix units of a GPU do, bit for bit.

    An exact sum of zero is +0 in units that align. Results past the range are infinite. A NaN
    scale makes all products of its block NaN.

    Details on which published models disagree are parameters of `MatrixUnit`.

    Args:
        a: values of `input_format`, shape (M, K).
        b: values of `input_format`, shape (K, N).
        c: values of `output_format`, shape (M, N); zeros if omitted.
        architecture: a key of `ARCHITECTURES`, or a unit of your own.
        input_format: the format of `a` and `b`, or a pair of formats; `float` is FP64.
        output_format: the format of `c` and the result: FP32 or FP16; `float` if the input is
            FP64. FP16 only without scales, from a unit that aligns all terms at once.
        scales: factors of the blocks of `a` and `b`, shapes (M, K / block) and (K / block, N),
            block 32, or 16 if the unit adds groups of FP4.
        scale_format: the format of `scales`, FP8_E8M0 or FP8_E4M3; no scale may be negative.
        promote_every: after this many terms, a multiple of the terms of one step, add the sum
            to the result outside the unit, rounded to nearest in the output format, and start
            the next sum at zero. None: chain all steps inside the unit.

    Returns:
        float64, shape (M, N), every element a value of `output_format`.

    Raises:
        TypeError: an operand holds no numbers.
        ValueError: shapes do not fit; a value is not of its format; the architecture has no
            unit for the input format, or the unit does not write the output format.

    Exactness:
        Bit-exact with an integer oracle of the model in
        tests/arithmetic/test_matrix_units.py. The model is that of the papers
        named at `ARCHITECTURES`.

    Examples:
        >>> a = np.array([[1.0, 2.0**-12, -1.0]])
        >>> b = np.array([[1.0], [2.0**-13], [1.0]])
        >>> [
        ...     float(mma(a, b, architecture=x)[0, 0])
        ...     for x in ("ampere", "hopper", "cdna2")
        ... ]
        [0.0, 2.9802322387695312e-08, 0.0]
        >>> how = {
        ...     "architecture": "blackwell",
        ...     "input_format": FP4_E2M1,
        ...     "scale_format": FP8_E4M3,
        ... }
        >>> ones, scale = np.ones((1, 16)), np.array([[0.5]])
        >>> float(mma(ones, ones.T, scales=(scale, scale), **how)[0, 0])
        4.0
    """
    scaled = None if scales is None else format_of(scale_format, function="mma")
    output_format = named_or_float(output_format)
    unit = unit_of(architecture, input_format, scale_format=scaled)
    pair = pair_of(input_format)
    _require_formats(unit, pair, output_format, scaled)
    left, right = (
        _values(name, x, fmt) for name, x, fmt in zip("ab", (a, b), pair, strict=True)
    )
    shape = (left.shape[0], right.shape[-1]) if left.ndim == right.ndim == 2 else ()
    total = np.zeros(shape) if c is None else _values("c", c, output_format)
    if not shape or left.shape[1] != right.shape[0] or total.shape != shape:
        raise ValueError(
            f"mma: a, b and c must have shapes (M, K), (K, N) and (M, N); got {left.shape}, "
            f"{right.shape} and {total.shape}. Reshape them."
        )
    if promote_every is not None and (
        integer("mma", "promote_every", promote_every, least=1) % unit.terms
    ):
        raise ValueError(
            f"mma: promote_every must be a multiple of the {unit.terms} terms of a step; got "
            f"{promote_every}. DeepSeek's choice is 128."
        )
    step = _Step(unit, output_format)
    by: tuple[Any, Any] = None, None
    if scaled:
        by = _spread(unit, scales, scaled, left.shape, right.shape)
    if unit.flush:
        total = _flushed(total, FP32)
    first, second = (
        step.factors(x, fmt, scale, scaled)
        for x, fmt, scale in zip((left, right), pair, by, strict=True)
    )
    rows = max(1, _AT_ONCE // max(1, unit.terms * shape[1]))
    parts = [
        _chained(first[i : i + rows], second, total[i : i + rows], step, promote_every)
        for i in range(0, shape[0], rows)
    ]
    return np.concatenate(parts) if parts else total


# Arguments -------------------------------------------------------------------------------
def _values(name: str, x: Any, fmt: Any) -> np.ndarray:
    """Convert an operand to float64, and check that its values belong to `fmt` (`float`: FP64)."""
    if fmt is float:
        return as_float64("mma", x, name)
    return require_values("mma", name, x, fmt)


def _require_formats(
    unit: MatrixUnit, pair: tuple[Any, Any], output: Any, scaled: Format | None
) -> None:
    """Raise if the unit does not take these formats and scales."""
    if float in pair and (unit.fraction_bits is not None or unit.terms > 1):
        raise ValueError(
            f"mma: architecture must be one that multiplies FP64, or MatrixUnit(1, None); got "
            f"{quoted(unit)}. Take 'hopper' or 'cdna3'."
        )
    for fmt in pair:
        if fmt is not float:
            _require_exact_products(unit, fmt, scaled)
    rule = "None" + " or in FP8_E8M0" * unit.at_once
    fits = scaled is None
    if unit.group > 1:
        rule = "given, for operands in FP4_E2M1"
        fits = scaled is not None and set(pair) == {FP4_E2M1}
    if not (fits or (unit.at_once and scaled == FP8_E8M0)):
        raise ValueError(
            f"mma: scales must be {rule} with this unit; got {scaled.name if scaled else None}. "
            f"Choose another unit."
        )
    writes: tuple[Any, ...] = (float,) if float in pair else (FP32,)
    writes += (FP16,) * (unit.at_once and scaled is None)
    if output not in writes:
        names = ["float" if fmt is float else fmt.name for fmt in writes]
        raise ValueError(
            f"mma: output_format must be {' or '.join(names)}; got {quoted(output)}. Pass "
            f"{names[0]}."
        )


def _require_exact_products(
    unit: MatrixUnit, fmt: Format, scaled: Format | None
) -> None:
    far = _FARTHEST - 150 * (scaled is not None)  # two scales reach 2^254
    most = 26
    low = -far
    high = far
    if unit.fraction_bits is None:  # FP32 itself multiplies
        most = FP32.precision
        low = FP32.emin - FP32.precision
        high = FP32.emax
    if fmt.precision > most or fmt.emax > high or fmt.emin - fmt.precision < low:
        raise ValueError(
            f"mma: input_format must have products that are exact in float64; got {fmt!r}. Use a "
            f"format of at most {most} significand bits, with exponents in {low} .. {high}; FP64 "
            "itself is float."
        )


def _spread(
    unit: MatrixUnit,
    scales: Any,
    fmt: Format,
    left: tuple[int, ...],
    right: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Repeat block scales for every element of both operands."""
    unsigned = fmt if fmt == FP8_E8M0 else _UNSIGNED
    of_a, of_b = (require_values("mma", "scales", x, unsigned) for x in scales)
    for block in (32, GROUP)[: 1 + (unit.group > 1)]:
        if left[1] % block == 0:
            blocks = left[1] // block
            if (of_a.shape, of_b.shape) == ((left[0], blocks), (blocks, right[1])):
                return np.repeat(of_a, block, axis=1), np.repeat(of_b, block, axis=0)
    raise ValueError(
        f"mma: scales must have shapes (M, K / block) and (K / block, N), block 32"
        f"{' or 16' * (unit.group > 1)}, beside operands {left} and {right}; got {of_a.shape} and "
        f"{of_b.shape}. Pad K to whole blocks."
    )


# Steps -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Factors:
    """An operand multiplied by its scales, and the exponents that its elements are aligned by."""

    values: np.ndarray
    exponents: np.ndarray

    def __getitem__(self, at: Any) -> _Factors:
        return _Factors(self.values[at], self.exponents[at])


def _chained(
    a: _Factors, b: _Factors, c: np.ndarray, step: _Step, promote_every: int | None
) -> np.ndarray:
    """Compute rows of the result: the steps over k, one after the other."""
    depth = a.values.shape[1]
    if promote_every is None:
        for k in range(0, depth, step.unit.terms):
            end = k + step.unit.terms
            c = step(a[:, k:end], b[k:end], c)
        return c
    for k in range(0, depth, promote_every):
        some = a[:, k : k + promote_every], b[k : k + promote_every]
        more = _chained(*some, np.zeros(c.shape), step, None)
        if step.output_format is float:
            c = c + more
            continue
        c = add(c, more, step.output_format)
    return c


@dataclass(frozen=True)
class _Step:
    """One step of a matrix unit: C plus a few products."""

    unit: MatrixUnit
    output_format: Any

    def factors(
        self,
        x: np.ndarray,
        fmt: Any,
        scale: np.ndarray | None,
        scale_format: Format | None,
    ) -> _Factors:
        """Prepare an operand for the steps: its values, and the exponents for the alignment."""
        if self.unit.fraction_bits is None:
            values = x
            if self.unit.flush:
                values = _flushed(x, fmt)
            return _Factors(values, x)
        exponents = self._exponents_of(x, fmt.emin)
        if scale is not None and scale_format is not None:
            of_scale = self._exponents_of(scale, scale_format.emin)
            if self.unit.group > 1:  # the sum of a group, which its scale alone aligns
                exponents = np.zeros_like(exponents)
            exponents = exponents + of_scale
            x = x * scale
        return _Factors(x, exponents)

    def __call__(self, a: _Factors, b: _Factors, c: np.ndarray) -> np.ndarray:
        if self.unit.fraction_bits is None:
            return self._one_by_one(a.values, b.values, c)
        with np.errstate(invalid="ignore", over="ignore"):  # in sums with infinities
            products = a.values[:, :, None] * b.values[None, :, :]
            exponents = (
                a.exponents[:, :: self.unit.group, None]
                + b.exponents[:: self.unit.group]
            )
            if self.unit.group > 1:
                groups = len(c), exponents.shape[1], self.unit.group, c.shape[1]
                products = products.reshape(groups).sum(axis=2)
            elif self.unit.products_normalised:
                exponents = self._exponents_of(products, -1000)
            finite = all(np.isfinite(x).all() for x in (a.values, b.values, c))
            if self.unit.sum_bits is None:
                total = self._at_once(products, exponents, c, finite)
            else:
                total = self._products_first(products, exponents, c, self.unit.sum_bits)
            if not finite:
                total = self._special(total, products, c)
            written = self._written(total)
            if not self.unit.signed_underflow:
                written = written + 0.0  # −0 becomes +0
            return written

    def _one_by_one(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Add C and the products, every operation rounded: one product fused, more in pairs."""
        if self.output_format is float:
            with np.errstate(all="ignore"):
                return np.asarray(_fused(a, b, c)).astype(np.float64)
        if self.unit.terms == 1:
            return np.asarray(fma(a, b, c, FP32, flush_outputs=self.unit.flush))
        sums = fma(
            a[:, :, None], b[None, :, :], 0.0, FP32, flush_outputs=self.unit.flush
        )
        missing = self.unit.terms - sums.shape[1]
        sums = np.pad(sums, ((0, 0), (0, missing), (0, 0)))
        while sums.shape[1] > 1:
            sums = add(sums[:, ::2], sums[:, 1::2], FP32, flush_outputs=self.unit.flush)
        return np.asarray(add(c, sums[:, 0], FP32, flush_outputs=self.unit.flush))

    def _at_once(
        self, products: np.ndarray, exponents: np.ndarray, c: np.ndarray, finite: bool
    ) -> np.ndarray:
        """Sum all terms, aligned to the largest exponent."""
        top = self._top(exponents, c) - self._bits
        # The last bit kept becomes 1.
        one = _power_of_two(-top)
        last = _power_of_two(top)
        aligned = np.multiply(
            products, one[:, None, :], out=products if finite else None
        )
        units = self._cut(aligned, out=aligned).sum(axis=1) + self._cut(c * one)
        return np.asarray(units * last)

    def _products_first(
        self, products: np.ndarray, exponents: np.ndarray, c: np.ndarray, sum_bits: int
    ) -> np.ndarray:
        """Sum the products, then add C; the later alignments round down."""
        lanes = self.unit.lanes
        lane_sums = []
        tops = []
        for lane in range(lanes):
            own = exponents[:, lane::lanes].max(axis=1, initial=_NEVER)
            bit = (own - self._bits)[:, None, :]
            tops.append(own)
            lane_sums.append(
                _to_bit(products[:, lane::lanes], bit, self._cut).sum(axis=1)
            )
        top = np.maximum.reduce(tops)
        total = sum(_to_bit(x, top - self._bits, np.floor) for x in lane_sums)
        last = self._top(top[:, None, :], c)
        rest = _to_bit(c, last - self._bits, np.floor)
        if lanes > 1:
            rest = np.where(
                self._exponents_of(c, FP32.emin) < last - self._bits - 1, 0.0, rest
            )
        past = _past_fp32(products).sum(axis=1)
        return np.asarray(_to_bit(total, last - sum_bits, np.floor) + rest + past)

    @property
    def _bits(self) -> int:
        return self.unit.fraction_bits or 0

    @property
    def _cut(self) -> Any:
        return np.trunc if self.unit.alignment is Rounding.TOWARD_ZERO else np.rint

    def _top(self, exponents: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Return the exponent that C and other terms are aligned to."""
        floor = self.unit.exponent_floor
        if floor is None:
            floor = _NEVER
        of_c = self._exponents_of(c, self.output_format.emin)
        return np.asarray(
            np.maximum(exponents.max(axis=1, initial=np.int16(floor)), of_c)
        )

    def _exponents_of(self, x: np.ndarray, emin: int) -> np.ndarray:
        """Return the exponent of each number; far below all others for zeros that do not align."""
        exponents = _exponents(x, emin)
        if not self.unit.zeros_align:
            exponents = np.where(x == 0, np.int16(-9999), exponents)
        return exponents

    def _special(
        self, total: np.ndarray, products: np.ndarray, c: np.ndarray
    ) -> np.ndarray:
        """Replace sums with a term that is not finite by the result of IEEE 754."""
        special = ~(np.isfinite(products).all(axis=1) & np.isfinite(c))
        kept = np.where(np.isfinite(products), 0, products)
        if self.unit.sum_bits is not None:
            kept = kept + _past_fp32(products)
        rest = kept.sum(axis=1)
        return np.where(special, rest + np.where(np.isfinite(c), 0, c), total)

    def _written(self, total: np.ndarray) -> np.ndarray:
        """Round the sums to the output format."""
        if self.output_format == FP16:
            return np.asarray(round_to(total + 0.0, FP16))
        past = np.abs(total) >= 2.0 ** (FP32.emax + 1)
        if past.any():
            total = np.where(past, np.copysign(np.inf, total), total)
        return np.asarray(
            round_to(total + 0.0, self._register(), rounding=self.unit.writing)
        )

    def _register(self) -> Format:
        """Return FP32, or the shorter format that the unit writes."""
        bits = self.unit.written_bits
        if bits == 23:
            return FP32
        return Format(f"E8M{bits}", exponent_bits=8, precision=bits + 1)


def _exponents(x: np.ndarray, emin: int) -> np.ndarray:
    """Return the exponent of each number, at least emin; emin for zero."""
    biased = (x.view(np.int64) >> 52) & 0x7FF
    return np.maximum((biased - 1023).astype(np.int16), np.int16(emin))


def _to_bit(x: np.ndarray, exponent: np.ndarray, cut: Any) -> Any:
    """Round numbers to multiples of 2^exponent by `cut`."""
    return cut(x * _power_of_two(-exponent)) * _power_of_two(exponent)


def _past_fp32(products: np.ndarray) -> np.ndarray:
    """Return infinities for products past FP32, else 0."""
    return np.where(np.abs(products) >= 2.0 ** (FP32.emax + 1), products * np.inf, 0.0)


def _flushed(x: np.ndarray, fmt: Format) -> np.ndarray:
    """Replace the subnormal numbers of a format by +0."""
    return np.where(np.abs(x) < fmt.min_normal, 0.0, x)


def _fused_multiply_add(a: float, b: float, c: float) -> float:
    """Compute a·b + c in float64, rounded once to nearest."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):  # whatever a * b would overflow to
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        # A zero with its IEEE 754 sign.
        return float(exact) if exact else a * b + c
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_fused = np.frompyfunc(_fused_multiply_add, 3, 1)


def _power_of_two(exponent: np.ndarray) -> np.ndarray:
    """Return 2^exponent, in the normal range of float64."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)
