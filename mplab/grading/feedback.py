"""Make nbgrader's feedback pages, with nothing of a student's that a browser would run.

A page is rendered in a process of its own with a time limit, because some texts take a Markdown
parser or a highlighter hours. Such a page is shown as plain text.
"""

import html
import json
import logging
import multiprocessing
import re
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import nbformat
import nbgrader
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import Exporter, ResourcesDict
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbformat import NotebookNode
from traitlets import Float, List, Unicode

from mplab.grading.sanitise import rendered_markdown, sanitise

POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'\">"
)

NOT_READ = -1.0
"""The points of an answer that a person still has to read; the page says so in words."""

_NBGRADER = Path(nbgrader.__file__).parent / "server_extensions" / "formgrader"

_BOOTSTRAP = "static/node_modules/bootstrap/dist/css"

_STYLE = "<style>pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere }</style>"
"""Wraps lines, because hints are sentences and would run out of their box."""

_WAIT = 10.0  # times the limit: on a busy machine a process gets less than a second each second

_PAGE_MEMORY = 2 << 30

_PAGE_BYTES = 64 << 20
"""All pasted pictures and outputs that a submission may have fit in."""

_PLAIN_LENGTH = 100_000
"""Characters of a cell or an output on a page of plain text: a million take nbconvert seconds."""

_PROCESSES = multiprocessing.get_context("forkserver")
"""Forks from a process without threads, unlike a server."""
_PROCESSES.set_forkserver_preload(
    ["__main__", "mplab.grading.feedback", "matplotlib.mathtext"]
)


def in_process(
    seconds: float, most: int, work: Callable[..., str], *arguments: Any
) -> str | None:
    """Call a function on somebody's text in a process of its own, with limits.

    Returns:
        Its result; None if it died, took too long, or has more than `most` bytes.
    """
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(
        target=_limited, args=(sender, seconds, work, *arguments)
    )
    process.start()
    sender.close()
    try:
        if receiver.poll(_WAIT * seconds):
            return receiver.recv_bytes(most).decode()
    except (EOFError, OSError):  # it died, or has written too much: None says so
        pass
    finally:
        process.kill()
        process.join()
        receiver.close()
    return None


def _limited(
    sender: Connection, seconds: float, work: Callable[..., str], *arguments: Any
) -> None:
    whole = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_AS, (_PAGE_MEMORY, _PAGE_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # It would warn of missing alternative texts.
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    sender.send_bytes(work(*arguments).encode())


class _Typesetter(HTMLExporter):
    """The exporter that runs in the process of a page."""

    template_name: Any = Unicode("feedback").tag(config=True)
    extra_template_basedirs: Any = List([str(_NBGRADER / "templates")]).tag(config=True)
    extra_template_paths: Any = List([str(_NBGRADER / _BOOTSTRAP)]).tag(config=True)
    default_preprocessors: Any = List([])

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        cell = context.get("cell") or {}  # in a macro, as for a comment, there is none
        return rendered_markdown(source, cell.get("attachments"))


class FeedbackExporter(_Typesetter):
    """Exports a graded notebook to HTML for its author; the page may load or run nothing.

    The notebook is rebuilt, sanitised, and rendered in bounded time.
    """

    seconds = Float(10.0, help="Time to typeset a page; after it, plain text.").tag(
        config=True
    )
    default_preprocessors: Any = List([CSSHTMLHeaderPreprocessor]).tag(config=True)
    plain = Unicode("", help="Why the last page is plain text; empty if it is not.")

    def from_notebook_node(
        self, nb: NotebookNode, resources: Any = None, **kwargs: Any
    ) -> tuple[Any, ResourcesDict]:
        """Convert to a page.

        Raises:
            RuntimeError: not even a page of plain text was ready in time.
        """
        nb, resources = Exporter.from_notebook_node(self, nb, resources, **kwargs)
        text = json.dumps(sanitise(nb, late_outputs=False))
        words = json.loads(json.dumps(resources, default=str))
        self.plain = ""
        for plain in (False, True):
            page = in_process(self.seconds, _PAGE_BYTES, _typeset, text, words, plain)
            if page is not None:
                return _finished(page), resources
            self.plain = f"it could not be typeset in {self.seconds:g} seconds"
        raise RuntimeError(
            f"{type(self).__name__}: a page must be written in {self.seconds:g} seconds; it "
            "was not, not even as plain text. Look at the notebook."
        )


def _typeset(notebook: str, resources: Any, plain: bool) -> str:
    """Render a page; called in a process of its own."""
    exporter = _Typesetter()
    # nbconvert's own takes time quadratic in the number of brackets.
    exporter.filters = {"strip_files_prefix": _unchanged}
    if plain:
        names = ("markdown2html", "highlight_code", "ansi2html")
        exporter.filters |= dict.fromkeys(names, _as_it_stands)
    page, _ = exporter.from_notebook_node(
        nbformat.from_dict(json.loads(notebook)), resources
    )
    return str(page)


def _unchanged(text: str) -> str:
    return text


def without_scripts(page: str) -> str:
    """Remove the scripts (MathJax's) in the page's head, which comes from the template alone."""
    head, found, rest = page.partition("</head>")
    return re.sub(r"<script\b.*?</script>", "", head, flags=re.DOTALL) + found + rest


def _as_it_stands(text: str, metadata: Any = None) -> str:
    """Show text as it stands; a filter for nbconvert."""
    rest = len(text) - _PLAIN_LENGTH
    end = f"\n[{rest:,} more characters: see the notebook]" if rest > 0 else ""
    return f"<pre>{html.escape(text[:_PLAIN_LENGTH])}{end}</pre>"


def _finished(page: str) -> str:
    """Put the content security policy first in the head, and remove all scripts.

    The template's table of contents calls every check "Test cell"; each gets its name instead.
    """
    head, found, rest = without_scripts(page).partition("<head>")
    if not found:
        raise RuntimeError(
            "FeedbackExporter: the template has no <head> for the policy."
        )
    rest = re.sub(r'(<a href="#([\w.-]+)">)Test cell(?=</a>)', r"\1\2", rest)
    rest = rest.replace(f"Score: {NOT_READ} / ", "not read yet, of ")
    return head + found + POLICY + rest.replace("</head>", f"{_STYLE}</head>", 1)
