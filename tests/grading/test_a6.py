"""The references of A6, held against the library, torch and exact fractions."""

import math
import re
from fractions import Fraction
from functools import partial

import corpus
import nbformat
import numpy as np
import pytest
import torch
from corpus import ROOT, answer
from oracle import round_fraction

from mplab import FORMATS, FP8_E4M3, FP8_E5M2, Overflow, Rounding, decode, encode
from mplab.course.pictures import Picture, follow
from mplab.scaling import DelayedScaling, ScaleRule, quantize, scale_for
from mplab.simulation import Fp8Linear

pytestmark = pytest.mark.slow

reference = partial(corpus.reference, "a6")
cases = partial(corpus.hidden_cases, "a6")
NEAREST = Rounding.TIES_TO_EVEN
EIGHT_BITS = [
    FORMATS[f"FP8_{name}"] for name in ("E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ")
]
every_format = pytest.mark.parametrize("fmt", EIGHT_BITS, ids=lambda fmt: fmt.name)


@every_format
@pytest.mark.parametrize("margin", [0, 1, 2])
def test_the_scale_is_the_library_s_where_the_headroom_is_a_power_of_two(fmt, margin):
    for amax in np.ldexp(np.random.default_rng(1).uniform(1, 2, 200), range(-100, 100)):
        x = np.array([-amax, amax / 2], np.float32)
        wanted = scale_for(float(np.abs(x).max()), fmt, margin=margin)
        assert reference("scale")(x, fmt, 2.0**margin) == wanted


def test_headroom_times_amax_is_exact_so_that_the_top_is_decided_in_fractions():
    for x, fmt, headroom in cases("scale", "exactly at the top"):
        scale = Fraction(reference("scale")(x, fmt, headroom))
        needed = Fraction(headroom) * max(abs(Fraction(float(v))) for v in x)
        assert needed * scale <= Fraction(fmt.max_finite) < needed * scale * 2


@every_format
def test_codes_are_those_of_the_exact_product_rounded_once(fmt):
    for x, scale, of in cases("codes"):
        if of is not fmt:
            continue
        for number, code in zip(
            x.tolist(), reference("codes")(x, scale, fmt), strict=True
        ):
            value = float(decode(code, fmt))
            if math.isfinite(number):
                exact = Fraction(number) * Fraction(scale)
                wanted = float(round_fraction(exact, fmt, NEAREST, Overflow.SATURATE))
                assert value == wanted
                negative = math.copysign(1, number) < 0 and (
                    wanted or fmt.has_negative_zero
                )
                assert bool(np.signbit(value)) == bool(negative)
            else:
                kept = number if fmt.has_infinity else math.nan
                assert code == encode(kept, fmt)


@every_format
def test_codes_of_finite_numbers_are_those_of_quantize(fmt):
    x = (np.random.default_rng(2).normal(size=500) * 30).astype(np.float32)
    for scale in (2.0**-6, 1.0, 2.0**5):
        wanted = quantize(torch.from_numpy(x), fmt, scale=scale).codes.numpy()
        np.testing.assert_array_equal(reference("codes")(x, scale, fmt), wanted)


@pytest.mark.parametrize("length", [1, 3, 16])
def test_delayed_scales_and_flushed_shares_are_the_library_s_on_finite_tensors(length):
    tensors = np.random.default_rng(3).normal(size=(40, 50)).astype(np.float32)
    tensors[12] *= 2.0**20
    window = follow(DelayedScaling(FP8_E4M3, amax_history_len=length), tensors)
    found = reference("delayed")(tensors, FP8_E4M3, length, 1.0)
    np.testing.assert_array_equal(found[[0, 2]], [window.scales, window.flushed])


@pytest.mark.parametrize(
    "name", ["FP8_E4M3", "FP8_E5M2", "FP6_E3M2", "FP6_E2M3", "FP4_E2M1"]
)
def test_whole_blocks_are_those_of_quantize(name):
    fmt = FORMATS[name]
    x = (
        np.random.default_rng(4).normal(size=(6, 32))
        * np.exp2(np.arange(-9, 9, 3))[:, None]
    )
    x[1] = 0
    if fmt is FP8_E4M3:
        x[2, 3], x[3, 5] = np.inf, np.nan
    tensor = torch.from_numpy(x.astype(np.float32).ravel())
    held = quantize(tensor, fmt, scale=ScaleRule.MX, block=(32,))
    wanted = torch.hstack(
        [held.scale_codes[:, None], held.codes.reshape(6, 32)]
    ).numpy()
    packed = reference("blocks")(tensor.numpy(), fmt, 32)
    np.testing.assert_array_equal(packed.reshape(6, 33), wanted)


def test_products_are_those_of_the_layer_where_float32_sums_them_exactly():
    rng = np.random.default_rng(5)
    x, w, g = (
        rng.uniform(1, 2, shape).astype(np.float32)
        for shape in ((6, 5), (4, 5), (6, 4))
    )
    layer = Fp8Linear(5, 4, bias=False)
    layer.weight.data = torch.from_numpy(w)
    given = torch.from_numpy(x).requires_grad_()
    output = layer(given)
    output.backward(torch.from_numpy(g))
    wanted = {
        "output": output,
        "grad_input": given.grad,
        "grad_weight": layer.weight.grad,
    }
    for which, tensor in wanted.items():
        found = reference("product")(which, x, w, g)
        np.testing.assert_array_equal(found, tensor.detach().numpy())


def test_sums_of_products_are_exact_in_float64_whatever_their_order():
    """What the notebook says of `@`; the largest and the least product that a sum can meet."""
    for which, x, _, g in cases("product"):
        terms = {
            "output": x.shape[1],
            "grad_input": g.shape[1],
            "grad_weight": g.shape[0],
        }[which]
        first = FP8_E4M3 if which == "output" else FP8_E5M2
        most = terms * Fraction(first.max_finite) * Fraction(FP8_E4M3.max_finite)
        assert (
            most / Fraction(first.min_subnormal) / Fraction(FP8_E4M3.min_subnormal)
            <= 2**53
        )


def test_the_picture_that_the_sheet_offers_shows_the_answer_s_own_shares():
    notebook = nbformat.read(ROOT / "a6" / "a6.ipynb", as_version=4)
    [text] = [c.source for c in notebook.cells if c.id == "a6-look"]
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    space = {"np": np, "FP8_E4M3": FP8_E4M3, "delayed_shares": answer("a6", "delayed")}
    statements, last = code.rsplit("pictures.scaling_windows", 1)
    exec(statements, space)
    picture = eval("pictures.scaling_windows" + last.strip(), space)
    assert isinstance(picture, Picture)
