"""The command `mplab`: open the lessons, look at this machine, measure, train."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import mplab

# Heavy modules are imported inside the commands: `mplab --help` must answer at once.

_RECORD = ".mplab-lessons.json"
"""Name to SHA-256 of each lesson as we last wrote it: tells an edited one from an older one."""


class UserError(Exception):
    """Something the user can put right: printed as one line, without a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    for stream in (sys.stdout, sys.stderr):  # an old code page has no × to print: a ? will do
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    parser = _parser()
    options, rest = parser.parse_known_args(argv)
    if rest and options.command == "doctor":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    try:
        if options.command == "lab":
            return lab(rest, folder=options.dir, reset=options.reset)
        return _elsewhere(options.command, rest)
    except BrokenPipeError:  # whoever read our output has gone: `mplab doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (UserError, OSError) as error:
        print(f"mplab {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"mplab {options.command}: interrupted.", file=sys.stderr)
        return 130


ELSEWHERE = {
    "doctor": "say what this machine has, and what is missing",
    "train": "train a task by several recipes, compare",
    "audit": "compare simulated operations with torch's own kernels",
    "bench": "measure rounding, or training steps, against their peers",
    "probe": "compare a CUDA device's matrix units with the models",
    "record": "record what a CUDA device answers, for the lessons",
    "grade": "release assignments, grade them in a sandbox",
    "export-html": "write the course as pages that need no Python",
}
"""Commands that a room of their own reads and runs, and what they do."""


def _elsewhere(command: str, rest: Sequence[str]) -> int:
    match command:
        case "train":
            from mplab.training import runs

            return runs.main(rest)
        case "audit":
            from mplab import audit

            return audit.main(rest)
        case "bench":
            from mplab import bench

            return bench.main(rest)
        case "probe":
            from mplab import probe

            return probe.main(rest)
        case "record":
            from mplab.recordings import record

            return record.main(rest)
        case "grade":
            return grade(rest)
        case "export-html":
            from mplab import export

            return export.main(rest)
    from mplab import doctor

    return doctor.main()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab", description="Numerical analysis of mixed-precision training."
    )
    parser.add_argument("--version", action="version", version=f"mplab {mplab.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser(
        "lab",
        help="open JupyterLab on a lesson",
        usage="mplab lab [LESSON] [--dir DIR] [--reset] [JupyterLab options]",
        description="Copy the lessons into DIR, keeping what you changed there, and open one. "
        "LESSON is its number or name (default: the first). Every other option goes to JupyterLab.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--dir",
        type=Path,
        default=Path("mplab-lessons"),
        help="your copy of the lessons (default: ./mplab-lessons)",
    )
    command.add_argument(
        "--reset",
        action="store_true",
        help="restore all lessons; edited ones are kept in a folder named by the time",
    )
    for name, purpose in ELSEWHERE.items():
        commands.add_parser(name, help=purpose, add_help=name == "doctor")
    return parser


def grade(arguments: Sequence[str]) -> int:
    """Run `mplab grade` with these arguments.

    Raises:
        UserError: nbgrader is not installed.
    """
    if platform.system() == "Windows":
        raise UserError("grading runs on Linux, and on macOS without a sandbox. Use WSL2.")
    try:
        from mplab.grading import commands

        return commands.main(arguments)
    except ModuleNotFoundError as error:
        raise UserError(
            f"grading needs {error.name}. Install it: pip install 'mplab[grade]'."
        ) from error


