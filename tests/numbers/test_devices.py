"""Devices that lack what a CPU has."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mplab import FP6_E3M2, FP8_E4M3, FP16
from mplab.health import measures
from mplab.numbers.devices import forked_randomness
from mplab.scaling import GradScaler, NudgedScaler, ScaleRule, dequantize, quantize
from mplab.simulation import simulated


class WithoutFloat64(TorchDispatchMode):
    """Refuses to make float64 of another tensor, as Apple's GPUs do; a new one is the CPU's."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        others = wide = False
        for t in tree_leaves((args, kwargs)):
            others |= isinstance(t, torch.Tensor) and t.dtype != torch.float64
        for t in tree_leaves(out):
            wide |= isinstance(t, torch.Tensor) and t.dtype == torch.float64
        if others and wide:
            raise TypeError(f"no float64 on this device: {func}")
        return out


def network():
    torch.manual_seed(0)
    parts = nn.Linear(32, 32), nn.BatchNorm1d(32, affine=False), nn.Linear(32, 32)
    return nn.Sequential(*parts)


def step(model, optimizer, scaler=None):
    loss = model(torch.ones(4, 32).cumsum(1)).square().mean()
    (scaler.scale(loss) if scaler else loss).backward()
    scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    return loss


def simulate():
    weight = torch.ones(4, 8, requires_grad=True)
    index = torch.tensor([1, 1, 2])
    with simulated(FP16, policy="cpu-autocast"):
        low = weight.cumsum(1).to(torch.float16)
        low.sqrt()
        F.batch_norm(low, None, None, training=True)
        rows = F.embedding(index, weight.to(torch.float16), scale_grad_by_freq=True)
        rows.sum().backward()


def watch():
    """Its measures themselves: a watch hides them from other modes."""
    x = torch.tensor([0.1, 3.0, 0.0])
    lost = measures.casts_of(x, x.half().float(), torch.ones(()), FP16)
    assert lost[-1] > 0
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    moves = measures.Movement()
    moves.begin(optimizer)
    step(model, optimizer)
    moves.count()


def scale_a_loss():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step(model, optimizer, GradScaler(NudgedScaler()))


def quantize_blocks():
    x = torch.ones(4, 32).cumsum(1)
    for fmt, rule in ((FP8_E4M3, ScaleRule.MX), (FP6_E3M2, ScaleRule.MX)):
        dequantize(quantize(x, fmt, scale=rule, block=(1, 32)))


@pytest.mark.parametrize(
    "work",
    [
        simulate,
        watch,
        scale_a_loss,
        quantize_blocks,
    ],
    ids=lambda work: work.__name__,
)
def test_nothing_takes_float64_on_a_device_that_has_none(work, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_mps", True)
    with WithoutFloat64():
        work()


def test_the_random_state_of_apple_s_gpus_is_restored_too(monkeypatch):
    kept = []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: f"state of {device}")
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda *given: kept.append(given))
    device = torch.device("mps")
    with forked_randomness([torch.device("cpu"), device]):
        pass
    assert kept == [("state of mps", device)]
