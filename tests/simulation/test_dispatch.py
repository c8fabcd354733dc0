"""Each operation in its format: by hand, against torch's own half precision, in odd company."""

import copy
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from networks import (
    assert_all_bits,
    assert_bits,
    assert_same_gradients,
    is_low,
    loss,
    mlp,
    normal,
    round_to,
)
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Overflow, Rounding, Stream
from mplab.simulation import CPU_AUTOCAST, simulated

# What is computed


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E5M2, FP8_E4M3])
def test_a_linear_layer_and_its_three_products_equal_the_hand_computation(fmt):
    """On numbers of one binade and one bit more than the format: every float32 sum is exact."""
    step = 2.0**-fmt.precision

    def numbers(*shape):
        sign = torch.randint(0, 2, shape) * 2 - 1
        return sign * (1 + torch.randint(0, 2**fmt.precision, shape) * step)

    x = numbers(4, 3)
    w = numbers(2, 3)
    b = numbers(2)
    g = numbers(4, 2)
    assert not is_low(x, fmt)
    layer = nn.Linear(3, 2)
    layer.weight.data, layer.bias.data = w.clone(), b.clone()
    x.requires_grad_()
    with simulated(fmt):
        output = layer(x)
        output.backward(g)
    xr, wr, br, gr = (round_to(t, fmt).double() for t in (x, w, b, g))
    for actual, exact in (
        (output, xr @ wr.T + br),
        (x.grad, gr @ wr),
        (layer.weight.grad, gr.T @ xr),
        (layer.bias.grad, gr.sum(0)),
    ):
        assert torch.equal(exact.float().double(), exact), "the premise"
        assert_bits(actual, round_to(exact.float(), fmt))


def test_of_a_format_that_no_dtype_holds_the_operands_of_products_are_rounded():
    """As a matrix unit takes float32 in TF32; all results stay FP32, and nothing else changes."""
    x = normal(4, 3).requires_grad_()
    layer = nn.Linear(3, 2)
    g = normal(4, 2, seed=1)
    with simulated(TF32):
        output = layer(x)
        output.backward(g)
        picture = normal(1, 1, 4, 4, seed=2)
        kernel = normal(1, 1, 2, 2, seed=3)
        slid = F.conv2d(picture, kernel)
    xr, wr, gr = (round_to(t, TF32) for t in (x, layer.weight, g))
    assert_bits(output, torch.addmm(layer.bias, xr, wr.T))
    assert_bits(x.grad, gr @ wr)
    assert_bits(layer.weight.grad, (gr.T @ xr))
    assert_bits(layer.bias.grad, g.sum(0))
    low = (round_to(t, TF32) for t in (picture, kernel))
    assert_bits(slid, F.conv2d(*low))
    assert not is_low(output, TF32)


# What stays FP32


def test_the_backward_pass_of_a_scalar_is_fp32_until_it_leaves_it():
    h = torch.randn(3, 3, requires_grad=True)
    with simulated(FP16):
        g = h.mm(torch.eye(3)).float()
        (g.mean() * 2.0**17).backward()  # 2^17 itself is past FP16
    assert_bits(h.grad, round_to(torch.full((3, 3), 2.0**17 / 9)))


def test_batch_norm_keeps_weights_and_statistics_in_fp32():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    with simulated(FP16):
        output = model(torch.randn(16, 6))
        (output * torch.randn(16, 5)).sum().backward()
    assert is_low(output)
    assert is_low(model[0].weight.grad)
    assert not is_low(model[1].weight.grad)
    assert not is_low(model[1].running_mean)


# Odd company


def test_operations_in_place_keep_the_format_of_what_they_write_to():
    with simulated(FP16):
        h = torch.randn(4, 4).mm(torch.randn(4, 4))
        h.mul_(1 / 3)
        assert is_low(h)
        h.masked_fill_(torch.eye(4, dtype=torch.bool), -0.1)
        assert torch.equal(h.diag(), round_to(torch.full((4,), -0.1)))
        h.copy_(torch.full((4, 4), 0.1))
        assert_bits(h, round_to(torch.full((4, 4), 0.1)))
        wide = torch.randn(4, 4)
        expected = wide + h
        wide.add_(h)
        assert_bits(wide, expected)
        out = torch.empty(4, 4)
        torch.mul(h, 1 / 3, out=out)
    assert_bits(out, h * (1 / 3))


SEEN = {
    "float": lambda h: h.float().square(),
    "loss": lambda h: F.mse_loss(h, torch.ones_like(h), reduction="none"),
    "product": lambda h: h.prod(1),
    "used twice": lambda h: (
        F.pad(h[None], (9, 9), mode="replicate").sum() + (h * 3).sum()
    ),
    "low": lambda h: h.square(),
}


