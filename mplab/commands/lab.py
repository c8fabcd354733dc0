"""`mplab lab`: JupyterLab on a copy of the lessons that keeps what its owner changed."""

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mplab.common.errors import UserError
from mplab.common.files import PICTURE, PREDICTION, course_folder, replace_file
from mplab.common.installation import require_packages

_DEFAULTS = Path(__file__).parent / "jupyter"
"""A Jupyter configuration folder: no question about news, nothing that no learner needs."""

_OVERRIDES = "default_setting_overrides.json"

_RECORD = ".mplab-lessons.json"
"""A digest of the cells of each notebook as we last wrote it: tells edited ones from older ones."""

_ASKS = re.compile(rf"(?m){PREDICTION}|^✍(?!.*Replace `None`)")
"""A prediction or a question by hand, unless its answer goes into the next cell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Copy the lessons, and become JupyterLab on the one that the command line `argv` names.

    Returns:
        JupyterLab's exit code, on Windows; elsewhere this process becomes JupyterLab.

    Raises:
        UserError: There is no such lesson.
        OSError: The lessons are not there, or their folder cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="mplab lab",
        usage="mplab lab [LESSON] [--dir DIR] [--reset] [JupyterLab options]",
        description="Copy the lessons into DIR, keeping what you changed there, and open "
        "one. LESSON is its number or name (default: the first). Every "
        "other option goes to JupyterLab.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("mplab-lessons"),
        help="your copy of the lessons (default: ./mplab-lessons)",
    )
    parser.add_argument(
        "--reset",
        action="store_true",
        help="restore all files; edited ones are kept in a folder named by the time",
    )
    options, passed_on = parser.parse_known_args(argv)
    require_packages(
        "JupyterLab with the lessons",
        "jupyterlab",
        "matplotlib",
        "ipywidgets",
        "anywidget",
    )
    source = course_folder("lessons")
    wanted = None
    if passed_on and not passed_on[0].startswith("-"):
        wanted = passed_on.pop(0)
    lesson = find_lesson(wanted, source=source)
    for line in copy_lessons(source, options.dir, reset=options.reset):
        print(line)
    _offer_defaults()
    _compile_beside()
    return _become(
        [
            sys.executable,
            "-m",
            "jupyterlab",
            f"--LabApp.default_url=/lab/tree/{quote(lesson.name)}",
            f"--ServerApp.root_dir={options.dir.resolve()}",
            "--ServerApp.kernel_websocket_connection_class=mplab.commands.websocket.PromptConnection",
            *passed_on,
        ]
    )


def _offer_defaults() -> None:
    """Let JupyterLab find our defaults, unless a folder of its configuration has its own.

    These are defaults: what a user sets in JupyterLab wins.
    """
    from jupyter_server.services.config.manager import ConfigManager

    ours = json.loads(
        (_DEFAULTS / "labconfig" / _OVERRIDES).read_text(encoding="utf-8")
    )
    manager: Any = ConfigManager(config_dir_name="labconfig")
    there = manager.get(Path(_OVERRIDES).stem)
    if not any(there.get(plugin, {}).keys() & ours[plugin].keys() for plugin in ours):
        folders = os.environ.get("JUPYTER_CONFIG_PATH", ""), str(_DEFAULTS)
        os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, folders))


def _compile_beside() -> None:
    """Compile the loops of a lesson's first calls while JupyterLab starts, without waiting.

    Whatever goes wrong there, the calls compile for themselves. The shell lets go of the process,
    so that JupyterLab, which this process becomes, has no child that it does not know.
    """
    if platform.system() != "Windows":
        python = shlex.quote(sys.executable)
        os.system(
            f"nice -n 19 {python} -m mplab.arithmetic.first_calls >/dev/null 2>&1 &"
        )


def find_lesson(wanted: str | None, *, source: Path) -> Path:
    """Find a lesson by number ("1", "01"), by name, or by file name; the first for None.

    Raises:
        UserError: There is no such lesson.
    """
    lessons = sorted(source.glob("*.ipynb"))
    if not lessons:
        raise UserError(f"{source} holds no lessons. Install mplab again.")
    if wanted is None:
        return lessons[0]
    for lesson in lessons:
        if wanted.isdecimal() and int(wanted) == int(lesson.name[:2]):
            return lesson
        if Path(wanted).name in (lesson.name, lesson.stem):
            return lesson
    names = "".join(f"\n  {lesson.stem}" for lesson in lessons)
    raise UserError(
        f"LESSON must be the number or name of a lesson; got {wanted!r}. Choose:{names}"
    )


def copy_lessons(source: Path, folder: Path, *, reset: bool = False) -> list[str]:
    """Copy the lessons and their sheet to `folder` without losing what the user changed there.

    Below each prediction and each question by hand, a notebook gets a cell to write in. A missing
    file is copied. A notebook whose cells are as we last wrote them is updated. Any other is the
    user's work and stays, unless `reset` moves it into a folder named by the time. The code of
    figures and explorers is imported from where mplab is installed (`figures.rescue??` shows it).

    Returns:
        Lines to print that say what happened.

    Raises:
        OSError: `folder` cannot be written.
    """
    if folder.resolve() == source.resolve():
        return [f"Lessons: {source} (the originals)"]
    folder.mkdir(parents=True, exist_ok=True)
    record = _read_record(folder)
    backup = folder / time.strftime("before-reset-%Y%m%d-%H%M%S")
    lines = [f"Lessons: {folder.resolve()}"]
    # The lessons, the sheet of formats and words, and the reports that lesson 13 leads to.
    texts = [*source.glob("SHEET.md"), *source.glob("REPORTS.md")]
    for original in [*sorted(source.glob("*.ipynb")), *texts]:
        name = original.name
        copy = folder / name
        content = original.read_bytes()
        if original.suffix == ".ipynb":
            content = _with_room_to_write(content)
        digest = _digest(content)
        written = record.get(name)
        edited = _is_edited(copy, digest, written)
        if edited and not reset:
            newer = written is not None and written != digest
            hint = " (it has a newer version: --reset renews it and keeps yours)"
            lines.append(f"  {name}: kept, with your changes{hint if newer else ''}")
            continue
        if edited:
            keep = backup / name
            keep.parent.mkdir(parents=True, exist_ok=True)
            if keep.exists():  # two resets within one second
                raise FileExistsError(f"{keep} exists already. Try again.")
            copy.rename(keep)
            lines.append(f"  {name}: restored; yours is now {keep.relative_to(folder)}")
        if not copy.exists() or _digest(copy.read_bytes()) != digest:
            replace_file(copy, content)  # whole: half a lesson would look like an edit
        record[name] = digest
    replace_file(
        folder / _RECORD, json.dumps(record, indent=1, sort_keys=True).encode()
    )
    return lines


def _with_room_to_write(content: bytes) -> bytes:
    """After each cell that asks, add a raw cell; it runs nothing and is saved with the rest.

    The pictures of the text go, because the reader's own cells will draw them.
    """
    notebook = json.loads(content)
    cells = []
    for cell in notebook["cells"]:
        cells.append(cell)
        cell["source"] = re.sub(PICTURE, "", "".join(cell["source"]))
        if cell["cell_type"] == "markdown" and _ASKS.search(cell["source"]):
            yours = {
                "cell_type": "raw",
                "id": f"{cell['id']}-yours",
                "metadata": {},
                "source": ["My answer: "],
            }
            cells.append(yours)
    notebook["cells"] = cells
    return f"{json.dumps(notebook, ensure_ascii=False, indent=1)}\n".encode()


def _is_edited(copy: Path, digest: str, written: str | None) -> bool:
    """Whether the cells of `copy` are neither today's nor those that we last wrote."""
    if not copy.exists():
        return False
    content = copy.read_bytes()
    # Version 0.2 recorded digests of bytes.
    return (
        _digest(content) not in (digest, written) and _byte_digest(content) != written
    )


def _read_record(folder: Path) -> dict[str, str]:
    """Read what we last wrote to `folder`; without a record, every difference is an edit."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _digest(content: bytes) -> str:
    """Digest what a learner writes in a notebook: the cells' sources, without their outputs.

    Opening a notebook in JupyterLab is no edit, though it writes metadata, and neither is running.
    """
    try:
        cells = json.loads(content)["cells"]
        sources = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
    except (ValueError, TypeError, KeyError):  # not a notebook any more
        return _byte_digest(content)
    return _byte_digest(json.dumps(sources).encode())


def _byte_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _become(command: list[str]) -> int:
    """Replace this process by `command`; on Windows, which cannot, run it and wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    if platform.system() == "Windows":
        # Ctrl-C reaches both processes; JupyterLab answers it.
        signal.signal(signal.SIGINT, lambda *_: None)
        return subprocess.call(command)
    os.execv(command[0], command)
