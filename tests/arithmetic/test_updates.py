"""Weights in a format: every addition rounded once, and each way of adding does what it says."""

from fractions import Fraction

import numpy as np
import pytest
from exact_arithmetic import nearest

from mplab import BF16, FP8_E4M3, FP16, FP32, Format, arithmetic, round_to
from mplab.arithmetic import METHODS, Weights
from mplab.lessons.l07.descent import fit_by_gradient_descent, update_trajectory

FORMATS = [BF16, FP16, FP8_E4M3]
every_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)


def by_fractions(start, deltas, fmt, method):
    """The weight after each update, exactly rounded at each step, one number at a time."""
    w = Fraction(start)
    lost = Fraction(0)
    seen = []
    master = w
    for delta in deltas:
        update = nearest(Fraction(float(delta)), FP32)
        if method == "nearest":
            w = nearest(w + update, fmt)
        elif method == "master":
            master = nearest(master + update, FP32)
            w = nearest(master, fmt)
        else:
            owed = nearest(update - lost, fmt)
            moved = nearest(w + owed, fmt)
            lost = nearest(nearest(moved - w, fmt) - owed, fmt)
            w = moved
        seen.append(float(w))
    return seen


@every_format
@pytest.mark.parametrize("method", ["nearest", "kahan", "master"])
def test_every_addition_is_rounded_as_fractions_would_be(fmt, method):
    rng = np.random.default_rng(3)
    for scale in (-12, -6, -3, 0):
        start = round_to(rng.standard_normal(4), fmt)
        deltas = rng.standard_normal((30, 4)) * 2.0**scale
        weights = Weights(start, fmt, method=method)
        seen = []
        for delta in deltas:
            weights.add(delta)
            seen.append(weights.values)
        for i in range(4):
            want = by_fractions(start[i], deltas[:, i], fmt, method)
            assert [row[i] for row in seen] == want


def test_a_sum_that_float64_would_round_to_a_tie_is_rounded_once():
    """1 + 2^−8 is a tie of BF16; a weight of 2^−60 decides it, and float64 cannot hold the sum."""
    for sign, want in ((1, 1 + 2.0**-7), (-1, 1.0)):
        weights = Weights(np.array([sign * 2.0**-60]), BF16)
        weights.add(1 + 2.0**-8)
        assert weights.values[0] == want
    weights = Weights(np.array([2.0**-60]), BF16, method="kahan")
    weights.add(1 + 3 * 2.0**-8)  # below it, another tie
    assert weights.values[0] == 1 + 2.0**-6


def test_updates_and_master_weights_are_numbers_of_fp32():
    weights = Weights(np.ones(1), FP32, method="master")
    for _ in range(100):
        weights.add(2.0**-25)  # a quarter of an ulp
    assert weights.values[0] == 1.0
    for method, want in (("nearest", 1.0), ("master", 1.0)):
        weights = Weights(np.ones(1), BF16, method=method)
        weights.add(2.0**-8 + 2.0**-40)  # in FP32 it is 2^−8, a tie
        assert weights.values[0] == want


@every_format
def test_a_coin_goes_up_as_often_as_the_update_is_far(fmt):
    gap = fmt.epsilon
    for share in (0.125, 0.5, 0.875):
        weights = Weights(np.ones(20_000), fmt, method="stochastic", seed=7)
        weights.add(share * gap)
        assert set(weights.values) == {1.0, 1.0 + gap}
        up = np.mean(weights.values > 1)
        assert abs(up - share) < 5 * np.sqrt(share * (1 - share) / 20_000)


def test_a_seed_decides_the_coins_and_each_step_has_its_own():
    def walk(seed):
        return update_trajectory(
            np.ones(50), 2.0**-9, 20, BF16, method="stochastic", seed=seed
        )

    np.testing.assert_array_equal(walk(1), walk(1))
    assert np.any(walk(1) != walk(2))
    steps = np.diff(walk(1), axis=0) > 0
    assert len({row.tobytes() for row in steps}) > 15


@pytest.mark.slow
def test_to_nearest_a_run_stands_still_with_a_gradient_that_the_others_have_used():
    runs = {method: fit_by_gradient_descent(BF16, method=method) for method in METHODS}
    still = runs.pop("nearest")
    assert still.arrived[-500:].max() == 0
    assert still.gradient[-1] > 0.2 * still.gradient[0]
    for run in runs.values():
        assert run.loss[0] == still.loss[0]
        assert run.loss[-1] < still.loss[-1] / 1000
        assert run.arrived[-500:].mean() > 0


def test_a_descent_that_diverges_ends_in_nan_without_a_warning():
    run = fit_by_gradient_descent(FP16, learning_rate=1e6, steps=5)
    assert np.isfinite(run.loss[0]) and np.isnan(run.loss[-1])


def test_a_format_wider_than_fp32_keeps_its_numbers_and_has_no_master():
    wide = Format("E11M20", exponent_bits=11, precision=21)
    start = [1e100, -1e-100]
    start = round_to(np.array(start), wide)
    for method in ("nearest", "stochastic", "kahan"):
        weights = Weights(start, wide, method=method)
        weights.add(0.0)
        assert weights.values.tolist() == start.tolist()
        weights.add(np.array([1e100, 0.0]))
        assert np.isfinite(weights.values).all()
    assert update_trajectory(0.0, 1e100, 2, wide)[1] == round_to(1e100, wide)
    with pytest.raises(ValueError, match=r"^Weights: fmt must fit in FP32 with method"):
        Weights(start, wide, method="master")


def test_kahan_s_sums_are_refused_where_what_is_lost_cannot_have_its_sign():
    unsigned = Format("U", exponent_bits=4, precision=4, signed=False)
    with pytest.raises(ValueError, match="Weights: fmt must be signed"):
        Weights([1.0], unsigned, method="kahan")
    with pytest.raises(ValueError, match="sum: accumulator_format must be signed"):
        arithmetic.sum([1.0], accumulator_format=unsigned, order="kahan")
