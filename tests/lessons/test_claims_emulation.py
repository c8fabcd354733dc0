"""What lesson 17 says in numbers, computed again; each test quotes its sentence."""

import re

import numpy as np
import pytest
from prose import prose, source

from mplab import BF16, FP8_E4M3, FP16, round_to
from mplab.arithmetic import mma
from mplab.lessons.l17 import figures as l17
from mplab.lessons.l17.emulation import matmul_fp64, slice_bits, split
from mplab.lessons.l17.explorer import SliceSums, _filled
from mplab.lessons.l17.figures import emulation_error

pytestmark = pytest.mark.slow

PROSE = prose(17)

every_seed = pytest.mark.parametrize("seed", range(3))


def factors(seed, m=32):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, 64)), rng.standard_normal((64, m)), rng


@every_seed
def test_pieces_of_each_number_by_itself_end_at_seven_digits(seed):
    """Lesson 17: “Three pieces bring seven digits, and the next three nothing”, “from ½ to 1,
    which share an exponent, the error falls below 10⁻¹⁰”, “the first sums of 64 are exact (of 512,
    not)”.
    """
    a, b, rng = factors(seed)
    near, long = (rng.uniform(0.5, 1, (2, 64, n)) for n in (64, 512))
    kinds = {"near": near, "long": (long[0], long[1].T), "normal": (a, b)}
    errors = {}
    for kind, matrices in kinds.items():
        pieces = [], []
        for found, rest in zip(pieces, matrices, strict=True):
            for _ in range(6):
                found.append(round_to(rest, BF16))
                rest = rest - found[-1]
        for n in (3, 6):
            pairs = [(s, t) for s in range(n) for t in range(n - s)]
            sums = sum(
                mma(pieces[0][s], pieces[1][t], input_format=BF16) for s, t in pairs
            )
            errors[n] = emulation_error(sums, *matrices)
        assert kind != "near" or 1e-12 < errors[6] < 1e-10
        assert kind != "long" or 1e-8 < errors[6] < 1e-6
    assert 2.0**-25 < min(errors.values()) < max(errors.values()) < 2.0**-23
    assert 0.9 < errors[3] / errors[6] < 1.5
    assert (
        max(np.abs(x - sum(p)).max() for x, p in zip((a, b), pieces, strict=True))
        < 2.0**-46
    )
    leading = pieces[0][0], pieces[1][0]  # "in the very first product"
    first = emulation_error(mma(*leading, input_format=BF16), *leading)
    assert 2.0**-25.5 < first < 2.0**-22


@every_seed
def test_six_slices_on_a_grid_beat_numpy_and_each_brings_nine_bits(seed):
    """Lesson 17: “Every slice brings 9 to 10 bits, and with six the error is less than
    NumPy's”.
    """
    code = source(17, "slices").partition("on_a_grid")[0]
    exec(code, space := {"np": np, "mma": mma, "split": split})
    a, b, _ = factors(seed)
    errors = [emulation_error(space["by_slices"](a, b, n), a, b) for n in range(1, 7)]
    gains = np.log2(np.array(errors[:4]) / errors[1:5])
    assert 8.3 < gains.min() <= gains.max() < 10.2
    assert 9 < gains.mean() < 10
    numpy = emulation_error(a @ b, a, b)
    assert errors[5] < numpy
    assert 2e-16 < numpy < 5e-16  # "NumPy's own FP64 product has about 3 · 10⁻¹⁶"
    left = split(a, 1, 10)[0][0]
    right = split(b, 1, 10, axis=0)[0][0]
    np.testing.assert_array_equal(mma(left, right), left @ right)


def test_the_rule_gives_the_bits_that_the_lesson_lists():
    """Lesson 17: “10, 9, 8 and 7 in FP16. BF16 stays at 9, its p + 1, until the sum leaves”."""
    ks = 64, 256, 1024, 4096
    assert [slice_bits(k, FP16, 24) for k in ks] == [10, 9, 8, 7]
    assert [slice_bits(k, BF16, 24) for k in ks] == [9, 9, 8, 7]
    assert (slice_bits(64, FP8_E4M3, 24), 64 * 4**4) == (5, 2**14)


@every_seed
def test_one_bit_too_many_is_seen_by_positive_numbers_only(seed):
    """Lesson 17: “a fifth to a third of the positive sums wrong, and nearly all sums of
    nearly”, “*With random signs not one is wrong*, and with two bits too many still none”, “with
    32 terms none, and half: there the rule rounds down”.
    """
    for terms, positive, near in (
        (32, (0, 0.01), (0.4, 0.6)),
        (64, (0.18, 0.35), (0.9, 1)),
        (128, (0, 0.01), (0.85, 1)),
        (256, (0.2, 0.35), (0.95, 1)),
    ):
        found = l17.measure_wrong_sums(terms, seed=seed)
        at = found.bits.tolist().index(found.rule + 1)
        assert positive[0] <= found.shares["positive"][at] <= positive[1]
        assert near[0] <= found.shares["nearly equal"][at] <= near[1]
        assert not found.shares["random signs"][: at + 2].any()
        assert not any(shares[:at].any() for shares in found.shares.values())
    a, b, _ = factors(seed)
    left = split(a, 1, 10)[0][0]
    right = split(b, 1, 10, axis=0)[0][0]
    one = np.sqrt(np.mean(left**2) * np.mean(right**2))
    # "about eight times one of them".
    assert 7 < np.sqrt(np.mean((left @ right) ** 2)) / one < 9


