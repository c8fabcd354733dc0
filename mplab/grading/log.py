"""Capture nbgrader's log, the only place where it gives its reasons."""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

_CAUSE = re.compile(r"^[A-Za-z_][\w.]*: \S.*", re.MULTILINE)


class Log:
    """The log of one of nbgrader's steps."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    def reason(self, error: BaseException) -> str:
        """Return why the step failed: the last lines of the tracebacks that nbgrader logged.

        Args:
            error: what it raised; its type and text are the reason if nothing was logged.
        """
        causes = list(dict.fromkeys(_CAUSE.findall(self.text.getvalue())))
        return " ".join((" ".join(causes) or f"{type(error).__name__}: {error}").split())


@contextmanager
def captured_log() -> Iterator[Log]:
    """Capture nbgrader's errors instead of showing them."""
    logger, log = logging.getLogger("traitlets"), Log()
    handler = logging.StreamHandler(log.text)
    level, others, propagate = logger.level, logger.handlers[:], logger.propagate
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.ERROR)
    try:
        yield log
    finally:
        logger.handlers, logger.propagate = others, propagate
        logger.setLevel(level)
