"""Operations in a format: all pairs of small formats, hard cases of large ones."""

import itertools
from decimal import Decimal
from fractions import Fraction
from math import inf, isfinite, nan

import cases
import exact_arithmetic as exact
import ml_dtypes
import numpy as np
import pytest
from cases import assert_same_bits
from tiers import mostly_slow

import mplab
from mplab import (
    FORMATS,
    FP8_E4M3,
    FP16,
    FP32,
    TF32,
    Event,
    Overflow,
    Rounding,
    Stream,
    Tininess,
)
from mplab.arithmetic import (
    add,
    divide,
    exp,
    fma,
    loops,
    multiply,
    raised,
    remainder,
    sqrt,
    subtract,
)
from mplab.arithmetic.operations import exact_sum_to_odd

OPERATIONS = {
    f.__name__: f for f in (add, subtract, multiply, divide, sqrt, fma, remainder)
}
COUNT = {"sqrt": 1, "fma": 3}
SMALL = [f for f in FORMATS.values() if f.bits <= 8 and hasattr(mplab, f.name)]
SMALL = [*(f for f in SMALL if f.name != "FP8_E8M0"), FORMATS["Binary8p3se"]]
LARGE = [mplab.FP16, mplab.BF16, mplab.TF32, mplab.FP32]

each_operation = pytest.mark.parametrize("name", OPERATIONS)
TWO = [Rounding.TIES_TO_EVEN, Rounding.TOWARD_NEGATIVE]
some_modes = pytest.mark.parametrize(
    "rounding", mostly_slow(exact.DETERMINISTIC, TWO), ids=lambda m: m.name
)
each_mode = pytest.mark.parametrize(
    "rounding", exact.DETERMINISTIC, ids=lambda m: m.name
)


def by_name(fmt):
    return fmt.name


def expected(name, operands, fmt, rounding, overflow=Overflow.IEEE):
    """The scalar oracle over arrays."""
    results = [
        exact.rounded(name, numbers, fmt, rounding, overflow)
        for numbers in zip(*(x.tolist() for x in operands), strict=True)
    ]
    return np.array(results)


# Every pair ----------------------------------------------------------------------------


@some_modes
@pytest.mark.parametrize("fmt", SMALL, ids=by_name)
@pytest.mark.parametrize("name", [n for n in OPERATIONS if n != "fma"])
def test_every_pair_of_a_small_format_is_rounded_correctly(name, fmt, rounding):
    all_values = mplab.values(fmt)
    operands = (
        [all_values]
        if name == "sqrt"
        else [x.ravel() for x in np.meshgrid(*[all_values] * 2)]
    )
    got = OPERATIONS[name](*operands, fmt, rounding=rounding)
    plain = np.all([np.isfinite(x) for x in operands], axis=0)
    if name == "divide":
        plain &= operands[1] != 0
    want = np.empty(got.shape)
    want[plain] = exact.pairs(name, fmt, rounding, *(x[plain] for x in operands))
    want[~plain] = expected(name, [x[~plain] for x in operands], fmt, rounding)
    assert_same_bits(got, want)


@some_modes
@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in ("fma", "sqrt")])
def test_pairs_of_powers_of_two_stay_powers_of_two(name, rounding):
    """E8M0 has neither zero nor sign; its sums span too many bits for the table oracle."""
    fmt = mplab.FP8_E8M0
    some = mplab.values(fmt)[np.r_[0:256:9, 250:256]]
    operands = [x.ravel() for x in np.meshgrid(some, some)]
    got = OPERATIONS[name](*operands, fmt, rounding=rounding)
    assert_same_bits(got, expected(name, operands, fmt, rounding))


@each_mode
def test_fma_is_rounded_correctly_for_every_triple_of_fp4_and_fp6(rounding):
    for fmt in (mplab.FP4_E2M1, mplab.FP6_E2M3, mplab.FP6_E3M2):
        operands = [x.ravel() for x in np.meshgrid(*[mplab.values(fmt)] * 3)]
        want = exact.pairs("fma", fmt, rounding, *operands)
        assert_same_bits(fma(*operands, fmt, rounding=rounding), want)


