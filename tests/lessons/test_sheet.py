"""The sheet to keep open: its table is computed, and its words stand where it says."""

import re

import make_sheet
import nbformat
import pytest

from mplab.common.files import course_folder

LESSONS = course_folder("lessons")
SHEET = (LESSONS / "SHEET.md").read_text(encoding="utf-8")
WORDS = re.findall(r"(?m)^\| \*\*(.*?)\*\*.*\| (\d+) \|$", SHEET)


def test_the_table_of_formats_is_the_one_that_is_computed():
    assert make_sheet.renewed(SHEET) == SHEET
    assert make_sheet.renewed(SHEET.replace("65504", "65505")) == SHEET


@pytest.mark.parametrize(("word", "lesson"), WORDS)
def test_a_word_stands_in_the_lesson_that_explains_it(word, lesson):
    (path,) = LESSONS.glob(f"{int(lesson):02}_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    text = " ".join(cell.source for cell in cells)
    stem = word.split()[0][:6]
    assert re.search(rf"\b{stem}", text, re.IGNORECASE)


def test_words_are_in_order_and_each_stands_once():
    words = [word.lower() for word, _ in WORDS]
    assert len(words) > 20
    assert words == sorted(set(words))


def test_what_to_do_names_a_lesson_that_speaks_of_the_format_and_of_what_to_watch():
    table = SHEET.partition("## What to do")[2].partition("##")[0]
    rows = re.findall(r"(?m)^\| (?!you)([^|-]+)\|.*\| (.*) \| (\d+) \|$", table)
    assert len(rows) == 8
    for what, watch, lesson in rows:
        (path,) = LESSONS.glob(f"{int(lesson):02}_*.ipynb")
        cells = nbformat.read(path, as_version=4).cells
        text = " ".join(cell.source for cell in cells)
        formats = re.findall(r"FP16|BF16|FP8|MXFP4|NVFP4|INT8|Muon", what)
        assert formats and all(name in text for name in formats), what
        words = re.findall(r"[a-z]{5,}", watch)
        assert sum(word[:5] in text.lower() for word in words) >= len(words) / 2
