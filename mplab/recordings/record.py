"""The command `mplab record`: everything that only hardware can answer, in one call.

Each part has a budget of time and writes its file as it goes, so that what is done stays if
the run is killed; an error in one part does not stop the others.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import mplab
from mplab import audit
from mplab.recordings.asking import Found, Setting, casts, tensorcores
from mplab.recordings.files import SCHEMA, Recording
from mplab.recordings.racing import SEEDS, exponents, larger, speed, training


class Part(NamedTuple):
    """A part of the recording: what makes its data, and its seconds."""

    make: Callable[[Setting], Found]
    budget: float


def audited(to: Setting) -> Found:
    """The operations of `mplab.audit`, each against torch's own kernel on the device."""
    rows: dict[str, list[Any]] = {"rows": [], "refused": []}
    for row in audit.audit(device=to.device.type, quick=to.rehearse):
        rows["rows" if isinstance(row, audit.Row) else "refused"].append(row._asdict())
        if to.left() <= 0:
            break
    yield from rows.items()


PARTS: dict[str, Part] = {  # in order of importance; the sum is under eight minutes
    "casts": Part(casts, 45),
    "tensorcores": Part(tensorcores, 45),
    "training": Part(training, 200),
    "larger": Part(larger, 50),
    "speed": Part(speed, 40),
    "exponents": Part(exponents, 25),
    "audit": Part(audited, 60),
}


def provenance(
    device: torch.device, names: Sequence[str], *, rehearse: bool, seconds: float
) -> dict[str, Any]:
    """Where and when a recording was made, without a word about where the machine stands."""
    cuda = device.type == "cuda"
    which = "--all" if list(names) == list(PARTS) else f"--only {','.join(names)}"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else "CPU",
        "cuda": cuda,
        "driver": _driver() if cuda else "",
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "mplab": mplab.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"mplab record {which}{' --rehearse' * rehearse}",
        "seeds": list(SEEDS),
        "rehearsal": rehearse,
        "seconds": round(seconds, 2),
    }


def _driver() -> str:
    """The driver's version, with the CUDA version that torch was built for."""
    words = f"CUDA {torch.version.cuda}"
    command = shutil.which("nvidia-smi")
    if command is None:
        return words
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    number = re.match(r"[\d.]+", done.stdout)
    return f"{number[0]}, {words}" if number else words


def record(
    name: str,
    device: torch.device,
    folder: Path,
    *,
    names: Sequence[str] = (),
    rehearse: bool = False,
) -> Recording:
    """Record one part, writing its file after each of its fields.

    Args:
        name: of the part.
        device: that is asked.
        folder: where the file goes.
        names: of all parts that are recorded in this call, for the provenance.
        rehearse: tiny sizes.
    """
    part, data, begin = PARTS[name], dict[str, Any](), time.monotonic()
    setting = Setting(device, rehearse, lambda: begin + part.budget - time.monotonic())

    def written(*, complete: bool, problem: str = "") -> Recording:
        seconds = time.monotonic() - begin
        origin = provenance(device, names or [name], rehearse=rehearse, seconds=seconds)
        recording = Recording(name, origin, data, complete, problem)
        recording.save(folder)
        return recording

    try:
        for key, value in part.make(setting):
            data[key] = value
            written(complete=False, problem="not finished")
    except Exception as error:  # whatever it is, the other parts go on
        return written(complete=False, problem=_without_paths(error))
    missing = sorted(set(SCHEMA[name]) - set(data))
    if missing or setting.left() <= 0:
        reason = f"the budget of {part.budget:g} s was spent" if setting.left() <= 0 else "missing"
        return written(complete=False, problem=f"{reason}: {', '.join(missing) or 'cut short'}")
    return written(complete=True)


def _without_paths(error: Exception) -> str:
    """An error in one line that says nothing about the machine's folders."""
    line = str(error).partition("\n")[0][:200]
    return re.sub(r"(?<!\w)(?:[A-Za-z]:)?[\\/][\w.\\/-]+", "…", f"{type(error).__name__}: {line}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `mplab record --help`."""
    parser = argparse.ArgumentParser(prog="mplab record", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help=f"all parts: {', '.join(PARTS)}")
    chosen.add_argument("--only", help="some parts, with commas between them")
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: CUDA if there is one")
    options = parser.parse_args(argv)
    names = list(PARTS) if options.all else options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}. Choose from {', '.join(PARTS)}.")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("mplab record: --device cuda needs a CUDA device; there is none", file=sys.stderr)
        return 2
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu" and not options.rehearse:
        print("There is no CUDA device: these recordings will be marked CPU, and are slow.")
    done = []
    for name in names:
        made = record(name, torch.device(kind), options.out, names=names, rehearse=options.rehearse)
        done.append(made)
        state = "done" if made.complete else f"not complete: {made.problem}"
        print(f"{name:<12} {made.provenance['seconds']:7.1f} s  {state}", flush=True)
    size = sum((options.out / f"{made.name}.json").stat().st_size for made in done)
    print(f"{len(done)} recordings, {size:,} bytes")
    return 0 if all(made.complete for made in done) else 1
