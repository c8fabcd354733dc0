"""The exported pages as their readers meet them: by mouse, by keys, without scripts, on a phone."""

import re
from fractions import Fraction
from html import escape, unescape
from io import BytesIO

import corpus
import nbformat
import page as pages
import pytest
from PIL import Image

from mplab import FP16, explorers
from mplab.common.files import course_folder
from mplab.common.words import superscript
from mplab.course import EXERCISES
from mplab.course.exercises.practice import practice
from mplab.course.site import export, frame
from mplab.course.site.lesson_page import TEXTS
from mplab.course.site.stalled import RECORDED, gradients
from mplab.lessons.l11.explorer import SpeedUp
from mplab.lessons.l18.explorer import FourBitBlock
from mplab.training.exponents import shares

pytestmark = [pytest.mark.slow, pytest.mark.browser]

TIMELINE = """from mplab.lessons.l09.explorer import ScalerTimeline
x = ScalerTimeline([4.0] * 8 + [64.0] * 20)
x.rule.options, x.interval.options = x.rule.options[:1], [5]
x.start.value = x.start.min = x.start.max = 3"""

FIRST = [
    "# What is asked?\n\nA first sentence. A second one.",
    "from mplab import FP16, explorers, pictures",
    "## 1. A question\n\n**Predict.** Which?",
    "pictures.bit_fields(0.1, [FP16])",
    "explorers.RoundingLab('17')",
    "**What happened?** This.\n\n**Predict.** And now?",
    "from mplab.lessons.l11.explorer import SpeedUp\nSpeedUp()",
    "Words after it.\n\n## 2. Another\n\nIn the open.\n\n| a | b |\n|---|---|\n| 1 | 2 |",
    "print('a line of a hundred letters ' * 4)  # and a line of code that has 88 of them ......",
    "SpeedUp()",
    "from mplab.lessons.l18.explorer import FourBitBlock\nFourBitBlock()",
    f"{TIMELINE}\nx",
    "explorers.BitExplorer('0.1', FP16)",
]
SENTENCES = [
    line
    for path in sorted(course_folder("lessons").glob("*.ipynb"))
    for cell in nbformat.read(path, as_version=4).cells
    for line in cell.source.splitlines()
    if 'class="drag"' in line
]
SECOND = ["# And a second?\n\nWords, 2⁻²⁴ and 2^−25. Another.", "1 + 1", *SENTENCES]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of a course of two lessons."""
    folder, out = (tmp_path_factory.mktemp(name) for name in ("lessons", "pages"))
    pages.write_lesson(folder / "01_first.ipynb", FIRST)
    pages.write_lesson(folder / "02_second.ipynb", SECOND)
    for name in TEXTS:
        text = (course_folder("lessons") / f"{name}.md").read_text(encoding="utf-8")
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "course_folder", lambda name: folder)
        patch.setattr(
            "mplab.course.site.reference.write_reference",
            lambda folder, _: folder.mkdir(),
        )
        export.export(out, {})
    (out / "api" / "mplab.html").touch()
    every = "<h1>All</h1>" + "".join(
        practice(f'mplab.check("{x}", x)', escape) for x in EXERCISES
    )
    (out / "practice.html").write_text(frame.page("Practice", every), encoding="utf-8")
    return out


@pytest.fixture
def opened(site, browser):
    """A function that opens a page, and fails at the end if a page asked for or said anything."""
    heard = []
    contexts = []

    def open_page(name, **how):
        size = {"width": how.pop("width", 1280), "height": 900}
        context = browser.new_context(viewport=size, **how)
        contexts.append(context)
        page = context.new_page()
        address = (site / name).as_uri()
        page.on(
            "request", lambda request: heard.append(request.url.replace(address, ""))
        )
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert set(heard) <= {""}


def names(site):
    return sorted(path.name for path in site.glob("*.html"))


def test_what_follows_a_prediction_is_hidden_until_asked_up_to_the_next(opened):
    page = opened("01_first.html")
    page.get_by_label("My answer").first.fill("(c)")
    page.reload()
    kept = [field.input_value() for field in page.get_by_label("My answer").all()]
    assert kept == ["(c)", ""]
    answers = page.locator("details.answer")
    assert answers.count() == 2 and not answers.nth(0).locator("img").is_visible()
    assert not page.get_by_text("What happened?").is_visible()
    assert all(
        page.get_by_text(text).is_visible() for text in ("And now?", "In the open")
    )
    answers.nth(0).locator("summary").press("Enter")
    assert answers.nth(0).locator("img").is_visible()
    assert page.get_by_text("What happened?").is_visible()
    assert not page.get_by_text("Words after it.").is_visible()
    answers.nth(1).locator("summary").click()
    assert page.get_by_text("Words after it.").is_visible()


def test_on_paper_and_without_scripts_everything_is_open(opened):
    page = opened("01_first.html")
    assert not page.get_by_text("Words after it.").is_visible()
    page.emulate_media(media="print")
    assert page.get_by_text("Words after it.").is_visible()
    still = opened("01_first.html", width=360, java_script_enabled=False)
    assert still.get_by_text("Words after it.").is_visible()
    frozen = still.locator(".frozen").first
    assert (
        frozen.locator("svg").is_visible()
        and not frozen.locator(".controls").is_visible()
    )
    assert "it moves" in frozen.locator(".note").inner_text()
    assert frozen.locator(".sentence").inner_text() == SpeedUp().draw()[1]
    living = still.locator(".explorer").last
    assert living.locator("img").bounding_box()["width"] < 360


def test_keys_move_a_frozen_explorer_as_they_move_the_live_one(opened):
    page = opened("01_first.html")
    live = SpeedUp()
    frozen = page.locator(".frozen").nth(1)
    rows, size, _ = frozen.locator("input[type=range]").all()
    told = frozen.locator("[role=status], output:not([aria-live=off])")
    assert told.count() == 1  # a move is told once
    picture = "svg => Object.assign(document.createElement('div'), { innerHTML: svg }).innerHTML"
    for slider, control, key in (
        (rows, live.rows, "ArrowRight"),
        (size, live.size, "ArrowLeft"),
    ):
        slider.press(key)
        control.index += 1 if key == "ArrowRight" else -1
        drawn, sentence = live.draw()
        assert frozen.locator(".sentence").inner_text() == sentence
        assert frozen.locator(".picture").inner_html() == page.evaluate(picture, drawn)
        assert slider.get_attribute("aria-valuetext") == control.label
        assert frozen.locator("output").all_inner_texts()[0] == live.rows.label
    page.locator(".answer > summary").nth(1).click()
    assert page.locator(".frozen .sentence").first.inner_text() == SpeedUp().draw()[1]


def test_boxes_choices_and_buttons_move_a_frozen_explorer(opened):
    page = opened("01_first.html")
    block = page.locator(".frozen").nth(2)
    block.locator("input[type=checkbox]").press("Space")
    block.locator("select").select_option(index=2)
    live = FourBitBlock()
    live.turned.value = True
    live.way.index = 2
    assert block.locator(".sentence").inner_text() == live.draw()[1]
    line = page.locator(".frozen").nth(3)
    here = {"explorers": explorers}
    exec(TIMELINE, here)
    power = line.get_by_role("slider", name="first scale", exact=True)
    assert power.get_attribute("aria-valuetext") == "2³"
    said = {line.locator(".sentence").inner_text()}
    for button, name in ((here["x"].forth, "next"), (here["x"].back, "previous")) * 2:
        line.get_by_role("button", name=name).press("Enter")
        button.click()
        assert line.locator(".sentence").inner_text() == here["x"].draw()[1]
        assert line.get_by_role("slider").last.input_value() == str(
            here["x"].step.value
        )
        said.add(here["x"].draw()[1])
    assert len(said) == 2


def test_an_explorer_that_takes_free_text_lives_under_the_policy_of_the_page(opened):
    alive = opened("01_first.html").locator(".explorer").last
    assert "0x2E66" in alive.inner_text()
    alive.get_by_role("textbox").first.fill("1/3")
    alive.get_by_role("textbox").first.press("Enter")
    assert "0x3555" in alive.inner_text()  # a third in FP16


ASK = """(form, all) => all.map(typed => { form.elements[0].value = typed; form.requestSubmit();
    return form.querySelector('p').textContent })"""


def spelt(value):
    """An answer in the spellings of different people."""
    if isinstance(value, list):
        return [
            str(value),
            " ".join(map(str, value)),
            "; ".join(map(str, value)).replace(".", ","),
        ]
    exact = Fraction(value)
    whole = (
        [hex(exact.numerator), f"{exact.numerator:,}"] if exact.denominator == 1 else []
    )
    power = ["2" + superscript(-k) for k in range(1, 30) if value == 2.0**-k]
    return [*whole, *power, f" {exact} ", f"x = {float(value)}".replace(".", ",")]


def test_exercises_by_hand_are_checked_in_the_page_with_the_sentences_of_python(opened):
    page = opened("practice.html")
    forms = page.locator("form").all()
    assert len(forms) == sum(not callable(each.answer) for each in EXERCISES.values())
    for form in forms:
        exercise = EXERCISES[form.locator("code").inner_text().removesuffix(" =")]
        said = {
            str(wrong): f"Not yet. {words}" for wrong, words in exercise.misconceptions
        }
        said |= dict.fromkeys(spelt(exercise.answer), "Right.")
        said |= {"1e300": f"Not yet. {exercise.reason}"}
        assert form.evaluate(ASK, [*said]) == [*said.values()]
        unread = form.evaluate(ASK, ["", "abc", "2 +", "1/2/"])
        assert all(words.startswith("Write ") for words in unread)
    hints = page.get_by_text("Hint")
    hints.first.click()
    assert (
        hints.count() == len(EXERCISES)
        and page.get_by_text("Correct the term").count() == 1
    )


def test_no_answer_to_an_assignment_stands_in_the_site(site):
    """No three lines of one: a single line may be what torch's documentation says as well."""
    paths = [
        *course_folder("lessons").glob("*.ipynb"),
        course_folder("lessons") / "README.md",
    ]

    def squeezed(text):
        return re.sub(r'\\n|[\s",\\]', "", unescape(text))

    shown = "".join(
        squeezed(p.read_text("utf-8")) for p in [*paths, site / "practice.html"]
    )
    assert squeezed("corrected = round_to(term - lost, FP16)") in shown
    for cell in [cell for name in corpus.NAMES for cell in corpus.cells(name).values()]:
        lines = [
            squeezed(line) for line in cell.partition("### BEGIN")[2].splitlines()[1:-1]
        ]
        parts = [
            "".join(lines[i : i + 3]) for i in range(max(len(lines) - 2, bool(lines)))
        ]
        assert not any(part in shown for part in parts)


