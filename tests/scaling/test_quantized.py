"""Tensors as codes and scales, against torch, ml_dtypes, and the MX rules in fractions."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import assert_same_bits, stream_for
from networks import normal
from oracle import (
    mx_exponent,
    power,
    round_fraction,
    value_of_code,
)

from mplab import FORMATS, FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2, FP8_E8M0
from mplab.numbers import Format, Overflow, Rounding, decode, round_to
from mplab.scaling import (
    MX_BLOCK,
    Quantized,
    ScaleRule,
    amax_of,
    dequantize,
    hadamard,
    quantize,
    scale_for,
)
from mplab.scaling.quantized import fake_quantize, multiply_and_round

SMALL = [fmt for fmt in FORMATS.values() if fmt.bits <= 8]
ONE_BY_ONE = [rule for rule in ScaleRule if rule is not ScaleRule.NVFP4]
MX_RULES = [ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL]
ELEMENTS = [FP8_E4M3, FP8_E5M2, FP6_E3M2, FP6_E2M3, FP4_E2M1]

every_element = pytest.mark.parametrize("fmt", ELEMENTS, ids=lambda fmt: fmt.name)


# Codes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [f for f in SMALL if f.dtype], ids=lambda fmt: fmt.name)
def test_all_codes_of_ml_dtypes_are_ours(fmt):
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    numbers = codes.view(fmt.dtype).astype(np.float32)
    ours = Quantized(torch.from_numpy(codes), torch.tensor(1.0), fmt)
    assert_same_bits(dequantize(ours).numpy(), numbers)
    known = ~np.isnan(numbers)
    given = torch.from_numpy(numbers)
    back = quantize(given, fmt, scale=1.0, overflow=Overflow.IEEE).codes.numpy()
    assert back[known].tolist() == codes[known].tolist()
    assert {*back[~known].tolist()} <= {fmt.nan_code}


@pytest.mark.parametrize("scale", [1.0, 0.0078125, 3.0, 149.33333])
@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name)
def test_codes_are_those_of_torch_s_product_and_cast(fmt, scale):
    x = normal(4000, spread=20) * 2.0**-4
    # Torch saturates since 2.12.
    x = x.clamp(-fmt.max_finite / scale, fmt.max_finite / scale)
    got = quantize(x, fmt, scale=scale)
    assert torch.equal(got.codes, (x * scale).to(fmt.torch_dtype).view(torch.uint8))


def test_other_dtypes_are_taken_at_their_values_and_a_float64_is_rounded_once():
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x = normal(100).to(dtype)
        wide = quantize(x.float(), FP8_E4M3)
        assert torch.equal(quantize(x, FP8_E4M3).codes, wide.codes)
    # Just past a midpoint of E4M3.
    x = torch.tensor([1.0625 + 2.0**-40], dtype=torch.float64)
    assert dequantize(quantize(x, FP8_E4M3, scale=1.0)).item() == 1.125
    assert dequantize(quantize(x.float(), FP8_E4M3, scale=1.0)).item() == 1.0


@pytest.mark.parametrize("overflow", Overflow)
@pytest.mark.parametrize("rounding", Rounding)
def test_every_way_in_hands_its_options_to_the_one_definition(rounding, overflow):
    x = torch.cat([normal(64, seed=1), torch.tensor([465.0, -1e4])])
    how = {"rounding": rounding}
    for way in (
        lambda **options: quantize(x, FP8_E4M3, scale=1.0, **options).values,
        lambda **options: fake_quantize(x, FP8_E4M3, scale=1.0, **options),
        lambda **options: multiply_and_round(x, torch.tensor(1.0), FP8_E4M3, **options),
    ):
        how = {"rounding": rounding, "overflow": overflow}
        expected = round_to(x.numpy(), FP8_E4M3, stream=stream_for(rounding), **how)
        assert_same_bits(way(stream=stream_for(rounding), **how).numpy(), expected)


def test_a_transposed_or_parameter_tensor_is_quantized_as_its_copy():
    x = normal(6, 8)
    assert torch.equal(
        quantize(x.T, FP8_E4M3).codes, quantize(x.T.contiguous(), FP8_E4M3).codes
    )
    got = quantize(torch.nn.Parameter(x), FP8_E4M3)
    assert not got.scale.requires_grad
    assert torch.equal(x, normal(6, 8))


# Scales --------------------------------------------------------------------------------


def test_zeros_have_the_scale_one_and_stay_zeros():
    got = quantize(torch.zeros(4), FP8_E4M3)
    assert (got.scale.item(), dequantize(got).tolist()) == (1.0, [0.0] * 4)
    empty = quantize(torch.zeros(0), FP8_E4M3)
    assert (empty.scale.item(), empty.codes.shape) == (1.0, (0,))
    assert amax_of(torch.zeros(0, 4), block=(2,)).shape == (0, 2)


def test_a_float64_tensor_past_float32_is_quantized_as_it_would_be_within():
    x = normal(64, spread=3).double()
    x *= 2.0**127 / x.abs().max()
    for rule, block in itertools.product(ONE_BY_ONE, (None, (16,))):
        much = fake_quantize(x * 2.0**4, FP8_E4M3, scale=rule, block=block)
        assert torch.equal(
            much, 2.0**4 * fake_quantize(x, FP8_E4M3, scale=rule, block=block)
        )
        assert much.isfinite().all()
        assert fake_quantize(x * 2.0**40, FP8_E4M3, scale=rule).isnan().all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@every_element
def test_an_infinity_or_a_nan_is_never_taken_for_a_number(fmt, bad):
    for rule in ScaleRule:
        got = dequantize(quantize(torch.tensor([1.0, bad, 0.0]), fmt, scale=rule))
        assert got.isnan().all()
    blocks = torch.cat([torch.ones(32), torch.tensor([bad]), torch.ones(31)])
    got = dequantize(quantize(blocks, fmt, scale=ScaleRule.MX, block=MX_BLOCK))
    assert torch.equal(got[:32], torch.ones(32))
    assert got[32:].isnan().all()


# Blocks --------------------------------------------------------------------------------


def slow_mx(block, fmt, rule):
    """One block of 32 numbers as OCP MX v1.0 stores it: E8M0 code of the scale, and values."""
    exact = [Fraction(float(v)) for v in block]
    most = max(abs(v) for v in exact)
    shared = mx_exponent(most, fmt, rule) if most else -127
    shared = max(-127, min(127, shared))
    rounded = [
        round_fraction(v / power(shared), fmt, Rounding.TIES_TO_EVEN, Overflow.SATURATE)
        for v in exact
    ]
    return shared + 127, [r * float(power(shared)) for r in rounded]


@every_element
@pytest.mark.parametrize("rule", MX_RULES)
def test_mx_blocks_are_those_of_the_rules_in_fractions(fmt, rule):
    x = torch.cat([
        normal(8, 64, seed=2, spread=3), normal(4, 64, seed=3, spread=40), torch.zeros(1, 64),
        torch.full((1, 64), 1.75 * 2.0**5), normal(1, 64, seed=4) * 2.0**-140,
        normal(1, 64, seed=5).clamp(-1, 1) * 2.0**126,
    ])  # fmt: skip
    got = quantize(x, fmt, scale=rule, block=MX_BLOCK)
    assert got.scale.shape == got.scale_codes.shape == (16, 2)
    values = dequantize(got)
    for row in range(16):
        for part in range(2):
            here = slice(32 * part, 32 * part + 32)
            code, expected = slow_mx(x[row, here], fmt, rule)
            assert got.scale_codes[row, part] == code
            assert_same_bits(values[row, here].numpy(), np.float32(expected))
    assert all(value_of_code(int(c), FP8_E8M0) > 0 for c in got.scale_codes.flatten())


@pytest.mark.parametrize("block", [(4,), (1, 4), (3, 4), (2, 3, 4), (6, 8), (1, 1, 1)])
def test_a_block_is_quantized_as_a_tensor_of_its_own(block):
    x = normal(2, 6, 8, seed=6, spread=5)
    got = quantize(x, FP8_E5M2, block=block)
    values = dequantize(got)
    full = (1,) * (3 - len(block)) + block
    assert got.scale.shape == tuple(n // b for n, b in zip(x.shape, full, strict=True))
    for place in np.ndindex(*got.scale.shape):
        here = tuple(slice(i * b, i * b + b) for i, b in zip(place, full, strict=True))
        alone = quantize(x[here], FP8_E5M2)
        assert got.scale[place] == alone.scale
        assert torch.equal(values[here], dequantize(alone))
        assert torch.equal(got.codes[here], alone.codes)


# Bad input -----------------------------------------------------------------------------


def test_what_cannot_be_quantized_is_refused_with_advice():
    x = torch.ones(4)
    nan = torch.tensor([math.nan])
    for message, call in {
        r"must have the shape \(2,\)": lambda: quantize(
            x, FP8_E4M3, scale=x[:3], block=(2,)
        ),
        "not hold NaN, which FP4_E2M1 lacks": lambda: quantize(
            nan, FP4_E2M1, scale=1.0
        ),
        "one that needs a single amax": lambda: scale_for(
            1.0, FP4_E2M1, rule=ScaleRule.NVFP4
        ),
        "positive and finite": lambda: quantize(x, FP8_E4M3, scale=math.inf),
        "fmt must fit in float32; got low": lambda: quantize(
            x.double(), Format("low", exponent_bits=4, precision=4, bias=200)
        ),
        "must be a floating-point tensor .*; got list": lambda: quantize(
            [1.0], FP8_E4M3
        ),
        r"signs divide; got shape \(4,\)": lambda: hadamard(x),
        r"signs divide; got shape \(\)": lambda: hadamard(x[0]),
    }.items():
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_scales_that_are_no_powers_of_two_have_no_e8m0_code():
    with pytest.raises(ValueError, match="must hold values of FP8_E8M0"):
        _ = quantize(torch.tensor([3.0]), FP8_E4M3, scale=ScaleRule.RATIO).scale_codes
    assert (
        decode(quantize(torch.tensor([3.0]), FP8_E4M3).scale_codes.item(), FP8_E8M0)
        == 2.0**-7
    )


@pytest.mark.parametrize(
    "fmt", [f for f in SMALL if f.signed], ids=lambda fmt: fmt.name
)
def test_fake_quantization_is_there_and_back(fmt):
    x = normal(6, 8, seed=8, spread=4)
    for rule, block in itertools.product(ScaleRule, (None, (8,), (3, 4))):
        expected = dequantize(quantize(x, fmt, scale=rule, block=block))
        assert_same_bits(
            fake_quantize(x, fmt, scale=rule, block=block).numpy(), expected.numpy()
        )


def test_no_gradient_passes_unless_a_zero_that_has_one_is_added():
    x = torch.linspace(-2, 500, 64, requires_grad=True)  # beyond the range as well
    rounded = fake_quantize(x, FP8_E4M3, scale=1.0)
    assert not rounded.requires_grad
    straight = rounded + (x - x.detach())
    assert torch.equal(straight, rounded)
    (3 * straight).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3.0))


@pytest.mark.parametrize("rounding", list(Rounding), ids=lambda m: m.name)
def test_products_with_powers_of_two_are_exact_past_the_ends_of_float32(rounding):
    x = torch.tensor([2.0**60] + [2.0**-100] * 31)
    how = {"rounding": rounding, "stream": stream_for(rounding)}
    quantized = quantize(x, FP8_E4M3, scale=ScaleRule.RCEIL, block=MX_BLOCK, **how)
    tiny = int(rounding in (Rounding.TOWARD_POSITIVE, Rounding.TO_ODD))
    assert quantized.scale == 2.0**-52 and quantized.codes[1:].tolist() == 31 * [tiny]
    wide = quantize(x.double(), FP8_E4M3, scale=quantized.scale, block=MX_BLOCK, **how)
    assert torch.equal(quantized.codes, wide.codes) or rounding is Rounding.STOCHASTIC
    large = quantize(
        torch.tensor([2.0**100]),
        FP8_E5M2,
        scale=2.0**100,
        overflow=Overflow.IEEE,
        **how,
    )
    inward = (Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE, Rounding.TO_ODD)
    assert large.values.item() == (
        FP8_E5M2.max_finite if rounding in inward else math.inf
    )


@pytest.mark.parametrize("block", [(0,), (-2,), (3,), (True,), ()])
def test_a_block_that_does_not_divide_the_tensor_is_refused(block):
    with pytest.raises(ValueError, match="quantize: block must divide the last axes"):
        quantize(torch.ones(2, 4), FP8_E4M3, block=block)
