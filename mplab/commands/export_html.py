"""`mplab export-html`: the executed course and the reference as pages that need no Python.

Each lesson runs in a clean kernel and becomes one page; an explorer that needs Python becomes the
picture it starts with, the others live on. Nothing in a page is fetched from elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mplab.commands._errors import UserError
from mplab.course.files import course_folder, replace_file
from mplab.numbers.installation import PACKAGE, VERSION, needs

_VIEW = "application/vnd.jupyter.widget-view+json"

_SECONDS = 600  # for one cell, on a slow machine


def main(argv: Sequence[str] | None = None) -> int:
    """Export as the command line `argv` says and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="mplab export-html",
        description="Run the lessons and write them as static pages, with an index and a "
        "reference of the library. A page that is up to date is kept.",
    )
    parser.add_argument("--out", type=Path, default=Path("mplab-html"), help="folder of the pages")
    parser.add_argument("--lesson", type=int, action="append", help="only this one (repeatable)")
    parser.add_argument("--fresh", action="store_true", help="run lessons again though up to date")
    parser.add_argument("--no-reference", action="store_true", help="leave it out; it needs pdoc")
    options = parser.parse_args(argv)
    export(
        options.out,
        lessons=options.lesson,
        fresh=options.fresh,
        reference=not options.no_reference,
    )
    print(f"Open {options.out / 'index.html'} in a browser.")
    return 0


def export(
    out: Path, *, lessons: Sequence[int] | None = None, fresh: bool = False, reference: bool = True
) -> None:
    """Write the pages of the course to a folder.

    Pages are written one by one, each whole or not at all: a run that was broken off is
    continued by the next.

    Args:
        out: the folder; made if it is not there. Other files in it are left alone.
        lessons: numbers of the lessons to export; None for all.
        fresh: run a lesson again although its page is up to date.
        reference: write the reference of the library to the folder `api` in it.

    Raises:
        UserError: there is no such lesson, or a lesson fails.
        ModuleNotFoundError: the reference is wanted without pdoc; said before any lesson runs.
        OSError: the folder cannot be written.
    """
    if reference:
        needs("the reference", "pdoc")
    from tqdm.auto import tqdm

    paths = {int(path.name[:2]): path for path in sorted(course_folder("lessons").glob("*.ipynb"))}
    unknown = sorted(set(lessons or ()) - set(paths))
    if unknown:
        raise UserError(f"there is no lesson {unknown[0]}. There are {_listed(paths)}.")
    out.mkdir(parents=True, exist_ok=True)
    wanted = [path for number, path in paths.items() if lessons is None or number in lessons]
    for path in tqdm(wanted, desc="lessons", disable=not sys.stderr.isatty()):
        page = out / f"{path.stem}.html"
        stamp = f"<!-- {_edition(path)} -->"
        if fresh or not page.exists() or stamp not in page.read_text(encoding="utf-8"):
            replace_file(page, (lesson_page(path) + stamp).encode())
    if reference:
        from mplab.commands._reference import write_reference

        write_reference(out / "api")
    replace_file(
        out / "index.html", _index(out, list(paths.values()), reference=reference).encode()
    )


def lesson_page(path: Path) -> str:
    """One lesson, run in a clean kernel, as a page.

    Raises:
        UserError: a cell fails.
    """
    from nbconvert.exporters import HTMLExporter

    from mplab.pictures.canvas import DIMMED

    notebook = _executed(path)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(_VIEW)
            if view is not None:
                output["data"] = {"text/html": snapshot(notebook, view["model_id"])}
    notebook.metadata.pop("widgets", None)
    exporter = HTMLExporter(  # type: ignore[no-untyped-call]
        embed_images=True, exclude_input_prompt=True, exclude_output_prompt=True
    )
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = ""
    exporter.mermaid_js_url = ""
    body, _ = exporter.from_notebook_node(
        notebook, resources={"metadata": {"name": title_of(notebook)}}
    )
    environment: Any = exporter.environment
    dark = environment.loader.get_source(environment, "static/theme-dark.css")[0]
    style = f"{_STYLE}@media screen and (prefers-color-scheme: dark) {{ {dark} {DIMMED} }}"
    return _without_remote_scripts(body).replace("</head>", f"<style>{style}</style></head>", 1)


