"""Read and show times: due dates, and the times of a platform, in the course's time zone."""

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache

from mplab.common.words import plural
from mplab.course.grading.tables import normalized_head, normalized_name

_LANGUAGES = ("en", "de", "fr", "es", "it", "nl", "pt")

_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")

_CHINESE = re.compile(r"(\d{4})\s*年\s*(\d{1,2})\s*月\s*(\d{1,2})\s*日\D*")
"""A date with the names of its parts, and a weekday."""


@cache
def _words() -> dict[str, str]:
    """Return the English names of months; weekdays and "of" are left out, in any language."""
    from babel import Locale

    words = {"de": "", "as": ""}
    english = Locale("en").months["format"]["abbreviated"]
    for language in _LANGUAGES:
        locale = Locale(language)
        for width in ("wide", "abbreviated"):
            for number, name in locale.months["format"][width].items():
                words[normalized_name(name)] = english[number]
            for name in locale.days["format"][width].values():
                words.setdefault(normalized_name(name), "")  # "mar" is a month, too
    return words


def read_time(text: str, zone: tzinfo) -> datetime:
    """Read a time as a person or a platform writes it, and return it in UTC.

    Args:
        text: such as "2026-11-30 12:00", with or without an offset; or the date and the clock of
            Moodle in one of nine languages, such as "Dienstag, 24. November 2026, 23:59". A day
            without a clock is over at 23:59.
        zone: the time zone, unless the text holds an offset.

    Raises:
        ValueError: it is no time, lacks a part of the day, or day and month could be exchanged.
    """
    from dateutil import parser  # type: ignore[import-untyped, unused-ignore]

    def english(word: re.Match[str]) -> str:
        return _words().get(normalized_name(word[0]), word[0])

    text = _CHINESE.sub(r"\1-\2-\3 ", normalized_head(text))
    text = _WORD.sub(english, text)
    if re.search(r"(?<![\d:-])\d{1,2}[./-]\d", text):
        raise ValueError(f"{text!r} may begin with the day or with the month")
    read: datetime = parser.parse(text, default=datetime(2000, 1, 1))
    end = parser.parse(text, default=datetime(2001, 2, 2, 23, 59))
    if end.date() != read.date():  # a default stands for what is missing
        raise ValueError("it needs a year, a month and a day")
    if end.hour != read.hour:  # it names no hour
        read = end
    return (read if read.tzinfo else read.replace(tzinfo=zone)).astimezone(UTC)


def stated_time(text: str, zone: tzinfo) -> datetime | None:
    """Read the time in a name that Blackboard or Brightspace wrote; None if there is none.

    Examples:
        >>> stated_time("2026-11-24-23-05-09", UTC) == stated_time(
        ...     "Nov 24, 2026 1105 PM", UTC
        ... ) + timedelta(seconds=9)
        True
    """
    text = re.sub(r"-(\d\d)-(\d\d)-(\d\d)$", r" \1:\2:\3", text)
    text = re.sub(r"(\d\d) ([AP]M)$", r":\1 \2", text)
    try:
        return read_time(text, zone) if text else None
    except ValueError:
        return None


def lateness_in_words(late: timedelta) -> str:
    """Write how late a submission is, rounded up: minutes for two hours, then hours.

    Examples:
        >>> (
        ...     lateness_in_words(timedelta(seconds=61)),
        ...     lateness_in_words(timedelta(hours=2.5)),
        ... )
        ('2 minutes', '3 hours')
    """
    seconds = late.total_seconds()
    if seconds < 7200:
        return plural(math.ceil(seconds / 60), "minute")
    return plural(math.ceil(seconds / 3600), "hour")


def show_time(time: datetime, zone: tzinfo) -> str:
    """Write a time in UTC for a person, in a time zone that it names.

    Examples:
        >>> from zoneinfo import ZoneInfo
        >>> show_time(datetime(2026, 11, 30, 11), ZoneInfo("Europe/Berlin"))
        'Mon 30 Nov 2026, 12:00 CET (Europe/Berlin)'
    """
    there = time.replace(tzinfo=UTC).astimezone(zone)
    return f"{there:%a} {there.day} {there:%b %Y, %H:%M %Z} ({zone})"
