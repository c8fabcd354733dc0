"""Where a conclusion of a lesson holds, and with which changed number it turns over."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from prose import ran, source
from tiers import mostly_full, mostly_slow
from torch import nn

import mplab
from mplab import (
    BF16,
    FP4_E2M1,
    FP8_E4M3,
    FP16,
    FP32,
    Rounding,
    Stream,
    round_to,
    scaling,
    ulp,
)
from mplab.arithmetic import condition, cumsum, matmul, mma, refine
from mplab.lessons.l05 import figures as l05
from mplab.lessons.l07.descent import fit_by_gradient_descent, update_trajectory
from mplab.lessons.l09.limits import headroom
from mplab.lessons.l11.rooflines import matmul_errors
from mplab.lessons.l15 import figures as l15
from mplab.lessons.l16.explorer import _lorenz
from mplab.lessons.l16.figures import cooling
from mplab.lessons.l16.integration import integrate
from mplab.lessons.l17.emulation import split
from mplab.lessons.l18 import figures as l18
from mplab.lessons.l19 import figures as l19
from mplab.scaling import (
    LossScaler,
    ScaleRule,
    fake_quantize,
    simulate_scaler,
)
from mplab.simulation import CPU_AUTOCAST, simulated
from mplab.training import TASKS, train

# Lesson 1: the batch ---------------------------------------------------------------------
TASK = TASKS["sigmoid-autoencoder"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full([*range(5), 8], [3]))
def test_batches_of_128_wake_the_network_that_stops_with_all_images(seed):
    """Lesson 1: “It learns, on 19 of 20 seeds”, “not with `SEED = 8`”; nor in real FP16."""
    for batch, learns in ((None, False), (128, seed != 8)):
        task = replace(TASK, batch=batch)
        run = train(
            task, "fp16-naive", seed=seed, progress=False, record_gradients_at=()
        )
        assert (run.metrics["r2"] > 0.4) == learns != (abs(run.metrics["r2"]) < 0.02)


# Lesson 2: the number, the tensor --------------------------------------------------------
def test_pi_e_and_the_root_of_2_are_one_number_in_fp16_and_bf16_as_one_in_eight_is():
    """Lesson 2: “as they are for one number in eight”."""
    x = np.random.default_rng(0).uniform(1, 2, 100_000)
    x[:4] = np.pi, np.e, 2**0.5, np.log(2)
    fp16, bf16 = (round_to(x, fmt) for fmt in (FP16, BF16))
    assert (fp16 == bf16)[:4].tolist() == [True, True, True, False]
    assert abs(np.mean(fp16 == bf16) - 1 / 8) < 0.005


# Lesson 7: the size of the update --------------------------------------------------------
def ends(update, method, steps=2000):
    """Where 100 weights of 1 end in BF16, on average."""
    paths = update_trajectory(np.ones(100), update, steps, BF16, method=method)
    return paths[-1].mean()


def test_the_least_update_doubles_with_the_weight_except_among_subnormals():
    """Lesson 7: “except at the left, where E4M3's weights are subnormal and equally spaced”."""
    lost = ulp(2.0 ** np.arange(-8, 5), FP8_E4M3) / 2
    assert [*lost[1:] / lost[:-1]] == [1, 1, *[2] * 10]


@pytest.mark.slow
def test_kahan_has_a_floor_at_a_quarter_of_the_update_and_the_coin_has_none():
    """Lesson 7: “Kahan's weights did not move”, “The coin has no floor”."""
    assert ends(-2e-5, "nearest") == ends(-5e-6, "nearest") == 1
    assert ends(-2e-5, "kahan") == pytest.approx(0.96, abs=0.005)
    # "it comes within a percent of 0.8".
    assert ends(-2e-5, "kahan", 10_000) == pytest.approx(0.8, rel=0.01)
    assert ends(-5e-6, "kahan") == 1
    assert ends(-5e-6, "stochastic") == pytest.approx(0.99, abs=0.003)


