"""Export grades for `nbgrader export`: nbgrader's columns, quoted, and no formulas."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from nbgrader.api import MissingEntry
from nbgrader.plugins import ExportPlugin

from mplab.grading.exporting import neutral

_COLUMNS = (
    *("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"),
    *("raw_score", "late_submission_penalty", "score", "max_score"),
)


class CsvPlugin(ExportPlugin):
    """Exports as nbgrader's own plugin does, but escapes names and addresses."""

    def export(self, gradebook: Any) -> None:
        """Write the grades to `--to`, or to grades.csv."""
        wanted, students = set(self.assignment), {str(name) for name in self.student}
        rows = [
            _row(gradebook, assignment, student)
            for assignment in gradebook.assignments
            for student in gradebook.students
            if (not wanted or assignment.name in wanted)
            and (not students or student.id in students)
        ]
        with Path(self.to or "grades.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([_COLUMNS, *rows])


def _row(gradebook: Any, assignment: Any, student: Any) -> list[str]:
    who = (student.id, student.last_name, student.first_name, student.email)
    points: list[float | str] = ["", "", ""]  # nothing handed in is not 0
    timestamp = None
    try:
        submission = gradebook.find_submission(assignment.name, student.id)
    except MissingEntry:
        pass
    else:
        penalty = float(submission.late_submission_penalty or 0)
        score, timestamp = float(submission.score), submission.timestamp
        open_still = submission.needs_manual_grade
        points = [score, penalty, "" if open_still else max(0.0, score - penalty)]
    words = [assignment.name, assignment.duedate, timestamp, *who]
    numbers = [*points, float(assignment.max_score)]
    return [neutral(str(word or "")) for word in words] + [str(number) for number in numbers]
