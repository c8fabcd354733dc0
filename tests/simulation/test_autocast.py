"""What torch's own autocast does on the CPU, observed operation by operation.

Each call runs under the real autocast, with a dispatch mode below it that writes down which
kernels ran on which dtypes; then under the simulation, which says what it did.
"""

import gc
import itertools
import re
import warnings
from contextlib import nullcontext

import pytest
import torch
from kernels import Observer, kernels_in
from networks import PROGRAMS, assert_bits, program, round_to
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from mplab import BF16, FP16
from mplab.simulation import CPU_AUTOCAST, CUDA_AUTOCAST, simulated
from mplab.simulation.explanation import Recorder

LOW = {FP16: torch.float16, BF16: torch.bfloat16}

labels = torch.arange(4)
row = torch.linspace(0.5, 1.5, 4)


NONE = {"reduction": "none"}


def picture(x):
    return x.view(1, 1, 4, 4)


def attended(x, y, mask=None):
    return F.scaled_dot_product_attention(*map(picture, (x, y, x)), attn_mask=mask)


TEMPLATES = {
    "torch.{}(x)": """
        abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2
        expm1 floor frac lgamma log log10 log1p log2 logit neg rad2deg reciprocal round rsqrt
        sigmoid sign sin sinc sinh sqrt square tan tanh trunc i0 nan_to_num relu selu celu tril triu
        diff inverse geqrf cov corrcoef""",
    "torch.{}(x, 1)": """
        cumsum cumprod cummax logcumsumexp sum prod mean var std amax amin sort logsumexp softmax
        log_softmax median nanmedian mode nansum nanmean kthvalue topk roll""",
    "torch.{}(x, y)": """
        add sub mul div true_divide pow atan2 hypot fmod remainder maximum minimum fmax fmin
        copysign logaddexp logaddexp2 xlogy matmul mm inner kron cdist""",
    "F.{}(x)": """
        elu gelu silu mish softplus hardsigmoid hardswish hardtanh leaky_relu logsigmoid relu6 rrelu
        softsign softshrink tanhshrink hardshrink normalize glu""",
    "F.{}(x, y, **NONE)": """
        mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss hinge_embedding_loss
        binary_cross_entropy_with_logits binary_cross_entropy poisson_nll_loss cross_entropy
        multilabel_soft_margin_loss""",
    "torch.linalg.{}(x)": "qr svdvals inv",
    "torch.linalg.{}(x, y)": "solve lstsq",
    "F.{}_pool1d(x.view(1, 4, 4), 2)": "max avg",
    "F.{}_pool2d(picture(x), 2)": "max avg adaptive_avg adaptive_max",
    "F.{}_pool3d(x.view(1, 1, 4, 2, 2), 2)": "max avg adaptive_avg adaptive_max",
}
"""Calls on two matrices 4 × 4, and the names that are put into them."""
OTHERS = """
    F.cosine_similarity(x, y); F.pairwise_distance(x, y); x.norm(dim=1);
    torch.linalg.eigvalsh(x @ x.T); torch.linalg.vector_norm(x, dim=1);
    torch.linalg.matrix_norm(x.view(1, 4, 4)); torch.linalg.cond(x.view(1, 4, 4));
    torch.linalg.vecdot(x, y); torch.linalg.cross(x[:, :3], y[:, :3]);
    torch.linalg.matrix_power(x, 3); torch.linalg.multi_dot([x, y, x]);
    torch.linalg.householder_product(x, y[0]); torch.linalg.cholesky(torch.eye(4) + 0 * x);
    x @ y; x @ y[0]; torch.mv(x, y[0]); torch.addmv(x[0], y, x[0]); torch.addr(x, y[0], y[1]);
    torch.outer(x[0], y[0]); torch.addmm(x, y, x);
    torch.addbmm(x, y.view(1, 4, 4), x.view(1, 4, 4));
    torch.bmm(x.view(1, 4, 4), y.view(1, 4, 4));
    torch.baddbmm(y.view(1, 4, 4), x.view(1, 4, 4), y.view(1, 4, 4));
    torch.einsum("ij,kj->ik", x, y); torch.tensordot(x, y, 1); torch.linalg.multi_dot([x, y]);
    torch.addcmul(x, y, x); torch.addcdiv(x, y, x); torch.lerp(x, y, 0.3); torch.cat([x, y]);
    torch.stack([x, y]); torch.where(x > 0.5, x, y); x.clamp(0.2, 0.7); x.clamp(min=y);
    x.masked_fill(x > 0.5, 0.1); x.flip(0); x.repeat(2, 1); x.renorm(2, 0, 1.0); x**2; x**0.3;
    2**x; x * 0.1; 1 - x; x.clone().mul_(0.3).add_(y); x.index_copy(0, labels, y);
    x.index_add(0, labels, y); x.index_select(0, labels); x[labels];
    torch.rnn_tanh(x[None], y[None, :1], [torch.eye(4)] * 2, False, 1, 0.0, True, False, True);
    torch.gru(x[None], y[None, :1], [torch.ones(12, 4)] * 2, False, 1, 0.0, True, False, True);
    x.gather(1, labels.view(4, 1)); x.scatter_add(1, labels.view(4, 1), y); x.quantile(0.3, 1);
    x.nanquantile(0.3, 1); torch.var_mean(x, 1); torch.std_mean(x, 1);
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255); F.linear(x, y);
    F.linear(x, y, row); F.linear(x.view(1, 4, 4), y, row);
    F.linear(x.view(2, 2, 4).transpose(0, 1), y, row);
    F.linear(x.view(2, 2, 4)[:, :, :2], y[:, :2], row);
    F.linear(x.view(2, 2, 4)[:1].expand(3, -1, -1), y, row);
    F.layer_norm(x, (4,));
    F.layer_norm(x, (4,), row, row); F.group_norm(x, 2); F.group_norm(x, 2, row, row);
    F.batch_norm(x, torch.zeros(4), row); F.batch_norm(x, None, None, row, row, training=True);
    F.instance_norm(picture(x)); F.local_response_norm(picture(x), 2); F.prelu(x, row);
    F.dropout(x, 0.5); F.embedding(labels, x); F.embedding_bag(labels.view(2, 2), x);
    F.softmin(x, 1); F.cross_entropy(x, labels, **NONE);
    F.cross_entropy(x, labels, label_smoothing=0.1, **NONE); F.nll_loss(x, labels, **NONE);
    F.multi_margin_loss(x, labels, **NONE);
    F.multilabel_margin_loss(x, torch.zeros(4, 4).long(), **NONE);
    F.margin_ranking_loss(x, y, x.sign(), **NONE); F.triplet_margin_loss(x, y, x, **NONE);
    F.cosine_embedding_loss(x, y, labels * 0 + 1, **NONE);
    F.ctc_loss(x.view(4, 1, 4), labels[1:3].view(1, 2), labels[3:] + 1, labels[2:3], **NONE);
    F.conv1d(x.view(1, 1, 16), y[:1, :2].reshape(1, 1, 2));
    F.conv2d(picture(x), y[:2, :2].reshape(1, 1, 2, 2));
    F.conv3d(x.view(1, 1, 1, 4, 4), y[:2, :2].reshape(1, 1, 1, 2, 2));
    F.conv_transpose1d(x.view(1, 1, 16), y[:1].view(1, 1, 4));
    F.conv_transpose2d(picture(x), picture(y));
    torch.conv_tbc(x.view(4, 1, 4), y.view(1, 4, 4), row);
    F.fractional_max_pool2d(picture(x), 2, 2, _random_samples=torch.full((1, 1, 2), 0.3));
    F.max_unpool2d(picture(x), picture(torch.arange(16)), 2); F.lp_pool2d(picture(x), 2, 2);
    F.pixel_shuffle(x.view(1, 4, 2, 2), 2); F.interpolate(picture(x), scale_factor=2.0);
    F.interpolate(picture(x), size=(5, 5), mode="bilinear");
    F.interpolate(picture(x), size=(5, 5), mode="bicubic"); F.pad(picture(x), (1, 1));
    F.pad(picture(x), (1, 1, 1, 1), mode="reflect");
    F.pad(picture(x), (1, 1, 1, 1), mode="replicate"); F.unfold(picture(x), 2);
    F.grid_sample(picture(x), torch.zeros(1, 2, 2, 2), align_corners=False); attended(x, y);
    attended(x, y, torch.eye(4) > 0); torch.lstm_cell(x, (y, y), *[torch.ones(16, 4)] * 2);
    torch.gru_cell(x, y, *[torch.ones(12, 4)] * 2); torch.fft.fft2(x).real * x
"""


