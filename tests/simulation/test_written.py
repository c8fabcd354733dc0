"""A program's own low tensors, simulated beside torch itself."""

import copy
import gc
import io
import math
import warnings
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from parts.kernels import programs_of
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, TF32, Overflow, Rounding, Stream
from mplab.simulation import AS_WRITTEN, CPU_AUTOCAST, POLICIES, explain, simulated

HALVES = pytest.mark.parametrize("fmt", [FP16, BF16])
MOSTLY_FP16 = pytest.mark.parametrize("fmt", mostly_slow([FP16, BF16], [FP16]))


def written(fmt, **options):
    return simulated(fmt, policy="as-written", **options)


class Mixed(torch.autograd.Function):
    """Multiplies tensors of two dtypes in its backward pass, which torch refuses."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class Attention(nn.Module):
    """A block of a language model, with its loss."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.heads, self.out = nn.Linear(32, 96), nn.Linear(32, 50)
        self.feed = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))

    def forward(self, words):
        x = self.embedding(words)
        parts = self.heads(self.norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(1, 2).flatten(2)
        return self.out(x + self.feed(self.norm(x)))


class Recurrent(nn.Module):
    """Only the outputs of a recurrent layer."""

    def __init__(self, kind):
        super().__init__()
        self.layer = kind(8, 16, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


WORDS = torch.arange(68).view(4, 17) * 7 % 50
NETWORKS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5)),
        torch.linspace(-2, 3, 600).view(30, 20).cos(),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5),
        ),
        torch.linspace(-2, 3, 4608).view(6, 3, 16, 16).mul(9).sin(),
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), torch.linspace(-2, 3, 288).view(4, 9, 8).sin()),
    "gru": (lambda: Recurrent(nn.GRU), torch.linspace(-2, 3, 288).view(4, 9, 8).sin()),
    "attention": (Attention, WORDS),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True),
        torch.linspace(-2, 3, 336).view(3, 7, 16).cos(),
    ),
}  # fmt: skip


def trained(name, fmt, context, optimizer, steps=5):
    """The losses, the model and its optimizer after some steps in the dtype of a format."""
    make, x = NETWORKS[name]
    torch.manual_seed(5)
    model = make()
    losses = []
    with context:
        model.to(fmt.torch_dtype)
        step = optimizer(model.parameters())
        for _ in range(steps):
            out = model(x.to(fmt.torch_dtype) if x.is_floating_point() else x)
            flat = out.flatten(0, 1)
            of_words = name == "attention"
            loss = (
                F.cross_entropy(flat, x.flatten()) if of_words else out.square().mean()
            )
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
    return losses, model, step


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-4),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-4, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 1e-3, eps=1e-4, fused=True),
}


@MOSTLY_FP16
@pytest.mark.parametrize("name", NETWORKS)
def test_a_low_model_trains_as_torch_trains_it(name, fmt):
    """Dtypes, and what is finite, are torch's; losses differ by the order of products' sums."""
    for optimizer in OPTIMIZERS.values():
        real, real_model, real_step = trained(name, fmt, nullcontext(), optimizer)
        ours, model, step = trained(name, fmt, written(fmt), optimizer)
        assert ours == pytest.approx(real, rel=4 * fmt.unit_roundoff, nan_ok=True)
        for p, q in zip(model.parameters(), real_model.parameters(), strict=True):
            assert p.dtype is p.grad.dtype is q.dtype is fmt.torch_dtype
            assert p.isfinite().equal(q.isfinite())
        kinds = [[t.dtype for t in tree_leaves(s.state_dict()) if isinstance(t, torch.Tensor)]
                 for s in (step, real_step)]  # fmt: skip
        assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", ["mlp", "lstm", "gru", "encoder"])
def test_where_products_are_short_every_gradient_in_bfloat16_is_torch_s(name):
    real, ours = (
        trained(name, BF16, context, OPTIMIZERS["SGD"], steps=1)[1]
        for context in (nullcontext(), written(BF16))
    )
    apart = [
        int((p.grad != q.grad).sum())
        for p, q in zip(ours.parameters(), real.parameters(), strict=True)
    ]
    assert sum(apart) <= sum(p.numel() for p in ours.parameters()) / 100, apart