def test_the_front_page_holds_a_number_by_its_address(site, opened):
    page = opened("index.html")
    hand = page.locator("section[aria-labelledby=hand]")
    assert "0x2E66" in hand.inner_text()
    page.goto((site / "index.html").as_uri() + "#fp8_e4m3/0x3f")
    hand.get_by_text("FP8_E4M3 0x3F").first.wait_for()
    assert "1.875" in hand.inner_text()
    assert 0 <= hand.locator(".mplab-page").bounding_box()["y"] < 800


@pytest.mark.parametrize("name", ["index.html", "stalled.html"])
def test_one_slider_moves_the_gradients_and_the_loss_together_as_they_were_recorded(
    opened, name
):
    page = opened(name, width=360)
    explorer = page.locator(".frozen")
    slider = explorer.get_by_role("slider")
    assert int(slider.get_attribute("max")) == len(RECORDED["fp16"]) - 1
    seen = set()
    for power, run in RECORDED["fp16"].items():
        assert slider.get_attribute("aria-valuetext") == "2" + superscript(int(power))
        said = explorer.locator(".sentence").inner_text()
        lost = shares(gradients(), FP16, loss_scale=2.0 ** int(power))
        share = re.match(r"([\d.]+)% of these gradients become 0", said)[1]
        assert float(share) == pytest.approx(100 * lost.flushed / lost.total, abs=0.5)
        last = run["loss"][-1]
        wide = RECORDED["fp32"]["loss"][-1]
        ends = "stalls" if last and last > 2 * wide else "falls" if last else "NaN"
        assert ends in said or (ends == "falls" and "stalls: it ends at 0.02" in said)
        seen.add(explorer.locator(".picture").inner_html())
        slider.press("ArrowRight")
    assert len(seen) == len(RECORDED["fp16"])


