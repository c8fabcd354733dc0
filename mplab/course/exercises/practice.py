"""Practice without Python: exercises of lessons as HTML, for a script in the page to check."""

import ast
import json
import re
from collections.abc import Callable
from html import escape

from mplab.common.files import course_folder
from mplab.course.exercises.lessons import EXERCISES


def practice(cell: str, coloured: Callable[[str], str]) -> str:
    """Write what a page offers below a cell that checks an answer; empty for any other cell.

    An exercise by hand gets the facts that `equal` and the misconceptions compare, as JSON, and
    the page's script makes a field of them. An exercise in code gets a hint and its solution.

    Args:
        cell: the source of the cell, with `mplab.check("name", …)` in it.
        coloured: writes code as HTML.
    """
    found = re.search(r'mplab\.check\("(\w+)"', cell)
    if not found or found[1] not in EXERCISES:
        return ""
    name = found[1]
    exercise = EXERCISES[found[1]]
    hint = _fold("Hint", f"<p>{escape(exercise.reason)}</p>")
    if callable(exercise.answer):
        more = _fold("Solution", coloured(solutions()[name]))
    else:
        known = [list(each) for each in exercise.misconceptions]
        facts = {
            "name": name,
            "answer": exercise.answer,
            "tolerance": exercise.tolerance,
        }
        facts |= {"known": known, "reason": exercise.reason}
        held = json.dumps(facts, ensure_ascii=False, allow_nan=False).replace(
            "<", "\\u003c"
        )
        more = f'<script type="application/json">{held}</script>'
    return f'<div class="practice">{hint}{more}</div>'


def solutions() -> dict[str, str]:
    """Return the solution to each coding exercise of the lessons, as text, by name."""
    text = (course_folder("lessons") / "solutions.py").read_text("utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_source_segment(text, node) or "" for node in found}


def _fold(summary: str, html: str) -> str:
    return f"<details><summary>{summary}</summary>{html}</details>"
