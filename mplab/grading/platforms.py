"""The names that Moodle and Canvas give to submissions: read, written, and matched with people."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mplab.grading.submissions import RejectedSubmission, shown_name
from mplab.grading.tables import Student, normalized_name
from mplab.grading.worksheets import PlatformList

_MOODLE = re.compile(
    r"(?P<name>.+?)(?:_(?P<number>\d+))?_assignsubmission_(?P<kind>[a-z]+)"
    r"(?:_(?P<file>.*))?"
)
"""A folder until Moodle 4.0 ends in `_`, since 4.1 it does not; and a file without folders."""

_CANVAS_FILE = r"(?:(?P<order>\d+)_(?P<file>.+)|(?P<kind>text|link)\.html)"

_CANVAS = re.compile(r"(?P<name>.+?)(?P<late>_LATE)?_(?P<number>\d+)_" + _CANVAS_FILE)

_CANVAS_ANONYMOUS = re.compile(
    r"(?P<late>LATE_)?(?P<name>anon)_(?P<number>[A-Za-z0-9]{5})_" + _CANVAS_FILE
)

_PARTICIPANT = {
    "participant",
    "teilnehmerin",
    "participante",
    "partecipante",
    "deelnemer",
    "参与人",
}
"""Moodle's words for a person without a name, as `normalized_name` writes them."""

FORMS = (
    "s01/a1.ipynb or s01_a1.ipynb (ids of the roster)",
    "Ada Löwe_17_assignsubmission_file/a1.ipynb (Moodle)",
    "löweada_5_6_a1.ipynb (Canvas)",
)
"""What a download is made of, for whoever has another."""


class Label(NamedTuple):
    """The name of a submission in a platform's download.

    Args:
        platform: "Moodle" or "Canvas".
        name: of the person or the team, as the platform writes it.
        number: on Moodle of this person in this assignment, or of the team; on Canvas of the
            person, or five letters of an anonymous one; empty if there is none.
        file: the student's own name of the file; empty if the name is a folder's.
        prefix: what stands before the student's own file, and before a page that goes back.
        kind: "file", or what else a student can hand in there.
        late: whether Canvas says that it was late.
        order: a number by which Canvas orders submissions in time; 0 on Moodle.
        anonymous: whether the name is nobody's.
    """

    platform: str
    name: str
    number: str
    file: str
    prefix: str
    kind: str
    late: bool
    order: int
    anonymous: bool

    @property
    def folder(self) -> bool:
        """Whether it is the name of a folder."""
        return not self.file and self.kind not in ("text", "link")


def moodle_prefix(name: str, number: str, *, old: bool = False) -> str:
    """Write the name of a person's folder for Moodle, where only the number counts.

    Args:
        name: of the person.
        number: of the person in this assignment, from the worksheet.
        old: in the form of Moodle until 4.0.
    """
    plain = "".join(c for c in name if c.isalnum() or c in " .-")
    return f"{plain}_{number}_assignsubmission_file{'_' * old}/"


def read_label(text: str) -> Label | None:
    """Read a platform's name; none if it is not one, or like Canvas's and like Moodle's.

    On Canvas a student may choose a file's name that looks like Moodle's name of somebody else.

    Examples:
        >>> read_label("Ada Löwe_17_assignsubmission_file").prefix
        'Ada Löwe_17_assignsubmission_file/'
        >>> read_label("löweada_LATE_5_6_a1.ipynb")[1:5]
        ('löweada', '5', 'a1.ipynb', 'löweada_LATE_5_6_')
    """
    moodle = _MOODLE.fullmatch(text)
    canvas = _CANVAS_ANONYMOUS.fullmatch(text) or _CANVAS.fullmatch(text)
    found = moodle or canvas
    if found is None or (moodle and canvas):
        return None
    parts = found.groupdict()
    file = parts["file"] or ""
    word = normalized_name(found["name"])
    return Label(
        platform="Moodle" if moodle else "Canvas",
        name=found["name"],
        number=found["number"] or "",
        file=file,
        prefix=text[: len(text) - len(file)] + "/" * bool(moodle and not file),
        kind=parts["kind"] or "file",
        late=bool(parts.get("late")),
        order=int((parts.get("order") or "0")[:18]),
        anonymous=word in _PARTICIPANT or found.re is _CANVAS_ANONYMOUS,
    )


class Owner(NamedTuple):
    """Whose a submission is: a student, whether as one of a team, and what a person should know."""

    student: str
    team: bool = False
    remark: str = ""


