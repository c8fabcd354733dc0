"""What torch's own autocast does on the CPU, observed operation by operation.

Each call runs under the real autocast, with a dispatch mode below it that writes down which
kernels ran on which dtypes; then under the simulation, which says what it did.
"""

import itertools
import re
import warnings
from contextlib import nullcontext

import pytest
import torch
from kernels import Observer, kernels_in
from networks import PROGRAMS, assert_bits, linear, loss, round_to
from tiers import mostly_slow
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from mplab import BF16, FP16
from mplab.simulation import CPU_AUTOCAST, CUDA_AUTOCAST, simulated
from mplab.simulation.explanation import Recorder
from mplab.simulation.marks import Mark, set_mark

LOW = {FP16: torch.float16, BF16: torch.bfloat16}

UNARY = """
    abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2
    expm1 floor frac lgamma log log10 log1p log2 logit neg rad2deg reciprocal round rsqrt sigmoid
    sign sin sinc sinh sqrt square tan tanh trunc i0 nan_to_num relu selu celu tril triu
    diff inverse geqrf cov corrcoef
""".split()  # noqa: SIM905
ALONG = """
    cumsum cumprod cummax logcumsumexp sum prod mean var std amax amin sort logsumexp softmax
    log_softmax median nanmedian mode nansum nanmean kthvalue topk roll
""".split()  # noqa: SIM905
BINARY = """
    add sub mul div true_divide pow atan2 hypot fmod remainder maximum minimum fmax fmin copysign
    logaddexp logaddexp2 xlogy matmul mm inner kron cdist
""".split()  # noqa: SIM905
NN = """
    elu gelu silu mish softplus hardsigmoid hardswish hardtanh leaky_relu logsigmoid relu6 rrelu
    softsign softshrink tanhshrink hardshrink normalize glu
""".split()  # noqa: SIM905
LOSSES = """
    mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss hinge_embedding_loss
    binary_cross_entropy_with_logits binary_cross_entropy poisson_nll_loss cross_entropy
    multilabel_soft_margin_loss
""".split()  # noqa: SIM905
POOLS = ["max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"]
LINALG = ["qr", "svdvals", "inv", "solve", "lstsq"]

labels, row = torch.arange(4), torch.linspace(0.5, 1.5, 4)


NONE = {"reduction": "none"}


def picture(x):
    return x.view(1, 1, 4, 4)


def volume(x):
    return x.view(1, 1, 1, 4, 4)


def attended(x, y, mask=None):
    return F.scaled_dot_product_attention(*map(picture, (x, y, x)), attn_mask=mask)


def of_one(function, *more):
    return lambda x, y: function(x, *more)


def of_view(function, shape, *more):
    return lambda x, y: function(x.view(shape), *more)


def of_two(function, **options):
    return lambda x, y: function(x, y, **options)


