"""Formgrader in real JupyterLab, on a course that `mplab grade` made."""

import contextlib
import http.server
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import warnings

import lab_browser
import pytest
from classroom import ROSTER, WALLS, notebook, submit
from playwright.sync_api import sync_playwright

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
    with sync_playwright() as playwright:
        browser = lab_browser.launched(playwright)
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
        comment = page.locator(f"textarea#{BY_HAND}-comment")
        comment.fill("Which tie?")
        said = re.compile(r"/formgrader/api/comment/")
        with page.expect_response(
            lambda r: said.search(r.url) and r.request.method == "PUT"
        ) as put:
            comment.blur()
        assert put.value.ok
        artefacts = os.environ.get("MPLAB_ARTEFACTS")
        if artefacts:
            page.screenshot(path=f"{artefacts}/formgrader.png", full_page=True)
    assert "Traceback" not in (tmp_path / "server.log").read_text(errors="replace")
    with course.gradebook() as gradebook:
        assert gradebook.find_grade(BY_HAND, "a1", "a1", "s01").manual_score == 1.5
        assert gradebook.find_comment(BY_HAND, "a1", "a1", "s01").comment == "Which tie?"
        assert gradebook.find_submission("a1", "s01").score == 16 + 1.5


SAYS = "; ".join(
    (
        "fetch('http://127.0.0.1:%d/NAME').catch(() => 0)",
        "fetch('/api/contents/checks/a1/exercises.py').then(() => { window.ran = 1 })",
        "window.ran = 1",
    )
)


@contextlib.contextmanager
def ear():
    """A server of somebody else's; its port, and the paths that were asked for."""
    heard = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            heard.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], heard
    finally:
        server.shutdown()
        server.server_close()


