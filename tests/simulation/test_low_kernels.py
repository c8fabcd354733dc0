"""What low kernels do otherwise than in float32 with one rounding, beside torch's own on the CPU.

Each program gets a low tensor, made by a product, from torch's autocast and from the simulation.
"""

import math
from contextlib import nullcontext

import pytest
import torch
from networks import assert_bits
from torch.nn import functional as F

from mplab import BF16, FP8_E4M3, FP16
from mplab.simulation import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    EVERYTHING,
    KERAS_MIXED,
    explain,
    low_kernels,
    sensitivity,
    simulated,
)

HALVES = pytest.mark.parametrize("fmt", [FP16, BF16])
KNOWN = {"torch": torch, "F": F, "math": math}


def both(program, fmt, *inputs, policy=CPU_AUTOCAST):
    """What a program gives in torch's autocast and in the simulation: a tensor, or the error."""
    found = []
    for context in (
        torch.autocast("cpu", dtype=fmt.torch_dtype),
        simulated(fmt, policy=policy),
    ):
        torch.manual_seed(0)
        with context:
            low = [t.float().mm(torch.eye(t.shape[1])) for t in inputs]
            try:
                out = program(*low)
            except RuntimeError as error:
                out = str(error)
        found.append(out.float() if isinstance(out, torch.Tensor) else out)
    return found


def assert_equal(program, fmt, *inputs):
    real, found = both(program, fmt, *inputs)
    assert type(real) is type(found), (real, found)
    if isinstance(real, str):
        assert real == found
    else:
        assert_bits(
            found.nan_to_num(7, math.inf, -math.inf),
            real.nan_to_num(7, math.inf, -math.inf),
        )


def programs(text):
    return [pytest.param(line.strip(), id=line.strip()) for line in text.split(";")]


def numbers(fmt, seed=5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 50, generator=g)
    near = torch.tensor([0.1, 0.7, 3.0, 100.0, 1.0]).repeat(60, 10)
    return torch.cat([x, near]).to(fmt.torch_dtype), torch.cat([near, x]).to(
        fmt.torch_dtype
    )


@HALVES
@pytest.mark.parametrize(
    "program",
    programs("""
        x == 0.1; x != 0.7; x < 0.1; x <= 0.7; x > 0.7; x >= 0.1; x + 0.7; 0.1 + x; x - 0.7;
        0.1 - x; x + 2049; x.add_(0.1); x.sub_(0.7); x % 0.1; x.fmod(0.7); 100.1 % x;
        x ** 1.001; 1.001 ** x;
        x ** 2; x ** 3; F.hardshrink(x, 0.7); x + 65519.0; x % 1e-9;
        torch.where(x > 0, x, torch.tensor(10**6)); torch.maximum(x, torch.tensor(1000001));
        torch.add(x, y, alpha=2); x * 0.1; x / 0.7; x.clamp(-0.1, 0.7); x + torch.tensor(0.1)
    """),
)
def test_numbers_are_rounded_where_the_kernels_of_the_cpu_round_them(fmt, program):
    call = eval(f"lambda x, y: ({program}).to(torch.float32)", KNOWN)
    assert_equal(call, fmt, *numbers(fmt))


PAST_THE_RANGE = """
    x.masked_fill(x > 0, C); x.masked_fill_(x > 0, C); x.fill_(C); torch.full_like(x, C);
    x.new_full((2,), C); x.clamp(max=C); x.clamp(C, C); x.clamp_min(C);
    F.pad(x, (1, 1), value=C);
    x.index_fill(0, torch.arange(2), C); x.scatter(0, torch.zeros(1, 2, dtype=torch.long), C);
    F.threshold(x, 0.0, C); F.hardtanh(x, -abs(C), abs(C)); torch.add(x, x, alpha=C);
    torch.sub(x, x, alpha=C); x ** C; x.fill_diagonal_(C); x + C; x - C; x * C; C / x; C ** x;
    torch.where(x > 0, x, C); x.addcmul(x, x, value=C); x == C; x < C; F.threshold(x, C, 0.0);
    F.leaky_relu(x, C); F.elu(x, C); torch.lerp(x, x, C);
    x[1:].fill_(C); x[1:].fill_(torch.tensor(C));
    x.masked_fill(x > 0, torch.tensor(C))
"""


