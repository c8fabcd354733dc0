"""The table of matrix units, and the units that are not NVIDIA's oldest against an oracle."""

import math
from dataclasses import replace

import matrix_oracle
import numpy as np
import pytest
from cases import assert_same_bits

import mplab
from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Rounding
from mplab.arithmetic import ARCHITECTURES, MatrixUnit, mma, unit_of
from mplab.numbers import (
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3FNUZ,
    FP8_E5M2FNUZ,
    FP8_E8M0,
)

KINDS = ["near", "far", "low", "high", "cancel", "codes"]

FUSED = MatrixUnit(1, None)
EVEN = Rounding.TIES_TO_EVEN

OF_CDNA3 = {"writing": EVEN, "sum_bits": 31}

AMPERE = {"FP16": (8, 24), "BF16": (8, 24), "TF32": (4, 24), "FP64": (1, None)}
HOPPER = {"FP16": (16, 25), "BF16": (16, 25), "TF32": (8, 25), "FP64": (1, None)}
EIGHT = ("FP8_E4M3", "FP8_E5M2")
SIX = ("FP6_E3M2", "FP6_E2M3")
BLACKWELL = {
    **HOPPER,
    **dict.fromkeys((*EIGHT, *SIX, "FP4_E2M1"), (32, 25)),
    **dict.fromkeys((f"{name} * FP8_E8M0" for name in (*EIGHT, *SIX)), (32, 25)),
    **dict.fromkeys(
        ("FP4_E2M1 * FP8_E8M0", "FP4_E2M1 * FP8_E4M3"), (64, 35, {"group": 16})
    ),
}
EXPECTED = {  # terms, fraction bits, other parameters: typed again, from the papers
    "volta": {"FP16": (4, 23)},
    "turing": {"FP16": (8, 24)},
    "ampere": AMPERE,
    "ada": {**AMPERE, **dict.fromkeys(EIGHT, (16, 13, {"written_bits": 13}))},
    "hopper": {**HOPPER, **dict.fromkeys(EIGHT, (32, 13, {"written_bits": 13}))},
    "blackwell": BLACKWELL,
    "rtx_blackwell": BLACKWELL,
    "cdna1": {"FP32": (1, None), "FP16": (4, None), "BF16": (2, None)},
    "cdna2": {"FP32": (1, None), "FP16": (4, None, {"flush": True}),
              "BF16": (4, None, {"flush": True}), "FP64": (1, None)},
    "cdna3": {"FP32": (1, None), "FP16": (8, 24, OF_CDNA3), "BF16": (8, 24, OF_CDNA3),
              "TF32": (4, 24, OF_CDNA3), "FP8_E4M3FNUZ": (16, 24, OF_CDNA3 | {"lanes": 2}),
              "FP8_E5M2FNUZ": (16, 24, OF_CDNA3 | {"lanes": 2}), "FP64": (1, None)},
}  # fmt: skip


def test_the_table_of_units_is_that_of_the_papers():
    found = {
        name: {
            key: MatrixUnit(terms, bits, **(more[0] if more else {}))
            for key, (terms, bits, *more) in units.items()
        }
        for name, units in EXPECTED.items()
    }
    assert found == ARCHITECTURES


# Against the oracle ------------------------------------------------------------------------


def random(*seed):
    return np.random.default_rng(list("/".join(map(str, seed)).encode()))


def slow_unless(fast, rows):
    """Rows of parameters; all but the first `fast` are for the slow tests."""
    marks = [()] * fast + [pytest.mark.slow] * (len(rows) - fast)
    return [
        pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)
    ]


FUSING = [
    ("hopper", "FP64"),
    ("cdna1", "FP32"),
    ("cdna2", "FP32"),
    ("cdna3", "FP32"),
    *[
        (x, "FP64")
        for x in ("ampere", "ada", "blackwell", "rtx_blackwell", "cdna2", "cdna3")
    ],
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("architecture", "name"), slow_unless(2, FUSING))
def test_fp64_and_fp32_are_one_fused_multiply_add_after_the_other(
    architecture, name, kind
):
    double = name == "FP64"
    facts, fmt = (matrix_oracle.Double(), float) if double else (FP32, FP32)
    a, b, c = matrix_oracle.block(
        kind, (facts, facts), facts, random(architecture, name, kind), (6, 9, 5)
    )
    got = mma(a, b, c, architecture=architecture, input_format=fmt, output_format=fmt)
    want = matrix_oracle.chained(
        a, b, c, 1, lambda x, y, z, _: matrix_oracle.fused(*x, *y, z, facts)
    )
    assert_same_bits(got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("architecture", "fmt", "terms"),
    [("cdna1", FP16, 4), ("cdna1", BF16, 2), ("cdna2", FP16, 4), ("cdna2", BF16, 4)],
)
def test_cdna1_and_cdna2_round_every_sum_and_cdna2_flushes(
    architecture, fmt, terms, kind
):
    a, b, c = matrix_oracle.block(
        kind, (fmt, fmt), FP32, random(architecture, fmt.name, kind), (5, 22, 5)
    )
    flush = architecture == "cdna2"
    x, y, z = (
        np.where(np.abs(v) < f.min_normal, 0.0, v) if flush else v
        for v, f in ((a, fmt), (b, fmt), (c, FP32))
    )
    want = matrix_oracle.chained(
        x, y, z, terms, lambda x, y, z, _: matrix_oracle.in_pairs(x, y, z, terms, flush)
    )
    assert_same_bits(mma(a, b, c, architecture=architecture, input_format=fmt), want)


