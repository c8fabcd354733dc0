"""Elementary functions beside MPFR: every value of small formats, hard cases of FP32."""

from fractions import Fraction
from math import inf, nan

import cases
import exact_arithmetic as exact
import gmpy2
import numpy as np
import oracle
import pytest
from cases import assert_same_bits
from flushing import where_subnormals_are_flushed
from tiers import mostly_slow

import mplab
from mplab import (
    BF16,
    FP16,
    FP32,
    TF32,
    Event,
    Overflow,
    Rounding,
    Tininess,
    arithmetic,
)
from mplab.arithmetic import elementary, raised

NAMES = ["exp", "exp2", "log", "log2", "sin", "cos", "tanh"]
SMALL = [f for f in mplab.FORMATS.values() if f.bits <= 8 and f.name != "MXINT8"]
each_function = pytest.mark.parametrize("name", NAMES)
some_functions = pytest.mark.parametrize("name", mostly_slow(NAMES, ["sin"]))


IEEE = {  # where MPFR has the mode, it rounds to FP32 itself
    Rounding.TIES_TO_EVEN: gmpy2.RoundToNearest,
    Rounding.TOWARD_ZERO: gmpy2.RoundToZero,
    Rounding.TOWARD_POSITIVE: gmpy2.RoundUp,
    Rounding.TOWARD_NEGATIVE: gmpy2.RoundDown,
}


def mpfr(name, x, bits, emin, emax, rounding=gmpy2.RoundToZero):
    """The results of MPFR with so many bits, and which of them are inexact."""
    how = {
        "precision": bits,
        "emin": emin,
        "emax": emax,
        "subnormalize": True,
        "round": rounding,
    }
    with gmpy2.context(**how):
        results = [getattr(gmpy2, name)(gmpy2.mpfr(v, 53)) for v in x.tolist()]
    return results, np.array([y.rc != 0 for y in results])


def to_odd(name, x):
    """The exact results, rounded to odd in float64 by MPFR."""
    results, inexact = mpfr(name, x, 53, -1073, 1024)
    return (np.array([float(y) for y in results]).view(np.int64) | inexact).view(
        np.float64
    )


def assert_rounded(name, x, fmt):
    """In every mode: the results of MPFR, placed among the values of the format by comparison."""
    place = oracle.table_of(fmt).place(to_odd(name, x))
    for mode in exact.DETERMINISTIC:
        got = getattr(arithmetic, name)(x, fmt, rounding=mode)
        assert_same_bits(got, place.round(mode, Overflow.IEEE))


def assert_rounded_to_fp32(name, x):
    for mode, rounding in IEEE.items():
        got = getattr(arithmetic, name)(x, FP32, rounding=mode)
        want = [float(y) for y in mpfr(name, x, 24, -148, 128, rounding)[0]]
        assert_same_bits(got, np.array(want))


@each_function
def test_every_value_of_the_8_bit_formats_is_rounded_correctly(name):
    for fmt in SMALL:
        assert_rounded(name, mplab.values(fmt), fmt)


@pytest.mark.parametrize(
    "fmt", mostly_slow([FP16, BF16, TF32], [FP16]), ids=lambda f: f.name
)
@some_functions
def test_every_value_of_a_16_bit_format_is_rounded_correctly(name, fmt):
    assert_rounded(name, mplab.values(fmt), fmt)


