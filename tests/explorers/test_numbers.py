"""The explorers of the number line and of rounding: bins against rounding, and what is said."""

import itertools
import math
from decimal import Decimal
from fractions import Fraction
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from legible import assert_words_stand_out

from mplab import (
    BF16,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    Rounding,
    explorers,
    round_to,
    values,
)
from mplab.explorers import _entry, _number_line

DTYPES = {FP8_E4M3: ml_dtypes.float8_e4m3fn, FP8_E5M2: ml_dtypes.float8_e5m2}
EXPLORERS = {
    "NumberLine": explorers.NumberLine,
    "RoundingLab": explorers.RoundingLab,
}


def same(a, b):
    return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)


# What all of them owe the reader ---------------------------------------------------------


@pytest.fixture(params=EXPLORERS)
def explorer(request):
    return EXPLORERS[request.param]()


def test_the_picture_is_valid_svg_with_a_description_and_a_background(explorer):
    svg = ElementTree.fromstring(explorer.picture.value)
    assert svg.get("role") == "img"
    assert len(svg.get("aria-label")) > 60
    assert (svg[0].tag, svg[0].get("fill")) == ("rect", "white")
    width = float(svg.get("viewBox").split()[2])
    assert all(0 <= float(text.get("x")) <= width for text in svg.iter("text"))


def test_words_stand_out_from_what_is_behind_them(explorer):
    assert_words_stand_out(explorer.picture.value)


def test_the_state_is_said_too(explorer):
    assert 'role="status"' in explorer.state.value
    said = ElementTree.fromstring(explorer.state.value).text
    assert said in ElementTree.fromstring(explorer.picture.value).get("aria-label")


def test_nothing_that_can_be_typed_breaks_an_explorer(explorer):
    field = explorer.around if isinstance(explorer, explorers.NumberLine) else explorer.entry
    before = explorer.picture.value
    wrong = (
        "",
        "abc",
        "0x",
        "0xFFFFFFFFF",
        "1/0",
        "2^99999",
        "0x.p3",
        "0x1p99999",
        "2^9999",
        "1e999999999",
        "9" * 1300,
        "<b>",
    )
    for typed in wrong:
        field.value = typed
        said = ElementTree.fromstring(explorer.state.value).text
        assert explorer.picture.value.startswith("<svg")
        assert any(word in said for word in ("cannot be read", "too far", "needs", "must be"))
    field.value = "1.25"
    assert explorer.picture.value != before


def spans_of(picture):
    """Left and right end of each word of a picture by its line, at the width of its letters."""
    lines = {}
    for text in ElementTree.fromstring(picture).iter("text"):
        x, width = float(text.get("x")), LETTER * len(text.text or "")
        left = x - {"start": 0, "middle": width / 2, "end": width}[text.get("text-anchor")]
        lines.setdefault(text.get("y"), []).append((left, left + width, text.text))
    return [sorted(line) for line in lines.values()]


LETTER = 6.9  # mean width of a letter of the explorers' font, in which digits are 8 wide at most


def test_words_do_not_touch_whatever_is_typed(explorer):
    field = explorer.around if isinstance(explorer, explorers.NumberLine) else explorer.entry
    format_of = getattr(explorer, "format", None)
    for fmt in [FP8_E4M3, FP16, BF16] if format_of else [None]:
        if fmt:
            format_of.value = fmt
        for typed in ("1e-8", "-0.3", "0.0123456", "-123.456", "1e-40", "1/3", "-1e-5", "400"):
            field.value = typed
            width = float(explorer.picture.value.split('viewBox="0 0 ')[1].split()[0])
            for line in spans_of(explorer.picture.value):
                assert line[0][0] >= 0 and line[-1][1] <= width + 1, line
                assert all(a[1] < b[0] for a, b in itertools.pairwise(line)), line


def test_numbers_at_the_ends_of_every_range_can_be_shown():
    extreme = ("3.4e38", "-1e38", "1e-45", "-1e-300", "1e300*2^1000", "inf", "-inf", "nan", "-0")
    line = explorers.NumberLine(FP32, FP8_E4M3)
    for typed in extreme:
        line.around.value = typed
        for zoom in (line.zoom.min, -3, line.zoom.max):
            line.zoom.value = zoom
            low, high = line.window
            assert low < high
            assert all(count >= 0 for count in line.counts.values())
    with pytest.raises(ValueError, match="must be finite"):
        explorers.NumberLine(around="nan")


