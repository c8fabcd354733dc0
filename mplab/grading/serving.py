"""Serve a course in JupyterLab, with submissions only on formgrader's sanitised page.

Any script in a page of this server can read the hidden checks and open a terminal, even if its
kernel is in a sandbox, because JupyterLab runs JavaScript, widgets and HTML of any kernel in the
teacher's page. A filter would have to know all of them, so JupyterLab does not open submissions
at all: its files, and with them its kernels, are limited to the teacher's own folders.
Submissions are read and graded in formgrader. Its page is rebuilt without students' scripts, and
its policy names its own scripts: any other would not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import AuthenticatedFileHandler
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.utils import url_path_join
from nbgrader.server_extensions.formgrader import handlers
from tornado import web
from traitlets import default

from mplab.grading.feedback import StaticExporter
from mplab.grading.provisioner import submission_of

_FOLDERS = ("source", "checks", "release")

_FILES = (".csv", ".md", ".py", ".txt")
"""Suffixes of the teacher's files in the course folder itself: roster, settings, README, grades."""

_REASON = "JupyterLab shows source, checks and release here. Submissions are read in formgrader."

_NAMES = ("first_name", "last_name", "student")

_NOTEBOOK = 'id="notebook"'
"""Where the notebook begins in formgrader's page; all before it is the template's."""


def is_own(path: Path, course: Path) -> bool:
    """Whether a path is the teacher's own, so that JupyterLab may open it.

    A link counts as its target.

    Examples:
        >>> is_own(Path("/course/source/a1"), Path("/course"))
        True
        >>> is_own(Path("/course/submitted/s01/a1/a1.ipynb"), Path("/course"))
        False
    """
    place, root = path.resolve(), course.resolve()
    if not place.is_relative_to(root):
        return submission_of(place) is None
    parts = place.relative_to(root).parts
    if len(parts) < 2 and place.suffix in _FILES:
        return True
    return not parts or parts[0] in _FOLDERS


class CourseFiles(AuthenticatedFileHandler):
    """Serves files as they are, but only the teacher's."""

    def validate_absolute_path(self, root: str, absolute_path: str) -> str:
        """Refuse files that are not the teacher's."""
        if not is_own(Path(absolute_path), Path(root)):
            raise web.HTTPError(403, _REASON)
        return super().validate_absolute_path(root, absolute_path)


class CourseContents(AsyncLargeFileManager):
    """The folders of a course that JupyterLab may open, and start kernels in."""

    def _get_os_path(self, path: str) -> str:
        """Resolve a path; every access to a file passes here."""
        place = str(super()._get_os_path(path))
        if not is_own(Path(place), Path(self.root_dir)):
            raise web.HTTPError(403, _REASON)
        return place

    def should_list(self, name: str) -> bool:
        """Whether to show a name in a listing."""
        place = Path(self.root_dir, name)
        closed = place.exists() and not is_own(place, Path(self.root_dir))
        return not closed and super().should_list(name)

    @default("files_handler_class")
    def _files_handler_class_default(self) -> type:
        return CourseFiles


class FormgradeExporter(StaticExporter):
    """Formgrader's page of a submission."""

    @default("template_name")
    def _template_name_default(self) -> str:
        return "formgrade"

    @default("extra_template_basedirs")
    def _extra_template_basedirs_default(self) -> list[str]:
        return [handlers.template_path]

    def from_notebook_node(self, nb: Any, resources: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        """Convert to a page, with names escaped because the template does not do it."""
        names = {name: html.escape(str(resources[name] or "")) for name in _NAMES}
        return super().from_notebook_node(nb, {**resources, **names}, **kwargs)

    def finished(self, page: str) -> str:
        """Remove MathJax, which is loaded from elsewhere, and the links into JupyterLab."""
        head, found, rest = page.partition(_NOTEBOOK)
        if not found:
            raise RuntimeError("FormgradeExporter: formgrader's template has no notebook in it.")
        head = re.sub(r' data-link="[^"]*"| title="Open live notebook"', "", head)
        return _SCRIPT.sub(_unless_mathjax, head).replace("</head>", _NO_MATHJAX) + found + rest


_NO_MATHJAX = """<script>
var MathJax = {Hub: {Startup: {signal: {Interest: function (hear) {
  setTimeout(function () { hear("End"); });
}}}}};
</script>
</head>"""
"""Formgrader waits for MathJax before it goes to the first answer."""

_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)


def _unless_mathjax(script: re.Match[str]) -> str:
    return "" if "mathjax" in script[1].lower() else script[0]


def policy(page: str) -> str:
    """Write the content security policy of formgrader's page: only its own scripts, by digest.

    Only the page before the notebook is searched, so that no student's text is included.
    """
    head = page.partition(_NOTEBOOK)[0]
    scripts = [found[2] for found in _SCRIPT.finditer(head) if "src=" not in found[1]]
    scripts += map(html.unescape, re.findall(r' onclick="([^"]*)"', head))
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in scripts)
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in dict.fromkeys(digests))
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-hashes' {allowed}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )


class ShownSubmission(handlers.SubmissionHandler):
    """Formgrader's page of a submission, sanitised."""

    @cached_property
    def exporter(self) -> FormgradeExporter:
        """The exporter of the page, instead of nbgrader's."""
        return FormgradeExporter(parent=self.settings["nbgrader_formgrader"])

    def write(self, chunk: Any) -> None:
        """Write the page, and the policy for it."""
        if isinstance(chunk, str) and _NOTEBOOK in chunk:
            self.set_header("Content-Security-Policy", policy(chunk))
        super().write(chunk)


class NoFile(handlers.BaseHandler):
    """Refuses files beside a submission, which formgrader would serve as pages of this server."""

    @web.authenticated
    def get(self, *_: str) -> None:
        """Refuse the request.

        Raises:
            HTTPError: always.
        """
        raise web.HTTPError(403, _REASON)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": __name__}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Replace formgrader's handlers of submissions; the handlers added first answer."""
    one, step = r"/formgrader/submissions/([^/]+)", r"(?:next|prev)(?:_incorrect)?"
    steps = rf"/formgrader/submissions/(?P<submission_id>[^/]+)/(?P<action>{step})"
    answers = [
        (one + "/?", ShownSubmission),
        (steps + "/?", handlers.SubmissionNavigationHandler),
        (one + "/.*", NoFile),
    ]
    base = server.web_app.settings["base_url"]
    server.web_app.add_handlers(".*$", [(url_path_join(base, path), use) for path, use in answers])
