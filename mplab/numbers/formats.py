"""Floating-point formats, and the rounding modes and exceptions of IEEE 754.

A format is a handful of independent facts; all its other attributes are computed from them.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, IntEnum, IntFlag
from functools import cache, cached_property
from typing import Any

import ml_dtypes
import numpy as np

from mplab.common.tables import Table
from mplab.common.words import integer
from mplab.numbers import checks


class Rounding(IntEnum):
    """The direction in which a number between two values of a format is rounded.

    `STOCHASTIC` goes away from zero with the probability of the discarded fraction (see
    `mplab.Stream`). `TO_ODD` takes the neighbour with the odd significand; at one bit of
    precision, where every significand but zero is odd, the neighbour nearer to zero. P3109 formats
    go by the code instead, which differs at one bit and past the largest number, where infinity is
    odd. Rounding a finite result again, in any deterministic mode, to a format of two bits less and
    no larger range equals rounding once.

    Source:
        IEEE 754-2019 §4.3, except `STOCHASTIC` and `TO_ODD`: Boldo and Melquiond 2008,
        Emulation of FMA and correctly rounded sums. P3109: interim report 4.0 (2026), compared
        with gfloat in tests/numbers/test_gfloat.py.
    """

    TIES_TO_EVEN = 0
    TIES_TO_AWAY = 1
    TOWARD_ZERO = 2
    TOWARD_POSITIVE = 3
    TOWARD_NEGATIVE = 4
    STOCHASTIC = 5
    TO_ODD = 6


class Overflow(IntEnum):
    """The result past the largest finite value.

    `IEEE`: infinity, or NaN where the format has no infinity, or the largest finite value where it
    has neither. `SATURATE`: always the largest finite value.
    """

    IEEE = 0
    SATURATE = 1


class Tininess(IntEnum):
    """Whether tininess is detected before or after rounding (IEEE 754-2019 §7.5)."""

    AFTER = 0
    BEFORE = 1


class Event(IntFlag):
    """The exceptions of IEEE 754-2019 §7, as bits of the array that `mplab.events` returns."""

    INEXACT = 1
    UNDERFLOW = 2
    OVERFLOW = 4
    INVALID = 8
    DIVIDE_BY_ZERO = 16


class Specials(Enum):
    """The codes of a format that are not finite numbers.

    `IEEE`: the top exponent holds infinity and NaNs. `NAN_ALL_ONES`: only the code of
    all ones is NaN. `NAN_NEGATIVE_ZERO`: the code of −0 is the one NaN, so there is no
    −0. `P3109`: as before, and the last code is infinity. `NONE`: every code is a finite
    number. `TWOS_COMPLEMENT`: every code is finite, and negative numbers are two's complements;
    the lowest one, which has no positive twin, is decoded but never encoded.
    """

    IEEE = "infinity and NaN in the top exponent"
    NAN_ALL_ONES = "NaN is the code of all ones; no infinity"
    NAN_NEGATIVE_ZERO = "NaN is the code of -0; no infinity, no -0"
    P3109 = "NaN is the code of -0; infinity is the last code; no -0"
    NONE = "every code is finite"
    TWOS_COMPLEMENT = "every code is finite, in two's complement; no -0"


_WITHOUT_NEGATIVE_ZERO = (
    Specials.NAN_NEGATIVE_ZERO,
    Specials.P3109,
    Specials.TWOS_COMPLEMENT,
)

_IEEE_BIAS = -(1 << 31)
"""Stands for 2^(exponent_bits−1) − 1."""


@dataclass(frozen=True, repr=False)
class Format:
    """A binary floating-point format of up to 32 bits, or binary64, to which nothing is rounded.

    Only the fields are facts; every other attribute is derived from them.

    Args:
        name: how the format is printed.
        exponent_bits: width of the exponent field.
        precision: significand bits p, the implicit one included (FP16: 11).
        bias: stored minus unbiased exponent; 2^(exponent_bits−1) − 1 if omitted.
        specials: which codes are infinities and NaNs.
        signed: False for formats without a sign bit.
        has_zero: False where the code 0 is a power of two, not zero (E8M0).
        dtype_name: the name of the format in NumPy or ml_dtypes and in torch.
        note: aliases and source, shown when the format is printed.

    Raises:
        ValueError: the facts contradict one another, need more than 32 bits, or do not fit into
            float64: normal numbers must be normal there, subnormal ones too unless emin is
            −1022, and subnormal numbers may lie at most 2^971 apart.

    Exactness:
        All derived values are exact in float64.

    Examples:
        >>> FP16.precision, FP16.emin, FP16.emax, FP16.max_finite
        (11, -14, 15, 65504.0)
        >>> e3m4 = Format("E3M4", exponent_bits=3, precision=5)
        >>> e3m4.bits, e3m4.max_finite, e3m4.min_subnormal
        (8, 15.5, 0.015625)
    """

    name: str
    exponent_bits: int = field(kw_only=True)
    precision: int = field(kw_only=True)
    bias: int = field(kw_only=True, default=_IEEE_BIAS)
    specials: Specials = field(kw_only=True, default=Specials.IEEE)
    signed: bool = field(kw_only=True, default=True)
    has_zero: bool = field(kw_only=True, default=True)
    dtype_name: str | None = field(kw_only=True, default=None)
    note: str = field(kw_only=True, default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.specials, Specials):
            raise TypeError(
                f"Format: specials must be a Specials; got {self.specials!r}."
            )
        for width in ("exponent_bits", "precision"):
            checks.integer(
                "Format", width, getattr(self, width), least=1, most=math.inf
            )
        bias = checks.integer(
            "Format", "bias", self.bias, least=-math.inf, most=math.inf
        )
        object.__setattr__(self, "bias", bias)
        # Wider formats are rejected below.
        if self.bias == _IEEE_BIAS and self.bits <= 64:
            object.__setattr__(self, "bias", 2 ** (self.exponent_bits - 1) - 1)
        problem = self._contradiction()
        if problem:
            raise ValueError(
                f"Format: {problem}. Choose other facts for {self.name!r}."
            )

    def __hash__(self) -> int:  # fast: every call looks a format up in caches
        return hash((self.name, self.precision, self.bias))

    def _contradiction(self) -> str | None:
        """Describe the first rule that these facts break, or return None."""
        if self.bits > 32 and (self.bits, self.exponent_bits, self.precision) != (
            64,
            11,
            53,
        ):
            return f"a format must have at most 32 bits; got {integer(self.bits)}"
        if self.specials is Specials.IEEE and (self.precision < 2 or not self.has_zero):
            return f"IEEE specials must leave a NaN beside infinity; got precision {self.precision}"
        if self.specials in _WITHOUT_NEGATIVE_ZERO and not self.signed:
            return f"{self.specials.name} must have a sign bit; got signed=False"
        if self.specials is Specials.TWOS_COMPLEMENT and self.exponent_bits > 1:
            return f"two's complement must be fixed point; got exponent_bits={self.exponent_bits}"
        if self.signed and not self.has_zero:
            return "a signed format must have a zero between its halves; got has_zero=False"
        if (self.max_code >> (self.precision - 1)) < self.has_zero:
            return f"a format must have normal numbers; got exponent_bits={self.exponent_bits}"
        lowest = self.emin - self.precision + 1
        # 971: rounding adds 2^52 subnormals.
        apart = lowest > 971 or (lowest < -1022 != self.emin)
        if self.emin < -1022 or self.emax > 1023 or apart:
            return (
                "a format must embed in float64 (emin >= -1022, emax <= 1023, subnormals at "
                "2^-1022 or above unless emin = -1022, and at 2^971 or below); got "
                f"emin={integer(self.emin)}, emax={integer(self.emax)}, least subnormal "
                f"2^{integer(lowest)}"
            )
        return None

    @cached_property
    def bits(self) -> int:
        """Width of a code."""
        return self.signed + self.exponent_bits + self.precision - 1

    @cached_property
    def max_code(self) -> int:
        """The code of `max_finite`."""
        top = 1 << (self.exponent_bits + self.precision - 1)
        reserved = {Specials.IEEE: 1 << (self.precision - 1)}
        reserved |= {Specials.NAN_ALL_ONES: 1, Specials.P3109: 1}
        return top - 1 - reserved.get(self.specials, 0)

    @cached_property
    def sign_code(self) -> int:
        """The sign bit as a code; 0 in an unsigned format."""
        return 1 << (self.bits - 1) if self.signed else 0

    @cached_property
    def infinity_code(self) -> int | None:
        """The code of +infinity, or None where the format has no infinity."""
        there = self.specials in (Specials.IEEE, Specials.P3109)
        return self.max_code + 1 if there else None

    @cached_property
    def nan_code(self) -> int | None:
        """The code of NaN (quiet and positive where there is a choice), or None."""
        return {
            Specials.IEEE: self.max_code + 1 + (1 << max(self.precision - 2, 0)),
            Specials.NAN_ALL_ONES: self.max_code + 1,
            Specials.NAN_NEGATIVE_ZERO: self.sign_code,
            Specials.P3109: self.sign_code,
        }.get(self.specials)

    def fits(self, wider: Format) -> bool:
        """Whether the precision and range of `wider` take in every finite number of this format."""
        twos = Specials.TWOS_COMPLEMENT  # with one number more below zero
        more = self.specials is twos and wider.specials is not twos
        lowest = self.emin - self.precision + 1
        return (
            self.precision <= wider.precision
            and self.max_finite + more * 2.0**lowest <= wider.max_finite
            and lowest >= wider.emin - wider.precision + 1
            and self.min_subnormal >= wider.min_subnormal
            and self.signed <= wider.signed
            and self.has_zero <= wider.has_zero
        )

    @property
    def has_infinity(self) -> bool:
        """Whether ±infinity are values."""
        return self.infinity_code is not None

    @property
    def has_nan(self) -> bool:
        """Whether NaN has a code."""
        return self.nan_code is not None

    @cached_property
    def has_negative_zero(self) -> bool:
        """Whether −0 has a code."""
        return (
            self.signed
            and self.has_zero
            and self.specials not in _WITHOUT_NEGATIVE_ZERO
        )

    @cached_property
    def nan_codes(self) -> int:
        """Number of NaN codes."""
        if self.specials is Specials.IEEE:
            return (1 + self.signed) * ((1 << (self.precision - 1)) - 1)
        return {Specials.NAN_ALL_ONES: 1 + self.signed}.get(
            self.specials, int(self.has_nan)
        )

    @cached_property
    def finite_codes(self) -> int:
        """Number of codes that are finite numbers, both zeros counted."""
        infinities = (1 + self.signed) * self.has_infinity
        return (1 << self.bits) - self.nan_codes - infinities

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        return int(self.has_zero) - self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return (self.max_code >> (self.precision - 1)) - self.bias

    @cached_property
    def max_finite(self) -> float:
        """The largest finite value."""
        implicit = 1 << (self.precision - 1)
        significand = implicit + (self.max_code & (implicit - 1))
        return math.ldexp(significand, self.emax - self.precision + 1)

    @cached_property
    def min_normal(self) -> float:
        """The smallest positive normal value, 2^emin."""
        return math.ldexp(1.0, self.emin)

    @cached_property
    def min_subnormal(self) -> float:
        """The smallest positive value, 2^(emin−p+1); `min_normal` where there are no subnormals."""
        return math.ldexp(self.min_normal, (1 - self.precision) * self.has_zero)

    @cached_property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger value, 2^(1−p)."""
        return math.ldexp(1.0, 1 - self.precision)

    @cached_property
    def unit_roundoff(self) -> float:
        """Bound of the relative error of rounding to nearest in the normal range, u = 2^−p."""
        return math.ldexp(1.0, -self.precision)

    @cached_property
    def dtype(self) -> np.dtype[Any] | None:
        """The NumPy or ml_dtypes dtype with these codes, or None."""
        if self.dtype_name is None:
            return None
        scalar = getattr(np, self.dtype_name, None) or getattr(
            ml_dtypes, self.dtype_name, None
        )
        return None if scalar is None else np.dtype(scalar)

    @property
    def torch_dtype(self) -> Any:
        """The torch dtype with these codes, or None. Imports torch."""
        import torch

        if self.dtype_name is None:
            return None
        return getattr(torch, self.dtype_name, None)

    def _rows(self) -> list[tuple[str, str]]:
        """The rows of the printed description: label and text."""
        fields = (
            f"{self.exponent_bits} exponent + {self.precision - 1} trailing significand"
        )
        rows = [
            ("bits", f"{self.bits} = {'1 sign + ' * self.signed}{fields}"),
            (
                "precision p",
                f"{self.precision}, unit roundoff u = 2^{-self.precision}",
            ),
            ("exponents", f"{self.emin} .. {self.emax}, bias {self.bias}"),
            ("max finite", f"{self.max_finite:.6g}"),
            ("min normal", f"2^{self.emin} = {self.min_normal:.6g}"),
        ]
        if self.has_zero:
            lowest = self.emin - self.precision + 1
            rows.append(("min subnormal", f"2^{lowest} = {self.min_subnormal:.6g}"))
        rows.append(("specials", self.specials.value))
        return [*rows, ("also", self.note)] if self.note else rows

    def __repr__(self) -> str:
        return f"<Format {self.name}: E{self.exponent_bits}M{self.precision - 1}, bias {self.bias}>"

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {k:<14}{v}" for k, v in self._rows())])

    def _repr_html_(self) -> str:
        return Table(self.name, (), tuple(self._rows()))._repr_html_()


