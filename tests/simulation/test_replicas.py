"""Torch's own half-precision kernels on a CPU, replicated bit for bit."""

import os
import subprocess
import sys

import pytest
import torch
from networks import assert_bits, gradients, loss, mlp, round_to
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP16, Overflow, Rounding
from mplab.simulation import simulated
from mplab.simulation._products import (
    LONGEST_PAIRED,
    canceling,
    holds_here,
    own_kernels,
    paired_product,
    product,
)
from mplab.simulation._replicas import REPLICAS, replica_of

LOW = {FP16: torch.float16, BF16: torch.bfloat16}

fp16_kernels = pytest.mark.usefixtures("replicated")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def turned(t):
    """The same matrix, transposed in memory."""
    return t.mT.contiguous().mT


ORIENTATIONS = [(f, g) for f in (torch.clone, turned) for g in (torch.clone, turned)]


@fp16_kernels
@pytest.mark.parametrize("terms", [2, 5, 16, 17, 33, 50, 64, 96, 128, 161, 300])
@pytest.mark.parametrize(("rows", "columns"), [(32, 24), (1, 24), (32, 1), (1, 1)])
def test_a_product_adds_in_the_order_of_torch_s_own(rows, columns, terms):
    """On terms that cancel, any other order shows in most results."""
    a, b = canceling(rows, terms, columns, seed=terms)
    c = torch.randn(columns).half() * 1e-3
    for first, second in ORIENTATIONS:
        x, y = first(a), second(b)
        wide = x.float(), y.float()
        assert_bits(product(*wide).half().float(), x.mm(y).float())
        assert_bits(product(*wide, c.float()).half().float(), torch.addmm(c, x, y).float())


@pytest.fixture(params=["oneDNN", "torch"])
def bf16_kernels(request, replicated):
    """Each library that multiplies BF16, if the order in which it adds is known."""
    if request.param == "torch":
        with own_kernels():
            yield
    elif holds_here(torch.bfloat16):
        yield
    else:
        pytest.skip("oneDNN adds BF16 products as replicated on AVX512-BF16 without AMX alone")


@pytest.mark.usefixtures("bf16_kernels")
@pytest.mark.parametrize("terms", [2, 3, 8, 17, 33, 64, 150, 512])
@pytest.mark.parametrize(("rows", "columns"), [(32, 24), (5, 6), (1, 64), (64, 1), (17, 10)])
def test_a_bf16_product_adds_in_the_order_of_torch_s_own(rows, columns, terms):
    a, b = canceling(rows, terms, columns, seed=terms, dtype=torch.bfloat16)
    c = torch.randn(columns).bfloat16() * 1e-3
    for first, second in ORIENTATIONS:
        x, y = first(a), second(b)
        wide = x.float(), y.float()
        assert_bits(paired_product(*wide).bfloat16().float(), x.mm(y).float())
        assert_bits(
            paired_product(*wide, c.float()).bfloat16().float(), torch.addmm(c, x, y).float()
        )


def test_longer_bf16_products_are_left_alone_where_onednn_multiplies():
    longer = torch.ones(5, LONGEST_PAIRED + 1), torch.ones(LONGEST_PAIRED + 1, 5)
    assert paired_product(*longer) is None
    with own_kernels():
        assert torch.equal(paired_product(*longer), longer[0] @ longer[1])


ASKED = """
import torch
from mplab import BF16, FP16
from mplab.simulation import simulated
from mplab.simulation._products import holds_here, own_kernels
print(torch.backends.cpu.get_cpu_capability())
print(torch.backends.mkldnn.enabled)
for fmt in (FP16, BF16):
    try:
        simulated(fmt, native=True)
        print("known")
    except RuntimeError as error:
        print(error)
        torch.backends.mkldnn.enabled = False
        simulated(fmt, native=True)
        torch.backends.mkldnn.enabled = True
with own_kernels():
    print(holds_here(), holds_here(torch.bfloat16), torch.backends.mkldnn.enabled)
print(torch.backends.mkldnn.enabled)
"""


