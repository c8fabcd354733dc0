"""Grade every submission of an assignment: in parallel, resumable, none at another's cost."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from mplab.course.files import replace_file
from mplab.grading._notebooks import Refused, add_note, read_submission, refusal
from mplab.grading._times import read_received
from mplab.grading.execute import close_lanes
from mplab.grading.folder import Course, is_student_id
from mplab.grading.sandbox import require_sandbox

_TIMESTAMP_BYTES = 100

_TELL_SECONDS = 15.0

_PAUSES = (1.0, 5.0)
"""Seconds before a submission is tried again after a technical failure."""

_LOCK_SECONDS = 30
"""How long SQLite waits for a gradebook that another program has locked."""


class Line(NamedTuple):
    """What became of one submission."""

    student: str
    score: float | None
    max_score: float | None
    remark: str
    seconds: float
    done_before: bool


def submitted_students(course: Course, assignment: str) -> tuple[list[str], list[str]]:
    """Ids with a submission, and names of folders that are nobody's.

    A folder counts only under an id of the roster, letter by letter; without a roster, under
    any id of plain letters.
    """
    known = {student.id for student in course.roster()}
    folders = sorted((course.root / "submitted").glob(f"*/{assignment}"))
    names = [folder.parent.name for folder in folders]
    usable = [name for name in names if is_student_id(name) and (not known or name in known)]
    return usable, [name for name in names if name not in usable]


def autograde(
    course: Course,
    assignment: str,
    *,
    students: Sequence[str] = (),
    jobs: int = 1,
    force: bool = False,
    trusted: bool = False,
    tell: Callable[[str], None] = print,
) -> list[Line]:
    """Grade the submissions that have not been graded as they are now.

    A technical failure, such as a gradebook that stays locked or a grader that is killed, is no
    grade: such a submission is tried again, and if that does not help, the next call grades it.

    Args:
        course: the course.
        assignment: a released assignment.
        students: ids to grade; all that have submitted if empty.
        jobs: processes, each with a share of its own.
        force: also those that have been graded. The same answers get the same points.
        trusted: run without a sandbox.
        tell: takes lines about what goes on.

    Returns:
        One line per submission. Without a score, it could not be graded for a technical reason.

    Raises:
        NoSandbox: there is none, and the submissions are not trusted.
        ValueError: another process is grading this course, the gradebook cannot be written, or
            `students` holds an id that has submitted nothing.
    """
    if not trusted:
        require_sandbox()
    _rebuilt_autograde()  # imports nbgrader once, before the processes part
    course.skeletons(assignment)
    course.assignment(assignment)
    present, strangers = submitted_students(course, assignment)
    for name in strangers:
        tell(f"{name[:80]!a}: not graded: no student of the roster has this id")
    if missing := sorted(set(students) - set(present)):
        raise ValueError(f"--student must be an id with a submission; got {', '.join(missing)}.")
    chosen = [name for name in present if not students or name in students]
    if claimed := [name for name in chosen if _claims_its_time(course, assignment, name)]:
        tell(
            f"{len(claimed)} submissions brought a timestamp.txt, which a student can write. To "
            f"have the file system's time, collect them: mplab grade collect {assignment} INBOUND"
        )
    with _locked(course):
        _record_students(course)
        old = {name: _edition(course, assignment, name) for name in chosen} if force else {}

        def is_open(name: str) -> bool:
            written_now = name not in old or _edition(course, assignment, name) != old[name]
            return not (written_now and _is_done(course, assignment, name))

        todo = [name for name in chosen if is_open(name)]
        lines = {name: _read_line(course, assignment, name) for name in set(chosen) - set(todo)}
        for name in todo:
            if _failed(course, assignment, name):
                _journal(course, assignment, name).unlink()
        shares = _Shares(course, assignment, trusted=trusted)
        rest, suspects = todo, list[str]()
        while rest:
            suspects += shares.grade(rest, jobs if rest is todo else 1, tell)
            left = [
                name for name in rest if is_open(name) and not _failed(course, assignment, name)
            ]
            if not left or left == rest:
                break
            tell(f"a grader ended early; {len(left)} submissions are graded again")
            rest = [name for name in left if name not in suspects]
        for name in suspects:  # each alone, so that none is lost to another
            shares.grade([name], 1, tell)
        for name in sorted(set(chosen) - set(lines)):
            lines[name] = _read_line(course, assignment, name)._replace(done_before=False)
    return [lines[name] for name in sorted(lines)]


def _claims_its_time(course: Course, assignment: str, student: str) -> bool:
    """Whether a submission's time stands in a file that collection did not write."""
    path = course.root / "submitted" / student / assignment / "timestamp.txt"
    try:
        text = path.read_bytes()[:_TIMESTAMP_BYTES].decode("ascii", "replace").strip()
    except OSError:
        return False
    return text != read_received(course.root, assignment, student).get("time")


