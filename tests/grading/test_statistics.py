"""Statistics of a class: what is counted, and how it is written."""

import csv
from contextlib import nullcontext
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from mplab.course import Exercise
from mplab.course.exercises.exercise import Misconception
from mplab.course.grading import Graded, Part, statistics as module
from mplab.course.grading.execute import (
    one_line,
    read_outcomes,
    run_notebook,
    write_outcomes,
)
from mplab.course.grading.exercises import Assignment, Outcome
from mplab.course.grading.exporting import BY_HAND, NOTHING, Grade
from mplab.course.grading.sandbox import Died
from mplab.course.grading.statistics import bars_of, statistics, write_statistics
from mplab.course.grading.tables import Student

SENTENCE = "Zero <b>has</b> a sign."
PARTS = (
    Part("signs: both", 2, "Look at signs."),
    Part("rest", 1.5, "Look again.", [2.0]),
)
WRONG = Misconception(lambda x: x, SENTENCE)
EXERCISE = Exercise(abs, "Because.", cases=[1.0], misconceptions=(WRONG,))
MET = {  # by student: what the first part says; the second is right
    "s1": "",
    "s2": f"2 of 3 cases are wrong. The first of them raised ValueError: x. {SENTENCE}",
    "s3": "1 of 3 cases are wrong. Look at signs.",
    "s4": "Not attempted.",
    "s9": "=1+1",
    "s5": "✔ rest: 1.5 of 1.5\n✔ signs: both: 2 of 2",  # no mark of the grader's
}
STATES = {"s1": (3.5, "", False), "s2": (1.5, BY_HAND, True), "s3": (1.5, "", False),
          "s4": (0.0, "", False), "s9": (1.5, "", False), "s5": (1.5, "", False),
          "s6": (None, NOTHING, False),
          "s7": (None, "not graded yet, for a technical reason: x", False),
          "s8": (0.0, "not graded: it is not a folder", False)}  # fmt: skip


@pytest.fixture
def course(tmp_path, monkeypatch):
    graded = {"sign": Graded("f", EXERCISE, PARTS)}
    found = [Grade(Student(s, "", "", ""), "a1", score, 3.5, remark, by_hand, s)
             for s, (score, remark, by_hand) in STATES.items()]  # fmt: skip
    monkeypatch.setattr(module, "grades", lambda *_: found)
    for student, message in MET.items():
        mark = {"grade": True, "grade_id": "sign"}
        cell = new_code_cell("", metadata={"nbgrader": mark})
        write_outcomes(cell, [Outcome("signs: both", 2, 0.0 if message else 2, message),
                              Outcome("rest", 1.5, 1.5, "")])  # fmt: skip
        place = tmp_path / "autograded" / student / "a1" / "a1.ipynb"
        place.parent.mkdir(parents=True)
        nbformat.write(new_notebook(cells=[cell]), place)
    return SimpleNamespace(
        root=tmp_path, assignment=lambda _: Assignment(graded, "", {})
    )


@pytest.mark.parametrize(
    "message", ["", "a: 1 of 2", "✘ a: 0 of 1\n    b", "\u2028\n✔ x: 1 of 1"]
)
def test_what_is_written_into_a_check_is_read_again(message):
    outcomes = [Outcome("a: b", 2.0, 0.0, message), Outcome("c", 0.5, 0.5, "")]
    cell = new_code_cell("")
    write_outcomes(cell, outcomes)
    text = nbformat.writes(new_notebook(cells=[cell]))
    read = read_outcomes(nbformat.v4.reads(text).cells[0])
    line = one_line(message)
    assert read == [Outcome("a: b", 2.0, 0.0, line), Outcome("c", 0.5, 0.5, "")]


def test_parts_are_counted_by_the_mistake_that_was_met(course, tmp_path):
    people, counts = statistics(course, "a1")
    assert people == {
        "graded": ["s1", "s3", "s4", "s9", "s5"],
        "written work to be graded by hand": ["s2"],
        NOTHING: ["s6"],
        "not graded yet": ["s7"],
        "refused, with no points": ["s8"],
    }
    assert [tuple(count)[1:] for count in counts if count.part == "rest"] == [
        ("rest", 1.5, "right", "right", 6)
    ]
    met = {
        count.found: (count.kind, count.number)
        for count in counts
        if count.part[0] == "s"
    }
    assert met.pop("? rest: 1.5 of 1.5 ? signs: both: 2 of 2") == ("wrong otherwise", 1)
    assert met == {
        "right": ("right", 1),
        SENTENCE: ("a known mistake", 1),
        "Look at signs.": ("wrong otherwise", 1),
        "not attempted": ("not attempted", 1),
        "=1+1": ("wrong otherwise", 1),
    }
    assert [*bars_of(counts)["sign: signs: both"].values()] == [1, 1, 3, 1]
    write_statistics(counts, tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["number"]) for row in rows) == 12
    assert "'=1+1" in {row["found"] for row in rows}


