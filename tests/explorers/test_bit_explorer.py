"""The explorer of bits: what it says under Node, and how it is moved in a page in Chromium."""

import math
import re
from fractions import Fraction

import node
import numpy as np
import page as pages
import pytest
from oracle import shown

from mplab import FORMATS, FP8_E4M3, FP16, FP32, explorers
from mplab.course.explorers.modules import SHOWN, facts, module
from mplab.course.pictures import canvas
from mplab.numbers import encode, round_to, ulp

BROWSER = pytest.mark.browser

# What it says ----------------------------------------------------------------------------

PLAIN = """
const state = (f, rules = {}) => ({ f, formats: [f], mode: 0, saturate: false,
    number: exact(0), code: 0, entry: "0", ...rules });
const seen = ({ f, code, number, entry }) => ({
    format: f.name, code, entry,
    value: (isNegative(decode(code, f)) ? '-' : '') + String(Math.abs(decode(code, f))),
    q: [number.negative, number.n.toString(16), number.d.toString(16)],
});
const told = s => {
    const mine = reading(s.number, s.f, s.mode, s.saturate);
    return { ...seen(s), said: sentence(s), digits: digits(s), row: row(mine),
        error: mine.error, events: mine.events, kind: mine.kind };
};
const attempt = action => {
    try { return action(); } catch (e) { return { refused: e.message }; }
};
"""


def ask(code, folder, given=None):
    """What JavaScript after the explorer's module prints, as JSON."""
    return node.run(f"{module('bit_explorer.js')}{PLAIN}{code}", folder, given)


def explored(typed, formats, folder):
    """What each format tells of each number that is typed: a list for each format."""
    code = "console.log(JSON.stringify(given.formats.map(makeFormat).map(f => "
    code += "given.typed.map(words => attempt(() => told(typed(state(f), words)))))))"
    return ask(
        code, folder, {"formats": [facts(fmt) for fmt in formats], "typed": typed}
    )


SMALL = ("0.1", "-1.75", "3", "1e-8")
NUMBERS = {words: Fraction(words) for words in (*SMALL, "1/3", "448", "1e6", "0")}
NUMBERS["2^-130"] = Fraction(1, 2**130)


def test_every_format_is_asked_for_the_exact_number(tmp_path):
    count = 0
    formats = [fmt for fmt in FORMATS.values() if fmt.signed]
    every = explored([*NUMBERS], formats, tmp_path)
    for fmt, told in zip(formats, every, strict=True):
        for number, tells in zip(NUMBERS.values(), told, strict=True):
            value = float(round_to(number, fmt))
            if math.isfinite(value):
                error = (Fraction(value) - number) / Fraction(float(ulp(number, fmt)))
                assert tells["error"] == float(error) and tells["code"] == encode(
                    value, fmt
                )
                assert tells["row"][0] == shown(value)
                count += 1
            else:
                assert tells["error"] is None
    assert count > 150


def test_events_are_those_of_leaving_the_range(tmp_path):
    (fp16,) = explored(["1e-8", "1e6", "1e400", "1e-400"], [FP16], tmp_path)
    assert "INEXACT, UNDERFLOW" in fp16[0]["said"]
    assert [tells["row"][3] for tells in fp16] == [
        "underflow",
        "overflow",
        "overflow",
        "underflow",
    ]
    assert "INEXACT, OVERFLOW. The largest number of FP16 is 65504." in fp16[2]["said"]
    assert "0x7FF0000000000000" in fp16[2]["digits"][-1][0]
    assert fp16[2]["digits"][-1][1] == "infinity: past the range"
    assert fp16[3]["row"][2] == "<0.001 ulp" and "error none" not in fp16[3]["said"]


def test_what_a_format_has_no_code_for_is_said(tmp_path):
    ((tells,),) = explored(["nan"], [FORMATS["FP4_E2M1"]], tmp_path)
    assert "You asked for NaN: FP4_E2M1 has no code for it." in tells["said"]
    assert tells["row"][:2] == ["NaN", "no code"]


def test_two_s_complement_is_read_as_an_integer(tmp_path):
    ((tells, least),) = explored(["-60/64", "0x80"], [FORMATS["MXINT8"]], tmp_path)
    said = "MXINT8 0xC4: the integer −60 in two's complement, times 2⁻⁶. Value −0.9375"
    assert said in tells["said"]
    assert least["value"] == "-2"


@pytest.mark.parametrize("fmt", [FP32, FP16, FP8_E4M3], ids=lambda fmt: fmt.name)
def test_a_value_is_said_in_full_and_beside_the_double(fmt, tmp_path):
    (told,) = explored(SMALL, [fmt], tmp_path)
    for words, tells in zip(SMALL, told, strict=True):
        said = dict(tells["digits"])
        value = Fraction(float(tells["value"]))
        assert Fraction(said[f"{fmt.name} in full"].replace("−", "-")) == value
        double = float(words)
        code = int(np.float64(double).view(np.uint64))
        full = said[f"nearest double (FP64) 0x{code:016X}"].replace("−", "-")
        assert Fraction(full) == Fraction(double)


