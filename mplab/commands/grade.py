"""The command `mplab grade`: from an empty folder to a column of grades."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mplab.commands.errors import UserError, escape_control_characters
from mplab.common.installation import require_packages

if TYPE_CHECKING:
    from mplab.grading.autograding import SubmissionResult
    from mplab.grading.folder import Course


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mplab grade` with these arguments and return the exit code.

    Raises:
        UserError: this system cannot grade.
        ModuleNotFoundError: nbgrader is not installed.
    """
    if platform.system() == "Windows":
        raise UserError(
            "grading runs on Linux, and on macOS without a sandbox. Use WSL2."
        )
    options = _parser().parse_args(arguments)
    require_packages("grading", "nbgrader", "psutil", "nh3")
    from sqlalchemy.exc import OperationalError

    from mplab.grading.folder import Course, create_assignment, create_course
    from mplab.grading.sandbox import NoSandbox

    try:
        if options.step == "init":
            folder = options.folder
            name = options.course_id
            exchange = options.exchange
            course = create_course(folder, course_id=name, exchange=exchange)
            print(
                f"Course: {course.root}\nAssignments: {', '.join(course.names()) or 'none yet'}"
            )
            print("Next: README.md in it says what to do.")
            return 0
        if getattr(options, "jobs", 1) < 1:
            raise ValueError(f"--jobs must be at least 1; got {options.jobs}.")
        course = Course(options.course).require()
        if options.step == "new":
            print(
                "Yours to change:",
                *create_assignment(course, options.assignment),
                sep="\n  ",
            )
            print(f"It runs as it is. Next: mplab grade release {options.assignment}")
            return 0
        return _STEPS[options.step](course, options)
    except (NoSandbox, ValueError) as error:
        code = 2
        reason = str(error).removeprefix(f"{options.step}: ")  # a function's name
    except OperationalError as error:
        code = 2
        cause = " ".join(str(error.orig).split())
        reason = f"the gradebook's database must answer; got {cause}. Start it, or end what holds "
        reason += "it, and give the same command again: what is done stays."
    except KeyboardInterrupt:
        code = 130
        reason = "interrupted. What is done stays; the same command goes on from here."
    print(
        f"mplab grade {options.step}: {escape_control_characters(reason)}",
        file=sys.stderr,
    )
    return code


_WORDS = {
    "init": "make a course folder with the assignments in it",
    "new": "make an assignment of your own, which runs as it is",
    "release": "try an assignment, and make what students get",
    "due": "say when an assignment is due",
    "collect": "bring in a folder or zip of submissions",
    "autograde": "grade what has not been graded yet",
    "feedback": "write a page for each graded submission",
    "watch": "collect, grade and write feedback until Ctrl+C",
    "export": "write the grades as CSV",
    "gradescope": "write an autograder for Gradescope; keep it secret",
    "statistics": "write how the class did, as a table and a picture",
    "serve": "open the page on which you read answers and give points",
}
"""What each step does."""

_SECONDS = 20
"""Between two looks of `watch`."""