@pytest.mark.full
@each_mode
def test_fma_is_rounded_correctly_for_every_triple_of_e4m3(rounding):
    """Products are multiples of 2^−18 below 2^18, so their sums fit float64."""
    finite = mplab.values(FP8_E4M3)
    finite = finite[np.isfinite(finite)]
    b, c = (x.ravel() for x in np.meshgrid(finite, finite))
    for a in finite:
        many = np.full(b.shape, a)
        want = exact.pairs("fma", FP8_E4M3, rounding, many, b, c)
        assert_same_bits(fma(a, b, c, FP8_E4M3, rounding=rounding), want)


@each_mode
def test_fma_with_special_operands_follows_ieee_754(rounding):
    some = np.array([nan, inf, -inf, 0.0, -0.0, 1.0, -1.5, 57344.0, -(2.0**-16)])
    operands = [x.ravel() for x in np.meshgrid(*[some] * 3)]
    got = fma(*operands, mplab.FP8_E5M2, rounding=rounding)
    assert_same_bits(got, expected("fma", operands, mplab.FP8_E5M2, rounding))


@pytest.mark.slow
def test_events_of_every_pair_of_e5m2_are_those_of_the_oracle():
    """A fifth of the pairs per operation and mode, another fifth each time."""
    fmt = mplab.FP8_E5M2
    count = 0
    a, b = (x.ravel() for x in np.meshgrid(*[mplab.values(fmt)] * 2))
    for offset, rounding in enumerate(exact.DETERMINISTIC):
        for name in ("add", "multiply", "divide"):
            x = a[offset::23]
            y = b[offset::23]
            for tininess in Tininess:
                got = raised(
                    OPERATIONS[name], x, y, fmt, rounding=rounding, tininess=tininess
                )
                want = [
                    exact.exceptions(name, pair, fmt, rounding, tininess)
                    for pair in zip(x.tolist(), y.tolist(), strict=True)
                ]
                assert_same_bits(got, np.array(want, np.uint8))
                count += x.size
    assert count > 50_000


# Hard cases of the large formats --------------------------------------------------------


def spread(fmt, rng, count):
    """Values over the whole range of a format, evenly by code, the ends included."""
    positive = rng.integers(0, fmt.max_code + 1, count, endpoint=False)
    ends = [
        0,
        1,
        2,
        1 << (fmt.precision - 1),
        (1 << (fmt.precision - 1)) - 1,
        fmt.max_code,
    ]
    positive[: len(ends)] = ends
    # Decoding infinity, in a format as wide as float64.
    with np.errstate(over="ignore"):
        return mplab.decode(positive | (fmt.sign_code * rng.integers(0, 2, count)), fmt)


def near_one(fmt, rng, count):
    """Values within a few binades of 1, where sums and products of two interact."""
    significand = rng.integers(1 << (fmt.precision - 1), 1 << fmt.precision, count)
    sparse = significand & -(1 << rng.integers(0, fmt.precision, count))
    exponent = rng.integers(-3, 4, count) - fmt.precision
    return np.ldexp(
        np.where(rng.random(count) < 0.5, significand, sparse).astype(float), exponent
    )


