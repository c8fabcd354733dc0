"""Record everything that only hardware can answer: `python data/record.py --all --out DIR`.

Each part has a share of the time that is left and writes its file as it goes, so that what is
done stays if the run is killed; an error in one part does not stop the others. On a CUDA device
each part is a process of its own: an error of the device ends every later call of its process,
and a part that hangs is ended. The same command goes on where it was broken off, and keeps what
is complete.
"""

import argparse
import json
import math
import multiprocessing
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from parts.casts import casts
from parts.kernels import kernels
from parts.part import Found, Setting, problem_of
from parts.runs import SEEDS, exponents, larger, training
from parts.speed import speed
from parts.tensorcores import tensorcores

from mplab.common.files import replace_file
from mplab.common.installation import VERSION, environment
from mplab.lessons.recordings import (
    FORM,
    SCHEMA,
    Recording,
    check,
    digest_of,
    load,
)


class Part(NamedTuple):
    """A part of the recording: what makes its data, and its share of the time."""

    make: Callable[[Setting], Found]
    share: float


PARTS: dict[str, Part] = {  # in order of importance
    "casts": Part(casts, 75),
    "tensorcores": Part(tensorcores, 45),
    "training": Part(training, 155),
    "larger": Part(larger, 35),
    "speed": Part(speed, 45),
    "kernels": Part(kernels, 30),
    "exponents": Part(exponents, 15),
}

MINUTES = 7.9
"""Time limit of all parts together: a machine may be lent for ten minutes."""

_MARGIN = 10.0
"""Seconds from a part's own deadline until its process is killed: it rarely looks at the clock."""


def store(recording: Recording, folder: str | os.PathLike[str]) -> Path:
    """Write the file of a recording atomically, and return its path.

    Raises:
        ValueError: a field does not fit the part's schema, or JSON cannot hold it.
    """
    tree = {
        "mplab recording": FORM,
        **vars(recording),
        "data": _spelled(recording.data),
    }
    check("store: recording", tree)
    path = Path(folder) / f"{recording.name}.json"
    whole = tree | {"sha256": digest_of(tree)}
    text = json.dumps(whole, allow_nan=False, separators=(",", ":")) + "\n"
    replace_file(path, text.encode())
    return path


