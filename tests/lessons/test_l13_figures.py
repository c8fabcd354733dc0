"""The figures of lesson 13: the clinic."""

import re

import pytest
from legible import assert_legible, drawn_texts

from mplab.lessons.l13 import figures
from mplab.lessons.l13.clinic import CASES
from mplab.lessons.l13.figures import shares

pytestmark = pytest.mark.slow


def test_the_board_counts_cures_and_remedies_and_marks_each_run():
    picture = assert_legible(figures.clinic(list(CASES.values())))
    assert picture.claim == (
        "12 of 12 cures bring the observable into its range, and 0 of 12 usual remedies do"
    )
    words = [text for text, _ in drawn_texts(picture)]
    assert sum(text.startswith("✓") for text in words) == 12
    assert sum(text.startswith("✗") for text in words) == 24
    assert {"✗ 6e−5", "✗ 4", "✓ 1"} <= set(words)
    faces = [patch.get_facecolor()[:3] for patch in picture.axes[0].patches]
    assert len(set(faces)) == 2
    assert len(set(faces[2::3])) == 1 == len({*faces[::3], *faces[1::3]})


def test_three_flat_losses_have_three_patterns_of_shares():
    cases = [CASES[name] for name in ("no-loss-scale", "frozen-weights", "one-block")]
    found = [shares(case.broken().report.steps) for case in cases]
    assert found == [(100, 0, 0), (0, 100, 0), (0, 0, 100)]
    picture = assert_legible(figures.look_alikes(cases))
    assert (
        picture.claim
        == "3 losses that never change, and 3 different patterns of shares"
    )
    widths = [[bar.get_width() for bar in axes.patches] for axes in picture.axes]
    assert [list(row) for row in zip(*widths, strict=True)] == [
        list(row) for row in found
    ]
    assert re.search("frozen-weights: .*updates that are lost 100%", picture.alt)
