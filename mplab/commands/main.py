"""The command `mplab`: the table of its commands, and how their errors are reported."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from mplab.common.errors import UserError, escape_control_characters
from mplab.common.installation import VERSION, missing_message

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
    # Without an output, as after `>&-` in a shell, what is written goes nowhere.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    # An old code page cannot print ×: a ? will do.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    # Every command may print a student's words: control characters that could rewrite a terminal
    # are escaped in one place, which no `print` can miss. Progress bars go to the other stream.
    write = sys.stdout.write
    sys.stdout.write = lambda text: write(escape_control_characters(text))  # type: ignore[method-assign]
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
        print(f"mplab {command}: {missing_message(package)}", file=sys.stderr)
        return 2
    except (UserError, OSError) as error:
        print(
            f"mplab {command}: {escape_control_characters(str(error))}", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print(f"mplab {command}: interrupted.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mplab", description="Numerical analysis of mixed-precision training."
    )
    parser.add_argument("--version", action="version", version=f"mplab {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose, add_help=False)
    return parser
