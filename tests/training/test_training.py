"""What the recipes do to the tasks: the same on every machine, within stated bands."""

import json
from dataclasses import replace
from itertools import product
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch
from half_kernels import half_kernels
from tiers import mostly_full, mostly_slow
from torch import nn

from mplab import FP16, round_to
from mplab.simulation import simulated
from mplab.training import RECIPES, TASKS, Recipe, train
from mplab.training.engines import Engine
from mplab.training.loop import _one_thread, _Run, own_randomness

AUTOENCODER = "digits-autoencoder"
CNN = "digits-cnn"
CPU = torch.device("cpu")


def run(task, recipe, **options):
    return train(task, recipe, progress=False, **options)


def text(history):
    """All of a history, so that equal text is equal bit for bit, NaN included."""
    return json.dumps(history.to_json())


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(3), [0]))
def test_fp16_stalls_without_a_loss_scale_and_recovers_with_one(seed, record_property):
    """Band: unscaled R² below 0.2, scaled and BF16 within 0.03 of FP32, on three seeds."""
    r2 = {
        recipe: run(AUTOENCODER, recipe, seed=seed).metrics["r2"]
        for recipe in ("fp32", "fp16-naive", "fp16-scaled", "bf16")
    }
    record_property("test R²", ", ".join(f"{k} {v:.3f}" for k, v in r2.items()))
    assert r2["fp32"] > 0.3
    assert r2["fp16-naive"] < 0.2
    assert abs(r2["fp16-scaled"] - r2["fp32"]) < 0.03
    assert abs(r2["bf16"] - r2["fp32"]) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_simulated_and_real_amp_scale_alike_through_the_first_fifty_steps(seed):
    """Event for event, while the last bits of long sums do not decide about an overflow.

    Later they may: of seeds 0 to 4, three agree on all 160 steps, one until 140, one until 52.
    """
    one = run(CNN, "fp16-overflow", seed=seed, steps=50)
    other = run(CNN, "amp-fp16-overflow", seed=seed, steps=50, device="cpu")
    assert one.loss_scale.tolist() == other.loss_scale.tolist()
    assert one.skipped.tolist() == other.skipped.tolist()
    assert one.skipped[:7].all()
    assert one.loss_scale[7] == 2.0**21
    np.testing.assert_allclose(one.loss[:10], other.loss[:10], rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(5), [1]))
def test_on_torch_s_half_kernels_a_simulated_run_is_real_amp_s_bit_for_bit(seed):
    """Without them the scale of two of these seeds parts from the real one: steps 140 and 52."""
    # of the CPU's lists: on CUDA the cross entropy of low logits takes a low log_softmax
    recipe = replace(RECIPES["fp16-overflow"], policy="cpu-autocast")
    with half_kernels():
        one = run(CNN, recipe, seed=seed)
    other = run(CNN, "amp-fp16-overflow", seed=seed, device="cpu")
    assert len(one.loss) == 160
    assert one.loss_scale.tolist() == other.loss_scale.tolist()
    assert one.skipped.tolist() == other.skipped.tolist()
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.metrics == other.metrics
    assert one.metrics["accuracy"] > 0.9, (
        "it recovers from a scale that is far too high"
    )


@pytest.mark.parametrize("recipe", ["fp16-scaled", "bf16"])
@pytest.mark.parametrize(
    "steps",
    [
        3,
        pytest.param(40, marks=pytest.mark.slow),
        pytest.param(400, marks=pytest.mark.full),
    ],
)
def test_on_torch_s_half_kernels_the_autoencoder_is_real_amp_s_bit_for_bit(
    recipe, steps
):
    """The full batch of 1400, Adam, and gradients that vanish, where one bit would show."""
    with half_kernels():
        one = run(AUTOENCODER, recipe, seed=1, steps=steps)
    real = {"fp16-scaled": "amp-fp16", "bf16": "amp-bf16"}[recipe]
    other = run(AUTOENCODER, real, seed=1, steps=steps, device="cpu")
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.metrics == other.metrics
    if recipe == "fp16-scaled":  # in BF16 the losses first differ later
        once = run(AUTOENCODER, recipe, seed=1, steps=steps)
        assert once.loss.tobytes() != other.loss.tobytes(), (
            "rounding once would do as well"
        )


