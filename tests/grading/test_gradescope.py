"""On Gradescope a submission gets the points of `mplab grade`, and another account holds it."""

import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import stage
from classroom import with_walls
from payloads import ATTACKS, SECRET

from mplab.course.grading.bubblewrap import _view
from mplab.course.grading.gradescope import write_autograder
from mplab.course.grading.gradescope_runner import (
    copy_submission,
    student_of,
)

CAPABILITIES = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETPCAP",
    "SETUID",
]
"""Of those that Docker leaves to root."""

PROGRAM = """
import sys
import psutil
from mplab.course.grading import gradescope_runner, isolation
isolation._libc.prctl(38, 1, 0, 0, 0)
isolation.filter_system_calls()  # as Docker does: no namespaces, no mounts
for place in sys.argv[1:]:
    gradescope_runner.run(place)
    others = [process for process in psutil.process_iter() if process.uids().real]
    assert not psutil.wait_procs(others, timeout=20)[1], "outlived its submission"
"""


SOME = ("hidden checks read", "earned, then dead", "memory", "loopback network", "shipped numpy.py",
        "symlink to the solution", "daemon")  # fmt: skip


def run_in_container(folder, places):
    """Grade as root where there are neither namespaces nor this machine's files."""
    rights = [word for name in CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    program = [
        sys.executable,
        "-I",
        "-c",
        PROGRAM,
        *(f"/autograder/{place}" for place in places),
    ]
    root, *view = _view()[1:]  # an interpreter or a checkout may lie in /tmp
    done = subprocess.run(
        ["bwrap", "--tmpfs", root, "--perms", "1777", "--tmpfs", "/tmp", *view,
         "--bind", folder, "/autograder", "--proc", "/proc", "--dev", "/dev", "--unshare-pid",
         "--die-with-parent", "--cap-drop", "ALL", *rights, "--chdir", "/",
         "--setenv", "MPLAB_SECRET", SECRET, "--", *program],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("another account") == len(places), done.stdout
    return [
        json.loads((folder / place / "results/results.json").read_text())
        for place in places
    ]


def lay_out(folder, course, packed, student, attack, port):
    """Unpack an autograder beside an attacker's submission, or an honest one."""
    stage.submit(course, student, attack, port=port)
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(folder / student / "source")
    there = shutil.copytree(
        course.root / "submitted" / student / "a1",
        folder / student / "submission",
        symlinks=True,
    )
    for path in [path for path in there.glob("*.ipynb") if not path.is_symlink()]:
        key = f"/autograder/{student}/source/course"
        path.write_bytes(
            path.read_bytes().replace(str(course.root).encode(), key.encode())
        )
    about = {
        "created_at": "2026-11-30T13:30:00+01:00",
        "assignment": {"due_date": None},
    }
    about["users"] = [{"id": 1, "sid": student, "email": "x@y"}]
    (folder / student / "submission_metadata.json").write_text(json.dumps(about))


def grade_in_container(root, attacks):
    """Return the results of attacks, and of an honest student after them."""
    course, box = stage.make_course(root / "course", len(attacks) + 1), root / "box"
    write_autograder(course, "a1", root / "a1.zip", visibility="visible")
    places = [stage.student_of(number) for number in range(len(attacks) + 1)]
    with stage.Listener() as listener:
        for student, attack in zip(places, [*attacks, None], strict=True):
            lay_out(box, course, root / "a1.zip", student, attack, listener.port)
        results = run_in_container(box, places)
        assert listener.calls == 0
    assert list(box.rglob("HARMED")) == []
    return results


@pytest.mark.slow
@with_walls
@pytest.mark.skipif(os.geteuid() != 0, reason="a container's root is root")
def test_a_sample_of_attacks_comes_to_nothing_without_namespaces(tmp_path):
    attacks = [attack for attack in ATTACKS if attack.name in SOME]
    results = grade_in_container(tmp_path, attacks)
    wanted = {attack.name: attack.points for attack in attacks} | {"honest": 16.0}
    assert dict(zip(wanted, (r["score"] for r in results), strict=True)) == wanted
    assert SECRET not in str(results) and "HARMED" not in str(results)


def test_a_student_is_found_by_number_or_address():
    roster = [["s01", "ada@x", ""], ["s02", "", "77"]]
    users = [{"id": 9, "email": "ADA@X"}, {"id": 8, "email": "q@x", "sid": "77"}]
    assert student_of({"users": users}, roster) == "s01"
    assert student_of({"users": [{"id": 8, "email": "é@x"}]}, roster) == "8"


def test_a_pipe_in_a_submission_is_left_out_of_its_copy(tmp_path):
    """Reading one waits for ever, so that the whole submission had no result."""
    place = tmp_path / "submission"
    place.mkdir()
    os.mkfifo(place / "pipe")
    (place / "a1.ipynb").write_text("{}")
    (place / "link").symlink_to("a1.ipynb")
    copy_submission(place, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"a1.ipynb", "link"}
