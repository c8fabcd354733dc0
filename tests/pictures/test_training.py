"""The figure of runs by their seeds."""

import pytest
from legible import assert_legible

from mplab import pictures

RESULTS = {
    "FP32": [0.97, 0.98, 0.96],
    "E4M3": [0.10, 0.05, 0.11],
    "E4M3, E5M2 back": [0.975, 0.97, 0.9604],
}


def test_the_claim_compares_seed_by_seed_and_not_the_ranges():
    picture = assert_legible(pictures.by_seed(RESULTS))
    assert picture.claim == (
        "Test accuracy against FP32, on each of 3 seeds: −0.930 to −0.850 with E4M3 and −0.010 to "
        "+0.005 with E4M3, E5M2 back"
    )
    assert "E4M3, E5M2 back: 0.960 to 0.975" in picture.alt


@pytest.mark.slow
def test_each_seed_is_a_mark_in_the_row_of_its_way():
    axes = pictures.by_seed(RESULTS, metric="test R²").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(RESULTS)
    for row, (line, scores) in enumerate(
        zip(axes.get_lines(), RESULTS.values(), strict=True)
    ):
        assert line.get_xdata().tolist() == scores and set(line.get_ydata()) == {row}
    claim = pictures.by_seed(
        RESULTS | {"FP32 again": RESULTS["FP32"]}, metric="test R²"
    ).claim
    assert (
        "lowest −0.930 to −0.850 with E4M3 and highest 0.000 with FP32 again" in claim
    )


def test_one_seed_and_no_change_have_their_own_words():
    picture = assert_legible(pictures.by_seed({"FP32": [0.5], "BF16": [0.5]}))
    assert picture.claim == "Test accuracy against FP32, on 1 seed: 0.000 with BF16"
