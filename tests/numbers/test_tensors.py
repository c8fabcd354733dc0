import itertools
import subprocess
import sys

import cases
import numpy as np
import pytest
import torch

import mplab
from mplab import FORMATS, FP8_E4M3, FP8_E8M0, FP16
from mplab.numbers import Stream, Tally, kernels, round_to, tally, tensors
from mplab.numbers.formats import Rounding, Tininess
from mplab.numbers.parameters import Known, rounding_parameters
from mplab.numbers.tensors import round_tensor


def as_array(tensor):
    return tensor.detach().resolve_neg().contiguous().numpy()


# The same bits as round_to -------------------------------------------------------------


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("name", cases.sized(FORMATS))
def test_tensors_round_as_arrays_do(name, dtype):
    fmt = FORMATS[name]
    if fmt.bits > 20:
        x = cases.directed(fmt)
        with np.errstate(all="ignore"):
            x = x.astype(dtype)
    else:
        x = cases.breakpoints(fmt, dtype)[0]
        x = x[:: max(1, x.size // 50_000)]
    tensor = torch.from_numpy(x)
    for (rounding, overflow), flush in itertools.product(cases.RULES, cases.FLUSHES):
        rules = {"rounding": rounding, "overflow": overflow, **flush}
        ours = Tally()
        theirs = Tally()
        got = round_tensor(
            tensor, fmt, stream=cases.stream_for(rounding), tally=ours, **rules
        )
        expected = round_to(
            x, fmt, stream=cases.stream_for(rounding), tally=theirs, **rules
        )
        cases.assert_same_bits(got.numpy(), expected, x)
        assert ours == theirs


# The compiled loops and the torch expression -------------------------------------------


def both_bodies(x, fmt, rounding, stream, **rules):
    """Bits and flags from the loops, then from the expression."""
    parameters = rounding_parameters(fmt, x.dtype, **rules)
    if parameters is None:
        return None
    integer = x.view(np.int32 if x.dtype == np.float32 else np.int64)
    out = np.empty_like(x)
    flags = np.empty(x.shape, np.uint8)
    keys = stream.keys() if rounding is Rounding.STOCHASTIC else None
    how = {"parameters": parameters, "mode": rounding, "keys": keys}
    kernels.run(x, out, **how)
    kernels.run(x, flags, **how)
    known = Known(*map(int, parameters.numbers))
    bits = torch.from_numpy(integer)
    random = tensors._random_bits(bits, *keys(0)) if keys else None
    theirs, their_flags = tensors._round_bits(bits, known, int(rounding), random, True)
    alone, none = tensors._round_bits(bits, known, int(rounding), random, False)
    assert none is None
    assert torch.equal(alone, theirs)
    return (out.view(integer.dtype), flags), (theirs.numpy(), their_flags.numpy())


NOT_IN_FLOAT32 = {
    "E9M3",
    "E11M5",
    "E9M20",
    "E11M20",
    "E8M5_HIGH",
    "E8M19",  # their range is wider
    "FP8_E8M0",
    "E4M6_LOWEST",
    "E5M10_LOW",  # their least values are subnormal there
    "E7M24",  # a digit too many
}


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize(
    "name",
    [
        *cases.sized(
            [n for n in (*cases.TABLED, *cases.WIDER) if n != "TF32"],
            least=13,
            fast=cases.SMALL[::4],
        ),
        pytest.param("TF32", marks=pytest.mark.full),  # has by far the most codes
    ],
)
def test_the_expression_for_devices_equals_the_loops_flags_included(
    name, dtype, record_property
):
    if name in cases.TABLED:
        fmt = cases.TABLED[name]
        x = cases.breakpoints(cases.TABLED[name], dtype)[0]
    else:
        fmt = cases.WIDER[name]
        x = cases.directed(cases.WIDER[name])
        with np.errstate(all="ignore"):
            x = x.astype(dtype)
    options = [
        (flush, Tininess.AFTER)
        for flush in (cases.FLUSHES if name in cases.SMALL else cases.FLUSHES[:1])
    ]
    if fmt.bits <= 16:
        options.append((cases.FLUSHES[0], Tininess.BEFORE))
    compared = 0
    for (rounding, overflow), (flush, tininess) in itertools.product(
        cases.RULES, options
    ):
        rules = {"overflow": overflow, "tininess": tininess, **flush}
        with np.errstate(over="ignore"):
            pair = both_bodies(x, fmt, rounding, Stream(3), **rules)
        if pair is None:
            assert dtype == np.float32
            assert name in NOT_IN_FLOAT32, "float32 holds the others"
            return
        for one, other in zip(*pair, strict=True):
            cases.assert_same_bits(other, one, x)
        compared += x.size
    record_property("comparisons", compared)


@pytest.mark.parametrize("rounding", Rounding)
def test_running_the_expression_gives_results_and_counts(rounding):
    x = cases.breakpoints(FP8_E4M3, np.float32)[0]
    parameters = rounding_parameters(FP8_E4M3, x.dtype)
    source = torch.from_numpy(x)
    result = torch.empty(x.size)
    keys = Stream(7).keys() if rounding is Rounding.STOCHASTIC else None
    counts = np.zeros(8, np.int64)
    counted = Tally()
    how = {"parameters": parameters, "mode": rounding, "keys": keys}
    tensors._run_expression(source, result, counts=counts, **how)
    counted.add_counts(x.size, counts)
    expected = round_to(
        x, FP8_E4M3, rounding=rounding, stream=cases.stream_for(rounding)
    )
    cases.assert_same_bits(result.numpy(), expected)
    assert counted == tally(
        x, FP8_E4M3, rounding=rounding, stream=cases.stream_for(rounding)
    )


UNDER_FLUSHING = """
import numpy as np, torch
from cases import *
from oracle import *
from test_tensors import both_bodies
from mplab.numbers.tensors import round_tensor

known = []
for name in ("FP16", "BF16", "FP8_E4M3", "FP8_E8M0", "E4M3_BIAS20", "E5M10_LOW", "E4M6_LOWEST"):
    fmt, table = TABLED[name], table_of(TABLED[name])
    for dtype, rounding in itertools.product(DTYPES, Rounding):
        x = breakpoints(fmt, dtype)[0]
        x = x[np.abs(x) < 4 * table.least_normal]
        expected = table.place(x).round(rounding, Overflow.IEEE, random_array(7, 0, x.size))
        known.append((fmt, x, rounding, expected.astype(dtype)))
assert torch.set_flush_denormal(True)
for fmt, x, rounding, expected in known:
    tensor = torch.from_numpy(x)
    got = round_tensor(tensor, fmt, rounding=rounding, stream=stream_for(rounding))
    assert_same_bits(got.numpy(), expected)
    pair = both_bodies(x, fmt, rounding, Stream(3))
    for one, other in zip(*pair) if pair else ():
        assert_same_bits(other, one)
print("same")
"""


@pytest.mark.slow
def test_tensors_round_alike_where_the_processor_flushes_subnormals():
    assert cases.run_script(UNDER_FLUSHING, beside=__file__) == "same\n"


# Layouts -------------------------------------------------------------------------------


def layouts(dtype):
    base = torch.from_numpy(np.random.default_rng(0).random((4, 6, 8, 10)) + 0.01).to(
        dtype
    )
    return {
        "contiguous": base, "channels last": base.contiguous(memory_format=torch.channels_last),
        "transposed": base.transpose(1, 3), "permuted": base.permute(2, 0, 3, 1),
        "sliced": base[1:, ::2, :, 3:], "narrowed": base[:, 1:5],
        "expanded": base[:1, :, :1].expand(4, 6, 8, 10), "one row": base[0, 0, 0],
        "0-d": base[1, 2, 3, 4], "empty": base[:, :0],
        "size one": base[:, :1, :, :1].transpose(0, 3), "negated view": torch._neg_view(-base),
        "parameter": torch.nn.Parameter(base.clone()), "unfolded": base.flatten().unfold(0, 10, 3),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fmt", [FP16, FP8_E8M0], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC])
@pytest.mark.parametrize("layout", layouts(torch.float32))
def test_any_layout_rounds_as_its_contiguous_copy(layout, fmt, rounding, dtype):
    x = layouts(dtype)[layout]
    rules = {"rounding": rounding}
    expected = round_to(as_array(x), fmt, stream=cases.stream_for(rounding), **rules)
    before = as_array(x).copy()
    counts = Tally()
    got = round_tensor(x, fmt, stream=cases.stream_for(rounding), tally=counts, **rules)
    assert (got.dtype, got.shape, got.requires_grad) == (dtype, x.shape, False)
    cases.assert_same_bits(as_array(got), expected)
    cases.assert_same_bits(as_array(x), before)
    assert counts.total == x.numel()
    out = torch.empty(x.shape, dtype=dtype)
    assert (
        round_tensor(x, fmt, out=out, stream=cases.stream_for(rounding), **rules) is out
    )
    cases.assert_same_bits(as_array(out), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC])
@pytest.mark.parametrize(
    "layout", sorted(set(layouts(torch.float32)) - {"expanded", "unfolded"})
)
def test_any_layout_rounds_in_place(layout, rounding, dtype):
    x = layouts(dtype)[layout]
    expected = round_to(
        as_array(x), FP16, rounding=rounding, stream=cases.stream_for(rounding)
    )
    same = round_tensor(
        x, FP16, rounding=rounding, stream=cases.stream_for(rounding), out=x
    )
    assert same is x
    cases.assert_same_bits(as_array(x), expected)


def test_the_result_keeps_the_strides_of_a_dense_input():
    for name in ("channels last", "transposed", "permuted"):
        x = layouts(torch.float32)[name]
        assert round_tensor(x, FP16).stride() == x.stride()


@pytest.mark.parametrize("fmt", [FP16, FP8_E8M0], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_out_may_overlap_the_input_in_any_way(fmt, dtype):
    base = torch.from_numpy(np.random.default_rng(0).random(500)).to(dtype)
    expected = round_to(base[:400].numpy(), fmt)
    for source, target in ((0, 0), (0, 1), (1, 0), (0, 99), (99, 0)):
        buffer = torch.zeros(500, dtype=dtype)
        buffer[source : source + 400] = base[:400]
        out = buffer[target : target + 400]
        round_tensor(buffer[source : source + 400], fmt, out=out)
        cases.assert_same_bits(out.numpy(), expected)
    square = base[:400].reshape(20, 20).clone()
    expected = round_to(square.numpy(), fmt)
    round_tensor(square, fmt, out=square.T)  # each element lands where another was
    cases.assert_same_bits(square.T.contiguous().numpy(), expected)


def test_autograd_records_nothing():
    x = torch.rand(5, requires_grad=True)
    assert round_tensor(x, FP16).grad_fn is None
    y = x * 2
    assert round_tensor(y, FP16).grad_fn is None
    assert y.requires_grad


def test_calls_on_tensors_and_arrays_take_turns_on_one_stream():
    x = torch.rand(1000)
    stream = Stream(3)
    rules = {"rounding": Rounding.STOCHASTIC}
    first = round_tensor(x, FP8_E4M3, stream=stream, **rules)
    second = round_to(x.numpy(), FP8_E4M3, stream=stream, **rules)
    cases.assert_same_bits(
        first.numpy(), round_to(x.numpy(), FP8_E4M3, stream=Stream(3), **rules)
    )
    again = round_tensor(x, FP8_E4M3, stream=Stream(3, calls=1), **rules)
    cases.assert_same_bits(again.numpy(), second)


# Bad input -----------------------------------------------------------------------------


def test_what_is_no_dense_float_tensor_is_refused():
    kinds = torch.complex64, torch.int64, torch.bool
    odd = [*(torch.ones(2, dtype=kind) for kind in kinds), torch.eye(2).to_sparse()]
    odd += [torch.eye(2).to_mkldnn()] if torch.backends.mkldnn.is_available() else []
    for x in (*odd, np.ones(2), [1.0], 1.0, None):
        with pytest.raises(
            TypeError, match=r"^round_tensor: x must be a dense float.*; got .*\. "
        ):
            round_tensor(x, FP16)


def test_an_out_that_does_not_match_is_refused():
    said = r"^round_tensor: out must be a dense torch\.float32 tensor of shape \(2,\) .*; got .*\."
    arrays = (
        np.empty(2, np.float32),
        torch.empty(2, device="meta"),
        torch.zeros(2).to_sparse(),
    )
    for out in (
        torch.empty(2, dtype=torch.float64),
        torch.empty(3),
        torch.empty(1, 2),
        *arrays,
    ):
        with pytest.raises(ValueError, match=said):
            round_tensor(torch.ones(2), FP16, out=out)
    with pytest.raises(
        (ValueError, RuntimeError), match=r"single memory location|out must"
    ):
        round_tensor(torch.ones(2), FP16, out=torch.empty(1).expand(2))


def test_float32_that_cannot_hold_the_result_is_refused():
    wide = cases.TABLED["E8M5_HIGH"]
    x = torch.tensor([3.4e38])
    with pytest.raises(
        ValueError, match=r"^round_tensor: x must be float64 here; got float32"
    ):
        round_tensor(x, wide)
    assert round_tensor(x.double(), wide).item() == 2.0**128
    assert round_tensor(torch.ones(1), wide).item() == 1


def test_functions_of_arrays_take_tensors_and_give_tensors():
    x = torch.tensor([[0.7, -464.0], [1e-9, float("nan")]])
    array = x.numpy()
    e4m3 = FP8_E4M3
    for function in (mplab.round_to, mplab.events, mplab.ulp):
        got = function(x, e4m3)
        assert isinstance(got, torch.Tensor) and got.device == x.device
        assert np.array_equal(got.numpy(), function(array, e4m3), equal_nan=True)
    assert mplab.tally(x, e4m3) == mplab.tally(array, e4m3)
    values = mplab.round_to(x, e4m3)
    codes = mplab.encode(values, e4m3)
    assert torch.equal(codes, torch.from_numpy(mplab.encode(values.numpy(), e4m3)))
    back = mplab.decode(codes, e4m3)
    assert torch.equal(back.float().nan_to_num(7.0), values.nan_to_num(7.0))
    for function in (mplab.next_up, mplab.next_down):
        got = function(values, e4m3)
        want = function(values.numpy(), e4m3)
        assert np.array_equal(got.numpy(), want, equal_nan=True)


def test_tensors_of_low_dtypes_are_taken_as_float32():
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e5m2):
        x = torch.tensor([1.0, 0.375, -448.0]).to(dtype).requires_grad_()
        rounded = mplab.round_to(x, "e4m3", rounding=Rounding.TOWARD_ZERO)
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, x.detach().float())
        assert mplab.next_up(x, dtype).dtype == torch.float64
    for x in (torch.tensor([True]), torch.tensor([1j])):
        with pytest.raises(TypeError):
            mplab.events(x, FP16)
        with pytest.raises(TypeError):
            mplab.round_to(x, FP16)


@pytest.mark.slow
def test_naming_a_format_does_not_import_torch():
    code = (
        "import sys, mplab, numpy as np; mplab.format_of('torch.bfloat16'); "
        "mplab.encode([1.0], 'fp16'); mplab.round_to(1.0, np.float16); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
