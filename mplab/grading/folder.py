"""The course folder: its files, and its settings for nbgrader.

source/ASSIGNMENT/      the teacher's notebooks, with solutions
checks/ASSIGNMENT/      exercises.py: references, hidden cases, points
release/ASSIGNMENT/     what students get
submitted/ID/ASSIGNMENT/, autograded/, feedback/    nbgrader's steps
roster.csv  teams.csv  extensions.csv  gradebook.db  nbgrader_config.py  exchange/
.mplab/                 the key of the hidden cases, the journal of grading, times of submission
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from mplab.course.files import course_folder
from mplab.grading.exercises import Assignment, load_assignment, public_table

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)

_ASSIGNMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

_FILES = Path(__file__).parent / "course"
"""The README and the settings of a new course."""


def is_student_id(name: str) -> bool:
    """Whether a name can be a student's id: plain letters, no path and no pattern."""
    return _ID.fullmatch(name) is not None


class Student(NamedTuple):
    """A line of the roster."""

    id: str
    first_name: str
    last_name: str
    email: str


_CANVAS = ("SIS User ID", "Student", "Student", "SIS Login ID")

_ROSTERS = (Student._fields, _CANVAS, ("ID number", "First name", "Last name", "Email address"))
"""The columns of a roster: ours, those of Canvas's gradebook, and those of Moodle's grades."""


def read_table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, Any]]]]:
    """Read a CSV file: its columns, and its lines with their line numbers.

    Raises:
        ValueError: it is not CSV in UTF-8, or a quotation mark is never closed, which would make
            one name of the lines after it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        lines = [(table.line_num, line) for line in table]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(
            f"{path} must be CSV with commas, in UTF-8, each quotation mark closed; got {error}. "
            "Save it so."
        ) from error
    return list(table.fieldnames or []), lines


def read_record(path: Path) -> dict[str, Any]:
    """Read what was recorded in a file of `.mplab`; empty if there is none that can be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _student(line: Mapping[str, str | None], columns: Sequence[str]) -> Student | None:
    """Return the student of a line; None for lines that Canvas adds, which are nobody's."""
    number, first, last, email = ((line.get(name) or "").strip() for name in columns)
    if columns == _CANVAS:
        if not number and first in ("", "Points Possible", "Student, Test"):
            return None
        last, _, first = (word.strip() for word in last.partition(","))
    return Student(number, first, last, email)


