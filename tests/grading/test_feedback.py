"""Feedback pages: bounded in time each, only those that changed, and with nbgrader's reasons."""

import html
import json
import os
import re
import shutil

import nbformat
import pytest
from classroom import autograded, notebook, run, submit, with_walls
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mplab.course.grading import feedback
from mplab.course.grading.feedback import without_page, write_feedback
from mplab.course.grading.folder import Course, captured_log
from mplab.course.grading.submissions import marked

HOSTILE = {
    "brackets": new_markdown_cell("[" * 190_000),
    "pictures": new_markdown_cell("![" * 90_000),
    "links": new_markdown_cell("[a](" * 47_000),
    "ampersands": new_markdown_cell("&" * 190_000),
    "environments": new_markdown_cell("\\begin{a}" * 20_000),
    "definitions": new_markdown_cell("[a]: <" * 30_000),
    "parentheses": new_markdown_cell("\\(" * 90_000),
    "f-strings": new_code_cell('f"{' * 20_000),
    "elements": new_markdown_cell("<div>" * 38_000),
}


@pytest.fixture(scope="module")
def graded(released, tmp_path_factory):
    course = Course(tmp_path_factory.mktemp("graded") / "course")
    shutil.copytree(released.root, course.root)
    for student in ("s01", "s02"):
        submit(course, student, notebook(course, right=False))
    autograded(course)
    return course


@pytest.fixture
def course(graded, tmp_path):
    return Course(shutil.copytree(graded.root, tmp_path / "course"))


def put(course, student, change):
    """Change the graded notebook of a student."""
    path = course.root / "autograded" / student / "a1" / "a1.ipynb"
    book = json.loads(path.read_text())
    change(book)
    path.write_text(json.dumps(book))


def page_of(course, student):
    return course.root / "feedback" / student / "a1" / "a1.html"


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_cell_that_takes_hours_costs_its_page_the_typesetting_only(name, monkeypatch):
    monkeypatch.setattr(feedback, "_SECONDS", 4.0)
    book = new_notebook(cells=[HOSTILE[name], new_markdown_cell("# rest")])
    page, plain = feedback.page_of(book, "a1")
    assert "rest" in page and plain == ("<h1>rest</h1>" not in page)


@pytest.mark.slow
def test_a_hostile_page_is_told_and_the_others_are_typeset(course, monkeypatch):
    monkeypatch.setattr(feedback, "_SECONDS", 8.0)
    put(course, "s01", lambda book: book["cells"][-1].update(source="&" * 3_000_000))
    pages = write_feedback(course, "a1")
    assert [(page.student, page.written) for page in pages] == [
        ("s01", True),
        ("s02", True),
    ]
    assert pages[0].remark == "plain text: not typeset in 8 seconds"
    assert pages[1].remark == ""
    page = page_of(course, "s01").read_text()
    assert "&amp;" * 3_000_000 in page
    assert "<h1>" in page_of(course, "s02").read_text()


@pytest.mark.slow
def test_comments_and_what_nobody_has_read_yet_are_on_the_page(course, capsys):
    with course.gradebook() as gradebook:
        gradebook.find_comment(
            "value-answer", "a1", "a1", "s02"
        ).manual_comment = "see $2^{-1}$"
        gradebook.find_grade(
            "a1-words-answer", "a1", "a1", "s01"
        ).needs_manual_grade = True
        gradebook.db.commit()
    assert run(course, "feedback", "a1", "--jobs", "2") == 0
    assert "\n1 answer not read yet" in capsys.readouterr().out
    assert (
        "a1-words-answer: not read yet; at most 2 points."
        in page_of(course, "s01").read_text()
    )
    notebooks = []
    for student in ("s01", "s02"):  # what Canvas shows
        path = page_of(course, student).with_suffix(".ipynb")
        cells = nbformat.read(path, as_version=4).cells
        notebooks.append([c.source for c in cells if "**Feedback:**" in c.source])
    assert (
        "**Feedback:** a1-words-answer: not read yet; at most 2 points." in notebooks[0]
    )
    assert "**Feedback:** see $2^{-1}$" in notebooks[1]
    page = page_of(course, "s02").read_text()
    assert (
        'alt="$2^{-1}$"' in page
        and "<script" not in page
        and "not read yet" not in page
    )


@pytest.mark.slow
def test_a_page_that_fails_is_told_and_the_others_are_written(course, capsys):
    (course.root / "autograded/s01/a1/a1.ipynb").write_text("{")
    assert run(course, "feedback", "a1") == 1
    said = capsys.readouterr().out
    assert "s01: no page: " in said and "NotJSONError" in said
    assert page_of(course, "s02").is_file() and "1 page in" in said


def test_a_reason_that_was_logged_is_told_and_one_that_was_not_is_the_error():
    import logging

    with captured_log() as reason:
        logging.getLogger("traitlets").error(
            "Traceback\n  x\nLookupError: no grade 'x'\n"
        )
        logging.getLogger("traitlets").warning("ValueError: a warning is no reason")
    assert reason(ValueError("see the log")) == "LookupError: no grade 'x'"
    with captured_log() as reason:
        pass
    assert reason(ValueError("no table")) == "ValueError: no table"


@pytest.mark.slow
@with_walls
def test_an_answer_that_is_no_python_is_told_its_line_and_no_bare_number(course):
    """It was "The notebook defines no encode at this point", and a 0.0 under each verdict."""
    broken = "x = 1\n%time y = 2\ndef f(x:\n    return x"
    names = [n for n in marked(course.skeletons("a1")["a1"]) if n.endswith("-answer")]
    submit(course, "s03", notebook(course, **{names[0]: broken, names[1]: "pass"}))
    autograded(course, students=["s03"])
    write_feedback(course, "a1", students=["s03"])
    page = html.unescape(page_of(course, "s03").read_text())
    told = "The cell does not run: SyntaxError in its line 3: '(' was never closed."
    assert told in page
    assert page.count("The cell does not run") == page.count(told) > 0
    assert "The notebook defines no" in page
    assert "<pre>0.0</pre>" not in page.replace("\n", "")
    kinds = {*re.findall('<section class="(.*?)"', page)}
    assert kinds == {"feedback", "markdown", "code"}


def test_a_page_is_renewed_with_its_notebook_though_the_clock_was_set_back(course):
    """`watch` took the page of two days later for newer than the answer it had graded since."""
    assert without_page(course, "a1", ["s01"]) == ["s01"]
    write_feedback(course, "a1", students=["s01"])
    assert without_page(course, "a1", ["s01"]) == []
    path = course.root / "autograded/s01/a1/a1.ipynb"
    os.utime(path, (1e9, 1e9))
    assert without_page(course, "a1", ["s01"]) == ["s01"]
