"""What each policy says, against torch's own tables, and what holds under all of them."""

import copy
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import (
    PROGRAMS,
    Within,
    assert_all_bits,
    assert_bits,
    assert_same_gradients,
    is_low,
    linear,
    loss,
    mlp,
    round_to,
)
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab import BF16, FP8_E8M0, FP16, FP32, simulation
from mplab.simulation import operations, simulated
from mplab.simulation.policies import (
    CUDA_AUTOCAST,
    EVERYTHING,
    KERAS_MIXED,
    POLICIES,
    Policy,
)

every_policy = pytest.mark.parametrize("policy", POLICIES.values())


# The tables


def cuda_lists():
    """What autocast does on CUDA, as its header says it: low, wide, promoted."""
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text().replace("\\\n", " ")

    def names(macro):
        definition = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*)", text)[1]
        return set(re.findall(r'_\((\w+)|"(\w+)\.', definition))

    def flat(*macros):
        found = {first or second for macro in macros for first, second in names(macro)}
        return found - {"ADD_NS"}

    wide = ("FP32", "FP32_SET_OPT_DTYPE", "DIFFERENT_REDISPATCH_SIGNATURE")
    return flat("LOWER_PRECISION_FP"), flat(*wide), flat("PROMOTE")


def test_every_operation_on_autocast_s_lists_is_in_ours():
    lower, wide, promoted = cuda_lists()
    assert {"mm", "addmm"} <= lower
    assert {"exp", "softmax", "norm"} <= wide
    assert "addcmul" in promoted
    ours = CUDA_AUTOCAST
    assert lower <= ours.lower
    assert wide <= ours.wide
    assert promoted == ours.widest


def test_every_operation_in_our_lists_exists():
    known = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
    }
    sets = [operations._LIKE_INPUT, operations.EXACT, operations.COPIES]
    for policy in POLICIES.values():
        sets += [names for _, names in policy.lists()]
    names = frozenset().union(*sets)
    missing = {name for name in names if not {name, f"{name}_"} & known}
    later, gone = (
        {"linalg_matrix_sqrth"},
        {"cholesky", "qr"},
    )  # since and from torch 2.14 on
    assert missing in (later, gone)


def test_a_policy_has_the_name_that_files_and_python_hold_and_no_operation_on_two_lists():
    assert list(POLICIES) == [
        "cuda-autocast",
        "cpu-autocast",
        "keras-mixed",
        "everything",
    ]
    for name, policy in POLICIES.items():
        assert policy.name == name and policy.source
        assert getattr(simulation, policy.constant) is policy
        assert repr(policy) == policy.constant
        chosen = policy.with_layers({"head": "fp32"})
        assert chosen == policy.with_layers({"head": FP32})
        assert repr(chosen).startswith(f"{policy.constant}.with_layers(")
        assert not policy.lower & policy.wide
        assert not policy.output & (policy.lower | policy.wide)


# What holds under every policy

AUTOCASTS = (CUDA_AUTOCAST, POLICIES["cpu-autocast"])


@every_policy
@pytest.mark.parametrize("program", ["two layers", "views", "one weight used twice"])
def test_gradients_accumulate_in_fp32(policy, program):
    weights = torch.randn(4, 2, 2)
    x = torch.randn(2, 2, 2)

    def accumulated(*batches):
        p = [nn.Parameter(weight.clone()) for weight in weights]
        with simulated(FP16, policy=policy):
            for batch in batches:
                Within(PROGRAMS[program])(batch, p).backward()
        return [q.grad for q in p if q.grad is not None]

    both = accumulated(*x)
    for total, first, second in zip(both, *map(accumulated, x), strict=True):
        assert_bits(total, first + second)
        # each use of a weight is cast alone where operations are lowered one by one
        alone = program == "one weight used twice" and policy not in AUTOCASTS
        assert is_low(first) or alone
    assert not all(map(is_low, both))


