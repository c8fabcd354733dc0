"""Read and write the tables of a course and of platforms."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mplab.common.files import replace_file

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)

_WORDS = {
    "first_name": "first_name|First name|Vorname|Prénom|Nombre|Nome|Voornaam|名|FirstName",
    "last_name": "last_name|Last name|Surname|Nachname|Nom de famille|Nom|Apellido(s)|Cognome|"
    "Achternaam|Apelido|Sobrenome|姓|LastName",
    "full_name": "Full name|Vollständiger Name|Nom complet|Nombre completo|Nome|Volledige naam|"
    "Nome completo|全名|Student",
    "id_number": "ID number|ID-Nummer|Numéro d'identification|Número de ID|"
    "Codice identificativo|Nummer (ID)|Número de identificação (ID)|学号|SIS User ID",
    "email": "email|Email address|E-Mail-Adresse|Adresse de courriel|Dirección de correo|"
    "Indirizzo email|E-mailadres|E-mail|电子邮件地址",
    "username": "Username|Anmeldename|Nom d'utilisateur|Nombre de usuario|Gebruikersnaam|"
    "Nome de utilizador|用户名|SIS Login ID",
    "identifier": "Identifier|ID|Identifiant|Identificador|Identificativo|Identificatie|标识符",
    "status": "Status|Statut|Estado|Stato|状态",
    "group": "Group|Gruppe|Groupe|Grupo|Gruppo|Groep|小组",
    "grade": "Grade|Bewertung|Note|Calificación|Valutazione|Cijfer|Avaliação|成绩",
    "maximum": "Maximum grade|Bestwertung|Note maximale|Calificación máxima|"
    "Valutazione massima|Maximaal cijfer|Nota máxima|最高分",
    "modified": "Last modified (submission)|Zuletzt geändert (Abgabe)|"
    "Dernière modification (travail remis)|Última modificación (entrega)|"
    "Ultima modifica (consegna)|Laatst gewijzigd (inzending)|Última atualização (submissão)|"
    "上次修改(作业)|Última modificação (envio)",
    "comments": "Feedback comments|Feedback als Kommentar|Feedback par commentaires|"
    "Comentarios de retroalimentación|Commenti|Feedback tekstvak|Comentários de feedback|"
    "反馈意见",
    "no_group": "Default group|Standard-Gruppe|Groupe par défaut|Grupo predeterminado|"
    "Gruppo di default|Standaard groep|Grupo predefinido|默认小组|Grupo padrão",
    "draft": "Draft (not submitted)|Entwurf (nicht abgegeben)|Brouillon (non remis)|"
    "Borrador (no enviado)|Bozza (non consegnato)|Concept (nog niet ingestuurd)|"
    "Trabalho em curso (não submetido)|草稿(未提交)|Rascunho (não enviado)",
    "ours": "id|number|team|assignment|hours|time|name|Section",
}
"""The heads of columns and two other words: ours, Moodle's in nine languages, and Canvas's."""


def normalized_head(text: str) -> str:
    """Write a head as it is compared: without case, and with straight quotation marks."""
    text = unicodedata.normalize("NFKC", text).strip().casefold()
    return text.replace("’", "'")


def normalized_name(name: str) -> str:
    """Remove accents, blanks and case from a name, as platforms do in file names."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(c for c in decomposed.casefold() if c.isalnum())


_FIELDS = {
    field: [normalized_head(word) for word in words.split("|")]
    for field, words in _WORDS.items()
}


def means(text: str, field: str) -> bool:
    """Whether a platform's text is one of its words for a field."""
    return normalized_head(text) in _FIELDS[field]


_KNOWN = {head for heads in _FIELDS.values() for head in heads}

ID_FIELDS = ("id_number", "username", "email")
"""The fields that may tell who a line is about, in the order of preference."""

_TEST_STUDENT = re.compile("[0-9a-f]{40}")
"""The log-in of the student that Canvas makes for trying a course, in any language."""


class CourseTable(NamedTuple):
    """A table of a course or of a platform.

    Args:
        columns: its heads as `normalized_head` writes them.
        heads: its heads as they stand there.
        lines: its lines with their numbers; each holds the cells by column.
        remark: what a person should know about its encoding; empty if there is nothing.
    """

    columns: list[str]
    heads: list[str]
    lines: list[tuple[int, dict[str, str]]]
    remark: str = ""

    def column(self, field: str) -> str:
        """Return the column that holds a field; "" if there is none, which no line has."""
        return next((head for head in _FIELDS[field] if head in self.columns), "")

    def cell(self, line: Mapping[str, str], field: str) -> str:
        """Return the cell of a line that holds a field; "" if there is none."""
        return line.get(self.column(field), "").strip()

    @property
    def is_worksheet(self) -> bool:
        """Whether it is Moodle's grading worksheet."""
        return bool(self.column("identifier") and self.column("modified"))

    @property
    def is_canvas(self) -> bool:
        """Whether it is Canvas's gradebook."""
        return "student" in self.columns or "lastname" in self.columns


