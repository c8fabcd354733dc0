"""The figures of lesson 9: loss scales by several rules, and clipping."""

import numpy as np
import pytest
from legible import assert_legible, words_of

from mplab.lessons.l09 import figures
from mplab.scaling import (
    DoublingScaler,
    FlooredScaler,
    LossScaler,
    NudgedScaler,
    simulate_scaler,
)

pytestmark = pytest.mark.slow


def limits():
    """Of 300 steps: scales that stay finite, in a bad phase only below 1."""
    steps = np.arange(300)
    return np.where((steps >= 100) & (steps < 160), 2.0**-3, 2.0**7)


def traces():
    rules = {
        "the dynamic rule": LossScaler(1024.0, growth_interval=40),
        "doubling": DoublingScaler(1024.0),
        "nudging": NudgedScaler(1024.0, growth_interval=40),
        "a floor of 1": FlooredScaler(1024.0, growth_interval=40),
        "a static scale": LossScaler(1024.0, dynamic=False, static_skips=True),
    }
    return {
        name: simulate_scaler(rule, limits(), mean_abs_gradient=1e-9)
        for name, rule in rules.items()
    }


def test_the_figure_of_rules_counts_the_steps_that_each_skips():
    found = traces()
    picture = assert_legible(figures.scale_rules(found))
    counts = {name: int(trace.skipped.sum()) for name, trace in found.items()}
    least = f"the dynamic rule only {counts['the dynamic rule']}"
    assert picture.claim == f"Of 300 steps a static scale skips 300, {least}"
    assert counts["a static scale"] == 300 and counts["doubling"] > 140
    assert counts["a floor of 1"] > 60 > counts["the dynamic rule"]
    assert f"doubling\n{counts['doubling']} skipped" in words_of(picture)


def test_a_step_is_skipped_exactly_where_its_scale_lies_in_the_grey():
    for trace in traces().values():
        assert np.array_equal(trace.skipped, trace.scales > trace.limits)


def test_the_figure_of_clipping_says_which_order_depends_on_the_scale():
    scales = 2.0 ** np.arange(17)
    norms = {"unscaled first": np.ones(17), "clipped first": 1 / scales}
    picture = assert_legible(figures.clipped_norms(scales, norms, max_norm=1.0))
    assert picture.claim == (
        "The length that arrives is always 1 if unscaled first, from 1 to 1.5e-05 if clipped first"
    )
    lines = {line.get_color(): list(line.get_ydata()) for line in picture.axes[0].lines}
    assert [0.0] * 17 in lines.values() and list(range(0, -17, -1)) in lines.values()


def test_one_panel_is_enough():
    assert_legible(
        figures.scale_rules({"the dynamic rule": traces()["the dynamic rule"]})
    )
