"""Each lesson is a valid, stripped notebook within its budget, and runs in a clean kernel."""

import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import nbformat
import page as pages
import pytest
from cases import LESSONS_WITHOUT_TORCH
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image
from size import code_tokens

import mplab
from mplab.common.files import PICTURE, course_folder
from mplab.course import EXERCISES
from mplab.course.site import export, frame
from mplab.course.site.lesson_page import BUTTONS, lesson_body

LESSONS = sorted(course_folder("lessons").glob("*.ipynb"))
WORDS, FIGURES = range(1000, 2201), range(4, 8)
CODE_TOKENS, CELL_TOKENS = 1_300, 190
LONG = {"13_can_you_name_the_fault": range(1000, 2601)}
"""Words of the lesson that holds twelve cases and eight claims, each with its own prediction: it
is a reference to come back to, and takes longer than the others."""
HANGS = 300
"""Seconds after which a cell hangs. How long a lesson takes is reported; it fails nothing."""
FORBIDDEN = (
    r"\bplt\.|\bmatplotlib\b|^\s*[!%]|pip install|\burllib\b|\brequests\b|https?://"
)

REFUSE_TORCH = "import sys; sys.modules['torch'] = None"
"""In lessons that need none: importing it fails as if it were not installed."""
SUPPORT = Path(__file__).parents[1] / "support"
MOVE_CONTROLS = (SUPPORT / "move_controls.py").read_text(encoding="utf-8")

PHONE = ("01", "07", "16")
"""Lessons whose figures are drawn for phones as well, and looked at in a narrow page."""
NARROW = """() => [...document.querySelectorAll("main img")].map(image => {
    for (let up = image; (up = up.parentElement?.closest("details")); ) up.open = true;
    const box = image.closest(".scrolled") ?? image, { right } = box.getBoundingClientRect();
    return [right, 2 * image.clientWidth / image.naturalWidth];
})"""

every_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


class Run(NamedTuple):
    """A lesson after it ran, and after its controls were moved."""

    notebook: nbformat.NotebookNode
    seconds: float
    cpu_seconds: float
    moved: dict[str, int]
    errors: list[str]


def run_lesson(path, folder):
    """Run `path` in a clean kernel in `folder`, then move every control through its range."""
    notebook = read(path)
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=HANGS, resources=where, store_widget_state=True
    )
    environment = {
        **os.environ,
        "IPYTHONDIR": str(folder / "ipython"),  # nobody's start-up files
        "PYTHONPATH": str(Path(mplab.__file__).parent.parent),  # the mplab under test
    }
    start = time.perf_counter()
    phone = path.stem[:2] in PHONE
    without_torch = (
        path.stem[:2].isdigit() and int(path.stem[:2]) in LESSONS_WITHOUT_TORCH
    )
    with client.setup_kernel(env=environment):
        if phone:
            client.execute_cell(nbformat.v4.new_code_cell(export._WIDTHS), 0)
        if without_torch:
            client.execute_cell(nbformat.v4.new_code_cell(REFUSE_TORCH), 0)
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
        seconds = time.perf_counter() - start
        mover = nbformat.v4.new_code_cell(MOVE_CONTROLS)
        notebook.cells.append(mover)
        client.execute_cell(mover, len(notebook.cells) - 1)
    notebook.cells.pop()
    client.set_widgets_metadata()
    printed = "".join(
        output.text for output in mover.outputs if output.get("name") == "stdout"
    )
    said = json.loads(printed.splitlines()[-1])
    errors = errors_of([*notebook.cells, mover], client.widget_state)
    return Run(notebook, seconds, said["cpu_seconds"], said["moved"], errors)


