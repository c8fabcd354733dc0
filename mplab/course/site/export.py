"""Write the executed course and the reference as pages that need no Python.

Each lesson runs in a clean kernel and becomes one page. An explorer is drawn in all positions, and
moves without Python; one with free text is a JavaScript module in the page. A page loads nothing
from elsewhere.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mplab.common.errors import UserError
from mplab.common.files import course_folder, replace_file
from mplab.common.installation import PACKAGE, require_packages

_SECONDS = 600  # for one cell, on a slow machine

_FREEZE = """if "mplab.course.explorers" in __import__("sys").modules:
    from mplab.course.explorers.freezing import all_frozen
    display({"application/vnd.mplab.frozen+json": all_frozen()}, raw=True)"""
"""A last cell for each lesson: it draws the explorers that the others made."""


_WIDTHS = (
    "from mplab.course.site.narrow import show_wide_and_narrow; show_wide_and_narrow()"
)
"""The first cell of each lesson: figures are drawn for wide windows and for phones."""


def export(
    out: Path, commands: Mapping[str, str], *, lessons: Sequence[int] | None = None
) -> None:
    """Write the pages of the course to a folder, and the reference to the folder `api` in it.

    Pages are written one by one, each whole or not at all: the next run continues an
    interrupted one.

    Args:
        out: the folder; made if it is not there. Other files in it are left alone.
        commands: the purpose of each command of the shell, for the reference.
        lessons: numbers of the lessons to export; None for all.

    Raises:
        UserError: there is no such lesson, or a lesson fails.
        ModuleNotFoundError: pdoc is missing for the reference; raised before any lesson runs.
        OSError: the folder cannot be written.
    """
    require_packages("the reference", "pdoc")
    from mplab.course.site import front_page as front, reference
    from mplab.course.site.frame import first_figure
    from mplab.course.site.lesson_page import TEXTS, title_of

    paths = {
        int(path.name[:2]): path
        for path in sorted(course_folder("lessons").glob("*.ipynb"))
    }
    titles = {path: title_of(_read(path)) for path in paths.values()}
    if unknown := sorted(set(lessons or ()) - set(paths)):
        raise UserError(
            f"there is no lesson {unknown[0]}. There are {', '.join(map(str, paths))}."
        )
    out.mkdir(parents=True, exist_ok=True)
    wanted = [
        path for number, path in paths.items() if lessons is None or number in lessons
    ]
    for number, path in enumerate(wanted, start=1):
        print(f"{number} of {len(wanted)}: {path.stem}", file=sys.stderr)
        exported = out / f"{path.stem}.html"
        stamp = _fingerprint(path, words="".join(titles.values()))
        if stamp not in _text_of(exported):
            notebook = _executed(path)
            html = lesson_page(notebook, path, titles)
            replace_file(exported, (html + stamp).encode())
            if data := first_figure(notebook):
                replace_file(out / f"{path.stem}.png", data)
            replace_file(out / path.name, path.read_bytes())
        for picture in path.parent.glob(f"l{path.name[:2]}/*.png"):
            replace_file(out / picture.relative_to(path.parent), picture.read_bytes())
    reference.write_reference(out / "api", commands)
    guide = _text_of(course_folder("lessons") / "README.md")
    for source, name in TEXTS.items():
        text = _text_of(course_folder("lessons") / f"{source}.md")
        replace_file(out / f"{name}.html", front.text_page(text).encode())
    first = front.front_page(out, [*titles], guide)
    replace_file(out / "index.html", first.encode())
    for name, html in front.other_pages(out).items():
        replace_file(out / name, html.encode())
    if (card := course_folder("lessons") / "l01" / "rescue.png").exists():
        replace_file(out / "card.png", card.read_bytes())


def _text_of(path: Path) -> str:
    """Read a file; empty if it is missing."""
    return path.read_text("utf-8") if path.exists() else ""


def lesson_page(notebook: Any, path: Path, titles: Mapping[Path, str]) -> str:
    """Make the page of a lesson that ran, with links to all lessons by their titles."""
    from mplab.course.site.frame import page
    from mplab.course.site.lesson_page import beginning, launch_links, lesson_body

    row = list(titles)
    at = row.index(path)
    items = "".join(f"<li>{_link(*item)}</li>" for item in titles.items())
    every = f"<details><summary>Lesson {at + 1} of {len(row)}</summary><ol>{items}</ol></details>"
    ways = ['<a href="index.html">mplab</a>', every]
    for name, other in (("previous", at - 1), ("next", at + 1)):
        if 0 <= other < len(row):
            link = _link(row[other], f"{name}: {titles[row[other]]}")
            ways.append(link.replace("<a ", f'<a rel="{name[:4]}" '))
    opens = [
        f'<a href="{url}">{where}</a>' for where, url in launch_links(path.name).items()
    ]
    more = f' <a href="{path.name}" download>Download the notebook.</a>'
    if opens:
        more += f" Or open it in {' or '.join(opens)}."
    body = lesson_body(notebook, more)
    title = f"{titles[path]} · mplab"
    about = beginning(notebook)
    return page(title, body, ways=ways, about=about, card=f"{path.stem}.png")


def _link(path: Path, words: str) -> str:
    return f'<a href="{path.stem}.html">{escape(words)}</a>'


def _read(path: Path) -> Any:
    import nbformat

    from mplab.course.site.lesson_page import BUTTONS

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    notebook.cells = [cell for cell in notebook.cells if cell.get("id") not in BUTTONS]
    return notebook


def _executed(path: Path) -> Any:
    """Run a notebook in a clean kernel, and return it with its outputs and its widgets' state.

    Raises:
        UserError: a cell fails.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
    from nbformat.v4 import new_code_cell

    notebook = _read(path)
    notebook.cells.append(new_code_cell(_FREEZE))  # type: ignore[no-untyped-call]
    notebook.cells.insert(0, new_code_cell(_WIDTHS))  # type: ignore[no-untyped-call]
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=_SECONDS,
            resources={"metadata": {"path": folder}},
            store_widget_state=True,
            coalesce_streams=True,  # printed text comes in pieces
            extra_arguments=[
                "--log-level=ERROR"
            ],  # a kernel on 127.0.0.1 needs no warning
        )
        places = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "IPYTHONDIR": folder,  # no user's start-up files
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
        }
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise UserError(
                f"{path.name} fails: {error.ename}: {error.evalue}"
            ) from error
        finally:
            # nbclient answers Ctrl-C by ending the kernel, and goes on or fails because of that.
            if "_async_cleanup_kernel_future" in vars(client):
                raise KeyboardInterrupt
    del notebook.cells[0]
    return notebook


def _fingerprint(*paths: Path, words: str = "") -> str:
    """Hash what a page depends on, notebooks and the library, for a comment at its end."""
    digest = hashlib.sha256(words.encode())
    sources = [
        p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".js", ".css", ".html")
    ]
    # A checkout has them beside the package.
    sources += course_folder("lessons").rglob("*.py")
    for source in [*paths, *sorted(sources)]:
        digest.update(source.read_bytes())
    return f"<!-- edition {digest.hexdigest()[:16]} -->"
