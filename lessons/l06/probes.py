"""Probes of matrix units: sums that distinguish their models, computed by models and on the GPU."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.arithmetic.architectures import ARCHITECTURES, Input, MatrixUnit, unit_of
from mplab.arithmetic.matrix_units import mma
from mplab.numbers.formats import (
    BF16,
    FP4_E2M1,
    FP8_E4M3,
    FP8_E5M2,
    FP8_E5M2FNUZ,
    FP8_E8M0,
    FP16,
    FP32,
    TF32,
    Format,
    Rounding,
)

_SIZE = 128
"""Rows and columns of a probe on a GPU: small or odd shapes may take another path there."""

Factors = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Rejected:
    """A model with another answer: its name, its answer, changes to the unit or to `mma`."""

    model: str
    answer: float
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One sum of products whose result depends on how it is computed.

    Attributes:
        terms: the sum in words, `|` where the next step begins.
        shows: the property of the unit that the answer shows.
        input_format: the format of the factors, as in `mma`.
        answer: the unit's answer.
        rejected: models that the answer rules out.
        steps: the factors (a, b) of each step of the unit, if `terms` does not give them; the
            rest of a step is zero.
        output_format: the format of the result.
        architecture: the architecture of the unit.
        scales: the scales of a and b by block, of 16 factors if the unit adds groups, else of
            32; missing scales are 1.
        scale_format: the format of `scales`, if there are any.
    """

    terms: str
    shows: str
    input_format: Input
    answer: float
    rejected: tuple[Rejected, ...]
    steps: tuple[Factors, ...] = ()
    output_format: Format | type[float] = FP32
    architecture: str = "hopper"
    scales: tuple[tuple[float, float], ...] = ()
    scale_format: Format = FP8_E8M0

    def _unit(self, architecture: str) -> MatrixUnit:
        scale_format = self.scale_format if self.scales else None
        return unit_of(architecture, self.input_format, scale_format=scale_format)

    @property
    def architectures(self) -> list[str]:
        """The architectures that have a unit for these formats."""
        found = []
        for name in ARCHITECTURES:
            with suppress(ValueError):
                if self._unit(name).at_once or self.output_format != FP16:
                    found.append(name)
        return found

    def factors(self, *, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The two vectors of factors: as long as all steps together, but at least `least` steps."""
        length = self._unit(self.architecture).terms
        steps = self.steps or _steps(self.terms)
        flat = np.zeros((2, length * max(len(steps), least)))
        for i, step in enumerate(steps):
            flat[:, i * length : i * length + len(step)] = (
                np.array(step).reshape(-1, 2).T
            )
        return flat[0], flat[1]

    def ask(
        self, *, architecture: str | MatrixUnit | None = None, **options: Any
    ) -> float:
        """Compute the sum with a model.

        Args:
            architecture: a name in `ARCHITECTURES`, or a `MatrixUnit`; the probe's own if omitted.
            options: options of `mma`.
        """
        a, b = self.factors()
        formats = {
            "input_format": self.input_format,
            "output_format": self.output_format,
        }
        how = {"architecture": architecture or self.architecture, **formats, **options}
        if self.scales:
            block = 16 if self._unit(self.architecture).group > 1 else 32
            more = ((1.0, 1.0),) * (len(a) // block - len(self.scales))
            of_a, of_b = np.array((*self.scales, *more)).T
            how |= {
                "scales": (of_a[None, :], of_b[:, None]),
                "scale_format": self.scale_format,
            }
        return float(mma(a[None, :], b[:, None], **how)[0, 0])


_COUNTS = {"four": 4, "seven": 7, "eight": 8, "sixteen": 16}


def _steps(terms: str) -> tuple[Factors, ...]:
    """Parse a sum in words into factors: `a*b` is split before `b`, a power of two evenly.

    Examples:
        >>> _steps("2^4 | seven 1.5*3 in FP16")[0]
        ((4.0, 4.0),)
    """
    steps = []
    for words in terms.partition(" in")[0].split("|"):
        step: list[tuple[float, float]] = []
        count = 1
        for word in words.replace(",", " ").split():
            if word in _COUNTS:
                count = _COUNTS[word]
                continue
            first, _, second = word.rpartition("*")
            step += [(_value(first), _value(second)) if first else _power(word)] * count
            count = 1
        steps.append(tuple(step))
    return tuple(steps)


def _value(word: str) -> float:
    """The value of a product such as `-1.5*2^-3`."""
    number = 1.0
    for part in word.removeprefix("-").split("*"):
        base, _, exponent = part.partition("^")
        number *= float(base) ** int(exponent or 1)
    return -number if word.startswith("-") else number


def _power(word: str) -> tuple[float, float]:
    """Split a power of two into two factors, as even as possible; 0 gives two zeros."""
    value = _value(word)
    if value == 0:
        return 0.0, 0.0
    exponent = math.frexp(value)[1] - 1
    return math.copysign(2.0 ** (exponent // 2), value), 2.0 ** (
        exponent - exponent // 2
    )


def _not(model: str, answer: float, **changes: Any) -> tuple[Rejected, ...]:
    return (Rejected(model, answer, changes),)


_NEAREST = Rounding.TIES_TO_EVEN
_BELOW_ONE = 1 - 2.0**-24
_X = 1 + 2.0**-52
_REST = ((0.0, 0.0),) * 15

PROBES = (
    Probe("1, 2^-25, -1", "25 fraction bits are kept", FP16, 2.0**-25,
          _not("24 fraction bits", 0.0, fraction_bits=24)),
    Probe("1, 2^-26, -1", "no more than 25 fraction bits are kept", FP16, 0.0,
          _not("26 fraction bits", 2.0**-26, fraction_bits=26)),
    Probe("1.5*1.5, 2^-25, -1.5*1.5", "products are not normalised before the alignment", FP16,
          2.0**-25, _not("normalised products", 0.0, products_normalised=True)),
    Probe("1, 1.5*2^-26, -1", "the alignment cuts, it does not round", FP16, 0.0,
          _not("alignment to nearest", 2.0**-25, alignment=_NEAREST),
          _steps("1, 1.5*2^-13*2^-13, -1")),
    Probe("1, -1.5*2^-26, -1", "the alignment cuts towards zero, not downwards", FP16, 0.0,
          _not("alignment to nearest", -(2.0**-25), alignment=_NEAREST),
          _steps("1, -1.5*2^-13*2^-13, -1")),
    Probe("seven 1, 2^-25, seven -1", "carries lose nothing: the sum is not normalised on the way",
          FP16, 2.0**-25, _not("one term at a time", 0.0, terms=1)),
    Probe("2^24 | sixteen 1", "sixteen products are added at once", FP16, 16777232.0,
          _not("one term at a time", 16777216.0, terms=1)),
    Probe("1, 2^-24, 2^-25 | -1", "the result is cut to FP32, not rounded", FP16, 0.0,
          _not("written to nearest", 2.0**-23, writing=_NEAREST)),
    Probe("1, 2^-13, -1 in E4M3", "for FP8, 13 fraction bits are kept", FP8_E4M3, 2.0**-13,
          _not("12 fraction bits", 0.0, fraction_bits=12)),
    Probe("1, 2^-14, -1 in E4M3", "for FP8, no more than 13 fraction bits are kept", FP8_E4M3, 0.0,
          _not("25 fraction bits", 2.0**-14, fraction_bits=25)),
    Probe("1, 1, 2^-13 in E4M3", "for FP8, the result is cut to 13 fraction bits", FP8_E4M3, 2.0,
          _not("written with 23 fraction bits", 2.0 + 2.0**-13, written_bits=23)),
    Probe("1 | 2^-14 in E4M3", "partial sums stay in the unit", FP8_E4M3, 1.0,
          _not("promoted every 32", 1.0 + 2.0**-14, promote_every=32)),
    Probe("0*2^100, 2^-60 in BF16", "disputed: a zero product does not take part in the alignment",
          BF16, 2.0**-60, _not("zeros align", 0.0, zeros_align=True)),
    Probe("sixteen 2^-153 in BF16", "disputed: exponents are not aligned below -126", BF16, 0.0,
          _not("no floor", 2.0**-149, exponent_floor=None)),
    Probe("-2^-28 into FP16", "disputed: a sum that underflows keeps its sign", FP16, -0.0,
          _not("no sign", 0.0, signed_underflow=False), output_format=FP16),
    # FP64
    Probe("-(1 + 2^-51), (1 + 2^-52)^2 in FP64",
          "FP64: a product is not rounded before it is added", float, 2.0**-104,
          _not("products rounded", 0.0, promote_every=1),
          (((-(1 + 2.0**-51), 1.0),), ((_X, _X),)), float),
    Probe("1, 0, 2^-53, 2^-53 in FP64", "FP64: one product is added after the other", float, 1.0,
          _not("two at a time", 1 + 2.0**-52, promote_every=2),
          _steps("1 | | 2^-53 | 2^-53"), float),
    # two formats
    Probe("2^-9*2^15, 2^-6, -2^-9*2^15 in E4M3 x E5M2",
          "a subnormal operand has the least exponent of its own format", (FP8_E4M3, FP8_E5M2),
          0.0, _not("normalised products", 2.0**-6, products_normalised=True)),
    Probe("0.5*2^15, 2^-11, -0.5*2^15 in E2M1 x E5M2",
          "assumed: a subnormal of FP4 has the exponent 0", (FP4_E2M1, FP8_E5M2), 0.0,
          _not("normalised products", 2.0**-11, products_normalised=True),
          _steps("0.5*2^15, 1*2^-11, -0.5*2^15"), architecture="blackwell"),
    # scales
    Probe("1 | -1, 2^-25 at the scale 2^-16 in MXFP8",
          "the scales of FP8 shift its exponents, and 25 fraction bits are kept", FP8_E4M3,
          2.0**-25, _not("24 fraction bits", 0.0, fraction_bits=24), _steps("1 | -2^16, 2^-9"),
          architecture="blackwell", scales=((1.0, 1.0), _power("2^-16"))),
    Probe("36, 2^-35, -36 in MXFP4",
          "for FP4 with scales, 35 fraction bits of the largest scale are kept", FP4_E2M1,
          2.0**-35, _not("34 fraction bits", 0.0, fraction_bits=34),
          (((6.0, 6.0), *_REST, (0.5, 0.5), *_REST, (-6.0, 6.0)),),
          architecture="blackwell", scales=((1.0, 1.0), _power("2^-33"))),
    Probe("36*2^16, 2^-19, -36*2^16 in NVFP4",
          "for NVFP4, 35 fraction bits of the largest scale are kept", FP4_E2M1,
          2.0**-19, _not("34 fraction bits", 0.0, fraction_bits=34),
          (((6.0, 6.0), *_REST, (0.5, 1.0), *_REST, (-6.0, 6.0)),), architecture="blackwell",
          scales=(_power("2^16"), _power("2^-18"), _power("2^16")), scale_format=FP8_E4M3),
    # AMD
    Probe("2^24, 1, 1, -2^24", "CDNA1: each sum is rounded, and products are added in pairs", FP16,
          1.0, (*_not("one term at a time", 0.0, terms=1),
                *_not("added at once, 24 bits", 2.0, fraction_bits=24)), architecture="cdna1"),
    Probe("2^-24 as a subnormal", "CDNA2: subnormal operands are zero", FP16, 0.0,
          _not("subnormals are kept", 2.0**-24, flush=False),
          _steps("2^-24*1"), architecture="cdna2"),
    Probe("2^24 | 1, 0, 1 in BF16", "CDNA2: four products of BF16 are added before C", BF16,
          16777218.0, _not("two products", 16777216.0, terms=2), architecture="cdna2"),
    Probe("-2^-26 | 1", "CDNA3: C is rounded down, and added after the products", FP16,
          _BELOW_ONE, _not("C aligned with the products", 1.0, sum_bits=None),
          architecture="cdna3"),
    Probe("1, 2^-24, -1", "CDNA3: 24 fraction bits of products are kept", FP16, 2.0**-24,
          _not("23 fraction bits", 0.0, fraction_bits=23), architecture="cdna3"),
    Probe("1 | 2^-24, 2^-34", "CDNA3: the sum of the products keeps 31 fraction bits beside C",
          FP16, 1.0, _not("38 fraction bits", 1 + 2.0**-23, sum_bits=38), architecture="cdna3"),
    Probe("2^26 | eight 1",
          "CDNA3: eight products are added at once, and the result is rounded to nearest", FP16,
          67108872.0, _not("four products", 67108864.0, terms=4), architecture="cdna3"),
    Probe("2^26 | | four 1 | four 1 in TF32", "CDNA3: four products of XF32 are added at once",
          TF32, 67108864.0, _not("eight products", 67108872.0, terms=8), architecture="cdna3"),
    Probe("2^128, -2^127 in BF16", "CDNA3: a product past FP32 is infinite", BF16, math.inf,
          _not("C aligned with the products", 2.0**127, sum_bits=None), architecture="cdna3"),
    Probe("1, -2^-26 in E5M2FNUZ",
          "CDNA3: in FP8, even and odd products are added apart, then rounded down", FP8_E5M2FNUZ,
          _BELOW_ONE, _not("one sum", 1.0, lanes=1), architecture="cdna3"),
    Probe("-2^-26 | 1 in E5M2FNUZ", "CDNA3: in FP8, C is dropped where all its bits are cut",
          FP8_E5M2FNUZ, 1.0, _not("C rounded down", _BELOW_ONE, lanes=1), architecture="cdna3"),
)  # fmt: skip


# On the GPU ------------------------------------------------------------------------------
@contextmanager
def tf32(wanted: bool) -> Iterator[None]:
    """Compute products and convolutions of float32 tensors in TF32 on CUDA, or in FP32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = wanted
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def product(a: Tensor, b: Tensor, fmt: Input, *, fast: bool = True) -> Tensor:
    """Multiply matrices of a format's values on their device; FP64 takes float64 tensors.

    On a CPU the product is computed in FP32, without a matrix unit.

    Args:
        a: left matrix.
        b: right matrix.
        fmt: the format in which the device multiplies, `float` for FP64; a pair has one format
            for each matrix; for E5M2 alone `b` becomes E4M3.
        fast: for FP8, whether partial sums stay in the unit.

    Raises:
        RuntimeError: the device cannot multiply this format.
    """
    if a.device.type != "cuda" or fmt is float or fmt == FP32:
        return a @ b
    if fmt == TF32:
        with tf32(True):
            return a @ b
    pair: Any = fmt if isinstance(fmt, tuple) else (fmt, partner(fmt))
    first, second = pair
    dtype = first.torch_dtype
    if dtype is None or second.torch_dtype is None:
        raise RuntimeError(f"torch has no {first.name} or no {second.name}.")
    if first.bits == 16:
        return torch.mm(a.to(dtype), b.to(dtype), out_dtype=torch.float32)
    right = b.t().contiguous().to(second.torch_dtype).t()  # must be column-major
    one = torch.ones((), dtype=torch.float32, device=a.device)
    result: Tensor = torch._scaled_mm(
        a.to(dtype),
        right,
        scale_a=one,
        scale_b=one,
        out_dtype=torch.float32,
        use_fast_accum=fast,
    )
    return result


def partner(fmt: Any) -> Any:
    """The format of the second operand: E4M3 for FP8 (no kernel has E5M2 twice), else the same."""
    return FP8_E4M3 if fmt.bits == 8 else fmt


def on_cuda(probe: Probe) -> float:
    """Compute the sum of a probe on the GPU that torch uses.

    Raises:
        RuntimeError: torch or the GPU cannot multiply this format, or the probe has scales.
    """
    if probe.scales:
        raise RuntimeError("scales of blocks are asked of the models alone.")
    wide = torch.float64 if probe.input_format is float else torch.float32
    a, b = (torch.from_numpy(x).to("cuda", wide) for x in probe.factors(least=4))
    left = a.repeat(_SIZE, 1)
    right = b[:, None].repeat(1, _SIZE)
    if probe.output_format == FP16:
        return float(_into_fp16(left, right)[0, 0])
    return float(product(left, right, probe.input_format)[0, 0])


def _into_fp16(a: Tensor, b: Tensor) -> Tensor:
    """Multiply FP16 matrices into FP16; torch may also accumulate in FP16 here."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_fp16_accumulation
    settings.allow_fp16_accumulation = True
    try:
        return a.to(torch.float16) @ b.to(torch.float16)
    finally:
        settings.allow_fp16_accumulation = before


def same(answer: float, other: float) -> bool:
    """Whether two answers are equal, signs of zeros included."""
    return answer == other and math.copysign(1, answer) == math.copysign(1, other)


def report(probe: Probe, measured: float | None) -> list[str]:
    """Format one probe: the hardware's answer (None leaves it out) and each model's answer."""
    answers = {name: probe.ask(architecture=name) for name in probe.architectures}
    answers |= {f"not: {model.model}": model.answer for model in probe.rejected}
    lines = [f"{probe.terms}: {probe.shows}"]
    if measured is not None:
        lines.append(f"  {'this GPU':<36}{measured!r}")
    for name, answer in answers.items():
        agrees = (
            ""
            if measured is None
            else "  agrees"
            if same(answer, measured)
            else "  differs"
        )
        lines.append(f"  {name:<36}{answer!r:<24}{agrees}".rstrip())
    return lines
