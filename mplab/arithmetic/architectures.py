"""Parameters of the matrix units of GPUs, by architecture and input format."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mplab.numbers.checks import quoted
from mplab.numbers.formats import (
    BF16,
    FORMATS,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP8_E5M2FNUZ,
    FP8_E8M0,
    FP16,
    FP32,
    FP64,
    TF32,
    Format,
    Rounding,
    format_of,
)

GROUP = 16
"""Number of FP4 products that are added before the alignment."""

_ALIGNMENTS = (Rounding.TOWARD_ZERO, Rounding.TIES_TO_EVEN)

_WRITINGS = tuple(mode for mode in Rounding if mode is not Rounding.STOCHASTIC)

Input = Format | tuple[Format, Format] | type[float]
"""The format of both operands, or a pair of formats; `float` is FP64."""


@dataclass(frozen=True)
class MatrixUnit:
    """The parameters of one step of a matrix unit; the defaults are those of NVIDIA's hardware.

    Attributes:
        terms: products per step.
        fraction_bits: bits kept to the right of the largest exponent. None: nothing is aligned;
            products and sums are rounded one by one, in pairs, and C is added last. With one
            term this is a fused multiply-add.
        written_bits: fraction bits of an FP32 result.
        products_normalised: whether products are brought to [1, 2) before the alignment.
        alignment: how aligned terms are rounded, `TOWARD_ZERO` or `TIES_TO_EVEN`.
        writing: how an FP32 result is rounded.
        group: how many products are added exactly before the alignment: 1, or 16 of FP4, whose
            exponent is then that of their scales.
        sum_bits: None: C is one of the aligned terms. Else the sum of the products, rounded down
            to this many fraction bits, is added to C, rounded down to `fraction_bits`.
        lanes: number of sums, 1 or 2, to which the products go in turn, if `sum_bits` is given.
            With two, both are rounded down to the larger exponent, and C is dropped where its first
            bit lies two places or more below the last that is kept.
        flush: whether subnormal operands and results of products and sums become zero, if
            `fraction_bits` is None.
        zeros_align: whether a zero product or a zero C takes part in the alignment, with the
            exponent its operands have.
        exponent_floor: the least exponent that C and the products are aligned to; −126 is the
            exponent of zero in FP32. None: no floor.
        signed_underflow: whether a nonzero sum that rounds to zero keeps its sign, as in IEEE
            754: one product −2^−14 · 2^−14 into FP16 gives −0.

    Published models disagree on the last three, which matter to units that align. MMA-Sim as of
    January 2026 gives +0 where a negative sum underflows, because it rounds to Python's integers,
    which have no −0; it has the floor; and its zeros have the exponent −126: in BF16 and TF32 they
    align as with `zeros_align`, in other formats only if all terms are zero beside a tiny C.

    Raises:
        ValueError: a parameter is outside the range in which float64 computes the model exactly.
    """

    terms: int
    fraction_bits: int | None
    written_bits: int = 23
    products_normalised: bool = False
    alignment: Rounding = Rounding.TOWARD_ZERO
    writing: Rounding = Rounding.TOWARD_ZERO
    group: int = 1
    sum_bits: int | None = None
    lanes: int = 1
    flush: bool = False
    zeros_align: bool = False
    exponent_floor: int | None = -126
    signed_underflow: bool = True

    def __post_init__(self) -> None:
        self._require("group", (1, GROUP), "1 or 16")
        if self.group == 1:  # terms of at most 2^(38+2) units
            self._require("fraction_bits", (*range(39), None), "0 to 38, or None")
        else:  # 2^(35+7) units
            self._require("fraction_bits", range(36), "0 to 35 for groups of 16")
        if self.fraction_bits is None:
            self._require(
                "terms", [1 << k for k in range(12)], "a power of two, 1 to 2048"
            )
        elif self.group == 1:
            self._require("terms", range(1, 1 << 12), "1 to 4095")  # < 2^53 units
        else:
            self._require("terms", range(16, 1025, 16), "a multiple of 16 up to 1024")
        self._require("written_bits", range(1, 24), "1 to 23")
        self._require(
            "alignment", _ALIGNMENTS, "Rounding.TOWARD_ZERO or Rounding.TIES_TO_EVEN"
        )
        self._require("writing", _WRITINGS, "a member of Rounding, but not STOCHASTIC")
        if self.fraction_bits is None or self.group > 1:
            self._require(
                "sum_bits", (None,), "None unless products are aligned one by one"
            )
        else:
            self._require("sum_bits", (*range(39), None), "0 to 38, or None")
        self._require(
            "lanes",
            (1, 2) if self.sum_bits is not None else (1,),
            "1, or 2 of sum_bits",
        )
        self._require(
            "flush", (False, True) if self.fraction_bits is None else (False,), "False"
        )
        self._require(
            "exponent_floor", (*range(-900, 256), None), "-900 to 255, or None"
        )

    def _require(self, name: str, allowed: Sequence[Any], words: str) -> None:
        value = getattr(self, name)
        mode = isinstance(allowed[0], Rounding)
        if value not in allowed or (mode and not isinstance(value, Rounding)):
            raise ValueError(
                f"MatrixUnit: {name} must be {words}; got {quoted(value)}. Choose another unit."
            )

    @property
    def at_once(self) -> bool:
        """Whether a step aligns all its products and C to one exponent."""
        return (
            self.fraction_bits is not None and self.sum_bits is None and self.group == 1
        )


def _shared(unit: MatrixUnit, *formats: Format) -> dict[str, MatrixUnit]:
    return {fmt.name: unit for fmt in formats}


def _scaled(unit: MatrixUnit, scale: Format, *formats: Format) -> dict[str, MatrixUnit]:
    return {f"{fmt.name} * {scale.name}": unit for fmt in formats}


_FUSED = MatrixUnit(1, None)

_EIGHT = (FP8_E4M3, FP8_E5M2)

_SMALL = (*_EIGHT, FP6_E3M2, FP6_E2M3)

_AMPERE = {
    **_shared(MatrixUnit(8, 24), FP16, BF16),
    **_shared(MatrixUnit(4, 24), TF32),
    "FP64": _FUSED,
}

_HOPPER = {
    **_shared(MatrixUnit(16, 25), FP16, BF16),
    **_shared(MatrixUnit(8, 25), TF32),
    "FP64": _FUSED,
}

_BLACKWELL = {
    **_HOPPER,
    **_shared(MatrixUnit(32, 25), *_SMALL, FP4_E2M1),
    **_scaled(MatrixUnit(32, 25), FP8_E8M0, *_SMALL),
    **_scaled(MatrixUnit(64, 35, group=GROUP), FP8_E8M0, FP4_E2M1),
    **_scaled(MatrixUnit(64, 35, group=GROUP), FP8_E4M3, FP4_E2M1),
}


def _cdna3(terms: int, lanes: int = 1) -> MatrixUnit:
    nearest = Rounding.TIES_TO_EVEN
    return MatrixUnit(terms, 24, writing=nearest, sum_bits=31, lanes=lanes)


ARCHITECTURES: dict[str, dict[str, MatrixUnit]] = {
    "volta": _shared(MatrixUnit(4, 23), FP16),
    "turing": _shared(MatrixUnit(8, 24), FP16),
    "ampere": _AMPERE,
    "ada": {**_AMPERE, **_shared(MatrixUnit(16, 13, written_bits=13), *_EIGHT)},
    "hopper": {**_HOPPER, **_shared(MatrixUnit(32, 13, written_bits=13), *_EIGHT)},
    "blackwell": _BLACKWELL,
    "rtx_blackwell": _BLACKWELL,
    "cdna1": {
        **_shared(_FUSED, FP32),
        **_shared(MatrixUnit(4, None), FP16),
        **_shared(MatrixUnit(2, None), BF16),
    },
    "cdna2": {
        **_shared(_FUSED, FP32),
        **_shared(MatrixUnit(4, None, flush=True), FP16, BF16),
        "FP64": _FUSED,
    },
    "cdna3": {
        **_shared(_FUSED, FP32),
        **_shared(_cdna3(8), FP16, BF16),
        **_shared(_cdna3(4), TF32),
        **_shared(_cdna3(16, lanes=2), FP8_E4M3FNUZ, FP8_E5M2FNUZ),
        "FP64": _FUSED,
    },
}
"""Units by architecture and input format; `FP4_E2M1 * FP8_E4M3` has E4M3 block scales.

