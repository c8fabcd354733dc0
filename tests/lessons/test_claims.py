"""What the prose of lessons says in numbers, recomputed; each test finds its sentence first."""

import re
from dataclasses import replace

import nbformat
import numpy as np
import pytest
import torch

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Rounding, explorers, pictures, round_to, ulp
from mplab.arithmetic import cumsum, mma, variance
from mplab.course.files import course_folder
from mplab.explorers._accumulator_race import LENGTHS
from mplab.training import TASKS, train


def prose(lesson):
    """The text of a lesson, by its number."""
    path = next(course_folder("lessons").glob(f"{lesson:02}_*.ipynb"))
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


# Lesson 1 --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, 0])
def test_no_gradient_of_the_first_step_is_a_normal_number_of_fp16(seed):
    assert "Layer 1, at the input, has the smallest gradients. Not one bar is filled" in prose(1)
    how = {"steps": 1, "progress": False, "record_gradients_at": (0,)}
    layers = train("digits-autoencoder", "fp32", seed=seed, **how).gradients[0]
    largest = [int(histogram.exponents.max()) for histogram in layers.values()]
    assert largest == sorted(largest)
    assert largest[-1] < FP16.emin == -14


class Start:
    """A watcher that keeps the model, and its weights as they were before the first step."""

    def __call__(self, model, optimizer):
        self.model = model
        self.weights = [parameter.detach().clone() for parameter in model.parameters()]
        return self

    def __getattr__(self, name):
        return lambda *_, **__: None


@pytest.mark.parametrize("rate", [1e-2, 10.0])
def test_the_first_step_in_fp16_changes_no_weight_of_layer_1_at_any_learning_rate(rate):
    assert "By how much does each weight of layer 1 change in the first step" in prose(1)
    task = replace(
        TASKS["digits-autoencoder"],
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate),
    )
    start = Start()
    train(task, "fp16-naive", seed=3, steps=1, progress=False, watch=start)
    moved = [
        not torch.equal(before, after)
        for before, after in zip(start.weights, start.model.parameters(), strict=True)
    ]
    assert moved[0] is False
    assert moved[-1] is True


