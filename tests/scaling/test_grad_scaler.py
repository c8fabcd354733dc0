"""The gradient scaler, call by call beside torch's own."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from mplab import FP4_E2M1
from mplab.scaling import (
    DoublingScaler,
    FlooredScaler,
    GradScaler,
    LossScaler,
    NudgedScaler,
    ScaleRule,
    hadamard,
    quantize,
    scaler_steps,
)

# Sequences of calls --------------------------------------------------------------------

LAYERS = 3
BAD = (math.inf, -math.inf, math.nan)


class Side:
    """Weights, two optimizers and a scaler: the same for ours and for torch's."""

    def __init__(self, scaler):
        self.scaler = scaler
        self.weights = [
            nn.Parameter(torch.linspace(-1, 1, 4) + i) for i in range(LAYERS)
        ]
        self.optimizers = [
            torch.optim.SGD(self.weights[:2], lr=0.1, momentum=0.5),
            torch.optim.Adam(self.weights[2:], lr=0.01),
        ]
        self.steps = []
        for number, optimizer in enumerate(self.optimizers):
            optimizer.register_step_post_hook(lambda *_, n=number: self.steps.append(n))

    def backward(self, bad):
        loss = sum((w * w).sum() for w in self.weights) * 1e-4
        scaled = self.scaler.scale(loss)
        scaled.backward()
        for layer, value in bad:
            self.weights[layer].grad[1] = value
        return scaled

    def clip(self, number):
        weights = self.optimizers[number].param_groups[0]["params"]
        return torch.nn.utils.clip_grad_norm_(
            [w for w in weights if w.grad is not None], 1e-3
        )

    def do(self, call, *arguments):
        """Make a call; the kind of error it gives, or None."""
        try:
            getattr(self, call)(*arguments)
        except (RuntimeError, AssertionError, ValueError) as error:
            return type(error)
        return None

    def unscale(self, number):
        self.scaler.unscale_(self.optimizers[number])

    def step(self, number):
        self.scaler.step(self.optimizers[number])

    def update(self):
        self.scaler.update()

    def drop(self, number):
        self.optimizers[number].zero_grad()

    def load(self):
        self.scaler.load_state_dict(copy.deepcopy(self.scaler.state_dict()))


NUMBER = st.integers(0, 1)
CALL = st.one_of(
    st.tuples(
        st.just("backward"),
        st.lists(
            st.tuples(st.integers(0, LAYERS - 1), st.sampled_from(BAD)), max_size=2
        ),
    ),
    st.tuples(st.sampled_from(["unscale", "step", "drop"]), NUMBER),
    st.tuples(st.sampled_from(["step", "update", "load", "clip"]), NUMBER),
)
OPTIONS = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([65536.0, 2.0**30, 1.0, 3.0, 2.0**-20 * 3]),
        "growth_factor": st.sampled_from([2.0, 1.5]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 3),
    }
)


def both(options):
    return Side(GradScaler(LossScaler(**options))), Side(
        torch.amp.GradScaler("cpu", **options)
    )


def assert_alike(ours, theirs):
    assert ours.scaler.state_dict() == theirs.scaler.state_dict()
    assert ours.steps == theirs.steps
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        assert_same(one.data, other.data)
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert_same(one.grad, other.grad)


def assert_same(one, other):
    assert one.dtype == other.dtype
    assert ((one == other) | (one.isnan() & other.isnan())).all(), (one, other)


def play(calls, options):
    """Make the same calls on both sides, and compare after each."""
    ours, theirs = both(options)
    for number, (call, argument) in enumerate(calls):
        arguments = () if call in ("update", "load") else (argument,)
        one = ours.do(call, *arguments)
        other = theirs.do(call, *arguments)
        expected = RuntimeError if other is AssertionError else other
        assert one is expected, f"call {number}, {call}: {one} instead of {expected}"
        assert_alike(ours, theirs)
    return ours


@settings(max_examples=180)
@given(calls=st.lists(CALL, max_size=25), options=OPTIONS)
def test_any_calls_in_any_order_do_what_they_do_in_torch(calls, options):
    play(calls, options)


