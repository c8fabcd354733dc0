"""The exported course: whole pages, nothing fetched from elsewhere, nothing done twice."""

import re

import nbformat
import pytest

from mplab.commands import export_html, main

pytestmark = pytest.mark.slow

CELLS = [
    "# A lesson <about> nothing",
    "import numpy as np\nfrom tqdm.auto import tqdm\nfrom mplab import explorers\n"
    "from mplab.training import exponent_histogram\nfor _ in tqdm(range(2)):\n    pass\n"
    "widgets.RangeMap(exponent_histogram(np.array([3e-9, 3e-6])))",
]


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    """A course of one lesson, and where its page goes."""
    folder = tmp_path / "lessons"
    folder.mkdir()
    monkeypatch.setattr(export_html, "course_folder", lambda name: folder)
    write(folder / "01_nothing.ipynb", CELLS)
    return folder, tmp_path / "out"


def write(path, cells):
    text, *code = cells
    new = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_markdown_cell(text), *map(new.new_code_cell, code)])
    nbformat.write(notebook, path)


def test_a_page_shows_the_explorer_and_needs_nothing_from_elsewhere(lessons):
    _, out = lessons
    export_html.export(out, reference=False)
    page = (out / "01_nothing.html").read_text(encoding="utf-8")
    assert "<svg" in page and "Which loss scale keeps the gradients inside FP16?" in page
    assert "In JupyterLab you can change: loss scale 2^." in page
    assert "2/2" not in page  # progress has nothing to say afterwards
    assert not re.search(r'<(script|link|img)[^>]*(src|href)="(https?:)?//', page)
    assert "A lesson &lt;about&gt; nothing" in (out / "index.html").read_text(encoding="utf-8")


def test_an_up_to_date_page_is_kept_and_a_changed_lesson_runs_again(lessons):
    folder, out = lessons
    export_html.export(out, reference=False)
    page = out / "01_nothing.html"
    first = page.stat().st_mtime_ns
    export_html.export(out, reference=False)
    assert page.stat().st_mtime_ns == first
    write(folder / "01_nothing.ipynb", [CELLS[0], "print('changed')"])
    export_html.export(out, reference=False)
    assert "changed" in page.read_text(encoding="utf-8")


def test_a_failing_lesson_is_named_and_leaves_the_old_page(lessons, capfd):
    folder, out = lessons
    export_html.export(out, reference=False)
    before = (out / "01_nothing.html").read_bytes()
    write(folder / "01_nothing.ipynb", [CELLS[0], "1 / 0"])
    assert main.main(["export-html", "--out", str(out), "--no-reference"]) == 1
    assert "01_nothing.ipynb fails: ZeroDivisionError" in capfd.readouterr().err
    assert (out / "01_nothing.html").read_bytes() == before


@pytest.mark.parametrize("error", [None, AssertionError])
def test_a_lesson_that_ctrl_c_broke_off_is_not_written(lessons, monkeypatch, error):
    """nbclient takes the signal, ends the kernel, and goes on or stumbles."""

    def execute(client, **_):
        client._async_cleanup_kernel_future = "made when the signal came"
        if error:
            raise error

    monkeypatch.setattr("nbclient.NotebookClient.execute", execute)
    with pytest.raises(KeyboardInterrupt):
        export_html.export(lessons[1], reference=False)
    assert not list(lessons[1].glob("*.html"))


def test_an_unknown_lesson_is_an_error(lessons):
    with pytest.raises(export_html.ExportError, match=r"there is no lesson 7\. There are 1\."):
        export_html.export(lessons[1], lessons=[7])


def test_the_reference_has_a_page_for_every_room(tmp_path):
    export_html.export(tmp_path, lessons=[], reference=True)
    rounding = (tmp_path / "api" / "mplab" / "rounding.html").read_text(encoding="utf-8")
    assert "round_to" in rounding and "Exactness" in rounding
    assert (tmp_path / "api" / "mplab" / "pictures" / "canvas.html").exists()