def hard(name, count, seed):
    """Values of FP32 whose results, of several million, are nearest to a value or midpoint."""
    rng = np.random.default_rng(seed)
    kept = []
    for _ in range(4):
        anywhere = mplab.decode(rng.integers(0, 1 << 32, 1 << 19), FP32)
        x = np.concatenate(
            [anywhere, mplab.round_to(rng.standard_normal(1 << 19) * 8, FP32)]
        )
        with np.errstate(all="ignore"):
            y = np.asarray(getattr(np, name)(x))
        rest = y.view(np.int64) % (1 << 27)
        near = np.where(
            np.isfinite(y) & (y != 0), np.minimum(rest, (1 << 27) - rest), 1 << 27
        )
        kept.append(x[np.argsort(near)[: count // 8]])
        kept.append(rng.choice(x[~np.isnan(x)], count // 8))
    return np.concatenate(kept)


@some_functions
def test_hard_cases_of_fp32_are_rounded_correctly(name):
    assert_rounded_to_fp32(name, hard(name, 8000, seed=1))


@pytest.mark.full
@each_function
def test_more_hard_cases_of_fp32_are_rounded_correctly(name):
    for seed in range(2, 12):
        assert_rounded_to_fp32(name, hard(name, 80_000, seed))


@each_function
def test_formats_too_wide_for_float64_go_through_fractions(name):
    wide = [
        f
        for f in [*cases.WIDER.values(), *cases.ODD_FORMATS.values()]
        if f.precision > 20
    ]
    rng = np.random.default_rng(3)
    assert wide
    for fmt in wide:
        ends = [
            fmt.max_finite,
            -fmt.max_finite,
            fmt.min_normal,
            1.0,
            2.0,
            3.0,
            0.5,
            -0.0,
        ]
        x = mplab.round_to(np.concatenate([rng.standard_normal(20) * 4, ends]), fmt)
        results, inexact = mpfr(name, x, 100, -(1 << 40), 1 << 40)
        for mode in exact.DETERMINISTIC:
            got = getattr(arithmetic, name)(x, fmt, rounding=mode)
            for at, y in enumerate(results):
                if gmpy2.is_finite(y) and y != 0 and abs(gmpy2.get_exp(y)) < 5000:
                    numerator, denominator = (
                        int(part) for part in y.as_integer_ratio()
                    )
                    q = Fraction(numerator, denominator)
                    q *= 1 + Fraction(int(inexact[at]), 1 << 110)
                    want = oracle.round_fraction(q, fmt, mode, Overflow.IEEE)
                    assert_same_bits(got[at], np.float64(want))


@each_function
def test_exceptions_are_those_of_the_exact_results(name):
    x = mplab.values(FP16)[::61]
    wide = to_odd(name, x)
    for mode in (Rounding.TIES_TO_EVEN, Rounding.TOWARD_ZERO):
        got = raised(getattr(arithmetic, name), x, FP16, rounding=mode)
        for number, y, flags in zip(
            x.tolist(), wide.tolist(), got.tolist(), strict=True
        ):
            if np.isnan(y):
                want = 0 if np.isnan(number) else Event.INVALID
            elif number == 0 and np.isinf(y):
                want = Event.DIVIDE_BY_ZERO
            else:
                y = y if np.isinf(y) else Fraction(y) if y else y
                want = oracle.events_of(y, FP16, mode, Overflow.IEEE, Tininess.AFTER)
            assert flags == want, (number, y)


def test_special_values_follow_ieee_754():
    special = np.array([nan, inf, -inf, 0.0, -0.0])
    for name, want in {
        "exp": [nan, inf, 0.0, 1.0, 1.0],
        "exp2": [nan, inf, 0.0, 1.0, 1.0],
        "log": [nan, inf, nan, -inf, -inf],
        "log2": [nan, inf, nan, -inf, -inf],
        "sin": [nan, nan, nan, 0.0, -0.0],
        "cos": [nan, nan, nan, 1.0, 1.0],
        "tanh": [nan, 1.0, -1.0, 0.0, -0.0],
    }.items():
        for mode in exact.DETERMINISTIC:
            got = getattr(arithmetic, name)(special, FP16, rounding=mode)
            assert_same_bits(got, np.array(want))
    assert float(arithmetic.tanh(np.inf, BF16, rounding=Rounding.TOWARD_ZERO)) == 1.0


@pytest.mark.parametrize(
    ("name", "x", "fmt"),
    [("exp", 1.0, FP16), ("sin", 2.0**-13, FP32), ("cos", 2.0**-15, FP32)],
)
def test_stochastic_rounding_takes_the_two_neighbours_in_proportion(name, x, fmt):
    how = {"rounding": Rounding.STOCHASTIC, "stream": mplab.Stream(5)}
    many = getattr(arithmetic, name)(np.full(1 << 16, x), fmt, **how)
    low, high = np.unique(many)
    assert high == mplab.next_up(low, fmt)
    wanted = (getattr(np, name)(x) - low) / (high - low)
    assert 0 < wanted < 1 and abs((many == high).mean() - wanted) < 4 / 2**8 / 2


@each_function
def test_results_beside_a_known_number_need_no_further_bits(name, monkeypatch):
    """Where they leave it, at 2^-46 or 2^-22, the float64 result lies at the bound of its error."""
    rng, asked = np.random.default_rng(3), []
    kind = elementary.Elementary
    exact_result = kind.exact

    def counted(function, x):
        asked.append(x)
        return exact_result(function, x)

    monkeypatch.setattr(kind, "exact", counted)
    near = [np.exp2(k) * rng.uniform(1, 2, 200) for k in (-47, -46, -45, -44, -23, -22)]
    x = mplab.round_to(np.concatenate(near), FP32)
    for mode, rounding in IEEE.items():
        want, _ = mpfr(name, x, 24, -148, 128, rounding)
        got = getattr(arithmetic, name)(x, FP32, rounding=mode)
        assert_same_bits(got, np.array([float(y) for y in want]))
    assert len(asked) < 20


def test_the_least_powers_of_two_are_not_lost_where_a_thread_flushes_subnormals():
    """2^-1024 became 0 before it was rounded."""
    up = {"rounding": Rounding.TOWARD_POSITIVE}
    found = where_subnormals_are_flushed(
        lambda: mplab.arithmetic.exp2(-1024.0, BF16, **up)
    )
    assert found == BF16.min_subnormal
