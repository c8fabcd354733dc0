"""Rounding, encoding and decoding held against gfloat, at every value, midpoint and neighbour.

Over all its formats that a `Format` can state. Where the two differ, a test says so by name.
"""

import itertools
from fractions import Fraction

import gfloat
import gfloat.formats
import numpy as np
import pytest
import torch
from cases import assert_same_bits, breakpoints, directed
from gfloat import Domain, RoundMode, Signedness
from oracle import random_array, table_of

from mplab import FORMATS, Format, Overflow, Rounding, Specials, Stream
from mplab.arithmetic import add, fma, sum as long_sum
from mplab.numbers import decode, encode, round_to

MODES = {
    RoundMode.TiesToEven: Rounding.TIES_TO_EVEN,
    RoundMode.TiesToAway: Rounding.TIES_TO_AWAY,
    RoundMode.TowardZero: Rounding.TOWARD_ZERO,
    RoundMode.TowardPositive: Rounding.TOWARD_POSITIVE,
    RoundMode.TowardNegative: Rounding.TOWARD_NEGATIVE,
    RoundMode.StochasticFastest: Rounding.STOCHASTIC,
}
"""gfloat has no rounding to odd. Its other stochastic modes round the discarded fraction to the
number of random bits, which `Stream` cuts."""

RANDOM_BITS = 8
THEIRS = {
    info.name: info
    for info in (
        *gfloat.formats.sample_formats,
        *(
            gfloat.formats.format_info_p3109(k, p, signedness, domain)
            for k in range(3, 9)
            for signedness, domain in itertools.product(Signedness, Domain)
            for p in range(1, k + (signedness is Signedness.Unsigned))
        ),
    )
}


def ours(info):
    """The `Format` with the same facts, or None."""
    if info.is_twos_complement:
        return FORMATS["MXINT8"]
    finite = info.domain is Domain.Finite
    match info.num_high_nans, info.has_nz or not info.is_signed:
        case 0, True if finite:
            specials = Specials.NONE
        case 1, True if finite:
            specials = Specials.NAN_ALL_ONES
        case 0, False:
            specials = Specials.NAN_NEGATIVE_ZERO if finite else Specials.P3109
        case nans, True if nans == 2 ** (info.precision - 1) - 1:
            specials = Specials.IEEE
        case _:
            return None
    return Format(
        info.name,
        exponent_bits=info.expBits,
        precision=info.precision,
        bias=info.bias,
        specials=specials,
        signed=info.is_signed,
        has_zero=info.has_zero,
    )


SAME = {name: fmt for name, info in THEIRS.items() if (fmt := ours(info))}


def test_only_p3109_s_unsigned_formats_with_infinity_have_no_format_here():
    left = THEIRS.keys() - SAME.keys()
    assert all(name.startswith("p3109") and name.endswith("ue") for name in left)
    assert len(left) == 27
    assert len(SAME) == 104


@pytest.mark.parametrize("name", SAME)
def test_codes_are_those_of_gfloat(name):
    """But for the NaN that is encoded: gfloat takes the last one, and IEEE says quiet."""
    fmt = SAME[name]
    theirs = THEIRS[name]
    step = max(1 << fmt.bits >> 13, 1)
    codes = [*range(0, 1 << fmt.bits, step), (1 << fmt.bits) - 1]
    x = decode(codes, fmt)
    expected = [gfloat.decode_float(theirs, code).fval for code in codes]
    assert_same_bits(x, np.array(expected, np.float64))
    lowest = fmt.specials is Specials.TWOS_COMPLEMENT and x == x.min()  # never encoded
    x = x[~(np.isnan(x) | lowest)]
    expected = [gfloat.encode_float(theirs, number) for number in x.tolist()]
    assert encode(x, fmt).tolist() == expected
    if fmt.has_nan:
        assert np.isnan(decode(theirs.code_of_nan, fmt))


def inputs(fmt):
    """Every breakpoint, or every seventh of a 16-bit format's, which it would take seconds."""
    if fmt.bits > 20:
        x = directed(fmt)
    else:
        x = breakpoints(fmt, np.float64)[0]
        x = x[:: 7 if fmt.bits > 10 else 1]
    return x[~np.isnan(x)]


@pytest.mark.parametrize("name", [name for name in SAME if SAME[name].bits <= 32])
def test_rounding_is_that_of_gfloat(name):
    fmt = SAME[name]
    x = inputs(fmt)
    if not fmt.signed:  # gfloat rounds a negative number as if it were positive
        x = x[~np.signbit(x)]
    if not fmt.has_zero:  # and leaves out the least exponent of E8M0
        x = x[x >= fmt.min_normal]
    if fmt.specials is Specials.TWOS_COMPLEMENT:  # and rounds to the lowest number
        x = x[x >= -fmt.max_finite]
    random = random_array(7, 0, x.size) >> (32 - RANDOM_BITS)
    for (their_mode, mode), overflow in itertools.product(MODES.items(), Overflow):
        # gfloat refuses to overflow where there is neither infinity nor NaN
        saturate = overflow is Overflow.SATURATE or not fmt.has_nan
        with np.errstate(over="ignore"):
            expected = gfloat.round_ndarray(
                THEIRS[name], x, their_mode, saturate, random, RANDOM_BITS
            )
        stochastic = mode is Rounding.STOCHASTIC
        stream = Stream(7, bits=RANDOM_BITS) if stochastic else None
        got = round_to(x, fmt, rounding=mode, overflow=overflow, stream=stream)
        if one_bit_by_size(fmt) and mode is Rounding.TIES_TO_EVEN:
            tie = np.isin(np.abs(x), table_of(fmt).midpoints) & (
                np.abs(x) > fmt.min_normal
            )
            away = round_to(x, fmt, rounding=Rounding.TIES_TO_AWAY, overflow=overflow)
            assert_same_bits(got[tie], away[tie], x[tie])
            got = np.where(tie, expected, got)
        assert_same_bits(got, expected, x)


def one_bit_by_size(fmt):
    """Whether ties go to the larger power of two, as E8M0's do in torch and ml_dtypes.

    gfloat takes the even code in all its formats; here P3109's signed ones with infinity do.
    """
    return fmt.precision == 1 and fmt.specials is not Specials.P3109


def test_all_ways_into_p3109_at_one_bit_take_the_even_code():
    fmt = "Binary8p1se"
    for x in (np.float32([1.5, 3]), np.array([1.5, 3.0]), torch.tensor([1.5, 3.0])):
        assert round_to(x, fmt).tolist() == [1, 4]
    assert round_to(Fraction(3, 2), fmt) == add(0.5, 1.0, fmt) == 1
    assert long_sum([0.5, 1.0], accumulator_format=fmt) == 1
    assert fma(1.0, 1.0, 2.0, fmt) == 4
