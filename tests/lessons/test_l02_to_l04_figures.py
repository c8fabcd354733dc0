"""The figures of formats, rounding and events: what they draw, claim, and whether they read."""

import itertools
import math
import re
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from legible import assert_legible, words_of

import mplab
from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Rounding, pictures, ulp
from mplab.lessons.l02 import figures as l02
from mplab.lessons.l03 import figures as l03
from mplab.lessons.l04 import figures as l04

pytestmark = pytest.mark.slow

SIX = [FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2]
LOG_UNIFORM = 10.0 ** np.random.default_rng(0).uniform(-12, 8, 20_000)


def counted(*formats):
    return {fmt.name: mplab.tally(LOG_UNIFORM, fmt) for fmt in formats}


FIGURES = {
    "bits of 0.1": lambda: pictures.bit_fields("0.1", SIX),
    "bits of a value": lambda: pictures.bit_fields(0.5, [FP16]),
    "E4M3": lambda: pictures.code_table(FP8_E4M3),
    "E5M2": lambda: pictures.code_table(FP8_E5M2),
    "lines": lambda: pictures.number_lines([FP8_E4M3, FP8_E5M2], 0, 8, integers=True),
    "gaps": lambda: l02.spacing(SIX),
    "ranges": lambda: l02.dynamic_ranges(SIX),
    "digits": lambda: pictures.decimal_digits([FP32, FP16, BF16, FP8_E4M3, FP8_E5M2]),
    "profile": lambda: pictures.rounding_profile(
        FP8_E4M3, [Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY], 14, 24
    ),
    "profile of one mode": lambda: pictures.rounding_profile(
        FP8_E4M3, [Rounding.TOWARD_ZERO], -20, 20
    ),
    "twice": lambda: l03.double_rounding("17.004", FP16, FP8_E4M3),
    "twice as once": lambda: l03.double_rounding("-17.2", FP16, FP8_E4M3),
    "twice past the first": lambda: l03.double_rounding(70000.0, FP16, BF16),
    "means": lambda: l03.mean_errors(LOG_UNIFORM[:2000], BF16, list(Rounding)),
    "sums": lambda: pictures.running_sums(
        1.0, 0.001, 1000, [FP32, BF16, pictures.RunningSum(BF16, Rounding.STOCHASTIC)]
    ),
    "long sums": lambda: pictures.running_sums(0.0, 2.0, 70_000, [FP32, FP16, BF16]),
    "landing": lambda: l04.landing({"1e−4": 1e-4, "1e−4 · 1e−4": 1e-8}, [FP16, BF16]),
    "near zero": lambda: l04.near_zero(FP8_E4M3),
    "near zero in E5M2": lambda: l04.near_zero(FP8_E5M2),
    "end of range": lambda: l04.end_of_range([FP8_E4M3, FP8_E5M2]),
    "end of FP16": lambda: l04.end_of_range([FP16]),
    "fates": lambda: l04.fates(counted(FP16, BF16, FP8_E4M3, FP8_E5M2)),
}


@cache
def drawn(name):
    """A figure that tests share and leave as it is."""
    return FIGURES[name]()


CLAIMS = {
    "bits of 0.1": "6 formats store 5 different numbers for 0.1, none of them exactly",
    "bits of a value": "1 formats store 1 different number for 0.5, 1 of them exactly",
    "lines": "Numbers from 0 to 8: FP8_E4M3 81, FP8_E5M2 73 and INT8 9",
    "profile": "From 14 to 24 ties to even and ties to away miss by up to 0.50 ulp; they part at "
    "3 of 6 ties (dots)",
    "twice": "17.004 rounds to 18 at once, to 16 through FP16",
    "twice as once": "-17.2 rounds to −18 at once, to the same",
    "landing": "1e−4 · 1e−4 becomes 0 in FP16 and 1.00117e−08 in BF16",
    "end of range": "FP8_E4M3 gives NaN past 464 and FP8_E5M2 gives ∞ from 61440",
    "end of FP16": "FP16 gives ∞ from 65520",
}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_title_of_a_figure_says_what_it_shows(name):
    assert drawn(name).claim == CLAIMS[name]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_can_be_read_and_is_described(name):
    picture = assert_legible(drawn(name))
    assert (
        picture.alt.startswith(picture.claim)
        and len(picture.alt) > len(picture.claim) + 20
    )
    assert not re.search(r"\bnan\b|\binf\b", picture.alt)