def test_a_static_scale_that_overflows_destroys_the_weights():
    static = replace(RECIPES["fp16-scaled"], init_scale=2.0**28, dynamic=False)
    history = run(CNN, static, steps=3)
    assert np.isfinite(history.loss[0])
    assert np.isnan(history.loss[1:]).all()
    assert not history.skipped.any()


FEW = ("fp16-scaled", "bf16-stochastic", "nvfp4", "amp-fp16")
"""Recipes that stand for all: one for each engine and each state that a run keeps."""


@pytest.mark.parametrize("recipe", mostly_slow(RECIPES, FEW))
def test_the_same_seed_gives_the_same_history_bit_for_bit(recipe):
    one, other = (
        run(AUTOENCODER, recipe, seed=1, steps=4, device="cpu") for _ in range(2)
    )
    assert text(one) == text(other)
    assert (
        run(AUTOENCODER, recipe, seed=2, steps=4, device="cpu").loss[0] != one.loss[0]
    )


def begun(task, recipe):
    """A run before its first step."""
    with own_randomness(0, CPU):
        return _Run(task, recipe, 0, CPU, 1, ())


@pytest.mark.parametrize("task", mostly_slow(TASKS, [AUTOENCODER]))
def test_every_recipe_starts_from_the_same_weights_and_batches(task):
    def beginning(recipe):
        made = begun(TASKS[task], recipe)
        return [*made.model.parameters(), made.batches.next()[0]]

    wide = beginning(RECIPES["fp32"])
    for recipe in RECIPES.values():
        for got, expected in zip(beginning(recipe), wide, strict=True):
            torch.testing.assert_close(
                got.float(), expected.float(), rtol=2.0**-8, atol=2.0**-16
            )


def test_the_scale_is_in_the_history_step_by_step_and_skipped_steps_change_no_weight():
    falling = replace(RECIPES["fp16-scaled"], init_scale=2.0**100)
    history = run(AUTOENCODER, falling, steps=4)
    assert history.loss_scale.tolist() == [2.0**100, 2.0**99, 2.0**98, 2.0**97]
    assert history.skipped.all()
    assert len(set(history.loss.tolist())) == 1, (
        "a skipped step leaves the weights alone"
    )
    assert run(AUTOENCODER, "fp16-naive", steps=2).loss_scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("scale", mostly_slow([2.0**28, 3e8], [2.0**28]))
def test_a_simulated_run_is_torch_s_own_scaler_around_the_simulation(scale):
    """Also where the scale is no power of two, so that unscaling rounds."""
    rule = {
        "init_scale": scale,
        "growth_factor": 1.5,
        "backoff_factor": 0.3,
        "growth_interval": 2,
    }
    task = replace(TASKS[CNN], batch=None)
    history = run(task, replace(RECIPES["fp16-scaled"], **rule), seed=1, steps=8)
    scaler = torch.amp.GradScaler("cpu", **rule)
    inputs, targets = task.data().train
    losses = []
    scales = []
    with _one_thread(CPU), own_randomness(1, CPU):
        model = task.model()
        optimizer = task.optimizer(model.parameters())
        for _ in range(8):
            optimizer.zero_grad()
            with simulated(FP16, model=model):
                loss = task.loss(model(inputs), targets)
                scaler.scale(loss).backward()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
    assert history.loss.tolist() == losses
    assert history.loss_scale.tolist() == scales
    assert 0 < history.skipped.sum() < 8


LAYERS = [f"layer {k}" for k in range(1, 7)]


