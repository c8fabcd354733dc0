"""Read what a platform says about an assignment: who has which number, in which team, and when."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path

from mplab.course.grading.dates import read_time
from mplab.course.grading.tables import (
    CourseTable,
    Student,
    means,
    normalized_head,
    read_table,
)

_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
)
"""What a list that is none may raise."""


@dataclass
class PlatformList:
    """What a platform's list says about an assignment.

    Args:
        times: when each submission came in, in UTC, by ("id", student's id) or
            ("number", the platform's number).
        people: the students' ids by the numbers of this assignment.
        names: full names by these numbers, as the platform has them; empty without numbers.
        teams: the members of each team, by its name.
        drafts: ids or names of those whose submission is a draft.
        remarks: what a person should know.
    """

    times: dict[tuple[str, str], datetime] = field(default_factory=dict)
    people: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    teams: dict[str, list[str]] = field(default_factory=dict)
    drafts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def record(self) -> dict[str, object]:
        """Return what later steps need, as JSON."""
        numbers = {who: number for number, who in self.people.items()}
        return {"numbers": numbers, "teams": self.teams}


def read_list(
    paths: Sequence[Path], roster: Sequence[Student], zone: tzinfo
) -> PlatformList:
    """Read a platform's lists of an assignment's submissions.

    Args:
        paths: Moodle's grading worksheet (CSV, in any of nine languages); Canvas's lists of
            submissions, as its API gives them (JSON, a page of a hundred in each); or a table
            `id,time` (CSV).
        roster: the students.
        zone: of times without an offset.

    Raises:
        ValueError: a file is none of these, or a time in it cannot be read.
    """
    found = PlatformList()
    for path in paths:
        try:
            if not path.is_file():
                raise ValueError("there is no such file")
            if path.suffix.lower() == ".json":
                _read_canvas(path, roster, zone, found)
                continue
            table = read_table(path)
            if table.remark:
                found.remarks.append(table.remark)
            if table.is_worksheet:
                _read_moodle(table, roster, zone, found)
            else:  # it is read again, because now these columns are needed
                for _, line in read_table(path, "id", "time").lines:
                    _add_time(found, "id", line["id"].strip(), line["time"], zone)
        except _UNREADABLE as error:
            raise ValueError(
                "--times must be Moodle's grading worksheet, Canvas's submissions as JSON, or a "
                f"CSV with the columns id,time; got {path} ({error}). Write times as "
                "2026-11-22 10:15."
            ) from error
    return found


def _add_time(found: PlatformList, kind: str, of: str, text: str, zone: tzinfo) -> None:
    if text.strip() not in ("", "-"):
        found.times[kind, of] = read_time(text, zone)


def _read_canvas(
    path: Path, roster: Sequence[Student], zone: tzinfo, found: PlatformList
) -> None:
    ids = {student.number: student.id for student in roster if student.number}
    for row in json.loads(path.read_text(encoding="utf-8-sig")):
        given = [row[key] for key in ("user_id", "anonymous_id") if row.get(key)]
        if not given:
            raise ValueError("a line has neither user_id nor anonymous_id")
        who = ids.get(str(row.get("user_id")))
        for number in map(str, given):
            _add_time(found, "number", number, row["submitted_at"] or "", zone)
            if who:
                found.people[number] = who


def _read_moodle(
    table: CourseTable, roster: Sequence[Student], zone: tzinfo, found: PlatformList
) -> None:
    match = Matching(table, roster)
    columns = {
        name: table.column(name)
        for name in ("identifier", "status", "group", "modified", "full_name")
    }
    for line_number, line in table.lines:
        cells = {name: line.get(head, "").strip() for name, head in columns.items()}
        number = participant_number(cells["identifier"])
        if not number:
            raise ValueError(
                f"line {line_number}: {cells['identifier']!r} ends in no number"
            )
        who = match.student(line)
        found.names[number] = cells["full_name"]
        _add_time(found, "number", number, cells["modified"], zone)
        if who is None:
            if cells["full_name"]:
                found.remarks.append(
                    f"the worksheet's {cells['full_name']} is nobody of the roster"
                )
            continue
        found.people[number] = who
        if ("number", number) in found.times:
            found.times["id", who] = found.times["number", number]
        if cells["group"] and not means(cells["group"], "no_group"):
            found.teams.setdefault(cells["group"], []).append(who)
        if means(cells["status"].partition(" -")[0], "draft"):
            found.drafts.append(who)


def participant_number(identifier: str) -> str:
    """Return the number at the end of a worksheet's identifier.

    Examples:
        >>> participant_number("Participant 17"), participant_number("Teilnehmer/in17")
        ('17', '17')
    """
    found = re.search(r"\d+$", identifier.strip())
    return found[0] if found else ""


class Matching:
    """Finds the student of a line in a platform's table, by id, log-in, address or name.

    Args:
        table: the table.
        roster: the students.
    """

    def __init__(self, table: CourseTable, roster: Sequence[Student]) -> None:
        self._table = table
        self._keys: dict[str, dict[str, str | None]] = {}
        for kind, key in (
            ("id", lambda s: s.id),
            ("email", lambda s: s.email),
            ("number", lambda s: s.number),
            ("name", lambda s: f"{s.first_name} {s.last_name}"),
            ("sortable", lambda s: f"{s.last_name}, {s.first_name}"),
        ):
            keys: dict[str, str | None] = {}
            for student in roster:
                text = normalized_head(key(student))
                keys[text] = None if text in keys else student.id
            self._keys[kind] = keys

    def student(self, line: Mapping[str, str]) -> str | None:
        """Return the student's id; None if nobody or more than one fits."""
        table = self._table
        for column, kinds in (
            (table.column("id_number"), ("id",)),
            ("sis user id", ("id",)),
            (table.column("username"), ("id", "email")),
            ("sis login id", ("id", "email")),
            (table.column("email"), ("email", "id")),
            ("id" if table.is_canvas else "", ("number", "id")),
            (table.column("full_name"), ("name",)),
            ("student", ("sortable", "name")),
        ):
            text = normalized_head(line.get(column, ""))
            for kind in kinds:
                if text and (who := self._keys[kind].get(text)):
                    return who
        return None
