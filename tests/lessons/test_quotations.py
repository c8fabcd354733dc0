"""Each test of a claim quotes what the lesson says; here the sentences are looked up."""

import ast
import re
from pathlib import Path

import pytest
from prose import prose


def quotations():
    """The lesson and each sentence that the documentation of a test quotes from it."""
    for path in sorted(Path(__file__).parent.glob("test_claims*.py")):
        for test in ast.parse(path.read_text("utf-8")).body:
            words = ""
            if isinstance(test, ast.FunctionDef):
                words = " ".join((ast.get_docstring(test) or "").split())
            if lesson := re.match(r"Lesson (\d+): ", words):
                for said in re.findall("“(.*?)”", words):
                    yield int(lesson[1]), said


QUOTATIONS = list(quotations())


def test_there_are_more_than_a_hundred_quotations():
    assert len(QUOTATIONS) > 100


@pytest.mark.parametrize(("lesson", "said"), QUOTATIONS)
def test_a_lesson_says_what_a_test_quotes(lesson, said):
    assert said in prose(lesson)
