"""What an explorer owes a notebook: its keys, its cells, and a reader who opens it elsewhere."""

import re
from base64 import b64decode
from contextlib import contextmanager
from pathlib import Path

import lab_browser
import nbconvert
import nbformat
import pytest
import vscode
from drawn import assert_as_it_was
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output

from mplab import explorers
from mplab.course.explorers import saved
from mplab.course.site.lesson_page import lesson_body
from mplab.lessons.l16.explorer import FreezingCup

SOURCES = (
    "from mplab import explorers",
    "from mplab.lessons.l16.explorer import FreezingCup\nFreezingCup()",
    "explorers.NumberLine()",
)
NOTEBOOK = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    return [notebook.widgets.length, notebook.mode];
}"""
COUNT_SAVES = """() => {
    window.saves = 0;
    window.jupyterapp.commands.commandExecuted.connect((_, { id, result }) => {
        if (id === 'docmanager:save') result.then(() => { window.saves += 1; });
    });
}"""
"""Counts by the command, checkpoint and all: until then JupyterLab ignores another Ctrl+S."""
SESSION = "window.jupyterapp.shell.currentWidget.sessionContext"
SAVE = "window.jupyterapp.commands.execute('docmanager:save')"
CLOSE = "() => window.jupyterapp.shell.currentWidget.dispose()"
ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"


@pytest.fixture
def notebook(tmp_path, request):
    """Opens a notebook with an explorer of each kind, run; a test that fails in it leaves why.

    The test opens it, because no exception of a test reaches what a fixture has opened.
    """

    @contextmanager
    def opened(front=lab_browser.LAB):
        lab_browser.write_notebook(tmp_path / "lessons", "sample.ipynb", SOURCES)
        kept = ARTEFACTS / request.node.name
        more = {
            "folder": tmp_path,
            "artefacts": kept,
            "snapshots": False,
            "front": front,
        }
        with lab_browser.open_lesson("sample.ipynb", **more) as lesson:
            lesson.run_all()
            assert lesson.errors() == []
            yield lesson.page
            lesson.page.evaluate(CLOSE)
            lesson.page.wait_for_timeout(500)
            assert [line for _, line in lesson.console if "TypeError" in line] == []

    return opened


def seen(page, selector):
    return page.locator(f"{lab_browser.OUTPUT} {selector}").filter(visible=True).first


@pytest.mark.browser
@pytest.mark.parametrize("front", [lab_browser.LAB, lab_browser.NOTEBOOK_7])
def test_keys_after_a_click_stay_but_ctrl_s_saves_and_escape_goes_to_the_cell(
    notebook, front
):
    """`d d` after a click on the picture deleted the explorer's cell.

    Notebook 7 took the arrows of sliders, too.
    """
    with notebook(front) as page:
        before = page.evaluate(NOTEBOOK)
        for kind in (".mplab-explorer", ".mplab-page"):
            for part in ("svg", "[role=status]", "b"):
                seen(page, f"{kind} {part}").click()
                for key in "ddx":
                    page.keyboard.press(key)
                assert page.evaluate(NOTEBOOK) == before, f"{kind} {part}"
        slider = seen(page, ".mplab-page input[type=range]")
        at = int(slider.input_value())
        slider.press("ArrowRight")
        assert int(slider.input_value()) == at + 1
        page.evaluate(COUNT_SAVES)
        controls = ".noUi-handle", "select", ".mplab-page input[type=range]"
        for control in controls:
            seen(page, control).focus()
            page.evaluate("window.saves = 0")
            page.keyboard.press("Control+s")
            page.wait_for_function("window.saves > 0")
            page.keyboard.press("Escape")
            assert page.evaluate("document.activeElement.matches('.jp-Cell')"), control


@pytest.mark.browser
def test_without_its_kernel_an_explorer_goes_on_or_shows_a_picture_and_says_why(
    notebook,
):
    """JupyterLab showed "Error displaying widget: model not found" in a notebook opened again."""
    with notebook() as page:
        gone = page.get_by_text("The kernel that drew this has ended.")
        saved = page.get_by_text("This is how the cell left it.").first
        assert not gone.is_visible() and not saved.is_visible()
        page.evaluate(f"() => {SESSION}.session.kernel.restart()")
        gone.wait_for()
        seen(page, ".mplab-page input[type=range]").press("ArrowLeft")
        page.get_by_text("From 0.5 to 1.5").filter(visible=True).wait_for()
        page.evaluate(f"async () => {{ await {SAVE}; await {SESSION}.shutdown(); }}")
        page.reload()
        page.wait_for_function(lab_browser.OPENED)
        saved.wait_for()
        assert page.get_by_text("Error displaying").filter(visible=True).count() == 0
        assert seen(page, ".mplab-saved img").evaluate(
            "e => e.decode().then(() => true)"
        )
        before = page.evaluate(NOTEBOOK)
        seen(page, ".mplab-page input[type=range]").press("ArrowLeft")
        page.get_by_text("From 0.5 to 1.5").filter(visible=True).wait_for()
        for key in "dd":
            page.keyboard.press(key)
        assert page.evaluate(NOTEBOOK) == before


@pytest.mark.browser
def test_vs_code_shows_explorers_alive_on_dark_pages_too_and_saves_what_it_opened(
    tmp_path,
):
    """A line above each told readers to run the cell in Jupyter; cards were white on black."""
    path = tmp_path / "lessons" / "sample.ipynb"
    picture = "import mplab\nmplab.pictures.code_table(mplab.FP4_E2M1)"
    sources = [*SOURCES, picture, "answer = None"]
    lab_browser.write_notebook(path.parent, path.name, sources)
    kept = nbformat.read(path, as_version=4)
    grading = {"grade_id": "answer", "solution": True, "schema_version": 3}
    kept.cells[-1].metadata["nbgrader"] = grading
    NotebookClient(kept).execute()
    nbformat.write(kept, path)
    with vscode.opened(path, tmp_path) as page:
        shown = page.frame_locator("iframe.webview").frame_locator("iframe")
        saved = shown.locator(".mplab-saved")
        saved.locator("img[width='720']").evaluate("e => e.decode().then(() => true)")
        saved.get_by_role("slider").press("ArrowLeft")
        saved.get_by_text("From 0.5 to 1.5").wait_for()
        assert shown.get_by_text("run its cell in Jupyter").count() == 0
        page.locator(".view-line", has_text="answer = None").click()
        page.keyboard.press("F1")
        page.get_by_role("combobox", name="input").fill(">Toggle between Light")
        page.get_by_role("option", name="Toggle between Light").click()
        shown.locator(".vscode-dark .mplab-page").wait_for()
        schemes = "all => all.map(e => getComputedStyle(e).colorScheme)"
        for kind in (".mplab-page", ".mplab-card:not(.mplab-saved *)"):
            assert shown.locator(kind).evaluate_all(schemes) == ["dark"]
        page.locator(".view-line", has_text="answer = None").click()
        page.keyboard.press("End")
        page.keyboard.type("  # mine")
        vscode.save(page, path)
    kept.cells[-1].source += "  # mine"
    assert nbformat.read(path, as_version=4) == kept


def shown_saved(page):
    """The words and pictures of explorers that are seen where no kernel is, and all words."""
    page.locator(".mplab-saved").last.scroll_into_view_if_needed()
    saved = page.locator(".mplab-saved").filter(visible=True)
    saved.last.wait_for()
    pictures = saved.locator("img, svg").filter(visible=True)
    return saved.all_inner_texts(), pictures.count(), page.locator("body").inner_text()


@pytest.mark.browser
def test_an_exported_and_an_untrusted_notebook_show_their_explorers(notebook, tmp_path):
    """They showed `<...BitExplorer object at 0x...>` and `AccumulatorRace(children=(...`."""
    path = tmp_path / "lessons" / "sample.ipynb"
    with notebook() as page:
        page.evaluate(f"async () => {{ await {SAVE}; }}")
        kept = nbformat.read(path, as_version=4)
        for cell in kept.cells:
            cell.source += "  # by somebody else"
        nbformat.write(kept, path.with_name("other.ipynb"))
        for front in (lab_browser.LAB, lab_browser.NOTEBOOK_7):
            other = page.context.new_page()
            other.goto(page.url.replace(f"{lab_browser.LAB}/sample", f"{front}/other"))
            other.wait_for_function(lab_browser.OPENED)
            texts, pictures, words = shown_saved(other)
            assert ["how the cell left it" in text for text in texts] == [True, True]
            assert pictures == 2 and " object at " not in words, front
            assert "run its cell in Jupyter" not in words
        assert_an_export_shows_them(path, page.context.browser)


def assert_an_export_shows_them(path, browser):
    """With scripts one of them moves; without, as on paper, there are still pictures."""
    html, _ = nbconvert.HTMLExporter().from_filename(path)
    exported = path.with_suffix(".html")
    exported.write_text(html, encoding="utf-8")
    for scripts in (True, False):
        with browser.new_context(java_script_enabled=scripts) as context:
            file = context.new_page()
            file.route("http*://**", lambda route: route.abort())
            file.goto(exported.as_uri())
            texts, pictures, words = shown_saved(file)
            assert len(texts) == 2 and pictures >= 2 and " object at " not in words
            if scripts:
                file.locator("input[type=range]").press("ArrowLeft")
                file.get_by_text("From 0.5 to 1.5").wait_for()


def test_an_explorer_is_displayed_twice_and_a_page_keeps_one_of_them(monkeypatch):
    shown = []
    monkeypatch.setattr(saved, "display", lambda data, **_: shown.append(data))
    for explorer in (FreezingCup(), explorers.RoundingLab()):
        explorer._ipython_display_()
        assert explorer.model_id in str(shown[-2])
        # A terminal prints one of them, and so does what shows HTML but no widget.
        assert not shown[-2]["text/plain"]
        assert shown[-1]["text/plain"].endswith(": run its cell in Jupyter to use it.")
        outputs = [new_output("display_data", shown[-1])]
        cell = new_code_cell("explorer", outputs=outputs)
        page = lesson_body(new_notebook(cells=[cell]))
        assert "mplab-saved" not in page and "explorer" in page


def test_a_saved_picture_brings_its_colours_in_an_address_that_github_shows():
    """It was black: its colours were told where they were removed. GitHub removes styles."""
    for explorer in (FreezingCup(), explorers.RoundingLab()):
        images = re.findall(
            r'src="data:image/svg\+xml;base64,([^"]+)', explorer.saved_html()
        )
        svg = b64decode(*images).decode()
        named = set(re.findall(r"var\((--\w+)\)", svg))
        assert named and all(f"{name}:" in svg for name in named)


def test_the_words_of_a_saved_picture_are_no_tags():
    html = saved.saved_picture("Is 1 < 2?", "<svg /><svg />", "<b>")
    assert_as_it_was(html, __file__, "saved.html")