class Course:
    """A course folder.

    Args:
        root: its path.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

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
        return sorted(path.parent.name for path in self.root.glob("checks/*/exercises.py"))

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

    def skeletons(self, assignment: str) -> dict[str, NotebookNode]:
        """Read the released notebooks of an assignment, by name.

        Raises:
            ValueError: it has not been released.
        """
        paths = sorted((self.root / "release" / assignment).glob("*.ipynb"))
        if not paths:
            raise ValueError(
                f"{assignment} has not been released. Do it first: "
                f"mplab grade release {assignment}."
            )
        return {path.stem: nbformat.read(path, as_version=4) for path in paths}

    def roster(self) -> list[Student]:
        """Read the students in `roster.csv`; none if it is missing.

        The file may also be Canvas's exported gradebook or Moodle's exported grades: ids are then
        the SIS user ids or the ID numbers.

        Raises:
            ValueError: the file is not such a table, or an id occurs twice or cannot be a folder's
                name in plain letters.
        """
        path = self.root / "roster.csv"
        if not path.is_file():
            return []
        columns, lines = read_table(path)
        known = next((names for names in _ROSTERS if names[0] in (columns or ["id"])), None)
        if known is None:
            raise ValueError(
                f"{path} must begin with the line {','.join(Student._fields)}; got "
                f"{','.join(columns)!r}. Save it as CSV with commas, in UTF-8."
            )
        students: list[Student] = []
        seen: set[str] = set()
        for number, line in lines:
            student = _student(line, known)
            if student is None:
                continue
            students.append(student)
            if not is_student_id(student.id) or student.id.lower() in seen:
                raise ValueError(
                    f"{path}, line {number}: id must be unique, of ASCII letters, digits and "
                    f"._@-; got {student.id!r}. Columns: {','.join(known)}."
                )
            seen.add(student.id.lower())
        return students

    def extensions(self, assignment: str) -> dict[str, timedelta]:
        """Read the extensions of the due date from `extensions.csv`, by student.

        Raises:
            ValueError: the file is not such a table, or names somebody who is not in the roster.
        """
        path = self.root / "extensions.csv"
        if not path.is_file():
            return {}
        known = {student.id for student in self.roster()}
        found = {}
        for number, line in read_table(path)[1]:
            try:
                who, what = line["id"].strip(), line["assignment"].strip()
                time = timedelta(hours=float(line["hours"]))
                if known and who not in known:
                    raise ValueError("nobody of the roster has this id")
            except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
                raise ValueError(
                    f"{path}, line {number}: extensions must be lines of "
                    f"id,assignment,hours; got {list(line.values())} ({error}). Correct the line."
                ) from error
            if what == assignment:
                found[who] = time
        return found

    def record_students(self) -> None:
        """Update the gradebook from the roster: new students, and changed names."""
        from nbgrader import api

        with self.gradebook() as gradebook:
            known = {row.id: row for row in gradebook.students}
            for student in self.roster():
                row = known.get(student.id) or api.Student(id=student.id)
                row.first_name, row.last_name = student.first_name, student.last_name
                row.email = student.email or None
                gradebook.db.add(row)
            gradebook.db.commit()

    def config(self) -> Any:
        """Read nbgrader's settings for this course."""
        from traitlets.config.loader import PyFileConfigLoader

        return PyFileConfigLoader("nbgrader_config.py", path=str(self.root)).load_config()

    def directory(self, **settings: Any) -> Any:
        """Make nbgrader's `CourseDirectory` for this course, with these settings."""
        from nbgrader.coursedir import CourseDirectory

        # nbgrader starts `alembic` by name when it makes a gradebook.
        scripts, places = str(Path(sys.executable).parent), os.environ.get("PATH", "")
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
        ValueError: the id or the exchange is invalid, or the course has another one already.
    """
    root = root.resolve()
    name = re.sub(r"[^A-Za-z0-9_-]", "_", root.name) or "course"
    if course_id is not None and not _ASSIGNMENT.fullmatch(course_id):
        raise ValueError(f"--course-id must be of ASCII letters, digits, _ and -; got {course_id}.")
    place = None if exchange is None else _made(exchange.absolute())
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    for step in ("source", "checks", "exchange", ".mplab"):
        (root / step).mkdir(parents=True, exist_ok=True)
    (root / ".mplab").chmod(0o700)
    _write_once(root / ".mplab" / "key", secrets.token_bytes(32), mode=0o600)
    where = repr(str(place)) if place else 'str(root / "exchange")'
    config = (_FILES / "nbgrader_config.txt").read_text(encoding="utf-8")
    config = config.replace('"COURSE"', repr(course_id or name)).replace("EXCHANGE", where)
    _write_once(root / "nbgrader_config.py", config.encode())
    known = Course(root).config()
    for option, wanted, setting, there in (
        ("--course-id", course_id, "CourseDirectory.course_id", known.CourseDirectory.course_id),
        ("--exchange", place and str(place), "Exchange.root", known.Exchange.root),
    ):
        if wanted not in (None, there):
            raise ValueError(
                f"{option} must be that of the course, {there}; got {wanted}. "
                f"Change c.{setting} in {root / 'nbgrader_config.py'}."
            )
    _write_once(root / "README.md", (_FILES / "README.md").read_bytes())
    _write_once(root / "roster.csv", (",".join(Student._fields) + "\n").encode())
    for folder in sorted((course_folder("lessons") / "assignments").glob("*/")):
        if not (folder / "exercises.py").is_file():
            continue
        for path in sorted(folder.iterdir()):
            step = "checks" if path.name == "exercises.py" else "source"
            target = root / step / folder.name / path.name
            if path.is_file() and not target.exists():
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, target)
    return Course(root)


def _made(exchange: Path) -> Path:
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
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def write_public_checks(course: Course, name: str) -> None:
    """Write `checks.json`, for `mplab.check`, beside the source notebook; both are released."""
    table = public_table(course.assignment(name).graded)
    (course.root / "source" / name / "checks.json").write_text(table, encoding="utf-8")
