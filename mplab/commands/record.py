"""`mplab record`: what only hardware can answer, in files for the lessons."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from mplab.commands._errors import require_device
from mplab.hardware.record import MINUTES, PARTS, Request, made_or_kept


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see `mplab record --help`."""
    parser = argparse.ArgumentParser(prog="mplab record", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help=f"all parts: {', '.join(PARTS)}")
    chosen.add_argument("--only", help="some parts, with commas between them")
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: CUDA if there is one")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"for all parts (default {MINUTES})"
    )
    parser.add_argument("--again", action="store_true", help="also what is complete in DIR")
    parser.add_argument(
        "--together", action="store_true", help="all parts in one process, also on CUDA"
    )
    options = parser.parse_args(argv)
    names = list(PARTS) if options.all else options.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}. Choose from {', '.join(PARTS)}.")
    if options.device:
        require_device(options.device)
    kind = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cpu" and not options.rehearse:
        print("There is no CUDA device: these recordings will be marked CPU, and are slow.")
    asked = Request(
        torch.device(kind),
        options.out,
        names,
        rehearse=options.rehearse,
        again=options.again,
        together=options.together,
    )
    begin, done = time.monotonic(), []
    for name in names:
        most = begin + 60 * options.minutes - time.monotonic()
        made = made_or_kept(name, asked, most=most)
        done.append(made)
        state = "done" if made.complete else f"not complete: {made.problem}"
        print(f"{name:<12} {made.provenance['seconds']:7.1f} s  {state}", flush=True)
    files = [options.out / f"{made.name}.json" for made in done]
    size = sum(path.stat().st_size for path in files if path.exists())
    print(f"{len(done)} recordings, {size:,} bytes, {time.monotonic() - begin:.0f} s")
    return 0 if all(made.complete for made in done) else 1
