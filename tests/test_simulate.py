"""The simulator: against hand computation, against torch's half kernels, and in odd company.

A float32 sum of two products is rounded once, in whatever order it is computed. So networks
of width two, on batches of two, have one right answer, and torch's own autocast on the CPU
must agree with the simulation bit for bit where both run an operation in the same format.
"""

import copy
import gc
import itertools
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

import mplab
from mplab import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    TF32,
    Overflow,
    Rounding,
    Stream,
    Tally,
    marks,
    policies,
)
from mplab.simulate import simulated

LOW = {FP16: torch.float16, BF16: torch.bfloat16}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def round_to(t, fmt=FP16, **options):
    return torch.from_numpy(mplab.round_to(t.detach().numpy(), fmt, **options))


def assert_bits(actual, expected):
    assert actual.shape == expected.shape
    a, b = (t.detach().contiguous().view(torch.int32) for t in (actual, expected))
    wrong = torch.nonzero(a != b)
    assert not len(wrong), f"{len(wrong)} differ, first at {wrong[0].tolist()}"


def is_low(t, fmt=FP16):
    return torch.equal(round_to(t, fmt), t.detach())


def mlp(*widths, activation=nn.Sigmoid):
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def gradients(model):
    return [p.grad.clone() for p in model.parameters()]


def assert_same_gradients(first, second):
    for a, b in zip(gradients(first), gradients(second), strict=True):
        assert_bits(a, b)


# What is computed ------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E5M2, FP8_E4M3, TF32], ids=lambda f: f.name)
def test_a_linear_layer_and_its_three_products_equal_the_hand_computation(fmt):
    """On numbers of one binade and one bit more than the format: every float32 sum is exact."""
    step = 2.0**-fmt.precision

    def numbers(*shape):
        sign = torch.randint(0, 2, shape) * 2 - 1
        return sign * (1 + torch.randint(0, 2**fmt.precision, shape) * step)

    x, w, b, g = numbers(4, 3), numbers(2, 3), numbers(2), numbers(4, 2)
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


def every_value(fmt):
    """Every finite value, and the infinities, as a column."""
    values = mplab.decode(np.arange(fmt.max_code + 1), fmt)
    return torch.from_numpy(values[~np.isnan(values)].astype(np.float32)).view(-1, 1)


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("function", [torch.sigmoid, torch.tanh, F.silu, F.relu, F.hardtanh])
def test_an_elementwise_operation_equals_torch_s_half_kernel_on_every_value(function, fmt):
    x = every_value(fmt)
    x = x[x.isfinite()].view(-1, 1)
    with simulated(fmt):
        actual = function(x.mm(torch.ones(1, 1)))
    assert_bits(actual, function(x.to(LOW[fmt])).float())


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
def test_a_product_equals_torch_s_half_kernel_on_exact_data(fmt):
    a = torch.randint(-40, 40, (33, 17)) / 8
    b = torch.randint(-40, 40, (17, 29)) / 32
    with simulated(fmt):
        actual = a.mm(b)
    assert_bits(actual, a.to(LOW[fmt]).mm(b.to(LOW[fmt])).float())


def loss(h):
    return F.mse_loss(h, torch.full(h.shape, 0.1))


def linear(x, *weights):
    for weight in weights:
        x = F.linear(x, weight)
    return x


def one_low_tensor_used_three_times(x, p):
    h = linear(x, p[0])
    return loss(linear(h, p[1]) + linear(h, p[2]) + linear(h, p[3]) + h)


def one_low_tensor_summed_and_used(x, p):
    h = linear(x, p[0])
    return h.float().sum() * 0.3 + loss(linear(h, p[1])) + h.float().sum() * 0.7


def one_low_tensor_used_low_and_wide(x, p):
    h = linear(x, p[0])
    return loss(linear(h, p[1])) + loss(h - 1) + loss(h) + loss(linear(h, p[2]))


def one_fp32_tensor_used_three_times(x, p):
    h = F.mse_loss(linear(x, p[0]), torch.zeros(2, 2), reduction="none")
    return loss(linear(h, p[1]) + linear(h, p[2]) + linear(h, p[3]))


