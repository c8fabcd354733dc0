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
import zipfile
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from mplab.common.words import plural
from mplab.course.grading.dates import stated_time
from mplab.course.grading.folder import Course
from mplab.course.grading.platforms import (
    Label,
    Owner,
    People,
    is_of_platform,
    read_label,
)
from mplab.course.grading.submissions import (
    ANOTHER,
    NOTEBOOK_BYTES,
    SECRET,
    RejectedSubmission,
    open_regular,
    shown_name,
    without_outputs,
)
from mplab.course.grading.tables import (
    escape_formula,
    is_student_id,
    read_people,
    write_table,
)
from mplab.course.grading.worksheets import read_gradescope, read_list

# The limits of a delivery; bytes are counted while unpacking, whatever an archive states.
_STUDENT_BYTES = 64 << 20
_STUDENT_SECONDS = 30  # of CPU time, to read all that one hands in
_STUDENT_FILES = 1000

_LINES = 20  # problems reported per student

_NOTEBOOK = re.compile(r"(.*)\.ipynb(?:\.txt|\.json)?\Z", re.IGNORECASE)
"""Browsers and mail programs add a second ending."""

_SKIPPED = {"__MACOSX", ".DS_Store", "index.html"}
"""What file managers and Brightspace add."""

_LONG_AGO = datetime.min.replace(tzinfo=UTC)

_NOTHING = "nothing"
"""The source of a time if nothing was taken."""

_UNKNOWN = ""
"""The source of a time if nothing says when it came in."""

_GRADESCOPE = re.compile(r"(assignment_\d+_export/)?submission_metadata\.yml")
"""Gradescope's list, which it puts above all submissions: no student's file is taken for it."""

_EXCHANGE = re.compile(
    r"(?P<id>.+)\+(?P<assignment>[^+]+)\+(?P<time>\d{4}-[^+]+)(?:\+[^+]*)?"
)


class _File(NamedTuple):
    """A file of a download, not read yet.

    Args:
        path: its path in the download.
        open: opens it; raises `RejectedSubmission` with the reason if it must not be read.
        time: its date in the download, which orders deliveries; None if there is none.
        clock: the date's source: "download", "folder" or "exchange"; ANOTHER if it belongs to
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
        name: its name in the download.
        label: the platform's name; none if no platform gave it.
        team: whether a team handed it in.
        late: whether its name says that it was late.
        files: its files by the student's names for them.
    """

    owner: str
    name: str
    label: Label | None = None
    team: bool = False
    late: bool = False
    files: dict[str, _File] = field(default_factory=dict)

    @property
    def time(self) -> datetime:
        """When it came in, by its name, or by the dates of its files in the download."""
        if self.label and (stated := stated_time(self.label.time, UTC)):
            return stated
        return max(file.time or _LONG_AGO for file in self.files.values())


class Collected(NamedTuple):
    """The result of a collection.

    Args:
        students: ids of those whose submission was found.
        problems: what the teacher should look at, in sentences.
        left_out: names of the download that are nobody's, or of which nothing could be taken.
    """

    students: list[str]
    problems: list[str]
    left_out: list[str]