def directed(name, fmt, rng, count):
    """Operands whose exact result lies near a value or a midpoint, on either side."""
    near = near_one(fmt, rng, count)
    half = near + mplab.ulp(near, fmt) / 2 * rng.integers(0, 2, count)
    a = near_one(fmt, rng, count) * np.where(rng.random(count) < 0.5, 1.0, -1.0)
    deep = rng.random(count) < 0.3
    # Products of two are subnormal.
    low = np.where(deep, 2.0 ** (fmt.emin // 2 + 1), 1.0)
    enter = lambda x: mplab.round_to(x, fmt)  # noqa: E731
    tiny = np.ldexp(
        near_one(fmt, rng, count), -rng.integers(fmt.precision - 3, 60, count)
    )
    match name:
        case "add" | "subtract":
            return [enter(half), enter(tiny * np.sign(a))]
        case "multiply":
            return [enter(a * low), enter(half / a * low)]
        case "divide":
            return [enter(half * a * low), enter(a / low)]
        case "sqrt":
            return [enter(half * half)]
        case "fma":
            x = enter(a * low)
            y = enter(half / a * low)
            return [x, y, enter(tiny * low * low)]
    return [enter(half * 3.0 ** rng.integers(0, 5, count)), enter(a)]


@some_modes
@each_operation
@pytest.mark.parametrize("fmt", mostly_slow(LARGE, [FP16, FP32]), ids=by_name)
def test_hard_cases_of_the_large_formats_are_rounded_correctly(fmt, name, rounding):
    rng = np.random.default_rng([LARGE.index(fmt), *name.encode(), rounding])
    count = COUNT.get(name, 2)
    cases = [
        [spread(fmt, rng, 150) for _ in range(count)],
        directed(name, fmt, rng, 600),
    ]
    operands = [np.concatenate(parts) for parts in zip(*cases, strict=True)]
    got = OPERATIONS[name](*operands, fmt, rounding=rounding)
    assert_same_bits(got, expected(name, operands, fmt, rounding))
    watched = OPERATIONS[name](*operands, fmt, rounding=rounding, tally=mplab.Tally())
    assert_same_bits(watched, got)


@pytest.mark.parametrize("fmt", mostly_slow(LARGE, [FP16]), ids=by_name)
def test_events_of_hard_cases_are_those_of_the_oracle(fmt):
    rng = np.random.default_rng(7)
    for name in OPERATIONS:
        for rounding in (Rounding.TIES_TO_EVEN, Rounding.TOWARD_POSITIVE):
            operands = directed(name, fmt, rng, 300)
            got = raised(OPERATIONS[name], *operands, fmt, rounding=rounding)
            want = [
                exact.exceptions(name, numbers, fmt, rounding, Tininess.AFTER)
                for numbers in zip(*(x.tolist() for x in operands), strict=True)
            ]
            assert_same_bits(got, np.array(want, np.uint8))


RARE = [
    *cases.ODD_FORMATS.values(),
    *cases.WIDER.values(),
    mplab.Format("E4M27", exponent_bits=4, precision=28, specials=mplab.Specials.NONE),
]


SOME = [f for f in RARE if f.name in ("E3M0", "UE4M3_NOZERO", "E11M20", "E4M27")]


@pytest.mark.parametrize("fmt", mostly_slow(RARE, SOME), ids=by_name)
def test_formats_that_nobody_ships_are_rounded_correctly_too(fmt):
    """Those as wide as float64 among them, whose products it cannot hold."""
    rng = np.random.default_rng(5)
    special = [
        x for x in (inf, -inf, 0.0, -0.0) if not differs(x, mplab.round_to(x, fmt))
    ]
    for name, rounding in itertools.product(OPERATIONS, exact.DETERMINISTIC):
        operands = [
            np.concatenate(
                [
                    spread(fmt, rng, 40),
                    mplab.round_to(near_one(fmt, rng, 40), fmt),
                    [nan, *special],
                ]
            )
            for _ in range(COUNT.get(name, 2))
        ]
        got = OPERATIONS[name](*operands, fmt, rounding=rounding)
        assert_same_bits(got, expected(name, operands, fmt, rounding))


def differs(x, y):
    return x != y or np.signbit(x) != np.signbit(y)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "sqrt"])