class _locked:
    """One grading at a time: a lock that lasts as long as any of its processes."""

    def __init__(self, course: Course) -> None:
        self._path = course.root / ".mplab" / "lock"

    def __enter__(self) -> None:
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{self._path.parent.parent} is being graded by another process. Wait for it."
            ) from None

    def __exit__(self, *_: object) -> None:
        self._file.close()


class _Shares:
    """Processes of their own, each with every so-many-th submission."""

    def __init__(self, course: Course, assignment: str, *, trusted: bool) -> None:
        self._course, self._assignment, self._trusted = course, assignment, trusted
        self._context = multiprocessing.get_context("fork")
        self._count = self._context.Value("i", 0)

    def grade(self, names: list[str], jobs: int, tell: Callable[[str], None]) -> list[str]:
        """Grade these, and tell now and then how many are done.

        Returns:
            Those that a grader was at when it was killed.
        """
        shares = [names[i::jobs] for i in range(jobs) if names[i::jobs]]
        places = [self._context.Value("i", -1) for _ in shares]
        self._count.value = 0
        workers = [
            self._context.Process(target=self._work, args=entry)
            for entry in zip(shares, places, strict=True)
        ]
        for worker in workers:
            worker.start()
        told = time.monotonic()
        try:
            while any(worker.is_alive() for worker in workers):
                multiprocessing.connection.wait([worker.sentinel for worker in workers], 1.0)
                if time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    tell(f"{self._count.value} of {len(names)} are graded ...")
                workers = [worker for worker in workers if worker.is_alive()]
        except KeyboardInterrupt:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join(5)
                worker.kill()  # the kernel ends its sandbox with it
            raise
        return [
            share[place.value]
            for share, place in zip(shares, places, strict=True)
            if 0 <= place.value < len(share)
        ]

    def _work(self, names: list[str], place: Any) -> None:
        """Grade a share; called in a process of its own."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        logging.getLogger("traitlets").setLevel(logging.CRITICAL)
        _die_with_parent()
        grader = Grader(self._course, self._assignment, trusted=self._trusted)
        try:
            for number, name in enumerate(names):
                place.value = number
                grader.grade(name)
                with self._count.get_lock():
                    self._count.value += 1
            place.value = len(names)
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        finally:
            close_lanes()


def _record_students(course: Course) -> None:
    """Put the roster into the gradebook.

    Raises:
        ValueError: the gradebook cannot be written.
    """
    from sqlalchemy.exc import OperationalError

    try:
        with one_engine():
            course.record_students()
    except OperationalError as error:
        raise ValueError(
            f"autograde: the gradebook must be open for writing; got {error.orig}. End what uses "
            "it, such as formgrader, and run the same command again."
        ) from error
    finally:
        while _ENGINES:
            _ENGINES.popitem()[1].dispose()  # a connection must not cross a fork


def _die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends, however it does."""
    import ctypes
    import sys

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL


