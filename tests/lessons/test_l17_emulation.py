"""FP64 products from low formats against products in Fractions; slices against integers."""

from builtins import sum as add_up
from fractions import Fraction
from functools import cache
from math import inf, nan

import numpy as np
import pytest
from cases import assert_same_bits

from mplab import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP8_E5M2,
    FP8_E8M0,
    FP16,
    TF32,
    Format,
    Rounding,
)
from mplab.arithmetic import ARCHITECTURES, MatrixUnit, mma
from mplab.lessons.l17.emulation import (
    _unit_bits,
    emulation_bound,
    matmul_fp64,
    slice_bits,
    split,
)

pytestmark = pytest.mark.slow

UNITS = (FP16, BF16, FP8_E4M3, "INT8", "moduli")
LIMIT = Fraction(2) ** -51
HALF_OF_THE_LEAST = Fraction(2) ** -1075
every_unit = pytest.mark.parametrize(
    "unit", UNITS, ids=lambda unit: getattr(unit, "name", unit)
)


def fractions(x):
    return [[Fraction(v) for v in row] for row in x.tolist()]


def dot(x, y):
    return add_up(p * q for p, q in zip(x, y, strict=True))


def exact(a, b):
    """The product as lists of Fractions."""
    columns = list(zip(*fractions(b), strict=True))
    return [[Fraction(dot(row, column)) for column in columns] for row in fractions(a)]


def spread(phi, seed=0, shape=(8, 24, 8)):
    rng = np.random.default_rng(seed)
    m, k, n = shape
    return [
        (rng.random(s) - 0.5) * np.exp(phi * rng.standard_normal(s))
        for s in ((m, k), (k, n))
    ]


def hidden(power, seed=0):
    """Numbers around 1 whose columns and rows are scaled by powers of two that cancel."""
    rng = np.random.default_rng(seed)
    scales = 2.0 ** rng.integers(-power, power + 1, 16)
    scales[:2] = 2.0**power, 2.0**-power
    return rng.standard_normal((4, 16)) * scales, rng.standard_normal((16, 4)) / scales[
        :, None
    ]


def tiny(exponent_of_a, exponent_of_b):
    a, b = spread(1)
    return np.ldexp(a, exponent_of_a), np.ldexp(b, exponent_of_b)


@cache
def cases():
    rng = np.random.default_rng(5)
    below_one = 1 - 2.0**-53
    return {
        "random": spread(0.5),
        "spread": spread(4),
        "ones": [np.ones((4, 64)), np.ones((64, 4))],
        "zeros": [np.zeros((3, 5)), spread(1)[1][:5]],
        "positive": [rng.random((4, 64)) / 2 + 0.5, rng.random((64, 4)) / 2 + 0.5],
        "worst": [np.full((2, 600), below_one), np.full((600, 2), below_one)],
        "hidden": hidden(20),
        "subnormal": tiny(-1070, 0),
        "underflow": tiny(-530, -540),
        "large": tiny(500, 510),
    }


def compared(a, b, **how):
    """The largest error over |a||b|·2^−51 and half the least number, and over the bound."""
    got = matmul_fp64(a, b, **how)
    bound = emulation_bound(a, b, **how)
    sizes = exact(abs(a), abs(b))
    worst = over_bound = Fraction(0)
    for i, row in enumerate(exact(a, b)):
        for j, want in enumerate(row):
            error = abs(Fraction(float(got[i, j])) - want)
            worst = max(worst, error / (LIMIT * sizes[i][j] + HALF_OF_THE_LEAST))
            over_bound = max(over_bound, error / Fraction(float(bound[i, j])))
    return worst, over_bound


# The promise -----------------------------------------------------------------------------
@every_unit
@pytest.mark.parametrize("case", cases())
def test_as_many_slices_as_needed_are_taken_and_the_bound_holds(case, unit):
    worst, over_bound = compared(*cases()[case], unit=unit)
    assert worst <= 1
    assert over_bound <= 1


