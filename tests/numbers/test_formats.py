import dataclasses
import math
import re
import time

import ml_dtypes
import numpy as np
import pytest
import torch
from cases import TABLED, sized
from oracle import exponent_of, largest, least_normal, value_of_code

import mplab
from mplab import (
    FORMATS,
    FP8_E4M3,
    FP8_E8M0,
    FP16,
    FP32,
    TF32,
    Format,
    Specials,
    format_of,
)

# The table of IEEE 754-2019, OCP OFP8 1.0 and OCP MX 1.0, of the FNUZ and TF32 whitepapers, and of
# the value tables with the interim report 4.0 of IEEE P3109.
FACTS = {
    # bits, bias, p, emin, emax, max finite, exponent of the least value, NaN codes, infinities
    "FP32": (32, 127, 24, -126, 127, (2 - 2.0**-23) * 2.0**127, -149, 2**24 - 2, 2),
    "TF32": (19, 127, 11, -126, 127, (2 - 2.0**-10) * 2.0**127, -136, 2046, 2),
    "FP16": (16, 15, 11, -14, 15, 65504.0, -24, 2046, 2),
    "BF16": (16, 127, 8, -126, 127, (2 - 2.0**-7) * 2.0**127, -133, 254, 2),
    "FP8_E4M3": (8, 7, 4, -6, 8, 448.0, -9, 2, 0),
    "FP8_E5M2": (8, 15, 3, -14, 15, 57344.0, -16, 6, 2),
    "FP8_E4M3FNUZ": (8, 8, 4, -7, 7, 240.0, -10, 1, 0),
    "FP8_E5M2FNUZ": (8, 16, 3, -15, 15, 57344.0, -17, 1, 0),
    "FP8_E8M0": (8, 127, 1, -127, 127, 2.0**127, -127, 1, 0),
    "FP6_E3M2": (6, 3, 3, -2, 4, 28.0, -4, 0, 0),
    "FP6_E2M3": (6, 1, 4, 0, 2, 7.5, -3, 0, 0),
    "FP4_E2M1": (4, 1, 2, 0, 2, 6.0, -1, 0, 0),
    "FP8_E4M3_IEEE": (8, 7, 4, -6, 7, 240.0, -9, 14, 2),
    "FP8_E3M4": (8, 3, 5, -2, 3, 15.5, -6, 30, 2),
    "FP8_E4M3B11FNUZ": (8, 11, 4, -10, 4, 30.0, -13, 1, 0),
    "Binary8p1se": (8, 64, 1, -63, 62, 2.0**62, -63, 1, 2),
    "Binary8p2se": (8, 32, 2, -31, 31, 2.0**31, -32, 1, 2),
    "Binary8p3se": (8, 16, 3, -15, 15, 1.5 * 2.0**15, -17, 1, 2),
    "Binary8p4se": (8, 8, 4, -7, 7, 224.0, -10, 1, 2),
    "Binary8p5se": (8, 4, 5, -3, 3, 15.0, -7, 1, 2),
    "Binary8p6se": (8, 2, 6, -1, 1, 3.875, -6, 1, 2),
    "Binary8p7se": (8, 1, 7, 0, 0, 1.96875, -6, 1, 2),
    "MXINT8": (8, 1, 7, 0, 0, 127 / 64, -6, 0, 0),
}


@pytest.mark.parametrize("name", FORMATS)
def test_predefined_formats_have_the_numbers_of_their_standards(name):
    fmt = FORMATS[name]
    assert name in FACTS, "a new format needs a row, from its standard"
    bits, bias, p, emin, emax, most, lowest, nans, infinities = FACTS[name]
    assert (fmt.name, fmt.bits, fmt.bias, fmt.precision) == (name, bits, bias, p)
    assert (fmt.emin, fmt.emax, fmt.max_finite) == (emin, emax, most)
    assert fmt.min_normal == 2.0**emin
    assert fmt.min_subnormal == 2.0**lowest
    assert fmt.unit_roundoff == 2.0**-p == fmt.epsilon / 2
    assert fmt.nan_codes == nans
    assert fmt.finite_codes == 2**bits - nans - infinities
    assert fmt.has_infinity == (infinities == 2)
    assert fmt.has_nan == (nans > 0)


