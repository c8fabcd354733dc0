"""Collect submissions from a folder or a zip, as learning platforms make them."""

import hashlib
import io
import os
import pwd
import re
import shutil
import stat
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from mplab.grading.folder import Course
from mplab.grading.submissions import (
    ANOTHER,
    SECRET,
    RejectedSubmission,
    open_regular,
    shown_name,
)
from mplab.grading.tables import Student, is_student_id, read_times

# The limits of a delivery; bytes are counted while unpacking, whatever an archive states.
_FILE_BYTES = 20 << 20
_STUDENT_BYTES = 64 << 20
_STUDENT_FILES = 1000

_CHUNK = 1 << 20

_LINES = 20  # problems reported per student

_NOTEBOOK = re.compile(r"(.*\.ipynb)(?:\.txt|\.json)?", re.IGNORECASE)
"""Browsers and mail programs add a second ending."""

_MOODLE = re.compile(
    r"(?P<name>.+?)_(?P<number>\d+)_assignsubmission_[a-z]+_(?P<file>.*)"
)

_CANVAS = re.compile(
    r"(?P<name>[^_]+?)(?P<late>_LATE)?_(?P<number>\d+)_(?P<order>\d+)_(?P<file>.+)"
)

_EXCHANGE = re.compile(
    r"(?P<id>.+)\+(?P<assignment>[^+]+)\+(?P<time>\d{4}-[^+]+)(?:\+[^+]*)?"
)


class _File(NamedTuple):
    """A file of a download, not read yet.

    Args:
        path: its path in the download.
        open: opens it; raises `RejectedSubmission` with the reason if it must not be read.
        time: its date in the download; None if there is none.
        clock: the date's source: "zip", "folder" or "exchange"; ANOTHER if it belongs to
            another account; empty if it must not be read.
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
        files: its files by the student's names for them.
    """

    owner: str
    label: str
    number: str = ""
    canvas: bool = False
    late: bool = False
    files: dict[str, _File] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """The time of its newest file, by the dates of the download."""
        long_ago = datetime.min.replace(tzinfo=UTC)
        return max(file.time or long_ago for file in self.files.values())


class Collected(NamedTuple):
    """The result of a collection: students, and problems that the teacher should look at."""

    students: list[str]
    problems: list[str]


def collect(
    course: Course, assignment: str, place: Path, *, times: Path | None = None
) -> Collected:
    """Copy the notebooks that were handed in to `submitted/ID/ASSIGNMENT`.

    Accepts a folder per student, named by id; a file per student, whose name begins
    with the id; Moodle's "First Last_123_assignsubmission_file_/…"; Canvas's
    "lastfirst_123_456_file"; the inbound folder of nbgrader's exchange; and a student's own zip
    inside any of them. If a student delivered several times, the newest counts. What the teacher
    has changed in `submitted` stays until the student hands in something else.

    The time of a submission comes from `times`; else, for the exchange, from the file system;
    else, as the last resort, from the dates in the zip. Canvas's names say only who was late. A
    student's own `timestamp.txt` is ignored.

    Args:
        course: the course, with its roster.
        assignment: the assignment's name.
        place: a folder or a zip file.
        times: Moodle's grading worksheet (CSV), Canvas's list of submissions (JSON), or a CSV
            with the columns id,time.

    Returns:
        The students found, and what could not be collected, with the reason. Earlier submissions
        are kept in `.mplab/replaced`.

    Raises:
        ValueError: `place` or `times` is none of these or cannot be read, or the assignment is
            unknown.
    """
    course.assignment(assignment)
    known = read_times(times) if times else {}
    sources = []
    with ExitStack() as stack:
        deliveries, problems = _deliveries(_files(place, stack), course, assignment)
        for owner in sorted(deliveries):
            source, found = _bring_in(course, assignment, deliveries[owner], known)
            sources.append(source)
            problems += found[:_LINES]
            if len(found) > _LINES:
                problems.append(f"{owner}: {len(found) - _LINES} more of the same kind")
    if "zip" in sources:
        problems.append(
            f"when {sources.count('zip')} came in is known only from the dates in the zip, read as "
            "this machine's local time; --times takes the platform's list"
        )
    return Collected(sorted(deliveries), problems)


