"""Feedback pages: nbgrader's, with nothing of a student's that a browser would run."""

from __future__ import annotations

import re
from typing import Any

import bleach
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode

POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; "
    "form-action 'none'\">"
)

_STYLE = "<style>pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere }</style>"
"""Hints are sentences: without it they run out of their box."""

_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "code", "del", "div", "em", "hr", "i", "kbd", "p"),
    *("pre", "s", "span", "strong", "sub", "sup", "dl", "dt", "dd", "li", "ol", "ul"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "tbody", "td", "th", "thead", "tr"),
}

_ATTRIBUTES = {"*": ["class", "id", "title"], "a": ["href"], "td": ["align"], "th": ["align"]}


class FeedbackExporter(HTMLExporter):
    """HTML of a graded notebook: foreign HTML is cleaned, and the page may load or run nothing."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Render Markdown, and keep of the result what is text."""
        rendered = super().markdown2html(context, source)
        return bleach.clean(rendered, _TAGS, _ATTRIBUTES, {"http", "https", "mailto"})

    def from_notebook_node(
        self, nb: NotebookNode, resources: Any = None, **kwargs: Any
    ) -> tuple[Any, ResourcesDict]:
        """Convert, and put the policy before anything that it must govern.

        The template's table of contents calls every check "Test cell": it gets its name.
        """
        page, resources = super().from_notebook_node(nb, resources, **kwargs)
        head, found, rest = page.partition("<head>")
        if not found:
            raise RuntimeError("FeedbackExporter: the template has no <head> for the policy.")
        rest = re.sub(r'(<a href="#([\w-]+)">)Test cell(?=</a>)', r"\1\2", rest)
        return head + found + POLICY + rest.replace("</head>", f"{_STYLE}</head>", 1), resources
