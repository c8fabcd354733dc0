"""From an empty folder to a column of grades, and what may go wrong on the way."""

import csv
import io
import os
import shutil
import stat
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import nbformat
import pytest
from classroom import WALLS, autograded, notebook, run, submit, with_walls

from mplab.commands import grade
from mplab.course import Exercise
from mplab.course.grading.autograding import autograde
from mplab.course.grading.execute import warm_up
from mplab.course.grading.exercises import Assignment, Graded, Part, public_table
from mplab.course.grading.exporting import grades
from mplab.course.grading.folder import Course, create_assignment, create_course
from mplab.course.grading.journal import digest
from mplab.course.grading.releasing import _indistinct, _mismatches, release
from mplab.course.grading.sandbox import NoSandbox, WarmSandbox, require_sandbox

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(grade.__file__).parents[2])}


def table(path):
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))


def scores(course):
    return {grade.student.id: grade.score for grade in grades(course, ["a1"])}


def test_init_makes_a_course_whose_key_is_private_and_keeps_what_is_there(tmp_path):
    course = create_course(tmp_path / "of" / "c")
    key = course.key()
    assert len(key) == 32
    assert stat.S_IMODE((tmp_path / "of/c/.mplab/key").stat().st_mode) == 0o600
    (tmp_path / "of/c/roster.csv").write_text("mine")
    create_course(tmp_path / "of/c")
    assert (tmp_path / "of/c/roster.csv").read_text() == "mine"
    assert course.key() == key
    assert create_course(tmp_path / "d").key() != key


@with_walls
def test_the_way_from_release_to_export(course, capsys):
    drop = course.root.parent / "drop"
    for name, text in {"s01": notebook(course), "s02": notebook(course, right=False),
                       "s03": "{broken", "mallory": notebook(course)}.items():  # fmt: skip
        (drop / name).mkdir(parents=True)
        (drop / name / "a1.ipynb").write_text(text)
    assert run(course, "collect", "a1", str(drop)) == 1  # somebody was left out
    assert "mallory" in capsys.readouterr().out
    assert run(course, "feedback", "a1") == 0
    told = "not graded yet, so without a page (3): s01, s02, s03\n"
    assert capsys.readouterr().out.endswith(told)
    # Not a Latin s.
    shutil.copytree(drop / "s01", course.root / "submitted" / "ѕ01" / "a1")
    assert run(course, "autograde", "a1", "--student", "s04") == 2
    assert "must be an id with a submission (for a page, a g" in capsys.readouterr().err
    assert run(course, "autograde", "a1", "--jobs", "2") == 0
    out = capsys.readouterr().out
    assert "'\\u045501': not graded: no student of the roster has this id" in out
    assert "s01: 16 of 18  " in out and "s02: 0 of 18  " in out
    assert (
        "To look at (1):\n  s03: 0 of 18  not graded: the notebook is not valid JSON"
        in out
    )
    assert out.endswith("Nothing from (1): export names them.\n")
    assert run(course, "autograde", "a1") == 0
    assert "0 graded now, 3 before." in capsys.readouterr().out
    assert run(course, "feedback", "a1") == 0
    page = (course.root / "feedback/s01/a1/a1.html").read_text()
    assert (
        "value: 4 of 4 points" in page and "subnormal numbers and zeros: 2 of 2" in page
    )
    page = (course.root / "feedback/s03/a1/a1.html").read_text()
    assert "the notebook is not valid JSON" in page
    sheet = course.root / "canvas.csv"
    head = "Student,ID,SIS User ID,Section,a1 (7)"
    lines = ['"Löwe, Ada",,s01,,', '"Ek, Bo",,s02,,', '"Ek, Cy",,s03,,5']
    sheet.write_text("\n".join([head, *lines]), encoding="utf-8")
    for words in (["a1"], ["a1", "--into", str(sheet)]):
        assert run(course, "export", *words) == 0
        assert "with no points (1): s03" in capsys.readouterr().out
    assert scores(course) == {"s01": 16.0, "s02": 0.0, "s03": 0.0, "s04": None}
    filled = table(course.root / "grades-canvas.csv")  # s01 waits
    assert [row[-1] for row in filled] == ["a1 (7)", "", "0", "0"]
    (course.root / "roster.csv").write_text("id\ns01\n")  # who left keeps their name
    assert run(course, "export") == 0
    assert table(course.root / "grades.csv")[2][1:5] == ["s02", "Bo", "Ek", "'=1+1"]


