"""Sanitise a student's notebook, so that a browser runs, fetches and obeys nothing in it.

Outputs are rebuilt from their text and pictures. Markdown passes one sanitiser, and formulas
become pictures, so that a page needs no script of its own.
"""

import base64
import copy
import html
import io
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import nh3
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode, v4
from pygments.token import STANDARD_TYPES  # type: ignore[import-untyped]

from mplab.course.grading.submissions import (
    image_kind,
    images_in,
    mark_of,
    plain_text,
)

_TAGS = nh3.ALLOWED_TAGS - {
    *("a", "area", "img", "map"),  # lead to elsewhere, or fetch from there
    *("details", "summary", "rp"),  # fold or hide an answer
    *("nav", "small"),  # look like the page's own words
}

_CLASSES = {
    "div": {"highlight"},
    "span": {name for name in STANDARD_TYPES.values() if name},
}
"""The classes of highlighted code; others could look like, or act as, a part of the page."""

_OUTPUT_CHARACTERS = 20_000

_PICTURES = ("image/png", "image/jpeg")

_FORMULA_CHARACTERS = 2_000

_COLOUR = re.compile(r"\x1b\[[\d;]*m")

_DPI = 288  # of formulas: sharp on paper, too


def shown(notebook: NotebookNode) -> NotebookNode:
    """Return what may be shown of a graded notebook, whose cells and outputs have been rebuilt.

    A check passes hidden inputs to the answers, so the outputs of a student's cells after the first
    check, which could show them, are withheld. The cell that brings the public cases is left out,
    too: it is folded and silent.
    """
    found = copy.deepcopy(notebook)
    cells = found.cells
    found.cells = []
    checked = False
    for cell in cells:
        mark = mark_of(cell)
        outputs = cell.get("outputs")
        folded = cell.metadata.get("jupyter", {}).get("source_hidden")
        if folded and mark and not outputs:
            continue
        if cell.cell_type != "code":
            pass
        elif mark.get("grade") and not mark.get("solution"):
            checked = True
            cell.outputs = outputs[:1]  # the second is the number that nbgrader reads
        elif checked:
            cell.outputs = _withheld(outputs if mark else [])
        found.cells.append(cell)
    return found


def _bounded(value: Any) -> str:
    text = plain_text(value)
    return text if len(text) <= _OUTPUT_CHARACTERS else text[:_OUTPUT_CHARACTERS] + "…"


def rebuild_output(output: Mapping[str, Any]) -> NotebookNode:
    """Rebuild an output as text or as a picture; name the kind of anything else."""
    kind = output.get("output_type")
    if kind == "stream":
        name = "stderr" if output.get("name") == "stderr" else "stdout"
        return v4.new_output("stream", name=name, text=_bounded(output.get("text")))
    if kind == "error":
        lines = output.get("traceback")
        trace = "\n".join(map(plain_text, lines)) if isinstance(lines, list) else ""
        name = _bounded(output.get("ename"))
        value = _bounded(output.get("evalue"))
        trace = _bounded(trace if trace.strip() else f"{name}: {value}")
        return v4.new_output("error", ename=name, evalue=value, traceback=[trace])
    given = output.get("data")
    data = given if isinstance(given, dict) else {}
    kept = {
        n: plain_text(data[n])
        for n in _PICTURES
        if image_kind(plain_text(data.get(n))) == n
    }
    if "text/plain" in data:
        kept["text/plain"] = _bounded(data["text/plain"])
    kinds = ", ".join(sorted(plain_text(name)[:80] for name in data)[:10])
    kept = kept or {
        "text/plain": f"[not shown here: {kinds or 'an output of no kind'}]"
    }
    return v4.new_output("display_data", kept)


