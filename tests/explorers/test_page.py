"""What explorers owe a reader of a page without Python: by keyboard, at every width, by a link."""

import page as pages
import pytest

from mplab import BF16, FP16, FP32, Rounding, explorers
from mplab.lessons.l04.explorer import Photograph
from mplab.lessons.l16.explorer import FrozenWeather

pytestmark = pytest.mark.browser

EXPLORERS = {
    "BitExplorer": lambda: explorers.BitExplorer("-0.1", FP32),
    "NumberLine": lambda: explorers.NumberLine(FP16, BF16, around="-1", zoom=-4),
    "RoundingLab": lambda: explorers.RoundingLab(
        "-0.1", FP16, mode=Rounding.STOCHASTIC
    ),
    "FrozenWeather": FrozenWeather,
}
every_explorer = pytest.mark.parametrize("name", EXPLORERS)

CONTRAST = """() => {
    const light = c => c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055)
        ** 2.4).reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
    const dot = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const rgb = c => {  // whatever a colour is written in
        dot.clearRect(0, 0, 1, 1);
        dot.fillStyle = c;
        dot.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = dot.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = ([r, g, b, a = 1], below) => [r, g, b].map((v, i) => a * v + (1 - a) * below[i]);
    const behind = e => e
        ? over(rgb(getComputedStyle(e).backgroundColor), behind(e.parentElement))
        : [255, 255, 255];
    const ink = e => rgb(getComputedStyle(e)[e.tagName === 'text' ? 'fill' : 'color']).slice(0, 3);
    return [...document.querySelectorAll('.mplab-page *')].filter(e => [...e.childNodes].some(n =>
        n.nodeType === 3 && n.data.trim())).map(e => {
        const [a, b] = [ink(e), behind(e)].map(light);
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); });
}"""
WIDER = """[...document.querySelectorAll('.mplab-page :is(div, table)')]
    .filter(e => e.scrollWidth > e.clientWidth).map(e => e.outerHTML)"""
UNNAMED = """[...document.querySelectorAll('.mplab-page :is(input, select, button)')]
    .filter(e => !(e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()))
    .map(e => e.outerHTML)"""
TOUCHING = """(() => {  // or leaving the page
    const all = [...document.querySelectorAll('.mplab-page text')]
        .map(e => ({ words: e.textContent, ...e.getBoundingClientRect().toJSON() }))
        .filter(({ width }) => width > 0);
    const touch = (a, b) => a.left <= b.right && b.left <= a.right
        && a.top < b.bottom && b.top < a.bottom;
    return all.filter((a, i) => a.left < 0 || a.right > innerWidth
        || all.slice(0, i).some(b => touch(a, b))).map(({ words }) => words);
})()"""


def enter(field, words):
    field.fill(words)
    field.press("Enter")


@every_explorer
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_it_fits_every_width_and_its_words_stand_out(
    name, width, scheme, chromium, tmp_path
):
    explorer = EXPLORERS[name]()
    with pages.opened(
        chromium, explorer, tmp_path, width=width, color_scheme=scheme
    ) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(WIDER) == []
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 15 and min(contrasts) >= 4.5
        assert page.evaluate(UNNAMED) == []
        assert page.evaluate(TOUCHING) == []
        if name == "BitExplorer":  # the table keeps its roles
            assert page.get_by_role("rowheader").count() == len(explorer.formats)


@pytest.mark.parametrize("make", [*EXPLORERS.values(), Photograph])
def test_without_javascript_it_stands_still_with_a_word(make, chromium, tmp_path):
    explorer = make()
    with pages.opened(chromium, explorer, tmp_path, java_script_enabled=False) as page:
        picture = page.locator("main img")
        assert picture.evaluate("e => e.decode().then(() => e.offsetWidth)") > 300
        assert picture.get_attribute("alt") == explorer.static_picture().alt
        assert "it moves" in page.locator("main").inner_text()
    with pages.opened(chromium, explorer, tmp_path) as page:
        assert page.locator("main img").count() == 0


@pytest.mark.parametrize("name", ["NumberLine", "RoundingLab"])
def test_words_in_a_picture_do_not_touch_whatever_is_typed(name, chromium, tmp_path):
    typed = "1e-8 -0.3 0.0123456 -123.456 1e-40 1/3 -1e-5 400 300.0001"
    with pages.opened(chromium, EXPLORERS[name](), tmp_path, width=360) as page:
        field = page.locator("input[type=text]").first
        for words in typed.split():
            enter(field, words)
            assert page.evaluate(TOUCHING) == [], words