def parted(calls):
    return [call.strip() for call in calls.split(";")]


EXPRESSIONS = [
    call.format(name) for call, names in TEMPLATES.items() for name in names.split()
]
EXPRESSIONS += parted(OTHERS)
CALLS = {call: eval(f"lambda x, y: {call}") for call in EXPRESSIONS}


def step(function, tensors, *, backward):
    """Run a call, and its backward pass from a gradient of 0.7."""
    out = function(*tensors)
    if not backward:
        return None
    ends = [
        t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    return lambda: torch.autograd.backward(
        ends, [torch.full_like(t, 0.7) for t in ends]
    )


def observed(function, tensors, dtype, *, backward):
    """The kernels that the real autocast runs, or None where one does not exist in half."""
    observer = Observer()
    try:
        within = nullcontext() if backward else observer
        with (
            torch.autocast("cpu", dtype=dtype),
            torch.set_grad_enabled(backward),
            within,
        ):
            back = step(function, tensors, backward=backward)
        if backward:
            with observer:
                back()
    except RuntimeError:
        return None
    return observer.seen


def simulated_kernels(function, tensors, fmt, *, backward):
    """The same of the simulation, from what it says that it did."""
    sim = simulated(fmt, policy=CPU_AUTOCAST)
    recorder = Recorder(sim._mode)
    sim._mode.observers.append(recorder)
    with torch.set_grad_enabled(backward), sim:
        back = step(function, tensors, backward=backward)
        if backward:
            recorder.rows.clear()
            back()
    return kernels_in(recorder.rows, fmt)


VARIANTS = {
    "all FP32": (0, 0),
    "all low": (1, 1),
    "first low": (1, 0),
    "second low": (0, 1),
}


NO_BACKWARD = [
    "torch.geqrf(x)",
    "F.soft_margin_loss(x, y, **NONE)",
    "x.renorm(2, 0, 1.0)",
]
NO_BACKWARD += ["x.scatter_add(1, labels.view(4, 1), y)", "torch.linalg.lstsq(x, y)"]
"""torch has none, or none in half on the CPU; that of `renorm` computes in float64, and that of
`lstsq` by a pseudoinverse, whose steps the simulation sees and an observer does not: see below."""


def directed(calls):
    """Each call forward, and backward, if it has such a pass, which is slow."""
    for call in calls:
        yield pytest.param(call, False, id=f"{call}-forward")
        if call not in NO_BACKWARD:
            yield pytest.param(
                call, True, id=f"{call}-backward", marks=pytest.mark.slow
            )


@pytest.mark.parametrize("fmt", mostly_slow(LOW, [FP16]))
@pytest.mark.parametrize(("call", "backward"), list(directed(CALLS)))
def test_each_operation_runs_in_the_formats_of_the_real_autocast(
    call, backward, fmt, record_property
):
    ran = 0
    compared = 0
    for low in VARIANTS.values():
        torch.manual_seed(0)
        values = [round_to(torch.rand(4, 4) * 0.6 + 0.2, fmt) for _ in range(2)]
        pairs = list(zip(values, low, strict=True))
        halves = [t.to(LOW[fmt]) if is_low else t.clone() for t, is_low in pairs]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(1)
            inputs = [t.requires_grad_(backward) for t in halves]
            real = observed(CALLS[call], inputs, LOW[fmt], backward=backward)
            if real is None:
                continue
            torch.manual_seed(1)
            inputs = [t.detach().clone().requires_grad_(backward) for t in halves]
            found = simulated_kernels(CALLS[call], inputs, fmt, backward=backward)
        assert found == real, low
        compared += len(real)
        ran += 1
    assert ran, "no variant ran"
    assert compared or backward
    record_property("kernels compared", compared)


def test_the_product_in_a_pseudoinverse_is_low_and_its_gradient_refused_as_under_autocast():
    x = torch.randn(4, 3, requires_grad=True)
    sim = simulated(BF16, policy=CPU_AUTOCAST)
    real = torch.autocast("cpu", dtype=torch.bfloat16)
    found = []
    for context, around in ((real, nullcontext()), (nullcontext(), sim)):
        with around:
            with context:
                out = torch.linalg.pinv(x)
            assert out.dtype is torch.bfloat16
            with pytest.raises(RuntimeError, match="to have the same dtype"):
                out.sum().backward()
        found.append(out.detach().float())
    assert_bits(*found)


def test_the_steps_of_a_pseudoinverse_in_a_backward_pass_are_fp32():
    x = torch.randn(4, 4, requires_grad=True)
    found = []
    sim = simulated(BF16, policy=CPU_AUTOCAST)
    real = torch.autocast("cpu", dtype=torch.bfloat16)
    for forward, backward in ((real, nullcontext()), (sim, sim)):
        with forward:
            out = torch.linalg.lstsq(x, x.detach().exp())[0].square().sum()
        with backward:
            found += torch.autograd.grad(out, x)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


PROMOTED = {"cat", "stack", "index_copy"}
COMPLEX = re.compile("polar|view_as_complex|stft|linalg_eig$|linalg_eigvals$")
ELSEWHERE = {"_native_multi_head_attention", "_grid_sampler_2d_cpu_fallback"}
"""The fast path, which the simulation turns off, and a fallback for what is not float32."""


def test_the_table_names_what_the_dispatcher_has_registered_for_autocast_on_the_cpu():
    gc.collect()  # and with it the kernels of earlier simulations
    every = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    registered = {
        name[6:].partition(".")[0] for name in every if name.startswith("aten::")
    }
    assert {"mm", "cross_entropy_loss"} <= registered
    assert "exp" not in registered
    listed = CPU_AUTOCAST.lower | CPU_AUTOCAST.wide
    missing = {name for name in registered - listed if not COMPLEX.search(name)}
    assert missing == PROMOTED | ELSEWHERE
    parts = {name for name in listed - registered if name in policies_of_torch()}
    assert parts == set(), "listed, and neither registered nor a part of what is"


def policies_of_torch():
    """Operations that come whole to autocast, so that it would have to name them."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(
        "CompositeImplicitAutograd"
    )
    return {name.partition("::")[2].partition(".")[0] for name in names}


# Bit for bit, where float32 sums are exact: a network of width two, on a batch of two


BETWEEN = """
    H.softmax(1); H.exp(); H**2; H.cumsum(1); F.softplus(H); F.gelu(H); F.silu(H); torch.tanh(H);
    (H.abs() + 1).log(); (H.abs() + 1).sqrt(); (H.abs() + 1).reciprocal();
    H.sum(1, keepdim=True) * p[2]; H.prod(1, keepdim=True) * p[2]; F.linear(x, p[0], p[2][0]);
    H.sum().reshape(1, 1).expand(2, 2)
"""
"""What comes between two layers; H is the first one's output."""
AFTER = """
    H.mean(1) * 0.3; H.norm(dim=1) * 0.3; H * p[2].sum() + p[3][0, 0]; x + p[2].sum() * H;
    F.linear(H.view(2, 1, 2).transpose(0, 1), p[1], p[2][0]); p[2].sum() / H;
    F.linear(torch.cat([x, x], 1).view(2, 1, 4)[:, :, :2], p[0], p[2][0]);
    linear(H / (linear(x, p[1]).abs() + 1), p[2]); F.layer_norm(H, (2,), p[2][0], p[3][0]).detach();
    torch.stack([H.sum(), linear(x, p[1]).mean()]).view(1, 2); linear(h := x * p[0], p[1]) + h;
    (x - (h := H)).mul(linear(x, p[1])).add(h); ((h := H) + x).square() + (h - x).abs() * 0.3;
    F.bilinear(x, x + 1, p[1][None]);
    F.linear(w := p[0][None], x) + F.linear(w, x * 2); linear(p[0][torch.tensor([1, 1])], p[0]);
    (h := x * p[0]) + linear(h, p[1]); linear(h := x * p[0], p[1]) + linear(h, p[1] * 2) + h;
    linear(linear(h := x * p[0], p[1]), p[1]) + linear(h, p[1]);
    linear((h := x * p[0]).view(1, 2, 2), p[1]).view(2, 2) + h.view(2, 2)
"""
"""What the loss is taken of: scalars, gates, tensors low and FP32, views, and skipped layers."""
WHOLE = """
    F.cross_entropy(H, torch.arange(2)); F.l1_loss(H, linear(x, p[1]));
    F.cross_entropy(H * (20 * p[2].sum()).exp(), torch.arange(2)); H.abs().sum() * 100.0;
    F.huber_loss(H, linear(x, p[1])); (H * linear(x, p[1])).mean();
    H[0, 0] * linear(x, p[1])[1, 1] * p[2].sum();
    loss(torch.cat([h := H, x])) + (h.float().sum(1) * x[0]).sum()
"""
ASKING = """
    norm_by_hand(h); clamped(h); ((h.float() / 3).to(h.dtype) / 3).float() / 3;
    torch.cat([torch.tensor([], dtype=h.dtype), h.reshape(-1)]).view(2, 2) / 3;
    (h / 3).to(h.dtype) + (h.float() / 7).to(h.dtype); h / 3 + h.float() / 7;
    (c := (h.float() / 3).to(h)).float().exp() + (c / 7).float();
    F.softmax((h.float() / 3).to(h), -1, dtype=torch.float32);
    F.softmax(h.float() / 3, -1, dtype=h.dtype) / 3; (h.float() / 3).sum(-1, dtype=h.dtype) / 3;
    torch.full((2, 2), 0.1, dtype=h.dtype) * h; torch.tensor(0.1, dtype=h.dtype) * h;
    h.masked_fill(h > 0, torch.finfo(h.dtype).min).softmax(-1); h.new_tensor([0.1, 0.2]) * h;
    torch.ones(2, dtype=torch.result_type(h, torch.ones(2))) * h / 3;
    torch.arange(2).to(h.dtype) / 3 * h; h.to("cpu", torch.float32) / 3;
    torch.zeros_like(h).copy_(h / 3).add_(h.float() / 7) / 3; h.to(dtype=torch.float32) / 3;
    h.type(torch.float32) / 3; h.type_as(torch.ones(1)) / 3; F.rms_norm(h, (2,)) / 3;
    h.mean(0, keepdim=True, dtype=torch.float32) - h.float();
    torch.nansum(h, 0, True, dtype=torch.float32) / 3; torch.log_softmax(h, -1, torch.float32) / 3;
    torch.linalg.vector_norm(h, dim=0, dtype=torch.float32) / 3;
    torch.autocast("cpu", enabled=False)(lambda: norm_by_hand(h) + h.float().to(h.dtype))()
"""
"""The same, where the program asks for dtypes, of a low h: norms by hand, clamps, caches, masks."""
HALVED = PROGRAMS | {
    text: program(text)
    for text in (
        *(f"loss(linear({call}, p[1]))" for call in parted(BETWEEN)),
        *(f"loss({call})" for call in parted(AFTER)),
        *(f"(lambda h: loss({call}))(H)" for call in parted(ASKING)),
        *parted(WHOLE),
    )
}


@pytest.mark.parametrize("fmt", mostly_slow(LOW, [FP16]))
@pytest.mark.parametrize("program", mostly_slow(HALVED, [*HALVED][::3]))
def test_a_program_of_width_two_equals_torch_s_autocast_bit_for_bit(program, fmt):
    """Also by the rules of CUDA, where the program has only operations that run as on the CPU."""
    policies = (CPU_AUTOCAST, CUDA_AUTOCAST) if program in PROGRAMS else (CPU_AUTOCAST,)
    for seed, policy in itertools.product(range(12), policies):
        torch.manual_seed(seed)
        p = [nn.Parameter(torch.randn(2, 2)) for _ in range(4)]
        x = torch.randn(2, 2)
        scale = 2.0 ** (seed % 12)
        with torch.amp.autocast("cpu", dtype=LOW[fmt]):
            expected = HALVED[program](x, p)
        if expected.requires_grad:
            (expected * scale).backward()
        real = [q.grad for q in p]
        for q in p:
            q.grad = None
        with simulated(fmt, policy=policy):
            actual = HALVED[program](x, p)
            if actual.requires_grad:
                (actual * scale).backward()
        assert actual.dtype is expected.dtype
        assert_bits(actual.float(), expected.float())
        for q, grad in zip(p, real, strict=True):
            assert (q.grad is None) == (grad is None)
            if grad is not None:
                assert_bits(q.grad, grad)