@pytest.mark.slow
@fp16_kernels
@pytest.mark.parametrize("processor", [
    {}, {"ATEN_CPU_CAPABILITY": "default"}, {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
], ids=str)  # fmt: skip
def test_every_build_of_the_kernels_is_known_or_refused_with_a_cure_that_works(processor):
    """These switches stand in for processors that are not here."""
    known = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"}
    plain = {name: value for name, value in os.environ.items() if name not in known}
    done = subprocess.run(
        [sys.executable, "-c", ASKED], env=plain | processor, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    capability, before, *answers, own, after = done.stdout.splitlines()
    wanted = processor.get("ATEN_CPU_CAPABILITY", capability)
    assert capability == wanted.upper()
    assert (own, before, after) == ("True True False", "True", "True")
    assert len(answers) == 2
    for answer in answers:
        assert answer == "known" or "Set torch.backends.mkldnn.enabled = False" in answer


@fp16_kernels
def test_another_order_would_show():
    a, b = canceling(32, 96, 24)
    for x, y in ((turned(a), b), (a, turned(b))):
        wrong = product(a.float(), b.float()).half() != x.mm(y)
        assert wrong.float().mean() > 0.5


@fp16_kernels
@pytest.mark.parametrize("size", [3, 5, 9, 20])
def test_batched_products_add_in_the_order_of_torch_s_own(size):
    made = [canceling(size, 18, size, seed=s) for s in range(3)]
    a, b = (torch.stack(t) for t in zip(*made, strict=True))
    for first, second in ORIENTATIONS:
        x, y = first(a), second(b)
        with simulated(FP16, native=True):
            actual = x.float().bmm(y.float())
        assert_bits(actual, x.bmm(y).float())


CONVOLUTIONS = {
    "digits, first": dict(channels=1, size=8, kernel=3, padding=1),
    "digits, second": dict(channels=12, size=4, kernel=3, padding=1),
    "strided": dict(channels=3, size=9, kernel=3, stride=2),
    "strided and padded": dict(channels=2, size=16, kernel=5, padding=2, stride=2),
    "with a remainder": dict(channels=2, size=10, kernel=3, stride=2),
    "points": dict(channels=6, size=7, kernel=1),
    "not square": dict(channels=2, size=7, kernel=(1, 3), padding=(0, 2), stride=(1, 2)),
}


@fp16_kernels
@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_and_its_gradients_are_torch_s_own_bit_for_bit(case, bias):
    case = {"padding": 0, "stride": 1, **case}
    layer = nn.Conv2d(
        case["channels"], 7, case["kernel"], case["stride"], case["padding"], bias=bias
    )
    x = torch.randn(9, case["channels"], case["size"], case["size"]).half().float()
    results = []
    for native in (None, True, False):
        layer.zero_grad()
        there = x.clone().requires_grad_()
        if native is None:
            with torch.amp.autocast("cpu", dtype=torch.float16):
                y = layer(there)
            y.backward(weight_of(y))
        else:
            with simulated(FP16, native=native):
                y = layer(there)
                y.backward(weight_of(y))
        results.append([y.float(), there.grad, *gradients(layer)])
    for real, ours in zip(*results[:2], strict=True):
        assert_bits(ours, real)
    assert not torch.equal(results[0][2], results[2][2]), "rounding once would do as well"


def weight_of(y):
    """A gradient for y, the same each time, in its dtype."""
    return torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)


@fp16_kernels
def test_a_program_of_many_operations_is_autocast_s_bit_for_bit():
    model, x = mlp(40, 50, 33, activation=nn.Sigmoid), torch.randn(32, 40)
    with torch.amp.autocast("cpu", dtype=torch.float16):
        expected = loss(model(x) + 0.1)
    (expected * 1024).backward()
    real = gradients(model)
    model.zero_grad()
    with simulated(FP16, native=True):
        actual = loss(model(x) + 0.1)
        (actual * 1024).backward()
    assert_bits(actual, expected)
    for ours, theirs in zip(gradients(model), real, strict=True):
        assert_bits(ours, theirs)


@pytest.mark.parametrize("fmt", LOW, ids=lambda f: f.name)
def test_max_pooling_adds_gradients_one_by_one_where_windows_overlap(fmt):
    x = torch.randn(4, 3, 9, 9).to(LOW[fmt])
    real = x.clone().requires_grad_()
    grad = torch.randn(4, 3, 7, 7)
    F.max_pool2d(real, 3, 1).backward(grad.to(LOW[fmt]))
    wide = x.float()
    _, places = torch.ops.aten.max_pool2d_with_indices(wide, [3, 3], [1, 1])
    compute = replica_of("max_pool2d_with_indices_backward", fmt).compute
    actual = compute(
        lambda t: round_to(t, fmt), round_to(grad, fmt), wide, [3, 3], [1, 1], [0, 0], [1, 1],
        False, places,
    )  # fmt: skip
    assert_bits(round_to(actual, fmt), real.grad.float())


def test_without_onednn_gelu_in_bf16_is_torch_s_own_on_every_code():
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = x[x.isfinite()]
    ones = torch.ones_like(x)
    with own_kernels():
        for name, args, real in (
            ("gelu", (x,), F.gelu(x)),
            ("gelu_backward", (ones, x), torch.ops.aten.gelu_backward(ones, x)),
        ):
            compute = replica_of(name, BF16).compute
            actual = compute(None, *(t.float() for t in args))
            assert_bits(actual.bfloat16().float(), real.float())


def test_there_is_one_replica_at_most_for_an_operation_and_format():
    for name, found in REPLICAS.items():
        for fmt in LOW:
            assert sum(fmt in replica.formats for replica in found) <= 1, name


def test_what_torch_has_no_kernels_for_is_refused():
    with pytest.raises(ValueError, match=r"native must be False unless .*got FP8_E4M3"):
        simulated(FP8_E4M3, native=True)
    for options in ({"rounding": Rounding.TOWARD_ZERO}, {"overflow": Overflow.SATURATE}):
        with pytest.raises(ValueError, match="native must be False unless"):
            simulated(FP16, native=True, **options)


def test_other_kernels_than_those_replicated_are_refused(monkeypatch):
    monkeypatch.setattr("mplab.simulation._replicas.holds_here", lambda dtype: False)
    with pytest.raises(RuntimeError, match=r"on this machine, .* Run mplab audit to see which"):
        simulated(FP16, native=True)


def test_where_onednn_multiplies_in_another_order_the_error_says_how_to_do_without(monkeypatch):
    monkeypatch.setattr(
        "mplab.simulation._replicas.holds_here", lambda dtype: not torch.backends.mkldnn.enabled
    )
    with pytest.raises(RuntimeError, match=r"Set torch\.backends\.mkldnn\.enabled = False"):
        simulated(FP16, native=True)
    with own_kernels():
        simulated(FP16, native=True)
    assert torch.backends.mkldnn.enabled
