"""Run a submission in the sandbox and grade it outside, in a worker of any executor.

A worker reads the course and writes nothing: the process that gave it the work owns the gradebook.
"""

from __future__ import annotations

import ast
import atexit
import copy
import logging
import multiprocessing.util
import signal
import threading
import time
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import lru_cache, partial
from typing import NamedTuple

from nbformat import NotebookNode, v4

from mplab.course.grading.exercises import (
    ALL_INTERRUPTS,
    NOT_ASKED,
    Assignment,
    Graded,
    Outcome,
    Reply,
    ask_parts,
    outcomes_of,
    seed_for,
)
from mplab.course.grading.folder import Course
from mplab.course.grading.isolation import die_with_parent
from mplab.course.grading.journal import digest
from mplab.course.grading.sandbox import (
    Died,
    Limits,
    Session,
    WarmSandbox,
    require_sandbox,
)
from mplab.course.grading.sanitise import rebuild_output
from mplab.course.grading.submissions import (
    RejectedSubmission,
    answers_before,
    escape_html_in_markdown,
    mark_of,
    marked,
    read_submission,
)

_COMPILE = """
try:
    compile(get_ipython().transform_cell({source!r}), "cell", "exec", dont_inherit=True)
except (SyntaxError, ValueError) as error:
    print("SyntaxError in its line", getattr(error, "lineno", "?"), end=": ")
    print(error.args[0])
"""

_ENDED = "The kernel ended"

_KERNELS = 8  # of one notebook, the most that may die

_WARM = """import numpy, sys, mplab
mplab.round_to(numpy.ones(1), mplab.FP16)
for line in {imports!r}:
    try:
        exec(line)
    except Exception:  # of a file beside the notebook, for instance
        pass
if "torch" in sys.modules:
    __import__("torch._dynamo")  # as the first optimizer does
"""
"""What every submission would wait for; it runs once, before all of them."""

_SANDBOXES: dict[tuple[str, bool], WarmSandbox] = {}


def warm_up(assignment: Assignment, notebooks: Iterable[NotebookNode]) -> str:
    """Write what to run before all submissions: what the notebooks import, and `WARM`."""
    imports = []
    for cell in (cell for notebook in notebooks for cell in notebook.cells):
        with suppress(SyntaxError):  # no code, or a magic
            for line in ast.parse(cell.source if cell.cell_type == "code" else "").body:
                if isinstance(line, ast.Import | ast.ImportFrom):
                    imports.append(ast.unparse(line))
    return _WARM.format(imports=[*dict.fromkeys(imports)]) + assignment.warm


def warm_sandbox(
    warm: str, *, trusted: bool, account: bool = False, limits: Limits | None = None
) -> WarmSandbox:
    """Return the grader's warm process for an assignment; it is kept until the grader ends.

    Raises:
        NoSandbox: there is no sandbox, and the submissions are not trusted.
    """
    # The other two are those of a job, and a new job ends all of them first.
    key = (warm, trusted)
    if key not in _SANDBOXES:
        if not (trusted or account):
            require_sandbox()
        _SANDBOXES[key] = WarmSandbox(
            warm=warm, trusted=trusted, account=account, limits=limits
        )
    return _SANDBOXES[key]


@atexit.register
def close_sandboxes() -> None:
    """End every warm process of this grader."""
    while _SANDBOXES:
        _SANDBOXES.popitem()[1].close()


def run_notebook(
    notebook: NotebookNode,
    sessions: Callable[[], AbstractContextManager[Session]],
    graded: Mapping[str, Graded],
    seed: Callable[[str, str], int],
    *,
    asked: bool = False,
    seconds: float = 300.0,
) -> str:
    """Run the cells in order; at each grade cell, ask for values and write the points.

    When the kernel dies, a fresh one runs the notebook without the cell that ended it, and is
    asked for what has no outcome yet: an answer that is right keeps its points. An exercise may
    end two kernels. What the cells before the first check show is written while nothing has been
    asked: a fresh kernel may know a hidden input from the one that died, by what the machine has in
    its caches, say.

    Args:
        notebook: rebuilt from a submission; outputs and outcomes are written into it.
        sessions: opens a kernel where its cells run.
        graded: the exercises by the id of their grade cell.
        seed: the seed for an exercise and a part.
        asked: whether the submission has been asked for hidden cases, in another notebook.
        seconds: of the kernels' own, without waiting, after which no further one begins.

    Returns:
        A remark on the run for the teacher; empty if there is nothing to say.
    """
    replies: dict[str, list[Reply]] = {}
    skipped: set[int] = set()
    remarks: list[str] = []
    interrupts = 0
    spent = 0.0
    ended = ""
    for _ in range(_KERNELS):
        with sessions() as session:
            ended = _run_in_one_kernel(
                notebook,
                session,
                graded,
                seed,
                replies,
                skipped,
                asked=asked or bool(replies),
            )
            interrupts += session.interrupts
            spent += session.spent
        if not ended:
            break
        remarks.append(ended)
        if spent > seconds:
            break
    lost = {name for name, known in replies.items() if any(r.missing for r in known)}
    errors = _syntax_errors(notebook, lost, sessions) if lost else {}
    for cell in notebook.cells:
        if (name := graded_name(cell)) is not None:
            exercise = graded[name]
            known = replies.get(name, [])
            if error := errors.get(name):
                known = [r._replace(message=error) if r.missing else r for r in known]
            missing = len(exercise.parts) - len(known)
            known += [Reply([], message=ended)] * missing
            write_outcomes(cell, outcomes_of(exercise, known))
    if interrupts:
        remarks.insert(0, f"Stopped {interrupts}× for running too long.")
    return " ".join(dict.fromkeys(remarks))