def _executed(path: Path) -> Any:
    """The notebook with its outputs and the state of its widgets."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=_SECONDS,
            resources={"metadata": {"path": folder}},
            store_widget_state=True,
        )
        places = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "IPYTHONDIR": folder,  # nobody's start-up files
            "PYTHONPATH": os.pathsep.join(filter(None, places)),
        }
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            raise UserError(f"{path.name} fails: {error.ename}: {error.evalue}") from error
        finally:
            # nbclient answers Ctrl-C by ending the kernel, and goes on or stumbles over that.
            if "_async_cleanup_kernel_future" in vars(client):
                raise KeyboardInterrupt
    return notebook


def snapshot(notebook: Any, model: str) -> str:
    """What an explorer shows at first, as HTML: its pictures and words, and what it lets move."""
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    if _is_progress(state, model):
        return ""
    moves = ", ".join(escape(name) for name in dict.fromkeys(_controls(state, model)))
    note = f"<p><small>In JupyterLab you can change: {moves}.</small></p>" if moves else ""
    return f'<div class="explorer">{"".join(_parts(state, model))}{note}</div>'


def _controls(state: dict[str, Any], model: str) -> Iterator[str]:
    described = state.get(model, {})
    here = described.get("state", {})
    for child in here.get("children", []):
        yield from _controls(state, child.removeprefix("IPY_MODEL_"))
    name = here.get("description") or here.get("tooltip")
    if described.get("model_name") == "ToggleButtonModel":
        name = "single bits"  # its description is the bit
    if name and "children" not in here and described["model_name"] != "ButtonModel":
        yield name


def _is_progress(state: dict[str, Any], model: str) -> bool:
    """Whether a widget is a progress bar, which has nothing to say once the run is over."""
    described = state.get(model, {})
    children = described.get("state", {}).get("children", [])
    return described.get("model_name") in ("FloatProgressModel", "IntProgressModel") or any(
        _is_progress(state, child.removeprefix("IPY_MODEL_")) for child in children
    )


def _parts(state: dict[str, Any], model: str) -> Iterator[str]:
    described = state.get(model, {})
    here = described.get("state", {})
    for child in here.get("children", []):
        yield from _parts(state, child.removeprefix("IPY_MODEL_"))
    if described.get("model_name") in ("HTMLModel", "HTMLMathModel"):
        yield f"<div>{here.get('value', '')}</div>"
    elif "_esm" in here:
        from mplab.explorers.modules import alive

        yield alive(here)
    elif described.get("model_name") == "ImageModel":
        yield f'<img alt="" src="data:image/png;base64,{here.get("value", "")}">'


def title_of(notebook: Any) -> str:
    """The first heading of a notebook, without its number sign."""
    for cell in notebook.cells:
        found = re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and found:
            return found[1].strip()
    return "mplab"


def _without_remote_scripts(page: str) -> str:
    """Without the elements that would fetch a script or a style from elsewhere."""
    page = re.sub(r'<script[^>]*\bsrc="(https?:)?//[^"]*"[^>]*>\s*</script>', "", page)
    page = re.sub(r'<link[^>]*\bhref="(https?:)?//[^"]*"[^>]*>', "", page)
    mermaid = r'<script type="module">(?:(?!</script>).)*?mermaid.*?</script>'
    return re.sub(mermaid, "", page, flags=re.DOTALL)


def _edition(path: Path) -> str:
    """What a page depends on: the notebook and the library, in one number."""
    digest = hashlib.sha256(path.read_bytes())
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("page/*")]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return f"edition {digest.hexdigest()[:16]}"


def _listed(numbers: Sequence[int] | dict[int, Path]) -> str:
    return ", ".join(str(number) for number in numbers)


def _index(out: Path, paths: Sequence[Path], *, reference: bool) -> str:
    """The page that leads to the others; a lesson not exported yet has no link."""
    import nbformat

    rows = []
    for path in paths:
        name = escape(title_of(nbformat.read(path, as_version=4)))  # type: ignore[no-untyped-call]
        there = (out / f"{path.stem}.html").exists()
        rows.append(
            f'<li><a href="{path.stem}.html">{name}</a></li>' if there else f"<li>{name}</li>"
        )
    link = '<p><a href="api/mplab.html">Reference of the library</a></p>' if reference else ""
    return _INDEX.format(style=_STYLE, lessons="\n".join(rows), reference=link, version=VERSION)


_STYLE = """
:root { color-scheme: light dark }
body { max-width: 60rem; margin: 1rem auto 4rem; font: 1.05rem/1.5 system-ui, sans-serif }
ol.lessons li { margin: .4rem 0 }
"""

_INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>mplab</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{style}</style></head><body>
<h1>mplab</h1>
<p>What low precision does to numbers and to training. These pages show the lessons as they ran;
in JupyterLab you can change them, and every explorer moves.</p>
<ol class="lessons">
{lessons}
</ol>
{reference}
<p><small>mplab {version}</small></p>
</body></html>
"""