def collect(
    course: Course,
    assignment: str,
    place: Path,
    *,
    times: Sequence[Path] = (),
    people: Path | None = None,
) -> Collected:
    """Copy the notebooks that were handed in to `submitted/ID/ASSIGNMENT`.

    Accepts a folder or a file per student, whose name begins with the id or the address; the
    downloads of platforms (`mplab.grading.platforms` has their names); the inbound folder of
    nbgrader's exchange; and a student's own zip inside any of them. Whose any other name is, a
    table says: names that nobody is known for are added to `people.csv`, with the student whose
    name stands in them. If a student delivered several times, the newest counts. What the teacher
    has changed in `submitted` stays until the student hands in something else.

    The time of a submission comes from `times`, from the platform's name for it, or for the
    exchange from the file system. Dates in a zip are those of the download, or of packing: they say
    only which of several deliveries is newer. A student's own `timestamp.txt` is ignored.

    Args:
        course: the course, with its roster.
        assignment: the assignment's name.
        place: a folder or a zip file.
        times: Moodle's grading worksheet (CSV), Canvas's lists of submissions (JSON), or a CSV
            with the columns id,time.
        people: a CSV with the columns name,id: whose names of the download are.

    Returns:
        The students found, and what could not be collected, with the reason. Earlier submissions
        are kept in `.mplab/replaced`.

    Raises:
        ValueError: `place`, `times` or `people` is none of these or cannot be read, or the
            assignment is unknown.
    """
    course.assignment(assignment)
    zone = course.zone()
    roster = course.roster()
    if people and not people.is_file():
        raise ValueError(
            f"--people must be a table with the columns name,id; got {people}."
        )
    table = read_people(people, {s.id for s in roster}) if people else {}
    known = People(roster, table)
    read_list(times, known, zone)
    problems = known.remarks
    sources: dict[str, str] = {}
    with ExitStack() as stack:
        files = []
        for file in _files(place, stack):
            if _GRADESCOPE.fullmatch(str(file.path)):
                with file.open() as stream:
                    read_gradescope(stream, known)
            else:
                files.append(file)
        if known.names or known.teams:
            numbers = {who: number for number, who in known.numbers.items()}
            record = {"numbers": numbers, "teams": known.teams}
            course.write("platform", assignment, "list", record)
        known.teams = course.teams(assignment)
        files = _without_top(files, place, known)
        deliveries, left_out = _deliveries(files, course, assignment, known)
        if known.unknown:
            problems.append(
                _write_people(course.root / "people.csv", table, known.unknown)
            )
        for owner, several in sorted(deliveries.items()):
            sources[owner], remarks = _bring_in(course, assignment, several, known)
            problems += remarks[:_LINES]
            if len(remarks) > _LINES:
                problems.append(
                    f"{owner}: {len(remarks) - _LINES} more of the same kind"
                )
    empty = [owner for owner, source in sources.items() if source == _NOTHING]
    unknown = [owner for owner, source in sources.items() if source == _UNKNOWN]
    if unknown and times:
        problems.append(f"no time in the platform's list: {', '.join(unknown)}")
    elif unknown:
        problems.append(
            f"when {len(unknown)} came in is not known: a platform's names and the dates of a "
            "download do not say it; --times takes the platform's list"
        )
    if known.names:
        problems.append(f"the times of the worksheet are read as times in {zone}")
    if known.drafts:
        problems.append(f"drafts, not submitted: {', '.join(known.drafts)}")
    return Collected(sorted(deliveries), problems, [*left_out, *empty])


def _write_people(
    path: Path, table: Mapping[str, str], unknown: Mapping[str, str]
) -> str:
    """Add the names that nobody is known for to `people.csv`; return what to do with it."""
    before = read_people(path, set())
    lines = {escape_formula(name): who for name, who in unknown.items()} | before
    lines |= table
    if lines != before:
        write_table(path, [("name", "id"), *lines.items()])
    return (
        f"{plural(len(unknown), 'name')} of nobody: {path.name} lists all such, with an id where "
        "one student's name stands in it. Correct it, and give the same command again with "
        f"--people {path.name}"
    )


# Whose is it? --------------------------------------------------------------------------------
def _without_top(files: list[_File], download: Path, people: People) -> list[_File]:
    """Remove a single folder on top, as some platforms and file managers add it.

    GitHub Classroom clones `a1-ada` into the folder `a1-submissions`: there, `a1-` is removed, too.
    """
    name = download.name
    tops = {file.path.parts[0] for file in files}
    packed = len(tops) == 1 and all(len(file.path.parts) > 1 for file in files)
    if packed and not name.endswith("-submissions"):
        (top,) = tops
        if not (is_of_platform(top) or _EXCHANGE.fullmatch(top) or people.whose(top)):
            files = [f._replace(path=f.path.relative_to(top)) for f in files]
            name = top
    title = name.removesuffix("-submissions")
    if title == name:
        return files
    paths = [PurePosixPath(str(f.path).removeprefix(f"{title}-")) for f in files]
    return [f._replace(path=path) for f, path in zip(files, paths, strict=True)]


