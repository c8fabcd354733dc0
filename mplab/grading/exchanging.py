"""Publish and collect through nbgrader's exchange, a folder shared by users of a machine or Hub."""

import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbgrader.auth import Authenticator
from nbgrader.exchange import ExchangeError, ExchangeFactory
from nbgrader.exchange.default import ExchangeCollect

from mplab.grading.collecting import collect
from mplab.grading.folder import Course
from mplab.grading.log import captured_log
from mplab.numbers.installation import PACKAGE

_FOR_FEEDBACK = ("timestamp.txt", "submission_secret.txt")
"""Files of `nbgrader submit` that hide a feedback page from everybody but its owner."""


def inbound(course: Course) -> Path:
    """Return the folder in which students hand in."""
    return _shared(course) / "inbound"


def _shared(course: Course) -> Path:
    config = course.config()
    return Path(config.Exchange.root, config.CourseDirectory.course_id)


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
        folder = course.root / "feedback" / student / name
        try:
            for file in _FOR_FEEDBACK:
                (folder / file).read_text()
        except (OSError, UnicodeDecodeError):  # a student's secret may be anything
            others.append(student)
        else:
            _run(course, "ReleaseFeedback", {"assignment_id": name, "student_id": student})
    return others


def _run(course: Course, step: str, about: dict[str, str], **options: Any) -> None:
    """Run a step of nbgrader's exchange."""
    config = course.config()
    with captured_log() as log:
        try:
            make = getattr(ExchangeFactory(config=config), step)
            authenticator = Authenticator(config=config)
            directory = course.directory(**about)
            make(coursedir=directory, authenticator=authenticator, config=config, **options).start()
        except (ExchangeError, OSError) as error:
            raise ValueError(
                f"--publish: the exchange {config.Exchange.root} must be a folder that you can "
                f"write; got {log.reason(error)} Make it as root: "
                f"install -d -m 1777 {config.Exchange.root}"
            ) from error


def obstacles(course: Course) -> list[str]:
    """Find permissions that lock students out of the exchange or Python or open the course.

    Only permissions for everybody are checked, not those of groups or access control lists.

    Returns:
        A sentence for each problem, with what to do.
    """
    exchange, shared = Path(course.config().Exchange.root), _shared(course)
    found = []
    if shut := _shut(exchange):
        found.append(
            f"students cannot reach the exchange {exchange}: {_seen(shut)} is closed to them. "
            "Name another c.Exchange.root in nbgrader_config.py, such as /srv/exchange."
        )
    for folder, needed in ((exchange, 0o3), (shared / "outbound", 0o5), (shared / "inbound", 0o3)):
        if not shut and folder.is_dir() and folder.stat().st_mode & needed != needed:
            rights = "write" if needed == 0o3 else "read"
            found.append(
                f"students cannot {rights} in the exchange: {_seen(folder)} must let everybody. "
                f"Run chmod o+{'wx' if needed == 0o3 else 'rx'} {folder}"
            )
    program = Path(sys.executable)
    for place in (program.parent, program.resolve().parent, PACKAGE):
        if closed := _shut(place):
            found.append(
                f"students cannot run {place}: {_seen(closed)} is closed to them. If they use "
                "this Python, install it and mplab where everybody can read, such as /opt/mplab."
            )
            break
    if not _shut(course.root):
        found.append(
            f"every account can look into the course: {_seen(course.root)} holds solutions and "
            f"grades. Run chmod o= {course.root}"
        )
    return found


def _shut(place: Path) -> Path | None:
    """Return the first folder on the path to `place` that not everybody may enter."""
    ways = (folder for folder in (*reversed(place.parents), place) if folder.is_dir())
    return next((folder for folder in ways if not folder.stat().st_mode & stat.S_IXOTH), None)


def _seen(folder: Path) -> str:
    return f"{folder} ({stat.filemode(folder.stat().st_mode)})"


class Collect(ExchangeCollect):
    """Make `nbgrader collect` do the same as `mplab grade collect`.

    nbgrader's own class copies the target of a link in a submission, with the teacher's rights,
    and a folder in the exchange whose name has no time stops it for the whole class.
    """

    def init_src(self) -> None:
        """Find the folder in which students hand in.

        Raises:
            ExchangeError: nothing has been published.
        """
        self._course = Course(Path(self.coursedir.root))
        if not inbound(self._course).is_dir():
            self.fail(f"Course not found: {inbound(self._course)}")

    def copy_files(self) -> None:
        """Collect new submissions."""
        name = self.coursedir.assignment_id
        for problem in collect(self._course, name, inbound(self._course)).problems:
            self.log.warning(problem)
