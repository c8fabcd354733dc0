"""Measure what rounding costs, or a simulated training step, beside their peers: `make bench`."""

import argparse
from pathlib import Path

import bench_peers
import bench_rounding
import bench_steps
import torch
from turns import table

from mplab.common.files import replace_file
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
    parser.add_argument("--out", type=Path, help="folder for the table of libraries")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cores = threads.set_threads(1)
    how = {"rounds": options.rounds, "seconds": options.seconds}
    if options.steps:
        caption = (
            f"One training step, {bench_steps.BATCH} examples, CPU time on one thread: "
            "median µs, and median ratio to the FP32 step of the same round"
        )
        print(table(caption, bench_steps.measure_steps(**how), 1e-6))
        return
    peers = bench_peers.table(bench_peers.measure())
    print(peers, "\n", flush=True)
    if options.out:
        text = f"{bench_peers.__doc__}\n{peers}\n"
        replace_file(options.out / "peers.txt", text.encode())
    if options.peers:
        return
    for size in (10**k for k in range(len(str(int(options.largest))))):
        caption = f"{size:,} elements: CPU ns per element, and ratio to a copy"
        rows = bench_rounding.measure(size, **how)
        print(table(caption, rows, 1e-9), "\n", flush=True)
    threads.set_threads(cores)
    wall = bench_rounding.measure_threaded(rounds=options.rounds)
    print(
        f"{bench_rounding.THREADED:,} elements on {cores} threads: wall ns per element"
    )
    print("  ".join(f"{name} {value:.3f}" for name, value in wall.items()))


if __name__ == "__main__":
    main()
