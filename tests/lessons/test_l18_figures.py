"""The figures of four bits: what they measure, and whether they can be read."""

import numpy as np
import pytest
import torch

from mplab.lessons.l18 import figures

pytestmark = pytest.mark.slow

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def entered(x, scale):
    """Blocks after their cast by a table of the values; no number here is a tie."""
    size = np.abs(x) / scale[:, None]
    return np.sign(x) * E2M1[np.abs(size[..., None] - E2M1).argmin(-1)] * scale[:, None]


@pytest.mark.parametrize("size", [-12, 0, 9])
def test_errors_by_magnitude_are_those_of_a_table_of_values(size):
    found = figures.measure_scale_errors()
    at = list(found.x).index(2.0**size)
    x = (
        torch.randn(4096, generator=torch.Generator().manual_seed(0)).double().numpy()
        * 2.0**size
    )
    wide = x.reshape(-1, 32)
    narrow = x.reshape(-1, 16)
    power = 2.0 ** np.ceil(np.log2(np.abs(wide).max(1) / 6))
    whole = np.abs(x).max() / 2688
    wanted = np.abs(narrow).max(1) / 6
    ways = {
        "MXFP4": (wide, power),
        "NVFP4": (narrow, whole * in_e4m3(wanted / whole)),
        "NVFP4 without a tensor scale": (narrow, in_e4m3(wanted)),
    }
    for name, (blocks, scale) in ways.items():
        error = np.linalg.norm(entered(blocks, scale) - blocks) / np.linalg.norm(x)
        assert found.curves[name][at] == pytest.approx(error, rel=1e-4)


def in_e4m3(scale):
    """Four significant bits, from 2^-6 to 448."""
    scale = np.clip(scale, 2.0**-6, 448)
    step = 2.0 ** (np.floor(np.log2(scale)) - 3)
    return np.round(scale / step) * step


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
    curves = figures.measure_quiet_errors(seed=seed).curves
    assert 0.2 < curves["to nearest"][-1] < 0.4
    assert curves["stochastic"][-1] < 0.02
    assert curves["to nearest"][0] == curves["stochastic"][0] == 1
