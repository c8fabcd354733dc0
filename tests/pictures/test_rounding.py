"""The figures of rounding."""

import numpy as np
import pytest
from legible import assert_legible

from mplab import (
    BF16,
    FP8_E4M3,
    FP16,
    FP32,
    Format,
    Rounding,
    pictures as figures,
    round_to,
)


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


def test_negative_losses_are_seen():
    picture = assert_legible(figures.loss_meter([-1, -2, -3], [FP16, FP32, BF16]))
    low, high = picture.axes[0].get_ylim()
    assert low <= -3 < -1 <= high
    assert picture.claim.startswith("The loss goes from −1 to −3; the meter reports −2")
    assert picture.claim.endswith("in FP16, −2 in FP32 and −2 in BF16.")
    assert "Over 1 step." in figures.loss_meter([0.5], [FP16]).alt


def test_the_ends_of_a_number_line_may_be_swapped():
    claims = {figures.number_lines([FP8_E4M3], *e).claim for e in ((0, 2), (2, 0))}
    assert claims == {"Numbers from 0 to 2: FP8_E4M3 65"}


def test_a_format_without_sign_has_one_infinity():
    unsigned = Format("U", exponent_bits=3, precision=3, signed=False)
    claim = figures.code_table(unsigned).claim
    assert claim == "U: 32 codes, 28 different numbers, 1 infinity, 3 NaNs"


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