@pytest.mark.slow
def test_fp32_at_ten_times_its_learning_rate_ends_on_the_plateau_of_fp16():
    assert "At ten times its learning rate the FP32 run ends on the same plateau" in prose(1)
    task = TASKS["digits-autoencoder"]
    rate = task.optimizer([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"]
    fast = replace(task, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=10 * rate))
    fp32 = train(fast, "fp32", seed=3, progress=False)
    fp16 = train(task, "fp16-naive", seed=3, progress=False)
    assert fp32.loss[-1] == pytest.approx(fp16.loss[-1], rel=0.01)
    assert abs(fp32.metrics["r2"]) < 0.01


# Lesson 2 --------------------------------------------------------------------------------


def test_the_actions_of_the_first_exercise_give_minus_3_in_the_order_of_its_text():
    explorer, text = explorers.BitExplorer("0.1"), prose(2)
    actions = {
        "choose FP8_E4M3 under *bits of*": lambda: setattr(explorer.format, "value", FP8_E4M3),
        "type `0xC4`": lambda: setattr(explorer.entry, "value", "0xC4"),
    }
    for words in sorted(actions, key=text.index):
        actions[words]()
    assert explorer.number == -3


def test_e4m3_is_coarser_than_the_whole_numbers_from_16_on():
    said = re.search(r"E4M3 is coarser than the whole numbers from (\d+) on", prose(2))
    whole = np.arange(1.0, 449.0)
    assert whole[ulp(whole, FP8_E4M3) > 1][0] == float(said[1])


# Lesson 3 --------------------------------------------------------------------------------


def fates(start):
    """What each mode does at each pattern: whether it goes away from 0."""
    lab, found = explorers.RoundingLab(start), {}
    for eighths in range(8):
        lab.eighths.value = eighths
        far = max(lab.neighbours, key=abs)
        found[tuple(lab.discarded)] = {m: value == far for m, value in lab.results.items()}
    return found


def test_whether_16_or_18_is_the_start_matters_at_100_alone():
    assert "Whether you start at 16 or at 18 matters at 100 alone" in prose(3)
    even, odd = fates("16"), fates("18")
    assert [pattern for pattern in even if even[pattern] != odd[pattern]] == [(1, 0, 0)]
    assert odd[1, 0, 0][Rounding.TIES_TO_EVEN] and not even[1, 0, 0][Rounding.TIES_TO_EVEN]


def test_the_sign_matters_wherever_modes_disagree():
    assert "The sign matters wherever modes disagree: −16 gives the same bits" in prose(3)
    plus, minus = fates("16"), fates("-16")
    assert list(plus) == list(minus)
    differ = {pattern for pattern in plus if plus[pattern] != minus[pattern]}
    assert differ == set(plus) - {(0, 0, 0)}
    for pattern in differ:
        changed = {m for m in plus[pattern] if plus[pattern][m] != minus[pattern][m]}
        assert changed == {Rounding.TOWARD_POSITIVE, Rounding.TOWARD_NEGATIVE}


# Lesson 4 --------------------------------------------------------------------------------


def test_the_ends_of_a_format_decide_what_is_lost():
    text = prose(4)
    assert "The two ends of a format decide" in text
    first = {FP16: "65520", FP8_E5M2: "61440"}
    assert f"from {first[FP16]} and from {first[FP8_E5M2]} on" in text
    for fmt, words in first.items():
        assert np.isinf(round_to(float(words), fmt))
        assert round_to(np.nextafter(float(words), 0), fmt) == fmt.max_finite
    assert FP8_E5M2.min_subnormal / FP16.min_subnormal == 2**8
    assert "FP16's subnormals reach 2⁸ times further down" in text
    x = 10.0 ** np.random.default_rng(0).uniform(-12, 8, 200_000)
    for fmt in (FP16, FP8_E5M2):
        kept = round_to(x, fmt)
        ends = fmt.min_subnormal / 2, float(first[fmt])
        assert np.array_equal(kept == 0, x <= ends[0])
        assert np.array_equal(np.isinf(kept), x >= ends[1])
    assert np.all(np.isfinite(round_to(x, BF16)) & (round_to(x, BF16) != 0))


# Lesson 5 --------------------------------------------------------------------------------


def test_a_sum_of_equal_terms_passes_the_law_of_the_coins_long_before_it_stagnates():
    text, n = prose(5), np.array([64, 256, 1024])
    tenth = round_to(0.1, FP16)
    sums = cumsum(np.full(1 << 13, tenth), accumulator_format=FP16)
    assert sums[-1] == 256
    assert "until the sum stagnates, which is at 256?" in text
    ratio = abs(sums[n - 1] / (n * tenth) - 1) / (np.sqrt(n) * FP16.unit_roundoff)
    assert np.all(ratio > 1)
    assert f"{ratio[-1]:.1f} times as large at 1,024" in text
    assert sums[n[-1] - 1] < 256 / 2


def test_random_terms_stay_below_the_law_of_the_coins_for_thousands():
    assert "For thousands of these random terms the errors stay below √n·u" in prose(5)
    curve = pictures.measured_errors(FP16)
    below = curve.errors < np.sqrt(curve.lengths) * FP16.unit_roundoff
    assert np.all(below[curve.lengths <= 4096])
    assert not below[-1]


def test_e4m3_stops_at_64_after_24_losses_and_four_sums_keep_up():
    said = re.search(r"E4M3 stops at (\d+), after (\d+) losses", prose(5))
    assert "in BF16, stay within 0.4 percent, the FP32 sum is exact" in prose(5)
    race, worst = explorers.AccumulatorRace(), {}
    race.terms.value = "losses near 2.5"
    for length in LENGTHS:
        race.length.value = length
        for standing in race.standings:
            off = abs(standing.total / standing.exact - 1)
            worst[standing.lane.name] = max(worst.get(standing.lane.name, 0), off)
    e4m3 = race.standings[0]
    assert (e4m3.total, e4m3.stalled) == tuple(map(int, said.groups()))
    assert ulp(64.0, FP8_E4M3) == 8
    assert max(worst["BF16 pairwise"], worst["BF16 Kahan"]) < 0.004
    assert worst["FP32 one by one"] == 0


def test_rounding_products_is_cheap_in_the_normal_range_and_ruinous_below_it():
    assert "about two fifths of the sum are lost" in prose(5)
    large, small = (pictures.product_errors(most=1024, below=x).errors for x in (1.0, 2.0**-12))
    assert large[FP16, FP32][-1] < large[FP16, FP32][0] / 5
    assert large[FP16, FP32][-1] < FP16.unit_roundoff
    assert small[FP16, FP32][-1] == pytest.approx(2 / 5, abs=0.02)
    stayed = [how for how in small if small[how][-1] < 2 * large[how][-1]]
    assert stayed == [(None, FP32)]


# Lesson 6 --------------------------------------------------------------------------------


def test_the_small_product_is_gone_14_places_below_in_e4m3_and_26_in_fp16():
    text, step = prose(6), explorers.MatrixStep()
    for unit, large, gone in (
        ("Hopper, E4M3", 4, "2⁻¹⁰ downward with the large one at 2⁴"),
        ("Hopper, E4M3", 5, "2⁻⁹ with it at 2⁵"),
        ("Hopper, FP16", 15, "beside 2¹⁵ the small one is gone from 2⁻¹¹ downward"),
    ):
        step.unit.value, step.large.value = unit, large
        written = {}
        for small in range(-12, 0):
            step.small.value = small
            written[small] = float(step.step.rows[-1].value)
        last = max(small for small, value in written.items() if value == 0)
        assert gone in text
        assert "⁻" + str(-last).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")) in gone
        assert large - last == (14 if "E4M3" in unit else 26)


def test_most_of_the_cut_is_that_of_the_products():
    text = prose(6)
    errors, unit = pictures.cut_errors(architecture="hopper", terms=4096), FP32.unit_roundoff
    all_cuts, writing = -errors.cut.mean() / unit, -errors.written.mean() / unit
    assert f"make {writing:.0f} of the {all_cuts:.0f} *u*; five sixths come from" in text
    assert (all_cuts - writing) / all_cuts == pytest.approx(5 / 6, abs=0.01)
    assert f"within some {np.abs(errors.rounded).max() / unit:.0f} *u*" in text
    assert f"{-errors.cut.mean() * 1e5:.1f}·10⁻⁵ of the result" in text
    rng = np.random.default_rng(0)
    a, b = (round_to(rng.uniform(0.5, 1, (16, 4096)), BF16) for _ in range(2))
    few = -np.mean(mma(a, b.T) / (a @ b.T) - 1) / unit
    assert "Operands with few bits lose less" in text
    assert few < all_cuts / 2


def test_errors_grow_with_the_length_for_positive_products_and_hardly_for_signed_ones():
    text = prose(6)
    assert "about in proportion to K" in text and "with positive products" in text
    positive, signed = (pictures.errors_by_depth(signed=x, most=4096) for x in (False, True))
    steps = positive.chained[1:] / positive.chained[:-1]
    assert np.all((steps > 1.8) & (steps < 2.6))
    assert positive.promoted[-1] < positive.promoted[0]
    assert "From K = 128 to 4,096 the error of the unit alone does not even triple" in text
    assert 2 < signed.chained[-1] / signed.chained[0] < 3
    assert signed.promoted[-1] < signed.promoted[0] / 5


# Lesson 14 -------------------------------------------------------------------------------


def test_one_pass_variances_near_1_leave_the_range_from_0_to_2():
    assert "(d). Some rows have a variance below zero" in prose(14)
    for seed in range(5):
        x = round_to(4096 + np.random.default_rng(seed).standard_normal((256, 200)), FP32)
        how = {"axis": 0, "accumulator_format": FP32, "order": "pairwise"}
        found = variance(x, method="one-pass", **how)
        assert found.min() < 0
        assert found.max() > 2
        assert set(found) <= set(range(-9, 10))
        assert np.all(abs(variance(x, **how) / x.var(axis=0) - 1) < 16 * FP32.unit_roundoff)


@pytest.mark.parametrize("seed", range(5))
def test_one_pass_in_bf16_is_lost_long_before_the_data_are(seed):
    assert "One pass is lost at a mean of 2⁴ deviations" in prose(14)
    assert "The line reaches 2⁰ near 2⁸" in prose(14)
    found = pictures.formula_errors("variance", BF16, seed=seed)
    bad, good = (np.median(errors, axis=1) for errors in found.errors.values())
    assert bad[2] < 0.2
    assert bad[4] > 0.9
    assert good[8] < 0.02
    due = np.median(found.conditions, axis=1) * BF16.unit_roundoff
    assert due[6] < 0.6
    assert due[8] > 1


@pytest.mark.parametrize("seed", range(5))
def test_scores_far_from_0_have_no_sum_of_exponentials_in_fp16(seed):
    assert "From about −16 to 7. Above, exp(11) alone would fit" in prose(14)
    found = pictures.formula_errors("log-sum-exp", FP16, seed=seed)
    bad, good = (np.median(errors, axis=1) for errors in found.errors.values())
    assert [bool(share == 1) for share in bad] == [True] * 4 + [False] * 6 + [True] * 3
    assert good.max() < 2 * FP16.unit_roundoff


@pytest.mark.parametrize("seed", range(5))
def test_the_easy_equations_are_those_that_the_first_formula_fails(seed):
    assert "the first formula fails on them by up to a factor of 2¹⁰" in prose(14)
    found = pictures.formula_errors("small root", FP32, seed=seed)
    bad, good = found.errors.values()
    over = bad > 4 * found.conditions * FP32.unit_roundoff
    assert found.conditions[over].max() < 2.5
    assert np.sum(good > 4 * found.conditions * FP32.unit_roundoff) == 0
    factor = (bad / (4 * found.conditions * FP32.unit_roundoff)).max()
    assert 2**8 < factor < 2**11
