from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import DTYPES, TABLED, assert_same_bits, roundings, stream_for
from hypothesis import assume, given, settings, strategies as st
from oracle import round_fraction

from mplab import BF16, FP6_E3M2, FP8_E4M3, FP8_E8M0, FP16, FP32, TF32
from mplab.numbers import Event, Rounding, Tally, events, round_to, tally
from mplab.numbers.codes import decode, encode, next_down, next_up, require_values, ulp
from mplab.numbers.inputs import as_array

# Decimal, Fraction and strings: one rounding -------------------------------------------


@given(roundings(), st.integers(-(10**6), 10**6), st.integers(30, 400))
@settings(max_examples=300)
def test_fractions_and_decimals_are_rounded_once_from_their_exact_value(
    case, offset, digits
):
    x, fmt, rules = case
    assume(rules["rounding"] is not Rounding.STOCHASTIC)
    exact = Fraction(x) + Fraction(offset, 10**digits) * Fraction(float(ulp(x, fmt)))
    expected = round_fraction(exact, fmt, **rules)
    assert_same_bits(round_to(exact, fmt, **rules), np.float64(expected))
    decimal = Decimal(x)
    assert_same_bits(round_to(decimal, fmt, **rules), round_to(x, fmt, **rules))
    assert_same_bits(round_to(str(decimal), fmt, **rules), round_to(x, fmt, **rules))


@pytest.mark.parametrize(
    "fmt", [FP8_E4M3, FP16, BF16, TF32, FP32], ids=lambda fmt: fmt.name
)
def test_strings_beside_midpoints_are_not_rounded_twice(fmt):
    u = Fraction(fmt.unit_roundoff)
    for tie, even in ((1 + u, Fraction(1)), (1 + 3 * u, 1 + 4 * u)):
        digits = str(Decimal(tie.numerator) / Decimal(tie.denominator))
        assert Fraction(digits) == tie
        # Through float64 all three are the tie.
        assert float(digits + "0" * 40 + "1") == tie
        assert round_to(digits, fmt) == even
        assert round_to(digits + "0" * 40 + "1", fmt) == tie + u
        below = f"1.{str((tie * 10**60 - 1).numerator)[1:]}"
        assert float(below) == tie
        assert round_to(below, fmt) == tie - u


@pytest.mark.parametrize(
    ("text", "nearest", "upward"),
    [("1e999999999", np.inf, np.inf), ("-1e999999999", -np.inf, -65504.0),
     ("1e-999999999", 0.0, 2.0**-24), ("-1e-999999999", -0.0, -0.0), ("nan", np.nan, np.nan),
     ("-NaN", np.nan, np.nan), ("inf", np.inf, np.inf), ("-Infinity", -np.inf, -np.inf),
     ("-0", -0.0, -0.0), ("0e-5", 0.0, 0.0), ("0.1", 0.0999755859375, 0.10003662109375),
     (" 65519.999999999999999999999 ", 65504.0, np.inf), ("65520", np.inf, np.inf)],
)  # fmt: skip
def test_strings_of_any_size_and_kind_round_from_their_exact_value(
    text, nearest, upward
):
    result = round_to(text, FP16)
    assert type(result) is np.float64
    assert_same_bits(result, np.float64(nearest))
    assert_same_bits(
        round_to(text, FP16, rounding=Rounding.TOWARD_POSITIVE), np.float64(upward)
    )


def test_decimals_raise_the_events_of_their_exact_value():
    assert events("1.00000000000000000000000001", FP16) == Event.INEXACT
    assert events(Fraction(1, 3), FP16) == Event.INEXACT
    assert events(Decimal("1e-999999"), FP16) == Event.INEXACT | Event.UNDERFLOW
    assert events("1e999999", FP16) == Event.INEXACT | Event.OVERFLOW
    assert events("0.5", FP16) == 0
    assert events(Decimal("sNaN"), FP16) == Event.INVALID


# Integers and lists ----------------------------------------------------------------------

INTEGERS = ["i1", "u1", "i2", ">i2", "u2", "i4", "u4", "i8", ">i8", "u8"]
TAKING = [round_to, events, tally, encode, next_up, next_down, ulp]


@pytest.mark.parametrize("function", TAKING, ids=lambda f: f.__name__)
def test_integers_are_taken_as_the_floats_they_equal(function):
    floats = np.array([[0.0, 1.0, 7.0], [64.0, 104.0, 120.0]])
    for dtype in INTEGERS:
        given = floats.astype(dtype)
        alike = [
            (given, floats),
            (given.T[::2], floats.T[::2]),
            (given[1, 1], floats[1, 1]),
        ]
        for integers, numbers in alike:
            assert_alike(function(integers, FP8_E4M3), function(numbers, FP8_E4M3))
    for integers in (
        [[0, 1, 7], [64, 104, 120]],
        ((0, 1.0, 7), [64.0, 104, np.float64(120)]),
    ):
        assert_alike(function(integers, FP8_E4M3), function(floats, FP8_E4M3))
    for integer in (-104, -1, 0, 1, 448):
        assert_alike(function(integer, FP8_E4M3), function(float(integer), FP8_E4M3))
    assert_alike(function([], FP8_E4M3), function(np.empty(0), FP8_E4M3))


