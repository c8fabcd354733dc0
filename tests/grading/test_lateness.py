"""Who was late: by the platform, with the time that a student was given, and never by a student."""

import re
import shutil
import zipfile
from datetime import UTC, datetime, timedelta

import pytest
from classroom import autograded, configure, notebook, run, with_walls

from mplab.course.grading.collecting import collect
from mplab.course.grading.exporting import grades


@pytest.mark.slow
@with_walls
def test_lateness_is_the_platform_s_with_extensions_and_a_student_s_stamp_is_nothing(
    course, tmp_path, capsys
):
    local = datetime(2026, 1, 2, 14).astimezone(UTC).replace(tzinfo=None)
    (course.root / "extensions.csv").write_text(
        "id,assignment,hours\ns02,a1,1.5\ns03,a2,9\n"
    )
    place = tmp_path / "d.zip"
    stub, early = notebook(course), "2020-01-01 00:00:00 UTC\n"
    files = {"s01/a1.ipynb": stub, "s01/timestamp.txt": early, "s02/a1.ipynb": stub}
    with zipfile.ZipFile(place, "w") as archive:
        for name, text in {**files, "ekcy_LATE_11_22_a1.ipynb": stub}.items():
            archive.writestr(name, text)
    (tmp_path / "t.csv").write_text(
        "id,time\ns01,2026-01-02 14:00\ns02,2026-01-02 14:00\n"
    )
    collect(course, "a1", place, times=[tmp_path / "t.csv"])
    other = course.root / "submitted/s04/a1"
    shutil.copytree(course.root / "submitted/s03/a1", other)
    (other / "timestamp.txt").write_text(early)
    # An extension may stand there before it.
    for due in (
        None,
        local - timedelta(hours=2),
    ):
        with course.gradebook() as gradebook:
            gradebook.update_or_create_assignment("a1", duedate=due)
        assert run(course, "autograde", "a1") == 0
    assert "Late (2): s01, s02\n" in capsys.readouterr().out

    def remarks():
        remarks = [row.remark for row in grades(course, ["a1"])]
        return [re.sub("(; )?to be graded by hand", "", text) for text in remarks]

    assert remarks() == [
        "2 hours late",
        "30 minutes late",
        "Canvas says that it was late",
        "",
    ]
    # A deleted line is gone.
    for text, remark in (
        ("s02,a1,2\n", ""),
        ("", "2 hours late"),
    ):
        (course.root / "extensions.csv").write_text("id,assignment,hours\n" + text)
        assert all(line.done_before for line in autograded(course))
        assert remarks()[1] == remark
    configure(course, "c.LateSubmissionPlugin.penalty_method = 'zero'")
    # Of a due date that moves after the grading, and of points by hand: they escaped it.
    with course.gradebook() as gradebook:
        grade = gradebook.find_grade("a1-words-answer", "a1", "a1", "s01")
        grade.manual_score, grade.needs_manual_grade = 2.0, False
        gradebook.db.commit()
    for hours, score in (
        (-2, 0.0),
        (1, 16.0),
    ):
        with course.gradebook() as gradebook:
            moved = local + timedelta(hours=hours)
            gradebook.update_or_create_assignment("a1", duedate=moved)
        scores = [row.score for row in grades(course, ["a1"])][:2]
        assert scores == [score and score + 2, score]


def test_extensions_are_read_and_a_broken_line_is_told(bare):
    path = bare.root / "extensions.csv"
    assert bare.extensions("a1") == {}
    path.write_text("id,assignment,hours\ns01,a1,48\ns02,a2,1\n", encoding="utf-8")
    assert bare.extensions("a1") == {"s01": timedelta(hours=48)}
    path.write_text("s01,a1,48\n")  # no head: it was ignored once
    with pytest.raises(
        ValueError, match="no column assignment, hours, id in the first line"
    ):
        bare.extensions("a1")
    for line in (
        "s01,a1,two days",
        "s01,a1",
        "mallory,a1,1",
        "s01,a1,1e99",
        "s01,A1,1",
        "s01,a1,-2",
    ):
        path.write_text(f"id,assignment,hours\n{line}\n", encoding="utf-8")
        with pytest.raises(
            ValueError, match=r"line 2: extensions must be lines of id,assignment"
        ):
            bare.extensions("a1")
    path.write_text("id,assignment,hours\ns01,a1,24\ns01,a2,1\ns01,a1,48\n")
    with pytest.raises(ValueError, match=r"line 4: .* has another line"):
        bare.extensions("a1")
    path.unlink()