def test_with_eight_random_bits_the_coin_has_a_floor_too():
    """Lesson 7: “a chance below 1 in 256 becomes none”."""
    sums = np.full(10_000, 1 + 2e-5)
    ends = [
        round_to(sums, BF16, rounding=Rounding.STOCHASTIC, stream=Stream(0, bits=bits))
        for bits in (8, 32)
    ]
    assert [end.max() for end in ends] == [1, 1 + BF16.epsilon]


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(6), [0]))
def test_the_noise_of_batches_moves_weights_that_are_rounded_to_nearest(seed):
    """Lesson 7: “to a loss some eighty times lower”, “as often as others, or more often”."""
    still, noisy, coin = (
        fit_by_gradient_descent(BF16, method=method, batch=batch, seed=seed)
        for method, batch in (("nearest", 256), ("nearest", 1), ("stochastic", 1))
    )
    assert 10 * coin.loss[-1] < noisy.loss[-1]
    assert 40 < still.loss[-1] / noisy.loss[-1] < 160
    late = [run.arrived[-500:].mean() for run in (still, coin, noisy)]
    assert 0 == late[0] < late[1] < late[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(5), [0]))
def test_at_a_tenth_of_the_rate_and_in_e4m3_only_the_coin_and_the_master_go_on(seed):
    """Lesson 7: “Kahan's loss stays above 0.02; the other two go on below 0.005”, “at a loss
    above 5, where the coin still gets below 0.1”.
    """
    fits = {}
    for method in ("kahan", "stochastic", "master"):
        slow = {"learning_rate": 1e-4, "steps": 30_000}
        runs = [
            fit_by_gradient_descent(BF16, method=method, seed=seed, **how)
            for how in ({}, slow)
        ]
        fits[method] = [run.loss[-1] for run in runs]
    assert max(loss for loss, _ in fits.values()) < 0.005
    assert fits.pop("kahan")[1] > 0.02
    assert max(loss for _, loss in fits.values()) < 0.005
    eight = {
        method: fit_by_gradient_descent(FP8_E4M3, method=method, seed=seed).loss[-1]
        for method in ("kahan", "stochastic")
    }
    assert eight["stochastic"] < 0.1 < 5 < eight["kahan"]


# Lesson 8: the lines that a student copies -----------------------------------------------
def hooked():
    """The functions of the lesson, from its cells."""
    return ran(8, "own", "own-layers", torch=torch, nn=nn)["flushed_by_layer"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))


def test_the_copied_lines_count_on_frozen_shared_silent_and_convolutional_layers():
    flushed = hooked()
    x = torch.ones(3, 4)
    frozen = net()
    frozen[0].requires_grad_(False)
    assert [*flushed(frozen, lambda m: m(x).sum())] == ["3", "2"]
    shared = nn.Sequential(*[nn.Linear(4, 4)] * 2)
    assert flushed(shared, lambda m: m(x).sum() * 2.0**-30) == {"0": 1}
    assert flushed(net(), lambda m: m(x).sum() * 0) == dict.fromkeys("320", 0)
    images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    assert [*flushed(images, lambda m: m(torch.ones(1, 1, 4, 4)).sum())] == ["2", "0"]


def test_the_copied_lines_leave_neither_gradients_nor_hooks_whatever_happens():
    flushed = hooked()
    model = net()

    def loss(model):
        with torch.no_grad():
            model(torch.ones(1, 4))  # a pass without gradients, as a teacher's
        return model(torch.ones(3, 4)).sum()

    assert len(flushed(model, loss)) == 3
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        flushed(model, lambda m: m(torch.ones(1, 5)))
    assert all(w.grad is None for w in model.parameters())
    assert not any(layer._forward_hooks for layer in model.modules())


# Lesson 9: the first scale, the loss, a norm -----------------------------------------------
@pytest.mark.slow
def test_a_fresh_scale_of_2_to_the_16_loses_no_step_and_one_of_2_to_the_28_many():
    """Lesson 9: “From 2¹⁶ it loses no more steps”."""
    limits = headroom("digits-cnn", seed=0, progress=False).limits[100:]
    for power, least, most in ((16, 0, 2), (28, 9, 12)):
        rule = LossScaler(2.0**power, growth_interval=25)
        assert least <= simulate_scaler(rule, limits).skipped.sum() <= most


def test_a_skipped_step_may_leave_a_batch_norm_without_statistics(capsys):
    """Lesson 9: “train on with a fine loss and fail in the first evaluation”."""
    net, x = ran(9, "norm", torch=torch)["net"], torch.randn(8, 4)
    assert all(weight.isfinite().all() for weight in net.parameters())
    assert net(x).isfinite().all() and not net.eval()(x).isfinite().any()