def test_training_with_clipping_and_two_optimizers_goes_as_in_torch():
    calls = []
    for bad in ([], [(0, math.inf)], [], [(2, math.nan)], [], []):
        calls += [
            ("drop", 0),
            ("drop", 1),
            ("backward", bad),
            ("unscale", 0),
            ("clip", 0),
        ]
        calls += [("step", 0), ("step", 1), ("update", 0)]
    side = play(calls, {"growth_interval": 2})
    assert side.steps == [0, 1, 1, 0, 1, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_any_dtype_are_unscaled_to_the_bits_of_torch(dtype):
    values = torch.randn(500, generator=torch.Generator().manual_seed(0)).to(dtype)
    for scale in (65536.0, 3.0, 0.1, 1.0):
        found = []
        for scaler in both({"init_scale": scale}):
            weight = nn.Parameter(torch.zeros(500, dtype=dtype))
            scaler.scaler.scale(torch.zeros(()))
            weight.grad = values.clone()
            scaler.scaler.unscale_(torch.optim.SGD([weight], lr=1.0))
            found.append(weight.grad)
        assert_same(*found)


@pytest.mark.parametrize("bad", [None, 0, 1, 2, 3])
def test_gradients_of_several_dtypes_are_all_unscaled_and_looked_at(bad):
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.complex64)
    weights = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in dtypes]
    optimizer = torch.optim.SGD(weights, lr=0.5)
    scaler = GradScaler(LossScaler(4.0))
    scaler.scale(torch.ones(()))
    for number, weight in enumerate(weights):
        weight.grad = torch.full_like(weight, 12.0)
        if number == bad:
            weight.grad[1] = math.nan
    scaler.unscale_(optimizer)
    assert all(weight.grad[2] == 3 for weight in weights)
    scaler.step(optimizer)
    assert all((weight[0] == 1) == (bad is not None) for weight in weights)


def test_sparse_gradients_are_unscaled_where_they_are_stored():
    table = nn.Embedding(10, 3, sparse=True)
    scaler = GradScaler()
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    scaler.scale(table(torch.tensor([1, 4, 1])).sum()).backward()
    scaler.unscale_(optimizer)
    expected = torch.zeros(10, 3)
    expected[1], expected[4] = 2.0, 1.0
    assert torch.equal(table.weight.grad.to_dense(), expected)


def test_losses_and_nested_lists_are_scaled_as_in_torch():
    def flat(x):
        return (
            [x]
            if isinstance(x, torch.Tensor)
            else [t for part in x for t in flat(part)]
        )

    for outputs in (
        torch.ones((), dtype=torch.float16),
        torch.ones(3, dtype=torch.float16),
        [torch.ones(2), (torch.ones(1), torch.ones((), dtype=torch.float64))],
    ):
        got, expected = (
            side.scaler.scale(outputs) for side in both({"init_scale": 1024.0})
        )
        assert type(got) is type(expected)
        for one, other in zip(flat(got), flat(expected), strict=True):
            assert_same(one, other)
    twice = GradScaler(LossScaler(2.0)).scale(torch.ones(1) for _ in "ab")
    assert [t.item() for t in twice] == [2.0, 2.0]


