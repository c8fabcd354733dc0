"""A device's low kernels, compared with what `mplab.simulation` takes them for.

Each program gets low tensors, once from torch and once from the simulation. The tests compare the
same programs on the CPU.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import groupby, islice, product
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from parts.part import Found, Setting, problem_of
from torch import Tensor

from mplab.numbers.formats import BF16, FP16, FP32, Format
from mplab.simulation import CPU_AUTOCAST, CUDA_AUTOCAST, Policy, simulated

Program = Callable[..., Tensor]

# Programs of low tensors x and y of 120 rows of 50, separated by semicolons.
NUMBERS = """
    x == 0.1; x != 0.7; x < 0.1; x <= 0.7; x > 0.7; x >= 0.1; x + 0.7; 0.1 + x; x - 0.7;
    0.1 - x; x + 2049; x.add_(0.1); x.sub_(0.7); x % 0.1; x.fmod(0.7); 100.1 % x;
    x ** 1.001; 1.001 ** x;
    x ** 2; x ** 3; F.hardshrink(x, 0.7); x + 65519.0; x % 1e-9;
    torch.where(x > 0, x, torch.tensor(10**6)); torch.maximum(x, torch.tensor(1000001));
    torch.add(x, y, alpha=2); x * 0.1; x / 0.7; x.clamp(-0.1, 0.7); x + torch.tensor(0.1)
"""
PAST_THE_RANGE = """
    x.masked_fill(x > 0, C); x.masked_fill_(x > 0, C); x.fill_(C); torch.full_like(x, C);
    x.new_full((2,), C); x.clamp(max=C); x.clamp(C, C); x.clamp_min(C);
    F.pad(x, (1, 1), value=C); x.index_fill(0, at, C); x.scatter(0, at[None] * 0, C);
    F.threshold(x, 0.0, C); F.hardtanh(x, -abs(C), abs(C)); torch.add(x, x, alpha=C);
    torch.sub(x, x, alpha=C); x ** C; x.fill_diagonal_(C); x + C; x - C; x * C; C / x; C ** x;
    torch.where(x > 0, x, C); x.addcmul(x, x, value=C); x == C; x < C; F.threshold(x, C, 0.0);
    F.leaky_relu(x, C); F.elu(x, C); torch.lerp(x, x, C);
    x[1:].fill_(C); x[1:].fill_(torch.tensor(C)); x.masked_fill(x > 0, torch.tensor(C))
"""
"""With a number C, and places `at`."""
PAST = ("1e9", "-65519.0", "-3.4028234663852886e38", "math.inf", "70000")
CONSTANTS = """
    torch.nan_to_num(x); torch.nan_to_num(x, 3.0); torch.nan_to_num(x, posinf=0.1);
    torch.nan_to_num(x, neginf=-9.0).neg(); torch.nextafter(x, y); torch.nextafter(x, y[:1]);
    torch.nextafter(x[0, 0], y[0, 0]); torch.nextafter(x[:0], y[:0]); x.clone().nan_to_num_()
"""
STEPS = """
    torch.linalg.cross(300 * x[:, :3], 300 * y[:, 3:6]);
    torch.linalg.cross(300 * x[:3], 300 * y[:1].expand(3, -1), dim=0);
    torch.logit(x.abs() / 4); torch.logit(x.abs() / 4, 0.01); torch.logit(x, 0.1);
    torch.logit(x.abs() / 4, out=x.new_empty(0));
    torch.pow(x, 3, out=torch.ones_like(x)); torch.nextafter(x, y, out=torch.ones_like(x));
    torch.addbmm(x[:6, :5], x[:72].reshape(60, 6, 10), y[:60].reshape(60, 10, 5));
    torch.addbmm(x[:6, :5], x[:72].reshape(60, 6, 10), y[:60].reshape(60, 10, 5),
        beta=0.3, alpha=2);
    torch.conv_tbc(x[:, :1, None], y[:40, :3].view(40, 1, 3), y[0, :3], 2)