# Whose is it? --------------------------------------------------------------------------------
def _deliveries(
    files: Iterable[_File], course: Course, assignment: str
) -> tuple[dict[str, list[_Delivery]], list[str]]:
    """Group the files into deliveries by student, and list the files that are nobody's."""
    roster = course.roster()
    ours = {path.name for path in (course.root / "source" / assignment).glob("*.ipynb")}
    found: dict[tuple[str, str], _Delivery] = {}
    reasons: dict[str, str] = {}
    older_files: list[str] = []
    for file in sorted(files, key=_order):
        top, *rest = file.path.parts
        exchange = _EXCHANGE.fullmatch(top)
        if exchange and exchange["assignment"] != assignment:
            continue
        account = exchange["id"] if exchange else ""
        owner = _of_account(account, roster) if account else identify(top, roster)
        if file.clock == ANOTHER:
            reasons[top] = ANOTHER
            continue
        if owner is None:
            reasons[top] = "no student of the roster is recognised in it"
            continue
        platform = _platform(top)
        canvas = platform if platform and platform.re is _CANVAS and not rest else None
        name = "/".join(rest) or (platform["file"] if platform else top)
        number = platform["number"] if platform else ""
        if number:
            key = f"number {number}"
        elif rest or top.lower().endswith(".zip"):
            key = f"top {top}"
        else:  # one of several files side by side
            key = ""
        delivery = found.setdefault(
            (owner, key), _Delivery(owner, top, number, bool(canvas))
        )
        delivery.late |= bool(canvas and canvas["late"])
        # Canvas numbers resubmissions: a1.ipynb, a1-1.ipynb
        if canvas and name not in ours:
            name = re.sub(r"-\d+(?=\.\w+$)", "", name)
        if canvas and name in delivery.files:
            older_files.append(
                f"{shown_name(str(delivery.files[name].path))}: {shown_name(top)} is newer"
            )
        delivery.files[name] = file
    by_owner: dict[str, list[_Delivery]] = {}
    for delivery in found.values():
        by_owner.setdefault(delivery.owner, []).append(delivery)
    for owner, several in list(by_owner.items()):
        numbers = {delivery.number for delivery in several}
        if len(numbers - {""}) > 1:
            names = ", ".join(shown_name(delivery.label) for delivery in several)
            reasons[names] = (
                f"people of one name as {owner}, of whom none counts: give the roster a "
                "column number, with the number in these names"
            )
            del by_owner[owner]
    problems = [f"{shown_name(top)}: {reason}" for top, reason in reasons.items()]
    return by_owner, problems + older_files


def _order(file: _File) -> int:
    """Return the number by which Canvas orders submissions, which grows with time; else 0."""
    top, *rest = file.path.parts
    canvas = _CANVAS.fullmatch(top)
    return int(canvas["order"][:18]) if canvas and not rest else 0


def _of_account(name: str, roster: Sequence[Student]) -> str | None:
    """Return the student of this account; ids are matched exactly, not by prefix."""
    ids = [student.id for student in roster]
    known = name in ids if ids else is_student_id(name)
    return name if known else None


def identify(name: str, roster: Sequence[Student]) -> str | None:
    """Find the student's id from the name of a file or folder; None unless exactly one fits.

    Examples:
        >>> ada = Student("s01", "Ada", "Löwe", "ada@example.org")
        >>> (
        ...     identify("s01", [ada]),
        ...     identify("Ada Löwe_17_assignsubmission_file_", [ada]),
        ... )
        ('s01', 's01')
        >>> identify("loweada_LATE_5_6_a1.ipynb", [ada]), identify("s010", [ada])
        ('s01', None)
    """
    match = _platform(name)
    if match and roster:  # first: on a platform, a student may choose a name like an id
        numbered = []
        named = []
        parts = match["name"].split("-")  # Moodle puts the group's name in front
        wanted = {_normalized_name("-".join(parts[i:])) for i in range(len(parts))}
        for student in roster:
            first, last = student.first_name, student.last_name
            names = {_normalized_name(first + last), _normalized_name(last + first)}
            if student.number == match["number"]:
                numbered.append(student.id)
            elif not student.number and wanted & names:
                named.append(student.id)
        fitting = numbered or named
        return fitting[0] if len(fitting) == 1 else None
    stem = _NOTEBOOK.sub(r"\1", name).removesuffix(".ipynb").removesuffix(".zip")
    if not roster:
        return stem if is_student_id(stem) else None
    begins = []
    for student in roster:
        if stem == student.id or stem.startswith((f"{student.id}_", f"{student.id}-")):
            begins.append(student.id)
    return max(begins, key=len, default=None)


def _platform(name: str) -> re.Match[str] | None:
    """Read a platform's name; none if it is like Canvas's and like Moodle's.

    On Canvas a student may choose a file's name that looks like Moodle's name of somebody else.
    """
    moodle, canvas = _MOODLE.fullmatch(name), _CANVAS.fullmatch(name)
    return None if moodle and canvas else moodle or canvas


