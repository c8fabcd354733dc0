"""The names that platforms give to submissions: read, written, and matched with people."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from mplab.course.grading.submissions import RejectedSubmission, shown_name
from mplab.course.grading.tables import (
    ID_FIELDS,
    CourseTable,
    Student,
    escape_formula,
    is_student_id,
    normalized_head,
    normalized_name,
)

_CANVAS_FILE = r"(?:(?P<order>\d+)_(?P<file>.+)|(?P<kind>text|link)\.html)"

_FORMS = (
    # A folder until Moodle 4.0 ends in `_`, since 4.1 it does not; and a file without folders.
    (
        "Moodle",
        r"(?P<name>.+?)(?:_(?P<number>\d+))?_assignsubmission_(?:file|(?P<kind>[a-z]+))(?:_(?P<file>.*))?",
    ),
    (
        "Canvas",
        r"(?P<late>LATE_)?(?P<name>anon)_(?P<number>[A-Za-z0-9]{5})_" + _CANVAS_FILE,
    ),
    ("Canvas", r"(?P<name>.+?)(?P<late>_LATE)?_(?P<number>\d+)_" + _CANVAS_FILE),
    # The title of the assignment and the log-in; the text file tells about the attempt.
    (
        "Blackboard",
        r"(?P<name>.+?)_attempt_(?P<time>\d{4}(?:-\d\d){5})(?:_(?P<file>.+)|(?P<kind>\.txt))",
    ),
    # The numbers before the name are not the person's.
    (
        "Brightspace",
        r"\d+-\d+ ?- (?P<name>.+?) ?- (?P<time>\w+ \d\d?, \d{4} \d{3,4} [AP]M)(?: - (?P<file>.+))?",
    ),
)
"""What the platforms write before a student's own name of a file."""

_PARTICIPANT = {
    "participant",
    "teilnehmerin",
    "participante",
    "partecipante",
    "deelnemer",
    "参与人",
    "anon",
}
"""What stands for a person without a name, as `normalized_name` writes it."""

_IN_FRONT = {"Moodle": "-", "Blackboard": "_"}
"""What separates a name from the group (until Moodle 4.0) or the title in front of it."""


class Label(NamedTuple):
    """The name of a submission in a platform's download.

    Args:
        platform: a name in `_FORMS`.
        text: the whole name.
        name: of the person or the team, as the platform writes it; on Blackboard the title of the
            assignment stands in front.
        number: on Moodle of this person in this assignment, or of the team; on Canvas of the
            person, or five letters of an anonymous one; empty if there is none.
        file: the student's own name of the file; empty if the name is a folder's.
        kind: what else a student can hand in there; empty if it is a file.
        late: not empty if Canvas says that it was late.
        order: digits by which Canvas orders submissions in time.
        time: when it came in, as Blackboard and Brightspace write it; else empty.
    """

    platform: str
    text: str
    name: str
    number: str = ""
    file: str = ""
    kind: str = ""
    late: str = ""
    order: str = ""
    time: str = ""

    @property
    def folder(self) -> bool:
        """Whether it is the name of a folder."""
        return not self.file and self.kind not in ("text", "link", ".txt")

    @property
    def prefix(self) -> str:
        """What stands before the student's own file, and before a page that goes back."""
        return f"{self.text}/" if self.folder else self.text.removesuffix(self.file)

    @property
    def key(self) -> str:
        """What tells its author from others, for `people.csv`."""
        return f"{self.name}_{self.number}" if self.number else self.name


def moodle_prefix(name: str, number: str) -> str:
    """Write the name of a person's folder as every Moodle reads it, where only the number counts.

    Args:
        name: of the person.
        number: of the person in this assignment, from the worksheet.
    """
    plain = "".join(c for c in name if c.isalnum() or c in " .-")
    return f"{plain}_{number}_assignsubmission_file_/"


def is_of_platform(text: str) -> bool:
    """Whether a platform may have written a name, so that a student can have chosen its end."""
    return any(re.fullmatch(form, text) for _, form in _FORMS)


def read_label(text: str) -> Label | None:
    """Read a platform's name; none if it is not one, or like those of two platforms.

    On Canvas a student may choose a file's name that looks like Moodle's name of somebody else.

    Examples:
        >>> read_label("Ada Löwe_17_assignsubmission_file").prefix
        'Ada Löwe_17_assignsubmission_file/'
        >>> read_label("löweada_LATE_5_6_a1.ipynb")[2:5]
        ('löweada', '5', 'a1.ipynb')
    """
    found: dict[str, Label] = {}
    for platform, form in _FORMS:
        if match := re.fullmatch(form, text):
            label = Label(platform, text, **match.groupdict(""))
            found.setdefault(platform, label)
    return found.popitem()[1] if len(found) == 1 else None


class Owner(NamedTuple):
    """Whose a submission is: a student, whether as one of a team, and what a person should know."""

    student: str
    team: bool = False
    remark: str = ""