def in_place(x, p):
    h = linear(x, p[0]) * 1.1
    return loss(linear(h.mul_(0.3).add_(p[3]), p[1]))


def concatenation(x, p):
    return loss(linear(torch.cat([linear(x, p[0])[:, :1], linear(x, p[1])[:, 1:]], 1), p[2]))


def concatenation_with_fp32(x, p):
    return loss(linear(torch.cat([linear(x, p[0])[:, :1], x[:, :1]], 1), p[2]))


def where(x, p):
    h = linear(x, p[0])
    return loss(linear(torch.where(h > 0, h, torch.tensor(0.1)), p[1]))


def writes_a_column(x, p):
    h = linear(x, p[0]).clone()
    h[:, 0] = x[:, 0] * 0.1
    return loss(linear(h, p[1]) * F.relu(h))


def multiplies_a_column(x, p):
    h = linear(x, p[0]).clone()
    h[:, 0].mul_(0.3)
    return loss(h)


def fills_an_fp32_buffer(x, p):
    h = torch.zeros(2, 2)
    h[:, 0] = linear(x, p[0])[:, 0]
    return loss(linear(h * 0.3, p[1]))


def drops(x, p):
    torch.manual_seed(3)
    return loss(linear(F.dropout(linear(x, p[0]), 0.3), p[1]))


def batched(x, p):
    h = linear(x, p[0]).view(1, 2, 2)
    return loss(torch.bmm(h, p[1].view(1, 2, 2)) @ h)


