"""What the tasks teach: each verdict within its band, and data that are what they say."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from tiers import mostly_full
from torch import nn
from torch.nn import functional as F

from mplab.training import TASKS, History, Split, Task, train


@cache
def ended(task, recipe, seed, steps=None):
    """The metric of a run on the test data, and its last losses."""
    history = train(task, recipe, seed=seed, steps=steps, progress=False, device="cpu")
    (metric,) = history.metrics.values()
    return metric, float(history.loss[-10:].mean())


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_the_same_data_each_time_and_its_test_data_apart(name):
    task = TASKS[name]
    one = task.data()
    other = task.data()
    for part, again in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(part, again, strict=True))
    known = {tuple(row.flatten().tolist()) for row in one.train[0]}
    unseen = [row for row in one.test[0] if tuple(row.flatten().tolist()) not in known]
    assert len(unseen) > 0.99 * len(one.test[0])


# The headline -----------------------------------------------------------------------------
LONG_RUN = """
from mplab.training import train
for seed in {seeds}:
    run = train(
        "sigmoid-autoencoder", {recipe!r}, seed=seed, steps={steps}, progress=False, device="cpu"
    )
    print(seed, run.metrics["r2"], run.loss[60:].min())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "kernels", "seeds", "steps"),
    [
        ("fp16-naive", "", [5], 1600),
        ("amp-fp16-naive", "default", [4], 1600),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in (
                ("fp16-naive", "", range(10), 8000),
                ("fp16-naive", "default", range(10), 8000),
                ("amp-fp16-naive", "", [3, 4, 5], 8000),
                ("amp-fp16-naive", "default", [3, 4, 5], 8000),
            )
        ),
    ],
)
def test_fp16_without_a_scale_never_learns_however_long_it_trains(
    recipe, kernels, seeds, steps
):
    """On torch's kernels for this processor, and on those for the oldest ones.

    With a weight decay of 0.1 real FP16 left the plateau at step 414 on the latter, seed 4.
    """
    code = LONG_RUN.format(seeds=list(seeds), recipe=recipe, steps=steps)
    settings = {"ATEN_CPU_CAPABILITY": kernels} if kernels else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert len(rows) == len(seeds)
    for seed, r2, lowest in rows:
        assert abs(float(r2)) < 0.02, seed
        assert float(lowest) > 0.07, seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(10), [3]))
def test_with_a_scale_or_in_bf16_the_headline_s_network_ends_level_with_fp32(seed):
    """Measured on ten seeds: within 0.040 simulated, within 0.074 in real FP16."""
    wide = ended("sigmoid-autoencoder", "fp32", seed)[0]
    assert wide > 0.5
    for recipe, band in (("fp16-scaled", 0.05), ("bf16", 0.05), ("amp-fp16", 0.1)):
        low = ended("sigmoid-autoencoder", recipe, seed)[0]
        assert abs(low - wide) < band, recipe


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(10), [3]))
def test_with_adam_and_no_sigmoid_at_the_end_fp16_is_delayed_and_not_lost(seed):
    """What lesson 8 says of its sigmoid network: awake after 300 to 600 steps, then as good."""
    wide, low = (
        train(
            "digits-autoencoder",
            recipe,
            seed=seed,
            steps=1600,
            progress=False,
            device="cpu",
        )
        for recipe in ("fp32", "fp16-naive")
    )
    leaves = [int(np.argmax(run.loss < 0.068)) for run in (wide, low)]
    assert 280 < leaves[1] < 650
    assert 90 < leaves[1] - leaves[0] < 450
    assert low.metrics["r2"] > wide.metrics["r2"] - 0.12


# What a task is: the parameters of its network, and the loss of its first 256 examples, seed 0.
IS = {
    "sigmoid-autoencoder": (10480, 12, 0.181548),
    "digits-autoencoder": (10480, 12, 0.298804),
    "digits-cnn": (6170, 8, 2.311380),
    "deep-sigmoid": (7690, 14, 2.325917),
    "sequence-transformer": (18058, 30, 2.466330),
    "regression": (2545, 6, 0.264805),
    "small-steps": (2545, 6, 0.264805),
}


def test_a_task_is_what_it_was():
    """A run is known by its task's name: another network needs another one."""
    assert IS.keys() == TASKS.keys()
    for name, task in TASKS.items():
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            model = task.model()
            inputs, targets = (part[:256] for part in task.data().train)
            loss = task.loss(model(inputs), targets)
        sizes = [parameter.numel() for parameter in model.parameters()]
        assert (sum(sizes), len(sizes)) == IS[name][:2], name
        assert float(loss) == pytest.approx(IS[name][2], rel=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(2), [0]))
