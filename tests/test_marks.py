"""What the simulator remembers, and that it forgets in time."""

import gc
import weakref

import pytest
import torch
from networks import assert_bits, linear, loss, mlp, round_to
from torch import nn

from mplab import (
    FP16,
    marks,
)
from mplab.simulate import simulated


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


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
