"""Record the runs behind the slider of the page "Why did my FP16 training stall?".

python data/record_stall.py

A network is trained in FP32, and in simulated FP16 with each loss scale.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from mplab.common.files import replace_file
from mplab.course.site.frame import FILES
from mplab.training import RECIPES, TASKS, History, train
from mplab.training.exponents import pooled

TASK = TASKS["sigmoid-autoencoder"]
SEED = 3
MOMENT = 200
"""The step whose gradients are shown."""
EVERY = 16
"""Losses are kept of every so many steps."""
SCALES = range(0, 26, 2)
"""Loss scales, as powers of two."""


def kept(run: History) -> dict[str, Any]:
    """The losses of a run and its metric; null where a number is not finite."""
    losses = run.loss[::EVERY]
    numbers = [float(f"{x:.4g}") if np.isfinite(x) else None for x in losses]
    r2 = run.metrics["r2"]
    return {"loss": numbers, "r2": round(r2, 3) if np.isfinite(r2) else None}


def record() -> dict[str, Any]:
    """Train all of them."""
    wide = train(TASK, "fp32", seed=SEED, record_gradients_at=(MOMENT,))
    found = pooled(wide.gradients[MOMENT].values())
    runs = {}
    for power in SCALES:
        recipe = replace(
            RECIPES["fp16-naive"],
            name=f"scale 2^{power}",
            init_scale=2.0**power,
            dynamic=False,
        )
        run = train(TASK, recipe, seed=SEED, record_gradients_at=())
        runs[str(power)] = kept(run)
    return {
        "task": TASK.name,
        "seed": SEED,
        "every": EVERY,
        "moment": MOMENT,
        "exponents": [int(e) for e in found.exponents],
        "counts": [int(n) for n in found.counts],
        "zeros": int(found.zeros),
        "fp32": kept(wide),
        "fp16": runs,
    }


if __name__ == "__main__":
    text = json.dumps(record()).replace('"fp', '\n"fp') + "\n"
    replace_file(FILES / "stalled.json", text.encode())
