"""A replayed step leaves the bits of the ordinary one, and what cannot be replayed is not."""

import json
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
import torch
from tiers import mostly_full, mostly_slow
from torch import nn
from torch.nn import functional as F

from mplab import FP16
from mplab.simulation import simulated
from mplab.training import RECIPES, TASKS, train
from mplab.training.loop import _Run
from mplab.training.replay import Replay, is_straight

SIMULATED = [name for name, recipe in RECIPES.items() if recipe.simulated]

REPLAYED = [name for name in SIMULATED if RECIPES[name].fp8 is None]


def run(task, recipe, *, seed, steps, again):
    """A run, step by step, and all that it left: weights, state, history, random state."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = _Run(
            task,
            RECIPES[recipe],
            seed,
            torch.device("cpu"),
            steps,
            (0, 3),
            replay=again,
        )
        for _ in range(steps):
            made.step()
        # Equal text is equal bit for bit.
        history = json.dumps(made.history().to_json())
        state = [*made.model.state_dict().values(), torch.get_rng_state()]
        state += [t for kept in made.optimizer.state.values() for t in kept.values()]
    return (
        made.engine,
        history,
        [t.numpy().tobytes() for t in state if torch.is_tensor(t)],
    )


def assert_replayed_alike(task, recipe, *, seed=0, steps=6):
    engine, *theirs = run(task, recipe, seed=seed, steps=steps, again=True)
    assert engine.replay.refusal == ""
    assert engine.replay.proved
    plain, *ours = run(task, recipe, seed=seed, steps=steps, again=False)
    assert plain.replay is None
    assert theirs == ours


@pytest.mark.parametrize("recipe", ["fp16-scaled", "bf16-kahan"])
def test_a_replayed_run_leaves_the_bits_of_the_ordinary_one(recipe):
    """Weights, losses, scales, tallies by operation and layer, recorded gradients."""
    assert_replayed_alike(TASKS["regression"], recipe, steps=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", mostly_full(TASKS, ["sigmoid-autoencoder", "sequence-transformer"])
)
@pytest.mark.parametrize("recipe", REPLAYED)
def test_every_task_and_recipe_is_replayed_alike_on_five_seeds(task, recipe):
    for seed in range(5):
        assert_replayed_alike(TASKS[task], recipe, seed=seed)


def _dropping():
    return nn.Sequential(
        nn.Linear(2, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 1),
    )


@pytest.mark.parametrize("recipe", mostly_slow(REPLAYED, ["fp16-scaled"]))
def test_dropout_and_batch_norm_draw_the_same_numbers_and_keep_the_same_statistics(
    recipe,
):
    task = replace(TASKS["regression"], name="dropping", model=_dropping, batch=64)
    assert_replayed_alike(task, recipe, steps=7)


def test_layers_in_fp8_are_not_replayed():
    task = TASKS["regression"]
    for recipe in ("fp8-delayed", "nvfp4"):
        engine, *_ = run(task, recipe, seed=0, steps=1, again=True)
        assert engine.replay is None


class Branching(nn.Linear):
    """Decides in Python."""

    def forward(self, x):
        return super().forward(x) * (2 if x.sum() > 0 else 1)


def test_only_known_parts_without_hooks_are_straight():
    assert is_straight(_dropping(), F.mse_loss)
    assert all(is_straight(task.model(), task.loss) for task in TASKS.values())
    assert not is_straight(
        _dropping(), lambda output, target: F.mse_loss(output, target)
    )
    hooked = nn.Linear(2, 1)
    below = nn.Linear(2, 1)
    hooked.register_forward_hook(lambda *_: None)
    below.weight.register_hook(lambda gradient: gradient)
    layer = nn.TransformerEncoderLayer(4, 1, 8, activation=lambda x: x.relu())
    for model in (nn.Sequential(Branching(2, 1)), hooked, below, layer):
        assert not is_straight(model, F.mse_loss)


def test_a_task_whose_loss_decides_in_python_trains_without_replay():
    def loss(output, target):
        return F.mse_loss(output, target) * (
            2 if float(output.detach()[0, 0]) > 0 else 1
        )

    task = replace(TASKS["regression"], name="deciding", loss=loss)
    one, other = (
        run(task, "fp16-scaled", seed=0, steps=6, again=again)
        for again in (True, False)
    )
    assert one[0].replay is None
    assert one[1:] == other[1:]


def replayed_and_plain(step, *, steps=6, change=lambda model, number: None):
    """A replay after some steps, and whether each left the losses and gradients of the step.

    Args:
        step: of a model, inputs and the number of the step.
        steps: how many; the fifth has an example more.
        change: of a model, between steps.
    """
    replays = []
    left = []
    for again in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        results = []
        number = [0]
        within = simulated(FP16, model=model)

        def once(x, model=model, within=within, number=number):
            with within:
                loss = step(model, x, number[0])
                loss.backward()
            return loss.detach()

        replays.append(Replay(once, model))
        for k in range(steps):
            number[0] = k
            change(model, k)
            model.zero_grad()
            x = torch.randn(4 + (k == 4), 3)
            results.append([(replays[-1] if again else once)(x).clone()])
            results[-1] += [
                p.grad.clone() for p in model.parameters() if p.grad is not None
            ]
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * (0 if p.grad is None else p.grad)
        left.append(results)
    alike = [
        len(a) == len(b) and all(map(torch.equal, a, b))
        for a, b in zip(*left, strict=True)
    ]
    return replays[0], alike


def test_another_shape_in_between_is_run_as_it_is():
    found, alike = replayed_and_plain(lambda model, x, _: model(x).tanh().mean())
    assert found.proved
    assert all(alike)


def _reading_a_value(model, x, number):
    out = model(x)
    return out.mean() * (1 if out.sum() > 0 else -1)


def _reading_other_memory(model, x, number):
    return (model(x) * torch.from_numpy(x.numpy()[:, :1].copy())).mean()


def _changed_by_python(model, x, number):
    return model(x).mean() * (1.0 + number)


@pytest.mark.parametrize(
    ("step", "refusal"),
    [
        (_reading_a_value, "gives a value to Python"),
        (_reading_other_memory, "did not make"),
        (_changed_by_python, "did not agree"),  # when the program was proved
    ],
)
def test_a_step_that_may_differ_is_not_replayed(step, refusal):
    found, alike = replayed_and_plain(step)
    assert refusal in found.refusal
    assert not found.proved
    assert all(alike)


def _move(model, number):
    if number == 3:
        model.weight.data = model.weight.data.clone()


def _freeze(model, number):
    model.bias.requires_grad_(number != 3)


def _evaluate(model, number):
    model.train(number != 3)


@pytest.mark.parametrize("change", [_move, _freeze, _evaluate])
def test_what_changes_between_steps_is_seen(change):
    def step(model, x, _):
        return F.dropout(model(x), 0.5, model.training).tanh().mean()

    found, alike = replayed_and_plain(step, change=change)
    assert found.proved
    assert all(alike)


def test_a_watched_run_is_not_replayed():
    """A watcher may hang hooks into the model, which a program would not call."""
    calls = []

    def watch(model, optimizer):
        model.register_forward_hook(lambda *_: calls.append(1))
        return MagicMock()

    options = {"steps": 5, "progress": False, "record_gradients_at": ()}
    train("regression", "bf16", watch=watch, **options)
    assert len(calls) == 6, "five steps and the evaluation"