EVERYWHERE = [
    (name, fmt)
    for name in ARCHITECTURES
    for fmt in FORMATS
    if fmt in ARCHITECTURES[name]
]


@pytest.mark.parametrize(("architecture", "fmt"), EVERYWHERE)
@pytest.mark.parametrize("case", ["random", "positive"])
def test_every_unit_of_every_architecture_makes_fifty_three_bits(
    architecture, fmt, case
):
    """Also those that round sums one by one, add in two lanes, or know no −0."""
    a, b = (
        x[:2] if side else x[:, :2]
        for side, x in zip((1, 0), cases()[case], strict=True)
    )
    how = {"unit": FORMATS[fmt], "architecture": architecture}
    worst, over_bound = compared(a, b, **how)
    assert worst <= 1
    assert over_bound <= 1
    # Hardware promotes sums to FP32 before a short accumulator is full: after each step at worst.
    bits = _unit_bits("", a.shape[1], *how.values())
    terms = ARCHITECTURES[architecture]
    every = {"input_format": FORMATS[fmt], "promote_every": terms[fmt].terms}
    for left in split(a, 6, bits)[0]:
        for right in split(b, 6, bits, axis=0)[0]:
            got = mma(left, right, architecture=architecture, **every)
            np.testing.assert_array_equal(got, left @ right)


@every_unit
@pytest.mark.parametrize("case", ["random", "spread", "positive", "hidden"])
def test_the_bound_holds_for_any_number_of_slices_and_is_no_idle_one(case, unit):
    a, b = cases()[case]
    for n in (1, 2, 3, 5, 8, 13):
        _, over_bound = compared(a, b, unit=unit, slices=n)
        assert over_bound <= 1
        if case == "random" and n < 4:
            assert over_bound > 1e-2


@pytest.mark.parametrize(("unit", "power"), [("INT8", 300), (FP16, 1000)])
def test_sizes_that_only_the_product_hides_cost_slices_and_no_digits(power, unit):
    a, b = hidden(power)
    assert max(compared(a, b, unit=unit)) <= 1
    if power < 1000:  # then the bound of six is no number
        assert compared(a, b, unit=unit, slices=6)[0] > 2**20


def test_no_slice_fewer_would_do():
    """The number that None chooses is the least whose bound is small enough."""
    a, b = cases()["spread"]
    for unit in UNITS:
        enough = 2.0**-51 * (abs(a) @ abs(b))
        n = 1
        while (emulation_bound(a, b, unit=unit, slices=n) > enough).any():
            n += 1
        chosen = matmul_fp64(a, b, unit=unit)
        assert_same_bits(chosen, matmul_fp64(a, b, unit=unit, slices=n))
        assert (chosen != matmul_fp64(a, b, unit=unit, slices=n - 1)).any()


def test_moduli_end_where_there_are_no_more_coprime_numbers_up_to_256():
    with pytest.raises(
        ValueError, match=r"^matmul_fp64: a and b must have entries of less .* 49"
    ):
        matmul_fp64(*hidden(120), unit="moduli")
    with pytest.raises(ValueError, match=r"^emulation_bound: slices must .*; got 50\."):
        emulation_bound(*hidden(1), unit="moduli", slices=50)


# How it is made --------------------------------------------------------------------------
def sliced(row, slices, bits):
    """One row in slices, by Python's own rounding of Fractions; the unit of the first, the rest."""
    top = max(abs(v) for v in row)
    unit = Fraction(2) ** (3 - bits)
    while 2 * top >= unit * 2**bits:
        unit *= 2
    while top and 4 * top < unit * 2**bits:
        unit /= 2
    parts = []
    rest = list(row)
    first = unit
    for _ in range(slices):
        parts.append([round(v / unit) for v in rest])
        rest = [v - p * unit for v, p in zip(rest, parts[-1], strict=True)]
        unit /= 2**bits
    return parts, first, rest


