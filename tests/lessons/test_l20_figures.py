"""Biased rounding and lost directions: what lesson 20 measures and says."""

import numpy as np
import pytest
import torch
from legible import assert_legible
from prose import ran
from torch.nn.attention import SDPBackend, sdpa_kernel

from mplab import BF16, FP8_E4M3, FP16, FP32, round_to, ulp
from mplab.lessons.l20 import figures
from mplab.lessons.l20.explorer import BiasedErrors

pytestmark = pytest.mark.slow

SEEDS = pytest.mark.parametrize("seed", range(3))


@SEEDS
def test_two_keys_err_to_one_side_which_the_other_keys_decide(seed):
    found = figures.measure_rests(seed=seed)
    two, one, mixed = found.curves.values()
    assert np.all(two[found.x >= 13] < -0.2)
    assert two.max() > 0.15 and one.min() < -0.4  # near half a gap of rest
    assert abs(two[0]) < 0.02 and abs(one[0]) < 0.02  # where the rest varies by gaps
    assert abs(mixed).max() < 0.02


@SEEDS
def test_powers_of_two_keep_the_bias_and_few_digits_a_part_of_it(seed):
    """Lesson 20: “at ¾ a fifth of the bias is left”."""
    picture = figures.plot_moves(figures.measure_moves(seed=seed))
    said = "the largest P is 1, 0.5 and 0.25; elsewhere the mean error is at most 0.0"
    assert said in picture.claim
    whole, part = (
        figures.output_errors(figures.weights_of(12, moved=-np.log(p)), seed=seed)
        for p in (1, 0.75)
    )
    assert 0.15 < part.mean() / whole.mean() < 0.25


@SEEDS
def test_another_sign_and_format_have_the_bias_too(seed):
    """One number changed: format, sign."""
    how = {"seed": seed}
    plus = figures.output_errors(figures.weights_of(12), sign=1.0, **how).mean()
    assert plus > 0.2
    fine = figures.weights_of(16, fmt=FP16)
    assert figures.output_errors(fine, fmt=FP16, **how).mean() < -0.2


@SEEDS
def test_a_bias_grows_like_t_and_noise_like_its_root(seed):
    biased, free = figures.measure_growth(seed=8 * seed).sums.values()
    assert biased[-1] / biased[4] == pytest.approx(64, rel=0.1)
    assert 4 < free[-1] / free[4] < 16
    assert biased[-1] > 3000
    # “m raised by 1 leaves 0.004 of a gap”: more than noise from (0.29 / 0.004)² outputs on.
    raised = figures.weights_of(16, moved=1)
    left = figures.output_errors(raised, draws=2**18, seed=seed).mean()
    assert -0.006 < left < -0.003


def test_a_rest_that_an_fp32_sum_loses_leaves_ties():
    """Lesson 20: “added in FP32 after the two keys, scores 17 and more below are lost”."""
    values = round_to(-np.random.default_rng(0).uniform(1, 2, (20_000, 64)), BF16)
    for below, bias in ((16, -0.25), (17, 0)):
        terms = (values * figures.weights_of(below)).astype(np.float32)
        sums = np.cumsum(terms, axis=1)[:, -1].astype(float)
        errors = (round_to(sums, BF16) - sums) / ulp(sums, BF16)
        assert errors.mean() == pytest.approx(bias, abs=0.01)


@SEEDS
def test_cures_remove_the_bias_and_a_division_by_luck_of_the_data(seed, capsys):
    rng = np.random.default_rng(seed)
    ran(20, "setup", "cures", rng=rng)
    means = [line.split()[-4] for line in capsys.readouterr().out.splitlines()]
    none, *cured = (float(mean.rstrip(",")) for mean in means)
    assert none < -0.2 and len(cured) == 4 and max(map(abs, cured)) < 0.02
    weights = figures.weights_of(12)
    for low, least, most in ((1, -0.02, 0.02), (0, 0.02, 0.06)):
        values = round_to(-rng.uniform(low, 2, (20_000, 64)), BF16)
        outputs = values @ weights / weights.sum()
        errors = (round_to(outputs, BF16) - outputs) / ulp(outputs, BF16)
        assert least < errors.mean() < most


def test_the_slow_kernel_of_torch_breaks_ties_fairly_and_another_may_not():
    space = ran(20, "setup", "cures", "real-inputs", rng=np.random.default_rng(0))
    errors = ran(20, "real", **space)["errors"]
    assert abs(float(errors.mean())) < 0.3 and float(errors.abs().max()) < 0.55
    with sdpa_kernel(SDPBackend.MATH):
        errors = ran(20, "real", **space)["errors"]
    assert abs(float(errors.mean())) < 0.02


def orthogonalise():
    return ran(20, "setup", "muon")["orthogonalise"]