# Lesson 9: eps ---------------------------------------------------------------------------
@pytest.mark.slow
def test_adam_hides_a_wrong_order_only_far_above_eps(capsys):
    """Lesson 9: “eps takes two fifths of the step”."""
    ran(9, "adam", torch=torch)
    steps = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert steps == pytest.approx([1, 0.99, 0.6, 0.09], abs=0.011)


# Lesson 3: the terms ---------------------------------------------------------------------
@pytest.mark.slow
def test_chance_is_worse_for_some_dozens_of_random_terms_and_better_once_nearest_stops():
    """Lesson 3: “as with a few dozen random terms, it is the better one, by about a third”."""
    for n, least, most in ((64, 1.3, 1.5), (1024, 0.05, 0.1)):
        terms = round_to(np.random.default_rng(0).random((n, 1000)), FP32)
        errors = []
        for how in ({}, {"rounding": Rounding.STOCHASTIC, "stream": Stream(0)}):
            sums = cumsum(terms, axis=0, accumulator_format=BF16, **how)[-1]
            errors.append(np.sqrt(np.mean((sums / terms.sum(axis=0) - 1) ** 2)))
        assert least < errors[1] / errors[0] < most


def test_with_one_bit_more_ties_to_away_drifts_as_far_as_the_directed_modes():
    """Lesson 3: “with one bit more by a quarter of an ulp, as far as the directed modes do”."""
    x = 1 + np.arange(256) / 256
    for mode, mean in (
        (Rounding.TIES_TO_EVEN, 0),
        (Rounding.TIES_TO_AWAY, 0.25),
        (Rounding.TOWARD_ZERO, -0.25),
        (Rounding.TOWARD_POSITIVE, 0.25),
    ):
        assert np.mean(round_to(x, BF16, rounding=mode) - x) == mean * 2.0**-7


def test_nearest_enlarges_some_updates_and_rounding_twice_toward_zero_is_harmless(
    capsys,
):
    """Lesson 3: “loses some updates and enlarges others”, “eight times as frequent”, “a
    *quarter* is the limit there”.
    """
    space = vars(mplab) | {"np": np, "rng": np.random.default_rng(0)}
    ran(3, "steps", "double-count", "epsilon", **space)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["1.00", "0.61", "1.78"]
    shares = [float(line.split()[-2].rstrip("%")) for line in lines[3:7]]
    assert shares == pytest.approx([100 / 256, 100 / 32, 0, 0], abs=0.15)
    moved = [float(line.split()[-2]) for line in lines[7:]]
    assert moved == [0, 0, 0, -0.5, 1, -1, 1, -1]


# Lesson 4: the gradient ------------------------------------------------------------------
def test_a_larger_gradient_has_a_step_in_fp16_and_none_in_adam(capsys):
    """Lesson 4: “a fifth too short or a fifth too long; at 10⁻³ it is nearly right”, “in Adam
    all four fail”.
    """
    ran(4, "larger", **vars(mplab) | vars(mplab.arithmetic), eps=0.0)
    steps = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert steps == pytest.approx([np.inf, 4 / 5, 6 / 5, 1], abs=0.02)
    assert round_to(0.001 * 1e-3**2, FP16) == 0


# Lesson 5: the format --------------------------------------------------------------------
@pytest.mark.slow
def test_sums_of_random_terms_leave_the_root_law_after_thousands_in_fp16_and_hundreds_in_bf16():
    """Lesson 5: “For thousands of these random terms”, “in BF16 after hundreds of terms”."""
    for fmt, least, most in ((FP16, 4096, 8192), (BF16, 512, 1024)):
        curve = l05.measure_sum_errors(fmt)
        above = curve.errors > np.sqrt(curve.lengths) * fmt.unit_roundoff
        assert least < curve.lengths[above][0] <= most


def test_equal_terms_stay_below_the_root_law_or_not_as_the_term_has_it():
    """Lesson 5: “FP16's ⅓ stays below √n·u up to 256 terms, and ¼ has no error until its sum
    stops”.
    """
    n = np.array([64, 256, 1024, 2048, 4096])
    law = np.sqrt(n) * FP16.unit_roundoff
    shares = []
    for term in (1 / 3, 0.25):
        x = round_to(term, FP16)
        sums = cumsum(np.full(4096, x), accumulator_format=FP16)[n - 1]
        shares.append(abs(sums / (n * x) - 1) / law)
    third, quarter = shares
    assert max(third[:2]) < 1 < third[2]
    assert not quarter[:4].any() and quarter[4] > 1