@pytest.mark.parametrize(("slices", "bits"), [(1, 1), (3, 4), (6, 10), (2, 200)])
def test_slices_are_those_of_integers_and_lose_nothing(slices, bits):
    ends = np.array([[1.7976931348623157e308, 5e-324, -1.0], [5e-324, -5e-324, 0.0]])
    for x in (
        spread(3)[0],
        ends,
        np.array([[0.5, 0.25, -1.5], [0.5 - 2.0**-54, 2.5, 3.5]]),
    ):
        parts, exponents, rest = split(x, slices, bits)
        assert exponents.shape == (len(x), 1)
        assert np.abs(parts).max() <= 2.0 ** (bits - 1)
        for i, row in enumerate(fractions(x)):
            want, unit, left = sliced(row, slices, bits)
            assert Fraction(2) ** int(exponents[i, 0]) == unit
            assert [[int(v) for v in part[i]] for part in parts] == want
            assert [Fraction(float(v)) for v in rest[i]] == left


@pytest.mark.parametrize("n", [1, 3, 6])
@every_unit
def test_the_product_is_that_of_the_slices_in_integers_rounded_once(unit, n):
    a, b = spread(2, shape=(5, 24, 4))
    if unit == "moduli":
        moduli = [256, 255, 253, 251, 247, 241][:n]
        room = (int(np.prod(np.array(moduli, object))) - 1) // (2 * 24)
        bits = next(q for q in range(200) if 4 ** (q + 1) > room) + 1
        n = 1
    else:
        bits = {"INT8": 7}.get(unit) or slice_bits(24, unit, 24)
    rows = [sliced(row, n, bits) for row in fractions(a)]
    columns = [sliced(column, n, bits) for column in fractions(b.T)]
    pairs = [(s, t) for s in range(n) for t in range(n - s)]

    def total(x, y):
        return add_up(
            dot(x[s], y[t]) / Fraction(2) ** (bits * (s + t)) for s, t in pairs
        )

    want = [[float(p * q * total(x, y)) for y, q, _ in columns] for x, p, _ in rows]
    count = len(moduli) if unit == "moduli" else n
    assert_same_bits(matmul_fp64(a, b, unit=unit, slices=count), np.array(want))


# Bits of a slice -------------------------------------------------------------------------
def test_bits_of_a_slice_are_the_most_that_format_and_accumulator_hold():
    for fmt in (FP16, BF16, TF32, FP8_E4M3, FP8_E5M2):
        for held in (14, 24, 31):
            for k in (1, 2, 3, 15, 16, 17, 64, 1000, 1024, 4096, 2**14):
                fits = [b for b in range(1, 40)
                        if k * 4 ** (b - 1) <= 2**held and b - 1 <= fmt.precision]  # fmt: skip
                assert slice_bits(k, fmt, held) == max(fits)
    with pytest.raises(
        ValueError, match=r"^slice_bits: k must be at most 2\^accumulator_bits"
    ):
        slice_bits(2**24 + 1, FP16, 24)


def test_a_format_that_lacks_integers_of_one_bit_has_no_slices():
    unsigned = Format("UE4M4", exponent_bits=4, precision=5, signed=False)
    steps_of_two = Format("E4M3", exponent_bits=4, precision=4, bias=-3)
    for fmt in (FP8_E8M0, unsigned, steps_of_two):
        with pytest.raises(ValueError, match=r"^slice_bits: fmt must hold -1, 0"):
            slice_bits(64, fmt, 24)


