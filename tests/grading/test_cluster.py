"""Grading by any executor: each submission is recorded once, whatever is killed meanwhile."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import classroom
import postgres
import pytest
from classroom import configure, with_walls
from gloo import free_port

import mplab
from mplab.commands.main import main
from mplab.course.grading import autograding
from mplab.course.grading.autograding import _lock, autograde
from mplab.course.grading.execute import Job, close_sandboxes
from mplab.course.grading.folder import Course, create_course

COUNTED = """
import os
from mplab.course.grading import execute

def note(*words):  # appended whole, by any number of processes
    with open(LOG, "a") as file:
        file.write(" ".join(words) + "\\n")

def counted(job, student, *shared, grade=execute._grade_notebooks, **again):
    note("begins", student, str(os.getpid()))
    work = grade(job, student, *shared, **again)
    note("ends", student, str(os.getpid()))
    return work

if execute._grade_notebooks.__name__ != "counted":
    execute._grade_notebooks = counted
"""


@pytest.fixture(scope="module")
def database():
    with postgres.server() as made:
        yield made


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    course = create_course(tmp_path_factory.mktemp("cluster") / "course")
    (course.root / "roster.csv").unlink()
    classroom.released(course)
    return course


def graded_with_trouble(job, student, pause, again):
    """A submission that kills its worker, always or once, or fails, always or once."""
    folder = job.course.root
    with (folder / student).open("a") as file:
        file.write("x")
    first = (folder / student).stat().st_size == 1
    if student == "kills" or (student == "kills_once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if student == "fails" or (student == "fails_once" and first):
        raise OSError(28, "No space left on device")
    return student


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_is_recorded_once_and_those_that_kill_their_workers_cost_no_other(
    tmp_path, monkeypatch, jobs
):
    monkeypatch.setattr(autograding, "grade_submission", graded_with_trouble)
    names = [*(f"s{i}" for i in range(9)), "kills", "fails", "kills_once", "fails_once"]
    written, failed, told = [], {}, []
    monkeypatch.setattr(autograding, "_save_result", lambda *of: written.append(of[-1]))
    monkeypatch.setattr(
        autograding, "_record_failure", lambda *of: failed.update([of[-2:]])
    )
    workers, job = autograding._processes, Job(Course(tmp_path), "a1", False, "run")
    autograding._grade_all(workers, jobs, names[::-1], job, told.append)
    assert Counter(written) == dict.fromkeys(set(names) - {"kills", "fails"}, 1)
    kinds = {name: type(error).__name__ for name, error in failed.items()}
    assert kinds.pop("kills") == "BrokenProcessPool"
    # On a busy machine the last of three tries may end with a neighbour that kills their worker.
    assert kinds in ({"fails": "OSError"}, {"fails": "BrokenProcessPool"})
    assert all((tmp_path / name).stat().st_size <= 3 for name in names)
    assert any("a worker ended early" in words for words in told)


def test_ctrl_c_is_the_parent_s_to_answer_and_ends_its_workers():
    with autograding._processes(2) as (executor, room):
        answer = executor.submit(signal.getsignal, signal.SIGINT).result()
    assert (answer, room()) == (signal.SIG_IGN, 4)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), autograding._processes(1) as (executor, _):
        executor.submit(time.sleep, 60)
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 30


@pytest.mark.slow
def test_a_second_command_is_told_that_one_is_at_work_and_a_dead_one_holds_nothing(
    tmp_path,
):
    course = create_course(tmp_path / "course")
    code = (
        "import sys, pathlib; from mplab.course.grading.autograding import _lock\n"
        "from mplab.course.grading.folder import Course\n"
        "with _lock(Course(pathlib.Path(sys.argv[1]))): print('held', flush=True); input()"
    )
    with started(
        ["-c", code, course.root], tmp_path, subprocess.PIPE, input=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(ValueError, match="another autograde is running in"),
            _lock(course),
        ):
            pass
        other.kill()
        other.wait()
    with _lock(course):
        pass


def test_what_a_cluster_needs_is_named_in_a_line(tmp_path, capsys, monkeypatch):
    course = create_course(tmp_path / "course")
    at = ["--course", str(course.root)]
    assert main(["grade", "autograde", "a1", "--dask", "x", "--jobs", "2", *at]) == 2
    assert "--dask cannot be combined with --jobs" in capsys.readouterr().err
    for step in ("autograde", "feedback"):
        assert main(["grade", step, "a1", "--jobs", "0", *at]) == 2
        assert "--jobs must be at least 1; got 0" in capsys.readouterr().err
    assert main(["grade", "release", "a1", "--draws", "0", *at]) == 2
    assert "--draws must be at least 1; got 0" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["grade", "autograde", "a1", "--dask", "tcp://127.0.0.1:1", *at]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "mplab grade: needs distributed, which is not installed. Install it: "
    )
    configure(course, "c.CourseDirectory.db_url = 'postgresql+psycopg://nobody@/none'")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert main(["grade", "export", "a1", *at]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "mplab grade: needs psycopg, which is not installed. Install it: "
    )
    assert said.count("\n") == 1


def handed_in(released, folder, count):
    """A course of its own with submissions of a mixed class, and a log of each grading."""
    shutil.copytree(released.root, folder)
    course = Course(folder)
    for number in range(count):  # a quarter is empty
        text = classroom.notebook(course, right=number % 4 > 0)
        classroom.submit(course, f"s{number:04d}", text)
    log = folder.parent / f"{folder.name}.log"
    log.touch()
    configure(course, COUNTED.replace("LOG", repr(str(log))))
    return course, log


def gradings(log):
    """How often each grading began, and ended: Counters of student, and who is at which now."""
    begun, ended, at = Counter(), Counter(), {}
    for line in log.read_text(encoding="utf-8").splitlines():
        step, student, process = line.split()
        (begun if step == "begins" else ended)[student] += 1
        at[int(process)] = student if step == "begins" else None
    return begun, ended, at


def points(course):
    """All points in the gradebook, part by part; a row that is there twice would show."""
    with course.gradebook() as gradebook:
        return Counter(
            (submission.student.id, grade.name, grade.auto_score)
            for submission in gradebook.assignment_submissions("a1")
            for notebook in submission.notebooks
            for grade in notebook.grades
        )


def started(command, cwd, output=subprocess.DEVNULL, *, input=False):
    environment = os.environ | {"PYTHONPATH": str(Path(mplab.__file__).parents[1])}
    return subprocess.Popen([sys.executable, *map(str, command)], cwd=cwd, env=environment,
                            stdin=subprocess.PIPE if input else None, stdout=output,
                            stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)  # fmt: skip


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def cluster_run(released, tmp_path, url, count):
    """Four workers in two groups; a worker is killed, then the scheduler; then all is compared."""
    alone, _ = handed_in(released, tmp_path / "alone", count)
    wanted = {line.student: line.score for line in autograde(alone, "a1", log=str)}
    course, log = handed_in(released, tmp_path / "course", count)
    configure(course, f"c.CourseDirectory.db_url = {url!r}")
    classroom.released(course)
    close_sandboxes()
    port = free_port()
    address, groups = f"tcp://127.0.0.1:{port}", []
    start = partial(started, cwd=tmp_path)

    def begin():
        for _ in range(2):
            worker = (
                f"-m distributed.cli.dask_worker {address} --nworkers 2 --nthreads 1"
            )
            options = "--no-dashboard --death-timeout 60"
            groups.append(start([*worker.split(), *options.split()]))
        scheduler = f"-m distributed.cli.dask_scheduler --host 127.0.0.1 --port {port}"
        groups.append(start([*scheduler.split(), "--no-dashboard"]))
        return groups[-1]

    def grade():
        command = ["-m", "mplab", "grade", "autograde", "a1", "--dask", address]
        groups.append(started(command, course.root, subprocess.PIPE))
        return groups[-1]

    def recorded():
        return [name for name in wanted if course.read("journal", "a1", name)]

    try:
        scheduler, first = begin(), grade()
        at = until(lambda: {p: s for p, s in gradings(log)[2].items() if s})
        killed, lost = next(iter(at.items()))
        os.kill(killed, signal.SIGKILL)
        until(lambda: len(recorded()) >= count // 3, seconds=120 + 3 * count)
        scheduler.kill()
        said, _ = first.communicate(timeout=120)
        assert first.returncode == 2
        assert (
            f"autograde: the scheduler {address} must stay until all is graded; it was"
            in said
        )
        done_before = recorded()
        # They end with it.
        until(lambda: all(group.poll() is not None for group in groups[:2]))
        begin()
        second = grade()
        said, _ = second.communicate(timeout=20 * 60)
        assert second.returncode == 0, said
    finally:
        for group in groups:
            if group.poll() is None:
                os.killpg(group.pid, signal.SIGKILL)
            group.communicate()
    begun, _, _ = gradings(log)
    assert 0 < len(done_before) < count
    # What was with the cluster, twice.
    assert begun[lost] >= 2 and count < begun.total() <= count + 17
    assert {
        name: course.read("journal", "a1", name)["score"] for name in wanted
    } == wanted
    assert points(course) == points(alone)
    return begun.total() - count


@pytest.mark.slow
@with_walls
def test_a_class_is_graded_once_by_a_cluster_that_is_hurt(
    released, tmp_path, database, record_property
):
    record_property(
        "begun again", cluster_run(released, tmp_path, database("many"), 24)
    )
    assert multiprocessing.active_children() == []
