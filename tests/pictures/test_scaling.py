"""The figure of scaling windows."""

import numpy as np
from legible import assert_legible

from mplab import FP8_E4M3, pictures as figures
from mplab.scaling import CurrentScaling, DelayedScaling


def windows():
    generator = np.random.default_rng(0)
    tensors = [
        generator.normal(size=500) * (3e5 if step == 20 else 1) for step in range(50)
    ]
    scalings = {
        "delayed scaling, history 16": DelayedScaling(FP8_E4M3, amax_history_len=16),
        "most recent": DelayedScaling(FP8_E4M3, amax_compute="most_recent"),
        "current scaling": CurrentScaling(FP8_E4M3),
    }
    return {
        name: figures.follow(scaling, tensors) for name, scaling in scalings.items()
    }


def test_the_figure_of_windows_counts_the_tensors_that_a_spike_costs():
    picture = assert_legible(figures.scaling_windows(windows()))
    assert picture.claim == (
        "Tensors of 50 that lose most of their numbers: 17 with delayed scaling, history 16, "
        "2 with most recent and 0 with current scaling"
    )
    assert "delayed scaling, history 16: up to 100% saturate" in picture.alt


def test_one_panel_is_enough():
    name, window = windows().popitem()
    assert_legible(figures.scaling_windows({name: window}))
