"""One of several processes that train together: what it saw goes to a file of its own.

python ddp_worker.py FOLDER CASE, with the variables that torchrun sets.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

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


CNN = TASKS["digits-cnn"]
FP32 = RECIPES["fp32"]
CASES = {
    "overflow in one": (outlier_task(), SCALED, {}),
    "fp32": (CNN, FP32, {"steps": 10}),
    "clipped": (CNN, replace(FP32, max_norm=0.1), {"steps": 10}),
    "checkpointed": (CNN, replace(FP32, checkpointing=True), {"steps": 10}),
    "simulated": (CNN, "bf16", {"steps": 1}),
    "odd batch": (replace(CNN, batch=127), FP32, {"steps": 1}),
}


def watched(case):
    """The history of a case and its last weights, or its error."""
    task, recipe, options = CASES[case]
    watch = MagicMock()
    try:
        history = train(
            task, recipe, device="cpu", progress=False, watch=watch, **options
        )
    except ValueError as error:
        return {"error": str(error), "processes": processes()}
    model, _ = watch.call_args.args
    return {
        "loss": history.loss.tolist(),
        "scale": history.loss_scale.tolist(),
        "skipped": history.skipped.tolist(),
        "weights": [p.detach().flatten().tolist() for p in model.parameters()],
        "processes": processes(),
    }


def resumed(folder):
    """The losses of a run that is broken off after five steps, and goes on from its fourth."""
    task, recipe, _ = CASES["overflow in one"]
    checkpoint = Path(folder, "checkpoint")
    options = {"device": "cpu", "progress": False, "checkpoint": checkpoint}
    watch = MagicMock()
    watch().step.side_effect = [None] * 4 + [KeyboardInterrupt]
    try:
        train(task, recipe, watch=watch, save_every=2, **options)
    except KeyboardInterrupt:
        return train(task, recipe, **options).loss.tolist()
    raise AssertionError("the run was not broken off")


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    with process_group(timeout=60):
        Path(folder, f"resumed-{rank()}.json").write_text(json.dumps(resumed(folder)))
        for case in cases:
            found = watched(case)
            Path(folder, f"{case}-{rank()}.json").write_text(json.dumps(found))