PROGRAMS = {
    "two layers": lambda x, p: loss(linear(F.relu(linear(x, p[0])), p[1])),
    "one low tensor used three times": one_low_tensor_used_three_times,
    "one low tensor summed and used": one_low_tensor_summed_and_used,
    "one low tensor used low and wide": one_low_tensor_used_low_and_wide,
    "one FP32 tensor used three times": one_fp32_tensor_used_three_times,
    "one weight used twice": lambda x, p: loss(linear(x, p[0], p[0])),
    "times a Python number": lambda x, p: loss(linear(x, p[0]) * 0.1),
    "times an FP32 parameter": lambda x, p: loss(linear(linear(x, p[0]) * p[3], p[1])),
    "in place": in_place,
    "views": lambda x, p: loss(linear(linear(x, p[0]).t().reshape(2, 2)[:, [1, 0]], p[1]).view(4)),
    "three dimensions": lambda x, p: loss(linear(x.view(1, 2, 2), p[0], p[1])),
    "concatenation": concatenation,
    "concatenation with FP32": concatenation_with_fp32,
    "clamp": lambda x, p: loss(linear(linear(x, p[0]).clamp(-0.1, 0.7), p[1])),
    "where": where,
    "largest": lambda x, p: loss(linear(x, p[0]).amax(1) * 0.3),
    "writes a column": writes_a_column,
    "multiplies a column": multiplies_a_column,
    "fills an FP32 buffer": fills_an_fp32_buffer,
    "dropout": drops,
    "batched products": batched,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_of_width_two_equals_torch_s_autocast_bit_for_bit(program):
    for seed in range(25):
        torch.manual_seed(seed)
        p = [nn.Parameter(torch.randn(2, 2)) for _ in range(4)]
        x, scale = torch.randn(2, 2), 2.0 ** (seed % 12)
        with torch.amp.autocast("cpu", dtype=torch.float16):
            expected = program(x, p)
        (expected * scale).backward()
        real = [q.grad for q in p]
        for q in p:
            q.grad = None
        with simulated(FP16):
            actual = program(x, p)
            (actual * scale).backward()
        assert_bits(actual, expected)
        for q, grad in zip(p, real, strict=True):
            assert (q.grad is None) == (grad is None)
            assert grad is None or torch.equal(q.grad, grad), f"seed {seed}"


def test_a_convolution_equals_the_hand_computation():
    x, g = torch.randn(2, 2, 1, 1), torch.randn(2, 2, 1, 1)
    w = nn.Parameter(torch.randn(2, 2, 1, 1))
    with simulated(FP16):
        output = F.conv2d(x, w)
        output.backward(g)
    xr, wr, gr = (round_to(t).view(2, 2) for t in (x, w, g))
    assert_bits(output, round_to(xr @ wr.T).view(2, 2, 1, 1))
    assert_bits(w.grad, round_to(gr.T @ xr).view(2, 2, 1, 1))


# What stays FP32 -------------------------------------------------------------------------

LOSSES = {
    "mse": lambda h: F.mse_loss(h, torch.zeros_like(h), reduction="none"),
    "smooth l1": lambda h: F.smooth_l1_loss(h, torch.zeros_like(h), reduction="none"),
    "huber": lambda h: F.huber_loss(h, torch.zeros_like(h), reduction="none"),
    "cross entropy": lambda h: F.cross_entropy(h, torch.arange(4), reduction="none"),
    "softmax": lambda h: h.softmax(1),
    "log_softmax": lambda h: h.log_softmax(1),
    "logsumexp": lambda h: h.logsumexp(1),
    "exp": torch.exp,
    "log": lambda h: h.abs().log(),
    "pow": lambda h: h**3,
    "rsqrt": lambda h: h.abs().rsqrt(),
    "sum": lambda h: h.sum(1),
    "prod": lambda h: h.prod(1),
    "cumsum": lambda h: h.cumsum(1),
    "norm": lambda h: h.norm(dim=1),
    "layer_norm": lambda h: F.layer_norm(h, (4,)),
    "group_norm": lambda h: F.group_norm(h, 2),
    "softplus": F.softplus,
    "interpolation": lambda h: F.interpolate(h.view(1, 1, 4, 4), size=(7, 7), mode="bilinear"),
}


@pytest.mark.parametrize("function", LOSSES.values(), ids=LOSSES)
def test_what_autocast_runs_in_fp32_is_not_rounded(function):
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with simulated(FP16):
        h = x.mm(w)
        actual = function(h)
        after = actual * 1.1
    assert is_low(h)
    assert_bits(actual, function(h.clone()))
    assert_bits(after, actual * 1.1)
    assert not is_low(actual)


def test_every_operation_on_autocast_s_lists_is_in_ours_or_made_of_others():
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text().replace("\\\n", " ")

    def theirs(name):
        definition = re.search(rf"#define AT_FORALL_{name}\(_\)(.*)", text)[1]
        return set(re.findall(r"_\((\w+)", definition))

    made_of_others = set(
        """
        conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu matmul
        einsum linalg_vecdot linear chain_matmul linalg_multi_dot lstm_cell gru_cell
        rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention layer_norm group_norm rms_norm
        frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss
        nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss margin_ranking_loss
        multilabel_margin_loss triplet_margin_loss pdist cdist softmax log_softmax
        linalg_matrix_norm
        """.split()  # noqa: SIM905
    )
    lower, wide = theirs("LOWER_PRECISION_FP"), theirs("FP32") | theirs("FP32_SET_OPT_DTYPE")
    assert {"mm", "addmm"} <= lower
    assert {"exp", "softmax"} <= wide
    assert lower - policies.LOWER <= made_of_others
    assert wide - policies.WIDE <= made_of_others
    assert not made_of_others & (policies.LOWER | policies.WIDE)


def test_every_operation_in_our_lists_exists():
    names = policies.LOWER | policies.WIDE | policies.LIKE_INPUT | policies.EXACT
    known = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert {name for name in names if not {name, f"{name}_"} & known} == set()


def test_an_operation_in_place_is_not_cast_as_autocast_does_not_list_it():
    x, w, total = (torch.randn(3, 3) for _ in range(3))
    expected = torch.addmm(total, x, w)
    with simulated(FP16):
        out = torch.addmm(total, x, w, out=torch.empty(3, 3))
        total.addmm_(x, w)
    assert_bits(total, expected)
    assert_bits(out, expected)


def test_scalars_are_not_rounded():
    with simulated(FP16):
        h = torch.randn(3, 3).mm(torch.randn(3, 3))
        mean = h.mean()
        scaled = mean * 2.0**20
    assert_bits(mean, h.mean())
    assert_bits(scaled, h.mean() * 2.0**20)


def test_the_backward_pass_of_a_scalar_is_fp32_until_it_leaves_it():
    h = torch.randn(3, 3, requires_grad=True)
    with simulated(FP16):
        g = h.mm(torch.eye(3))
        (g.mean() * 2.0**17).backward()  # 2^17 itself is past FP16
    assert_bits(h.grad, round_to(torch.full((3, 3), 2.0**17 / 9)))


def test_an_fp32_tensor_stays_fp32_in_what_autocast_does_not_list():
    x = torch.randn(5, 5)
    with simulated(FP16):
        y = torch.sigmoid(x + x / 3)
    assert_bits(y, torch.sigmoid(x + x / 3))


def test_gradients_accumulate_in_fp32():
    model = mlp(6, 5, 3)
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    single = []
    for batch in (slice(0, 4), slice(4, 8)):
        alone = copy.deepcopy(model)
        with simulated(FP16):
            F.mse_loss(alone(x[batch]), y[batch]).backward()
        single.append(gradients(alone))
    with simulated(FP16):
        for batch in (slice(0, 4), slice(4, 8)):
            F.mse_loss(model(x[batch]), y[batch]).backward()
    for p, first, second in zip(model.parameters(), *single, strict=True):
        assert_bits(p.grad, first + second)
    assert not all(is_low(p.grad) for p in model.parameters())


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("paused", [True, False])
def test_optimizer_unscaling_and_clipping_are_untouched_inside_the_context(make, paused):
    """Also where the mode cannot step aside, because another one is above it."""
    inside = mlp(6, 5, 3)
    outside = copy.deepcopy(inside)
    x, y = torch.randn(8, 6), torch.randn(8, 3)

    class Above(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def backward(model, scaler, optimizer):
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(x), y)).backward()

    def update(model, scaler, optimizer):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    kits = [(m, torch.amp.GradScaler("cpu"), make(m.parameters())) for m in (inside, outside)]
    for _ in range(4):
        with simulated(FP16):
            backward(*kits[0])
            if paused:
                update(*kits[0])
            else:
                with Above():
                    update(*kits[0])
        with simulated(FP16):
            backward(*kits[1])
        update(*kits[1])
    for a, b in zip(inside.parameters(), outside.parameters(), strict=True):
        assert_bits(a, b)