def _watched(context, after, how):
    """Gradients of a low result as a program may look at them, and those of the weights."""
    torch.manual_seed(0)
    inner = nn.Linear(9, 9)
    model, x, seen = nn.Sequential(nn.Sequential(inner)), torch.randn(9, 9), []

    def see(g):
        seen.append(g.detach().float().numpy().copy())  # no operation casts it

    with context:
        for module in (model, model[0], inner):
            if how == "module":
                module.register_full_backward_hook(lambda m, given, got: see(got[0]))
            if how == "module before":
                module.register_full_backward_pre_hook(lambda m, got: see(got[0]))
        h = model(x.requires_grad_())
        if how == "tensor":
            h.register_hook(see)
            h.register_hook(see)
        y = after(h).float().sum() * 1.37
        if how == "asked for":
            for g in torch.autograd.grad(y, [h, x], retain_graph=True):
                see(g)
        y.backward()
    return [*seen, x.grad.numpy(), inner.weight.grad.numpy()]


@pytest.mark.parametrize("how", ["tensor", "module", "module before", "asked for"])
@pytest.mark.parametrize("after", SEEN)
def test_a_gradient_is_cast_before_anybody_looks_at_it(after, how):
    """Even by way of NumPy: a hook that counts what was flushed must find zeros."""
    given = SEEN[after], how
    real = _watched(torch.autocast("cpu", dtype=torch.bfloat16), *given)
    mode = simulated(BF16, policy=CPU_AUTOCAST)
    found = _watched(mode, *given)
    assert len(real) == len(found) > 2
    assert_all_bits(map(torch.from_numpy, found), map(torch.from_numpy, real))
    unseen = simulated(BF16, policy=CPU_AUTOCAST)
    _watched(unseen, SEEN[after], "")
    if how != "asked for":  # two backward passes
        assert mode.by_operation == unseen.by_operation


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.whole = nn.Linear(4, 6)

    def forward(self, x):
        return self.whole(x).chunk(2, 1)


def _hooked(context, program):
    torch.manual_seed(0)
    x, module = torch.randn(5, 4, requires_grad=True), Halves()
    module.register_full_backward_hook(lambda *_: None)
    with context:
        found = program(module, x)
    return [*found, *(p.grad for p in (x, *module.parameters()) if p.grad is not None)]


def _use_one_half(module, x):
    one, other = module(x)
    for t in (one, other):
        t.register_hook(lambda g: None)
    (one.float().sin() * 1.3).sum().backward()
    return ()


def _look_at_both_halves(module, x):
    """They share memory. A hook may be registered where autocast is off."""
    seen = []
    module.register_full_backward_hook(lambda m, given, got: seen.extend(got))
    one, other = module(x)
    with torch.autocast("cpu", enabled=False):
        one.register_hook(seen.append)
    (one.float().sin() + other.float().cos()).sum().backward()
    return [g.float() for g in seen]


def _penalize(module, x):
    out = module(x)[1].float().sum()
    (g,) = torch.autograd.grad(out, x, create_graph=True)
    (g.norm(dim=1) - 1).square().mean().backward()
    return (g.detach(),)


def _differentiate_many_times(module, x):
    one, _ = module.whole(x).chunk(2, 1)
    one.register_hook(lambda g: None)
    y = (one.float().sin() * 1.3).sum(1)
    return torch.autograd.grad(y, [x], torch.eye(5), is_grads_batched=True)


@pytest.mark.parametrize(
    "program",
    [_use_one_half, _look_at_both_halves, _penalize, _differentiate_many_times],
)
def test_hooks_bear_gradients_of_every_kind(program):
    """None for what nobody used, such as carry a graph, and many at once."""
    real = _hooked(torch.autocast("cpu", dtype=torch.bfloat16), program)
    found = _hooked(simulated(BF16, policy=CPU_AUTOCAST), program)
    assert_all_bits(found, real)


def test_a_gradient_of_torch_func_may_be_that_of_a_low_tensor():
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    with simulated(BF16, policy=CPU_AUTOCAST):
        low = x.to(torch.bfloat16)
        out, back = torch.func.vjp(lambda t: t.float().sin(), low)
        assert back(torch.ones_like(out))[0].shape == (3, 3)