def test_the_explorer_answers_what_the_lesson_says():
    said = r"With (\S+) products \(.*passed 2²⁴ after (\d+) products"
    wrong, passed = map(int, re.search(said, PROSE.replace(",", "")).groups())
    found = {1 << level: _filled(12, level, "random signs") for level in range(13)}
    assert min(k for k in found if found[k].wrong) == wrong
    assert f"({found[wrong].wrong} of the 64 sums are wrong)" in PROSE
    assert max(k for k in found if found[k].bound <= 24) == passed
    assert SliceSums().found.rule == 10


@every_seed
def test_each_unit_needs_as_many_products_as_the_lesson_counts(seed):
    """Lesson 17: “FP16 needs 6 slices, BF16 7, INT8 8 and E4M3 12, or 15 moduli; that is 21,
    28”.
    """
    a, b, _ = factors(seed)
    for unit, n in ((FP16, 6), (BF16, 7), ("INT8", 8), (FP8_E4M3, 12), ("moduli", 15)):
        fewer, enough = (
            emulation_error(matmul_fp64(a, b, unit=unit, slices=s), a, b)
            for s in (n - 1, n)
        )
        assert enough <= 2.0**-52 < fewer
        last = emulation_error(matmul_fp64(a, b, unit=unit, slices=n + 1), a, b)
        assert 2.0**-55 < last < 2.0**-53.5  # "about 2⁻⁵⁴"


@every_seed
def test_long_sums_and_outliers_need_more_slices(seed):
    """Lesson 17: “With 1,024 FP16 needs 7; with Cauchy's distribution each way one to”."""
    rng = np.random.default_rng(seed + 70)

    def slices(a, b, unit, most):
        return next(
            n
            for n in range(4, most)
            if emulation_error(matmul_fp64(a, b, unit=unit, slices=n), a, b) <= 2.0**-52
        )

    a, b = rng.standard_normal((2, 16, 1024))
    assert slices(a, b.T, FP16, 9) == 7
    a, b = rng.standard_cauchy((2, 16, 64))
    for unit, n in ((FP16, 6), (BF16, 7), ("INT8", 8), (FP8_E4M3, 12), ("moduli", 15)):
        assert n < slices(a, b.T, unit, n + 5) <= n + 3


@every_seed
def test_fourteen_bits_are_enough_for_64_products_of_e4m3_slices_and_not_for_128(seed):
    """Lesson 17: “Without promotion all sums are wrong, by up to one or two percent”, “every
    128, all or nearly all, by less. Promoted every 64 products, none”.
    """
    x, y = np.random.default_rng(seed).uniform(0.5, 1, (2, 16, 1024))
    left = split(x, 1, 5)[0][0]
    right = split(y, 1, 5)[0][0].T
    exact = left @ right
    sums = {
        every: mma(left, right, input_format=FP8_E4M3, promote_every=every)
        for every in (None, 128, 64)
    }
    assert np.all(sums[None] != exact)
    assert 0.01 < abs(sums[None] / exact - 1).max() < 0.025
    assert np.mean(sums[128] != exact) > 0.95
    assert abs(sums[128] / exact - 1).max() < 1e-4
    np.testing.assert_array_equal(sums[64], exact)


@every_seed
def test_spread_numbers_need_about_ten_fp16_slices_instead_of_six(seed):
    """Lesson 17: “At φ = 8 magnitudes differ by factors of 10²⁰ and more”, “FP16 needs only
    about 10 slices instead of 6”.
    """
    counts = l17.measure_slices_needed("FP16", draws=1, seed=seed).counts[:, 0]
    assert counts[0] == 6
    assert 10 <= counts[-1] <= 12
    sizes = np.exp(8 * np.random.default_rng(seed).standard_normal((16, 64)))
    assert sizes.max() / sizes.min() > 1e20


@every_seed
def test_a_hidden_spread_leaves_no_digit_to_ten_slices_and_takes_sixteen_to_eighteen(
    seed,
):
    """Lesson 17: “With six and ten slices not one digit is right”, “It takes 16 to 18 slices”."""
    a, b, rng = factors(seed, 8)
    power = 2.0 ** rng.integers(-60, 61, 64)
    a = a * power
    b = b / power[:, None]
    error = {
        n: emulation_error(matmul_fp64(a, b, slices=n), a, b)
        for n in (6, 10, 16, 17, 18)
    }
    assert min(error[6], error[10]) > 0.1 and error[16] > 2.0**-52 > error[18]
    assert error[17] < 1e-14
    assert emulation_error(a @ b, a, b) < 5e-16  # "FP64 … notices nothing"
    assert emulation_error(matmul_fp64(a, b), a, b) < 2.0**-53


@every_seed
def test_the_order_changes_most_of_numpy_s_bits_and_none_of_ours(seed):
    """Lesson 17: “More than four fifths of NumPy's elements change, and none of ours”, “more
    than four fifths of ours are correctly rounded, against one in”.
    """
    a, b, rng = factors(seed)
    order = rng.permutation(64)
    assert 0.78 < np.mean(a @ b != a[:, order] @ b[order]) < 0.9
    ours = matmul_fp64(a, b)
    np.testing.assert_array_equal(ours, matmul_fp64(a[:, order], b[order]))
    exact = matmul_fp64(a, b, slices=8)
    assert np.mean(ours == exact) > 0.8
    assert 0.15 < np.mean(a @ b == exact) < 0.27
