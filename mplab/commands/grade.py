"""The command `mplab grade`: from an empty folder to a column of grades."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mplab.common.errors import UserError, escape_control_characters
from mplab.common.installation import require_packages
from mplab.common.words import plural

if TYPE_CHECKING:
    from mplab.course.grading.autograding import SubmissionResult
    from mplab.course.grading.folder import Course


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
    options = PARSER.parse_args(arguments)
    require_packages("grading", "nbgrader", "psutil", "nh3")
    from sqlalchemy.exc import OperationalError

    from mplab.course.grading.folder import Course
    from mplab.course.grading.sandbox import NoSandbox

    try:
        if options.step == "init":
            return int(_init(options))
        for flag in ("jobs", "draws"):
            if (given := getattr(options, flag, 1)) < 1:
                raise ValueError(f"--{flag} must be at least 1; got {given}.")
        course = Course(options.course).require()
        return int(options.run(course, options))
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


_SECONDS = 20
"""Between two looks of `watch`."""

PARSER = argparse.ArgumentParser(
    prog="mplab grade",
    description="Release assignments, grade what comes back in a sandbox, give feedback.",
)

_STEPS = PARSER.add_subparsers(dest="step", required=True, metavar="STEP")


def _option(*flags: str, **how: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What `add_argument` takes, as a step or several of them hold it."""
    return flags, how


def _step(words: str, *options: Any) -> Callable[[Any], Any]:
    """Add the function that takes a step, under its own name: what it does, and its options."""

    def add(run: Any) -> Any:
        name = run.__name__.removeprefix("_")
        command = _STEPS.add_parser(name, help=words, description=words)
        command.set_defaults(run=run)
        for flags, how in options:
            command.add_argument(*flags, **how)
        return run

    return add


# Options of several steps ------------------------------------------------------------------
_COURSE = _option(
    "--course",
    type=Path,
    default=Path(),
    help="the course folder (default: here)",
)
_ASSIGNMENT = _option("assignment", metavar="ASSIGNMENT")
_JOBS = _option("--jobs", type=int, default=1, help="processes (default: 1)")
_STUDENT = _option("--student", action="append", default=[], help="only this id")
_PEOPLE = _option(
    "--people",
    type=Path,
    help="whose names are that are nobody's in the roster: a CSV name,id",
)
_TRUST = _option(
    "--trust-submissions",
    action="store_true",
    help="run without a sandbox; use only if you trust every submission",
)
_PUBLISH = _option(
    "--publish",
    action="store_true",
    help="put it into the exchange, for students to fetch",
)


# The steps, in the order of a course ---------------------------------------------------------
@_step(
    "make a course folder with the assignments in it",
    _option("folder", type=Path, metavar="FOLDER", help="new, or a course to complete"),
    _option("--course-id", help="what students see (default: the folder's name)"),
    _option(
        "--exchange",
        type=Path,
        help="where students of this machine or Hub fetch and hand in, such as /srv/exchange",
    ),
)
def _init(options: argparse.Namespace) -> int:
    from mplab.course.grading.folder import create_course

    course = create_course(
        options.folder, course_id=options.course_id, exchange=options.exchange
    )
    print(
        f"Course: {course.root}\nAssignments: {', '.join(course.names()) or 'none yet'}"
    )
    print("Next: README.md in it says what to do.")
    return 0