def _syntax_errors(
    notebook: NotebookNode,
    names: Collection[str],
    sessions: Callable[[], AbstractContextManager[Session]],
) -> dict[str, str]:
    """Find the exercises whose answer is no Python, and say why.

    The kernel compiles and runs nothing, so what it says depends on no hidden input.
    """
    cells = marked(notebook)
    found = {}
    with sessions() as session, suppress(Died):
        for name, answer in answers_before(notebook).items():
            if name not in names or cells[answer].cell_type != "code":
                continue
            source = _COMPILE.format(source=cells[answer].source)
            outputs = session.run(source, seconds=5.0).outputs
            if text := one_line(str(outputs[0].get("text", "")) if outputs else ""):
                found[name] = f"The cell does not run: {text[:200]}."
    return found


def _run_in_one_kernel(
    notebook: NotebookNode,
    session: Session,
    graded: Mapping[str, Graded],
    seed: Callable[[str, str], int],
    replies: dict[str, list[Reply]],
    skipped: set[int],
    *,
    asked: bool,
) -> str:
    """Run a notebook in one kernel, and add to the replies until it dies.

    Once a check has `asked`, the cells before the first one keep the outputs that they have.

    Returns:
        Why the kernel died; empty if it did not.
    """
    kept = asked
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code" or number in skipped:
            continue
        name = graded_name(cell)
        try:
            if name is None:
                outputs = _outputs(session, cell.source)
                if not kept:
                    cell.outputs = outputs
            else:
                kept = False  # feedback withholds what follows a check
                known = replies.setdefault(name, [])
                ask_parts(graded[name], session, partial(seed, name), known)
        except Died as death:
            where = f"in the check of {name}" if name else f"in cell {number}"
            if (asked or replies) and not name:  # its number could spell a hidden input
                last = list(replies)[-1:]
                where = f"after the check of {last[0]}" if last else "before a check"
            ended = f"{_ENDED} {where}: {death}."
            if name is None:
                skipped.add(number)
                text = f"{ended} What follows ran without this cell.\n"
                if not kept:
                    cell.outputs = [v4.new_output("stream", text=text)]
            else:
                # At first only the part that ended it is lost, the second time what is left.
                second = any(reply.message.startswith(_ENDED) for reply in known)
                lost = len(graded[name].parts) - len(known) if second else 1
                known += [Reply([], message=ended)] * lost
            return ended
    return ""


def _outputs(session: Session, source: str) -> list[NotebookNode]:
    """Run a cell and return its outputs, with a note if it was stopped."""
    before = session.interrupts
    if before >= ALL_INTERRUPTS:
        return [v4.new_output("stream", text=f"{NOT_ASKED}\n")]
    outputs = [rebuild_output(output) for output in session.run(source).outputs]
    if session.interrupts > before:
        outputs.append(v4.new_output("stream", text="Stopped: it ran too long.\n"))
    return outputs


def graded_name(cell: NotebookNode) -> str | None:
    """Return the id of a cell whose points come from its exercise; None for any other cell."""
    mark = mark_of(cell)
    if cell.cell_type == "code" and mark.get("grade") and not mark.get("solution"):
        return str(mark["grade_id"])
    return None


def refused_outcomes(graded: Graded, reason: str) -> list[Outcome]:
    """Give no points for any part, with the reason."""
    return [Outcome(part.name, part.points, 0.0, reason) for part in graded.parts]


