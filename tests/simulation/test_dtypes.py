"""The dtype that a program sees: of the format under the simulation, of the memory elsewhere."""

import copy
import io
from functools import partial

import pytest
import torch
from networks import Within, assert_bits, is_low, linear, loss, round_to
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Overflow
from mplab.simulation import CPU_AUTOCAST, EVERYTHING, simulated

HALVES = pytest.mark.parametrize("fmt", [FP16, BF16])
DTYPES = (
    torch.float32,
    torch.float64,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.bfloat16,
)


def product():
    """A tensor in the low format."""
    return torch.eye(2) @ torch.tensor([[1.0, 2.0], [0.1, -3.0]])


# What is answered


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2])
def test_a_low_tensor_has_the_dtype_of_its_format_until_it_leaves_the_context(fmt):
    p = nn.Parameter(torch.eye(2))
    with simulated(fmt):
        h = p @ product()
        assert h.dtype is fmt.torch_dtype
        assert h.is_floating_point()
        assert torch.finfo(h.dtype).max == fmt.max_finite
        assert {h.t().dtype, h[0].dtype, h.abs_().dtype, (h * 2).dtype} == {
            fmt.torch_dtype
        }
        assert {p.dtype, torch.ones(2).dtype, h.float().dtype, h.sum().dtype} == {
            torch.float32
        }
        h.sum().backward()
        assert p.grad.dtype is torch.float32
    assert h.dtype is torch.float32


def test_a_format_that_torch_lacks_has_the_dtype_it_is_stored_in():
    with simulated(TF32):
        h = product()
        assert h.dtype is torch.float32
        assert is_low((torch.eye(2) / 3).to(h), TF32)


@HALVES
def test_result_types_are_those_of_real_tensors(fmt):
    others = [
        torch.ones(shape, dtype=dtype) for dtype in DTYPES for shape in ((), (2, 2))
    ]
    real = product().to(fmt.torch_dtype)
    expected = [torch.result_type(real, other) for other in (real, 1, 0.5, *others)]
    with simulated(fmt):
        h = product()
        assert [
            torch.result_type(h, other) for other in (h, 1, 0.5, *others)
        ] == expected
        assert torch.result_type(tensor=torch.ones(2), other=h) is torch.float32
        assert h.type() == real.type()


