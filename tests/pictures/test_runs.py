"""The table and the curves of several runs, by seed and by recipe."""

import re
from dataclasses import replace

import numpy as np
import pytest
from histories import STEPS, learning as history
from legible import assert_legible
from tiers import mostly_slow

from mplab.pictures import loss_curves, results_table
from mplab.training import RECIPES

pytestmark = pytest.mark.slow


def several():
    falling = 2.0 ** np.maximum(20, 28 - np.arange(STEPS))
    return [
        history(recipe, seed=seed, **how)
        for recipe, how in (
            ("fp32", {}),
            ("fp16-naive", {"factor": 2.5}),
            ("fp16-overflow", {"loss_scale": falling}),
            ("bf16-kahan", {}),
            ("amp-bf16", {"device": "NVIDIA H100"}),
        )
        for seed in range(3)
    ]


def test_seeds_share_a_line_with_their_range_behind_it():
    runs = several()
    figure = assert_legible(loss_curves(runs))
    simulated = figure.axes[0]
    assert simulated.get_title(loc="left") == "simulated\nmedian and range of 3 seeds"
    assert len(simulated.lines) == len(simulated.collections) == 4
    middle = simulated.lines[0].get_ydata()
    np.testing.assert_array_equal(middle, runs[1].loss)
    edges = simulated.collections[0].get_paths()[0].vertices[:, 1]
    assert (edges.min(), edges.max()) == (runs[0].loss.min(), runs[2].loss.max())


def test_recipes_that_look_alike_are_kept_apart_by_their_names():
    runs = [
        history("fp32"),
        history("fp16-scaled"),
        history("fp16-overflow", factor=2.0),
    ]
    first = "FP16 with loss scaling (fp16-scaled)"
    second = "FP16 with loss scaling (fp16-overflow)"
    assert [row[0] for row in results_table(runs).rows] == ["FP32", first, second]
    assert loss_curves(runs).claim == (
        f"{second} ends at 2.0× FP32's loss; {first} ends within 10% of it"
    )


def test_each_seed_is_compared_with_fp32_of_the_same_seed():
    claim = loss_curves(several()[:6]).claim
    assert claim == "FP16 without scaling ends at 2.5× FP32's loss"


def test_the_table_has_the_median_and_the_range_of_the_seeds():
    (row,) = results_table([history("bf16", seed=seed) for seed in (0, 1, 2)]).rows
    assert row[3] == "0.600 (0.500 to 0.700)"
    (row,) = results_table([history("bf16", seed=1)]).rows
    assert row[3] == "0.600"
    (row,) = results_table(
        [history("bf16", seed=s, metrics={"r2": np.nan}) for s in (0, 1)]
    ).rows
    assert "nan" in row[3]


@pytest.mark.parametrize(
    "recipe", mostly_slow(RECIPES, ["fp32", "fp16-scaled", "amp-fp16"])
)
def test_every_recipe_has_a_curve_that_can_be_read(recipe):
    other = history(recipe, factor=1.7)
    figure = assert_legible(loss_curves([history("fp32"), other]))
    names = {
        re.split(" on | ends| \\(", text.get_text())[0]
        for text in figure.axes[-1].texts
    }
    assert len(names) == 2 or recipe == "fp32"


def test_all_recipes_together_can_be_read():
    assert_legible(
        loss_curves([history(r, factor=1 + i / 9) for i, r in enumerate(RECIPES)])
    )
    renamed = replace(history("bf16"), recipe="mine")
    assert loss_curves([renamed]).claim.startswith("BF16 ends")
