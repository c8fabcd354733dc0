"""The figures of lesson 12: blocks that share a scale."""

import numpy as np
import pytest
from legible import assert_legible, words_of

from mplab.lessons.l12 import figures

pytestmark = pytest.mark.slow


def test_the_error_of_a_block_is_measured_within_the_block():
    exact = np.concatenate([np.ones(32), np.full(32, 8.0), np.zeros(32)])
    near = exact.copy()
    near[:32] += 0.25
    near[32] = 0.0
    picture = assert_legible(
        figures.block_errors(exact, {"zeros": 0 * exact, "near": near})
    )
    zeros, close = (line.get_ydata() for line in picture.axes[0].get_lines())
    assert zeros[:2].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(close[:2], np.log2([0.25, 32**-0.5]), rtol=1e-12)
    assert np.isnan([zeros[2], close[2]]).all()
    assert (
        picture.claim
        == "The median error of 3 blocks is 100% with zeros and 17.7% with near"
    )
    assert {"zeros", "near"} <= words_of(picture)


def test_numbers_without_an_error_are_drawn_without_marks():
    assert_legible(figures.block_errors(np.ones(64), {"exact": np.ones(64)}))
