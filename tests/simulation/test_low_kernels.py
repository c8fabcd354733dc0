"""What low kernels do otherwise than in float32 with one rounding, beside torch's own on the CPU.

Each program gets a low tensor, made by a product, from torch's autocast and from the simulation.
"""

import math
from contextlib import nullcontext

import pytest
import torch
from networks import assert_bits
from off_by_an_ulp import OffByAnUlp
from parts import kernels
from parts.kernels import (
    CONSTANTS,
    ELEMENTARY,
    EXACT,
    NUMBERS,
    PAST,
    PAST_THE_RANGE,
    numbers,
    program_of,
    programs_of,
)
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP16
from mplab.simulation import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    KERAS_MIXED,
    explain,
    low_kernels,
    simulated,
)

HALVES = pytest.mark.parametrize("fmt", [FP16, BF16])
X, Y = numbers()


def both(program, fmt, *inputs, policy=CPU_AUTOCAST):
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


@HALVES
@pytest.mark.parametrize("text", programs_of(NUMBERS))
def test_numbers_are_rounded_where_the_kernels_of_the_cpu_round_them(fmt, text):
    assert_equal(program_of(text), fmt, X, Y)


@HALVES
@pytest.mark.parametrize("number", PAST)
def test_numbers_past_the_range_are_refused_in_torch_s_words_where_torch_does(
    fmt, number
):
    refused = 0
    x = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0], [2.0, 1.0, 1.0]])
    for text in programs_of(PAST_THE_RANGE):
        real, found = both(program_of(text.replace("C", f"({number})")), fmt, x)
        if isinstance(real, str):
            refused += 1
            assert found == real
        else:
            assert torch.equal(found, real) or found.isnan().equal(real.isnan()), text
    value = eval(number, {"math": math})
    assert (refused > 10) == (fmt.max_finite < abs(value) < math.inf)


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


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 1e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
}


def trained(context, fmt, optimizer, steps=12):
    """A low and an FP32 parameter after some steps of two accumulated gradients each."""
    with context:
        low = torch.ones(4).to(fmt.torch_dtype).requires_grad_()
        wide = torch.ones(4, requires_grad=True)
        factors = torch.tensor([1.0, 2.0, -1.0, 0.3], dtype=low.dtype)
        step = optimizer([low, wide])
        for _ in range(steps):
            step.zero_grad()
            for _ in range(2):
                ((low * factors).float().sum() + wide.sum()).backward()
            step.step()
    return low.detach().float(), wide.detach(), low.grad.float()


@HALVES
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_a_low_parameter_as_torch_does(name, fmt):
    """In BF16, SGD's stagnate: the lost update that FP32 weights are kept for."""
    found = trained(simulated(fmt, policy=CPU_AUTOCAST), fmt, OPTIMIZERS[name])
    for a, b in zip(found, trained(nullcontext(), fmt, OPTIMIZERS[name]), strict=True):
        assert_bits(a, b)
    if (fmt, name) == (BF16, "SGD"):
        assert found[0].eq(1).all()
        assert not found[1].eq(1).any()


@pytest.mark.parametrize("option", ["foreach", "fused"])
def test_a_step_of_many_low_parameters_in_one_kernel_is_refused(option):
    def optimizer(p):
        return torch.optim.SGD(p, 1e-4, **{option: True})

    with pytest.raises(ValueError, match=f"got {option}=True. Leave it out"):
        trained(simulated(BF16), BF16, optimizer)


def test_a_gradient_of_a_low_tensor_is_added_up_in_its_format():
    with simulated(BF16, policy=CPU_AUTOCAST):
        low = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(300):
            low.float().sum().backward()
        assert low.grad.dtype is torch.bfloat16
    assert low.grad.eq(256).all()


SUMS = kernels.sums()


@HALVES
@pytest.mark.parametrize("name", SUMS)
def test_a_running_sum_is_kept_in_the_format_as_torch_keeps_it(name, fmt):
    program, x = SUMS[name]
    assert_equal(program, fmt, x)


def test_several_tensors_by_out_are_filled():
    with simulated(FP16, policy=CPU_AUTOCAST):
        x = torch.arange(6.0).view(3, 2).half()
        into = [x.new_empty(0) for _ in range(3)]
        names = dict(zip(("out", "save_mean", "save_invstd"), into, strict=True))
        how = None, None, None, None, True, 0.1, 1e-5
        torch.ops.aten.native_batch_norm.out(x, *how, **names)
        assert into[1].tolist() == [2, 3]


