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
        [sys.executable, "-c", blocks("python")[0]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == blocks("text")[0]


def test_the_surprise_is_five_lines_of_code():
    assert sum(bool(line.strip()) for line in blocks("python")[0].splitlines()) == 5


def test_the_readme_is_short_and_its_first_lines_hold_surprise_start_and_doors():
    lines = TEXT.splitlines()
    assert len(lines) <= 80
    start = "\n".join(lines[:30])
    assert blocks("text")[0] in start and "make lab" in start
    doors = [line for line in lines[:30] if line.startswith("- **")]
    assert [re.match(r"- \*\*(.*?)\.\*\*", door)[1] for door in doors] == [
        "Learn",
        "Teach",
        "Use the numbers",
        "Simulate your model",
    ]


def test_the_readme_names_every_room_and_the_size_of_the_library():
    inside = TEXT.partition("## What is inside")[2].partition("\n## ")[0]
    package = Path(mplab.__file__).parent
    rooms = {path.name: path for path in package.glob("*/") if path.name[0] != "_"}
    tools = {
        path.name for path in rooms.pop("course").glob("*/") if path.name[0] != "_"
    }
    library = rooms.keys() - {"commands", "lessons"}
    named = set(re.findall(r"`(\w+)`", inside))
    assert named == {*library, *tools}
    files = [path for room in library for path in rooms[room].rglob("*.py")]
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    assert f" {round(lines, -3):,} lines " in inside


def test_the_guide_leads_to_every_lesson():
    guide = (ROOT / "lessons" / "README.md").read_text(encoding="utf-8")
    for lesson in (ROOT / "lessons").glob("*.ipynb"):
        assert f"({lesson.name})" in guide


def test_the_changes_are_short_entries_of_a_few_pages():
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 80 and max(map(len, lines)) <= 500


def test_every_link_within_the_project_leads_somewhere():
    links = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_command_is_a_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", TEXT))
    assert {"lab", "site", "test", "test-slow", "test-all"} <= named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