def test_layers_of_their_own_format_and_layers_in_fp32():
    class Says(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            self.saw = x.dtype, out.dtype
            return out

    model = nn.Sequential(Says(2, 2), Says(2, 2), Says(2, 2), Says(2, 2))
    policy = CPU_AUTOCAST.with_layers({"1": BF16, "2": FP32})
    with simulated(FP16, policy=policy, model=model):
        model(torch.ones(1, 2))
    half = torch.float16
    bfloat = torch.bfloat16
    single = torch.float32
    expected = [(single, half), (half, bfloat), (single, single), (single, half)]
    assert [layer.saw for layer in model] == expected


def test_what_another_simulation_left_has_the_dtype_it_is_stored_in():
    with simulated(BF16):
        left = product()
    with simulated(FP16):
        assert left.dtype is torch.float32
        with simulated(BF16):
            assert left.dtype is torch.bfloat16


def test_torch_itself_and_this_package_see_what_is_stored():
    # It compares the dtypes of x and its weights.
    layer = nn.RNN(2, 2)
    x = torch.ones(3, 1, 2)
    with simulated(FP16):
        layer(x @ torch.eye(2))
        assert product().numpy().dtype == "float32"
        saved = io.BytesIO()
        torch.save([product(), copy.deepcopy(product())], saved)
    saved.seek(0)
    assert {t.dtype for t in torch.load(saved)} == {torch.float32}


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


def test_what_is_of_the_dtype_already_is_not_copied():
    with simulated(FP16):
        h = product()
        same = (
            h.half(),
            h.to(h.dtype),
            h.to(h),
            h.type(h.dtype),
            h.type_as(h),
            h.view(h.dtype),
        )
        assert all(t.data_ptr() == h.data_ptr() for t in same)
        assert h.to(h.dtype) is h
        h.to(h.dtype).add_(1)
    assert_bits(h, round_to(round_to(product()) + 1))


def test_overflow_goes_by_the_rule_of_the_context():
    with simulated(FP16, overflow=Overflow.SATURATE):
        assert torch.full((2,), 1e6).half().max() == 65504
    with simulated(FP16):
        assert torch.full((2,), 1e6).half().isinf().all()


LIKE = {
    "zeros_like": torch.zeros_like, "by name": lambda t, **as_: torch.ones_like(input=t, **as_),
    "empty_like": lambda t, **as_: torch.empty_like(t, **as_).fill_(0.1),
    "rand_like": torch.rand_like, "randn_like": torch.randn_like,
    "randint_like": lambda t, **as_: torch.randint_like(t, 9, **as_),
    "full_like": lambda t, **as_: torch.full_like(t, 0.1, **as_),
    "new_zeros": lambda t, **as_: t.new_zeros(2, **as_),
    "new_ones": lambda t, **as_: t.new_ones((2, 2), **as_),
    "new_empty": lambda t, **as_: t.new_empty(2, **as_).fill_(0.1),
    "new_empty_strided": lambda t, **as_: t.new_empty_strided((2,), (1,), **as_).fill_(0.1),
    "new_full": lambda t, **as_: t.new_full((2,), 0.1, **as_),
    "new_tensor": lambda t, **as_: t.new_tensor([0.1], **as_),
    "a leaf like it": lambda t, **as_: torch.full_like(t, 0.1, requires_grad=True, **as_),
}  # fmt: skip
FROM_LOW = LIKE | {
    "full_like of the limit": lambda h, **as_: torch.full_like(
        h, 2.0**128 - 2.0**104 if as_ else 0.1, **as_
    ),
    "as_tensor": torch.as_tensor,
    "asarray": torch.asarray,
}
MAKERS = {name: partial(make, torch.ones(2)) for name, make in LIKE.items()} | {
    "tensor": partial(torch.tensor, [0.1, 70000.0]), "as_tensor": partial(torch.as_tensor, [0.1]),
    "asarray": partial(torch.asarray, [0.1]), "zeros": partial(torch.zeros, 2, 3),
    "ones": partial(torch.ones, (2,)), "full": partial(torch.full, (2,), 0.1),
    "empty": lambda **as_: torch.empty(2, **as_).fill_(0.1), "eye": partial(torch.eye, 2),
    "arange": partial(torch.arange, 0, 2, 0.1), "linspace": partial(torch.linspace, 0, 1, 7),
    "logspace": partial(torch.logspace, 0, 1, 7), "rand": partial(torch.rand, 9),
    "randn": partial(torch.randn, 9), "randint": partial(torch.randint, 9, (9,)),
    "like integers": partial(torch.ones_like, torch.ones(2, dtype=torch.int64)),
    "a leaf": partial(torch.full, (2,), 0.1, requires_grad=True),
    "a scalar": partial(torch.tensor, 0.1),
}  # fmt: skip


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@HALVES
def test_what_is_made_in_a_dtype_is_what_torch_makes(make, fmt):
    torch.manual_seed(0)
    expected = make(dtype=fmt.torch_dtype)
    torch.manual_seed(0)
    with simulated(fmt):
        actual = make(dtype=product().dtype)
        assert actual.dtype is fmt.torch_dtype
        assert (actual + 1).dtype is fmt.torch_dtype
    assert_bits(actual.float(), expected.float())
    assert (actual.is_leaf, actual.requires_grad) == (
        expected.is_leaf,
        expected.requires_grad,
    )


@pytest.mark.parametrize("make", FROM_LOW.values(), ids=FROM_LOW)
@HALVES
def test_what_is_made_like_a_low_tensor_in_float32_is_in_float32(make, fmt):
    real = product().to(fmt.torch_dtype)
    torch.manual_seed(0)
    expected = make(real, dtype=torch.float32)
    torch.manual_seed(0)
    with simulated(fmt, policy=CPU_AUTOCAST):
        h = product()
        actual = make(h, dtype=torch.float32)
        assert {actual.dtype, (actual + h[0]).dtype} == {torch.float32}
        assert make(h).dtype is fmt.torch_dtype
    assert_bits(actual, expected)
    assert (actual.is_leaf, actual.requires_grad) == (
        expected.is_leaf,
        expected.requires_grad,
    )


def test_the_limit_of_float32_is_not_that_of_the_format_where_float64_is_asked_for():
    limit = torch.finfo(torch.float32).max
    with simulated(FP16):
        made = torch.full_like(product(), limit, dtype=torch.float64)
    assert made.eq(limit).all()


@pytest.mark.parametrize("fmt", [FP16, BF16, TF32])
def test_a_deep_copy_keeps_the_format(fmt):
    with simulated(fmt):
        h = product()
        held = {"h": h, "its first row": h[0], "FP32": h.float()}
        copies = copy.deepcopy(held)
        assert copies["h"].data_ptr() != h.data_ptr()
        for name, t in held.items():
            assert copies[name].dtype is t.dtype
            assert is_low(copies[name] / 3, fmt) == (name != "FP32")
    assert_bits(copies["h"], h)


def test_a_value_that_the_dtype_does_not_hold_is_refused_as_by_torch():
    with simulated(FP16), pytest.raises(RuntimeError, match="without overflow"):
        torch.full((2,), 1e9, dtype=product().dtype)


REFUSED = [
    lambda: torch.ones(2, 2).bfloat16() @ product(),
    lambda: nn.Linear(2, 2).half()(product()),
    lambda: torch.func.vmap(lambda x: x.half() * 2)(torch.ones(2, 2)),
    lambda: torch.func.vmap(lambda x: torch.zeros(2, dtype=torch.float16) + x)(
        torch.ones(2, 2)
    ),
    lambda: torch.ones(2).type("torch.HalfTensor") * 2,
    lambda: (
        torch.prod(torch.ones(2, 2), 0, dtype=torch.float16) * 2
    ),  # of a product within
]


def test_what_is_really_of_a_low_dtype_is_refused_where_it_is_used():
    for function in REFUSED:
        with (
            simulated(FP16),
            pytest.raises(ValueError, match=r"float32; got torch\.\w*float16"),
        ):
            function()


def test_codes_of_a_simulated_tensor_are_refused_in_a_view():
    with simulated(FP16):
        dtypes = {t for t in vars(torch).values() if isinstance(t, torch.dtype)}
        for dtype in dtypes - {torch.float16}:
            with pytest.raises(
                ValueError, match=r"view must not ask for the codes.*got"
            ):
                product().view(dtype)
        assert product().float().view(torch.int32).shape == (2, 2)
        assert product().view(4).dtype is torch.float16


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


def test_where_all_is_low_all_has_its_dtype():
    with simulated(FP16, policy=EVERYTHING):
        h = torch.exp(torch.ones(2)) + torch.ones(2)
        assert h.dtype is h.float().dtype is torch.float16, "nothing is widened"
        assert is_low(h.float() / 3)
