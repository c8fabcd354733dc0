"""The page's core of numbers, run under Node, against the library, bit for bit."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import node
import numpy as np
import pytest
from cases import ODD_FORMATS, RULES, WIDER, assert_same_bits, breakpoints, directed
from oracle import random_bits, shown, table_of
from tiers import mostly_slow

from mplab import FORMATS, FP16, Event, Overflow, Rounding, Specials, Stream, tally
from mplab.course.explorers.modules import facts
from mplab.lessons.l16.explorer import weather_run
from mplab.lessons.l16.figures import cycle
from mplab.numbers import decode, encode, events, next_down, next_up, round_to, ulp
from mplab.numbers.inputs import as_array

FMTS = {**FORMATS, **ODD_FORMATS, **WIDER}
SMALL = [name for name, fmt in FMTS.items() if fmt.bits <= 16]
FAST = (
    "FP8_E4M3",
    "FP8_E5M2FNUZ",
    "FP8_E8M0",
    "FP4_E2M1",
    "Binary8p3se",
    "MXINT8",
    "UE4M3_NOZERO",
)


def test_what_follows_from_the_facts_of_a_format_is_what_the_library_derives(tmp_path):
    code = "console.log(JSON.stringify(given.map(core.makeFormat)))"
    made = node.run(code, tmp_path, [facts(fmt) for fmt in FMTS.values()])
    names = "bits max_code sign_code infinity_code nan_code has_negative_zero emin emax min_normal"
    for fmt, page in zip(FMTS.values(), made, strict=True):
        # JSON writes it as an integer.
        assert float(page["maxFinite"]) == fmt.max_finite
        for name in names.split():
            in_page = re.sub("_(.)", lambda letter: letter[1].upper(), name)
            assert page[in_page] == getattr(fmt, name), (fmt.name, name)


def test_modes_and_events_have_the_library_s_names_and_numbers(tmp_path):
    modes, raised = node.run(
        "console.log(JSON.stringify([core.MODES, core.EVENTS]))", tmp_path
    )
    assert modes == [mode.name for mode in Rounding]
    raisable = [event for event in Event if event is not Event.DIVIDE_BY_ZERO]
    assert raised == {event.name: int(event) for event in raisable}


CODES = """
const f = core.makeFormat(given), count = 2 ** f.bits;
const columns = [1, 2, 3, 4, 5].map(() => new Float64Array(count));
const words = [];
for (let code = 0; code < count; code++) {
    const x = core.decode(code, f);
    const row = [x, core.encode(x, f) ?? NaN, core.next(x, f, 1), core.next(x, f, -1)];
    [...row, core.ulp(x, f)].forEach((number, i) => { columns[i][code] = number; });
    words.push([core.inFull(core.exact(x)), core.kindOf(x, f)]);
}
columns.forEach((column, i) => write(`column${i}`, column));
console.log(JSON.stringify(words));
"""


@pytest.mark.parametrize("name", mostly_slow(SMALL, FAST))
def test_all_codes_are_read_written_and_stepped_from_as_in_the_library(
    name, tmp_path, record_property
):
    fmt = FMTS[name]
    words = node.run(CODES, tmp_path, facts(fmt))
    codes = np.arange(1 << fmt.bits)
    columns = [np.fromfile(tmp_path / f"column{i}") for i in range(5)]
    x = decode(codes, fmt)
    assert_same_bits(columns[0], x)
    kept = np.ones(codes.size, bool)
    if fmt.specials is Specials.TWOS_COMPLEMENT:
        kept[fmt.sign_code] = False  # the one that is read, but that no number gets
        assert np.isnan([column[fmt.sign_code] for column in columns[1:4]]).all()
    assert_same_bits(columns[1][kept], encode(x[kept], fmt).astype(float))
    assert_same_bits(columns[2][kept], next_up(x[kept], fmt))
    assert_same_bits(columns[3][kept], next_down(x[kept], fmt))
    assert_same_bits(columns[4], ulp(x, fmt))
    for value, (full, kind) in zip(x.tolist(), words, strict=True):
        if math.isfinite(value):
            assert full.replace("−", "-") == f"{Decimal(value):f}"
            of_size = "subnormal" if abs(value) < fmt.min_normal else "normal"
            assert kind == ("zero" if value == 0 else of_size)
        else:
            assert kind == ("NaN" if math.isnan(value) else "infinity")
            assert full == shown(value)
    record_property("codes", codes.size)


ROUND = """
const f = core.makeFormat(given.fmt), x = array("x", Float64Array);
const values = new Float64Array(x.length), raised = new Uint8Array(x.length);
given.rules.forEach(([mode, saturate], k) => {
    const random = core.stream("7");
    for (let i = 0; i < x.length; i++) {
        const r = core.round(x[i], f, mode, Boolean(saturate), random(i));
        values[i] = r.value;
        raised[i] = r.events;
    }
    write(`values${k}`, values);
    write(`events${k}`, raised);
});
"""


def signals(x):
    """Which are signaling NaNs; JavaScript's one NaN is quiet."""
    return np.isnan(x) & (x.view(np.int64) & (1 << 51) == 0)