class People:
    """The students of a course, and what a platform's lists say about them for an assignment.

    What a table says counts: that of a person, then the platform's own. Where neither knows, a name
    must be exactly one student's or team's. Names stand apart from ids, log-ins, addresses and
    numbers, because a student can choose one that is another's id.

    Args:
        roster: the students.
        table: ids by the names of a download, from `people.csv`.

    Attributes:
        times: when each submission came in, in UTC, by the student's id; of somebody who is not in
            the roster, by the word "number" and the platform's number.
        numbers: the students' ids by the numbers of this assignment.
        names: full names by these numbers, as the platform has them; empty without numbers.
        teams: the members of each team, by its name.
        drafts: ids or names of those whose submission is a draft.
        unknown: names for `people.csv`, each with the student that it may mean, or nothing.
        remarks: what a person should know.
    """

    def __init__(self, roster: Sequence[Student], table: Mapping[str, str]) -> None:
        self.roster = roster
        self.table = {normalized_head(name): who for name, who in table.items() if who}
        self.times: dict[str, datetime] = {}
        self.numbers: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.teams: dict[str, list[str]] = {}
        self.drafts: list[str] = []
        self.unknown: dict[str, str] = {}
        self.remarks: list[str] = []
        # As they stand, and as platforms write them in the names of files.
        self._ids = defaultdict[str, set[str]](set)
        self._full_names = defaultdict[str, set[str]](set)
        self._named = defaultdict[str, set[str]](set)
        self._logins = defaultdict[str, set[str]](set)
        for student in roster:
            first, last = student.first_name, student.last_name
            number = student.number and f"number {student.number}"
            for text in (student.id, student.email, number):
                self._ids[normalized_head(text)].add(student.id)
            for text in (student.id, student.email):
                self._logins[normalized_name(text)].add(student.id)
            for text in (f"{first} {last}", f"{last}, {first}"):
                self._full_names[normalized_head(text)].add(student.id)
                self._named[normalized_name(text)].add(student.id)

    def find(self, *texts: str) -> str | None:
        """Return whom the first id, address or number that only one has means; else None."""
        return _only(self._ids, texts)

    def students(self, table: CourseTable) -> list[str | None]:
        """Return the student of each line of a table; None if nobody or more than one fits.

        By name it is nobody whom another line means, or could: who joins later may have the name of
        somebody in the roster.
        """
        found = []
        guesses = []
        for _, line in table.lines:
            texts = [table.cell(line, field) for field in ID_FIELDS]
            guess = _only(self._full_names, [table.cell(line, "full_name")])
            if table.is_canvas:
                texts.append(f"number {line.get('id')}")
                guess = self.find(line.get("id", "")) or guess
            found.append(self.find(*texts))
            guesses.append(guess)
        times = Counter([*filter(None, found), *guesses])
        return [
            who or (guess if times[guess] == 1 else None)
            for who, guess in zip(found, guesses, strict=True)
        ]

    def in_table(self, *names: str) -> str | None:
        """Return whose one of these names is in the table."""
        for name in names:
            if who := self.table.get(normalized_head(escape_formula(name))):
                return who
        return None

    def whose(self, name: str) -> str | None:
        """Find the student whose id or address a name is, or begins with; None if there is none.

        Examples:
            >>> ada = Student("s01", "Ada", "Löwe", "ada@example.org")
            >>> people = People([ada], {"My copy": "s01"})
            >>> people.whose("s01_a1"), people.whose("s010"), people.whose("my copy")
            ('s01', None, 's01')
        """
        if who := self.in_table(name):
            return who
        if is_of_platform(name):
            return None
        if not self.roster:
            return name if is_student_id(name) else None
        begins = defaultdict[int, set[str]](set)
        for student in self.roster:
            for own in (student.id, student.email):
                if own and (name == own or name.startswith((f"{own}_", f"{own}-"))):
                    begins[len(own)].add(student.id)
        found = begins[max(begins, default=0)]
        return found.pop() if len(found) == 1 else None

    def suggestion(self, name: str) -> str:
        """Return the only student whose id or name stands in a name; empty if there is none."""
        text = normalized_name(name)
        found = set()
        for own, ids in {**self._named, **self._logins}.items():
            if len(own) > 2 and own in text:
                found |= ids
        return found.pop() if len(found) == 1 else ""

    def suggestion_by_login(self, label: Label) -> str:
        """Return the only student whose address begins with a log-in; empty if there is none.

        Only Blackboard's names end in one; what other platforms write, people may choose.
        """
        found = []
        for student in self.roster:
            login = student.email.partition("@")[0]
            if login and label.name.endswith(f"_{login}"):
                found.append(student.id)
        return found[0] if label.platform == "Blackboard" and len(found) == 1 else ""

    def owner(self, label: Label) -> Owner:
        """Find whose a submission is.

        Raises:
            RejectedSubmission: it is nobody's for certain; the message is the reason.
        """
        if who := self.in_table(label.key, label.name):
            return Owner(who)
        whole = normalized_name(label.name)
        parts = label.name.split(_IN_FRONT.get(label.platform, "/"))
        names = {normalized_name("".join(parts[i:])) for i in range(len(parts))} - {""}
        known = self._logins if label.platform == "Blackboard" else self._named
        named = {who for name in names for who in known.get(name, ())}
        who = self.numbers.get(label.number)
        there = self.names.get(label.number, "")
        same = whole in _PARTICIPANT or normalized_name(there) in names
        if who and (same or who in named):
            return Owner(who)
        if label.platform == "Canvas":
            if who := self.find(f"number {label.number}"):
                by = f"handed in under {shown_name(label.name)}, by {who}'s number"
                return Owner(who) if who in named else Owner(who, True, by)
            # Theirs is another.
            named -= {student.id for student in self.roster if student.number}
        if label.platform == "Moodle" and self.names:
            named = set()  # theirs is another, too
        teams = [
            self.teams[team] for team in self.teams if normalized_name(team) == whole
        ]
        if not named and len(teams) == 1:
            return Owner(teams[0][0], team=True)
        if len(named) != 1:
            raise RejectedSubmission(
                f"the worksheet calls number {label.number} {shown_name(there)}"
                if there
                else "there is not one student or team of this name and number"
            )
        return Owner(named.pop())


def _only(known: Mapping[str, set[str]], texts: Iterable[str]) -> str | None:
    for text in filter(str.strip, texts):
        found = known.get(normalized_head(text), set())
        if len(found) == 1:
            return next(iter(found))
    return None
