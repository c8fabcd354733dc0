"""Drives lessons in real JupyterLab: `mplab lab` serves, an installed Chromium shows.

Waits on promises of the application, never on the looks of the page: JupyterLab says "idle" before
it can run anything.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import nbformat
import pytest
from gloo import free_port
from playwright.sync_api import sync_playwright

import mplab

START = 180
RUN = 900
MOVE = 60
"""Seconds to wait for the server and the page, for all cells, for a moved control."""

SETTINGS = {
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    # Cells out of sight are part of the page too, so that all can be looked at.
    "notebook-extension/tracker": {"windowingMode": "none"},
}

CHROMIUM = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
]

OPENED = "Boolean(window.jupyterapp?.shell?.currentWidget?.context)"

READY = """async () => {
    const app = window.jupyterapp;
    await app.restored;
    const notebook = app.shell.currentWidget;
    await notebook.context.ready;
    await notebook.sessionContext.ready;
    await notebook.sessionContext.session.kernel.info;
    return true;
}"""

LAB, NOTEBOOK_7 = "doc/tree", "notebooks"
"""The front ends that the server offers, as its addresses name them."""

RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"

# Code cells with something in them, as plain data.
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .filter(cell => cell.model.type === 'code' && cell.model.sharedModel.source.trim())
    .map(cell => ({count: cell.model.executionCount, outputs: cell.model.outputs.toJSON()}))"""

DONE = f"""() => {{
    const cells = ({CELLS})();
    const failed = cells.some(c => c.outputs.some(o => o.output_type === 'error'));
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    return failed || (cells.every(c => c.count) && kernel.status === 'idle');
}}"""

PICTURES = """area => [...area.querySelectorAll('svg, img, canvas')].map(picture =>
    picture.src || (picture.toDataURL
        ? picture.toDataURL() + getComputedStyle(picture).clipPath : picture.outerHTML))"""


# Without the number beside the slider, which the page itself moves.
TEXT = """area => {
    const copy = area.cloneNode(true);
    copy.querySelectorAll('.widget-readout').forEach(readout => readout.remove());
    return copy.innerText;
}"""

OUTPUT = ".jp-OutputArea-output"
RAISED = ".jupyter-widgets [data-mime-type$='.stderr'], .jupyter-widgets [data-mime-type$='.error']"
"""What an explorer shows of an error in a callback."""
BROKEN = (
    "Error displaying widget",
    "Error creating widget",
    "Loading widget",
    "Javascript Error",
)


def write_notebook(folder, name, sources):
    """Write a notebook of code cells into the new `folder`."""
    folder.mkdir()
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    # Else JupyterLab asks which.
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, folder / name)


class Lesson:
    """A notebook open in JupyterLab, in the page `page`."""

    def __init__(self, page, console):
        """Take over a page and the list in which its console lines arrive."""
        self.page = page
        self.console = console

    def run_all(self):
        """Run all cells and wait until each has run or one has failed."""
        self.page.evaluate(RUN_ALL)
        self.page.wait_for_function(DONE, timeout=1000 * RUN)

    def cells(self):
        """Count and outputs of each code cell."""
        return self.page.evaluate(CELLS)

    def errors(self):
        """What cells and callbacks raised, and what the page says where it could not show."""
        outputs = [output for cell in self.cells() for output in cell["outputs"]]
        raised = [
            output["evalue"] for output in outputs if output["output_type"] == "error"
        ]
        shown = self.page.locator(OUTPUT).all_inner_texts()
        unseen = [text for text in shown if any(mark in text for mark in BROKEN)]
        visible = self.page.locator(RAISED).filter(visible=True)
        return (
            raised
            + unseen
            + [text.splitlines()[-1] for text in visible.all_inner_texts()]
        )

    def controls(self):
        """The handles of sliders in outputs: of ipywidgets, and of plain HTML."""
        return self.page.locator(f"{OUTPUT} .noUi-handle, {OUTPUT} input[type=range]")

    def press(self, control, key, times=1):
        """Press `key` on a slider until its value, texts and pictures have all changed.

        Raises:
            TimeoutError: One of them stayed as it was.
        """
        before = self.state(control)
        control.focus()
        for _ in range(times):
            control.press(key)
        deadline = time.monotonic() + MOVE
        while stuck := before.items() & (after := self.state(control)).items():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{key} on the slider changed neither of {dict(stuck)}"
                )
            self.page.wait_for_timeout(50)
        return before, after

    def state(self, control):
        """The slider's value, and the texts and pictures of the output it stands in."""
        area = control.locator(
            f"xpath=ancestor::*[contains(@class, '{OUTPUT[1:]}')]"
        ).first
        pictures = "\n".join(area.evaluate(PICTURES))
        return {
            "value": control.get_attribute("aria-valuenow") or control.input_value(),
            "text": area.evaluate(TEXT),
            **(
                {"pictures": pictures} if pictures else {}
            ),  # BitExplorer draws in a table
        }


