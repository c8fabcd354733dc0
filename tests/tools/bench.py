"""Measure what rounding costs, or a simulated training step, beside their peers: `make bench`."""

import argparse
import json
from pathlib import Path

import bench_peers
import bench_rounding
import bench_steps
import torch

from mplab.course.files import replace_file
from mplab.numbers import threads


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds per size (default 15)"
    )
    parser.add_argument(
        "--seconds", type=float, default=3, help="limit per size (default 3)"
    )
    parser.add_argument(
        "--largest", type=float, default=1e7, metavar="N",
        help="round 1, 10, 100 … N numbers (default 1e7)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", action="store_true", help="measure training steps instead"
    )
    parser.add_argument(
        "--peers", action="store_true", help="only the table of libraries"
    )
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cores = threads.set_threads(1)
    how = {"rounds": options.rounds, "seconds": options.seconds}
    if options.steps:
        steps = bench_steps.measure_steps(**how)
        print(bench_steps.table(steps))
        save(options.out, "steps.json", steps, batch=bench_steps.BATCH)
        return
    peers = bench_peers.table(bench_peers.measure())
    print(peers, "\n", flush=True)
    if options.peers:
        if options.out:
            text = f"{bench_peers.__doc__}\n{peers}\n"
            replace_file(options.out / "peers.txt", text.encode())
        return
    rows = []
    for size in (10**k for k in range(len(str(int(options.largest))))):
        found = bench_rounding.measure(size, **how)
        rows += found
        print(bench_rounding.table(found), "\n", flush=True)
    threads.set_threads(cores)
    wall = bench_rounding.measure_threaded(rounds=options.rounds)
    print(
        f"{bench_rounding.THREADED:,} elements on {cores} threads: wall ns per element"
    )
    print("  ".join(f"{name} {value:.3f}" for name, value in wall.items()))
    save(options.out, "rounding.json", rows, wall=wall)


def save(folder, name, rows, **facts):
    """Write what was measured, if there is a folder for it."""
    if folder:
        tree = facts | {"rows": [row._asdict() for row in rows]}
        replace_file(folder / name, json.dumps(tree, indent=1).encode())
        print(f"wrote {folder / name}")


if __name__ == "__main__":
    main()
