"""The explorers of the number line and of rounding: bins against rounding, and what is said."""

import itertools
import math
import re
from fractions import Fraction

import node
import numpy as np
import pytest
from cases import assert_same_bits

from mplab import (
    BF16,
    FORMATS,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    Rounding,
    Stream,
    round_to,
    ulp,
    values,
)
from mplab.course.explorers.modules import facts, module

MODES = [mode for mode in Rounding if mode is not Rounding.TO_ODD]

PLAIN = """
const plainNumber = x => Object.is(x, -0) ? "-0" : String(x);
const formats = given.formats.map(makeFormat);
const named = name => formats.find(f => f.name === name);
const attempt = action => {
    try { return action(); } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        return { refused: error.message };
    }
};
"""


def ask(name, code, folder, **given):
    """What JavaScript after an explorer's module prints, as JSON; it knows all formats."""
    given["formats"] = [facts(fmt) for fmt in FORMATS.values()]
    return node.run(f"{module(name)}{PLAIN}{code}", folder, given)


# The number line -------------------------------------------------------------------------

LINE = """
const start = { formats, around: "1", middle: 1, zoom: 1, first: named("FP8_E4M3"),
    second: named("FP8_E5M2"), mode: 0 };
"""


def line(code, folder, **given):
    return ask("number_line.js", LINE + code, folder, **given)


def said(changes, folder):
    """What the line says after each change, all from the start."""
    code = "console.log(JSON.stringify(given.changes.map(change => attempt(() => "
    return line(f"{code}sentence(changed(start, change))))))", folder, changes=changes)


def test_the_values_in_a_window_are_counted(tmp_path):
    names = [name for name, fmt in FORMATS.items() if fmt.bits <= 16]
    middles, zooms = (
        ("0", "1", "-3.3", "300", "1e5", "-1e-40", "3e38"),
        (-20, -9, -2, 1, 5, 17),
    )
    cases = list(itertools.product(names, middles, zooms))
    code = """
    console.log(JSON.stringify(given.cases.map(([name, around, zoom]) => {
        const state = changed(start, { around, zoom, first: name });
        return [...windowOf(state), count(state, named(name))];
    })));
    """
    every = {}
    for name in names:
        fmt = FORMATS[name]
        least = -fmt.max_finite if fmt.signed else 0  # that numbers round to
        every[name] = (x := np.unique(values(fmt)))[np.isfinite(x) & (x >= least)]
    found = line(code, tmp_path, cases=cases)
    for (name, around, zoom), (low, high, count) in zip(cases, found, strict=True):
        middle = float(around)
        half = max(2.0 ** (zoom - 1), abs(middle) * 2.0**-40)
        assert (low, high) == (middle - half, middle + half)
        inside = np.sum((every[name] >= low) & (every[name] <= high))
        assert count == inside, (name, around, zoom)


BINS = """
const bins = Object.fromEntries(MODES.map((name, mode) => [name, given.names.map(name => {
    const f = named(name), all = [];
    for (let rank = f.signed ? -f.maxCode : 0; rank <= f.maxCode; rank++) {
        const { value, low, high } = bin(rank, f, mode);
        all.push([value, low, high]);
    }
    return all;
})]));
console.log(JSON.stringify(bins));
"""
BINNED = [
    FP8_E4M3,
    FP8_E5M2,
    FORMATS["FP8_E4M3FNUZ"],
    FORMATS["FP4_E2M1"],
    FORMATS["FP8_E8M0"],
]


def test_what_lies_in_a_bin_rounds_to_its_value(tmp_path, record_property):
    found = line(BINS, tmp_path, names=[fmt.name for fmt in BINNED])
    compared = 0
    for mode, (number, fmt) in itertools.product(Rounding, enumerate(BINNED)):
        value, low, high = np.array(found[mode.name][number], float).T
        assert value.size == fmt.max_code + 1 + fmt.signed * fmt.max_code
        assert (np.diff(value) > 0).all()
        assert ((low <= value) & (value <= high)).all()
        if mode is Rounding.STOCHASTIC:  # tents, which end at the neighbours
            assert (low[1:] == value[:-1]).all() and (high[:-1] == value[1:]).all()
            continue
        for part in (0.01, 0.5, 0.99):
            inside = low + (high - low) * part
            rounded = round_to(inside, fmt, rounding=mode)
            assert (rounded == value).all(), (fmt.name, mode)
            compared += inside.size
        assert (low[1:] == high[:-1]).all()  # the bins tile the line
    record_property("roundings", compared)
    assert compared > 10_000