@HALVES
@pytest.mark.parametrize(
    "number", ["1e9", "-65519.0", "-3.4028234663852886e38", "math.inf", "70000"]
)
def test_numbers_past_the_range_are_refused_in_torch_s_words_where_torch_does(
    fmt, number
):
    refused = 0
    for program in PAST_THE_RANGE.split(";"):
        call = eval(f"lambda x: {program.replace('C', f'({number})').strip()}", KNOWN)
        x = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0], [2.0, 1.0, 1.0]]).to(
            fmt.torch_dtype
        )
        real, found = both(call, fmt, x)
        assert isinstance(real, str) == isinstance(found, str), (program, real, found)
        if isinstance(real, str):
            refused += 1
            assert found == real
        else:
            assert torch.equal(found, real) or found.isnan().equal(real.isnan()), (
                program
            )
    assert (refused > 10) == (
        abs(eval(number, KNOWN)) > fmt.max_finite and number != "math.inf"
    )


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
@pytest.mark.parametrize(
    "program",
    programs("""
        torch.nan_to_num(x); torch.nan_to_num(x, 3.0); torch.nan_to_num(x, posinf=0.1);
        torch.nan_to_num(x, neginf=-9.0).neg(); torch.nextafter(x, y); torch.nextafter(x, y[:1]);
        torch.nextafter(x[0, 0], y[0, 0]); torch.nextafter(x[:0], y[:0]);
        x.clone().nan_to_num_()
    """),
)
def test_constants_are_those_of_the_dtype(fmt, program):
    x, y = numbers(fmt)
    special = [
        0.0,
        -0.0,
        fmt.max_finite,
        -fmt.max_finite,
        fmt.min_normal,
        1.0,
        2.0,
        9.0,
    ]
    if fmt is FP16:  # the product of BF16 loses infinities and subnormals
        special[4], special[6:] = fmt.min_subnormal, [math.inf, -math.inf]
    x[:8, 0], y[:8, 0] = (
        torch.tensor(special).to(x),
        torch.tensor(special).flip(0).to(x),
    )
    x[9, 0] = y[10, 0] = 1.0

    def call(x, y):
        return eval(program, KNOWN, {"x": x / (x != 5), "y": y})

    assert_equal(call, fmt, x, y)


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


def gradient_of(program, *others):
    """A function of a low tensor: the gradient of the program's result with respect to it."""

    def call(x, *rest):
        x = x.detach().requires_grad_()
        out = program(x, *rest)
        return torch.autograd.grad(out, x, torch.ones_like(out))[0]

    return call