QUESTIONS = """
    h + 1; h + 70000.0; h + f; h * b; h @ h; h @ f; torch.addmm(f[0], h, h); torch.cat([h, f]);
    torch.cat([h, b]); torch.stack([h, h]); h.index_put((i,), f[0].expand(2, 3));
    h.clone().index_put_((i,), h[0].expand(2, 3), accumulate=True); h.scatter(0, i[None], f);
    h.scatter_add(0, i[None].expand(2, 2), h);
    Mixed.apply(h, f.requires_grad_()).float().sum().backward();
    h + torch.tensor(0.1); h + torch.tensor(0.1, dtype=torch.float64); h + torch.tensor(3); h + n;
    n + h; h * 2; h**2; h**0.5; h.numpy(); h.sum(); h.sum(dtype=torch.float32); h.mean();
    h.softmax(-1); h.softmax(-1, dtype=torch.float32); F.log_softmax(h, -1); F.cross_entropy(h, t);
    F.nll_loss(h, t); F.mse_loss(h, f); F.mse_loss(h, h * 2);
    F.binary_cross_entropy(h.sigmoid(), h.sigmoid()); F.linear(h, h); F.linear(h, f);
    F.layer_norm(h, (3,)); F.layer_norm(h, (3,), f[0], f[0]);
    F.batch_norm(h, torch.zeros(3), torch.ones(3), training=True); torch.einsum("ij,jk", h, h);
    torch.func.jvp(lambda x: x.sin(), (h,), (h,));
    torch.func.vmap(torch.func.grad(lambda x: (x * x).sum()))(h); torch.linalg.inv(h);
    torch.linalg.vector_norm(h); h.to(torch.complex64); torch.complex(h, h); h.to_sparse() @ h;
    torch.arange(3, dtype=h.dtype); torch.linspace(0, 1, 5, dtype=h.dtype);
    torch.full((2,), 1e9, dtype=h.dtype); h.masked_fill(h > 0, 1e9);
    h.masked_fill(h > 0, -math.inf); torch.where(h > 0, h, f); torch.where(h > 0, h, 0.1);
    h == 0.1; h > n; h.argmax(); h.sort(); h.topk(2); h.cumsum(0); h.std(); h.var(0);
    torch.bmm(h[None], f[None]); h.float(); h.double() + h; h.add_(f); h.mul_(0.1); h.copy_(f);
    torch.maximum(h, f); F.embedding(i, h); h.view(torch.int16); f.add_(h); f.clone().copy_(h);
    torch.add(f, f, out=torch.empty(3, 3, dtype=h.dtype)); torch.dot(h[0], f[0]); F.gelu(h);
    torch.add(h, h, out=torch.empty(0, dtype=h.dtype)); torch.add(h, f, out=h.clone());
    F.dropout(h, 0.5); torch.rand_like(h); torch.normal(h, h.abs()); torch.logsumexp(h, 0);
    torch.lerp(h, h * 2, f); F.scaled_dot_product_attention(h[None], h[None], h[None]);
    F.scaled_dot_product_attention(h[None], f[None], h[None]); torch.outer(h[0], h[0]);
    torch.prod(h); torch.nanmean(h); h.logit(); h.erf(); torch.nextafter(h, h * 2);
    torch.fft.fft(h); h.round(); torch.histc(h, 3); torch.quantile(h, 0.5); h.item();
    h[0, 0].item();
    torch._foreach_add([h, h], 1.5); torch._foreach_mul([h, h], [h, f]); torch.equal(h, h);
    torch.allclose(h, h); F.interpolate(h[None, None], scale_factor=2); h.bernoulli(0.5);
    torch.utils.checkpoint.checkpoint(torch.sin, h.requires_grad_(), use_reentrant=False);
    f @ f; torch.cat([f @ f, f]); (f @ f).softmax(-1); F.cross_entropy(f @ f, t); F.linear(f, f[0]);
    torch.fft.irfft(torch.fft.rfft(f @ f)); torch.pinverse(h + f); torch.linalg.pinv(f, rtol=1e-3);
    F.prelu(f @ f, f[0]); F.layer_norm(f @ f, (3,), h[0]); f.clone().addmm_(f, f); (f @ f).numpy();
    torch.mm(f, f, out=torch.empty(3, 3)); F.binary_cross_entropy(f.sigmoid(), f.sigmoid()); n @ n;
    torch.func.jvp(lambda x: x @ x, (f,), (f,)); torch.func.vmap(torch.mv)(f[None], f[:1]);
    f.double() @ f; f[0].index_add(0, i, h[0, :2]); f[0].index_add_(0, i, h[0, :2]);
    f[0].index_copy_(0, i, h[0, :2]); f[0].scatter_(0, i, h[0]); f[0].scatter_add_(0, i, h[0]);
    f.masked_scatter(f > 0, h); f[0].put_(i, h[0, :2]); torch.lerp(h[0], f[0], 0.5);
    (f.__setitem__(f > 0, h[f > 0]), f); (f.__setitem__(i, h[:2]), f);
    (f.__setitem__(slice(None), h), f); (f.__setitem__(f > 0, h[0, 0]), f); torch.vdot(h[0], f[0]);
    torch.autocast("cpu", enabled=False)(torch.mm)(h, f); torch.mm(h, h, out=torch.empty(3, 3));
    torch.mm(h, h, out=torch.empty(3, 3, dtype=torch.float64)); f.double().float();
    f.to(h.dtype); f.to(h); f.to(tensor=h); f.to("cpu", h.dtype); f.to(dtype=h.dtype, copy=True);
    f.type(h.dtype); f.type_as(h); f.bfloat16(); torch.as_tensor(f, dtype=h.dtype); h.to(h.dtype);
    torch.asarray(f, dtype=h.dtype); torch.arange(3).sum();
    torch.tensor(2.0, dtype=torch.float64).sqrt();
    torch.linalg.pinv(f, out=torch.empty(3, 3));
    back(lambda x: F.log_softmax(3 * x, -1), h); back(lambda x: F.log_softmax(3 * x, -2), h);
    back(attend, *h.expand(3, 1, 1, 3, 3));
    back(partial(attend, is_causal=True), *h.expand(3, 1, 1, 3, 3));
    back(partial(attend, attn_mask=h > 0), *h.expand(3, 1, 1, 3, 3));
    torch.rnn_tanh(f[None], f[None, :1], [f, f, f[0], f[0]], True, 1, 0.0, True, False, True);
    torch.gru(f[None], f[None, :1], [f.repeat(3, 1)] * 2 + [f[0].repeat(3)] * 2, True, 1, 0.0,
        True, False, True);
    F.linear(f.view(3, 1, 3).transpose(0, 1), f, f[0]); f.matmul(f.t()) + f[0];
    inferred(torch.einsum)("ij,kj->ik", f, f); inferred(torch.matrix_power)(f, 3);
    inferred(F.linear)(f, f); inferred(F.linear)(h, h); inferred(torch.pinverse)(f);
    inferred(torch.autocast("cpu")(F.linear))(f, f);
    inferred(torch.autocast("cpu", enabled=False)(F.linear))(f, f)
"""


