"""Publish and collect through nbgrader's exchange, a folder shared by users of a machine or Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbconvert.exporters import Exporter
from nbgrader.auth import Authenticator
from nbgrader.converters.base import NbGraderException
from nbgrader.exchange import ExchangeError, ExchangeFactory
from nbgrader.exchange.default import ExchangeCollect

from mplab.course.grading.folder import Course, captured_log
from mplab.course.grading.submissions import SECRET, RejectedSubmission, read_regular

_SECRET_BYTES = 10_000

_REASON = (
    "in a course of mplab this is done by `mplab grade`: see README.md in the course"
)


def inbound(course: Course) -> Path:
    """Return the folder in which students hand in."""
    config = course.config()
    return Path(config.Exchange.root, config.CourseDirectory.course_id, "inbound")


def publish_assignment(course: Course, name: str) -> None:
    """Publish `release/NAME` in the exchange, where students fetch it; replace an older one.

    Raises:
        ValueError: nbgrader cannot write there.
    """
    _run(course, "ReleaseAssignment", {"assignment_id": name}, force=True)


def publish_feedback(course: Course, name: str, students: Sequence[str]) -> list[str]:
    """Publish the feedback pages of these students in the exchange.

    Returns:
        The students who cannot fetch a page: they did not hand in through the exchange, or with a
        secret that cannot be read.

    Raises:
        ValueError: nbgrader cannot write there.
    """
    others = []
    for student in students:
        try:  # a student's secret may be anything
            path = course.root / "submitted" / student / name / SECRET
            secret = read_regular(path, _SECRET_BYTES).decode()
        except (RejectedSubmission, UnicodeDecodeError):
            others.append(student)
            continue
        folder = course.root / "feedback" / student / name
        (folder / SECRET).write_text(secret, "utf-8")
        time = course.read("received", name, student).get("time", "")
        (folder / "timestamp.txt").write_text(time, "utf-8")
        # nbgrader copies the mode, which a umask may have closed to the page's reader.
        for page in folder.glob("*.html"):
            page.chmod(0o644)
        _run(course, "ReleaseFeedback", {"assignment_id": name, "student_id": student})
    return others


def _run(course: Course, step: str, about: dict[str, str], **options: Any) -> None:
    """Run a step of nbgrader's exchange."""
    config = course.config()
    with captured_log() as reason:
        try:
            make = getattr(ExchangeFactory(config=config), step)
            authenticator = Authenticator(config=config)
            directory = course.directory(**about)
            make(
                coursedir=directory,
                authenticator=authenticator,
                config=config,
                **options,
            ).start()
        except (ExchangeError, OSError) as error:
            raise ValueError(
                f"--publish: the exchange {config.Exchange.root} must be a folder that you can "
                f"write; got {reason(error)} Make it as root: "
                f"install -d -m 1777 {config.Exchange.root}"
            ) from error


class Converting(Exporter):
    """Keeps nbgrader's own commands from releasing without checks, and from grading unprotected.

    They make their exporter before they remove what `--force` is to replace.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log.error(_REASON)
        raise NbGraderException(_REASON)


class Collecting(ExchangeCollect):
    """Keeps nbgrader's own command from copying what a student's links point to."""

    def start(self) -> None:
        """Say what to do instead.

        Raises:
            ExchangeError: always.
        """
        self.fail(_REASON)