class Above(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode on top of the simulation's, which passes everything on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@every_policy
@pytest.mark.parametrize("within", [nullcontext, Above])
def test_the_optimizer_unscaling_and_clipping_are_fp32(policy, within):
    def trained(make, inside):
        torch.manual_seed(1)
        model = mlp(6, 5, 3)
        x = torch.randn(8, 6)
        y = torch.randn(8, 3)
        scaler = torch.amp.GradScaler("cpu")
        optimizer = make(model.parameters())

        def update():
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()

        for _ in range(2):
            with simulated(FP16, policy=policy):
                optimizer.zero_grad()
                scaler.scale(F.mse_loss(model(x), y)).backward()
                if inside:
                    with within():
                        update()
            if not inside:
                update()
        return model.parameters()

    for make in (
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
        lambda p: torch.optim.Adagrad(p, 0.01),
    ):
        for a, b in zip(trained(make, True), trained(make, False), strict=True):
            assert_bits(a, b)
            assert not is_low(a)


@every_policy
def test_an_optimizer_with_a_closure_is_fp32_and_its_closure_simulated(policy):
    def trained(inside):
        torch.manual_seed(1)
        model = mlp(4, 3)
        x = torch.randn(5, 4)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
        seen = []
        context = simulated(FP16, policy=policy)

        def work():
            optimizer.zero_grad()
            output = model(x)
            seen.append(is_low(output))
            value = loss(output)
            value.backward()
            return value

        if inside:
            with context:
                optimizer.step(work)
                assert is_low(model(x))
        else:
            optimizer.step(context(work))
        assert all(seen)
        return model.parameters()

    assert_all_bits(trained(True), trained(False))


def cross_entropies(h, t):
    return F.cross_entropy(h, torch.arange(4), reduction="none")


def smoothed(h, t):
    return F.cross_entropy(h, torch.arange(4), label_smoothing=0.1)


LOSSES = [
    F.l1_loss,
    F.mse_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.kl_div,
    torch.kl_div,
    F.binary_cross_entropy_with_logits,
    F.cross_entropy,
    cross_entropies,
    smoothed,
    lambda h, t: F.triplet_margin_loss(h, t, h),
    lambda h, t: F.cosine_embedding_loss(h, t, torch.ones(4)),
]


@pytest.mark.filterwarnings("ignore:reduction")
@every_policy
def test_the_loss_of_low_tensors_is_that_of_fp32(policy):
    with simulated(FP16, policy=policy):
        low = [
            Within(linear)(torch.randn(4, 4), torch.randn(4, 4)).abs() for _ in range(2)
        ]
        actual = [function(*low) for function in LOSSES]
        with torch.inference_mode():
            again = [function(*low) for function in LOSSES]
    assert all(map(is_low, low))
    entropies = (F.cross_entropy, cross_entropies, smoothed)
    for value, repeated, function in zip(actual, again, LOSSES, strict=True):
        if policy is CUDA_AUTOCAST and function in entropies:
            continue  # see below
        assert_bits(value, function(*(t.float() for t in low)))
        assert_bits(repeated, value)
        assert not is_low(value)


def test_on_cuda_the_cross_entropy_of_low_logits_takes_a_low_log_softmax():
    """It asks for the dtype of the logits, and autocast leaves what asks for a dtype alone."""
    h = torch.randn(4, 4).half()
    with simulated(FP16, policy=CUDA_AUTOCAST):
        actual = cross_entropies(h, None)
        alone = h.log_softmax(1)
    low = round_to(h.float().log_softmax(1))
    assert_bits(actual, F.nll_loss(low, torch.arange(4), reduction="none"))
    assert alone.dtype is torch.float32


@pytest.mark.parametrize("policy", [KERAS_MIXED, EVERYTHING])
def test_scalars_are_not_rounded_where_a_policy_lowers_without_a_list(policy):
    class Model(nn.Module):
        def forward(self, x):
            h = x.mm(x)
            return h, h.mean(), h.mean() * 2.0**20

    with simulated(FP16, policy=policy):
        h, mean, large = Model()(torch.randn(3, 3))
    assert is_low(h)
    assert_bits(mean, h.float().mean())
    assert_bits(large, h.float().mean() * 2.0**20)


@every_policy
@pytest.mark.parametrize("asked", [False, True])
def test_a_gradient_in_hand_is_fp32_whatever_is_done_with_it(policy, asked):
    w = nn.Parameter(torch.randn(4, 4))
    with simulated(FP16, policy=policy):
        value = loss(Within(linear)(torch.randn(3, 4), w))
        if asked:
            (grad,) = torch.autograd.grad(value, w)
        else:
            value.backward()
            grad = w.grad
    # with gradients on, what is computed outside modules may be a part of the next forward pass
    lowers = torch.no_grad() if policy is EVERYTHING else nullcontext()
    with simulated(FP16, policy=policy), lowers:
        kept = grad.clone()
        third = grad / 3
        squared = (third * 7).square() + grad
        norm = torch.linalg.vector_norm(torch.stack([grad.norm(), third.norm()]))
        written = grad.mul_(1 / 3) * (1 / 3)
    assert is_low(kept)
    assert_bits(third, kept / 3)
    assert_bits(squared, (third * 7).square() + kept)
    assert_bits(
        norm, torch.linalg.vector_norm(torch.stack([kept.norm(), third.norm()]))
    )
    assert_bits(written, kept * (1 / 3) * (1 / 3))


@every_policy
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_changes_no_gradient(policy, use_reentrant):
    """Also where the function that runs again is a part of a layer with a format of its own."""

    class Block(nn.Module):
        def __init__(self, checkpointed):
            super().__init__()
            self.inner = mlp(4, 4, 4)
            self.checkpointed = checkpointed

        def work(self, x):
            return torch.tanh(self.inner(x) * 0.3)

        def forward(self, x):
            if self.checkpointed:
                return checkpoint(self.work, x, use_reentrant=use_reentrant)
            return self.work(x)

    plain = nn.ModuleDict({"a": Block(False), "b": Block(False)})
    x = torch.randn(5, 4)
    saving = copy.deepcopy(plain)
    for block in saving.values():
        block.checkpointed = True
    x.requires_grad_()
    for chosen in (
        policy,
        policy.with_layers({"b": BF16}),
        policy.with_layers({"b": FP32}),
    ):
        outputs = []
        for model in (plain, saving):
            model.zero_grad()
            with simulated(FP16, policy=chosen, model=model):
                outputs.append(model["b"](model["a"](x)))
                loss(outputs[-1]).backward()
        assert_bits(*outputs)
        assert_same_gradients(plain, saving)


# One format for everything


def test_under_everything_the_backward_pass_is_rounded_at_each_step():
    x = torch.randn(2, 2)
    w = nn.Parameter(torch.randn(2, 2))
    with simulated(FP16, policy=EVERYTHING):
        h = linear(x, w)
        e = h.exp()
        F.mse_loss(e, torch.zeros(2, 2)).backward()
    h = h.detach()
    e = e.detach()
    slope = round_to(e.clone() * 2 / 4)  # of the loss, which is FP32, then cast
    assert_bits(w.grad, round_to(round_to(slope * e).T @ round_to(x)))


def test_under_everything_the_largest_is_found_among_rounded_numbers():
    # The first two are 2048 and 2050 in FP16.
    x = torch.tensor([[2049.0, 2050.0, 2048.0]])
    with simulated(FP16, policy=EVERYTHING):
        values, places = (x + torch.zeros(1, 3)).max(1)
        also, there = torch.tensor([[2050.6, 2051.0]]).max(1)
    assert (values.item(), places.item()) == (2050.0, 1)
    assert also.item() in (2050.0, 2052.0)
    assert there.item() == int(round_to(torch.tensor([2050.6, 2051.0])).argmax())


@pytest.mark.parametrize("policy", [KERAS_MIXED, EVERYTHING], ids=repr)
def test_a_layer_that_compares_dtypes_takes_low_inputs_and_wide_weights(policy):
    layers = {
        nn.Conv1d(4, 4, 3): (2, 4, 8),
        nn.Conv2d(4, 4, 3): (2, 4, 8, 8),
        nn.Conv3d(4, 4, 3): (2, 4, 8, 8, 8),
        nn.PReLU(): (4, 8),
        Twice(8): (4, 8),
    }
    for layer, shape in layers.items():
        with simulated(FP16, policy=policy):
            out = layer(torch.randn(shape).half())
            out.sum().backward()
        assert out.dtype is torch.float16, layer
        assert all(p.grad.dtype is torch.float32 for p in layer.parameters()), layer


class Twice(nn.Bilinear):
    def __init__(self, width):
        super().__init__(width, width, 3)

    def forward(self, x):
        return super().forward(x, x)


# Layers with a format of their own


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = mlp(4, 5, 3), mlp(4, 5, 3)
        self.fusion = nn.Linear(6, 3)
        self.head = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3))

    def forward(self, x):
        self.seen = [self.left(x), self.right(x)]
        self.seen.append(self.fusion(torch.cat(self.seen, 1)))
        self.seen.append(self.head(self.seen[-1]))
        return self.seen[-1]


