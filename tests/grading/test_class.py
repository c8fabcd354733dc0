"""A class as a whole: teams, and what an exercise that is graded anew leaves alone."""

from datetime import UTC

import pytest
from classroom import ROSTER, autograded, notebook, submit, with_walls

from mplab.course.grading.autograding import autograde
from mplab.course.grading.exporting import grades
from mplab.course.grading.feedback import write_feedback
from mplab.course.grading.folder import Course
from mplab.course.grading.journal import submitted_students, superseded, team_owners
from mplab.course.grading.platforms import People
from mplab.course.grading.statistics import statistics
from mplab.course.grading.submissions import SECRET
from mplab.course.grading.worksheets import read_list


def received(course, student, time):
    course.write("received", "a1", student, {"time": time})


@pytest.fixture
def bare(tmp_path):
    (tmp_path / "roster.csv").write_text(ROSTER, encoding="utf-8")
    (tmp_path / "teams.csv").write_text(
        "team,id\nred,s02\nred,s01\nblue,s03\nblue, s04\n"
    )
    return Course(tmp_path)


@pytest.mark.parametrize(
    ("times", "owner"),
    [
        ({"s01": ""}, "s01"),
        ({"s01": "", "s02": ""}, "s02"),
        ({"s01": "2026-11-05 10:15:01 UTC", "s02": "2026-11-05 10:15:00 UTC"}, "s01"),
        ({"s01": "2026-11-05 10:15:00 UTC", "s02": "2026-11-05 10:15:01 UTC"}, "s02"),
        ({"s01": "2026-11-05 10:15:00 UTC", "s02": "2026-11-05 10:15:00 UTC"}, "s02"),
        ({"s01": "2026-11-05 10:15:00 UTC", "s02": ""}, "s01"),
    ],
)
def test_the_newest_of_a_team_counts_and_of_equal_ones_who_stands_first(
    bare, times, owner
):
    for student, time in times.items():
        (bare.root / "submitted" / student / "a1").mkdir(parents=True)
        received(bare, student, time)
    assert team_owners(bare, "a1") == {"s01": owner, "s02": owner}
    assert superseded(bare, "a1") == {name: owner for name in times if name != owner}
    assert submitted_students(bare, "a1") == ([owner], [])


@pytest.mark.parametrize(
    ("text", "line"),
    [("team,id\nred,s01\nblue,s01\n", 3), ("team,id\nred,s09\n", 2), ("team,id\n,s01\n", 2),
     ("team,id\nred\n", 2), ("team,id\n\nred,../s01\n", 3)],
)  # fmt: skip
def test_teams_that_cannot_be_are_refused_with_the_line(bare, text, line):
    (bare.root / "teams.csv").write_text(text)
    with pytest.raises(
        ValueError, match=f"line {line}: teams must be lines of team,id"
    ):
        team_owners(bare, "a1")


@pytest.mark.parametrize(
    "name", ["roster.csv", "teams.csv", "extensions.csv", "times.csv"]
)
@pytest.mark.parametrize(
    "text",
    # After a quotation mark that nobody closed all lines were one name.
    [
        b"gr\x81,s01\n",
        b'red,"s01\nblue,s02\n',
        b"r," + b"x" * 200_000,
        b"r,s01,1,2,3\n",
    ],
    ids=["no encoding", "quote", "long", "more cells"],
)
def test_a_table_that_would_be_misread_is_refused_with_its_name(bare, name, text):
    path = bare.root / name
    heads = {
        "roster.csv": "first_name,id",
        "teams.csv": "team,id",
        "times.csv": "time,id",
    }
    head = heads.get(name, "assignment,id,hours")
    reads = {"roster.csv": bare.roster, "teams.csv": lambda: team_owners(bare, "a1"),
             "extensions.csv": lambda: bare.extensions("a1"),
             "times.csv": lambda: read_list([path], People([], {}), UTC)}  # fmt: skip
    path.write_bytes(head.encode() + b"\n" + text)
    with pytest.raises(ValueError, match=rf"{name} (must be CSV, in UTF-8, each|\()"):
        reads[name]()


@pytest.mark.slow
@with_walls
def test_a_team_is_graded_once_and_each_member_has_the_grade_and_the_page(course):
    (course.root / "teams.csv").write_text("team,id\nred,s01\nred,s02\nred,s04\n")
    for student, right in {"s01": False, "s02": True}.items():
        submit(course, student, notebook(course, right=right))
        received(course, student, f"2026-11-05 10:15:0{right:d} UTC")
    told = []
    lines = autograde(course, "a1", log=told.append)
    assert [(line.student, line.score) for line in lines] == [("s02", 16.0)]
    assert (
        "s01: not graded: s02 of the same team handed in later, or stands first" in told
    )
    with pytest.raises(ValueError, match=r"an id with a submission .*; got s03"):
        autograded(course, students=["s04", "s03"])
    assert [line.student for line in autograded(course, students=["s04"])] == ["s02"]
    (course.root / "feedback/s02/a1").mkdir(parents=True)
    (course.root / "feedback/s02/a1" / SECRET).touch()  # for nbgrader, and nobody else
    assert [
        page.student for page in write_feedback(course, "a1", students=["s01"])
    ] == ["s02"]
    assert not (course.root / "feedback/s01/a1" / SECRET).exists()
    pages = [course.root / f"feedback/{s}/a1/a1.html" for s in ("s01", "s02", "s04")]
    assert len({page.read_bytes() for page in pages}) == 1
    found = {grade.student.id: grade for grade in grades(course, ["a1"])}
    assert {name: grade.score for name, grade in found.items()} == {
        "s01": 16.0, "s02": 16.0, "s03": None, "s04": 16.0
    }  # fmt: skip
    assert found["s04"].remark.endswith("handed in by s02")
    assert "handed in by" not in found["s02"].remark
    _, counts = statistics(course, "a1")
    assert {c.number for c in counts} == {1}, "a team is one submission"


@pytest.mark.slow
@with_walls
def test_after_an_exercise_was_mended_the_same_command_grades_the_class_again(course):
    submit(course, "s01", notebook(course))
    submit(course, "s02", notebook(course, right=False))
    assert [line.score for line in autograded(course)] == [16.0, 0.0]
    by_hand = {"a1-words-answer": 1.5, "max_finite": 0.5}
    with course.gradebook() as gradebook:
        for name, points in by_hand.items():
            grade = gradebook.find_grade(name, "a1", "a1", "s01")
            grade.manual_score, grade.needs_manual_grade = points, False
        gradebook.db.commit()
    path = course.root / "checks/a1/exercises.py"
    text = path.read_text(encoding="utf-8")
    wrong = text.replace("return tuple(int(part)", "return tuple(1 + int(part)")
    wrong = wrong.replace("answer=2 * (2**8 - 2**3)", "answer=7")
    # Fields, of 3 points, and finite_codes, of 1.
    path.write_text(wrong, encoding="utf-8")
    lines = autograde(Course(course.root), "a1", log=str)
    assert [line.score for line in lines] == [16 - 3 - 1 + 1.5 - 1.5, 0.0]
    with course.gradebook() as gradebook:
        waits = [gradebook.find_grade(name, "a1", "a1", "s01").needs_manual_grade
                 for name in by_hand]  # fmt: skip
    assert waits == [False, False], "their answers are the same"