def test_recorded_steps_keep_gradients_by_layer_and_a_few_one_by_one():
    """Histograms without the loss scale, samples as the run had them."""
    wide = run(AUTOENCODER, "fp32", steps=2, record_gradients_at=(0, 1))
    low = run(AUTOENCODER, "fp16-scaled", steps=1)
    assert list(wide.gradients) == [0, 1]
    assert list(wide.gradients[0]) == list(low.samples[0]) == LAYERS
    for layer in LAYERS:
        one = wide.gradients[0][layer]
        other = low.gradients[0][layer]
        middle = [np.average(h.exponents, weights=h.counts) for h in (one, other)]
        assert abs(middle[0] - middle[1]) < 0.1, layer
        assert one.zeros == wide.flushed[0][layer][0] == 0
        exact, stored = low.samples[0][layer][1:]
        np.testing.assert_array_equal(round_to(stored, FP16), stored)
        np.testing.assert_allclose(stored / 65536, exact, rtol=0.1)
        for found in wide.samples[0][layer][1:]:
            np.testing.assert_array_equal(found, exact)


def test_without_a_scale_the_first_layers_receive_no_gradient():
    history = run(AUTOENCODER, "fp16-naive", steps=1)
    lost, total = history.flushed[0]["layer 1"]
    assert lost == total == 1400 * 48
    assert history.flushed[0]["layer 6"][0] == 0
    assert history.gradients[0]["layer 1"].zeros == total


def test_what_dropout_sets_to_zero_is_not_flushed():
    def noisy():
        return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))

    task = replace(TASKS[AUTOENCODER], model=noisy)
    lost, total = run(task, "fp32", steps=1).flushed[0]["layer 1"]
    assert lost == 0 < total


def test_torch_s_scaler_skips_every_step_of_a_lost_run_though_its_scale_is_0():
    task = replace(TASKS[AUTOENCODER], loss=lambda output, _: output.sum() * np.nan)
    recipe = replace(RECIPES["amp-fp16"], init_scale=2.0**-147)
    history = run(task, recipe, steps=5, device="cpu")
    assert history.loss_scale[-1] == 0
    assert history.skipped.all()


def test_a_simulated_run_tallies_by_operation_and_by_layer():
    history = run(AUTOENCODER, "fp16-naive", steps=2)
    sums = [
        sum(t.total for t in history.tally[kind].values())
        for kind in ("operation", "layer")
    ]
    assert sums[0] == sums[1] > 0
    assert any("backward" in name for name in history.tally["operation"])
    assert run(AUTOENCODER, "fp32", steps=1).tally == {}


def test_a_run_leaves_threads_and_random_state_as_they_were():
    before = torch.get_num_threads()
    state = torch.get_rng_state()
    run(AUTOENCODER, "fp16-scaled", steps=1)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_unknown_names_and_wrong_numbers_are_refused():
    for options, error in (
        ({"task": "nope"}, "task must be one of sigmoid-autoencoder.*got 'nope'"),
        ({"recipe": "fp64"}, "recipe must be one of fp32.*got 'fp64'"),
        ({"steps": -1}, "steps must be an integer, not negative; got -1"),
        ({"seed": -1}, "train: seed must be"),
        ({"seed": 2**64}, "train: seed must be"),
        ({"save_every": 0}, "train: save_every must be an integer, at least 1"),
    ):
        with pytest.raises(ValueError, match=error):
            run(**{"task": AUTOENCODER, "recipe": "fp32"} | options)
    assert run(AUTOENCODER, "fp32", seed=2**64 - 1, steps=1).seed == 2**64 - 1


def test_a_progress_bar_names_the_run_and_counts_its_steps(capsys):
    train(AUTOENCODER, "fp32", steps=3)
    shown = capsys.readouterr().err
    assert "digits-autoencoder fp32" in shown
    assert "0/3" in shown


# Parts of recipes ------------------------------------------------------------------------


def test_gradients_are_clipped_after_they_are_unscaled():
    """SGD without momentum moves the weights by lr times the clipped norm, whatever the scale."""
    plain = replace(
        TASKS[CNN], optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0)
    )
    for recipe in ("fp16-scaled", "amp-fp16", "fp32"):
        made = begun(plain, replace(RECIPES[recipe], max_norm=2.0**-7))
        before = [p.detach().clone() for p in made.model.parameters()]
        made.step()
        pairs = zip(made.model.parameters(), before, strict=True)
        moved = torch.stack([(p.detach() - q).norm() for p, q in pairs]).norm()
        assert float(moved) == pytest.approx(2.0**-7, rel=1e-4), recipe


