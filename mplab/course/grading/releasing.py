"""Release an assignment after a test: its solution must earn all points, its stubs none."""

import base64
import re
import tempfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from nbformat import (
    NotebookNode,
    v4,
    write as write_notebook,
    writes,
)

from mplab.course.exercises.exercise import equal
from mplab.course.grading.execute import (
    graded_name,
    read_outcomes,
    run_notebook,
    warm_sandbox,
    warm_up,
)
from mplab.course.grading.exercises import (
    Assignment,
    Reply,
    ask_parts,
    first_wrong,
    outcomes_of,
    public_table,
    seed_for,
)
from mplab.course.grading.folder import Course, captured_log, read_notebooks
from mplab.course.grading.gradebook import due_words
from mplab.course.grading.sandbox import Died, Session
from mplab.course.grading.submissions import mark_of, marked, read_cells, rebuild
from mplab.course.grading.tables import read_roster

_START = Path(__file__).parent / "course" / "START.md"

_CELL = """\
# Where nothing is installed, as in Colab: run this first.
from importlib.util import find_spec
from pathlib import Path

if getattr(find_spec("mplab"), "origin", None) is None:
    INSTALL
if not Path("checks.json").exists():  # the notebook came alone; these are its public cases
    import base64, zlib

    Path("checks.json").write_bytes(zlib.decompress(base64.b64decode("CHECKS")))"""

_UNKNOWN = 'raise ModuleNotFoundError("mplab is not installed: ask your teacher how")'

_MORE = {
    "torch": r"^(import|from) torch\b",
    "matplotlib": r"^(import|from) (matplotlib|mplab import pictures)\b",
}
"""What notebooks import and mplab alone does not bring, by the line that does."""

_TRIED = 10
"""The draws on which misconceptions are tried."""

_DRAW_SECONDS = 60.0
"""Seconds after which no further draw begins; a part that hangs has its own limit."""


def release(
    course: Course, name: str, *, trusted: bool = False, draws: int = 1
) -> list[str]:
    """Test an assignment, make `release/NAME`, and put it into the gradebook.

    Args:
        course: the course.
        name: the assignment.
        trusted: test it without a sandbox.
        draws: how many students' hidden cases to try the solution on.

    Returns:
        Lines to print.

    Raises:
        ValueError: the notebook and its exercises do not match, the solution does not earn all
            points, an unchanged stub earns some, or nbgrader cannot make the release.
    """
    assignment = course.assignment(name)
    source = course.root / "source" / name
    # for `mplab.check`, in the release, too
    (source / "checks.json").write_text(public_table(assignment.graded), "utf-8")
    solved = read_notebooks(source)
    if problems := _mismatches(assignment, list(solved.values())):
        raise ValueError(f"release: {name} cannot be graded: {'; '.join(problems)}.")
    sandbox = warm_sandbox(warm_up(assignment, solved.values()), trusted=trusted)
    kernel = partial(sandbox.session, course.files(name))
    seed = partial(seed_for, course.key(), name, name)
    lines = []
    total = 0.0
    # Nothing of a refused or broken release reaches students or the gradebook.
    with tempfile.TemporaryDirectory(dir=course.root / ".mplab") as folder:
        made = _generate(course, name, folder, db_url=f"sqlite:///{folder}/trial.db")
        for stem, stub in read_notebooks(made).items():
            text = writes(solved[stem]).encode()
            student = rebuild(stub, read_cells(text))
            run_notebook(stub, kernel, assignment.graded, seed)
            outcomes = chain.from_iterable(map(read_outcomes, stub.cells))
            if earned := [part for part in outcomes if part.earned]:
                points = sum(part.earned for part in earned)
                names = ", ".join(part.part for part in earned)
                raise ValueError(
                    f"release: the empty notebook {stem} earns {points:g} points, for {names}: "
                    "does the reference raise there, too?"
                )
            try:
                with kernel() as session:
                    points = _as_student(course, name, student, session, draws)
            except Died as death:
                raise ValueError(
                    f"release: a solved copy of {stem} must run to its end; it ended: {death}."
                ) from death
            total += points
            words = f" in up to {draws} draws of the hidden cases" if draws > 1 else ""
            lines.append(f"{stem}: the solution earns {points:g} points{words}")
        place = course.root / "release" / name
        place.parent.mkdir(exist_ok=True)
        made = _generate(course, name, folder)
        if place.exists():
            place.rename(Path(folder, "before"))
        made.rename(place)
    lines += _indistinct(course, name, min(draws, _TRIED))
    course.record_students()
    if by_hand := sum(_by_hand(course.skeletons(name).values()).values()):
        lines.append(
            f"{by_hand:g} points more are given by hand, with mplab grade serve: "
            f"{total + by_hand:g} in all"
        )
    if not course.config().Course.get("install"):
        lines.append("without START.md, which c.Course.install must be set for")
    lines += read_roster(course.root / "roster.csv").remarks
    if due := due_words(course, name):
        lines.append(due)
    return [
        *lines,
        "the stubs earn none",
        f"Released: {course.root / 'release' / name}",
    ]