def test_the_sentence_says_the_mode_and_which_ends_a_bin_keeps(tmp_path):
    changes = [
        {},
        {"mode": "TIES_TO_AWAY"},
        {
            "mode": "TIES_TO_AWAY",
            "around": "1.125",
        },  # odd: wins no tie with an even neighbour
        {"around": "1.125"},
        {"mode": "TOWARD_POSITIVE"},
        {"mode": "STOCHASTIC"},
        {"around": "1e6"},
        {"around": "-3", "first": "FP8_E8M0"},
        {"first": "fp16", "second": "FP16"},
    ]
    expected = [
        "FP8_E4M3 has 65 values, FP8_E5M2 has 65 values. In FP8_E4M3 what lies between 0.96875 "
        "and 1.0625 (both included) becomes 1.",
        "between 0.96875 and 1.0625 (the first included) becomes 1.",
        "between 1.0625 and 1.1875 (the first included) becomes 1.125.",
        "between 1.0625 and 1.1875 (both excluded) becomes 1.125.",
        "between 0.9375 and 1 (the second included) becomes 1.",
        "some of what lies between 0.9375 and 1.125 becomes 1.",
        "FP8_E4M3 ends at 448.",
        "FP8_E8M0 has 0 values, FP8_E5M2 has 5 values. FP8_E8M0 starts at 5.87747e−39.",
        "From 0 to 2 FP16 has 16,385 values. In FP16 what",
    ]
    for change, words, sentence in zip(
        changes, expected, said(changes, tmp_path), strict=True
    ):
        assert words in sentence, change


def test_numbers_at_the_ends_of_every_range_can_be_shown_on_a_line(tmp_path):
    extreme = ("3.4e38", "-1e38", "1e-45", "-1e-300", "-0")
    code = """
    console.log(JSON.stringify(given.cases.map(([around, zoom, first]) => {
        const state = changed(start, { around, zoom, first });
        return [...windowOf(state), ...[state.first, state.second].map(f => count(state, f)),
            sentence(state)];
    })));
    """
    cases = list(itertools.product(extreme, (-20, -3, 18), FORMATS))
    for low, high, *counts, words in line(code, tmp_path, cases=cases):
        assert low < high
        assert min(counts) >= 0
        assert "NaN" not in words and "undefined" not in words


REFUSED = r".*(cannot be read|too far|too long|needs|must be|There is no).*\."
WRONG = [
    "",
    "<b>",
    "0xFFFFFFFFF",
    "1/0",
    "2^99999",
    "9" * 20_001,
    "inf",
    "1e300*2^1000",
]
"""One of each kind; test_page_numbers has the others."""


def test_what_cannot_be_on_a_line_is_refused_in_a_sentence(tmp_path):
    changes = [{"around": typed} for typed in (*WRONG, "1e39")]
    changes += [
        {"zoom": "19"},
        {"zoom": ""},
        {"first": "FP7"},
        {"second": ""},
        {"mode": "up"},
    ]
    for change, answer in zip(changes, said(changes, tmp_path), strict=True):
        assert re.fullmatch(REFUSED, answer["refused"]), change


# Rounding --------------------------------------------------------------------------------

LAB = """
const start = { formats, f: named("FP8_E4M3"), entry: "17", base: exact(17), eighths: 0, mode: 0,
    seed: given.seed ?? "0" };
const told = change => {
    const state = changed(start, change), all = found(state);
    const { x, chance } = all;
    return {
        x: [x.negative, `${x.n}`, `${x.d}`], chance: [`${chance.n}`, `${chance.d}`],
        low: plainNumber(all.low), high: plainNumber(all.high), bits: all.bits,
        kept: `${all.kept}`, results: all.results.map(plainNumber),
        verdict: verdict(all), said: sentence(state), up: timesUp(state, all),
    };
};
console.log(JSON.stringify(given.changes.map(change => attempt(() => told(change)))));
"""


def lab(changes, folder, **given):
    """What the lab finds after each change, all from the start."""
    found = ask("rounding_lab.js", LAB, folder, changes=changes, **given)
    for each in found:
        if "refused" not in each:
            negative, n, d = each["x"]
            each["x"] = Fraction(int(n), int(d)) * (-1) ** negative
            each["chance"] = Fraction(*map(int, each["chance"]))
            each["low"], each["high"] = float(each["low"]), float(each["high"])
            each["results"] = dict(zip(MODES, map(float, each["results"]), strict=True))
    return found


STARTS = ["17", "-17", "0", "1e-3", "-1.99", "2^-10", "1/3"]


@pytest.mark.parametrize(
    "fmt", [FP8_E4M3, FP8_E5M2, BF16, FP16, FP32], ids=lambda fmt: fmt.name
)
def test_the_bits_and_neighbours_explain_every_result(fmt, tmp_path):
    every = itertools.product(STARTS, range(17))
    changes = [{"entry": start, "format": fmt.name, "eighths": n} for start, n in every]
    for change, found in zip(changes, lab(changes, tmp_path), strict=True):
        x, low, high = found["x"], Fraction(found["low"]), Fraction(found["high"])
        start = Fraction(change["entry"].replace("2^-10", "1/1024"))
        step = Fraction(float(ulp(start, fmt))) * (-1 if start < 0 else 1)
        assert x == start + step * change["eighths"] / 8
        assert low <= x <= high
        guard, *rest = found["bits"]
        unit = Fraction(float(ulp(x, fmt)))
        assert int(found["kept"]) == abs(x) // unit
        assert high - low in (0, unit)
        inward, outward = (low, high) if x >= 0 else (high, low)
        even = {v: int(v / unit) % 2 == 0 for v in (low, high)}
        nearest = outward if guard and any(rest) else inward
        tie = bool(guard) and not any(rest)
        results = found["results"]
        results.pop(Rounding.STOCHASTIC)
        assert results == {
            Rounding.TIES_TO_EVEN: (inward if even[inward] else outward)
            if tie
            else nearest,
            Rounding.TIES_TO_AWAY: outward if tie else nearest,
            Rounding.TOWARD_ZERO: inward,
            Rounding.TOWARD_POSITIVE: high,
            Rounding.TOWARD_NEGATIVE: low,
        }
        for mode, value in results.items():
            assert_same_bits(value, float(round_to(x, fmt, rounding=mode)))
        if low != high:
            assert found["chance"] == (x - low) / (high - low)


