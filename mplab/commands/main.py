"""The command `mplab`: the table of its commands, and how their errors are reported."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mplab.commands.errors import UserError
from mplab.numbers.installation import VERSION, lacks

COMMANDS = {
    "lab": "open JupyterLab on a lesson",
    "doctor": "say what this machine has, and what is missing",
    "train": "train a task by several recipes, compare",
    "compare": "say where two runs part, from their digests",
    "probe": "compare a CUDA device's matrix units with the models",
    "grade": "release assignments, grade them in a sandbox",
    "export-html": "write the course as pages that need no Python",
}
"""The commands and their purposes; a file of the same name beside this one runs each."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return the exit code."""
    for stream in (sys.stdout, sys.stderr):  # an old code page cannot print ×: a ? will do
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    options, rest = _parser().parse_known_args(argv)
    command = options.command
    try:
        # Imported only now: `mplab --help` must answer at once.
        module = import_module(f"mplab.commands.{command.replace('-', '_')}")
        code: int = module.main(rest)
        return code
    except BrokenPipeError:  # the reader of our output has gone: `mplab doctor | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package == "mplab":
            raise
        print(f"mplab {command}: {lacks(package)}", file=sys.stderr)
        return 2
    except (UserError, OSError) as error:
        print(f"mplab {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"mplab {command}: interrupted.", file=sys.stderr)
        return 130


def named(option: str, place: str, kind: type) -> Any:
    """Import `package.module:NAME`, from an installed module or from this folder.

    Raises:
        UserError: there is no such module or name, it is of another type, or the import raises.
    """
    module, _, name = place.partition(":")
    rule = f"{option} must be package.module:NAME, where NAME is a {kind.__name__}; got {place!r}"
    if not name.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"{rule}. Write the module with dots, a colon, and the name.")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does, and an installed command does not
    try:
        found = import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            words = f"there is no module {missing!r} in {here}, and none is installed"
            raise UserError(f"{rule}: {words}. Go to its folder, or install it.") from None
        told = traceback.TracebackException.from_exception(error)
        ours = (__file__, "<frozen importlib")
        frames = [frame for frame in told.stack if not frame.filename.startswith(ours)]
        told.stack = traceback.StackSummary.from_list(
            [frame for frame in frames if "/importlib/" not in frame.filename.replace("\\", "/")]
        )
        theirs = "".join(told.format()).rstrip()
        raise UserError(f"{option}: importing {module!r} raises an error.\n{theirs}") from None
    thing = getattr(found, name, None)
    if not isinstance(thing, kind):
        others = [n for n, x in vars(found).items() if isinstance(x, kind)]
        is_there = hasattr(found, name)
        what = f"whose type is {type(thing).__name__}" if is_there else "which is not there"
        there = f"Those in {module}: {', '.join(others)}." if others else f"{module} has none."
        raise UserError(f"{rule}, {what}. {there}")
    return thing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab", description="Numerical analysis of mixed-precision training."
    )
    parser.add_argument("--version", action="version", version=f"mplab {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    return parser
