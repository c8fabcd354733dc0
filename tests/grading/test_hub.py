"""The guide on JupyterHub, walked: a teacher and two students, as accounts of this machine."""

import json
import os
import re
import shutil
from contextlib import ExitStack

import hub
import pytest
from classroom import WALLS, notebook
from gloo import free_port
from lab_browser import launched
from playwright.sync_api import sync_playwright

from mplab.course.grading.folder import Course
from mplab.course.grading.sandbox import sandbox_problem

GUIDE = hub.ROOT / "lessons" / "assignments" / "jupyterhub.md"

ABOUT = {"course_id": "numerics", "assignment_id": "a1"}

LOOK = """
import os, socket
print("uid", os.getuid())
print("key", os.path.exists({key!r}))
try:
    socket.create_connection(("127.0.0.1", {port}), 5).close()
    print("hub reached")
except OSError:
    print("hub not reached")
"""

READ = """
import sys
from pathlib import Path
for place in sys.argv[1:]:
    try:
        found = sorted(Path(place).iterdir()) if Path(place).is_dir() else Path(place).read_bytes()
        print("READ", place, len(found))
    except PermissionError:
        print("closed", place)
"""


def settings(changes):
    """The two files that the guide shows, with its places and its teacher changed."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 2
    for old, new in changes.items():
        assert any(old in block for block in blocks), old
        blocks = [block.replace(old, new) for block in blocks]
    return blocks


@pytest.fixture
def place():
    """Where the test can make everything that accounts must reach."""
    problem = hub.problem() or (None if WALLS else sandbox_problem())
    if problem and os.environ.get("MPLAB_REQUIRE_HUB") == "1":
        pytest.fail(f"{problem}, and MPLAB_REQUIRE_HUB=1 asks for a Hub")
    if problem:
        pytest.skip(problem)
    with hub.public_folder() as folder:
        yield folder


def write(asked, account, course, **options):
    """Put a notebook over the one that a student has fetched, through their own server."""
    path = "/api/contents/numerics/a1/a1.ipynb"
    before = json.dumps(asked.server(account, "GET", path)["content"])
    assert "NotImplementedError" in before and "BEGIN SOLUTION" not in before
    content = json.loads(notebook(course, **options))
    model = {"type": "notebook", "format": "json", "content": content}
    asked.server(account, "PUT", path, json=model)


def listed(asked, account, **wanted):
    """The assignments that a student's list shows."""
    found = asked.server(
        account, "GET", "/assignments", params={"course_id": "numerics"}
    )
    assert found["success"], found
    return [entry for entry in found["value"] if wanted.items() <= entry.items()]


class Class:
    """The Hub of the guide in `place`, with a course that is released to its students."""

    def __init__(self, place, names, stack):
        self.teacher, self.ada, self.bob = names
        self.homes, self.root = place / "home", place / "numerics"
        self.exchange = place / "exchange"
        self.root.mkdir(mode=0o700)
        shutil.chown(self.root, self.teacher)
        self.exchange.mkdir()
        self.exchange.chmod(0o1777)
        hub.make_environment(place / "env")
        of_hub, of_nbgrader = settings({
            **{"/srv/exchange": str(self.exchange), "/srv/numerics": str(self.root)},
            **{"/opt/mplab": str(place / "env"), '"teacher"': repr(self.teacher)},
            "8899": str(free_port()),
        })  # fmt: skip
        (place / "etc").mkdir()
        (place / "etc" / "nbgrader_config.py").write_text(of_nbgrader)
        self.environment = {
            "PATH": f"{place}/env/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": str(hub.ROOT),  # the mplab under test
            "JUPYTER_CONFIG_PATH": str(place / "etc"),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }
        told = self.as_account(
            self.teacher,
            "mplab",
            "grade",
            "init",
            self.root,
            "--course-id",
            "numerics",
            "--exchange",
            self.exchange,
        )
        lines = [
            "id,first_name,last_name,email",
            *(f"{name},,," for name in self.students),
        ]
        (self.root / "roster.csv").write_text("\n".join(lines) + "\n")
        told += self.grade("release", "a1", "--publish")
        assert "Published: a1" in told and "look at" not in told
        self.hub = stack.enter_context(hub.serve(place, of_hub, self.environment))
        self.hub.log_in(*names)

    @property
    def students(self):
        return self.ada, self.bob

    def as_account(self, account, *command):
        return hub.as_account(account, self.environment, *command)

    def grade(self, *arguments):
        """Run `mplab grade` as the teacher; what it printed."""
        return self.as_account(
            self.teacher, "mplab", "grade", *arguments, "--course", self.root
        )