def test_an_optimizer_with_a_closure_is_simulated_inside_the_closure():
    model, seen = mlp(4, 3), []
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        output = model(torch.randn(5, 4))
        seen.append(is_low(output))
        value = loss(output)
        value.backward()
        return value

    with simulated(FP16):
        optimizer.step(closure)
    assert all(seen)


def test_batch_norm_keeps_weights_and_statistics_in_fp32():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    with simulated(FP16):
        output = model(torch.randn(16, 6))
        (output * torch.randn(16, 5)).sum().backward()
    assert is_low(output)
    assert is_low(model[0].weight.grad)
    assert not is_low(model[1].weight.grad)
    assert not is_low(model[1].running_mean)


# Odd company -----------------------------------------------------------------------------


def test_without_gradients_the_forward_pass_is_the_same():
    model, x = mlp(6, 5, 3), torch.randn(4, 6)
    with simulated(FP16):
        expected = model(x)
        with torch.no_grad():
            assert_bits(model(x), expected)
        with torch.inference_mode():
            assert_bits(model(x), expected)


def test_operations_in_place_keep_the_format_of_what_they_write_to():
    with simulated(FP16):
        h = torch.randn(4, 4).mm(torch.randn(4, 4))
        h.mul_(1 / 3)
        assert is_low(h)
        h.masked_fill_(torch.eye(4, dtype=torch.bool), -1e9)
        assert torch.equal(h.diag(), torch.full((4,), -torch.inf))
        h.copy_(torch.full((4, 4), 0.1))
        assert_bits(h, round_to(torch.full((4, 4), 0.1)))
        wide = torch.randn(4, 4)
        expected = wide + h
        wide.add_(h)
        assert_bits(wide, expected)
        out = torch.empty(4, 4)
        torch.mul(h, 1 / 3, out=out)
    assert_bits(out, h * (1 / 3))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_no_gradient(use_reentrant):
    plain, x, y = mlp(6, 5, 3), torch.randn(4, 6, requires_grad=True), torch.randn(4, 3)
    saving = copy.deepcopy(plain)
    with simulated(FP16):
        F.mse_loss(plain(x), y).backward()
        F.mse_loss(checkpoint(saving, x, use_reentrant=use_reentrant), y).backward()
    assert_same_gradients(plain, saving)


