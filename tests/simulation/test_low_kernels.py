"""What low kernels do otherwise than in float32 with one rounding, beside torch's own on the CPU.

Each program gets a low tensor, made by a product, from torch's autocast and from the simulation.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from networks import assert_bits
from off_by_an_ulp import OffByAnUlp
from parts import kernels
from parts.kernels import (
    CONSTANTS,
    ELEMENTARY,
    EXACT,
    numbers,
    program_of,
    programs_of,
)

from mplab import BF16, FP8_E4M3, FP16
from mplab.simulation import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    explain,
    low_kernels,
    simulated,
)

HALVES = pytest.mark.parametrize("fmt", [FP16, BF16])
X, Y = numbers()


COMPUTED = replace(CPU_AUTOCAST, kernels="cuda")
"""The CPU's lists, by kernels that are not at hand: float32's results, rounded."""


def both(program, fmt, *inputs, policy=COMPUTED):
    """What a program gives in torch's autocast and in the simulation: a tensor, or the error."""
    return [
        kernels.outcome(program, context, fmt, inputs)
        for context in (
            torch.autocast("cpu", dtype=fmt.torch_dtype),
            simulated(fmt, policy=policy),
        )
    ]


def assert_equal(program, fmt, *inputs):
    real, found = both(program, fmt, *inputs)
    assert isinstance(real, torch.Tensor), real
    assert kernels.difference(real, found) == {}


def test_on_cuda_a_sum_takes_its_number_in_float32_and_a_comparison_does_not():
    """By torch's source: it was not measured."""
    x = torch.tensor([[0.1, 0.7, 1.0]]).half()
    with simulated(FP16, policy=CUDA_AUTOCAST):
        low = x.float().mm(torch.eye(3))
        assert (low == 0.1).sum() == 1
        assert_bits(low + 0.7, (x.float() + 0.7).half().float())
        assert torch.isinf(low.clamp(min=1e9)).all()
        with pytest.raises(RuntimeError, match="without overflow"):
            low.masked_fill(low > 0, -1e9)


def test_a_format_in_which_torch_does_not_compute_is_filled_with_what_it_makes_of_a_number():
    with simulated(FP8_E4M3, policy=CPU_AUTOCAST):
        low = torch.ones(3, 3).mm(torch.eye(3))
        assert low.masked_fill(low > 0, 1e9).isnan().all()


@HALVES
@pytest.mark.parametrize("text", programs_of(CONSTANTS))
def test_constants_are_those_of_the_dtype(fmt, text):
    assert_equal(program_of(text), fmt, *kernels.with_ends(fmt, X, Y))


def test_a_gradient_of_a_low_tensor_is_added_up_in_its_format():
    with simulated(BF16, policy=CPU_AUTOCAST):
        low = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(300):
            low.float().sum().backward()
        assert low.grad.dtype is torch.bfloat16
    assert low.grad.eq(256).all()


def test_a_sum_that_torch_adds_in_float32_is_added_so():
    """Where no window overlaps, or rows are added along the first dimension, nothing is lost."""
    x = torch.ones(3000, 2).bfloat16()
    with simulated(BF16, policy=CPU_AUTOCAST):
        low = x.float().mm(torch.eye(2))
        assert (
            low.new_zeros(1, 2)
            .index_add(0, torch.zeros(3000).long(), low)
            .eq(3008)
            .all()
        )
        assert low.sum(0).eq(3008).all()


def test_on_cuda_an_atomic_sum_is_kept_in_the_format():
    """By torch's source: it was not measured."""
    with simulated(BF16, policy=CUDA_AUTOCAST):
        low = torch.ones(3000, 2).mm(torch.ones(2, 40) / 2)
        at = torch.zeros(3000, dtype=torch.long)
        assert low.new_zeros(1, 40).index_add(0, at, low)[0, 0] == 256
        assert low.new_zeros(1, 40).index_put((at,), low, accumulate=True)[0, 0] == 256
        narrow = low[:, :8].contiguous()
        assert (
            narrow.new_zeros(1, 8).index_put((at,), narrow, accumulate=True)[0, 0]
            == 3008
        )
        columns = torch.ops.aten.index_put(
            low.new_zeros(40, 1), [None, at], low.T, True
        )
        assert columns[0, 0] == 3008  # nothing is behind a place
        mask = torch.ones(3000, 40, dtype=torch.bool)
        assert low.index_put((mask,), low.flatten(), accumulate=True)[0, 0] == 2
        low[mask] = 3.0
        assert low.sum() == 3 * low.numel()


def test_cuda_counts_the_elements_behind_a_place():
    """By torch's source: axes that lie apart are moved to the front."""
    x = torch.ones(2, 3, 5, 7)
    i = torch.tensor([0])
    for index, size in (
        ([i], 105),
        ([None, i], 35),
        ([i, None, i], 21),
        ([None, i, None, i], 10),
        ([None, x[0, :, :, 0] > 0], 7),
        ([x[:, 0, 0, 0] > 0, None, x[0, 0, :, 0] > 0], 21),
        ([x > 0], 1),
    ):
        assert low_kernels._slice_size(x, index) == size
    assert low_kernels._slice_size(x.sum(), [torch.tensor(True)]) == 1