@pytest.mark.parametrize("fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2], ids=lambda f: f.name)
@pytest.mark.parametrize("k", [16, 64, 1000])
def test_so_many_bits_add_up_exactly_and_on_the_worst_integers_one_more_does_not(
    k, fmt
):
    """Of one more, unless the format itself is the limit, all-positive sums are wrong."""
    for architecture, units in ARCHITECTURES.items():
        if fmt.name not in units or not units[fmt.name].at_once:
            continue
        unit = units[fmt.name]
        held = min(unit.fraction_bits, unit.written_bits) + 1
        for bits in (slice_bits(k, fmt, held), slice_bits(k, fmt, held) + 1):
            top = 2 ** (bits - 1)
            if top > 2**fmt.precision:
                continue
            rng = np.random.default_rng(1)
            a = np.concatenate(
                [np.full((1, k), top), rng.integers(top // 2, top + 1, (15, k))]
            )
            a[1::2, ::3] *= -1
            a[0, -1] -= 1  # an odd sum
            b = np.full((k, 1), float(top - (bits > slice_bits(k, fmt, held))))
            b = np.where(b < 1, 1.0, b)
            got = mma(a.astype(float), b, architecture=architecture, input_format=fmt)
            wrong = (got != a @ b).mean()
            assert wrong == 0 if bits == slice_bits(k, fmt, held) else wrong > 0


def test_sums_leave_a_short_accumulator_in_time():
    """FP8 on Hopper keeps 14 bits: with 1,024 positive terms, slices of 5 bits need promotion."""
    rng = np.random.default_rng(4)
    a = rng.random((3, 1024)) / 2 + 0.5
    b = rng.random((1024, 3)) / 2 + 0.5
    results = [
        matmul_fp64(a, b, unit=FP8_E4M3, architecture=architecture, slices=6)
        for architecture in ("hopper", "blackwell")
    ]
    assert_same_bits(*results)


def test_a_unit_of_one_s_own_is_taken():
    a, b = cases()["positive"]
    for unit in (
        MatrixUnit(4, 13, written_bits=11),
        MatrixUnit(32, 30, alignment=Rounding.TIES_TO_EVEN),
    ):
        assert max(compared(a, b, unit=FP8_E4M3, architecture=unit)) <= 1
    with pytest.raises(ValueError, match=r"^matmul_fp64: a must have at most"):
        matmul_fp64(a, b, architecture=MatrixUnit(64, 4))


# Special values --------------------------------------------------------------------------
@every_unit
def test_special_values_are_those_of_ieee_754(unit):
    a = np.array([[inf, 1.0], [-inf, inf], [0.0, nan], [1.0, -1.0], [0.0, -0.0]])
    b = np.array([[1.0, 0.0, -2.0, inf], [1.0, 1.0, inf, inf]])
    want = [
        [inf, nan, nan, inf],
        [nan, nan, inf, nan],
        [nan] * 4,
        [0.0, -1.0, -inf, nan],
        [0.0, 0.0, nan, nan],
    ]
    np.testing.assert_array_equal(matmul_fp64(a, b, unit=unit), want)
    assert not np.signbit(matmul_fp64(a, b, unit=unit)[3:5, 0]).any()
    largest = np.finfo(float).max
    for x, y, result in (
        ([[largest, largest]], [[1.0], [1.0]], inf),
        ([[largest, largest]], [[-1.0], [-1.0]], -inf),
        ([[largest, largest, -largest]], [[1.0], [1.0], [1.0]], largest),
        ([[1e150, -1e-150]], [[-1e160], [1e160]], -inf),  # and past any integer's float
        ([[largest, 2.0**970]], [[1.0], [1.0]], inf),  # a tie, which goes up
        ([[largest, 2.0**969]], [[1.0], [1.0]], largest),
        ([[largest, inf]], [[largest], [-1.0]], -inf),
        ([[5e-324]], [[0.5]], 0.0),  # a tie, which goes to even
        ([[1.5e-323]], [[0.5]], 1e-323),
    ):
        assert matmul_fp64(x, y, unit=unit, slices=20)[0, 0] == result


def test_empty_matrices_have_empty_or_zero_products():
    for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0)):
        for unit in UNITS:
            got = matmul_fp64(np.ones((m, k)), np.ones((k, n)), unit=unit)
            assert got.shape == (m, n)
            assert not got.any()
