"""Beyond one machine: each submission is graded by one grader, whoever is killed meanwhile."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import postgres
import pytest
from classroom import WALLS, submit
from grading_speed import synthetic
from nbgrader import api
from sqlalchemy import event

import mplab
from mplab.commands.main import main
from mplab.grading import _database, autograding, execute
from mplab.grading._database import Claims, disconnect, one_engine
from mplab.grading.autograding import autograde, read_journal
from mplab.grading.execute import close_lanes
from mplab.grading.folder import Course, create_course
from mplab.grading.releasing import release
from mplab.grading.sandbox import sandbox_problem

with_walls = pytest.mark.skipif(not WALLS, reason=str(sandbox_problem()))

COUNTED = """
import os
from mplab.grading import autograding

def note(*words):  # appended whole, by any number of processes
    with open(LOG, "a") as file:
        file.write(" ".join(words) + "\\n")

def counted(self, student, *more, grade=autograding.Grader._grade):
    note("begins", student, str(os.getpid()))
    record = grade(self, student, *more)
    note("ends", student, str(os.getpid()))
    return record

if autograding.Grader._grade.__name__ != "counted":
    autograding.Grader._grade = counted
"""


@pytest.fixture(autouse=True)
def counted_by_its_own_course_only(monkeypatch):
    """A course that was graded in this process has left its count there, and its log."""
    monkeypatch.setattr(autograding.Grader, "_grade", autograding.Grader._grade)


@pytest.fixture(scope="module")
def database():
    with postgres.server() as made:
        yield made


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    course = create_course(tmp_path_factory.mktemp("cluster") / "course")
    (course.root / "roster.csv").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release(course, "a1", trusted=not WALLS)
    return course


def claims_of(course, host="here", process=None):
    found = Claims(course, "a1")
    found._host = host
    found._owner = f"{host}:{process or os.getpid()}"
    return found


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def course(request, tmp_path):
    """A course with a database and no assignment."""
    course = create_course(tmp_path / "course")
    if request.param == "postgres":
        url = request.getfixturevalue("database")(f"claims{time.monotonic_ns()}")
        settle(course, f"c.CourseDirectory.db_url = {url!r}")
    claims_of(course).prepare()
    yield course
    disconnect()


def settle(course, line):
    with (course.root / "nbgrader_config.py").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def test_a_process_looks_at_the_schema_once_and_each_gradebook_has_a_session_of_its_own(course):
    url, asked = course.directory().db_url, []
    with one_engine():
        with api.Gradebook(url, "x"):
            pass
        engine = _database._create_engine(url)
        event.listen(engine, "before_cursor_execute", lambda *about: asked.append(about[2]))
        with api.Gradebook(url, "x") as one, api.Gradebook(url, "x") as other:
            assert asked == []
            one.add_student("s01")
            assert [student.id for student in other.students] == ["s01"]
            assert one.db() is not other.db()
        event.listen(engine, "connect", lambda *about: pytest.fail("a connection that is kept"))
        with api.Gradebook(url, "x") as again:
            assert again.students
        asked.clear()
        with api.Gradebook(url, "y"):  # another course of the database is looked at
            assert asked


HOLDERS = [  # host, process, held, silent for, whether another may have it
    ("here", None, True, 0, True),  # this process itself, which grades one at a time
    ("here", 1, True, 0, False),
    ("here", 1, True, 121, True),
    ("here", 1, False, 0, True),
    ("here", 2**22 + 1, True, 0, True),  # no process has this number
    ("elsewhere", 1, True, 0, False),
    ("elsewhere", 2**22 + 1, True, 119, False),
    ("elsewhere", 1, True, 121, True),
    ("elsewhere", 1, False, 59, False),  # graded, but the files may not be seen here yet
    ("elsewhere", 1, False, 61, True),
]


@pytest.mark.parametrize("holder", HOLDERS, ids=str)
def test_who_may_have_a_submission_that_another_held(course, holder, monkeypatch):
    host, process, held, silent, free = holder
    claims, other = claims_of(course), claims_of(course, host, process)
    now, clock = _database._now, [0.0]
    monkeypatch.setattr(_database, "_now", lambda database: now(database) + clock[0])
    assert other._take("s01")
    other._beat("s01", held=held)
    clock[0] = silent
    assert claims.free(["s01", "s02"]) == ["s01", "s02"][not free :]
    with claims.holding("s01") as taken:
        assert taken == free
        if free:
            assert not claims_of(course, "third")._take("s01")
        assert Claims(course, "a2").free(["s01"]) == ["s01"]
    assert claims.free(["s01"]) == (["s01"] if free else [])


def test_two_machines_of_one_name_are_two(tmp_path, monkeypatch):
    """Each once took what the other was at, since no process of that number ran here."""
    hosts = []
    for number in "12":
        monkeypatch.setattr(_database, "_BOOT", tmp_path / number)
        _database._BOOT.write_text(f"{number}\n")
        hosts += [_database._host(), _database._host()]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


def test_of_many_that_ask_at_once_one_has_each_submission(course):
    names = [f"s{number}" for number in range(6)]
    had, start = Counter(), threading.Barrier(4)

    def ask(number):
        claims = claims_of(course, f"host{number}", 1)
        start.wait()
        had.update(name for name in names if claims._take(name))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert had == dict.fromkeys(names, 1)


def test_one_that_is_taken_over_at_once_by_many_goes_to_one(course, monkeypatch):
    assert claims_of(course, "dead", 1)._take("s01")
    now = _database._now
    monkeypatch.setattr(_database, "_now", lambda database: now(database) + 121)
    all_read, had = threading.Barrier(4), []
    is_free = Claims._is_free

    def together(self, row, now):
        all_read.wait(10)
        return is_free(self, row, now)

    monkeypatch.setattr(Claims, "_is_free", together)

    def ask(number):
        had.append(claims_of(course, f"host{number}", 1)._take("s01"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(had) == [False, False, False, True]


def test_a_grader_says_that_it_is_still_there_for_as_long_as_it_grades(course, monkeypatch):
    monkeypatch.setattr(_database, "_BEAT_SECONDS", 0.01)
    claims, beats = claims_of(course), []
    beat = claims._beat
    monkeypatch.setattr(claims, "_beat", lambda s, held: (beats.append(held), beat(s, held=held)))
    end = time.monotonic() + 20
    with claims.holding("s01"):
        while len(beats) < 3 and time.monotonic() < end:
            time.sleep(0.01)
    assert beats[:3] == [True] * 3
    assert (beats[-1], beats.count(False)) == (False, 1)


@pytest.mark.parametrize(
    "options",
    [["--shard", text] for text in ("8/8", "0/0", "-1/8", "1", "a/b", "1/2/3", "0.5/2", "²/3")]
    + [["--dask", "x", "--jobs", "2"], ["--dask", "x", "--shard", "0/2"]],
    ids=" ".join,
)
def test_a_part_that_is_none_is_refused(tmp_path, capsys, options):
    course = create_course(tmp_path / "course")
    given = [f"{name}={value}" for name, value in zip(options[::2], options[1::2], strict=True)]
    assert main(["grade", "autograde", "a1", "--course", str(course.root), *given]) == 2
    said = capsys.readouterr().err
    assert "shard" in said and "must be i/n" in said and options[-1] in said


def test_what_a_cluster_needs_is_named_in_a_line(tmp_path, capsys, monkeypatch):
    course = create_course(tmp_path / "course")
    at = ["--course", str(course.root)]
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["grade", "autograde", "a1", "--dask", "tcp://127.0.0.1:1", *at]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mplab grade: needs distributed, which is not installed. Install it: ")
    settle(course, "c.CourseDirectory.db_url = 'postgresql+psycopg://nobody@/none'")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert main(["grade", "export", "a1", *at]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mplab grade: needs psycopg, which is not installed. Install it: ")
    assert said.count("\n") == 1


def handed_in(released, folder, count):
    """A course of its own with submissions of a mixed class, and a log of each grading."""
    shutil.copytree(released.root, folder)
    course = Course(folder)
    synthetic(course, count)
    log = folder.parent / f"{folder.name}.log"
    log.touch()
    settle(course, COUNTED.replace("LOG", repr(str(log))))
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
    """All points in the gradebook, part by part."""
    with course.gradebook() as gradebook:
        return {
            (submission.student.id, grade.name): grade.auto_score
            for submission in gradebook.assignment_submissions("a1")
            for notebook in submission.notebooks
            for grade in notebook.grades
        }


def started(command, cwd, output=subprocess.DEVNULL):
    environment = os.environ | {"PYTHONPATH": str(Path(mplab.__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-m", *command], cwd=cwd, env=environment,
                            stdout=output, stderr=subprocess.STDOUT, text=True,
                            start_new_session=True)  # fmt: skip


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def reference(released, folder, count):
    """What a single process gives the same class."""
    course, _ = handed_in(released, folder, count)
    lines = autograde(course, "a1", tell=str)
    close_lanes()
    return course, {line.student: (line.score, line.remark) for line in lines}


@pytest.mark.slow
@with_walls
def test_several_commands_share_the_submissions_and_each_ends_when_all_are_graded(
    released, tmp_path
):
    alone, wanted = reference(released, tmp_path / "alone", 8)
    course, log = handed_in(released, tmp_path / "course", 8)
    commands = [
        started(["mplab", "grade", "autograde", "a1", *more], course.root, subprocess.PIPE)
        for more in ([], ["--jobs", "2"], ["--shard", "1/2"])
    ]
    said = [command.communicate(timeout=300)[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0, 0], said
    begun, ended, _ = gradings(log)
    assert begun == ended == dict.fromkeys(wanted, 1)
    assert points(course) == points(alone)
    assert {s: read_journal(course, "a1", s)["score"] for s in wanted} == {
        student: score for student, (score, _) in wanted.items()
    }
    for words in said[:2]:
        assert all(f"{student}: " in words for student in wanted)


@pytest.mark.slow
def test_each_submission_is_of_one_part_whoever_else_hands_in(released, tmp_path, monkeypatch):
    course, _ = handed_in(released, tmp_path / "course", 30)
    monkeypatch.setattr(autograding, "require_sandbox", lambda: None)
    monkeypatch.setattr(autograding, "_grade_all", lambda *_: None)

    def part(i, n):
        return {line.student for line in autograde(course, "a1", shard=(i, n), tell=str)}

    before = [part(i, 7) for i in range(7)]
    assert sorted(name for names in before for name in names) == [f"s{i:04d}" for i in range(30)]
    submit(course, "a-new-one", "{}")
    after = [part(i, 7) for i in range(7)]
    assert [names - {"a-new-one"} for names in after] == before
    assert sum("a-new-one" in names for names in after) == 1
    assert part(0, 1) == set().union(*after)


@pytest.mark.slow
@with_walls
def test_a_sandbox_that_its_own_grader_ends_costs_no_points(released, tmp_path, monkeypatch):
    """A worker of a cluster ends its sandbox at exit, while its thread may still be grading."""
    course, log = handed_in(released, tmp_path / "course", 1)
    monkeypatch.setattr(autograding, "_PAUSES", (0.1,))
    run, ended = execute.run_notebook, []

    def ended_once(*arguments):
        if not ended:
            ended.append(execute._LANES.popitem()[1])
            os.killpg(ended[0].process_id, signal.SIGKILL)
        return run(*arguments)

    monkeypatch.setattr(execute, "run_notebook", ended_once)
    autograding.Grader(course, "a1").grade("s0000")
    close_lanes()
    ended[0].close()
    record = read_journal(course, "a1", "s0000")
    assert (len(ended), record["score"] > 0, record["remark"]) == (1, True, "")
    assert [counts["s0000"] for counts in gradings(log)[:2]] == [2, 1]


def cluster_run(released, tmp_path, url, count):
    """Four workers in two groups; a worker is killed, then the scheduler; then all is compared."""
    alone, wanted = reference(released, tmp_path / "alone", count)
    course, log = handed_in(released, tmp_path / "course", count)
    settle(course, f"c.CourseDirectory.db_url = {url!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release(course, "a1")
    close_lanes()
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    groups = []

    def start():
        for _ in range(2):
            more = ["--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--death-timeout", "60"]
            groups.append(started(["distributed.cli.dask_worker", address, *more], tmp_path))
        command = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port]
        groups.append(started([*command, "--no-dashboard"], tmp_path))
        return groups[-1]

    def grade():
        command = ["mplab", "grade", "autograde", "a1", "--dask", address]
        groups.append(started(command, course.root, subprocess.PIPE))
        return groups[-1]

    try:
        scheduler = start()
        first = grade()
        begun_by = until(lambda: {p: s for p, s in gradings(log)[2].items() if s})
        killed, lost = next(iter(begun_by.items()))
        os.kill(killed, signal.SIGKILL)
        until(lambda: gradings(log)[1].total() >= count // 3, seconds=120 + 3 * count)
        scheduler.kill()
        said, _ = first.communicate(timeout=120)
        assert first.returncode == 2
        assert f"autograde: the scheduler {address} must stay until all is graded; it was" in said
        done_before = gradings(log)[1].total()
        until(lambda: all(group.poll() is not None for group in groups[:2]))  # they end with it
        start()
        second = grade()
        said, _ = second.communicate(timeout=20 * 60)
        assert second.returncode == 0, said
    finally:
        for group in groups:
            if group.poll() is None:
                os.killpg(group.pid, signal.SIGKILL)
            group.communicate()
    begun, ended, _ = gradings(log)
    assert 0 < done_before < count
    assert ended == dict.fromkeys(wanted, 1)
    assert begun[lost] >= 2 and begun.total() <= count + 5  # the killed one, and what each cut off
    journals = {name: read_journal(course, "a1", name) for name in wanted}
    assert {s: (r["score"], r["remark"]) for s, r in journals.items()} == wanted
    assert points(course) == points(alone)
    assert len(points(course)) >= 6 * count
    return begun.total() - count


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


@pytest.mark.slow
@with_walls
def test_a_cluster_grades_one_exercise_anew_and_leaves_the_others(released, tmp_path):
    course, log = handed_in(released, tmp_path / "course", 3)
    autograde(course, "a1", tell=str)
    close_lanes()
    before = points(course)
    path = course.root / "checks/a1/exercises.py"
    text = path.read_text(encoding="utf-8").replace("answer=2 * (2**8 - 2**3)", "answer=7")
    wrong = text.replace("return tuple(int(part)", "return tuple(1 + int(part)")
    path.write_text(wrong, encoding="utf-8")  # finite_codes, and fields
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port]
    worker = ["distributed.cli.dask_worker", address, "--nthreads", "1"]
    groups = [started([*words, "--no-dashboard"], tmp_path) for words in (scheduler, worker)]
    try:
        command = ["mplab", "grade", "autograde", "a1", "--dask", address]
        groups.append(
            started([*command, "--exercise", "finite_codes"], course.root, subprocess.PIPE)
        )
        said, _ = groups[-1].communicate(timeout=300)
    finally:
        for group in groups:
            if group.poll() is None:
                os.killpg(group.pid, signal.SIGKILL)
            group.communicate()
    assert groups[-1].returncode == 0 and "3 graded now, 0 before." in said
    assert gradings(log)[1] == dict.fromkeys(["s0000", "s0001", "s0002"], 2)
    lost = {key for key, score in before.items() if key[1] == "finite_codes" and score}
    assert lost and any(score for (_, name), score in before.items() if name == "fields")
    assert points(course) == before | dict.fromkeys(lost, 0)


@pytest.mark.full
@with_walls
def test_two_hundred_are_graded_once_each_by_a_cluster_that_is_hurt(
    released, tmp_path, database, record_property
):
    record_property("begun again", cluster_run(released, tmp_path, database("many"), 200))
