"""What every test runs under."""

import os
import subprocess
import sys
from collections import Counter
from enum import Enum
from time import monotonic
from zlib import crc32

# Before torch: OpenMP's threads spin while they wait.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from _pytest.doctest import DoctestItem
from hypothesis import settings

import mplab

BEGUN = monotonic()

collect_ignore_glob = ["support/*", "tools/*", "reports/[!t]*", "*/answers/*"]

os.environ["KERAS_BACKEND"] = "torch"  # and not what the user's own settings say

# No deadline: the first example compiles. On a build machine a failure must come back.
settings.register_profile("house", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "house")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config) -> None:
    """Have all loops compiled before the first of several processes asks for one."""
    command = [
        sys.executable,
        str(config.rootpath / "tests" / "tools" / "compile_loops.py"),
    ]
    if subprocess.run(command, cwd=config.rootpath).returncode:
        raise pytest.UsageError(f"{' '.join(command)} failed")


def pytest_make_parametrize_id(val) -> str | None:
    """A parameter that has a name, as a format or a policy has, is called by it in test names."""
    name = getattr(val, "name", None)
    return name if isinstance(name, str) and not isinstance(val, Enum) else None


def pytest_terminal_summary(terminalreporter) -> None:
    """Print what tests measured with `record_property`, counts summed over their parameters."""
    sums: Counter = Counter()
    rows = []
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports(
        "failed"
    ):
        for name, value in report.user_properties if report.when == "call" else ():
            if isinstance(value, int):
                sums[report.nodeid.partition("[")[0], name] += value
            else:
                rows.append(f"{report.nodeid}: {name} {value}")
    rows += [f"{test}: {name} {count:,}" for (test, name), count in sums.items()]
    if rows:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(rows))


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--part", metavar="K/N", help="every N-th case by its name, from the K-th on"
    )
    parser.addoption(
        "--order", metavar="SEED", help="files in an order of its own for each SEED"
    )
    parser.addoption(
        "--first", default="", metavar="DIRS", help="folders that --order begins with"
    )
    parser.addoption(
        "--minutes", type=float, help="skip the cases that have not begun by then"
    )


def pytest_collection_modifyitems(config, items) -> None:
    """Take a part of the cases, order them, and give examples the names of the library."""
    if part := config.getoption("--part"):
        number, count = map(int, part.split("/"))

        def taken(item):
            return crc32(item.nodeid.encode()) % count == number % count

        config.hook.pytest_deselected(items=[each for each in items if not taken(each)])
        items[:] = filter(taken, items)
    if seed := config.getoption("--order"):
        first = tuple(f"{folder}/" for folder in config.getoption("--first").split())

        def place(item):
            name = item.nodeid.partition("::")[0]
            return not name.startswith(first), crc32(f"{seed} {name}".encode())

        items.sort(key=place)
    if not (examples := [item for item in items if isinstance(item, DoctestItem)]):
        return
    names = {name: getattr(mplab, name) for name in mplab.__all__}
    for item in examples:
        item.dtest.globs |= {"np": np, "mplab": mplab} | names | item.dtest.globs


def pytest_runtest_setup(item) -> None:
    minutes = item.config.getoption("--minutes")
    if minutes and monotonic() - BEGUN > 60 * minutes:
        pytest.skip(f"not begun within {minutes:g} minutes")


@pytest.fixture(autouse=True)
def nothing_left_active():
    """A dispatch mode that a test left behind would see the operations of all later ones."""
    yield
    if "torch" in sys.modules:
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        if (left := _get_current_dispatch_mode()) is not None:
            left.__exit__(None, None, None)
        assert left is None
