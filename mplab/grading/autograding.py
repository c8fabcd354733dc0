"""Grade every submission of an assignment: in parallel, resumable, none at another's cost."""

from __future__ import annotations

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
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from mplab.course.files import replace_file
from mplab.grading import tries
from mplab.grading._cluster import TELL_SECONDS, Cluster
from mplab.grading._database import Claims, disconnect, one_engine
from mplab.grading._isolation import die_with_parent
from mplab.grading._kept import Kept, read_answers, read_kept
from mplab.grading._notebooks import Refused, add_note, read_submission, refusal
from mplab.grading._times import claims_its_time, copy_timestamp, read_received
from mplab.grading._told import listening
from mplab.grading.execute import close_lanes
from mplab.grading.folder import Course, is_student_id
from mplab.grading.sandbox import require_sandbox
from mplab.grading.teams import counting, superseded
from mplab.numbers.formats import FP16
from mplab.numbers.rounding import round_to

_WAIT_SECONDS = 1.0
"""Seconds between two looks at what other graders hold."""

_TRIES = 3
"""How often a submission is given to a grader that ends without a word about it."""

_PAUSES = (1.0, 5.0)
"""Seconds before a submission is tried again after a technical failure."""


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
    any id of plain letters. Of a team, one counts.
    """
    known = {student.id for student in course.roster()}
    folders = sorted((course.root / "submitted").glob(f"*/{assignment}"))
    names = [folder.parent.name for folder in folders]
    usable = [name for name in names if is_student_id(name) and (not known or name in known)]
    others = superseded(course, assignment)
    return [n for n in usable if n not in others], [n for n in names if n not in usable]


def autograde(
    course: Course,
    assignment: str,
    *,
    students: Sequence[str] = (),
    shard: tuple[int, int] = (0, 1),
    jobs: int = 1,
    dask: str = "",
    force: bool = False,
    exercise: str = "",
    trusted: bool = False,
    tell: Callable[[str], None] = print,
) -> list[Line]:
    """Grade the submissions that have not been graded as they are now.

    Any number of calls may grade an assignment at once, on all hosts that share the course's
    folder and database: each submission is one call's, and each call ends when all are graded.

    A technical failure, such as a gradebook that stays locked or a grader that is killed, is no
    grade: such a submission is tried again, and if that does not help, the next call grades it.

    Args:
        course: the course.
        assignment: a released assignment.
        students: ids to grade, each standing for its team; all that have submitted if empty.
        shard: i and n: only the i-th of n parts, counted from 0. A student's part depends on the id
            alone.
        jobs: processes, each with a share of its own.
        dask: the address of a Dask scheduler whose workers grade instead.
        force: also those that have been graded. The same answers get the same points.
        exercise: grade anew, in all that have been graded, this exercise only: the notebook runs
            whole, and the others keep their points. Answers that have changed are graded whole.
        trusted: run without a sandbox.
        tell: takes lines about what goes on.

    Returns:
        One line per submission. Without a score, it could not be graded for a technical reason.

    Raises:
        NoSandbox: there is none, and the submissions are not trusted.
        ValueError: the gradebook cannot be written, the scheduler is not there, `shard` is no part,
            `exercise` is not of the assignment, or `students` holds an id without a submission.
    """
    part, parts = shard
    if not 0 <= part < parts:
        raise ValueError(
            f"autograde: shard must be i/n with 0 <= i < n; got {part}/{parts}. Count from 0."
        )
    if not trusted and not dask:
        require_sandbox()
    _rebuilt_autograde()  # imports nbgrader once, before the processes part
    _require_released(course, assignment, exercise)
    chosen = _chosen(course, assignment, students, shard, tell)
    if claimed := [name for name in chosen if claims_its_time(course.root, assignment, name)]:
        tell(
            f"{len(claimed)} submissions brought a timestamp.txt, which a student can write. To "
            f"have the file system's time, collect them: mplab grade collect {assignment} INBOUND"
        )
    old = {
        name: _edition(course, assignment, name)
        for name in chosen
        if force or exercise or _failed(course, assignment, name)
    }

    def is_open(name: str) -> bool:
        return _is_open(course, assignment, name, old.get(name))

    def is_left(name: str) -> bool:
        failed = _failed(course, assignment, name)
        return is_open(name) and not (
            failed and _edition(course, assignment, name) != old.get(name)
        )

    todo = [name for name in chosen if is_open(name)]
    lines = {name: _read_line(course, assignment, name) for name in set(chosen) - set(todo)}
    graders: _Shares | Cluster = _Shares(course, assignment, old, trusted, exercise)
    if dask:
        graders = Cluster(dask, course.root, assignment, old, trusted, exercise)
    try:
        _grade_all(_open_gradebook(course, assignment), graders, todo, jobs, is_left, tell)
    except OperationalError as error:
        raise ValueError(
            f"autograde: the gradebook must be open for writing; got {error.orig}. End what uses "
            "it, such as formgrader, and run the same command again."
        ) from error
    finally:
        disconnect()
    for name in todo:
        lines[name] = _read_line(course, assignment, name)._replace(done_before=False)
    return [lines[name] for name in sorted(lines)]


def _require_released(course: Course, assignment: str, exercise: str) -> None:
    course.skeletons(assignment)
    if exercise not in ("", *(known := course.assignment(assignment).graded)):
        raise ValueError(
            f"autograde: exercise must be one of {', '.join(known)}; got {exercise!r}. Take the id "
            "of its check."
        )


def _chosen(
    course: Course,
    assignment: str,
    students: Sequence[str],
    shard: tuple[int, int],
    tell: Callable[[str], None],
) -> list[str]:
    """Ids with a submission that are named, and in this part."""
    part, parts = shard
    present, strangers = submitted_students(course, assignment)
    owners = counting(course, assignment)
    wanted = {owners.get(name, name) for name in students}
    for name in strangers:
        tell(f"{name[:80]!a}: not graded: no student of the roster has this id")
    for name, other in superseded(course, assignment).items():
        tell(f"{name}: not graded: {other} of the same team handed in later, or stands first")
    if missing := sorted(wanted - set(present)):
        raise ValueError(f"--student must be an id with a submission; got {', '.join(missing)}.")
    return [
        name
        for name in present
        if (not wanted or name in wanted) and zlib.crc32(name.encode()) % parts == part
    ]


def _grade_all(
    claims: Claims,
    graders: _Shares | Cluster,
    names: list[str],
    jobs: int,
    left: Callable[[str], bool],
    tell: Callable[[str], None],
) -> None:
    """Have all graded, here or by those who hold them; `left` says what is still to be graded."""

    def waited(names: list[str]) -> tuple[list[str], list[str]]:
        """Those that are left, and those of them that nobody holds: at least one."""
        told = False
        while names := list(filter(left, names)):
            if free := claims.free(names):
                return names, free
            if not told:
                tell(f"{len(names)} submissions are with other graders, and are waited for")
            told = True
            time.sleep(_WAIT_SECONDS)
        return [], []

    tries, suspects, rest = Counter[str](), list[str](), names
    while (found := waited(rest))[0]:
        rest, free = found
        if again := sum(tries[name] > 0 for name in free):
            tell(f"a grader ended early; {again} submissions are graded again")
        tries.update(free)
        suspects += graders.grade(rest, 1 if suspects else jobs, tell)
        rest = [name for name in rest if name not in suspects and tries[name] < _TRIES]
    for name in suspects:  # each alone, so that none is lost to another
        if waited([name])[0]:
            graders.grade([name], 1, tell)


class _Shares:
    """Processes of their own, each with every so-many-th submission."""

    def __init__(
        self, course: Course, assignment: str, old: Mapping[str, int], trusted: bool, exercise: str
    ) -> None:
        self._course, self._assignment, self._old = course, assignment, old
        self._trusted, self._exercise = trusted, exercise
        round_to(np.zeros(1), FP16)  # imports numba once, before the processes part
        self._context = multiprocessing.get_context("fork")
        self._count = self._context.Value("i", 0)

    def grade(self, names: list[str], jobs: int, tell: Callable[[str], None]) -> list[str]:
        """Grade these, and tell now and then how many are done.

        Returns:
            Those that a grader was at when it was killed.
        """
        disconnect()
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
                if time.monotonic() - told > TELL_SECONDS:
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
        die_with_parent()
        grader = Grader(
            self._course, self._assignment, trusted=self._trusted, exercise=self._exercise
        )
        try:
            for number, name in enumerate(names):
                place.value = number
                grader.grade_open(name, self._old.get(name))
                with self._count.get_lock():
                    self._count.value += 1
            place.value = len(names)
        except KeyboardInterrupt:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        finally:
            close_lanes()


def _open_gradebook(course: Course, assignment: str) -> Claims:
    """Put the roster and the table of claims into the gradebook."""
    claims = Claims(course, assignment)
    for tries_left in (2, 1, 0):
        try:
            with one_engine():
                course.record_students()
            claims.prepare()
        except (IntegrityError, ProgrammingError):  # another process writes the same
            if not tries_left:
                raise
        else:
            break
    return claims


class Grader:
    """Grades one submission after the other with nbgrader's own steps.

    Args:
        course: the course.
        assignment: a released assignment.
        trusted: run without a sandbox.
        exercise: the only one whose points change; all if empty.
    """

    def __init__(
        self, course: Course, assignment: str, *, trusted: bool = False, exercise: str = ""
    ) -> None:
        self.course, self.assignment = course, assignment
        self._where, self._exercise = (course.root, assignment), exercise
        self._source = course.root / "source" / assignment
        self._claims = Claims(course, assignment)
        self._skeletons = course.skeletons(assignment)
        self._config = course.config()
        self._config.SandboxedExecute.trusted = trusted
        # A notebook rebuilt from the release needs no further look at its metadata.
        self._config.Autograde.autograde_preprocessors = list(_STEPS)
        self._directory = course.directory(
            assignment_id=assignment, submitted_directory=os.path.join(".mplab", "clean")
        )

    def grade_open(self, student: str, old: int | None) -> None:
        """Grade a submission, unless another grader has it or has just graded it.

        Args:
            student: whose.
            old: the edition of the journal that counts as not written.
        """
        try:
            with self._claims.holding(student) as held:
                if held and _is_open(self.course, self.assignment, student, old):
                    self.grade(student)
        except SQLAlchemyError as error:
            if not read_journal(self.course, self.assignment, student):
                record, before = _failure(error), tries.begin(*self._where, student)
                tries.end(*self._where, before, record["reason"])
                self._write(student, record)

    def grade(self, student: str) -> None:
        """Grade a submission, and write into the journal that it is done.

        Whatever the submission is, it ends in the gradebook: with its points, or with none
        and the reason. Only if that fails for another reason than the submission itself, three
        times, does the journal say that it is not graded.
        """
        kept = read_kept(self._graded(student), self._source, self._exercise)
        for pause in (*_PAUSES, None):
            _journal(self.course, self.assignment, student).unlink(missing_ok=True)  # not done
            before = tries.begin(*self._where, student)
            try:
                record = self._grade(student, kept)
            except Exception as error:  # a refusal is none: what comes here is not the student's
                record = _failure(error)
            tries.end(*self._where, before, record.get("reason", ""))
            if "reason" not in record or pause is None:
                break
            time.sleep(pause)
        self._write(student, record)

    def _write(self, student: str, record: dict[str, Any]) -> None:
        with suppress(OSError):  # a grade that cannot be written down counts as not given
            content = json.dumps(record).encode()
            replace_file(_journal(self.course, self.assignment, student), content)

    def _graded(self, student: str) -> Path:
        return self.course.root / "autograded" / student / self.assignment

    def _grade(self, student: str, kept: Kept) -> dict[str, Any]:
        """Grade a submission once; what the journal is to say of it."""
        digest = _digest(self.course, self.assignment, student)
        start = time.perf_counter()
        remark = self._prepare(student)
        outputs = (
            kept.outputs if kept.answers == read_answers(self._clean(student), self._source) else {}
        )
        self._config.SandboxedExecute.kept = outputs
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
            (clean / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="ascii")
        copy_timestamp(submitted, clean)
        return remark.strip()

    def _convert(self, student: str) -> None:
        self._directory.student_id = student
        with one_engine(), listening() as told, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SQLAlchemy's, about how nbgrader makes its rows
            steps = _rebuilt_autograde()(coursedir=self._directory, config=self._config, force=True)
            try:
                steps.start()
            except Exception as error:  # nbgrader's own tells only that there was one
                cause = steps.failure or error.__context__
                raise cause or RuntimeError(told.reason(error)) from error

    def _run_remarks(self, student: str) -> str:
        """Why a kernel ended early, or was interrupted, if one was."""
        graded = sorted(self._graded(student).glob("*.ipynb"))
        notebooks = [json.loads(path.read_bytes()) for path in graded]
        return " ".join(str(nb["metadata"].get("mplab", {}).get("remark", "")) for nb in notebooks)

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


def _failure(error: Exception) -> dict[str, Any]:
    """What the journal is to say of a submission that could not be graded."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    remark = f"not graded yet, for a technical reason: {reason}"
    return {"failed": True, "reason": reason, "remark": remark}


def _is_open(course: Course, assignment: str, student: str, old: int | None) -> bool:
    """Whether a submission is to be graded: `old` is the edition that counts as not written."""
    written = old is None or _edition(course, assignment, student) != old
    return not (written and _is_done(course, assignment, student))


def _edition(course: Course, assignment: str, student: str) -> int:
    """When the journal of a submission was written; 0 if it was not."""
    path = _journal(course, assignment, student)
    return path.stat().st_mtime_ns if path.exists() else 0


def _read_line(course: Course, assignment: str, student: str) -> Line:
    record = read_journal(course, assignment, student)
    remark = str(record.get("remark", "not graded yet: the grader was killed, or its disk full"))
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
