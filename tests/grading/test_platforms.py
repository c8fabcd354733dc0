"""The downloads, worksheets and rosters of Moodle and Canvas, in the forms that they write.

All names are invented. A letter and a number such as M2 name a form.
"""

import json
import zipfile
from zoneinfo import ZoneInfo

import classroom
import pytest
from classroom import configure, forget, run, with_students

from mplab.course.grading.collecting import collect
from mplab.course.grading.feedback import write_zip
from mplab.course.grading.journal import team_owners
from mplab.course.grading.platforms import People
from mplab.course.grading.tables import Student, read_people, read_roster, write_table
from mplab.course.grading.worksheets import read_list

ROSTER = """\
id,first_name,last_name,email,number
s01,Ada,Löwe,ada@example.org,5
s02,Bo,Li,bo@example.org,23
s03,Löwe_Berg,Ada,,9
s04,Di,D'Arcy/O'Neil,,
"""

WORKSHEET = """\
Identifier,"Full name","ID number","Email address",Status,Group,Grade,"Maximum grade",\
"Grade can be changed","Last modified (submission)","Last modified (grade)","Feedback comments"
"Participant 17","Ada Löwe",s01,ada@example.org,"Submitted for grading - ","Team A",,10.00,Yes,\
"Tuesday, 24 November 2026, 11:59 PM",-,
"Participant 99","Bo Li",s02,bo@example.org,"Submitted for grading - 2 hours 5 mins late",\
"Team A",,10.00,Yes,"Wednesday, 25 November 2026, 2:04 AM",-,
"Participant 5","Löwe_Berg Ada",s03,,"Draft (not submitted) - ",Default group,,10.00,Yes,\
"Tuesday, 24 November 2026, 11:00 AM",-,
"""

