"""A technical failure is not a grade: it is tried again, told, and mended by the next call."""

import errno
import os
import sqlite3
import threading

import pytest
from classroom import WALLS, autograded, configure, notebook, run, submit, with_walls

from mplab.course.grading import autograding, execute, submissions
from mplab.course.grading.folder import Course, create_course
from mplab.course.grading.sandbox import NoSandbox, WarmSandbox
from mplab.course.grading.submissions import RejectedSubmission, read_regular


@pytest.fixture
def course(course, monkeypatch):
    monkeypatch.setattr(autograding, "_PAUSES", (0.0, 0.1, 0.1))
    return course


def hold(course, until):
    """Lock the gradebook, as another program may, until an event; on a thread of its own."""
    locked = threading.Event()

    def work():
        database = sqlite3.connect(course.root / "gradebook.db")
        database.execute("BEGIN EXCLUSIVE")
        locked.set()
        until.wait(60)
        database.close()

    thread = threading.Thread(target=work)
    thread.start()
    locked.wait(60)
    return thread


@pytest.fixture
def impatient(course):
    """A course whose gradebook is waited for shortly."""
    configure(
        course,
        f"c.CourseDirectory.db_url = 'sqlite:///{course.root}/gradebook.db?timeout=0.2'",
    )
    return course


@pytest.mark.slow
@with_walls
def test_a_gradebook_that_is_locked_is_waited_for(impatient, monkeypatch):
    submit(impatient, "s01", notebook(impatient))
    monkeypatch.setattr(autograding, "_PAUSES", (0.0, 1.0, 8.0))
    unlock = threading.Event()
    held = []
    save = autograding.save

    def locked_save(*about):
        if not held:
            held.append(hold(impatient, unlock))
            threading.Timer(4, unlock.set).start()
        return save(*about)

    monkeypatch.setattr(autograding, "save", locked_save)
    [line] = autograded(impatient)
    held[0].join()
    assert (line.score, line.remark) == (16.0, "")


@pytest.mark.slow
def test_a_gradebook_that_is_locked_from_the_start_is_told_in_a_line(
    impatient, monkeypatch, capsys
):
    course = impatient
    submit(course, "s01", notebook(course))
    monkeypatch.setattr(autograding, "require_sandbox", lambda: None)
    unlock = threading.Event()
    thread = hold(course, unlock)
    assert run(course, "autograde", "a1") == 2
    unlock.set()
    thread.join()
    assert "the gradebook must be open for writing; got database is locked. End" in (
        capsys.readouterr().err
    )


def test_a_database_that_does_not_answer_is_told_in_a_line(tmp_path, capsys):
    course = create_course(tmp_path / "course")
    configure(course, f"c.CourseDirectory.db_url = 'sqlite:///{tmp_path}/nowhere/x.db'")
    for step in ("export", "statistics"):
        assert run(course, step, "a1") == 2
        told = capsys.readouterr().err
        assert told.startswith(
            f"mplab grade {step}: the gradebook's database must answer; got una"
        )
        assert told.count("\n") == 1


@pytest.mark.slow
@with_walls
@pytest.mark.parametrize(("kills", "score"), [(1, 16.0), (9, None)])
def test_a_sandbox_that_is_killed_is_tried_again_and_then_not_graded(
    course, monkeypatch, kills, score
):
    for student in ("s01", "s02"):
        submit(course, student, notebook(course, extra=f"# of {student}"))
    run, killed = execute._run_in_one_kernel, course.root / "killed"
    shows = course.root / "shows"

    def short_of_memory(book, session, *more, **asked):
        if "# of s01" in book.cells[0].source:
            with shows.open("a") as file:
                file.write("-" if asked["asked"] else "+")
        count = len(killed.read_text()) if killed.exists() else 0
        if "# of s01" in book.cells[0].source and count < kills:
            killed.write_text("x" * (count + 1))
            session.run("1")
            max(session._warm.children(recursive=True), key=lambda p: p.pid).kill()
        return run(book, session, *more, **asked)

    monkeypatch.setattr(execute, "_run_in_one_kernel", short_of_memory)
    lines = autograded(course)
    assert [line.score for line in lines] == [score, 16.0]
    assert killed.read_text() == "x" * min(kills, 3)
    # A submission can kill itself so after a check, and know a hidden input in the next try.
    assert shows.read_text() == "+" + "-" * min(kills, 2)
    told = "not graded yet, for a technical reason: NoSandbox: a process of the sandbox was killed"
    assert lines[0].remark.startswith(told if score is None else "")


@pytest.mark.slow
@with_walls
def test_a_grade_that_cannot_be_written_down_counts_as_not_given(course, monkeypatch):
    submit(course, "s01", notebook(course))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Course, "write", full)
        [line] = autograded(course)
    assert (line.score, line.remark[-16:]) == (None, "or its disk full")
    assert [line.score for line in autograded(course)] == [16.0]


def test_a_file_that_the_machine_fails_to_open_is_not_refused(tmp_path, monkeypatch):
    def fail(number):
        def opened(*_, **__):
            raise OSError(number, os.strerror(number))

        return opened

    monkeypatch.setattr(submissions.os, "open", fail(errno.EMFILE))
    with pytest.raises(OSError, match="Too many open files"):
        read_regular(tmp_path / "a1.ipynb", 1)
    monkeypatch.setattr(submissions.os, "open", fail(errno.ELOOP))
    with pytest.raises(RejectedSubmission, match="is a link"):
        read_regular(tmp_path / "a1.ipynb", 1)


@pytest.mark.parametrize("ends", [False, *[True] * WALLS])
def test_a_sandbox_that_does_not_start_is_no_fault_of_the_submission(monkeypatch, ends):
    """With `Died`, the submission would have been graded, with no points."""
    with WarmSandbox(trusted=not ends) as sandbox:
        order = sandbox.order

        def silent(word, *more):
            if not ends:
                raise TimeoutError("timed out")
            told = order(word, *more)
            # Another was started in its place, and knew nothing of a death.
            if word == "start":
                sandbox._process.kill()
                sandbox._process.wait()
            return told

        monkeypatch.setattr(sandbox, "order", silent)
        told = "killed|ended" if ends else "timed out"
        with pytest.raises(NoSandbox, match=told), sandbox.session({}) as session:
            session.run("import time; time.sleep(9)")


@pytest.mark.slow
@with_walls
@pytest.mark.parametrize(
    ("broken", "source", "lost"),
    [
        ("", "import os; os._exit(1)", 0),  # in a cell of its own, on top
        (
            "",
            "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
            0,
        ),
        ("value", "import os; os._exit(1)", 4),
        ("value", "def value_of(*_):\n    import os; os._exit(1)", 4),
    ],
)
def test_what_comes_after_a_crash_or_an_endless_loop_keeps_its_points(
    course, broken, source, lost
):
    """Right and independent answers earned nothing, because no kernel was there to ask."""
    configure(course, "c.Limits.cell_seconds = 1.0")
    where = {f"{broken}-answer": source} if broken else {"extra": source}
    submit(course, "s01", notebook(course, **where))
    [line] = autograded(course)
    assert line.score == 16.0 - lost, line.remark
    assert "The kernel ended" in line.remark or "Stopped" in line.remark
