"""Turn an executed lesson into a page: cells, predictions that hide what follows, explorers."""

import json
import math
import os
import re
from collections.abc import Iterator
from html import escape
from typing import Any

from nbconvert.filters import Highlight2HTML, markdown2html

from mplab.commands.frame import smaller
from mplab.explorers.freezing import Frozen
from mplab.explorers.modules import STILL, once

VIEW = "application/vnd.jupyter.widget-view+json"

FROZEN = "application/vnd.mplab.frozen+json"

_ASKED = re.compile(r"\*\*Predict(?:[.:]\*\*|\*\* )")  # not in: At each **Predict**, write

_PIECES = re.compile(rf"(?m)^(?=## |.*{_ASKED.pattern})")

_SUMMARY = "I have written my answer down"

_FOLD = re.compile(rf"<details><summary>{_SUMMARY}</summary>|</details>")
"""A notebook folds the text of its answers; a page folds the cells above the text as well."""

_NOTE = '<p class="note">The cells of this page have run. In JupyterLab you change them.</p>'

_EXERCISES = '<h2 id="Exercises">Exercises</h2>'

_SENTENCES = 230
"""The most characters of a lesson's beginning that describe it."""

_HERE = {
    "before you run the next cell": "before you open what follows",
    _EXERCISES: f'{_EXERCISES}<p class="note">In JupyterLab each answer is checked at once.</p>',
}
"""Words about JupyterLab in a lesson, and their replacements in a page."""


def title_of(notebook: Any) -> str:
    """Return the first heading of a notebook, without its number sign."""
    for cell in notebook.cells:
        found = re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and found:
            return found[1].strip()
    return "mplab"


def beginning(notebook: Any) -> str:
    """Return the first sentences below the title, as plain words."""
    source = re.sub(r"(?m)^#.*$", "", notebook.cells[0].source) if notebook.cells else ""
    words = re.sub(r"[*`]|\[(.*?)\]\(.*?\)", r"\1", source.strip().split("\n\n")[0])
    said = ""
    for sentence in re.findall(r".+?[.!?](?=\s|$)", words.replace("\n", " ")):
        if said and len(said) + len(sentence) > _SENTENCES:
            break
        said += sentence
    return said.strip()


def in_colab(name: str) -> str:
    """Write a link to a lesson in Colab, and the first cell there, if GitHub publishes the page.

    Args:
        name: the notebook's file name.
    """
    server, repository, branch = (
        os.environ.get(f"GITHUB_{what}") for what in ("SERVER_URL", "REPOSITORY", "REF_NAME")
    )
    if server != "https://github.com" or not (repository and branch):
        return ""
    there = escape(
        f"https://colab.research.google.com/github/{repository}/blob/{branch}/lessons/{name}"
    )
    cell = escape(f'%pip install "mplab[lab] @ git+{server}/{repository}@{branch}"')
    return (
        f'<p class="note">Or <a href="{there}">open it in Colab</a>, with this as its first cell. '
        f'Explorers may not move there.</p><pre tabindex="0">{cell}</pre>'
    )