def test_a_permalink_names_every_code_of_every_format_and_nothing_else(tmp_path):
    code = """
    const formats = given.formats.map(makeFormat), start = { ...state(formats[0]), formats };
    const all = formats.filter(f => f.bits <= 8).flatMap(f =>
        Array.from({ length: 2 ** f.bits }, (_, code) => coded({ ...start, f }, code)));
    const lost = all.filter(s => {
        const { f, code } = linked(start, permalink(s));
        return f !== s.f || code !== s.code;
    }).length;
    const refused = given.wrong.map(hash => attempt(() => linked(start, hash)).refused);
    console.log(JSON.stringify({ count: all.length, lost, refused }));
    """
    wrong = ["#fp8_e4m3/0x1ff", "#fp9/0x3f", "#fp16/one", "#fp16/0x", "#fp16/-0x1"]
    given = {"formats": [facts(fmt) for fmt in FORMATS.values()], "wrong": wrong}
    found = ask(code, tmp_path, given)
    assert found["count"] == sum(
        1 << fmt.bits for fmt in FORMATS.values() if fmt.bits <= 8
    )
    assert found["lost"] == 0
    assert found["refused"][0] == "0x1ff needs more than the 8 bits of FP8_E4M3."
    assert found["refused"][1].startswith("There is no format “fp9” here.")
    assert found["refused"][2].startswith("“one” cannot be read.")
    assert all(re.fullmatch(r".*\.", words) for words in found["refused"])


def test_the_fields_have_colours_that_no_format_has():
    explorer = explorers.BitExplorer()
    assert explorer.colours == canvas.FIELDS
    assert not {*canvas.FIELDS.values()} & {
        shown["colour"] for shown in explorer.formats
    }


# How it is moved -------------------------------------------------------------------------


@BROWSER
def test_bits_sliders_and_steps_reach_codes_by_keyboard_and_by_mouse(
    chromium, tmp_path
):
    with pages.opened(chromium, explorers.BitExplorer("1", FP8_E4M3), tmp_path) as page:
        bit = page.get_by_role("button", name="bit 0, trailing significand: 0")
        bit.click()
        assert "FP8_E4M3 0x39" in pages.status(page)
        page.keyboard.press("Space")  # the button has the focus
        assert "FP8_E4M3 0x38" in pages.status(page)
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        assert "FP8_E4M3 0x3A" in pages.status(page)
        page.get_by_role("slider", name="exponent").press("ArrowRight")
        assert "FP8_E4M3 0x42" in pages.status(page)
        trailing = page.get_by_role("slider", name="trailing significand")
        trailing.press("Home")
        assert "FP8_E4M3 0x40" in pages.status(page)
        said = trailing.get_attribute("aria-valuetext")
        assert said == "0 of 7: the value is 2"
        page.get_by_role("button", name="next value down").press("Enter")
        assert "FP8_E4M3 0x3F" in pages.status(page)
        page.get_by_role("button", name="next value up").click()
        assert "FP8_E4M3 0x40" in pages.status(page)
        page.wait_for_function("location.hash === '#fp8_e4m3/0x40'")
        assert page.get_by_role("row", name="FP8_E4M3 2 0x40 exact").count() == 1


@BROWSER
def test_bits_are_painted_by_dragging(chromium, tmp_path):
    with pages.opened(chromium, explorers.BitExplorer("0", FP16), tmp_path) as page:
        boxes = [
            page.locator(f"[data-weight='{k}']").first.bounding_box() for k in (9, 2)
        ]
        middle = [
            (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes
        ]
        page.mouse.move(*middle[0])
        page.mouse.down()
        page.mouse.move(*middle[1], steps=30)
        page.mouse.up()
        assert "FP16 0x03FC" in pages.status(page)
        page.mouse.move(*middle[0], steps=30)  # no button is down
        assert "FP16 0x03FC" in pages.status(page)


@BROWSER
def test_numbers_formats_and_rules_are_chosen_and_bad_ones_answered(chromium, tmp_path):
    with pages.opened(chromium, explorers.BitExplorer("0.1"), tmp_path) as page:
        entry = page.get_by_label("number or code")

        def say(words):
            entry.fill(words)
            entry.press("Enter")
            return pages.status(page)

        assert "INEXACT, OVERFLOW" in say("65520")
        page.get_by_label("saturate").press("Space")
        assert "FP16 0x7BFF" in pages.status(page)
        page.get_by_label("rounding").select_option("TOWARD_ZERO")
        assert "FP16 0x2E66" in say("0.1")
        page.get_by_label("rounding").select_option("TOWARD_POSITIVE")
        assert "FP16 0x2E67" in pages.status(page)
        page.get_by_label("bits of").select_option("FP8_E5M2")
        assert "FP8_E5M2 0x2F" in pages.status(page)
        assert page.locator("tbody tr").count() == len(SHOWN)
        for wrong in ("<b>", "1,2,3", "0x1ffff", "2^99999", "9" * 30_000):
            assert re.match(r".*(cannot be read|too far|needs|too long)", say(wrong)), (
                wrong[:20]
            )
            assert (
                entry.input_value() == wrong
                and entry.get_attribute("aria-invalid") == "true"
            )
        assert "You asked for 0.33333333333333333…" in say("0." + "3" * 10_000)
        assert entry.get_attribute("aria-invalid") is None
        page.get_by_text("nearest double").click()