def test_squares_leave_the_root_law_before_their_sum_stops_and_rounded_down():
    """Lesson 5: “Squares of such numbers break away sooner, before the sum stops”."""
    x = np.random.default_rng(0).random((4096, 64))
    for power, n, sign in ((2, 4096, -1), (0.5, 2048, 1)):  # most are small; large
        terms = round_to(x[:n] ** power, FP16)
        sums = cumsum(terms, axis=0, accumulator_format=FP16)
        error = sums[-1].mean() / terms.sum(axis=0).mean() - 1
        assert sums[-1].max() < 2048 and 0.02 < sign * error < 0.1


def test_kahans_correction_needs_an_order_of_exponents_only():
    """Lesson 5: “if |a| ≥ |b| or both have the same exponent, and otherwise by luck”."""
    a, b = np.random.default_rng(0).uniform(1, 2, (2, 1000)).astype(np.float16)
    for smaller, share in ((a, 0), (a / np.float16(4), 0.7)):
        total = smaller + b
        error = b - (total - smaller)
        wrong = smaller.astype(float) + b - total != error
        assert np.mean(wrong) == pytest.approx(share, abs=0.05)


def test_small_products_are_lost_by_how_small_they_are():
    """Lesson 5: “with 2⁻¹¹ 4 percent, with 2⁻¹³ all, and in BF16 nothing”."""
    for fmt, power, lost in ((FP16, -11, 0.04), (FP16, -13, 1), (BF16, -12, 0)):
        errors = l05.measure_product_errors(fmt, below=2.0**power).errors
        assert errors[fmt, FP32][-1] == pytest.approx(lost, abs=0.005)


# Lesson 5: the length, the signs ---------------------------------------------------------
@pytest.mark.slow
def test_kahan_s_sum_stops_too_once_its_second_number_is_as_large():
    """Lesson 5: “Kahan's stopped as well, at 65,536 = 2¹⁶”, “ones stop at 2²ᵖ instead of 2ᵖ”."""
    for fmt, stop in ((FP8_E4M3, 2**8), (BF16, 2**16)):
        ones = cumsum(np.ones(2**17), accumulator_format=fmt, order="kahan")
        assert ones[stop - 1] == stop == ones[-1]
    for seed in range(3):
        terms = round_to(np.random.default_rng(seed).random(2**18), FP32)
        good, kahan = (
            mplab.arithmetic.sum(terms, accumulator_format=BF16, order=order)
            for order in ("pairwise", "kahan")
        )
        assert abs(good / terms.sum() - 1) < 2 * BF16.unit_roundoff
        assert kahan == 2**16 < terms.sum() * 0.51


@pytest.mark.slow
def test_random_signs_keep_a_bf16_sum_below_256_which_matters_after_260_000_terms():
    """Lesson 5: “A BF16 sum of such numbers never gets past 256, whatever their signs”."""
    rng = np.random.default_rng(0)
    terms = rng.random((2**18, 8)) * rng.choice([-1.0, 1.0], (2**18, 8))
    terms = round_to(terms, FP16, rounding=Rounding.TOWARD_ZERO)
    low = abs(cumsum(terms, axis=0, accumulator_format=BF16)).max(axis=0)
    exact = abs(np.cumsum(terms, axis=0))
    assert low.max() == 256 and np.mean(exact.max(axis=0) > 256) > 0.5
    assert exact[: 2**14].max() < 256  # "nothing stagnates, at these lengths"


@pytest.mark.slow
def test_with_random_signs_the_sum_costs_less_and_still_more_than_the_products():
    """Lesson 5: “With random signs it costs far less, and still tens of times as much”."""
    rng = np.random.default_rng(0)
    a, b = (
        round_to(rng.random((6, 4096)) * rng.choice([-1.0, 1.0], (6, 4096)), FP16)
        for _ in range(2)
    )
    sums, products = (
        abs(matmul(a, b.T, **how) - a @ b.T) / (abs(a) @ abs(b).T)
        for how in (
            {"accumulator_format": FP16},
            {"accumulator_format": FP32, "product_format": FP16},
        )
    )
    assert 20 < np.median(sums) / np.median(products) < 60
    assert sums.max() < 2**-9


