"""Run loops that release the GIL on a pool of threads.

The pool is made on first use and survives `os.fork` and several Python threads at once: numba's
own threading layers kill a forked child or abort when two threads enter.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path

from mplab.numbers.checks import integer

_LEAST = 1 << 17
"""Fewest elements that are worth another thread."""

DIVISIBLE = 2 * _LEAST
"""Arrays at least this long are divided among threads."""


_CONTAINER = Path("/sys/fs/cgroup/cpu.max")
"""A container's limit, as `docker run --cpus` sets it: microseconds in each period of so many."""


def processors() -> int:
    """Count the processors that this process may use; a part of one counts as one."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = map(int, _CONTAINER.read_text(encoding="ascii").split())
    except (OSError, ValueError):  # none, or "max"
        return count
    return min(count, -(-quota // period))


def _wanted() -> int:
    """Return `OMP_NUM_THREADS` if set, else the number of processors."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else processors()


_count = _wanted()


def set_threads(count: int) -> int:
    """Use at most `count` threads, 1 for none, for a large array; return the previous count."""
    global _count
    before = _count
    _count = integer("set_threads", "count", count, least=1)
    return before


@cache
def _pool(process: int, count: int) -> ThreadPoolExecutor:
    """Make the threads of a process: a forked child has none of its parent's."""
    return ThreadPoolExecutor(count, "mplab")


def parallel(work: Callable[[int, int], None], size: int, *, wrap: int) -> None:
    """Call `work(begin, end)` on pieces of 0 .. size, in several threads if size is large.

    No piece crosses a multiple of `wrap`.
    """
    if size < DIVISIBLE:
        if size:
            work(0, size)
        return
    step = -(-size // min(_count, size // _LEAST))
    cuts = sorted({*range(0, size, step), *range(0, size, wrap), size})
    pieces = list(pairwise(cuts))
    if len(pieces) == 1 or _count == 1:
        for begin, end in pieces:
            work(begin, end)
        return
    pool = _pool(os.getpid(), _count)
    for done in [pool.submit(work, begin, end) for begin, end in pieces]:
        done.result()