"""
NORMS = """
    F.layer_norm(x + 10, (50,));
    F.group_norm((x + 2).view(10, 12, 50), 3, y[0, :12], y[1, :12]);
    F.batch_norm(x + 10, None, None, y[0], y[1], training=True)
"""
MARKED = """
    s.new_zeros(7, 40).index_reduce(0, few, s, "mean");
    s.new_zeros(7, 40).scatter_reduce(0, few[:, None].expand(-1, 40), s, "mean");
    torch.segment_reduce(s, "sum", lengths=at[:1] * 0 + 900, axis=0);
    torch.histc(s[:, 0], 3, 0, 4);
    back(lambda w: F.embedding_bag(few[None], w, mode="sum"))(s);
    back(lambda w: F.embedding_bag(few[None], w, mode="max"))(s);
    back(lambda w: F.avg_pool3d(w.view(1, 1, 9, 100, 40), 8, 1))(s);
    back(lambda w: F.max_pool3d(w.view(1, 1, 9, 100, 40), 8, 1))(s);
    back(lambda w: F.pad(w[None], (3000, 3000), mode="replicate"))(s);
    back(lambda w: F.pad(w[None, :9], (39, 39), mode="reflect"))(s);
    back(lambda w: F.grid_sample(w[None, None, :9], s.new_zeros(1, 90, 90, 2)))(s);
    back(lambda w: F.interpolate(w[None, None], size=(90, 4), mode="area"))(s)
"""
"""Sums that `explain` marks as not simulated, of low rows s of 900 by 40."""

EXACT = """
    abs angle ceil deg2rad floor frac nan_to_num neg rad2deg reciprocal relu round sgn sign sqrt
    square trunc F.hardshrink F.hardsigmoid F.hardswish F.hardtanh F.leaky_relu F.relu6
    F.softshrink F.softsign x**-2 x**-1 x**0.5 x**2 x**3
"""
ELEMENTARY = """
    acos acosh asin asinh atan atanh cos cosh digamma erfc erfinv exp exp2 expm1 i0 lgamma log log10
    log1p log2 logit sigmoid sin sinc sinh special.ndtr tan tanh x**-0.5 x**2.5
    F.celu F.elu F.logsigmoid F.mish F.selu F.silu F.softplus F.tanhshrink
"""
"""Not erf, gelu, rsqrt, special.entr and special.i0e, which processors or formulas make differ."""

_KNOWN = {"torch": torch, "F": F, "math": math}


def programs_of(text: str) -> list[str]:
    """Split a text of programs."""
    return [" ".join(program.split()) for program in text.split(";")]


def program_of(text: str, **known: Any) -> Program:
    """A function of low tensors x and y, whose result is what the text computes, in float32."""

    def program(x: Tensor, y: Tensor | None = None) -> Tensor:
        here = {"at": torch.arange(2, device=x.device), "x": x, "y": y, "s": x}
        return eval(text, _KNOWN | known | here).float()

    return program


def function_of(name: str) -> str:
    """A program that applies a function of one number to x.

    Examples:
        >>> function_of("exp"), function_of("F.silu"), function_of("x**2")
        ('torch.exp(x)', 'F.silu(x)', 'x**2')
    """
    if "**" in name:
        return name
    return f"{name}(x)" if name.startswith("F.") else f"torch.{name}(x)"


def gradient_of(program: Program) -> Program:
    """A function of low tensors: the gradient of a program's result with respect to the first."""

    def gradient(x: Tensor, *others: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        out = program(x, *others)
        return torch.autograd.grad(out, x, torch.ones_like(out))[0].float()

    return gradient


def numbers(seed: int = 5) -> tuple[Tensor, Tensor]:
    """Random numbers beside 0.1, 0.7 and others that programs compare and add: x and y."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 50, generator=g)
    near = torch.tensor([0.1, 0.7, 3.0, 100.0, 1.0]).repeat(60, 10)
    return torch.cat([x, near]), torch.cat([near, x])


def with_ends(fmt: Format, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Put zeros, NaN, infinities and the ends of a format among numbers, at unlike places."""
    limits = [fmt.max_finite, -fmt.max_finite, fmt.min_subnormal, fmt.min_normal]
    ends = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, *limits])
    x, y = x.clone(), y.clone()
    x[: len(ends), 0], y[: len(ends), 0] = ends, ends.flip(0)
    x[20, 0] = y[21, 0] = 1.0
    return x, y