def _normalized_name(name: str) -> str:
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
    except Exception as error:  # zipfile lets through whatever its parts raise
        raise ValueError(
            f"PLACE must be a folder or a zip file; got {place} "
            f"({type(error).__name__}: {error}). Name another, or download it again."
        ) from error


def _folder_files(folder: Path) -> Iterator[_File]:
    for top in sorted(folder.iterdir()):
        name = PurePosixPath(top.name)
        exchange = _EXCHANGE.fullmatch(top.name)
        try:
            whose = top.lstat()
            # `rglob` does not follow links to folders
            paths = top.rglob("*") if stat.S_ISDIR(whose.st_mode) else [top]
            ordered = sorted(islice(paths, _STUDENT_FILES + 1))
            found = [(path, path.lstat()) for path in ordered]
        except (OSError, RecursionError) as error:  # its author may change it meanwhile
            reason = f"it cannot be read ({type(error).__name__})"
            yield _File(name, partial(_refuse, reason))
            continue
        # Else others could hand in for them.
        if exchange and not _is_of(whose, exchange["id"]):
            yield _File(name, partial(_refuse, ANOTHER), clock=ANOTHER)
            continue
        for path, status in found:
            if stat.S_ISDIR(status.st_mode):
                continue
            name = PurePosixPath(path.relative_to(folder).as_posix())
            # Only the file system sets the time of an inode's change; anybody can set the others.
            seconds = status.st_ctime if exchange else status.st_mtime
            opener = partial(open_regular, path, whose.st_uid if exchange else None)
            clock = "exchange" if exchange else "folder"
            yield _File(name, opener, datetime.fromtimestamp(seconds, UTC), clock)


def _refuse(reason: str) -> IO[bytes]:
    raise RejectedSubmission(reason)


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
            opener = partial(_open_entry, archive, info)
            yield _File(name, opener, _zip_time(info), "zip")


def _open_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    if stat.S_ISLNK(info.external_attr >> 16):
        raise RejectedSubmission("it is a link")
    # zipfile unpacks the other methods whole before it returns a single byte.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RejectedSubmission(
            "it is packed by an unusual method; pack it as an ordinary zip"
        )
    return archive.open(info)


def _zip_time(info: zipfile.ZipInfo) -> datetime | None:
    """Return an entry's date, which has no time zone; None for 1980, the format's first year."""
    if info.date_time[0] <= 1980:
        return None
    try:
        return datetime(*info.date_time).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class _DeliveryReader:
    """The files taken from a delivery by name, and why others are left out."""

    def __init__(self, delivery: _Delivery) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._room = _STUDENT_BYTES
        self._others: list[str] = []
        self._take(list(delivery.files.items()), packed=False)
        if self._others:
            names = [shown_name(name) for name in self._others[:5]]
            if len(self._others) > 5:
                names.append("…")
            self.problems.append(
                f"{delivery.owner}: left out, not a notebook: {', '.join(names)}"
            )

    def _take(self, files: Sequence[tuple[str, _File]], *, packed: bool) -> None:
        """Take notebooks first, so that other files do not use up the limits."""
        if len(files) > _STUDENT_FILES:
            self.problems.append(
                f"only {_STUDENT_FILES} of {len(files)} files are looked at"
            )
        ordered = sorted(
            files,
            key=lambda entry: (not _NOTEBOOK.fullmatch(entry[0]), entry[0].count("/")),
        )
        for whole, file in ordered[:_STUDENT_FILES]:
            path = PurePosixPath(whole)
            if any(part.startswith(".") for part in path.parts):
                continue
            notebook = _NOTEBOOK.fullmatch(path.name)
            archive = path.suffix.lower() == ".zip"
            wanted = notebook or path.name == SECRET or (archive and not packed)
            if not wanted and file.clock:  # else `open` says what is wrong with it
                self._others.append(str(file.path))
                continue
            if self._room <= 0:
                self.problems.append(
                    f"{shown_name(whole)} and what follows: "
                    f"more than {_STUDENT_BYTES >> 20} MiB in all"
                )
                return
            try:
                content = self._read(file)
                if archive and not packed:
                    self._unpack(content)
                    continue
                name = re.sub(
                    r"[^A-Za-z0-9_. ()+-]", "_", notebook[1] if notebook else path.name
                )
                if name in self.files:
                    raise RejectedSubmission("another file has this name")
                self.files[name[-100:]] = content
            except RejectedSubmission as reason:
                self.problems.append(f"{shown_name(str(file.path))}: {reason}")

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
        except RejectedSubmission:
            raise
        except Exception as error:  # as above
            raise RejectedSubmission(
                f"it cannot be unpacked ({type(error).__name__})"
            ) from error
        if len(content) > _FILE_BYTES:
            raise RejectedSubmission(f"it has more than {_FILE_BYTES >> 20} MiB")
        if self._room < 0:
            raise RejectedSubmission(f"more than {_STUDENT_BYTES >> 20} MiB in all")
        return bytes(content)

    def _unpack(self, packed: bytes) -> None:
        """Unpack a student's zip; a zip inside it stays as it is."""
        # Counted before a list of them fills the memory.
        if packed.count(b"PK\1\2") > _STUDENT_FILES:
            raise RejectedSubmission(f"it lists more than {_STUDENT_FILES} files")
        try:
            archive = zipfile.ZipFile(io.BytesIO(packed))
        except Exception as error:  # as above
            raise RejectedSubmission(
                f"it is not a zip that can be read ({type(error).__name__})"
            ) from error
        with archive:
            files = [(str(file.path), file) for file in _zip_files(archive)]
            self._take(files, packed=True)


