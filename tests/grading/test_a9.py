"""The references of A9, held against the library, sampling, and a slower program."""

import math
from functools import partial

import corpus
import numpy as np
import pytest
import torch

from mplab import FP4_E2M1, Rounding, Stream, round_to
from mplab.scaling import ScaleRule, fake_quantize

pytestmark = pytest.mark.slow

reference = partial(corpus.reference, "a9")
cases = partial(corpus.hidden_cases, "a9")
MODULE = reference("pack").__globals__


def test_with_the_goal_of_six_alone_packing_is_the_library_s_nvfp4():
    for x in cases("pack", "blocks of noise"):
        pack = MODULE["packed"](x, targets=(6.0,), top=2688.0)
        wanted = fake_quantize(torch.from_numpy(x).float(), FP4_E2M1, scale=ScaleRule.NVFP4,
                               block=(16,), tensor_scale=pack["tensor"])  # fmt: skip
        np.testing.assert_allclose(MODULE["unpacked"](pack), wanted.numpy(), rtol=1e-6)


def test_each_block_comes_back_at_least_as_well_as_with_either_goal_alone():
    for x in cases("pack"):
        errors = []
        for targets in ((6.0, 4.0), (6.0,), (4.0,)):
            back = MODULE["unpacked"](MODULE["packed"](x, targets=targets))
            errors.append(((back - x).reshape(-1, 16) ** 2).sum(axis=1))
        assert np.all(errors[0] <= np.minimum(errors[1], errors[2]) * (1 + 1e-9))


def test_spreading_keeps_products_and_both_goals_are_near_the_exact_one():
    for x, y, signs in cases("spread"):
        a, b = (MODULE["spread"](v, signs) for v in (x, y))
        assert a @ b == pytest.approx(x @ y, rel=1e-12)
        assert np.abs(a).max() <= 4 * np.abs(x).max()
        found = reference("spread")(x, y, signs)
        assert np.all(np.abs(found - x @ y) < 0.5 * np.abs(x) @ np.abs(y) + 1)


def test_means_and_deviations_are_those_of_stochastic_rounding_by_the_library():
    rng = np.random.default_rng(5)
    x = rng.uniform(-5.9, 5.9, 12)
    mean, deviation, _ = reference("chance")(x, 1.0)
    draws = round_to(np.tile(x, (3000, 1)), FP4_E2M1, rounding=Rounding.STOCHASTIC,
                     stream=Stream(1))  # fmt: skip
    assert np.abs(draws.mean(axis=0) - mean).max() < 5 * deviation.max() / math.sqrt(
        3000
    )
    np.testing.assert_allclose(draws.std(axis=0), deviation, atol=0.06)


def test_the_count_of_casts_is_the_first_that_is_no_worse_than_nearest():
    for x, scale in cases("chance", "near the neighbours"):
        _, deviation, count = reference("chance")(x, scale)
        error = np.abs(round_to(np.abs(x) / scale, FP4_E2M1) * scale - np.abs(x))
        assert np.all(deviation / np.sqrt(count) <= error * (1 + 1e-9))
        before = np.where(
            count > 1, deviation / np.sqrt(np.maximum(count - 1, 1)), np.inf
        )
        assert np.all(before > error)


def test_a_stream_gives_one_sum_for_all_ways_in_which_its_terms_arrive():
    rng = np.random.default_rng(6)
    for terms, _, size, fmt in cases("stream"):
        sums = set()
        for _ in range(5):
            cuts = np.sort(rng.integers(0, len(terms) + 1, 4))
            arrivals = np.diff([0, *cuts, len(terms)]).tolist()
            sums.add(float(reference("stream")(terms, arrivals, size, fmt)[-1]))
        assert len(sums) == 1


def test_distances_count_the_steps_of_nextafter():
    start = np.float32(-3e-45)
    for x in (start, np.float32(1.0), np.float32(-2.0)):
        y = x
        for steps in range(1, 6):
            y = np.nextafter(y, np.float32(np.inf))
            assert MODULE["distance"](np.array([x]), np.array([y])) == steps


def test_who_made_a_difference_is_found_in_a_program_that_is_run_twice():
    """A program of sums with one faulty operation; a maximum hides what is small."""
    rng = np.random.default_rng(7)

    def run(faulty):
        x, y = (rng_values.copy() for rng_values in values)
        total = x + y
        if faulty:
            total[0] = np.nextafter(total[0], np.float32(9))
        top = np.maximum(total, np.float32(50))
        return [x, y, total, top, total * 2, top + x]

    values = rng.standard_normal((2, 4)).astype(np.float32)
    found = reference("culprits")(
        [[], [], [0, 1], [2], [2], [3, 0]], run(False), run(True)
    )
    assert found["words"] == ["same", "same", "made", "hidden", "passed on", "same"]
    assert found["ulps"].tolist() == [0, 0, 1, 0, 1, 0]