CALLS = {
    **{name: of_one(getattr(torch, name)) for name in UNARY},
    **{f"{name} along 1": of_one(getattr(torch, name), 1) for name in ALONG},
    **{f"{name} of two": of_two(getattr(torch, name)) for name in BINARY},
    **{f"F.{name}": of_one(getattr(F, name)) for name in NN},
    **{f"F.{name}": of_two(getattr(F, name), **NONE) for name in LOSSES},
    **{f"linalg.{name}": of_one(getattr(torch.linalg, name)) for name in LINALG[:3]},
    **{f"linalg.{name}": of_two(getattr(torch.linalg, name)) for name in LINALG[3:]},
    "F.cosine_similarity": of_two(F.cosine_similarity),
    "F.pairwise_distance": of_two(F.pairwise_distance),
    "norm": lambda x, y: x.norm(dim=1),
    "linalg.eigvalsh": lambda x, y: torch.linalg.eigvalsh(x @ x.T),
    "linalg.vector_norm": lambda x, y: torch.linalg.vector_norm(x, dim=1),
    "linalg.matrix_norm": lambda x, y: torch.linalg.matrix_norm(x.view(1, 4, 4)),
    "linalg.cond": lambda x, y: torch.linalg.cond(x.view(1, 4, 4)),
    "linalg.vecdot": lambda x, y: torch.linalg.vecdot(x, y),
    "linalg.cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    "linalg.matrix_power": lambda x, y: torch.linalg.matrix_power(x, 3),
    "linalg.multi_dot": lambda x, y: torch.linalg.multi_dot([x, y, x]),
    "linalg.householder_product": lambda x, y: torch.linalg.householder_product(x, y[0]),
    "linalg.cholesky": lambda x, y: torch.linalg.cholesky(torch.eye(4) + 0 * x),
    "@": lambda x, y: x @ y,
    "@ vector": lambda x, y: x @ y[0],
    "mv": lambda x, y: torch.mv(x, y[0]),
    "addmv": lambda x, y: torch.addmv(x[0], y, x[0]),
    "addr": lambda x, y: torch.addr(x, y[0], y[1]),
    "ger": lambda x, y: torch.outer(x[0], y[0]),
    "addmm": lambda x, y: torch.addmm(x, y, x),
    "addbmm": lambda x, y: torch.addbmm(x, y.view(1, 4, 4), x.view(1, 4, 4)),
    "bmm": lambda x, y: torch.bmm(x.view(1, 4, 4), y.view(1, 4, 4)),
    "baddbmm": lambda x, y: torch.baddbmm(y.view(1, 4, 4), x.view(1, 4, 4), y.view(1, 4, 4)),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "tensordot": lambda x, y: torch.tensordot(x, y, 1),
    "chain_matmul": lambda x, y: torch.linalg.multi_dot([x, y]),
    "addcmul": lambda x, y: torch.addcmul(x, y, x),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]),
    "where": lambda x, y: torch.where(x > 0.5, x, y),
    "clamp": lambda x, y: x.clamp(0.2, 0.7),
    "clamp tensor": lambda x, y: x.clamp(min=y),
    "masked_fill": lambda x, y: x.masked_fill(x > 0.5, 0.1),
    "flip": lambda x, y: x.flip(0),
    "repeat": lambda x, y: x.repeat(2, 1),
    "renorm": lambda x, y: x.renorm(2, 0, 1.0),
    "power 2": lambda x, y: x**2,
    "power 0.3": lambda x, y: x**0.3,
    "2 to the power": lambda x, y: 2**x,
    "times 0.1": lambda x, y: x * 0.1,
    "1 minus": lambda x, y: 1 - x,
    "in place": lambda x, y: x.clone().mul_(0.3).add_(y),
    "index_copy": lambda x, y: x.index_copy(0, labels, y),
    "index_add": lambda x, y: x.index_add(0, labels, y),
    "index_select": lambda x, y: x.index_select(0, labels),
    "index": lambda x, y: x[labels],
    "gather": lambda x, y: x.gather(1, labels.view(4, 1)),
    "scatter_add": lambda x, y: x.scatter_add(1, labels.view(4, 1), y),
    "quantile": lambda x, y: x.quantile(0.3, 1),
    "nanquantile": lambda x, y: x.nanquantile(0.3, 1),
    "var_mean": lambda x, y: torch.var_mean(x, 1),
    "std_mean": lambda x, y: torch.std_mean(x, 1),
    "fake_quantize": lambda x, y: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
    "F.linear": lambda x, y: F.linear(x, y),
    "F.linear with bias": lambda x, y: F.linear(x, y, row),
    "F.linear, three dimensions": lambda x, y: F.linear(x.view(1, 4, 4), y, row),
    "F.linear, transposed": lambda x, y: F.linear(x.view(2, 2, 4).transpose(0, 1), y, row),
    "F.linear of a slice": lambda x, y: F.linear(x.view(2, 2, 4)[:, :, :2], y[:, :2], row),
    "F.linear of learned queries": lambda x, y: F.linear(
        x.view(2, 2, 4)[:1].expand(3, -1, -1), y, row
    ),
    "F.bilinear": lambda x, y: F.bilinear(x, y, torch.ones(2, 4, 4)),
    "F.layer_norm": lambda x, y: F.layer_norm(x, (4,)),
    "F.layer_norm with weights": lambda x, y: F.layer_norm(x, (4,), row, row),
    "F.group_norm": lambda x, y: F.group_norm(x, 2),
    "F.group_norm with weights": lambda x, y: F.group_norm(x, 2, row, row),
    "F.batch_norm": lambda x, y: F.batch_norm(x, torch.zeros(4), row),
    "F.batch_norm in training": lambda x, y: F.batch_norm(x, None, None, row, row, training=True),
    "F.instance_norm": lambda x, y: F.instance_norm(picture(x)),
    "F.local_response_norm": lambda x, y: F.local_response_norm(picture(x), 2),
    "F.prelu": lambda x, y: F.prelu(x, row),
    "F.dropout": lambda x, y: F.dropout(x, 0.5),
    "F.embedding": lambda x, y: F.embedding(labels, x),
    "F.embedding_bag": lambda x, y: F.embedding_bag(labels.view(2, 2), x),
    "F.softmin": lambda x, y: F.softmin(x, 1),
    "F.cross_entropy of labels": lambda x, y: F.cross_entropy(x, labels, **NONE),
    "F.cross_entropy smooth": lambda x, y: F.cross_entropy(x, labels, label_smoothing=0.1, **NONE),
    "F.nll_loss": lambda x, y: F.nll_loss(x, labels, **NONE),
    "F.multi_margin_loss": lambda x, y: F.multi_margin_loss(x, labels, **NONE),
    "F.multilabel_margin_loss": lambda x, y: F.multilabel_margin_loss(
        x, torch.zeros(4, 4).long(), **NONE
    ),
    "F.margin_ranking_loss": lambda x, y: F.margin_ranking_loss(x, y, x.sign(), **NONE),
    "F.triplet_margin_loss": lambda x, y: F.triplet_margin_loss(x, y, x, **NONE),
    "F.cosine_embedding_loss": lambda x, y: F.cosine_embedding_loss(x, y, labels * 0 + 1, **NONE),
    "F.ctc_loss": lambda x, y: F.ctc_loss(
        x.view(4, 1, 4), labels[1:3].view(1, 2), labels[3:] + 1, labels[2:3], **NONE
    ),
    "F.conv1d": lambda x, y: F.conv1d(x.view(1, 1, 16), y[:1, :2].reshape(1, 1, 2)),
    "F.conv2d": lambda x, y: F.conv2d(picture(x), y[:2, :2].reshape(1, 1, 2, 2)),
    "F.conv3d": lambda x, y: F.conv3d(volume(x), y[:2, :2].reshape(1, 1, 1, 2, 2)),
    "F.conv_transpose1d": lambda x, y: F.conv_transpose1d(x.view(1, 1, 16), y[:1].view(1, 1, 4)),
    "F.conv_transpose2d": lambda x, y: F.conv_transpose2d(picture(x), picture(y)),
    "F.conv_tbc": lambda x, y: torch.conv_tbc(x.view(4, 1, 4), y.view(1, 4, 4), row),
    **{f"F.{pool}2d": of_view(getattr(F, pool + "2d"), (1, 1, 4, 4), 2) for pool in POOLS},
    **{f"F.{pool}3d": of_view(getattr(F, pool + "3d"), (1, 1, 4, 2, 2), 2) for pool in POOLS},
    **{f"F.{pool}1d": of_view(getattr(F, pool + "1d"), (1, 4, 4), 2) for pool in POOLS[:2]},
    "F.fractional_max_pool2d": lambda x, y: F.fractional_max_pool2d(
        picture(x), 2, output_size=2, _random_samples=torch.full((1, 1, 2), 0.3)
    ),
    "F.max_unpool2d": lambda x, y: F.max_unpool2d(picture(x), picture(torch.arange(16)), 2),
    "F.lp_pool2d": lambda x, y: F.lp_pool2d(picture(x), 2, 2),
    "F.pixel_shuffle": lambda x, y: F.pixel_shuffle(x.view(1, 4, 2, 2), 2),
    "F.interpolate nearest": lambda x, y: F.interpolate(picture(x), scale_factor=2.0),
    "F.interpolate bilinear": lambda x, y: F.interpolate(picture(x), size=(5, 5), mode="bilinear"),
    "F.interpolate bicubic": lambda x, y: F.interpolate(picture(x), size=(5, 5), mode="bicubic"),
    "F.pad": lambda x, y: F.pad(picture(x), (1, 1)),
    "F.pad reflect": lambda x, y: F.pad(picture(x), (1, 1, 1, 1), mode="reflect"),
    "F.pad replicate": lambda x, y: F.pad(picture(x), (1, 1, 1, 1), mode="replicate"),
    "F.unfold": lambda x, y: F.unfold(picture(x), 2),
    "F.grid_sample": lambda x, y: F.grid_sample(
        picture(x), torch.zeros(1, 2, 2, 2), align_corners=False
    ),
    "F.scaled_dot_product_attention": attended,
    "F.scaled_dot_product_attention masked": lambda x, y: attended(x, y, torch.eye(4) > 0),
    "LSTMCell": lambda x, y: torch.lstm_cell(x, (y, y), *[torch.ones(16, 4)] * 2),
    "GRUCell": lambda x, y: torch.gru_cell(x, y, *[torch.ones(12, 4)] * 2),
}