def test_torch_func_computes_the_same_gradients():
    model, x, y = mlp(6, 5, 3), torch.randn(4, 6), torch.randn(4, 3)
    parameters = dict(model.named_parameters())
    with simulated(FP16):
        found = torch.func.grad(
            lambda p: F.mse_loss(torch.func.functional_call(model, p, (x,)), y)
        )(parameters)
        F.mse_loss(model(x), y).backward()
    for name, p in parameters.items():
        assert_bits(found[name], p.grad)


def test_a_backward_function_of_one_s_own_runs_in_the_format_of_its_inputs():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            torch.exp(x)  # what comes first must not decide
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x * x * 3

    h, seen = torch.randn(2, 2, requires_grad=True), []
    with simulated(FP16):
        low = h.mm(torch.eye(2))
        cube = Cube.apply(low)
        cube.register_hook(seen.append)
        loss(cube.mm(torch.eye(2))).backward()
    expected = seen[0]
    for factor in (low, low, 3):
        expected = round_to(expected * factor)
    assert_bits(h.grad, expected)


def test_hooks_see_gradients_in_the_format_of_their_tensor():
    h, w, seen = torch.randn(2, 2), nn.Parameter(torch.randn(2, 2)), []
    with simulated(FP16):
        low = linear(h, w)
        low.register_hook(lambda grad: seen.append(grad / 3))
        w.register_hook(lambda grad: seen.append(grad / 3))
        loss(low).backward()
    assert is_low(seen[0])
    assert_bits(seen[1], w.grad / 3)


def test_gradients_of_gradients_are_simulated():
    model, x = mlp(6, 5, 3), torch.randn(4, 6, requires_grad=True)
    with simulated(FP16):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.pow(2).sum().backward()
    assert is_low(slope)
    assert all(is_low(p.grad) for p in model[0].parameters())


def test_gradients_from_autograd_grad_are_fp32_in_further_computation():
    w = nn.Parameter(torch.randn(4, 4))
    with simulated(FP16):
        (grad,) = torch.autograd.grad(loss(linear(torch.randn(3, 4), w)), w)
        step = grad / 3
        kept = grad.clone()
        clipped = grad.mul_(1 / 3)
        again = clipped * (1 / 3)
    assert is_low(kept)
    assert_bits(step, kept / 3)
    assert_bits(clipped, kept * (1 / 3))
    assert_bits(again, clipped * (1 / 3))


def test_a_graph_of_fp32_stays_fp32_when_its_backward_pass_runs_inside():
    plain, x = mlp(6, 5, 3), torch.randn(4, 6)
    inside = copy.deepcopy(plain)
    loss(plain(x)).backward()
    with simulated(FP16):
        inside(x)
    outside_loss, a = loss(inside(x)), torch.eye(3, requires_grad=True)
    with simulated(FP16):
        a.mm(a)
        outside_loss.backward()
    assert_same_gradients(plain, inside)


def test_forward_and_backward_may_run_in_two_contexts():
    plain, x = mlp(6, 5, 3), torch.randn(4, 6)
    split = copy.deepcopy(plain)
    with simulated(FP16):
        loss(plain(x)).backward()
    sim = simulated(FP16)
    with sim:
        value = loss(split(x))
    torch.randn(3, requires_grad=True).sum().backward()
    with sim:
        value.backward()
    assert_same_gradients(plain, split)


@pytest.mark.parametrize("change", ["data", "in place", "optimizer", "optimizer through data"])
def test_a_changed_weight_is_rounded_anew(change):
    class Halves(torch.optim.Optimizer):
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.data.mul_(0.5)

    w, x = nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4)
    optimizer = {
        "optimizer": torch.optim.SGD([w], 0.1),
        "optimizer through data": Halves([w], {}),
    }.get(change)
    with simulated(FP16):
        loss(linear(x, w)).backward()
        if change == "data":
            w.data.mul_(0.7)
        elif change == "in place":
            with torch.no_grad():
                w.mul_(0.7)
        else:
            optimizer.step()
        actual = linear(x, w)
    assert_bits(actual, round_to(round_to(x) @ round_to(w).T))