@HALVES
@pytest.mark.parametrize(
    ("machine", "names", "ties"),
    [(nullcontext, EXACT, 0), (OffByAnUlp, EXACT, 0), (nullcontext, ELEMENTARY, 8)],
)
def test_functions_of_one_number_are_the_kernel_s_on_every_code(
    fmt, machine, names, ties
):
    """And their gradients, but those of sigmoid, which `explain` marks.

    A processor's elementary function in float32 may be off by an ulp, which counts at a tie: that
    of the square root did on all but newer Intel processors.
    Without vector units a square root is rounded before it divides: there functions alone.
    """
    old = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    dtype = fmt.torch_dtype
    codes = kernels.every_code(fmt)
    weights = torch.randn(65536, generator=torch.Generator().manual_seed(0)).to(dtype)
    for name in names.split():
        if "**" in name or name == "logit":  # not read in CUDA's source, or FP32 there
            continue
        program = program_of(kernels.function_of(name))
        found = []
        for context in (nullcontext(), simulated(fmt, policy=COMPUTED)):
            with machine(), context:
                x = codes.clone().to(dtype).requires_grad_()
                y = program(x)
                (gradient,) = torch.autograd.grad(y, x, weights.float().to(y.dtype))
                found.append((y.detach(), gradient))
        alone = old or name == "sigmoid"
        for real, ours in list(zip(*found, strict=True))[: 1 if alone else 2]:
            real, ours = real.to(dtype), ours.to(dtype)
            apart = (real.view(torch.int16).int() - ours.view(torch.int16)).abs()
            apart[real.isnan() & ours.isnan()] = 0
            assert (apart > 0).sum() <= ties and apart.max() <= 2, (
                name,
                codes[apart > 0],
            )


@HALVES
@pytest.mark.parametrize(
    "text",
    [
        text
        for text in programs_of(kernels.STEPS)
        if "linalg" in text or "conv" in text or "addbmm" in text
    ],
)
def test_a_kernel_that_rounds_between_its_steps_is_run_step_by_step(fmt, text):
    assert_equal(program_of(text), fmt, X, Y)


INTEGERS = """
    x + n; n + x; x * n; x == n; torch.where(n > 3, x, n); x ** (n % 5); n / x;
    torch.maximum(x, n); torch.sub(x, n, alpha=2); x.clone().add_(n)
"""


@HALVES
def test_integers_join_the_format_of_a_low_tensor(fmt):
    n = torch.arange(40) * 77 + 2049
    for text in programs_of(INTEGERS):
        program = program_of(text, n=n)
        assert_equal(program, fmt, torch.linspace(0.3, 7, 40))


@HALVES
def test_each_cast_that_a_program_asks_of_a_weight_has_its_own_gradient(fmt):
    """Only autocast's own casts share one copy, whose gradients are added in the low format."""
    found = []
    for context in (nullcontext(), simulated(fmt, policy="cpu-autocast")):
        weight = torch.full((3,), 1 / 3, requires_grad=True)
        with context:
            parts = [(weight.to(fmt.torch_dtype) * 1.0).float() for _ in range(600)]
            sum(parts).sum().backward()
        found.append(weight.grad)
    assert_bits(*found)
    assert found[0].eq(600).all()


def test_a_policy_may_be_given_by_its_name():
    assert simulated(FP16, policy="cpu-autocast")._mode.policy is CPU_AUTOCAST
    x, linear = torch.ones(1, 2), torch.nn.Linear(2, 2)
    assert explain(linear, x, policy="everything").rows
    with pytest.raises(
        ValueError, match=r"policy must be one of cuda-autocast, .*; got 'cpu'"
    ):
        simulated(FP16, policy="cpu")


@torch.library.custom_op("mplab_tests::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return (x * x) * 1e-3


ROWS = torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize(
    "row",
    programs_of("""
        index_add | w.new_zeros(2, 4).index_add(0, ROWS, w[ROWS]) | the order varies;
        embedding_dense_backward | torch.embedding(w, ROWS)
            | running sum in the format is not simulated;
        add | w.add(0.7, alpha=0.3) | FP16; div | w / 3 | FP16;
        div | w.detach().div(w, rounding_mode="floor") | between steps are not simulated;
        floor_divide | w.detach() // w.detach() | between steps are not simulated;
        index_put | w.detach().index_put((ROWS[:1],), w.new_ones(())) | the order varies;
        square | square(w.detach()) | torch's own kernels run;
        sin | w.sin() | widest format of its inputs, FP16
    """),
)
def test_explain_says_what_is_special_about_a_low_kernel_of_cuda(row):
    """On the CPU torch's own kernel gives the result."""
    operation, program, words = " ".join(row.split()).split(" | ")

    class Low(torch.nn.Embedding):
        def forward(self):
            return eval(program, globals(), {"w": self.weight.half()})

    for policy in (CUDA_AUTOCAST, CPU_AUTOCAST):
        rows = explain(Low(3, 4), policy=policy).rows
        first = next(r.rule for r in rows if r.operation == operation)  # forward
        cuda = policy is CUDA_AUTOCAST
        assert first.endswith(words if cuda or operation == "square" else "FP16") or (
            not cuda and first == "as its forward operation"
        )


@pytest.mark.parametrize(
    "program",
    ["z.index_put((at,), low)", "z.scatter_add(0, at, low)", "low.dot(z[:1])"],
)
def test_two_formats_that_the_cpu_s_autocast_refuses_are_converted_on_cuda(program):
    known = {
        "low": torch.ones(1).bfloat16(),
        "z": torch.zeros(5),
        "at": torch.zeros(1, dtype=torch.long),
    }
    with simulated(BF16, policy=CUDA_AUTOCAST):
        assert eval(program, known).dtype is torch.float32
