import math
import re
import tracemalloc
from decimal import Decimal
from fractions import Fraction
from functools import cache

import cases
import ml_dtypes
import numpy as np
import pytest
from oracle import table_of, value_of_code

from mplab import (
    FORMATS,
    FP4_E2M1,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E8M0,
    FP16,
    FP32,
    FP64,
    TF32,
)
from mplab.numbers import (
    Event,
    Format,
    Rounding,
    Specials,
    events,
    fields,
    round_to,
    ulp,
    values,
)
from mplab.numbers.codes import (
    decode,
    encode,
    next_down,
    next_up,
)

STORED = [fmt for fmt in FORMATS.values() if fmt.dtype is not None]


def codes_of(fmt):
    """Every code, or the ends of every exponent and a few between."""
    if fmt.bits <= 20:
        return np.arange(2**fmt.bits)
    trailing = 2 ** (fmt.precision - 1)
    rng = np.random.default_rng(fmt.bits)
    starts = np.arange(0, 2**fmt.bits, trailing)[:, None]
    offsets = [0, 1, 2, trailing // 2, trailing - 2, trailing - 1]
    return np.unique(
        np.concatenate([starts + offsets, starts + rng.integers(0, trailing, 4)], 1)
    )


@pytest.fixture(params=cases.sized([*cases.TABLED, *cases.WIDER]))
def fmt(request):
    return cases.TABLED.get(request.param) or cases.WIDER[request.param]


def values_by_definition(codes, fmt):
    return np.array([float(value_of_code(int(code), fmt)) for code in codes])


@cache
def defined(fmt):
    """Codes of a format, and their values."""
    codes = codes_of(fmt)
    expected = values_by_definition(codes, fmt)
    codes.flags.writeable = expected.flags.writeable = False  # shared
    return codes, expected


def test_every_code_decodes_to_its_definition(fmt):
    codes, expected = defined(fmt)
    cases.assert_same_bits(decode(codes, fmt), expected)
    if fmt.bits <= 20:
        cases.assert_same_bits(values(fmt), expected)
        assert not values(fmt).flags.writeable


def test_every_value_encodes_to_the_code_it_came_from(fmt):
    codes, expected = defined(fmt)
    codes = np.where(np.isnan(expected), fmt.nan_code, codes) if fmt.has_nan else codes
    if fmt.specials is Specials.TWOS_COMPLEMENT:  # the least code has no positive twin
        codes, expected = (np.delete(x, fmt.sign_code) for x in (codes, expected))
    dtype = np.uint8 if fmt.bits <= 8 else np.uint16 if fmt.bits <= 16 else np.uint32
    cases.assert_same_bits(encode(expected, fmt), codes.astype(dtype))


def test_fields_put_together_give_the_code_again(fmt):
    codes = codes_of(fmt)
    if fmt.specials is Specials.TWOS_COMPLEMENT:
        with pytest.raises(
            ValueError, match=r"^fields: fmt must have fields .*; got MXINT8, "
        ):
            fields(codes, fmt)
        return
    sign, exponent, trailing = (part.astype(np.int64) for part in fields(codes, fmt))
    assert (sign.max(), exponent.max()) == (int(fmt.signed), 2**fmt.exponent_bits - 1)
    assert trailing.max() == 2 ** (fmt.precision - 1) - 1
    again = (sign << (fmt.bits - 1)) + (exponent << (fmt.precision - 1)) + trailing
    cases.assert_same_bits(again, codes)


@pytest.mark.parametrize("name", cases.sized(cases.TABLED))
def test_next_up_and_down_walk_through_all_values_in_order(name):
    fmt = cases.TABLED[name]
    finite = table_of(fmt).values
    above_zero = finite[int(fmt.has_zero) :]
    ladder = np.concatenate([-above_zero[::-1], finite]) if fmt.signed else finite
    up = ladder.copy()
    down = ladder
    if fmt.has_negative_zero:  # which lies on the way up only
        up[up == 0] = -0.0
    past = np.inf if fmt.has_infinity else np.nan if fmt.has_nan else fmt.max_finite
    cases.assert_same_bits(next_up(ladder, fmt), np.append(up[1:], past), ladder)
    if fmt.signed:
        cases.assert_same_bits(
            next_down(ladder, fmt), np.append(-past, down[:-1]), ladder
        )
    else:
        cases.assert_same_bits(next_down(ladder[1:], fmt), down[:-1], ladder[1:])
    if fmt.has_infinity:
        ends = [-np.inf, np.inf] if fmt.signed else [np.inf]
        cases.assert_same_bits(next_down(np.array(ends), fmt)[-1:], finite[-1:])
        assert next_up(np.inf, fmt) == np.inf
    if fmt.has_nan:
        assert np.isnan(next_up(np.nan, fmt))
        assert np.isnan(next_down(np.nan, fmt))
    many = np.resize(ladder, (3, 20_000))
    for step in (encode, next_up, next_down, ulp):
        one_by_one = np.resize(step(ladder, fmt), many.shape)
        cases.assert_same_bits(step(many, fmt), one_by_one, many)


def test_next_up_of_fp32_agrees_with_numpy_in_every_binade():
    _, x = defined(FP32)
    x = x[~np.isnan(x)].astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        up = np.nextafter(x, np.float32(np.inf)).astype(np.float64)
        down = np.nextafter(x, np.float32(-np.inf)).astype(np.float64)
    cases.assert_same_bits(next_up(x, FP32), up, x)
    cases.assert_same_bits(next_down(x, FP32), down, x)


@pytest.mark.parametrize("name", cases.sized(cases.TABLED))
def test_ulp_is_the_gap_above_the_value_at_or_below(name):
    fmt = cases.TABLED[name]
    table = table_of(cases.TABLED[name])
    for dtype in (np.float32, np.float64):
        x, _ = cases.breakpoints(fmt, dtype)
        place = table.place(x)
        expected = table.gaps[np.maximum(place.index, 0)]
        expected[np.isinf(x)] = np.inf
        expected[np.isnan(x)] = np.nan
        cases.assert_same_bits(ulp(x, fmt), expected, x)


def neighbours_that_are_no_values(fmt, limit):
    """float64 and float32 beside values, and midpoints."""
    table = table_of(fmt)
    x = np.concatenate([
        np.nextafter(table.values, np.inf), np.nextafter(table.values[1:], 0),
        np.nextafter(table.values.astype(np.float32), np.float32(np.inf)).astype(np.float64),
        table.midpoints,
    ])  # fmt: skip
    x = x[np.isfinite(x) & ~np.isin(x, table.values)]
    return x[np.linspace(0, x.size - 1, min(limit, x.size)).astype(int)]


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning:.*test_codes")
@pytest.mark.parametrize("name", cases.sized(cases.TABLED, fast=cases.COMMON))
def test_encode_refuses_what_is_no_value_and_names_the_neighbours(name):
    fmt = cases.TABLED[name]
    known = values(fmt)
    for x in neighbours_that_are_no_values(fmt, 400):
        for number in (x, -x):
            with pytest.raises(
                ValueError, match=r"^encode: x must hold values of "
            ) as refusal:
                encode(np.array([number, 1e999]), fmt)
            message = str(refusal.value)
            assert f"got {float(number)!r}" in message
            if (
                abs(x) > fmt.max_finite
                or (number < 0 and not fmt.signed)
                or x < known[0]
            ):
                assert "between" not in message
                continue
            pair = re.search(
                r"between (\S+) \(0x(\w+)\) and (\S+) \(0x(\w+)\)", message
            )
            assert pair, message
            low = float(pair[1])
            high = float(pair[3])
            assert low < number < high
            cases.assert_same_bits(
                known[[int(pair[2], 16), int(pair[4], 16)]], np.array([low, high])
            )
            assert high == next_up(low, fmt)


LACKING = {
    **{FP4_E2M1: (np.nan, np.inf), FP8_E4M3: (np.inf,), FP8_E4M3FNUZ: (-np.inf, -0.0)},
    **{FP8_E8M0: (0.0, -1.0), cases.TABLED["UE4M4"]: (-0.0, -np.inf)},
}


@pytest.mark.parametrize("fmt", LACKING, ids=lambda fmt: fmt.name)
def test_encode_refuses_specials_that_the_format_lacks(fmt):
    for x in LACKING[fmt]:
        with pytest.raises(
            ValueError, match=rf"^encode: x must hold .* {fmt.name}; got {x}"
        ):
            encode(x, fmt)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", cases.sized(cases.TABLED))
def test_every_nan_encodes_as_the_one_nan_of_the_format(name, dtype):
    fmt = cases.TABLED[name]
    if fmt.has_nan:
        nans, _ = cases.not_a_numbers(dtype)
        assert (encode(nans, fmt) == fmt.nan_code).all()
        assert np.isnan(next_up(nans, fmt)).all()
        assert np.isnan(ulp(nans, fmt)).all()


def test_the_least_code_of_two_s_complement_is_read_but_no_number_gets_it():
    fmt = FORMATS["MXINT8"]
    assert decode(0x80, fmt) == -2.0
    assert next_down(-127 / 64, fmt) == -127 / 64
    with pytest.raises(
        ValueError, match=r"got -2\.0, past the largest finite value 1\.984375"
    ):
        encode(-2.0, fmt)
    x = np.array([-2.0, -1.995, -np.inf, 2.0])
    for rounding in set(Rounding) - {Rounding.STOCHASTIC}:
        assert round_to(x, fmt, rounding=rounding).tolist() == [
            *[-127 / 64] * 3,
            127 / 64,
        ]
    assert events(-2.0, fmt) == Event.OVERFLOW | Event.INEXACT
    with pytest.raises(
        ValueError, match=r"^encode: x must hold .*; got -0\.0\. Round first"
    ):
        encode(-0.0, fmt)
    with pytest.raises(
        ValueError, match=r"between -0\.015625 \(0xFF\) and 0\.0 \(0x00\)"
    ):
        encode(-0.01, fmt)


def test_a_nan_for_a_format_without_is_refused_and_not_sent_to_rounding_which_keeps_it():
    without = [fmt for fmt in FORMATS.values() if not fmt.has_nan]
    assert len(without) >= 4
    for fmt in without:
        assert np.isnan(round_to(np.nan, fmt))
        with pytest.raises(
            ValueError, match=r"; got nan\. The format has none: replace it"
        ):
            encode(np.array([1.0, np.nan]), fmt)


@pytest.mark.parametrize("fmt", STORED, ids=lambda fmt: fmt.name)
def test_ml_dtypes_and_numpy_read_every_code_as_decode_does(fmt):
    codes = codes_of(fmt).astype(f"u{fmt.dtype.itemsize}")
    with np.errstate(invalid="ignore"):  # signaling NaNs
        numbers = codes.view(fmt.dtype).astype(np.float64)
    cases.assert_same_bits(decode(codes, fmt), numbers)
    cases.assert_same_bits(numbers.astype(fmt.dtype).astype(np.float64), numbers)


@pytest.mark.parametrize("function", [decode, fields])
@pytest.mark.parametrize(
    "fmt", [FP8_E4M3, FP4_E2M1, TF32, FP16], ids=lambda fmt: fmt.name
)
def test_codes_out_of_range_are_refused(function, fmt):
    top = 2**fmt.bits - 1
    function(np.array([0, top]), fmt)
    for wrong in (
        -1,
        top + 1,
        np.array([0, top + 1], np.uint64),
        np.array([2**64 - 1], np.uint64),
    ):
        with pytest.raises(
            ValueError, match=rf"^{function.__name__}: codes must lie in 0 \.\. 0x"
        ):
            function(wrong, fmt)


def test_values_refuses_formats_with_too_many():
    with pytest.raises(
        ValueError, match=r"^values: fmt must have at most 20 bits; got FP32"
    ):
        values(FP32)


def test_shapes_are_kept_also_empty_and_zero_dimensional():
    for fmt in (FP16, FP32):
        codes = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[::-1]
        cases.assert_same_bits(
            decode(codes, fmt), decode(np.ascontiguousarray(codes), fmt)
        )
        cases.assert_same_bits(
            encode(decode(codes, fmt), fmt), codes.astype(f"u{fmt.bits // 8}")
        )
        assert decode(np.zeros((0, 2), int), fmt).shape == (0, 2)
        assert encode(np.zeros((3, 0)), fmt).shape == (3, 0)
        assert type(decode(1, fmt)) is np.float64
        assert encode(np.array(0.5), fmt) == encode(0.5, fmt)
        for function in (next_up, next_down, ulp):
            assert function(np.zeros((0, 2)), fmt).shape == (0, 2)
            assert type(function(0.5, fmt)) is np.float64


def test_encode_and_ulp_take_half_bfloat_and_byte_swapped_numbers():
    for dtype in (
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ">f4",
        ">f8",
        ">f2",
    ):
        x = np.array([1.5, -0.0, 2.0]).astype(dtype)
        assert encode(x, FP16).tolist() == [0x3E00, 0x8000, 0x4000]
        assert ulp(x, FP16).tolist() == [2.0**-10, 2.0**-24, 2.0**-9]
    assert ulp(np.array([1 / 3], ">f8"), FP16) == 2.0**-12


UNDER_FLUSHING = """
import numpy as np, torch
from cases import TABLED, WIDER, assert_same_bits
from oracle import table_of
from test_codes import codes_of, values_by_definition
from mplab import *

formats = [*TABLED.values(), *WIDER.values()]
known = {}
for fmt in formats:
    codes = codes_of(fmt)
    if fmt.specials is Specials.TWOS_COMPLEMENT:
        codes = np.delete(codes, fmt.sign_code)
    step = max(1, codes.size // 20_000)
    x = values_by_definition(codes[::step], fmt)
    gap = np.array([1.0])
    if fmt.bits <= 20:
        table = table_of(fmt)
        gap = table.gaps[np.maximum(table.place(x).index, 0)]
        gap = np.where(np.isnan(x), np.nan, np.where(np.isinf(x), np.inf, gap))
    known[fmt.name] = codes[::step], x, gap, np.isnan(x)
assert torch.set_flush_denormal(True)
assert np.array([5e-324])[0] * 1.0 == 0.0
for fmt in formats:
    codes, x, gap, nan = known[fmt.name]
    if fmt.has_zero:  # alone: no number beside it is flushed
        assert encode(0.0, fmt=fmt) == 0
    assert_same_bits(decode(codes, fmt), x)
    expected = np.where(nan, fmt.nan_code or 0, codes)
    assert_same_bits(encode(x, fmt).astype(np.int64), expected)
    if fmt.bits <= 20:
        assert_same_bits(ulp(x, fmt), gap)
    if fmt.emin >= -126 and fmt.precision <= 24 and fmt.emax <= 127:
        narrow = codes.astype(np.uint32)
        if fmt.name == "FP32":
            assert_same_bits(encode(narrow.view(np.float32), fmt)[~nan], narrow[~nan])
print("same")
"""


@pytest.mark.slow
def test_codes_are_unchanged_where_the_processor_flushes_subnormals():
    assert cases.run_script(UNDER_FLUSHING, beside=__file__) == "same\n"


@pytest.mark.parametrize(
    "specials", [Specials.IEEE, Specials.NAN_ALL_ONES, Specials.NONE]
)
def test_below_the_least_value_of_a_format_without_sign_there_is_no_number(specials):
    fmt = Format("U", exponent_bits=4, precision=4, specials=specials, signed=False)
    below = next_down(np.array([0.0, fmt.min_subnormal]), fmt)
    cases.assert_same_bits(
        below, np.array([0.0 if specials is Specials.NONE else np.nan, 0.0])
    )


def test_fp64_is_the_float_of_python_to_look_at_and_never_rounded_to():
    codes = np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64)
    codes[:4] = 0, 1 << 63, 0x7FF << 52, (1 << 63) - 1
    numbers = decode(codes, FP64)
    cases.assert_same_bits(
        numbers[~np.isnan(numbers)], codes.view(np.float64)[~np.isnan(numbers)]
    )
    cases.assert_same_bits(
        encode(numbers, FP64)[~np.isnan(numbers)], codes[~np.isnan(numbers)]
    )
    for x in numbers[np.isfinite(numbers)].tolist():
        sign, exponent, trailing = map(int, fields(encode(x, FP64), FP64))
        held = math.ldexp(trailing + (exponent > 0) * 2**52, max(exponent, 1) - 1075)
        assert (-1) ** sign * held == x
    x = numbers[np.isfinite(numbers)]
    cases.assert_same_bits(ulp(x, FP64), np.array(list(map(math.ulp, x))))
    cases.assert_same_bits(next_up(x, FP64), np.nextafter(x, math.inf))
    cases.assert_same_bits(next_down(x, FP64), np.nextafter(x, -math.inf))
    facts = np.finfo(np.float64)
    assert (FP64.max_finite, FP64.epsilon, FP64.bias) == (facts.max, facts.eps, 1023)
    assert FP64.min_subnormal == facts.smallest_subnormal and "64 = 1 sign + 11" in str(
        FP64
    )
    # Without a warning, as in the other formats.
    assert next_up(facts.max, FP64) == math.inf
    for x in (0.1, np.ones(2)):
        with pytest.raises(ValueError, match="fmt must have at most 32 bits"):
            round_to(x, FP64)
    for odd in ("0.1", Decimal("0.1"), Fraction(1, 3), 2**53 + 1, 10**5000):
        with pytest.raises(ValueError, match="must hold values of FP64"):
            encode(odd, FP64)
    assert encode("0.5", FP64) == encode(0.5, FP64) == 0x3FE << 52
    assert encode("sNaN", FP64) == encode(math.nan, FP64)


