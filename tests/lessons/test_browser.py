"""Lessons and explorers in real JupyterLab, in a browser, by keyboard and by mouse."""

from functools import partial
from pathlib import Path
from urllib.error import HTTPError

import every_explorer
import lab_browser
import pytest

from mplab.common.files import course_folder

pytestmark = pytest.mark.browser
LESSONS = sorted(path.name for path in course_folder("lessons").glob("*.ipynb"))
ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"


@pytest.fixture
def open_lesson(tmp_path, request):
    """Opens a notebook by name; keeps what explains a failure under the test's name."""
    artefacts = ARTEFACTS / request.node.name
    return partial(lab_browser.open_lesson, folder=tmp_path, artefacts=artefacts)


def complaints(lesson):
    """Console lines that report an error."""
    return [text for kind, text in lesson.console if kind == "error"]


def test_mplab_lab_lands_on_the_lesson(tmp_path):
    with lab_browser.serve(tmp_path) as (address, token):
        with lab_browser.ask(f"{address}/?token={token}") as answer:
            assert answer.url.startswith(f"{address}/lab/tree/01_")
        with pytest.raises(HTTPError, match="403"):  # the token is asked for
            lab_browser.ask(f"{address}/api/contents").close()


@pytest.mark.parametrize("chosen", [None, "none"])
def test_a_first_visit_is_not_asked_about_news_unless_its_user_wants_that(
    chosen, open_lesson, monkeypatch
):
    """What is chosen in JupyterLab's settings wins over what `mplab lab` brings."""
    notification = "apputils-extension/notification"
    monkeypatch.setitem(
        lab_browser.SETTINGS, notification, {"fetchNews": chosen} if chosen else {}
    )
    with open_lesson(LESSONS[0], snapshots=False) as lesson:
        found = lesson.page.evaluate(FETCH_NEWS)
        assert found == (chosen or "false")
        question = lesson.page.get_by_text("get notified about official Jupyter news")
        if chosen == "none":
            question.wait_for()
        else:
            lesson.page.wait_for_timeout(3000)  # it came after one
            assert question.count() == 0


FETCH_NEWS = """async () => {
    const settings = await window.jupyterapp.serviceManager.settings.fetch(
        '@jupyterlab/apputils-extension:notification');
    const chosen = JSON.parse(settings.raw).fetchNews;
    return chosen ?? settings.schema.properties.fetchNews.default;
}"""


def test_a_bit_is_flipped_and_a_slider_moved_by_keyboard(open_lesson):
    with open_lesson(LESSONS[1]) as lesson:
        lesson.run_all()
        assert lesson.errors() == []
        bit = lesson.page.locator(
            f"{lab_browser.OUTPUT} button[title='bit 15, sign: 0']:visible"
        )
        bit.focus()
        bit.press("Space")
        said = lesson.page.locator(f"{lab_browser.OUTPUT} [role=status]").first
        lesson.page.locator("[title='bit 15, sign: 1']:visible").wait_for()
        assert "FP16 0xAE66: sign 1" in said.inner_text()
        lesson.page.get_by_role("slider", name="width 2^").press("ArrowLeft")
        lesson.page.get_by_text("From 8 to 16 FP8_E4M3 has 9 values").wait_for()
        assert lesson.errors() == complaints(lesson) == []


BROKEN = """
import ipywidgets
from mplab import explorers
class Broken(explorers.Explorer):
    def __init__(self):
        self.slider = ipywidgets.IntSlider()
        super().__init__("What does a reader see of an error?", [self.slider])
    def draw(self):
        return "<svg/>", f"{1 / (1 - self.slider.value)}"
Broken()
"""


def test_every_explorer_is_operated_by_keyboard_and_by_mouse(
    open_lesson, tmp_path, record_property
):
    """Those of the library and of all lessons: each control moves the picture and the sentence."""
    name = every_explorer.write(tmp_path / "lessons", BROKEN)
    with open_lesson(name, snapshots=False) as lesson:
        lesson.run_all()
        assert lesson.errors() == []
        complained = {}
        moves = 0
        for name, explorer in every_explorer.explorers(lesson).items():
            complained[name], count = explorer.operate()
            assert count >= 4, name
            moves += count
        assert {name: words for name, words in complained.items() if words} == {}
        assert lesson.errors() == complaints(lesson) == []
        record_property("moves", moves)
        lesson.controls().last.press("ArrowRight")
        lesson.page.locator(lab_browser.RAISED).wait_for()
        assert lesson.errors() == ["ZeroDivisionError: division by zero"]


def test_no_key_pressed_in_an_explorer_reaches_the_notebook(open_lesson, tmp_path):
    """`d` twice in a list deleted the explorer's cell; an arrow in it went to another cell."""
    name = every_explorer.write(tmp_path / "lessons", *IN_THE_PAGE)
    with open_lesson(name, snapshots=False) as lesson:
        lesson.run_all()
        heard = {
            name: each.heard()
            for name, each in every_explorer.explorers(lesson).items()
        }
        assert {name: keys for name, keys in heard.items() if keys} == {} and len(
            heard
        ) > 15
        handles = lesson.page.locator(f"{lab_browser.OUTPUT} .noUi-handle").filter(
            visible=True
        )
        said = handles.evaluate_all("""all => all.map(handle => [
            handle.ariaLabel, handle.ariaValueText,
            handle.closest('.widget-inline-hbox').querySelector('.widget-readout')?.innerText])""")
        assert len(said) > 20 and all(name for name, _, _ in said)
        assert all(value == readout for _, value, readout in said if readout)