inferred = torch.inference_mode()


def back(function, *inputs):
    """A result and its gradients."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    return out, torch.autograd.grad(out.float().square().sum(), leaves)


attend = F.scaled_dot_product_attention


def answered(text, context, fmt):
    """What an expression of low and other tensors gives, or torch's error."""
    torch.manual_seed(0)
    f = torch.randn(3, 3) + 0.01
    known = {
        "f": f,
        "h": f.to(fmt.torch_dtype),
        "b": f.bfloat16(),
        "i": torch.tensor([0, 2]),
        "n": torch.arange(9).view(3, 3) + 257 * 9,
        "t": torch.tensor([0, 1, 2]),
    }
    try:
        with context:
            return eval(text, globals() | known)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def as_bytes(value):
    """Everything that a user may see of a result, to be compared."""
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            t = leaf.detach().to_dense() if leaf.is_sparse else leaf.detach()
            bits = t.contiguous().view(torch.uint8) if t.numel() and t.dim() else t
            found.append((leaf.dtype, leaf.layout, leaf.shape, bits.flatten().tolist()))
        else:
            found.append(str(leaf))
    return str(found)


UNLIKE_AUTOCAST = ("Mixed", "torch.cat([h, b])")
"""A backward pass is outside autocast wherever it stands, and any two dtypes promote in `cat`."""