def lesson_body(notebook: Any, more: str = "") -> str:
    """Convert the cells to HTML, with contents and `more` after the first of them.

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
            pieces = [piece for piece in _PIECES.split(cell.source) if piece.strip()]
        for piece in pieces:
            is_text = isinstance(piece, str)
            starts = is_text and bool(_PIECES.match(piece))
            if hidden and starts:
                parts.append("</details>")
                hidden = False
            if asked and not hidden and not is_text:
                parts.append(f'<details class="answer" open><summary>{_SUMMARY}</summary>')
                hidden, asked = True, False
            parts.append(text(piece) if is_text else "".join(_code(piece, frozen)))
            asked = asked or (is_text and bool(_ASKED.search(piece)))
    parts += ["</details>"] * hidden
    found = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', "".join(parts))
    links = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words in found)
    contents = f'<nav class="contents" aria-label="In this lesson"><ul>{links}</ul></nav>' * bool(
        links
    )
    return smaller(once("".join([*parts[:1], contents, _NOTE, more, *parts[1:]])))


def text(markdown: str) -> str:
    """Convert Markdown to HTML, with each table in a box of its own that scrolls."""
    html = re.sub(r'<a class="anchor-link".*?</a>', "", markdown2html(_FOLD.sub("", markdown)))
    for said, here in _HERE.items():
        html = html.replace(said, here)
    html = html.replace("<table>", '<div class="scrolled" tabindex="0"><table>')
    return html.replace("</table>", "</table></div>")


def _frozen(notebook: Any) -> dict[str, Any]:
    """Take the explorers that the last cell drew, by model; the cell is removed."""
    outputs = notebook.cells[-1].get("outputs", []) if notebook.cells else []
    found = [output.data[FROZEN] for output in outputs if FROZEN in output.get("data", {})]
    if not found:
        return {}
    notebook.cells.pop()
    return dict(found[0])


def _code(cell: Any, frozen: dict[str, Any]) -> Iterator[str]:
    if cell.source.strip():
        colours = Highlight2HTML(pygments_lexer="ipython3")  # type: ignore[no-untyped-call]
        highlighted: str = colours(cell.source)
        yield highlighted.replace("<pre>", '<pre tabindex="0">')
    if "mplab.check(" in cell.source:  # there is no answer yet
        return
    for output in cell.get("outputs", []):
        if shown := _shown(output, frozen):
            yield f'<div class="output">{shown}</div>'


def _shown(output: Any, frozen: dict[str, Any]) -> str:
    """Convert an output of a cell to HTML."""
    data = output.get("data", {})
    if VIEW in data:
        model = data[VIEW]["model_id"]
        drawn = frozen.get(model)
        if isinstance(drawn, str):
            return f'<div class="explorer">{drawn}</div>'
        return explorer(model, Frozen(*drawn)) if drawn else ""  # progress is no news afterwards
    if "text/html" in data:
        html = re.sub(r"<style>.*?</style>", "", data["text/html"])
        if html.startswith(("<table", "<img")):
            return f'<div class="scrolled" tabindex="0">{html}</div>'
        return html.replace("<pre ", '<pre tabindex="0" ')  # so that keys scroll it
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{data["image/png"]}">'
    words = output.get("text") or data.get("text/plain", "")
    return f'<pre tabindex="0">{escape(words)}</pre>' if words else ""


# Explorers -------------------------------------------------------------------------------
def explorer(model: str, frozen: Frozen) -> str:
    """Write an explorer that moves without Python, or stands still without JavaScript."""
    question, controls, buttons, positions, (picture, sentence), packed = frozen
    shown = math.prod(len(options) for _, _, options, _, _ in controls)
    moved = "".join(_control(model, *control) for control in controls)
    moved += "".join(f'<button type="button">{escape(name)}</button>' for name in buttons)
    coarser = (
        f"This page holds {shown:,} of the {positions:,} positions that JupyterLab shows; "
        "some sliders move in larger steps. "
        if shown < positions
        else ""
    )
    return (
        f'<div class="explorer frozen"><p class="question">{escape(question)}</p>'
        f'<div class="controls" hidden>{moved}</div>'
        f'<div class="picture" tabindex="0">{picture}</div>'
        f'<p class="sentence" role="status">{escape(sentence)}</p>'
        f'<p class="note">{coarser}<span class="still">{STILL}</span></p>'
        f'<script type="application/octet-stream" class="states">{packed}</script></div>'
    )


def _control(
    model: str, kind: str, name: str, options: list[str], start: int, readout: bool
) -> str:
    """Write a control of a frozen explorer as HTML."""
    name, sizes = escape(name), f'data-sizes="{len(options)}"'
    if kind == "slider":
        words = escape(json.dumps(options), quote=True)
        out = f"<output>{escape(options[start])}</output>" * readout
        return (
            f'<label>{name} <input type="range" min="0" max="{len(options) - 1}" value="{start}" '
            f'data-words="{words}" {sizes}>{out}</label>'
        )
    if kind == "tick":
        return f'<label><input type="checkbox" {"checked " * start}{sizes}> {name}</label>'
    if kind == "choice":
        choices = "".join(
            f"<option{' selected' * (i == start)}>{escape(words)}</option>"
            for i, words in enumerate(options)
        )
        return f"<label>{name} <select {sizes}>{choices}</select></label>"
    choices = "".join(
        f'<label><input type="radio" name="{model} {name}"{" checked" * (i == start)}> '
        f"{escape(words)}</label>"
        for i, words in enumerate(options)
    )
    return f"<fieldset {sizes}><legend>{name}</legend>{choices}</fieldset>"
