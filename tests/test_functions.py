"""Functions that run as a whole, and what is called in other ways than plainly."""

import pytest
import torch
from networks import Within, assert_bits, assert_same_gradients, is_low, linear, loss, mlp, round_to
from torch import nn
from torch.nn import functional as F

from mplab import FP16, FP32
from mplab.policies import CPU_AUTOCAST, CUDA_AUTOCAST, EVERYTHING, POLICIES
from mplab.simulate import simulated
from mplab.simulation.functions import whole_functions


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# As a whole


def test_a_function_is_known_by_all_the_ways_to_call_it():
    found = whole_functions(CUDA_AUTOCAST)
    assert {F.linear, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__} <= set(found)
    assert {F.l1_loss, torch.kl_div, F.kl_div, torch.cosine_similarity} <= set(found)
    assert F.cross_entropy not in found  # on CUDA its parts are on the list
    assert F.cross_entropy in whole_functions(CPU_AUTOCAST)
    assert not {torch.mm, torch.exp, F.relu} & set(found)


def test_a_bias_is_cast_though_torch_adds_it_in_an_operation_of_its_own():
    x, layer = torch.randn(3, 2, 4).transpose(0, 1), nn.Linear(4, 3)
    with simulated(FP16) as sim:
        output = layer(x)
        added = x.matmul(layer.weight.t()) + layer.bias  # here the sum is not a part
    assert is_low(output)
    assert "add" in sim.by_operation, "the premise"
    assert not is_low(added)


@pytest.mark.parametrize("policy", [CPU_AUTOCAST, CUDA_AUTOCAST], ids=lambda p: p.name)
def test_attention_of_fp32_tensors_runs_in_the_low_format_throughout(policy):
    q, k, v = torch.randn(3, 1, 2, 5, 4).requires_grad_()
    mask = torch.zeros(5, 5, requires_grad=True)  # needs a gradient: torch takes it apart
    with simulated(FP16, policy=policy) as sim:
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    assert is_low(output)
    assert {"mul", "bmm"} <= set(sim.by_operation)


@pytest.mark.filterwarnings("ignore:reduction")
def test_the_parts_of_a_loss_are_fp32_wherever_it_is_called():
    h, t = torch.randn(4, 4), torch.randn(4, 4)
    for function in (F.l1_loss, F.kl_div, torch.kl_div, F.cosine_similarity):
        with simulated(FP16):
            low, target = h.mm(h), t.mm(t)
            actual = function(low, target)
        assert_bits(actual, function(low.clone(), target.clone()))


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_function_that_runs_as_a_whole_ends_with_an_error():
    x = torch.randn(3, 3)
    with simulated(FP16):
        with pytest.raises(RuntimeError):
            F.linear(x, torch.randn(2, 5))
        with pytest.raises(RuntimeError):
            F.l1_loss(x.mm(x), torch.randn(3, 5))
        after = x.mm(x) + x.mm(x)
        wide = x + x / 3
    assert is_low(after)
    assert_bits(wide, x + x / 3)


def test_in_a_layer_in_fp32_no_function_is_low():
    model, x = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True)), torch.randn(1, 3, 4)
    policy = EVERYTHING.with_layers({nn.MultiheadAttention: FP32})
    with simulated(FP16, policy=policy, model=model):
        actual, _ = model[0](x, x, x, need_weights=False)
    assert_bits(actual, model[0](x, x, x, need_weights=False)[0])


# torch.func


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_function_over_a_batch_gives_what_a_loop_gives(policy):
    w = torch.randn(4, 3)

    class Layer(nn.Module):
        def forward(self, x):
            return torch.tanh(x @ w)

    layer, x = Layer(), torch.randn(5, 2, 4)
    with simulated(FP16, policy=policy):
        together = torch.func.vmap(layer)(x)
        alone = torch.stack([layer(row) for row in x])
    assert_bits(together, alone)
    assert is_low(together)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_gradient_of_a_batch_equals_that_of_plain_autograd(policy):
    x, y, w = torch.randn(5, 1, 2), torch.randn(5, 1, 2), torch.randn(2, 2)
    layer = Within(lambda x, w: torch.tanh(x @ w))

    def batch(w):
        return F.mse_loss(torch.func.vmap(layer, in_dims=(0, None))(x, w), y)

    p = w.clone().requires_grad_()
    with simulated(FP16, policy=policy):
        found = torch.func.grad(batch)(w)
        batch(p).backward()
    assert_bits(found, p.grad)
    assert is_low(found)


def test_gradients_within_vmap_are_refused():
    w, x = torch.randn(2, 2), torch.randn(5, 1, 2)
    each = torch.func.vmap(torch.func.grad(lambda w, x: (x @ w).sum()), in_dims=(None, 0))
    with simulated(FP16), pytest.raises(ValueError, match=r"must not be within torch\.func\.vmap"):
        each(w, x)


def test_jacobians_are_simulated():
    w, x = torch.randn(3, 3), torch.randn(1, 3)
    with simulated(FP16):
        found = torch.func.jacrev(lambda z: linear(z, w))(x)
    assert_bits(found.view(3, 3), round_to(w))


# Compiled, and refused


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_compile_made_runs_eagerly_and_is_simulated():
    plain, x = mlp(6, 5, 3), torch.randn(4, 6)
    compiled = torch.compile(plain, backend="aot_eager")
    for warm in (False, True):
        if warm:
            compiled(x)
        plain.zero_grad()
        with simulated(FP16):
            expected = plain(x)
            loss(expected).backward()
        reference = mlp(6, 5, 3)
        reference.load_state_dict(plain.state_dict())
        with simulated(FP16):
            actual = torch.compile(reference, backend="aot_eager")(x)
            loss(actual).backward()
        assert_bits(actual, expected)
        assert_same_gradients(reference, plain)
        with simulated(FP16):
            assert_bits(compiled(x), expected)


COMPLEX = {
    "fft": torch.fft.fft,
    "rfft": torch.fft.rfft,
    "complex": lambda x: torch.complex(x, x),
    "polar": lambda x: torch.polar(x, x),
    "view_as_complex": torch.view_as_complex,
    "eigenvalues": lambda x: torch.linalg.eigvals(x @ x.T),
}


@pytest.mark.parametrize("function", COMPLEX.values(), ids=COMPLEX)
def test_operations_that_make_complex_numbers_are_refused(function):
    x = torch.randn(3, 2)
    with simulated(FP16), pytest.raises(ValueError, match="must give real numbers; got"):
        function(x)


def nested(layout):
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(1, 3)], layout=layout)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", [CUDA_AUTOCAST, EVERYTHING], ids=lambda p: p.name)
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("function", [lambda x: x * 2, nn.Linear(3, 2), torch.relu])
def test_nested_tensors_are_refused(function, layout, policy):
    x = nested(layout)
    with (
        simulated(FP16, policy=policy),
        pytest.raises(ValueError, match=r"must be dense float32; got a (nested_tensor|NestedTen)"),
    ):
        function(x)


@pytest.mark.filterwarnings("ignore")
def test_masked_tensors_are_refused():
    x = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    with simulated(FP16), pytest.raises(ValueError, match="got a MaskedTensor"):
        torch.add(x, x)


def test_a_real_autocast_within_is_refused():
    x = torch.randn(3, 3)
    with (
        simulated(FP16),
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match=r"got torch\.bfloat16"),
    ):
        x.mm(x)
