"""Grade on Gradescope: read its submission, and write its results.

The grader is that of `mplab grade autograde`: a student gets the same cases and points.
"""

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from mplab.common.files import replace_file
from mplab.course.grading.collecting import collect
from mplab.course.grading.execute import (
    GradedNotebooks,
    Job,
    grade_submission,
    graded_name,
    read_outcomes,
    refused_outcomes,
    technical_reason,
    warm_up,
)
from mplab.course.grading.folder import Course
from mplab.course.grading.sandbox import NoSandbox, account_problem, sandbox_problem
from mplab.course.grading.tables import is_student_id


def student_of(about: dict[str, Any], roster: list[list[str]]) -> str:
    """Find the id of the student whose hidden cases a submission gets.

    It is that of the roster's student with this number or e-mail address; otherwise it is the
    number, the address or Gradescope's own number. In a group, the first id counts.
    """
    found = []
    for user in about["users"]:
        words = [str(user.get(key) or "") for key in ("sid", "email", "id")]
        mine = {words[0], words[1].casefold()} - {""}
        known = [line[0] for line in roster if mine & set(line)]
        found.append((*known, *(word for word in words if is_student_id(word)))[0])
    return min(found)


def run(place: str | Path) -> dict[str, Any]:
    """Grade the submission in Gradescope's folder and write its `results/results.json`.

    Where the container has no user namespaces, the submission runs as another account.

    Args:
        place: the folder, with `source`, `submission` and `submission_metadata.json`.

    Returns:
        The results as written. A submission that cannot be graded gets no points and a reason.
    """
    place = Path(place)
    place.chmod(0o700)  # key, cases and results are root's alone
    shipped = place / "source" / "course"
    settings = json.loads((shipped / "settings.json").read_bytes())
    about = json.loads((place / "submission_metadata.json").read_bytes())
    name = settings["name"]
    student = student_of(about, settings["roster"])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        course = Course(Path(shutil.copytree(shipped, Path(folder, "course"))))
        (course.root / "roster.csv").write_text(f"id\n{student}\n")
        copy_submission(place / "submission", Path(folder, "in", student))
        problems = collect(course, name, Path(folder, "in")).problems
        (course.root / "submitted" / student / name).mkdir(parents=True, exist_ok=True)
        account = sandbox_problem() is not None
        job = Job(course, name, trusted=False, run="", account=account)
        notes = [problem.removeprefix(f"{student}: ") for problem in problems]
        found = _graded(job, student)
        tests = _tests(course, name, found.notebooks, settings["visibility"])
    lines = [found.remark, *notes]
    results = {
        "score": sum(test["score"] for test in tests),
        "max_score": sum(test["max_score"] for test in tests),
        "execution_time": round(found.seconds, 1),
        "output": "\n".join(line[:1].upper() + line[1:] for line in lines if line),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    replace_file(
        place / "results" / "results.json", json.dumps(results, indent=1).encode()
    )
    wall = "another account, without namespaces" if account else "bubblewrap"
    print(
        f"{student}: {results['score']:g} of {results['max_score']:g}; sandbox: {wall}"
    )
    return results


def copy_submission(submission: Path, to: Path) -> None:
    """Copy a submission; pipes, sockets and devices, of which reading one would not end, stay."""
    with suppress(shutil.Error):  # which says so in the end
        shutil.copytree(submission, to, symlinks=True)


def _graded(job: Job, student: str) -> GradedNotebooks:
    """Grade a submission, twice if that fails for a technical reason, which then is its remark."""
    for again in (False, True):
        try:
            if job.account and (problem := account_problem()):
                raise NoSandbox(problem)
            return grade_submission(job, student, again=again)
        except Exception as error:  # technical: a refused submission comes as a result
            failure = error
    print(failure)
    reason = technical_reason(failure)
    return GradedNotebooks(
        student,
        digest="",
        notebooks=job.course.skeletons(job.assignment),
        remark=f"not graded, for a technical reason: {reason}. Hand in again.",
        seconds=0.0,
    )


def _tests(
    course: Course,
    name: str,
    notebooks: dict[str, NotebookNode],
    visibility: str,
) -> list[dict[str, Any]]:
    """List the parts of all exercises as Gradescope's tests; what was not graded earns nothing."""
    tests = []
    for stem, skeleton in course.skeletons(name).items():
        for cell in notebooks.get(stem, skeleton).cells:
            if not (exercise := graded_name(cell)):
                continue
            graded = course.assignment(name).graded[exercise]
            for part in read_outcomes(cell) or refused_outcomes(graded, ""):
                test = {
                    "name": f"{exercise}: {part.part}",
                    "output": part.message,
                    "score": part.earned,
                    "max_score": part.points,
                    "visibility": visibility,
                }
                tests.append(test)
    return tests


def prepare(folder: str) -> None:
    """Try the sandbox when an image is built, and compile what the first submission would wait for.

    Raises:
        NoSandbox: submissions cannot be run safely in this image.
    """
    if sandbox_problem() and (problem := account_problem()):
        raise NoSandbox(problem)
    course = Course(Path(folder, "source", "course"))
    (name,) = course.names()
    exec(warm_up(course.assignment(name), course.skeletons(name).values()), {})
