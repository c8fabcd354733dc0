"""Questions that tell models of a matrix unit apart, asked of the models and of the hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mplab.arithmetic.matrix_units import ARCHITECTURES, MatrixUnit, mma, unit_of
from mplab.hardware._products import product
from mplab.numbers.checks import instance, integer, number_that, quoted
from mplab.numbers.formats import BF16, FP8_E4M3, FP16, FP32, Format, Rounding

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
        input_format: of the factors.
        steps: the factors (a, b) of each step on Hopper; the rest of a step is zero.
        answer: what Hopper's unit gives.
        rejected: models that the answer rules out.
        output_format: of the result.
    """

    terms: str
    shows: str
    input_format: Format
    steps: tuple[tuple[tuple[float, float], ...], ...]
    answer: float
    rejected: tuple[Rejected, ...]
    output_format: Format = FP32

    def factors(self, *, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The two vectors, as long as all steps together, `least` steps at least.

        Raises:
            TypeError: `least` is no integer.
            ValueError: it is negative, or more than a thousand.
        """
        least = integer("Probe.factors", "least", least, most=1000)
        length = unit_of("hopper", self.input_format).terms
        flat = np.zeros((2, length * max(len(self.steps), least)))
        for i, step in enumerate(self.steps):
            flat[:, i * length : i * length + len(step)] = np.array(step).T
        return flat[0], flat[1]

    def ask(self, *, architecture: Any = "hopper", **options: Any) -> float:
        """What the model answers.

        Args:
            architecture: a name in `ARCHITECTURES`, or a `MatrixUnit`.
            options: of `mma`.

        Raises:
            ValueError: there is no such architecture, or it has no unit for the input format.
        """
        known = {name for name, units in ARCHITECTURES.items() if self.input_format.name in units}
        named = isinstance(architecture, str) and architecture in known
        if not named and not isinstance(architecture, MatrixUnit):
            raise ValueError(
                f"Probe.ask: architecture must be one of {', '.join(sorted(known))}, or a "
                f"MatrixUnit; got {quoted(architecture)}. Choose one of them."
            )
        a, b = self.factors()
        formats = {"input_format": self.input_format, "output_format": self.output_format}
        how = {"architecture": architecture, **formats, **options}
        return float(mma(a[None, :], b[:, None], **how)[0, 0])

    def ask_rejected(self, model: Rejected) -> float:
        """What a rejected model answers.

        Raises:
            TypeError: `model` is none.
        """
        advice = "Take one of probe.rejected."
        instance("Probe.ask_rejected", "model", model, Rejected, "a Rejected", advice)
        unit = replace(unit_of("hopper", self.input_format), **model.unit)
        return self.ask(architecture=unit, **model.options)


def _power(exponent: int) -> tuple[float, float]:
    """Two factors whose product is 2^exponent, as even as possible."""
    return 2.0 ** (exponent // 2), 2.0 ** (exponent - exponent // 2)


_ONE, _MINUS_ONE = (1.0, 1.0), (-1.0, 1.0)

_THREE_QUARTERS = (1.5 * 2.0**-13, 2.0**-13)

_NEAREST = {"alignment": Rounding.TIES_TO_EVEN}

_STEPWISE = {"terms": 1}

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
)


def _require_probe(function: str, probe: object) -> None:
    instance(function, "probe", probe, Probe, "a Probe", "Take one of PROBES.")


def on_cuda(probe: Probe) -> float:
    """What the GPU that torch uses answers.

    Raises:
        TypeError: `probe` is none.
        RuntimeError: torch or the GPU cannot multiply this format.
    """
    _require_probe("on_cuda", probe)
    a, b = (torch.from_numpy(x).float().cuda() for x in probe.factors(least=4))
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
    answers = {
        name: probe.ask(architecture=name)
        for name, units in ARCHITECTURES.items()
        if probe.input_format.name in units
    }
    answers |= {f"not: {model.model}": model.answer for model in probe.rejected}
    lines = [f"{probe.terms}: {probe.shows}"]
    if measured is not None:
        lines.append(f"  {'this GPU':<36}{measured!r}")
    for name, answer in answers.items():
        agrees = "" if measured is None else "  agrees" if same(answer, measured) else "  differs"
        lines.append(f"  {name:<36}{answer!r:<24}{agrees}".rstrip())
    return lines
