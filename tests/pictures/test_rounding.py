"""The figures of rounding."""

import numpy as np
from legible import assert_legible

from mplab import BF16, FP32, pictures as figures, round_to


def test_the_loss_meter_draws_what_a_loop_would_report():
    losses = round_to(np.linspace(2.3, 2.7, 4000), FP32)
    picture = assert_legible(figures.loss_meter(losses, [BF16, FP32]))
    assert picture.claim == (
        "The loss goes from 2.3 to 2.7; the meter reports 0.256 in BF16 and 2.5 in FP32."
    )
    total = 0.0
    means = []
    for n, loss in enumerate(losses[:500], start=1):
        total = float(round_to(total + loss, BF16))
        means.append(total / n)
    np.testing.assert_array_equal(picture.axes[0].lines[1].get_ydata()[:500], means)
