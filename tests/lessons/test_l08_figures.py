"""The figures of lost gradients: what they claim, and whether they can be read."""

import numpy as np
import pytest
from histories import history
from legible import assert_legible

from mplab.lessons.l08 import figures

pytestmark = pytest.mark.slow


def run(score, shares):
    """A run with a final score, and by recorded step the shares flushed of 1000 in each layer."""
    flushed = {
        step: {f"layer {i}": (round(1000 * s), 1000) for i, s in enumerate(row, 1)}
        for step, row in shares.items()
    }
    return history("fp16-naive", 20, metrics={"r2": score}, flushed=flushed)


WIDE = run(0.8, {})
SLEEPY = run(0.7, {0: [1.0, 0.8, 0.0], 10: [0.4, 0.1, 0.0]})
STALLED = run(0.1, {0: [1.0, 0.2, 0.0], 10: [1.0, 0.9, 0.0]})


def test_the_scatter_names_who_loses_most_and_who_falls_farthest():
    picture = figures.shares_and_outcomes({"A": (WIDE, SLEEPY), "B": (WIDE, STALLED)})
    assert_legible(picture)
    assert picture.claim == (
        "A flushes the most gradients at first, 60%, and reaches test R² 0.70 (FP32: 0.80); "
        "B 40%, and reaches test R² 0.10 (FP32: 0.80)"
    )
    marks = [
        line.get_xydata()[0].tolist()
        for line in picture.axes[0].lines
        if line.get_marker()
    ]
    for mark in ([60, 0.8], [60, 0.7], [40, 0.8], [40, 0.1]):
        assert any(np.allclose(mark, found) for found in marks)
    beside = {text.get_text(): text.get_position()[0] for text in picture.axes[0].texts}
    assert set(beside) == {"A", "B"} and max(map(abs, beside.values())) < 20  # points


def test_the_scatter_says_so_where_both_are_one():
    picture = figures.shares_and_outcomes({"B": (WIDE, STALLED)})
    assert picture.claim == (
        "B flushes the most gradients at first, 40%, and reaches test R² 0.10 (FP32: 0.80): "
        "it falls farthest"
    )


def test_the_farthest_fall_is_measured_from_fp32_and_not_from_the_top():
    low = run(0.3, {0: [0.9]}), run(0.3, {0: [0.9]})
    picture = figures.shares_and_outcomes({"poor in both": low, "B": (WIDE, SLEEPY)})
    assert "; B 60%, and" in picture.claim


def test_the_table_holds_every_share_of_every_step():
    picture = assert_legible(figures.flushed_over_steps({"A": SLEEPY, "B": STALLED}))
    assert picture.claim == (
        "Flushed in layer 1, from the first step to the last: A 100% to 40%; B 100% to 100%"
    )
    for axes, each in zip(picture.axes, (SLEEPY, STALLED), strict=True):
        table = axes.images[0].get_array()
        want = [
            [each.flushed[s][f"layer {n}"][0] / 1000 for s in (0, 10)]
            for n in (1, 2, 3)
        ]
        np.testing.assert_array_equal(table, want)
        cells = [text.get_text() for text in axes.texts]
        assert cells == [f"{100 * share:.0f}" for row in want for share in row]
    assert "at step 10 layer 1 100%, layer 2 90%, layer 3 0%" in picture.alt
