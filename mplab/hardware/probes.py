"""Questions that tell models of a matrix unit apart, asked of the models and of the hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.arithmetic.architectures import ARCHITECTURES, Input, MatrixUnit, unit_of
from mplab.arithmetic.matrix_units import mma
from mplab.hardware._products import product
from mplab.numbers.checks import instance, integer, number_that, quoted
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


@dataclass(frozen=True)
class Rejected:
    """A model that answers otherwise: changes to the unit, options of `mma`, and its answer."""

    model: str
    answer: float
    unit: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """One sum of products whose result depends on how it is computed.

    Attributes:
        terms: the sum in words, `|` where the next step begins.
        shows: what the answer shows.
        input_format: of the factors, as in `mma`.
        steps: the factors (a, b) of each step of the unit; the rest of a step is zero.
        answer: what the unit gives.
        rejected: models that the answer rules out.
        output_format: of the result.
        architecture: whose unit it is.
        scales: those of a and b for the blocks, of 16 factors if the unit adds groups, else of
            32; those left out are 1.
        scale_format: of `scales`, if there are any.
    """

    terms: str
    shows: str
    input_format: Input
    steps: tuple[tuple[tuple[float, float], ...], ...]
    answer: float
    rejected: tuple[Rejected, ...]
    output_format: Format | type[float] = FP32
    architecture: str = "hopper"
    scales: tuple[tuple[float, float], ...] = ()
    scale_format: Format = FP8_E8M0

    def _unit(self, architecture: str) -> MatrixUnit:
        scale_format = self.scale_format if self.scales else None
        return unit_of(architecture, self.input_format, scale_format=scale_format)

    @property
    def architectures(self) -> list[str]:
        """Those that have a unit for these formats."""
        found = []
        for name in ARCHITECTURES:
            try:
                unit = self._unit(name)
            except ValueError:
                continue
            if unit.at_once or self.output_format != FP16:
                found.append(name)
        return found

    def factors(self, *, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The two vectors, as long as all steps together, `least` steps at least.

        Raises:
            TypeError: `least` is no integer.
            ValueError: it is negative, or more than a thousand.
        """
        least = integer("Probe.factors", "least", least, most=1000)
        length = self._unit(self.architecture).terms
        flat = np.zeros((2, length * max(len(self.steps), least)))
        for i, step in enumerate(self.steps):
            flat[:, i * length : i * length + len(step)] = np.array(step).T
        return flat[0], flat[1]

    def ask(self, *, architecture: Any = None, **options: Any) -> float:
        """What the model answers.

        Args:
            architecture: a name in `ARCHITECTURES`, or a `MatrixUnit`; the probe's own if omitted.
            options: of `mma`.

        Raises:
            ValueError: there is no such architecture, or it has no unit for the input format.
        """
        architecture = self.architecture if architecture is None else architecture
        known = self.architectures
        named = isinstance(architecture, str) and architecture in known
        if not named and not isinstance(architecture, MatrixUnit):
            raise ValueError(
                f"Probe.ask: architecture must be one of {', '.join(sorted(known))}, or a "
                f"MatrixUnit; got {quoted(architecture)}. Choose one of them."
            )
        a, b = self.factors()
        formats = {"input_format": self.input_format, "output_format": self.output_format}
        how = {"architecture": architecture, **formats, **options}
        if self.scales:
            block = 16 if self._unit(self.architecture).group > 1 else 32
            more = ((1.0, 1.0),) * (len(a) // block - len(self.scales))
            of_a, of_b = np.array((*self.scales, *more)).T
            how |= {"scales": (of_a[None, :], of_b[:, None]), "scale_format": self.scale_format}
        return float(mma(a[None, :], b[:, None], **how)[0, 0])

    def ask_rejected(self, model: Rejected) -> float:
        """What a rejected model answers.

        Raises:
            TypeError: `model` is none.
        """
        advice = "Take one of probe.rejected."
        instance("Probe.ask_rejected", "model", model, Rejected, "a Rejected", advice)
        unit = replace(self._unit(self.architecture), **model.unit)
        return self.ask(architecture=unit, **model.options)


def _power(exponent: int) -> tuple[float, float]:
    """Two factors whose product is 2^exponent, as even as possible."""
    return 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


_ONE, _MINUS_ONE = (1.0, 1.0), (-1.0, 1.0)

_THREE_QUARTERS = (1.5 * 2.0**-13, 2.0**-13)

_NEAREST = {"alignment": Rounding.TIES_TO_EVEN}

_STEPWISE = {"terms": 1}

_AT_ONCE = Rejected("C aligned with the products", 1.0, {"sum_bits": None})

_BELOW_ONE = 1 - 2.0**-24

_X = 1 + 2.0**-52

_OF_FP64 = (
    Probe(
        "-(1 + 2^-51), (1 + 2^-52)^2 in FP64",
        "FP64: a product is not rounded before it is added",
        float,
        (((-(1 + 2.0**-51), 1.0),), ((_X, _X),)),
        2.0**-104,
        (Rejected("products rounded", 0.0, {}, {"promote_every": 1}),),
        float,
    ),
    Probe(
        "1, 0, 2^-53, 2^-53 in FP64",
        "FP64: one product is added after the other",
        float,
        ((_ONE,), (), (_power(-53),), (_power(-53),)),
        1.0,
        (Rejected("two at a time", 1 + 2.0**-52, {}, {"promote_every": 2}),),
        float,
    ),
)

_OF_PAIRS = (
    Probe(
        "2^-9*2^15, 2^-6, -2^-9*2^15 in E4M3 x E5M2",
        "a subnormal operand has the least exponent of its own format",
        (FP8_E4M3, FP8_E5M2),
        (((2.0**-9, 2.0**15), _power(-6), (-(2.0**-9), 2.0**15)),),
        0.0,
        (Rejected("normalised products", 2.0**-6, {"products_normalised": True}),),
    ),
    Probe(
        "0.5*2^15, 2^-11, -0.5*2^15 in E2M1 x E5M2",
        "assumed: a subnormal of FP4 has the exponent 0",
        (FP4_E2M1, FP8_E5M2),
        (((0.5, 2.0**15), (1.0, 2.0**-11), (-0.5, 2.0**15)),),
        0.0,
        (Rejected("normalised products", 2.0**-11, {"products_normalised": True}),),
        architecture="blackwell",
    ),
)

_REST = ((0.0, 0.0),) * 15

_OF_SCALES = (
    Probe(
        "1 | -1, 2^-25 at the scale 2^-16 in MXFP8",
        "the scales of FP8 shift its exponents, and 25 fraction bits are kept",
        FP8_E4M3,
        ((_ONE,), ((-(2.0**8), 2.0**8), _power(-9))),
        2.0**-25,
        (Rejected("24 fraction bits", 0.0, {"fraction_bits": 24}),),
        architecture="blackwell",
        scales=((1.0, 1.0), _power(-16)),
    ),
    Probe(
        "36, 2^-35, -36 in MXFP4",
        "for FP4 with scales, 35 fraction bits of the largest scale are kept",
        FP4_E2M1,
        (((6.0, 6.0), *_REST, (0.5, 0.5), *_REST, (-6.0, 6.0)),),
        2.0**-35,
        (Rejected("34 fraction bits", 0.0, {"fraction_bits": 34}),),
        architecture="blackwell",
        scales=((1.0, 1.0), _power(-33)),
    ),
    Probe(
        "36*2^16, 2^-19, -36*2^16 in NVFP4",
        "for NVFP4, 35 fraction bits of the largest scale are kept",
        FP4_E2M1,
        (((6.0, 6.0), *_REST, (0.5, 1.0), *_REST, (-6.0, 6.0)),),
        2.0**-19,
        (Rejected("34 fraction bits", 0.0, {"fraction_bits": 34}),),
        architecture="blackwell",
        scales=(_power(16), _power(-18), _power(16)),
        scale_format=FP8_E4M3,
    ),
)

_OF_CDNA = (
    Probe(
        "2^24, 1, 1, -2^24",
        "CDNA1: each sum is rounded, and products are added in pairs",
        FP16,
        ((_power(24), _ONE, _ONE, (-(2.0**12), 2.0**12)),),
        1.0,
        (
            Rejected("one term at a time", 0.0, _STEPWISE),
            Rejected("added at once, 24 bits", 2.0, {"fraction_bits": 24}),
        ),
        architecture="cdna1",
    ),
    Probe(
        "2^-24 as a subnormal",
        "CDNA2: subnormal operands are zero",
        FP16,
        (((2.0**-24, 1.0),),),
        0.0,
        (Rejected("subnormals are kept", 2.0**-24, {"flush": False}),),
        architecture="cdna2",
    ),
    Probe(
        "2^24 | 1, 0, 1 in BF16",
        "CDNA2: four products of BF16 are added before C",
        BF16,
        ((_power(24),), (_ONE, (0.0, 0.0), _ONE)),
        16777218.0,
        (Rejected("two products", 16777216.0, {"terms": 2}),),
        architecture="cdna2",
    ),
    Probe(
        "-2^-26 | 1",
        "CDNA3: C is rounded down, and added after the products",
        FP16,
        (((-(2.0**-13), 2.0**-13),), (_ONE,)),
        _BELOW_ONE,
        (_AT_ONCE,),
        architecture="cdna3",
    ),
    Probe(
        "1, 2^-24, -1",
        "CDNA3: 24 fraction bits of products are kept",
        FP16,
        ((_ONE, _power(-24), _MINUS_ONE),),
        2.0**-24,
        (Rejected("23 fraction bits", 0.0, {"fraction_bits": 23}),),
        architecture="cdna3",
    ),
    Probe(
        "1 | 2^-24, 2^-34",
        "CDNA3: the sum of the products keeps 31 fraction bits beside C",
        FP16,
        ((_ONE,), (_power(-24), _power(-34))),
        1.0,
        (Rejected("38 fraction bits", 1 + 2.0**-23, {"sum_bits": 38}),),
        architecture="cdna3",
    ),
    Probe(
        "2^26 | eight 1",
        "CDNA3: eight products are added at once, and the result is rounded to nearest",
        FP16,
        ((_power(26),), (_ONE,) * 8),
        67108872.0,
        (Rejected("four products", 67108864.0, {"terms": 4}),),
        architecture="cdna3",
    ),
    Probe(
        "2^26 | | four 1 | four 1 in TF32",
        "CDNA3: four products of XF32 are added at once",
        TF32,
        ((_power(26),), (), (_ONE,) * 4, (_ONE,) * 4),
        67108864.0,
        (Rejected("eight products", 67108872.0, {"terms": 8}),),
        architecture="cdna3",
    ),
    Probe(
        "2^128, -2^127 in BF16",
        "CDNA3: a product past FP32 is infinite",
        BF16,
        ((_power(128), (-(2.0**63), 2.0**64)),),
        math.inf,
        (Rejected("C aligned with the products", 2.0**127, {"sum_bits": None}),),
        architecture="cdna3",
    ),
    Probe(
        "1, -2^-26 in E5M2FNUZ",
        "CDNA3: in FP8, even and odd products are added apart, then rounded down",
        FP8_E5M2FNUZ,
        ((_ONE, (-(2.0**-13), 2.0**-13)),),
        _BELOW_ONE,
        (Rejected("one sum", 1.0, {"lanes": 1}),),
        architecture="cdna3",
    ),
    Probe(
        "-2^-26 | 1 in E5M2FNUZ",
        "CDNA3: in FP8, C is dropped where all its bits are cut",
        FP8_E5M2FNUZ,
        (((-(2.0**-13), 2.0**-13),), (_ONE,)),
        1.0,
        (Rejected("C rounded down", _BELOW_ONE, {"lanes": 1}),),
        architecture="cdna3",
    ),
)

PROBES = (
    Probe(
        "1, 2^-25, -1",
        "25 fraction bits are kept",
        FP16,
        ((_ONE, _power(-25), _MINUS_ONE),),
        2.0**-25,
        (Rejected("24 fraction bits", 0.0, {"fraction_bits": 24}),),
    ),
    Probe(
        "1, 2^-26, -1",
        "no more than 25 fraction bits are kept",
        FP16,
        ((_ONE, _power(-26), _MINUS_ONE),),
        0.0,
        (Rejected("26 fraction bits", 2.0**-26, {"fraction_bits": 26}),),
    ),
    Probe(
        "1.5*1.5, 2^-25, -1.5*1.5",
        "products are not normalised before the alignment",
        FP16,
        (((1.5, 1.5), _power(-25), (-1.5, 1.5)),),
        2.0**-25,
        (Rejected("normalised products", 0.0, {"products_normalised": True}),),
    ),
    Probe(
        "1, 1.5*2^-26, -1",
        "the alignment cuts, it does not round",
        FP16,
        ((_ONE, _THREE_QUARTERS, _MINUS_ONE),),
        0.0,
        (Rejected("alignment to nearest", 2.0**-25, _NEAREST),),
    ),
    Probe(
        "1, -1.5*2^-26, -1",
        "the alignment cuts towards zero, not downwards",
        FP16,
        ((_ONE, (-_THREE_QUARTERS[0], _THREE_QUARTERS[1]), _MINUS_ONE),),
        0.0,
        (Rejected("alignment to nearest", -(2.0**-25), _NEAREST),),
    ),
    Probe(
        "seven 1, 2^-25, seven -1",
        "carries lose nothing: the sum is not normalised on the way",
        FP16,
        ((*[_ONE] * 7, _power(-25), *[_MINUS_ONE] * 7),),
        2.0**-25,
        (Rejected("one term at a time", 0.0, _STEPWISE),),
    ),
    Probe(
        "2^24 | sixteen 1",
        "sixteen products are added at once",
        FP16,
        ((_power(24),), (_ONE,) * 16),
        16777232.0,
        (Rejected("one term at a time", 16777216.0, _STEPWISE),),
    ),
    Probe(
        "1, 2^-24, 2^-25 | -1",
        "the result is cut to FP32, not rounded",
        FP16,
        ((_ONE, _power(-24), _power(-25)), (_MINUS_ONE,)),
        0.0,
        (Rejected("written to nearest", 2.0**-23, {"writing": Rounding.TIES_TO_EVEN}),),
    ),
    Probe(
        "1, 2^-13, -1 in E4M3",
        "for FP8, 13 fraction bits are kept",
        FP8_E4M3,
        ((_ONE, _power(-13), _MINUS_ONE),),
        2.0**-13,
        (Rejected("12 fraction bits", 0.0, {"fraction_bits": 12}),),
    ),
    Probe(
        "1, 2^-14, -1 in E4M3",
        "for FP8, no more than 13 fraction bits are kept",
        FP8_E4M3,
        ((_ONE, _power(-14), _MINUS_ONE),),
        0.0,
        (Rejected("25 fraction bits", 2.0**-14, {"fraction_bits": 25}),),
    ),
    Probe(
        "1, 1, 2^-13 in E4M3",
        "for FP8, the result is cut to 13 fraction bits",
        FP8_E4M3,
        ((_ONE, _ONE, _power(-13)),),
        2.0,
        (Rejected("written with 23 fraction bits", 2.0 + 2.0**-13, {"written_bits": 23}),),
    ),
    Probe(
        "1 | 2^-14 in E4M3",
        "partial sums stay in the unit",
        FP8_E4M3,
        ((_ONE,), (_power(-14),)),
        1.0,
        (Rejected("promoted every 32", 1.0 + 2.0**-14, {}, {"promote_every": 32}),),
    ),
    Probe(
        "0*2^100, 2^-60 in BF16",
        "disputed: a zero product does not take part in the alignment",
        BF16,
        (((0.0, 2.0**100), _power(-60)),),
        2.0**-60,
        (Rejected("zeros align", 0.0, {}, {"zeros_align": True}),),
    ),
    Probe(
        "sixteen 2^-153 in BF16",
        "disputed: exponents are not aligned below -126",
        BF16,
        ((_power(-153),) * 16,),
        0.0,
        (Rejected("no floor", 2.0**-149, {}, {"exponent_floor": None}),),
    ),
    Probe(
        "-2^-28 into FP16",
        "disputed: a sum that underflows keeps its sign",
        FP16,
        (((-(2.0**-14), 2.0**-14),),),
        -0.0,
        (Rejected("no sign", 0.0, {}, {"signed_underflow": False}),),
        FP16,
    ),
    *_OF_FP64,
    *_OF_PAIRS,
    *_OF_SCALES,
    *_OF_CDNA,
)


def _require_probe(function: str, probe: object) -> None:
    instance(function, "probe", probe, Probe, "a Probe", "Take one of PROBES.")


def on_cuda(probe: Probe) -> float:
    """What the GPU that torch uses answers.

    Raises:
        TypeError: `probe` is none.
        RuntimeError: torch or the GPU cannot multiply this format, or the probe has scales.
    """
    _require_probe("on_cuda", probe)
    if probe.scales:
        raise RuntimeError("scales of blocks are asked of the models alone.")
    wide = torch.float64 if probe.input_format is float else torch.float32
    a, b = (torch.from_numpy(x).to("cuda", wide) for x in probe.factors(least=4))
    left, right = a.repeat(_SIZE, 1), b[:, None].repeat(1, _SIZE)
    if probe.output_format == FP16:
        return float(_into_fp16(left, right)[0, 0])
    return float(product(left, right, probe.input_format)[0, 0])


def _into_fp16(a: Tensor, b: Tensor) -> Tensor:
    """The product of FP16 values in FP16; here torch may also add in FP16."""
    settings = torch.backends.cuda.matmul
    before = settings.allow_fp16_accumulation
    settings.allow_fp16_accumulation = True
    try:
        return a.to(torch.float16) @ b.to(torch.float16)
    finally:
        settings.allow_fp16_accumulation = before


def same(answer: float, other: float) -> bool:
    """Whether two answers are one, signs of zeros included.

    Raises:
        TypeError: one of them is no number.
    """
    answer, other = (
        number_that("same", name, value, "a number", lambda _: True)
        for name, value in (("answer", answer), ("other", other))
    )
    return answer == other and math.copysign(1, answer) == math.copysign(1, other)


def report(probe: Probe, measured: float | None) -> list[str]:
    """The lines about one probe: the hardware's answer and that of each model.

    Args:
        probe: one of `PROBES`.
        measured: what the hardware answers; None leaves it out.

    Raises:
        TypeError: `probe` is none, or `measured` no number.
    """
    _require_probe("report", probe)
    if measured is not None:
        measured = number_that("report", "measured", measured, "a number, or None", lambda _: True)
    answers = {name: probe.ask(architecture=name) for name in probe.architectures}
    answers |= {f"not: {model.model}": model.answer for model in probe.rejected}
    lines = [f"{probe.terms}: {probe.shows}"]
    if measured is not None:
        lines.append(f"  {'this GPU':<36}{measured!r}")
    for name, answer in answers.items():
        agrees = "" if measured is None else "  agrees" if same(answer, measured) else "  differs"
        lines.append(f"  {name:<36}{answer!r:<24}{agrees}".rstrip())
    return lines