def errors_of(cells, widget_state):
    """Errors and warnings in the outputs of cells, and of Output widgets; bars that stay."""
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    for state in widget_state.values():
        outputs += state.get("outputs") or []
    errors = [
        output["evalue"] for output in outputs if output["output_type"] == "error"
    ]
    noise = [output["text"] for output in outputs if output.get("name") == "stderr"]
    # In a saved lesson.
    dead = [state.get("_model_name", "") for state in widget_state.values()]
    errors += [name for name in dead if "Progress" in name]
    return errors + [
        text for text in noise if re.search("Warning|Error|Traceback", text)
    ]


def figures_of(notebook):
    """Outputs that are pictures; an explorer is a widget, not a figure.

    A recorded figure does not count: whether it is there depends on the recordings at hand.
    """
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    data = [output["data"] for output in outputs if "data" in output]
    return [
        bundle
        for bundle in data
        if any(kind.startswith("image/") for kind in bundle)
        or re.search("<svg|<img", str(bundle.get("text/html", "")))
        if "(recorded on " not in str(bundle.get("text/plain", ""))
        and "mplab-saved" not in str(bundle.get("text/html", ""))
    ]


def sources(notebook, kind):
    own = [cell for cell in notebook.cells if cell.get("id") not in BUTTONS]
    return [cell.source for cell in own if cell.cell_type == kind]


read = partial(nbformat.read, as_version=4)


@every_lesson
def test_a_lesson_is_a_valid_notebook_that_opens_without_questions(path):
    notebook = read(path)
    nbformat.validate(notebook)
    # Else JupyterLab asks for a kernel.
    assert notebook.metadata.kernelspec.name == "python3"


