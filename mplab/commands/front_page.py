"""Make the first page of `mplab export-html`, and the page for teachers."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from mplab.commands.frame import FILES, page, smaller
from mplab.commands.lesson_page import text, title_of
from mplab.explorers.modules import BitExplorer, alive

_SENTENCES = 230
"""The most characters of a lesson's beginning that its card shows."""

HEADLINE = ("fp32", "fp16-naive", "fp16-scaled")
"""The recipes of the first picture."""


def front_page(out: Path, lessons: Sequence[Path], *, headline: bytes, reference: bool) -> str:
    """Make the page that links to the others; a lesson that is not exported has no link.

    Args:
        out: the folder of the pages.
        lessons: the notebooks.
        headline: the first picture as PNG, with its description.
        reference: whether there is a reference of the library.
    """
    pages = [out / f"{path.stem}.html" for path in lessons]
    cards = "\n".join(_card(*both) for both in zip(lessons, pages, strict=True))
    frozen = _explorer(pages[:1])  # the words before it are of lesson 1
    alt = Image.open(io.BytesIO(headline)).info["Description"]
    picture = (
        '<p class="headline scrolled" tabindex="0">'
        f'<img class="mplab-card" alt="{escape(alt, quote=True)}" '
        f'src="data:image/png;base64,{base64.b64encode(headline).decode()}"></p>'
    )
    clone = f"git clone {address}\n" if (address := repository()) else ""
    begin = "".join(
        f' <a href="{each.name}">Begin with lesson 1</a>.' for each in pages[:1] if each.exists()
    )
    template = (FILES / "front.html").read_text("utf-8")
    body = template.format(
        picture=smaller(picture),
        begin=begin,
        bits=smaller(alive(BitExplorer("0.1"))),
        try_it=_TRY.format(frozen) if frozen else "",
        cards=cards,
        reference=_REFERENCE if reference else "",
        clone=clone,
    )
    ways = ['<a href="#lessons">Lessons</a>', '<a href="#run">Run it</a>',
            '<a href="teaching.html">Teach with it</a>']  # fmt: skip
    if reference:
        ways.append('<a href="api/mplab.html">Reference</a>')
    return page("mplab: training in few bits", body, ways=ways, kind="front")


def teaching_page(guide: str) -> str:
    """Make a page of the instructor's guide, with links to pages instead of to notebooks."""
    html = re.sub(r'href="(\d\d_\w+)\.ipynb"', r'href="\1.html"', text(guide))
    html = re.sub(r'<a href="(?!\d\d_|#|https?:)[^"]*">(.*?)</a>', r"\1", html)
    return page("mplab: for teachers", html, ways=['<a href="index.html">mplab</a>'])


def repository() -> str | None:
    """Return the address of the project's repository, if the build machine knows it."""
    name, server = os.environ.get("GITHUB_REPOSITORY"), os.environ.get("GITHUB_SERVER_URL")
    return f"{server}/{name}" if name and server else None


def draw_headline() -> bytes:
    """Train one network three times and draw the losses, as PNG with its description."""
    from mplab.pictures.training import loss_curves
    from mplab.training.loop import train

    runs = [train("digits-autoencoder", recipe, seed=3, progress=False) for recipe in HEADLINE]
    return loss_curves(runs).png()


def _card(lesson: Path, exported: Path) -> str:
    """Make a lesson's card: its question, its beginning, and its first picture."""
    import nbformat

    notebook = nbformat.read(lesson, as_version=4)  # type: ignore[no-untyped-call]
    name = f"{int(lesson.stem[:2])} · {escape(title_of(notebook))}"
    begins = _beginning(notebook.cells[0].source) if notebook.cells else ""
    small = ""
    if exported.exists():
        name = f'<a href="{exported.name}">{name}</a>'
        found = re.search(r'<img src="(data:image/png[^"]+)"', exported.read_text("utf-8"))
        if found:
            image = f'<img class="mplab-card" alt="" src="{found[1]}">'
            small = f'<p class="small">{smaller(image, width=560)}</p>'
    return f"<li><h3>{name}</h3>{small}<p>{escape(begins)}</p></li>"


def _beginning(source: str) -> str:
    """Return the first sentences below the heading, as plain words."""
    paragraphs = re.sub(r"(?m)^#.*$", "", source).strip().split("\n\n")
    words = re.sub(r"[*`]|\[(.*?)\]\(.*?\)", r"\1", paragraphs[0])
    said = ""
    for sentence in re.findall(r".+?[.!?](?=\s|$)", words.replace("\n", " ")):
        if said and len(said) + len(sentence) > _SENTENCES:
            break
        said += sentence
    return said.strip()


def _explorer(pages: Sequence[Path]) -> str:
    """Find the first explorer that moves in these lessons, if they are exported."""
    for exported in pages:
        if exported.exists():
            html = exported.read_text("utf-8")
            if found := re.search(r'<div class="explorer frozen".*?</script></div>', html, re.S):
                return found[0]
    return ""


_TRY = """<section aria-labelledby="try"><h2 id="try">Move it yourself</h2>
<p>These are the gradients of the run that learned. FP16 turns the smallest into 0, and one that is
too large spoils a step. Multiply them all by a power of two: which one saves them?</p>
{}</section>"""

_REFERENCE = '<p>Every function has its contract in the <a href="api/mplab.html">reference</a>.</p>'
