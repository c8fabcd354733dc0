"""Sum up test runs in one line: `python tests/tools/summary.py artefacts/*.xml`.

Each file is what `pytest --junit-xml` wrote. The line says what ran, where and with what result,
so that it can be quoted; it goes to artefacts/test-all.txt as well.
"""

import platform
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

from mplab.commands.doctor import processor


def line(reports: list[Path]) -> str:
    """Write what the reports say in one line."""
    runs = []
    for report in reports:
        suite = ElementTree.parse(report).getroot().find("testsuite")
        counts = {name: int(suite.get(name)) for name in ("tests", "skipped")}
        failed = int(suite.get("failures")) + int(suite.get("errors"))
        passed = counts["tests"] - counts["skipped"] - failed
        minutes = float(suite.get("time")) / 60
        runs.append(
            f"{report.stem} {passed} passed, {failed} failed, {counts['skipped']} skipped"
            f" in {minutes:.1f} min"
        )
    begun = ElementTree.parse(reports[0]).getroot().find("testsuite").get("timestamp")
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    return (
        f"mplab {commit.strip()}, {begun[:16]}, {processor().found},"
        f" Python {platform.python_version()}, {packages}: {'; '.join(runs)}"
    )


if __name__ == "__main__":
    reports = [Path(name) for name in sys.argv[1:]]
    said = line(reports)
    reports[0].with_name("test-all.txt").write_text(f"{said}\n", encoding="utf-8")
    print(said)