def hostile(course, port):
    """Put all that a browser might run into the graded notebook, and files beside it."""
    says = SAYS % port

    def script(name):
        return says.replace("NAME", name)

    def image(name):
        return f'<img src="http://127.0.0.1:{port}/{name}" onerror="{script(name)}">'

    data = {
        "text/html": f"<script>{script('html')}</script>{image('html')}",
        "image/svg+xml": f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{script('svg')}\"/>",
        "application/javascript": script("javascript"),
        "text/markdown": f"[text](javascript:{script('markdown')}) {image('markdown')}",
        "text/latex": "$\\href{javascript:window.ran=1}{x}$",
        "application/vnd.jupyter.widget-view+json": {"model_id": "m", "version_major": 2},
        "application/x-<img src=x onerror='window.ran=1'>": script("own"),
    }
    outputs = [
        {"output_type": "display_data", "data": {kind: content}, "metadata": {"isolated": True}}
        for kind, content in data.items()
    ]
    outputs.append({"output_type": "stream", "name": "stdout", "text": data["text/html"]})
    markdown = "\n\n".join(
        [
            "[click me](javascript:window.ran=1)",
            f"![text](http://127.0.0.1:{port}/picture)",
            f'{image("raw")}<iframe srcdoc="<script>{script("frame")}</script>"></iframe>',
            f"<script>{script('script')}</script><style>@import 'http://127.0.0.1:{port}/css'</style>",
            f'<a href="http://127.0.0.1:{port}/x" ping="http://127.0.0.1:{port}/ping">web</a>',
            data["text/latex"],
        ]
    )
    path = course.root / "autograded/s01/a1/a1.ipynb"
    book = json.loads(path.read_text())
    for cell in book["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == BY_HAND:
            cell["source"] = markdown
        elif cell["cell_type"] == "code":
            cell["outputs"] = outputs
            cell["metadata"]["tags"] = [f'"><script>{script("tag")}</script>']
    state = {"m": {"model_name": "HTMLModel", "model_module": "@jupyter-widgets/controls",
                   "state": {"value": data["text/html"]}}}  # fmt: skip
    content = {"version_major": 2, "version_minor": 0, "state": state}
    book["metadata"]["widgets"] = {"application/vnd.jupyter.widget-state+json": content}
    book["metadata"]["title"] = data["text/html"]
    for step in ("submitted", "autograded"):
        folder = course.root / step / "s01/a1"
        folder.joinpath("a1.ipynb").write_text(json.dumps(book))
        folder.joinpath("evil.ipynb").write_text(json.dumps(book))
        folder.joinpath("evil.html").write_text(f"<script>{script('file')}</script>")


def test_nothing_of_a_submission_runs_or_is_fetched_in_formgrader(course, page, tmp_path):
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with ear() as (port, heard), serve(course, tmp_path) as (address, token):
        hostile(course, port)
        page.goto(f"{address}/lab?reset&token={token}")
        page.goto(f"{address}/formgrader/gradebook/a1/a1?token={token}")
        page.get_by_role("link", name="Submission #1").click(timeout=60_000)
        page.get_by_text("click me").wait_for(timeout=60_000)
        page.wait_for_function(LISTENS, timeout=60_000)
        for text in ("text/html", "image/svg+xml", "widget-view", "application/x-"):
            page.get_by_text(f"not shown here: {text}").or_(page.get_by_text(text)).first.wait_for()
        page.get_by_text("click me").click()
        page.wait_for_timeout(1000)
        assert page.evaluate("() => window.ran") is None
        assert heard == [] and errors == []
        links = page.locator("#notebook a").evaluate_all("all => all.map(a => a.href)")
        assert [u for u in links if u and not u.startswith(f"http://127.0.0.1:{port}/")] == []
        assert page.locator("#notebook").locator("script, iframe, form, svg, object").count() == 0
        here = page.url.partition("?")[0]
        files = [here + name for name in ("evil.html", "a1.ipynb", "../../../gradebook.db")]
        page.evaluate(
            "() => { document.body.appendChild(document.createElement('script')).text"
            " = 'window.ran = 2' }"
        )
        assert page.evaluate("() => window.ran") is None  # the policy holds where the rest did not
        asked = page.evaluate(
            "all => Promise.all(all.map(u => fetch(u).then(r => r.status)))", files
        )
        assert set(asked) <= {403, 404}


START = """async path => {
    const kernels = window.jupyterapp.serviceManager.kernels;
    const kernel = await kernels.startNew({name: 'python3', path});
    const said = [];
    const run = kernel.requestExecute({code: "import os; print('user', os.getuid())"});
    run.onIOPub = message => { said.push(message.content.text || ''); };
    await run.done;
    await kernel.shutdown();
    return said.join('');
}"""

SESSION = """path => window.jupyterapp.serviceManager.sessions.startNew(
    {path, name: path, type: 'notebook', kernel: {name: 'python3'}}
).then(() => 'started', error => String(error))"""


def test_jupyterlab_opens_no_submission_and_starts_no_kernel_for_one(course, page, tmp_path):
    with ear() as (port, heard), serve(course, tmp_path) as (address, token):
        hostile(course, port)
        page.goto(f"{address}/lab?reset&token={token}")
        page.wait_for_function(
            "() => window.jupyterapp && window.jupyterapp.restored", timeout=60_000
        )
        listed = page.evaluate(
            "() => fetch('/api/contents').then(r => r.json()).then(m => m.content.map(f => f.name))"
        )
        assert {"source", "checks", "release", "roster.csv"} <= set(listed)
        assert not {"submitted", "autograded", "gradebook.db"} & set(listed)
        for path in ("submitted/s01/a1/evil.ipynb", "autograded/s01/a1/evil.html"):
            for door in ("api/contents", "files", "nbconvert/html", "api/contents/source/.."):
                asked = f"() => fetch('/{door}/{path}').then(r => r.status)"
                assert page.evaluate(asked) in (403, 404), (door, path)
        opened = "() => fetch('/files/source/a1/a1.ipynb').then(r => r.status)"
        assert page.evaluate(opened) == 200
        said = page.evaluate(SESSION, "autograded/s01/a1/evil.ipynb")
        assert "Submissions are read in formgrader" in said
        if WALLS:  # a kernel that is started there all the same is in the sandbox
            user = page.evaluate(START, "submitted/s01/a1")
            assert "user 65534" in user if os.getuid() == 0 else "user" in user
        assert page.evaluate("() => window.ran") is None and heard == []
