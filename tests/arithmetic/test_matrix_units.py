"""The matrix unit against an oracle in integers."""

from dataclasses import replace
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from cases import assert_same_bits
from matrix_oracle import block, chained, one_step

import mplab
from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Format, Rounding
from mplab.arithmetic import ARCHITECTURES, MatrixUnit, mma, unit_of
from mplab.lessons.l06 import probes

# The model again, in integers -----------------------------------------------------------


NVIDIA = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
PAIRS = [
    (name, fmt)
    for name in NVIDIA
    for fmt, unit in ARCHITECTURES[name].items()
    if unit.at_once and fmt in mplab.FORMATS
]


def slow_mma(a, b, c, architecture, fmt, output, **switches):
    unit = ARCHITECTURES[architecture][fmt.name]
    facts = unit.terms, unit.fraction_bits, unit.written_bits

    def step(row, column, total, _):
        return one_step(row, column, total, (fmt, fmt), output, *facts, **switches)

    return chained(a, b, c, unit.terms, step)


def slow_unless_of(*architectures):
    """The units of all architectures; those of the others are for the slow tests."""
    return [
        pytest.param(*pair, marks=() if pair[0] in architectures else pytest.mark.slow)
        for pair in PAIRS
    ]


@pytest.mark.parametrize("kind", ["near", "far", "low", "high", "codes"])
@pytest.mark.parametrize(("architecture", "name"), slow_unless_of("hopper"))
def test_random_blocks_are_those_of_the_integer_oracle(architecture, name, kind):
    fmt = mplab.FORMATS[name]
    rng = np.random.default_rng(
        [*architecture.encode(), *name.encode(), *kind.encode()]
    )
    outputs = (FP32, FP16) if name in ("FP16", "FP8_E4M3", "FP8_E5M2") else (FP32,)
    for output in outputs:
        a, b, c = block(kind, (fmt, fmt), output, rng, (4, 70, 5))
        how = {
            "architecture": architecture,
            "input_format": fmt,
            "output_format": output,
        }
        want = slow_mma(a, b, c, architecture, fmt, output)
        assert_same_bits(mma(a, b, c, **how), want)


@pytest.mark.parametrize("zeros_align", [False, True])
@pytest.mark.parametrize("floor", [-126, None])
def test_the_disputed_corners_are_those_of_the_oracle_too(zeros_align, floor):
    rng = np.random.default_rng(9)
    for fmt in (FP16, BF16, FP8_E4M3):
        a, b, c = block("low", (fmt, fmt), FP32, rng, (4, 40, 4))
        a, b = (np.where(rng.random(x.shape) < 0.7, 0.0, x) for x in (a, b))
        c = np.where(rng.random(c.shape) < 0.5, 0.0, c)
        switches = {"zeros_align": zeros_align}
        unit = replace(unit_of("hopper", fmt), exponent_floor=floor, **switches)
        got = mma(a, b, c, input_format=fmt, architecture=unit)
        want = slow_mma(a, b, c, "hopper", fmt, FP32, floor=floor, **switches)
        assert_same_bits(got, want)


# Probes ---------------------------------------------------------------------------------


def test_a_product_that_underflows_into_fp16_keeps_its_sign_and_a_probe_asks_for_it():
    a = row(-(2.0**-14))
    b = column(2.0**-14)
    assert_same_bits(mma(a, b, output_format=FP16), [[-0.0]])
    unsigned = replace(unit_of("hopper", FP16), signed_underflow=False)
    assert_same_bits(mma(a, b, output_format=FP16, architecture=unsigned), [[0.0]])
    assert_same_bits(mma(a, b, architecture=unsigned), [[-(2.0**-28)]])
    least = {"input_format": BF16, "architecture": unsigned}
    tiny = row(*[-(2.0**-75)] * 2), column(*[2.0**-75] * 2)
    assert_same_bits(mma(*tiny, input_format=BF16), [[-(2.0**-149)]])
    assert_same_bits(mma(tiny[0][:, :1], tiny[1][:1], input_format=BF16), [[-0.0]])
    assert_same_bits(mma(tiny[0][:, :1], tiny[1][:1], **least), [[0.0]])
    (probe,) = (p for p in probes.PROBES if p.output_format == FP16)
    assert "-0.0" in "".join(probes.report(probe, None))
    for measured, hopper, rejected in (
        (-0.0, "agrees", "differs"),
        (0.0, "differs", "agrees"),
    ):
        lines = probes.report(probe, measured)
        assert any("hopper" in line and line.endswith(hopper) for line in lines)
        assert any("not: no sign" in line and line.endswith(rejected) for line in lines)


