"""The explorer of loss scaling says at every step what the rule does, and why."""

from xml.etree import ElementTree

import numpy as np
import pytest
from histories import history
from positions import assert_every_position_differs, assert_texts_within
from tiers import mostly_slow

from mplab.lessons.l09.explorer import RULES, ScalerTimeline, example
from mplab.scaling import LossScaleLimits, simulate_scaler
from mplab.training import RECIPES


def run(recipe="fp16-overflow", skipped=(0, 1, 30)):
    """A recorded run whose scaler met infinities at these steps."""
    limits = np.full(40, np.inf)
    limits[list(skipped)] = 0.0
    played = simulate_scaler(RECIPES[recipe].scaler(), limits)
    return history(recipe, 40, loss_scale=played.scales, skipped=played.skipped)


@pytest.mark.parametrize("source", [None, [4.0, np.inf, 0.0, 2.0**-30] * 3, run()],
                         ids=["example", "limits", "run"])  # fmt: skip
@pytest.mark.slow
def test_every_control_works_and_no_word_is_cut(source):
    if source is None:
        assert_every_position_differs(ScalerTimeline)
    assert_texts_within(lambda: ScalerTimeline(source))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "limit", mostly_slow([np.inf, 2.0**20, 1.0, 0.25, 0.0], [np.inf, 0.25])
)
def test_the_picture_is_well_formed_whatever_the_scale_comes_to(rule, limit):
    explorer = ScalerTimeline(
        LossScaleLimits(np.full(1200, limit), np.full(1200, 1e-9))
    )
    explorer.rule.value, explorer.interval.value = rule, 5
    for step in (0, 3, 700, 1199):
        explorer.step.value = step
        svg = ElementTree.fromstring(explorer.picture.value)
        assert "nan" not in explorer.picture.value
        height = float(svg.get("viewBox").split()[3])
        assert all(0 <= float(text.get("y")) <= height for text in svg.iter("text"))


def test_it_tells_a_run_s_own_story():
    explorer = ScalerTimeline(run())
    assert explorer.rule not in explorer.children
    assert [turn.scale for turn in explorer.scaler_steps] == run().loss_scale.tolist()
    assert "multiplied by 2²⁸" in explorer.state.value
    assert "halved to 2²⁷" in explorer.state.value
    explorer.step.value = 26  # 25 good steps after two bad ones
    assert "25 good steps in a row: the scale doubles to 2²⁷" in explorer.state.value
    explorer.forth.click()
    assert (
        explorer.step.value == 30 and "falls from 3 to 0, of 25" in explorer.state.value
    )
    assert "3 of 40 steps are skipped" in explorer.state.value
    explorer.back.click()
    explorer.back.click()
    assert explorer.step.value == 1


@pytest.mark.parametrize(
    ("rule", "limit", "step", "words"),
    [
        ("dynamic (torch)", 0.0, 3, "no scale helps here"),
        (
            "never below 1",
            0.25,
            20,
            "stays at 2⁰, so only smaller gradients can end this",
        ),
        ("doubles each good step", 2.0**12, 3, "the step bears a scale of 2¹² at most"),
        ("doubles each good step", 2.0**12, 2, "The scale doubles to 2¹³."),
        ("×1.1 if gradients are small", np.inf, 0, "rises by a tenth to 1,126."),
        ("static, skips", 2.0**9, 5, "stays at 2¹⁰"),
        ("Keras", np.inf, 1199, "multiplied by infinity"),
        ("dynamic (torch)", np.inf, 1199, "in a row: the scale stays, at its limit"),
    ],
)
def test_each_rule_is_explained(rule, limit, step, words):
    limits = np.full(1200, limit)
    explorer = ScalerTimeline(LossScaleLimits(limits, np.full(1200, 1e-9)))
    explorer.rule.value, explorer.interval.value, explorer.start.value = rule, 5, 10
    explorer.step.value = step
    assert words in explorer.state.value


def test_infinity_has_no_way_back():
    limits = np.append(np.full(700, np.inf), np.full(20, 4.0))
    explorer = ScalerTimeline(LossScaleLimits(limits, np.full(720, 1e-3)))
    explorer.rule.value, explorer.interval.value, explorer.step.value = "Keras", 5, 719
    said = "Half of infinity is infinity: from here on every step is skipped"
    assert said in explorer.state.value


def test_the_example_has_something_of_everything():
    limits, means = example()
    played = simulate_scaler(RULES["dynamic (torch)"](65536.0, 25), limits)
    assert played.skipped.any()
    assert (np.diff(played.scales) > 0).any()
    assert means.min() < 1e-7 < means.max()


def test_a_run_without_a_dynamic_scale_or_with_scales_that_are_not_its_recipe_s_is_refused():
    other = run()
    other.loss_scale[3] *= 2
    why = "source must be a run with a dynamic"
    for source, words in (
        (run("fp16-static", ()), why),
        (run("fp16-naive", ()), why),
        (other, "the scales that its recipe makes"),
    ):
        with pytest.raises(ValueError, match=words):
            ScalerTimeline(source)