TOWERS = {"left": FP16, "right": BF16, "fusion": FP32}
CHOICES = {
    "by name": ([{"left": FP32}], {"left": FP32}),
    "by pattern": ([{"*.2": FP32}], {"left.2": FP32, "right.2": FP32}),
    "by class": ([{nn.Sigmoid: FP32}], {"left.1": FP32, "right.1": FP32}),
    "of the whole": ([{Towers: BF16}], {"": BF16}),
    "two towers joined in FP32": ([TOWERS], TOWERS),
    "the inner counts": (
        [{"left": FP32, "left.2": BF16}],
        {"left.2": BF16, "left": FP32},
    ),
    "the later counts": ([{"left": FP32}, {"left": BF16}], {"left": BF16}),
}
"""Choices of layers, and the formats that come of them; all other layers are in FP16."""


@pytest.mark.parametrize("name", CHOICES)
def test_a_layer_runs_in_the_format_chosen_for_it_forward_and_backward(name):
    choices, expected = CHOICES[name]
    policy = EVERYTHING
    model = Towers()
    seen = {}
    for formats in choices:
        policy = policy.with_layers(formats)
    leaves = {n: m for n, m in model.named_modules() if not list(m.children())}
    for layer, module in leaves.items():
        module.register_forward_hook(
            lambda *given, layer=layer: seen.update({layer: given[-1]})
        )
    with simulated(FP16, policy=policy, model=model):
        loss(model(torch.randn(4, 4))).backward()
    for layer, module in leaves.items():
        fits = (fmt for key, fmt in expected.items() if layer.startswith(key))
        fmt = next(fits, FP16)
        tensors = [seen[layer]]
        if not isinstance(module, nn.LayerNorm):  # its weights stay FP32
            tensors += [p.grad for p in module.parameters()]
        for t in tensors:
            assert is_low(t, fmt), layer
            assert fmt is not FP32 or not is_low(t), layer


