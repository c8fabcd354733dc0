"""Which parts of a recipe go together."""

import json
from dataclasses import replace

import pytest

from mplab import BF16, FP8_E4M3, FP16
from mplab.training import RECIPES, Recipe
from mplab.training.recipes import UPDATE_ROUNDINGS

REAL = {name for name in RECIPES if name.startswith(("amp", "torch", "fp32"))}


def test_the_names_say_what_is_simulated():
    assert {name for name, recipe in RECIPES.items() if not recipe.simulated} == REAL


def test_no_two_recipes_are_the_same():
    settings = [json.dumps(recipe.settings()) for recipe in RECIPES.values()]
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize("name", RECIPES)
def test_settings_are_json_and_decide_the_recipe(name):
    settings = json.loads(json.dumps(RECIPES[name].settings()))
    assert Recipe(name, **settings) == RECIPES[name]


@pytest.mark.parametrize(("options", "error"), [
    ({"compute_format": FP8_E4M3}, r"compute_format must be FP32, FP16 or BF16.*FP8_E4M3"),
    ({"init_scale": 8.0, "dynamic": False}, "dynamic must be True"),
    ({"weight_format": BF16}, "weight_format must be FP32 or FP16.*got BF16"),
    ({"optimizer_format": FP16}, "optimizer_format must be FP32 as the weights.*got FP16"),
    ({"weight_format": FP16}, "optimizer_format must be FP16 as the weights.*got FP32"),
    ({"policy": "everything"}, "policy must be left out"),
    ({"scale_rule": "keras", "init_scale": 8.0}, "scale_rule must be 'torch'"),
    (
        {"weight_format": FP16, "optimizer_format": FP16, "init_scale": 8.0},
        r"init_scale must be None where torch keeps FP16 weights.*got 8\.0",
    ),
    (
        {"weight_format": FP16, "optimizer_format": FP16, "update_rounding": "kahan"},
        "update_rounding must be 'nearest' for torch's own arithmetic; got 'kahan'",
    ),
])  # fmt: skip
def test_what_torch_has_not_is_refused_and_may_be_simulated(options, error):
    options = {"compute_format": FP16, **options}
    with pytest.raises(ValueError, match=f"Recipe: {error}"):
        Recipe("mine", **options)
    Recipe("mine", simulated=True, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"init_scale": 0.0}, "init_scale must be positive"),
        ({"max_norm": 0.0}, r"max_norm must be positive or None; got 0\.0"),
        ({"max_norm": float("nan")}, "max_norm must be positive or None; got nan"),
        (
            {"update_rounding": "up"},
            "update_rounding must be one of nearest, stochastic, kahan",
        ),
        (
            {"update_rounding": "kahan"},
            "update_rounding must be 'nearest' for weights in FP32",
        ),
        (
            {"policy": "all"},
            "policy must be one of cuda-autocast, cpu-autocast, keras-mixed",
        ),
        (
            {"scale_rule": "mine"},
            "scale_rule must be one of torch, doubling, floored, keras",
        ),
        (
            {"scale_rule": "keras"},
            "scale_rule must be 'torch' without a dynamic loss scale",
        ),
        (
            {"fp8": "mx"},
            "fp8 must be one of None, current, delayed, none, block, .*; got 'mx'",
        ),
        (
            {"fp8": "current"},
            "compute_format must be FP8_E4M3 with fp8='current'; got FP16",
        ),
        (
            {"fp8": "nvfp4"},
            "compute_format must be FP4_E2M1 with fp8='nvfp4'; got FP16",
        ),
    ],
)
@pytest.mark.parametrize("simulated", [True, False])
def test_parts_that_mean_nothing_are_refused(options, error, simulated):
    with pytest.raises(ValueError, match=error):
        Recipe("mine", FP16, simulated=simulated, **options)


@pytest.mark.parametrize(("recipe", "changes", "error"), [
    ("fp8-delayed", {"policy": "everything"}, "policy must be left out with low linear layers"),
    ("nvfp4", {"simulated": False}, "fp8 must be one of current, delayed, none for torch's own"),
])  # fmt: skip
def test_what_does_not_go_with_low_layers_is_refused(recipe, changes, error):
    with pytest.raises(ValueError, match=error):
        replace(RECIPES[recipe], **changes)


def test_other_rules_for_the_loss_scale_are_those_of_their_room():
    doubling = RECIPES["fp16-doubling"].scaler()
    assert [doubling.update(False), doubling.scale] == [False, 2.0**17]
    options = {"scale_rule": "keras", "growth_interval": 1}
    keras = replace(RECIPES["fp16-scaled"], **options).scaler()
    assert type(keras).__name__ == "KerasScaler"
    assert [keras.update(False), keras.scale] == [False, 2.0**17]


def test_every_way_of_rounding_an_update_is_in_the_table():
    used = {recipe.update_rounding for recipe in RECIPES.values()}
    assert used == set(UPDATE_ROUNDINGS)


def test_a_recipe_without_a_scale_scales_by_one():
    scaler = replace(RECIPES["fp16-naive"]).scaler()
    assert (scaler.scale, scaler.update(True), scaler.scale) == (1.0, False, 1.0)
