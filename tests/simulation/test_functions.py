"""Functions that run as a whole, and what is called in other ways than plainly."""

import copy
import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from threading import Barrier

import pytest
import torch
from networks import (
    Within,
    assert_all_bits,
    assert_bits,
    assert_same_gradients,
    is_low,
    loss,
    mlp,
    round_to,
)
from torch import nn
from torch.backends import mha
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab import BF16, FP16, FP32
from mplab.simulation import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    EVERYTHING,
    POLICIES,
    autocast,
    explain,
    simulated,
)

# As a whole


@pytest.mark.parametrize("policy", [CPU_AUTOCAST, CUDA_AUTOCAST])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_attention_that_torch_takes_apart_is_fp32_between_low_inputs_and_a_low_result(
    policy, dropout
):
    # Needs a gradient: torch takes it apart.
    mask = torch.zeros(5, 5, requires_grad=True)
    inputs = [*torch.randn(3, 1, 2, 5, 4).requires_grad_().unbind(), mask]
    attend = F.scaled_dot_product_attention

    def run(context):
        torch.manual_seed(1)
        with context:
            return attend(
                *(t * 1 for t in inputs[:3]), attn_mask=mask, dropout_p=dropout
            )

    def with_gradients(output):
        return output.float(), *torch.autograd.grad(
            output, inputs, torch.ones_like(output)
        )

    expected = with_gradients(run(torch.autocast("cpu", dtype=torch.float16)))
    with simulated(FP16, policy=policy):
        actual = with_gradients(run(nullcontext()))
    assert_all_bits(actual, expected)
    assert is_low(actual[0])


def test_heads_that_share_a_value_add_its_gradients_in_fp32():
    attend = F.scaled_dot_product_attention
    # Needs a gradient: torch takes it apart.
    mask = torch.zeros(5, 5, requires_grad=True)
    query = torch.randn(1, 4, 5, 4)
    value = torch.randn(1, 1, 5, 4).requires_grad_()
    found = explain(
        Within(lambda q, v: attend(q, q, v * 1, attn_mask=mask)), query, value
    )
    sums = [
        row for row in found.rows if row.operation == "sum" and row.shape == value.shape
    ]
    assert [row.format for row in sums] == [FP32]


def test_the_statistics_of_attention_stay_fp32_in_its_backward_pass():
    inputs = torch.randn(3, 1, 2, 5, 4).requires_grad_()
    found = explain(Within(lambda x: F.scaled_dot_product_attention(*x)), inputs)
    (row,) = [row for row in found.rows if row.operation.endswith("for_cpu_backward")]
    assert row.inputs == (FP16,) * 5 + (FP32,), "the last is the logsumexp"


# What torch computes in FP32


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
    model = nn.Sequential(nn.MultiheadAttention(4, 2, batch_first=True))
    x = torch.randn(1, 3, 4)
    policy = EVERYTHING.with_layers({nn.MultiheadAttention: FP32})
    with simulated(FP16, policy=policy, model=model):
        actual, _ = model[0](x, x, x, need_weights=False)
    assert_bits(actual, model[0](x, x, x, need_weights=False)[0])


# torch.func


@pytest.mark.parametrize("policy", POLICIES.values())
def test_a_function_over_a_batch_gives_what_a_loop_gives_and_the_gradient_of_plain_autograd(
    policy,
):
    x = torch.randn(5, 1, 2)
    y = torch.randn(5, 1, 2)
    w = torch.randn(2, 2)
    layer = Within(lambda x, w: torch.tanh(x @ w))

    def batch(w):
        return F.mse_loss(torch.func.vmap(layer, in_dims=(0, None))(x, w), y)

    p = w.clone().requires_grad_()
    with simulated(FP16, policy=policy):
        together = torch.func.vmap(layer, in_dims=(0, None))(x, w)
        alone = torch.stack([layer(row, w) for row in x])
        found = torch.func.grad(batch)(w)
        batch(p).backward()
    assert_bits(together, alone)
    assert_bits(found, p.grad)
    assert is_low(together) and is_low(found)


def test_a_gradient_for_each_example_is_that_of_a_loop():
    w = torch.randn(2, 2)
    x = torch.randn(5, 1, 2)
    gradient = torch.func.grad(lambda w, x: (x @ w).square().sum())
    with simulated(FP16):
        together = torch.func.vmap(gradient, in_dims=(None, 0))(w, x)
        alone = torch.stack([gradient(w, each) for each in x])
    assert_bits(together, alone)
    assert is_low(together)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_forward_differentiation_is_simulated_also_of_what_does_not_vary():
    layer = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    direction = torch.randn(2, 4)
    with simulated(FP16):  # the tangent of the bias is a tensor of zeros without memory
        output, tangent = torch.func.jvp(layer, (x,), (direction,))
    assert is_low(output)
    assert_bits(tangent, round_to(round_to(direction) @ round_to(layer.weight).t()))


# Autocast turned off


class Protected(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 3)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            wide = self.inner(x.float()) + x.float().softmax(-1).mm(torch.ones(3, 3))
        return self.last(wide)