# Numbers as they are typed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("0.1", Fraction(1, 10)),
        ("1e-8", Fraction(1, 10**8)),
        ("−3", Fraction(-3)),
        (" 2^-24 ", Fraction(1, 2**24)),
        ("-1.5·2^3", Fraction(-12)),
        ("2**10", Fraction(1024)),
        ("1/3", Fraction(1, 3)),
        ("0x3C00", Fraction(1)),
        ("0b1", Fraction(1, 2**24)),
        ("0x1.8p3", Fraction(12)),
        ("-0X.8", Fraction(-1, 2)),
        ("0x1p-149", Fraction(1, 2**149)),
        ("1e400", Fraction(10**400)),
        ("0." + "1" * 1000, Fraction(int("1" * 1000), 10**1000)),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
    ],
)
def test_a_typed_number_is_read_exactly(typed, number):
    assert _entry.read_number(typed, FP16) == number


def test_minus_zero_and_nan_are_read_too():
    assert same(_entry.read_number("-0", FP16), -0.0)
    assert math.isnan(_entry.read_number("nan", FP16))
    assert same(_entry.read_number("0x8000", FP16), -0.0)
    assert same(_entry.read_number("-0x0p0", FP16), -0.0)


@pytest.mark.parametrize("x", [0.1, -(2.0**-1074), 1.7976931348623157e308, 1e22, 1 / 3, -0.0])
def test_a_double_s_hexadecimal_and_all_its_decimals_are_read_back(x):
    assert same(float(_entry.read_number(x.hex(), FP16)), x)
    assert same(float(_entry.read_number(f"{Decimal(x):f}", FP16)), x)


# The number line -------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2, FP16], ids=lambda fmt: fmt.name)
def test_the_values_in_a_window_are_counted(fmt):
    every = np.unique(values(fmt)[np.isfinite(values(fmt))])
    line = explorers.NumberLine(fmt, BF16)
    for around, zoom in itertools.product(("0", "1", "-3.3", "300", "1e5"), (-9, -2, 1, 5, 17)):
        line.around.value, line.zoom.value = around, zoom
        low, high = line.window
        assert line.counts[fmt.name] == np.sum((every >= low) & (every <= high))


@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize("fmt", DTYPES, ids=lambda fmt: fmt.name)
def test_what_lies_in_a_bin_rounds_to_its_value(fmt, mode):
    every = _number_line.bins(-fmt.max_code, fmt.max_code, fmt, mode)
    assert len(every) == 2 * fmt.max_code + 1
    for found in every:
        assert found.low <= found.value <= found.high
        if mode is Rounding.STOCHASTIC:
            assert found.tent
            continue
        inside = [found.low + (found.high - found.low) * part for part in (0.01, 0.5, 0.99)]
        assert np.all(round_to(np.array(inside), fmt, rounding=mode) == found.value)
    gaps = [b.low - a.high for a, b in itertools.pairwise(every)]
    if mode is not Rounding.STOCHASTIC:  # the bins tile the line; tents overlap
        assert set(gaps) == {0.0}


def test_dense_formats_are_drawn_as_a_band():
    line = explorers.NumberLine(FP16, FP32)
    assert line.picture.value.count("too dense") == 2
    line.zoom.value = -5
    assert line.picture.value.count("too dense") == 1


def test_the_mode_changes_what_is_said():
    line = explorers.NumberLine()
    assert "between 0.96875 and 1.0625 (both included) becomes 1." in line.state.value
    line.mode.value = Rounding.TIES_TO_AWAY
    assert "between 0.96875 and 1.0625 (the first included) becomes 1." in line.state.value
    line.around.value = "1.125"  # odd: it wins no tie with an even neighbour
    assert "between 1.0625 and 1.1875 (the first included) becomes 1.125." in line.state.value
    line.mode.value = Rounding.TIES_TO_EVEN
    assert "between 1.0625 and 1.1875 (both excluded) becomes 1.125." in line.state.value
    line.around.value = "1"
    line.mode.value = Rounding.TOWARD_POSITIVE
    assert "between 0.9375 and 1 (the second included) becomes 1." in line.state.value
    line.mode.value = Rounding.STOCHASTIC
    assert "some of what lies between 0.9375 and 1.125 becomes 1." in line.state.value
    line.around.value = "1e6"
    assert "FP8_E4M3 ends at 448." in line.state.value