def step(function, tensors, *, backward):
    """Run a call, and its backward pass from a gradient of 0.7."""
    out = function(*tensors)
    if not backward:
        return None
    ends = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    return lambda: torch.autograd.backward(ends, [torch.full_like(t, 0.7) for t in ends])


def observed(function, tensors, dtype, *, backward):
    """The kernels that the real autocast runs, or None where one does not exist in half."""
    observer = Observer()
    try:
        within = nullcontext() if backward else observer
        with torch.autocast("cpu", dtype=dtype), torch.set_grad_enabled(backward), within:
            back = step(function, tensors, backward=backward)
        if backward:
            with observer:
                back()
    except RuntimeError:
        return None
    return observer.seen


def simulated_kernels(function, tensors, fmt, low, *, backward):
    """The same of the simulation, from what it says that it did."""
    sim = simulated(fmt, policy=CPU_AUTOCAST)
    recorder = Recorder(sim._mode)
    sim._mode.tell(recorder)
    for t, is_low in zip(tensors, low, strict=True):
        if is_low:
            set_mark(t, Mark(sim._mode.outside.into))
    with torch.set_grad_enabled(backward), sim:
        back = step(function, tensors, backward=backward)
        if backward:
            recorder.rows.clear()
            back()
    return kernels_in(recorder.rows, fmt)


