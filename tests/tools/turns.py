"""Timing contenders in turn: each is warmed up, and times are compared within a round alone.

Other work on the machine slows one second and not the next. It slows all calls of a round alike,
so a ratio within a round keeps its meaning, and a median over rounds drops the disturbed ones.
"""

import math
from statistics import median
from time import monotonic, process_time
from typing import NamedTuple

from mplab.common.tables import Table

LEAST = 3
"""Rounds that a median needs."""


def lap(call, repeats=1, clock=process_time):
    """Seconds of one call, of `repeats` calls between two readings of the clock."""
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def in_turn(calls, *, rounds, seconds=math.inf, clock=process_time, repeats=1, warm=1):
    """Time calls round after round, each once a round, in their order.

    `repeats` are the calls in a turn, of all contenders or by contender. No round begins after
    `seconds` of wall time, but `LEAST` rounds are always made. The result holds the seconds of one
    call, for each contender and round.
    """
    counts = repeats if isinstance(repeats, dict) else dict.fromkeys(calls, repeats)
    for call in calls.values():
        for _ in range(warm):
            call()
    taken = {key: [] for key in calls}
    begin = monotonic()
    for done in range(max(LEAST, rounds)):
        if done >= LEAST and monotonic() - begin > seconds:
            break
        for key, call in calls.items():
            if len(calls) > 1:
                call()  # not to pay for what the one before it left in the caches
            taken[key].append(lap(call, counts[key], clock))
    return taken


class Row(NamedTuple):
    """One contender: its place in the table, and what it took."""

    line: str
    column: str
    seconds: float
    """Median time of a call."""
    ratio: float
    """Median ratio to the reference's time of the same round."""


def compared(line, column, taken, reference):
    """The row of a contender from its times, and the reference's, round by round."""
    ratios = [time / other for time, other in zip(taken, reference, strict=True)]
    return Row(line, column, median(taken), median(ratios))


def table(caption, rows, unit):
    """The rows as text, with times in a unit of so many seconds."""
    lines = {}
    for row in rows:
        cell = f"{row.seconds / unit:12,.3f} {row.ratio:8.2f}x"
        lines.setdefault(row.line, {})[row.column] = cell
    columns = list(dict.fromkeys(row.column for row in rows if row.column))
    cells = [
        (line, *(found.get(column, found.get("", "")) for column in columns))
        for line, found in lines.items()
    ]
    header = ("", *(f"{column:>22}" for column in columns))
    return repr(Table(caption, header, tuple(cells)))