@every_policy
@pytest.mark.parametrize("given", [True, False], ids=["model given", "model found"])
def test_a_layer_in_fp32_is_fp32_forward_and_backward(policy, given):
    model = Towers()
    x = torch.randn(4, 4)
    hooked = []
    with simulated(
        FP16, policy=policy.with_layers({"head": FP32}), model=model if given else None
    ):
        output = model(x)
        model.seen[2].register_hook(hooked.append)
        g = torch.randn(4, 3)
        output.backward(g)
    into = model.seen[2].detach().float().requires_grad_()
    alone = copy.deepcopy(model.head)
    alone.zero_grad()
    expected = alone(into)
    expected.backward(g)
    assert_bits(output, expected)
    assert_same_gradients(model.head, alone)
    # What leaves the layer is FP32; the gradient of its input, a low tensor, is low.
    assert_bits(hooked[0], round_to(into.grad, FP16))
    assert is_low(model.fusion.weight.grad)
    assert not is_low(model.head[1].weight.grad)


def test_a_module_called_within_a_layer_has_its_choice_though_it_is_not_a_part_of_it():
    hidden = nn.Linear(3, 3)

    class Head(nn.Module):
        def forward(self, x):
            return hidden(x)

    with simulated(FP16, policy=CUDA_AUTOCAST.with_layers({"Head": BF16, Head: FP32})):
        output = Head()(torch.randn(2, 3))
    assert not is_low(output)