FP64 = Format(
    "FP64",
    exponent_bits=11,
    precision=53,
    dtype_name="float64",
    note="IEEE 754 binary64, double, Python's float: to look at, not to round to",
)

FP32 = Format(
    "FP32",
    exponent_bits=8,
    precision=24,
    dtype_name="float32",
    note="IEEE 754 binary32, torch.float32, single",
)

TF32 = Format(
    "TF32",
    exponent_bits=8,
    precision=11,
    note="NVIDIA TensorFloat-32, 19 bits stored in 32; no dtype of its own",
)

FP16 = Format(
    "FP16",
    exponent_bits=5,
    precision=11,
    dtype_name="float16",
    note="IEEE 754 binary16, torch.float16, half",
)

BF16 = Format(
    "BF16",
    exponent_bits=8,
    precision=8,
    dtype_name="bfloat16",
    note="bfloat16, torch.bfloat16",
)

FP8_E4M3 = Format(
    "FP8_E4M3",
    exponent_bits=4,
    precision=4,
    specials=Specials.NAN_ALL_ONES,
    dtype_name="float8_e4m3fn",
    note="OCP OFP8 E4M3, float8_e4m3fn in torch and ml_dtypes",
)

FP8_E5M2 = Format(
    "FP8_E5M2",
    exponent_bits=5,
    precision=3,
    dtype_name="float8_e5m2",
    note="OCP OFP8 E5M2, float8_e5m2 in torch and ml_dtypes",
)