@MOSTLY_FP16
@pytest.mark.parametrize("policy", [AS_WRITTEN, CPU_AUTOCAST], ids=repr)
def test_dtypes_promote_and_errors_are_raised_as_by_torch(fmt, policy):
    """And all values are torch's, in every bit."""
    for text in programs_of(QUESTIONS):
        real = nullcontext()
        if not policy.written:
            if text.startswith(UNLIKE_AUTOCAST):
                continue
            real = torch.autocast("cpu", dtype=fmt.torch_dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some compute nothing low
            expected = answered(text, real, fmt)
            ours = answered(text, simulated(fmt, policy=policy), fmt)
        assert as_bytes(ours) == as_bytes(expected), text


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torch_s_own_autocast_answers_as_it_does_alone_beside_a_simulation(dtype):
    def real():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            texts = programs_of(QUESTIONS)
            asked = [
                (t, answered(t, torch.autocast("cpu", dtype), FP16)) for t in texts
            ]
        return {text: as_bytes(answer) for text, answer in asked}

    gc.collect()  # and with it the kernels of earlier simulations
    alone = real()
    kept = [simulated(FP16, policy=policy) for policy in POLICIES.values()]
    for context in kept:
        with context:
            torch.ones(2).exp()
    assert real() == alone


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2])
def test_a_borrowed_dtype_holds_the_numbers_of_the_format_s_own(fmt):
    """Each operation reads, computes and rounds alike, whichever dtype the program spells."""
    found = []
    for dtype in (fmt.torch_dtype, torch.bfloat16):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        overflow = Overflow.SATURATE if fmt is FP8_E4M3 else Overflow.IEEE
        with written(fmt, dtype=dtype, overflow=overflow):
            model.to(dtype)
            out = model(torch.randn(8, 16).to(dtype))
            out.float().square().mean().backward()
        found.append([out.float(), *(p.grad.float() for p in model.parameters())])
    for own, borrowed in zip(*found, strict=True):
        assert own.equal(borrowed)


def test_what_is_filled_in_a_borrowed_dtype_holds_values_of_the_format():
    with written(FP8_E5M2, dtype=torch.bfloat16):
        low = torch.full((2,), 1.1, dtype=torch.bfloat16)
        others = (
            torch.full_like(low, 1.1),
            low.new_full((2,), 1.1),
            low.clone().fill_(1.1),
        )
        assert all(t.tolist() == [1.0, 1.0] for t in (low, *others))


def test_what_torch_ran_for_one_shape_is_computed_for_others():
    """It has no kernel that flips FP8, and asks for none where there is nothing to flip."""
    x = torch.arange(6.0).view(2, 3)
    with written(FP8_E5M2):
        for wide in (x[:, :1], x[:0], x):
            assert wide.to(torch.float8_e5m2).flip(1).float().equal(wide.flip(1))


def test_what_torch_let_pass_where_there_was_nothing_is_still_refused_elsewhere():
    low, wide = torch.ones(2, 3, 3).bfloat16(), torch.ones(2, 3, 3)
    with written(BF16):
        torch.bmm(low[:, :0, :0], wide[:, :0, :0])
        with pytest.raises(RuntimeError, match="expected scalar type BFloat16"):
            torch.bmm(low, wide)


def test_a_cast_to_e4m3_saturates_as_torch_s_own_does():
    x = torch.tensor([500.0, 1e9, math.inf, 1.1])
    with written(FP8_E4M3) as sim:
        low = x.to(torch.float8_e4m3fn)
    assert low.float().equal(x.to(torch.float8_e4m3fn).float())
    assert sim.by_operation["cast"].total == 4


