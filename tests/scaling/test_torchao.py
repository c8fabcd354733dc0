"""MX and NVFP4 against torchao, code by code, and where torchao rounds what need not be rounded.

torchao differs from the rules in three places: it finds RCEIL through a float32 logarithm, and
does not scale by the smallest E8M0 scale, 2^−127, though it stores that: both are counted here;
and it takes an infinity for a number.
"""

from functools import cache

import numpy as np
import pytest
import torch

from mplab import FP4_E2M1, FP6_E2M3, FP6_E3M2, FP8_E4M3, FP8_E5M2
from mplab.scaling import MX_BLOCK, ScaleRule, amax_of, dequantize, quantize

pytestmark = pytest.mark.slow
FORMATS = {
    FP8_E4M3: torch.float8_e4m3fn, FP8_E5M2: torch.float8_e5m2, FP6_E3M2: "fp6_e3m2",
    FP6_E2M3: "fp6_e2m3", FP4_E2M1: torch.float4_e2m1fn_x2,
}  # fmt: skip
RULES = [ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL]
every_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@pytest.fixture(autouse=True, scope="module")
def imported():
    """Where its tests run, and not in every process that collects them: it takes 2 seconds."""
    global mx_tensor, nvfp4_tensor
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor


def torchao_mx(x, fmt, rule):
    """The E8M0 codes of the scales and the codes of the elements."""
    name = "FLOOR" if rule is ScaleRule.FLOOR else rule.name
    mode = mx_tensor.ScaleCalculationMode[name]
    scale, data = mx_tensor.to_mx(x, FORMATS[fmt], 32, scaling_mode=mode)
    return scale.view(torch.uint8), unpacked(data, fmt)


def unpacked(data, fmt):
    codes = data.view(torch.uint8)
    if fmt.bits != 4:
        return codes
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def lots(columns):
    """Ten tensors of 2^18 numbers: their names, and rows of `columns`."""
    g = np.random.default_rng(0)
    n = (1 << 18) // columns
    plain = g.normal(size=(n, columns))
    rows = 2.0 ** g.uniform(-100, 100, (n, 1))
    few = g.integers(1, 1 << 9, (n, columns)) / 32  # ties of every format
    yield "normal", plain
    yield "each row of another size", plain * rows
    yield "each number of another size", plain * 2.0 ** g.uniform(-30, 30, (n, columns))
    yield "ties", few * np.exp2(np.floor(np.log2(rows)))
    yield "negative zeros and zeros", np.where(few % 1 < 0.5, -0.0, plain)
    yield "blocks of zeros", plain * (g.random((n, columns // 16)) < 0.5).repeat(16, 1)
    yield "outliers", plain * np.where(g.random((n, columns)) < 0.01, 500, 1)
    yield "constant blocks", (few[:, ::16] * rows).repeat(16, 1)
    yield "subnormal and nearly so", plain * 2.0 ** g.uniform(-149, -100, (n, 1))
    yield "the largest", np.clip(plain, -1, 1) * 2.0 ** g.uniform(100, 127.9, (n, 1))


@cache
def pairs():
    """The same in float32 and rounded to BF16."""
    wide = [(name, torch.from_numpy(x.astype(np.float32))) for name, x in lots(64)]
    return wide + [(f"{name}, BF16", x.bfloat16().float()) for name, x in wide]


@every_rule
@every_format
def test_mx_is_torchao_s_code_by_code(fmt, rule, record_property):
    elements = blocks = smallest = too_small = 0
    for name, x in pairs():
        got = quantize(x, fmt, scale=rule, block=MX_BLOCK)
        scales, codes = torchao_mx(x, fmt, rule)
        wrong = scales != got.scale_codes
        assert not wrong.any() or rule is ScaleRule.RCEIL, name
        assert torch.equal(scales[wrong] + 1, got.scale_codes[wrong]), name
        past = (amax_of(x, block=MX_BLOCK) * got.scale)[wrong] * 2 / fmt.max_finite
        assert ((past > 1) & (past < 1 + 2.0**-17)).all(), name
        too_small += int(wrong.sum())
        blocks += scales.numel() - int(wrong.sum())
        scaled = ((scales > 0) & ~wrong).repeat_interleave(32, 1) | (x == 0)
        assert torch.equal(got.codes[scaled], codes[scaled]), name
        elements += int(scaled.sum())
        smallest += int((scales == 0).repeat_interleave(32, 1)[~scaled].sum())
    record_property("elements equal", elements)
    record_property("scales equal", blocks)
    record_property("elements that torchao does not scale", smallest)
    record_property("scales of RCEIL that torchao finds too small", too_small)


def torchao_nvfp4(x, whole):
    scale, data = nvfp4_tensor.nvfp4_quantize(x, 16, whole)
    return scale.view(torch.uint8).reshape(len(x), -1), unpacked(data, FP4_E2M1)


@pytest.mark.parametrize("tensor_scale", ["found", "given", "none"])
def test_nvfp4_is_torchao_s_code_by_code(tensor_scale, record_property):
    elements = blocks = other_ulp = 0
    for name, x in pairs():
        whole = {"given": torch.tensor(0.37), "none": torch.tensor(1.0)}.get(
            tensor_scale
        )
        got = quantize(
            x, FP4_E2M1, scale=ScaleRule.NVFP4, block=(16,), tensor_scale=whole
        )
        if whole is None:
            found = nvfp4_tensor.per_tensor_amax_to_scale(x.abs().amax())
            assert torch.equal(got.tensor_scale, found), name
        theirs = None if tensor_scale == "none" else got.tensor_scale
        scales, codes = torchao_nvfp4(x, theirs)
        assert torch.equal(got.scale_codes, scales), name
        assert torch.equal(got.codes, codes), name
        elements = elements + codes.numel()
        blocks = blocks + scales.numel()

        tensor = nvfp4_tensor.NVFP4Tensor.to_nvfp4(x, per_tensor_scale=theirs)
        values = dequantize(got).double()
        back = tensor.dequantize(torch.float32).double()
        other_ulp += int((values != back).sum())
        assert ((values - back).abs() <= values.abs() * 2.0**-23 + 2.0**-149).all(), (
            name
        )
        stored = scales.view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)
        rounded_once = (got.values * stored * got.tensor_scale.double()).float()
        assert torch.equal(values.float(), rounded_once), name
    record_property("elements and scales equal", elements + blocks)
    record_property("values that torchao rounds twice, one ulp away", other_ulp)
