"""`mplab export-html`: write the executed course and the reference as pages without Python."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mplab.commands.main import COMMANDS
from mplab.course.site.export import export


def main(argv: Sequence[str] | None = None) -> int:
    """Export as the command line `argv` says and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="mplab export-html",
        description="Run the lessons and write them as static pages, with an index and a "
        "reference of the library. A page that is up to date is kept.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("mplab-html"), help="folder of the pages"
    )
    parser.add_argument(
        "--lesson", type=int, action="append", help="only this one (repeatable)"
    )
    options = parser.parse_args(argv)
    # The reference lists the commands, and the site may not import them.
    export(options.out, COMMANDS, lessons=options.lesson)
    print(f"Open {options.out / 'index.html'} in a browser.")
    return 0
