"""The limits that `headroom` finds are those at which a run's own scaler skips."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from mplab import FP16
from mplab.lessons.l09.limits import headroom
from mplab.scaling import simulate_scaler
from mplab.training import RECIPES, Split, Task, train


def task(*, inputs=1.0, factor=1.0):
    """One weight and one input: the gradient of the weight is the input times the factor."""
    row = torch.full((1, 1), inputs), torch.zeros(1, 1)
    return Task(
        "one weight", steps=3, batch=None, data=lambda: Split(row, row),
        model=lambda: nn.Linear(1, 1, bias=False),
        loss=lambda output, target: factor * output.float().sum(), metrics=lambda output, split: {},
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.0),
    )  # fmt: skip


@pytest.mark.parametrize("inputs", [1.0, 0.25, 1000.0])
@pytest.mark.parametrize("factor", [1.0, 2.0**-20, 2.0**30])
def test_the_limit_is_the_largest_scale_whose_products_fit(inputs, factor):
    found = headroom(task(inputs=inputs, factor=factor), progress=False)
    k = 120
    # Of the output, and the weight.
    while factor * 2.0**k * max(inputs, 1.0) > FP16.max_finite:
        k -= 1
    assert found.limits.tolist() == [2.0**k] * 3
    assert found.mean_abs_gradient.tolist() == [inputs * factor] * 3


def test_gradients_that_are_all_zero_bear_every_scale():
    found = headroom(task(factor=0.0), steps=1, progress=False)
    assert (found.limits.tolist(), found.mean_abs_gradient.tolist()) == (
        [np.inf],
        [0.0],
    )


def test_a_forward_pass_that_overflows_bears_none():
    found = headroom(task(inputs=np.inf), steps=2, progress=False)
    assert found.limits.tolist() == [0.0, 0.0]


@pytest.mark.slow
def test_the_run_itself_skips_where_its_scale_is_above_the_limit():
    """With the same first scale the recipe meets, step for step, what was measured for it."""
    recipe = replace(RECIPES["fp16-overflow"], init_scale=2.0**24)
    run = train("digits-cnn", recipe, seed=2, steps=60, progress=False)
    found = headroom("digits-cnn", recipe, seed=2, steps=60, progress=False)
    played = simulate_scaler(recipe.scaler(), found.limits)
    assert run.skipped.any()
    assert played.skipped.tolist() == run.skipped.tolist()
    assert played.scales.tolist() == run.loss_scale.tolist()


def test_torchs_own_arithmetic_is_refused():
    with pytest.raises(
        ValueError, match="headroom: recipe must be simulated; got amp-fp16"
    ):
        headroom("digits-cnn", "amp-fp16")
