"""The figures of training in eight bits: what they claim, and whether they can be read."""

import numpy as np
import pytest
from legible import assert_legible, drawn_texts

from mplab import pictures

RESULTS = {
    "FP32": [0.97, 0.98, 0.96],
    "E4M3": [0.10, 0.05, 0.11],
    "E4M3, E5M2 back": [0.975, 0.97, 0.9604],
}


def test_the_claim_compares_seed_by_seed_and_not_the_ranges():
    picture = pictures.by_seed(RESULTS)
    assert_legible(picture)
    assert picture.claim == (
        "Test accuracy against FP32, on each of 3 seeds: −0.930 to −0.850 with E4M3 and −0.010 to "
        "+0.005 with E4M3, E5M2 back"
    )
    assert "E4M3, E5M2 back: 0.960 to 0.975" in picture.alt


@pytest.mark.slow
def test_each_seed_is_a_mark_in_the_row_of_its_way():
    axes = pictures.by_seed(RESULTS, metric="test R²").axes[0]
    for row, (line, (name, scores)) in enumerate(
        zip(axes.get_lines(), RESULTS.items(), strict=True)
    ):
        assert line.get_xdata().tolist() == scores
        assert set(line.get_ydata()) == {row}
        assert axes.get_yticklabels()[row].get_text() == name
    assert pictures.by_seed(RESULTS, metric="test R²").claim.startswith("Test R² against FP32")


def test_one_seed_and_no_change_have_their_own_words():
    picture = pictures.by_seed({"FP32": [0.5], "BF16": [0.5]})
    assert_legible(picture)
    assert picture.claim == "Test accuracy against FP32, on 1 seed: 0.000 with BF16"


def test_the_error_of_a_block_is_measured_within_the_block():
    exact = np.concatenate([np.ones(32), np.full(32, 8.0), np.zeros(32)])
    near = exact.copy()
    near[:32] += 0.25
    near[32] = 0.0
    picture = pictures.block_errors(exact, {"zeros": 0 * exact, "near": near})
    assert_legible(picture)
    zeros, close = (line.get_ydata() for line in picture.axes[0].get_lines())
    assert zeros[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(close[:2], np.log2([0.25, 32**-0.5]), rtol=1e-12)
    assert np.isnan(zeros[2])
    assert np.isnan(close[2])
    assert picture.claim == "The median error of 3 blocks is 100% with zeros and 17.7% with near"
    assert {"zeros", "near"} <= {text for text, _ in drawn_texts(picture)}


def test_numbers_without_an_error_are_drawn_without_marks():
    assert_legible(pictures.block_errors(np.ones(64), {"exact": np.ones(64)}))