FP8_E4M3FNUZ = Format(
    "FP8_E4M3FNUZ",
    exponent_bits=4,
    precision=4,
    bias=8,
    specials=Specials.NAN_NEGATIVE_ZERO,
    dtype_name="float8_e4m3fnuz",
    note="float8_e4m3fnuz in torch and ml_dtypes",
)

FP8_E5M2FNUZ = Format(
    "FP8_E5M2FNUZ",
    exponent_bits=5,
    precision=3,
    bias=16,
    specials=Specials.NAN_NEGATIVE_ZERO,
    dtype_name="float8_e5m2fnuz",
    note="float8_e5m2fnuz in torch and ml_dtypes",
)

FP8_E8M0 = Format(
    "FP8_E8M0",
    exponent_bits=8,
    precision=1,
    specials=Specials.NAN_ALL_ONES,
    signed=False,
    has_zero=False,
    dtype_name="float8_e8m0fnu",
    note="OCP MX scale: powers of two only; float8_e8m0fnu in torch and ml_dtypes",
)

FP6_E3M2 = Format(
    "FP6_E3M2",
    exponent_bits=3,
    precision=3,
    specials=Specials.NONE,
    dtype_name="float6_e3m2fn",
    note="OCP MX FP6, float6_e3m2fn in ml_dtypes",
)