def _deliveries(
    files: Iterable[_File], course: Course, assignment: str, people: People
) -> tuple[dict[str, list[_Delivery]], list[str]]:
    """Group the files into deliveries; `people` gets remarks, and the names of nobody.

    Returns:
        The deliveries of each student, and the names that are nobody's.
    """
    ours = {path.name for path in (course.root / "source" / assignment).glob("*.ipynb")}
    found: dict[str, dict[str, _Delivery]] = {}
    reasons: dict[str, str] = {}
    remarks: list[str] = []
    for file in sorted(files, key=_order):
        top, *rest = file.path.parts
        exchange = _EXCHANGE.fullmatch(top)
        if exchange and exchange["assignment"] != assignment:
            continue
        label = None if exchange else read_label(top)
        if label and (label.folder is not bool(rest) or not people.roster):
            label = None
        if label and label.kind:
            if label.kind != ".txt":  # which Blackboard adds to each
                words = f"left out: {label.kind} typed on {label.platform}"
                remarks.append(f"{shown_name(top)}: {words}")
            continue
        try:
            owner = _owner(file, exchange, label, people)
        except RejectedSubmission as reason:
            reasons[top] = str(reason)
            if label:
                people.unknown[label.key] = people.suggestion_by_login(label)
            elif file.clock in ("download", "folder") and (rest or _stem(top) != top):
                name = _stem(top)
                people.unknown[name] = (
                    "" if is_of_platform(name) else people.suggestion(name)
                )
            continue
        if owner.remark:
            remarks.append(f"{shown_name(top)}: {owner.remark}")
        if label and (label.number or label.time):
            key = f"number {label.number} {label.time}"
        elif (
            rest
            or top.lower().endswith(".zip")
            or (len(ours) == 1 and _NOTEBOOK.fullmatch(top))
        ):
            key = f"top {top}"
        else:  # one of several files side by side
            key = ""
        delivery = found.setdefault(owner.student, {}).setdefault(
            key, _Delivery(owner.student, top, label, owner.team)
        )
        if label and label.platform == "Canvas":
            _add_from_canvas(delivery, file, label, ours)
        else:
            name = "/".join(rest) or (label.file if label else top)
            for own in () if rest or label else sorted(ours, key=len):
                if top.endswith((f"_{own}", f"-{own}", f" {own}")):
                    name = top if own in delivery.files else own
            delivery.files[name] = file
    left_out = list(reasons)
    by_owner: dict[str, list[_Delivery]] = {}
    for student, by_key in found.items():
        several = list(by_key.values())
        labels = [d.label for d in several if d.label and not d.team]
        if len({label.number for label in labels} - {""}) > 1:
            left_out += [delivery.name for delivery in several]
            names = ", ".join(shown_name(delivery.name) for delivery in several)
            remarks.append(f"{names}: people of one name as {student}: none counts")
            people.unknown |= {label.key: "" for label in labels}
        else:
            by_owner[student] = several
    for why in dict.fromkeys(reasons.values()):
        tops = [shown_name(top) for top in reasons if reasons[top] == why]
        more = f" and {len(tops) - 3} more" if len(tops) > 3 else ""
        people.remarks.append(f"{', '.join(tops[:3])}{more}: {why}")
    people.remarks += dict.fromkeys(remarks)
    return by_owner, left_out


def _add_from_canvas(
    delivery: _Delivery, file: _File, label: Label, ours: Collection[str]
) -> None:
    """Add a file by the student's name for it; the files come in the order of time."""
    delivery.late |= bool(label.late)
    name = label.file
    if name not in ours:  # Canvas numbers resubmissions: a1.ipynb, a1-1.ipynb
        name = re.sub(r"-\d+(?=\.\w+$)", "", name)
    if name in ours:  # whose page goes back under this number
        delivery.name = str(file.path)
        delivery.label = label
    delivery.files[name] = file


def _owner(
    file: _File, exchange: re.Match[str] | None, label: Label | None, people: People
) -> Owner:
    """Find whose a file is.

    Raises:
        RejectedSubmission: it is nobody's for certain.
    """
    if file.clock == ANOTHER:
        raise RejectedSubmission(ANOTHER)
    if label:
        return people.owner(label)
    if exchange:  # its names are those of accounts
        name = exchange["id"]
        ids = [student.id for student in people.roster]
        found = name if name in ids or (not ids and is_student_id(name)) else None
    else:
        found = people.whose(_stem(file.path.parts[0]))
    if found is None:
        raise RejectedSubmission("no student of the roster is recognised in it")
    return Owner(found)


