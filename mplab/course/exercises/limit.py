"""Run Python code with a time limit, in the calling thread.

A second thread waits, and raises `TooLong` in the first thread when time is up. So the code keeps
its output, its context variables and torch's modes, and interrupts reach it as usual.
"""

import ctypes
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

AGAIN = 0.1
"""Seconds until `TooLong` is raised again, because the code may have caught it."""

_NOT_OF_THE_ANSWER = re.compile(
    r"<frozen importlib|-packages[/\\](numba[/\\]core|llvmlite)[/\\]"
)
"""Files of Python that imports and compiles: half done, either stays broken or ends the process."""

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc

_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)


class TooLong(BaseException):
    """Raised in code whose time is up; `except Exception` does not catch it."""


def ran_and_waited(task: str) -> tuple[float, float]:
    """Return the seconds that a task ran, and that it waited for a processor (Linux).

    Args:
        task: the folder of a thread, such as "/proc/self/task/1".

    Returns:
        Zeros if that is not known: the task is gone, or the system is another.

    Source:
        Linux, Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
    """
    try:
        ran, waited, _ = Path(task, "schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9


class _Watcher:
    """A watching thread that interrupts the thread that made it while that is in `run`."""

    def __init__(self, seconds: float) -> None:
        self.fired = False
        self._seconds = min(seconds, threading.TIMEOUT_MAX)
        self._runner = threading.get_ident()
        self._task = f"/proc/self/task/{threading.get_native_id()}"
        self._frame: FrameType | None = None
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def run(self, code: Callable[[], Any]) -> None:
        self._frame = sys._getframe()
        self._thread.start()
        code()

    def _watch(self) -> None:
        limit = wait = self._seconds
        begun = time.monotonic() - ran_and_waited(self._task)[1]
        while not self._running.acquire(timeout=wait):
            own = time.monotonic() - ran_and_waited(self._task)[1] - begun
            if not self.fired and own < limit:
                wait = limit - own  # meanwhile other tasks had the processor
                continue
            between = self._files_up_to_run()
            if any(map(_NOT_OF_THE_ANSWER.search, between or ())):
                wait = self._seconds
                limit = own + wait
                continue
            if between is not None:
                self.fired = True
                _set_exception(self._runner, ctypes.py_object(TooLong))
            wait = AGAIN

    def _files_up_to_run(self) -> list[str] | None:
        """Return the files on the stack of the watched thread up to `run`; None if `run` is over.

        If `run` is over, an exception would hit the code after it.
        """
        frame = sys._current_frames().get(self._runner)
        files = []
        while frame is not None and frame is not self._frame:
            files.append(frame.f_code.co_filename)
            frame = frame.f_back
        return None if frame is None else files

    def stop(self) -> None:
        """End the watching thread; if an exception is still pending, let it be raised here.

        After that, call `stop` again. Cancelling the exception instead would leave a pending flag
        in Python 3.11, and code that is traced or profiled afterwards would never end.
        """
        if self._running.locked():
            self._running.release()
        self._thread.join()
        left = self._frame is not None
        self._frame = None
        if self.fired and left:
            _set_exception(self._runner, ctypes.py_object(TooLong))
            while True:
                pass


def ends_within(seconds: float, code: Callable[[], Any]) -> bool:
    """Run code with a time limit, and return whether it ended by itself in time.

    Time spent waiting for a busy processor does not count (Linux). If an import or a compilation
    is running when the time is up, the time starts again. Python raises only between bytecode
    instructions: a single call into compiled code, such as `sum(itertools.count())`, is not stopped
    before it returns. Nor is an endless loop that a handler of `BaseException` starts again each
    time.

    Args:
        seconds: the limit; `math.inf` for none.
        code: called without arguments.
    """
    watcher = _Watcher(seconds)
    stopped = False
    try:
        watcher.run(code)
    except TooLong:
        if not watcher.fired:  # raised by an enclosing limit
            raise
    finally:
        while not stopped:
            try:  # around the call, because an exception may be raised as soon as a function begins
                watcher.stop()
                stopped = True
            except TooLong:
                pass  # it had to be raised somewhere; the watcher is stopped again
    return not watcher.fired
