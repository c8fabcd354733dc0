"""Odd arguments of the functions that a student types: an error or a right number, no wrong one."""

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import mplab
from mplab import (
    FP4_E2M1,
    FP8_E4M3,
    FP16,
    Overflow,
    Rounding,
    Stream,
    arithmetic,
    scaling,
)
from mplab.lessons.l16.integration import integrate
from mplab.numbers.tensors import round_tensor

HALF = torch.ones(2, dtype=torch.float16)
NUMBERS = [
    None,
    object(),
    slice(None),
    len,
    FP16,
    {},
    {1.0},
    b"1",
    1j,
    "one",
    "",
    True,
    np.True_,
    np.ones(2, complex),
    np.array(["1.0"]),
    np.array([None]),
    np.array([True]),
    [True, 1.0],
    [1.0, [2.0]],
    [1.0, None],
    ["1.0"],
    [1j],
    np.ma.array([1.0], mask=[1]),
    np.ma.masked,
    np.array([Fraction(1)]),
    np.array(["2020"], "M8[Y]"),
    iter([1.0]),
    range(2),
    HALF,
    np.longdouble(1),
    [np.float32(1), 1.0],
    [np.ma.array([1.0])],
    np.datetime64("2020"),
    [np.ma.array([1.0], mask=[1])],
    [2**53 + 1, 0.5],
    np.array([2**53 + 1]),
    0.1,
    2.0**200,
    10**400,
    Decimal("0.1"),
    Fraction(1, 3),
    np.float16(0.1),
    np.float32(0.1),
    [0.1],
    "0.1",
]
"""What is no number, what NumPy would convert in silence, and numbers of no narrow format."""
NO_FORMATS = [
    None,
    "FP17",
    "",
    np.int16,
    torch.int8,
    16,
    object(),
    [FP16],
    {},
    True,
    FP16.bits,
]
NAMES = {
    FP16: ("FP16", "fp16", "half", np.float16, FP16.dtype, torch.float16),
    FP8_E4M3: (
        "FP8_E4M3",
        "e4m3",
        "float8_e4m3fn",
        FP8_E4M3.dtype,
        torch.float8_e4m3fn,
    ),
}
ROUNDINGS = [
    None,
    "up",
    "TIES_TO_EVEN",
    0,
    3,
    True,
    Overflow.IEEE,
    Rounding.STOCHASTIC,
    object(),
]
STREAM = {"rounding": Rounding.STOCHASTIC}
X = [1.0, 2.0]
TWO = np.ones((2, 2))
TERMS = {"accumulator_format": FP16}
T = torch.tensor([1.0, 3.0])

CALLS = {
    "round_to": lambda x=X, fmt=FP16, **how: mplab.round_to(x, fmt, **how),
    "tally": lambda x=X, fmt=FP16, **how: mplab.tally(x, fmt, **how).as_dict(),
    "events": lambda x=X, fmt=FP16, **how: mplab.events(x, fmt, **how),
    "encode": lambda x=X, fmt=FP16: mplab.encode(x, fmt),
    "ulp": lambda x=X, fmt=FP16: mplab.ulp(x, fmt),
    "next_up": lambda x=X, fmt=FP16: mplab.next_up(x, fmt),
    "next_down": lambda x=X, fmt=FP16: mplab.next_down(x, fmt),
    "add": lambda x=X, fmt=FP16, **how: arithmetic.add(x, 1.0, fmt, **how),
    "divide": lambda x=X, fmt=FP16, **how: arithmetic.divide(1.0, x, fmt, **how),
    "fma": lambda x=X, fmt=FP16, **how: arithmetic.fma(x, x, x, fmt, **how),
    "sum": lambda x=X, fmt=FP16, **how: arithmetic.sum(
        x, accumulator_format=fmt, **how
    ),
    "dot": lambda x=X, fmt=FP16, **how: arithmetic.dot(
        x, x, accumulator_format=fmt, **how
    ),
    "matmul": lambda x=TWO, fmt=FP16, **how: arithmetic.matmul(
        x, TWO, accumulator_format=fmt, **how
    ),
    "mma": lambda x=TWO, fmt=FP16: arithmetic.mma(x, TWO, input_format=fmt),
    "FloatArray": lambda x=X, fmt=FP16: (arithmetic.FloatArray(x, fmt) + 1.0).values,
    "Weights": lambda x=X, fmt=FP16: arithmetic.Weights(x, fmt).values,
    "quantize": lambda x=T, fmt=FP8_E4M3, **how: scaling.quantize(x, fmt, **how).codes,
    "round_tensor": lambda x=T, fmt=FP16, **how: round_tensor(x, fmt, **how),
}
OPTIONS = {name for name, call in CALLS.items() if "how" in call.__code__.co_varnames}