def test_deep_sigmoids_stall_without_a_loss_scale_and_end_far_behind(seed):
    """Bands: half of the steps at chance (loss ln 10), and at the end .3 behind FP32.

    When a run leaves the plateau hangs on the last bits of float32 sums: without a scale .08 to
    .36 was seen at the end on one processor, .08 on all seeds on another, .49 on a third. FP32
    and the scaled runs ended at .81 to .91, and after 200 steps above .5.
    """
    chance, plateau = ended("deep-sigmoid", "fp16-naive", seed, 200)
    assert chance < 0.2
    assert abs(plateau - np.log(10)) < 0.01
    assert ended("deep-sigmoid", "fp32", seed, 200)[0] > 0.35
    wide = ended("deep-sigmoid", "fp32", seed)[0]
    assert wide > 0.75
    assert ended("deep-sigmoid", "fp16-scaled", seed)[0] > 0.75
    assert ended("deep-sigmoid", "fp16-naive", seed)[0] < wide - 0.15


@pytest.mark.slow
def test_deep_sigmoids_escape_later_so_they_are_delayed_and_not_lost():
    """On seed 0, as on four of five: by step 1200 the loss is that of FP32."""
    accuracy, loss = ended("deep-sigmoid", "fp16-naive", 0, 1200)
    assert accuracy > 0.8
    assert loss < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("task", "least", "near"), [
    ("digits-cnn", 0.94, 0.03), ("sequence-transformer", 0.95, 0.04), ("regression", 0.98, 0.01),
    ("small-steps", 0.6, 0.01),
])  # fmt: skip
@pytest.mark.parametrize("recipe", ["fp16-naive", "fp16-scaled", "bf16"])
def test_counter_examples_end_where_fp32_ends_in_every_format(
    task, least, near, recipe
):
    """Band: medians of three seeds; on an AMD Zen 5 one run of these ended 0.15 lower."""
    wide, low = (
        np.median([ended(task, each, seed)[0] for seed in (0, 1, 2)])
        for each in ("fp32", recipe)
    )
    assert wide > least
    assert abs(low - wide) < near


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_small_updates_are_lost_in_bf16_weights_and_saved_by_careful_rounding(seed):
    """Bands: R² at least .15 below FP32 to the nearest, within .02 with either remedy."""
    r2 = {
        recipe: ended("small-steps", recipe, seed)[0]
        for recipe in ("fp32", "bf16", "bf16-weights", "bf16-stochastic", "bf16-kahan")
    }
    assert r2["fp32"] > 0.6
    assert r2["bf16-weights"] < r2["fp32"] - 0.15
    for recipe in ("bf16", "bf16-stochastic", "bf16-kahan"):
        assert abs(r2[recipe] - r2["fp32"]) < 0.02, recipe


# A task of one's own -----------------------------------------------------------------------
X = torch.linspace(-1, 1, 32).view(-1, 1)


class Noisy(nn.Module):
    """Draws numbers whenever it is called, also where it is evaluated."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1))

    def forward(self, x):
        return self.weight * x + 0.1 * torch.randn(x.shape)


OWN = Task(
    "own", steps=4, batch=None, data=lambda: Split((X, 3 * X), (X, 3 * X)), model=Noisy,
    loss=F.mse_loss,
    metrics=lambda predictions, split: {"mse": F.mse_loss(predictions, split.test[1])},
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)  # fmt: skip


def ran(recipe="fp32", steps=None, **changes):
    return train(
        replace(OWN, **changes), recipe, steps=steps, progress=False, device="cpu"
    )


def test_metrics_before_the_first_step_leave_the_run_as_a_loop_by_hand_has_it():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Noisy()
        losses = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.mse_loss(model(X), 3 * X)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert ran().loss.tolist() == losses


@pytest.mark.parametrize(
    "half",
    [
        torch.tensor(0.5),
        torch.tensor([0.5]),
        torch.tensor(0.5, dtype=torch.bfloat16),
        np.float32(0.5),
        np.array(0.5),
        np.array([[0.5]]),
        0.5,
    ],
    ids=repr,
)
def test_metrics_of_one_number_are_floats_and_come_back_from_the_file(half, tmp_path):
    run = ran(
        metrics=lambda *_: {
            "half": half,
            "whole": torch.tensor(7),
            "nan": np.float64("nan"),
        }
    )
    run.save(tmp_path / "run.json")
    for found in (run, History.load(tmp_path / "run.json")):
        assert {type(value) for value in found.metrics.values()} == {float}
        assert str(found.metrics) == "{'half': 0.5, 'whole': 7.0, 'nan': nan}"


WRONG = [
    3.0,
    None,
    {"a": None},
    {1: 0.5},
    {"a": torch.ones(2)},
    {"a": torch.tensor(1j)},
]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_metrics_are_refused_before_the_first_step(wrong):
    steps = []

    def loss(predictions, targets):
        steps.append(1)
        return F.mse_loss(predictions, targets)

    with pytest.raises(
        TypeError, match=r"^train: task must have metrics that return one number"
    ):
        ran(metrics=lambda *_: wrong, loss=loss)
    assert not steps