VARIANTS = {"all FP32": (0, 0), "all low": (1, 1), "first low": (1, 0), "second low": (0, 1)}


BACKWARD_DIFFERS = {
    "a low tensor used twice in what runs in FP32 as a whole: torch adds there, in FP32": """
        linalg.qr linalg.lstsq F.kl_div F.poisson_nll_loss F.hinge_embedding_loss
        F.cosine_embedding_loss
        F.triplet_margin_loss""",
    "FP32 used twice through a view: torch casts each view, and adds in FP32": """
        F.scaled_dot_product_attention F.scaled_dot_product_attention_masked linalg.eigvalsh
        GRUCell""",
    "statistics of a norm without weights: low in torch": """
        F.layer_norm F.group_norm F.instance_norm""",
    "a formula of several operations on inputs of two formats: torch promotes each": """
        pow_of_two atan2_of_two addcmul addcdiv""",
}
"""Where the simulated backward pass rounds at other places than torch's, and why."""


NO_BACKWARD = {"geqrf", "F.soft_margin_loss", "scatter_add", "renorm"}
"""torch has none, or none in half on the CPU; that of `renorm` computes in float64."""


def directed(calls):
    """Each call forward, and backward, if it has such a pass, which is slow."""
    for call in calls:
        yield pytest.param(call, False, id=f"{call}-forward")
        if call not in NO_BACKWARD:
            yield pytest.param(call, True, id=f"{call}-backward", marks=pytest.mark.slow)