@pytest.mark.parametrize("dtype", mostly_slow([np.float16, np.float32], [np.float32]))
def test_a_million_results_agree_with_numpy(name, dtype):
    fmt = mplab.format_of(dtype)
    rng = np.random.default_rng(11)
    operands = [spread(fmt, rng, 1_000_000) for _ in range(COUNT.get(name, 2))]
    with np.errstate(all="ignore"):
        want = getattr(np, name)(*(x.astype(dtype) for x in operands)).astype(
            np.float64
        )
    assert_same_bits(OPERATIONS[name](*operands, fmt), want)


# Named counterexamples ------------------------------------------------------------------


def test_fma_through_a_wider_format_would_round_twice():
    for fmt, codes, right, wrong in (
        (FP32, (0x3F800800, 0x3F800800, 0x17800000), 0x3F801001, 0x3F801000),
        (FP16, (0x3C20, 0x3C10, 0x0001), 0x3C31, 0x3C30),
    ):
        a, b, c = mplab.decode(np.array(codes), fmt)
        assert mplab.encode(fma(a, b, c, fmt), fmt) == right
        wide = np.float64 if fmt is FP32 else np.float32
        assert (
            mplab.encode(mplab.round_to(wide(a) * wide(b) + wide(c), fmt), fmt) == wrong
        )


def test_tf32_product_through_float32_would_vanish():
    """Just over half the least subnormal: float32's own subnormals are too coarse to see it."""
    a, b = mplab.decode(np.array([0xE414, 0xEFD9]), TF32)
    assert mplab.encode(multiply(a, b, TF32), TF32) == 1
    assert mplab.round_to(np.float32(a) * np.float32(b), TF32) == 0


def test_directed_modes_need_more_than_a_wide_result_to_nearest():
    wide = 1.0 + 2.0**-60
    assert wide == 1.0
    assert add(1.0, 2.0**-60, FP32, rounding=Rounding.TOWARD_POSITIVE) == 1.0 + 2.0**-23
    assert mplab.round_to(wide, FP32, rounding=Rounding.TOWARD_POSITIVE) == 1.0


def test_a_sum_that_float64_cannot_hold_is_inexact():
    assert raised(add, 2.0**100, 2.0**-100, FP32) == Event.INEXACT
    assert mplab.events(2.0**100 + 2.0**-100, FP32) == 0


# Rules of IEEE 754 ----------------------------------------------------------------------


@each_mode
def test_the_sign_of_an_exact_zero_sum_depends_on_the_mode(rounding):
    sign = -1.0 if rounding is Rounding.TOWARD_NEGATIVE else 1.0
    options = {"rounding": rounding}
    assert np.copysign(1.0, subtract(1.5, 1.5, FP16, **options)) == sign
    assert np.copysign(1.0, add(0.0, -0.0, FP16, **options)) == sign
    assert np.copysign(1.0, fma(2.0, 3.0, -6.0, FP16, **options)) == sign
    assert np.copysign(1.0, add(0.0, 0.0, FP16, **options)) == 1.0
    assert np.copysign(1.0, add(-0.0, -0.0, FP16, **options)) == -1.0
    assert np.copysign(1.0, subtract(0.0, -0.0, FP16, **options)) == 1.0


def test_what_is_no_operation_is_told_what_is_one():
    for given in (np.add, "add", [1]):
        with pytest.raises(ValueError, match="must be one of add, subtract"):
            raised(given, 1.0, 2.0, FP16)


def test_numbers_give_a_number_by_every_rule_and_also_where_it_is_none():
    down = {"rounding": Rounding.TOWARD_NEGATIVE}
    for operation, operands in (
        (add, 2),
        (fma, 3),
        (sqrt, 1),
        (mplab.arithmetic.exp, 1),
    ):
        for x in (1.0, np.inf, np.array(2.0)):
            for rules in ({}, down):
                got = operation(*operands * [x], FP16, **rules)
                assert type(got) is np.float64, (operation, x, rules)