def sums():
    """Programs that add 3,000 or more low numbers to few places, and real inputs for them."""
    g = torch.Generator().manual_seed(11)
    ix, few = (
        torch.zeros(3000, dtype=torch.long),
        torch.randint(0, 7, (900,), generator=g),
    )
    ones, many = torch.ones(3000, 1), torch.rand(900, 40, generator=g) * 3
    back, uneven = gradient_of, 1 + torch.arange(40) % 3
    return {
        "index_add, rank 1": (lambda s: s.new_zeros(2).index_add(0, ix, s[:, 0]), ones),
        "index_add of rows": (lambda s: s.new_zeros(7, 40).index_add(0, few, s), many),
        "index_add of rows with a factor": (
            lambda s: s.new_zeros(7, 40).index_add_(0, few, s, alpha=0.5), many),
        "index_add of numbers with a factor that the format lacks": (
            lambda s: s.new_zeros(7).index_add(0, few, s[:, 0], alpha=0.3), many),
        "index_add with int32": (
            lambda s: s.new_zeros(7, 40).index_add(0, few.int(), s), many),
        "index_put": (
            lambda s: s.new_zeros(7, 40).index_put((few,), s, accumulate=True), many),
        "index_put_ of one column": (
            lambda s: s.new_zeros(7).index_put_((few,), s[:, 3], accumulate=True), many),
        "put_": (lambda s: s.new_zeros(2, 4).put_(few, s[:, 2], accumulate=True), many),
        "scatter_add": (
            lambda s: s.new_zeros(7, 40).scatter_add(0, few[:, None].expand(900, 40), s), many),
        "backward of w[ix]": (back(lambda w: w[few] * uneven), many),
        "backward of w[:, ix]": (back(lambda w: w[:, few % 3] * 1.5), many[:30]),
        "backward of w[ix, jx]": (back(lambda w: w[few, few] * 1.5), many[:30]),
        "backward of w[mask]": (back(lambda w: w[w > 1] * 1.5), many[:30]),
        "backward of take": (back(lambda w: w.take(few) * 1.5), many[:30]),
        "backward of index_select": (
            back(lambda w: w[:, 0].index_select(0, few) * 1.5), many[:30]),
        "backward of embedding": (back(lambda w: F.embedding(few, w) * 1.5), many[:30]),
        "backward of embedding with padding": (
            back(lambda w: F.embedding(few, w, padding_idx=3) * 1.5), many[:30]),
        # each row 1,024 times, so that the products of a kernel's last columns are exact, too
        "backward of embedding by frequency": (
            back(lambda w: F.embedding(torch.arange(4096) % 4, w, scale_grad_by_freq=True)
                 * uneven), many[:30]),
        "backward of max_pool2d": (
            back(lambda w: F.max_pool2d(w.view(1, 1, 60, 40), 20, 1) * 1.5), many[:60]),
        "backward of adaptive_max_pool2d": (
            back(lambda w: F.adaptive_max_pool2d(w.view(2, 1, 2, 3), (70, 80)) * 1.5),
            many[:1, :12]),
        "backward of avg_pool2d": (
            back(lambda w: F.avg_pool2d(w.view(1, 2, 60, 20), 19, 1, 9) * uneven[:20]), many[:60]),
        "backward of avg_pool2d without its padding": (
            back(lambda w: F.avg_pool2d(w.view(2, 60, 20), (5, 3), 2, 1, True, False) * 1.5),
            many[:60]),
        "backward of avg_pool2d of nothing": (
            back(lambda w: F.avg_pool2d(w.view(0, 3, 6, 6), 3, 1)), many[:0]),
        "backward of a long avg_pool1d": (
            back(lambda w: F.avg_pool1d(w.view(1, -1), 3, 1, 1) * 1.5), many),
        "backward of adaptive_avg_pool2d": (
            back(lambda w: F.adaptive_avg_pool2d(w.view(2, 1, 60, 20), (70, 7)) * uneven[:7]),
            many[:60]),
        "backward of unfold": (back(lambda w: w[0].unfold(0, 20, 1) * uneven[:20]), many),
        "fold": (lambda s: F.fold(s, (34, 36), 30, padding=1, stride=(1, 2)), many[:, :35]),
    }  # fmt: skip


SUMS = sums()


@HALVES
@pytest.mark.parametrize("name", SUMS)
def test_a_running_sum_is_kept_in_the_format_as_torch_keeps_it(name, fmt):
    program, x = SUMS[name]
    assert_equal(program, fmt, x.to(fmt.torch_dtype))


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
        assert_equal(program, fmt, x.to(fmt.torch_dtype))


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


EXACT = """
    abs angle ceil deg2rad floor frac nan_to_num neg rad2deg reciprocal relu round sgn sign sqrt
    square trunc F.hardshrink F.hardsigmoid F.hardswish F.hardtanh F.leaky_relu F.relu6
    F.softshrink F.softsign x**-2 x**-1 x**2 x**3
"""
ELEMENTARY = """
    acos acosh asin asinh atan atanh cos cosh digamma erfc erfinv exp exp2 expm1 i0 lgamma log log10
    log1p log2 logit sigmoid sin sinc sinh special.ndtr tan tanh x**0.5 x**-0.5 x**2.5
    F.celu F.elu F.logsigmoid F.mish F.selu F.silu F.softplus F.tanhshrink
"""
"""Not erf, gelu, rsqrt, special.entr and special.i0e, which processors or formulas make differ."""