@_step("make an assignment of your own, which runs as it is", _COURSE, _ASSIGNMENT)
def _new(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.folder import create_assignment

    made = create_assignment(course, options.assignment)
    print("Yours to change:", *made, sep="\n  ")
    print(f"It runs as it is. Next: mplab grade release {options.assignment}")
    return 0


@_step(
    "try an assignment, and make what students get",
    _COURSE,
    _option("assignment", nargs="+", metavar="ASSIGNMENT"),
    _option("--draws", type=int, default=50, help="students' cases (default: 50)"),
    _TRUST,
    _PUBLISH,
)
def _release(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading import exchanging, releasing

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


@_step(
    "say when an assignment is due",
    _COURSE,
    _ASSIGNMENT,
    _option(
        "time",
        metavar="TIME",
        help='in the course\'s time zone, such as "2026-11-30 12:00"',
    ),
)
def _due(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.gradebook import set_due

    print(set_due(course, options.assignment, options.time))
    return 0


@_step(
    "bring in a folder or zip of submissions",
    _COURSE,
    _ASSIGNMENT,
    _option(
        "place",
        type=Path,
        nargs="?",
        metavar="PLACE",
        help="folder or zip (default: the exchange)",
    ),
    _option(
        "--times",
        type=Path,
        action="append",
        default=[],
        help="the platform's list: Moodle's grading worksheet, Canvas's JSON, or a CSV id,time",
    ),
    _PEOPLE,
)
def _collect(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading import collecting, exchanging

    place = options.place or exchanging.inbound(course)
    collected = collecting.collect(
        course,
        options.assignment,
        place,
        times=options.times,
        people=options.people,
    )
    for problem in collected.problems:
        print(f"look at: {problem}")
    brought_in = {*collected.students} - {*collected.left_out}
    print(f"{plural(len(brought_in), 'submission')} in {course.root / 'submitted'}")
    _print_names("left out", [*map(repr, collected.left_out)])
    return int(bool(collected.left_out) or not collected.students)


@_step(
    "grade what has not been graded yet",
    _COURSE,
    _ASSIGNMENT,
    _JOBS,
    _STUDENT,
    _option("--force", action="store_true", help="grade again what has been graded"),
    _option("--dask", default="", metavar="ADDRESS", help="of a Dask scheduler"),
    _TRUST,
)
def _autograde(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.autograding import autograde

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
    _print_summary(course, name, lines, whole_class=not options.student)
    return int(any(line.score is None for line in lines))


def _print_names(words: str, names: Sequence[str]) -> None:
    """Print how many names there are, and the names; nothing if there are none."""
    if names:
        print(f"{words} ({len(names)}): {', '.join(names)}")


def _shown(line: SubmissionResult) -> str:
    score = "-" if line.score is None else f"{line.score:g} of {line.max_score:g}"
    return f"{line.student}: {score}"


def _print_summary(
    course: Course, name: str, lines: Sequence[SubmissionResult], *, whole_class: bool
) -> None:
    """Print what a teacher should look at."""
    from mplab.course.grading import gradebook, journal

    before = sum(line.done_before for line in lines)
    failed = [line.student for line in lines if line.score is None]
    print(f"{len(lines) - before - len(failed)} graded now, {before} before.")
    if failed:
        print(
            f"{len(failed)} not graded yet ({', '.join(failed)}): the same command tries them "
            "again."
        )
    if noted := [line for line in lines if line.remark]:
        print(f"To look at ({len(noted)}):")
        for line in noted:
            print(f"  {_shown(line)}  {line.remark}")
    handed_in = {*journal.submitted_students(course, name)[0]}
    handed_in |= {*journal.team_owners(course, name)}
    absent = [student.id for student in course.roster() if student.id not in handed_in]
    with course.gradebook() as book:
        rows = book.assignment_submissions(name)
        by_hand = sum(row.needs_manual_grade for row in rows)
        late = sorted(row.student.id for row in rows if row.total_seconds_late > 0)
    if due := gradebook.due_words(course, name):
        print(due)
    _print_names("Late", late)
    if by_hand:
        print(f"To be graded by hand: {by_hand}, with mplab grade serve.")
    if whole_class and absent:
        print(f"Nothing from ({len(absent)}): export names them.")


@_step(
    "write a page for each graded submission",
    _COURSE,
    _ASSIGNMENT,
    _JOBS,
    _STUDENT,
    _PUBLISH,
)
def _feedback(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading import exchanging, feedback, journal

    name = options.assignment
    course.assignment(name)
    pages = feedback.write_feedback(
        course, name, students=options.student, jobs=options.jobs
    )
    failed = [page for page in pages if not page.written]
    written = plural(len(pages) - len(failed), "page")
    print(f"{written} in {course.root / 'feedback'}")
    if unread := sum(page.waiting for page in pages):
        answers = plural(unread, "answer")
        print(f"{answers} not read yet, as the pages say: mplab grade serve")
    if noted := [page for page in pages if page.remark]:
        print(f"To look at ({len(noted)}):")
        print(*(f"  {page.student}: {page.remark}" for page in noted), sep="\n")
    present = [page.student for page in pages if page not in failed]
    packed, count, others = feedback.write_zip(course, name, present)
    if count:
        print(
            f"{plural(count, 'page')} in {packed}, to be uploaded to Moodle or Canvas"
        )
        _print_names("not in it, because no platform's name for them is known", others)
    if options.publish:
        others = exchanging.publish_feedback(course, name, present)
        print(
            f"Published: {plural(len(present) - len(others), 'page')}, in the exchange"
        )
        _print_names("not handed in through the exchange", others)
    handed_in = (
        set() if options.student else set(journal.submitted_students(course, name)[0])
    )
    waiting = sorted(handed_in - {page.student for page in pages})
    _print_names("not graded yet, so without a page", waiting)
    return 1 if failed else 0


@_step(
    "collect, grade and write feedback until Ctrl+C",
    _COURSE,
    _ASSIGNMENT,
    _JOBS,
    _PEOPLE,
    _TRUST,
    _PUBLISH,
    _option(
        "--from",
        dest="place",
        type=Path,
        metavar="PLACE",
        help="folder (default: the exchange)",
    ),
)
def _watch(course: Course, options: argparse.Namespace) -> int:
    """Repeat collect, grade and feedback. Each step knows what is done, so a kill loses nothing."""
    from sqlalchemy.exc import OperationalError

    from mplab.course.grading import autograding, collecting, exchanging, feedback

    name = options.assignment
    place = options.place or exchanging.inbound(course)
    printed = set[str]()
    begun = False

    def tell(line: str) -> None:
        print(escape_control_characters(line), flush=True)

    tell(f"Collecting {name} from {place} every {_SECONDS} s; Ctrl+C ends it.")
    while True:
        messages = []
        try:
            collected = collecting.collect(course, name, place, people=options.people)
            messages += [f"look at: {problem}" for problem in collected.problems]
            lines = autograding.autograde(
                course,
                name,
                jobs=options.jobs,
                trusted=options.trust_submissions,
                log=tell,
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


@_step(
    "write the grades as CSV",
    _COURSE,
    _option("assignment", nargs="*", metavar="ASSIGNMENT"),
    _option(
        "--into",
        type=Path,
        metavar="FILE",
        help="fill in the platform's own file: Moodle's grading worksheet, Canvas's gradebook",
    ),
    _option(
        "--column",
        default="",
        help="with --into, of Canvas's gradebook (default: ASSIGNMENT)",
    ),
)
def _export(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.exporting import (
        BY_HAND,
        fill_in_grades,
        grades,
        write_grades,
    )

    every = grades(course, options.assignment)
    if options.into:
        if len(options.assignment) != 1 or not every:
            raise ValueError("--into needs one assignment, and students.")
        path, found, others = fill_in_grades(
            course, every, options.into, column=options.column
        )
        names = [grade.student.id for grade in others]
        _print_names(f"not in {options.into}, so not in the file", names)
    else:
        path = course.root / "grades.csv"
        found = every
        write_grades(found, path)
    inside = {grade.student.id for grade in found}
    print(f"{plural(len(inside), 'student')} in {path}")
    refused = [grade.student.id for grade in found if grade.refused]
    _print_names("not graded, and so with no points", refused)
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


@_step(
    "write an autograder for Gradescope; keep it secret",
    _COURSE,
    _ASSIGNMENT,
    _option(
        "--visibility",
        choices=("after_published", "after_due_date", "visible", "hidden"),
        default="after_published",
        help="when students see points and hints (default: after_published)",
    ),
)
def _gradescope(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.gradescope import write_autograder

    name = options.assignment
    path = course.root / f"autograder-{name}.zip"
    write_autograder(course, name, path, visibility=options.visibility)
    print(
        f"{path} holds the hidden cases and the key: upload it, and show it to nobody"
    )
    return 0


@_step(
    "write how the class did, as a table and a picture",
    _COURSE,
    _ASSIGNMENT,
)
def _statistics(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.statistics import bars_of, statistics, write_statistics
    from mplab.course.pictures.grades import class_parts

    name = options.assignment
    people, counts = statistics(course, name)
    table = course.root / f"statistics-{name}.csv"
    write_statistics(counts, table)
    print(*(f"{len(ids)} {state}" for state, ids in people.items()), sep="\n")
    print(f"The counts are in {table}")
    if bars := bars_of(counts):
        class_parts(bars).save(table.with_suffix(".png"))
        print(f"The picture is in {table.with_suffix('.png')}")
    return 0


@_step(
    "open the page on which you read answers and give points",
    _COURSE,
    _option(
        "--port",
        type=int,
        default=0,
        help="on 127.0.0.1, for a tunnel or WSL (default: a free one, at an address of its own)",
    ),
    _option(
        "--hub",
        action="store_true",
        help="as a service that JupyterHub starts",
    ),
)
def _serve(course: Course, options: argparse.Namespace) -> int:
    from mplab.course.grading.review import serve

    serve(course, options.port, lambda text: print(text, flush=True), hub=options.hub)
    return 0