# Lesson 10: the momentum -----------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(5), [0]))
def test_running_statistics_in_bf16_depend_on_the_momentum(seed):
    """Lesson 10: “In BF16 with 0.01 both end near 0.83”, “now the variance
    stays near 1, and the mean stops on its way”, “both settle near 0.985”.
    """
    torch.set_num_threads(1)
    found = {}
    for momentum in (0.01, 0.1, 1 / 128):
        for dtype in (torch.float32, torch.bfloat16):
            norm = nn.BatchNorm1d(1, momentum=momentum).to(dtype)
            generator = torch.Generator().manual_seed(seed)
            course = []
            for _ in range(2000):
                norm((1 + torch.randn(64, 1, generator=generator)).to(dtype))
                course.append([norm.running_mean.item(), norm.running_var.item()])
            found[momentum, dtype] = course[-1]
            if momentum == 0.1:
                late = 0.985 if dtype == torch.bfloat16 else 1
                assert np.mean(course[100:], 0) == pytest.approx(late, abs=0.007)
    low, usual, exact = (found[m, torch.bfloat16] for m in (0.01, 0.1, 1 / 128))
    assert low == pytest.approx([0.83, 0.83], abs=0.01)
    assert usual == pytest.approx([1, 1], abs=0.08)
    assert exact[0] < 0.85 and exact[1] > 0.95
    wide = [found[m, torch.float32] for m in (0.01, 0.1, 1 / 128)]
    assert abs(np.array(wide) - 1).max() < 0.08


def test_without_noise_a_batch_norm_in_bf16_keeps_its_variance():
    """Lesson 10: “Without noise the variance would not leave 1”."""
    norm = nn.BatchNorm1d(1, momentum=0.01).bfloat16()
    for _ in range(600):
        norm(torch.tensor([[0.0], [2.0]] * 32).bfloat16())
    assert norm.running_mean.item() == pytest.approx(0.83, abs=0.01)
    assert norm.running_var.item() == 1


@pytest.mark.slow
def test_a_bf16_model_lags_by_its_weights_and_not_by_the_means_of_adam():
    """Lesson 10: “With FP32 weights and BF16 for Adam's two means it would not”."""
    torch.set_num_threads(1)
    task, ends = TASKS["small-steps"], {}
    (x, y), _ = task.data()
    for low in ("nothing", "means", "weights"):
        torch.manual_seed(0)
        model = task.model()
        adam = task.optimizer(model.parameters())
        for _ in range(task.steps):
            adam.zero_grad()
            loss = task.loss(model(x), y)
            loss.backward()
            adam.step()
            for weight, state in adam.state.items():
                means = state["exp_avg"], state["exp_avg_sq"]
                rounded = {"nothing": (), "means": means, "weights": (weight.data,)}
                for value in rounded[low]:
                    value.copy_(value.bfloat16())
        ends[low] = loss.item() / ends.get("nothing", 1)
    assert ends["means"] < 1.05 < 1.3 < ends["weights"]


@pytest.mark.slow
def test_a_policy_equals_casts_and_a_long_sum_may_differ_in_a_last_bit():
    """Lesson 10: “With 1,024 inputs the simulated result may differ from the real one”."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer, z = nn.Linear(1024, 64).requires_grad_(False), torch.randn(16, 1024)
    with torch.autocast("cpu", dtype=torch.float16):
        real = layer(z)
    weights = layer.weight.half(), layer.bias.half()
    assert torch.equal(real, nn.functional.linear(z.half(), *weights))
    with simulated(FP16, policy=CPU_AUTOCAST):
        off = (layer(z).double() - real.double()).abs().numpy()
    assert np.mean(off > 0) < 0.05
    assert np.all(off <= np.maximum(ulp(real.double().numpy(), FP16), 2.0**-14))


# Lesson 11: the size of the numbers, the batch --------------------------------------------
def test_products_of_small_numbers_are_better_in_bf16_and_those_of_large_ones_infinite_in_fp16():
    """Lesson 11: “it errs by a tenth or more”, “FP16's results are infinite”."""
    for magnitude, least, most in ((1, 7, 9), (1e-4, 0.02, 0.03), (100, 0, 0)):
        rows = matmul_errors([256], [FP16, BF16], magnitude=magnitude)
        fp16, bf16 = (row.error for row in rows)
        assert least <= bf16 / fp16 <= most


