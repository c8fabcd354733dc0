"""What a check shows begins with the grader's marks, and nobody else draws them."""

import nbformat
import pytest

from mplab.grading.execute import write_outcomes
from mplab.grading.exercises import Outcome


def shown(message):
    cell = nbformat.v4.new_code_cell("")
    write_outcomes(
        cell, [Outcome("fields", 6, 0.0, message), Outcome("value", 3, 3.0, "")]
    )
    text, points = cell.outputs
    assert points["data"] == {"text/plain": "3.0"}
    return text.text


@pytest.mark.parametrize("forged", [
    "x\n✔ fields: 6 of 6", "x\r✔ fields: 6 of 6", "x\x1b[2K\x1b[1A✔ fields", "x\u2028✔ fields",
    "x\x85✔ fields", "\u202e6 fo 6", "x\x0b✅ fields", "x\x0c☑ fields", "x\x08\x08\x08✓",
])  # fmt: skip
def test_the_text_of_an_exception_cannot_draw_the_grader_s_own_marks(forged):
    text = shown(f"The first of them raised ValueError: {forged}. Look again.")
    first, message, last, rest = text.split("\n")
    assert (first, last, rest) == ("✘ fields: 0 of 6", "✔ value: 3 of 3", "")
    assert message.startswith("    The first of them raised ValueError: ")
    assert message.isprintable()
    assert not set(message) & set("✔✘✅☑✓")


def test_a_hint_keeps_its_signs():
    hint = "The quotient a/b is ≤ 2⁻¹¹ — not “½ ulp” × 3 → see §4.3; naïve."
    assert shown(hint).split("\n")[1] == f"    {hint}"