def test_lists_of_codes_past_int64_are_read_one_by_one():
    codes = [0x3FF0000000000000, 0xC000000000000000]  # NumPy makes floats of these two
    assert decode(codes, FP64).tolist() == [1.0, -2.0]
    assert decode([[0xFFF0000000000000], [0]], FP64).tolist() == [[-math.inf], [0.0]]
    assert decode(0xC000000000000000, FP64) == -2.0
    assert fields(codes, FP64).sign.tolist() == [0, 1]
    for codes, fmt in (
        (2**64, FP16),
        (2**64, FP64),
        ([1, 2**70], FP64),
        (10**5000, FP16),
    ):
        with pytest.raises(ValueError, match=r"^decode: codes must lie in 0 \.\. 0x"):
            decode(codes, fmt)
    for codes in ([0xC000000000000000, 1.0], [1.0, True], [None], ["1"]):
        with pytest.raises(TypeError, match=r"^decode: codes must be integers"):
            decode(codes, FP64)


def test_a_long_format_of_one_s_own_is_encoded_in_little_memory():
    fmt = Format("own", exponent_bits=2, precision=18)
    tracemalloc.start()
    try:
        codes = encode(np.full(10, 1.5, np.float32), fmt)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()
    assert decode(codes, fmt).tolist() == [1.5] * 10
