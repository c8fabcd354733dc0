"""Memory predicted from shapes against what autograd keeps, byte for byte; time by stage."""

import copy

import pytest
import torch
from legible import assert_legible
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mplab import pictures
from mplab.lessons.l11 import figures
from mplab.training import RECIPES, TASKS, memory, stage_times
from mplab.training.activations import Block, predicted_activations
from mplab.training.stages import STAGES, kept_bytes

AUTOENCODER, CNN = "digits-autoencoder", "digits-cnn"


def perceptron():
    parts = [
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.Linear(16, 12),
        nn.Sigmoid(),
        nn.Linear(12, 6),
    ]
    return nn.Sequential(*parts, nn.GELU(), nn.Linear(6, 4))


NETWORKS = {
    "MLP": (perceptron, (10, 8), F.mse_loss),
    "CNN": (lambda: TASKS[CNN].model(), (10, 1, 8, 8), F.cross_entropy),
    "transformer": (
        lambda: nn.Sequential(Block(16, 4), Block(16, 4)),
        (2, 8, 16),
        F.mse_loss,
    ),
}
LOW = {"FP32": None, "FP16": torch.float16, "BF16": torch.bfloat16}


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_prediction_is_what_autograd_keeps_byte_for_byte(
    network, low, checkpointed
):
    make, shape, loss = NETWORKS[network]
    model, dtype = make(), LOW[low]
    x = torch.randn(shape)
    out = model(x)
    y = torch.randint(10, (10,)) if loss is F.cross_entropy else torch.randn(out.shape)

    def compute():
        h = x
        with torch.autocast(
            "cpu", dtype=dtype or torch.float16, enabled=dtype is not None
        ):
            for part in model if checkpointed else ():
                h = checkpoint(part, h, use_reentrant=False)
            return loss(h if checkpointed else model(h), y)

    measured, _ = kept_bytes(compute, model, (x, y))
    predicted = predicted_activations(
        model,
        shape,
        low_bytes=None if dtype is None else 2,
        loss=loss,
        checkpointed=checkpointed,
    )
    assert sum(predicted) == measured
    assert (predicted[1] > 0) == (dtype is not None and not checkpointed)


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
    assert low.kept == low.activations + low.casts
    assert low.casts > 0 == wide.casts
    assert memory(CNN, copy.deepcopy(RECIPES["fp32"])) == wide


def test_adam_keeps_two_numbers_for_each_parameter_and_a_counter_for_each_tensor():
    row = memory(AUTOENCODER, "fp32")
    tensors = len(list(TASKS[AUTOENCODER].model().parameters()))
    assert row.optimizer == 2 * row.parameters + 4 * tensors


def test_a_simulation_keeps_fp32_and_says_what_the_format_would_keep():
    row = memory(AUTOENCODER, "fp16-scaled")
    real = memory(AUTOENCODER, "amp-fp16")
    # Sigmoids and products alike on CUDA's lists and the CPU's.
    assert row.would == real.kept
    assert row.kept > 1.2 * row.would


def test_a_network_without_rules_is_measured_but_not_predicted():
    odd = [nn.GRU(2, 2), nn.Conv2d(1, 1, 3, dilation=2), nn.Conv2d(1, 1, 3, padding="same"),
           nn.MaxPool2d(3, stride=1), nn.MaxPool2d((2, 2)), nn.LayerNorm((2, 2))]  # fmt: skip
    for module in odd:
        with pytest.raises(
            ValueError, match=rf"modules must be .*got {type(module).__name__}"
        ):
            predicted_activations(nn.Sequential(module), (1, 1, 8, 8))
    with pytest.raises(ValueError, match="loss must be mse_loss or cross_entropy"):
        predicted_activations(nn.Linear(2, 2), (3, 2), loss=F.l1_loss)
    with pytest.raises(ValueError, match="must be a Sequential"):
        predicted_activations(nn.Linear(2, 2), (3, 2), checkpointed=True)


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


def test_the_figures_are_legible_and_refute_the_misconception():
    rows = [memory(CNN, recipe) for recipe in ("fp32", "amp-bf16", "fp16-scaled")]
    rows.append(memory(CNN, "amp-bf16", checkpointed=True))
    picture = pictures.memory(rows)
    assert_legible(picture)
    assert "keeps every parameter in FP32" in picture.claim
    times = [stage_times(CNN, recipe, steps=1) for recipe in ("fp32", "amp-bf16")]
    assert_legible(figures.plot_stage_times(times))
