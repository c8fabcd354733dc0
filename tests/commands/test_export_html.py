"""The exported course: whole pages, nothing fetched from elsewhere, nothing done twice."""

import email.message
import re
from importlib import import_module
from pathlib import Path

import nbformat
import page as pages
import pytest
from buttons import with_buttons
from fronts import offered

import mplab
from mplab.commands import main
from mplab.common.files import course_folder
from mplab.course.site import export
from mplab.course.site.lesson_page import launch_links, lesson_body

pytestmark = pytest.mark.slow

ROOMS = {path.parent.name for path in Path(mplab.__file__).parent.glob("*/__init__.py")}
FRONTS = [
    "mplab",
    *(f"mplab.{room}" for room in sorted(ROOMS - {"commands", "common", "lessons"})),
    *(f"mplab.{room}" for room in ("pictures", "explorers", "grading")),
]

CELLS = [
    "# A lesson <about> nothing",
    "import numpy as np\nfrom tqdm.auto import tqdm\nfrom mplab import explorers\n"
    "from mplab.training import exponent_histogram\nfor _ in tqdm(range(2)):\n    pass\n"
    "explorers.RangeMap(exponent_histogram(np.array([3e-9, 3e-6])))",
    "explorers.BitExplorer('0.1')",
    "explorers.RoundingLab('16')",
    "import time\nfor i in range(3):\n    print('line', i, flush=True)\n    time.sleep(0.3)",
]
LESSONS = sorted(course_folder("lessons").glob("*.ipynb"))


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """A course of one lesson, and where its page goes."""
    folder = tmp_path / "lessons"
    folder.mkdir()
    monkeypatch.setattr(export, "course_folder", lambda name: folder)
    monkeypatch.setattr("mplab.course.site.reference.write_reference", lambda *_: None)
    pages.write_lesson(folder / "01_nothing.ipynb", CELLS)
    return folder, tmp_path / "out"


ASKED = r'<(script|link|img)[^>]*(src|href)="(https?:)?//'
"""What fetches a file from elsewhere."""


def test_a_page_shows_its_explorers_and_asks_for_nothing(lessons):
    _, out = lessons
    export.export(out, {})
    page = (out / "01_nothing.html").read_text(encoding="utf-8")
    assert (
        "<svg" in page and "Which loss scale keeps the gradients inside FP16?" in page
    )
    assert "loss scale 2^" in page and 'class="states"' in page
    assert not re.search(r"\b2/2 \[", page)  # progress has nothing to say afterwards
    assert "line 0\nline 1\nline 2" in page
    assert '"entry": "0.1"' in page and page.count("render({ model, el });") == 2
    assert not re.search(ASKED, page)
    assert "A lesson &lt;about&gt; nothing" in (out / "index.html").read_text(
        encoding="utf-8"
    )


def test_a_page_holds_pasted_and_plotted_images():
    new = nbformat.v4
    text = new.new_markdown_cell("# Mine\n\n![a dot](attachment:dot.png)")
    text["attachments"] = {"dot.png": {"image/png": "iVBORw0K"}}
    plotted = {"image/png": "iVBORw0L\n", "text/plain": "<Figure>"}
    outputs = [
        new.new_output("display_data", plotted),
        new.new_output("stream", text="\x1b[31mred\x1b[0m"),
    ]
    code = new.new_code_cell("plt.show()", outputs=outputs)
    page = lesson_body(new.new_notebook(cells=[text, code]))
    assert '<img src="data:image/png;base64,iVBORw0K" alt="a dot"' in page
    assert '<img src="data:image/png;base64,iVBORw0L" alt="&lt;Figure&gt;">' in page
    assert "<pre>red</pre>" in page


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_each_prediction_of_a_lesson_hides_the_next_cell(path):
    page = lesson_body(nbformat.read(path, as_version=4))
    asked = list(re.finditer("<strong>Predict(?!</strong>, write)", page))
    assert len(asked) > 3
    for each in asked:
        cell = page.index("highlight hl-", each.end())
        assert '<details class="answer"' in page[each.end() : cell], page[each.end() :][
            :80
        ]
    assert "run the next cell" not in page and "Replace <code>None" not in page


def test_buttons_are_shown_once_pyproject_names_a_repository_and_not_before(
    lessons, monkeypatch
):
    kept = {path.name: nbformat.read(path, as_version=4) for path in LESSONS}
    assert {name: with_buttons(lesson, name) for name, lesson in kept.items()} == kept
    name = "01_nothing.ipynb"
    urls = email.message.Message()
    monkeypatch.setattr("importlib.metadata.metadata", lambda package: urls)
    assert launch_links(name) == {}
    urls["Project-URL"] = "Repository, https://github.com/a/b"
    colab = f"https://colab.research.google.com/github/a/b/blob/main/lessons/{name}"
    binder = f"https://mybinder.org/v2/gh/a/b/main?labpath=lessons%2F{name}"
    lesson = with_buttons(nbformat.read(lessons[0] / name, as_version=4), name)
    _, links, install, *_ = [cell.source for cell in lesson.cells]
    assert links == f"[Open in Colab]({colab}) · [Open in Binder]({binder})"
    assert (
        '%pip install --quiet "mplab[torch] @ git+https://github.com/a/b" ' in install
    )
    # It is installed: nothing happens.
    exec(install.replace("%pip", "raise AssertionError #"))
    assert with_buttons(lesson, name) == lesson


