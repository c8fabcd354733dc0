"""An explorer alive in a page of its own, without a kernel, opened from the disk in Chromium."""

import os
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from lab_browser import launched
from playwright.sync_api import sync_playwright

from mplab.course.explorers.modules import to_live_html

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>An explorer</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>:root {{ color-scheme: light dark }}</style></head>
<body><main><h1>An explorer</h1>{}</main></body></html>"""

# What axe-core finds to be serious.
SERIOUS = """axe.run().then(found => found.violations
    .filter(each => ["serious", "critical"].includes(each.impact))
    .map(each => [each.id, each.nodes[0].html]))"""


def serious(page):
    """What an audit of accessibility finds, which must find what is broken afterwards."""
    if not (place := os.environ.get("MPLAB_AXE")):
        pytest.skip("MPLAB_AXE does not name axe.min.js of the npm package axe-core")
    page.evaluate(
        "document.querySelectorAll('details').forEach(d => { d.open = true })"
    )
    page.evaluate(Path(place).read_text(encoding="utf-8"))
    found = page.evaluate(SERIOUS)
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src>')"
    )
    assert "image-alt" in [name for name, _ in page.evaluate(SERIOUS)]
    return found


def write_lesson(path, cells):
    """Write a lesson; cells that start as a heading, in bold or with a W are text."""
    new = nbformat.v4
    made = [
        new.new_markdown_cell(each)
        if each.startswith(("#", "**", "W"))
        else new.new_code_cell(each)
        for each in cells
    ]
    nbformat.write(new.new_notebook(cells=made), path)


@contextmanager
def browser():
    """An installed Chromium."""
    with sync_playwright() as playwright:
        running = launched(playwright)
        yield running
        running.close()


@contextmanager
def opened(running, explorer, folder, *more, hash="", width=1000, **options):
    """The page of an explorer, or of more; fails if it complained, or asked for another file."""
    path = folder / "page.html"
    parts = [to_live_html(each) for each in (explorer, *more)]
    path.write_text(PAGE.format("".join(parts)), encoding="utf-8")
    context = running.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    asked = []
    complaints = []
    page.on("request", lambda request: asked.append(request.url.partition("#")[0]))
    page.on(
        "console",
        lambda line: complaints.append(line.text) if line.type == "error" else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri() + hash)
    yield page
    context.close()
    assert set(asked) == {path.as_uri()}
    assert complaints == []


def status(page, number=0):
    """What an explorer of a page says."""
    return page.get_by_role("status").nth(number).inner_text()