@with_walls
def test_a_written_answer_waits_for_a_person_and_keeps_what_the_code_earned(
    course, capsys
):
    for student, words in (
        ("s01", "Ties <b>go</b> to even."),
        ("s02", "YOUR ANSWER HERE"),
    ):
        submit(course, student, notebook(course, **{"a1-words-answer": words}))
    course.write("received", "a1", "s02", {"time": "2026-01-02 13:30:00 UTC"})
    with course.gradebook() as gradebook:
        gradebook.update_or_create_assignment("a1", duedate=datetime(2026, 1, 2, 12))
    lines = autograded(course)
    assert [line.score for line in lines] == [16.0, 16.0]
    assert all(line.done_before for line in autograded(course))
    with course.gradebook() as gradebook:
        for student in ("s01", "s02"):
            comment = gradebook.find_comment("a1-words-answer", "a1", "a1", student)
            comment.manual_comment = "- choice: 1 of 2\n\nWhy?"
        gradebook.db.commit()
    assert run(course, "export", "a1") == 0
    assert (
        "1 of the scores are not complete (s01): to be graded by hand"
        in capsys.readouterr().out
    )
    remarks = {row[1]: row[-3:-1] for row in table(course.root / "grades.csv")}
    parts = {row[1]: row[-1] for row in table(course.root / "grades.csv")}
    assert (parts["s01"], parts["s02"]) == ("", "a1-words-answer: choice: 1")
    assert remarks["s01"] == ["18", "to be graded by hand"]
    assert remarks["s02"] == [
        "18",
        "90 minutes late",
    ]  # an untouched answer needs nobody


@pytest.mark.slow
def test_plain_nbgrader_commands_that_know_no_sandbox_and_no_checks_are_refused(course):
    """`--force` had removed what was graded before it was refused."""

    def run(step):
        command = [sys.executable, "-m", "nbgrader", step, "a1", "--force"]
        options = {"capture_output": True, "text": True, "timeout": 120}
        return subprocess.run(command, cwd=course.root, env=ENVIRONMENT, **options)

    solution = run("generate_solution")  # of the teacher's own cells
    assert not solution.returncode, solution.stderr
    submit(course, "s01", notebook(course))
    for folder in ("autograded", "feedback"):
        shutil.copytree(course.root / "submitted/s01", course.root / folder / "s01")
    before = {p: p.stat().st_mtime_ns for p in course.root.rglob("*.ipynb")}
    (course.root / "source/a1/checks.json").unlink()
    for step in ("autograde", "generate_assignment", "generate_feedback"):
        done = run(step)
        assert done.returncode == 1
        assert "in a course of mplab this is done by `mplab grade`" in done.stderr
    assert {p: p.stat().st_mtime_ns for p in course.root.rglob("*.ipynb")} == before
    assert (course.root / "release/a1/checks.json").exists()


@pytest.mark.slow
def test_a_solution_that_only_some_students_cases_fail_is_not_released(course):
    # Its own first draw is not the seldom one.
    (course.root / ".mplab/key").write_bytes(b"k" * 32)
    with (course.root / "checks/a1/exercises.py").open("a") as file:
        file.write(SELDOM)
    with pytest.raises(
        ValueError, match=r"of max_finite loses .* in draw \d+ of 100: for .*5, 9"
    ):
        release(course, "a1", trusted=not WALLS, draws=100)