def test_a_page_is_kept_while_its_lesson_fails(lessons, capfd):
    folder, out = lessons
    page = out / "01_nothing.html"
    pages.write_lesson(folder / "01_nothing.ipynb", CELLS[:1])
    export.export(out, {})
    kept = page.read_bytes()
    pages.write_lesson(folder / "01_nothing.ipynb", [CELLS[0], "1 / 0"])
    assert main.main(["export-html", "--out", str(out)]) == 2
    assert "01_nothing.ipynb fails: ZeroDivisionError" in capfd.readouterr().err
    assert page.read_bytes() == kept


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folder of the reference."""
    out = tmp_path_factory.mktemp("pages")
    export.export(out, {}, lessons=[])
    return out / "api"


def page_of(folder, name):
    return (folder / f"{name.replace('.', '/')}.html").read_text("utf-8")


def sections(page):
    """The names that a page documents, and the HTML of each."""
    parts = re.split(r'<section id="([^"]+)">', page)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def ids(page):
    return set(re.findall(r'\bid="([^"]+)"', page))


def test_the_reference_has_a_page_for_each_front_and_for_no_inner_file(reference):
    found = {
        path.relative_to(reference).as_posix() for path in reference.rglob("*.html")
    }
    fronts = {f"{name.replace('.', '/')}.html" for name in FRONTS}
    assert found == {"index.html", "mplab/numbers/tensors.html"} | fronts
    assert "mplab.html" in (reference / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FRONTS)
def test_a_page_shows_what_its_front_offers_and_nothing_else(reference, name):
    front = import_module(name)
    shown = sections(page_of(reference, name))
    assert sorted(shown) == sorted(offered(front))
    values = {each: getattr(front, each) for each in offered(front)}
    spoken = {
        each for each, value in values.items() if callable(value) and value.__doc__
    }
    assert {each for each in spoken if 'class="docstring"' not in shown[each]} == set()
    classes = {each for each, value in values.items() if isinstance(value, type)}
    assert {
        each for each in shown if '<div class="attr class">' in shown[each]
    } == classes


def test_the_reference_shows_no_answer_of_an_exercise(reference):
    assert "answer=" not in page_of(reference, "mplab.course")


def test_round_tensor_has_a_page_without_its_neighbours(reference):
    assert list(sections(page_of(reference, "mplab.numbers.tensors"))) == [
        "round_tensor"
    ]


def test_every_link_in_the_reference_and_in_its_search_leads_somewhere(reference):
    pages = {
        path: path.read_text(encoding="utf-8") for path in reference.rglob("*.html")
    }
    anchors = {path: ids(page) for path, page in pages.items()}
    for path, page in pages.items():
        targets = re.findall(r'href="(?!https?:|data:|\$)([^"#]*)(?:#([^"]*))?"', page)
        for file, anchor in targets:
            there = (path.parent / file).resolve() if file else path
            if there == reference.parent / "index.html":
                assert there.exists()
                continue
            assert there in anchors, f"{path.name}: {file}"
            assert not anchor or anchor in anchors[there], (
                f"{path.name}: {file}#{anchor}"
            )
    index = (reference / "search.js").read_text(encoding="utf-8")
    entry = r'"fullname": "[^"]+", "modulename": "([^"]+)"(?:, "qualname": "([^"]+)")?'
    found = set(re.findall(entry, index))
    assert ("mplab.numbers", "round_to") in found and (
        "mplab.scaling",
        "GradScaler",
    ) in found
    for module, name in found:
        there = reference / f"{module.replace('.', '/')}.html"
        assert there in anchors and (not name or name in anchors[there]), (
            f"{module}.{name}"
        )


def test_the_reference_fetches_nothing_from_elsewhere(reference):
    for path in [*reference.rglob("*.html"), reference / "search.js"]:
        page = path.read_text(encoding="utf-8")
        assert not re.search(ASKED, page), path.name
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", page), path.name
        assert path.suffix == ".js" or "Content-Security-Policy" in page


CUT = """() => [...document.querySelectorAll('main, main pre, main .attr, main td')]
    .filter(each => each.scrollWidth > each.clientWidth + 1
        || each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(each => each.innerText.slice(0, 80))"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_cut_off_at_the_right(reference, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    for name in [*FRONTS, "mplab.numbers.tensors"]:
        page.goto((reference / f"{name.replace('.', '/')}.html").as_uri())
        assert page.evaluate(CUT) == [], name
    page.add_style_tag(content="pre, .attr, .attr * { white-space: pre !important }")
    assert page.evaluate(CUT) != [] or width > 400  # the measure sees what is cut off
    page.close()


@pytest.mark.browser
def test_an_audit_of_the_reference_finds_nothing_serious(reference, browser):
    for name in [*FRONTS, "mplab.numbers.tensors"]:
        page = browser.new_page(bypass_csp=True)
        page.goto((reference / f"{name.replace('.', '/')}.html").as_uri())
        assert pages.serious(page) == [], name
        page.close()


@pytest.mark.browser
def test_the_search_finds_a_name_and_leads_to_it(reference, browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((reference / "mplab.html").as_uri())
    page.locator("input[type=search]").click()
    page.locator("input[type=search]").fill("GradScaler")
    page.locator(".search-result a").first.click()
    page.wait_for_url("**/mplab/scaling.html#GradScaler")
    assert page.locator("section#GradScaler").is_visible()
    page.close()