def test_pure_fp16_with_adam_breaks_where_torch_s_own_breaks():
    """The first update divides by an epsilon that FP16 rounds to zero."""
    for recipe in ("fp16-pure", "torch-fp16-pure"):
        loss = run(AUTOENCODER, recipe, steps=3, device="cpu").loss
        assert np.isfinite(loss[0]), recipe
        assert np.isnan(loss[1:]).all(), recipe


@pytest.mark.parametrize("task", ["digits-autoencoder", "digits-cnn"])
def test_pure_bf16_follows_torch_s_own_for_some_steps(task):
    """Only products and convolutions differ, by what the machine's kernels add in which order."""
    one = run(task, "bf16-pure", steps=10)
    other = run(task, "torch-bf16-pure", steps=10, device="cpu")
    np.testing.assert_allclose(one.loss, other.loss, rtol=0.01)
    assert one.simulated
    assert {"addmm", "mul"} <= set(one.tally["operation"])  # the optimizer's, too


def test_mixed_precision_as_written_is_torch_s_own_autocast_and_scaler_simulated():
    recipe = Recipe(
        "mine", FP16, simulated=True, policy="as-written", init_scale=65536.0
    )
    one = run("digits-cnn", recipe, steps=4)
    other = run("digits-cnn", "amp-fp16", steps=4, device="cpu")
    assert (one.loss_scale == other.loss_scale).all()
    np.testing.assert_allclose(one.loss, other.loss, rtol=0.01)


def test_a_history_says_which_layers_were_lowered_and_which_not():
    environment = run(TASKS["regression"], "nvfp4", steps=1).environment
    told = "FP4_E2M1/FP4_E2M1, nvfp4 scaling, simulated: 2; Linear: 0, 4"
    assert environment["linear layers in nvfp4"] == told
    assert not any(
        "layers" in name for name in run(AUTOENCODER, "bf16", steps=1).environment
    )


@pytest.mark.slow
def test_simulated_and_real_fp8_products_begin_with_the_same_losses():
    one = run(AUTOENCODER, "fp8-current", steps=10)
    other = run(AUTOENCODER, "amp-fp8-current", steps=10, device="cpu")
    np.testing.assert_allclose(one.loss, other.loss, rtol=1e-4)


def test_a_policy_decides_what_is_lowered():
    """CUDA's autocast leaves softmax and the normalisation of layers in FP32."""
    counted = []
    for policy in ("cuda-autocast", "everything"):
        history = run(
            "sequence-transformer", replace(RECIPES["bf16"], policy=policy), steps=1
        )
        counted.append(sum(t.total for t in history.tally["operation"].values()))
    assert counted[0] < counted[1]


# Observers -------------------------------------------------------------------------------


def test_a_watcher_is_told_of_every_step_and_closed_once():
    watch = MagicMock()
    falling = replace(RECIPES["fp16-scaled"], init_scale=2.0**100)
    history = run(AUTOENCODER, falling, steps=3, watch=watch)
    columns = history.loss, history.loss_scale, history.skipped
    told = zip(*(column.tolist() for column in columns), strict=True)
    (model, optimizer), _ = watch.call_args
    assert isinstance(model, nn.Module)
    assert isinstance(optimizer, torch.optim.Adam)
    assert watch().step.call_args_list == [call(*step) for step in told]
    assert watch().close.call_count == 1


# Checkpoints -----------------------------------------------------------------------------


