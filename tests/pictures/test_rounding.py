"""The figures of rounding."""

import numpy as np
from legible import assert_legible

from mplab import BF16, FP32, pictures as figures, round_to


def lines_of(picture, panel=0):
    return [line.get_ydata() for line in picture.axes[panel].get_lines()]


def test_the_loss_meter_draws_what_a_loop_would_report():
    losses = round_to(np.linspace(2.3, 2.7, 4000), FP32)
    picture = figures.loss_meter(losses, [BF16, FP32])
    assert_legible(picture)
    assert picture.claim == (
        "The loss goes from 2.3 to 2.7; the meter reports 0.256 in BF16 and 2.5 in FP32."
    )
    total, means = 0.0, []
    for n, loss in enumerate(losses[:500], start=1):
        total = float(round_to(total + loss, BF16))
        means.append(total / n)
    np.testing.assert_array_equal(lines_of(picture)[1][:500], means)