def assert_alike(got, expected):
    assert type(got) is type(expected)
    if isinstance(expected, Tally):
        assert got == expected
    else:
        assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", ["i8", ">i8", "u8"])
def test_integers_that_float64_cannot_hold_are_refused_and_no_others(dtype):
    info = np.iinfo(dtype)
    powers = [
        sign * 2**k
        for sign in (-1, 1)
        for k in (31, 32, 33, 52, 53, 54, 60, 62, 63, 64)
    ]
    near = {
        p + step for p in powers for step in (*range(-5, 6), -2048, -1024, 1024, 2048)
    }
    refused = 0
    for n in sorted(n for n in near if info.min <= n <= info.max):
        forms = (
            np.array(n, dtype),
            np.array([1, n], dtype),
            np.array(n, dtype)[()],
            [[n], [0.5]],
        )
        for form in forms:
            if int(float(n)) == n:
                assert np.asarray(round_to(form, FP32)).dtype == np.float64
                assert np.ravel(as_array("f", form)).tolist().count(float(n)) >= 1
            else:
                with pytest.raises(
                    ValueError, match=rf"^f: x must hold integers .*; got {n}\. P"
                ):
                    as_array("f", form)
                refused += 1
    assert refused > 50


def test_a_python_int_past_float64_is_rounded_once():
    tie = (2**24 + 1) << 60  # which float64 makes of both neighbours
    for n, size in ((tie - 1, 2**24), (tie, 2**24), (tie + 1, 2**24 + 2)):
        assert round_to(n, FP32) == -round_to(-n, FP32) == size * 2.0**60


def test_huge_integers_are_answered_without_writing_their_digits():
    assert round_to(10**5000, FP16) == np.inf
    assert events(-(10**5000), FP16) == Event.OVERFLOW | Event.INEXACT
    with pytest.raises(
        ValueError, match=r"^encode: x must hold values .* of thousands of digits"
    ):
        encode(10**5000, FP16)
    with pytest.raises(ValueError, match=r"^decode: codes must lie .* of 16610 bits"):
        decode(10**5000, FP16)
    with pytest.raises(
        ValueError, match=r"^round_to: x must hold integers .* of 16610 bits\. P"
    ):
        round_to([10**5000], FP16)


# Bad input -----------------------------------------------------------------------------


def test_strings_that_are_no_decimals_and_what_holds_no_numbers_are_refused():
    for text in ("", "abc", "0x10", "1,5", "1e"):
        with pytest.raises(ValueError, match=r"^round_to: got .*; write numbers like"):
            round_to(text, FP16)
    with pytest.raises(TypeError, match=r"^round_to: x must be .*; got .*\. Convert"):
        tally(np.longdouble(1), FP16)
    with pytest.raises(TypeError, match=r"^events: tininess must be a member of Ti"):
        events(np.ones(2), FP16, tininess=0)