@SEEDS
def test_muon_keeps_a_random_matrix_and_loses_small_directions(seed):
    lift = orthogonalise()
    noise = np.random.default_rng(seed).standard_normal((64, 64))
    low, exact = lift(noise, BF16), lift(noise, None)
    assert 0.01 < np.linalg.norm(low - exact) / np.linalg.norm(exact) < 0.03
    gradient, *small = figures.gradient_of(1e-3, seed=seed)
    low, exact = lift(gradient, BF16), lift(gradient, None)
    assert 0.3 < np.linalg.norm(low - exact) / np.linalg.norm(exact) < 0.35
    assert 0.74 < figures.cosine(low, exact, *small) < 0.8
    assert figures.cosine(lift(gradient, FP16), exact, *small) > 0.98
    # "The first rounding": the iteration itself in float64, from a rounded gradient.
    first = lift(lift(gradient, BF16, steps=0), None)
    assert figures.cosine(first, exact, *small) < 0.9


@SEEDS
def test_rounding_errors_average_out_where_the_large_singular_values_change(
    seed, capsys
):
    """Lesson 20: “nothing averages”, “from 0.77 the cosine rises to 0.99”."""
    rng = np.random.default_rng(seed)
    ran(20, "setup", "muon", "muon-run", "averages", rng=rng)
    lines = capsys.readouterr().out.splitlines()[-2:]
    same, other = (float(line.split()[-1]) for line in lines)
    assert same == 0.77 and other > 0.98


def test_large_numbers_in_rows_of_their_own_leave_the_small_ones_their_digits():
    """Lesson 20: “keeps all 56, even at 10⁻⁷”, “FP16 begins to lose them at 10⁻⁶”."""
    lift = orthogonalise()
    rows = np.linalg.qr(np.random.default_rng(0).standard_normal((64, 64)))[0]
    for fmt, small, least, most in (
        (BF16, 1e-7, 0.999, 1),
        (FP16, 1e-5, 0.99, 1),
        (FP16, 1e-6, 0.9, 0.95),
    ):
        gradient = np.r_[rows[:8], small * rows[8:]]
        low, exact = lift(gradient, fmt), lift(gradient, None)
        kept = figures.cosine(low, exact, np.eye(64)[:, 8:], rows[8:].T)
        assert least < kept <= most


@SEEDS
def test_the_input_and_the_first_two_steps_of_muon_need_digits(seed):
    """Lesson 20: “with only the input in FP32 the cosine is 0.86”, “FP16 steps cannot bring back
    what it took”, “the last ones matter least”.
    """
    lift = orthogonalise()
    gradient, *small = figures.gradient_of(1e-3, seed=seed)
    exact = lift(gradient, None)

    def cosine(*formats):
        """With the input in the first format, and the five roundings of a step in its own."""
        first, *steps = formats
        left = [first, *np.repeat(steps, 5)]
        lift.__globals__["round_to"] = lambda x, _: round_to(x, left.pop(0))
        found = figures.cosine(lift(gradient, BF16), exact, *small)
        assert not left
        return found

    assert 0.84 < cosine(FP32, *[BF16] * 5) < 0.88
    assert cosine(FP32, FP32, FP32, *[BF16] * 3) > 0.99
    assert 0.86 < cosine(BF16, *[FP16] * 5) < 0.9
    assert cosine(*[BF16] * 3, *[FP32] * 3) < 0.8


def test_three_more_bits_are_three_powers_of_two():
    found = figures.measure_directions(orthogonalise(), (FP32, FP16, BF16, FP8_E4M3))
    assert_legible(figures.plot_directions(found))
    half = {f.name: np.argmax(v < 0.5) for f, v in found.cosines.items()}
    assert half["FP16"] - half["BF16"] == 3
    assert 4 <= half["BF16"] - half["FP8_E4M3"] <= 5
    assert min(found.cosines[FP32]) > 0.98
    alone = found._replace(cosines={FP32: found.cosines[FP32]})
    assert figures.plot_directions(alone).claim.startswith("No format loses")


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 has Muon")
def test_the_muon_of_torch_says_about_the_same(capsys):
    ran(20, "setup", "muon", "muon-run", "torch-muon")
    ours, real = (
        float(line.split()[-1])
        for line in capsys.readouterr().out.splitlines()
        if "cosine" in line
    )
    assert real == pytest.approx(ours, abs=0.08)


def test_the_explorer_finds_the_answers_of_the_lesson():
    """“Smaller, about −0.1”."""
    explorer = BiasedErrors()
    assert -0.25 < explorer.found.mean() < -0.19
    explorer.tied.value = 3
    assert -0.14 < explorer.found.mean() < -0.09
    explorer.tied.value, explorer.moved.value = 2, "ln 2: P = 1/2"
    assert explorer.found.mean() < -0.19
    explorer.mixed.value = True
    assert abs(explorer.found.mean()) < 0.02