@pytest.mark.parametrize("tally", [False, True])
def test_where_a_program_turns_autocast_off_nothing_is_cast(tally):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Protected())
    x = torch.randn(2, 3)

    def gradients_of(output):
        return torch.autograd.grad(loss(output), model.parameters())

    with torch.autocast("cpu", dtype=torch.float16):
        expected = model(x)
    wanted = gradients_of(expected)
    for again in (False, True):
        with simulated(FP16, policy=CPU_AUTOCAST, tally=tally):
            actual = checkpoint(model, x, use_reentrant=False) if again else model(x)
            found = gradients_of(actual)
        assert_bits(actual, expected.float())
        assert_all_bits(found, wanted)


class Sigmoid(torch.autograd.Function):
    """Of a product, whose gradient goes straight through the sigmoid."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.sigmoid(x @ weight)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class WithoutGradients(nn.Module):
    """A part that autograd does not record itself, between two that it does."""

    def __init__(self, part):
        super().__init__()
        self.first, self.last, self.part = nn.Linear(8, 8), nn.Linear(8, 8), part

    def forward(self, x):
        return self.last(self.part(self.first(x), self.last.weight))


def constant(x, weight):
    with torch.no_grad():
        gate = torch.sigmoid(x @ weight)
    return x * gate


def region(x, weight):
    with torch.autocast("cpu", enabled=False):
        return x.float().softmax(-1).mm(weight)


PARTS = {"no_grad": constant, "a function": Sigmoid.apply, "autocast off": region}


@pytest.mark.parametrize("call", [torch.Tensor.backward, torch.autograd.backward])
@pytest.mark.parametrize("tally", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_what_a_checkpoint_runs_again_without_gradients_is_low_too(
    part, reentrant, tally, call
):
    """And it is seen however backward is called."""
    plain = WithoutGradients(PARTS[part])
    x = torch.randn(4, 8)
    again = partial(checkpoint, copy.deepcopy(plain), use_reentrant=reentrant)
    results = []
    for run in (plain, again):
        given = x.clone().requires_grad_()
        with simulated(FP16, tally=tally):
            call(run(given).float().square().mean())
        results.append(given.grad)
    assert_same_gradients(plain, again.args[0])
    assert_bits(*results)


def test_after_a_simulation_autocast_is_as_it_was_though_a_region_was_broken_off():
    def state():
        kinds = ("cpu", "cuda")
        return [
            (torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds
        ]

    before = state()
    x = torch.randn(3, 3)
    with simulated(FP16):
        with pytest.raises(RuntimeError), torch.autocast("cpu", enabled=False):
            x.mm(torch.randn(2, 2))
        assert is_low(x.mm(x))
        with torch.autocast("cpu", enabled=False), simulated(FP16):
            assert is_low(x.mm(x)), "a simulation within is one of its own"
    assert state() == before
    assert (x @ x).dtype is torch.float32


def test_under_cuda_s_lists_a_program_may_turn_autocast_off_by_cuda_s_name():
    x = torch.randn(3, 3)
    with simulated(FP16):
        with torch.autocast("cuda", enabled=False):
            assert_bits(x.mm(x), torch.mm(x, x))
        assert is_low(x.mm(x))
    with simulated(FP16, policy=CPU_AUTOCAST), torch.autocast("cuda", enabled=False):
        assert is_low(x.mm(x))


def test_on_cuda_the_matrices_of_a_list_are_cast():
    x = torch.randn(3, 3)
    with simulated(FP16):
        low = torch.einsum("ij,jk", x, x)
        assert low.dtype is torch.linalg.multi_dot([x, x, x]).dtype is torch.float16
    assert_bits(low, round_to(round_to(x) @ round_to(x)))


def test_two_threads_may_follow_two_lists_while_a_third_has_torch_s_own():
    x = torch.rand(3, 3)
    barrier = Barrier(3, timeout=60)

    def work(context):
        found = []
        for _ in range(20):
            barrier.wait()
            with context():
                barrier.wait()
                found += [torch.exp(x @ x).dtype, (x @ x).dtype]
                barrier.wait()
        return set(found[::2]), set(found[1::2])

    contexts = (
        lambda: simulated(FP16),
        lambda: simulated(BF16, policy=CPU_AUTOCAST),
        lambda: torch.autocast("cpu", dtype=torch.float16),
    )
    with ThreadPoolExecutor(3) as pool:
        cuda, cpu, real = pool.map(work, contexts)
    assert cuda == ({torch.float32}, {torch.float16})
    assert cpu == ({torch.bfloat16}, {torch.bfloat16})
    assert real == ({torch.float16}, {torch.float16})


def test_the_fast_path_of_attention_is_as_it_was_after_contexts_that_overlap():
    first, second = simulated(FP16), simulated(FP16)
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(first.__enter__).result()
        with second:
            elsewhere.submit(first.__exit__, None, None, None).result()
            assert not mha.get_fastpath_enabled()
    assert mha.get_fastpath_enabled()


def test_torch_s_own_autocast_is_as_it_was_when_simulations_are_gone():
    key = "AutocastCPU"
    gc.collect()
    before = set(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    sim = simulated(FP16)
    with sim:
        during = set(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    del sim
    gc.collect()
    after = set(torch._C._dispatch_get_registrations_for_dispatch_key(key))
    assert "aten::exp" in during - before
    assert after == before


def test_torch_s_own_autocast_keeps_its_bits_beside_a_simulation():
    """A pseudoinverse came in FP32."""

    def real():
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            return torch.linalg.pinv(torch.randn(3, 3), rtol=1e-3)

    gc.collect()
    alone = real()
    beside = simulated(FP16, policy=EVERYTHING)
    with beside:
        torch.ones(2).exp()
    found = real()
    assert found.dtype is alone.dtype is torch.bfloat16
    assert torch.equal(found, alone)


def test_a_loop_that_makes_a_context_for_each_step_replaces_no_kernels_again():
    """Each step replaced them all, which took longer than the step itself."""
    gc.disable()
    try:
        with simulated(FP16):
            first = weakref.ref(autocast.kernels())
        with simulated(FP16):
            assert autocast.kernels() is first()
    finally:
        gc.enable()


def test_cuda_s_autocast_refuses_binary_cross_entropy_in_its_own_words():
    p, y = torch.rand(2, 3), torch.ones(2, 3)
    with simulated(FP16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, y)
    with simulated(FP16, policy=CPU_AUTOCAST):
        assert F.binary_cross_entropy(p, y).dtype is torch.float32


@pytest.mark.parametrize("fmt", [BF16, FP16])
@pytest.mark.parametrize("wide", [True, False])
def test_custom_fwd_casts_its_inputs_as_under_autocast(fmt, wide):
    asked = torch.float32 if wide else fmt.torch_dtype
    layer = nn.Linear(8, 8)
    x = torch.randn(4, 8)
    w = torch.randn(8, 8, requires_grad=True)
    cast = torch.amp.custom_fwd(device_type="cpu", cast_inputs=asked)

    class Cast(Sigmoid):
        forward = staticmethod(cast(Sigmoid.forward.__wrapped__))

    def run(context):
        with context:
            out = Cast.apply(layer(x), w)
            assert out.dtype is asked
            found = torch.autograd.grad(loss(out.float()), [w, layer.weight])
        return out.detach().float(), *found

    real = run(torch.autocast("cpu", fmt.torch_dtype))
    for policy in (CPU_AUTOCAST, CUDA_AUTOCAST):
        assert_all_bits(run(simulated(fmt, policy=policy)), real)


def test_a_custom_function_that_mixes_dtypes_raises_as_under_autocast():
    """Its backward pass runs without casts, as torch's does."""

    class Plain(Sigmoid):
        forward = staticmethod(Sigmoid.forward.__wrapped__)
        backward = staticmethod(Sigmoid.backward.__wrapped__)

    layer = nn.Linear(8, 8)
    w = torch.randn(8, 8, requires_grad=True)
    said = []
    for context, around in (
        (simulated(FP16), simulated(FP16)),
        (torch.autocast("cpu", dtype=torch.float16), nullcontext()),
    ):
        with context:
            out = Plain.apply(layer(torch.randn(4, 8)), w)
        with pytest.raises(RuntimeError, match="same dtype") as caught, around:
            out.float().sum().backward()
        said.append(str(caught.value))
    assert said[0] == said[1]


