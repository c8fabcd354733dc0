"""Read what a platform says about an assignment: who has which number, in which team, and when."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import IO

import yaml  # type: ignore[import-untyped]

from mplab.course.grading.dates import read_time
from mplab.course.grading.platforms import People
from mplab.course.grading.tables import (
    CourseTable,
    means,
    normalized_head,
    read_table,
)

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The first is compiled with PyYAML, where that could be."""


def read_list(paths: Sequence[Path], people: People, zone: tzinfo) -> None:
    """Read a platform's lists of an assignment's submissions into `people`.

    Args:
        paths: Moodle's grading worksheet (CSV, in any of nine languages); Canvas's lists of
            submissions, as its API gives them (JSON, a page of a hundred in each); or a table
            `id,time` (CSV).
        people: the students.
        zone: of times without an offset.

    Raises:
        ValueError: a file is none of these, or a time in it cannot be read.
    """
    for path in paths:
        try:
            if not path.is_file():
                raise ValueError("there is no such file")
            if path.suffix.lower() == ".json":
                _read_canvas(path, people, zone)
                continue
            table = read_table(path)
            people.remarks += filter(None, [table.remark])
            if table.is_worksheet:
                _read_moodle(table, people, zone)
            else:  # it is read again, because now these columns are needed
                for _, line in read_table(path, "id", "time").lines:
                    _add_time(people, line["id"].strip(), line["time"], zone)
        except Exception as error:  # a list that is none may raise anything
            raise ValueError(
                "--times must be Moodle's grading worksheet, Canvas's submissions as JSON, or a "
                f"CSV with the columns id,time; got {path} ({error}). Write times as "
                "2026-11-22 10:15."
            ) from error


def read_gradescope(file: IO[bytes], people: People) -> None:
    """Read whose each folder of Gradescope's download is, and when it came in, into `people`.

    Raises:
        ValueError: it is not Gradescope's list of submissions.
    """
    try:
        for folder, about in yaml.load(file, _Loader).items():
            users = about[":submitters"]
            texts = [str(user[key]) for user in users for key in (":sid", ":email")]
            if members := list(dict.fromkeys(filter(None, map(people.find, texts)))):
                people.table.setdefault(normalized_head(folder), members[0])
                _add_time(people, members[0], str(about[":created_at"]), UTC)
            if len(members) > 1:
                people.teams[folder] = members
    except Exception as error:  # a list that is none may raise anything
        raise ValueError(
            f"submission_metadata.yml must be Gradescope's list of submissions; got {error}. "
            "Download the submissions again, or take it out."
        ) from error


def _add_time(people: People, of: str, text: str, zone: tzinfo) -> None:
    if text.strip() not in ("", "-"):
        people.times[of] = read_time(text, zone)


def _read_canvas(path: Path, people: People, zone: tzinfo) -> None:
    for row in json.loads(path.read_text(encoding="utf-8-sig")):
        number = str(row.get("anonymous_id") or row["user_id"])
        if who := people.find(f"number {row.get('user_id')}"):
            people.numbers[number] = who
        _add_time(people, who or f"number {number}", row["submitted_at"] or "", zone)


def _read_moodle(table: CourseTable, people: People, zone: tzinfo) -> None:
    fields = ("identifier", "status", "group", "modified", "full_name")
    whose = people.students(table)
    for (line_number, line), who in zip(table.lines, whose, strict=True):
        cells = {field: table.cell(line, field) for field in fields}
        number = participant_number(cells["identifier"])
        if not number:
            raise ValueError(
                f"line {line_number}: {cells['identifier']!r} ends in no number"
            )
        name = people.names[number] = cells["full_name"]
        _add_time(people, who or f"number {number}", cells["modified"], zone)
        if who is None:
            if name:
                people.remarks.append(f"the worksheet's {name} is nobody of the roster")
            continue
        people.numbers[number] = who
        if cells["group"] and not means(cells["group"], "no_group"):
            people.teams.setdefault(cells["group"], []).append(who)
        if means(cells["status"].partition(" -")[0], "draft"):
            people.drafts.append(who)


def participant_number(identifier: str) -> str:
    """Return the number at the end of a worksheet's identifier.

    Examples:
        >>> participant_number("Participant 17"), participant_number("Teilnehmer/in17")
        ('17', '17')
    """
    found = re.search(r"\d+$", identifier.strip())
    return found[0] if found else ""