def test_rules_of_rounding_hold_for_casts_and_results():
    with written(FP16, overflow=Overflow.SATURATE):
        low = torch.tensor([300.0, 1e6]).half()
        assert (low * low).tolist() == [65504, 65504] and low[1] == 65504
    stream = Stream(3)
    with written(BF16, rounding=Rounding.STOCHASTIC, stream=stream):
        weight = torch.ones(2000).bfloat16()
        for _ in range(100):
            weight.add_(torch.full_like(weight, 1e-4))
    assert weight.float().mean().item() == pytest.approx(1.01, abs=1e-3)


def test_an_update_below_half_an_ulp_is_lost_in_place():
    with written(BF16) as sim:
        weight = nn.Parameter(torch.ones(4).bfloat16())
        for _ in range(200):
            weight.grad = torch.ones_like(weight)
            torch.optim.SGD([weight], 1e-4).step()
    assert weight.eq(1).all()
    assert sim.by_operation["add"].inexact == 800


def test_what_was_lost_is_counted_by_layer_and_pass():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2)).half()
    with written(FP16) as sim:
        model(torch.full((3, 4), 1e-3).half()).mul(1e-6).sum().backward()
    assert {"0", "1", "2", "0 backward", "1 backward", "2 backward"} <= set(
        sim.by_layer
    )
    assert (
        sim.by_operation["mm backward"].flushed + sim.by_operation["mul"].subnormal > 0
    )
    with written(FP16, tally=False) as silent:
        model(torch.ones(3, 4).half())
    assert silent.by_operation == {}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_model_and_a_compiled_one_are_simulated(reentrant):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).bfloat16()
    x = torch.ones(3, 4).bfloat16().requires_grad_()
    gradients = []
    for run in (model, lambda x: checkpoint(model, x, use_reentrant=reentrant)):
        model.zero_grad()
        with written(BF16) as sim:
            run(x).sum().backward()
        assert "2 backward" in sim.by_layer
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *gradients))


def test_autocast_and_saving_within_are_torch_s_own():
    layer = nn.Linear(4, 4)
    with written(BF16) as sim, torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.ones(2, 4))
        out.sum().backward()
    assert out.dtype is torch.bfloat16
    assert layer.weight.grad.dtype is torch.float32
    assert sim.by_layer["Linear"].total
    with written(FP16):
        file = io.BytesIO()
        torch.save(copy.deepcopy(layer).half().state_dict(), file)
        file.seek(0)
        assert torch.load(file)["weight"].dtype is torch.float16
        with torch.device("meta"):
            assert (
                nn.Linear(2, 2).half()(torch.ones(1, 2).half()).dtype is torch.float16
            )


def test_explain_names_the_formats_that_the_program_wrote():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).half()
    model[1].float()
    forward = model[1].forward
    model[1].forward = lambda x: forward(x.float()).half()
    rows = explain(model, torch.ones(3, 4).half(), fmt=FP16, policy=AS_WRITTEN).rows
    norms = [row for row in rows if row.module == "1"]
    assert {row.format.name for row in norms} == {"FP32", "FP16"}
    assert {row.phase for row in rows} == {"forward", "backward"}
    assert all(row.format is FP16 for row in rows if row.module != "1")


def test_a_format_that_no_dtype_holds_and_what_only_policies_know_are_refused():
    for message, call in {
        "of torch.bfloat16, torch.float16, must hold the values of fmt; got TF32": lambda: (
            written(TF32)
        ),
        "of torch.bfloat16, must hold the values of fmt; got FP16": lambda: written(
            FP16, dtype=torch.bfloat16
        ),
        "Write model.head.float()": lambda: AS_WRITTEN.with_layers({"head": BF16}),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_a_program_without_low_tensors_is_told_so():
    with (
        pytest.warns(UserWarning, match=r"call model.to\(torch.float16\) first"),
        written(FP16),
    ):
        nn.Linear(2, 2)(torch.ones(1, 2))


@HALVES
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("kernels", "options"),
    [
        ("cpu", {}),
        ("cpu", {"tally": False}),
        ("cpu", {"overflow": Overflow.SATURATE}),
        ("cuda", {}),
    ],
)
def test_a_batch_norm_s_statistics_move_once_a_step(fmt, wide, kernels, options):
    """Its schema does not say that it writes them: they moved twice where it was counted."""
    x = torch.randn(80, 4).to(fmt.torch_dtype)
    policy = replace(AS_WRITTEN, kernels=kernels)
    found = []
    for context in (nullcontext(), simulated(fmt, policy=policy, **options)):
        norm = nn.BatchNorm1d(4).to(torch.float32 if wide else fmt.torch_dtype)
        with context:
            for _ in range(3):
                norm(x).float().sum().backward()
        found.append(norm.state_dict())
    near = {"rtol": 8 * fmt.unit_roundoff, "atol": fmt.unit_roundoff / 8}
    torch.testing.assert_close(*found, **near)