def lab(arguments: Sequence[str], *, folder: Path, reset: bool = False) -> int:
    """Copy the lessons to `folder` and become JupyterLab on one of them.

    Args:
        arguments: The lesson's number or name, if any; then options for JupyterLab.
        folder: Where the user's copies live.
        reset: Restore every lesson, keeping a copy of the edited ones.

    Returns:
        JupyterLab's exit code, on Windows; elsewhere this process becomes JupyterLab.

    Raises:
        UserError: There is no such lesson.
        OSError: `folder` cannot be written.
    """
    from mplab.data import course_folder

    try:
        source = course_folder("lessons")
    except ValueError as error:
        raise UserError(str(error)) from error
    named = bool(arguments) and not arguments[0].startswith("-")
    lesson = find_lesson(arguments[0] if named else None, source=source)
    passed_on = list(arguments[1 if named else 0 :])
    for line in copy_lessons(source, folder, reset=reset):
        print(line)
    if _is_root() and not any("allow-root" in o or "allow_root" in o for o in passed_on):
        print(
            "mplab lab: JupyterLab refuses to run as root, since whoever reaches it can run"
            " anything. Start it as another user, or, in a container, add --allow-root.",
            file=sys.stderr,
        )
    return _become(
        [
            *(sys.executable, "-m", "jupyterlab"),
            f"--LabApp.default_url=/lab/tree/{quote(lesson.name)}",
            f"--ServerApp.root_dir={folder.resolve()}",
            "--ServerApp.kernel_websocket_connection_class=mplab.websocket.PromptConnection",
            *passed_on,
        ]
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
        number = re.match(r"\d+", lesson.name)
        if wanted.isdecimal() and number and int(number[0]) == int(wanted):
            return lesson
        if Path(wanted).name in (lesson.name, lesson.stem):
            return lesson
    names = "".join(f"\n  {lesson.stem}" for lesson in lessons)
    raise UserError(
        f"LESSON must be the number or name of a lesson; got {wanted!r}. Choose:{names}"
    )


def copy_lessons(source: Path, folder: Path, *, reset: bool = False) -> list[str]:
    """Bring the lessons of `source` to `folder` without losing what the user changed there.

    A missing lesson is copied. One that is as we last wrote it is brought up to date. Any other is
    the user's work and stays, unless `reset` moves it into a folder named by the time.

    Returns:
        What happened, in lines to print.

    Raises:
        OSError: `folder` cannot be written.
    """
    if folder.resolve() == source.resolve():
        return [f"Lessons: {source} (the originals)"]
    folder.mkdir(parents=True, exist_ok=True)
    record = _read_record(folder)
    backup = folder / time.strftime("before-reset-%Y%m%d-%H%M%S")
    lines = [f"Lessons: {folder.resolve()}"]
    for original in sorted(path for path in source.iterdir() if path.suffix == ".ipynb"):
        copy = folder / original.name
        content = original.read_bytes()
        edited = _is_edited(copy, content, record.get(copy.name))
        if edited and not reset:
            newer = record.get(copy.name, _digest(content)) != _digest(content)
            hint = " (the lesson has a newer version: --reset)" if newer else ""
            lines.append(f"  {copy.name}: kept, with your changes{hint}")
            continue
        if edited:
            backup.mkdir(exist_ok=True)
            keep = backup / copy.name
            if keep.exists():  # two resets within one second
                raise FileExistsError(f"{keep} exists already. Try again.")
            copy.rename(keep)
            lines.append(f"  {copy.name}: restored; yours is now {keep.relative_to(folder)}")
        _replace(copy, content)
        record[copy.name] = _digest(content)
    _replace(folder / _RECORD, json.dumps(record, indent=1, sort_keys=True).encode())
    return lines


def _is_edited(copy: Path, content: bytes, written: str | None) -> bool:
    """Whether `copy` exists and is neither the lesson's `content` nor what we last wrote."""
    if not copy.exists():
        return False
    return _digest(copy.read_bytes()) not in (_digest(content), written)


def _read_record(folder: Path) -> dict[str, str]:
    """What we last wrote to `folder`; without a readable record, every difference is an edit."""
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _replace(path: Path, content: bytes) -> None:
    """Write all of `content` or nothing: half a lesson would look like the user's work."""
    if path.is_file() and path.read_bytes() == content:
        return
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _become(command: list[str]) -> int:
    """Replace this process by `command`; on Windows, which cannot, run it and wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    if platform.system() == "Windows":
        # Ctrl-C reaches both processes; the answer is JupyterLab's to give.
        signal.signal(signal.SIGINT, lambda *_: None)
        return subprocess.call(command)
    os.execv(command[0], command)
