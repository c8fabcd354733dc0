"""The figures of recordings made on a machine with a GPU, each labelled as recorded.

A function returns None if nothing was recorded, so that a lesson can end a cell with a call.
"""

import os
from collections.abc import Sequence

from mplab.course.hardware import recordings
from mplab.course.pictures import canvas as c
from mplab.course.pictures.training import METRICS, by_seed

NAMES = {
    "fp32": "FP32",
    "fp32-tf32": "FP32 with TF32 products",
    "fp32-checkpointed": "FP32 with checkpoints",
    "amp-bf16-checkpointed": "BF16 with checkpoints",
    "amp-fp16-naive": "FP16 without scaling",
    "amp-fp16": "FP16 with loss scaling",
    "amp-bf16": "BF16",
    "amp-fp8-current": "FP8 with current scaling",
}
"""Recipes as the lessons call them."""


Where = str | os.PathLike[str] | None


def recorded_runs(
    task: str,
    *,
    recipes: Sequence[str] = ("fp32", "amp-fp16-naive", "amp-fp16", "amp-bf16"),
    where: Where = None,
) -> c.Picture | None:
    """Draw the metric that recorded runs of a task reached, with a row for each recipe.

    Args:
        task: a name in `mplab.training.TASKS`.
        recipes: the recipes shown, the first to compare with; runs with TF32 products are left out.
        where: a folder; None for the recordings that came with the package.

    Returns:
        The figure of `by_seed`, with the seeds recorded for all these recipes; None if there are
        none.
    """
    recording = recordings.first("training", where=where)
    if recording is None:
        return None
    by_recipe: dict[str, dict[int, dict[str, float]]] = {}
    for row in recording.data.get("runs", []):
        if row["task"] == task and not row["tf32"] and "problem" not in row:
            by_recipe.setdefault(row["recipe"], {})[row["seed"]] = row["metrics"]
    found = {name: by_recipe[name] for name in recipes if name in by_recipe}
    if len(found) < 2:
        return None
    first, *others = found.values()
    common = sorted(set(first).intersection(*others))
    if not common:
        return None
    metric = next(iter(first[common[0]]))
    results = {
        NAMES.get(name, name): [float(runs[seed][metric]) for seed in common]
        for name, runs in found.items()
    }
    return by_seed(results, metric=METRICS.get(metric, metric), source=recording.words)
