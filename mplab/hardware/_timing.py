"""The rule of every timing here: contenders take turns, each warmed, and a round is compared alone.

Other work on the machine slows one second and not the next. It slows all calls of a round alike,
so a ratio within a round keeps its meaning, and a median over rounds drops the disturbed ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any, NamedTuple, TypeVar

import torch

Call = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)

LEAST = 3
"""Rounds that a median needs."""


class Clock(NamedTuple):
    """How the time is read, and what lies between two readings.

    Attributes:
        read: a reading.
        between: seconds from one reading to a later one.
    """

    read: Callable[[], Any]
    between: Callable[[Any, Any], float] = lambda begin, end: float(end - begin)


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between_events(begin: Any, end: Any) -> float:
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


CPU_TIME = Clock(process_time)
"""What this process works, in all its threads."""

WALL = Clock(perf_counter)

EVENTS = Clock(_event, _between_events)
"""What passes on the CUDA device until it has done what it was given."""


def clock_of(device: str | torch.device) -> Clock:
    """The clock for work on a device: calls of CUDA return before their work is done."""
    return EVENTS if torch.device(device).type == "cuda" else WALL


def lap(call: Call, repeats: int, clock: Clock) -> float:
    """Seconds of one call, of `repeats` calls between two readings."""
    begin = clock.read()
    for _ in range(repeats):
        call()
    return clock.between(begin, clock.read()) / repeats


def in_turn(
    calls: Mapping[Key, Call],
    *,
    rounds: int,
    seconds: float = math.inf,
    clock: Clock = WALL,
    repeats: int | Mapping[Key, int] = 1,
    warm: int = 1,
) -> dict[Key, list[float]]:
    """Time calls round after round, each once a round, in their order.

    Args:
        calls: the contenders.
        rounds: at most, but at least `LEAST`.
        seconds: of wall time, after which no further round begins.
        clock: that takes the times.
        repeats: calls in a turn, of all contenders or of each.
        warm: calls of each contender before the first round.

    Returns:
        Seconds of one call, for each contender and round.
    """
    counts = repeats if isinstance(repeats, Mapping) else dict.fromkeys(calls, repeats)
    for call in calls.values():
        for _ in range(warm):
            call()
    taken: dict[Key, list[float]] = {key: [] for key in calls}
    begin = monotonic()
    for done in range(max(LEAST, rounds)):
        if done >= LEAST and monotonic() - begin > seconds:
            break
        for key, call in calls.items():
            if len(calls) > 1:
                call()  # not to pay for what the one before it left in the caches
            taken[key].append(lap(call, counts[key], clock))
    return taken


def compared(taken: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """The median time, and the median ratio to the reference's time of the same round.

    Examples:
        >>> compared([2.0, 30.0, 4.0], [1.0, 10.0, 2.0])
        (4.0, 2.0)
    """
    ratios = [time / other for time, other in zip(taken, reference, strict=True)]
    return median(taken), median(ratios)


def seconds_of(
    call: Call, *, clock: Clock, rounds: int = LEAST, turn: float = 2e-3, warm: int = 1
) -> float:
    """The median time of one call, repeated in each turn until that takes about `turn` seconds.

    A short call alone would show the clock, or on CUDA how long Python takes to begin it.

    Args:
        call: what is timed.
        clock: that takes the times.
        rounds: turns, of which the median is taken.
        turn: seconds.
        warm: calls before.
    """
    for _ in range(warm):
        call()
    repeats = max(1, int(turn / max(1e-6, lap(call, 1, clock))))
    return median(in_turn({"": call}, rounds=rounds, clock=clock, repeats=repeats, warm=0)[""])