class Student(NamedTuple):
    """A line of the roster; the number is the platform's, which appears in its downloads."""

    id: str
    first_name: str
    last_name: str
    email: str
    number: str = ""


def is_student_id(name: str) -> bool:
    """Whether a name can be a student's id: plain letters, no path and no pattern."""
    return _ID.fullmatch(name) is not None


class _Text(NamedTuple):
    """The text of a table; what stands before its first line is a byte-order mark or for Excel."""

    before: str
    body: str
    encoding: str
    separator: str


def _read_text(path: Path) -> _Text:
    """Read the text of a table.

    Raises:
        ValueError: it is in none of the encodings that platforms and spreadsheets write.
    """
    content = path.read_bytes()
    encoding = "utf-8"
    for wide in ("utf-16-le", "utf-16-be"):
        if content.startswith("\ufeff".encode(wide)):
            encoding = wide
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        if encoding != "utf-8":
            raise
        encoding = "cp1252"
        text = content.decode(encoding)
    body = re.sub(r"\A\ufeff?(?:[ \t]*sep=[^\r\n]*(?:\r\n?|\n|\Z))?", "", text)
    first, *_ = re.split(r"[\r\n]", body, maxsplit=1)

    def known_heads(separator: str) -> int:
        heads = next(csv.reader([first], delimiter=separator), [])
        return sum(normalized_head(head) in _KNOWN for head in heads)

    # Separators are not counted, because names hold commas.
    separator = max(",;\t:", key=known_heads)
    return _Text(text.removesuffix(body), body, encoding, separator)


def read_table(path: Path, *needed: str) -> CourseTable:
    """Read a table as platforms and spreadsheets write it; an empty one if it is missing.

    The separator may be a comma, a semicolon, a tab or a colon.

    Raises:
        ValueError: it has not the columns that are needed, a line has more cells than the first,
            or a quotation mark is never closed, which would join the lines after it into one name.
    """
    if not path.is_file():
        return CourseTable([*needed], [*needed], [])
    try:
        text = _read_text(path)
        file = io.StringIO(text.body, newline="")
        reader = csv.reader(file, delimiter=text.separator, strict=True)
        heads = next(reader, [*needed])
        columns = [normalized_head(head) for head in heads]
        lines = []
        for cells in reader:
            number = reader.line_num + ("sep=" in text.before)
            if any(cells[len(columns) :]):
                raise ValueError(f"more cells in line {number} than in the first")
            if cells:
                filled = [*cells, *[""] * len(columns)]
                lines.append((number, dict(zip(columns, filled, strict=False))))
        missing = sorted(set(needed) - set(columns))
        if missing:
            raise ValueError(f"no column {', '.join(missing)} in the first line")
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} must be CSV, in UTF-8, each quotation mark closed, and begin with the line "
            f"{','.join(needed) or 'of its columns'}; got {error}. Save it so."
        ) from error
    remark = ""
    if text.encoding == "cp1252":
        word = re.search(r"[^\r\n,;\t]*[^\x00-\x7f][^\r\n,;\t]*", text.body)
        remark = (
            f"{path.name} is not in UTF-8; read as Windows-1252: {word and word[0]}"
        )
    return CourseTable(columns, heads, lines, remark)


def fill_in(path: Path, cells: Mapping[tuple[int, int], str]) -> bytes:
    """Return a table's file with some cells changed, and all else byte for byte.

    Args:
        path: the table, which `read_table` has read.
        cells: the new texts, by the index of the line in `CourseTable.lines` and of the column.
    """
    text = _read_text(path)
    separator = text.separator
    cell = re.compile(
        rf'((?:"(?:[^"]|"")*")?[^{separator}\r\n]*)({separator}|\r?\n|\r|$)'
    )
    parts = [text.before]
    line = -1  # the first line has the heads
    column = 0
    for old, end in cell.findall(text.body):
        new = cells.get((line, column), old)
        if new != old and re.search(rf'[{separator}"\r\n]', new):
            new = '"' + new.replace('"', '""') + '"'
        parts += [new, end]
        if end == separator:
            column += 1
        else:
            line += bool(column or old)  # an empty line is none of the table's
            column = 0
    return "".join(parts).encode(text.encoding)


