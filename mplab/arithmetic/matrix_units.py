"""What a matrix unit of a GPU computes, bit for bit: a sum that is rounded only once, and cut.

One step takes D = C + Σ of a few products, all terms at once:

1. Products are exact, with exponent e_a + e_b and a significand in [1, 4), not normalised; a
   subnormal operand has exponent emin.
2. Every term is aligned to the largest exponent, keeps F fractional bits, and is cut there.
3. The terms are added exactly.
4. The sum is normalised once and written: cut to FP32, or rounded to nearest in FP16.
5. A product with NaN or ∞ · 0, or a sum ∞ − ∞, is NaN. Finite products cannot overflow.
6. Longer sums are steps chained through C, in ascending k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from mplab.arithmetic import _checks
from mplab.arithmetic.operations import add
from mplab.numbers import checks
from mplab.numbers.checks import integer, quoted, switch
from mplab.numbers.formats import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Format,
    Rounding,
)
from mplab.numbers.rounding import round_to

_AT_ONCE = 1 << 16
"""Products held at a time: they stay in the processor's cache."""

_NEVER = -900
"""An exponent below all others: such a term does not decide the alignment."""

_FARTHEST = 400
"""Exponents of inputs, in size: float64 holds their products, and the aligned terms, exactly."""

_ALIGNMENTS = (Rounding.TOWARD_ZERO, Rounding.TIES_TO_EVEN)

_WRITINGS = tuple(mode for mode in Rounding if mode is not Rounding.STOCHASTIC)


@dataclass(frozen=True)
class MatrixUnit:
    """The parameters of one step; the defaults of the last three are what hardware does.

    Attributes:
        terms: products per step.
        fraction_bits: bits kept to the right of the largest exponent.
        written_bits: fraction bits of an FP32 result.
        products_normalised: whether products are brought to [1, 2) before the alignment.
        alignment: how aligned terms are rounded, `TOWARD_ZERO` or `TIES_TO_EVEN`.
        writing: how an FP32 result is rounded.

    Raises:
        ValueError: a parameter is none that the model is exact for in float64.
    """

    terms: int
    fraction_bits: int
    written_bits: int = 23
    products_normalised: bool = False
    alignment: Rounding = Rounding.TOWARD_ZERO
    writing: Rounding = Rounding.TOWARD_ZERO

    def __post_init__(self) -> None:
        rules: dict[str, tuple[Sequence[Any], str]] = {
            "terms": (range(1, 1 << 12), "1 to 4095"),  # terms of at most 2^(38+2) units: < 2^53
            "fraction_bits": (range(39), "0 to 38"),
            "written_bits": (range(1, 24), "1 to 23"),
            "alignment": (_ALIGNMENTS, "Rounding.TOWARD_ZERO or Rounding.TIES_TO_EVEN"),
            "writing": (_WRITINGS, "a member of Rounding, but not STOCHASTIC"),
        }
        for name, (allowed, words) in rules.items():
            given, mode = getattr(self, name), isinstance(allowed[0], Rounding)
            right = isinstance(given, Rounding if mode else Integral)
            if not right or isinstance(given, bool) or given not in allowed:
                raise ValueError(
                    f"MatrixUnit: {name} must be {words}; got {quoted(given)}. Choose another unit."
                )
        switch("MatrixUnit", "products_normalised", self.products_normalised)


def _generation(
    sixteen: tuple[int, int], tf32: int | None = None, fp8: MatrixUnit | None = None
) -> dict[str, MatrixUnit]:
    """The units of an architecture by input format; `sixteen` holds terms and fraction bits."""
    terms, bits = sixteen
    units = {FP16.name: MatrixUnit(terms, bits)}
    if tf32 is not None:
        units |= {BF16.name: MatrixUnit(terms, bits), TF32.name: MatrixUnit(tf32, bits)}
    if fp8 is not None:
        units |= {FP8_E4M3.name: fp8, FP8_E5M2.name: fp8}
    return units


ARCHITECTURES: dict[str, dict[str, MatrixUnit]] = {
    "volta": _generation((4, 23)),
    "turing": _generation((8, 24)),
    "ampere": _generation((8, 24), 4),
    "ada": _generation((8, 24), 4, MatrixUnit(16, 13, written_bits=13)),
    "hopper": _generation((16, 25), 8, MatrixUnit(32, 13, written_bits=13)),
    "blackwell": _generation((16, 25), 8, MatrixUnit(32, 25)),
}
"""Units by architecture and input format.

Source:
    Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ Computer Science 7:e330 (Volta, Turing,
    Ampere); Khattak and Mikaitis 2025, arXiv:2512.07004, and MMA-Sim 2025, arXiv:2511.10909
    (Ada, Hopper, Blackwell); DeepSeek-V3 2024, §3.5.2 (FP8 on Hopper keeps about 14 bits).
"""