class Knowing:
    """A kernel that ends in a check, and finds what the one before it left in the machine."""

    interrupts, spent = 0, 1.0

    def __init__(self, left):
        self.left = left
        self.shown = list(left)

    def run(self, source):
        if source == "die" and self.shown:
            raise Died("its process ended")
        text = f"{source}: hidden {self.shown}"
        output = {"output_type": "stream", "name": "stdout", "text": text}
        return SimpleNamespace(outputs=[output], ok=True)

    def ask(self, *_, **__):
        self.left.append(len(self.left))
        raise Died("its process ended")


def test_a_fresh_kernel_shows_nothing_that_one_before_it_learned_in_a_check():
    """It could read a hidden input in the machine's caches; which cell ends it could spell one."""
    cells = [new_code_cell(text) for text in ("first", "die", "check", "late")]
    cells[2].metadata.nbgrader = {"grade": True, "grade_id": "sign"}
    book = new_notebook(cells=cells)
    left = []
    found = run_notebook(
        book,
        lambda: nullcontext(Knowing(left)),
        {"sign": Graded("f", EXERCISE, PARTS)},
        lambda *_: 0,
    )
    assert left, "the check was asked, and the kernels ended"
    assert [cell.outputs[0].text for cell in cells[:2]] == [
        "first: hidden []", "die: hidden []"]  # fmt: skip
    assert "in cell" not in found
    other = new_notebook(cells=cells[:2])
    told = run_notebook(
        other, lambda: nullcontext(Knowing([1])), {}, lambda *_: 0, asked=True
    )
    assert "in cell" not in told, "nor in another notebook of the assignment"


def test_a_fresh_kernel_shows_what_ran_before_anything_was_asked():
    cells = [new_code_cell(text) for text in ("first", "last")]

    class Once:
        interrupts, spent, number = 0, 1.0, 0

        def run(self, source):
            self.number += 1
            if self.number == 1:
                raise Died("its process ended")
            return SimpleNamespace(
                outputs=[{"output_type": "stream", "name": "stdout", "text": source}]
            )

    kernel = Once()
    book = new_notebook(cells=cells)
    run_notebook(book, lambda: nullcontext(kernel), {}, None)
    assert cells[1].outputs[0].text == "last"


def test_a_kernel_that_ends_again_and_again_costs_what_comes_after_it():
    class Dying:
        interrupts, spent = 1, 9.0

        def run(self, source):
            raise Died("its process ended")

    cells = [new_code_cell("1"), new_code_cell("check"),
             new_code_cell("2")]  # fmt: skip
    cells[1].metadata.nbgrader = {"grade": True, "grade_id": "sign"}
    book = new_notebook(cells=cells)
    exercises = {"sign": Graded("f", EXERCISE, PARTS)}
    kernel = nullcontext(Dying())
    found = run_notebook(book, lambda: kernel, exercises, None, seconds=8.0)
    ended = "The kernel ended in cell 1: its process ended."
    assert found == f"Stopped 1× for running too long. {ended}"
    told = f"{ended} What follows ran without this cell.\n"
    assert cells[0].outputs[0].text == told and cells[2].outputs == []
    outcomes = [Outcome(part.name, part.points, 0.0, ended) for part in PARTS]
    assert read_outcomes(cells[1]) == outcomes


# What a check shows -----------------------------------------------------------------------
def shown(message):
    cell = new_code_cell("")
    write_outcomes(
        cell, [Outcome("fields", 6, 0.0, message), Outcome("value", 3, 3.0, "")]
    )
    text, points = cell.outputs
    assert points["data"] == {"text/plain": "3.0"}
    return text.text


@pytest.mark.parametrize("forged", [
    "x\n✔ fields: 6 of 6", "x\r✔ fields: 6 of 6", "x\x1b[2K\x1b[1A✔ fields", "x\u2028✔ fields",
    "x\x85✔ fields", "\u202e6 fo 6", "x\x0b✅ fields", "x\x0c☑ fields", "x\x08\x08\x08✓",
])  # fmt: skip
def test_the_text_of_an_exception_cannot_draw_the_grader_s_own_marks(forged):
    text = shown(f"The first of them raised ValueError: {forged}. Look again.")
    first, message, last, rest = text.split("\n")
    assert (first, last, rest) == ("✘ fields: 0 of 6", "✔ value: 3 of 3", "")
    assert message.startswith("    The first of them raised ValueError: ")
    assert message.isprintable()
    assert not set(message) & set("✔✘✅☑✓")


def test_a_hint_keeps_its_signs():
    hint = "The quotient a/b is ≤ 2⁻¹¹ — not “½ ulp” × 3 → see §4.3; naïve."
    assert shown(hint).split("\n")[1] == f"    {hint}"