def write_table(path: Path, rows: Iterable[Sequence[str | float | None]]) -> None:
    """Write a CSV file. No text in it is a formula; None is an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(map(_written, row) for row in rows)
    replace_file(path, text.getvalue().encode())


def _written(value: str | float | None) -> str:
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else f"{value:g}"


def escape_formula(text: str) -> str:
    """Change text so that no spreadsheet takes it for a formula.

    Some take full-width signs for signs, and where a comma stands in numbers, cells end at `;`.

    Examples:
        >>> escape_formula("=1+1"), escape_formula("Ada"), escape_formula("Ek; @SUM(1)")
        ("'=1+1", 'Ada', "Ek;' @SUM(1)")
    """
    text = "".join(c if c.isprintable() else " " for c in text)

    def escaped(cell: str) -> str:
        first = unicodedata.normalize("NFKC", cell.lstrip(' "')[:1])
        return f"'{cell}" if first in ("=", "+", "-", "@", "|", "%") else cell

    return ";".join(map(escaped, text.split(";")))


class Roster(NamedTuple):
    """The students of a course.

    Args:
        students: one for each line.
        remarks: what a person should know about the file.
    """

    students: list[Student]
    remarks: tuple[str, ...] = ()


def read_roster(path: Path) -> Roster:
    """Read the students of a course, from a table of ours, of Canvas or of Moodle.

    From a platform's table, ids are read from its ids; if nobody has one, from the log-ins; or else
    from the e-mail addresses.

    Raises:
        ValueError: the file is not such a table, or an id occurs twice or cannot be a folder's
            name in plain letters.
    """
    table = read_table(path)
    canvas = table.is_canvas
    possible = [*filter(None, map(table.column, ID_FIELDS))]
    if "id" in table.columns and not table.column("modified"):
        possible = [*possible, "id"] if canvas else ["id"]
    if not possible and (table.columns or table.lines):
        raise ValueError(
            f"{path} must begin with the line {','.join(Student._fields[:4])}, or be Canvas's "
            f"gradebook or Moodle's grades or worksheet; got {','.join(table.heads)!r}."
        )
    lines = [line for line in table.lines if not (canvas and _is_nobody(line[1]))]
    head = next(
        (h for h in possible if any(line[h].strip() for _, line in lines)),
        possible[0] if possible else "id",
    )
    students: dict[str, Student] = {}
    for number, line in lines:
        student = _student(table, line, head)
        if not is_student_id(student.id) or student.id.lower() in students:
            raise ValueError(
                f"{path}, line {number}: id must be unique, of ASCII letters, digits and ._@-; "
                f"got {student.id!r}. It is read from the column {_shown(table, head)}."
            )
        students[student.id.lower()] = student
    remarks = [table.remark] if table.remark else []
    if head != "id" or canvas:
        remarks.append(f"ids are those of the column {_shown(table, head)}")
    return Roster([*students.values()], tuple(remarks))


def _shown(table: CourseTable, head: str) -> str:
    """Return a head as it stands in the file."""
    return dict(zip(table.columns, table.heads, strict=True)).get(head, head).strip()


def _is_nobody(line: Mapping[str, str]) -> bool:
    """Whether Canvas added the line: posting, points possible, or the student for trying."""
    split = f"{line.get('lastname', '')}, {line.get('firstname', '')}".strip(", ")
    name = " ".join(line.get("student", split).split())
    return name in ("", "Points Possible", "Student, Test") or bool(
        _TEST_STUDENT.fullmatch(line.get("sis login id", "").strip())
    )


def _student(table: CourseTable, line: Mapping[str, str], head: str) -> Student:
    def cell(column: str) -> str:
        # Moodle writes '=Ada and Canvas ="=Ada" for a name that looks like a formula.
        text = line.get(column, "").strip()
        text = re.sub(r'^="(.*)"$', r"\1", text)
        return re.sub(r"^'(?=[=+\-@|%])", "", text)

    first = cell(table.column("first_name"))
    last = cell(table.column("last_name"))
    email = cell(table.column("email"))
    if table.is_canvas:
        email = email or cell(table.column("username"))
    number = cell("id" if table.is_canvas else "number")
    whole = "" if first and last else cell(table.column("full_name"))
    if "," in whole:
        last, first = (part.strip() for part in whole.split(",", 1))
    elif whole:
        first, _, last = whole.rpartition(" ")
    return Student(cell(head), first, last, email, number)


def read_people(path: Path, known: set[str]) -> dict[str, str]:
    """Read whose the names of a download are, from the lines `name,id`; an empty id is unknown.

    Raises:
        ValueError: the file is not such a table, an id is not in the roster, or a name has two.
    """
    people: dict[str, str] = {}
    for number, line in read_table(path, "name", "id").lines:
        who = line["id"].strip()
        if who and (who not in known if known else not is_student_id(who)):
            raise ValueError(
                f"{path}, line {number}: id must be one of the roster, or empty; got {who!r}."
            )
        name = line["name"].strip()
        if people.get(name, who) != who:
            raise ValueError(
                f"{path}, line {number}: name must have one id; got {who!r} for {name!r}, and "
                f"{people[name]!r} above. Remove one line."
            )
        people[name] = who
    return people