def test_a_weight_that_changed_between_two_entries_is_rounded_anew():
    sim, w, x = simulated(FP16), nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4)
    for _ in range(2):
        with sim:
            actual = linear(x, w)
        assert_bits(actual, round_to(round_to(x) @ round_to(w).T))
        w.data.mul_(0.7)


def test_weights_that_share_memory_are_not_mixed_up():
    memory = torch.randn(32)
    a, b = (nn.Parameter(memory[i : i + 16].view(4, 4)) for i in (0, 16))
    x = torch.randn(3, 4)
    with simulated(FP16):
        for w in (a, b, a):
            assert_bits(linear(x, w), round_to(round_to(x) @ round_to(w).T))


def test_memory_that_is_used_again_does_not_keep_its_format():
    with simulated(FP16):
        for size in range(20, 200):
            h = torch.randn(size, size).mm(torch.randn(size, size))
            address = h.data_ptr()
            del h
            wide = torch.full((size, size), 1 / 3)
            if wide.data_ptr() == address:
                break
        else:
            pytest.skip("the allocator did not use the memory again")
        assert_bits(wide * 3.3, torch.full((size, size), 1 / 3) * 3.3)


def test_nothing_of_a_finished_run_is_kept_alive():
    model, x = mlp(6, 5, 3), torch.randn(4, 6)
    with simulated(FP16, model=model):
        h = model(x)
        loss(h).backward()
    alive = [weakref.ref(t) for t in (model, h)]
    del model, h
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_the_innermost_of_nested_contexts_decides():
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with simulated(FP16) as outer:
        before = x.mm(w)
        with simulated(BF16) as inner:
            within = x.mm(w)
            both = within + before
        after = x.mm(w)
    assert_bits(before, after)
    assert_bits(within, round_to(round_to(x, BF16) @ round_to(w, BF16), BF16))
    assert_bits(both, within + before)  # two low formats meet in FP32
    assert outer.by_operation["mm"].total == 32
    assert inner.by_operation["mm"].total == 16


def test_an_exception_leaves_no_trace():
    model, x = mlp(6, 5, 3), torch.randn(4, 6)
    expected = model(x)
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ZeroDivisionError), simulated(FP16):
        model(x)
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), simulated(FP16):
        model(torch.randn(4, 7))
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert not _global_optimizer_pre_hooks
    assert not nn.modules.module._global_forward_hooks
    assert_bits(model(x), expected)


