"""Read what a platform says about an assignment: who has which number, in which team, and when."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import IO

import yaml  # type: ignore[import-untyped]

from mplab.course.grading.dates import read_time
from mplab.course.grading.tables import (
    ID_FIELDS,
    CourseTable,
    Student,
    means,
    normalized_head,
    read_table,
)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The first is compiled with PyYAML, where that could be."""


@dataclass
class PlatformList:
    """What a platform's list says about an assignment.

    Args:
        times: when each submission came in, in UTC, by the student's id; of somebody who is not in
            the roster, by the word "number" and the platform's number.
        people: the students' ids by the numbers of this assignment.
        names: full names by these numbers, as the platform has them; empty without numbers.
        teams: the members of each team, by its name.
        drafts: ids or names of those whose submission is a draft.
        remarks: what a person should know.
    """

    times: dict[str, datetime] = field(default_factory=dict)
    people: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    teams: dict[str, list[str]] = field(default_factory=dict)
    drafts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


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
            if path.suffix.lower() == ".json":
                _read_canvas(path, roster, zone, found)
                continue
            table = read_table(path)
            found.remarks += filter(None, [table.remark])
            if table.is_worksheet:
                _read_moodle(table, roster, zone, found)
            else:  # it is read again, because now these columns are needed
                for _, line in read_table(path, "id", "time").lines:
                    _add_time(found, line["id"].strip(), line["time"], zone)
        except Exception as error:  # a list that is none may raise anything
            raise ValueError(
                "--times must be Moodle's grading worksheet, Canvas's submissions as JSON, or a "
                f"CSV with the columns id,time; got {path} ({error}). Write times as "
                "2026-11-22 10:15."
            ) from error
    return found


def read_gradescope(
    file: IO[bytes], roster: Sequence[Student], found: PlatformList
) -> dict[str, str]:
    """Read whose each folder of Gradescope's download is; times and teams go into `found`.

    Raises:
        ValueError: it is not Gradescope's list of submissions.
    """
    match = Matching(roster)
    owners: dict[str, str] = {}
    try:
        for folder, about in yaml.load(file, _Loader).items():
            people = about[":submitters"]
            texts = [str(one[key]) for one in people for key in (":sid", ":email")]
            if members := list(dict.fromkeys(filter(None, map(match.find, texts)))):
                owners[folder] = members[0]
                _add_time(found, members[0], str(about[":created_at"]), UTC)
            if len(members) > 1:
                found.teams[folder] = members
    except Exception as error:  # a list that is none may raise anything
        raise ValueError(
            f"submission_metadata.yml must be Gradescope's list of submissions; got {error}. "
            "Download the submissions again, or take it out."
        ) from error
    return owners


def _add_time(found: PlatformList, of: str, text: str, zone: tzinfo) -> None:
    if text.strip() not in ("", "-"):
        found.times[of] = read_time(text, zone)


def _read_canvas(
    path: Path, roster: Sequence[Student], zone: tzinfo, found: PlatformList
) -> None:
    match = Matching(roster)
    for row in json.loads(path.read_text(encoding="utf-8-sig")):
        number = str(row.get("anonymous_id") or row["user_id"])
        if who := match.find(f"number {row.get('user_id')}"):
            found.people[number] = who
        _add_time(found, who or f"number {number}", row["submitted_at"] or "", zone)


def _read_moodle(
    table: CourseTable, roster: Sequence[Student], zone: tzinfo, found: PlatformList
) -> None:
    match = Matching(roster)
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
        who = match.student(table, line)
        name = found.names[number] = cells["full_name"]
        _add_time(found, who or f"number {number}", cells["modified"], zone)
        if who is None:
            if name:
                found.remarks.append(f"the worksheet's {name} is nobody of the roster")
            continue
        found.people[number] = who
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
    """Finds the student whom a platform means, by id, log-in, address, number or name.

    Names stand apart, because a student can choose one that is another's id.

    Args:
        roster: the students.
    """

    def __init__(self, roster: Sequence[Student]) -> None:
        self._ids = defaultdict[str, set[str]](set)
        self._names = defaultdict[str, set[str]](set)
        for student in roster:
            number = student.number and f"number {student.number}"
            first, last = student.first_name, student.last_name
            for text in (student.id, student.email, number):
                self._ids[normalized_head(text)].add(student.id)
            for text in (f"{first} {last}", f"{last}, {first}"):
                self._names[normalized_head(text)].add(student.id)

    def find(self, *texts: str) -> str | None:
        """Return whom the first id, address or number that only one has means; else None."""
        return _only(self._ids, texts)

    def student(self, table: CourseTable, line: Mapping[str, str]) -> str | None:
        """Return the student of a line of a table; None if nobody or more than one fits."""
        texts = [line.get(table.column(field), "") for field in ID_FIELDS]
        if table.is_canvas:
            texts += [f"number {line.get('id')}", line.get("id", "")]
        name = line.get(table.column("full_name"), "")
        return self.find(*texts) or _only(self._names, [name])


def _only(known: Mapping[str, set[str]], texts: Iterable[str]) -> str | None:
    for text in filter(str.strip, texts):
        found = known.get(normalized_head(text), set())
        if len(found) == 1:
            return next(iter(found))
    return None