CALLS = []


@torch.library.custom_op("mplab_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(x.dtype)
    return x + torch.rand(x.shape).to(x.dtype)


@pytest.mark.parametrize("overflow", Overflow)
def test_an_operation_of_one_s_own_runs_once(overflow):
    CALLS.clear()
    with written(BF16, overflow=overflow):
        for _ in range(2):
            torch.ops.mplab_tests.noisy(torch.ones(3).bfloat16())
    assert [torch.bfloat16] * 2 == CALLS


def test_a_layer_whose_shape_is_not_known_yet_is_made_within():
    with written(BF16):
        layer = nn.LazyLinear(3)
        layer(torch.ones(2, 4))
        assert (
            layer.to(torch.bfloat16)(torch.ones(2, 4).bfloat16()).dtype
            is torch.bfloat16
        )


def test_casts_are_rounded_and_counted_in_inference_mode_too():
    with written(FP16, overflow=Overflow.SATURATE) as sim, torch.inference_mode():
        assert torch.tensor([1e6]).half().tolist() == [65504]
    assert sim.by_operation["cast"].overflow == 1
    with written(FP8_E5M2, dtype=torch.bfloat16), torch.inference_mode():
        assert torch.tensor([1.1, 3.3]).bfloat16().tolist() == [1.0, 3.5]


@pytest.mark.filterwarnings("ignore:flex_attention called")
def test_products_of_float8_with_scales_and_flex_attention_are_torch_s():
    x = torch.ones(16, 16)
    low, one = x.to(torch.float8_e4m3fn), torch.ones(())
    with written(BF16):
        y = torch._scaled_mm(low, low.t(), one, one, out_dtype=torch.bfloat16)
    assert y.eq(16).all()
    q = torch.linspace(-1, 1, 512).view(1, 2, 16, 16).sin().bfloat16()
    real = flex_attention(q, q, q)
    with written(BF16):
        assert flex_attention(q, q, q).equal(real)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@HALVES
def test_forward_derivatives_of_a_layer_norm_are_those_of_torch_under_any_mode(fmt):
    """Torch computes them in another order where it sees a mode."""
    h, direction = torch.randn(2, 8, 16).to(fmt.torch_dtype)
    found = []
    for mode in (FlopCounterMode(display=False), written(fmt)):
        with mode:
            norm = partial(F.layer_norm, normalized_shape=(16,))
            found.append(torch.func.jvp(norm, (h,), (direction,))[1])
    assert torch.equal(*found)


def test_a_norm_of_no_rows_has_gradients():
    with written(FP16, overflow=Overflow.SATURATE):
        norm = nn.LayerNorm(4).half()
        norm(torch.ones(0, 4).half()).sum().backward()
    assert norm.weight.grad.eq(0).all()


def test_memory_that_a_loss_keeps_for_its_gradient_is_neither_rounded_nor_counted():
    """Not all of it is written: what happened to lie there was counted."""
    logits = torch.randn(9, 2, 5).half().requires_grad_()
    words = torch.tensor([[1, 2], [3, 4]])
    lengths = torch.tensor([9, 4]), torch.tensor([2, 1])
    with written(FP16) as sim:
        loss = F.ctc_loss(logits.log_softmax(-1), words, *lengths, reduction="none")
        loss.sum().backward()
    assert sim.by_operation["_ctc_loss"].total == 2
    wide = logits.detach().float().requires_grad_()
    F.ctc_loss(wide.log_softmax(-1), words, *lengths, reduction="none").sum().backward()
    torch.testing.assert_close(logits.grad.float(), wide.grad, rtol=0.02, atol=2e-3)
