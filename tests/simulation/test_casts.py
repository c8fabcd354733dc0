"""The ways operands are cast: against torchao, and each product against quantize and dequantize."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mplab import FP8_E4M3, FP8_E5M2, FP16, Rounding, Stream
from mplab.scaling import (
    CurrentScaling,
    DelayedScaling,
    ScaleRule,
    dequantize,
    hadamard,
    quantize,
)
from mplab.simulation import SCALINGS, Cast, Fp8Linear, convert_linears
from mplab.simulation.casts import apply_hadamard

IN_BLOCKS = [name for name, way in SCALINGS.items() if way.input.block is not None]
REAL = {"current", "delayed", "none"}

every_way_in_blocks = pytest.mark.parametrize("name", IN_BLOCKS)


def spread(*shape, seed=0, sigma=1.0):
    """Normal numbers of many magnitudes."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g) * torch.exp(
        sigma * torch.randn(shape, generator=g)
    )


# The operands --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_scale_for_each_row_gives_the_operands_of_torchao_bit_for_bit(
    record_property,
):
    """The other ways read what `quantize` stores, which is compared with torchao code by code."""
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import GemmInputRole, LinearMMConfig

    cast = SCALINGS["fp8-rowwise"].input
    count = 0
    how = {"gemm_input_role": GemmInputRole.INPUT, "axiswise_dim": -1}
    how["scaling_granularity"] = ScalingGranularity.AXISWISE
    for seed, sigma in itertools.product(range(5), (0.0, 1.0, 4.0)):
        x = spread(256, 512, seed=seed, sigma=sigma)
        x[::17] = 0
        for matrix in (x, x.t().contiguous()):  # as forward and as backward sums it
            theirs = hp_tensor_to_float8_dynamic(
                matrix,
                torch.float8_e4m3fn,
                LinearMMConfig(),
                **how,
                round_scales_to_power_of_2=True,
            )
            assert torch.equal(cast.in_blocks(matrix), theirs.to_original_precision())
            count += matrix.numel()
    record_property("operands equal to torchao's", count)


