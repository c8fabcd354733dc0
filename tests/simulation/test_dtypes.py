"""The dtypes that a program sees and asks for are torch's own."""

import pytest
import torch
from networks import is_low
from torch import nn

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16
from mplab.simulation import CPU_AUTOCAST, simulated


def product():
    """A tensor in the low format."""
    return torch.eye(2) @ torch.tensor([[1.0, 2.0], [0.1, -3.0]])


BORROWED = {FP16: torch.float16, BF16: torch.bfloat16}


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2])
def test_a_low_tensor_has_the_dtype_of_its_format_or_the_one_that_it_borrows(fmt):
    p = nn.Parameter(torch.eye(2))
    dtype = BORROWED.get(fmt, torch.bfloat16)
    with simulated(fmt):
        h = p @ product()
        assert {h.dtype, h.t().dtype, h[0].dtype, h.abs_().dtype, (h * 2).dtype} == {
            dtype
        }
        assert is_low(h / 3, fmt)
        assert {p.dtype, torch.ones(2).dtype, h.float().dtype, h.sum().dtype} == {
            torch.float32
        }
        h.sum().backward()
        assert p.grad.dtype is torch.float32
    assert h.dtype is dtype


def test_two_formats_of_one_simulation_borrow_two_dtypes():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    policy = CPU_AUTOCAST.with_layers({"1": FP8_E4M3})
    with simulated(FP8_E5M2, policy=policy, model=model):
        assert model[0](torch.ones(1, 2)).dtype is torch.bfloat16
        assert model(torch.ones(1, 2)).dtype is torch.float16
    with pytest.raises(ValueError, match=r"still free.*FP8_E4M3"):
        simulated(FP16, policy=CPU_AUTOCAST.with_layers({"0": BF16, "1": FP8_E4M3}))
