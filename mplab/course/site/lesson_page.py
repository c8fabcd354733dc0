"""Turn an executed lesson into a page: cells, predictions that hide what follows, explorers."""

import json
import math
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from nbconvert.filters import Highlight2HTML, markdown2html, strip_ansi

from mplab.common.files import PICTURE, PREDICTION
from mplab.course.exercises.practice import practice
from mplab.course.explorers.freezing import Frozen
from mplab.course.explorers.modules import STATIC_NOTE
from mplab.course.explorers.saved import SAVED
from mplab.course.site.frame import FILES, repository

VIEW = "application/vnd.jupyter.widget-view+json"

FROZEN = "application/vnd.mplab.frozen+json"

_PIECES = re.compile(rf"(?m)^(?=## |.*{PREDICTION})")

_SUMMARY = "I have written my answer down"

_DROPPED = re.compile(
    rf"<details><summary>{_SUMMARY}</summary>|</details>|{PICTURE}"
    r"|\s?Shift\+Enter runs a cell\."
)
"""A notebook folds the text of its answers; a page folds the cells above the text as well, and
nothing runs there."""

_NOTE = '<p class="note">The cells of this page have run. In JupyterLab you change them.{}</p>'

_ANCHOR = re.compile(r'<a class="anchor-link" href="([^"]*)">.*?</a>')

BUTTONS = "open", "install"
"""The ids of the cells that `data/buttons.py` adds to a lesson; a page has links of its own."""

_POWER = re.compile(
    r"(?s)<pre.*?</pre>|<code.*?</code>|(?<=\w)\^(?:\(([^)]*)\)|([\w−]+))"
)

_ASIDE = re.compile(r"(?<=[.?!>] )\((?:(?!</p)[^()]){40,240}[.?!]\)")
"""Sentences in brackets, which a wide page shows beside the text."""

TEXTS = {
    "STALLED": "stalled",
    "REPORTS": "reports",
    "SHEET": "sheet",
    "README": "teaching",
}
"""The texts that stand beside the lessons, with the names of their pages."""

_PAPER = re.compile(r"\barXiv:(\d{4}\.\d{5})")


def title_of(notebook: Any) -> str:
    """Return the first heading of a notebook, without its number sign."""
    for cell in notebook.cells:
        found = re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and found:
            return found[1].strip()
    return "mplab"


def beginning(notebook: Any) -> str:
    """Return the first sentences below the title, as plain words."""
    source = (
        re.sub(r"(?m)^#.*$", "", notebook.cells[0].source) if notebook.cells else ""
    )
    words = re.sub(r"[*`]|\[(.*?)\]\(.*?\)", r"\1", source.strip().split("\n\n")[0])
    first = ""
    for sentence in re.findall(r".+?[.!?](?=\s|$)", words.replace("\n", " ")):
        if first and len(first) + len(sentence) > 230:
            break
        first += sentence
    return first.strip()


def launch_links(name: str) -> dict[str, str]:
    """Return the addresses at which a lesson opens without an installation, by the place's name.

    There are none unless pyproject.toml names a repository on GitHub, whose main branch they open.

    Args:
        name: the notebook's file name.
    """
    host, _, project = repository().partition("https://github.com/")
    if host or not project:
        return {}
    return {
        "Colab": f"https://colab.research.google.com/github/{project}/blob/main/lessons/{name}",
        "Binder": f"https://mybinder.org/v2/gh/{project}/main?labpath=lessons%2F{name}",
    }


def lesson_body(notebook: Any, more: str = "") -> str:
    """Convert the cells to HTML, with a table of contents and `more` after the first.

    What follows a prediction, up to the next one or the next section, is in a `details` element
    that stays open without JavaScript.
    """
    frozen = _frozen(notebook)
    asked = hidden = False
    parts = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            pieces = [cell]
        else:
            source = _with_images(cell)
            pieces = [piece for piece in _PIECES.split(source) if piece.strip()]
        for piece in pieces:
            is_text = isinstance(piece, str)
            starts = is_text and bool(_PIECES.match(piece))
            if hidden and starts:
                parts.append("</details>")
                hidden = False
            if asked and not hidden and not is_text:
                parts.append(
                    f'<details class="answer" open><summary>{_SUMMARY}</summary>'
                )
                hidden = True
                asked = False
            html = markdown_to_html(piece) if is_text else "".join(_code(piece, frozen))
            if (
                not is_text
                and re.match("import |from ", piece.source)
                and len(parts) == 1
            ):
                html = f"<details><summary>What is imported</summary>{html}</details>"
            parts.append(html)
            asked = asked or (is_text and bool(re.search(PREDICTION, piece)))
    parts += ["</details>"] * hidden
    found = re.findall(r'<h2 id="([^"]+)">(.*?)<a class="anchor"', "".join(parts))
    links = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words in found)
    below_title = _NOTE.format(more)
    if links:
        contents = f'aria-label="In this lesson"><ul>{links}</ul>'
        below_title = f'<nav class="contents" {contents}</nav>{below_title}'
    return "".join([*parts[:1], below_title, *parts[1:]])