class Breaks(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyboardInterrupt


def test_a_broken_optimizer_step_ends_with_the_context():
    model, x = mlp(6, 5, 3), torch.randn(4, 6)
    expected = model(x)
    with pytest.raises(KeyboardInterrupt), simulated(FP16):
        loss(model(x)).backward()
        Breaks(model.parameters()).step()
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
    assert_bits(model(x), expected)


def test_a_broken_optimizer_step_does_not_go_on_silently():
    optimizer = Breaks(mlp(2, 2).parameters())
    with simulated(FP16):
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        with pytest.raises(RuntimeError, match="step must end before its next one"):
            optimizer.step()


@pytest.mark.parametrize("loss_inside", [True, False])
def test_a_backward_pass_after_the_context_is_refused(loss_inside):
    model, x = mlp(6, 5, 3), torch.randn(4, 6)
    with simulated(FP16):
        output = model(x)
        value = loss(output) if loss_inside else None
    value = value if loss_inside else loss(output)
    with pytest.raises(RuntimeError, match=r"backward\(\) must run inside the with statement"):
        value.backward()


STRANGERS = {
    "float64": (lambda x: x.double(), "torch.float64"),
    "half": (lambda x: x.half(), "torch.float16"),
    "bfloat16": (lambda x: x.bfloat16(), "torch.bfloat16"),
    "float8": (lambda x: x.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
    "complex": (lambda x: torch.complex(x, x), "torch.complex64"),
    "sparse": (lambda x: x.to_sparse(), "torch.sparse_coo"),
}


@pytest.mark.parametrize(("make", "name"), STRANGERS.values(), ids=STRANGERS)
@pytest.mark.parametrize("function", [lambda x: x + x, lambda x: x @ x, lambda x: x.sigmoid()])
def test_tensors_that_cannot_be_simulated_are_refused_by_name(make, name, function):
    x = make(torch.eye(3))
    with (
        simulated(FP16),
        pytest.raises(ValueError, match=f"dense float32; got .*{name}.* of shape"),
    ):
        function(x)


@pytest.mark.filterwarnings("ignore:.*quantized:UserWarning")
def test_quantized_tensors_are_refused():
    x = torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.quint8)
    with simulated(FP16), pytest.raises(ValueError, match=r"got torch\.quint8"):
        x.relu()


def test_a_list_operation_on_low_tensors_is_refused_rather_than_passed():
    with simulated(FP16):
        h = torch.eye(3).mm(torch.eye(3))
        with pytest.raises(ValueError, match="_foreach_mul must be given FP32 tensors"):
            torch._foreach_mul([h, h], 0.3)


def test_conversions_into_float32_integers_and_scalars_pass():
    with simulated(FP16):
        assert_bits(torch.eye(3).double().float(), torch.eye(3))
        assert torch.arange(3).sum().item() == 3
        assert torch.tensor(2.0, dtype=torch.float64).sqrt().item() == 2**0.5


@pytest.mark.parametrize(
    "fmt", [mplab.FP8_E8M0, mplab.Format("wide", exponent_bits=11, precision=20)]
)
def test_a_format_that_float32_cannot_hold_is_refused(fmt):
    with pytest.raises(ValueError, match="simulated: fmt must "):
        simulated(fmt)


def test_arguments_of_another_type_are_refused():
    with pytest.raises(
        TypeError, match=r"simulated: fmt must be an mplab Format; got torch\.float16"
    ):
        simulated(torch.float16)
    with pytest.raises(TypeError, match="simulated: rounding must be"):
        simulated(FP16, rounding="up")
    with pytest.raises(ValueError, match="simulated: stream must be a Stream"):
        simulated(FP16, rounding=Rounding.STOCHASTIC)


def test_a_context_cannot_be_entered_twice_at_once():
    sim = simulated(FP16)
    with sim, pytest.raises(RuntimeError, match="must be left before it is entered again"):
        sim.__enter__()


def test_fp32_changes_nothing():
    plain, x = mlp(6, 5, 3), torch.randn(4, 6)
    wrapped = copy.deepcopy(plain)
    loss(plain(x)).backward()
    with simulated(FP32):
        loss(wrapped(x)).backward()
    assert_same_gradients(plain, wrapped)


def test_saturation_and_directed_rounding_reach_every_operation():
    x = torch.full((2, 2), 300.0)
    with simulated(FP16, overflow=Overflow.SATURATE):
        assert torch.equal(x.mm(x), torch.full((2, 2), 65504.0))
    a, b = torch.rand(3, 3), torch.rand(3, 3)
    up = {"rounding": Rounding.TOWARD_POSITIVE}
    with simulated(FP16, **up):
        actual = a.mm(b)
    assert_bits(actual, round_to(round_to(a, **up) @ round_to(b, **up), **up))


def test_stochastic_rounding_repeats_from_its_seed_and_moves_on_from_call_to_call():
    a, b = torch.rand(8, 8), torch.rand(8, 8)

    def run(seed):
        with simulated(FP8_E4M3, rounding=Rounding.STOCHASTIC, stream=Stream(seed)):
            return a.mm(b), a.mm(b)

    first, again = run(1), run(1)
    assert_bits(first[0], again[0])
    assert_bits(first[1], again[1])
    assert not torch.equal(*first)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.RNN], ids=["LSTM", "RNN"])
