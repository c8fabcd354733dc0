"""No submission gains what it did not earn, loses what it did, leaks, or leaves anything behind."""

import uuid

import nbformat
import pytest
import stage
from bs4 import BeautifulSoup
from payloads import ATTACKS, CLASSES, SECRET

from mplab.course.grading.exporting import grades, write_grades
from mplab.course.grading.sandbox import sandbox_problem

pytestmark = pytest.mark.skipif(
    sandbox_problem() is not None, reason=str(sandbox_problem())
)


DEADLY = ("os._exit", "segmentation fault", "earned, then dead", "memory")


def live_parts(page):
    """What a page could run or load."""
    found = []
    for tag in BeautifulSoup(page, "html.parser").find_all(True):
        runs = tag.name in ("iframe", "object", "embed", "form")
        runs |= any(name.startswith("on") for name in tag.attrs)
        runs |= str(tag.get("href")).lower().startswith("javascript:")
        runs |= tag.name == "img" and not str(tag.get("src")).startswith("data:")
        runs |= tag.name == "script" and "alert(" in tag.text
        if runs:
            found.append(str(tag)[:200])
    return found


def grade_and_judge(root, attacks, monkeypatch):
    """Every attack by its name, with what is wrong about what came of it."""
    marker = uuid.uuid4().hex
    monkeypatch.setenv("MPLAB_SECRET", SECRET)
    course = stage.make_course(root, len(attacks), marker=marker)
    before = tree(course.root / "source") | tree(course.root / "checks")
    results = stage.run_class(course, attacks)
    problems = {}
    for number, (attack, result) in enumerate(zip(attacks, results, strict=False)):
        wrong = []
        if result.score != attack.points and (result.score or not attack.lengthy):
            wrong.append(
                f"{result.score} points instead of {attack.points}; {result.remark}"
            )
        if attack.name in DEADLY and "The kernel ended" not in result.remark:
            wrong.append(f"the teacher is not told: {result.remark}")
        if result.traces:
            wrong.append(f"left {result.traces}")
        page = root / "feedback" / stage.student_of(number) / "a1" / "a1.html"
        if not page.is_file() or "Content-Security-Policy" not in page.read_text():
            wrong.append("no page of feedback")
        elif live_parts(page.read_text()):
            wrong.append(f"live feedback: {live_parts(page.read_text())}")
        if live_in_answers(course, stage.student_of(number)):
            wrong.append("live in the graded notebook")
        if wrong:
            problems[attack.name] = "; ".join(wrong)
    assert [r.score for r in results[len(attacks) :]] == [16.0] * len(stage.HONEST)
    assert tree(course.root / "source") | tree(course.root / "checks") == before
    assert list(root.rglob("HARMED")) == []
    assert stage.survivors(marker) == []
    write_grades(grades(course, ["a1"]), root / "grades.csv")
    assert not any(
        cell.startswith(("=", "+", "-", "@"))
        for line in (root / "grades.csv").read_text().splitlines()
        for cell in line.split(",")
    )
    return problems, results


def live_in_answers(course, student):
    """What a page could run that renders a graded notebook's text without cleaning it."""
    notebook = nbformat.read(
        course.root / "autograded" / student / "a1" / "a1.ipynb", as_version=4
    )
    texts = [c.source for c in notebook.cells if c.cell_type != "code"]
    kinds = {
        k
        for c in notebook.cells
        for o in c.get("outputs", [])
        for k in o.get("data", {})
    }
    assert kinds <= {"text/plain", "image/png"}
    return [part for text in texts for part in live_parts(text)]


def tree(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_every_attack_comes_to_nothing_in_a_class(
    tmp_path, monkeypatch, record_property
):
    problems, _ = grade_and_judge(tmp_path / "course", ATTACKS, monkeypatch)
    for name, attacks in CLASSES.items():
        bad = sum(attack.name in problems for attack in attacks)
        record_property(f"{name}: tried {len(attacks)}, misbehaved", str(bad))
    assert problems == {}


@pytest.mark.full
def test_nbgrader_as_it_comes_falls_for_what_is_said_to_work_there(
    tmp_path, monkeypatch
):
    """Else an attack that fails everywhere would pass for one that is kept out."""
    attacks = [
        a
        for a in ATTACKS
        if a.control in ("score", "partial", "loses", "harm", "batch")
    ]
    assert len(attacks) > 35
    monkeypatch.setenv("MPLAB_SECRET", SECRET)
    course = stage.make_control(tmp_path / "control")
    resisted = {}
    with stage.Listener() as listener:
        for number, attack in enumerate(attacks):
            calls = listener.calls
            outcome, traces = stage.run_control(course, attack, number, listener.port)
            traces += " network" if listener.calls > calls else ""
            if not stage.gave_in(attack, outcome, traces):
                resisted[attack.name] = (outcome, traces)
    assert resisted == {}


def test_the_readers_of_pages_and_notebooks_would_see_what_they_look_for(tmp_path):
    for bad in ("<img src=x onerror=a>", "<script>alert(1)</script>", "<a href='javascript:1'>",
                "<iframe src=x>"):  # fmt: skip
        assert live_parts(f"<p>{bad}")
    assert not live_parts(
        "<p>&lt;script&gt;alert(1)</p><img src='data:image/png;base64,'>"
    )
    notebook = tmp_path / "a.ipynb"
    assert "HARMED" in stage.shown(notebook, '{"cells": [{"outputs": ["HARMED"]}]}')
    assert "HARMED" not in stage.shown(notebook, '{"cells": [{"source": "HARMED"}]}')


def test_attacks_have_names_of_their_own():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 70