def test_an_out_that_cannot_hold_the_result_is_refused():
    x = np.full(2, 0.1)
    x.flags.writeable = False
    assert round_to(x, FP16).tolist() == [0.0999755859375] * 2
    arrays = [np.empty(2, dtype) for dtype in (np.float32, ">f8", np.int64)]
    for out in (
        *arrays,
        np.empty(3),
        np.empty((1, 2)),
        np.ma.empty(2),
        0,
        torch.ones(2),
        x,
    ):
        with pytest.raises(ValueError, match=r"^round_to: out must be "):
            round_to(np.ones(2), FP16, out=out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", [FP16, FP8_E8M0], ids=lambda fmt: fmt.name)
def test_out_may_overlap_the_input_in_any_way(dtype, fmt):
    base = np.abs(np.random.default_rng(0).standard_normal(5000)).astype(dtype)
    expected = round_to(base[:4000], fmt)
    whole = slice(0, 4000)
    last = slice(999, 4999)
    one = slice(1, 4001)
    back = slice(3999, None, -1)
    views = [(whole, t) for t in (whole, one, last, back)] + [
        (s, whole) for s in (one, back)
    ]
    for source, target in views:
        buffer = np.zeros(5000, dtype)
        buffer[source] = base[:4000]
        out = buffer[target]
        assert round_to(buffer[source], fmt, out=out) is out
        assert_same_bits(out, expected)
    interleaved = np.zeros((4000, 2), dtype)
    interleaved[:, 0] = base[:4000]
    round_to(interleaved[:, 0], fmt, out=interleaved[:, 1])
    assert_same_bits(interleaved[:, 1], expected)
    assert_same_bits(interleaved[:, 0], base[:4000])


@pytest.mark.parametrize("fmt", [FP16, FP8_E8M0], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f4", ">f8"])
def test_any_shape_stride_and_byte_order_rounds_as_its_contiguous_copy(
    fmt, rounding, dtype
):
    base = np.random.default_rng(0).random((6, 8, 10)).astype(dtype)
    arrays = [base, base.T, base[::2, ::-1, 1:], base[0, 0, 0:1], base[:, :0]]
    arrays += [base[1, 2, 3].reshape(()), np.asfortranarray(base)]
    arrays.append(np.broadcast_to(base[0], (6, 8, 10)))
    arrays.append(np.lib.stride_tricks.sliding_window_view(base[0, 0], 3))
    for x in arrays:
        native = np.ascontiguousarray(x.astype(x.dtype.newbyteorder("="))).reshape(
            x.shape
        )
        rules = {"rounding": rounding}
        expected = round_to(native, fmt, stream=stream_for(rounding), **rules)
        got = round_to(x, fmt, stream=stream_for(rounding), **rules)
        assert (got.dtype, got.shape) == (x.dtype, x.shape)
        assert_same_bits(got.astype(native.dtype), expected)
        out = np.empty_like(x)
        assert round_to(x, fmt, out=out, stream=stream_for(rounding), **rules) is out
        assert_same_bits(out.astype(native.dtype), expected)
        raised = events(x, fmt, stream=stream_for(rounding), **rules)
        assert_same_bits(
            raised, events(native, fmt, stream=stream_for(rounding), **rules)
        )
        assert tally(x, fmt, stream=stream_for(rounding), **rules).total == x.size


def test_scalars_give_scalars_and_arrays_give_arrays():
    assert type(round_to(0.1, FP16)) is np.float64
    assert type(round_to(np.float32(0.1), FP16)) is np.float32
    assert type(round_to(np.float16(0.1), FP8_E4M3)) is np.float32
    assert type(round_to("0.1", FP16)) is np.float64
    assert type(events(0.1, FP16)) is np.uint8
    assert round_to(np.array(0.1), FP16).shape == ()
    assert type(round_to(np.array(0.1), FP16)) is np.ndarray
    out = np.empty(())
    assert round_to(0.1, FP16, out=out) is out
    assert out == 0.0999755859375


@pytest.mark.parametrize(
    "dtype", [np.float16, ">f2", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
)
def test_half_bfloat_and_fp8_arrays_are_taken_as_float32(dtype):
    x = np.array([0.1, -3.3, np.inf, np.nan, -0.0]).astype(dtype)
    with np.errstate(invalid="ignore"):
        expected = round_to(x.astype(np.float32), FP6_E3M2)
    assert_same_bits(round_to(x, FP6_E3M2), expected)
    out = np.empty(5, np.float32)
    assert round_to(x, FP6_E3M2, out=out) is out


@pytest.mark.parametrize("name", ["E9M3", "E8M5_HIGH", "E11M5"])
def test_float32_that_cannot_hold_the_result_is_refused(name):
    fmt = TABLED[name]
    x = np.array([3.4e38], np.float32)
    if name == "E8M5_HIGH":
        assert round_to(x.astype(np.float64), fmt) == 2.0**128
    with pytest.raises(
        ValueError, match=r"^round_to: x must be float64 here; got float32, which"
    ):
        round_to(x, fmt, rounding=Rounding.TOWARD_POSITIVE)
    assert round_to(np.ones(1, np.float32), fmt) == 1
    assert tally(x.astype(float), fmt, rounding=Rounding.TOWARD_POSITIVE).inexact == 1


# Values that must belong to a format -----------------------------------------------------


def test_values_come_back_as_float64_bit_for_bit_with_every_nan():
    x = np.array([[1.5, -0.0, np.nan], [np.inf, 65504.0, -(2.0**-24)]])
    for same in (
        x,
        x.astype(np.float32),
        x.astype(np.float16),
        x.astype(">f8"),
        x[:, ::-1],
    ):
        got = require_values("f", "a", same, FP16)
        assert got.dtype == np.float64 and got.dtype.isnative
        assert_same_bits(got, same.astype(np.float64))
    assert require_values("f", "a", "0.5", FP16).shape == ()
    assert np.isnan(require_values("f", "a", np.nan, TABLED["FP4_E2M1"]))
