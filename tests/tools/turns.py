"""Timing contenders in turn: each is warmed up, and times are compared within a round alone.

Other work on the machine slows one second and not the next. It slows all calls of a round alike,
so a ratio within a round keeps its meaning, and a median over rounds drops the disturbed ones.
"""

import math
from statistics import median
from time import monotonic, process_time

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


def compared(taken, reference):
    """The median time, and the median ratio to the reference's time of the same round."""
    ratios = [time / other for time, other in zip(taken, reference, strict=True)]
    return median(taken), median(ratios)
