"""One of several processes that train together: what it saw goes to a file of its own.

python ddp_worker.py FOLDER CASE, with the variables that torchrun sets.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from mplab.training import RECIPES, TASKS, Split, Task, train
from mplab.training.parallel import process_group, processes, rank

OUTLIER = 3  # an example of process 1, of two
SCALED = replace(RECIPES["amp-fp16"], init_scale=4096.0)


def examples(keep=slice(None), outlier=1000.0):
    """Eight examples of which one has a target so large that FP16 overflows at a scale of 2^12."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 4, generator=generator)
    targets = inputs.sum(1, keepdim=True)
    targets[OUTLIER] = outlier
    batch = inputs[keep], targets[keep]
    return Split(batch, batch)


def outlier_task(keep=slice(None)):
    return Task(
        "outlier", steps=12, batch=None, data=lambda: examples(keep),
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), loss=F.mse_loss,
        metrics=lambda output, split: {},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    )  # fmt: skip


CASES = {
    "overflow in one": (outlier_task, SCALED, {}),
    "fp32": (lambda: TASKS["digits-cnn"], "fp32", {"steps": 10}),
    "clipped": (
        lambda: TASKS["digits-cnn"],
        replace(RECIPES["fp32"], max_norm=0.1),
        {"steps": 10},
    ),
    "checkpointed": (
        lambda: TASKS["digits-cnn"],
        replace(RECIPES["fp32"], checkpointing=True),
        {"steps": 10},
    ),
    "simulated": (lambda: TASKS["digits-cnn"], "bf16", {"steps": 1}),
    "odd batch": (
        lambda: replace(TASKS["digits-cnn"], batch=127),
        "fp32",
        {"steps": 1},
    ),
}


def watched(case):
    """The history of a case and its last weights, or its error."""
    task, recipe, options = CASES[case]
    kept = []

    class Keep:
        def __init__(self, model, optimizer):
            kept.append(model)

        def step(self, loss, scale, skipped):
            pass

        def close(self):
            pass

    try:
        history = train(
            task(), recipe, device="cpu", progress=False, watch=Keep, **options
        )
    except ValueError as error:
        return {"error": str(error), "processes": processes()}
    weights = [p.detach().flatten().tolist() for p in kept[0].parameters()]
    return {
        "loss": history.loss.tolist(), "scale": history.loss_scale.tolist(),
        "skipped": history.skipped.tolist(), "weights": weights, "processes": processes(),
    }  # fmt: skip


class Break(Exception):
    """Ends a run between two steps."""


def resumed(folder):
    """The history of a run that is broken off after five steps, and goes on from its fourth."""

    class Breaking:
        def __init__(self, model, optimizer):
            self.steps = 0

        def step(self, loss, scale, skipped):
            self.steps += 1
            if self.steps == 5:
                raise Break

        def close(self):
            pass

    options = {
        "device": "cpu",
        "progress": False,
        "checkpoint": Path(folder, "checkpoint"),
    }
    task, recipe, _ = CASES["overflow in one"]
    try:
        train(task(), recipe, watch=Breaking, save_every=2, **options)
    except Break:
        return train(task(), recipe, **options).loss.tolist()
    raise AssertionError("the run was not broken off")


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    with process_group(timeout=60):
        Path(folder, f"resumed-{rank()}.json").write_text(json.dumps(resumed(folder)))
        for case in cases:
            found = watched(case)
            Path(folder, f"{case}-{rank()}.json").write_text(json.dumps(found))