def _with_images(cell: Any) -> str:
    """Return the text of a cell, with the images that were pasted into it."""
    source: str = cell.source
    for name, kinds in cell.get("attachments", {}).items():
        for kind, data in kinds.items():
            source = source.replace(
                f"(attachment:{name}", f"(data:{kind};base64,{data}"
            )
    return source


def markdown_to_html(markdown: str) -> str:
    """Convert Markdown to HTML, with each table in a box of its own that scrolls."""
    html = _ANCHOR.sub(r'<a class="anchor" href="\1" aria-label="link to here">#</a>',
                       markdown2html(_DROPPED.sub("", markdown)))  # fmt: skip
    html = html.replace("before you run the next cell", "before you open what follows")
    for name, page in TEXTS.items():
        html = html.replace(f'href="{name}.md', f'href="{page}.html')
    html = html.replace("Replace <code>None</code> and", "Type it below and")
    html = _PAPER.sub(r'<a href="https://arxiv.org/abs/\1">\g<0></a>', html)
    html = _POWER.sub(
        lambda m: f"<sup>{m[1] or m[2]}</sup>" if m[0][0] == "^" else m[0], html
    )
    html = _ASIDE.sub(r'<span class="aside">\g<0></span>', html)
    return re.sub(
        "(?s)<table>.*?</table>",
        r'<div class="scrolled">\g<0></div>',
        html,
    )


def _frozen(notebook: Any) -> dict[str, Any]:
    """Return the explorers that the last cell drew, by model, and remove that cell."""
    outputs = notebook.cells[-1].get("outputs", []) if notebook.cells else []
    for output in outputs:
        if FROZEN in output.get("data", {}):
            notebook.cells.pop()
            return dict(output.data[FROZEN])
    return {}


def _code(cell: Any, frozen: dict[str, Any]) -> Iterator[str]:
    if cell.source.strip():
        yield _coloured(cell.source)
    if "mplab.check(" in cell.source:  # there is no answer yet
        yield practice(cell.source, _coloured)
        return
    for output in cell.get("outputs", []):
        shown = _shown(output, frozen)
        if shown:
            yield f'<div class="output">{shown}</div>'


def _coloured(code: str) -> str:
    colours = Highlight2HTML(pygments_lexer="ipython3")  # type: ignore[no-untyped-call]
    return str(colours(code))


def _shown(output: Any, frozen: dict[str, Any]) -> str:
    """Convert an output of a cell to HTML."""
    data = output.get("data", {})
    if VIEW in data:
        drawn = frozen.get(data[VIEW]["model_id"])
        if isinstance(drawn, str):
            return f'<div class="explorer">{drawn}</div>'
        # A progress bar is of no use later.
        return frozen_explorer_html(Frozen(*drawn)) if drawn else ""
    if "text/html" in data:
        if data["text/html"].startswith(SAVED):  # the page has it alive or frozen
            return ""
        html: str = data["text/html"]
        if "<table" in html:
            return f'<div class="scrolled">{html}</div>'
        return html
    words = output.get("text") or data.get("text/plain", "")
    if "image/png" in data:
        png = data["image/png"].strip()
        return f'<img src="data:image/png;base64,{png}" alt="{escape(words)}">'
    plain = escape(strip_ansi(words))  # type: ignore[no-untyped-call]
    return f"<pre>{plain}</pre>" if words else ""


# Explorers -------------------------------------------------------------------------------
def frozen_explorer_html(frozen: Frozen) -> str:
    """Write an explorer that moves without Python, or stands still without JavaScript."""
    picture, sentence = frozen.start
    # From a notebook, where all is JSON, a control comes as a list.
    shown = math.prod(len(options) for _, _, options, _, _ in frozen.controls)
    note = f'<span class="still">{STATIC_NOTE}</span>'
    if shown < frozen.positions:
        held = f"{shown:,} of the {frozen.positions:,} positions of JupyterLab"
        note = f"This page holds {held}. {note}"
    asked = json.dumps([frozen.controls, frozen.buttons])
    return (
        (FILES / "explorer.html")
        .read_text("utf-8")
        .strip()
        .format(
            question=escape(frozen.question),
            picture=picture,
            sentence=escape(sentence),
            note=note,
            asked=asked.replace("<", "\\u003c"),  # a </script> would end the script
            packed=frozen.packed,
        )
    )