SELDOM = """
from dataclasses import replace
old = GRADED["max_finite"]
def seldom(exponent_bits, trailing_bits):
    right = old.exercise.answer(exponent_bits, trailing_bits)
    return right if (exponent_bits, trailing_bits) != (5, 9) else right + 1
def drawn(rng):
    return [(int(rng.integers(2, 8)), 9)]
parts = [replace(part, cases=part.cases and drawn) for part in old.parts]
GRADED["max_finite"] = replace(old, exercise=replace(old.exercise, answer=seldom), parts=parts)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "told"), [
    ("2 * (2**8 - 2**3)", "17", "must run; 'finite_codes' gives .*: not yet"),
    ('mplab.check(\\"value', 'mplab.check(\\"vlaue', "a solved copy .* must run; 'value' gives"),
    ('"points": 2', '"points": 3', "max_finite: 3 points in the notebook, 2 here; the RUBRIC of "
     r"a1-words-answer gives 2 points, .* by hand are a1-words-answer \(3 points\)"),
])  # fmt: skip
def test_what_would_cost_students_points_is_not_released(course, before, after, told):
    path = course.root / "source/a1/a1.ipynb"
    path.write_text(path.read_text().replace(before, after))

    def there():
        places = [course.root / "gradebook.db", *(course.root / "release").rglob("*.*")]
        return {place: place.read_bytes() for place in places}

    known = there()
    with pytest.raises(ValueError, match=told):
        release(course, "a1", trusted=not WALLS)
    assert there() == known
    assert not [*(course.root / ".mplab").glob("tmp*")]


CONFUSED = """
from dataclasses import replace
from mplab.course import Misconception
old = GRADED["harmonic"]
wrong = old.exercise.misconceptions[0].answer
seldom = lambda n: old.exercise.answer(n) + (n == 777)
known = (Misconception(wrong, "A."), Misconception(wrong, "B."), Misconception(seldom, "C."))
GRADED["harmonic"] = replace(old, exercise=replace(old.exercise, misconceptions=known))
"""


def test_an_author_hears_which_misconceptions_the_cases_do_not_tell_apart(tmp_path):
    """One that differs at a single n was named for none of 24 students."""
    course = create_course(tmp_path / "c")
    create_assignment(course, "h1")
    assert _indistinct(course, "h1", 3) == []
    with (course.root / "checks/h1/exercises.py").open("a") as file:
        file.write(CONFUSED)
    assert _indistinct(course, "h1", 3) == [
        "harmonic: no case tells 'B.' from 'A.', in 3 of up to 3 draws",
        "harmonic: no case tells 'C.' from 'the right answer', in 3 of up to 3 draws",
    ]


def test_an_author_hears_what_a_notebook_s_check_cannot_hold():
    parts = [Part("p", 2, "")]
    of_keys = Graded("f", Exercise(lambda x: {x: 1}, "", cases=[1]), parts)
    with pytest.raises(ValueError, match=r"f: its cases .* keys are not all text"):
        public_table({"f": of_keys})
    mark = {"grade_id": "v", "grade": True, "solution": False, "points": 2}
    cell = nbformat.v4.new_code_cell(metadata={"nbgrader": mark})
    near = Graded("v", Exercise(0.3, "", tolerance=1e-9), parts)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    assert "v: tolerance is for functions" in str(
        _mismatches(Assignment({"v": near}, "", {}), [notebook])
    )


def test_data_in_a_folder_of_the_release_count_for_what_a_grade_depends_on(bare):
    data = bare.root / "release/a1/data/points.csv"
    data.parent.mkdir(parents=True)
    data.write_text("1")
    before = digest(bare, "a1", "s01")
    data.write_text("2")
    assert digest(bare, "a1", "s01") != before


@pytest.mark.slow
def test_a_new_assignment_runs_as_it_is_and_mistakes_in_it_name_their_line(
    bare, capsys
):
    assert run(bare, "new", "h1") == 0
    assert run(bare, "release", "h1", *["--trust-submissions"] * (not WALLS)) == 0
    told = capsys.readouterr().out
    assert (
        "the solution earns 6 points in" in told
        and "2 points more are given by hand, with mplab grade serve: 8 in all" in told
    )
    assert [run(bare, "new", name) for name in ("h1", "a1", "../h1")] == [2] * 3
    path = bare.root / "checks/h1/exercises.py"
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 30
    for before, after, told in (("rng.integers", "rng.integer", "line 26(?s:.*)AttributeError"),
                                ("= Exercise(", "= (", "line 9(?s:.*)SyntaxError")):  # fmt: skip
        path.write_text(text.replace(before, after), encoding="utf-8")
        with pytest.raises(ValueError, match=told):
            bare.assignment("h1")


@pytest.mark.parametrize("name", ["../x", "ѕ01", "s01", "S01", "a*", "", "a b", "."])
def test_a_roster_with_an_unusable_or_repeated_id_is_refused(bare, name):
    with (bare.root / "roster.csv").open("a", encoding="utf-8") as file:
        file.write(f"{name},A,B,\n")
    with pytest.raises(ValueError, match="line 6: id must be unique"):
        bare.roster()


@pytest.mark.parametrize(
    "content",
    [b"Matrikel;Wer\ns01;Ada\n", b"id,name\ns01,L\x81we\n"],
)
def test_a_roster_that_is_not_understood_says_how_to_write_it(bare, content):
    (bare.root / "roster.csv").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"must be(gin with the line id,first_name| CSV, in UTF-8)"
    ):
        bare.roster()


def test_exercises_are_read_once_and_again_when_they_have_changed(bare):
    first = bare.assignment("a1")
    assert Course(bare.root).assignment("a1") is first
    with (bare.root / "checks" / "a1" / "exercises.py").open("a") as file:
        file.write("GRADED = dict(list(GRADED.items())[:1])\n")
    assert list(bare.assignment("a1").graded) == list(first.graded)[:1]


def test_without_bubblewrap_grading_is_refused_with_three_ways_out(
    bare, monkeypatch, capsys
):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NoSandbox, match="bwrap"):
        require_sandbox()
    submit(bare, "s01", "{}")
    assert run(bare, "autograde", "a1") == 2
    error = capsys.readouterr().err
    for way in ("(1) install", "(2) grade on", "(3) if", "--trust-submissions"):
        assert way in error
    assert not (bare.root / "autograded").exists()


@pytest.mark.slow
def test_trusted_submissions_are_graded_without_a_sandbox(course, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    submit(course, "s01", notebook(course))
    [line] = autograde(course, "a1", trusted=True, log=str)
    assert (line.score, line.remark) == (16.0, "")


def test_a_folder_without_a_course_says_how_to_make_one(tmp_path, capsys):
    assert grade.main(["autograde", "a1", "--course", str(tmp_path)]) == 2
    assert "mplab grade init" in capsys.readouterr().err


@with_walls
@pytest.mark.slow
def test_torch_and_numba_work_inside():
    warm = "import torch, numba"
    with (
        WarmSandbox(warm=warm) as sandbox,
        sandbox.session({"helper.py": b"y = 3"}) as session,
    ):
        assert session.run(
            "import torch, helper\nmodel = torch.nn.Linear(64, 64)\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "model(torch.ones(8, 64)).square().mean().backward(); optimizer.step()"
        ).ok
        assert session.run(
            "import numba\n@numba.njit\ndef f(x): return x + 1\nassert f(2) == 3"
        ).ok
        assert session.run("%timeit -n1 -r1 1").ok


@with_walls
def test_what_a_release_imports_costs_no_submission_its_time():
    """An own assignment with torch took 7.6 s a submission, of which 7 were imports."""
    cells = ["import tabnanny\nx = 1", "%pip install y", "import no_such\nimport sched"]
    book = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    warm = warm_up(Assignment({}, "import shelve", {}), [book])
    modules = {"tabnanny", "sched", "shelve", "numba"}
    with WarmSandbox(warm=warm) as sandbox, sandbox.session({}) as session:
        source = f"import sys\nassert sys.modules.keys() >= {modules}"
        assert session.run(source).ok