def test_operations_can_be_put_in_fp32_and_in_the_low_format():
    both = {"_softmax", "softmax"}
    wide = replace(EVERYTHING, wide=EVERYTHING.wide | both)
    low = replace(
        CUDA_AUTOCAST,
        lower=CUDA_AUTOCAST.lower | both,
        wide=CUDA_AUTOCAST.wide - both,
    )
    for policy, softmax, logarithm in ((wide, False, True), (low, True, False)):
        with simulated(FP16, policy=policy):
            h = torch.randn(4, 4).mm(torch.randn(4, 4))
            found = [h, h.softmax(1), nn.Softmax(1)(h), h.log_softmax(1)]
        assert [is_low(t) for t in found] == [True, softmax, softmax, logarithm]


def test_what_would_change_a_table_in_silence_is_refused():
    for odd in (
        {"lower": "mm"},
        {"lower": ["mm"]},
        {"inside": "LOWER"},
        {"outside": None},
    ):
        with pytest.raises(ValueError, match=f"Policy: {next(iter(odd))} must be a "):
            Policy("mine", "me", **odd)
    mm = frozenset({"mm"})
    cuda = CUDA_AUTOCAST
    for message, call in {
        "must have no operation in common; got 'mm'": lambda: Policy(
            "a", "b", lower=mm, wide=mm
        ),
        "fmt must have signs and zero": lambda: simulated(
            FP16, policy=cuda.with_layers({"head": FP8_E8M0})
        ),
        r"got 'haed', which fits none of 'Towers', 'left'": lambda: simulated(
            FP16, policy=cuda.with_layers({"haed": FP32}), model=Towers()
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_a_name_that_fits_no_layer_of_a_model_that_was_found_is_warned_of_once():
    sim = simulated(
        FP16, policy=CUDA_AUTOCAST.with_layers({"haed": FP32, "head": FP32})
    )
    with (
        pytest.warns(UserWarning, match="the policy's names 'haed' fitted no layer"),
        sim,
    ):
        Towers()(torch.randn(2, 4))
    with sim:
        Towers()(torch.randn(2, 4))


class Copying(nn.Module):
    """Copies a tensor in each way that torch has, and remembers the copies."""

    def forward(self, x):
        copied = torch.empty_like(x)
        copied.copy_(x)
        (added,) = torch._foreach_add([x], [torch.zeros_like(x)])
        (raised,) = torch._foreach_mul([x], 1.0)
        self.copies = [x.clone(), copied, added, raised, x.contiguous(), x.flatten()]
        return x


@every_policy
def test_a_copy_keeps_every_bit_under_all_policies(policy):
    """Rounding copies turned [1.0001, 1e-9, 70000] into [1, 0, inf]."""
    x = torch.tensor([1.0001, 1e-9, 70000.0])
    module = Copying()
    with simulated(FP16, policy=policy):
        module(x)
        kept = module.copies
        assert all(torch.equal(copy.float(), x) for copy in kept)