class People:
    """The students of a course as a platform's download names them.

    A number and a name must agree: on Moodle a number is of one assignment, or of a team.

    Args:
        roster: the students.
        teams: the members of each team, by its name.
        listed: the platform's own list for the assignment.
    """

    def __init__(
        self,
        roster: Sequence[Student],
        teams: Mapping[str, Sequence[str]],
        listed: PlatformList,
    ) -> None:
        self.roster = roster
        self._listed = listed
        self._named: dict[str, list[Student]] = {}
        self._numbered: dict[str, list[Student]] = {}
        self._teams: dict[str, list[Sequence[str]]] = {}
        for student in roster:
            first = student.first_name
            last = student.last_name
            for name in {normalized_name(first + last), normalized_name(last + first)}:
                self._named.setdefault(name, []).append(student)
            if student.number:
                self._numbered.setdefault(student.number, []).append(student)
        for team, members in teams.items():
            self._teams.setdefault(normalized_name(team), []).append(members)

    def owner(self, label: Label) -> Owner:
        """Find whose a submission is.

        Raises:
            RejectedSubmission: it is nobody's for certain; the message is the reason.
        """
        if label.anonymous:
            return Owner(self._anonymous(label))
        # Until Moodle 4.0 the group stands in front: Team A-Ada Löwe
        parts = label.name.split("-")
        names = {normalized_name("-".join(parts[i:])) for i in range(len(parts))} - {""}
        named = [student for name in names for student in self._named.get(name, [])]
        teams = self._teams.get(normalized_name(label.name), [])
        moodle = label.platform == "Moodle"
        if moodle and not (label.number or teams or (named and not self._listed.names)):
            raise RejectedSubmission(
                "it was handed in by people in no group, and Moodle does not say who"
            )
        if moodle and self._listed.names:
            there = self._listed.names.get(label.number, "")
            who = self._listed.people.get(label.number)
            if who and (
                normalized_name(there) in names or who in (s.id for s in named)
            ):
                return Owner(who)
            if not teams:
                raise RejectedSubmission(
                    f"the worksheet calls number {label.number} {shown_name(there)}"
                    if there
                    else f"neither number {label.number} nor a team of this name stands in the "
                    "worksheet: is it that of this assignment?"
                )
        if teams and not named:
            return self._of_team(label, teams)
        return self._of_roster(label, named)

    def _anonymous(self, label: Label) -> str:
        who = self._listed.people.get(label.number)
        if who:
            return who
        known = self._numbered.get(label.number, [])
        if len(known) != 1:
            raise RejectedSubmission(
                "it is anonymous, and nothing says who has this number: give the platform's list "
                "with --times, made by somebody who sees the names"
            )
        return known[0].id

    def _of_team(self, label: Label, teams: Sequence[Sequence[str]]) -> Owner:
        if len(teams) > 1:
            raise RejectedSubmission("several teams have this name")
        members = teams[0]
        if label.platform == "Canvas":  # there the number is a member's
            known = [s.id for s in self._numbered.get(label.number, [])]
            if known and known[0] not in members:
                raise RejectedSubmission(
                    f"its number is of {known[0]}, who is not in this team"
                )
            return Owner((known or list(members))[0], team=True)
        return Owner(members[0], team=True)

    def _of_roster(self, label: Label, named: Sequence[Student]) -> Owner:
        """Find a student by name and by the number in the roster, which must agree."""
        numbered = self._numbered.get(label.number, [])
        both = {s.id for s in named} & {s.id for s in numbered}
        free = {s.id for s in named if not s.number}
        moodle = label.platform == "Moodle"
        if not free and moodle and len({s.id for s in named}) == 1:
            free = {named[0].id}  # with the number of another assignment
        found = both or (set() if numbered else free)
        if len(found) == 1:
            return Owner(found.pop())
        if numbered and not named and not moodle and len(numbered) == 1:
            who = numbered[0].id
            name = shown_name(label.name)
            return Owner(who, True, f"handed in under {name}, by {who}'s number")
        if len({s.id for s in named}) > 1:
            raise RejectedSubmission(
                "several students have this name: give the platform's list with --times, or the "
                "roster a column number, with the number in these names"
            )
        if named:
            other = f"is {numbered[0].id}'s" if numbered else "is not"
            raise RejectedSubmission(
                f"its name is that of {named[0].id}, and its number {label.number} {other}: give "
                "the platform's list of this assignment with --times"
            )
        raise RejectedSubmission(
            "no student of the roster and no team has this name (teams stand in the worksheet, "
            "which --times takes, or in teams.csv)"
        )