def unit_of(architecture: str | MatrixUnit, input_format: Format) -> MatrixUnit:
    """The unit that multiplies a format on an architecture.

    Raises:
        TypeError: the input format is none.
        ValueError: there is no such architecture, or it does not take this format.

    Examples:
        >>> unit_of("hopper", FP8_E4M3).fraction_bits
        13
    """
    return _unit_for("unit_of", architecture, input_format)


def _unit_for(function: str, architecture: Any, input_format: Any) -> MatrixUnit:
    fmt = checks.named_format(function, "input_format", input_format)
    if isinstance(architecture, MatrixUnit):
        return architecture
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ValueError(
            f"{function}: architecture must be one of {', '.join(ARCHITECTURES)}, or a "
            f"MatrixUnit; got {quoted(architecture)}. Blackwell stands for data-centre "
            f"Blackwell."
        )
    units = ARCHITECTURES[architecture]
    if fmt.name not in units:
        raise ValueError(
            f"{function}: input_format must be one of {', '.join(units)} on {architecture}; got "
            f"{fmt.name}. Choose another architecture, or pass a MatrixUnit."
        )
    return units[fmt.name]


def mma(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    architecture: str | MatrixUnit = "hopper",
    input_format: Format = FP16,
    output_format: Format = FP32,
    promote_every: int | None = None,
    zeros_align: bool = False,
    exponent_floor: int | None = -126,
    signed_underflow: bool = True,
) -> np.ndarray:
    """The product a @ b + c as the matrix units of a GPU compute it.

    An exact sum of zero is +0. Results past the range are infinite.

    Published models disagree in three corners, which are switches. `zeros_align`: whether a zero
    product or c = 0 takes part in the alignment with the exponent its operands have (default:
    no). `exponent_floor`: the least exponent terms are aligned to (default −126, that of FP32's
    own zero; None: no floor). `signed_underflow`: whether a sum that is not zero, but rounds to
    it, keeps its sign, as IEEE 754 has it (default: yes): one product −2^−14 · 2^−14 into FP16
    gives −0. MMA-Sim as of January 2026 gives +0, because it rounds to Python's integers, which
    have no −0. The other two defaults are those of MMA-Sim.

    Args:
        a: values of `input_format`, shape (M, K).
        b: values of `input_format`, shape (K, N).
        c: values of `output_format`, shape (M, N); zeros if omitted.
        architecture: a name of `ARCHITECTURES`, or a unit of your own.
        input_format: of `a` and `b`.
        output_format: FP32 or FP16, of `c` and the result.
        promote_every: add the sum of so many terms to the result outside the unit, rounded to
            nearest in the output format, and begin the next at zero; a multiple of the terms
            of one step. None: chain all steps inside the unit.
        zeros_align: see above.
        exponent_floor: see above.
        signed_underflow: see above.

    Returns:
        float64, shape (M, N), every element a value of `output_format`.

    Raises:
        TypeError: an operand holds no floats.
        ValueError: shapes do not fit; a value is none of its format; the architecture has no
            unit for the input format, or none writes the output format.

    Exactness:
        Bit-exact with an integer oracle of the model in
        tests/arithmetic/test_matrix_units.py. The model itself is that of the
        papers named at `ARCHITECTURES`.

    Examples:
        >>> a = np.array([[1.0, 2.0**-12, -1.0]])
        >>> b = np.array([[1.0], [2.0**-13], [1.0]])
        >>> [float(mma(a, b, architecture=x)[0, 0]) for x in ("ampere", "hopper")]
        [0.0, 2.9802322387695312e-08]
    """
    unit = _unit_for("mma", architecture, input_format)
    switch("mma", "zeros_align", zeros_align)
    switch("mma", "signed_underflow", signed_underflow)
    _require_exact_products(input_format)
    left = _checks.operand("mma", "a", a, input_format)
    right = _checks.operand("mma", "b", b, input_format)
    if not isinstance(output_format, Format) or output_format not in (FP32, FP16):
        given = quoted(output_format)
        raise ValueError(f"mma: output_format must be FP32 or FP16; got {given}. Pass FP32.")
    shape = (left.shape[0], right.shape[-1]) if left.ndim == right.ndim == 2 else ()
    total = np.zeros(shape) if c is None else _checks.operand("mma", "c", c, output_format)
    if not shape or left.shape[1] != right.shape[0] or total.shape != shape:
        raise ValueError(
            f"mma: a, b and c must have shapes (M, K), (K, N) and (M, N); got {left.shape}, "
            f"{right.shape} and {total.shape}. Reshape them."
        )
    _require_options(unit, promote_every, exponent_floor)
    switches = zeros_align, exponent_floor, signed_underflow
    step = _Step(unit, input_format, output_format, *switches)
    rows = max(1, _AT_ONCE // max(1, unit.terms * shape[1]))
    parts = [
        _chained(left[i : i + rows], right, total[i : i + rows], step, promote_every)
        for i in range(0, shape[0], rows)
    ]
    return np.concatenate(parts) if parts else total


def _require_exact_products(fmt: Format) -> None:
    if fmt.precision > 26 or fmt.emax > _FARTHEST or fmt.emin - fmt.precision < -_FARTHEST:
        raise ValueError(
            f"mma: input_format must have products that are exact in float64; got {fmt!r}. Use a "
            f"format of at most 26 significand bits, with exponents in -{_FARTHEST} .. {_FARTHEST}."
        )


def _require_options(unit: MatrixUnit, promote_every: Any, exponent_floor: Any) -> None:
    wanted = "DeepSeek's choice is 128."
    if promote_every is not None and (
        integer("mma", "promote_every", promote_every, least=1, advice=wanted) % unit.terms
    ):
        raise ValueError(
            f"mma: promote_every must be a multiple of the {unit.terms} terms of a step; got "
            f"{quoted(promote_every)}. {wanted}"
        )
    whole = isinstance(exponent_floor, Integral) and not isinstance(exponent_floor, bool)
    if exponent_floor is not None and not (whole and -900 <= exponent_floor < 256):
        raise ValueError(
            f"mma: exponent_floor must be None or an integer in -900 .. 255; got "
            f"{quoted(exponent_floor)}. FP32's own is -126."
        )


def _chained(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, step: _Step, promote_every: int | None
) -> np.ndarray:
    """Some rows of the result: the steps over k, one after the other."""
    if promote_every is None:
        for k in range(0, a.shape[1], step.unit.terms):
            c = step(a[:, k : k + step.unit.terms], b[k : k + step.unit.terms], c)
        return c
    for k in range(0, a.shape[1], promote_every):
        some = a[:, k : k + promote_every], b[k : k + promote_every]
        c = add(c, _chained(*some, np.zeros(c.shape), step, None), step.output_format)
    return c


@dataclass(frozen=True)
class _Step:
    """One step: C plus a few products."""

    unit: MatrixUnit
    input_format: Format
    output_format: Format
    zeros_align: bool
    exponent_floor: int | None
    signed_underflow: bool

    def __call__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):  # in sums with infinities
            products = a[:, :, None] * b[None, :, :]
            top = self._largest_exponent(a, b, c, products) - self.unit.fraction_bits
            one, last = _power_of_two(-top), _power_of_two(top)  # the last bit kept becomes 1
            finite = all(np.isfinite(x).all() for x in (a, b, c))
            cut = np.trunc if self.unit.alignment is Rounding.TOWARD_ZERO else np.rint
            aligned = np.multiply(products, one[:, None, :], out=products if finite else None)
            units = cut(aligned, out=aligned).sum(axis=1) + cut(c * one)
            total = units * last
            written = self._written(total if finite else self._special(total, products, c))
            return written if self.signed_underflow else written + 0.0

    def _largest_exponent(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray, products: np.ndarray
    ) -> np.ndarray:
        """The exponent that the terms of each sum are aligned to."""
        if self.unit.products_normalised:
            exponents = self._exponents_of(products, -1000)
        else:
            emin = self.input_format.emin
            left, right = self._exponents_of(a, emin), self._exponents_of(b, emin)
            exponents = left[:, :, None] + right[None, :, :]
        floor = np.int16(_NEVER if self.exponent_floor is None else self.exponent_floor)
        of_c = self._exponents_of(c, self.output_format.emin)
        return np.asarray(np.maximum(exponents.max(axis=1, initial=floor), of_c))

    def _exponents_of(self, x: np.ndarray, emin: int) -> np.ndarray:
        """The exponent of each number; far below all others, if it does not take part."""
        exponents = _exponents(x, emin)
        return exponents if self.zeros_align else np.where(x == 0, np.int16(-9999), exponents)

    def _special(self, total: np.ndarray, products: np.ndarray, c: np.ndarray) -> np.ndarray:
        """The sums, and where a term was not finite, what IEEE 754 has."""
        special = ~(np.isfinite(products).all(axis=1) & np.isfinite(c))
        rest = np.where(np.isfinite(products), 0, products).sum(axis=1)
        return np.where(special, rest + np.where(np.isfinite(c), 0, c), total)

    def _written(self, total: np.ndarray) -> np.ndarray:
        """The sums in the output format."""
        if self.output_format == FP16:
            return np.asarray(round_to(total + 0.0, FP16))
        past = np.abs(total) >= 2.0 ** (FP32.emax + 1)
        if past.any():
            total = np.where(past, np.copysign(np.inf, total), total)
        return np.asarray(round_to(total + 0.0, self._register(), rounding=self.unit.writing))

    def _register(self) -> Format:
        """FP32, or what of it the unit fills."""
        bits = self.unit.written_bits
        return FP32 if bits == 23 else Format(f"E8M{bits}", exponent_bits=8, precision=bits + 1)


def _exponents(x: np.ndarray, emin: int) -> np.ndarray:
    """The exponent of each number, no less than emin; of zero, emin."""
    biased = (x.view(np.int64) >> 52) & 0x7FF
    return np.maximum((biased - 1023).astype(np.int16), np.int16(emin))


def _power_of_two(exponent: np.ndarray) -> np.ndarray:
    """2^exponent, for the normal range of float64."""
    return ((exponent.astype(np.int64) + 1023) << 52).view(np.float64)
