"""The gradebook's database: a pool of connections a process, and who grades which submission."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from sqlalchemy import Boolean, Column, Float, MetaData, String, Table, func, insert, select, update
from sqlalchemy import create_engine as new_engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import scoped_session

if TYPE_CHECKING:
    from mplab.grading.folder import Course

_LOCK_SECONDS = 30
"""How long SQLite waits for a gradebook that another program has locked."""

_BEAT_SECONDS = 20.0
"""How often a grader says that it is still at a submission."""

_SILENT_SECONDS = 120.0
"""How long a grader on another host is silent before its submission is taken over."""

_UNSEEN_SECONDS = 60.0
"""How long a file of another host may be unseen here: NFS keeps what it knows of a folder so."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A number of this machine that no other has, even of the same name; new with each start."""

_CLAIMS = Table(
    "mplab_claims",
    MetaData(),
    Column("assignment", String(64), primary_key=True),
    Column("student", String(64), primary_key=True),
    Column("owner", String(255), nullable=False),
    Column("held", Boolean, nullable=False),
    Column("beat", Float(53), nullable=False),
)

_ENGINES: dict[str, Any] = {}

_GRADEBOOKS: dict[tuple[Any, ...], Any] = {}
"""The first that was opened of each: what has looked at the schema and the course."""


def _create_engine(url: str, **options: Any) -> Any:
    """The pool of this process for a database."""
    if url not in _ENGINES:
        if url.startswith("sqlite"):
            options["connect_args"] = {"timeout": _LOCK_SECONDS}
        _ENGINES[url] = new_engine(url, **options)
    return _ENGINES[url]


@contextmanager
def one_engine() -> Iterator[None]:
    """Let nbgrader keep one connection pool, and look at the schema once, in all its steps.

    It opens the gradebook eight times for a submission. With a pool of its own each time,
    SQLAlchemy compiles every statement anew; and each time it connects, and asks for every table
    and the course.
    """
    from nbgrader import api

    book = api.Gradebook
    before = api.create_engine, book.__init__, book.close
    first = book.__init__

    def reopen(opened: Any, *what: Any) -> None:
        if known := _GRADEBOOKS.get(what):
            vars(opened).update(vars(known), db=scoped_session(known.db.session_factory))
        else:
            first(opened, *what)
            _GRADEBOOKS[what] = opened

    api.create_engine, book.__init__ = _create_engine, reopen
    book.close = lambda opened: opened.db.remove()
    try:
        yield
    finally:
        api.create_engine, book.__init__, book.close = before


def disconnect() -> None:
    """Close the pools of this process: a connection must not cross a fork."""
    _GRADEBOOKS.clear()
    while _ENGINES:
        _ENGINES.popitem()[1].dispose()


class Claims:
    """Who grades which submission of an assignment: rows in the gradebook's database.

    Rows, since all graders share one database anyway: it writes a row whole or not at all, and
    has one clock. A lock file would depend on how each host mounts the shared folder, and its age
    on two clocks. A row stays when its submission is graded, so that another host knows of it
    before it sees the files.

    Args:
        course: the course.
        assignment: an assignment of it.
    """

    def __init__(self, course: Course, assignment: str) -> None:
        self._url, self._assignment = course.directory().db_url, assignment
        self._host = _host()
        self._owner = f"{self._host}:{os.getpid()}"

    def prepare(self) -> None:
        """Make the table, if there is none."""
        _CLAIMS.create(_create_engine(self._url), checkfirst=True)

    @contextmanager
    def holding(self, student: str) -> Iterator[bool]:
        """Hold a submission and keep saying so; False if another grader has it."""
        if not self._take(student):
            yield False
            return
        done = threading.Event()
        beats = threading.Thread(target=self._keep, args=(student, done), daemon=True)
        beats.start()
        try:
            yield True
        finally:
            done.set()
            beats.join()
            self._beat(student, held=False)

    def free(self, students: Sequence[str]) -> list[str]:
        """Those that could be held now."""
        with _create_engine(self._url).connect() as database:
            rows = database.execute(
                select(_CLAIMS).where(_CLAIMS.c.assignment == self._assignment)
            ).all()
            now = _now(database)
        taken = {row.student for row in rows if not self._is_free(row, now)}
        return [name for name in students if name not in taken]

    def _row(self, student: str) -> tuple[Any, ...]:
        return (_CLAIMS.c.assignment == self._assignment, _CLAIMS.c.student == student)

    def _take(self, student: str) -> bool:
        """Of all that try at once, one succeeds: it inserts the row, or changes what it read."""
        with _create_engine(self._url).begin() as database:
            now = _now(database)
            row = database.execute(select(_CLAIMS).where(*self._row(student))).first()
            mine = {"owner": self._owner, "held": True, "beat": now}
            if row is None:
                key = {"assignment": self._assignment, "student": student}
                try:
                    database.execute(insert(_CLAIMS).values(**key, **mine))
                except IntegrityError:
                    database.rollback()
                    return False
                return True
            if not self._is_free(row, now):
                return False
            as_read = [_CLAIMS.c[name] == getattr(row, name) for name in mine]
            change = update(_CLAIMS).where(*self._row(student), *as_read).values(**mine)
            return bool(database.execute(change).rowcount)

    def _is_free(self, row: Any, now: float) -> bool:
        host, _, process = row.owner.rpartition(":")
        if host != self._host:
            return now - row.beat > (_SILENT_SECONDS if row.held else _UNSEEN_SECONDS)
        gone = row.owner == self._owner or not _runs(int(process))
        return not row.held or gone or now - row.beat > _SILENT_SECONDS

    def _keep(self, student: str, done: threading.Event) -> None:
        while not done.wait(_BEAT_SECONDS):
            self._beat(student, held=True)

    def _beat(self, student: str, *, held: bool) -> None:
        mine = (*self._row(student), _CLAIMS.c.owner == self._owner)
        # A beat that is lost costs others time, and no grade.
        with suppress(SQLAlchemyError), _create_engine(self._url).begin() as database:
            database.execute(update(_CLAIMS).where(*mine).values(held=held, beat=_now(database)))


def _now(database: Any) -> float:
    """Seconds by the database's clock."""
    time = database.scalar(select(func.now()))
    return float((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


def _host() -> str:
    """This machine since it started, whatever others are called.

    A container with processes of its own is another one.
    """
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
    space = "/proc/self/ns/pid"
    return f"{socket.gethostname()}/{boot}/{os.readlink(space) if os.path.exists(space) else ''}"


def _runs(process: int) -> bool:
    """Whether a process of this machine has not ended."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