def _generate(course: Course, name: str, folder: str, **settings: str) -> Path:
    """Let nbgrader make the release in a folder of the course, and complete it."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.converters.base import NbGraderException

    config = course.config()
    # They refuse nbgrader's own command; the latter in courses made by version 0.2.
    for refusal in ("exporter_class", "preprocessors"):
        config.GenerateAssignment.pop(refusal, None)
    place = Path(folder).relative_to(course.root)
    with captured_log() as reason:
        try:
            directory = course.directory(
                assignment_id=name, release_directory=str(place), **settings
            )
            GenerateAssignment(coursedir=directory, config=config, force=True).start()
        except NbGraderException as error:
            raise ValueError(
                f"release: nbgrader could not make release/{name}: {reason(error)}"
            ) from error
    add_start(course, Path(folder, name))
    return Path(folder, name)


def add_start(course: Course, release: Path) -> None:
    """Put START.md and the first cell into a release.

    The cell installs `c.Course.install` of the settings, an address or a wheel; without it nobody
    can start by START.md, so there is none. Both name what else the notebook imports. The cell
    writes the public cases beside the notebook if they are not there, because Colab opens a
    notebook alone.
    """
    what = str(course.config().Course.get("install", "") or "")
    notebooks = read_notebooks(release)
    cells = [cell for notebook in notebooks.values() for cell in notebook.cells]
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    more = [f' "{name}"' for name, used in _MORE.items() if re.search(used, code, re.M)]
    wanted = f'"{what}"{"".join(more)}'
    command = f"%pip install --quiet {wanted}" if what else _UNKNOWN
    table = (release / "checks.json").read_bytes()
    packed = base64.b64encode(zlib.compress(table, 9)).decode()
    source = _CELL.replace("INSTALL", command).replace("CHECKS", packed)
    for stem, notebook in notebooks.items():
        mark = {"grade_id": f"{stem}-start", "schema_version": 3, "locked": True}
        mark |= {"grade": False, "solution": False, "task": False}
        metadata = {"nbgrader": mark, "jupyter": {"source_hidden": True}}
        cell = v4.new_code_cell(source, id="mplab-start", metadata=metadata)
        others = [other for other in notebook.cells if other.id != cell.id]
        notebook.cells = [cell, *others]
        write_notebook(notebook, release / f"{stem}.ipynb")
    if what:
        page = _START.read_text("utf-8").replace("NAME", release.name)
        page = page.replace('"INSTALL"', wanted)
        (release / "START.md").write_text(page, "utf-8")


def _mismatches(assignment: Assignment, notebooks: list[NotebookNode]) -> list[str]:
    """List where grade cells and exercises do not match."""
    problems = []
    missing = set(assignment.graded)
    for cell in (cell for notebook in notebooks for cell in notebook.cells):
        name = graded_name(cell)
        if name in missing:
            missing.remove(name)
            points = cell.metadata.nbgrader["points"]
            wanted = assignment.graded[name].points
            if points != wanted:
                problems.append(
                    f"{name}: {points:g} points in the notebook, {wanted:g} here"
                )
            exercise = assignment.graded[name].exercise
            if exercise.tolerance and not callable(exercise.answer):
                problems.append(
                    f"{name}: tolerance is for functions; the notebook compares a value's digest"
                )
        elif name in assignment.graded:
            problems.append(f"two grade cells are called {name}")
        elif name:
            problems.append(f"the grade cell {name} has no exercise in exercises.py")
    for name in sorted(missing):
        problems.append(f"the exercise {name} has no grade cell")
    by_hand = _by_hand(notebooks)
    for name, parts in assignment.rubric.items():
        if (together := round(sum(parts.values()), 9)) != by_hand.get(name):
            problems.append(
                f"the RUBRIC of {name} gives {together:g} points, and the cells graded by hand are "
                f"{', '.join(f'{n} ({p:g} points)' for n, p in by_hand.items()) or 'none'}"
            )
    return problems


def _by_hand(notebooks: Iterable[NotebookNode]) -> dict[str, float]:
    """Find the cells graded by hand, with their points."""
    points = {}
    for notebook in notebooks:
        for name, cell in marked(notebook).items():
            mark = cell.metadata.nbgrader
            if mark.get("grade") and mark.get("solution"):
                points[name] = float(mark["points"])
    return points


def _as_student(
    course: Course,
    name: str,
    notebook: NotebookNode,
    session: Session,
    draws: int,
) -> float:
    """Run a solved release cell by cell, checks too, and grade it with other hidden cases."""
    points = 0.0
    until = time.monotonic() + _DRAW_SECONDS
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        ran = session.run(cell.source)
        exercise = graded_name(cell)
        if not ran.ok:
            label = mark_of(cell).get("grade_id", cell.source[:60])
            raised = next((out for out in ran.outputs if "ename" in out), {})
            raise ValueError(
                f"release: a solved copy of the release must run; {label!a} gives "
                f"{raised.get('ename')}: {str(raised.get('evalue'))[:300]}"
            )
        if exercise is None:
            continue
        graded = course.assignment(name).graded[exercise]
        points += graded.points
        for draw in range(draws):
            if draw and time.monotonic() > until:
                break
            seed = partial(seed_for, course.key(), name, f"draw {draw}", exercise)
            replies: list[Reply] = []
            ask_parts(graded, session, seed, replies)
            outcomes = outcomes_of(graded, replies)
            for reply, outcome in zip(replies, outcomes, strict=True):
                if outcome.earned != outcome.points:
                    found = first_wrong(graded, reply)
                    raise ValueError(
                        f"release: the solution of {exercise} loses {outcome.part!r} in draw "
                        f"{draw + 1} of {draws}: {found or outcome.message}"
                    )
    return points


def _indistinct(course: Course, name: str, draws: int) -> list[str]:
    """Say which misconceptions no case shows, and which two the cases do not tell apart."""
    found: dict[str, int] = {}
    until = time.monotonic() + _DRAW_SECONDS / 6
    for of, graded in course.assignment(name).graded.items():
        exercise = graded.exercise
        for draw in range(draws if callable(exercise.answer) else 0):
            if draw and time.monotonic() > until:
                break
            seed = partial(seed_for, course.key(), name, f"draw {draw}", of)
            cases = [c for p in graded.parts for c in graded.cases(p, seed(p.name))]
            drawn = replace(exercise, cases=cases)
            seen = [("the right answer", drawn.outcomes(drawn.answer))]
            for wrong, sentence in exercise.misconceptions:
                got = drawn.outcomes(wrong)
                for other, theirs in seen:
                    if all(map(partial(equal, exercise=drawn), got, theirs)):
                        line = f"{of}: no case tells {sentence!r} from {other!r}"
                        found[line] = found.get(line, 0) + 1
                        break
                seen.append((sentence, got))
    return [f"{line}, in {n} of up to {draws} draws" for line, n in found.items()]