def chromium():
    """The place of an installed one; without it the test is skipped, or fails where it must run."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    if (found := next(filter(None, map(shutil.which, names)), None)) is None:
        needed = os.environ.get("MPLAB_REQUIRE_BROWSER") == "1"
        (pytest.fail if needed else pytest.skip)("Chromium is not installed")
    return found


def launched(playwright):
    """An installed Chromium, started."""
    return playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM)


@contextmanager
def open_lesson(name, *, folder, artefacts, snapshots=True, front=LAB):
    """Serve the lessons from the new `folder`, and open the notebook `name` in Chromium.

    Leaves the page, its outputs, console, trace and the server's log in `artefacts` on failure,
    and fails if the page asked for anything that is not on this machine. Without `snapshots` of
    each action, the trace says less and actions are four times as fast.
    """
    with serve(folder) as (address, token), sync_playwright() as playwright:
        browser = launched(playwright)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.tracing.start(screenshots=snapshots, snapshots=snapshots)
        page = context.new_page()
        page.set_default_timeout(1000 * MOVE)
        console, foreign = listen(context, page, urlsplit(address).netloc)
        lesson = Lesson(page, console)
        try:
            page.goto(f"{address}/{front}/{quote(name)}?reset&token={token}")
            page.wait_for_function(OPENED, timeout=1000 * START)
            page.wait_for_function(READY, timeout=1000 * START)
            yield lesson
        except BaseException:
            keep(lesson, context, folder, artefacts)
            raise
        finally:
            context.close()
            browser.close()
        if foreign:
            raise ConnectionError(f"the page asked for {foreign}")


def listen(context, page, own):
    """Collect console lines, and requests that leave this machine, which are refused."""
    console = []
    foreign = []

    def decide(route):
        if urlsplit(route.request.url).netloc == own:
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    def socket_opened(opened):
        if urlsplit(opened.url).netloc != own:
            foreign.append(opened.url)

    context.route("**/*", decide)
    page.on("websocket", socket_opened)
    page.on("console", lambda message: console.append((message.type, message.text)))
    page.on("pageerror", lambda error: console.append(("error", str(error))))
    return console, foreign


@contextmanager
def serve(folder):
    """Run `mplab lab` on a free port with private settings; yield its address and token."""
    token = secrets.token_hex(16)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-c",
        "from mplab.commands.main import main; raise SystemExit(main())",
        "lab",
        "--dir",
        str(folder / "lessons"),
        "--no-browser",
        "--ip=127.0.0.1",
        f"--port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
        *(["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
    ]
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            command, env=environment(folder), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_for(
                f"{address}/api/status?token={token}", server, folder / "server.log"
            )
            yield address, token
        finally:
            server.terminate()
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def environment(folder):
    """This process's environment with all of Jupyter's folders in `folder`, and our settings."""
    settings = folder / "settings"
    for name, content in SETTINGS.items():
        path = settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    private = (
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "IPYTHONDIR",
    )
    private += ("MPLCONFIGDIR", "JUPYTERLAB_WORKSPACES_DIR")
    return {
        **os.environ,
        **{name: str(folder / name.lower()) for name in private},
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "PYTHONPATH": str(Path(mplab.__file__).parent.parent),  # the mplab under test
    }


def ask(url):
    """Open a URL of this machine, past any proxy, keeping cookies as a browser does."""
    handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
    return urllib.request.build_opener(*handlers).open(url, timeout=20)


def wait_for(url, server, log):
    """Wait until the server answers.

    Raises:
        RuntimeError: It ended first, or did not answer in time.
    """
    deadline = time.monotonic() + START
    while server.poll() is None and time.monotonic() < deadline:
        try:
            ask(url).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(errors='replace')}")


def keep(lesson, context, folder, artefacts):
    """Write down all that may explain a failure."""
    artefacts.mkdir(parents=True, exist_ok=True)
    context.tracing.stop(path=artefacts / "trace.zip")
    lesson.page.screenshot(path=artefacts / "page.png", full_page=True)
    (artefacts / "page.html").write_text(lesson.page.content(), encoding="utf-8")
    (artefacts / "console.log").write_text(
        "\n".join(map(str, lesson.console)), encoding="utf-8"
    )
    (artefacts / "server.log").write_bytes((folder / "server.log").read_bytes())
    outputs = (
        lesson.cells() if lesson.page.evaluate(OPENED) else "the notebook did not open"
    )
    (artefacts / "outputs.json").write_text(
        json.dumps(outputs, indent=1), encoding="utf-8"
    )