def test_with_one_sequence_amp_takes_more_memory_and_a_sum_keeps_the_wider_format():
    """Lesson 11: “4 percent *more* than FP32”, “the wider of two formats”."""
    space = ran(11, "setup")
    exec(source(11, "memory").replace("randn(16", "randn(1"), space)
    whole = [
        sum(part for part in vars(row).values() if type(part) is int)
        for row in space["rows"]
    ]
    assert 1.03 < whole[1] / whole[0] < 1.05
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert space["blocks"]()(space["x"].to(dtype)).dtype == dtype


# Lesson 12: the spread -------------------------------------------------------------------
def test_int8_is_finer_for_numbers_of_one_size_and_loses_those_that_spread(capsys):
    """Lesson 12: “it resolves numbers of one size three times as finely, and turns most of the
    gradients into 0”.
    """
    ran(12, "int8", **vars(mplab) | vars(scaling), torch=torch)
    found = [
        [float(part.rstrip("%")) for part in line.split()[3::2]]
        for line in capsys.readouterr().out.replace(",", "").splitlines()
    ]
    (near, _), (wide, _), (_, lost), (_, kept) = found
    assert 2.5 < wide / near < 3.5
    assert lost > 60 > 30 > kept


# Lesson 13: the size of a row ------------------------------------------------------------
def test_small_rows_survive_a_norm_in_fp16():
    """Lesson 13: “rows a tenth as large pass”."""
    for size, lost in ((400, True), (40, False)):
        x = size * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
        x = x.half() - x.half().mean(-1, keepdim=True)
        found = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        assert (found.abs().max() == 0) == lost


# Lesson 14: the number of terms ----------------------------------------------------------
def test_what_underflows_beside_a_1_counts_only_with_very_many_classes():
    """Lesson 14: “Nearly four: each term is below 2⁻²⁵ and becomes 0”, “of sixteen scores,
    what underflows beside a 1 is far too small”.
    """
    term = np.exp(-17.4)
    assert round_to(term, FP16) == 0
    for scores, least, most in ((16, 0, 0.001), (131_072, 3.6, 4)):
        assert least < (scores - 1) * term / ulp(1.0, FP16) < most


# Lesson 15: the condition ----------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(5), [0]))
def test_the_spectrum_and_the_scale_of_columns_move_the_end_of_refinement(seed):
    """Lesson 15: “With eight small values BF16 fails: its limit falls to 2⁵, FP16's to 2⁸”,
    “Scaled columns do no harm”, “with 2³⁰ it stops at once”.
    """
    a, b, x = l15.random_system(2**7, seed=seed)
    columns = 2.0 ** np.random.default_rng(seed).integers(-10, 11, 64)
    assert condition(a * columns) > 2**23
    for fmt in (BF16, FP16):
        plain = refine(a, b, factor_format=fmt)
        for scaled in (columns, columns**3):
            run = refine(a * scaled, b, factor_format=fmt)
            assert run.converged and run.steps == plain.steps
            np.testing.assert_array_equal(run.x * scaled, plain.x)
    at_once = refine(a * columns**3, b, factor_format=BF16, scale=False)
    assert at_once.converged and not at_once.steps
    assert abs(at_once.x * columns**3 - x).max() > 0.05 * abs(x).max()
    for fmt, limit in ((BF16, 5), (FP16, 8)):
        ends = [
            refine(
                *l15.random_system(2.0**level, small=8, seed=seed)[:2],
                factor_format=fmt,
            )
            for level in (limit, limit + 2)
        ]
        assert [run.converged for run in ends] == [True, False]


# Lesson 16: the horizon, the room, the seed ----------------------------------------------
@pytest.mark.parametrize("seed", mostly_slow(range(5), [0]))
def test_after_100_minutes_no_step_is_better_than_the_longest(seed):
    """Lesson 16: “The longest. Euler's cup errs on its way, but ends at 20 as the exact one”."""
    start = round_to(np.random.default_rng(seed).uniform(60, 95, 32), FP16)
    best = {}
    for minutes in (10, 100):
        exact = 20 + (start - 20) * np.exp(-0.1 * minutes)
        ends = {
            dt: integrate(cooling, start, dt, round(minutes / dt), FP16)[-1]
            for dt in (2.5, 0.625, 5 / 64, 5 / 256)
        }
        errors = {dt: np.sqrt(np.mean((end - exact) ** 2)) for dt, end in ends.items()}
        best[minutes] = min(errors, key=errors.get)
    assert best == {10: 5 / 64, 100: 2.5}


