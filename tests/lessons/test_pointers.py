"""Where a lesson or the guide points at a section, its subject stands there."""

import re

import pytest
from prose import prose

from mplab.common.files import course_folder

LESSONS = range(1, len([*course_folder("lessons").glob("*.ipynb")]) + 1)
POINTER = r"lesson (\d+)(?: says so)?(?:,| in) section (\d+)"
SUBJECTS = {
    (1, 3): "significand",
    (1, 5): "loss scale",
    (3, 4): "each rounding is correct",
    (9, 5): "below 1",
    (10, 5): "square",
    (17, 7): "exact",
}
"""By lesson and section, what a reader is sent there for. A new pointer needs its subject here."""


def sections(lesson):
    """The text of each section, by its number."""
    parts = re.split(r"(?m)^## (?:(\d+)\. )?.*$", prose(lesson))
    return {
        int(number): text
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
        if number
    }


def texts():
    """Where pointers stand."""
    guide = course_folder("lessons") / "README.md"
    return [*map(prose, LESSONS), guide.read_text(encoding="utf-8")]


def test_every_pointer_to_a_section_leads_to_its_subject():
    found = {
        (int(lesson), int(section))
        for text in texts()
        for lesson, section in re.findall(POINTER, text)
    }
    assert found == set(SUBJECTS)
    for (lesson, section), subject in SUBJECTS.items():
        assert subject in sections(lesson)[section].lower(), (lesson, section)


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_points_at_sections_and_exercises_that_it_has(lesson):
    text = re.sub(POINTER, "", prose(lesson))
    exercises = {int(n) for n in re.findall(r"(?m)^[✍⌨] \*\*(\d+)\.", text)}
    for word, there in (("section", sections(lesson)), ("exercise", exercises)):
        for number in re.findall(rf"\b{word}s? (\d+)", text):
            assert int(number) in there, (word, number)
