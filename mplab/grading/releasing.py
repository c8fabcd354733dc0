"""Release an assignment after a test: its solution must earn all points, its stubs none."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode

from mplab.grading.execute import Report, graded_name, lane_for, run_notebook
from mplab.grading.exercises import Assignment, seed_for
from mplab.grading.folder import Course, captured_log, write_public_checks


def release(course: Course, name: str, *, trusted: bool = False) -> list[str]:
    """Test an assignment, make `release/NAME`, and put it into the gradebook.

    Args:
        course: the course.
        name: the assignment.
        trusted: test it without a sandbox.

    Returns:
        Lines to print.

    Raises:
        ValueError: the notebook and its exercises do not match, the solution does not earn all
            points, an unchanged stub earns some, or nbgrader cannot make the release.
    """
    assignment = course.assignment(name)
    write_public_checks(course, name)
    source = course.root / "source" / name
    solved = {path: nbformat.read(path, as_version=4) for path in sorted(source.glob("*.ipynb"))}
    problems = _mismatches(assignment, list(solved.values()))
    if problems:
        raise ValueError(f"release: {name} cannot be graded: {'; '.join(problems)}.")
    lines = [_try(course, name, path, notebook, trusted) for path, notebook in solved.items()]
    _generate(course, name)
    for stub_name, stub in course.skeletons(name).items():
        earned = _points(_run(course, name, stub, trusted))
        if earned:
            raise ValueError(f"release: the empty notebook {stub_name} earns {earned:g} points.")
    course.record_students()
    return [*lines, f"Released: {course.root / 'release' / name}"]


def _generate(course: Course, name: str) -> None:
    """Let nbgrader make the release."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.converters.base import NbGraderException

    config = course.config()
    config.GenerateAssignment.pop("preprocessors", None)  # which refuse nbgrader's own command
    with captured_log() as reason:
        try:
            directory = course.directory(assignment_id=name)
            GenerateAssignment(coursedir=directory, config=config, force=True).start()
        except NbGraderException as error:
            raise ValueError(
                f"release: nbgrader could not make release/{name}: {reason(error)}"
            ) from error


def _mismatches(assignment: Assignment, notebooks: list[NotebookNode]) -> list[str]:
    """List where grade cells and exercises do not match."""
    points: dict[str, float] = {}
    problems = []
    for cell in (cell for notebook in notebooks for cell in notebook.cells):
        cell_name = graded_name(cell)
        if cell_name is not None:
            if cell_name in points:
                problems.append(f"two grade cells are called {cell_name}")
            points[cell_name] = float(cell.metadata.nbgrader["points"])
    for missing in sorted(points.keys() - assignment.graded.keys()):
        problems.append(f"the grade cell {missing} has no exercise in exercises.py")
    for missing in sorted(assignment.graded.keys() - points.keys()):
        problems.append(f"the exercise {missing} has no grade cell")
    for common in sorted(points.keys() & assignment.graded.keys()):
        wanted = assignment.graded[common].points
        if points[common] != wanted:
            problems.append(f"{common}: {points[common]:g} points in the notebook, {wanted:g} here")
    return problems


def _run(course: Course, name: str, notebook: NotebookNode, trusted: bool) -> Report:
    assignment = course.assignment(name)
    lane = lane_for(assignment.warm, trusted=trusted)
    with lane.session(course.files(name)) as session:
        return run_notebook(
            notebook, session, assignment.graded, lambda n, p: seed_for(course.key(), name, n, p)
        )


def _points(report: Report) -> float:
    return sum(part.earned for parts in report.outcomes.values() for part in parts)


def _try(course: Course, name: str, path: Path, notebook: NotebookNode, trusted: bool) -> str:
    report = _run(course, name, notebook, trusted)
    lost = [
        f"{exercise}, {part.part}: {part.message}"
        for exercise, parts in report.outcomes.items()
        for part in parts
        if part.earned != part.points
    ]
    if lost:
        raise ValueError(f"release: the solution of {path.name} loses points: {'; '.join(lost)}")
    return f"{path.stem}: the solution earns {_points(report):g} points, the stubs none"
