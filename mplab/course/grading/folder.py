"""The course folder: its files, and its settings for nbgrader.

source/ASSIGNMENT/      the teacher's notebooks, with solutions
checks/ASSIGNMENT/      exercises.py: references, hidden cases, points
release/ASSIGNMENT/     what students get
submitted/ID/ASSIGNMENT/, autograded/, feedback/    nbgrader's steps
roster.csv  teams.csv  extensions.csv  gradebook.db  nbgrader_config.py  exchange/
.mplab/                 the key of the hidden cases, the journal of grading, times of submission
"""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from nbformat import NotebookNode, read as read_notebook

from mplab.common.files import course_folder, replace_file
from mplab.course.grading.exercises import Assignment, load_assignment
from mplab.course.grading.tables import (
    Student,
    read_roster,
    read_table,
)

_ASSIGNMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

_MARKING = threading.Lock()
"""The lock on a file keeps out other processes, but not other threads of this one."""

_FILES = Path(__file__).parent / "course"
"""The README and the settings of a new course."""


_CAUSE = re.compile(r"^[A-Za-z_][\w.]*: \S.*", re.MULTILINE)


def read_notebooks(folder: Path) -> dict[str, NotebookNode]:
    """Read the notebooks of a folder, by name without suffix; none if it is missing."""
    paths = sorted(folder.glob("*.ipynb"))
    return {path.stem: read_notebook(path, as_version=4) for path in paths}


@contextmanager
def captured_log() -> Iterator[Callable[[BaseException], str]]:
    """Capture nbgrader's log, the only place where it gives its reasons.

    Yields a function that returns why a step failed: the last lines of the tracebacks that were
    logged, or else the error that the step raised.
    """
    logger = logging.getLogger("traitlets")
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setLevel(logging.ERROR)
    logger.addHandler(handler)

    def reason(error: BaseException) -> str:
        causes = list(dict.fromkeys(_CAUSE.findall(text.getvalue())))
        return " ".join(
            (" ".join(causes) or f"{type(error).__name__}: {error}").split()
        )

    try:
        yield reason
    finally:
        logger.removeHandler(handler)