def test_a_fused_optimizer_ends_at_the_weights_of_torch():
    ends = []
    for scaler in (GradScaler(), torch.amp.GradScaler("cpu")):
        weight = nn.Parameter(torch.linspace(-1, 1, 8))
        optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
        for bad in (False, True, False):
            optimizer.zero_grad()
            scaler.scale((weight * weight).sum()).backward()
            if bad:
                weight.grad[0] = math.nan
            scaler.step(optimizer)
            scaler.update()
        ends.append((weight.data, scaler.get_scale()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1] == 32768.0


# Wrong calls ---------------------------------------------------------------------------


def test_half_precision_weights_are_refused_before_any_gradient_is_touched():
    weights = [
        nn.Parameter(torch.ones(2)),
        nn.Parameter(torch.ones(2, dtype=torch.float16)),
    ]
    for scaler in (GradScaler(), torch.amp.GradScaler("cpu")):
        scaler.scale(torch.zeros(()))
        for w in weights:
            w.grad = torch.ones_like(w)
        with pytest.raises(ValueError, match=r"float16|FP16"):
            scaler.step(torch.optim.SGD(weights, lr=1.0))
        assert (weights[0].grad == 1).all()


def test_a_closure_is_refused():
    with pytest.raises(RuntimeError, match="closures are not supported"):
        GradScaler().step(None, closure=print)


# Any rule ------------------------------------------------------------------------------


def one_weight(rule):
    weight = nn.Parameter(torch.ones(4))
    return weight, torch.optim.SGD([weight], lr=1.0), GradScaler(rule)


def stepped(rule, gradient):
    """A weight of ones after a step with this gradient, and the scaler."""
    weight, optimizer, scaler = one_weight(rule)
    scaler.scale((weight * gradient).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return weight, scaler


@pytest.mark.parametrize("skips", [True, False])
def test_a_static_scale_that_skips_stays_and_one_that_does_not_spoils_the_weights(
    skips,
):
    rule = LossScaler(8.0, dynamic=False, static_skips=skips)
    weight, scaler = stepped(rule, torch.full((4,), math.inf))
    assert weight.isfinite().all() == skips
    assert scaler.get_scale() == 8.0


def test_each_rule_moves_the_scale_and_a_nudged_one_is_told_the_mean_of_unscaled_gradients():
    for rule, size, expected in (
        (DoublingScaler(8.0), 1.0, 16.0), (FlooredScaler(8.0), 1.0, 8.0),
        (NudgedScaler(1024.0), 0.9e-7, 1126.4000244140625), (NudgedScaler(1024.0), 1.1e-7, 1024.0),
    ):  # fmt: skip
        assert stepped(rule, size)[1].get_scale() == expected


def test_a_rule_of_one_s_own_that_wants_no_mean_is_told_of_infinities_alone():
    class Deaf(LossScaler):
        def update(self, found_nonfinite):
            return super().update(found_nonfinite)

    assert stepped(Deaf(8.0), math.inf)[1].get_scale() == 4.0
    assert [turn.skipped for turn in scaler_steps(Deaf(8.0), [4.0, 4.0])] == [
        True,
        False,
    ]


class Listening(LossScaler):
    """A rule of a user's own, which keeps what it is told."""

    wants_mean = True

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.told = []

    def update(self, found_nonfinite, *, mean_abs_gradient=math.inf):
        self.told.append((found_nonfinite, mean_abs_gradient))
        return super().update(found_nonfinite)


def test_a_rule_of_one_s_own_that_wants_the_mean_is_told_that_of_all_optimizers():
    rule = Listening(8.0)
    scaler = GradScaler(rule)
    weights = [nn.Parameter(torch.zeros(n)) for n in (3, 1)]
    optimizers = [torch.optim.SGD([w], lr=1.0) for w in weights]
    scaler.scale((weights[0] * -2.0).sum() + weights[1].sum() * 10.0).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    assert scaler.update() is False
    assert rule.told == [(False, (3 * 2.0 + 10.0) / 4)]
    skipped = [
        turn.skipped for turn in scaler_steps(rule, [9.0, 1.0], mean_abs_gradient=0.5)
    ]
    assert skipped == [False, True]
    assert rule.told[1:] == [(False, 0.5), (True, 0.5)]


class Wrapped:
    """What wraps an optimizer, as `GradScaler` wants it: no class of torch."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.steps = 0

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self):
        self.steps += 1
        self.optimizer.step()


def test_what_wraps_an_optimizer_is_unscaled_stepped_and_skipped_like_one():
    weight = nn.Parameter(torch.zeros(2))
    wrapped = Wrapped(torch.optim.SGD([weight], lr=1.0))
    scaler = GradScaler(LossScaler(8.0))
    for factor in (1.0, math.inf):
        weight.grad = None
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(wrapped)
        scaler.update()
    assert wrapped.steps == 1
    assert weight.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float64])
def test_torch_s_default_dtype_changes_nothing(default):
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        like = {"dtype": torch.float32}
        weight = nn.Parameter(torch.ones(1, **like))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scaler = GradScaler(LossScaler(1000.7))
        assert scaler.scale(torch.tensor(1.5, **like)) == torch.tensor(
            1.5 * 1000.7, **like
        )
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        assert weight.item() == 0.5 and scaler.update() is False
        x = torch.tensor([[8.0, 0, 0, 0]], **like).repeat(1, 4)
        assert hadamard(x).dtype == torch.float32
        scales = quantize(x, FP4_E2M1, scale=ScaleRule.NVFP4, block=(16,))
        assert scales.scale.dtype == scales.tensor_scale.dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