@pytest.mark.parametrize("name", sized(TABLED))
def test_derived_facts_are_what_counting_the_codes_gives(name):
    fmt = TABLED[name]
    values = [value_of_code(code, fmt) for code in range(2**fmt.bits)]
    nans = [code for code, v in enumerate(values) if v != v]
    infinities = [code for code, v in enumerate(values) if abs(v) == np.inf]
    positive = sorted(v for v in values if 0 < v < np.inf)
    zeros = [str(float(v)) for v in values if v == 0]
    assert fmt.bits == fmt.signed + fmt.exponent_bits + fmt.precision - 1
    assert fmt.nan_codes == len(nans)
    assert fmt.has_nan == bool(nans)
    assert fmt.nan_code in nans if nans else fmt.nan_code is None
    assert fmt.infinity_code == (infinities[0] if infinities else None)
    assert fmt.finite_codes == 2**fmt.bits - len(nans) - len(infinities)
    assert fmt.max_finite == positive[-1] == largest(fmt)
    assert values[fmt.max_code] == positive[-1]
    assert fmt.min_subnormal == positive[0]
    assert fmt.min_normal == least_normal(fmt)
    assert (fmt.emin, fmt.emax) == (
        exponent_of(least_normal(fmt)),
        exponent_of(positive[-1]),
    )
    assert fmt.has_zero == bool(zeros)
    assert fmt.has_negative_zero == ("-0.0" in zeros)
    if fmt.signed:
        last = fmt.sign_code + (
            1 if fmt.specials is Specials.TWOS_COMPLEMENT else fmt.max_code
        )
        assert values[last] == -positive[-1]


@pytest.mark.parametrize("name", FORMATS)
def test_matching_dtypes_have_the_same_extremes(name):
    fmt = FORMATS[name]
    if fmt.dtype is None:
        assert fmt.torch_dtype is None
        return
    info = ml_dtypes.finfo(fmt.dtype)
    assert float(info.max) == fmt.max_finite
    assert float(info.smallest_normal) == fmt.min_normal
    if fmt is not FP8_E8M0:
        assert float(info.smallest_subnormal) == fmt.min_subnormal
    assert format_of(fmt.dtype) is fmt
    assert format_of(fmt.dtype.name) is fmt


def test_dtypes_of_torch_are_those_of_the_same_name_and_byte_swapped_ones_are_taken():
    assert FP16.torch_dtype is torch.float16
    assert mplab.BF16.torch_dtype is torch.bfloat16
    assert mplab.FP8_E4M3.torch_dtype is torch.float8_e4m3fn
    assert mplab.FP6_E3M2.torch_dtype is None
    assert (format_of(">f2"), format_of(">f4")) == (FP16, FP32)


def test_format_of_refuses_dtypes_of_no_format_and_what_is_no_dtype():
    for named in (
        np.longdouble,
        np.int32,
        np.uint8,
        bool,
        object,
        "junk",
        "fp4_e4m3",
        "fp8_fp8_e4m3",
        "",
        torch.int8,
    ):
        with pytest.raises(
            ValueError, match=r"^format_of: fmt must be a .*; got .*\. "
        ):
            format_of(named)
    for named in (torch.ones(2), 3, None, [FP16], np.ones(2, np.float16)):
        with pytest.raises(TypeError, match=r"^format_of: fmt must be a Format, or "):
            format_of(named)
    with pytest.raises(ValueError, match=r"got 'fp17'\. Use one of fp16"):
        format_of("fp17")


def test_every_name_in_use_names_its_format():
    for name, fmt in {
        "e4m3": mplab.E4M3, "FP8_E4M3": FP8_E4M3, "E5M2": mplab.E5M2, "e4m3fn": FP8_E4M3,
        "fp8_e4m3fn": FP8_E4M3, "torch.float8_e5m2": mplab.E5M2, "half": FP16, "single": FP32,
        "float8_e4m3": FORMATS["FP8_E4M3_IEEE"], "e2m1": mplab.FP4_E2M1, "e8m0": FP8_E8M0,
        "binary8p3se": FORMATS["Binary8p3se"], "tf32": TF32, "bf16": mplab.BF16,
        torch.bfloat16: mplab.BF16, torch.float64: mplab.FP64, float: mplab.FP64,
        torch.float8_e4m3fnuz: mplab.FP8_E4M3FNUZ, np.float16: FP16, FP32: FP32,
    }.items():  # fmt: skip
        assert format_of(name) is fmt, name


