"""What of a student's notebook may be shown."""

import json
import time

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_notebook, new_output

pytest.importorskip("nbgrader")

from mplab.course.grading.sanitise import (
    clean,
    rebuild_output,
    rendered_markdown,
    shown as shown_of,
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="


def book(*cells, **metadata):
    """A notebook as a file may hold it: not validated."""
    return nbformat.from_dict(
        {"cells": list(cells), "metadata": metadata, "nbformat": 4}
    )


def shown(*outputs):
    return [rebuild_output(output) for output in outputs]


@pytest.mark.parametrize(
    "text",
    [
        "[text](javascript:alert(1))",
        "[text](JaVaScRiPt&colon;alert(1))",
        "[text](data:text/html,<script>alert(1)</script>)",
        "[text](/lab/tree/checks)",
        "[text][a]\n\n[a]: javascript:alert(1)",
        "<javascript:alert(1)>",
        '<a href=" javascript:alert(1)">text</a>',
        "![text](http://elsewhere.example/pixel.png)",
        "![text](data:image/svg+xml,<svg onload=alert(1)>)",
        '<img src=x onerror="alert(1)"><svg onload=alert(1)><iframe src=/lab></iframe>',
        '<input id="a1-words-answer" class="score"><form action=/logout><button>text</button>',
        '<p id="notebook" class="btn mark-graded" style="position:fixed" data-link="x">text</p>',
        "<style>@import '//elsewhere.example'</style><link rel=stylesheet href=//e.example>",
        "```mermaid\ngraph TD; A[<img src=x onerror=alert(1)>]\n```",
        "$\\href{javascript:alert(1)}{x}$ $\\unknown{<img src=x onerror=alert(1)>}$",
        '$$\\text{"><img src=x onerror=alert(1)>}$$ [a](http://x.example/$"onclick=y$)',
    ],
)
def test_nothing_in_markdown_runs_fetches_or_acts(text):
    page = rendered_markdown(text)
    for element in BeautifulSoup(page, "html.parser").find_all(True):
        assert element.name in {"p", "pre", "code", "div", "img", "span", "li", "ul"}
        allowed = {"img": {"src", "alt", "style"}, "div": {"style"}}
        assert set(element.attrs) <= allowed.get(element.name, set()), page
        assert element.get("src", "data:image/png;").startswith("data:image/png;"), page


def test_the_text_of_links_tables_code_and_formulas_stay():
    page = rendered_markdown(
        "[read](https://a.example) **b**\n\n| a |\n|--:|\n| 1 |\n\n"
        "```python\nx = 1\n```\n\n$2^{-1}$"
    )
    assert "read [https://a.example]" in page
    assert '<th style="text-align:right">a</th>' in page
    assert '<div class="highlight">' in page and '<span class="mi">1</span>' in page
    assert '<img src="data:image/png;base64,' in page and 'alt="$2^{-1}$"' in page


def test_a_formula_that_cannot_be_set_is_shown_as_written():
    page = rendered_markdown("$\\nothing{<b>}$ and\n\n\\begin{align}a\\end{align}")
    assert "<code>$\\nothing{&lt;b&gt;}$</code>" in page
    assert "<code>\\begin{align}a\\end{align}</code>" in page


@pytest.mark.parametrize("url", ["attachment:x.png", f"data:image/png;base64,{PNG}"])
def test_a_picture_that_is_referred_to_many_times_is_shown_once(url):
    picture = {"x.png": {"image/png": PNG}}
    page = rendered_markdown(f"[r]: {url}\n\n" + "![a][r]\n\n" * 30, picture)
    assert page.count(PNG) == 1 and page.count("[picture: a]") == 29


def test_clean_leaves_text_of_what_it_takes_out():
    for tag in ("marquee", "nav", "rp", "small"):
        assert clean(f"<{tag}>text</{tag}>") == "text"


@pytest.mark.parametrize(
    "kind",
    ["text/html", "image/svg+xml", "application/javascript", "text/markdown", "text/latex",
     "application/vnd.jupyter.widget-view+json", "application/x-<b>own</b>"],
)  # fmt: skip
def test_active_outputs_are_named_and_not_shown(kind):
    data = {kind: "<script>alert(1)</script>"}
    (output,) = shown({"output_type": "display_data", "data": data, "metadata": {}})
    assert output.data == {"text/plain": f"[not shown here: {kind}]"}
    (both,) = shown(
        {"output_type": "execute_result", "data": {**data, "text/plain": "3"}}
    )
    assert both.data == {"text/plain": "3"}


def test_a_picture_is_one_and_has_no_metadata():
    data = {"image/png": PNG, "image/jpeg": '"><script>alert(1)</script>'}
    metadata = {
        "image/png": {"width": "1><script>"},
        "filenames": {"image/png": "//e.example"},
    }
    (output,) = shown(
        {"output_type": "display_data", "data": data, "metadata": metadata}
    )
    assert output.data == {"image/png": PNG} and output.metadata == {}


def test_half_a_surrogate_pair_costs_one_character():
    error = {"output_type": "error", "ename": "E\ud800", "traceback": ["\ud800x"]}
    found = shown(error, {"data": {"x\ud800": "y"}})
    json.dumps(found, ensure_ascii=False).encode()


def test_feedback_withholds_what_later_cells_say_of_hidden_inputs():
    check, early, late, answer = map(new_code_cell, ("c", "plot", "x", "a"))
    mark = {"grade": True, "solution": False, "points": 1}
    check.metadata["nbgrader"] = {"grade_id": "x", **mark}
    answer.metadata["nbgrader"] = {"grade_id": "y", "grade": False, "solution": True}
    for cell in (early, check, late, answer):
        cell.outputs = [new_output("stream", text="inputs")]
    raised = new_output("error", ename="inputs", evalue="inputs")
    answer.outputs.append(raised)
    notebook = book(early, check, late, answer)
    cells = shown_of(notebook).cells
    assert [cell.outputs[0].text for cell in cells[:2]] == ["inputs", "inputs"]
    (output,) = cells[3].outputs
    assert "inputs" not in output.text.replace("whose inputs are not public", "")
    assert output.text.startswith("This cell raised an exception.")
    # 470 added cells that printed, raised or did nothing spelt 745 bits of hidden inputs.
    added = set()
    for outputs in ([], [raised], late.outputs, [raised, raised]):
        notebook.cells[2].outputs = [nbformat.from_dict(output) for output in outputs]
        added.add(shown_of(notebook).cells[2].outputs[0].text)
    assert len(added) == 1


def test_rebuilding_is_linear():
    start = time.process_time()
    shown({"output_type": "stream", "text": "\r\x1b[" * 1_000_000})
    assert time.process_time() - start < 1.0


def test_feedback_leaves_out_the_folded_cell_that_brings_the_public_cases():
    """It holds twenty lines of base64; a student's cell is shown however it is folded."""
    folded = {"jupyter": {"source_hidden": True}}
    mark = {"grade_id": "a1-start", "locked": True, "grade": False, "solution": False,
            "schema_version": 3}  # fmt: skip
    cells = [
        new_code_cell("PACKED", metadata={**folded, "nbgrader": mark}),
        new_code_cell("mine", metadata=folded),
    ]
    book = new_notebook(cells=cells)
    shown = [cell.source for cell in shown_of(book).cells]
    assert shown == ["mine"]
