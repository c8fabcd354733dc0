"""The figures of rounding."""

import numpy as np
import pytest
from legible import assert_legible

from mplab import BF16, FP8_E4M3, FP16, FP32, Rounding, pictures as figures, round_to


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


@pytest.mark.parametrize(
    ("fmt", "low", "high", "ties"),
    [
        (FP8_E4M3, -2, 2, "; they part at 64 of 128 ties (dots)"),  # past the samples
        (FP8_E4M3, 440, 470, ""),  # and NaN from 464 on
        (FP16, 1, 1.05, "; they part at 26 of 51 ties (dots)"),
        (FP16, -6, 6, ""),
    ],
)
def test_a_profile_counts_all_ties_and_their_errors_or_none(fmt, low, high, ties):
    modes = Rounding.TIES_TO_EVEN, Rounding.TIES_TO_AWAY
    claim = figures.rounding_profile(fmt, modes, low, high).claim
    assert claim.endswith(f"miss by up to 0.50 ulp{ties}")


def test_what_is_no_number_is_not_counted_as_one():
    claim = figures.bit_fields("-1e9", [FP32, FP16, FP8_E4M3]).claim
    assert claim == "-1e9 is stored as 1 number in 3 formats, exactly in 1 of them"
