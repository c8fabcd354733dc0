"""Histories of runs that nobody trained."""

from dataclasses import replace

import numpy as np

from mplab.training import RECIPES, History

STEPS = 60


def history(recipe, steps, **changes):
    """A run of a recipe with constant losses; `changes` are further facts or other ones.

    A recipe of one's own is simulated FP16 unless `changes` say otherwise.
    """
    how = RECIPES.get(recipe, RECIPES["fp16-naive"])
    constant = {
        "loss": np.ones(steps),
        "loss_scale": np.ones(steps),
        "skipped": np.zeros(steps, bool),
    }
    run = History(
        task="t",
        recipe=recipe,
        compute_format=how.compute_format.name,
        seed=0,
        device="cpu",
        simulated=how.simulated,
        settings=how.settings(),
        **constant,
    )
    return replace(run, **changes)


def learning(recipe="fp16-naive", *, seed=0, factor=1.0, **changes):
    """A run of the autoencoder whose loss falls, in 60 steps."""
    how = RECIPES.get(recipe, RECIPES["fp16-naive"])
    facts = {
        "task": "digits-autoencoder",
        "seed": seed,
        "loss": factor * (0.03 + 0.2 * 0.9 ** np.arange(STEPS)) * (1 + seed / 10),
        "loss_scale": np.full(STEPS, how.init_scale or 1.0),
        "metrics": {"r2": 0.5 + seed / 10},
    }
    return history(recipe, STEPS, **facts | changes)