def answer_of(call, *arguments, **options):
    """What a call answers; None where it raises an error."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return call(*arguments, **options)
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            return None


def exactly(x):
    """The numbers of an argument as Fractions, by Python alone; none where it holds others."""
    if isinstance(x, bool | np.bool_):
        return []
    if isinstance(x, str | int | Decimal | Fraction):
        return [Fraction(x)]
    if isinstance(x, float | np.floating):
        return [Fraction(float(x))]
    if isinstance(x, torch.Tensor):
        return exactly(x.tolist())
    if isinstance(x, np.ndarray):
        return [] if np.ma.isMA(x) or x.dtype.kind not in "iuf" else exactly(x.tolist())
    if isinstance(x, list):
        return [number for item in x for number in exactly(item)]
    return []


@pytest.mark.parametrize("name", CALLS)
def test_an_odd_argument_gives_an_error_or_the_answer_for_its_numbers(name):
    call = CALLS[name]
    assert answer_of(call) is not None
    for x in NUMBERS:
        got = answer_of(call, x)
        if got is None:
            continue
        numbers = exactly(x)
        assert numbers, f"{name} of {x!r} answered {got!r}"
        if name == "round_to":
            once = [float(mplab.round_to(number, FP16)) for number in numbers]
            assert np.ravel(got).tolist() == once, repr(x)
        elif name in (
            "encode",
            "next_up",
            "next_down",
            "add",
            "divide",
            "fma",
            "FloatArray",
        ):
            values = [float(number) for number in numbers]
            assert values == [float(mplab.round_to(number, FP16)) for number in numbers]
            assert np.array_equal(np.ravel(got), np.ravel(call(values))), repr(x)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_format_gives_an_error_that_names_the_function(name):
    for fmt in NO_FORMATS:
        with pytest.raises(
            (TypeError, ValueError), match=r"^\w+: fmt must be a Format"
        ):
            CALLS[name](fmt=fmt)
            pytest.fail(f"{name} into {fmt!r}")


@pytest.mark.parametrize("name", CALLS)
def test_whatever_names_a_format_is_taken_for_it(name):
    fmt = FP8_E4M3 if name == "quantize" else FP16
    want = np.asarray(answer_of(CALLS[name], fmt=fmt))
    for named in NAMES[fmt]:
        got = np.asarray(answer_of(CALLS[name], fmt=named))
        assert np.array_equal(got, want), f"{name} into {named!r}"


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_odd_options_give_an_error(name):
    call = CALLS[name]
    for rounding in ROUNDINGS:
        assert answer_of(call, rounding=rounding) is None, (
            f"{name}, rounding={rounding!r}"
        )
    for overflow in (None, "saturate", 1, True, Rounding.TIES_TO_EVEN):
        assert answer_of(call, overflow=overflow) is None, (
            f"{name}, overflow={overflow!r}"
        )
    for flush in (
        (0, 1, None, "no") if name not in ("sum", "dot", "matmul", "quantize") else ()
    ):
        assert answer_of(call, flush_inputs=flush) is None, (
            f"{name}, flush_inputs={flush!r}"
        )
    for stream in (None, 1, Stream, np.random.default_rng(0), np.ones(7), [1, 2]):
        assert answer_of(call, stream=stream, **STREAM) is None, (
            f"{name}, stream={stream!r}"
        )
    for misspelt in (
        {"roundng": 1},
        {"Rounding": Rounding.TOWARD_ZERO},
        {"saturate": True},
    ):
        assert answer_of(call, **misspelt) is None, f"{name} took {misspelt}"


@pytest.mark.parametrize(
    "codes", [True, 1.0, -1, 1 << 16, "1", None, [0.0], np.ma.array([1]), 1j]
)
def test_what_is_no_code_gives_an_error(codes):
    for function in (mplab.decode, mplab.fields):
        assert answer_of(function, codes, FP16) is None


def test_words_that_choose_between_results_are_known_or_refused():
    for call in (
        lambda: arithmetic.sum(X, order="pairwsie", **TERMS),
        lambda: arithmetic.sum(X, order=None, **TERMS),
        lambda: arithmetic.variance(X, method="one pass", **TERMS),
        lambda: arithmetic.Weights(X, FP16, method="stochastc"),
        lambda: integrate(abs, 1.0, 0.1, 3, FP16, scheme="rk5"),
        lambda: arithmetic.refine(np.eye(2), X, factor_format=FP16, method="gmress"),
        lambda: arithmetic.mma(TWO, TWO, architecture="hoper"),
        lambda: scaling.scale_for(1.0, FP8_E4M3, rule="RCEIL"),
        lambda: scaling.DelayedScaling(FP8_E4M3, amax_compute="median"),
        lambda: scaling.quantize(T, FP4_E2M1, scale="RCEIL"),
        lambda: Stream(-1),
        lambda: Stream(0, bits=33),
    ):
        assert answer_of(call) is None