def _order(file: _File) -> int:
    """Return the number by which Canvas orders submissions, which grows with time; else 0."""
    label = read_label(file.path.parts[0])
    return int(label.order[:18] or 0) if label else 0


def _stem(name: str) -> str:
    """Return a name without the ending of a notebook or a zip."""
    return _NOTEBOOK.sub(r"\1", name).removesuffix(".zip")


# What is in it? ------------------------------------------------------------------------------
def _files(download: Path, stack: ExitStack) -> Iterator[_File]:
    """List the files of a download.

    Raises:
        ValueError: it is neither a folder nor a zip that can be read.
    """
    if download.is_dir():
        return _folder_files(download)
    try:
        return _zip_files(stack.enter_context(zipfile.ZipFile(download)))
    except Exception as error:  # zipfile lets through whatever its parts raise
        raise ValueError(
            f"PLACE must be a folder or a zip file; got {download} "
            f"({type(error).__name__}: {error}). Name another, or download it again."
        ) from error


def _folder_files(folder: Path) -> Iterator[_File]:
    for top in sorted(folder.iterdir()):
        if top.name in _SKIPPED:
            continue
        name = PurePosixPath(top.name)
        exchange = _EXCHANGE.fullmatch(top.name)
        try:
            whose = top.lstat()
            # `rglob` does not follow links to folders
            paths = top.rglob("*") if stat.S_ISDIR(whose.st_mode) else iter([top])
            paths = (path for path in paths if ".git" not in path.parts)
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
        if not info.flag_bits & 0x800:
            with suppress(UnicodeError):  # a Mac packs in UTF-8 and does not say so
                text = text.encode("cp437").decode()
        name = PurePosixPath(text)
        if text.endswith("/") or not _SKIPPED.isdisjoint(name.parts[:1]):
            continue
        if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in text:
            refused = partial(_refuse, "its path leads out of the zip")
            yield _File(PurePosixPath(name.name or "?"), refused)
        else:
            time = None
            with suppress(ValueError):  # it is no date
                time = datetime(*info.date_time, tzinfo=UTC)
            yield _File(name, partial(_open_entry, archive, info), time, "download")


def _open_entry(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    if stat.S_ISLNK(info.external_attr >> 16):
        raise RejectedSubmission("it is a link")
    if info.flag_bits & 1:
        raise RejectedSubmission("it is encrypted; pack it without a password")
    # zipfile unpacks the other methods whole before it returns a single byte.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RejectedSubmission(
            "it is packed by an unusual method; pack it as an ordinary zip"
        )
    return archive.open(info)


class _DeliveryReader:
    """The files taken from a delivery by name, and why others are left out, without its owner."""

    def __init__(self, delivery: _Delivery) -> None:
        self.files: dict[str, bytes] = {}
        self.problems: list[str] = []
        self._room = _STUDENT_BYTES
        self._until = time.thread_time() + _STUDENT_SECONDS
        self._others: list[str] = []
        self._take(list(delivery.files.items()), packed=False)
        if self._others:
            names = [shown_name(name) for name in self._others[:5]]
            if len(self._others) > 5:
                names.append("…")
            self.problems.append(f"left out, not a notebook: {', '.join(names)}")

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
            if self._room <= 0 or time.thread_time() > self._until:
                why = f"more than {_STUDENT_BYTES >> 20} MiB in all"
                self.problems.append(
                    f"{shown_name(whole)} and what follows: {why}, or too long to read"
                )
                return
            try:
                content = self._read(file, notebook=bool(notebook))
                if archive and not packed:
                    self._unpack(content)
                    continue
                given = path.name
                if notebook:  # with its ending in small letters, whoever wrote it
                    given = f"{notebook[1]}.ipynb"
                name = re.sub(r"[^A-Za-z0-9_. ()+-]", "_", given)[-100:]
                if name in self.files:
                    raise RejectedSubmission("another file has this name")
                self.files[name] = content
            except RejectedSubmission as reason:
                self.problems.append(f"{shown_name(str(file.path))}: {reason}")

    def _read(self, file: _File, *, notebook: bool) -> bytes:
        """Read a file up to the limits, whatever size an archive states.

        A notebook that is larger is read again, without its outputs.
        """
        most = min(NOTEBOOK_BYTES, self._room)
        try:
            with file.open() as stream:
                content = stream.read(most + 1)
            if notebook and len(content) > most:
                with file.open() as stream:
                    content = without_outputs(stream, self._until)
        except RejectedSubmission:
            raise
        except Exception as error:  # as above
            raise RejectedSubmission(
                f"it cannot be unpacked ({type(error).__name__})"
            ) from error
        self._room -= min(len(content), NOTEBOOK_BYTES + 1)  # room for others stays
        if self._room < 0:
            raise RejectedSubmission(f"more than {_STUDENT_BYTES >> 20} MiB in all")
        if len(content) > NOTEBOOK_BYTES:
            raise RejectedSubmission(f"it has more than {NOTEBOOK_BYTES >> 20} MiB")
        return content

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
            if not files:  # or a list of none stands after the true one
                raise RejectedSubmission("it holds no files; pack it again")
            self._take(files, packed=True)


