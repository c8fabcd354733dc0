"""Single operations beside torch's own half-precision kernels, on every code of the format.

Kernels that round between their steps, or compute by another formula than in float32, are left
out: their results differ from the float32 result rounded once, which is what is simulated.
"""

from dataclasses import replace

import pytest
import torch
from networks import Within, assert_bits
from tiers import mostly_slow

from mplab import BF16, FP16
from mplab.simulation import EVERYTHING, simulated

BINARY = """
    add sub mul div fmod remainder maximum minimum atan2 logaddexp
""".split()  # noqa: SIM905
VECTORIZED = ["pow", "hypot"]
"""Computed in yet another way by kernels that are compiled without vector instructions."""
COMPUTED = replace(EVERYTHING, kernels="cuda")
"""By kernels that are not at hand: float32's results, rounded."""
SECOND = (0.0, 1.0, -1.0, 0.1, 0.75, 3.0, -3.0, 6e4, 6e-8, float("inf"), float("nan"))


def codes(fmt):
    return (
        torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(fmt.torch_dtype)
    )


def wide(argument):
    number = isinstance(argument, torch.Tensor) and argument.is_floating_point()
    return argument.float() if number else argument


def assert_kernel(name, fmt, *args):
    operation = getattr(torch.ops.aten, name)
    expected = operation(*args).float()
    given = [wide(a) for a in args]
    with simulated(fmt, policy=COMPUTED):
        actual = Within(operation)(*given).float()
    assert_bits(actual, expected)


@pytest.mark.parametrize("fmt", mostly_slow([FP16, BF16], [FP16]))
def test_functions_of_two_numbers_equal_torch_s_half_kernels(fmt, record_property):
    vectorized = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    x = codes(fmt)
    y = torch.tensor(SECOND).to(fmt.torch_dtype).repeat_interleave(len(x))
    x = x.repeat(len(SECOND))
    for name in BINARY + VECTORIZED * vectorized:
        assert_kernel(name, fmt, x, y)
    assert_kernel("lerp", fmt, x, y, 0.3)
    record_property("results compared", len(x) * (len(BINARY) + 1))


@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_sums_that_are_exact_in_float32_equal_torch_s_half_kernels(fmt):
    generator = torch.Generator().manual_seed(0)

    def eighths(*shape):
        return (torch.randint(-8, 9, shape, generator=generator) / 8).to(
            fmt.torch_dtype
        )

    a = eighths(64, 50)
    b = eighths(50, 60)
    x = eighths(64, 200)
    for first in (a, a.t().contiguous().t()):
        for second in (b, b.t().contiguous().t()):
            assert_kernel("mm", fmt, first, second)
            assert_kernel("addmm", fmt, eighths(60), first, second)
    assert_kernel("bmm", fmt, eighths(4, 16, 20), eighths(4, 20, 18))
    assert_kernel(
        "baddbmm", fmt, eighths(4, 16, 18), eighths(4, 16, 20), eighths(4, 20, 18)
    )
    assert_kernel("mv", fmt, a, eighths(50))
    assert_kernel("dot", fmt, eighths(500), eighths(500))
    once = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert_kernel(
        "convolution", fmt, eighths(8, 3, 9, 9), eighths(5, 3, 3, 3), eighths(5), *once
    )
    for dim in (0, 1):
        for name in ("sum", "mean"):
            assert_kernel(name, fmt, x, [dim])
    assert_kernel("cumsum", fmt, x, 1)
    assert_kernel("linalg_vector_norm", fmt, x, 2, [1])
    pictures = eighths(8, 5, 9, 9)
    assert_kernel("avg_pool2d", fmt, pictures, [3, 3])
    assert_kernel("_adaptive_avg_pool2d", fmt, pictures, [2, 2])