def test_an_average_in_a_format_of_few_numbers_divides_by_the_whole_count():
    with simulated(FP8_E4M3, policy="everything"):
        x = torch.ones(1, 25, 25, requires_grad=True)
        F.avg_pool2d(x, 25, stride=1).backward(torch.full((1, 1, 1), 400.0))
    assert x.grad.eq(0.625).all()


@HALVES
@pytest.mark.parametrize("affine", [True, False])
def test_the_gradients_of_a_layer_norm_s_weights_are_added_up_row_by_row(fmt, affine):
    """By one thread: with more, torch adds up the sums of each."""
    threads = torch.get_num_threads()
    g = torch.Generator().manual_seed(2)
    x = (torch.randn(700, 33, generator=g) * 2 + 1).to(fmt.torch_dtype)
    grad = torch.randn(700, 33, generator=g) + 0.25
    try:
        torch.set_num_threads(1)
        found = []
        for context in (
            torch.autocast("cpu", dtype=fmt.torch_dtype),
            simulated(fmt, policy=CPU_AUTOCAST),
        ):
            norm = torch.nn.LayerNorm(33, bias=affine)
            with context:
                out = norm(x.float().mm(torch.eye(33)))
                out.backward(grad.to(out.dtype))
            found.append([p.grad for p in norm.parameters()])
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(*found, strict=True):
        assert_bits(b, a)


@HALVES
@pytest.mark.parametrize("mean", [0.0, 100.0, 1000.0])
def test_statistics_of_a_batch_without_weights_are_stored_low(fmt, mean):
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(3)) + mean
    for program in (
        lambda x: F.instance_norm(x.view(8, 3, 10, 10)),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.instance_norm(x.view(8, 10, 10, 3).permute(0, 3, 1, 2)),
        lambda x: F.batch_norm(x.view(8, 6, 50), None, None, training=True),
    ):
        assert_equal(program, fmt, x)


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
    """And their gradients, but those of sigmoid and logit, which `explain` marks.

    A processor's elementary function in float32 may be off by an ulp, which counts at a tie: that
    of the square root did on all but newer Intel processors.
    Without vector units a square root is rounded before it divides: there functions alone.
    """
    old = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    dtype = fmt.torch_dtype
    codes = kernels.every_code(fmt)
    weights = torch.randn(65536, generator=torch.Generator().manual_seed(0)).to(dtype)
    for name in names.split():
        if old and name == "x**-0.5":
            continue
        program = program_of(kernels.function_of(name))
        found = []
        for context in (nullcontext(), simulated(fmt, policy=CPU_AUTOCAST)):
            with machine(), context:
                x = codes.clone().to(dtype).requires_grad_()
                y = program(x)
                (gradient,) = torch.autograd.grad(y, x, weights.float().to(y.dtype))
                found.append((y.detach(), gradient))
        alone = old or name in ("logit", "sigmoid")
        for real, ours in list(zip(*found, strict=True))[: 1 if alone else 2]:
            real, ours = real.to(dtype), ours.to(dtype)
            apart = (real.view(torch.int16).int() - ours.view(torch.int16)).abs()
            apart[real.isnan() & ours.isnan()] = 0
            assert (apart > 0).sum() <= ties and apart.max() <= 2, (
                name,
                codes[apart > 0],
            )


@HALVES
@pytest.mark.parametrize("text", programs_of(kernels.STEPS))
def test_a_kernel_that_rounds_between_its_steps_is_run_step_by_step(fmt, text):
    assert_equal(program_of(text), fmt, X, Y)


BY_TORCH = {
    "attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "masked": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q[..., :1] > 0),
    "log_softmax": lambda q, k, v: F.log_softmax(3 * q, -1),
    "log_softmax along rows": lambda q, k, v: F.log_softmax(3 * q, -2),
}


