"""Teams: one submission counts for all members."""

from mplab.grading.folder import Course, read_table
from mplab.grading.times import read_received


def read_teams(course: Course) -> list[list[str]]:
    """Read the members of each team from the lines `team,id` of `teams.csv`; none if it is missing.

    Raises:
        ValueError: the file is not such a table, or names somebody twice or not in the roster.
    """
    path = course.root / "teams.csv"
    if not path.is_file():
        return []
    known = {student.id for student in course.roster()}
    teams: dict[str, list[str]] = {}
    seen: set[str] = set()
    for number, line in read_table(path)[1]:
        team, who = ((line.get(name) or "").strip() for name in ("team", "id"))
        if not team or who in seen or who not in known:
            why = "twice" if who in seen else "no id of the roster" if team else "no team"
            raise ValueError(
                f"{path}, line {number}: teams must be lines of team,id, each id of the roster at "
                f"most once; got {list(line.values())} ({why}). Correct the line."
            )
        seen.add(who)
        teams.setdefault(team, []).append(who)
    return list(teams.values())


def counting(course: Course, assignment: str) -> dict[str, str]:
    """Find whose submission counts for each member of a team that handed in.

    The newest counts, by the times that `collect` recorded; if times are equal or missing, the
    submission of the member who stands first in `teams.csv`.
    """
    found: dict[str, str] = {}
    for members in read_teams(course):
        there = [m for m in members if (course.root / "submitted" / m / assignment).is_dir()]
        if there:
            times = {m: read_received(course.root, assignment, m).get("time", "") for m in there}
            found |= dict.fromkeys(members, max(there, key=lambda m: times[m]))
    return found


def superseded(course: Course, assignment: str) -> dict[str, str]:
    """Find members who handed in too, and whose submission counts instead of theirs."""
    return {
        member: owner
        for member, owner in counting(course, assignment).items()
        if member != owner and (course.root / "submitted" / member / assignment).is_dir()
    }