def _withheld(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Replace what a cell after a check shows, which could be a hidden input.

    The line is there for a silent cell as well, and says nothing about a cell that the student
    added: whether hundreds of them print, raise or do nothing can spell a hidden input.

    Args:
        outputs: those of a cell of the release; none of an added one.
    """
    raised = any(output.output_type == "error" for output in outputs)
    text = "Its outputs are not shown: it ran after a check, whose inputs are not public.\n"
    if raised:
        text = f"This cell raised an exception. {text}"
    return [v4.new_output("stream", text=text)]


def cell_as_html(cell: NotebookNode) -> str:
    """Write a cell as HTML: its source and its outputs."""
    if cell.cell_type == "code":
        return cell_as_text(cell)
    return rendered_markdown(cell.source, cell.get("attachments"))


def cell_as_text(cell: NotebookNode) -> str:
    """Write a cell as HTML that shows its source as it is."""
    return preformatted(cell.source) + "".join(outputs_as_html(cell))


def outputs_as_html(cell: NotebookNode) -> Iterator[str]:
    """Write the outputs of a cell as HTML."""
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        for kind in _PICTURES:
            if image_kind(data.get(kind)) == kind:
                yield f'<p><img alt="output" src="data:{kind};base64,{data[kind]}">'
                break
        text = output.get("text") or "\n".join(output.get("traceback", []))
        yield preformatted(_COLOUR.sub("", text or data.get("text/plain", "")))


def preformatted(text: str) -> str:
    """Write text as HTML that stands as it is."""
    return f"<pre>{html.escape(text)}</pre>" if text else ""


def clean(markup: str) -> str:
    """Sanitise HTML: keep text and tables only, not even links.

    Examples:
        >>> clean('<a href="https://a.example">a</a><img src="//b"><script>c</script>')
        'a'
    """
    return nh3.clean(
        markup,
        tags=_TAGS,
        attributes={"td": {"style"}, "th": {"style"}},
        allowed_classes=_CLASSES,
        filter_style_properties={"text-align"},
    )


def rendered_markdown(source: str, attachments: Any = None) -> str:
    """Render Markdown to sanitised HTML, with formulas as pictures.

    Only pictures that were pasted into the cell, as attachments or by Colab into its text, are
    shown; of others, only the name.
    """
    formulas: dict[str, str] = {}
    renderer = _Renderer(formulas, images_in(attachments))
    page = clean(MarkdownWithMath(renderer=renderer).render(source))
    # Formulas come in last, because the sanitiser lets no picture through.
    return re.sub(rf"{renderer.token}-\d+-", lambda found: formulas[found[0]], page)


class _Renderer(IPythonRenderer):
    """Puts formulas aside, under names that nobody can guess."""

    def __init__(self, formulas: dict[str, str], images: dict[str, str]) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self.token = secrets.token_hex(16)
        self._formulas = formulas
        self._images = images
        self._shown: set[str] = set()

    def _aside(self, formula: str, source: str, *, block: bool = False) -> str:
        return self._put(formula_picture(formula, source, block=block))

    def _put(self, markup: str) -> str:
        name = f"{self.token}-{len(self._formulas)}-"
        self._formulas[name] = markup
        return name

    def inline_math(self, body: str) -> str:
        return self._aside(body, f"${body}$")

    def block_math(self, body: str) -> str:
        return self._aside(body, f"$${body}$$", block=True)

    def latex_environment(self, name: str, body: str) -> str:
        source = f"\\begin{{{name}}}{body}\\end{{{name}}}"
        return self._aside("", source, block=True)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return text if text == html.escape(url) else f"{text} [{html.escape(url)}]"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        kind, _, data = url.partition(":")
        if kind == "attachment":
            data = self._images.get(unquote(data), "")
        elif kind == "data":  # as Colab pastes it
            data = data.partition(";base64,")[2]
        # Each once: 30 times 8 MiB made a page of 240.
        if data in self._shown or not image_kind(data):
            return html.escape(f"[picture: {text or url}]")
        self._shown.add(data)
        source = f"data:{image_kind(data)};base64,{data}"
        return self._put(f'<img alt="{html.escape(text)}" src="{source}">')

    def block_mermaidjs(self, code: str) -> str:
        return f"<pre>{html.escape(code)}</pre>"


def formula_picture(formula: str, source: str, *, block: bool) -> str:
    """Render a formula as an `<img>`, or its source as code if Matplotlib cannot.

    Args:
        formula: TeX without its dollars; empty to show the source.
        source: TeX as it was written.
        block: whether it stands on a line of its own.
    """
    from matplotlib import mathtext

    code = f"<code>{html.escape(source)}</code>"
    file = io.BytesIO()
    words = " ".join(formula.split())
    if not words or len(words) > _FORMULA_CHARACTERS or "$" in words:
        return code
    try:
        depth = mathtext.math_to_image(f"${words}$", file, dpi=_DPI, format="png")
    except (ValueError, RuntimeError, RecursionError, OverflowError):
        return code
    content = file.getvalue()
    # PNG 1.2, 4.1.1: the header's first number.
    width = int.from_bytes(content[16:20], "big")
    style = f"width:{width / _DPI * 7.2:.3f}em;vertical-align:{-depth / 10:.3f}em"  # of 10 points
    picture = f'<img src="data:image/png;base64,{base64.b64encode(content).decode()}"'
    picture += f' alt="{html.escape(source)}" style="{style}">'
    return f'<div style="text-align:center">{picture}</div>' if block else picture
