"""The figures of performance: what their keys name, and in which colours."""

import pytest
from legible import assert_legible

from mplab.lessons.l11 import figures
from mplab.lessons.l11.stages import STAGES, Times


def times(recipe):
    seconds = {stage: 1e-3 for stage in STAGES} | {"unscale": 1e-7, "scaler": 1e-7}
    return Times(recipe, "cpu", False, seconds, 100)


def key(picture):
    (legend,) = picture.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(
    ("recipes", "stages"),
    [
        (("fp32", "amp-bf16"), ["data", "forward", "backward", "optimizer"]),
        (("fp32", "amp-fp16"), list(STAGES)),
        (("one of my own",), list(STAGES)),
    ],
)
def test_the_key_names_the_stages_that_the_recipes_have(recipes, stages):
    picture = assert_legible(
        figures.plot_stage_times([times(recipe) for recipe in recipes])
    )
    assert key(picture) == stages and ("scaler 0%" in picture.alt) == (
        "scaler" in stages
    )


def test_the_slower_step_has_the_longer_bar():
    slow = Times("amp-bf16", "cpu", False, {"forward": 0.03, "backward": 0.01}, 100)
    picture = figures.plot_stage_times([times("fp32"), slow])
    assert picture.claim.endswith("; 40 ms in amp-bf16, 75% of it forward")
    ends = [bar.get_x() + bar.get_width() for bar in picture.axes[0].patches]
    assert picture.axes[0].get_xlim()[1] == max(ends) == pytest.approx(40)


def test_a_stage_keeps_its_colour_whatever_the_key_leaves_out():
    def colours(*recipes):
        picture = figures.plot_stage_times([times(recipe) for recipe in recipes])
        bars = picture.axes[0].containers
        return {bar.get_label(): bar.patches[0].get_facecolor() for bar in bars}

    few = colours("fp32")
    all_of_them = colours("fp32", "amp-fp16")
    assert few == {stage: all_of_them[stage] for stage in few}
    assert len(set(all_of_them.values())) == len(STAGES)
