"""A course for tests: its students, and what they hand in."""

import io
import json
import os
import shutil
import warnings
import zipfile

import pytest

from mplab.commands import grade
from mplab.course.grading.autograding import autograde
from mplab.course.grading.collecting import collect
from mplab.course.grading.folder import create_course
from mplab.course.grading.releasing import release
from mplab.course.grading.sandbox import sandbox_problem


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


def grade_id(cell):
    return cell.get("metadata", {}).get("nbgrader", {}).get("grade_id", "")


def code_cell(source):
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
            "source": source, "id": f"x{abs(hash(source)) % 10**8}"}  # fmt: skip


def book(course, step="release"):
    """The notebook of a1, as a dictionary."""
    return json.loads((course.root / step / "a1" / "a1.ipynb").read_text())


def fill_in(course, filled, **answers):
    """Put the right answers into a released notebook, or these."""
    source = book(course, "source")["cells"]
    right = {grade_id(cell): "".join(cell["source"]) for cell in source}
    for cell in filled["cells"]:
        name = grade_id(cell)
        if name in answers or name.endswith("-answer"):
            cell["source"] = answers.get(name, right[name])


def notebook(course, *, right=True, extra="", **answers):
    """The released notebook, solved or not, with a cell on top."""
    stub = book(course)
    if right:
        fill_in(course, stub, **answers)
    if extra:
        stub["cells"].insert(0, code_cell(extra))
    return json.dumps(stub)


def autograded(course, **options):
    """Grade a1 as a class is, where there are walls."""
    return autograde(course, "a1", trusted=not WALLS, log=str, **options)


# Deliveries ----------------------------------------------------------------------------------
def packed(files, method=zipfile.ZIP_DEFLATED, *, dates=None):
    """A zip of these texts by their names, with its dates."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            date = (dates or {}).get(name, (2026, 1, 2, 12, 0, 0))
            entry = zipfile.ZipInfo(name, date) if isinstance(name, str) else name
            archive.writestr(entry, text, method)
    return content.getvalue()


def bring(course, files, *, dates=None, times="", name="times.csv"):
    """Collect these files from a zip, with the platform's list of times if there is one."""
    place = course.root / "d.zip"
    place.write_bytes(packed(files, dates=dates))
    if times:
        (course.root / name).write_text(times, encoding="utf-8")
    return collect(course, "a1", place, times=[course.root / name] * bool(times))


def forget(course):
    """Remove what a test has brought in."""
    for name in ("teams.csv", "people.csv"):
        (course.root / name).unlink(missing_ok=True)
    for folder in ("submitted", "feedback", ".mplab/replaced", ".mplab/received",
                   ".mplab/platform"):  # fmt: skip
        shutil.rmtree(course.root / folder, ignore_errors=True)


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