def broken_off(task, recipe, path, *, after, **options):
    """Start a run and break it off after a step; it saves every second step."""
    watch = MagicMock()
    watch().step.side_effect = [*[None] * (after - 1), KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        run(task, recipe, watch=watch, checkpoint=path, save_every=2, **options)
    assert watch().close.call_count == 1


OTHERS = ("fp16-scaled", "amp-bf16", "fp8-delayed")
ALL = [*product([AUTOENCODER], RECIPES), *product([CNN], OTHERS)]


@pytest.mark.parametrize(
    "case",
    mostly_slow(ALL, [*product([AUTOENCODER], FEW), (CNN, "fp16-scaled")]),
    ids="-".join,
)
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_been_broken_off(
    case, tmp_path
):
    """Eleven batches make an epoch of the CNN: the run is broken off in its second one."""
    (task, recipe), path = case, tmp_path / "checkpoint"
    options = {"seed": 3, "steps": 6 if "fp16" in recipe else 14, "device": "cpu"}
    after = 5 if "fp16" in recipe else 13
    broken_off(task, recipe, path, after=after, **options)
    watch = MagicMock()
    again = run(task, recipe, checkpoint=path, save_every=2, watch=watch, **options)
    # It did go on, and did not begin again.
    assert watch().step.call_count == 2
    assert text(again) == text(run(task, recipe, **options))
    assert text(again) == text(run(task, recipe, checkpoint=path, **options))


def test_a_checkpoint_has_the_state_of_the_network_s_own_randomness(tmp_path):
    def noisy():
        return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))

    task = replace(TASKS[AUTOENCODER], model=noisy)
    path = tmp_path / "checkpoint"
    broken_off(task, "bf16-stochastic", path, after=3, steps=5)
    torch.rand(7)
    again = run(task, "bf16-stochastic", steps=5, checkpoint=path)
    assert text(again) == text(run(task, "bf16-stochastic", steps=5))


def test_a_layer_in_evaluation_stays_so_also_in_a_run_that_goes_on(tmp_path):
    def frozen():
        return nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5).eval())

    plain = replace(TASKS[AUTOENCODER], model=lambda: frozen()[:1])
    task = replace(plain, model=frozen)
    path = tmp_path / "checkpoint"
    broken_off(task, "fp32", path, after=3, steps=5)
    again = run(task, "fp32", steps=5, checkpoint=path)
    assert text(again) == text(run(plain, "fp32", steps=5))


@pytest.mark.parametrize(("changed", "named"), [
    ({"seed": 1}, "seed 0 instead of 1"), ({"steps": 9}, "steps 6 instead of 9"),
    ({"recipe": "bf16"}, "recipe 'fp32' instead of 'bf16'"),
    ({"recipe": replace(RECIPES["fp32"], max_norm=1.0)}, "settings"), ({"task": CNN}, "task"),
    ({"record_gradients_at": ()}, "recorded"),
])  # fmt: skip
def test_a_checkpoint_of_another_run_is_refused_and_kept(changed, named, tmp_path):
    path = tmp_path / "checkpoint"
    options = {"task": AUTOENCODER, "recipe": "fp32", "steps": 6}
    broken_off(path=path, after=3, **options)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=f"checkpoint must be of this run; got .*{named}"
    ):
        run(**{**options, **changed}, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("keep", [0, 1, 1000, -1])
def test_a_checkpoint_that_is_cut_off_is_refused(keep, tmp_path):
    path = tmp_path / "checkpoint"
    broken_off(AUTOENCODER, "fp32", path, after=3, steps=6)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="checkpoint must be a file that train saved"):
        run(AUTOENCODER, "fp32", steps=6, checkpoint=path)


@pytest.mark.parametrize("recipe", ["fp8-current", "amp-fp8-current"])
def test_predictions_come_from_the_same_layers_as_the_training(recipe):
    """torch's short way for encoder layers takes their weights, and would leave out FP8."""
    how = RECIPES[recipe]
    task = TASKS["sequence-transformer"]
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    engine = Engine(model, task.loss, optimizer, how)
    inputs = task.data().test[0][:16]
    expected = model(inputs).detach()
    assert torch.equal(engine.predict(inputs), expected)
    assert torch.backends.mha.get_fastpath_enabled()
    assert model.training