def test_invalid_operations_give_nan_and_say_so():
    for operation, operands in [
        (subtract, (inf, inf)),
        (multiply, (0.0, -inf)),
        (divide, (0.0, 0.0)),
        (divide, (inf, -inf)),
        (sqrt, (-1.0,)),
        (fma, (0.0, inf, 1.0)),
        (fma, (inf, 1.0, -inf)),
        (remainder, (1.0, 0.0)),
        (remainder, (inf, 1.0)),
    ]:
        assert np.isnan(operation(*operands, FP16)), operation
        assert raised(operation, *operands, FP16) == Event.INVALID, operation


QUIET_AND_SIGNALING = {
    np.float64: (
        0x7FF8 << 48,
        [(0x7FF0 << 48) + 1, (0x7FF4 << 48) + 3, (0xFFF7 << 48) + 5],
    ),
    np.float32: (0x7FC00000, [0x7F800001, 0x7FA00000, 0xFFBFFFFF]),
    np.float16: (0x7E00, [0x7C01, 0x7D00, 0xFDFF]),
    ml_dtypes.bfloat16: (0x7FC0, [0x7F81, 0x7FA0, 0xFFBF]),
}


@pytest.mark.parametrize("dtype", QUIET_AND_SIGNALING, ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("other", [1.0, 0.0, inf, nan])
def test_a_signaling_nan_operand_is_invalid_in_every_operation_and_place(dtype, other):
    code = f"u{np.dtype(dtype).itemsize}"
    quiet, signaling = QUIET_AND_SIGNALING[dtype]
    given = np.array([quiet, *signaling], code).view(dtype)
    for name, operation in OPERATIONS.items():
        for place in range(COUNT.get(name, 2)):
            operands = [np.full(4, other)] * COUNT.get(name, 2)
            operands[place] = given
            for fmt in (FP16, FP8_E4M3, mplab.FP4_E2M1):
                if other == inf and not fmt.has_infinity:
                    continue
                got = raised(operation, *operands, fmt)
                scalar = [
                    raised(operation, *(x[i] for x in operands), fmt) for i in range(4)
                ]
                how = fmt, Rounding.TIES_TO_EVEN, Tininess.AFTER
                wanted = [
                    exact.exceptions(
                        name, [float(x[i]) for x in operands], *how, signaling=i > 0
                    )
                    for i in range(4)
                ]
                assert got.tolist() == scalar == wanted, (name, place, fmt.name)
                assert np.isnan(operation(*operands, fmt)).all()


def test_a_signaling_nan_is_invalid_where_float64_is_too_narrow_and_for_decimals():
    wide = mplab.Format("E8M22", exponent_bits=8, precision=23)
    # Goes through Fractions.
    wider = mplab.Format("E11M20", exponent_bits=11, precision=21)
    signaling = np.array(0x7FF1 << 48).view(np.float64)
    for fmt in (wide, wider):
        assert raised(add, signaling, 1.0, fmt) == Event.INVALID
        assert raised(fma, np.zeros(2), np.full(2, inf), signaling, fmt).tolist() == [
            8,
            8,
        ]
    assert raised(add, Decimal("sNaN"), 1.0, FP16) == Event.INVALID
    assert raised(add, Decimal("NaN"), 1.0, FP16) == Event(0)


def test_division_by_zero_gives_an_infinity_of_the_right_sign():
    assert divide(1.0, -0.0, FP16) == -inf
    assert raised(divide, -1.0, 0.0, FP16) == Event.DIVIDE_BY_ZERO
    assert divide(inf, 0.0, FP16) == inf
    assert raised(divide, inf, 0.0, FP16) == Event(0)


def test_division_by_zero_without_infinity_gives_what_overflow_gives():
    assert np.isnan(divide(1.0, 0.0, FP8_E4M3))
    assert divide(-1.0, 0.0, FP8_E4M3, overflow=Overflow.SATURATE) == -448.0
    assert multiply(32.0, 16.0, FP8_E4M3, overflow=Overflow.SATURATE) == 448.0
    assert divide(1.0, 0.0, mplab.FP4_E2M1) == 6.0
    assert raised(divide, 1.0, 0.0, FP8_E4M3) == Event.DIVIDE_BY_ZERO


def test_flushing_takes_operands_and_results_apart():
    least = FP16.min_subnormal
    half = 0.5
    assert add(least, least, FP16) == 2 * least
    assert add(least, 1024 * least, FP16, flush_inputs=True) == FP16.min_normal
    assert (
        multiply(FP16.min_normal, half, FP16, flush_inputs=True) == FP16.min_normal / 2
    )
    assert multiply(FP16.min_normal, half, FP16, flush_outputs=True) == 0.0
    assert np.copysign(1.0, multiply(-least, 1.0, FP16, flush_inputs=True)) == -1.0


def test_a_tally_counts_results():
    counted = mplab.Tally()
    add(
        np.array([1.0, 2048.0, 65504.0]),
        np.array([1.0, 1.0, 65504.0]),
        FP16,
        tally=counted,
    )
    assert (counted.total, counted.exact, counted.inexact, counted.overflow) == (
        3,
        1,
        2,
        1,
    )


def test_stochastic_sums_are_right_on_average_and_repeatable():
    x = np.full(20_000, 2048.0)
    once = add(x, 0.5, FP16, rounding=Rounding.STOCHASTIC, stream=Stream(3))
    again = add(x, 0.5, FP16, rounding=Rounding.STOCHASTIC, stream=Stream(3))
    assert_same_bits(once, again)
    assert abs((once == 2050.0).mean() - 0.25) < 0.015
    with pytest.raises(ValueError, match="stream must be a Stream"):
        add(x, 1.0, FP16, rounding=Rounding.STOCHASTIC)


# Operands -------------------------------------------------------------------------------


def test_operands_that_are_no_values_of_the_format_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"multiply: b must hold values of FP8_E4M3; got 0\.1, be"
    ):
        multiply(1.0, np.array([1.0, 0.1]), FP8_E4M3)
    with pytest.raises(
        ValueError, match="add: a must hold values of FP8_E4M3; got inf"
    ):
        add(inf, 1.0, FP8_E4M3)
    with pytest.raises(
        ValueError, match=r"sqrt: a must hold values of FP8_E4M3FNUZ; got -0\.0"
    ):
        sqrt(-0.0, mplab.FP8_E4M3FNUZ)