def _spelled(tree: Any) -> Any:
    """Convert for JSON: infinity and NaN to words, floats to nine digits."""
    if isinstance(tree, float):
        return float(f"{tree:.9g}") if math.isfinite(tree) else str(tree)
    if isinstance(tree, dict):
        return {str(key): _spelled(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_spelled(value) for value in tree]
    return tree


@dataclass(frozen=True)
class Request:
    """The options of one call.

    Attributes:
        device: the device to measure.
        folder: the folder of the files, new ones and those already there.
        names: the names of the parts to record.
        rehearse: whether to use tiny sizes.
    """

    device: torch.device
    folder: Path
    names: Sequence[str]
    rehearse: bool = False

    def empty(self, name: str) -> Recording:
        """Make the recording of a part that has no data yet."""
        return Recording(name, self.provenance(seconds=0.0), {}, complete=False)

    def provenance(self, *, seconds: float) -> dict[str, Any]:
        """Describe the device, versions and time of a recording, but not the machine's place."""
        cuda = self.device.type == "cuda"
        known = environment()
        whole = list(self.names) == list(PARTS)
        which = "--all" if whole else f"--only {' '.join(self.names)}"
        size = " --rehearse" if self.rehearse else ""
        return {
            "device": torch.cuda.get_device_name(self.device) if cuda else "CPU",
            "cuda": cuda,
            "driver": _driver() if cuda else "",
            **{key: known[key] for key in ("torch", "numpy", "python", "mplab")},
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": f"python data/record.py {which}{size}",
            "seeds": list(SEEDS),
            "rehearsal": self.rehearse,
            "seconds": round(seconds, 2),
        }


@cache
def _driver() -> str:
    """The driver's version, with the CUDA version that torch was built for."""
    words = f"CUDA {torch.version.cuda}"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, check=False, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return words
    number = re.match(r"[\d.]+", done.stdout)
    return f"{number[0]}, {words}" if number else words


def record(name: str, to: Request, *, most: float = math.inf) -> Recording:
    """Record one part, writing its file after each of its fields.

    Args:
        name: the name of the part.
        to: the options of the call.
        most: the time limit in seconds; none by default.
    """
    part = PARTS[name]
    data = dict[str, Any]()
    begin = time.monotonic()
    setting = Setting(to.device, to.rehearse, lambda: begin + most - time.monotonic())

    def written(problem: str) -> Recording:
        origin = to.provenance(seconds=time.monotonic() - begin)
        recording = Recording(name, origin, data, not problem, problem)
        store(recording, to.folder)
        return recording

    try:
        for key, value in part.make(setting):
            data[key] = value
            made = written(_UNFINISHED)
            print(f"  {name}: {key}, {made.provenance['seconds']:.1f} s", flush=True)
    except Exception as error:  # whatever it is, the other parts go on
        return written(problem_of(error))
    missing = ", ".join(sorted(set(SCHEMA[name]) - set(data)))
    if setting.left() <= 0:
        return written(f"its {most:.3g} s were spent: {missing or 'cut short'}")
    return written(f"missing: {missing}" if missing else "")


_UNFINISHED = "not finished"


def record_apart(name: str, to: Request, *, most: float) -> Recording:
    """Record one part in a process of its own, which is killed when its time is over.

    Args:
        name: the name of the part.
        to: the options of the call.
        most: the time limit in seconds, which includes the start of the process.
    """
    before = _left_behind(name, to)
    end = time.time() + most - _MARGIN
    child = multiprocessing.get_context("spawn").Process(
        target=_record, args=(name, to, end)
    )
    child.start()
    child.join(most)
    late = child.is_alive()
    if late:
        child.kill()
        child.join()
    left = _left_behind(name, to)
    if left == before:
        left = to.empty(name)
    if left.problem in ("", _UNFINISHED) and not left.complete:
        ended = (
            "hung and was ended" if late else f"ended with exit code {child.exitcode}"
        )
        left = replace(left, problem=f"its process {ended}")
        store(left, to.folder)
    return left


def _record(name: str, to: Request, end: float) -> None:
    """Record a part in its own process until `end`; starting torch and CUDA has used some time."""
    record(name, to, most=end - time.time())


def _left_behind(name: str, to: Request) -> Recording:
    """This device's recording of a part in the folder, or an empty one."""
    empty = to.empty(name)
    try:
        return load(empty.name, where=to.folder)
    except ValueError:
        return empty


def made_or_kept(name: str, to: Request, *, most: float) -> Recording:
    """Return a part's complete recording, or record it now, or note that there is no time.

    Args:
        name: the name of the part.
        to: the options of the call.
        most: the time limit in seconds.
    """
    before = _left_behind(name, to)
    same = before.provenance["rehearsal"] == to.rehearse
    if before.complete and same and before.provenance["mplab"] == VERSION:
        print(f"  {name}: complete already; delete its file to record it anew")
        return before
    if most < 5:
        return replace(before, problem=before.problem or "no time was left")
    make = record_apart if to.device.type == "cuda" else record
    return make(name, to, most=most)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `python data/record.py --help`."""
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--all",
        action="store_const",
        const=list(PARTS),
        dest="names",
        help=f"all parts: {', '.join(PARTS)}",
    )
    chosen.add_argument(
        "--only", nargs="+", choices=PARTS, dest="names", metavar="PART"
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the recordings")
    add("--rehearse", action="store_true", help="tiny sizes, on any machine")
    add("--minutes", type=float, default=MINUTES, help=f"for all (default {MINUTES})")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.rehearse:
        print(
            "There is no CUDA device: these recordings will be marked CPU, and are slow."
        )
    asked = Request(device, options.out, options.names, rehearse=options.rehearse)
    begin = time.monotonic()
    done = []
    for place, name in enumerate(options.names):
        left = begin + 60 * options.minutes - time.monotonic()
        # Unused time is passed on.
        shares = [PARTS[other].share for other in options.names[place:]]
        made = made_or_kept(name, asked, most=left * shares[0] / sum(shares))
        done.append(made)
        state = "done" if made.complete else f"not complete: {made.problem}"
        print(f"{name:<12} {made.provenance['seconds']:7.1f} s  {state}", flush=True)
    print(f"{len(done)} recordings, {time.monotonic() - begin:.0f} s")
    return 0 if all(made.complete for made in done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
