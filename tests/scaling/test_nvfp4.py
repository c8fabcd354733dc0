"""NVFP4 in fractions, and the random Hadamard transform that goes with it."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from cases import assert_same_bits
from exact_arithmetic import nearest
from networks import normal
from oracle import power

from mplab import (
    FORMATS,
    FP4_E2M1,
    FP8_E4M3,
    FP8_E8M0,
    FP32,
    Format,
    Overflow,
)
from mplab.numbers.formats import Specials
from mplab.scaling import (
    Quantized,
    ScaleRule,
    dequantize,
    fake_quantize,
    hadamard,
    quantize,
)

NVFP4 = {"fmt": FP4_E2M1, "scale": ScaleRule.NVFP4}
LEAST = power(-121)


enter = partial(nearest, overflow=Overflow.SATURATE)


def block_scale(amax, whole):
    """The E4M3 scale of a block, each quotient rounded to float32."""
    wanted = enter(enter(amax / 6, FP32) / whole, FP32)
    return enter(min(max(wanted, power(-6)), Fraction(448)), FP8_E4M3)


def slow_nvfp4(x, block, tensor_scale=None):
    """The scale of the tensor, those of its blocks, and the values, of a matrix."""
    exact = [[Fraction(float(v)) for v in row] for row in x]
    most = max(abs(v) for row in exact for v in row)
    whole = enter(most / 2688, FP32) if tensor_scale is None else Fraction(tensor_scale)
    whole = max(whole, LEAST)
    down, along = block
    scales = {}
    values = [[0.0] * len(row) for row in exact]
    for i in range(len(exact) // down):
        for j in range(len(exact[0]) // along):
            places = [
                (i * down + a, j * along + b) for a in range(down) for b in range(along)
            ]
            scale = block_scale(max(abs(exact[a][b]) for a, b in places), whole)
            factor = enter(enter(1 / whole, FP32) / scale, FP32)
            for a, b in places:
                code = enter(enter(exact[a][b] * factor, FP32), FP4_E2M1)
                values[a][b] = float(enter(code * scale * whole, FP32))
            scales[i, j] = float(scale)
    return float(whole), scales, values


DATA = {
    "normal": normal(16, 32), "spread": normal(16, 32, seed=1, spread=20),
    "BF16": normal(16, 32, seed=2, spread=4).bfloat16().float(),
    "zeros among them": normal(16, 32, seed=3) * (torch.arange(512).reshape(16, 32) % 48 > 20),
    "zeros": torch.zeros(16, 32), "subnormal": normal(16, 32, seed=4) * 2.0**-140,
    "huge": normal(16, 32, seed=5).clamp(-1, 1) * 2.0**127,
}  # fmt: skip


@pytest.mark.parametrize("tensor_scale", [None, 1.0, 0.37, 2.0**-100])
@pytest.mark.parametrize("block", [(1, 16), (16, 16)], ids=str)
@pytest.mark.parametrize("data", DATA)
def test_nvfp4_is_its_definition_in_fractions(data, block, tensor_scale):
    x = DATA[data]
    given = None if tensor_scale is None else float(np.float32(tensor_scale))
    whole, scales, values = slow_nvfp4(x, block, given)
    got = quantize(x, **NVFP4, block=block, tensor_scale=tensor_scale)
    assert got.tensor_scale.item() == whole
    stored = got.scale_codes.view(torch.float8_e4m3fn).float()
    assert {place: stored[place].item() for place in scales} == scales
    assert np.array_equal(dequantize(got).numpy(), np.array(values, np.float32))
    assert_same_bits(
        fake_quantize(x, **NVFP4, block=block, tensor_scale=tensor_scale).numpy(),
        dequantize(got).numpy(),
    )


def test_quotients_are_rounded_one_by_one_where_that_decides():
    amaxes = normal(100, seed=6).abs()
    ties = torch.tensor([(8.5 + i) * 2.0**e for e in (-8, 0, 3) for i in range(8)])
    for amax in amaxes:
        whole = enter(Fraction(float(amax)) / 2688, FP32)
        found = quantize(amax, **NVFP4)
        assert found.tensor_scale.item() == float(whole)
        blocks = (6 * ties * float(whole))[::3]  # near the ties of E4M3
        scales = quantize(
            blocks, **NVFP4, block=(1,), tensor_scale=float(whole)
        ).scale_codes
        expected = [float(block_scale(Fraction(float(b)), whole)) for b in blocks]
        assert scales.view(torch.float8_e4m3fn).float().tolist() == expected


def test_every_block_scale_comes_back_from_what_multiplied_beside_every_tensor_scale():
    codes = torch.arange(0x08, 0x7F, dtype=torch.uint8)
    scales = codes.view(torch.float8_e4m3fn).float()
    for whole in [
        m * 2.0**e for e in range(-121, 116, 4) for m in (1.0, 1.3, 1.9999999)
    ]:
        whole = float(np.float32(whole))
        got = quantize(6 * scales * whole, **NVFP4, block=(1,), tensor_scale=whole)
        assert torch.equal(got.scale_codes, codes), whole
        assert (got.codes == 0x07).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_spoils_all_under_one_scale_and_one_block_under_a_given_one(
    bad,
):
    x = normal(2, 32)
    x[0, 3] = bad
    assert fake_quantize(x, **NVFP4, block=(16,)).isnan().all()
    got = quantize(x, **NVFP4, block=(16,), tensor_scale=1.0)
    spoilt = dequantize(got).isnan()
    assert spoilt[0, :16].all() and spoilt.sum() == 16
    assert got.scale_codes[0, 0] == 0x7F
    past_float32 = torch.tensor([1e300, 1.0], dtype=torch.float64)
    for given in (None, 1.0):
        assert fake_quantize(past_float32, **NVFP4, tensor_scale=given).isnan().all()


def test_scales_that_nvfp4_does_not_find_are_refused():
    codes = torch.zeros(16, dtype=torch.uint8)
    made = Quantized(codes, torch.tensor(1.0), FP4_E2M1, None, torch.tensor(0.3))
    for use in (dequantize, lambda q: q.scale_codes):
        with pytest.raises(
            ValueError, match=r"^Quantized: scale must be one that .*NVFP4 finds"
        ):
            use(made)


def test_a_float64_is_rounded_once_and_stays():
    # Just past the tie 1, 1.5.
    x = torch.tensor([6.0, 1.25 + 2.0**-40], dtype=torch.float64)
    got = fake_quantize(x, **NVFP4, tensor_scale=1.0)
    assert got.dtype == torch.float64
    assert got.tolist() == [6.0, 1.5]
    assert fake_quantize(x.float(), **NVFP4, tensor_scale=1.0).tolist() == [6.0, 1.0]


# Hadamard --------------------------------------------------------------------------------


def sylvester(n):
    """The matrix by its definition: −1 where i and j share an odd number of bits."""
    return [[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]


def signs_of(n, seed=0):
    return (
        torch.randint(0, 2, (n,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    )


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 64, 128])
def test_hadamard_is_sylvester_s_matrix_times_the_signs(n):
    x = torch.randint(
        -999, 1000, (5, 3 * n), generator=torch.Generator().manual_seed(n)
    )
    signs = signs_of(n)
    blocks = (x.reshape(-1, n) * signs).numpy().astype(object)
    # Integers: exact.
    sums = (blocks @ np.array(sylvester(n), object)).astype(np.float32)
    got = hadamard(x.float(), signs)
    assert_same_bits(got.numpy(), (sums / np.float32(math.sqrt(n))).reshape(5, 3 * n))
    back = hadamard(got, signs, inverse=True)
    assert torch.equal(back.round(), x.float())
    assert (back == x).all() or n.bit_length() % 2 == 0  # √n is no power of two


def test_hadamard_takes_sixteen_ones_unless_told_otherwise():
    x = normal(3, 4, 32)
    assert torch.equal(hadamard(x), hadamard(x, torch.ones(16)))
    assert not torch.equal(hadamard(x), hadamard(x, torch.ones(32)))
    for low in (x.bfloat16(), x.half()):  # FP16 sums would be rounded to FP16
        wide = hadamard(low)
        assert wide.dtype == torch.float32
        assert torch.equal(wide, hadamard(low.float()))


def test_gradients_pass_through_hadamard():
    x = normal(2, 32).double().requires_grad_()
    signs = signs_of(16)
    for inverse in (False, True):
        y = hadamard(x, signs, inverse=inverse)
        weights = normal(2, 32, seed=9).double()
        (gradient,) = torch.autograd.grad((y * weights).sum(), x)
        assert torch.allclose(
            gradient, hadamard(weights, signs, inverse=not inverse), atol=1e-14
        )


def test_what_is_not_finite_stays_in_its_block():
    x = normal(2, 32)
    x[1, 20] = math.inf
    assert hadamard(x).isfinite().reshape(4, 16).all(1).tolist() == [
        True,
        True,
        True,
        False,
    ]


def test_formats_that_the_rule_does_not_serve_are_refused_and_all_others_taken():
    """Unsigned ones lost every negative number, and of wide ones 448 · max_finite is infinite."""
    x = normal(4, 16)
    refused = set()
    unsigned = Format("U4", exponent_bits=2, precision=3, signed=False)
    for name, fmt in {**FORMATS, "U4": unsigned}.items():
        try:
            got = fake_quantize(x, fmt, scale=ScaleRule.NVFP4, block=(16,))
        except ValueError as error:
            assert str(error).startswith(
                "fake_quantize: fmt must be signed, and 448 times"
            )
            refused.add(name)
        else:
            assert (got - x).norm() < 0.3 * x.norm(), name
    assert refused == {"FP32", "TF32", "BF16", "FP8_E8M0", "U4"}
    with pytest.raises(
        ValueError, match=r"^quantize: fmt must be signed.*; got FP8_E8M0"
    ):
        quantize(x, FP8_E8M0, scale=ScaleRule.NVFP4, block=(16,))
    with pytest.raises(
        ValueError, match=r"tensor_scale must have the shape \(\), .*; got \(1,\)\."
    ):
        quantize(x, **NVFP4, block=(16,), tensor_scale=torch.ones(1))


def test_a_negative_number_is_not_stored_as_zero_by_an_unsigned_format_without_nan():
    fmt = Format(
        "U5", exponent_bits=3, precision=3, specials=Specials.NONE, signed=False
    )
    assert quantize(torch.tensor([0.0, -0.0, 2.0]), fmt, scale=1.0).codes.tolist() == [
        0,
        0,
        16,
    ]
    with pytest.raises(ValueError, match=r"negative numbers, which U5 lacks; got -1.0"):
        quantize(torch.tensor([0.5, -1.0]), fmt)
