"""`mplab grade watch`: grade what arrives, whatever happens in between."""

from types import SimpleNamespace

import pytest
from classroom import WALLS, notebook

from mplab.commands import grade
from mplab.course.grading.exporting import grades


@pytest.mark.slow
def test_what_arrives_is_graded_and_its_page_written_until_the_teacher_ends_it(
    course, tmp_path, monkeypatch, capsys
):
    box = tmp_path / "in"
    box.mkdir()
    page = "feedback/{}/a1/a1.html"
    late = iter([("s01", True), ("Bo", False), ("s01", False), (None, None)])

    def arrives(seconds):
        assert seconds == 20
        student, right = next(late)
        if student is None:
            raise KeyboardInterrupt
        (box / f"{student}.ipynb").write_text(notebook(course, right=right))

    monkeypatch.setattr(grade, "time", SimpleNamespace(sleep=arrives))
    trust = [] if WALLS else ["--trust-submissions"]
    people = tmp_path / "people.csv"
    people.write_text("name,id\nBo,s02\n")
    words = ["watch", "a1", "--from", str(box), "--people", str(people), *trust]
    words += ["--course", str(course.root)]
    assert grade.main(words) == 130
    # The newest counts.
    assert [g.score for g in grades(course, ["a1"])][:3] == [
        0,
        0,
        None,
    ]
    assert all((course.root / page.format(s)).exists() for s in ("s01", "s02"))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"Collecting a1 from {box} every 20 s; Ctrl+C ends it."
    # Each thing is said once.
    assert sum(line.startswith("s01: 16") for line in said) == 1
    assert sum(line.startswith("s02: 0") for line in said) == 1
    pages = [course.root / page.format(s) for s in ("s01", "s02")]
    before = [path.stat().st_mtime_ns for path in pages]
    late = iter([(None, None)])
    assert (
        grade.main(words) == 130
    )  # begun again: nothing is new, so nothing is written
    assert [path.stat().st_mtime_ns for path in pages] == before
    assert "Writing" not in capsys.readouterr().out
