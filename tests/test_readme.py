"""The README shows what really happens, and names only what exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mplab

ROOT = Path(mplab.__file__).parent.parent
README = ROOT / "README.md"

if not README.exists():
    pytest.skip("the README lies only in a checkout", allow_module_level=True)
TEXT = README.read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_surprise_prints_what_the_readme_says():
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]], capture_output=True, text=True, check=True
    )
    assert done.stdout == blocks("text")[0]


def test_the_surprise_is_five_lines_of_code():
    assert sum(bool(line.strip()) for line in blocks("python")[0].splitlines()) == 5


def test_the_first_lines_hold_surprise_start_and_lessons():
    lessons = sorted((ROOT / "lessons").glob("*.ipynb"))
    start = "\n".join(TEXT.splitlines()[: 21 + len(lessons)])
    assert blocks("text")[0] in start
    assert "make lab" in start
    for lesson in lessons:
        assert f"(lessons/{lesson.name})" in start


def test_every_link_within_the_project_leads_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_command_is_a_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", TEXT))
    assert {"lab", "check", "test"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