@HALVES
@pytest.mark.parametrize("name", BY_TORCH)
def test_where_a_kernel_s_steps_cannot_be_followed_it_gives_the_results(fmt, name):
    """Of a float32 kernel's results, rounded once, a third would differ, and of gradients more."""
    found = []
    for context in (
        torch.autocast("cpu", dtype=fmt.torch_dtype),
        simulated(fmt, policy=CPU_AUTOCAST),
    ):
        g = torch.Generator().manual_seed(4)
        leaves = [torch.randn(2, 3, n, 16, generator=g) for n in (70, 70, 70)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        with context as sim:
            out = BY_TORCH[name](*(leaf.to(fmt.torch_dtype) for leaf in leaves))
            out.float().square().sum().backward()
        found.append([out.detach().float(), *(leaf.grad for leaf in leaves)])
    for real, ours in zip(*found, strict=True):
        assert (real is None) == (ours is None)
        assert real is None or assert_bits(ours, real) is None
    if "softmax" not in name:
        key = "_scaled_dot_product_flash_attention_for_cpu"
        assert sim.by_operation[key].inexact > 1000, "counted as a rounding"


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
        index_add | w.new_zeros(2, 4).index_add(0, ROWS, w[ROWS])
            | with alpha, a product is rounded or not, by its place in memory
            and by the processor | the order varies;
        embedding_dense_backward | F.embedding(ROWS, w)
            | scaled by frequency, a product is rounded or not, by its place in
            memory and by the processor | running sum in the format is not simulated;
        add | w + 0.7 | FP16 | FP16;
        add | w.add(0.7, alpha=0.3) | alpha·y is rounded or not, by its place in memory and by the
            processor | FP16;
        rsub | torch.rsub(w, 1, alpha=0.3) | and by the processor | FP16;
        div | w / 3 | FP16 | FP16;
        div | w.detach().div(w, rounding_mode="floor") | between steps are not simulated
            | between steps are not simulated;
        floor_divide | w.detach() // w.detach() | between steps are not simulated
            | between steps are not simulated;
        logit_backward | w.logit() | between steps are not simulated | as its forward operation;
        fmod | w.fmod(w.detach()) | gives NaN or not, by its place in memory | FP16;
        index_put | w.detach().index_put((ROWS[:1],), w.new_ones(()))
            | a scalar past the range becomes infinite: torch may refuse it | the order varies;
        square | square(w.detach()) | its result is rounded once | its result is rounded once;
        sin | w.sin() | widest format of its inputs, FP16 | widest format of its inputs, FP16
    """),
)
def test_explain_says_what_is_special_about_a_low_kernel(row):
    operation, program, *told = " ".join(row.split()).split(" | ")

    class Low(torch.nn.Embedding):
        def forward(self):
            return eval(program, globals(), {"w": self.weight.half()})

    for policy, words in zip((CPU_AUTOCAST, CUDA_AUTOCAST), told, strict=True):
        rows = explain(Low(3, 4), policy=policy).rows
        first = next(r.rule for r in rows if r.operation == operation)  # forward
        assert first.endswith(words)


@HALVES
@pytest.mark.parametrize("text", programs_of(kernels.NORMS))
def test_statistics_of_a_norm_without_wide_weights_are_low_in_its_backward_pass(
    fmt, text
):
    """All but the few gradients that depend on the order of a sum in float32 are equal."""
    norm = program_of(f"({text}).view(120, 50) * y")
    real, found = both(kernels.gradient_of(norm), fmt, X, Y)
    assert (real == found).float().mean() > 0.98


@pytest.mark.parametrize(
    "program",
    ["z.index_put((at,), low)", "z.scatter_add(0, at, low)", "low.dot(z[:1])"],
)
def test_two_formats_are_refused_where_autocast_for_the_cpu_converts_none(program):
    for policy, refused in ((CPU_AUTOCAST, True), (CUDA_AUTOCAST, False)):
        with simulated(BF16, policy=policy):
            known = {
                "low": torch.ones(1).to(torch.bfloat16),
                "z": torch.zeros(5),
                "at": torch.zeros(1, dtype=torch.long),
            }
            error = pytest.raises(RuntimeError, match="of one format")
            with error if refused else nullcontext():
                eval(program, known)


def test_a_norm_of_which_the_result_alone_is_cast_keeps_its_statistics():
    """Keras's policy computes it in FP32."""

    def gradient(*contexts):
        x = X.add(3).bfloat16().float().requires_grad_()
        with contexts[0]:
            F.layer_norm(x, (50,)).backward(Y.bfloat16().float())
        return x.grad.bfloat16()

    keras = gradient(simulated(BF16, policy=KERAS_MIXED))
    assert torch.equal(keras, gradient(nullcontext()))