@pytest.mark.parametrize("fmt", mostly_slow(LOW, [FP16]), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize(("call", "backward"), list(directed(CALLS)))
def test_each_operation_runs_in_the_formats_of_the_real_autocast(
    call, backward, fmt, record_property
):
    different = call.replace(" ", "_") in " ".join(BACKWARD_DIFFERS.values()).split()
    ran, compared, differed = 0, 0, 0
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
            inputs = [t.clone().requires_grad_(backward) for t in values]
            found = simulated_kernels(CALLS[call], inputs, fmt, low, backward=backward)
        if backward and different:
            differed += found != real
        else:
            assert found == real, low
            compared += len(real)
        ran += 1
    assert ran, "no variant ran"
    assert compared or backward
    assert differed or not (backward and different), "the reason is gone"
    record_property("kernels compared", compared)


PROMOTED = {"cat", "stack", "index_copy"}
COMPLEX = re.compile("fft|polar|view_as_complex|stft|linalg_eig$|linalg_eigvals$")
ELSEWHERE = {"_native_multi_head_attention", "_grid_sampler_2d_cpu_fallback"}
"""The fast path, which the simulation turns off, and a fallback for what is not float32."""


def test_the_table_names_what_the_dispatcher_has_registered_for_autocast_on_the_cpu():
    every = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    registered = {name[6:].partition(".")[0] for name in every if name.startswith("aten::")}
    assert {"mm", "cross_entropy_loss"} <= registered
    assert "exp" not in registered
    listed = CPU_AUTOCAST.lower | CPU_AUTOCAST.wide
    missing = {name for name in registered - listed if not COMPLEX.search(name)}
    assert missing == PROMOTED | ELSEWHERE
    parts = {name for name in listed - registered if name in policies_of_torch()}
    assert parts == set(), "listed, and neither registered nor a part of what is"


def policies_of_torch():
    """Operations that come whole to autocast, so that it would have to name them."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return {name.partition("::")[2].partition(".")[0] for name in names}


# Bit for bit, where float32 sums are exact: a network of width two, on a batch of two


HALVED = PROGRAMS | {
    "softmax": lambda x, p: loss(linear(linear(x, p[0]).softmax(1), p[1])),
    "cross entropy": lambda x, p: F.cross_entropy(linear(x, p[0]), torch.arange(2)),
    "exp": lambda x, p: loss(linear(linear(x, p[0]).exp(), p[1])),
    "square": lambda x, p: loss(linear(linear(x, p[0]) ** 2, p[1])),
    "sum": lambda x, p: loss(linear(linear(x, p[0]).sum(1, keepdim=True) * p[2], p[1])),
    "mean": lambda x, p: loss(linear(x, p[0]).mean(1) * 0.3),
    "norm": lambda x, p: loss(linear(x, p[0]).norm(dim=1) * 0.3),
    "cumsum": lambda x, p: loss(linear(linear(x, p[0]).cumsum(1), p[1])),
    "prod": lambda x, p: loss(linear(linear(x, p[0]).prod(1, keepdim=True) * p[2], p[1])),
    "softplus": lambda x, p: loss(linear(F.softplus(linear(x, p[0])), p[1])),
    "gelu": lambda x, p: loss(linear(F.gelu(linear(x, p[0])), p[1])),
    "silu": lambda x, p: loss(linear(F.silu(linear(x, p[0])), p[1])),
    "tanh": lambda x, p: loss(linear(torch.tanh(linear(x, p[0])), p[1])),
    "bias": lambda x, p: loss(linear(F.linear(x, p[0], p[2][0]), p[1])),
    "transposed with bias": lambda x, p: loss(
        F.linear(linear(x, p[0]).view(2, 1, 2).transpose(0, 1), p[1], p[2][0])
    ),
    "slice with bias": lambda x, p: loss(
        F.linear(torch.cat([x, x], 1).view(2, 1, 4)[:, :, :2], p[0], p[2][0])
    ),
    "quotient": lambda x, p: loss(linear(linear(x, p[0]) / (linear(x, p[1]).abs() + 1), p[2])),
    "log": lambda x, p: loss(linear((linear(x, p[0]).abs() + 1).log(), p[1])),
    "sqrt": lambda x, p: loss(linear((linear(x, p[0]).abs() + 1).sqrt(), p[1])),
    "reciprocal": lambda x, p: loss(linear((linear(x, p[0]).abs() + 1).reciprocal(), p[1])),
    "l1 loss": lambda x, p: F.l1_loss(linear(x, p[0]), linear(x, p[1])),
    "huber loss": lambda x, p: F.huber_loss(linear(x, p[0]), linear(x, p[1])),
    "learned scalars": lambda x, p: loss(linear(x, p[0]) * p[2].sum() + p[3][0, 0]),
    "a learned scalar first": lambda x, p: loss(x + p[2].sum() * linear(x, p[0])),
    "a learned temperature": lambda x, p: F.cross_entropy(
        linear(x, p[0]) * (20 * p[2].sum()).exp(), torch.arange(2)
    ),
    "scalar over tensor": lambda x, p: loss(p[2].sum() / linear(x, p[0])),
    "sum of all, low": lambda x, p: linear(x, p[0]).abs().sum() * 100.0,
    "square by hand": lambda x, p: (linear(x, p[0]) * linear(x, p[1])).mean(),
    "low scalars stacked": lambda x, p: loss(
        torch.stack([linear(x, p[0]).sum(), linear(x, p[1]).mean()]).view(1, 2)
    ),
    "a low scalar as a matrix": lambda x, p: loss(
        linear(linear(x, p[0]).sum().reshape(1, 1).expand(2, 2), p[1])
    ),
    "an element": lambda x, p: linear(x, p[0])[0, 0] * linear(x, p[1])[1, 1] * p[2].sum(),
    "a gate in FP32": lambda x, p: loss((x - (h := linear(x, p[0]))).mul(linear(x, p[1])).add(h)),
    "low, added to FP32 twice": lambda x, p: loss(
        ((h := linear(x, p[0])) + x).square() + (h - x).abs() * 0.3
    ),
    "low, joined and summed": lambda x, p: (
        loss(torch.cat([h := linear(x, p[0]), x])) + (h.float().sum(1) * x[0]).sum()
    ),
    "views of a weight": lambda x, p: loss(F.linear(w := p[0][None], x) + F.linear(w, x * 2)),
    "a weight as FP32 and low": lambda x, p: loss(linear(p[0][torch.tensor([1, 1])], p[0])),
    "skipped, after": lambda x, p: loss(linear(h := x * p[0], p[1]) + h),
    "skipped, before": lambda x, p: loss((h := x * p[0]) + linear(h, p[1])),
    "skipped by two": lambda x, p: loss(linear(h := x * p[0], p[1]) + linear(h, p[1] * 2) + h),
    "skipped, low": lambda x, p: loss(linear(linear(h := x * p[0], p[1]), p[1]) + linear(h, p[1])),
    "skipped through a view": lambda x, p: loss(
        linear((h := x * p[0]).view(1, 2, 2), p[1]).view(2, 2) + h.view(2, 2)
    ),
    "layer norm, forward": lambda x, p: loss(
        F.layer_norm(linear(x, p[0]), (2,), p[2][0], p[3][0]).detach()
    ),
}


@pytest.mark.parametrize("fmt", mostly_slow(LOW, [FP16]), ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("program", HALVED)
def test_a_program_of_width_two_equals_torch_s_autocast_bit_for_bit(program, fmt):
    """Also by the rules of CUDA, where the program has only operations that run as on the CPU."""
    policies = (CPU_AUTOCAST, CUDA_AUTOCAST) if program in PROGRAMS else (CPU_AUTOCAST,)
    for seed, policy in itertools.product(range(25), policies):
        torch.manual_seed(seed)
        p = [nn.Parameter(torch.randn(2, 2)) for _ in range(4)]
        x, scale = torch.randn(2, 2), 2.0 ** (seed % 12)
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
        assert_bits(actual, expected.float())
        for q, grad in zip(p, real, strict=True):
            assert (q.grad is None) == (grad is None)
            if grad is not None:  # NaN, where both overflow
                assert torch.equal(q.grad.nan_to_num(7.0), grad.nan_to_num(7.0)), f"seed {seed}"