IN_THE_PAGE = (
    "from mplab import explorers\nbits = explorers.BitExplorer('0.1')\nbits",
    "line = explorers.NumberLine()\nline",
    "lab = explorers.RoundingLab('17', seed=2**64 - 1)\nlab",
)

IN_KERNEL = """async code => {
    const session = window.jupyterapp.shell.currentWidget.sessionContext.session;
    await session.kernel.requestExecute({ code }).done;
}"""


def test_explorers_in_the_page_move_in_jupyterlab_and_the_kernel_knows(
    open_lesson, tmp_path
):
    lab_browser.write_notebook(tmp_path / "lessons", "sample.ipynb", IN_THE_PAGE)
    with open_lesson("sample.ipynb", snapshots=False) as lesson:
        lesson.run_all()
        said = lesson.page.locator(".mplab-page [role=status]")
        for words in ("FP16 0x2E66", "From 0 to 2", "17 in FP8_E4M3"):
            said.filter(has_text=words).wait_for()
        address = lesson.page.url
        lesson.page.locator(".mplab-page [data-weight='0']").first.click()
        for key in ("ArrowLeft", "Space"):  # JupyterLab takes neither
            lesson.page.keyboard.press(key)
        said.filter(has_text="FP16 0x2E65").wait_for()
        assert lesson.page.url == address
        told = tmp_path / "told"
        code = f"open({str(told)!r}, 'w').write(bits.entry); bits.format = 'FP8_E4M3'"
        lesson.page.evaluate(IN_KERNEL, f"{code}; bits.entry = '0xC4'")
        said.filter(has_text="FP8_E4M3 0xC4").wait_for()
        assert told.read_text() == "0x2E65"
        # The code changes with it.
        lesson.page.get_by_label("bits of").select_option("FP16")
        said.filter(has_text="FP16 0xC200").wait_for()
        lesson.page.get_by_role("slider", name="width").press("ArrowLeft")
        lesson.page.get_by_role("slider", name="eighths").press("ArrowRight")
        said.filter(has_text="From 0.5 to 1.5").wait_for()
        said.filter(has_text="17.25 in FP8_E4M3").wait_for()
        code = f"open({str(told)!r}, 'w').write(f'{{line.zoom}} {{lab.eighths}} {{lab.seed}}')"
        lesson.page.evaluate(
            IN_KERNEL, f"{code}; line.around = '12'; lab.mode = 'TOWARD_ZERO'"
        )
        said.filter(has_text="From 11.5 to 12.5").wait_for()
        said.filter(has_text="Toward zero gives 16 (0x58)").wait_for()
        assert told.read_text() == f"0 1 {2**64 - 1}"
        assert lesson.errors() == complaints(lesson) == []


# The harness itself must see what it looks for.

EXPLORER = """
import ipywidgets as w
from IPython.display import display
slider, text, picture = w.FloatSlider(min=0, max=4), w.HTML(), w.HTML()
def move(change):
    text.value = f"one over {1 / (4 - change.new):.3f}"
    picture.value = f'<svg width=60 height=20><rect width="{9 * slider.value}" height=20 /></svg>'
slider.observe(move, "value")
display(w.VBox([slider, text, picture]))
"""


def test_the_harness_sees_a_slider_move_and_one_that_only_seems_to(
    open_lesson, tmp_path, monkeypatch
):
    lab_browser.write_notebook(
        tmp_path / "lessons", "sample.ipynb", ["'a cell before'", EXPLORER]
    )
    with open_lesson("sample.ipynb") as lesson:
        lesson.run_all()
        assert [cell["count"] for cell in lesson.cells()] == [1, 2]
        control = lesson.controls().first
        before, after = lesson.press(control, "ArrowRight", times=3)
        assert (float(before["value"]), float(after["value"])) == (0, 0.3)
        assert "one over 0.270" in after["text"]
        assert lesson.errors() == complaints(lesson) == []
        monkeypatch.setattr(lab_browser, "MOVE", 2)
        with pytest.raises(TimeoutError, match=r"'text': '.*one over"):  # 1 / 0, unseen
            lesson.press(control, "End")


def test_the_harness_refuses_the_network(open_lesson, tmp_path):
    fetch = "from IPython.display import HTML; HTML('<img src=\"http://mplab.invalid/x.png\">')"
    lab_browser.write_notebook(tmp_path / "lessons", "sample.ipynb", [fetch])
    refused = pytest.raises(ConnectionError, match=r"mplab\.invalid")
    with refused, open_lesson("sample.ipynb") as page:
        page.run_all()
        page.page.wait_for_load_state("networkidle")


@pytest.mark.full
@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_runs_and_every_slider_moves_by_keyboard(open_lesson, name):
    with open_lesson(name) as lesson:
        lesson.run_all()
        assert lesson.errors() == []
        controls = lesson.controls()
        for i in range(controls.count()):
            control = controls.nth(i)
            if (
                control.is_visible()
                and control.get_attribute("aria-disabled") != "true"
            ):
                most = control.get_attribute("aria-valuemax") or control.get_attribute(
                    "max"
                )
                last = lesson.state(control)["value"] == most
                lesson.press(control, "ArrowLeft" if last else "ArrowRight")
        assert lesson.errors() == complaints(lesson) == []
