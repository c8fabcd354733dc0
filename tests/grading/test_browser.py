"""Formgrader in real JupyterLab, on a course that `mplab grade` made."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import warnings

import lab_browser
import pytest
from classroom import ROSTER, WALLS, notebook, submit
from playwright.sync_api import sync_playwright

from mplab.commands import doctor
from mplab.grading.autograding import autograde
from mplab.grading.folder import create_course
from mplab.grading.releasing import release

pytestmark = pytest.mark.browser
BY_HAND = "a1-words-answer"
LISTENS = "() => formgrader.grades && formgrader.grades.loaded"  # before, a score typed is lost


@pytest.fixture
def course(tmp_path):
    course = create_course(tmp_path / "course")
    (course.root / "roster.csv").write_text(ROSTER, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release(course, "a1", trusted=not WALLS)
    written = json.loads(notebook(course, extra="import os; print('user', os.getuid())"))
    cells = {c["metadata"].get("nbgrader", {}).get("grade_id"): c for c in written["cells"]}
    cells[BY_HAND]["source"] = "A tie goes to the even significand."
    submit(course, "s01", json.dumps(written))
    autograde(course, "a1", trusted=not WALLS, tell=str)
    return course


@contextlib.contextmanager
def serve(course, folder):
    """`mplab grade serve` on a free port; its address and token."""
    about = folder / "path" / "mplab_grading_test-0.dist-info"  # as an installed mplab has it
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mplab-grading-test\nVersion: 0\n")
    (about / "entry_points.txt").write_text(
        "[jupyter_client.kernel_provisioners]\n"
        "mplab-sandbox = mplab.grading.provisioner:SandboxProvisioner\n"
    )
    environment = lab_browser.environment(folder)
    environment["PYTHONPATH"] += os.pathsep + str(about.parent)
    token, port = secrets.token_hex(16), lab_browser.free_port()
    command = [
        *(sys.executable, "-c", "from mplab.commands.main import main; raise SystemExit(main())"),
        *("grade", "serve", "--course", str(course.root), "--no-browser", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"),
        "--LabApp.expose_app_in_browser=True",
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            lab_browser.wait_for(
                f"{address}/api/status?token={token}", server, folder / "server.log"
            )
            yield address, token
        finally:
            server.terminate()
            server.wait(timeout=30)


@pytest.fixture
def page():
    chromium = doctor.chromium().found
    if not chromium:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=lab_browser.CHROMIUM)
        yield browser.new_page(viewport={"width": 1280, "height": 900})
        browser.close()


def test_formgrader_opens_the_submission_and_takes_a_grade_given_by_hand(course, page, tmp_path):
    with serve(course, tmp_path) as (address, token):
        page.goto(f"{address}/lab?reset&token={token}")
        page.wait_for_function(
            "() => window.jupyterapp && window.jupyterapp.restored", timeout=60_000
        )
        page.wait_for_function(
            "() => window.jupyterapp.commands.hasCommand('nbgrader:open-formgrader')",
            timeout=60_000,
        )
        page.evaluate("() => window.jupyterapp.commands.execute('nbgrader:open-formgrader')")
        frame = page.frame_locator("iframe[src*='formgrader']")
        frame.get_by_role("link", name="a1", exact=True).first.wait_for(timeout=60_000)
        page.goto(f"{address}/formgrader/manage_submissions/a1?token={token}")
        row = page.get_by_role("row").filter(has_text="s01")
        row.wait_for(timeout=60_000)
        assert "16" in row.inner_text()
        page.goto(f"{address}/formgrader/gradebook/a1/a1?token={token}")
        page.get_by_role("link", name="Submission #1").click(timeout=60_000)
        page.get_by_text("subnormal numbers and zeros: 2 of 2").first.wait_for(timeout=60_000)
        page.wait_for_function(LISTENS, timeout=60_000)
        score = page.locator(f"input#{BY_HAND}")
        score.fill("1.5")
        saved = re.compile(r"/formgrader/api/grade/")
        with page.expect_response(
            lambda r: saved.search(r.url) and r.request.method == "PUT"
        ) as put:
            score.press("Tab")
        assert put.value.ok
        artefacts = os.environ.get("MPLAB_ARTEFACTS")
        if artefacts:
            page.screenshot(path=f"{artefacts}/formgrader.png", full_page=True)
    assert "Traceback" not in (tmp_path / "server.log").read_text(errors="replace")
    with course.gradebook() as gradebook:
        assert gradebook.find_grade(BY_HAND, "a1", "a1", "s01").manual_score == 1.5
        assert gradebook.find_submission("a1", "s01").score == 16 + 1.5


@pytest.mark.skipif(not WALLS, reason="no sandbox")
def test_a_submission_opened_in_jupyterlab_runs_as_nobody(course, page, tmp_path):
    with serve(course, tmp_path) as (address, token):
        page.goto(f"{address}/doc/tree/autograded/s01/a1/a1.ipynb?reset&token={token}")
        page.wait_for_function(lab_browser.OPENED, timeout=60_000)
        page.wait_for_function(lab_browser.READY, timeout=60_000)
        lesson = lab_browser.Lesson(page, [])
        lesson.run_all()
        assert lesson.errors() == []
        shown = json.dumps(next(cell["outputs"] for cell in lesson.cells()))
        assert f"user {os.getuid()}" not in shown if os.getuid() == 0 else "user" in shown