def test_a_graph_of_fp32_stays_fp32_when_its_backward_pass_runs_inside():
    plain = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    inside = copy.deepcopy(plain)
    loss(plain(x)).backward()
    with simulated(FP16):
        inside(x)
    outside_loss = loss(inside(x))
    a = torch.eye(3, requires_grad=True)
    with simulated(FP16):
        a.mm(a)
        outside_loss.backward()
    assert_same_gradients(plain, inside)


def test_saturation_and_directed_rounding_reach_every_operation():
    x = torch.full((2, 2), 300.0)
    with simulated(FP16, overflow=Overflow.SATURATE):
        assert torch.equal(x.mm(x), torch.full((2, 2), 65504.0))
    a = torch.rand(3, 3)
    b = torch.rand(3, 3)
    up = {"rounding": Rounding.TOWARD_POSITIVE}
    with simulated(FP16, **up):
        actual = a.mm(b)
    assert_bits(
        actual,
        round_to(round_to(a, **up) @ round_to(b, **up), **up),
    )


def test_stochastic_rounding_repeats_from_its_seed_and_moves_on_from_call_to_call():
    a = torch.rand(8, 8)
    b = torch.rand(8, 8)

    def run(seed):
        with simulated(FP8_E4M3, rounding=Rounding.STOCHASTIC, stream=Stream(seed)):
            return a.mm(b), a.mm(b)

    first = run(1)
    again = run(1)
    assert_bits(first[0], again[0])
    assert_bits(first[1], again[1])
    assert not torch.equal(*first)


STRANGERS = [
    torch.Tensor.double,
    torch.Tensor.bfloat16,
    lambda x: torch.complex(x, x),
    torch.Tensor.to_sparse,
    lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.strided),
    lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged),
    lambda x: torch.masked.masked_tensor(x, x > 0),
]


def outcome(function, *args):
    """What a function gives, as text, or its error."""
    try:
        return re.sub(r"\bj\d+", "j", str(function(*args)))
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return type(error), str(error)[:60]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", STRANGERS)
def test_tensors_of_other_kinds_get_what_torch_s_autocast_gives_them(make):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    functions = (lambda x: x * 2, layer, torch.sigmoid, lambda x: x @ x.t())
    for function in functions:
        with torch.no_grad():
            with torch.autocast("cpu", dtype=torch.float16):
                expected = outcome(function, make(torch.eye(3)))
            with simulated(FP16, policy=CPU_AUTOCAST):
                actual = outcome(function, make(torch.eye(3)))
        assert actual == expected


@pytest.mark.parametrize(
    "around", [False, True], ids=["autocast within", "autocast around"]
)
def test_of_an_autocast_and_a_simulation_the_inner_one_says_what_is_low(around):
    contexts = [torch.autocast("cpu", dtype=torch.bfloat16), simulated(FP16)]
    first, second = contexts if around else reversed(contexts)
    x = torch.randn(2, 3)
    expected = torch.float16 if around else torch.bfloat16
    with first, second:
        assert (x @ x.t()).dtype is expected
        assert nn.Linear(3, 2)(x).dtype is expected


def test_fp32_changes_nothing():
    plain = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    wrapped = copy.deepcopy(plain)
    loss(plain(x)).backward()
    with simulated(FP32):
        loss(wrapped(x)).backward()
    assert_same_gradients(plain, wrapped)


def backward_elsewhere(sim, run):
    """Run a backward pass as a CUDA device's does: in a thread of its own, in the same mode.

    There autograd begins to count nodes from 0.
    """

    def work():
        with sim._mode:
            run()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def test_a_backward_pass_in_a_thread_of_its_own_leaves_the_graph_as_it_is():
    """Else each operation after it would stand for all before it, and a second pass be wrong."""
    model = nn.Sequential(
        nn.Linear(6, 5), nn.Sigmoid(), nn.LayerNorm(5), nn.Linear(5, 3)
    )
    x = torch.randn(4, 6)
    weights = list(model.parameters())
    found = []
    for call in (lambda sim, run: run(), backward_elsewhere):
        grads = []
        with simulated(FP16, model=model) as sim:
            loss = model(x).square().sum()
            # As mplab.lessons.l09.limits looks for the best.
            for scale in (
                1.0,
                2.0**-12,
                2.0**-20,
            ):
                scaled = loss * scale

                def run(scaled=scaled, grads=grads):
                    grads.extend(
                        torch.autograd.grad(scaled, weights, retain_graph=True)
                    )

                call(sim, run)
        counts = sim.by_operation | sim.by_layer
        found.append((grads, {name: str(tally) for name, tally in counts.items()}))
    assert all(map(torch.equal, found[0][0], found[1][0]))
    assert found[0][1] == found[1][1]
