"""What nbgrader says of its reasons, which it tells to its log only."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

_CAUSE = re.compile(r"^[A-Za-z_][\w.]*: \S.*", re.MULTILINE)


class Told:
    """The log of a step of nbgrader's."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    def reason(self, error: BaseException) -> str:
        """Why the step failed, in nbgrader's words: the last lines of the tracebacks it logged.

        Args:
            error: what it raised; its kind and text are the reason where nothing was logged.
        """
        causes = list(dict.fromkeys(_CAUSE.findall(self.text.getvalue())))
        return " ".join((" ".join(causes) or f"{type(error).__name__}: {error}").split())


@contextmanager
def listening() -> Iterator[Told]:
    """Keep nbgrader's errors off the screen, and keep them."""
    log, told = logging.getLogger("traitlets"), Told()
    handler = logging.StreamHandler(told.text)
    level, others, propagate = log.level, log.handlers[:], log.propagate
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.ERROR)
    try:
        yield told
    finally:
        log.handlers, log.propagate = others, propagate
        log.setLevel(level)
