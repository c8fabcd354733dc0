"""Collect submissions from a folder or a zip, as learning platforms make them."""

import hashlib
import io
import json
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from mplab.course.files import replace_file
from mplab.grading.folder import Course, Student, is_student_id
from mplab.grading.submissions import ANOTHER, Refused, open_regular
from mplab.grading.times import read_times, received

_FILE_BYTES, _STUDENT_BYTES, _STUDENT_FILES = 20 << 20, 64 << 20, 1000
"""The limits of a delivery; bytes are counted while unpacking, whatever an archive states."""

_CHUNK = 1 << 20

_OLDER, _LINES = 5, 20  # per student: older deliveries kept, and problems reported

_STAMP = "timestamp.txt"
"""Where nbgrader looks for the time of a submission; written here, never taken from a student."""

_SECRET = "submission_secret.txt"
"""What `nbgrader submit` adds, so that only its author can fetch the feedback."""

_MOODLE = re.compile(r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+_(?P<file>.*)")

_CANVAS = re.compile(
    r"(?P<name>[^_]+?)(?P<late>_LATE)?_(?P<number>\d+)_(?P<order>\d+)_(?P<file>.+)"
)

_EXCHANGE = re.compile(r"(?P<id>.+)\+(?P<assignment>[^+]+)\+(?P<time>\d{4}-[^+]+)(?:\+[^+]*)?")


class _File(NamedTuple):
    """A file of a download, not read yet.

    Args:
        path: its path in the download.
        open: opens it; raises `Refused` with the reason if it must not be read.
        time: its date in the download; None if there is none.
        clock: the date's source: "zip", "folder" or "exchange"; ANOTHER for another account's;
            empty if it must not be read.
    """

    path: PurePosixPath
    open: Callable[[], IO[bytes]]
    time: datetime | None = None
    clock: str = ""


@dataclass
class _Delivery:
    """The files that one student handed in at one time.

    Args:
        owner: the student's id.
        label: its name in the download.
        number: the platform's number of the student; empty if it gives none.
        canvas: whether Canvas named it.
        late: whether its name says that it was late.
        older: whether a newer version is known.
        files: its files, each with the student's name for it.
    """

    owner: str
    label: str
    number: str = ""
    canvas: bool = False
    late: bool = False
    older: bool = False
    files: list[tuple[str, _File]] = field(default_factory=list)

    @property
    def time(self) -> datetime | None:
        """The time of its newest file, by the dates of the download."""
        return max((file.time for _, file in self.files if file.time), default=None)


class Collected(NamedTuple):
    """The result of a collection: students, and problems that the teacher should look at."""

    students: list[str]
    problems: list[str]


def collect(
    course: Course, assignment: str, place: Path, *, times: Path | None = None
) -> Collected:
    """Copy submissions to `submitted/ID/ASSIGNMENT`: notebooks, and files that `FILES` names.

    Accepted are: a folder per student, named by id; a file per student, whose name begins
    with the id; Moodle's "First Last_123_assignsubmission_file_/…"; Canvas's
    "lastfirst_123_456_file"; the inbound folder of nbgrader's exchange; and a student's own zip
    inside any of them. If a student delivered several times, the newest counts.

    The time of a submission comes from `times`; else, for the exchange, from the file system;
    else, as the last resort, from the dates in the zip. Canvas's names say only who was late. A
    student's own `timestamp.txt` is ignored.

    Args:
        course: the course, with its roster.
        assignment: where to put them.
        place: a folder or a zip file.
        times: Moodle's grading worksheet (CSV), Canvas's list of submissions (JSON), or a CSV
            with the columns id,time.

    Returns:
        The students found, and what could not be collected, with the reason. Earlier submissions
        and older deliveries are kept in `.mplab/replaced`.

    Raises:
        ValueError: `place` or `times` is none of these or cannot be read, or the assignment is
            unknown.
    """
    released = (path.name for path in (course.root / "release" / assignment).glob("*"))
    named = {*course.assignment(assignment).files, *released, _SECRET, _STAMP}
    known = read_times(times) if times else {}
    sources = []
    with ExitStack() as stack:
        deliveries, problems = _deliveries(_files(place, stack), course.roster(), assignment)
        for owner in sorted(deliveries):
            source, told = _bring_in(course, assignment, deliveries[owner], known, named)
            sources.append(source)
            problems += told[:_LINES]
            if len(told) > _LINES:
                problems.append(f"{owner}: {len(told) - _LINES} more of the same kind")
    if "zip" in sources:
        problems.append(
            f"the times of {sources.count('zip')} by the platform: there are only the dates in the "
            "zip, read as this machine's local time"
        )
    return Collected(sorted(deliveries), problems)


def _shown(text: str) -> str:
    return ascii(text[:100])


# Whose is it? --------------------------------------------------------------------------------
def _deliveries(
    files: Iterable[_File], roster: Sequence[Student], assignment: str
) -> tuple[dict[str, list[_Delivery]], list[str]]:
    """Group the files into deliveries by student, and list the files that are nobody's."""
    found: dict[tuple[str, str], _Delivery] = {}
    owners: dict[str, str | None] = {}
    problems: list[str] = []
    for file in files:
        top, *rest = file.path.parts
        exchange = _EXCHANGE.fullmatch(top)
        if exchange and exchange["assignment"] != assignment:
            continue
        if top not in owners:
            owners[top] = _of_account(exchange["id"], roster) if exchange else identify(top, roster)
            reason = "no student of the roster is recognised in it"
            if file.clock == ANOTHER:
                owners[top], reason = None, ANOTHER
            if owners[top] is None:
                problems.append(f"{_shown(top)}: {reason}")
        owner = owners[top]
        if owner is None:
            continue
        moodle, canvas = _MOODLE.fullmatch(top), None if rest else _CANVAS.fullmatch(top)
        platform = moodle or canvas
        name = "/".join(rest) or (platform["file"] if platform else top)
        number = platform["number"] if platform else ""
        alone = rest or top.lower().endswith(".zip")  # else one of several files side by side
        key = f"number {number}" if number else f"top {top}" if alone else ""
        delivery = found.setdefault((owner, key), _Delivery(owner, top, number, bool(canvas)))
        delivery.late |= bool(canvas and canvas["late"])
        delivery.files.append((name, file))
    by_owner: dict[str, list[_Delivery]] = {}
    for delivery in found.values():
        by_owner.setdefault(delivery.owner, []).extend(_versions(delivery))
    return by_owner, problems


def _versions(delivery: _Delivery) -> list[_Delivery]:
    """Split a delivery into its newest version and one delivery for each older file.

    Canvas numbers a file that is handed in again: a1.ipynb, a1-1.ipynb. The second number in
    front of it grows with time.
    """
    if not delivery.canvas:
        return [delivery]

    def age(entry: tuple[str, _File]) -> int:
        canvas = _CANVAS.fullmatch(entry[1].path.name)
        return int(canvas["order"][:18]) if canvas else 0

    again: dict[str, list[tuple[str, _File]]] = {}
    for entry in sorted(delivery.files, key=age):
        again.setdefault(re.sub(r"-\d+(?=\.\w+$)", "", entry[0]), []).append(entry)
    delivery.files, older = [], []
    for name, entries in again.items():
        delivery.files.append((name, entries[-1][1]))
        if len(entries) > 1:
            delivery.label = entries[-1][1].path.name
        older += [
            replace(delivery, label=file.path.name, older=True, files=[(name, file)])
            for _, file in entries[:-1]
        ]
    return [*older, delivery]


def _of_account(name: str, roster: Sequence[Student]) -> str | None:
    """Return the student of this account; ids are matched exactly, not by prefix."""
    known = any(student.id == name for student in roster) if roster else is_student_id(name)
    return name if known else None


def identify(name: str, roster: Sequence[Student]) -> str | None:
    """Find the student's id from the name of a file or folder; None unless exactly one fits.

    Examples:
        >>> ada = Student("s01", "Ada", "Löwe", "ada@example.org")
        >>> identify("s01", [ada]), identify("Ada Löwe_17_assignsubmission_file_", [ada])
        ('s01', 's01')
        >>> identify("loweada_LATE_5_6_a1.ipynb", [ada]), identify("s010", [ada])
        ('s01', None)
    """
    stem = name.removesuffix(".ipynb").removesuffix(".zip")
    if not roster:
        return stem if is_student_id(stem) else None
    begins = [s.id for s in roster if stem == s.id or stem.startswith((s.id + "_", s.id + "-"))]
    if begins:
        return max(begins, key=len)
    match = _MOODLE.fullmatch(name) or _CANVAS.fullmatch(name)
    if not match:
        return None
    wanted = _plain(match["name"])
    fitting = [
        s.id
        for s in roster
        if wanted in (_plain(s.first_name + s.last_name), _plain(s.last_name + s.first_name))
    ]
    return fitting[0] if len(fitting) == 1 else None


def _plain(name: str) -> str:
    """Remove accents, blanks and case from a name, as platforms do in file names."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(c for c in decomposed.casefold() if c.isalnum())


# What is in it? ------------------------------------------------------------------------------
def _files(place: Path, stack: ExitStack) -> Iterator[_File]:
    """List the files of a download.

    Raises:
        ValueError: it is neither a folder nor a zip that can be read.
    """
    if place.is_dir():
        return _folder_files(place)
    try:
        return _zip_files(stack.enter_context(zipfile.ZipFile(place)))
    except Exception as error:  # of many kinds: zipfile lets through what its parts raise
        raise ValueError(
            f"collect: PLACE must be a folder or a zip file; got {place} "
            f"({type(error).__name__}: {error}). Download it again."
        ) from error


def _folder_files(folder: Path) -> Iterator[_File]:
    for top in sorted(folder.iterdir()):
        name = PurePosixPath(top.name)
        exchange = _EXCHANGE.fullmatch(top.name)
        try:
            whose = top.lstat()
            # `rglob` does not follow links to folders
            paths = top.rglob("*") if stat.S_ISDIR(whose.st_mode) else [top]
            found = [(path, path.lstat()) for path in sorted(islice(paths, _STUDENT_FILES + 1))]
        except (OSError, RecursionError) as error:  # of this delivery, whose author may change it
            reason = f"it cannot be read ({type(error).__name__})"
            yield _File(name, partial(_refuse, reason))
            continue
        if exchange and not _is_of(whose, exchange["id"]):  # else it would be a submission
            yield _File(name, partial(_refuse, ANOTHER), clock=ANOTHER)
            continue
        for path, status in found:
            if stat.S_ISDIR(status.st_mode):
                continue
            name = PurePosixPath(path.relative_to(folder).as_posix())
            # The file system dates a change of the inode; anybody can set the other dates.
            seconds = status.st_ctime if exchange else status.st_mtime
            opener = partial(open_regular, path, whose.st_uid if exchange else None)
            clock = "exchange" if exchange else "folder"
            yield _File(name, opener, datetime.fromtimestamp(seconds, UTC), clock)


def _refuse(reason: str) -> IO[bytes]:
    raise Refused(reason)


def _is_of(status: os.stat_result, user: str) -> bool:
    """Whether a file belongs to a user; true if this machine does not know the user."""
    try:
        return pwd.getpwnam(user).pw_uid == status.st_uid
    except KeyError:
        return True


def _zip_files(archive: zipfile.ZipFile) -> Iterator[_File]:
    for info in archive.infolist():
        text = info.filename.replace("\\", "/")
        name = PurePosixPath(text)
        if text.endswith("/") or "__MACOSX" in name.parts:
            continue
        if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in text:
            refused = partial(_refuse, "its path leads out of the zip")
            yield _File(PurePosixPath(name.name or "?"), refused)
        else:
            yield _File(name, partial(_open_entry, archive, info), _zip_time(info), "zip")


def _open_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    if stat.S_ISLNK(info.external_attr >> 16):
        raise Refused("it is a link")
    # zipfile unpacks the other methods whole before it returns a single byte.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused("it is packed by an unusual method; pack it as an ordinary zip")
    return archive.open(info)


def _zip_time(info: zipfile.ZipInfo) -> datetime | None:
    """Return the date of an entry, which has no zone; None for 1980, where the format begins."""
    try:
        return datetime(*info.date_time).astimezone(UTC) if info.date_time[0] > 1980 else None
    except (ValueError, OverflowError):
        return None


class _Taken:
    """The files taken from a delivery, by the parts of their paths, and why others are left out."""

    def __init__(self, delivery: _Delivery, named: Collection[str]) -> None:
        self._named, self._others = named, list[str]()
        self.files: dict[tuple[str, ...], bytes] = {}
        self.problems: list[str] = []
        self._folders: set[tuple[str, ...]] = set()
        self._room = _STUDENT_BYTES
        self._take(delivery.files, packed=False)
        if self._others:
            names = ", ".join(_shown(name) for name in self._others[:5])
            self.problems.append(
                f"{delivery.owner}: left out, being no notebook and not in FILES of exercises.py: "
                f"{names}{', …' * (len(self._others) > 5)}"
            )

    def _take(self, files: Sequence[tuple[str, _File]], *, packed: bool) -> None:
        """Take notebooks first, so that they are taken whatever lies beside them."""
        if len(files) > _STUDENT_FILES:
            self.problems.append(f"only {_STUDENT_FILES} of {len(files)} files are looked at")
        ordered = sorted(files, key=lambda entry: not entry[0].endswith(".ipynb"))
        for name, file in ordered[:_STUDENT_FILES]:
            path = PurePosixPath(name)
            kinds = (".ipynb",) if packed else (".ipynb", ".zip")
            if any(part.startswith(".") for part in path.parts):
                continue
            wanted = path.suffix.lower() in kinds or path.name in self._named
            if not wanted and file.clock:  # else `open` says what is wrong with it
                self._others.append(str(file.path))
                continue
            if self._room <= 0:
                self.problems.append(
                    f"{_shown(name)} and what follows: more than {_STUDENT_BYTES >> 20} MiB in all"
                )
                return
            try:
                content = self._read(file)
                if name.lower().endswith(".zip") and not packed:
                    self._unpack(content)
                else:
                    self._put(name, content)
            except Refused as reason:
                self.problems.append(f"{_shown(str(file.path))}: {reason}")

    def _read(self, file: _File) -> bytes:
        """Read a file up to the limits, whatever size an archive states."""
        content = bytearray()
        try:
            with file.open() as stream:
                while chunk := stream.read(_CHUNK):
                    self._room -= len(chunk)
                    content += chunk
                    if len(content) > _FILE_BYTES or self._room < 0:
                        break
        except Refused:
            raise
        except Exception as error:  # of many kinds: zipfile lets through what its parts raise
            raise Refused(f"it cannot be unpacked ({type(error).__name__})") from error
        if len(content) > _FILE_BYTES:
            raise Refused(f"it has more than {_FILE_BYTES >> 20} MiB")
        if self._room < 0:
            raise Refused(f"more than {_STUDENT_BYTES >> 20} MiB in all")
        return bytes(content)

    def _unpack(self, packed: bytes) -> None:
        """Unpack a student's zip; a zip inside it stays as it is."""
        if packed.count(b"PK\1\2") > _STUDENT_FILES:  # before a list of them fills the memory
            raise Refused(f"it lists more than {_STUDENT_FILES} files")
        try:
            archive = zipfile.ZipFile(io.BytesIO(packed))
        except Exception as error:  # as above
            raise Refused(f"it is no zip that can be read ({type(error).__name__})") from error
        with archive:
            self._take([(str(file.path), file) for file in _zip_files(archive)], packed=True)

    def _put(self, name: str, content: bytes) -> None:
        parts = tuple(_safe_parts(name))
        above = {parts[:i] for i in range(1, len(parts))}
        if parts in self.files or parts in self._folders or above & self.files.keys():
            raise Refused("another file or folder has this name")
        if parts != (_STAMP,):
            self.files[parts] = content
            self._folders |= above


# Where does it go? ---------------------------------------------------------------------------
def _bring_in(
    course: Course,
    assignment: str,
    deliveries: Sequence[_Delivery],
    known: Mapping[tuple[str, str], datetime],
    named: Collection[str],
) -> tuple[str, list[str]]:
    """Store a student's newest delivery that holds files, and keep the others.

    Returns:
        The source of its time, and the problems found.
    """
    long_ago = datetime.min.replace(tzinfo=UTC)
    ranked = sorted(deliveries, key=lambda d: (not d.older, d.time or long_ago, d.label))
    problems: list[str] = []
    counts: _Delivery | None = None
    source = ""
    for delivery in reversed(ranked[-_OLDER - 1 :]):
        taken = _Taken(delivery, named)
        problems += taken.problems
        if counts is None and (taken.files or delivery is ranked[0]):
            counts = delivery
            stamp, source = _came_in(delivery, known)
            _store(course, assignment, delivery, taken.files, stamp, source, problems)
        elif taken.files:
            _keep(course, f"{delivery.owner}-{assignment}", taken.files)
    if counts is not None and len(ranked) > 1:
        others = ", ".join(_shown(d.label) for d in ranked if d is not counts)[:500]
        problems.append(
            f"{others}: of {counts.owner} as well, kept in .mplab/replaced; "
            f"{_shown(counts.label)} is newer and counts"
        )
    return source, problems


def _came_in(
    delivery: _Delivery, known: Mapping[tuple[str, str], datetime]
) -> tuple[datetime | None, str]:
    """Return the time of a delivery, and its source."""
    listed = known.get(("id", delivery.owner)) or known.get(("number", delivery.number))
    if listed:
        return listed, "list"
    clock = delivery.files[0][1].clock
    if delivery.time and (clock == "exchange" or (clock == "zip" and not delivery.canvas)):
        return delivery.time, clock
    return None, ""


def _keep(course: Course, name: str, files: Mapping[tuple[str, ...], bytes]) -> None:
    """Keep one copy of a delivery that does not count, however often it is collected."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    kept = course.root / ".mplab" / "replaced" / "older" / f"{name}-{digest}"
    if not kept.exists():
        _write(kept, files)


def _write(folder: Path, files: Mapping[tuple[str, ...], bytes]) -> None:
    folder.mkdir(parents=True)
    for parts, content in files.items():
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _store(
    course: Course,
    assignment: str,
    delivery: _Delivery,
    files: Mapping[tuple[str, ...], bytes],
    stamp: datetime | None,
    source: str,
    problems: list[str],
) -> None:
    """Store a submission, whole or not at all, and keep the one before."""
    student = delivery.owner
    target = course.root / "submitted" / student / assignment
    if not files and target.is_dir():
        problems.append(f"{student}: nothing could be taken; what came in before stays")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    text = f"{stamp:%Y-%m-%d %H:%M:%S} UTC" if stamp else ""
    with tempfile.TemporaryDirectory(dir=course.root / ".mplab") as folder:
        new = Path(folder, "new")
        _write(new, files)
        same = target.is_dir() and _same(target, new)
        written = received(course.root, assignment, student)
        if same and source != "list" and written.exists():
            return  # it was here before, and has its time
        record = {"time": text, "source": source, "late": delivery.late}
        replace_file(written, json.dumps(record).encode())
        if stamp:
            replace_file((target if same else new) / _STAMP, f"{text}\n".encode())
        if same:
            return
        if target.exists() or target.is_symlink():
            kept = course.root / ".mplab" / "replaced" / time.strftime("%Y%m%d-%H%M%S")
            kept.mkdir(parents=True, exist_ok=True)
            shutil.move(target, kept / f"{student}-{assignment}-{time.monotonic_ns()}")
        new.rename(target)


def _safe_parts(name: str) -> Iterable[str]:
    """Split a path, and replace the characters that a file system might interpret."""
    for part in PurePosixPath(name).parts[-4:]:
        yield re.sub(r"[^A-Za-z0-9_. ()+-]", "_", part)[:100].lstrip(".") or "_"


def _same(a: Path, b: Path) -> bool:
    """Whether two folders hold the same files, apart from the time stamp."""

    def contents(folder: Path) -> dict[str, bytes]:
        found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        paths = (path for path in found if path != folder / _STAMP)
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    return contents(a) == contents(b)
