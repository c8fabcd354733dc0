"""Two processes over Gloo against one process, and against each other."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from ddp_worker import CASES, OUTLIER, SCALED, outlier_task, watched
from gloo import free_port, run_two
from torch import distributed

from mplab.training import load_runs, train
from mplab.training.parallel import from_first, mean, process_group, processes, rank

SECONDS = 120
pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()),
    reason="needs Gloo",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What each of two processes saw, by case."""
    folder = tmp_path_factory.mktemp("ddp")
    run_two("ddp_worker.py", folder, *CASES, seconds=SECONDS)
    return {
        case: [
            json.loads((folder / f"{case}-{number}.json").read_text())
            for number in range(2)
        ]
        for case in (*CASES, "resumed")
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", ["overflow in one", "fp32", "clipped", "checkpointed"])
def test_both_processes_have_the_same_weights_and_scales_bit_for_bit(both, case):
    one, other = both[case]
    assert one["processes"] == other["processes"] == 2
    assert one == other


@pytest.mark.slow
def test_an_overflow_in_one_process_is_skipped_in_both(both):
    """Alone, the first process's share skips nothing, and the second's does."""
    first, second = (
        train(
            outlier_task(slice(number, None, 2)), SCALED, device="cpu", progress=False
        )
        for number in range(2)
    )
    assert OUTLIER % 2 == 1
    assert not first.skipped.any()
    assert second.skipped[0]
    one, other = both["overflow in one"]
    assert one["skipped"] == other["skipped"]
    assert one["scale"] == other["scale"] == second.loss_scale.tolist()
    assert sum(one["skipped"]) >= 3
    assert one["scale"][:2] == [4096.0, 2048.0]
    assert not one["skipped"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fp32", "clipped", "checkpointed"])
def test_two_processes_do_what_one_does_with_the_whole_batch(both, case):
    """Band: a relative 1e-5 after ten steps, for gradients summed in another order."""
    alone = watched(case)
    together = both[case][0]
    np.testing.assert_allclose(together["loss"], alone["loss"], rtol=1e-5)
    for one, other in zip(together["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


@pytest.mark.slow
def test_processes_go_on_from_one_checkpoint_as_if_not_broken_off(both):
    assert both["resumed"] == [case["loss"] for case in both["overflow in one"]]


@pytest.mark.slow
def test_what_cannot_be_shared_is_refused_in_both(both):
    for found in both["simulated"]:
        assert (
            "recipe must be torch's own arithmetic in several processes"
            in found["error"]
        )
    for found in both["odd batch"]:
        assert "batch must divide by the number of processes; got 127" in found["error"]


@pytest.mark.slow
def test_the_command_trains_under_torchrun_and_process_0_writes(tmp_path):
    out = tmp_path / "run.json"
    launch = "-m torch.distributed.run --nproc-per-node=2 --master-addr=127.0.0.1"
    both = "--module mplab train --task digits-cnn --recipe fp32 amp-bf16 --quiet"
    command = [sys.executable, *launch.split(), f"--master-port={free_port()}"]
    command += [*both.split(), "--steps", "6", "--device", "cpu", "--out", str(out)]
    how = {"capture_output": True, "text": True, "timeout": SECONDS, "check": False}
    how["env"] = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, **how)
    assert done.returncode == 0, done.stderr
    found = load_runs(out)
    assert [run.recipe for run in found] == ["fp32", "amp-bf16"]
    assert {run.environment["processes"] for run in found} == {"2"}
    assert done.stdout.count("<History: digits-cnn, fp32") == 1
    alone = train("digits-cnn", "fp32", steps=6, progress=False)
    np.testing.assert_allclose(found[0].loss, alone.loss, rtol=1e-5)


def test_alone_everything_is_local(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with process_group():
        assert (processes(), rank()) == (1, 0)
        assert mean(torch.tensor(0.1)) == float(torch.tensor(0.1))
        assert from_first("mine") == "mine"
