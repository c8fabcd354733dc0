"""Run loops that release the GIL on a pool of threads.

The pool is made on first use and survives `os.fork` and several Python threads at once: numba's
own threading layers kill a forked child or abort when two threads enter.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

_LEAST = 1 << 17
"""Fewest elements that are worth another thread."""

DIVISIBLE = 2 * _LEAST
"""Arrays at least this long are divided among threads."""


class _Pool:
    """Threads made on first use, and made again in a forked child."""

    def __init__(self) -> None:
        self.size = _processors()
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(
        self, work: Callable[[int, int], None], pieces: list[tuple[int, int]]
    ) -> None:
        """Call `work` on every piece; without the pool if there is one piece or one thread."""
        if len(pieces) == 1 or self.size == 1:
            for begin, end in pieces:
                work(begin, end)
            return
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.size, "mplab")
            executor = self._executor
        for done in [executor.submit(work, begin, end) for begin, end in pieces]:
            done.result()


def _processors() -> int:
    """Return `OMP_NUM_THREADS` if set, else the number of processors this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )


_pool = _Pool()


def _forget_pool() -> None:
    global _pool
    size, _pool = _pool.size, _Pool()
    _pool.size = size


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def set_threads(count: int) -> int:
    """Use at most `count` threads for one large array; return the previous count."""
    if type(count) is not int or count < 1:
        raise ValueError(
            f"set_threads: count must be a positive integer; got {count!r}. Use 1 for no threads."
        )
    global _pool
    before, _pool = _pool.size, _Pool()
    _pool.size = count
    return before


def parallel(work: Callable[[int, int], None], size: int, *, wrap: int) -> None:
    """Call `work(begin, end)` on pieces of 0 .. size, in several threads if size is large.

    No piece crosses a multiple of `wrap`.
    """
    if size < DIVISIBLE:
        if size:
            work(0, size)
        return
    step = -(-size // min(_pool.size, size // _LEAST))
    cuts = sorted({*range(0, size, step), *range(0, size, wrap), size})
    _pool.run(work, list(pairwise(cuts)))