class Grader:
    """Grades one submission after the other with nbgrader's own steps.

    Args:
        course: the course.
        assignment: a released assignment.
        trusted: run without a sandbox.
    """

    def __init__(self, course: Course, assignment: str, *, trusted: bool = False) -> None:
        self.course, self.assignment = course, assignment
        self._skeletons = course.skeletons(assignment)
        self._config = course.config()
        self._config.SandboxedExecute.trusted = trusted
        # A notebook rebuilt from the release needs no further look at its metadata.
        self._config.Autograde.autograde_preprocessors = list(_STEPS)
        self._directory = course.directory(
            assignment_id=assignment, submitted_directory=os.path.join(".mplab", "clean")
        )

    def grade(self, student: str) -> None:
        """Grade a submission, and write into the journal that it is done.

        Whatever the submission is, it ends in the gradebook: with its points, or with none
        and the reason. Only if that fails for another reason than the submission itself, three
        times, does the journal say that it is not graded.
        """
        for pause in (*_PAUSES, None):
            _journal(self.course, self.assignment, student).unlink(missing_ok=True)  # not done
            try:
                record = self._grade(student)
            except Exception as error:  # a refusal is none: what comes here is not the student's
                if pause is None:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                    record = {
                        "failed": True,
                        "remark": f"not graded yet, for a technical reason: {reason}",
                    }
                else:
                    time.sleep(pause)
                    continue
            break
        replace_file(_journal(self.course, self.assignment, student), json.dumps(record).encode())

    def _grade(self, student: str) -> dict[str, Any]:
        """Grade a submission once; what the journal is to say of it."""
        digest = _digest(self.course, self.assignment, student)
        start = time.perf_counter()
        remark = self._prepare(student)
        self._extend(student)
        self._convert(student)
        shutil.rmtree(self._clean(student).parent, ignore_errors=True)
        remark = f"{remark} {self._run_remarks(student)}".strip()
        score, max_score, late = self._score(student)
        if read_received(self.course.root, self.assignment, student).get("late") and not late:
            remark = f"{remark} Canvas says that it was late.".strip()
        record = {"digest": digest, "score": score, "max_score": max_score, "remark": remark}
        return {**record, "seconds": round(time.perf_counter() - start, 3)}

    def _clean(self, student: str) -> Path:
        return self.course.root / ".mplab" / "clean" / student / self.assignment

    def _prepare(self, student: str) -> str:
        """Lay out what nbgrader is to see; the remark for the teacher."""
        submitted = self.course.root / "submitted" / student / self.assignment
        clean = self._clean(student)
        shutil.rmtree(clean, ignore_errors=True)
        clean.mkdir(parents=True)
        try:
            submission = read_submission(submitted, self._skeletons)
            notebooks = submission.notebooks
            remark = " ".join(submission.notes)
            missing = sorted(self._skeletons.keys() - notebooks.keys())
            remark += "".join(f" {name}.ipynb is missing." for name in missing)
            for notebook in notebooks.values() if remark else ():
                add_note(notebook, f"**Note:** {remark.strip()}")
        except Refused as reason:
            notebooks = {name: refusal(nb, str(reason)) for name, nb in self._skeletons.items()}
            remark = f"not graded: {reason}"
        else:
            for name, content in submission.files.items():
                path = clean / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for name, notebook in notebooks.items():
            nbformat.write(notebook, clean / f"{name}.ipynb")
        self._copy_timestamp(submitted, clean)
        return remark.strip()

    def _copy_timestamp(self, submitted: Path, clean: Path) -> None:
        """Hand on when it came in, if that is a time and not something else."""
        from nbgrader.utils import parse_utc

        path = submitted / "timestamp.txt"
        try:
            if path.is_symlink():
                return
            text = path.read_bytes()[:_TIMESTAMP_BYTES].decode("ascii").strip()
            parse_utc(text)
        except (OSError, ValueError, OverflowError, TypeError):
            return
        (clean / "timestamp.txt").write_text(text + "\n", encoding="ascii")

    def _convert(self, student: str) -> None:
        self._directory.student_id = student
        with one_engine(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SQLAlchemy's, about how nbgrader makes its rows
            steps = _rebuilt_autograde()(coursedir=self._directory, config=self._config, force=True)
            try:
                steps.start()
            except Exception as error:  # nbgrader's own tells only that there was one
                raise steps.failure or error.__context__ or error from error

    def _run_remarks(self, student: str) -> str:
        """Why a kernel ended early, or was interrupted, if one was."""
        graded = self.course.root / "autograded" / student / self.assignment
        notebooks = [nbformat.read(p, as_version=4) for p in sorted(graded.glob("*.ipynb"))]
        return " ".join(str(nb.metadata.get("mplab", {}).get("remark", "")) for nb in notebooks)

    def _score(self, student: str) -> tuple[float, float, bool]:
        """Points, those there are, and whether nbgrader knows that it came too late."""
        with one_engine(), self.course.gradebook() as gradebook:
            found = gradebook.find_submission(self.assignment, student)
            return float(found.score), float(found.max_score), found.total_seconds_late > 0

    def _extend(self, student: str) -> None:
        """Give a student the time that `extensions.csv` tells, before lateness is counted."""
        more = self.course.extensions(self.assignment).get(student)
        if more is None:
            return
        with one_engine(), warnings.catch_warnings(), self.course.gradebook() as gradebook:
            warnings.simplefilter("ignore")  # as in `_convert`
            gradebook.update_or_create_student(student)
            gradebook.update_or_create_submission(self.assignment, student)
            hours = more.total_seconds() / 3600
            gradebook.grant_extension(self.assignment, student, hours=hours)


@contextmanager
def one_engine() -> Iterator[None]:
    """Let nbgrader keep one connection pool while it opens the gradebook ten times.

    With a pool of its own each time, SQLAlchemy compiles every statement anew: a third of the
    grader's time.
    """
    from nbgrader import api

    original = api.create_engine

    def create_engine(url: str, **options: Any) -> Any:
        if url not in _ENGINES:
            if url.startswith("sqlite"):
                options["connect_args"] = {"timeout": _LOCK_SECONDS}
            _ENGINES[url] = original(url, **options)
        return _ENGINES[url]

    api.create_engine = create_engine
    try:
        yield
    finally:
        api.create_engine = original


_ENGINES: dict[str, Any] = {}

_STEPS = (
    "mplab.grading.execute.SandboxedExecute",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
)


@cache
def _rebuilt_autograde() -> Any:
    """Nbgrader's converter without its first pass, which takes out what `rebuild` never lets in.

    Made when first needed, since importing nbgrader takes a second.
    """
    from nbgrader.converters import Autograde
    from nbgrader.converters.base import BaseConverter

    class RebuiltAutograde(Autograde):
        failure: Exception | None = None

        def convert_single_notebook(self, notebook_filename: str) -> None:
            directory = self.coursedir
            graded = Path(self._format_dest(directory.assignment_id, directory.student_id))
            graded.mkdir(parents=True, exist_ok=True)
            notebook = shutil.copy(notebook_filename, graded)
            self._sanitizing = False
            self._init_preprocessors()
            try:
                BaseConverter.convert_single_notebook(self, notebook)
            except Exception as error:
                self.failure = error
                raise
            finally:
                self._sanitizing = True

    return RebuiltAutograde


# The journal -----------------------------------------------------------------------------
def _journal(course: Course, assignment: str, student: str) -> Path:
    return course.root / ".mplab" / "journal" / assignment / f"{student}.json"


def read_journal(course: Course, assignment: str, student: str) -> dict[str, Any]:
    """What the grader wrote about a submission; empty if it has not been graded.

    After a technical failure there is a remark, and no score.
    """
    try:
        record = json.loads(_journal(course, assignment, student).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _failed(course: Course, assignment: str, student: str) -> bool:
    """Whether the last try ended for a technical reason."""
    return bool(read_journal(course, assignment, student).get("failed"))


def _edition(course: Course, assignment: str, student: str) -> int:
    """When the journal of a submission was written; 0 if it was not."""
    path = _journal(course, assignment, student)
    return path.stat().st_mtime_ns if path.exists() else 0


def _read_line(course: Course, assignment: str, student: str) -> Line:
    record = read_journal(course, assignment, student)
    remark = str(record.get("remark", "not graded yet: the grader was killed"))
    seconds = float(record.get("seconds", 0.0))
    return Line(student, record.get("score"), record.get("max_score"), remark, seconds, True)


def _is_done(course: Course, assignment: str, student: str) -> bool:
    """Whether the gradebook holds the grade of exactly this submission."""
    record = read_journal(course, assignment, student)
    graded = course.root / "autograded" / student / assignment
    return graded.is_dir() and record.get("digest") == _digest(course, assignment, student)


def _digest(course: Course, assignment: str, student: str) -> str:
    """What a grade depends on: the submission and its time, the release, the exercises, the key."""
    digest = hashlib.sha256(course.key())
    more = course.extensions(assignment).get(student)
    late = bool(read_received(course.root, assignment, student).get("late"))
    if more is not None or late:
        digest.update(repr((more, late)).encode())
    folder = course.root / "submitted" / student / assignment
    release = course.root / "release" / assignment
    own = [course.root / "checks" / assignment / "exercises.py", *sorted(release.glob("*"))]
    for path in [*own, *_entries(folder)]:
        status = path.lstat()
        digest.update(
            f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode("utf-8", "replace")
        )
    return digest.hexdigest()


def _entries(folder: Path, limit: int = 2000) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        found += [Path(place, name) for name in sorted(names)]
        if len(found) > limit:
            break
    return found[:limit]