def test_the_number_line_is_moved_by_keyboard(chromium, tmp_path):
    with pages.opened(chromium, explorers.NumberLine(), tmp_path) as page:
        ticks = page.locator(".mplab-row").first.locator("line[stroke-width]")
        assert pages.status(page).startswith(
            "From 0 to 2 FP8_E4M3 has 65 values, FP8_E5M2 has 65"
        )
        assert ticks.count() == 65
        page.get_by_role("slider", name="width").press("ArrowLeft")
        assert pages.status(page).startswith("From 0.5 to 1.5 FP8_E4M3 has 13 values")
        assert ticks.count() == 13
        field = page.get_by_label("around")
        enter(field, "12")
        assert pages.status(page).startswith(
            "From 11.5 to 12.5 FP8_E4M3 has 1 value, FP8_E5M2"
        )
        enter(field, "<b>")
        assert pages.status(page).startswith("“<b>” cannot be read.")
        assert "From 11.5 to 12.5" in pages.status(page)
        assert field.input_value() == "<b>"
        page.get_by_label("above").select_option("FP16")
        assert field.input_value() == "12"
        assert page.get_by_text("FP16: 129 values", exact=True).count() == 1
        page.get_by_label("below").select_option("FP32")
        assert page.get_by_text("too dense to draw: zoom in").count() == 1
        page.get_by_label("rounding").select_option("STOCHASTIC")
        assert "In FP16 some of what lies" in pages.status(page)
        label = page.locator(".mplab-figure").get_attribute("aria-label")
        assert label == "Values on a line from 11.5 to 12.5."


def test_the_weather_is_moved_by_keyboard_and_drawn_at_once_without_motion(
    chromium, tmp_path
):
    how = {"hash": "#weather?format=FP16&power=12", "reduced_motion": "reduce"}
    with pages.opened(chromium, FrozenWeather(), tmp_path, **how) as page:
        assert "stands still from step 10,372 on" in pages.status(page)
        assert page.locator("circle").count() == 2
        assert page.locator("path").count() == 202
        page.get_by_label("format").select_option("BF16")
        page.get_by_role("slider", name="step").press("ArrowLeft")
        assert "BF16, steps of 1/2,048" in pages.status(page)
        page.wait_for_function("location.hash === '#weather?format=BF16&power=11'")


COUNTING = "old = Math.fround; Math.fround = x => (taken++, old(x)); taken = 0"
MOVED = """async slider => {
    await new Promise(done => setTimeout(done, 300));
    taken = 0;
    slider.value = 7;
    slider.dispatchEvent(new Event('input'));
    return taken;
}"""


def test_the_weather_grows_and_a_key_finds_its_runs_taken_only_if_it_is_seen(
    chromium, tmp_path
):
    bits, *more = three()
    with pages.opened(chromium, bits, tmp_path, *more, FrozenWeather()) as page:
        page.evaluate(COUNTING)
        page.wait_for_timeout(300)
        assert page.evaluate("taken") == 0
        slider = page.get_by_role("slider", name="step")
        slider.focus()
        few = "document.querySelectorAll('path').length < 100"
        page.wait_for_function(few)  # it begins again when it is seen
        page.wait_for_function("taken > 240000")  # four runs of 20,000 steps
        assert slider.evaluate(MOVED) < 10


CHOSEN = """() => {
    const style = e => getComputedStyle(document.querySelector(e));
    const bit = style('.mplab-bit:focus');
    return [style('.mplab-chosen').outlineStyle, new Set(['sign', 'exponent', 'trailing']
        .map(name => style(`.mplab-name.mplab-${name}`).borderBottomColor)).size,
        bit.outlineColor === style('.mplab-bit[aria-pressed=false]').color];
}"""


@pytest.mark.parametrize("forced", ["none", "active"])
def test_what_is_chosen_and_fields_and_focus_are_seen(forced, chromium, tmp_path):
    bits, *_ = three()
    with pages.opened(chromium, bits, tmp_path, forced_colors=forced) as page:
        page.locator("[aria-pressed=true]").first.focus()
        assert page.evaluate(CHOSEN) == ["solid", 3, True]


# A canvas ends within a pixel: what lies behind and beside it is seen as well.
PLAIN = ".mplab-page { background: black } * { outline: none !important }"


def test_the_photograph_is_moved_by_keyboard_and_keeps_its_colours_on_a_dark_page(
    chromium, tmp_path
):
    how = {"hash": "#photograph?format=FP8_E4M3&power=5&mode=TIES_TO_EVEN"}
    seen = []
    for scheme in ("light", "dark"):
        with pages.opened(
            chromium, Photograph(), tmp_path, color_scheme=scheme, **how
        ) as page:
            assert "0 of 172,800 numbers became 0 and 0 became NaN" in pages.status(
                page
            )
            page.get_by_role("slider", name="original").press("ArrowRight")
            canvas = page.locator(".mplab-photo canvas").first
            seen.append(canvas.screenshot(style=PLAIN))
            page.get_by_role("slider", name="exposure").press("ArrowRight")
            assert "and 157 became NaN" in pages.status(page)
    assert seen[0] == seen[1]