@dataclass(frozen=True)
class Course:
    """A course folder.

    Args:
        root: its path.
    """

    root: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", self.root.resolve())

    def require(self) -> Course:
        """Return this course, if its folder is a course folder.

        Raises:
            ValueError: it is not.
        """
        if not (self.root / "nbgrader_config.py").is_file():
            raise ValueError(
                f"{self.root} is no course folder: it has no nbgrader_config.py. "
                "Make one with mplab grade init FOLDER, then name it with --course FOLDER."
            )
        return self

    def key(self) -> bytes:
        """Read the key of the hidden cases."""
        return (self.root / ".mplab" / "key").read_bytes()

    def names(self) -> list[str]:
        """List the assignments."""
        return sorted(
            path.parent.name for path in self.root.glob("checks/*/exercises.py")
        )

    def assignment(self, name: str) -> Assignment:
        """Load the graded exercises of an assignment.

        Raises:
            ValueError: there is no such assignment, or its exercises cannot be graded.
        """
        path = self.root / "checks" / name / "exercises.py"
        if not _ASSIGNMENT.fullmatch(name) or not path.is_file():
            raise ValueError(
                f"ASSIGNMENT must be one of {', '.join(self.names())}; got {name!r}. "
                "An assignment has source/NAME/ and checks/NAME/exercises.py."
            )
        status = path.stat()
        return _load(path, status.st_mtime_ns, status.st_size)

    def files(self, name: str) -> dict[str, bytes]:
        """Read the files beside an assignment's notebooks, which every submission finds there."""
        source = self.root / "source" / name
        files = {}
        for path in source.rglob("*"):
            if path.is_file() and path.suffix != ".ipynb":
                files[str(path.relative_to(source))] = path.read_bytes()
        return files

    def skeletons(self, assignment: str) -> dict[str, NotebookNode]:
        """Read the released notebooks of an assignment, by name.

        Raises:
            ValueError: it has not been released.
        """
        if not (found := read_notebooks(self.root / "release" / assignment)):
            raise ValueError(
                f"{assignment} has not been released. Do it first: "
                f"mplab grade release {assignment}."
            )
        return found

    def roster(self) -> list[Student]:
        """Read the students in `roster.csv`; none if it is missing."""
        return read_roster(self.root / "roster.csv").students

    def teams(self, assignment: str) -> dict[str, list[str]]:
        """Read the members of each team, by its name.

        They stand in `teams.csv`; if it is missing, `collect` has read them for this assignment
        from the platform's list, if that names any.

        Raises:
            ValueError: the file is not such a table, or names somebody twice or not in the roster.
        """
        teams: dict[str, list[str]] = {}
        left = {student.id for student in self.roster()}
        path = self.root / "teams.csv"
        for number, line in read_table(path, "team", "id").lines:
            team = line["team"].strip()
            who = line["id"].strip()
            if not team or who not in left:
                raise ValueError(
                    f"{path}, line {number}: teams must be lines of team,id, each id of the "
                    f"roster at most once; got {list(line.values())}."
                )
            left.discard(who)
            teams.setdefault(team, []).append(who)
        return teams or self.read("platform", assignment, "list").get("teams", {})

    def extensions(self, assignment: str) -> dict[str, timedelta]:
        """Read the extensions of the due date from `extensions.csv`, by student.

        Raises:
            ValueError: the file is not such a table, or names somebody twice or not in the
                roster, or an assignment that does not exist, or hours below 0.
        """
        found = {}
        seen = set()
        known = {student.id for student in self.roster()}
        names = self.names()
        path = self.root / "extensions.csv"
        for number, line in read_table(path, "id", "assignment", "hours").lines:
            who = line["id"].strip()
            what = line["assignment"].strip()
            try:
                time = timedelta(hours=float(line["hours"].replace(",", ".")))
                if time < timedelta(0):
                    raise ValueError("hours are 0 or more")
                if (who, what) in seen:
                    raise ValueError("this student has another line")
                seen.add((who, what))
                if known and who not in known:
                    raise ValueError("nobody of the roster has this id")
                if what not in names:
                    raise ValueError(f"the assignments are {', '.join(names)}")
            except (ValueError, OverflowError) as error:
                raise ValueError(
                    f"{path}, line {number}: extensions must be lines of "
                    f"id,assignment,hours; got {list(line.values())} ({error}). Correct the line."
                ) from error
            if what == assignment:
                found[who] = time
        return found

    def zone(self) -> tzinfo:
        """Return the course's time zone, `c.Course.time_zone`; else this machine's.

        Raises:
            ValueError: there is no such time zone.
        """
        name = self.config().Course.get("time_zone") or _machine_zone()
        try:
            return ZoneInfo(name)
        except (LookupError, ValueError, OSError) as error:
            raise ValueError(
                f"c.Course.time_zone in nbgrader_config.py must be a name such as "
                f"'Europe/Berlin'; got {name!r}."
            ) from error

    def record(self, kind: str, assignment: str, student: str) -> Path:
        """Return the file of a record about a submission.

        Kinds: `received`, when it came in and what `collect` stored; `journal`, the result of
        grading it; `answers`, digests of the answers that the points in the gradebook are for;
        `marks`, who gave points by hand, and when; `platform` (of no student, but of the "list"),
        numbers and teams of the assignment.
        """
        return self.root / ".mplab" / kind / assignment / f"{student}.json"

    def read(self, kind: str, assignment: str, student: str) -> dict[str, Any]:
        """Read what is recorded; empty if there is nothing that can be read."""
        try:
            record = json.loads(self.record(kind, assignment, student).read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def write(
        self, kind: str, assignment: str, student: str, record: Mapping[str, Any]
    ) -> None:
        """Record something about a submission."""
        replace_file(
            self.record(kind, assignment, student), json.dumps(record).encode()
        )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Wait for the lock under which points are compared and written.

        The grader writes a submission's points and its answers under it, and the review page
        compares and writes a person's. It ends with the process.
        """
        with _MARKING, (self.root / ".mplab" / "marking").open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    def record_students(self) -> None:
        """Update the gradebook from the roster: new students, and changed names."""
        from nbgrader import api

        with self.gradebook() as gradebook:
            known = {row.id: row for row in gradebook.students}
            for student in self.roster():
                row = known.get(student.id) or api.Student(id=student.id)
                row.first_name = student.first_name
                row.last_name = student.last_name
                row.email = student.email or None
                gradebook.db.add(row)
            gradebook.db.commit()

    def config(self) -> Any:
        """Read nbgrader's settings for this course."""
        from traitlets.config.loader import PyFileConfigLoader

        return PyFileConfigLoader(
            "nbgrader_config.py", path=str(self.root)
        ).load_config()

    def directory(self, **settings: Any) -> Any:
        """Make nbgrader's `CourseDirectory` for this course, with these settings."""
        from nbgrader.coursedir import CourseDirectory

        # nbgrader starts `alembic` by name when it makes a gradebook.
        scripts = str(Path(sys.executable).parent)
        places = os.environ.get("PATH", "")
        if scripts not in places.split(os.pathsep):
            os.environ["PATH"] = f"{scripts}{os.pathsep}{places}"
        return CourseDirectory(config=self.config(), **settings)

    def gradebook(self) -> Any:
        """Open the gradebook; a context manager."""
        from nbgrader.api import Gradebook

        directory = self.directory()
        return Gradebook(directory.db_url, directory.course_id)


@lru_cache
def _load(path: Path, *_: int) -> Assignment:
    """Load an assignment, once per process while its file is unchanged."""
    return load_assignment(path)


def create_course(
    root: Path, *, course_id: str | None = None, exchange: Path | None = None
) -> Course:
    """Create a course folder, or complete one: existing files stay.

    A new folder is closed to other accounts.

    Args:
        root: its path.
        course_id: its name in students' nbgrader; the folder's name if not given.
        exchange: where students fetch and hand in; a folder in the course if not given. A missing
            folder is made, writable for everybody.

    Returns:
        The course, with the assignments that come with mplab.

    Raises:
        ValueError: the id or the exchange is invalid, or given for a course that is there.
    """
    root = root.resolve()
    name = re.sub(r"[^A-Za-z0-9_-]", "_", root.name) or "course"
    if course_id is not None and not _ASSIGNMENT.fullmatch(course_id):
        raise ValueError(
            f"--course-id must be of ASCII letters, digits, _ and -; got {course_id}."
        )
    settings = root / "nbgrader_config.py"
    if settings.exists() and (course_id or exchange):
        raise ValueError(
            "--course-id and --exchange are for a new course. Change "
            f"c.CourseDirectory.course_id and c.Exchange.root in {settings}."
        )
    place = None if exchange is None else _make_exchange(exchange.absolute())
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    for step in ("source", "checks", "exchange", ".mplab"):
        (root / step).mkdir(parents=True, exist_ok=True)
    (root / ".mplab").chmod(0o700)
    _write_once(root / ".mplab" / "key", secrets.token_bytes(32), mode=0o600)
    where = repr(str(place)) if place else 'str(root / "exchange")'
    config = (_FILES / "nbgrader_config.txt").read_text("utf-8")
    config = config.replace('"COURSE"', repr(course_id or name)).replace(
        "EXCHANGE", where
    )
    config = config.replace('"TIME_ZONE"', repr(_machine_zone()))
    _write_once(settings, config.encode())
    _write_once(root / "README.md", (_FILES / "README.md").read_bytes())
    _write_once(root / "roster.csv", (",".join(Student._fields[:4]) + "\n").encode())
    for folder in sorted((course_folder("lessons") / "assignments").glob("*/")):
        if not (folder / "exercises.py").is_file():
            continue
        for path in sorted(folder.iterdir()):
            step = "checks" if path.name == "exercises.py" else "source"
            target = root / step / folder.name / path.name
            if path.is_file():
                target.parent.mkdir(exist_ok=True)
                _write_once(target, path.read_bytes())
    return Course(root)


def _machine_zone() -> str:
    """Return the name of this machine's time zone; "UTC" if it does not say it."""
    found = Path("/etc/localtime").resolve().as_posix().partition("zoneinfo/")[2]
    name = os.environ.get("TZ") or found
    return name if name in available_timezones() else "UTC"


def create_assignment(course: Course, name: str) -> list[Path]:
    """Write an example assignment of two exercises and a question, for the teacher to change.

    Returns:
        Its exercises and its notebook.

    Raises:
        ValueError: the name is not a valid name of an assignment, or it is taken.
    """
    places = [course.root / "checks" / name, course.root / "source" / name]
    if not _ASSIGNMENT.fullmatch(name) or any(place.exists() for place in places):
        raise ValueError(
            "ASSIGNMENT must be a new name of ASCII letters, digits, _ and -; got "
            f"{name!r}. In this course there are: {', '.join(course.names())}."
        )
    targets = [places[0] / "exercises.py", places[1] / f"{name}.ipynb"]
    for target, template in zip(
        targets, ("exercises.txt", "notebook.ipynb"), strict=True
    ):
        target.parent.mkdir(parents=True)
        text = (_FILES / "example" / template).read_text("utf-8")
        target.write_text(text.replace("NAME", name), "utf-8")
    return targets


def _make_exchange(exchange: Path) -> Path:
    """Make the exchange if it is missing: everybody may add files, nobody remove others'."""
    try:
        if not exchange.is_dir():
            exchange.mkdir(parents=True)
            exchange.chmod(0o1777)
    except OSError as error:
        raise ValueError(
            f"--exchange must be a folder that is there or that you can make; got {exchange} "
            f"({error.strerror}). Make it as root: install -d -m 1777 {exchange}"
        ) from error
    return exchange


def _write_once(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Create a file, with its mode set from the first moment; keep an existing one."""
    opener = partial(os.open, mode=mode)
    with suppress(FileExistsError), open(path, "xb", opener=opener) as file:
        file.write(content)