def layer_by_torchao(name, linear):
    """torchao's layer with the parameters of a linear layer, its products emulated in float32."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    from torchao.prototype.moe_training import mxfp8_linear as mx
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    if name in ("current", "fp8-rowwise"):
        usual = Float8LinearConfig.from_recipe_name(
            {"current": "tensorwise", "fp8-rowwise": "rowwise"}[name]
        )
        config = replace(usual, emulate=True, round_scales_to_power_of_2=True)
        return convert_to_float8_training(nn.Sequential(linear), config=config)[0]
    dtype = {"mxfp8": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}[name]
    kernels = mx.MXFP8Dim0CastKernelChoice.TORCH, mx.MXFP8Dim1CastKernelChoice.TORCH
    how = (
        *(dtype,) * 3,
        32,
        KernelPreference.EMULATED,
        *kernels,
        ScaleCalculationMode.RCEIL,
    )
    return lambda x: mx.mx_mm.apply(x, linear.weight, *how, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["current", "fp8-rowwise", "mxfp8", "mxfp4"])
def test_whole_layers_are_those_of_torchao_but_for_the_order_of_sums(
    name, record_property
):
    linear = nn.Linear(96, 32, bias=False)
    found = []
    for layer in (
        convert_linears(linear, scaling=name),
        layer_by_torchao(name, linear),
    ):
        x = spread(64, 96).requires_grad_()
        linear.weight.grad = None
        output = layer(x)
        output.backward(spread(64, 32, seed=1) * 1e-4)
        found.append([output.detach(), x.grad, linear.weight.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=2e-6 * float(theirs.abs().max())
        )
    equal = sum(map(torch.equal, *found))
    record_property(
        f"{name}, tensors of torchao's layer equal bit for bit", f"{equal} of 3"
    )


def test_tiles_are_scaled_by_the_quotient_of_float64_rounded_once():
    x = spread(256, 384)
    for role, down in (("input", 1), ("weight", 128)):
        split = x.reshape(256 // down, down, 3, 128)
        scale = (448 / split.double().abs().amax((1, 3), keepdim=True)).float()
        expected = (split * scale).to(torch.float8_e4m3fn).float() / scale
        cast = getattr(SCALINGS["fp8-blockwise"], role)
        assert torch.equal(cast.in_blocks(x), expected.reshape(x.shape))


@every_way_in_blocks
def test_what_is_narrower_than_a_block_is_padded_with_zeros(name):
    cast = SCALINGS[name].input
    x = spread(3, 5)
    wide = F.pad(x, (0, 256 - 5))
    assert torch.equal(cast.in_blocks(x), cast.in_blocks(wide)[:, :5])
    assert cast.in_blocks(x[:0]).shape == (0, 5)
    assert cast.in_blocks(x[:, :0]).shape == (3, 0)


def test_square_blocks_show_forward_and_backward_the_same_weight():
    weight = spread(100, 200)
    for name, same in {"nvfp4": True, "fp8-blockwise": True, "mxfp4": False}.items():
        cast = SCALINGS[name].weight
        assert (
            torch.equal(cast.in_blocks(weight), cast.in_blocks(weight.t()).t()) == same
        )


# The three products --------------------------------------------------------------------


def explicit(cast, x, columns=None):
    """A matrix through codes and back, padded to whole blocks."""
    down, along = cast.block
    along = along or x.shape[1]
    padded = F.pad(x, (0, -x.shape[1] % along, 0, -x.shape[0] % down))
    stream = None
    if cast.rounding is Rounding.STOCHASTIC:
        stream = Stream(int(torch.randint(2**63 - 1, ())))
    how = {"scale": cast.scale, "block": (down, along), "rounding": cast.rounding}
    return dequantize(quantize(padded, cast.fmt, **how, stream=stream))[
        : x.shape[0], : x.shape[1]
    ]


def products(way, x, weight, grad):
    """Output, gradient of the input and of the weight, from codes; draws as the layer does."""
    output = explicit(way.input, x) @ explicit(way.weight, weight).T
    grad_input = explicit(way.grad_output, grad) @ explicit(way.weight, weight.T).T
    left = grad.T
    right = x.T
    if way.hadamard:
        signs = 2 * torch.randint(2, (16,)) - 1
        left, right = (
            hadamard(F.pad(m, (0, -len(x) % 16)), signs) for m in (left, right)
        )
    return (
        output,
        grad_input,
        explicit(way.grad_output, left) @ explicit(way.input, right).T,
    )


@pytest.mark.parametrize("sizes", [(4, 64, 32), (40, 33, 5), (3, 5, 7), (1, 1, 1)])
@every_way_in_blocks
def test_all_three_products_read_what_quantize_stores(name, sizes):
    rows, inputs, outputs = sizes
    layer = Fp8Linear(inputs, outputs, False, scaling=name)
    x = spread(rows, inputs)
    grad = spread(rows, outputs, seed=1) * 1e-4
    x.requires_grad_()
    torch.manual_seed(5)
    output = layer(x)
    output.backward(grad)
    torch.manual_seed(5)
    expected = products(SCALINGS[name], x.detach(), layer.weight.detach(), grad)
    for got, wanted in zip(
        (output.detach(), x.grad, layer.weight.grad), expected, strict=True
    ):
        assert torch.equal(got, wanted)


def test_a_role_cast_once_goes_with_one_cast_in_blocks():
    wide = Cast(FP8_E4M3, CurrentScaling)
    layer = Fp8Linear(
        64, 32, scaling=replace(SCALINGS["mxfp8"], name="mine", weight=wide)
    )
    seen = []
    layer.on_cast = lambda name, *cast: seen.append(name)
    x = spread(5, 64)
    expected = F.linear(layer.how.input.in_blocks(x), layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=0.2, atol=0.2)
    assert seen == ["weight", "input"]
    assert "mine scaling" in repr(layer)


def test_a_cast_of_ones_own_learns_its_scale_and_keeps_it_in_a_checkpoint():
    way = replace(SCALINGS["mxfp8"], name="mine", weight=Cast(FP8_E4M3, DelayedScaling))
    layer = Fp8Linear(8, 8, scaling=way)
    layer(spread(4, 8))
    other = Fp8Linear(8, 8, scaling=way)
    other.load_state_dict(layer.state_dict())
    assert other.scalings["weight"].scale == layer.scalings["weight"].scale != 1


# Random bits ---------------------------------------------------------------------------


def weight_gradient(way, seed, rows=48):
    """That of a layer whose numbers are always the same."""
    layer = Fp8Linear(32, 16, False, scaling=way)
    layer.weight.data = spread(16, 32)
    torch.manual_seed(seed)
    layer(spread(rows, 32, seed=1)).backward(spread(rows, 16, seed=2))
    return layer.weight.grad


@pytest.mark.parametrize("name", SCALINGS)
def test_only_a_way_with_random_parts_draws_from_torch_s_generator(name):
    before = torch.random.get_rng_state()
    layer = Fp8Linear(32, 16, False, scaling=name)
    layer.weight.data = spread(16, 32)
    torch.random.set_rng_state(before)
    layer(spread(4, 32)).backward(spread(4, 16))
    assert torch.equal(torch.random.get_rng_state(), before) == (name != "nvfp4")


def test_the_seed_of_torch_decides_stochastic_gradients_also_of_one_scale():
    cast = Cast(FP8_E5M2, CurrentScaling, rounding=Rounding.STOCHASTIC)
    own = replace(SCALINGS["current"], name="mine", grad_output=cast)
    for way in ("nvfp4", own):
        one, again, other = (weight_gradient(way, seed) for seed in (1, 1, 2))
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
    nearest = weight_gradient("current", 1)
    assert 0 < (one - nearest).norm() < 0.2 * nearest.norm()


def test_the_transform_leaves_the_product_and_spreads_outliers():
    """Also where the rows are no multiple of sixteen."""
    a = spread(8, 37)
    b = spread(12, 37, seed=1)
    torch.manual_seed(0)
    (one, other), (third, _) = apply_hadamard(a, b), apply_hadamard(a, b)
    torch.testing.assert_close(one @ other.T, a @ b.T, rtol=1e-4, atol=1e-4)
    assert not torch.equal(one, third)  # other signs
    nearest = SCALINGS["mxfp4"]
    a[:, ::20] *= 30
    errors = []
    for way in (nearest, replace(nearest, hadamard=True)):
        layer = Fp8Linear(12, 8, False, scaling=way)
        layer(b.T.contiguous()).backward(a.T.contiguous())
        errors.append(float((layer.weight.grad - a @ b.T).norm()))
    assert errors[1] < 0.8 * errors[0]


# What there is, and what is refused ----------------------------------------------------


def test_each_way_is_known_by_its_own_name_and_torch_has_three_of_them():
    assert all(name == way.name for name, way in SCALINGS.items())
    assert {name for name, way in SCALINGS.items() if way.is_real()} == REAL
    assert len(set(map(repr, SCALINGS.values()))) == len(SCALINGS)


def test_parts_that_do_not_go_together_are_refused():
    blocks = "ScaleRule with a block"
    plain = SCALINGS["current"]
    for make, message in (
        (lambda: Cast(FP8_E4M3, ScaleRule.RCEIL), blocks),
        (lambda: Cast(FP8_E4M3, CurrentScaling, (1, 32)), blocks),
        (lambda: Cast(FP8_E4M3, "current"), blocks),
        (
            lambda: replace(plain, hadamard=True),
            "hadamard must be False where input or grad_out",
        ),
        *(
            (partial(Fp8Linear, 4, 4, scaling=name, real=True), "real must be")
            for name in IN_BLOCKS
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_formats_that_are_asked_for_replace_those_of_the_way():
    layer = Fp8Linear(4, 4, scaling="mxfp8", backward_format=FP8_E5M2)
    formats = [cast.fmt for cast in layer.how.casts().values()]
    assert formats == [FP8_E4M3, FP8_E4M3, FP8_E5M2]
    assert layer.how.grad_output.block == (1, 32)
    assert Fp8Linear(4, 4, scaling="mxfp8", forward_format=FP16).how.weight.fmt == FP16
