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
import shutil
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
from parts.part import Found, Setting, problem_of
from parts.runs import SEEDS, exponents, larger, training
from parts.speed import speed
from parts.tensorcores import tensorcores

from mplab.common.installation import VERSION, environment
from mplab.course.files import replace_file
from mplab.hardware.recordings import FORM, SCHEMA, Recording, check, digest_of, load


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
        again: whether to record parts again that are complete in the folder.
        together: whether to run all parts in this process, even on CUDA.
    """

    device: torch.device
    folder: Path
    names: Sequence[str]
    rehearse: bool = False
    again: bool = False
    together: bool = False

    def empty(self, name: str, *, problem: str = "") -> Recording:
        """Make the recording of a part that has no data yet."""
        return Recording(name, self.provenance(seconds=0.0), {}, False, problem)

    def provenance(self, *, seconds: float) -> dict[str, Any]:
        """Describe the device, versions and time of a recording, but not the machine's place."""
        cuda = self.device.type == "cuda"
        known = environment()
        which = (
            "--all"
            if list(self.names) == list(PARTS)
            else f"--only {','.join(self.names)}"
        )
        return {
            "device": torch.cuda.get_device_name(self.device) if cuda else "CPU",
            "cuda": cuda,
            "driver": _driver() if cuda else "",
            **{key: known[key] for key in ("torch", "numpy", "python", "mplab")},
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": f"python data/record.py {which}{' --rehearse' * self.rehearse}",
            "seeds": list(SEEDS),
            "rehearsal": self.rehearse,
            "seconds": round(seconds, 2),
        }


@cache
def _driver() -> str:
    """The driver's version, with the CUDA version that torch was built for."""
    words = f"CUDA {torch.version.cuda}"
    command = shutil.which("nvidia-smi")
    if command is None:
        return words
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
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

    def written(*, complete: bool, problem: str = "") -> Recording:
        origin = to.provenance(seconds=time.monotonic() - begin)
        recording = Recording(name, origin, data, complete, problem)
        store(recording, to.folder)
        return recording

    try:
        for key, value in part.make(setting):
            data[key] = value
            made = written(complete=False, problem=_UNFINISHED)
            print(f"  {name}: {key}, {made.provenance['seconds']:.1f} s", flush=True)
    except Exception as error:  # whatever it is, the other parts go on
        return written(complete=False, problem=problem_of(error))
    missing = sorted(set(SCHEMA[name]) - set(data))
    if missing or setting.left() <= 0:
        reason = f"its {most:.3g} s were spent" if setting.left() <= 0 else "missing"
        return written(
            complete=False, problem=f"{reason}: {', '.join(missing) or 'cut short'}"
        )
    return written(complete=True)


_UNFINISHED = "not finished"


def record_apart(name: str, to: Request, *, most: float) -> Recording:
    """Record one part in a process of its own, which is killed when its time is over.

    Args:
        name: the name of the part.
        to: the options of the call.
        most: the time limit in seconds, which includes the start of the process.
    """
    begin = time.monotonic()
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
    left = _left_behind(name, to, since=begin)
    if left is not None and left.problem != _UNFINISHED:
        return left
    ended = "hung and was ended" if late else f"ended with exit code {child.exitcode}"
    left = replace(left or to.empty(name), problem=f"its process {ended}")
    store(left, to.folder)
    return left


def _record(name: str, to: Request, end: float) -> None:
    """Record a part in its own process until `end`; starting torch and CUDA has used some time."""
    # No more processes for a few kernels.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    record(name, to, most=end - time.time())


def _left_behind(name: str, to: Request, *, since: float = 0.0) -> Recording | None:
    """Load this device's recording of a part from the folder; None if there is none since then."""
    wanted = to.empty(name).name
    path = to.folder / f"{wanted}.json"
    age = time.time() - path.stat().st_mtime if path.exists() else math.inf
    if since and age > time.monotonic() - since:
        return None
    try:
        return load(wanted, where=to.folder)
    except ValueError:
        return None


def made_or_kept(name: str, to: Request, *, most: float) -> Recording:
    """Return a part's complete recording, or record it now, or note that there is no time.

    Args:
        name: the name of the part.
        to: the options of the call.
        most: the time limit in seconds.
    """
    before = _left_behind(name, to)
    if before is not None and before.complete and not to.again:
        same = before.provenance["rehearsal"] == to.rehearse
        if same and before.provenance["mplab"] == VERSION:
            print(f"  {name}: complete already; --again records it anew")
            return before
    if most < 5:
        return before or to.empty(name, problem="no time was left")
    make = record_apart if to.device.type == "cuda" and not to.together else record
    return make(name, to, most=most)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `python data/record.py --help`."""
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--all", action="store_true", help=f"all parts: {', '.join(PARTS)}"
    )
    chosen.add_argument("--only", help="some parts, with commas between them")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the recordings"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="tiny sizes, on any machine"
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: CUDA if there is one"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"for all parts (default {MINUTES})",
    )
    parser.add_argument(
        "--again", action="store_true", help="also what is complete in DIR"
    )
    parser.add_argument(
        "--together", action="store_true", help="all parts in one process, also on CUDA"
    )
    options = parser.parse_args(argv)
    names = list(PARTS) if options.all else options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(
            f"no such part: {', '.join(unknown)}. Choose from {', '.join(PARTS)}."
        )
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu" and not options.rehearse:
        print(
            "There is no CUDA device: these recordings will be marked CPU, and are slow."
        )
    asked = Request(
        torch.device(kind),
        options.out,
        names,
        rehearse=options.rehearse,
        again=options.again,
        together=options.together,
    )
    begin = time.monotonic()
    done = []
    for place, name in enumerate(names):
        left = begin + 60 * options.minutes - time.monotonic()
        # Unused time is passed on.
        shares = [PARTS[other].share for other in names[place:]]
        made = made_or_kept(name, asked, most=left * shares[0] / sum(shares))
        done.append(made)
        state = "done" if made.complete else f"not complete: {made.problem}"
        print(f"{name:<12} {made.provenance['seconds']:7.1f} s  {state}", flush=True)
    files = [options.out / f"{made.name}.json" for made in done]
    size = sum(path.stat().st_size for path in files if path.exists())
    print(f"{len(done)} recordings, {size:,} bytes, {time.monotonic() - begin:.0f} s")
    return 0 if all(made.complete for made in done) else 1


if __name__ == "__main__":
    raise SystemExit(main())