def test_operands_broadcast_and_half_precision_arrays_are_taken():
    column = np.array([[1.0], [2.0]], np.float16)
    row = np.array([0.5, 0.25], np.float32)
    result = add(column, row, FP16)
    assert result.dtype == np.float64
    assert result.tolist() == [[1.5, 1.25], [2.5, 2.25]]
    assert isinstance(add(1.0, 1.0, FP16), np.float64)


# The exact sum, rounded to odd -----------------------------------------------------------


def to_odd(q):
    """The float64 that a Fraction is, or the neighbour on either side whose last bit is 1."""
    near = float(q)
    if Fraction(near) == q:
        return near
    other = float(np.nextafter(near, inf if q > near else -inf))
    return near if np.float64(near).view(np.int64) & 1 else other


def far_and_near():
    """Pairs of both signs, from equal to out of reach, among them ties and the ends of float64."""
    u = 2.0**-52
    heads = [1.0, 1.0 + u, 1.5, 2.0 - u, 2.0 - 2 * u]
    pairs = [
        (sign * x, y * 2.0**-k)
        for x, y, sign, k in itertools.product(heads, heads, (1.0, -1.0), range(112))
    ]
    largest = np.finfo(np.float64).max
    least = 5e-324
    pairs += [(largest, -x * 2.0**k) for x in heads for k in range(900, 1023, 3)]
    pairs += [(x * 2.0**-1022, n * least) for x in heads for n in (-3, -1, 1, 2)]
    x, y = np.array(pairs).T
    return np.r_[x, y], np.r_[y, x]


