"""Read the tables of a course: roster, teams, extensions, and a platform's times."""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from mplab.course.files import replace_file

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)

_WORKSHEET = ("Identifier", "Last modified (submission)")  # Moodle's grading worksheet

_HEADS = {
    "first_name": ("first_name", "First name", "Vorname"),
    "last_name": ("last_name", "Last name", "Surname", "Nachname"),
    "email": ("email", "Email address", "E-Mail-Adresse", "SIS Login ID"),
    "number": ("number", "ID"),
}
"""Names of a roster's columns: ours, Canvas's and Moodle's."""

_IDS = (
    "SIS User ID",
    "ID number",
    "ID-Nummer",
    "SIS Login ID",
    "Username",
    "Anmeldename",
)

_NOBODY = ("", "Points Possible", "Student, Test")  # lines that Canvas adds


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


def read_table(
    path: Path, *needed: str
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Read a CSV file: its columns, and its lines with their line numbers; none if it is missing.

    Raises:
        ValueError: it is not CSV in UTF-8 with the columns that are needed, or a quotation mark
            is never closed, which would join the lines after it into one name.
    """
    if not path.is_file():
        return list(needed), []
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = csv.DictReader(io.StringIO(text, newline=""), restval="", strict=True)
        lines = [(table.line_num, line) for line in table]
        columns = list(table.fieldnames or needed)
        if missing := sorted(set(needed) - set(columns)):
            raise ValueError(f"no column {', '.join(missing)} in the first line")
    except (ValueError, csv.Error) as error:
        raise ValueError(
            f"{path} must be CSV with commas, in UTF-8, each quotation mark closed, and begin "
            f"with the line {','.join(needed) or 'of its columns'}; got {error}. Save it so."
        ) from error
    return columns, lines


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

    Examples:
        >>> escape_formula("=1+1"), escape_formula("Ada")
        ("'=1+1", 'Ada')
    """
    text = "".join(c if c.isprintable() else " " for c in text)
    # Some spreadsheets take full-width signs for signs.
    first = unicodedata.normalize("NFKC", text.lstrip()[:1])
    return f"'{text}" if first in ("=", "+", "-", "@", "|", "%") else text


def read_roster(path: Path) -> list[Student]:
    """Read the students of a course, from a table of ours, of Canvas or of Moodle.

    From a platform's table, ids are read from its ids; if nobody has one, from the log-ins; or else
    from the e-mail addresses.

    Raises:
        ValueError: the file is not such a table, or an id occurs twice or cannot be a folder's
            name in plain letters.
    """
    columns, every = read_table(path)
    lines = [
        (number, line)
        for number, line in every
        if line.get("SIS User ID", "")
        or line.get("Student", "x").strip() not in _NOBODY
    ]
    heads = ("id",) if "id" in columns else (*_IDS, *_HEADS["email"])
    whole = (
        n for n in heads if n in columns and any(line[n].strip() for _, line in lines)
    )
    if columns and not set(heads) & set(columns):
        raise ValueError(
            f"{path} must begin with the line {','.join(Student._fields[:4])}; got "
            f"{','.join(columns)!r}. Save it as CSV with commas, in UTF-8."
        )
    head = next(whole, heads[0])
    students: dict[str, Student] = {}
    for number, line in lines:
        of = {
            f: next((line[n] for n in names if n in line), "")
            for f, names in _HEADS.items()
        }
        if "Student" in columns:
            of["last_name"], _, of["first_name"] = line["Student"].partition(",")
        student = Student(
            *(text.strip() for text in (line.get(head, ""), *of.values()))
        )
        if not is_student_id(student.id) or student.id.lower() in students:
            raise ValueError(
                f"{path}, line {number}: id must be unique, of ASCII letters, digits and ._@-; "
                f"got {student.id!r}. It is read from the column {head}."
            )
        students[student.id.lower()] = student
    return list(students.values())


def read_teams(path: Path, known: set[str]) -> list[list[str]]:
    """Read the members of each team from the lines `team,id`.

    Raises:
        ValueError: the file is not such a table, or names somebody twice or not in the roster.
    """
    teams: dict[str, list[str]] = {}
    left = set(known)
    for number, line in read_table(path, "team", "id")[1]:
        team, who = line["team"].strip(), line["id"].strip()
        if not team or who not in left:
            why = (
                "no team"
                if not team
                else "twice"
                if who in known
                else "no id of the roster"
            )
            raise ValueError(
                f"{path}, line {number}: teams must be lines of team,id, each id of the roster at "
                f"most once; got {list(line.values())} ({why}). Correct the line."
            )
        left.discard(who)
        teams.setdefault(team, []).append(who)
    return list(teams.values())


def read_extensions(
    path: Path, known: set[str], assignment: str
) -> dict[str, timedelta]:
    """Read the extensions of an assignment's due date, by student.

    Raises:
        ValueError: the file is not such a table, or names somebody who is not in the roster.
    """
    found = {}
    for number, line in read_table(path, "id", "assignment", "hours")[1]:
        who = line["id"].strip()
        try:
            time = timedelta(hours=float(line["hours"]))
            if known and who not in known:
                raise ValueError("nobody of the roster has this id")
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"{path}, line {number}: extensions must be lines of "
                f"id,assignment,hours; got {list(line.values())} ({error}). Correct the line."
            ) from error
        if line["assignment"].strip() == assignment:
            found[who] = time
    return found


def read_times(path: Path) -> dict[tuple[str, str], datetime]:
    """Read when each submission came in, from a list of the platform.

    Args:
        path: Moodle's grading worksheet (CSV, in English); Canvas's list of submissions, as its
            API gives it (JSON); or a table `id,time` (CSV). A time without a zone is local
            to this machine.

    Returns:
        Times in UTC by ("id", student's id) or by ("number", the platform's own number, which
        stands in the names of its download).

    Raises:
        ValueError: the file is none of these, or a time in it cannot be read.
    """
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8-sig"))
            rows = [
                ("number", str(row["user_id"]), row["submitted_at"] or "")
                for row in found
            ]
        elif _WORKSHEET[0] in read_table(path)[0]:
            who, when = _WORKSHEET
            lines = read_table(path, who, when)[1]
            rows = [("number", line[who].split()[-1], line[when]) for _, line in lines]
        else:
            lines = read_table(path, "id", "time")[1]
            rows = [("id", line["id"].strip(), line["time"]) for _, line in lines]
        dated = (row for row in rows if row[2].strip() not in ("", "-"))
        return {(kind, of): _utc(time) for kind, of, time in dated}
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise ValueError(
            "--times must be Moodle's grading worksheet, Canvas's submissions as JSON, or a "
            f"CSV with the columns id,time; got {path} ({error}). Write times as 2026-11-22 10:15."
        ) from error


def _utc(text: str) -> datetime:
    """Parse a time, and return it in UTC; refuse one that is ambiguous."""
    from dateutil import parser  # type: ignore[import-untyped, unused-ignore]

    if re.search(r"(?<![\d:-])\d{1,2}[./-]\d", text):
        raise ValueError(f"{text!r} may begin with the day or with the month")
    time: Any = parser.parse(text)
    return time.astimezone(UTC)  # type: ignore[no-any-return, unused-ignore]