def test_contradictory_facts_are_refused_with_the_rule():
    with pytest.raises(TypeError, match=r"bias must be an integer; got 7\.5"):
        Format("half a bias", exponent_bits=4, precision=4, bias=7.5)
    for exponent_bits, precision, more, rule in (
        (10, 30, {}, "at most 32 bits"), (8, 25, {}, "at most 32 bits"),
        (5, 1, {}, "NaN beside infinity"), (5, 3, {"has_zero": False}, "IEEE"),
        (4, 4, {"signed": False, "specials": Specials.NAN_NEGATIVE_ZERO}, "sign"),
        (4, 4, {"has_zero": False, "specials": Specials.NONE}, "zero"),
        (4, 4, {"signed": False, "specials": Specials.P3109}, "P3109 must have a sign bit"),
        (2, 4, {"specials": Specials.TWOS_COMPLEMENT}, "fixed point"), (1, 3, {}, "normal numbers"),
        (11, 10, {"bias": 1022}, "embed in float64"), (11, 10, {"bias": 1024}, "embed in float64"),
        (10, 11, {"bias": 1020}, "embed in float64"), (12, 10, {}, "embed in float64"),
        (3, 5, {"bias": -975}, "2^971 or below"), (5, 11, {"specials": "IEEE"}, "specials must be"),
        *((5, 3, {"bias": far}, "; got emin=") for far in (10**9, -(10**9), 10**5000, -(10**5000))),
    ):  # fmt: skip
        with pytest.raises(
            (TypeError, ValueError), match=r"^Format: .*; got "
        ) as refusal:
            Format("Odd", exponent_bits=exponent_bits, precision=precision, **more)
        assert rule in str(refusal.value)


@pytest.mark.parametrize("label", ["exponent_bits", "precision"])
def test_a_width_of_any_size_is_refused_before_anything_is_computed_from_it(label):
    for width in (33, 10**9, 10**400, 10**5000):
        facts = {"exponent_bits": 5, "precision": 3, label: width}
        begin = time.process_time()
        with pytest.raises(
            ValueError, match=r"^Format: a format must have at most 32 bits; got "
        ):
            Format("wide", **facts)
        assert time.process_time() - begin < 0.1  # 2^(10^9) alone takes seconds
        for wrong in (-width, 0):
            with pytest.raises(
                ValueError,
                match=r"(exponent_bits|precision) must be an integer, at least 1",
            ):
                Format("wide", **{**facts, label: wrong})


def test_formats_at_the_edge_of_float64_are_accepted():
    widest = Format("E11M20", exponent_bits=11, precision=21)
    assert (widest.bits, widest.emin, widest.emax) == (32, -1022, 1023)
    assert widest.min_subnormal == 2.0**-1042
    assert widest.max_finite == (2 - 2.0**-20) * 2.0**1023
    highest = Format("high", exponent_bits=3, precision=5, bias=-974)
    assert (
        mplab.round_to(1.5 * highest.min_subnormal, highest)
        == 2 * highest.min_subnormal
    )


def test_a_format_cannot_be_changed_and_serves_as_a_key():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FP16.bias = 14  # type: ignore[misc]
    twin = dataclasses.replace(FP16, note="another note")
    assert {FP16: 1}[twin] == 1
    assert twin != dataclasses.replace(FP16, bias=14)


def test_the_card_shows_facts_in_text_and_html():
    assert repr(FP16) == "<Format FP16: E5M10, bias 15>"
    text = str(FP16)
    html = FP16._repr_html_()
    for fact in ("16", "65504", "-14 .. 15", "2^-11", "2^-24", "binary16"):
        assert fact in text
        assert fact in html
    assert re.fullmatch(r"<table>.*</table>", html, re.DOTALL)
    assert "subnormal" not in str(FP8_E8M0)
    assert TF32.dtype is None and "no dtype" in str(TF32)


def test_a_format_fits_where_each_of_its_numbers_is_one_of_the_other():
    plain = {"specials": Specials.NONE, "bias": 1}
    bare = {"signed": False, "has_zero": False, **plain}
    odd = [
        Format("fixed", exponent_bits=1, precision=7, **plain),
        Format("no zero", exponent_bits=3, precision=4, **bare),
        Format("powers", exponent_bits=3, precision=1, **bare),
        Format("three", exponent_bits=1, precision=2, **bare),
    ]
    formats = [fmt for fmt in mplab.FORMATS.values() if fmt.bits <= 8] + odd
    held = [
        {x for x in mplab.numbers.values(fmt).tolist() if abs(x) < math.inf}
        for fmt in formats
    ]
    for one, its in zip(formats, held, strict=True):
        for other, theirs in zip(formats, held, strict=True):
            assert one.fits(other) == (its <= theirs), (one, other)


def test_negative_numbers_and_zero_fit_only_where_there_are_such():
    ours = Format("E4M3", exponent_bits=4, precision=4)
    for changes in ({"signed": False}, {"signed": False, "has_zero": False}):
        wide = Format(
            "wide",
            exponent_bits=8,
            precision=24,
            specials=Specials.NAN_ALL_ONES,
            **changes,
        )
        assert not ours.fits(wide)
        assert wide.fits(mplab.FP64) and ours.fits(FP32)