@pytest.mark.full
def test_a_teacher_and_two_students_go_through_a_week_on_a_hub(place, record_property):
    homes = place / "home"
    homes.mkdir()
    with hub.accounts(homes, "tea", "ada", "bob") as names, ExitStack() as stack:
        room = Class(place, names, stack)
        look = LOOK.format(key=str(room.root / ".mplab" / "key"), port=room.hub.own)
        students_hand_in(room, look)
        teacher_grades(room, look)
        teacher_gives_points_in_the_browser(room)
        students_get_their_own_feedback(room)
        nobody_reads_what_is_another_s(room)
        log = (place / "hub.log").read_text(errors="replace")
        record_property(
            "requests answered", len(re.findall(r"\] 2\d\d (?:GET|POST|PUT) ", log))
        )


def students_hand_in(room, look):
    results = {}
    for name in room.students:
        assert room.hub.server(name, "GET", "/courses")["value"] == ["numerics"]
        assert len(listed(room.hub, name, status="released", **ABOUT)) == 1
        room.hub.server(name, "POST", "/assignments/fetch", data=ABOUT)
        assert len(listed(room.hub, name, status="fetched", **ABOUT)) == 1
        right = name == room.ada
        write(
            room.hub, name, Course(room.root), right=right, extra="" if right else look
        )
        path = {"path": "numerics/a1/a1.ipynb"}
        answer = room.hub.server(name, "POST", "/assignments/validate", data=path)
        assert answer["success"], answer
        results[name] = answer["value"]
        room.hub.server(name, "POST", "/assignments/submit", data=ABOUT)
        assert len(listed(room.hub, name, status="submitted")) == 1
    assert results[room.ada] == {} and len(results[room.bob]["failed"]) == 6, results


def teacher_grades(room, look):
    assert "2 submissions in" in room.grade("collect", "a1")
    graded = room.grade("autograde", "a1")
    assert f"{room.ada}: 16 of " in graded and f"{room.bob}: 0 of " in graded, graded
    isolated = ["uid 65534", "key False", "hub not reached"]
    shown = (room.root / "autograded" / room.bob / "a1" / "a1.ipynb").read_text()
    assert all(line in shown for line in isolated)
    # What students get holds neither references nor hidden cases.
    for name in room.students:
        fetched = sorted(
            path.name for path in (room.homes / name / "numerics/a1").glob("[!.]*")
        )
        assert fetched == ["a1.ipynb", "checks.json"]


def teacher_gives_points_in_the_browser(room):
    """Through the Hub's own log-in; a student, logged in or with a token, is not let in."""
    assert room.hub.ask("GET", "/services/points/", account=room.bob).status_code == 403
    with sync_playwright() as playwright, launched(playwright) as browser:
        for name in (room.bob, room.teacher):
            page = browser.new_context().new_page()
            page.goto(f"{room.hub.address}/services/points/")
            for field in ("username", "password"):
                page.locator(f"[name={field}]").fill(name)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_text(
                "403" if name == room.bob else "graded by hand"
            ).first.wait_for()
        row = page.get_by_role("row").filter(has_text="graded by hand")
        row.get_by_role("link").click()
        for part in ("weights", "gradients"):
            page.get_by_label(part).fill("0.5")
        page.get_by_role("button", name="Save").click()
        page.wait_for_url(f"{room.hub.address}/services/points/")
        assert (
            page.locator("tr").count() > 1 and page.locator("tr.waiting").count() == 0
        )


def students_get_their_own_feedback(room):
    assert "Published: 2 pages" in room.grade("feedback", "a1", "--publish")
    for name, score in ((room.ada, "17"), (room.bob, "0")):
        room.hub.server(name, "POST", "/assignments/fetch_feedback", data=ABOUT)
        (submitted,) = listed(room.hub, name, status="submitted")
        place = submitted["submissions"][0]["local_feedback_path"]
        path, text = (
            f"/api/contents/{place}/a1.html",
            {"format": "text", "type": "file"},
        )
        page = room.hub.server(name, "GET", path, params=text)["content"]
        assert re.search(r"Feedback:</strong> ([\d.]+) of", page)[1] == score
        assert len(list((room.homes / name).rglob("a1.html"))) == 1  # nobody else's


def nobody_reads_what_is_another_s(room):
    shared, root = room.exchange / "numerics", room.root
    closed = [
        room.homes / room.ada,
        room.homes / room.teacher,
        root,
        root / "submitted" / room.ada,
    ]
    closed += [
        root / ".mplab/key",
        root / "gradebook.db",
        shared / "inbound",
        shared / "feedback",
    ]
    seen = room.as_account(room.bob, "python", "-c", READ, *closed)
    assert seen.splitlines() == [f"closed {place}" for place in closed]
    readable = [room.homes / room.bob, shared / "outbound"]
    seen = room.as_account(room.bob, "python", "-c", READ, *readable)
    assert seen.count("READ") == 2, seen
    # A name that only its owner can compute.
    for page in (shared / "feedback").iterdir():
        assert re.fullmatch(r"[0-9a-f]{32}\.html", page.name), page.name
    for whose, path in ((room.ada, "/api/contents"), (room.teacher, "/api/contents")):
        answer = room.hub.ask("GET", f"/user/{whose}{path}", account=room.bob)
        assert answer.status_code in (403, 404), (path, answer.status_code)