# Where does it go? ---------------------------------------------------------------------------
def _bring_in(
    course: Course,
    assignment: str,
    deliveries: Sequence[_Delivery],
    people: People,
) -> tuple[str, list[str]]:
    """Store a student's newest delivery that has files to take.

    Returns:
        The source of its time, and the problems found.
    """
    ranked = sorted(deliveries, key=lambda d: (d.time, d.name), reverse=True)
    counts = ranked[0]
    owner = counts.owner
    files: dict[str, bytes] = {}
    reasons: list[str] = []
    for each in ranked:  # one at a time: a thousand deliveries would fill the memory
        reader = _DeliveryReader(each)
        reasons += reader.problems
        if reader.files:
            counts = each
            files = reader.files
            break
    problems = [f"{owner}: {reason}" for reason in reasons]
    if not files and (course.root / "submitted" / owner / assignment).is_dir():
        problems.append(f"{owner}: nothing could be taken; what came in before stays")
        return _NOTHING, problems
    if older := ranked[ranked.index(counts) + 1 :]:
        others = ", ".join(shown_name(d.name) for d in older)[:500]
        problems.append(
            f"{others}: of {owner} as well; {shown_name(counts.name)} is newer and counts"
        )
    clock = next(iter(counts.files.values())).clock
    label = counts.label
    stamp = people.times.get(owner)
    if label and not counts.team:
        stamp = stamp or people.times.get(f"number {label.number}")
        stamp = stamp or stated_time(label.time, course.zone())
    source = "list"
    if not stamp:
        source = _UNKNOWN if clock == "download" else clock
        stamp = counts.time if clock == "exchange" else None
    record = {
        "time": f"{stamp:%Y-%m-%d %H:%M:%S} UTC" if stamp else "",
        "source": source,
        "late": counts.late,
        "label": counts.name,
        "team": counts.team,
        "reason": "" if files else "; ".join(reasons)[:500],
    }
    problems += _store(course, assignment, owner, files, record)
    return source if files else _NOTHING, problems


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
    digest = _digest(files)
    record["digest"] = digest
    there = None
    if target.is_dir() and not target.is_symlink():
        there = _digest_of(target)
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
    past = (course.root / ".mplab" / "replaced").glob(f"*/{student}-{assignment}-*")
    if digest in map(_digest_of, filter(Path.is_dir, past)):
        problems.append(
            f"{student}: this was replaced by something newer before, and counts again; is the "
            "download an old one?"
        )
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


def _digest_of(folder: Path) -> str:
    stored = [path for path in folder.iterdir() if path.is_file()]
    return _digest({path.name: path.read_bytes() for path in stored})


def _digest(files: Mapping[str, bytes]) -> str:
    each = sorted(
        (name, hashlib.sha256(content).hexdigest()) for name, content in files.items()
    )
    return hashlib.sha256(repr(each).encode()).hexdigest()
