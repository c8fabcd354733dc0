"""Exports: nothing handed in, not graded, and not graded by hand yet are told apart from 0."""

import csv

import pytest

from mplab.course.grading.exporting import BY_HAND, Grade, fill_in_grades, write_grades
from mplab.course.grading.folder import Course
from mplab.course.grading.tables import Student, escape_formula

STATES = {
    "full": (16.0, "", False),
    "zero": (0.0, "", False),
    "half": (14.0, BY_HAND, True),
    "failed": (None, "not graded yet, for a technical reason: x", False),
    "absent": (None, "nothing submitted", False),
}


def test_only_what_is_graded_to_the_end_is_a_number(tmp_path):
    found = [
        Grade(Student(name, "A", "B", ""), "a1", score, 18.0, remark, by_hand)
        for name, (score, remark, by_hand) in STATES.items()
    ]
    assert [grade.final for grade in found] == [16.0, 0.0, None, None, None]
    write_grades(found, tmp_path / "g.csv")
    with (tmp_path / "g.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert [rows[name]["score"] for name in STATES] == ["16", "0", "14", "", ""]
    assert [rows[name]["remark"] for name in STATES] == [s[1] for s in STATES.values()]


def test_what_is_exported_can_be_the_roster(tmp_path):
    people = [Student("s1", "Ada", "Löwe", "ada@x"), Student("s2", "Bo", "Ek, Jr", ""),
              Student("s3", "", "Cher", "c@x")]  # fmt: skip
    found = [Grade(student, "a1", 1.0, 18.0, "") for student in people]
    write_grades(found, tmp_path / "roster.csv")
    assert Course(tmp_path).roster() == people


@pytest.mark.parametrize("sign", "=+-@|%")
@pytest.mark.parametrize("shown", ["{}1", " {}1", "\t{}1", "\u200b{}1", "\ufeff{}1"])
def test_no_text_is_a_formula_whatever_stands_before_its_sign_and_however_wide_it_is(
    sign, shown
):
    for form in (sign, chr(ord(sign) + 0xFEE0)):  # Unicode's full width
        assert escape_formula(shown.format(form)).startswith("'")
        cells = escape_formula(f"Ek;{shown.format(form)}").split(";")
        assert cells[1].startswith("'"), "where a semicolon ends a cell"
        assert escape_formula(f'"{form}1').startswith("'")
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


FULL = Grade(
    Student("s01", "Ada", "Löwe", "ada@x", "5"), "a1", 9.5, 10.0, "1 hour late"
)
HALF = Grade(
    Student("s02", "Bo", "Li", "", "6"), "a1", 3.0, 10.0, BY_HAND, by_hand=True
)
AWAY = Grade(Student("s03", "Cy", "Ek", ""), "a1", 4.0, 10.0, "")

ENGLISH = (
    '\ufeffIdentifier,"Full name","ID number",Status,Grade,"Maximum grade",'
    '"Last modified (submission)","Last modified (grade)","Feedback comments"\r\n'
    '"Participant 17","Löwe, ""Ada""",s01,"Submitted, late",{},10.00,-,-,{}\r\n'
    '"Participant 18","Bo Li",s02,-,"7.00",10.00,-,-,"<p>kept</p>"\r\n'
)
GERMAN = (
    "ID,Vollständiger Name,Status,Bewertung,Bestwertung,Zuletzt geändert (Abgabe),"
    "Zuletzt geändert (Bewertung),Feedback als Kommentar\n"
    'Teilnehmer/in17,Ada Löwe,-,{},"10,00",-,-,{}\n\nTeilnehmer/in18,Bo Li,-,,"10,00",-,-,'
)
CANVAS = (
    "Student;ID;SIS Login ID;Section;Blatt 1 (77);Summe\n    Points Possible;;;;10,00;\n"
    "Löwe, Ada;5;ada@x;G;{};9\nLi, Bo;6;bo;G;EX;\n"
)


@pytest.mark.parametrize(
    ("form", "old", "new", "column"),
    [
        (ENGLISH, ("", ""), ("9.5", "1 hour late"), ""),
        (ENGLISH, ('"3.00"', "<b>mine</b>"), ("9.5", "<b>mine</b>"), ""),
        (GERMAN, ("", ""), ('"9,5"', "1 hour late"), ""),
        (CANVAS, ("",), ("9,5",), "Blatt 1"),
        (CANVAS, ("3,00",), ("9,5",), "blatt 1 (77)"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-be"])
def test_the_platform_s_own_file_is_filled_in_and_all_else_stays_byte_for_byte(
    tmp_path, form, old, new, column, encoding
):
    """Whose grade is not final, and who is not in the file, changes nothing there.

    The only student without a number was given Canvas's line of points possible.
    """
    if encoding != "utf-8":
        form = "\ufeff" + form.lstrip("\ufeff")
    into = tmp_path / "theirs.csv"
    into.write_bytes(form.format(*old).encode(encoding))
    path, *found = fill_in_grades(
        Course(tmp_path), [FULL, HALF, AWAY], into, column=column
    )
    assert found == [[FULL], [AWAY]]
    assert path.name == f"grades-{'moodle' if column == '' else 'canvas'}.csv"
    assert path.read_bytes() == form.format(*new).encode(encoding)


def test_an_excused_student_stays_so_and_is_not_said_to_be_missing(tmp_path):
    into = tmp_path / "theirs.csv"
    into.write_text(CANVAS.format(""), encoding="utf-8")
    bo = FULL._replace(student=Student("s02", "Bo", "Li", "bo", "6"))
    path, *found = fill_in_grades(Course(tmp_path), [bo], into, column="Blatt 1")
    assert found == [[], []] and path.read_text("utf-8") == CANVAS.format("")


def test_who_has_a_student_s_name_or_number_gets_no_points_of_hers(tmp_path):
    """Who joined later is in the platform's file, and not in the roster."""
    lines = [
        "Student,ID,SIS User ID,Section,A1 (77)",
        '"Löwe, Ada",5,s01,G,{}',
        '"Löwe, Ada",9,s99,G,',
        '"Wu, Di",s01,s98,G,',
        '"Ek, Cy",10,s97,G,{}',  # by the only name
        '"Li, Bo",11,s96,G,',
        '"Li, Bo",12,s95,G,',
    ]
    into = tmp_path / "theirs.csv"
    into.write_text("\n".join(lines).replace("{}", ""), encoding="utf-8")
    full = [FULL, AWAY, FULL._replace(student=HALF.student._replace(number=""))]
    path, *_ = fill_in_grades(Course(tmp_path), full, into, column="")
    assert path.read_text("utf-8").split("\n") == [
        line.format("9.5" if "s01" in line else "4") for line in lines
    ]


def test_of_two_columns_of_one_title_none_is_filled_in(tmp_path):
    into = tmp_path / "theirs.csv"
    into.write_text(
        CANVAS.format("").replace("Summe", "Blatt 1 (78)"), encoding="utf-8"
    )
    with pytest.raises(ValueError, match=r"one column Blatt 1; .* Name the column"):
        fill_in_grades(Course(tmp_path), [FULL], into, column="Blatt 1")
    path, *_ = fill_in_grades(Course(tmp_path), [FULL], into, column="Blatt 1 (78)")
    assert ";;9.5\n" in path.read_text("utf-8")


@pytest.mark.parametrize(("most", "shown"), [(0.1 + 0.2, "0.30"), (10 / 3, "3,33")])
def test_a_maximum_may_be_a_fraction_of_which_two_decimals_are_shown(
    tmp_path, most, shown
):
    into = tmp_path / "theirs.csv"
    full = [FULL._replace(max_score=most)]
    for text in (shown, "-", "1,000.00"):
        into.write_text(CANVAS.format("").replace("10,00", text), encoding="utf-8")
        if text == shown:
            fill_in_grades(Course(tmp_path), full, into, column="Blatt 1")
            continue
        with pytest.raises(ValueError, match=f"maximum must be that .* got {text}"):
            fill_in_grades(Course(tmp_path), full, into, column="Blatt 1")


def test_a_file_that_would_give_other_points_is_refused(tmp_path):
    into = tmp_path / "theirs.csv"
    course = Course(tmp_path)

    def filled(text):
        into.write_text(text, encoding="utf-8")
        fill_in_grades(course, [FULL._replace(max_score=18.0)], into)

    for text, told in {
        ENGLISH.format("", ""): "line 2: the maximum must be that of a1, 18; got 10.00",
        CANVAS.format(""): "whose assignments are Blatt 1 \\(77\\). Name the column",
    }.items():
        with pytest.raises(ValueError, match=told):
            filled(text)
    course.write("platform", "a1", "list", {"numbers": {"s01": "99"}})
    with pytest.raises(ValueError, match="the worksheet of another assignment"):
        filled(ENGLISH.format("", "").replace("10.00", "18.00"))