_SEVERAL = {"release": "+", "export": "*"}
"""How many assignments a step takes, if it is not one."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab grade",
        description="Release assignments, grade what comes back in a sandbox, give feedback.",
    )
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    for name, text in _WORDS.items():
        command = steps.add_parser(name, help=text, description=text)
        if name != "init":
            command.add_argument(
                "--course",
                type=Path,
                default=Path(),
                help="the course folder (default: here)",
            )
        if name not in ("init", "serve"):
            command.add_argument(
                "assignment", nargs=_SEVERAL.get(name), metavar="ASSIGNMENT"
            )

    def option(names: str, *flags: str, **how: Any) -> None:
        for name in names.split():
            steps.choices[name].add_argument(*flags, **how)

    option(
        "init",
        "folder",
        type=Path,
        metavar="FOLDER",
        help="new, or a course to complete",
    )
    option("init", "--course-id", help="what students see (default: the folder's name)")
    option(
        "init",
        "--exchange",
        type=Path,
        help="where students of this machine or Hub fetch and hand in, such as /srv/exchange",
    )
    option(
        "due",
        "time",
        metavar="TIME",
        help='in the course\'s time zone, such as "2026-11-30 12:00"',
    )
    option(
        "collect",
        "place",
        type=Path,
        nargs="?",
        metavar="PLACE",
        help="folder or zip (default: the exchange)",
    )
    option(
        "collect",
        "--times",
        type=Path,
        action="append",
        default=[],
        help="the platform's list: Moodle's grading worksheet, Canvas's JSON, or a CSV id,time",
    )
    option(
        "release", "--draws", type=int, default=50, help="students' cases (default: 50)"
    )
    option(
        "autograde feedback watch",
        "--jobs",
        type=int,
        default=1,
        help="processes (default: 1)",
    )
    option(
        "autograde feedback",
        "--student",
        action="append",
        default=[],
        help="only this id",
    )
    option(
        "autograde",
        "--force",
        action="store_true",
        help="grade again what has been graded",
    )
    option(
        "autograde", "--dask", default="", metavar="ADDRESS", help="of a Dask scheduler"
    )
    option(
        "release autograde watch",
        "--trust-submissions",
        action="store_true",
        help="run without a sandbox; use only if you trust every submission",
    )
    option(
        "release feedback watch",
        "--publish",
        action="store_true",
        help="put it into the exchange, for students to fetch",
    )
    option(
        "watch",
        "--from",
        dest="place",
        type=Path,
        metavar="PLACE",
        help="folder (default: the exchange)",
    )
    option(
        "export",
        "--into",
        type=Path,
        metavar="FILE",
        help="fill in the platform's own file: Moodle's grading worksheet, Canvas's gradebook",
    )
    option(
        "export",
        "--column",
        default="",
        help="with --into, of Canvas's gradebook (default: ASSIGNMENT)",
    )
    option(
        "gradescope",
        "--visibility",
        choices=("after_published", "after_due_date", "visible", "hidden"),
        default="after_published",
        help="when students see points and hints (default: after_published)",
    )
    option(
        "serve",
        "--port",
        type=int,
        default=0,
        help="on 127.0.0.1, for a tunnel or WSL (default: a free one, at an address of its own)",
    )
    option(
        "serve",
        "--hub",
        action="store_true",
        help="as a service that JupyterHub starts",
    )
    return parser


def _release(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading import exchanging, releasing

    for name in options.assignment:
        print(
            *releasing.release(
                course, name, trusted=options.trust_submissions, draws=options.draws
            ),
            sep="\n",
        )
        if options.publish:
            exchanging.publish_assignment(course, name)
            print(f"Published: {name}, in the exchange")
    return 0


def _due(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading.gradebook import set_due

    print(set_due(course, options.assignment, options.time))
    return 0


def _collect(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading import collecting, exchanging

    place = options.place or exchanging.inbound(course)
    collected = collecting.collect(
        course, options.assignment, place, times=options.times
    )
    for problem in collected.problems:
        print(f"look at: {problem}")
    taken = {*collected.students} - {*collected.left_out}
    print(f"{len(taken)} submissions are in {course.root / 'submitted'}")
    if collected.left_out:
        names = ", ".join(map(ascii, collected.left_out))
        print(f"left out ({len(collected.left_out)}): {names}")
    return int(bool(collected.left_out) or not collected.students)


def _autograde(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading.autograding import autograde

    if options.dask and options.jobs > 1:
        raise ValueError(
            "--dask cannot be combined with --jobs. Start more Dask workers instead."
        )
    if options.dask:
        require_packages("mplab grade autograde --dask", "distributed")
    name = options.assignment
    lines = autograde(
        course,
        name,
        students=options.student,
        jobs=options.jobs,
        dask=options.dask,
        force=options.force,
        trusted=options.trust_submissions,
    )
    for line in lines:
        if not line.done_before:
            print(_shown(line) + f"  {line.seconds:.1f} s")
    print(*_summary(course, name, lines, whole_class=not options.student), sep="\n")
    return int(any(line.score is None for line in lines))


def _shown(line: SubmissionResult) -> str:
    score = "-" if line.score is None else f"{line.score:g} of {line.max_score:g}"
    return f"{line.student}: {score}"


def _summary(
    course: Course, name: str, lines: Sequence[SubmissionResult], *, whole_class: bool
) -> list[str]:
    """List what a teacher should look at."""
    from mplab.grading import gradebook, journal

    before = sum(line.done_before for line in lines)
    failed = [line.student for line in lines if line.score is None]
    found = [f"{len(lines) - before - len(failed)} graded now, {before} before."]
    if failed:
        found.append(
            f"{len(failed)} not graded yet ({', '.join(failed)}): the same command tries them "
            "again."
        )
    if noted := [line for line in lines if line.remark]:
        found.append(f"To look at ({len(noted)}):")
        found += [f"  {_shown(line)}  {line.remark}" for line in noted]
    handed_in = {*journal.submitted_students(course, name)[0]}
    handed_in |= {*journal.team_owners(course, name)}
    absent = [student.id for student in course.roster() if student.id not in handed_in]
    with course.gradebook() as book:
        rows = book.assignment_submissions(name)
        by_hand = sum(row.needs_manual_grade for row in rows)
        late = sorted(row.student.id for row in rows if row.total_seconds_late > 0)
    if due := gradebook.due_words(course, name):
        found.append(due)
    if late:
        found.append(f"Late ({len(late)}): {', '.join(late)}")
    if by_hand:
        found.append(f"To be graded by hand: {by_hand}, with mplab grade serve.")
    if absent and whole_class:
        found.append(f"Nothing from ({len(absent)}): {', '.join(absent)}")
    return found


def _feedback(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading import exchanging, feedback, journal

    name = options.assignment
    course.assignment(name)
    pages = feedback.write_feedback(
        course, name, students=options.student, jobs=options.jobs
    )
    failed = [page for page in pages if not page.written]
    print(f"{len(pages) - len(failed)} pages are in {course.root / 'feedback'}")
    if unread := sum(page.waiting for page in pages):
        print(
            f"{unread} answers in them are not read yet, and the pages say so: mplab grade serve"
        )
    if noted := [page for page in pages if page.remark]:
        print(f"To look at ({len(noted)}):")
        print(*(f"  {page.student}: {page.remark}" for page in noted), sep="\n")
    present = [page.student for page in pages if page not in failed]
    packed, count, others = feedback.write_zip(course, name, present)
    if count:
        print(f"{count} pages are in {packed}, to be uploaded to Moodle or Canvas")
        if others:
            print(
                f"not in it, because no platform's name for them is known ({len(others)}): "
                f"{', '.join(others)}"
            )
    if options.publish:
        others = exchanging.publish_feedback(course, name, present)
        print(f"Published: {len(present) - len(others)} pages, in the exchange")
        if others:
            print(
                f"not handed in through the exchange ({len(others)}): {', '.join(others)}"
            )
    handed_in = (
        set() if options.student else set(journal.submitted_students(course, name)[0])
    )
    if waiting := sorted(handed_in - {page.student for page in pages}):
        print(
            f"not graded yet, so without a page ({len(waiting)}): {', '.join(waiting)}"
        )
    return 1 if failed else 0


def _watch(course: Course, options: argparse.Namespace) -> int:
    """Repeat collect, grade and feedback. Each step knows what is done, so a kill loses nothing."""
    from sqlalchemy.exc import OperationalError

    from mplab.grading import autograding, collecting, exchanging, feedback

    name = options.assignment
    place = options.place or exchanging.inbound(course)
    trusted = options.trust_submissions
    printed = set[str]()
    begun = False

    def tell(line: str) -> None:
        print(escape_control_characters(line), flush=True)

    tell(f"Collecting {name} from {place} every {_SECONDS} s; Ctrl+C ends it.")
    while True:
        messages = []
        try:
            collected = collecting.collect(course, name, place)
            messages += [f"look at: {problem}" for problem in collected.problems]
            lines = autograding.autograde(
                course, name, jobs=options.jobs, trusted=trusted, log=tell
            )
            messages += [f"{_shown(line)}  {line.remark}".rstrip() for line in lines]
            graded = [line.student for line in lines if line.score is not None]
            due = feedback.without_page(course, name, graded)
            if due:
                tell(f"Writing the pages of {', '.join(due)}")
                feedback.write_feedback(course, name, students=due)
                if options.publish:
                    exchanging.publish_feedback(course, name, due)
            begun = True
        except (ValueError, OperationalError) as error:  # a lock, for instance
            if not begun:
                raise
            messages.append(f"not now: {error}")
        for line in messages:
            if line not in printed:
                tell(line)
        printed = {*messages}
        time.sleep(_SECONDS)


def _export(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading.exporting import BY_HAND, fill_in_grades, grades, write_grades

    every = grades(course, options.assignment)
    if options.into:
        if len(options.assignment) != 1 or not every:
            raise ValueError("--into needs one assignment, and students.")
        path, found, others = fill_in_grades(
            course, every, options.into, column=options.column
        )
        if others:
            names = ", ".join(grade.student.id for grade in others)
            print(f"not in {options.into}, so not in the file ({len(others)}): {names}")
    else:
        path = course.root / "grades.csv"
        found = every
        write_grades(found, path)
    inside = {grade.student.id for grade in found}
    print(f"{len(inside)} students are in {path}")
    for remark in course.roster_file().remarks:
        print(remark)
    if refused := [grade.student.id for grade in found if grade.refused]:
        print(
            f"not graded, and so with no points ({len(refused)}): {', '.join(refused)}"
        )
    if waiting := [grade.student.id for grade in every if grade.by_hand]:
        left = " They are not in the file." if options.into else ""
        print(
            f"{len(waiting)} of the scores are not complete ({', '.join(waiting)}): "
            f"{BY_HAND}, with mplab grade serve.{left}"
        )
    if absent := sorted({grade.student.id for grade in every} - inside):
        print(
            "left out, because they have no grade yet, are excused, or are not in it "
            f"({len(absent)}): {', '.join(absent)}"
        )
    return 0


def _gradescope(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading.gradescope import write_autograder

    name = options.assignment
    path = course.root / f"autograder-{name}.zip"
    write_autograder(course, name, path, visibility=options.visibility)
    print(
        f"{path} holds the hidden cases and the key: upload it, and show it to nobody"
    )
    return 0


def _statistics(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading.statistics import bars_of, statistics, write_statistics
    from mplab.pictures.grades import class_parts

    name = options.assignment
    people, counts = statistics(course, name)
    place = course.root / f"statistics-{name}.csv"
    write_statistics(counts, place)
    print(*(f"{len(ids)} {state}" for state, ids in people.items()), sep="\n")
    print(f"The counts are in {place}")
    if bars := bars_of(counts):
        class_parts(bars).save(place.with_suffix(".png"))
        print(f"The picture is in {place.with_suffix('.png')}")
    return 0


def _serve(course: Course, options: argparse.Namespace) -> int:
    from mplab.grading.review import serve

    serve(course, options.port, lambda text: print(text, flush=True), hub=options.hub)
    return 0


_STEPS = {
    "release": _release,
    "due": _due,
    "collect": _collect,
    "autograde": _autograde,
    "feedback": _feedback,
    "export": _export,
    "gradescope": _gradescope,
    "statistics": _statistics,
    "serve": _serve,
    "watch": _watch,
}