@HALVES
@pytest.mark.parametrize(("names", "ties"), [(EXACT, 0), (ELEMENTARY, 8)])
def test_functions_of_one_number_are_the_kernel_s_on_every_code(fmt, names, ties):
    """And their gradients, but those of sigmoid and logit, which `explain` marks.

    A processor's elementary function in float32 may be off by an ulp, which counts at a tie.
    Without vector units a square root is rounded before it divides: there functions alone.
    """
    old = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    dtype = fmt.torch_dtype
    codes = torch.arange(65536).to(torch.int16).view(dtype)
    weights = torch.randn(65536, generator=torch.Generator().manual_seed(0)).to(dtype)
    for name in names.split():
        if old and name == "x**-0.5":
            continue
        program = name if "**" in name else f"{name}(x)"
        found = []
        for context in (nullcontext(), simulated(fmt, policy=CPU_AUTOCAST)):
            with context:
                x = codes.float().to(dtype).requires_grad_()
                y = eval(program, KNOWN | vars(torch), {"x": x})
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
@pytest.mark.parametrize(
    "program",
    programs("""
        torch.linalg.cross(x[:, :3], y[:, 3:6]);
        torch.linalg.cross(x[:3], y[:1].expand(3, -1), dim=0);
        torch.logit(x.abs() / 4); torch.logit(x.abs() / 4, 0.01); torch.logit(x, 0.1);
        torch.logit(x.abs() / 4, out=x.new_empty(0));
        torch.pow(x, 3, out=torch.ones_like(x)); torch.nextafter(x, y, out=torch.ones_like(x));
        torch.addbmm(x[:6, :5], x[:, :60].reshape(60, 6, 10), y[:, :50].reshape(60, 10, 5));
        torch.addbmm(x[:6, :5], x[:, :60].reshape(60, 6, 10), y[:, :50].reshape(60, 10, 5),
            beta=0.3, alpha=2);
        torch.conv_tbc(x[:, :1, None], y[:40, :3].view(40, 1, 3), y[0, :3], 2)
    """),
)
def test_a_kernel_that_rounds_between_its_steps_is_run_step_by_step(fmt, program):
    def call(x, y):
        return eval(" ".join(program.split()), KNOWN, {"x": x, "y": y})

    assert_equal(
        call, fmt, *(300 * t if "cross" in program else t for t in numbers(fmt))
    )


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
    found = sensitivity(
        linear, [x], lambda m, x: m(x).sum(), [FP16], policy="everything"
    )
    assert found.policy is EVERYTHING
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
    programs("""
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
@pytest.mark.parametrize(
    "program",
    programs("""
        F.layer_norm(x + 10, (50,));
        F.group_norm((x + 2).view(10, 12, 50), 3, y[0, :12], y[1, :12]);
        F.batch_norm(x + 10, None, None, y[0], y[1], training=True)
    """),
)
def test_statistics_of_a_norm_without_wide_weights_are_low_in_its_backward_pass(
    fmt, program
):
    """All but the few gradients that depend on the order of a sum in float32 are equal."""

    def norm(x, y):
        return eval(program, KNOWN, {"x": x, "y": y}).view(120, 50) * y

    real, found = both(gradient_of(norm), fmt, *numbers(fmt))
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
        x = numbers(BF16)[0].add(3).bfloat16().float().requires_grad_()
        with contexts[0]:
            F.layer_norm(x, (50,)).backward(numbers(BF16)[1][:120, :50])
        return x.grad.bfloat16()

    keras = gradient(simulated(BF16, policy=KERAS_MIXED))
    assert torch.equal(keras, gradient(nullcontext()))