def test_the_race_stops_at_each_format_s_last_sum_in_every_way_it_is_shown(opened):
    still = opened("index.html", java_script_enabled=False).locator(".race")
    moved = opened("index.html", reduced_motion="reduce").locator(".race")
    printed = opened("index.html").locator(".race")
    printed.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    sums = ["8", "16", "256", "2,048", "16,777,216"]
    for race in (still, moved, printed):
        shown = race.locator("strong").all_inner_texts()
        assert shown == [f"{x} + 1 = {x}" for x in sums]
        assert "FP32 has stopped at 16,777,216" in race.inner_text()
    moved.get_by_label("Kahan’s sum").press("Space")
    assert moved.locator("strong").nth(2).inner_text() == "65,536 + 1 = 65,536"
    assert moved.page.url.endswith("#race?kahan")


TOLD = """() => {
    window.told = 0;
    const live = '[role=status], output:not([aria-live=off]), [aria-live=polite]';
    new MutationObserver(changes => {
        told += changes.filter(({ target }) => (target.parentElement ?? target).closest(live)
            ?? target.closest?.(live)).length;
    }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def test_nothing_that_moves_by_itself_is_told_to_a_screen_reader(opened):
    """The race wrote into five `<output>`: 1,460 changes in 5 s."""
    page = opened("index.html")
    page.evaluate(TOLD)
    before = page.locator(".race strong").last.inner_text()
    page.wait_for_timeout(1500)
    assert page.locator(".race strong").last.inner_text() != before
    assert page.evaluate("told") == 0
    page.locator(".frozen").get_by_role("slider").press("ArrowRight")
    page.wait_for_function("told > 0")


@pytest.mark.parametrize("fragment", ["%E0%A4%A", "explorer-1?-1.0", "explorer-1?x"])
def test_a_fragment_that_names_nothing_breaks_nothing(opened, site, fragment):
    for name in ("stalled.html", "search.html"):
        page = opened(name)
        page.goto(f"{(site / name).as_uri()}#{fragment}")
        page.reload()
        assert page.locator("main").inner_text()
    assert opened("stalled.html").locator(".frozen .sentence").inner_text()


def test_the_policy_of_a_page_lets_nothing_out(site, browser):
    tried = "fetch('http://127.0.0.1:9/').then(() => 'sent', error => String(error))"
    for name in names(site):
        with browser.new_context() as context:
            page = context.new_page()
            page.goto((site / name).as_uri())
            with page.expect_console_message() as refused:
                assert "sent" not in page.evaluate(tried)
            assert "Content Security Policy" in refused.value.text


def test_each_link_leads_somewhere(site):
    texts = {name: (site / name).read_text("utf-8") for name in names(site)}
    ids = {n: set(re.findall(r'\bid="([^"]+)"', text)) for n, text in texts.items()}
    for name, html in texts.items():
        for file, anchor in re.findall(
            r'href="(?!https?:|data:)([^"#]*)(?:#([^"]*))?"', html
        ):
            if 'class="text"' in html and re.match(r"\d\d_", file):
                continue  # of the whole course
            if file.endswith(".ipynb") or file == "api/mplab.html":
                assert (site / file).exists()
                continue
            assert (file or name) in ids and (
                not anchor or anchor in ids[file or name]
            ), file


def test_a_figure_and_its_card_have_their_colours_in_light_and_dark(opened):
    for scheme, paper in (("light", 255), ("dark", 27)):
        for name, image in (("index.html", ".thumb"), ("01_first.html", ".output img")):
            page = opened(name, color_scheme=scheme)
            page.evaluate(OPEN)
            with Image.open(BytesIO(page.locator(image).first.screenshot())) as seen:
                colours = seen.convert("L").getcolors()
            assert max(colours)[1] == pytest.approx(paper, abs=1) and len(colours) > 9


OPEN = "document.querySelectorAll('.answer').forEach(d => { d.open = true })"
LETTERS = """() => [...document.querySelectorAll('main *')]
    .filter(each => each.getClientRects().length && [...each.childNodes].some(
        node => node.nodeType === Node.TEXT_NODE && node.data.trim()))
    .map(each => parseFloat(getComputedStyle(each).fontSize)
        * (each.ownerSVGElement?.getScreenCTM().a ?? 1))"""
SHORT = """[...document.querySelectorAll('input[type=range]')]
    .filter(each => each.offsetWidth < 200).map(each => each.outerHTML)"""
WIDER = """() => [...document.querySelectorAll('svg, picture img, .picture')]
    .filter(each => each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().right
        > each.closest('.explorer, .output').getBoundingClientRect().right)
    .map(each => each.outerHTML.slice(0, 80))"""


def test_on_a_phone_figures_and_explorers_are_as_wide_as_the_column_and_legible(opened):
    for name in ("01_first.html", "index.html"):
        page = opened(name, width=360)
        page.evaluate(OPEN)
        page.locator(".frozen .controls").first.wait_for()
        assert page.evaluate(WIDER) == [], name
        assert min(page.evaluate(LETTERS)) >= 9, name
        assert page.evaluate(SHORT) == [], name


def test_a_number_in_a_sentence_is_dragged_or_moved_by_keys_and_said(opened):
    page = opened("02_second.html")
    sentences = page.locator("p:has(.drag)")
    still = opened("02_second.html", java_script_enabled=False)
    written = still.locator("p:has(.drag)").all_inner_texts()
    assert sentences.all_inner_texts() == written and len(written) == 3
    slider = sentences.nth(1).get_by_role("slider", name="significant bits")
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "9: stops at 512"
    slider.hover()
    page.mouse.down()
    x, y = (slider.bounding_box()[side] for side in "xy")
    page.mouse.move(x + 30, y + 40)
    page.mouse.up()
    said = "With 11 significant bits, a sum of terms of 1 stops at 2,048."
    assert sentences.nth(1).inner_text() == said


def test_a_link_to_a_state_opens_the_fold_and_shows_it_and_back_finds_it_open(
    site, browser
):
    page = browser.new_page()
    address = (site / "01_first.html").as_uri()
    page.goto(address)
    other, first = page.locator(".frozen").all()[:2]  # the other one in a fold
    page.locator(".answer > summary").last.click()
    other.locator("input").first.press("ArrowRight")
    said = other.locator(".sentence").inner_text()
    link = other.get_by_role("link", name="link to this state").get_attribute("href")
    page.goto("about:blank")
    page.goto(address + link)
    page.wait_for_function("scrollY > 100")
    assert (
        other.locator(".sentence").inner_text()
        == said
        != first.locator(".sentence").inner_text()
    )
    assert page.locator(".answer[open]").count() == 1
    page.get_by_role("link", name="next: And a second?").first.click()
    page.go_back()
    assert page.locator(".answer[open]").count() == 1
    page.close()


def test_a_link_to_a_state_of_a_living_explorer_opens_its_fold(site, browser):
    page = browser.new_page()
    page.goto((site / "01_first.html").as_uri() + "#rounding?entry=19")
    page.get_by_text("19 in FP8_E4M3").wait_for()
    assert 0 <= page.locator(".mplab-page").first.bounding_box()["y"] < 600
    page.close()


def found_by(page, question):
    """The titles of the sections that a search finds, in their order."""
    page.get_by_role("searchbox").fill(question)
    return page.locator(".found li:visible a").all_inner_texts()


def test_the_search_finds_a_section_and_back_finds_the_word_again(site, browser):
    page = browser.new_page()
    page.goto((site / "search.html").as_uri())
    found = page.locator(".found li:visible")
    for power in ("2^-25", "2⁻²⁵", "2^−25", "2**-25"):
        assert found_by(page, power) == ["Lesson 2 · And a second?"]
        assert found.locator("mark").count() == 1
    found_by(page, "open 100%")
    for word in ("anohter", "another"):
        assert found_by(page, word)[0] == "Lesson 1 · 2. Another"
    assert "%20" not in page.content()  # the source of a figure is no text
    kept = found.count()
    found.locator("a").first.click()
    page.go_back()
    assert page.get_by_role("searchbox").input_value() == "another"
    assert found.count() == kept
    page.close()


ASKED = {
    "why did my FP16 training stall?": "Why did my FP16 training stall?",
    "my loss is stuck": "1. The loss is flat",
    "loss plateau in half precision": "1. The loss is flat",
    "bf16 update lost": "4. The weights keep their bits",
    "2**-24": "Why did my FP16 training stall?",
    "loss scale keeps falling": "3. The loss scale keeps falling",
    "NaN after step 1": "2. The loss is NaN",
}


def test_the_search_leads_who_is_stuck_to_the_right_section_first(site, browser):
    page = browser.new_page()
    page.goto((site / "search.html").as_uri())
    for question, section in ASKED.items():
        assert found_by(page, question)[0].startswith(f"Stalled · {section}"), question
    page.close()


BEFORE = """cells => cells.map(cell =>
    cell.checkVisibility() && getComputedStyle(cell, '::before').content)"""


def test_on_a_phone_each_cell_of_a_report_says_its_column(opened):
    table = opened("reports.html", width=360).locator("table").last
    names = table.locator("th").all_text_contents()[1:]
    shown = table.locator("tr:last-child td + td").evaluate_all(BEFORE)
    assert shown == [f'"{name}:\u00a0"' for name in names] != []


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_page_is_wider_than_its_window(site, opened, width):
    for name in names(site):
        # Without motion the race of sums is at its end, where its numbers are longest.
        page = opened(name, width=width, reduced_motion="reduce")
        page.evaluate(
            "document.querySelectorAll('details').forEach(d => { d.open = true })"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name


CUT = """() => [...document.querySelectorAll('.highlight pre')]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => each.innerText)"""


# Headings that a link after them, seen only under the mouse, makes higher.
HIGHER = """() => [...document.querySelectorAll('h2')].filter(heading => {
    const anchor = heading.querySelector('.anchor');
    anchor.remove();
    heading.style.width = 'max-content';
    heading.style.width = `${Math.ceil(heading.getBoundingClientRect().width)}px`;
    const height = heading.offsetHeight;
    heading.append(anchor);
    return heading.offsetHeight > height;
}).map(heading => heading.innerText)"""


def test_on_a_wide_page_code_is_whole_text_ends_early_and_contents_stay(opened):
    page = opened("01_first.html", width=1280)
    page.locator(".answer > summary").first.click()
    assert page.evaluate(CUT) == page.evaluate(HIGHER) == []
    words = page.get_by_text("What happened?")
    code = page.locator(".highlight pre")
    assert words.bounding_box()["width"] < 650 < code.nth(1).bounding_box()["width"]
    page = opened("01_first.html", width=1920)
    page.evaluate("scrollTo(0, 2000)")
    assert page.locator(".contents").bounding_box()["y"] > 0


def test_the_cards_leave_no_hole(opened):
    cards = opened("index.html", width=1280).locator(".lessons li")
    first, last = (card.bounding_box() for card in cards.all())
    assert first["y"] == last["y"] and last["x"] + last["width"] == 1184


@pytest.mark.parametrize(("width", "theme"), [(360, "light"), (1280, "dark")])
def test_an_audit_of_accessibility_finds_nothing_serious(site, browser, width, theme):
    for name in names(site):
        how = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
        with browser.new_context(**how, bypass_csp=True) as context:
            page = context.new_page()
            page.goto((site / name).as_uri())
            assert pages.serious(page) == [], name


def test_no_lesson_has_mathematics_that_a_page_could_not_show():
    for path in course_folder("lessons").glob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            tex = re.search(r"\$[^$]+\$|\\\(|\\\[|\\begin", cell.source)
            assert cell.cell_type != "markdown" or not tex, f"{path.name}: {cell.id}"