"blackwell" stands for data-centre Blackwell; the published model of "rtx_blackwell" is the same.
AMD's TF32 is its XF32. For "cdna2" and BF16 the unit is that of the newer instructions (`_1k`);
the older ones are `MatrixUnit(2, None, flush=True)`. On "cdna3" the instructions of depth 4 are
like those of depth 8 with half of the terms.

Source:
    Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ Computer Science 7:e330 (Volta, Turing,
    Ampere); Khattak and Mikaitis 2025, arXiv:2512.07004, and MMA-Sim 2025, arXiv:2511.10909
    (Ada, Hopper, Blackwell); DeepSeek-V3 2024, §3.5.2 (FP8 on Hopper keeps about 14 bits);
    MMA-Sim alone (CDNA1 to CDNA3, RTX Blackwell, FP64, block scales). No model of FP6, or of
    FP4 without scales, is published: we assume that of FP8 on the same unit.
"""


def unit_of(
    architecture: str | MatrixUnit,
    input_format: Input,
    *,
    scale_format: Format | None = None,
) -> MatrixUnit:
    """Find the matrix unit that multiplies a format on an architecture.

    Args:
        architecture: a key of `ARCHITECTURES`, or a unit of your own, which is returned.
        input_format: as in `mma`.
        scale_format: the format of block scales, if any.

    Raises:
        ValueError: the architecture is unknown, or it does not multiply this format.

    Examples:
        >>> unit_of("hopper", FP8_E4M3).fraction_bits
        13
        >>> unit_of("blackwell", FP4_E2M1, scale_format=FP8_E4M3).group
        16
    """
    if scale_format not in (None, FP8_E8M0, FP8_E4M3):
        raise ValueError(
            f"unit_of: scale_format must be FP8_E8M0 or FP8_E4M3; got {quoted(scale_format)}."
        )
    if isinstance(architecture, MatrixUnit):
        return architecture
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"unit_of: architecture must be one of {', '.join(ARCHITECTURES)}, or a MatrixUnit; "
            f"got {quoted(architecture)}. Blackwell stands for data-centre Blackwell."
        )
    units = ARCHITECTURES[architecture]
    scaled = f" * {scale_format.name}" if scale_format else ""
    wide_first = sorted(
        pair_of(input_format), key=lambda fmt: 0 if fmt is float else -fmt.bits
    )
    names = [("FP64" if fmt is float else fmt.name) + scaled for fmt in wide_first]
    paired = names[0] == names[1] or wide_first[0].bits <= 8
    ours = all(fmt is float or _is_as_named(fmt) for fmt in wide_first)
    if not (paired and ours and units.keys() >= set(names)):
        raise ValueError(
            f"unit_of: input_format must be one of {', '.join(units)} on {architecture}"
            f"{', or a pair of at most 8 bits' * ('FP8' in ''.join(units))}; got "
            f"{', '.join(dict.fromkeys(names))}. Choose another architecture, or pass a MatrixUnit."
        )
    return units[names[0]]


@lru_cache
def _is_as_named(fmt: Format) -> bool:
    """Whether a format has the numbers of the one that has its name, and no others."""
    known = FORMATS.get(fmt.name, FP64)  # any other name is no unit's
    return known.fits(fmt) and fmt.fits(known)


def pair_of(input_format: Any) -> tuple[Any, Any]:
    """Return the formats of both operands, `float` for FP64."""
    pair = input_format if isinstance(input_format, tuple) else (input_format,) * 2
    first, second = (named_or_float(fmt) for fmt in pair)
    return first, second


def named_or_float(fmt: Any) -> Any:
    """Return the format that `fmt` names; `float` stays, for FP64."""
    return fmt if fmt is float else format_of(fmt, function="mma")
