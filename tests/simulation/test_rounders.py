"""What the simulator remembers, and that it forgets in time."""

import gc
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from cases import assert_same_bits, breakpoints, stream_for
from flushing import where_subnormals_are_flushed
from networks import assert_all_bits, assert_bits, linear, loss, mlp, round_to
from torch import nn
from torch.nn.utils import vector_to_parameters

import mplab
from mplab import BF16, FP8_E4M3, FP16, FP32, Overflow, Rounding
from mplab.numbers.tensors import round_tensor
from mplab.numbers.threads import DIVISIBLE
from mplab.simulation import CUDA_AUTOCAST, places, simulated
from mplab.simulation.rounders import Counter, Rounder


class Halves(torch.optim.Optimizer):
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.data.mul_(0.5)


CHANGES = {
    "data": lambda w: w.data.mul_(0.7),
    "data, by a low tensor": lambda w: w.data.copy_(torch.randn(4, 4).half()),
    "another data": lambda w: setattr(w, "data", torch.randn(4, 4)),
    "in place": torch.no_grad()(lambda w: w.mul_(0.7)),
    "in another simulation": lambda w: simulated(BF16)(CHANGES["in place"])(w),
    "of a vector": lambda w: vector_to_parameters(torch.randn(16), [w]),
    "a list of data": lambda w: torch._foreach_mul_([w.data], 0.7),
    "optimizer": lambda w: torch.optim.SGD([w], 0.1).step(),
    "optimizer through data": lambda w: Halves([w], {}).step(),
}


@pytest.mark.parametrize("backward", [False, True])
def test_a_changed_weight_is_rounded_anew(backward):
    w = nn.Parameter(torch.randn(4, 4))
    x = torch.randn(3, 4)
    sim = simulated(FP16)
    for change in CHANGES.values():
        with sim:
            result = linear(x, w)
            if backward:
                loss(result).backward()
            change(w)
            assert_bits(linear(x, w), round_to(round_to(x) @ round_to(w).T))
        w.data.mul_(0.7)  # between two entries


def test_weights_that_share_memory_are_not_mixed_up():
    memory = torch.randn(32)
    a, b = (nn.Parameter(memory[i : i + 16].view(4, 4)) for i in (0, 16))
    x = torch.randn(3, 4)
    with simulated(FP16):
        for w in (a, b, a):
            assert_bits(linear(x, w), round_to(round_to(x) @ round_to(w).T))


def test_nothing_of_a_finished_run_is_kept_alive():
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    with simulated(FP16, model=model):
        h = model(x)
        loss(h).backward()
    alive = [weakref.ref(t) for t in (model, h)]
    del model, h
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_the_layers_of_old_nodes_are_forgotten_and_nothing_else_changes(monkeypatch):
    monkeypatch.setattr(places, "_KEPT_NODES", 8)
    x = torch.randn(2, 2, requires_grad=True)
    with simulated(FP16):
        h = x.mm(x)
        for _ in range(40):
            h = (h + h) / 2
        h.sum().backward()
        assert len(places.this_thread()._places) <= 17
    assert x.grad.isfinite().all()


# The door by address


SIZES = [0, 1, 4095, 4096, 4097, 10_000, DIVISIBLE - 1, DIVISIBLE]


def rounder(
    fmt=FP16, rounding=Rounding.TIES_TO_EVEN, overflow=Overflow.IEEE, stream=None
):
    return Rounder(fmt, rounding, overflow, stream)


def tensors():
    """Of all sizes around those at which threads begin, and with odd memory."""
    for size in SIZES:
        yield torch.randn(size) * 2.0 ** torch.randint(-30, 20, (size,))
    for view in (torch.t, torch._neg_view, lambda x: x[1:], lambda x: x[:, :3]):
        yield view(torch.randn(6, 5) * 1e-6)
    for order in ((1, 0, 2), (2, 0, 1), (2, 1, 0)):
        yield (torch.randn(3, 4, 5) * 1e-6).permute(order)


@pytest.mark.parametrize("counting", [False, True])
def test_a_rounder_gives_the_bits_and_counts_of_round_tensor(counting):
    """What lies between the numbers of a tensor stays as it is."""
    for x in tensors():
        kept = x.clone()
        expected_tally = mplab.Tally()
        expected = round_tensor(x, FP16, tally=expected_tally)
        wide = torch.full((*x.shape, 2), torch.nan)
        for out in (torch.empty_like(x), torch.empty(x.shape), wide[..., 0], x):
            counter = Counter() if counting else None
            assert_bits(x, kept)
            assert rounder()(x, out, counter) is out
            assert_bits(out, expected)
            assert not counting or counter.result() == expected_tally
        assert wide[..., 1].isnan().all()


def test_rounding_a_part_of_a_tensor_leaves_the_rest_alone():
    x = torch.full((4, 6), 0.1)
    rounder()(x[:, :3], x[:, :3], None)
    rounder()(x.t()[5:], x.t()[5:], None)
    assert (x != 0.1).any(0).tolist() == [True, True, True, False, False, True]


@pytest.mark.parametrize("fmt", [FP16, FP8_E4M3])
def test_a_rounder_knows_every_direction(fmt):
    x = torch.from_numpy(breakpoints(fmt, np.float32)[0])
    for rounding, overflow in itertools.product(Rounding, Overflow):
        one = stream_for(rounding)
        other = stream_for(rounding)
        into = rounder(fmt, rounding, overflow, one)
        for _ in range(2):  # the stream moves on alike
            expected = round_tensor(
                x, fmt, rounding=rounding, overflow=overflow, stream=other
            )
            assert_same_bits(
                into(x, torch.empty_like(x), None).numpy(), expected.numpy()
            )


def test_a_rounder_does_not_touch_tensors_without_memory():
    zeros = torch._efficientzerotensor(3)
    nowhere = torch.empty(3, device="meta")
    for x in (zeros, nowhere, torch.empty(0)):
        assert rounder()(x, x, None) is x
    assert_bits(rounder()(zeros, torch.full((3,), 7.0), None), torch.zeros(3))


def test_a_rounder_keeps_subnormals_where_the_processor_flushes_them():
    x = torch.from_numpy(breakpoints(BF16, np.float32)[0])
    expected = round_tensor(x, BF16).numpy()
    for counter in (None, Counter()):
        into = partial(rounder(BF16), x, torch.empty_like(x), counter)
        assert_same_bits(where_subnormals_are_flushed(into).numpy(), expected)


def test_a_rounder_serves_several_threads_at_once():
    into = rounder()
    sources = [torch.randn(50_000) for _ in range(4)]
    expected = [round_tensor(x, FP16) for x in sources]

    def work(x):
        return [into(x, torch.empty_like(x), None) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(work, sources), expected, strict=True):
            assert all(torch.equal(t, right) for t in found)


def test_a_layer_that_two_others_share_runs_in_the_format_of_its_caller():
    shared = torch.nn.Linear(2, 2)
    wide = torch.nn.Sequential(shared)
    low = torch.nn.Sequential(shared)
    model = torch.nn.ModuleDict({"low": low, "wide": wide})
    x = torch.full((1, 2), 0.1)
    with simulated(FP16, model=model, policy=CUDA_AUTOCAST.with_layers({"wide": FP32})):
        outputs = [part(x) for part in (low, wide, low, wide)]
    plain = shared(x)
    assert_all_bits(outputs[1::2], [plain, plain])
    assert_all_bits(outputs[::2], [round_to(outputs[0])] * 2)
    assert not torch.equal(outputs[0], plain)