# Compiled


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_torch_compile_made_runs_eagerly_and_is_simulated():
    plain = mlp(6, 5, 3)
    x = torch.randn(4, 6)
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


FIRST = """
import sys, torch
from mplab.simulation import simulated
assert "torch._dynamo" not in sys.modules
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).half()
with simulated("fp16", policy="as-written") as sim:
    x = torch.ones(2, 4).half()
    expected = model(x)
    assert torch.compile(model, backend="aot_eager")(x).equal(expected)
assert sim.by_operation["addmm"].total == 16, sim.by_operation
"""


@pytest.mark.slow
def test_where_torch_compile_is_first_used_inside_it_runs_eagerly_too():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST], check=True)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_module_may_be_traced_by_torch_jit():
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    with simulated(FP16):
        assert_bits(torch.jit.trace(model, x, check_trace=False)(x), model(x))


ASKING = {
    "softmin": F.softmin, "special.softmax": torch.special.softmax,
    "special.log_softmax": torch.special.log_softmax,
    "norm": lambda y, axis, dtype: y.norm(dim=axis, dtype=dtype),
    "linalg.norm": lambda y, axis, dtype: torch.linalg.norm(y, dim=axis, dtype=dtype),
    "nanmean": lambda y, axis, dtype: y.nanmean(axis, dtype=dtype), "cumprod": torch.cumprod,
}  # fmt: skip


@pytest.mark.parametrize("name", ASKING)
def test_a_result_in_the_dtype_that_is_asked_for_has_the_bits_of_autocast(name):
    model = torch.nn.Linear(4, 4)
    x = torch.randn(2, 4)
    for dtype in (torch.float32, torch.float64):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wanted = ASKING[name](model(x), -1, dtype=dtype)
        with simulated(BF16):
            found = ASKING[name](model(x), -1, dtype=dtype)
            assert found.dtype == wanted.dtype == dtype
        assert torch.equal(found, wanted)