def technical_reason(error: Exception) -> str:
    """Write in one line what went wrong, through no fault of a submission."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def write_outcomes(cell: NotebookNode, outcomes: list[Outcome]) -> None:
    """Write the points into a check cell: as text for people, for nbgrader, and as a record.

    nbgrader takes the first result of a grade cell as its points, and gives no points if there is
    an error, or anything on stderr. The record is in the cell's metadata, which no submission can
    write, because they come from the release.
    """
    outcomes = [part._replace(message=one_line(part.message)) for part in outcomes]
    lines = []
    for part in outcomes:
        sign = "✔" if part.earned == part.points else "✘"
        lines.append(f"{sign} {part.part}: {part.earned:g} of {part.points:g}")
        if part.message:
            lines.append(f"    {part.message}")
    earned = round(sum(part.earned for part in outcomes), 9)
    cell.metadata["mplab"] = {"outcomes": [part._asdict() for part in outcomes]}
    cell.outputs = [
        v4.new_output("stream", name="stdout", text="\n".join(lines) + "\n"),
        v4.new_output("execute_result", {"text/plain": repr(float(earned))}),
    ]


def read_outcomes(cell: NotebookNode) -> list[Outcome]:
    """Read the outcomes that `write_outcomes` wrote into a cell; none from any other cell."""
    record = cell.metadata.get("mplab", {"outcomes": []})
    return [Outcome(**part) for part in record["outcomes"]]


def one_line(message: str) -> str:
    """Clean a message, so that a student's exception cannot imitate the grader's output.

    The result has one line, no characters that move a cursor or change the reading direction,
    and no symbol like the marks in front of the points.
    """
    kept = ""
    for character in message:
        if not character.isprintable():
            kept += " "
        elif unicodedata.category(character) == "So":
            kept += "?"
        else:
            kept += character
    return " ".join(kept.split())


# A submission, in a worker of any executor ------------------------------------------------
_TURN = threading.Lock()
"""A process has one sandbox, so its threads take turns."""


class Job(NamedTuple):
    """The settings that all submissions of one command share; `run` names the command."""

    course: Course
    assignment: str
    trusted: bool
    run: str
    account: bool = False


class GradedNotebooks(NamedTuple):
    """A submission that has run: its notebooks with points in their checks."""

    student: str
    digest: str
    notebooks: dict[str, NotebookNode]
    remark: str
    seconds: float


def start_worker() -> None:
    """Prepare a process of a local pool: it ends with its parent, and its sandbox with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    die_with_parent()
    multiprocessing.util.Finalize(None, close_sandboxes, exitpriority=1)


def stop_worker() -> None:
    """End the sandbox of an idle worker."""
    if _TURN.acquire(blocking=False):
        try:
            close_sandboxes()
            _load.cache_clear()
        finally:
            _TURN.release()


def grade_submission(
    job: Job, student: str, pause: float = 0.0, again: bool = False
) -> GradedNotebooks:
    """Grade a submission after a pause, perhaps again, after a technical failure.

    In a later try what the cells before the first check show is not written: a submission can kill
    its own process as a machine does that is short of memory, after a check.

    Any submission comes back with its points, or with none and the reason. An exception is a
    technical failure, and no fault of the submission.
    """
    time.sleep(pause)
    with _TURN:
        shared = _load(job)
        return _grade_notebooks(job, student, *shared, again=again)


@lru_cache(1)
def _load(job: Job) -> tuple[dict[str, NotebookNode], Limits]:
    """Load what a command's submissions share, for each command anew: a release may change."""
    close_sandboxes()
    limits = Limits(**job.course.config().Limits)
    return job.course.skeletons(job.assignment), limits


def _grade_notebooks(
    job: Job,
    student: str,
    skeletons: dict[str, NotebookNode],
    limits: Limits,
    *,
    again: bool,
) -> GradedNotebooks:
    """Read a submission, run it in the sandbox, and write outputs and points into its notebooks.

    Raises:
        NoSandbox: there is no sandbox, or it ended through no fault of the submission.
    """
    start = time.perf_counter()
    course = job.course
    assignment = job.assignment
    found = digest(course, assignment, student)
    refused = ""
    try:
        folder = course.root / "submitted" / student / assignment
        notebooks, remarks = read_submission(folder, skeletons)
        missing = sorted(skeletons.keys() - notebooks.keys())
        remarks += [f"{name}.ipynb is missing." for name in missing]
        note = f"**Note:** {' '.join(remarks)}" if remarks else ""
    except RejectedSubmission as reason:
        # What `collect` could not take, or else what is wrong with what it took.
        received = course.read("received", assignment, student)
        refused = received.get("reason") or str(reason)
        notebooks = copy.deepcopy(skeletons)
        remarks = [f"not graded: {refused}"]
        note = f"**Not graded:** {refused}."
    exercises = course.assignment(assignment)
    for _, notebook in sorted(notebooks.items()):
        if note:
            notebook.cells.insert(0, v4.new_markdown_cell(note, id="mplab-note"))
        for cell in notebook.cells:
            name = graded_name(cell)
            if refused and name:
                exercise = exercises.graded[name]
                lost = refused_outcomes(exercise, f"Not graded: {refused}.")
                write_outcomes(cell, lost)
            elif cell.cell_type != "code":
                cell.source = escape_html_in_markdown(cell.source)
    if not refused:
        sandbox = warm_sandbox(
            warm_up(exercises, skeletons.values()),
            trusted=job.trusted,
            account=job.account,
            limits=limits,
        )
        sessions = partial(sandbox.session, course.files(assignment))
        for _, notebook in sorted(notebooks.items()):
            remark = run_notebook(
                notebook,
                sessions,
                exercises.graded,
                partial(seed_for, course.key(), assignment, student),
                asked=again,
                seconds=limits.total_seconds,
            )
            remarks.append(remark)
            again = True  # what another one shows could be a hidden input of this one
    seconds = time.perf_counter() - start
    remark = " ".join(filter(None, remarks))
    return GradedNotebooks(student, found, notebooks, remark, seconds)