# Where does it go? ---------------------------------------------------------------------------
def _bring_in(
    course: Course,
    assignment: str,
    deliveries: Sequence[_Delivery],
    known: Mapping[tuple[str, str], datetime],
) -> tuple[str, list[str]]:
    """Store a student's newest delivery that has files to take.

    Returns:
        The source of its time, and the problems found.
    """
    ranked = sorted(deliveries, key=lambda d: (d.time, d.label), reverse=True)
    counts = ranked[0]
    owner = counts.owner
    files: dict[str, bytes] = {}
    problems: list[str] = []
    for each in ranked:  # one at a time: a thousand deliveries would fill the memory
        taken = _DeliveryReader(each)
        problems += taken.problems
        if taken.files:
            counts, files = each, taken.files
            break
    if not files and (course.root / "submitted" / owner / assignment).is_dir():
        problems.append(f"{owner}: nothing could be taken; what came in before stays")
        return "", problems
    if len(ranked) > 1:
        others = ", ".join(shown_name(d.label) for d in ranked if d is not counts)[:500]
        problems.append(
            f"{others}: of {owner} as well; {shown_name(counts.label)} is newer and counts"
        )
    clock = next(iter(counts.files.values())).clock
    stamp = known.get(("id", owner)) or known.get(("number", counts.number))
    source = "list" if stamp else ""
    trusted = clock == "exchange" or (clock == "zip" and not counts.canvas)
    dated = any(file.time for file in counts.files.values())
    if not stamp and trusted and dated:
        stamp = counts.time
        source = clock
    record = {
        "time": f"{stamp:%Y-%m-%d %H:%M:%S} UTC" if stamp else "",
        "source": source,
        "late": counts.late,
        "label": counts.label,
    }
    return source, problems + _store(course, assignment, owner, files, record)


def _store(
    course: Course,
    assignment: str,
    student: str,
    files: Mapping[str, bytes],
    record: dict[str, object],
) -> list[str]:
    """Store a submission atomically, keep the previous one, and report the teacher's changes."""
    target = course.root / "submitted" / student / assignment
    before = course.read("received", assignment, student)
    problems: list[str] = []
    record["digest"] = _digest(files)
    there = None
    if target.is_dir() and not target.is_symlink():
        there = _digest(
            {
                path.name: path.read_bytes()
                for path in target.iterdir()
                if path.is_file()
            }
        )
    brought_in = before.get("digest", there)
    repaired = there is not None and there != brought_in
    if there is not None and brought_in == record["digest"]:
        if repaired:
            problems.append(
                f"{student}: submitted/{student}/{assignment} was changed here and stays"
            )
        if record["source"] == "list" or not before:  # else its time is recorded
            course.write("received", assignment, student, record)
        return problems
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=course.root / ".mplab") as folder:
        new = Path(folder, "new")
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        if target.exists() or target.is_symlink():
            kept = course.root / ".mplab" / "replaced" / time.strftime("%Y%m%d-%H%M%S")
            kept.mkdir(parents=True, exist_ok=True)
            kept /= f"{student}-{assignment}-{time.monotonic_ns()}"
            shutil.move(target, kept)
            if repaired:
                problems.append(
                    f"{student}: handed in again; what was changed here is in {kept}"
                )
        course.write("received", assignment, student, record)
        new.rename(target)
    return problems


def _digest(files: Mapping[str, bytes]) -> str:
    each = sorted(
        (name, hashlib.sha256(content).hexdigest()) for name, content in files.items()
    )
    return hashlib.sha256(repr(each).encode()).hexdigest()
