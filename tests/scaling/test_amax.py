"""The scales of tensors in FP8: each from a window of largest magnitudes, by the definition."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import ODD_FORMATS
from hypothesis import given, strategies as st
from oracle import exponent_of, mx_exponent
from tiers import mostly_slow

from mplab import (
    BF16,
    FORMATS,
    FP4_E2M1,
    FP6_E2M3,
    FP6_E3M2,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
)
from mplab.arithmetic import refine
from mplab.lessons.l17.emulation import emulation_bound, matmul_fp64, split
from mplab.numbers import decode, round_to
from mplab.scaling import (
    CurrentScaling,
    DelayedScaling,
    ScaleRule,
    scale_for,
)


def slow_delayed(amaxes, length, most_recent, fmt):
    """Scales by the definition: each from a window of the amaxes before it."""
    scale = 1.0
    scales = []
    for step, _ in enumerate(amaxes):
        window = amaxes[max(0, step - length) : step]
        known = [
            a for a in (window[-1:] if most_recent else window) if not math.isnan(a)
        ]
        if known and 0 < max(known) < math.inf:
            scale = scale_for(max(known), fmt)
        scales.append(scale)
    return scales


AMAXES = st.floats(0, 1e6, width=32) | st.sampled_from(
    [0.0, math.inf, math.nan, 1.0, 448.0]
)


@given(
    amaxes=st.lists(AMAXES, max_size=30),
    length=st.integers(1, 6),
    amax_compute=st.sampled_from(["max", "most_recent"]),
    fmt=st.sampled_from([FP8_E4M3, FP8_E5M2]),
)
def test_a_delayed_scale_follows_from_the_amaxes_before_it(
    amaxes, length, amax_compute, fmt
):
    scaling = DelayedScaling(fmt, amax_history_len=length, amax_compute=amax_compute)
    got = [scaling.update(amax) for amax in amaxes]
    assert got == slow_delayed(amaxes, length, amax_compute == "most_recent", fmt)
    assert repr(scaling.amax_history) == repr(tuple(amaxes[-length:]))


@given(amaxes=st.lists(AMAXES, min_size=2, max_size=20), cut=st.integers(0, 20))
def test_a_saved_delayed_scaling_goes_on_as_if_nothing_had_happened(amaxes, cut):
    through, before = (DelayedScaling(FP8_E4M3, amax_history_len=3) for _ in range(2))
    expected = [through.update(a) for a in amaxes]
    first = [before.update(a) for a in amaxes[:cut]]
    after = DelayedScaling(FP8_E4M3, amax_history_len=3)
    after.load_state_dict(before.state_dict())
    assert first + [after.update(a) for a in amaxes[cut:]] == expected


def test_current_scaling_never_leaves_the_range():
    scaling = CurrentScaling(FP8_E4M3, power_of_two=False)
    for amax in (1e-30, 0.3, 448.0, 3e38):
        assert amax * scaling.update(amax) == pytest.approx(448.0, rel=1e-6)
    assert math.isnan(scaling.update(math.inf))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"amax_history": [1.0] * 5}, "at most 4 numbers; got 5"),
        ({"amax_history": [1.0, -2.0]}, "must not be negative; got -2.0"),
        ({"scale": 1e300}, "scale must be positive and finite; got inf"),
    ],
)
def test_a_state_that_no_scaling_has_is_refused_and_changes_nothing(wrong, words):
    scaling = DelayedScaling(FP8_E4M3, amax_history_len=4)
    before = scaling.state_dict()
    with pytest.raises(ValueError, match=words):
        scaling.load_state_dict({"scale": 2.0, "amax_history": [3.0], **wrong})
    assert scaling.state_dict() == before


def test_a_history_of_no_length_and_a_misspelt_choice_are_refused():
    for wrong in ({"amax_history_len": 0}, {"amax_compute": "mean"}):
        with pytest.raises(
            ValueError, match=f"^DelayedScaling: {next(iter(wrong))} must be"
        ):
            DelayedScaling(FP8_E4M3, **wrong)


# Margins --------------------------------------------------------------------------------

EXPONENTS = (-149, -148, -127, -126, -100, -1, 0, 1, 8, 100, 126, 127)
EXTREMES = [m * 2.0**e for e in EXPONENTS for m in (1, 1.5)]
EXTREMES = np.float32([*EXTREMES, FP32.max_finite, 448.0, 0.9999999403953552, 3.0])
MANY = np.float32(np.random.default_rng(0).lognormal(sigma=30, size=100))
MANY = np.float32([*MANY, *(448 * 2.0 ** np.arange(-60, 61, 30)), *EXTREMES[:-6]])
MANY = np.concatenate([MANY, np.nextafter(MANY, 0), np.nextafter(MANY, 1e38)])
MANY = np.concatenate([MANY[MANY > 0], EXTREMES])
MARGINS = sorted(
    {*range(-420, 421, 12), -127, -60, -1, 1, 2, 127, 149, 300, -(10**30), 10**30}
)
ONE_BY_ONE = [rule for rule in ScaleRule if rule is not ScaleRule.NVFP4]
MX_RULES = [ScaleRule.FLOOR, ScaleRule.CEIL, ScaleRule.EVEN, ScaleRule.RCEIL]
NARROW = [fmt for fmt in {**FORMATS, **ODD_FORMATS}.values() if fmt.emax < 300]
FEW = [FORMATS[name] for name in ("FP16", "FP8_E4M3", "FP8_E5M2", "FP4_E2M1", "MXINT8")]


def slow_scale(amax, fmt, rule, margin):
    """The scale as a Fraction: by its rule, then no further out than the ends allow."""
    margin = max(-2000, min(2000, margin))  # past all ends
    room = Fraction(fmt.max_finite) / Fraction(2) ** margin / Fraction(amax)
    if rule is ScaleRule.RATIO:
        return min(max(room, Fraction(FP32.min_subnormal)), Fraction(FP32.max_finite))
    if rule in MX_RULES:
        exponent = -mx_exponent(Fraction(amax), fmt, rule) - margin
        least = -127
    else:
        exponent = exponent_of(room)
        least = -149
    return Fraction(2) ** min(max(exponent, least), 127)


@pytest.mark.parametrize("rule", ONE_BY_ONE)
@pytest.mark.parametrize("fmt", mostly_slow(NARROW, FEW), ids=lambda fmt: fmt.name)
def test_no_margin_makes_a_scale_zero_or_infinite(fmt, rule):
    for margin in MARGINS:
        amaxes = EXTREMES if margin else MANY
        scales = scale_for(amaxes, fmt, rule=rule, margin=margin)
        assert ((scales > 0) & np.isfinite(scales)).all()
        pairs = list(zip(amaxes.tolist(), scales.tolist(), strict=True))
        for amax, scale in pairs[margin % 3 :: 3] if margin else pairs:
            expected = slow_scale(amax, fmt, rule, margin)
            if rule is ScaleRule.RATIO:
                assert scale == float(round_to(expected, FP32))
            else:
                assert scale == expected
    assert np.isnan(
        scale_for(np.float32([np.nan, np.inf]), fmt, rule=rule, margin=9)
    ).all()
    assert scale_for(0.0, fmt, rule=rule, margin=9) == (
        2.0**127 if rule in MX_RULES else 1.0
    )


def fits(amax, scale, fmt, rule):
    """Whether a rule of MX allows this scale: a law in float64, where all of it is exact."""
    if rule is ScaleRule.RCEIL:
        return amax * scale <= fmt.max_finite
    if rule is ScaleRule.CEIL:
        return amax * scale <= 2.0**fmt.emax
    if rule is ScaleRule.EVEN:
        m, e = np.frexp(amax)
        amax = np.ldexp(np.rint(np.ldexp(m, fmt.precision)), e - fmt.precision)
    return amax * scale < 2.0 ** (fmt.emax + 1)


@pytest.mark.parametrize("codes", [
    pytest.param(lambda: decode(np.arange(1, 0x7F80, dtype=np.uint16), BF16), id="all of BF16"),
    pytest.param(
        lambda: np.arange(127 << 23, 128 << 23, dtype=np.uint32).view(np.float32),
        id="all significands of FP32",
        marks=pytest.mark.slow,
    ),
])  # fmt: skip
@pytest.mark.parametrize("rule", MX_RULES)
@pytest.mark.parametrize(
    "fmt", [FP8_E4M3, FP8_E5M2, FP6_E3M2, FP6_E2M3, FP4_E2M1], ids=str
)
def test_the_scale_of_every_amax_is_the_largest_e8m0_that_the_rule_allows(
    codes, rule, fmt, record_property
):
    amax = np.asarray(codes(), np.float64)
    scale = scale_for(amax, fmt, rule=rule).astype(np.float64)
    assert (np.frexp(scale)[0] == 0.5).all() and (scale >= 2.0**-127).all()
    assert fits(amax, scale, fmt, rule).all()
    assert ((scale == 2.0**127) | ~fits(amax, 2 * scale, fmt, rule)).all()
    record_property("largest magnitudes", amax.size)


def test_the_rules_of_mx_part_where_they_should():
    scales = {
        rule: (
            1 / scale_for(np.float32([4, 4.5, 6, 6.5, 7, 7.5]), FP4_E2M1, rule=rule)
        ).tolist()
        for rule in MX_RULES
    }
    assert scales[ScaleRule.FLOOR] == [1, 1, 1, 1, 1, 1]
    assert scales[ScaleRule.EVEN] == [1, 1, 1, 1, 2, 2]  # 7 is the tie between 6 and 8
    assert scales[ScaleRule.RCEIL] == [1, 1, 1, 2, 2, 2]
    assert scales[ScaleRule.CEIL] == [1, 2, 2, 2, 2, 2]
    assert ScaleRule.MX is ScaleRule.FLOOR


@pytest.mark.parametrize("power_of_two", [True, False])
@pytest.mark.parametrize("margin", [-126, -60, 0, 60, 300, 10**30])
def test_neither_current_nor_delayed_scaling_gives_zero_or_infinity(
    margin, power_of_two
):
    options = {"margin": margin, "power_of_two": power_of_two}
    current = CurrentScaling(FP8_E4M3, **options)
    delayed = DelayedScaling(FP8_E4M3, amax_compute="most_recent", **options)
    for amax in EXTREMES.tolist():
        delayed.update(amax)
        for scale in (current.update(amax), delayed.scale):
            assert 0 < scale < math.inf and scale == float(np.float32(scale))


def test_a_negative_amax_is_no_largest_magnitude():
    for scaling in (CurrentScaling(FP8_E4M3), DelayedScaling(FP8_E4M3)):
        with pytest.raises(ValueError, match="amax must not be negative"):
            scaling.update(-1.0)
    assert scaling.amax_history == ()


def test_scales_and_slices_do_not_depend_on_what_numpy_raises():
    a = np.array([[1.0, 1e-300], [1e-300, 1.0]])
    narrow = a.astype(np.float32)

    def found():
        x = refine(narrow, np.array([1.0, 1e-30], np.float32), factor_format=FP16).x
        bound = emulation_bound(a, a, slices=3)
        return (
            x,
            split(a, 3, 8)[0],
            bound,
            matmul_fp64(a, a, slices=3),
            scale_for(1e-300, FP8_E4M3),
        )

    usual = found()
    with np.errstate(all="raise"):
        for ours, theirs in zip(found(), usual, strict=True):
            np.testing.assert_array_equal(ours, theirs)
