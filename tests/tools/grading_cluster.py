"""How long do 10,000 submissions take with so many workers, and when is the database the limit?

    python tests/tools/grading_cluster.py [--submissions 40] [--cores 4]

Grades some submissions of a mixed class on a PostgreSQL server of its own and measures the
processor time of each, of the grader and its sandbox, and that of the server. Then it simulates
a class whose costs are drawn from these. A worker has a core of its own; the server has `--cores`.
Not simulated: the network, the disk, and what the shared folder costs.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import psutil

sys.path.append(str(Path(__file__).parents[1] / "support"))
import postgres
from grading_speed import synthetic

from mplab.grading._database import disconnect, one_engine
from mplab.grading.autograding import Grader
from mplab.grading.execute import close_lanes
from mplab.grading.folder import create_course
from mplab.grading.releasing import release

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def simulated(
    costs: Sequence[float],
    database: float,
    start: float,
    *,
    workers: int,
    cores: int,
    submissions: int = 10_000,
) -> float:
    """Seconds until all are graded.

    Args:
        costs: seconds of a worker, to draw from.
        database: seconds of a core of the server, per submission.
        start: seconds until a worker is ready.
        workers: how many.
        cores: of the server.
        submissions: how many.

    Exactness:
        A worker computes, then waits for a core of the server; both serve whoever comes first.
    """
    draw = random.Random(18)
    free = [start] * workers
    servers = [0.0] * cores
    end = 0.0
    for _ in range(submissions):
        ready = heapq.heappop(free) + draw.choice(costs)
        end = max(ready, heapq.heappop(servers)) + database
        heapq.heappush(servers, end)
        heapq.heappush(free, end)
    return max(free)


def used(process: psutil.Process) -> float:
    """Processor seconds of a process and all that it has started."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        total += sum(one.cpu_times()[:4])  # of what has ended, too, in the one that waited for it
    return total


def measured(count: int) -> tuple[list[float], float, float]:
    """Processor seconds of each submission, of the server for one, and until a worker is ready."""
    own = psutil.Process()
    with tempfile.TemporaryDirectory() as folder, postgres.server() as database:
        course = create_course(Path(folder, "course"))
        url = database("course")
        with (course.root / "nbgrader_config.py").open("a", encoding="utf-8") as file:
            file.write(f"c.CourseDirectory.db_url = {url!r}\n")
        release(course, "a1")
        close_lanes()
        synthetic(course, count + 1)
        pid = (database.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0]
        server = psutil.Process(int(pid))
        before, costs = used(own), []
        grader = Grader(course, "a1")
        grader._claims.prepare()
        with one_engine():
            course.record_students()
        grader.grade_open("s0000", None)
        start = used(own) - before
        busy = used(server)
        for number in range(1, count + 1):
            before = used(own)
            grader.grade_open(f"s{number:04d}", None)
            costs.append(used(own) - before)
        busy = (used(server) - busy) / count
        close_lanes()
        disconnect()
    return costs, busy, start


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and simulate as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--submissions", type=int, default=40, help="measured (default 40)")
    parser.add_argument("--cores", type=int, default=4, help="of the database's host (default 4)")
    options = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs, database, start = measured(options.submissions)
    costs.sort()
    each, limit = sum(costs) / len(costs), options.cores / database
    print(
        f"A submission takes a worker {costs[len(costs) // 2]:.2f} s (median; {costs[0]:.2f} to "
        f"{costs[-1]:.2f}) and the database {1000 * database:.0f} ms; a worker is ready after "
        f"{start:.1f} s. The database is the limit at {limit:.0f} submissions a second, which "
        f"{limit * (each + database):.0f} workers reach."
    )
    print("workers   10,000 submissions")
    for workers in WORKERS:
        seconds = simulated(costs, database, start, workers=workers, cores=options.cores)
        print(f"{workers:7}   {seconds:8.0f} s   {10_000 / seconds:7.1f} per second")


if __name__ == "__main__":
    main()