# Formats ---------------------------------------------------------------------------------


def test_bits_are_those_of_the_code():
    picture = drawn("bits of 0.1")
    filled = [cell.get_facecolor()[:3] != (1, 1, 1) for cell in picture.axes[0].patches]
    start = FP32.bits + TF32.bits
    sixteen = int(np.array(0.1, np.float16).view(np.uint16))
    assert filled[start : start + 16] == [
        bool(sixteen >> k & 1) for k in range(15, -1, -1)
    ]
    assert f"FP16 {sixteen:016b} = 0.0999756" in picture.alt


def in_full(words):
    """The number that a cell holds: digits, a power of two, or a multiple of one."""
    plain = words.translate(str.maketrans("−⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "--0123456789"))
    digits, _, power = plain.rpartition(" · ")
    if "⁻" in words or "·" in words:
        return Fraction(digits or 1) * Fraction(2) ** int(power[1:])
    return Fraction(words.replace("−", "-"))


@pytest.mark.parametrize(
    ("fmt", "dtype"),
    [(FP8_E4M3, ml_dtypes.float8_e4m3fn), (FP8_E5M2, ml_dtypes.float8_e5m2)],
    ids=["E4M3", "E5M2"],
)
def test_a_code_table_holds_what_ml_dtypes_decodes(fmt, dtype):
    picture = pictures.code_table(fmt)
    columns = 1 << (fmt.precision - 1)
    every = np.arange(256, dtype=np.uint8).view(dtype).astype(float)
    found = {}
    for text in picture.axes[0].texts:
        column, row = text.get_position()
        found[row * columns + column] = text.get_text()
    words = {"nan": "NaN", "inf": "∞"}
    for code, value in enumerate(every[:128].tolist()):
        if math.isfinite(value):
            assert in_full(found[code]) == Fraction(value)
        else:
            assert found[code] == words[str(value)]
    assert "0.013671875" in found.values()
    different = np.unique(every[np.isfinite(every)]).size
    assert f"256 codes, {different} different numbers" in picture.claim


def test_gaps_are_those_of_numpy():
    # Each has a leader to its name.
    lines = l02.spacing([FP32, FP16]).axes[0].lines[:4:2]
    for line, dtype in zip(lines, (np.float32, np.float16), strict=True):
        x = 2.0 ** line.get_xdata()[:-1]
        gap = 2.0 ** line.get_ydata()[:-1]
        np.testing.assert_array_equal(gap, np.spacing(x.astype(dtype)).astype(float))
    said = "The gap after 1 is 2⁻¹⁰ in FP16, 2⁻⁷ in BF16 and 1 in INT8"
    assert said in l02.spacing([FP16, BF16]).alt


@pytest.mark.parametrize(
    "formats", [SIX, [FP32, FP16, BF16, FP8_E4M3]], ids=["six", "four"]
)
def test_no_two_lines_of_gaps_are_led_to_their_names_on_one_way(formats):
    lines = l02.spacing(formats).axes[0].lines[1::2]
    ends = [leader.get_ydata()[-1] for leader in lines]
    assert len(ends) == len(formats) + 1
    assert min(abs(a - b) for a, b in itertools.combinations(ends, 2)) >= 2
    starts = [leader.get_ydata()[0] for leader in lines]
    gaps = [np.log2(ulp(min(fmt.max_finite, 2.0**18), fmt)) for fmt in formats]
    assert starts == [*gaps, 0]


def test_ranges_go_from_the_smallest_to_the_largest_number():
    bars = l02.dynamic_ranges([FP16]).axes[0].patches
    info = np.finfo(np.float16)
    edges = [bars[0].get_x(), bars[1].get_x(), bars[1].get_x() + bars[1].get_width()]
    expected = [
        np.log2(float(v)) for v in (info.smallest_subnormal, info.tiny, info.max)
    ]
    assert edges == pytest.approx(expected, abs=1e-12)
    assert l02.dynamic_ranges([FP16, FP8_E4M3]).claim == (
        "From its smallest to its largest number FP16 spans 40 powers of two, INT8 7"
    )


def test_digits_are_few_among_subnormals():
    line = pictures.decimal_digits([FP16]).axes[0].lines[0]
    x = line.get_xdata()
    digits = line.get_ydata()
    normal = digits[x >= 2.0**-14]
    assert pytest.approx(normal.min(), abs=0.01) == 3.01
    assert pytest.approx(normal.max(), abs=0.02) == 3.31
    assert digits[0] == 0  # the smallest subnormal is its own gap


# Rounding --------------------------------------------------------------------------------


def test_a_profile_draws_what_rounding_gives():
    above, below = drawn("profile of one mode").axes
    x = above.lines[1].get_xdata()
    result = above.lines[1].get_ydata()
    truth = x.astype(ml_dtypes.float8_e4m3fn).astype(float)
    nearest_is_inward = np.abs(truth) <= np.abs(x)
    np.testing.assert_array_equal(result[nearest_is_inward], truth[nearest_is_inward])
    assert np.all(np.abs(result) <= np.abs(x))
    assert np.all(np.abs(below.lines[1].get_ydata()) < 1)


def test_the_first_of_two_roundings_is_magnified_until_it_can_be_seen():
    picture = drawn("twice")
    near = picture.axes[1]
    way = next(line for line in near.lines if list(line.get_ydata()) == [0, 1])
    assert list(way.get_xdata()) == [17.004, 17.0]
    (x0, _), (x1, _) = near.transData.transform(
        np.column_stack([way.get_xdata(), [0, 1]])
    )
    assert abs(x1 - x0) > 20  # pixels; 0.6 in the panel of E4M3's numbers
    assert {"17.004", "17\nmiddle", "17.0156"} <= words_of(picture)


def test_the_mean_error_of_truncation_is_half_an_ulp():
    x = np.random.default_rng(0).uniform(1, 2, 50_000)
    picture = l03.mean_errors(x, BF16, [Rounding.TIES_TO_EVEN, Rounding.TOWARD_ZERO])
    even, zero = (bar.get_width() for bar in picture.axes[0].patches)
    assert abs(even) < 0.01
    truncated = (np.floor(x * 128) / 128 - x) * 128
    assert zero == pytest.approx(truncated.mean(), abs=1e-12)
    assert "toward zero is off by −0.50 ulp" in picture.claim


def test_sums_end_where_adding_in_the_format_ends():
    total = np.float16(0)
    for _ in range(3000):
        total += np.float16(2)
    assert "FP16 ends at 4096" in drawn("long sums").claim
    assert total == 4096
    ends = re.search(
        r"BF16 ends at 1 and BF16 stochastic ends at ([\d.]+)", drawn("sums").claim
    )
    # Of 1,000 coins, up once in 7.8.
    deviation = np.sqrt(1000 * 0.128 * 0.872) * BF16.epsilon
    assert abs(float(ends[1]) - 2) < 4 * deviation


# Ends of the range -----------------------------------------------------------------------


def test_a_number_lands_where_it_is_rounded_to():
    markers = [line.get_marker() for line in drawn("landing").axes[0].lines]
    assert markers.count("x") == 1


def test_the_gap_at_zero_is_compared():
    assert "next to 0 is 8 times" in drawn("near zero").claim
    assert "next to 0 is 4 times" in drawn("near zero in E5M2").claim


def test_fates_add_up_to_all_numbers():
    picture = drawn("fates")
    rows = {}  # a part that no number has is not drawn
    for kind in picture.axes[0].containers:
        for bar in kind:
            row = rows.setdefault(round(bar.get_y(), 3), {})
            row[kind.get_label()] = bar.get_width()
    sums = [sum(row.values()) for row in rows.values()]
    np.testing.assert_allclose(sums, [100] * 4)
    sixteen = mplab.tally(LOG_UNIFORM, FP16)
    zero = [row.get("becomes 0") for row in rows.values()]
    assert pytest.approx(100 * sixteen.flushed / sixteen.total) in zero
    assert {"normal", "subnormal", "becomes 0", "overflows"} <= words_of(picture)
    assert picture.claim.startswith("FP8_E4M3 loses")
