"""The figures of four bits: what they measure, and whether they can be read."""

import numpy as np
import pytest

from mplab.lessons.l18 import figures

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(5))
def test_a_hadamard_transform_helps_mxfp4_and_hurts_nvfp4(seed):
    curves = figures.measure_outlier_errors(seed=seed).curves
    assert list(curves) == [
        "MXFP4",
        "MXFP4 with Hadamard",
        "NVFP4",
        "NVFP4 with Hadamard",
    ]
    mx, mx_turned, nv, nv_turned = curves.values()
    assert np.all(mx_turned[3:6] < 0.95 * mx[3:6])
    assert np.all(nv_turned[4:] > 1.05 * nv[4:])
    assert np.all(abs(nv_turned[:3] / nv[:3] - 1) < 0.05)


@pytest.mark.parametrize("seed", range(5))
def test_quiet_weights_stop_to_nearest_and_go_on_at_random(seed):
    """Lesson 18: “nearly all gradients of the quiet weights are rounded to 0”: in most steps,
    all fifteen.
    """
    curves = figures.measure_quiet_errors(seed=seed).curves
    moved = np.diff(curves["to nearest"]) != 0
    assert moved[200:].mean() < 0.2 < 0.6 < moved[:50].mean()
    assert 0.2 < curves["to nearest"][-1] < 0.4
    assert curves["stochastic"][-1] < 0.02
    assert curves["to nearest"][0] == curves["stochastic"][0] == 1
