"""Kills, a full disk, a folder that cannot be written: nothing graded is lost."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from classroom import notebook, submit, with_walls

from mplab.course.grading.exporting import grades
from mplab.course.grading.folder import Course

pytestmark = [pytest.mark.slow, with_walls]

KILLS = int(os.environ.get("MPLAB_KILLS", "5"))
"""Of each step; SECURITY.md has the figures of 30."""
STEPS = {
    "autograde": ["autograde", "a1", "--force", "--jobs", "2"],
    "feedback": ["feedback", "a1"],
    "export": ["export", "a1"],
}


def start(course, step):
    return subprocess.Popen(
        [sys.executable, "-m", "mplab", "grade", *STEPS[step]],
        cwd=course.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(course, step):
    process = start(course, step)
    words, _ = process.communicate(timeout=300)
    assert "Traceback" not in words, words
    return process.returncode, words


@pytest.fixture(scope="module")
def done(released, tmp_path_factory):
    """A course in which every step has been done, and how long each took."""
    course = Course(tmp_path_factory.mktemp("done") / "course")
    shutil.copytree(released.root, course.root)
    for i, right in enumerate([True, False, True, True], 1):
        submit(course, f"s0{i}", notebook(course, right=right, extra=f"x = {i}"))
    seconds = {}
    for step in STEPS:
        began = time.monotonic()
        assert finish(course, step)[0] == 0
        seconds[step] = time.monotonic() - began
    return course, seconds


@pytest.fixture
def course(done, tmp_path):
    return Course(shutil.copytree(done[0].root, tmp_path / "course"))


def found(course):
    """The scores, the pages and the table of a course."""
    scores = {g.student.id: g.score for g in grades(course, ["a1"])}
    pages = {
        p.parent.parent.name: p.read_text().rstrip().endswith("</html>")
        for p in (course.root / "feedback").rglob("*.html")
    }
    table = course.root / "grades.csv"
    return scores, pages, table.read_text() if table.exists() else None


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_is_killed_at_any_moment_loses_nothing(done, course, step):
    scores, pages, table = found(course)
    assert set(scores.values()) == {16.0, 0.0} and all(pages.values())
    chance = random.Random(step)
    counts = {"killed": 0, "waiting": 0}
    for _ in range(KILLS):
        if step == "export":
            (course.root / "grades.csv").unlink(missing_ok=True)
        process = start(course, step)
        time.sleep(chance.uniform(0.1, 1.1) * done[1][step])
        counts["killed"] += process.poll() is None
        with contextlib.suppress(ProcessLookupError):  # it was done before
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        now, there, written = found(course)
        assert all(now[who] in (None, score) for who, score in scores.items()), now
        assert all(there.values()) and written in (None, table)
        for path in course.root.rglob("*.json"):
            json.loads(path.read_bytes())
        counts["waiting"] += None in now.values()
    print(step, counts)
    assert finish(course, step)[0] == 0
    assert found(course) == (scores, pages, table)


@pytest.fixture
def disk(course, tmp_path):
    """The course on a disk of its own, of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield Course(shutil.copytree(course.root, place / "course"))
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("room", [0, 20, 300])
def test_a_full_disk_is_told_and_nothing_graded_is_lost(disk, step, room):
    scores, pages, table = found(disk)
    filler = disk.root.parent / "filler"
    with (
        filler.open("wb", buffering=0) as file,
        pytest.raises(OSError, match="No space"),
    ):
        while True:
            file.write(bytes(4096))
    os.truncate(filler, max(0, filler.stat().st_size - (room << 10)))
    code, words = finish(disk, step)
    print(step, room, code, words[-300:])
    assert code in (0, 1, 2, 130) and (code == 0 or words.strip())
    now, there, written = found(disk)
    assert all(now[who] in (None, score) for who, score in scores.items()), now
    assert all(there.values()) and written in (None, table)
    filler.unlink()
    assert finish(disk, step)[0] == 0
    assert found(disk) == (scores, pages, table)


@pytest.mark.parametrize("step", STEPS)
def test_a_course_that_cannot_be_written_is_told_in_words(disk, step):
    before = found(disk)
    mount = ["mount", "-o", "remount,{}", str(disk.root.parent)]
    subprocess.run([w.format("ro") for w in mount], check=True)
    code, words = finish(disk, step)
    print(step, code, words[-300:])
    subprocess.run([w.format("rw") for w in mount], check=True)
    assert code != 0 and "ead-only" in words
    assert found(disk) == before


def test_files_from_a_time_to_come_are_no_harm_when_the_clock_is_set_back(course):
    before = found(course)
    soon = time.time() + 90_000
    for path in course.root.rglob("*"):
        os.utime(path, (soon, soon))
    for step in STEPS:
        assert finish(course, step)[0] == 0
    assert found(course) == before