HALVES = """row => {
    const [a, b, ...more] = [...row.querySelectorAll('rect')].map(e => e.getBoundingClientRect());
    return !more.length && a.width > 100 && Math.abs(a.width - b.width) <= 1;
}"""


def test_between_two_values_what_rounds_to_each_is_still_drawn(chromium, tmp_path):
    explorer = explorers.NumberLine(around="12.5", zoom=-4)
    with pages.opened(chromium, explorer, tmp_path) as page:
        row = page.locator(".mplab-row").first
        assert "FP8_E4M3: 0 values" in row.inner_text()
        # 12.5 is a tie.
        assert row.evaluate(HALVES)


ABOVE = """(() => {
    const left = e => e.getBoundingClientRect().left;
    const texts = [...document.querySelectorAll('text')];
    const middle = texts.find(e => e.textContent.includes('middle'));
    return left(document.querySelector('circle')) > left(middle);
})()"""


def test_the_lab_is_moved_by_keyboard(chromium, tmp_path):
    with pages.opened(chromium, explorers.RoundingLab("-16"), tmp_path) as page:
        slider = page.get_by_role("slider")
        for _ in range(3):
            slider.press("ArrowRight")
        assert pages.status(page).startswith("−16.75 in FP8_E4M3: between −18 and −16")
        assert (
            page.get_by_text(
                "cut after bit 4: short of the middle, seen from 0"
            ).count()
            == 1
        )
        assert page.evaluate(ABOVE)  # −16.75 is above −17, and nearer to 0
        assert page.get_by_role("row", name="toward negative −18 0xD9").count() == 1
        page.get_by_label("rounding").select_option("TOWARD_NEGATIVE")
        assert "Toward negative gives −18 (0xD9)." in pages.status(page)
        page.get_by_label("format").select_option("BF16")
        assert pages.status(page).startswith("−16.046875 in BF16")
        field = page.get_by_label("number")
        enter(field, "1000")
        page.get_by_label("format").select_option("FP8_E4M3")
        assert pages.status(page).startswith(
            "The number must be finite and from −448 to 448"
        )
        assert page.get_by_label("format").input_value() == "BF16"  # which has it


LINKS = {
    "#line?around=1%2F3&zoom=-2&first=fp16": "From 0.208333 to 0.458333 FP16 has",
    "#line?first=fp7": "There is no format “fp7” here.",
    "#rounding?entry=-16&eighths=3&mode=toward_zero": "−16.75 in FP8_E4M3",
    "#fp8_e4m3/0x3f": "FP8_E4M3 0x3F: ",
    "#fp8_e4m3/0x1ff": "0x1ff needs more than the 8 bits of FP8_E4M3. FP16 0x2E66",
}


def three():
    return explorers.BitExplorer("0.1"), explorers.NumberLine(), explorers.RoundingLab()


@pytest.mark.parametrize("link", LINKS)
def test_a_link_reaches_the_one_explorer_it_names(link, chromium, tmp_path):
    addressed = 1 if "line" in link else 2 if "rounding" in link else 0
    bits, *more = three()
    with pages.opened(chromium, bits, tmp_path, *more, hash=link) as page:
        starts = ("FP16 0x2E66", "From 0 to 2", "17 in FP8_E4M3")
        for number, start in enumerate(starts):
            words = LINKS[link] if number == addressed else start
            assert pages.status(page, number).startswith(words)
        page.evaluate("location.hash = '#bf16/0x3f80'")
        page.get_by_text("BF16 0x3F80").first.wait_for()


def test_a_link_follows_what_is_done_and_opens_it_again(chromium, tmp_path):
    bits, line, lab = three()
    with pages.opened(chromium, bits, tmp_path, line, lab) as page:
        page.get_by_role("slider", name="eighths").press("ArrowRight")
        page.wait_for_function(
            "location.hash.startsWith('#rounding?entry=17&eighths=1')"
        )
        around = page.get_by_label("around")
        enter(around, "1/3")
        page.wait_for_function("location.hash.startsWith('#line?around=1%2F3')")
        said = [pages.status(page, number) for number in range(3)]
        page.reload()
        page.get_by_role("status").nth(2).wait_for()
        assert pages.status(page, 1) == said[1]
        enter(around, "1")
        page.wait_for_function("location.hash.startsWith('#line?around=1&')")
        assert pages.status(page, 1) != said[1]
