"""Bring submissions into the course, from a folder or a zip as learning platforms make them."""

from __future__ import annotations

import re
import shutil
import stat
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mplab.grading.folder import Course, Student, is_student_id

_FILE_BYTES, _STUDENT_BYTES, _ENTRIES = 20 << 20, 40 << 20, 20_000

_MOODLE = re.compile(r"(?P<name>.+?)_\d+_assignsubmission_\w+?_?")

_CANVAS = re.compile(r"(?P<name>[^_]+)(?:_LATE)?_\d+_\d+_(?P<file>.+)")


class Entry(NamedTuple):
    """A file of a download: its path in it, and its content or why there is none."""

    path: PurePosixPath
    content: bytes
    problem: str = ""


class Collected(NamedTuple):
    """What was brought in."""

    students: list[str]
    problems: list[str]


def collect(course: Course, assignment: str, place: Path) -> Collected:
    """Copy submissions to `submitted/ID/ASSIGNMENT`.

    Understood are: a folder per student called by id; a file per student whose name begins
    with the id; Moodle's "First Last_123_assignsubmission_file_/…"; Canvas's
    "lastfirst_123_456_file"; and a student's own zip inside any of them.

    Args:
        course: the course, with its roster.
        assignment: where to put them.
        place: a folder or a zip file.

    Returns:
        The students found, and what could not be brought in, with the reason. What a student
        submitted before is kept in `.mplab/replaced`.

    Raises:
        ValueError: `place` is neither, or the assignment is unknown.
    """
    course.assignment(assignment)
    entries = _zip_entries(place) if zipfile.is_zipfile(place) else _folder_entries(place)
    roster = course.roster()
    found: dict[str, dict[str, bytes]] = {}
    problems: list[str] = []
    owners: dict[str, str | None] = {}
    for entry in entries:
        top = entry.path.parts[0]
        if top not in owners:
            owners[top] = identify(top, roster)
            if owners[top] is None:
                problems.append(f"{_shown(top)}: no student of the roster is recognised in it")
        owner = owners[top]
        if owner is None:
            continue
        if entry.problem:
            problems.append(f"{_shown(str(entry.path))}: {entry.problem}")
            found.setdefault(owner, {})
            continue
        _add(found.setdefault(owner, {}), _own_name(entry.path), entry.content, problems)
    for owner, files in found.items():
        _store(course, assignment, owner, files)
    return Collected(sorted(found), problems)


def _shown(text: str) -> str:
    return ascii(text[:100])


def _own_name(path: PurePosixPath) -> str:
    """A file's name as its author gave it."""
    if len(path.parts) > 1:
        return str(PurePosixPath(*path.parts[1:]))
    canvas = _CANVAS.fullmatch(path.name)
    if canvas:
        return re.sub(r"-\d+(?=\.\w+$)", "", canvas["file"])  # Canvas numbers resubmissions
    return path.name


def _add(files: dict[str, bytes], name: str, content: bytes, problems: list[str]) -> None:
    """Add a file, or what a student packed into one."""
    inner = [Entry(PurePosixPath(name), content)]
    if name.lower().endswith(".zip"):
        with tempfile.TemporaryFile() as packed:
            packed.write(content)
            packed.seek(0)
            if zipfile.is_zipfile(packed):
                inner = list(_zip_entries(packed))
    for entry in inner:
        if entry.problem or sum(map(len, files.values())) + len(entry.content) > _STUDENT_BYTES:
            problems.append(f"{_shown(str(entry.path))}: {entry.problem or 'too large in all'}")
        else:
            files[str(entry.path)] = entry.content


def identify(name: str, roster: Sequence[Student]) -> str | None:
    """The id of the student whose file or folder this is; None unless exactly one fits.

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
    moodle, canvas = _MOODLE.fullmatch(name), _CANVAS.fullmatch(name)
    match = moodle or canvas
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
    """Letters without accents, blanks and case: how platforms write names into file names."""
    decomposed = unicodedata.normalize("NFKD", name)
    return "".join(c for c in decomposed.casefold() if c.isalnum())


def _folder_entries(folder: Path) -> Iterator[Entry]:
    if not folder.is_dir():
        raise ValueError(f"collect: PLACE must be a folder or a zip file; got {folder}.")
    for count, path in enumerate(sorted(folder.rglob("*"))):  # does not follow links to folders
        if count >= _ENTRIES:
            raise ValueError(f"collect: {folder} holds more than {_ENTRIES} files.")
        name = PurePosixPath(path.relative_to(folder).as_posix())
        if path.is_symlink():
            yield Entry(name, b"", "it is a link")
        elif path.is_file():
            status = path.stat()
            if status.st_nlink > 1 and status.st_uid != path.parent.stat().st_uid:
                yield Entry(name, b"", "it is a hard link to somebody else's file")
            elif status.st_size > _FILE_BYTES:
                yield Entry(name, b"", f"it has more than {_FILE_BYTES >> 20} MiB")
            else:
                yield Entry(name, path.read_bytes())
        elif not path.is_dir():
            yield Entry(name, b"", "it is no ordinary file")


def _zip_entries(place: Path | object) -> Iterator[Entry]:
    with zipfile.ZipFile(place) as archive:  # type: ignore[arg-type]
        for info in archive.infolist()[:_ENTRIES]:
            name = PurePosixPath(info.filename.replace("\\", "/"))
            if info.is_dir() or "__MACOSX" in name.parts:
                continue
            if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in str(name):
                yield Entry(PurePosixPath(name.name or "?"), b"", "its path leads out of the zip")
            elif stat.S_ISLNK(info.external_attr >> 16):
                yield Entry(name, b"", "it is a link")
            else:
                yield _unpacked(archive, info, name)


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: PurePosixPath) -> Entry:
    """Read at most so much, whatever the size that the archive states."""
    try:
        with archive.open(info) as file:
            content = file.read(_FILE_BYTES + 1)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError) as error:
        return Entry(name, b"", f"it cannot be unpacked ({type(error).__name__})")
    if len(content) > _FILE_BYTES:
        return Entry(name, b"", f"it has more than {_FILE_BYTES >> 20} MiB")
    return Entry(name, content)


def _store(course: Course, assignment: str, student: str, files: dict[str, bytes]) -> None:
    """Put a submission in its place, whole or not at all; the one before is kept."""
    target = course.root / "submitted" / student / assignment
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=course.root / ".mplab") as folder:
        new = Path(folder, "new")
        new.mkdir()
        for name, content in files.items():
            path = new.joinpath(*_safe_parts(name))
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        if target.is_dir() and _same(target, new):
            return
        if target.exists() or target.is_symlink():
            kept = course.root / ".mplab" / "replaced" / time.strftime("%Y%m%d-%H%M%S")
            kept.mkdir(parents=True, exist_ok=True)
            shutil.move(target, kept / f"{student}-{assignment}-{time.monotonic_ns()}")
        new.rename(target)


def _safe_parts(name: str) -> Iterable[str]:
    """The parts of a path with everything replaced that a file system might take for more."""
    for part in PurePosixPath(name).parts[-4:]:
        yield re.sub(r"[^A-Za-z0-9_. ()+-]", "_", part)[:100].lstrip(".") or "_"


def _same(a: Path, b: Path) -> bool:
    """Whether two folders hold the same files."""

    def contents(folder: Path) -> dict[str, bytes]:
        paths = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    return contents(a) == contents(b)