WORKSHEETS = {
    "en": ('Identifier,Full name,ID number,Status,Grade,Maximum grade,Last modified (submission)',
           'Participant 17,Ada Löwe,s01,-,,10.00,"Tuesday, 24 November 2026, 11:59 PM"'),
    "de": ('ID,Vollständiger Name,ID-Nummer,Status,Bewertung,Bestwertung,Zuletzt geändert (Abgabe)',
           'Teilnehmer/in17,Ada Löwe,s01,-,,"10,00","Dienstag, 24. November 2026, 23:59"'),
    "fr": ('Identifiant,Nom complet,Numéro d’identification,Statut,Note,Note maximale,'
           'Dernière modification (travail remis)',
           'Participant17,Ada Löwe,s01,-,,"10,00","mardi 24 novembre 2026, 23:59"'),
    "es": ('Identificador,Nombre completo,Número de ID,Estado,Calificación,Calificación máxima,'
           'Última modificación (entrega)',
           'Participante17,Ada Löwe,s01,-,,"10,00","martes, 24 de noviembre de 2026, 23:59"'),
    "it": ('Identificativo,Nome,Codice identificativo,Stato,Valutazione,Valutazione massima,'
           'Ultima modifica (consegna)',
           'Partecipante17,Ada Löwe,s01,-,,"10,00","martedì, 24 novembre 2026, 23:59"'),
    "nl": ('Identificatie,Volledige naam,Nummer (ID),Status,Cijfer,Maximaal cijfer,'
           'Laatst gewijzigd (inzending)',
           'Deelnemer17,Ada Löwe,s01,-,,"10,00","dinsdag, 24 november 2026, 23:59"'),
    "pt": ('Identificador,Nome completo,Número de identificação (ID),Estado,Avaliação,Nota máxima,'
           'Última atualização (submissão)',
           'Participante17,Ada Löwe,s01,-,,"10,00",'
           '"terça-feira, 24 de novembro de 2026 às 23:59"'),
    "zh": ('标识符,全名,学号,状态,成绩,最高分,上次修改（作业）',
           '参与人17,Ada Löwe,s01,-,,10.00,2026年11月24日 星期二 23:59'),
    "mixed": ('Identifier,Full name,ID number,Status,Grade,Maximum grade,'
              'Last modified (submission)',
              'Teilnehmer/in17,Ada Löwe,s01,-,,10.00,"Tuesday, 24 November 2026, 11:59 PM"'),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    course = with_students(tmp_path_factory.mktemp("platforms") / "course")
    (course.root / "roster.csv").write_text(ROSTER, encoding="utf-8")
    configure(course, "c.Course.time_zone = 'Europe/Berlin'")
    return course


@pytest.fixture
def course(made):
    yield made
    forget(made)


def bring(course, names, sheet="", name="w.csv"):
    return classroom.bring(course, {n: n for n in names}, times=sheet, name=name)


def sent_back(course, students):
    for student in ("s01", "s02", "s03", "s04"):
        page = course.root / "feedback" / student / "a1" / "a1.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(student)
        page.with_suffix(".ipynb").write_text(student)
    path, count, others = write_zip(course, "a1", students)
    if not count:
        return {}, others
    with zipfile.ZipFile(path) as archive:
        pages = {name: archive.read(name).decode() for name in archive.namelist()}
    return pages, others


OTHERS = {
    "Blackboard": (
        "Sheet 1_{}_attempt_2026-11-24-23-05-09_a1.ipynb",
        ["s01", "bo@example.org", "s03"],
        "2026-11-24 22:05:09 UTC",
    ),
    "Brightspace": (
        "397063-25573 - {} - Nov 24, 2026 1105 PM/a1.ipynb",
        ["Ada Löwe", "Bo Li", "Ada Löwe_Berg"],
        "2026-11-24 22:05:00 UTC",
    ),
}


@pytest.mark.parametrize("platform", OTHERS)
def test_a_platform_s_name_says_who_and_when(course, platform):
    form, names, time = OTHERS[platform]
    files = [form.format(name) for name in names]
    if platform == "Blackboard":
        files += [name.replace("_a1.ipynb", ".txt") for name in files]
        # The end of a name is its author's.
        files.append(form.format("s04_x").replace("a1.ipynb", "s01_a1.ipynb"))
    collected = bring(course, [*files, "index.html"])
    assert collected.students == ["s01", "s02", "s03"]
    assert len(collected.left_out) == (platform == "Blackboard")
    stamps = {course.read("received", "a1", s)["time"] for s in collected.students}
    assert stamps == {time}


def test_of_two_attempts_on_blackboard_the_newer_counts(course):
    form = "Sheet 1_s01_attempt_2026-11-{}-23-05-09_a1.ipynb"
    bring(course, [form.format(24), form.format(25), form.format(23)])
    assert course.read("received", "a1", "s01")["time"][:10] == "2026-11-25"


FOLDERS = {
    "Google": ["Ada Löwe - a1.ipynb", "a1 - Bo Li.ipynb", "Copy of a1.ipynb"],
    "GitHub": ["a1-submissions/a1-ada/a1.ipynb", "a1-submissions/a1-ada/.git/HEAD",
               "a1-submissions/a1-s02/a1.ipynb", "a1-submissions/a1-x/sub/a1.ipynb"],
    "mail": ["ada@example.org/a1.ipynb", "bo@example.org_a1.ipynb", "=Di.ipynb"],
    "Blackboard": [f"A 1_{login}_attempt_2026-11-24-23-05-09_a1.ipynb" for login in ("ada", "x")],
}  # fmt: skip
WRITTEN = {
    "Google": {"Ada Löwe - a1": "s01", "a1 - Bo Li": "s02", "Copy of a1": ""},
    "GitHub": {"ada": "", "x": ""},
    "mail": {"'=Di": ""},
    "Blackboard": {"A 1_ada": "s01", "A 1_x": ""},
}


@pytest.mark.parametrize("source", FOLDERS)
def test_names_of_nobody_are_written_as_a_table_that_says_whose_they_are(
    course, source
):
    """A name that a student chose counts only once a person has looked at the table."""
    table = course.root / "people.csv"
    first = bring(course, FOLDERS[source])
    assert read_people(table, set()) == WRITTEN[source]
    assert {*first.students} == {
        "Google": set(), "GitHub": {"s02"}, "mail": {"s01", "s02"}, "Blackboard": set(),
    }[source]  # fmt: skip
    filled = WRITTEN[source] | {next(reversed(WRITTEN[source])): "s04"}
    filled |= {name: "s01" for name in filled if name == "ada"}
    write_table(table, [("name", "id"), *filled.items()])
    again = collect(course, "a1", course.root / "d.zip", people=table)
    assert again.left_out == []
    assert {*again.students} == {*filled.values(), *first.students}
    assert read_people(table, set()) == filled


def test_a_table_of_people_keeps_what_was_filled_in_and_knows_the_roster(course):
    table = course.root / "people.csv"
    table.write_text("name,id\nAnn,s03\n", encoding="utf-8")
    bring(course, ["Ann.ipynb", "Ben.ipynb"])  # the table was not given
    assert read_people(table, set()) == {"Ann": "s03", "Ben": ""}
    assert collect(course, "a1", course.root / "d.zip", people=table).students == [
        "s03"
    ]
    table.write_text("name,id\nAnn,s99\n", encoding="utf-8")
    for path, words in (
        (table, "id must be one of the roster"),
        (table / "x", "name,id"),
    ):
        with pytest.raises(ValueError, match=words):
            collect(course, "a1", course.root / "d.zip", people=path)
    table.write_text("name,id\nAnn,s03\nAnn,s01\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 3: name must have one id; got 's01'"):
        collect(course, "a1", course.root / "d.zip", people=table)


def test_two_people_of_one_name_are_told_apart_by_the_table(course):
    names = [f"Ada Löwe_{n}_assignsubmission_file/a1.ipynb" for n in (17, 18)]
    assert bring(course, names).students == []
    table = course.root / "people.csv"
    assert read_people(table, set()) == {"Ada Löwe_17": "", "Ada Löwe_18": ""}
    table.write_text("name,id\nAda Löwe_17,s01\nAda Löwe_18,s04\n", encoding="utf-8")
    found = collect(course, "a1", course.root / "d.zip", people=table)
    assert found.students == ["s01", "s04"]


def test_a_name_in_the_worksheet_of_two_lines_is_the_student_s_whose_id_is_there(
    course,
):
    table = course.root / "w.csv"
    head = 'Identifier,"Full name","ID number","Last modified (submission)"\n'
    lines = "Participant 17,Ada Löwe,s01,-\nParticipant 18,Ada Löwe,s99,-\n"
    table.write_text(head + lines, encoding="utf-8")
    people = People(course.roster(), {})
    read_list([table], people, ZoneInfo("UTC"))
    assert people.numbers == {"17": "s01"}


def test_a_zip_that_a_mac_packed_again_keeps_its_umlauts(course):
    name = "Ada Löwe_17_assignsubmission_file/a1.ipynb".encode()
    place = course.root / "d.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("x" * len(name), "x")
    place.write_bytes(place.read_bytes().replace(b"x" * len(name), name))
    assert collect(course, "a1", place).students == ["s01"]


def test_a_list_of_times_that_is_not_there_is_told(course):
    with pytest.raises(ValueError, match="there is no such file"):
        read_list([course.root / "no.csv"], People([], {}), ZoneInfo("UTC"))


def test_an_address_of_two_students_is_nobody_s():
    two = [Student("s01", "", "", "a@x"), Student("s0002", "", "", "a@x")]
    people = People(two, {})
    assert (people.whose("a@x_a1"), people.whose("s01_a1")) == (None, "s01")


MOODLE, TEAMS = "Löwe_17_assignsubmission_file", "team,id\nTeam A,s01\nTeam A,s02\n"


@pytest.mark.parametrize(("name", "owner", "back"), [
    (f"Ada {MOODLE}_/a1.ipynb", "s01", f"Ada {MOODLE}_/a1.html"),  # M1
    (f"Ada {MOODLE}/a1.ipynb", "s01", f"Ada {MOODLE}/a1.html"),  # M2
    (f"Ada {MOODLE}_a1.ipynb", "s01", f"Ada {MOODLE}_a1.html"),  # M3
    (f"Ada {MOODLE}/sub/dir/a1.ipynb", "s01", f"Ada {MOODLE}/a1.html"),  # M4
    (f"Team A-Ada {MOODLE}_/a1.ipynb", "s01", f"Team A-Ada {MOODLE}_/a1.html"),  # M5
    ("Di DArcyONeil_40_assignsubmission_file/a1.ipynb", "s04",
     "Di DArcyONeil_40_assignsubmission_file/a1.html"),
    ("Ada Löwe_23_assignsubmission_file/a1.ipynb", "s01",
     "Ada Löwe_23_assignsubmission_file/a1.html"),  # no number of a roster is of Moodle
    ("löweada_5_6_a1.ipynb", "s01", "löweada_5_6_a1.ipynb"),  # C1
    ("löweada_LATE_5_6_a1.ipynb", "s01", "löweada_LATE_5_6_a1.ipynb"),
    ("ada_löwe_berg_9_6_a1.ipynb", "s03", "ada_löwe_berg_9_6_a1.ipynb"),  # C5
    ("löweada_5_6_a1-1.ipynb", "s01", "löweada_5_6_a1.ipynb"),  # C6
    ("download/löweada_5_6_a1.ipynb", "s01", "löweada_5_6_a1.ipynb"),  # packed once more
])  # fmt: skip
def test_a_platform_s_name_is_read_and_written_back(course, name, owner, back):
    collected = bring(course, [name])
    assert (collected.students, collected.left_out) == ([owner], [])
    assert sent_back(course, [owner])[0] == {back: owner}


@pytest.mark.parametrize(("name", "reason"), [
    ("Team A_23_assignsubmission_file_a1.ipynb", "not one student or team"),
    ("Team A_23_assignsubmission_file/a1.ipynb", "not one student or team"),
    ("Default group_assignsubmission_file/a1.ipynb", "not one student or team"),  # M7
    ("Teilnehmerin_17_assignsubmission_file/a1.ipynb", "not one student or team"),  # M8
    ("参与人_17_assignsubmission_file/a1.ipynb", "not one student or team"),
    ("LATE_anon_Ab1Cd_6_a1.ipynb", "not one student or team"),  # C3
    ("loweada_77_6_a1.ipynb", "not one student or team"),
    ("Ada Löwe_17_assignsubmission_file", "no student of the roster is recognised"),  # no folder
])  # fmt: skip
def test_what_is_nobody_s_for_certain_is_left_out_with_its_reason(course, name, reason):
    collected = bring(course, [name, "s04/a1.ipynb"])
    assert (collected.students, len(collected.left_out)) == (["s04"], 1)
    assert any(reason in problem for problem in collected.problems)


@pytest.mark.parametrize(("name", "told"), [
    ("Ada Löwe_17_assignsubmission_onlinetext/onlinetext.html", "text typed on Moodle"),  # M9
    ("Ada Löwe_17_assignsubmission_onlinetext/texteenligne.html", "text typed on Moodle"),
    ("löweada_5_text.html", "text typed on Canvas"),  # C4
    ("löweada_5_link.html", "link typed on Canvas"),
    ("anon_Ab1Cd_text.html", "text typed on Canvas"),
])  # fmt: skip
def test_what_is_no_file_is_named_as_what_it_is_and_costs_no_file(course, name, told):
    collected = bring(course, [name, f"Ada {MOODLE}_/a1.ipynb"])
    assert told in collected.problems[0]
    assert (collected.students, collected.left_out) == (["s01"], [])


def test_a_team_of_moodle_comes_in_by_the_worksheet_and_each_member_gets_the_page(
    course,
):
    """The number in a team's folder is the team's: 23 is Bo's only in the roster."""
    folder = "Team A_23_assignsubmission_file/a1.ipynb"  # M6
    collected = bring(course, [folder], WORKSHEET)
    assert collected.students == ["s01"]
    assert team_owners(course, "a1") == {"s01": "s01", "s02": "s01"}
    pages, others = sent_back(course, ["s01"])
    assert pages == {
        "Ada Löwe_17_assignsubmission_file_/a1.html": "s01",
        "Bo Li_99_assignsubmission_file_/a1.html": "s02",
    }
    assert others == []


def test_a_team_without_a_worksheet_comes_in_by_teams_csv_and_no_number_goes_back(
    course,
):
    (course.root / "teams.csv").write_text(TEAMS)
    assert bring(course, ["Team A_23_assignsubmission_file_a1.ipynb"]).students == [
        "s01"
    ]
    assert sent_back(course, ["s01"]) == ({}, ["s01", "s02"])


def test_a_group_of_canvas_is_its_member_by_number_and_a_message_says_so(course):
    collected = bring(course, ["teamred_5_6_a1.ipynb"])  # C2
    assert collected.students == ["s01"]
    assert "handed in under 'teamred', by s01's number" in collected.problems[0]
    (course.root / "teams.csv").write_text("team,id\nTeam Red,s02\nTeam Red,s04\n")
    assert bring(course, ["teamred_5_6_a1.ipynb"]).students == ["s01"]


def test_with_a_worksheet_name_and_number_must_be_those_of_one_of_its_lines(course):
    forms = {
        "Participant_99_assignsubmission_file/a1.ipynb": "s02",
        "Ada Löwe_17_assignsubmission_file/a1.ipynb": "s01",
    }
    for name, owner in forms.items():
        assert bring(course, [name], WORKSHEET).students == [owner]
    for name, reason in {
        "Ada Löwe_99_assignsubmission_file/a1.ipynb": "calls number 99 'Bo Li'",
        "Ada Löwe_5_assignsubmission_file/a1.ipynb": "calls number 5 'Löwe_Berg Ada'",
        "Di DArcyONeil_7_assignsubmission_file/a1.ipynb": "not one student or team",
    }.items():
        collected = bring(course, [name], WORKSHEET)
        assert collected.students == []
        assert any(reason in problem for problem in collected.problems)
    collected = bring(
        course, ["Löwe Berg Ada_5_assignsubmission_file/a1.ipynb"], WORKSHEET
    )
    assert collected.students == ["s03"]
    assert "drafts, not submitted: s03" in collected.problems


def test_an_anonymous_submission_of_canvas_comes_in_by_the_list_that_names_it(course):
    rows = [
        {"user_id": 5, "anonymous_id": "Ab1Cd", "submitted_at": "2026-11-24T22:59:00Z"}
    ]
    collected = bring(course, ["anon_Ab1Cd_6_a1.ipynb"], json.dumps(rows), "list.json")
    assert collected.students == ["s01"]
    assert course.read("received", "a1", "s01")["time"] == "2026-11-24 22:59:00 UTC"
    assert sent_back(course, ["s01"])[0] == {"anon_Ab1Cd_6_a1.ipynb": "s01"}
    only = [{"anonymous_id": "Ab1Cd", "submitted_at": "2026-11-24T22:59:00Z"}]
    collected = bring(course, ["anon_Ab1Cd_6_a1.ipynb"], json.dumps(only), "list.json")
    assert "not one student or team" in collected.problems[0]


@pytest.mark.parametrize("language", WORKSHEETS)
def test_a_worksheet_is_read_in_every_language(course, tmp_path, language):
    path = tmp_path / "worksheet.csv"
    path.write_text(
        "\ufeff" + "\r\n".join(WORKSHEETS[language]) + "\r\n", encoding="utf-8"
    )
    found = People(course.roster(), {})
    read_list([path], found, ZoneInfo("Europe/Berlin"))
    assert (found.numbers, found.names) == ({"17": "s01"}, {"17": "Ada Löwe"})
    when = found.times["s01"]
    assert when.isoformat() == "2026-11-24T22:59:00+00:00"
    assert read_roster(path).students == [Student("s01", "Ada", "Löwe", "")]  # G3


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
@pytest.mark.parametrize("first", ["", "sep=;", " sep=;"])
def test_lines_of_a_roster_end_as_in_any_spreadsheet(tmp_path, first, end):
    """Excel for Macintosh ends them with a carriage return."""
    path = tmp_path / "roster.csv"
    lines = [first] * bool(first) + ["id;first_name;last_name", "s01;Ada;Löwe", ""]
    path.write_bytes(end.join(lines).encode())
    assert read_roster(path).students == [Student("s01", "Ada", "Löwe", "")]


def test_collecting_says_in_its_exit_code_that_somebody_was_left_out(course, capsys):
    for names, code in {
        ("Ada Löwe_17_assignsubmission_file/a1.ipynb",): 0,
        ("Ada Löwe_17_assignsubmission_file/a1.ipynb", "Mo Ng_3_assignsubmission_file/a1.ipynb"): 1,
        ("Mo Ng_3_assignsubmission_file/a1.ipynb",): 1,
        ("Bo Li_99_assignsubmission_file/a1.pdf",): 1,
    }.items():  # fmt: skip
        bring(course, names)
        place = str(course.root / "d.zip")
        assert run(course, "collect", "a1", place) == code
    out = capsys.readouterr().out
    assert out.count("look at: 1 name of nobody: people.csv lists all such") == 2
    assert "left out (1): 'Mo Ng_3_assignsubmission_file'" in out
    assert out.count("0 submissions in") == 2 and "left out (1): 's02'" in out
    assert course.read("received", "a1", "s02")["reason"].startswith("left out, not a")


ROSTERS = {
    "G1": "First name,Last name,ID number,Email address\nAda,Löwe,s1,a@x\n",
    "G2 de": "Vorname;Nachname;ID-Nummer;E-Mail-Adresse\nAda;Löwe;s1;a@x\n",
    "G2 fr": "Prénom;Nom de famille;Numéro d’identification;Adresse de courriel\nAda;Löwe;s1;a@x\n",
    "G2 old fr": "Prénom;Nom;Numéro d'identification;Adresse de courriel\nAda;Löwe;s1;a@x\n",
    "G2 es": "Nombre\tApellido(s)\tNúmero de ID\tDirección de correo\nAda\tLöwe\ts1\ta@x\n",
    "G2 it": "Nome:Cognome:Codice identificativo:Indirizzo email\nAda:Löwe:s1:a@x\n",
    "G2 nl": "Voornaam;Achternaam;Nummer (ID);E-mailadres\nAda;Löwe;s1;a@x\n",
    "G2 pt": "Nome;Apelido;Número de identificação (ID);E-mail\nAda;Löwe;s1;a@x\n",
    "G2 zh": "名，姓，学号，电子邮件地址\nAda，Löwe，s1，a@x\n".replace("，", ","),
    "excel": "sep=;\nVorname;Nachname;ID-Nummer;E-Mail-Adresse\nAda;Löwe;s1;a@x\n",
    "G4": "Student,ID,SIS User ID,SIS Login ID,Section\n\"Löwe, Ada\",5,s1,a@x,G\n",
    "G5": "Student,ID,SIS Login ID,Section\n\"Löwe, Ada\",5,s1,G\n",
    "G6": "LastName,FirstName,ID,SIS User ID,SIS Login ID,Section,A (7)\n"
          "    Points Possible,,,,,,10\nLöwe,Ada,5,s1,a@x,G,\nStudent,Test,9,,,G,\n",
    "G7": "\ufeffStudent;ID;SIS User ID;SIS Login ID;Section;A (7)\n"
          "    Points Possible;;;;;10,00\nLöwe, Ada;5;s1;a@x;G;9,50\n",
    "G8": "Student,ID,SIS User ID,SIS Login ID,Section\n\"Löwe, Ada\",5,s1,a@x,G\n"
          f"Teststudent,9,,{'0123456789' * 4},G\n",
    "log-in": "Vorname,Nachname,Anmeldename,E-Mail-Adresse\nAda,Löwe,s1,a@x\n",
    "address": "First name,Last name,ID number,Email address\nAda,Löwe,,a@x\n",
    "G4 log-in": "Student,ID,SIS User ID,SIS Login ID,Section\n\"Löwe, Ada\",5,,s1,G\n",
    "ours": "id,first_name,last_name,email,number\ns1,Ada,Löwe,a@x,5\n",
}  # fmt: skip


@pytest.mark.parametrize("form", ROSTERS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
def test_a_roster_is_read_in_every_form_a_platform_or_a_spreadsheet_writes(
    tmp_path, form, encoding
):
    if encoding == "cp1252" and form == "G2 zh":
        return
    (tmp_path / "roster.csv").write_bytes(
        ROSTERS[form].lstrip("\ufeff" * (encoding != "utf-8")).encode(encoding)
    )
    roster = read_roster(tmp_path / "roster.csv")
    number = "5" if form == "ours" or "Student" in ROSTERS[form] or form == "G6" else ""
    mail = "s1" if form in ("G5", "G4 log-in") else "a@x"
    who = "a@x" if form == "address" else "s1"
    assert roster.students == [Student(who, "Ada", "Löwe", mail, number)]
    words = "not in UTF-8; read as Windows-1252"
    assert (encoding == "cp1252") == any(words in r for r in roster.remarks)


def test_a_canvas_roster_without_log_ins_says_that_ids_are_canvas_s(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text('Student,ID,Section\n"Löwe, Ada",5,G\n', encoding="utf-8")
    roster = read_roster(path)
    assert roster.students == [Student("5", "Ada", "Löwe", "", "5")]
    assert roster.remarks == ("ids are those of the column ID",)


def test_a_name_is_no_id_and_no_number():
    people = [Student("s01", "", "", "", "7"), Student("s02", "S01", "", "")]
    known = People([*people, Student("s03", "Number", "7", "")], {})
    found = [known.find(text) for text in ("S01", "number 7", "7, Number")]
    assert found == ["s01", "s01", None]


@pytest.mark.parametrize("top", ["", "assignment_9100_export/"])
def test_gradescope_s_list_says_whose_each_folder_is_and_when_it_came_in(course, top):
    """Its folders bear no name: nothing of 300 was recognised."""
    notebook = "of either"
    listed = """\
submission_11:
  :submitters:
  - :name: Ada Löwe
    :sid: S01
    :email: other@x
  :created_at: 2026-11-22 10:15:45.466432000 Z
submission_12:
  :submitters:
  - :name: Somebody
    :sid:
    :email: nobody@x
  - :name: Cy Ek
    :sid: s03
    :email:
  - :name: Di Wu
    :sid: s04
    :email:
  :created_at: 2026-11-22 10:16:45.466432000 Z
submission_13:
  :submitters:
  - :name: Somebody
    :sid:
    :email: nobody@x
  :created_at: 2026-11-22 10:16:45.466432000 Z
"""
    found = classroom.bring(
        course,
        {
            f"{top}submission_metadata.yml": listed,
            # A student's own list counts for nothing.
            f"{top}submission_11/submission_metadata.yml": "submission_13: x",
            f"{top}submission_11/a1.ipynb": notebook,
            f"{top}submission_12/a1.ipynb": notebook,
            f"{top}submission_13/a1.ipynb": notebook,
        },
    )
    assert (found.students, found.left_out) == (["s01", "s03"], ["submission_13"])
    assert course.read("received", "a1", "s01")["time"] == "2026-11-22 10:15:45 UTC"
    assert team_owners(course, "a1") == {"s03": "s03", "s04": "s03"}
    with pytest.raises(ValueError, match="must be Gradescope's list of submissions"):
        classroom.bring(
            course, {f"{top}submission_metadata.yml": "a: &x !!python/object:os.x {}"}
        )
