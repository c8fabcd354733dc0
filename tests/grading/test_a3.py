"""The references of A3 against sums that the library computes in another way, and in fractions."""

from fractions import Fraction
from functools import partial

import corpus
import numpy as np
import pytest
from oracle import round_fraction

import mplab
from mplab import (
    BF16,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP16,
    FP32,
)
from mplab.arithmetic import reductions
from mplab.numbers import Format, Overflow, Rounding, decode

pytestmark = pytest.mark.slow

SMALL = (FP4_E2M1, FP6_E2M3, FP6_E3M2, Format("E3M2", exponent_bits=3, precision=3))
EIGHT = (FP8_E4M3, FP8_E5M2, FP8_E4M3FNUZ, Format("E3M4", exponent_bits=3, precision=5))
SUMS = (*EIGHT[:3], Format("E5M5", exponent_bits=5, precision=6), FP16, BF16)


def name_of(argument):
    return getattr(argument, "name", None)


reference = partial(corpus.reference, "a3")


def values(fmt):
    """All finite values from 0 up."""
    x = decode(np.arange(2 ** (fmt.bits - 1)), fmt)
    return np.unique(x[np.isfinite(x)])


def drawn(seed, fmt, count):
    rng = np.random.default_rng(seed)
    return mplab.round_to(
        rng.choice((-1, 1, 1), count) * 2.0 ** rng.uniform(-3, 3, count), fmt
    )


def in_fractions(x, fmt):
    return round_fraction(x, fmt, Rounding.TIES_TO_EVEN, Overflow.IEEE)


def added_up(start, steps, fmt):
    """One addition after another until none of the totals moves."""
    totals = np.full(len(steps), start)
    while True:
        after = mplab.round_to(totals + steps, fmt)
        if np.array_equal(after, totals, equal_nan=True):
            return totals
        totals = after


@pytest.mark.parametrize("fmt", [*SMALL, *EIGHT], ids=name_of)
def test_every_total_of_a_small_format_stops_where_the_reference_says(fmt):
    stall, steps = reference("stall"), values(fmt)[1:]
    for start in values(fmt):
        told = [stall(float(start), float(step), fmt) for step in steps]
        np.testing.assert_array_equal(told, added_up(float(start), steps, fmt))


def test_fp32_counts_to_sixteen_million():
    ones = np.ones(2**24 + 10, np.float32)
    assert reference("stall")(0.0, 1.0, FP32) == np.cumsum(ones)[-1] == 2**24


@pytest.mark.parametrize("fmt", SUMS, ids=name_of)
@pytest.mark.parametrize("lanes", [1, 2, 8])
def test_lanes_are_the_library_s_sums_met_in_bit_reversed_order(fmt, lanes):
    x = drawn(1, fmt, 8 * lanes)
    totals = reductions.sum(x.reshape(8, lanes), axis=0, accumulator_format=fmt)
    reversed_bits = [int(f"{i + lanes:b}"[:0:-1] or "0", 2) for i in range(lanes)]
    met = reductions.sum(
        totals[reversed_bits], accumulator_format=fmt, order="pairwise"
    )
    assert reference("lane_sum")(x, lanes, fmt) == met


@pytest.mark.parametrize("fmt", SUMS, ids=name_of)
def test_a_compensated_sum_is_kahan_s_and_goes_on_as_if_never_stopped(fmt):
    compensated, x = reference("compensated"), drawn(2, fmt, 60)
    whole = compensated(0.0, 0.0, x, fmt)
    assert whole[0] == reductions.sum(x, accumulator_format=fmt, order="kahan")
    for at in (0, 1, 17, 60):
        assert compensated(*compensated(0.0, 0.0, x[:at], fmt), x[at:], fmt) == whole


@pytest.mark.parametrize("fmt", SUMS, ids=name_of)
def test_groups_of_one_and_of_all_are_the_library_s_wide_and_narrow_dot_products(fmt):
    promoted, a, b = reference("promoted_dot"), drawn(3, fmt, 50), drawn(4, fmt, 50)
    narrow = reductions.dot(a, b, accumulator_format=fmt, product_format=fmt)
    wide = reductions.dot(a, b, accumulator_format=FP32, product_format=fmt)
    assert (
        promoted(a, b, 50, fmt, FP32) == narrow != wide == promoted(a, b, 1, fmt, FP32)
    )
    groups = [
        promoted(a[i : i + 8], b[i : i + 8], 8, fmt, FP32) for i in range(0, 50, 8)
    ]
    assert promoted(a, b, 8, fmt, FP32) == reductions.sum(
        np.array(groups), accumulator_format=FP32
    )


@pytest.mark.parametrize("fmt", SUMS, ids=name_of)
def test_running_means_round_every_step_as_fractions_do(fmt):
    x, mean = drawn(5, fmt, 60), 0.0
    for n, (term, shown) in enumerate(
        zip(x, reference("running_means")(x, fmt), strict=True), start=1
    ):
        difference = in_fractions(Fraction(term) - Fraction(mean), fmt)
        quotient = in_fractions(Fraction(difference) / n, fmt)
        mean = in_fractions(Fraction(mean) + Fraction(quotient), fmt)
        assert shown == mean


@pytest.mark.parametrize("size", [1.0, 1.001, 1.5, 1.999])
def test_a_bf16_sum_of_2048_equal_gradients_keeps_an_eighth_to_a_quarter(size):
    gradient = mplab.round_to(size, BF16)
    kept = reductions.sum(np.full(2048, gradient), accumulator_format=BF16) / (
        2048 * gradient
    )
    assert 1 / 8 <= kept < 1 / 4
    groups = reductions.sum(
        np.full((32, 64), gradient), axis=1, accumulator_format=BF16
    )
    promoted = reductions.sum(np.array(groups), accumulator_format=FP32)
    assert abs(promoted / (2048 * gradient) - 1) < 2**-6