@pytest.mark.parametrize("number", ["16", "-16", "-18", "-1", "-2^-9"])
def test_the_eighths_are_the_patterns_of_guard_round_and_sticky(number, tmp_path):
    changes = [{"entry": number, "eighths": eighths} for eighths in range(8)]
    seen = [tuple(found["bits"]) for found in lab(changes, tmp_path)]
    assert seen == list(itertools.product((0, 1), repeat=3))


def test_a_verdict_about_a_negative_number_is_seen_from_0(tmp_path):
    changes = [{"entry": "-16", "eighths": 3}, {"entry": "-16", "eighths": 5}]
    changes.append({"entry": "16", "eighths": 5})
    short, past, plus = (found["said"] for found in lab(changes, tmp_path))
    assert (
        "−16.75 in FP8_E4M3: between −18 and −16; guard 0, round 1, sticky 1: " in short
    )
    assert "short of the middle, seen from 0. Ties to even gives −16 (0xD8)." in short
    assert "past the middle, seen from 0. Ties to even gives −18" in past
    assert "past the middle. Ties to even gives 18" in plus


def test_past_the_largest_number_of_a_format_without_infinity_there_is_one_neighbour(
    tmp_path,
):
    """It said "between 6 and 6"."""
    changes = [{"entry": n, "format": "FP4_E2M1", "eighths": 2} for n in ("6", "-6")]
    plus, minus = (found["said"] for found in lab(changes, tmp_path))
    assert "6.5 in FP4_E2M1: past 6; " in plus
    assert "−6.5 in FP4_E2M1: past −6; " in minus


@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
def test_stochastic_rounding_goes_up_as_often_as_the_library_s_bits_do(seed, tmp_path):
    every = itertools.product(
        ("16.25", "-16", "1/3", "0.1"), ("FP8_E4M3", "FP16"), (0, 1, 4)
    )
    names, mode = ("entry", "format", "eighths"), {"mode": "STOCHASTIC"}
    changes = [dict(zip(names, each, strict=True)) | mode for each in every]
    for change, found in zip(
        changes, lab(changes, tmp_path, seed=str(seed)), strict=True
    ):
        x = np.full(1000, float(found["x"]))
        fmt, stream = FORMATS[change["format"]], Stream(seed)
        drawn = round_to(x, fmt, rounding=Rounding.STOCHASTIC, stream=stream)
        assert found["up"] == np.sum(drawn != found["low"])
        chance = float(found["chance"])
        assert abs(found["up"] - 1000 * chance) <= 5 * math.sqrt(
            1000 * chance * (1 - chance)
        )
        if found["verdict"] == "exact":
            assert found["up"] == 0 and found["said"].endswith("every mode keeps it.")
    first = lab([{"entry": "16.25", "mode": "STOCHASTIC"}], tmp_path, seed=str(seed))[0]
    words = f"with probability 0.125, else 16; in 1,000 draws it gave 18 {first['up']} times."
    assert words in first["said"]


def test_numbers_past_the_range_are_refused_in_words(tmp_path):
    formats = ("FP16", "FP8_E4M3", "FP8_E8M0", "FP8_E8M0")
    typed = ("65505", "1000", "-1", "0")
    changes = [{"entry": n, "format": f} for n, f in zip(typed, formats, strict=True)]
    changes += [{"entry": typed} for typed in WRONG]
    changes += [{"eighths": "17"}, {"format": "FP7"}, {"mode": "up"}]
    found = lab(changes, tmp_path)
    for change, answer in zip(changes, found, strict=True):
        assert re.fullmatch(REFUSED, answer["refused"]), change
    assert "from −448 to 448, the range of FP8_E4M3; got “1000”." in found[1]["refused"]


def test_past_the_largest_number_the_library_decides(tmp_path):
    changes = [
        {"entry": "448", "eighths": 16},
        {"entry": "6", "format": "FP4_E2M1", "eighths": 3},
    ]
    (past, saturated) = lab(changes, tmp_path)
    assert past["results"][Rounding.TOWARD_ZERO] == 448
    assert math.isnan(past["results"][Rounding.TIES_TO_EVEN])
    assert set(saturated["results"].values()) == {6.0}
    assert "sticky 0: past the range. Ties to even gives NaN" in past["said"]
