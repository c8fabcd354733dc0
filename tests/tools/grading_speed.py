"""How fast is grading, against nbgrader as it comes?

    python tests/tools/grading_speed.py [--submissions 100] [--jobs 2]

Both grade the same submissions, each in a process of its own, once. This measures; it asserts
nothing.
"""

import argparse
import json
import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mplab.grading.autograding import autograde
from mplab.grading.execute import close_sandboxes
from mplab.grading.folder import Course, create_course, write_public_checks
from mplab.grading.releasing import release


def synthetic(course: Course, count: int) -> None:
    """Lay submissions of a mixed class into a released course: right, half right, empty."""
    release_path = course.root / "release" / "a1" / "a1.ipynb"
    source_path = course.root / "source" / "a1" / "a1.ipynb"
    empty, full = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (release_path, source_path)
    )
    answers = {
        _grade_id(c): c["source"]
        for c in full["cells"]
        if _grade_id(c).endswith("-answer")
    }
    for number in range(count):
        notebook = json.loads(json.dumps(empty))
        for place, cell in enumerate(notebook["cells"]):
            if _grade_id(cell) in answers and (number + place) % 4:
                cell["source"] = answers[_grade_id(cell)]
        folder = course.root / "submitted" / f"s{number:04d}" / "a1"
        folder.mkdir(parents=True)
        (folder / "a1.ipynb").write_text(json.dumps(notebook), encoding="utf-8")


def _grade_id(cell: dict[str, Any]) -> str:
    return str(cell["metadata"].get("nbgrader", {}).get("grade_id", ""))


def measure(count: int, jobs: int) -> None:
    """Grade the same submissions here and with plain nbgrader, and print how long each took.

    Args:
        count: submissions.
        jobs: processes that run submissions here, beside the one that writes the gradebook;
            nbgrader has one, and a kernel.
    """
    with tempfile.TemporaryDirectory(prefix="mplab-bench-") as folder:
        ours, plain = (create_course(Path(folder, name)) for name in ("ours", "plain"))
        # Each in a process of its own, so that neither finds the other's warm imports.
        _apart(_prepare, ours)
        _apart(_prepare_plain, plain)
        for course in (ours, plain):
            synthetic(course, count)
        seconds = _timed(autograde, ours, "a1", jobs=jobs, log=str)
        plain_seconds = _timed(_grade_plain, plain)
    print(f"{count} submissions of a1, this machine, one run of each:")
    for words, took in (
        (f"mplab, sandboxed, {jobs} processes and one that writes", seconds),
        ("nbgrader autograde, one process and a kernel", plain_seconds),
    ):
        print(f"  {words:<48}{took:7.1f} s  {count / took:6.2f} per second")
    print(f"  ratio {plain_seconds / seconds:.1f}")


def _apart(
    function: Callable[..., object], *arguments: object, **options: object
) -> None:
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=function, args=arguments, kwargs=options)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(
            f"measure: {function.__name__} ended with {process.exitcode}."
        )


def _timed(
    function: Callable[..., object], *arguments: object, **options: object
) -> float:
    start = time.perf_counter()
    _apart(function, *arguments, **options)
    return time.perf_counter() - start


def _prepare(course: Course) -> None:
    release(course, "a1")
    close_sandboxes()


def _prepare_plain(course: Course) -> None:
    """The same notebook, whose checks are ordinary test cells, for nbgrader's own settings."""
    from nbgrader.converters import GenerateAssignment

    write_public_checks(course, "a1")
    settings = f"c = get_config()\nc.CourseDirectory.root = {str(course.root)!r}\n"
    (course.root / "nbgrader_config.py").write_text(settings, encoding="utf-8")
    directory = course.directory(assignment_id="a1")
    GenerateAssignment(coursedir=directory, config=course.config()).start()


def _grade_plain(course: Course) -> None:
    from nbgrader.converters import Autograde

    Autograde(
        coursedir=course.directory(assignment_id="a1"), config=course.config()
    ).start()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--submissions", type=int, default=100, help="how many (default 100)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="workers here (default 2)")
    options = parser.parse_args(arguments)
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    measure(options.submissions, options.jobs)


if __name__ == "__main__":
    main()