def every_code(fmt: Format) -> Tensor:
    """All numbers of a format of 16 bits, in the order of their codes."""
    return torch.arange(65536).to(torch.int16).view(fmt.torch_dtype).float()


def sums(device: torch.device | str = "cpu") -> dict[str, tuple[Program, Tensor]]:
    """Programs that add 900 or more low numbers to few places, and real inputs for them."""
    g = torch.Generator().manual_seed(11)
    ix = torch.zeros(3000, dtype=torch.long, device=device)
    few = torch.randint(0, 7, (900,), generator=g).to(device)
    fours = torch.arange(4096, device=device) % 4
    ones, many = torch.ones(3000, 1), torch.rand(900, 40, generator=g) * 3
    back, uneven = gradient_of, 1 + torch.arange(40, device=device) % 3
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
            back(lambda w: F.embedding(fours, w, scale_grad_by_freq=True) * uneven), many[:30]),
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


# Comparing ---------------------------------------------------------------------------------
class Compared(NamedTuple):
    """Where a program runs for real, and the policies it is compared with."""

    real: AbstractContextManager[object]
    policies: dict[str, Policy]


def _ways(fmt: Format, device: str) -> dict[str, Compared]:
    """Without autocast, where all is low, and within it, where much is widened."""
    policy = CUDA_AUTOCAST if device == "cuda" else CPU_AUTOCAST
    other = "cpu" if device == "cuda" else "cuda"

    def both(policy: Policy) -> dict[str, Policy]:
        return {
            "simulated": replace(policy, kernels=device),
            f"as on {other}": replace(policy, kernels=other),
        }

    return {
        "low": Compared(nullcontext(), both(replace(CPU_AUTOCAST, wide=frozenset()))),
        "autocast": Compared(
            torch.autocast(device, dtype=fmt.torch_dtype), both(policy)
        ),
    }


def outcome(
    program: Program,
    context: AbstractContextManager[object],
    fmt: Format,
    inputs: tuple[Tensor, ...],
) -> Tensor | str:
    """What a program of low tensors gives in a context: a tensor in float32, or its error."""
    with context, warnings.catch_warnings(action="ignore"):
        low = [t.clone().to(fmt.torch_dtype) for t in inputs]
        try:
            return program(*low).detach().float()
        except Exception as error:  # whatever it is, the other programs go on
            return problem_of(error)


def difference(real: Tensor | str, model: Tensor | str) -> dict[str, Any]:
    """How many bits of two outcomes differ, and the first pair that does; {} if none."""
    if isinstance(real, str) or isinstance(model, str):
        a, b = (t if isinstance(t, str) else "a tensor" for t in (real, model))
        return {} if a == b else {"differing": 1, "first": [a, b]}
    if real.shape != model.shape:
        return {"differing": 1, "first": [str(real.shape), str(model.shape)]}
    a, b = real.reshape(-1), model.reshape(-1)
    apart = a.view(torch.int32) != b.view(torch.int32)
    apart &= ~(a.isnan() & b.isnan())
    places = apart.nonzero()[:, 0]
    if not len(places):
        return {}
    # the largest distance, for results that an order of additions decides
    most = float((a - b)[places].abs().nan_to_num(math.inf).max())
    first = [float(a[places[0]]), float(b[places[0]])]
    return {"differing": len(places), "first": first, "most": most}