FP6_E2M3 = Format(
    "FP6_E2M3",
    exponent_bits=2,
    precision=4,
    specials=Specials.NONE,
    dtype_name="float6_e2m3fn",
    note="OCP MX FP6, float6_e2m3fn in ml_dtypes",
)

FP4_E2M1 = Format(
    "FP4_E2M1",
    exponent_bits=2,
    precision=2,
    specials=Specials.NONE,
    dtype_name="float4_e2m1fn",
    note="OCP MX FP4, float4_e2m1fn in ml_dtypes",
)

FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        FP32,
        TF32,
        FP16,
        BF16,
        FP8_E4M3,
        FP8_E5M2,
        FP8_E4M3FNUZ,
        FP8_E5M2FNUZ,
        FP8_E8M0,
        FP6_E3M2,
        FP6_E2M3,
        FP4_E2M1,
        Format(
            "FP8_E4M3_IEEE",
            exponent_bits=4,
            precision=4,
            dtype_name="float8_e4m3",
            note="with infinities, max 240: float8_e4m3 in ml_dtypes",
        ),
        Format(
            "FP8_E3M4",
            exponent_bits=3,
            precision=5,
            dtype_name="float8_e3m4",
            note="float8_e3m4 in ml_dtypes",
        ),
        Format(
            "FP8_E4M3B11FNUZ",
            exponent_bits=4,
            precision=4,
            bias=11,
            specials=Specials.NAN_NEGATIVE_ZERO,
            dtype_name="float8_e4m3b11fnuz",
            note="float8_e4m3b11fnuz in ml_dtypes",
        ),
        *(
            Format(
                f"Binary8p{p}se",
                exponent_bits=8 - p,
                precision=p,
                bias=1 << (7 - p),
                specials=Specials.P3109,
                note="IEEE P3109, interim report 4.0 (2026): signed, extended by infinities",
            )
            for p in range(1, 8)
        ),
        Format(
            "MXINT8",
            exponent_bits=1,
            precision=7,
            bias=1,
            specials=Specials.TWOS_COMPLEMENT,
            note="OCP MX INT8: multiples of 1/64; rounding ends at 127/64 on both sides",
        ),
    )
}
"""The predefined formats by name; some are only here, not names of `mplab`."""

