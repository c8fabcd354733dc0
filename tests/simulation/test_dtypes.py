"""The dtypes that a program sees and asks for are torch's own."""

import pytest
import torch
from networks import Within, assert_bits, is_low, linear, loss
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16
from mplab.simulation import CPU_AUTOCAST, simulated

HALVES = pytest.mark.parametrize("fmt", [FP16, BF16])


def product():
    """A tensor in the low format."""
    return torch.eye(2) @ torch.tensor([[1.0, 2.0], [0.1, -3.0]])


# What is answered


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


# What is asked for


ASKING = {
    "to a dtype": lambda x, h: x.to(h.dtype), "to another": lambda x, h: x.to(h),
    "to another by name": lambda x, h: x.to(tensor=h),
    "to a device": lambda x, h: x.to("cpu", h.dtype),
    "to a copy": lambda x, h: x.to(dtype=h.dtype, copy=True), "type": lambda x, h: x.type(h.dtype),
    "type_as": lambda x, h: x.type_as(h),
    "half": lambda x, h: x.half() if h.dtype is torch.float16 else x.bfloat16(),
    "as_tensor": lambda x, h: torch.as_tensor(x, dtype=h.dtype),
    "asarray": lambda x, h: torch.asarray(x, dtype=h.dtype),
}  # fmt: skip


@HALVES
@pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
def test_a_conversion_rounds_as_torch_s_own(ask, fmt):
    codes = (
        torch.arange(2**16, dtype=torch.int32)
        .to(torch.int16)
        .view(fmt.torch_dtype)
        .float()
    )
    steps = codes.view(torch.int32)
    near = [
        (steps + shift).view(torch.float32) for shift in (0, 1, 0x7FF, 0x1000, 0x8000)
    ]
    x = torch.cat([t[t.isfinite()] for t in near])
    with simulated(fmt) as sim:
        actual = ask(x, product())
        assert actual.dtype is fmt.torch_dtype
        again = ask(actual, product())
    assert_bits(actual, x.to(fmt.torch_dtype).float())
    assert_bits(again, actual)
    assert sim.by_operation["cast"].inexact > 1e5


# Programs


def norm_by_hand(h):
    wide = 300 * h.to(torch.float32)  # FP16 does not hold the squares
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return wide.to(h.dtype) / 3


def clamped(h):
    h = h * 30000 * 30000
    if h.dtype == torch.float16:
        most = torch.where(h.isinf().any(), torch.finfo(h.dtype).max - 1000, 9.0)
        h = torch.clamp(h, min=-most, max=most)
    return h / 30000


def kept(h):
    """A cache that begins with an empty tensor."""
    return torch.cat([torch.tensor([], dtype=h.dtype), h.reshape(-1)]).view(2, 2) / 3


PROGRAMS = {
    "a norm by hand": norm_by_hand, "a clamp of FP16 alone": clamped, "a cache": kept,
    "low, FP32 and low again": lambda h: ((h.float() / 3).to(h.dtype) / 3).float() / 3,
    "low and FP32 from one": lambda h: (h / 3).to(h.dtype) + (h.float() / 7).to(h.dtype),
    "used twice": lambda h: (c := (h.float() / 3).to(h)).float().exp() + (c / 7).float(),
    "a softmax of it in FP32": lambda h: F.softmax((h.float() / 3).to(h), -1, dtype=torch.float32),
    "a softmax in its dtype": lambda h: F.softmax(h.float() / 3, -1, dtype=h.dtype) / 3,
    "a sum in its dtype": lambda h: (h.float() / 3).sum(-1, dtype=h.dtype) / 3,
    "a factor": lambda h: torch.full((2, 2), 0.1, dtype=h.dtype) * h,
    "a scalar": lambda h: torch.tensor(0.1, dtype=h.dtype) * h,
    "a mask": lambda h: h.masked_fill(h > 0, torch.finfo(h.dtype).min).softmax(-1),
    "promoted": lambda h: torch.ones(2, dtype=torch.result_type(h, torch.ones(2))) * h / 3,
    "of its own": lambda h: h.new_tensor([0.1, 0.2]) * h,
    "integers": lambda h: torch.arange(2).to(h.dtype) / 3 * h,
    "written to": lambda h: torch.zeros_like(h).copy_(h / 3).add_(h.float() / 7) / 3,
    "as float32 on a device": lambda h: h.to("cpu", torch.float32) / 3,
    "as float32 by name": lambda h: h.to(dtype=torch.float32) / 3,
    "type float32": lambda h: h.type(torch.float32) / 3,
    "type of an FP32 tensor": lambda h: h.type_as(torch.ones(1)) / 3,
    "used low and as FP32": lambda h: h / 3 + h.float() / 7,
    "a mean in FP32": lambda h: h.mean(0, keepdim=True, dtype=torch.float32) - h.float(),
    "nansum in FP32": lambda h: torch.nansum(h, 0, True, dtype=torch.float32) / 3,
    "log_softmax in FP32": lambda h: torch.log_softmax(h, -1, torch.float32) / 3,
    "vector_norm in FP32": lambda h: torch.linalg.vector_norm(h, dim=0, dtype=torch.float32) / 3,
    "rms_norm": lambda h: F.rms_norm(h, (2,)) / 3,
    "autocast is off": lambda h: off(lambda: norm_by_hand(h) + h.to(torch.float32).to(h.dtype)),
}  # fmt: skip


def off(function):
    with torch.autocast("cpu", enabled=False):
        return function()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "again",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["once", "checkpointed"],
)
@HALVES
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_asks_for_dtypes_equals_torch_s_autocast_bit_for_bit(
    program, fmt, again
):
    part = Within(PROGRAMS[program])

    def run(x, p):
        h = linear(x, p)
        return part(h), loss(
            checkpoint(part, h, use_reentrant=False) if again else part(h)
        )

    for seed in range(4):
        torch.manual_seed(seed)
        p = nn.Parameter(torch.randn(2, 2))
        x = torch.randn(2, 2)
        with torch.autocast("cpu", dtype=fmt.torch_dtype):
            expected, last = run(x, p)
        (wanted,) = torch.autograd.grad(last, p)
        with simulated(fmt, policy=CPU_AUTOCAST):
            actual, last = run(x, p)
            (got,) = torch.autograd.grad(last, p)
            assert actual.dtype is expected.dtype
        assert_bits(actual, expected.float())
        if wanted.isfinite().all():
            assert_bits(got, wanted)
