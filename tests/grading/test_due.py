"""One clock: due dates, and the times of platforms, in the course's time zone."""

import sqlite3
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from classroom import configure, run

from mplab.course.grading.dates import read_time
from mplab.course.grading.gradebook import due_words


def in_zone(course, name):
    configure(course, f"c.Course.time_zone = {name!r}")


@pytest.mark.parametrize(
    ("zone", "utc", "shown"),
    [
        ("Europe/Berlin", datetime(2026, 11, 30, 11), "12:00 CET (Europe/Berlin)"),
        (
            "America/New_York",
            datetime(2026, 11, 30, 17),
            "12:00 EST (America/New_York)",
        ),
    ],
)
def test_a_due_date_is_in_the_course_s_time_zone_and_is_echoed(
    course, capsys, zone, utc, shown
):
    in_zone(course, zone)
    assert run(course, "due", "a1", "2026-11-30 12:00") == 0
    assert capsys.readouterr().out == f"a1 is due Mon 30 Nov 2026, {shown}\n"
    with course.gradebook() as book:
        assert book.find_assignment("a1").duedate == utc


def test_a_gradebook_that_cannot_be_written_is_told_without_a_traceback(course, capfd):
    with sqlite3.connect(course.root / "gradebook.db", isolation_level=None) as lock:
        lock.execute("BEGIN IMMEDIATE")
        assert run(course, "due", "a1", "2026-11-30 12:00") == 2
    told = capfd.readouterr().err
    assert "database must answer; got database is locked" in told
    assert "Traceback" not in told


def test_a_due_date_that_nbgrader_set_is_shown_in_the_course_s_zone(course):
    """nbgrader reads a time without an offset as UTC; a teacher may have meant noon in Berlin."""
    in_zone(course, "Europe/Berlin")
    assert due_words(course, "a1") == ""
    with course.gradebook() as book:
        book.update_or_create_assignment("a1", duedate="2026-11-30 12:00")
    assert due_words(course, "a1").endswith("13:00 CET (Europe/Berlin)")


@pytest.mark.parametrize(
    "time",
    ["soon", "05/11/26 10:15", "2026-13-01", "2026", "12:00", "2026-11", "30 November"],
)
def test_what_is_no_time_or_lacks_a_part_of_the_day_is_refused(bare, capsys, time):
    assert run(bare, "due", "a1", time) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        "mplab grade due: TIME must be such as 2026-11-30 12:00; got"
    )
    in_zone(bare, "Mars/Olympus")
    assert run(bare, "due", "a1", "2026-11-30 12:00") == 2
    assert "c.Course.time_zone in nbgrader_config.py must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-11-24 23:59", "2026-11-24T22:59"),
        ("2026-06-24 23:59", "2026-06-24T21:59"),  # in summer
        ("2026-11-24", "2026-11-24T22:59"),  # a day ends with its last minute
        ("24 November 2026", "2026-11-24T22:59"),
        ("24 Nov 2026 5pm", "2026-11-24T16:00"),  # it was 17:59 there
        ("2026-11-24 00:00", "2026-11-23T23:00"),
        ("2026-11-24T22:59:00Z", "2026-11-24T22:59"),
        ("24 November 2026 23:59 +0500", "2026-11-24T18:59"),
        ("Tuesday, 24 November 2026, 12:05 AM", "2026-11-23T23:05"),
        ("Tuesday, November 24, 2026, 11:59 PM", "2026-11-24T22:59"),
        ("martes, 3 de marzo de 2026, 08:15", "2026-03-03T07:15"),
        ("maandag, 2 maart 2026, 08:15", "2026-03-02T07:15"),
        ("Mar 3, 2026 08:15", "2026-03-03T07:15"),  # and mardi
        ("Samstag, 5. März 2026, 08:15", "2026-03-05T07:15"),
        ("2026年 11月 24日(火曜日) 23:59", "2026-11-24T22:59"),
    ],
)
def test_a_time_is_read_whatever_the_language_of_its_month(text, utc):
    found = read_time(text, ZoneInfo("Europe/Berlin"))
    assert found.isoformat()[:16] == utc