def test_lessons_are_stored_as_nbstripout_leaves_them_without_outputs():
    command = [
        sys.executable,
        "-m",
        "nbstripout",
        "--verify",
        "--keep-id",
        *map(str, LESSONS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@every_lesson
def test_what_happened_is_folded_until_a_reader_opens_it(path):
    text = "\n\n".join(sources(read(path), "markdown"))
    fold = "<details><summary>I have written my answer down</summary>\n\n"
    assert not re.findall(rf"(?m)(?<!{fold})^\*\*(?:What happened|Answer)", text)
    assert text.count(fold) == text.count("\n\n</details>")
    assert text.count(fold) >= 6, "a finished lesson folds six answers or more"


@every_lesson
def test_a_cell_asks_one_question_so_that_its_box_stands_below_it(path):
    """Two questions in one cell shared one box, below the text of a third."""
    for text in sources(read(path), "markdown"):
        assert len(re.findall(r"(?m)^[✍⌨] \*\*", text)) <= 1


def test_a_cell_that_draws_a_recording_says_so_where_there_is_none():
    """It printed nothing, below the promise of a figure."""
    cells = [cell for path in LESSONS for cell in sources(read(path), "code")]
    drawing = [
        c for c in cells if re.search(r"recorded(_\w+)?\(", c) and "def " not in c
    ]
    lonely = [
        c for c in drawing if "No recording in this copy: data/record.py" not in c
    ]
    assert len(drawing) >= 5 and lonely in ([], ["recorded = rooflines.recorded()"])


@every_lesson
def test_a_lesson_keeps_its_budget_of_words_and_code(path):
    notebook = read(path)
    text = re.sub(
        rf"{PICTURE}|<details>.*|</details>",
        "",
        "\n".join(sources(notebook, "markdown")),
    )
    words = re.findall(r"\S*[^\W\d_]\S*", text)
    assert len(words) in LONG.get(path.stem, WORDS), "words of a finished lesson"
    lengths = [len(code_tokens(source)) for source in sources(notebook, "code")]
    assert max(lengths) <= CELL_TOKENS
    assert sum(lengths) <= CODE_TOKENS


@every_lesson
def test_a_lesson_shows_its_main_picture_before_it_has_run(path):
    """On GitHub; in an answer, because it would give that away elsewhere."""
    text = "\n".join(sources(read(path), "markdown"))
    shown = re.findall(PICTURE, text)
    assert len(shown) == 1, "one PNG of `lNN/`, in the answer that it belongs to"
    ((description, picture),) = shown
    assert len(description.split()) > 4
    with Image.open(path.parent / picture) as image:
        assert image.width > 800
    assert f"]({picture})\n\n</details>" in text


@every_lesson
def test_a_lesson_plots_installs_and_fetches_nothing_by_hand(path):
    code = "\n".join(sources(read(path), "code"))
    assert re.findall(FORBIDDEN, code, re.MULTILINE) == []


@every_lesson
def test_each_exercise_of_a_lesson_has_a_check_and_a_stub_of_its_name(path):
    code = sources(read(path), "code")
    checked = [re.search(r'mplab\.check\("(\w+)", (\w+)\)', cell) for cell in code]
    names = [found.groups() for found in checked if found]
    assert len(names) >= 2, "a finished lesson checks two answers or more"
    for name, answer in names:
        assert name == answer and name in EXERCISES
        start, stub = f"def {name}(", f'    raise NotImplementedError("{name}")'
        if not callable(EXERCISES[name].answer):
            start, stub = f"{name} = None", ""
        assert [start in cell and stub in cell for cell in code].count(True) == 1


@pytest.mark.slow
@every_lesson
def test_a_lesson_runs_clean_and_its_controls_move(path, tmp_path, record_property):
    run = run_lesson(path, tmp_path)
    figures = len(figures_of(run.notebook))
    record_property("seconds", f"{run.seconds:.1f}")
    record_property("CPU seconds", f"{run.cpu_seconds:.1f}")
    record_property("figures", figures)
    record_property("controls", json.dumps(run.moved))
    assert run.errors == []
    assert figures in FIGURES
    without_kernel = r"explorers\.(BitExplorer|NumberLine|RoundingLab)\("
    in_the_page = any(
        re.search(without_kernel, cell.source) for cell in run.notebook.cells
    )
    assert run.moved or in_the_page, "a lesson has one explorer"
    assert {name for name, pictures in run.moved.items() if pictures < 2} == set()
    if path.stem[:2] in PHONE:
        page = tmp_path / "page.html"
        page.write_text(
            frame.page(path.stem, lesson_body(run.notebook)), encoding="utf-8"
        )
        with pages.browser() as chromium:
            phone = chromium.new_page(viewport={"width": 360, "height": 740})
            phone.goto(page.as_uri())
            drawn = phone.evaluate(NARROW)
        # Letters of at least 12 pixels shrink to 9 at most.
        assert len(drawn) == figures
        assert all(right <= 360 and scale >= 0.75 for right, scale in drawn)


# The harness itself must see what it looks for.


EXPLORER = """
import ipywidgets as w
from IPython.display import display
slider, text, out = w.FloatSlider(min=0, max=4), w.HTML(), w.Output()
display(slider, text, out)
"""
SHOWS = (
    "slider.observe(lambda change: setattr(text, 'value', str(change.new)), 'value')"
)
SILENT = "slider.observe(lambda change: None, 'value')"
WARNS = "import warnings; warnings.warn('careful')"
DRAWS = "from IPython.display import SVG; SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')"
RAISES = "slider.observe(lambda change: 1 / (change.new - 4), 'value')"
HIDES = """
@out.capture()
def move(change):
    text.value = str(1 / (change.new - 4))
slider.observe(move, 'value')
"""


@pytest.mark.slow
def test_the_harness_finds_errors_that_only_moving_a_slider_raises_warnings_and_figures(
    tmp_path,
):
    def run(*sources):
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "x.ipynb")
        return run_lesson(tmp_path / "x.ipynb", tmp_path)

    shown = run(EXPLORER, SHOWS, WARNS, DRAWS)
    assert list(shown.moved.values()) == [5]
    assert len(shown.errors) == len(figures_of(shown.notebook)) == 1
    assert list(run(EXPLORER, SILENT).moved.values()) == [1]
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        run(EXPLORER, RAISES)
    hidden = run(EXPLORER, HIDES).errors
    assert hidden and all("division by zero" in error for error in hidden)