def test_a_sum_rounded_to_odd_is_that_of_fractions():
    """The vectors' function and the compiled loops' own, which must stay in their file."""
    x, y = far_and_near()
    sums = [
        Fraction(a) + Fraction(b) for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    want = np.array([to_odd(q) for q in sums])
    assert (
        np.sum([Fraction(s) != q for s, q in zip((x + y).tolist(), sums, strict=True)])
        > 5000
    )
    assert_same_bits(exact_sum_to_odd(x, y), want)
    for mode in Rounding:
        bits = [loops.to_odd(a, b, int(mode)) for a, b in zip(x, y, strict=True)]
        zero = -0.0 if mode is Rounding.TOWARD_NEGATIVE else 0.0
        got = np.array(bits, np.int64).view(np.float64)
        assert_same_bits(got, np.where(want == 0, zero, want))


def test_a_sum_rounded_to_odd_lets_special_values_through():
    x = np.array([inf, inf, -inf, nan, 1e308, 0.0, -0.0])
    y = np.array([1.0, -inf, -inf, 1.0, 1e308, -0.0, -0.0])
    want = np.array([inf, nan, -inf, nan, inf, 0.0, -0.0])
    assert_same_bits(exact_sum_to_odd(x, y), want)
    some = ~np.isnan(want)
    got = [
        loops.to_odd(a, b, int(Rounding.TIES_TO_EVEN))
        for a, b in zip(x, y, strict=True)
    ]
    assert_same_bits(np.array(got).view(np.float64)[some], want[some])


def test_the_oracle_s_two_layers_agree():
    rng = np.random.default_rng(2)
    fmt = mplab.FP8_E5M2
    finite = np.array([v for v in mplab.values(fmt).tolist() if isfinite(v)])
    for name in ("add", "subtract", "multiply", "divide", "remainder"):
        a = rng.choice(finite, 300)
        b = rng.choice(finite[finite != 0], 300)
        for rounding in exact.DETERMINISTIC:
            assert_same_bits(
                exact.pairs(name, fmt, rounding, a, b),
                expected(name, [a, b], fmt, rounding),
            )
    assert exact.exact_result("sqrt", 2.25) == Fraction(3, 2)


def test_results_past_float64_overflow_in_every_mode():
    """Only formats whose largest exponent is that of float64 have such results."""
    fmt = mplab.Format("E11M20", exponent_bits=11, precision=21)
    top = fmt.max_finite
    both = Event.OVERFLOW | Event.INEXACT
    for rounding in exact.DETERMINISTIC:
        for sign in (1, -1):
            assert raised(add, sign * top, sign * top, fmt, rounding=rounding) == both
            assert raised(multiply, sign * top, top, fmt, rounding=rounding) == both
    for seed in range(6):
        coin = {"rounding": Rounding.STOCHASTIC, "stream": Stream(seed, bits=1)}
        assert multiply(top, -top, fmt, **coin) == -inf
        assert raised(multiply, top, top, fmt, **coin) == both


def test_ordinary_numbers_of_a_format_as_wide_as_float64_need_no_fractions(monkeypatch):
    wide = cases.WIDER["E11M20"]
    x = mplab.round_to(np.random.default_rng(0).uniform(0.1, 9, 99), wide)
    operations = {**OPERATIONS, "exp": exp}

    def results():
        counts = {"exp": 1, **COUNT}
        return [f(*[x] * counts.get(n, 2), wide) for n, f in operations.items()]

    with monkeypatch.context() as patched:
        patched.setattr("mplab.arithmetic.operations._near_the_ends", lambda *_: True)
        slow = results()
    monkeypatch.setattr("mplab.arithmetic.operations.Fraction", None)
    for fast, expected in zip(results(), slow, strict=True):
        assert_same_bits(fast, expected)