E4M3 = FP8_E4M3
E5M2 = FP8_E5M2


FormatLike = Any
"""A `Format`, or what names one: see `format_of`."""

_PREFIX = re.compile(r"(fp|float)[468]_")


@cache
def _named() -> dict[str, Format]:
    """Return the formats by the names that `format_of` takes."""
    known = {"half": FP16, "single": FP32, "double": FP64}
    for fmt in (FP64, *FORMATS.values()):
        for name in (fmt.name.lower(), fmt.dtype_name or fmt.name.lower()):
            known[name] = fmt
            short = _PREFIX.sub("", name)
            if short != name:
                for prefix in ("", f"fp{fmt.bits}_", f"float{fmt.bits}_"):
                    known.setdefault(prefix + short, fmt)
    return known


def format_of(named: FormatLike, *, function: str = "format_of") -> Format:
    """Find the format that a name or a dtype stands for; a `Format` stands for itself.

    Args:
        named: a `Format`; its name or the name of its dtype, in any case, with or without "FP8_";
            "half", "single" or "double"; or a dtype of NumPy, ml_dtypes or torch.
        function: the function that was called, for the message.

    Raises:
        TypeError: `named` is no format, name or dtype.
        ValueError: no predefined format has this name or the codes of this dtype.

    Examples:
        >>> [format_of(x).name for x in ("fp16", "e4m3", np.float16, "torch.bfloat16")]
        ['FP16', 'FP8_E4M3', 'FP16', 'BF16']
    """
    if isinstance(named, Format):
        return named
    kind: type[Exception] = TypeError
    name = ""
    if isinstance(named, str) or repr(type(named)) == "<class 'torch.dtype'>":
        kind = ValueError
        name = str(named).lower().removeprefix("torch.")
    elif isinstance(named, np.dtype | type):
        kind = ValueError
        name = np.dtype(named).name
    if name not in _named() and isinstance(named, str):  # as NumPy spells it: ">f2"
        with suppress(TypeError):
            name = np.dtype(named).name
    found = _named().get(name)
    if found is None:
        near = get_close_matches(str(named).lower(), _named()) or [*FORMATS]
        raise kind(
            f"{function}: fmt must be a Format, or the name or dtype of one; got "
            f"{checks.quoted(named)}. Use one of {', '.join(near)}."
        )
    return found
