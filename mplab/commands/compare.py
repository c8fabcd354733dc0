"""`mplab compare`: find where two runs first differ, from the digests that they left."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mplab.common.errors import UserError
from mplab.health.comparison import compare


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; return 0 if the runs are equal, 1 if they are not."""
    parser = argparse.ArgumentParser(
        prog="mplab compare",
        description="Say in which step, layer and direction two runs differ first, and by how many "
        "units in the last place. A run leaves a file with mplab.health.Digest(…, path=FILE). "
        "Ends with 0 where they are equal, 1 where they are not, 2 where a file cannot be read.",
        allow_abbrev=False,
    )
    parser.add_argument("run_a", type=Path, metavar="A.json")
    parser.add_argument("run_b", type=Path, metavar="B.json")
    parser.add_argument("--plot", type=Path, help="a figure, .png or .svg")
    options = parser.parse_args(argv)
    runs = [path.resolve() for path in (options.run_a, options.run_b)]
    if options.plot and options.plot.suffix not in (".png", ".svg"):
        parser.error(f"--plot must be a .png or .svg; got {options.plot}")
    if options.plot and options.plot.resolve() in runs:
        parser.error(f"--plot must not be one of the runs; got {options.plot}")
    try:
        found = compare(options.run_a, options.run_b)
    except ValueError as error:
        raise UserError(str(error)) from error
    print(found)
    if options.plot:
        from mplab.course.pictures.monitoring import parting

        parting(found).save(options.plot)
        print(f"Written: {options.plot}")
    return 0 if found.equal else 1
