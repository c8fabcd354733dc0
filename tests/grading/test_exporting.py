"""Exports: nothing handed in, not graded, and not graded by hand yet are told apart from 0."""

import csv

import pytest

from mplab.grading import exporting
from mplab.grading.exporting import BY_HAND, Grade, export
from mplab.grading.folder import Course
from mplab.grading.tables import Student, escape_formula

STATES = {
    "full": (16.0, "", False),
    "zero": (0.0, "", False),
    "half": (14.0, BY_HAND, True),
    "failed": (None, "not graded yet, for a technical reason: x", False),
    "absent": (None, "nothing submitted", False),
}


@pytest.mark.parametrize(
    ("to", "key", "column", "shown"),
    [
        ("csv", "id", "score", ["16", "0", "14", "", ""]),
        ("canvas", "SIS User ID", "a1", ["16", "0", "", "", ""]),
        ("moodle", "ID number", "a1", ["16", "0", "", "", ""]),
    ],
)
def test_only_what_is_graded_to_the_end_is_a_number(
    tmp_path, monkeypatch, to, key, column, shown
):
    found = [
        Grade(Student(name, "A", "B", ""), "a1", score, 18.0, remark, by_hand)
        for name, (score, remark, by_hand) in STATES.items()
    ]
    monkeypatch.setattr(exporting, "grades", lambda *_: found)
    path = tmp_path / "g.csv"
    assert (
        len({grade.student.id for grade in export(None, ["a1"], to=to, path=path)}) == 5
    )
    with path.open(encoding="utf-8", newline="") as file:
        rows = {row[key]: row for row in csv.DictReader(file)}
    assert [rows[name][column] for name in STATES] == shown
    remarks = {"csv": "remark", "moodle": "a1 feedback"}
    if to in remarks:
        assert [rows[name][remarks[to]] for name in STATES] == [
            r for _, r, _ in STATES.values()
        ]


CLASS = [Student("s1", "Ada", "Löwe", "ada@x"), Student("s2", "Bo", "Ek, Jr", ""),
         Student("s3", "", "Cher", "c@x")]  # fmt: skip


@pytest.mark.parametrize("to", ["csv", "canvas", "moodle"])
def test_what_is_exported_can_be_the_roster(tmp_path, monkeypatch, to):
    people = [s for s in CLASS if to != "canvas" or "," not in s.last_name]
    found = [Grade(student, "a1", 1.0, 18.0, "") for student in people]
    monkeypatch.setattr(exporting, "grades", lambda *_: found)
    export(None, ["a1"], to=to, path=tmp_path / "roster.csv")
    assert Course(tmp_path).roster() == people


@pytest.mark.parametrize("sign", "=+-@|%")
@pytest.mark.parametrize("shown", ["{}1", " {}1", "\t{}1", "\u200b{}1", "\ufeff{}1"])
def test_no_text_is_a_formula_whatever_stands_before_its_sign_and_however_wide_it_is(
    sign, shown
):
    for form in (sign, chr(ord(sign) + 0xFEE0)):  # Unicode's full width
        assert escape_formula(shown.format(form)).startswith("'")
    assert escape_formula(f"a{sign}1") == f"a{sign}1"


def test_canvas_s_own_lines_are_nobody_and_a_student_without_an_id_is_told(tmp_path):
    lines = [
        "Student,ID,SIS User ID,SIS Login ID,Section,A1 (17)",
        ",,,,,Manual Posting",
        '"    Points Possible",,,,,18',
        '"Ek, Bo",71,s2,bo,Group,3',
        '"Student, Test",72,,f00,Group,',
    ]
    path = tmp_path / "roster.csv"
    path.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert Course(tmp_path).roster() == [Student("s2", "Bo", "Ek", "bo", "71")]
    path.write_text("\n".join([*lines, '"Wu, Di",73,,di,Group,']))
    with pytest.raises(
        ValueError, match=r"line 6: id must be .* got ''\. It is .* SIS User ID"
    ):
        Course(tmp_path).roster()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            'Student,ID,SIS User ID,SIS Login ID,Section\n"Ek, Bo",71,,bo,G\n',
            ("bo", "bo", "71"),
        ),
        (
            "First name,Last name,ID number,Email address\nBo,Ek,,bo@x\n",
            ("bo@x", "bo@x", ""),
        ),
        (
            "Vorname,Nachname,Anmeldename,E-Mail-Adresse\nBo,Ek,b1,bo@x\n",
            ("b1", "bo@x", ""),
        ),
        ("id,first_name,last_name,email,number\nb,Bo,Ek,,9\n", ("b", "", "9")),
    ],
)
def test_rosters_without_ids_are_read_by_log_in_or_mail_and_in_german(
    tmp_path, text, wanted
):
    (tmp_path / "roster.csv").write_text(text)
    who, mail, number = wanted
    assert Course(tmp_path).roster() == [Student(who, "Bo", "Ek", mail, number)]