# Rounding --------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2, BF16, FP16], ids=lambda fmt: fmt.name)
@pytest.mark.parametrize("number", ["17", "-17", "0", "1e-3", "-1.99", "2^-10", "1/3"])
def test_the_bits_and_neighbours_explain_every_result(fmt, number):
    lab = explorers.RoundingLab(number, fmt)
    for eighths in range(17):
        lab.eighths.value = eighths
        low, high = lab.neighbours
        assert Fraction(low) <= lab.x <= Fraction(high)
        guard, *rest = lab.discarded
        inward, outward = (low, high) if lab.x >= 0 else (high, low)
        even = {v: int(Fraction(v) / Fraction(lab_ulp(lab))) % 2 == 0 for v in (low, high)}
        nearest = outward if guard and any(rest) else inward
        tie = bool(guard) and not any(rest)
        assert lab.results == {
            Rounding.TIES_TO_EVEN: (inward if even[inward] else outward) if tie else nearest,
            Rounding.TIES_TO_AWAY: outward if tie else nearest,
            Rounding.TOWARD_ZERO: inward,
            Rounding.TOWARD_POSITIVE: high,
            Rounding.TOWARD_NEGATIVE: low,
        }
        if low != high:
            part = (lab.x - Fraction(low)) / (Fraction(high) - Fraction(low))
            assert lab.chance_up == part


def lab_ulp(lab):
    """The gap below the larger neighbour, from the exact number's exponent."""
    x = abs(lab.x)
    exponent = lab.fmt.emin
    while x >= Fraction(2) ** (exponent + 1):
        exponent += 1
    return Fraction(2) ** (exponent - lab.fmt.precision + 1)


@pytest.mark.parametrize("number", ["16", "-16", "-18", "-1", "-2^-9"])
def test_the_eighths_are_the_patterns_of_guard_round_and_sticky(number):
    lab = explorers.RoundingLab(number)
    seen = []
    for eighths in range(8):
        lab.eighths.value = eighths
        seen.append(tuple(lab.discarded))
    assert seen == list(itertools.product((0, 1), repeat=3))


@pytest.mark.parametrize("fmt", [FP8_E4M3, FP8_E5M2, BF16, FP16], ids=lambda fmt: fmt.name)
def test_a_negative_number_mirrors_a_positive_one_in_the_lab(fmt):
    plus, minus = (explorers.RoundingLab(number, fmt) for number in ("18", "-18"))
    for eighths in range(17):
        plus.eighths.value = minus.eighths.value = eighths
        assert minus.x == -plus.x
        assert minus.discarded == plus.discarded
        assert minus.neighbours == tuple(-value for value in reversed(plus.neighbours))


def test_the_caption_of_a_negative_number_agrees_with_its_dot():
    lab = explorers.RoundingLab("-16")
    lab.eighths.value = 3
    svg = ElementTree.fromstring(lab.picture.value)
    dot = next(part for part in svg.iter() if part.tag.endswith("circle"))
    texts = {part.text: float(part.get("x")) for part in svg.iter() if part.tag.endswith("text")}
    assert float(dot.get("cx")) > texts["middle"]  # −16.75 is above −17, and nearer to 0
    assert "cut after bit 4: short of the middle, seen from 0" in texts
    assert "−16.75 in FP8_E4M3: between −18 and −16" in lab.state.value
    assert "sticky 1: short of the middle, seen from 0. Ties to even gives −16" in lab.state.value
    lab.eighths.value = 5
    assert "past the middle, seen from 0. Ties to even gives −18" in lab.state.value
    lab.entry.value = "16"
    assert "past the middle. Ties to even gives 18" in lab.state.value


def test_stochastic_rounding_goes_up_as_often_as_it_says():
    lab = explorers.RoundingLab("16.25", mode=Rounding.STOCHASTIC)
    assert lab.chance_up == Fraction(1, 8)
    assert abs(lab.times_up - 125) < 4 * math.sqrt(1000 * 1 / 8 * 7 / 8)
    assert f"with probability 0.125, else 16; in 1,000 draws it gave 18 {lab.times_up} times" in (
        lab.state.value
    )
    lab.entry.value = "16"
    assert lab.times_up == 0
    assert "every mode keeps it" in lab.state.value


def test_numbers_past_the_range_are_refused_in_words():
    lab = explorers.RoundingLab("448")
    lab.entry.value = "1000"
    assert "at most 448, the largest of FP8_E4M3" in lab.state.value
    lab.entry.value, lab.eighths.value = "448", 16
    assert lab.results[Rounding.TOWARD_ZERO] == 448
    assert math.isnan(lab.results[Rounding.TIES_TO_EVEN])
    with pytest.raises(ValueError, match="must be finite"):
        explorers.RoundingLab("nan")