OF_CDNA3_UNITS = [
    ((FP16, FP16), 8),
    ((BF16, BF16), 8),
    ((TF32, TF32), 4),
    *[
        ((x, y), 16)
        for x in (FP8_E4M3FNUZ, FP8_E5M2FNUZ)
        for y in (FP8_E4M3FNUZ, FP8_E5M2FNUZ)
    ],
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fmts", "terms"), OF_CDNA3_UNITS)
def test_cdna3_adds_products_first_and_rounds_down(fmts, terms, kind):
    a, b, c = matrix_oracle.block(kind, fmts, FP32, random(*fmts, kind), (5, 38, 5))
    lanes = 1 + (terms == 16)
    want = matrix_oracle.chained(
        a,
        b,
        c,
        terms,
        lambda x, y, z, _: matrix_oracle.products_first(x, y, z, fmts, lanes),
    )
    assert_same_bits(mma(a, b, c, architecture="cdna3", input_format=fmts), want)


SMALL = (FP8_E4M3, FP8_E5M2, FP6_E3M2, FP6_E2M3, FP4_E2M1)
MIXED = [
    ("hopper", (0, 1)),
    ("hopper", (1, 0)),
    ("blackwell", (4, 1)),
    ("blackwell", (2, 3)),
    ("ada", (0, 1)),
    ("ada", (1, 0)),
    *[("blackwell", (x, y)) for x in range(5) for y in range(5)],
]


@pytest.mark.parametrize(("architecture", "places"), slow_unless(4, MIXED))
def test_small_formats_are_mixed_each_with_its_own_least_exponent(architecture, places):
    fmts = tuple(SMALL[place] for place in places)
    unit = ARCHITECTURES[architecture]["FP8_E4M3"]
    facts = unit.terms, unit.fraction_bits, unit.written_bits
    for kind in KINDS:
        for output in (FP32, FP16):
            a, b, c = matrix_oracle.block(
                kind, fmts, output, random(architecture, *fmts, kind), (2, 37, 2)
            )

            def step(x, y, z, _, output=output):
                return matrix_oracle.one_step(x, y, z, fmts, output, *facts)

            how = {
                "architecture": architecture,
                "input_format": fmts,
                "output_format": output,
            }
            assert_same_bits(
                mma(a, b, c, **how), matrix_oracle.chained(a, b, c, unit.terms, step)
            )


def scales_of(kind, fmt, shape, rng):
    """Scales of blocks, with NaN among them in one kind, and zeros in E4M3."""
    if fmt is FP8_E4M3:
        found = np.abs(matrix_oracle.codes(fmt, shape, rng))
        return np.where(np.isnan(found) & (kind != "codes"), 0.0, found)
    if kind == "codes":
        return matrix_oracle.codes(fmt, shape, rng)
    spread, centre = {"far": (40, 0), "low": (4, -120), "high": (8, 60)}.get(
        kind, (3, 0)
    )
    return 2.0 ** np.clip(rng.integers(-spread, spread + 1, shape) + centre, -127, 127)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", SMALL)
def test_scales_of_mx_shift_the_exponents_of_their_blocks(left, kind):
    for right in SMALL[: 5 - (left is FP4_E2M1)]:
        rng = random("mx", left, right, kind)
        fmts = left, right
        a, b, c = matrix_oracle.block(kind, fmts, FP32, rng, (2, 64, 2))
        s, t = (scales_of(kind, FP8_E8M0, (2, 2), rng) for _ in "ab")

        def step(x, y, z, at, s=s, t=t, fmts=fmts):
            i, j, k = at
            scales = [(s[i, k // 32], t[k // 32, j])] * len(x)
            return matrix_oracle.one_step(
                x, y, z, fmts, FP32, 32, 25, 23, scales=scales
            )

        got = mma(
            a, b, c, architecture="rtx_blackwell", input_format=fmts, scales=(s, t)
        )
        assert_same_bits(got, matrix_oracle.chained(a, b, c, 32, step))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", [16, 32])
@pytest.mark.parametrize("fmt", [FP8_E8M0, FP8_E4M3])
def test_fp4_with_scales_is_added_by_sixteen_and_aligned_by_its_scales(fmt, wide, kind):
    rng = random("fp4", fmt, wide, kind)
    a, b, c = matrix_oracle.block(kind, (FP4_E2M1, FP4_E2M1), FP32, rng, (4, 160, 4))
    s, t = (scales_of(kind, fmt, p, rng) for p in ((4, 160 // wide), (160 // wide, 4)))
    how = {"architecture": "blackwell", "input_format": FP4_E2M1, "scale_format": fmt}

    def step(x, y, z, at):
        i, j, k = at
        scales = [(s[i, p // wide], t[p // wide, j]) for p in range(k, k + len(x))]
        return matrix_oracle.groups_of_sixteen(x, y, z, scales, fmt)

    assert_same_bits(
        mma(a, b, c, scales=(s, t), **how), matrix_oracle.chained(a, b, c, 64, step)
    )


# Rules -------------------------------------------------------------------------------------


def row(*terms):
    return np.array(terms)[None, :]


def test_a_group_of_zeros_is_aligned_by_its_scale_and_a_scale_of_zero_is_not():
    a = np.zeros((1, 32))
    b = np.ones((32, 1))
    a[0, 16] = 0.5
    how = {"architecture": "blackwell", "input_format": FP4_E2M1}
    for large, answer in ((2.0**19, 2.0**-16), (2.0**20, 0.0)):
        scales = row(large, 2.0**-15), np.ones((2, 1))
        assert mma(a, b, scales=scales, **how) == answer
    scales = row(0.0, 2.0**-6), row(448.0, 1.0).T
    assert mma(a, b, scales=scales, scale_format=FP8_E4M3, **how) == 2.0**-7


def test_cdna3_in_fp8_drops_c_from_26_bits_below_and_rounds_it_down_before():
    below = 1 - 2.0**-24
    for exponent, eight, sixteen in (
        (-24, below, below),
        (-25, below, below),
        (-26, 1.0, below),
    ):
        c = row(-(2.0**exponent))
        for fmt, answer in ((FP8_E4M3FNUZ, eight), (FP16, sixteen)):
            got = mma(row(1.0), row(1.0), c, architecture="cdna3", input_format=fmt)
            assert got == answer


def test_a_product_past_fp32_is_infinite_in_cdna3_beside_other_infinities_too():
    big, inf = 2.0**127, math.inf
    for a, b, c, want in (
        ([[big]], [[big]], -inf, math.nan),
        ([[-big]], [[big]], -inf, -inf),
        ([[big, -inf]], [[big], [1.0]], 0.0, math.nan),
        ([[big, inf]], [[big], [1.0]], 0.0, inf),
    ):
        got = mma(a, b, [[c]], architecture="cdna3", input_format=BF16)
        np.testing.assert_array_equal(got, [[want]])


def test_the_switches_of_cdna3_are_those_of_the_other_units():
    def product(a, b, **switches):
        unit = replace(unit_of("cdna3", BF16), **switches)
        return mma(a, b, architecture=unit, input_format=BF16)

    zero = row(0.0, 2.0**-60)
    tiny = row(2.0**100, 1.0).T
    assert product(zero, tiny) == 2.0**-60
    assert product(zero, tiny, zeros_align=True) == 0.0
    least = row(*[2.0**-79] * 8), row(*[2.0**-79] * 8).T  # eight times 2^-158
    assert product(*least) == product(*least, exponent_floor=None) == 0.0
    down = row(-(2.0**-79)), row(2.0**-79)
    assert_same_bits(product(*down), [[-0.0]])
    assert_same_bits(product(*down, signed_underflow=False), [[0.0]])


def test_a_fused_zero_has_the_sign_of_ieee_754():
    zero = row(0.0)
    minus = row(-0.0)
    for architecture, fmt in (("hopper", float), ("cdna1", FP32)):
        how = {"architecture": architecture, "input_format": fmt, "output_format": fmt}
        assert_same_bits(mma(minus, row(1.0), minus, **how), minus)
        assert_same_bits(mma(minus, row(1.0), zero, **how), zero)
        assert_same_bits(mma(row(1.0), row(1.0), row(-1.0), **how), zero)


def test_promotion_is_outside_every_unit():
    a = row(1.0, 2.0**-13)
    how = {"architecture": "cdna1", "input_format": BF16}
    assert mma(a, a.T, promote_every=2, **how) == 1.0
    x = row(1 + 2.0**-52)
    how = {"input_format": float, "output_format": float}
    assert mma(x, x, -(x * x), **how) == 2.0**-104
    assert mma(x, x, -(x * x), promote_every=1, **how) == 0.0


def test_what_a_gpu_does_not_have_is_refused_with_what_there_is():
    one = np.ones((1, 1))
    wide = mplab.Format("wide", exponent_bits=9, precision=8)
    double = {"input_format": float, "output_format": float}
    for message, how in {
        "one of FP32, FP16, BF16 on cdna1; got FP64": {"architecture": "cdna1", **double},
        "of at most 8 bits; got FP16, FP8_E4M3": {"input_format": (FP8_E4M3, FP16)},
        "got FP16, BF16": {"input_format": (FP16, BF16)},
        "output_format must be FP32; got <Format FP16": {
            "architecture": "cdna1", "output_format": FP16,
        },
        "output_format must be float; got <Format FP32": {"input_format": float},
        "must be one that multiplies FP64": {"architecture": MatrixUnit(4, 23), **double},
        r"must have products that are exact .* at most 24": {
            "architecture": MatrixUnit(4, None), "input_format": wide,
        },
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            mma(one, one, **how)
    with pytest.raises(
        ValueError, match=r"FP8_E4M3 \* FP8_E8M0, .*; got FP8_E4M3 \* FP8_E4M3"
    ):
        unit_of("blackwell", FP8_E4M3, scale_format=FP8_E4M3)
    with pytest.raises(ValueError, match=r"got FP16\. Choose another"):
        unit_of("hopper", mplab.Format("FP16", exponent_bits=5, precision=8))
    same = mplab.Format("FP16", exponent_bits=5, precision=11)
    assert unit_of("hopper", same) == unit_of("hopper", FP16)
    assert unit_of("volta", FP16) and unit_of("ampere", mplab.FP64)


def test_scales_are_checked():
    a = np.ones((1, 32))
    one = np.ones((1, 1))
    two = np.ones((1, 2))
    for message, how in {
        r"block 32 or 16, beside .* got \(1, 1\) and \(2, 1\)": {"scales": (one, two.T)},
        "block 32, beside operands": {"input_format": FP8_E4M3, "scales": (two, two.T)},
        r"scales must hold values of UE4M3; got -1\.0": {
            "scales": (-one, one), "scale_format": FP8_E4M3,
        },
        "scales must be given, for operands in FP4_E2M1 with this": {
            "architecture": MatrixUnit(64, 35, group=16),
        },
        "scales must be None or in FP8_E8M0 with this unit": {
            "architecture": MatrixUnit(4, 23), "scales": (one, one), "scale_format": FP8_E4M3,
        },
        "scales must be None with this unit; got FP8_E8M0": {
            "architecture": MatrixUnit(4, None), "input_format": FP8_E5M2, "scales": (one, one),
        },
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            mma(
                a, a.T, **{"architecture": "blackwell", "input_format": FP4_E2M1, **how}
            )


def test_a_unit_of_parameters_that_do_not_fit_is_refused():
    for terms, bits, more in (
        (3, None, {}),
        (24, 35, {"group": 16}),
        (64, 36, {"group": 16}),
        (4, 4, {"sum_bits": 39}),
        (4, None, {"sum_bits": 31}),
        (64, 35, {"sum_bits": 31, "group": 16}),
        (64, None, {"group": 16}),
        *((4, 4, {name: wrong}) for name, wrong in (("lanes", 2), ("flush", True))),
        *(
            (4, 4, {name: wrong})
            for name, wrong in (("exponent_floor", 256), ("alignment", 2))
        ),
    ):
        with pytest.raises(ValueError, match=r"^MatrixUnit: \w+ must be .*; got "):
            MatrixUnit(terms, bits, **more)


def test_the_largest_group_is_still_exact():
    unit = MatrixUnit(1024, 35, group=16)
    x = np.full((1, 1024), 6.0)
    s = np.full((1, 64), 1.75)
    how = {"architecture": unit, "input_format": FP4_E2M1, "scale_format": FP8_E4M3}
    assert (
        mma(x, x.T, np.array([[2.0**-34]]), scales=(s, s.T), **how)
        == 1024 * 36 * 1.75**2
    )