def compare(
    name: str, program: Program, inputs: tuple[Tensor, ...], fmt: Format, device: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each comparison, and what differs: {} where the simulation is right.

    Where it is not, the row also says how far the other device's table is from the real kernel,
    and a float32 kernel whose result is rounded once.
    """
    inputs = tuple(t.to(device) for t in inputs)
    for way, (context, policies) in _ways(fmt, device).items():
        real = outcome(program, context, fmt, inputs)
        found = {}
        for model, policy in policies.items():
            ours = outcome(program, simulated(fmt, policy=policy), fmt, inputs)
            found[model] = difference(real, ours)
            if not found["simulated"]:
                break
        else:
            once = outcome(program, nullcontext(), FP32, inputs)
            found["in float32"] = difference(real, once)
            if isinstance(once, Tensor):
                once = once.to(fmt.torch_dtype).float()
            found["rounded once"] = difference(real, once)
            found["elements"] = 1 if isinstance(real, str) else real.numel()
        both_raise = ": both raise" if isinstance(real, str) else ""
        if found["simulated"]:
            yield f"{name} | {fmt.name}, {way}", found
        else:
            yield f"{name} | {fmt.name}, {way}{both_raise}", {}


def _programs(
    fmt: Format, device: str
) -> Iterator[tuple[str, str, Program, tuple[Tensor, ...]]]:
    """Each group's programs with their inputs."""
    pair = numbers()
    for group, texts, inputs in (
        ("numbers", NUMBERS, pair),
        ("constants", CONSTANTS, with_ends(fmt, *pair)),
        ("steps", STEPS, pair),
    ):
        for text in programs_of(texts):
            yield group, text, program_of(text), inputs
    small = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, 1.0], [2.0, 1.0, 1.0]])
    for text, number in product(programs_of(PAST_THE_RANGE), PAST):
        asked = text.replace("C", f"({number})")
        yield "refusals", asked, program_of(asked), (small,)
    codes = every_code(fmt)
    weights = torch.randn(65536, generator=torch.Generator().manual_seed(0))
    for text in map(function_of, (EXACT + ELEMENTARY).split()):
        yield "functions", text, program_of(text), (codes,)
        weighed = program_of(f"({text}) * y")
        yield "functions", f"gradient of {text}", gradient_of(weighed), (codes, weights)
    for text in programs_of(NORMS):
        yield "norms", text, program_of(text), pair
        weighed = program_of(f"({text}).view(120, 50) * y")
        yield "norms", f"gradient of {text}", gradient_of(weighed), pair
    for text in (
        "F.layer_norm(y, (50,), x[0])",
        "F.layer_norm(y, (50,), x[0].float())",
    ):
        yield (
            "norms",
            f"gradient of the weight in {text}",
            gradient_of(program_of(text)),
            pair,
        )
    every = sums(device)
    rows = every["index_add of rows"][1]
    few = torch.arange(900, device=device) % 7
    for text in programs_of(MARKED):
        run = program_of(text, few=few, back=gradient_of)
        yield "marked", text, run, (rows,)
        yield "marked", f"{text}, of ones", run, (torch.ones_like(rows),)
    for name, (run, x) in every.items():
        yield "sums", name, run, (x,)
        yield "sums", f"{name}, of ones", run, (torch.ones_like(x),)


def kernels(to: Setting) -> Found:
    """Compare what each program gives: the names of those equal, and what differs elsewhere.

    Sums of random numbers whose order varies differ a little: those of ones tell whether they are
    kept in the format. A rehearsal takes every ninth program, and FP16 alone.
    """
    found: dict[str, dict[str, Any]] = {}
    for fmt in (FP16,) if to.rehearse else (FP16, BF16):
        every = _programs(fmt, to.device.type)
        some = islice(every, 0, None, 9 if to.rehearse else 1)
        for group, programs in groupby(some, key=itemgetter(0)):
            rows = found.setdefault(group, {"equal": [], "different": {}})
            for _, name, program, inputs in programs:
                if to.left() <= 0:
                    break
                for what, row in compare(name, program, inputs, fmt, to.device.type):
                    if row:
                        rows["different"][what] = row
                    else:
                        rows["equal"].append(what)
            yield group, rows