@pytest.mark.slow
def test_in_a_room_of_0_degrees_steps_are_lost_by_their_length_alone():
    """Lesson 16: “FP16's cup of section 1 loses no step”, “With steps of 0.002 it loses all”."""
    for dt, moves in ((0.01, True), (0.005, True), (0.002, False)):
        path = integrate(lambda t: -0.1 * t, 90.0, dt, 10_000, FP16)
        assert np.all((np.diff(path) < 0) == moves)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_chance_brings_the_weather_of_e4m3_to_a_halt_on_one_seed(seed):
    """Lesson 16: “E4M3 in steps of 1/16 comes to (0, 0, 0), on one seed of six”."""
    how = {"scheme": "rk4", "method": "stochastic", "seed": seed}
    end = integrate(_lorenz, [1, 2, 20], 1 / 16, 20_000, FP8_E4M3, **how)[-1]
    assert (not end.any()) == (seed == 0)


# Lesson 17: the number of terms ----------------------------------------------------------
def test_random_signs_or_smaller_numbers_hide_that_a_unit_keeps_fourteen_bits_only():
    """Lesson 17: “With random signs hardly any is”: of 1,024 products; of 4,096 one in seven."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        signed, small = rng.standard_normal((2, 16, 1024)), rng.random((2, 16, 1024))
        for numbers, every in ((signed, None), (small, 128)):
            left, right = (split(x, 1, 5)[0][0] for x in numbers)
            sums = mma(left, right.T, input_format=FP8_E4M3, promote_every=every)
            assert (sums == left @ right.T).all()
        x = rng.uniform(0.5, 1, (2, 16, 4096)) * rng.choice([-1, 1], (2, 16, 4096))
        left, right = (split(rows, 1, 5)[0][0] for rows in x)
        wrong = mma(left, right.T, input_format=FP8_E4M3) != left @ right.T
        assert 0.05 < np.mean(wrong) < 0.25


# Lesson 18: the data ---------------------------------------------------------------------
def test_nvfp4_is_a_fifth_better_for_normal_numbers_and_no_better_for_uniform_ones():
    """Lesson 18: “smaller blocks alone, a fiftieth; of uniformly distributed numbers, nothing”."""
    generator = torch.Generator().manual_seed(0)
    gains = []
    for x in (
        torch.randn(4096, generator=generator),
        torch.rand(4096, generator=generator) * 2 - 1,
    ):
        errors = [
            float((fake_quantize(x, FP4_E2M1, scale=rule, block=(size,)) - x).norm())
            for rule, size in (
                (ScaleRule.RCEIL, 32),
                (ScaleRule.RCEIL, 16),
                (ScaleRule.NVFP4, 16),
            )
        ]
        gains += [1 - error / errors[0] for error in errors[1:]]
    assert 0 < gains[0] < 0.04 and 0.15 < gains[1] < 0.25
    assert np.abs(gains[2:]).max() < 0.06


# Lesson 18: the noise --------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_noise_above_the_threshold_does_what_stochastic_rounding_does(seed):
    """Lesson 18: “They meet”, “From 2⁻² on, chance adds nothing but more noise”."""
    found = l18.measure_noisy_errors(seed=seed)
    nearest, chance = found.curves.values()
    ratio = nearest / chance
    assert min(ratio[:4]) > 3 and max(ratio[4:]) < 1.1
    assert f"up to a noise of {'2⁻³'};" in l18.plot_noisy_errors(found).claim


# Lesson 19: the horizon ------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_full(range(9), [1]))
def test_fp32_pairs_part_too_after_three_times_as_many_steps(seed):
    """Lesson 19: “FP32 pairs part as well, only later”.

    Measured, distance at step 450, seeds 0 to 8: 4.3e-5, .0038, .016, .0030, 9.3e-5, 5.6e-5, .036,
    .036, .041; accuracies differ on seeds 6, 7 and 8, by .0002, .092 and .008.
    """
    torch.set_num_threads(1)
    pair = l19.measure_runs_apart(
        "sequence-transformer", "fp32", seed=seed, steps=450, without="in_proj_bias"
    )
    assert pair.distances[149] < 1e-5 < pair.distances[-1]
