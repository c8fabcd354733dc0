"""The guides name commands that exist, and each fits on two screens."""

import re
import shlex

import pytest

from mplab.commands import grade
from mplab.common.files import course_folder

PAGES = sorted((course_folder("lessons") / "assignments").glob("*.md"))
WORDS = {
    "moodle": 500,
    "canvas": 450,
    "elsewhere": 450,
    "README": 650,
    "authors": 800,
    "jupyterhub": 480,
    "operators": 600,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_guide_is_short_and_its_commands_are_taken(page):
    text = page.read_text(encoding="utf-8")
    assert len(text.split()) <= WORDS[page.stem]
    found = re.findall(r"^\s*mplab grade (.*)$", text, re.MULTILINE)
    assert found
    for line in found:
        words = shlex.split(line.partition(" && ")[0], comments=True)
        assert grade.PARSER.parse_args(words).step == words[0]
    for place in re.findall(r"\]\(([\w./]+)\)", text):
        assert (page.parent / place).exists(), place
