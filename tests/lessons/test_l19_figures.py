"""Figures of two runs that disagree: the numbers are right, and whether they can be read."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from legible import assert_legible

from mplab.lessons.l19 import figures
from mplab.lessons.l19.figures import Decoder
from mplab.training import TASKS

pytestmark = pytest.mark.slow


def test_only_the_second_run_begins_one_ulp_off():
    seen = []

    def optimizer(parameters):
        parameters = list(parameters)
        seen.append(parameters[0].detach().clone())
        return torch.optim.SGD(parameters, lr=0.0)

    task = replace(TASKS["regression"], optimizer=optimizer)
    found = figures.measure_runs_apart(task, "fp32", seed=3, steps=2)
    assert (found.recipe, found.seed, len(found.distances)) == ("fp32", 3, 2)
    assert found.distances[0] == found.distances[1] > 0  # nothing moves at the rate 0
    first = seen[0]
    second = seen[-1]
    torch.testing.assert_close(first, second, rtol=0, atol=0)  # seen before the nudge
    torch.manual_seed(3)
    weights = TASKS["regression"].model().parameters()
    ulp = float(np.spacing(first.abs().max().numpy()))
    norm = sum(float(w.detach().double().square().sum()) for w in weights) ** 0.5
    assert found.distances[0] == pytest.approx(ulp / norm, rel=1e-6)


@pytest.mark.parametrize("without", ["bias", ""])
def test_tensors_left_out_do_not_count(without):
    def optimizer(
        parameters,
    ):  # moves biases alone, and apart: the second run's twice as far
        weights = list(parameters)
        seen.append(weights)
        rate = 0.1 * len(seen)
        return torch.optim.SGD([w for w in weights if w.ndim == 1], lr=rate)

    seen = []
    task = replace(TASKS["regression"], optimizer=optimizer)
    found = figures.measure_runs_apart(task, "fp32", steps=3, without=without)
    one_ulp = found.distances < 1e-6
    assert one_ulp.tolist() == [bool(without)] * 3


@pytest.mark.parametrize("seed", range(3))
def test_a_decoder_computes_the_same_in_two_ways_but_for_rounding(seed):
    torch.manual_seed(seed)
    model = Decoder(9).double()
    tokens, written = model.rollout(5, 9, torch.Generator().manual_seed(seed))
    assert tokens.shape == (5, 10)
    off = (model.scores(tokens) - written).detach().abs()
    assert float(off.max()) < 1e-6  # its softmax is FP32's
    changed = tokens.clone()
    changed[:, 6] = (changed[:, 6] + 1) % 16
    both = model(tokens[:, :-1]), model(changed[:, :-1])
    assert torch.equal(both[0][:, :6], both[1][:, :6])  # no place sees a later one
    assert not torch.equal(both[0][:, 6:], both[1][:, 6:])


def test_gaps_are_legible_and_the_spread_of_whole_texts_is_named():
    found = figures.measure_rollout_gaps(length=16, rows=16)
    picture = assert_legible(figures.plot_rollout_gaps(found))
    for name, gap in found.gaps.items():
        assert gap.shape == (16, 16)
        assert f"{gap.sum(axis=1).std():.2g} in {name}" in picture.claim
