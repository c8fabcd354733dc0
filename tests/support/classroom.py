"""A course for tests: its students, and what they hand in."""

import json
import os
import warnings

import pytest

from mplab.commands import grade
from mplab.grading.folder import create_course
from mplab.grading.releasing import release
from mplab.grading.sandbox import sandbox_problem


def has_walls(problem):
    """Whether tests may run in the sandbox; where one is asked for, a broken one is an error."""
    if problem and os.environ.get("MPLAB_REQUIRE_SANDBOX") == "1":
        raise RuntimeError(f"{problem}, and MPLAB_REQUIRE_SANDBOX=1 asks for a sandbox")
    return problem is None


WALLS = has_walls(sandbox_problem())
with_walls = pytest.mark.skipif(not WALLS, reason=str(sandbox_problem()))
ROSTER = """\
id,first_name,last_name,email
s01,Ada,Löwe,ada@x
s02,Bo,Ek,=1+1
s03,Cy,Ek,
s04,Di,Wu,
"""


def with_students(root):
    course = create_course(root)
    (root / "roster.csv").write_text(ROSTER, encoding="utf-8")
    return course


def released(course):
    """Release a1, without the warnings of what nbgrader builds on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release(course, "a1", trusted=not WALLS)


def notebook(course, *, right=True, extra=""):
    """The released notebook, solved or not, with a cell on top."""
    stub = json.loads((course.root / "release/a1/a1.ipynb").read_text())
    source = json.loads((course.root / "source/a1/a1.ipynb").read_text())
    answers = {c["metadata"]["nbgrader"]["grade_id"]: c["source"]
               for c in source["cells"] if c["metadata"].get("nbgrader")}  # fmt: skip
    for cell in stub["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
        if right and name.endswith("-answer"):
            cell["source"] = answers[name]
    if extra:
        stub["cells"].insert(0, {"cell_type": "code", "metadata": {}, "source": extra,
                                 "outputs": [], "execution_count": None, "id": "x"})  # fmt: skip
    return json.dumps(stub)


def configure(course, line):
    """Add a line to a course's settings."""
    with (course.root / "nbgrader_config.py").open("a") as file:
        file.write(f"\n{line}\n")


def run(course, *words):
    """Run `mplab grade` in a course; its exit code."""
    return grade.main([*words, "--course", str(course.root)])


def submit(course, student, text):
    folder = course.root / "submitted" / student / "a1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a1.ipynb").write_text(text)