def test_recurrent_layers_give_low_outputs(kind):
    model = kind(4, 3)
    with simulated(FP16):
        output, _ = model(torch.randn(5, 2, 4))
        loss(output).backward()
    assert is_low(output)
    assert all(is_low(p.grad) for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_layer_is_simulated_in_training_and_evaluation(training):
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    with simulated(FP16) as sim, torch.set_grad_enabled(training):
        model(torch.randn(2, 5, 8))
    assert "_scaled_dot_product_flash_attention_for_cpu" in sim.by_operation
    assert {"linear1", "linear2"} <= set(sim.by_layer)


# Tallies ---------------------------------------------------------------------------------


def test_tallies_count_what_was_rounded_by_operation_and_by_layer():
    model, x, y = mlp(6, 5, 3), torch.randn(4, 6), torch.randn(4, 3)
    with simulated(FP16, model=model) as sim:
        F.mse_loss(model(x), y).backward()
    totals = {name: tally.total for name, tally in sim.by_operation.items()}
    assert totals == {
        "cast": (4 * 6 + 5 * 6 + 5) + (3 * 5 + 3),
        "addmm": 4 * 5 + 4 * 3,
        "sigmoid": 4 * 5,
        "cast backward": 4 * 3,
        "mm backward": 3 * 5 + 4 * 5 + 5 * 6,
        "sum backward": 3 + 5,
        "sigmoid backward": 4 * 5,
    }
    assert set(sim.by_layer) == {*"012", *(f"{name} backward" for name in "012")}
    assert sum(sim.by_layer.values(), Tally()) == sum(sim.by_operation.values(), Tally())
    rounded = mplab.tally((round_to(x) @ round_to(x).T).numpy(), FP16)
    with simulated(FP16) as sim:
        h = x.mm(x.t())
        (h * 2.0**-30).relu_()
    assert sim.by_operation["mm"] == rounded
    assert sim.by_operation["mul"].flushed == torch.count_nonzero(h * 2.0**-30 < 2.0**-25 + 1)
    assert "relu" not in sim.by_operation
    with simulated(FP16) as sim:
        torch.randn(2, 4, 3) @ torch.randn(3, 5)
    assert list(sim.by_operation) == ["cast", "mm"]


def test_without_tally_nothing_is_counted():
    model = mlp(6, 5)
    with simulated(FP16, tally=False) as sim:
        loss(model(torch.randn(4, 6))).backward()
    assert sim.by_operation == sim.by_layer == {}


def test_a_context_that_is_entered_again_goes_on_counting():
    sim, x = simulated(FP16), torch.randn(3, 3)
    for _ in range(3):
        with sim:
            x.mm(x)
    assert sim.by_operation["mm"].total == 27


def test_two_models_have_names_of_their_own():
    first, second = mlp(3, 3), nn.Sequential(nn.Linear(3, 3))
    with simulated(FP16) as sim:
        second(first(torch.randn(2, 3)))
        torch.randn(2, 2).mm(torch.randn(2, 2))
    assert list(sim.by_layer) == ["0", "Sequential 2: 0", "outside modules"]


def test_a_part_of_the_given_model_has_its_full_name():
    model = nn.ModuleDict({"encoder": mlp(3, 3), "decoder": nn.Linear(3, 3)})
    with simulated(FP16, model=model) as sim:
        model["decoder"](model["encoder"](torch.randn(2, 3)))
    assert list(sim.by_layer) == ["encoder.0", "decoder"]


def test_names_survive_an_exception_in_a_layer():
    model = mlp(3, 3)
    with simulated(FP16, model=model) as sim:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 4))
        torch.randn(2, 2).mm(torch.randn(2, 2))
    assert "outside modules" in sim.by_layer


def test_a_graph_may_grow_beyond_what_is_remembered_but_not_be_used_then(monkeypatch):
    monkeypatch.setattr(marks, "KEPT_NODES", 8)
    x = torch.randn(2, 2, requires_grad=True)
    with simulated(FP16):
        h = x.mm(x)
        value = h.sum()
        for _ in range(40):
            h = h + h
        with pytest.raises(RuntimeError, match="must follow within"):
            value.backward()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_bits_as_the_cpu_on_exact_data():
    model, x = mlp(2, 2, 2, activation=nn.ReLU), torch.randn(2, 2)
    results = []
    for device in ("cpu", "cuda"):
        there = copy.deepcopy(model).to(device)
        with simulated(FP16) as sim:
            loss(there(x.to(device)).cpu()).backward()
        results.append((gradients(there.cpu()), sim.by_operation["addmm"]))
    assert results[0][1] == results[1][1]
    for a, b in zip(results[0][0], results[1][0], strict=True):
        assert_bits(a, b)