def assert_rounded_alike(fmt, x, folder):
    """Node's results and events, for each rule, against the library's; how many were compared."""
    node.run(ROUND, folder, {"fmt": facts(fmt), "rules": RULES}, x=x)
    for k, (mode, overflow) in enumerate(RULES):

        def rule(mode=mode, overflow=overflow):
            stream = Stream(7) if mode is Rounding.STOCHASTIC else None
            return {"rounding": mode, "overflow": overflow, "stream": stream}

        values = np.fromfile(folder / f"values{k}")
        assert_same_bits(values, round_to(x, fmt, **rule()), x)
        raised = np.fromfile(folder / f"events{k}", np.uint8)
        assert_same_bits(raised, events(x, fmt, **rule()), x)
    return x.size * len(RULES)


@pytest.mark.parametrize("name", mostly_slow(SMALL, FAST))
def test_every_breakpoint_is_rounded_as_in_the_library(name, tmp_path, record_property):
    x = breakpoints(FMTS[name], np.float64)[0]
    x = x[~signals(x)]
    record_property("roundings", assert_rounded_alike(FMTS[name], x, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TF32", *WIDER])
def test_wider_formats_are_entered_as_in_the_library(name, tmp_path, record_property):
    x = directed(FMTS[name])
    x = x[~signals(x)]
    record_property("roundings", assert_rounded_alike(FMTS[name], x, tmp_path))


@pytest.mark.parametrize(("seed", "call"), [(0, 0), (2**64 - 1, 3), (12345, 2**40)])
def test_a_stream_s_bits_are_those_of_its_definition(seed, call, tmp_path):
    code = "const next = core.stream(given.seed, given.call);"
    code += "write('bits', Uint32Array.from({ length: 10000 }, (_, i) => next(i)))"
    node.run(code, tmp_path, {"seed": str(seed), "call": call})
    got = np.fromfile(tmp_path / "bits", np.uint32)
    assert got.tolist() == [random_bits(seed, call, index) for index in range(10000)]


def by_chance(x, fmt, random):
    """What the oracle rounds stochastically with given bits."""
    place = table_of(fmt).place(x)
    return place.round(Rounding.STOCHASTIC, Overflow.IEEE, random=random)


def test_the_fraction_is_cut_to_32_bits_where_random_ones_just_carry(tmp_path):
    rng = np.random.default_rng(5)
    # Of a gap of FP16 next to 1, in units of 2^-42.
    fraction = rng.integers(1, 2**42, 4096)
    x = 1 + fraction * 2.0**-52
    random = (1 << 32) - (fraction >> 10) - rng.integers(0, 2, x.size)
    code = """
    const f = core.makeFormat(given);
    const x = array("x", Float64Array), random = array("r", Uint32Array);
    write("y", x.map((a, i) => core.round(a, f, 5, false, random[i]).value));
    """
    node.run(code, tmp_path, facts(FP16), x=x, r=random.astype(np.uint32))
    expected = by_chance(x, FP16, random)
    assert 1000 < (expected > 1).sum() < 3000  # both sides of the carry
    assert_same_bits(np.fromfile(tmp_path / "y"), expected, x)


# What is typed ---------------------------------------------------------------------------

READ = """
const f = core.makeFormat(given.fmt);
const said = given.typed.map(typed => {
    try {
        const q = core.read(typed, f);
        const doubles = [core.double(q), core.double(q, true)];
        return {
            q: [q.negative, q.n.toString(16), q.d.toString(16)], shown: core.shown(q),
            doubles: doubles.map(x => `${core.bitsOf(x)}`),
        };
    } catch (error) {
        return {said: error.message};
    }
});
console.log(JSON.stringify(said));
"""


# First what Python does not read.
TYPED = {
    "−3": Fraction(-3),
    " 2^-24 ": Fraction(1, 2**24),
    "-1.5·2^3": Fraction(-12),
    "2**10": Fraction(1024),
    "-2/-6": Fraction(1, 3),
    "0x3C00": Fraction(1),
    "0xFC00": -math.inf,
    "0b1": Fraction(1, 2**24),
    "2⁻²⁴": Fraction(1, 2**24),
    "-3 × 2⁻²": Fraction(-3, 4),
    "2^(-149)": Fraction(1, 2**149),
    "½": Fraction(1, 2),
    "1,5": Fraction(3, 2),
    "0,125": Fraction(1, 8),
    "16,777,217": Fraction(2**24 + 1),
    "16 777 217": Fraction(2**24 + 1),
    "2^-1075": Fraction(1, 2**1075),
    "3*2^-1076": Fraction(3, 2**1076),
    "2^1024": Fraction(2**1024),
    "inf": math.inf,
    "-Infinity": -math.inf,
    "-0": -0.0,
    "0x8000": -0.0,
    "-0x0p0": -0.0,
    "nan": math.nan,
    "0." + "1" * 1000: Fraction(int("1" * 1000), 10**1000),
}
AS_IN_PYTHON = """
    0.1 1e-8 1/3 1e400 -1e-400 1e4999 1_000 .5 5. 0 0e99999 9007199254740993 9007199254740995
"""
TYPED |= {words: Fraction(words) for words in AS_IN_PYTHON.split()}
for _words in ("0x1.8p3", "-0X.8", "0x1p-149"):
    TYPED[_words] = Fraction(float.fromhex(_words))


def typed_numbers():
    """Numbers in every way of writing them, many of them at ties of doubles, by what is typed."""
    rng = np.random.default_rng(3)
    typed = dict(TYPED)
    for e in rng.integers(-1074, 970, 200).tolist():
        middle = 2 * int(rng.integers(2**52, 2**53)) + 1
        x = float(rng.normal())
        n, above, below = rng.integers(1, (99, 10**9, 10**9)).tolist()
        typed |= {
            f"{middle}*2^{e}": middle * Fraction(2) ** e,
            repr(x): Fraction(repr(x)),
            f"{n}e{e // 4}": n * Fraction(10) ** (e // 4),
            f"{above}/{below}": Fraction(above, below),
            (middle * 2.0**e).hex(): Fraction(middle * 2.0**e),
        }
    return typed


def test_what_is_typed_is_read_exactly_and_made_a_double_once(tmp_path):
    typed = typed_numbers()
    read = node.run(READ, tmp_path, {"fmt": facts(FP16), "typed": [*typed]})
    bits = [[int(double) for double in page["doubles"]] for page in read]
    nearest, odd = np.array(bits, np.uint64).view(np.float64).T
    assert_same_bits(nearest, [_double(number) for number in typed.values()])
    assert_same_bits(odd, [float(as_array("test", x)) for x in typed.values()])
    for (words, number), page in zip(typed.items(), read, strict=True):
        negative, n, d = page["q"][0], *(int(digits, 16) for digits in page["q"][1:])
        if d:
            assert Fraction(n, d) * (-1) ** negative == number, words
        assert page["shown"] == re.sub(r"\.?0+e", "e", shown(number)), words


def _double(number):
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


MISTAKES = (
    "abc 0x 1/0 1/2/3 2^99999 2^(3 2^3) 1,2,3 0x.p3 1e <b> --1 1.2.3 0b2 . 0x1p 2^ "
    "nano in e5 +-1"
)
WRONG = {
    "cannot be read. Type a number such as": ["", *MISTAKES.split(), "0x1.8p3p1"],
    "is too far from 1. Type": ["0x1p99999", "2^9999", "1e999999999", "-1e-5001"],
    "needs more than the 16 bits of FP16.": ["0xFFFFFFFFF", "0b" + "1" * 17],
    "is too long: 20001 characters. Type at most 20000.": ["9" * 20001],
}
"""What cannot be read, by what is answered."""


@pytest.mark.parametrize("answer", WRONG)
def test_what_cannot_be_read_is_quoted_with_what_to_type_instead(answer, tmp_path):
    given = {"fmt": facts(FP16), "typed": WRONG[answer]}
    for typed, page in zip(
        given["typed"], node.run(READ, tmp_path, given), strict=True
    ):
        said = page["said"].lower()
        assert typed[:30].lower() in said and answer.lower() in said, typed


def test_ten_thousand_digits_are_rounded_once(tmp_path):
    tie = "1." + "0" * 2 + "048828125"  # halfway between two numbers of FP16
    typed = [tie, tie + "0" * 9900 + "1", "0." + "3" * 10000]
    read = node.run(READ, tmp_path, {"fmt": facts(FP16), "typed": typed})
    odd = np.array([int(page["doubles"][1]) for page in read], np.uint64).view(
        np.float64
    )
    assert round_to(odd, FP16).tolist() == [1, 1 + 2**-10, float(np.float16(1 / 3))]
    assert [page["shown"][-1] for page in read] == ["5", "…", "…"]


def test_a_few_digits_are_those_of_decimal_rounding(tmp_path):
    rng = np.random.default_rng(4)
    exponents = rng.uniform(-320, 308, 2000)
    x = [*(rng.choice([-1, 1], 2000) * 10.0**exponents), *rng.normal(size=2000) * 1e3]
    x += [999999.5, 999999.4, 9.999995e-5, 1e-4, 0.1, 1.0, -448.0, 2.0**-149, 1e22]
    code = (
        "console.log(JSON.stringify(given.map(x => [core.brief(x), core.brief(x, 3)])))"
    )
    for number, said in zip(
        x, node.run(code, tmp_path, [float(n) for n in x]), strict=True
    ):
        for digits, words in zip((6, 3), said, strict=True):
            plain = re.sub(r"e([+-])0", r"e\1", f"{number:.{digits}g}").replace(
                "-", "−"
            )
            tie = number == 999999.5  # which goes to even in Python
            assert words == ("1e+6" if tie else plain), number


def test_names_and_whole_numbers_that_cannot_be_are_answered(tmp_path):
    code = """
    const said = action => { try { return action(); } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        return error.message; } };
    console.log(JSON.stringify(given.map(([name, ...more]) => said(() => core[name](...more)))));
    """
    calls = [["modeNamed", " to_odd"], ["modeNamed", "up"], *(
        ["wholeNumber", "It", typed, -20, 18] for typed in ("3", "-20", "", " ", "1.5", "19", "x")
    )]  # fmt: skip
    rule = "It must be a whole number from −20 to 18; got “{}”."
    assert node.run(code, tmp_path, calls) == [
        6,
        "There is no rounding mode “up”. Choose one of the list.",
        3,
        -20,
        *(rule.format(typed) for typed in ("", " ", "1.5", "19", "x")),
    ]


RACE = """
const { Counter } = await import(given.place);
const f = core.makeFormat(given.facts);
console.log(JSON.stringify(given.ways.map((way) => {
    const counter = new Counter(f, way, "1");
    return given.at.map((n) => { counter.runTo(n); return [counter.before, counter.sum]; });
})));
"""


@pytest.mark.parametrize("name", ["FP8_E4M3", "BF16", "FP16"])
def test_the_race_of_sums_adds_as_the_library_does(name, tmp_path):
    fmt = FORMATS[name]
    at = [*range(1, 300), 2**fmt.precision + 5, 2 ** (fmt.precision + 1)]
    at = sorted({n for n in at if n < 5000})
    given = {"place": node.CORE.with_name("counters.js").as_uri(), "facts": facts(fmt)}
    given |= {"ways": ["nearest", "kahan", "stochastic"], "at": at}
    found = node.run(RACE, tmp_path, given)
    for way, pairs in zip(given["ways"], found, strict=True):
        lost, sums = 0.0, [0.0]
        for n in range(at[-1]):
            y = round_to(1.0 - lost, fmt) if way == "kahan" else 1.0
            if way == "stochastic":
                exact = np.array([sums[n] + y])
                after = float(by_chance(exact, fmt, random_bits(1, 0, n))[0])
            else:
                after = float(round_to(sums[n] + y, fmt))
            if way == "kahan":
                lost = float(round_to(round_to(after - sums[n], fmt) - y, fmt))
            sums.append(after)
        before, after = np.array(pairs, float).T  # JSON has no NaN
        assert_same_bits(after, np.array(sums)[at])
        assert_same_bits(before, round_to(before, fmt))


WEATHER = """
const { run, share } = await import(given.place);
const ends = given.runs.map(([facts, power, mode], i) => {
    const made = run(core.makeFormat(facts), 2 ** -power, mode, given.steps);
    write(`states${i}`, Float64Array.from(made.states));
    return [made.cycle, share(made)];
});
console.log(JSON.stringify(ends));
"""


CYCLES = {4: 1401, 5: 642, 6: 2609, 7: 2352, 8: 406}  # of BF16, as lesson 16 says


@pytest.mark.parametrize(
    ("steps", "cycles"),
    [(150, {11: 1}), pytest.param(4000, CYCLES, marks=pytest.mark.slow)],
)
def test_the_weather_takes_the_library_s_steps_and_ends_in_their_cycle(
    steps, cycles, tmp_path
):
    chosen = [*(("BF16", k) for k in cycles), ("FP32", 6), ("FP16", 8), ("FP8_E4M3", 4)]
    methods = {"nearest": Rounding.TIES_TO_EVEN, "stochastic": Rounding.STOCHASTIC}
    asked = [(*pair, method) for pair in chosen for method in methods]
    runs = [(facts(FORMATS[n]), power, methods[m]) for n, power, m in asked]
    place = node.CORE.with_name("weather.js").as_uri()
    ends = node.run(WEATHER, tmp_path, {"place": place, "runs": runs, "steps": steps})
    for i, ((name, power, method), (length, share)) in enumerate(
        zip(asked, ends, strict=True)
    ):
        states = np.fromfile(tmp_path / f"states{i}").reshape(-1, 3)
        run = weather_run(FORMATS[name], power, method, steps)
        assert_same_bits(states, run[: len(states)])
        if method == "nearest":
            assert cycle(run) == (len(states) - bool(length), length)
        assert length != 1 or share < 0.5
    found = [length for length, _ in ends[: 2 * len(cycles) : 2]]
    assert found == [*cycles.values()]


PHOTOGRAPH = """
const { scene, stored } = await import(given.place);
const [fp16, ...formats] = given.facts.map(core.makeFormat);
const picture = scene(fp16);
write("picture", picture);
const powers = Array.from({ length: 29 }, (_, i) => i - 14);
console.log(JSON.stringify(formats.map((f, i) => {
    for (const mode of given.modes) write(`stored${i}.${mode}`, stored(picture, f, 5, mode).values);
    return powers.map((power) => [power, stored(picture, f, power, 0)])
        .map(([power, { zero, over }]) => [power, zero, over]);
})));
"""


@pytest.mark.slow
def test_the_photograph_is_stored_as_the_library_rounds_and_counts(tmp_path):
    """E4M3 loses nothing at one exposure and E5M2 at fifteen, as lesson 4 says."""
    fmts = [FORMATS[name] for name in ("FP8_E4M3", "FP8_E5M2", "FP4_E2M1")]
    modes = [Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC]
    place = node.CORE.with_name("photograph.js").as_uri()
    given = {"place": place, "facts": [*map(facts, (FP16, *fmts))], "modes": modes}
    found = node.run(PHOTOGRAPH, tmp_path, given)
    picture, values = np.fromfile(tmp_path / "picture"), {}
    assert_same_bits(picture, round_to(picture, FP16))
    for i, fmt in enumerate(fmts):
        for mode in modes:
            stream = Stream(0) if mode is Rounding.STOCHASTIC else None
            shown = np.fromfile(tmp_path / f"stored{i}.{int(mode)}")
            right = round_to(picture * 32, fmt, rounding=mode, stream=stream)
            assert_same_bits(shown, right / 32)
            values[fmt.name, mode] = np.unique(shown).size
        for power, zero, over in found[i]:
            count = tally(picture * 2.0**power, fmt)
            assert (zero, over) == (count.flushed, count.overflow)
    kept = [[power for power, *lost in each if lost == [0, 0]] for each in found]
    assert kept == [[5], [*range(-2, 13)], []]
    assert [*values.values()][:4:2] == [123, 74]
