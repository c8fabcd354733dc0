"""`mplab bench`: what rounding costs, or a simulated training step."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mplab.course.files import replace_file
from mplab.hardware import bench_steps
from mplab.hardware.bench_rounding import (
    SIZES,
    THREADED,
    Missing,
    Row,
    fits,
    measure,
    measure_threaded,
    table,
)
from mplab.numbers import threads


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; see `mplab bench --help`."""
    parser = argparse.ArgumentParser(prog="mplab bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds per size (default 15)")
    parser.add_argument("--seconds", type=float, default=3, help="limit per size (default 3)")
    parser.add_argument(
        "--largest",
        type=float,
        default=SIZES[-1],
        metavar="N",
        help="round 1, 10, 100 … N numbers (default 1e8; 1e9: two more minutes, 7 GB)",
    )
    parser.add_argument("--steps", action="store_true", help="measure training steps instead")
    parser.add_argument("--out", type=Path, help="folder for the results, as JSON and PNG")
    options = parser.parse_args(arguments)
    if options.rounds < 3:
        parser.error(f"--rounds must be at least 3; got {options.rounds}")
    if not 1 <= options.largest <= 1e10:
        parser.error(f"--largest must be in 1 .. 1e10; got {options.largest:g}")
    torch.set_num_threads(1)
    cores = threads.set_threads(1)
    if options.steps:
        steps = bench_steps.measure_steps(rounds=options.rounds, seconds=options.seconds)
        print(bench_steps.table(steps))
        if options.out:
            save(options.out / "steps.json", steps, batch=bench_steps.BATCH)
        return 0
    rows: list[Row] = []
    missing: list[Missing] = []
    sizes = [10**k for k in range(len(str(int(options.largest))))]
    for size in sizes:
        if not fits(size):
            print(f"{size:,} elements: not measured: too little memory", file=sys.stderr)
            continue
        found, few = measure(size, rounds=options.rounds, seconds=options.seconds)
        missing = missing or few
        rows += found
        print(table(found), "\n", flush=True)
    threads.set_threads(cores)
    wall = measure_threaded(THREADED, rounds=options.rounds)
    print(f"{THREADED:,} elements on {cores} threads: wall ns per element")
    print("  ".join(f"{name} {value:.3f}" for name, value in wall.items()))
    for name, reason in missing:
        print(f"{name}: not measured: {reason}", file=sys.stderr)
    if options.out:
        save(options.out / "bench.json", rows, wall=wall)
        plot(options.out / "bench.png", rows)
    return 0


def save(path: Path, rows: Sequence[Any], **facts: Any) -> None:
    """Write what was measured."""
    tree = facts | {"rows": [row._asdict() for row in rows]}
    replace_file(path, json.dumps(tree, indent=1).encode())
    print(f"wrote {path}")


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw what rounding costs."""
    from mplab.pictures.performance import costs

    costs(rows).save(path)
    print(f"wrote {path}")
