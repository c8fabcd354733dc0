"""Run Python code with a time limit, in the calling thread.

A second thread waits, and raises `TooLong` in the first thread when time is up. So the code keeps
its output, its context variables and torch's modes, and interrupts reach it as usual.
"""

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

AGAIN = 0.1
"""Seconds until `TooLong` is raised again, because the code may have caught it."""

_set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc

_set_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)


class TooLong(BaseException):
    """Raised in code whose time is up; `except Exception` does not catch it."""


class OwnTime:
    """The CPU time of a thread or process since this object was made (Linux).

    Args:
        task: the folder of the task, such as "/proc/1" or "/proc/self/task/1".
    """

    def __init__(self, task: str) -> None:
        self._stat = Path(task, "stat")
        self._before = self._look()[1]

    def left(self, seconds: float) -> float:
        """Return how many of `seconds` of CPU time are left if the task is runnable, else 0.0."""
        wants, used = self._look()
        return max(0.0, seconds - (used - self._before)) if wants else 0.0

    def _look(self) -> tuple[bool, float]:
        """Return whether the task is runnable now, and its CPU seconds."""
        with suppress(OSError):
            fields = self._stat.read_text(
                encoding="ascii", errors="replace"
            ).rpartition(")")[2]
            state, *numbers = fields.split()
            return state == "R", sum(map(int, numbers[10:12])) / os.sysconf(
                "SC_CLK_TCK"
            )
        return False, 0.0


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
        wait, own = self._seconds, OwnTime(self._task)
        while not self._running.acquire(timeout=wait):
            if not self.fired and (wait := own.left(self._seconds)):
                continue  # other tasks have the processor
            between = self._files_up_to_run()
            if any(file.startswith("<frozen importlib") for file in between or ()):
                # A half-done import would stay broken; it is not the answer's.
                wait = self._seconds
                continue
            if between is not None:
                self.fired = True
                _set_exception(self._runner, ctypes.py_object(TooLong))
            wait = AGAIN

    def _files_up_to_run(self) -> list[str] | None:
        """Return the files on the stack of the watched thread up to `run`; None if `run` is over.

        If `run` is over, an exception would hit the code after it.
        """
        frame, files = sys._current_frames().get(self._runner), []
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
        left, self._frame = self._frame is not None, None
        if self.fired and left:
            _set_exception(self._runner, ctypes.py_object(TooLong))
            while True:
                pass


def ends_within(seconds: float, code: Callable[[], Any]) -> bool:
    """Run code with a time limit, and return whether it ended by itself in time.

    Time spent waiting for a busy processor does not count (Linux). If an import is running when
    the time is up, the time starts again. Python raises only between bytecode instructions: a
    single call into compiled code, such as `sum(itertools.count())`, is not stopped before it
    returns. Nor is an endless loop that a handler of `BaseException` starts again each time.

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
                pass
    return not watcher.fired
