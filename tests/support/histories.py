"""Histories of runs that nobody trained."""

import numpy as np

from mplab.training import RECIPES, History


def history(recipe, steps, **changes):
    """A run of a recipe with constant losses; `changes` are further facts or other ones."""
    how = RECIPES[recipe]
    facts = {
        **{
            "task": "t",
            "recipe": recipe,
            "compute_format": how.compute_format.name,
            "seed": 0,
        },
        **{"device": "cpu", "simulated": how.simulated, "settings": how.settings()},
        **{
            "loss": np.ones(steps),
            "loss_scale": np.ones(steps),
            "skipped": np.zeros(steps, bool),
        },
    }
    return History(**facts | changes)
