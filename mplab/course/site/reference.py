"""Write the reference of `mplab export-html`: pages of pdoc from the fronts' docstrings."""

import re
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from pdoc import doc, doc_ast, render

from mplab.common.files import course_folder, replace_file
from mplab.common.installation import VERSION
from mplab.course.site.frame import policy

ROOMS = (
    "numbers",
    "arithmetic",
    "scaling",
    "course",
    "simulation",
    "training",
    "health",
    "pictures",
    "explorers",
    "grading",  # commands is for the shell
)

MORE = {"mplab.numbers.tensors": ["round_tensor"]}
"""Documented besides the fronts: it needs torch, and its room does not."""

_TEMPLATES = Path(__file__).parent / "page" / "reference"


def write_reference(folder: Path, commands: Mapping[str, str]) -> None:
    """Write a page for the package and for each front, and the index of the search.

    Args:
        folder: where to.
        commands: the purpose of each command of the shell.

    Raises:
        OSError: the folder cannot be written.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # annotations that only a type checker can read
        render.configure(
            docformat="google",
            footer_text=f"mplab {VERSION}",
            show_source=False,  # it shows what the fronts hide
            template_directory=_TEMPLATES,
        )
        names = [f"mplab.{room}" for room in ROOMS]
        pages = {name: _page(name) for name in ["mplab", *names, *MORE]}
        pages["mplab"].docstring += _lists(pages, commands)
        pages["mplab"].submodules = [pages[name] for name in names]
        for name, page in pages.items():
            path = folder / f"{name.replace('.', '/')}.html"
            replace_file(path, _guarded(render.html_module(page, pages)).encode())
        replace_file(folder / "index.html", _guarded(render.html_index(pages)).encode())
        # Without the package: a search finds its names in the rooms.
        rooms = {name: page for name, page in pages.items() if name != "mplab"}
        replace_file(folder / "search.js", render.search_index(rooms).encode())


def _guarded(html: str) -> str:
    """Add the security policy to a page, and labels for screen readers to its links.

    The page's own script loads the search index.
    """
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    html = re.sub(
        r'(<a class="headerlink" href="#([^"]+)")>',
        r'\1 aria-label="link to \2">',
        html,
    )
    return html.replace(
        "<head>", "<head>" + policy(scripts, more="'strict-dynamic'"), 1
    )


def _page(name: str) -> doc.Module:
    """Make a module for pdoc with all of its names; pdoc leaves out names from other files."""
    module = doc.Module.from_name(name).obj
    front = ModuleType(name, module.__doc__)
    names = MORE.get(name) or getattr(module, "__all__", dir(module))
    held = {key: getattr(module, key) for key in names if key[0] != "_"}
    held = {
        key: value for key, value in held.items() if not isinstance(value, ModuleType)
    }
    vars(front).update(held, __all__=list(held))
    page = doc.Module(front)
    for entry in page.variables:
        entry.docstring = _described(entry.name, getattr(front, entry.name))
    # Members from torch or matplotlib have no page to link to.
    for each in page.classes:
        each.inherited_members = {}
        each.members = {member.name: member for member in each.own_members}
    return page


def _described(name: str, value: object) -> str:
    """Return the docstring under a constant, from the file that makes it, and a table's keys."""
    found = (
        doc_ast.walk_tree(module).var_docstrings.get(name)
        for file, module in list(sys.modules.items())
        if file.startswith("mplab.") and vars(module).get(name) is value
    )
    keys = ""
    if isinstance(value, Mapping):
        keys = f"\n\nKeys: {', '.join(map(repr, value))}."
    return next(filter(None, found), "") + keys


def _lists(pages: Mapping[str, doc.Module], commands: Mapping[str, str]) -> str:
    """List the rooms and the commands, and compare libraries, for the end of the first page."""
    rooms = [
        f"- `{name}`: {page.docstring.partition(chr(10))[0]}"
        for name, page in pages.items()
    ]
    purposes = [f"- `mplab {name}`: {purpose}" for name, purpose in commands.items()]
    peers = (course_folder("data") / "peers.txt").read_text(encoding="utf-8")
    parts = ["\n\n## Rooms\n", *rooms[1:], "\n## Commands\n", *purposes]
    return "\n".join([*parts, "\n## Peers\n", "```text", peers, "```"])
