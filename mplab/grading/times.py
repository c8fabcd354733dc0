"""Read when a submission came in, from the platform and never from the student."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mplab.grading.folder import read_record, read_table

_WORKSHEET = ("Identifier", "Last modified (submission)")  # Moodle's grading worksheet

_OWN = ("id", "time")


def received(course: Path, assignment: str, student: str) -> Path:
    """Return the file in which `collect` records the time of a submission, and its source."""
    return course / ".mplab" / "received" / assignment / f"{student}.json"


def read_received(course: Path, assignment: str, student: str) -> dict[str, Any]:
    """Read the time that `collect` recorded; empty if the submission came in another way."""
    return read_record(received(course, assignment, student))


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
            rows = _canvas(json.loads(path.read_text(encoding="utf-8-sig")))
        else:
            rows = _table(*read_table(path))
        return {key: utc(time) for key, time in rows if time.strip() not in ("", "-")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            "collect: TIMES must be Moodle's grading worksheet, Canvas's submissions as JSON, or a "
            f"CSV with the columns id,time; got {path} ({error}). Write times as 2026-11-22 10:15."
        ) from error


def utc(text: str) -> datetime:
    """Parse a time, and return it in UTC.

    Raises:
        ValueError: it is no time, or ambiguous.

    Examples:
        >>> utc("2026-11-05T10:15:00Z").isoformat(), utc("2026-11-05 12:15 +0200").hour
        ('2026-11-05T10:15:00+00:00', 10)
    """
    from dateutil import parser  # type: ignore[import-untyped, unused-ignore]

    if "/" in text:
        raise ValueError(f"{text!r} may begin with the day or with the month")
    return parser.parse(text).astimezone(UTC)


def _canvas(rows: list[dict[str, Any]]) -> list[tuple[tuple[str, str], str]]:
    return [(("number", str(row["user_id"])), row["submitted_at"] or "") for row in rows]


def _table(columns: list[str], lines: list[tuple[int, Any]]) -> list[tuple[tuple[str, str], str]]:
    rows = [line for _, line in lines]
    if set(_WORKSHEET) <= set(columns):
        who, when = _WORKSHEET
        return [(("number", row[who].split()[-1]), row[when]) for row in rows]
    if set(_OWN) <= set(columns):
        return [(("id", row["id"].strip()), row["time"]) for row in rows]
    raise ValueError(f"its columns are {','.join(columns)[:200]!r}")
