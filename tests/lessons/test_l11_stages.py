"""Memory of a step by its parts, counted by hand where that is possible; time by stage."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from legible import assert_legible
from torch import nn
from torch.nn import functional as F

from mplab.lessons.l11.figures import plot_memory
from mplab.lessons.l11.stages import STAGES, kept_bytes, memory, stage_times
from mplab.training import RECIPES, TASKS, Split
from mplab.training.tasks import Block

AUTOENCODER = "digits-autoencoder"
CNN = "digits-cnn"


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        # The result of ReLU, which the second layer keeps, too; the difference of the loss.
        (False, (4 * 10 * 4 + 4 * 10 * 2, 0)),
        # The low input, ReLU's low result, the wide result for the loss; the weight of the
        # second layer: no gradient goes through the first.
        (True, (2 * 10 * 8 + 2 * 10 * 4 + 4 * 10 * 2, 2 * 2 * 4)),
    ],
)
def test_activations_and_copies_are_those_that_one_counts_by_hand(enabled, expected):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(10, 8)
    y = torch.randn(10, 2)

    def compute():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            return F.mse_loss(model(x), y)

    assert kept_bytes(compute, model, (x, y))[:2] == expected


def test_a_model_of_the_caller_s_own_is_measured_and_left_as_it_is():
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 64))
    before = copy.deepcopy(model.state_dict())
    task = replace(TASKS[AUTOENCODER], model=lambda: model)
    memory(task, "torch-bf16-pure")
    stage_times(task, "fp32", steps=1)
    assert model[0].weight.grad is None
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


def test_a_checkpointed_sequential_is_computed_again_as_a_whole():
    x = torch.randn(10, 8)
    block = partial(nn.Sequential, *(nn.Tanh() for _ in range(4)))
    task = replace(
        TASKS[AUTOENCODER],
        batch=None,
        data=lambda: Split((x, x), (x, x)),
        model=lambda: nn.Sequential(nn.Linear(8, 8), block(), block()),
    )
    # The inputs of both blocks, and the output for the loss.
    assert memory(task, "fp32", checkpointed=True).activations == 3 * x.nbytes


def test_memory_of_eight_bits_is_not_measured():
    with pytest.raises(ValueError, match="no FP8 layers"):
        memory(AUTOENCODER, "fp8-current")


def test_a_checkpointed_block_keeps_its_input_alone():
    x = torch.randn(2, 8, 16)
    task = replace(
        TASKS[AUTOENCODER],
        batch=None,
        data=lambda: Split((x, x), (x, x)),
        model=lambda: nn.Sequential(Block(16, 4), Block(16, 4)),
    )
    for recipe in ("fp32", "amp-bf16"):
        whole = memory(task, recipe)
        row = memory(task, recipe, checkpointed=True)
        # The second block's input, and the output for the loss.
        assert (row.activations, row.copies) == (2 * x.nbytes, 0)
        assert whole.activations > 9 * row.activations
    with pytest.raises(ValueError, match="must be a Sequential"):
        memory(replace(task, model=lambda: Block(16, 4)), "fp32", checkpointed=True)


def test_automatic_mixed_precision_halves_no_parameter():
    """The misconception: "AMP halves the parameters". It adds copies; it saves activations."""
    wide, low = (memory(CNN, recipe) for recipe in ("fp32", "amp-bf16"))
    assert (
        low.parameters
        == wide.parameters
        == 4 * sum(p.numel() for p in TASKS[CNN].model().parameters())
    )
    assert low.gradients == wide.gradients == wide.parameters
    assert low.optimizer == wide.optimizer == wide.parameters  # one momentum
    assert low.activations < wide.activations
    weights = sum(p.numel() for p in TASKS[CNN].model().parameters() if p.dim() > 1)
    assert (wide.copies, low.copies) == (0, 2 * weights)
    assert memory(CNN, copy.deepcopy(RECIPES["fp32"])) == wide


def test_adam_keeps_two_numbers_for_each_parameter_and_a_counter_for_each_tensor():
    row = memory(AUTOENCODER, "fp32")
    tensors = len(list(TASKS[AUTOENCODER].model().parameters()))
    assert row.optimizer == 2 * row.parameters + 4 * tensors


def test_a_simulated_recipe_has_the_memory_of_the_real_one():
    row, real = (memory(AUTOENCODER, name) for name in ("fp16-scaled", "amp-fp16"))
    assert row == replace(real, recipe="fp16-scaled", simulated=True)


@pytest.mark.parametrize("recipe", ["fp32", "fp16-scaled", "amp-fp16"])
def test_every_stage_of_a_step_is_timed(recipe):
    before = torch.get_rng_state()
    times = stage_times(CNN, recipe, steps=2)
    assert memory(CNN, recipe) == memory(CNN, recipe)
    assert torch.equal(torch.get_rng_state(), before), (
        "the caller's random state is not ours"
    )
    assert tuple(times.seconds) == STAGES
    assert all(seconds > 0 for seconds in times.seconds.values())
    assert times.seconds["backward"] > times.seconds["scaler"]
    assert times.throughput == pytest.approx(128 / sum(times.seconds.values()))
    assert times.simulated == (recipe == "fp16-scaled")


def test_no_steps_have_no_times():
    with pytest.raises(ValueError, match="stage_times: steps must be"):
        stage_times(CNN, "fp32", steps=0)


def test_the_figure_is_legible_and_refutes_the_misconception():
    rows = [memory(CNN, recipe) for recipe in ("fp32", "amp-bf16", "fp16-scaled")]
    rows.append(memory(CNN, "amp-bf16", checkpointed=True))
    picture = plot_memory(rows)
    assert_legible(picture)
    assert "keeps every parameter in FP32" in picture.claim