# Rules ----------------------------------------------------------------------------------


def column(*terms):
    return np.array(terms)[:, None]


def row(*terms):
    return np.array(terms)[None, :]


def test_products_past_fp32_do_not_overflow_before_the_sum():
    big = 2.0**127
    assert mma(row(big, -big), column(big, big), input_format=BF16) == 0.0
    assert mma(row(big), column(4.0), input_format=BF16) == inf
    assert mma(row(big, big), column(1.0, 1.0), input_format=BF16) == inf
    assert mma(row(-big), column(big), input_format=BF16) == -inf


def test_an_fp16_result_is_rounded_to_nearest_and_overflows_to_infinity():
    half_up = row(1.0, 2.0**-11, 2.0**-12)
    assert mma(half_up, column(1.0, 1.0, 1.0), output_format=FP16) == 1.0 + 2.0**-10
    assert mma(row(65504.0, 16.0), column(1.0, 1.0), output_format=FP16) == inf


def test_row_blocks_do_not_change_the_result():
    rng = np.random.default_rng(13)
    a, b = (
        mplab.round_to(rng.standard_normal(s), FP16) for s in ((300, 32), (32, 200))
    )
    whole = mma(a, b)
    assert_same_bits(whole[250:251], mma(a[250:251], b))


# Arguments ------------------------------------------------------------------------------


def test_operands_and_formats_are_those_of_the_unit():
    one = np.ones((1, 1))
    with pytest.raises(
        ValueError, match="input_format must be one of FP16 on volta; got BF16"
    ):
        mma(one, one, architecture="volta", input_format=BF16)
    with pytest.raises(ValueError, match=r"mma: a must hold values of FP16; got 0\.1"):
        mma(np.full((1, 1), 0.1), one)
    assert (
        unit_of("hopper", TF32).terms == 8 and unit_of("hopper", FP8_E5M2).terms == 32
    )


@pytest.mark.parametrize(
    "facts",
    [{"exponent_bits": 11, "precision": 8}, {"exponent_bits": 2, "precision": 29}],
    ids=["range", "precision"],
)
def test_a_format_whose_products_float64_does_not_hold_is_refused(facts):
    fmt = Format("odd", **facts)  # 2^700 · 2^700 − 2^700 · 2^700 was NaN
    with pytest.raises(
        ValueError, match=r"^mma: input_format must have products that are exact"
    ):
        mma(row(1.0), column(1.0), architecture=MatrixUnit(4, 23), input_format=fmt)


def test_the_largest_unit_is_still_exact():
    unit = MatrixUnit(4095, 38)
    x = np.full((1, 4095), 2 - 2.0**-10)
    total = 4095 * Fraction(2 - 2.0**-10) ** 2
    cut = mplab.round_to(float(total), FP32, rounding=Rounding.TOWARD_ZERO)
    assert mma(x, x.T, architecture=unit)[0, 0] == cut


@pytest.mark.parametrize(
    ("precision", "bias", "taken"),
    [
        (24, 15, True),
        (25, 15, False),
        (11, -97, True),  # the largest exponent is 127
        (11, -98, False),
        (11, 140, True),  # the smallest subnormal is 2^-149
        (11, 141, False),
    ],
)
def test_a_unit_that_multiplies_in_fp32_takes_formats_up_to_its_limits(
    precision, bias, taken
):
    """Products of what lies past them would not be exact."""
    fmt = Format("edge", exponent_bits=5, precision=precision, bias=bias)
    zeros = np.zeros((2, 2))
    unit = MatrixUnit(1, None)
    if taken:
        assert not mma(zeros, zeros, input_format=fmt, architecture=unit).any()
    else:
        with pytest.raises(ValueError, match="products that are exact in float64"):
            mma(zeros, zeros, input_format=fmt, architecture=unit)
