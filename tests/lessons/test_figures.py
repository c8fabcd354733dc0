"""Each figure of a lesson, of a few data, draws what it drew when somebody looked at it."""

import re

import numpy as np
import pytest
from drawn import assert_as_it_was, told
from histories import history
from legible import assert_legible

import mplab
from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, Rounding
from mplab.lessons.l02 import figures as l02
from mplab.lessons.l03 import figures as l03
from mplab.lessons.l04 import figures as l04
from mplab.lessons.l05 import figures as l05
from mplab.lessons.l06 import figures as l06
from mplab.lessons.l07 import figures as l07
from mplab.lessons.l07.descent import fit_by_gradient_descent, update_trajectory
from mplab.lessons.l08 import figures as l08
from mplab.lessons.l09 import figures as l09
from mplab.lessons.l12 import figures as l12
from mplab.lessons.l14 import figures as l14
from mplab.lessons.l15 import figures as l15
from mplab.lessons.l16 import figures as l16
from mplab.lessons.l16.integration import integrate
from mplab.lessons.l17 import figures as l17
from mplab.lessons.l18 import figures as l18
from mplab.lessons.l19 import figures as l19
from mplab.lessons.l20 import figures as l20
from mplab.scaling import DoublingScaler, FlooredScaler, LossScaler, simulate_scaler

pytestmark = pytest.mark.slow

SIX = [FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2]
FOUR = [FP16, BF16, FP8_E4M3, FP8_E5M2]
WIDE = 10.0 ** np.random.default_rng(0).uniform(-12, 8, 2000)
POWERS = 2.0 ** -np.arange(8)
NAN = np.nan


def sums(*kinds, **how):
    curves = [
        l05.measure_sum_errors(fmt, order=order, most=512, draws=4, **how)
        for fmt, order in kinds
    ]
    return l05.plot_sum_errors(curves, bounds_of=FP16)


def products(**how):
    return l05.plot_product_errors(l05.measure_product_errors(FP16, most=64, **how))


def depths(**how):
    return l06.plot_depth_errors(l06.measure_depth_errors(most=512, **how))


def descents(*methods):
    return l07.descents(
        [fit_by_gradient_descent(BF16, method=m, steps=1500) for m in methods]
    )


def test_a_descent_that_diverges_is_drawn_and_named():
    runs = [
        fit_by_gradient_descent(BF16, learning_rate=rate, steps=60)
        for rate in (3, 0.001)
    ]
    picture = l07.descents(runs)
    assert_legible(picture)
    assert picture.claim.startswith("BF16 weights rounded to nearest go on to a loss")
    assert picture.claim.endswith("; those rounded to nearest diverge.")


def test_only_a_run_that_falls_falls_farthest_and_nan_does():
    shares = {0: [0.5, 0.1]}
    wide, equal, lost = (of_shares(score, shares) for score in (0.9, 0.9, np.nan))
    picture = l08.shares_and_outcomes({"A": (wide, equal)})
    assert picture.claim.endswith("test R² 0.90 (FP32: 0.90)")
    picture = l08.shares_and_outcomes({"A": (wide, equal), "B": (wide, lost)})
    assert "; B 30%, and reaches test R² nan" in picture.claim


def test_rules_that_lose_as_many_steps_are_named_together():
    trace = simulate_scaler(LossScaler(), np.zeros(8))
    picture = l09.scale_rules({"dynamic": trace, "floor": trace})
    assert picture.claim == "Of 8 steps dynamic and floor skip 8"


def paths(weights, update, **how):
    return update_trajectory(np.array(weights), update, 200, BF16, **how)


def of_shares(score, shares):
    """A run with a final score, and by recorded step the shares flushed of 1000 in each layer."""
    flushed = {
        step: {f"layer {i}": (round(1000 * s), 1000) for i, s in enumerate(row, 1)}
        for step, row in shares.items()
    }
    return history("fp16-naive", 20, metrics={"r2": score}, flushed=flushed)


WELL = of_shares(0.8, {})
SLEEPY = of_shares(0.7, {0: [1.0, 0.8, 0.0], 10: [0.4, 0.1, 0.0]})
STALLED = of_shares(0.1, {0: [1.0, 0.2, 0.0], 10: [1.0, 0.9, 0.0]})
POOR = of_shares(0.3, {0: [0.9]})


def rules(*kinds):
    """Rules in 300 steps, of which a bad phase bears no scale above 1/8."""
    steps = np.arange(300)
    limits = np.where((steps >= 100) & (steps < 160), 2.0**-3, 2.0**7)
    return l09.scale_rules(
        {
            kind.__name__: simulate_scaler(kind(1024.0), limits, mean_abs_gradient=1e-9)
            for kind in kinds
        }
    )


def formulas(problem, fmt):
    return l14.measure_formula_errors(problem, fmt, draws=8, seed=1)


def costs(taken, method="classic"):
    steps = 4.0 ** np.arange(len(taken))
    curve = l15.RefinementCosts(FP16, method, 8, steps, np.array(taken))
    return l15.plot_refinement_costs([curve, curve._replace(fmt=BF16)])


def freezing():
    steps, line = POWERS[::-1], np.linspace(90, 30, 8)
    found = l16.FreezingPoints(FP16, steps, line, steps[::-1], line[::-1])
    return l16.plot_freezing_points([found, found._replace(fmt=BF16, reached=line)])


def of_steps():
    errors = 2.0 ** abs(np.arange(8) - 5) / 64
    facts = FP16, "nearest", "cups", "error", "step", POWERS, errors
    curve = l16.SimulationErrors(*facts)
    other = curve._replace(fmt=BF16, method="kahan", errors=2 * errors)
    return l16.plot_simulation_errors([curve, other])


def needed(**counts):
    spreads = np.array([0.0, 8.0])
    return l17.plot_slices_needed(
        [
            l17.SlicesNeeded(name, spreads, np.array([[n, n], [2 * n, 2 * n]]))
            for name, n in counts.items()
        ]
    )


def apart():
    """Pairs of runs, of which one never parts."""
    up = np.geomspace(1e-9, 1e-3, 20)
    return l19.plot_runs_apart(
        [
            l19.RunsApart("fp32", 0, up, (0.9, 0.9), 3),
            l19.RunsApart("fp32", 1, up / 2, (0.9, 0.9), 5),
            l19.RunsApart("amp-bf16", 0, up * 9, (0.9, 0.8), 7),
            l19.RunsApart("amp-bf16", 1, 0 * up, (0.9, 0.9), None),
        ]
    )


A = np.array([1.5, 1.125, -0.40625, 1.5 * 2.0**-6, 1.5 * 2.0**-6])
B = np.array([1.75, 1.5 * 2.0**-8, 1.375, 1.5 * 2.0**-7, 1.25 * 2.0**-6])
BLOCKS = np.concatenate([np.ones(32), np.full(32, 8.0), np.zeros(32)])
NEAR = np.concatenate([np.full(32, 1.25), [0.0], np.full(31, 8.0), np.zeros(32)])
CYCLE = np.array([[1.0, 0, 2], [3, 0, 4], [5, 0, 6]])[[0, 1, 2, 1, 2]]

FIGURES = {
    "02 gaps": lambda: l02.spacing(SIX),
    "02 gaps of four": lambda: l02.spacing([FP32, *FOUR[:3]]),
    "02 ranges": lambda: l02.dynamic_ranges(SIX),
    "03 twice": lambda: l03.double_rounding("17.004", FP16, FP8_E4M3),
    "03 twice as once": lambda: l03.double_rounding("-17.2", FP16, FP8_E4M3),
    "03 twice past the first": lambda: l03.double_rounding(70000.0, FP16, BF16),
    "03 means": lambda: l03.mean_errors(WIDE, BF16, list(Rounding)),
    "04 landing": lambda: l04.landing({"1e−4": 1e-4, "1e−8": 1e-8}, [FP16, BF16]),
    "04 near zero": lambda: l04.near_zero(FP8_E4M3),
    "04 near zero in E5M2": lambda: l04.near_zero(FP8_E5M2),
    "04 ends": lambda: l04.end_of_range([FP8_E4M3, FP8_E5M2]),
    "04 end of FP16": lambda: l04.end_of_range([FP16]),
    "04 fates": lambda: l04.fates({f.name: mplab.tally(WIDE, f) for f in FOUR}),
    "05 sums": lambda: sums(
        (FP16, "sequential"), (FP16, "pairwise"), (FP16, "kahan"), (FP32, "sequential")
    ),
    "05 sums of either sign": lambda: sums((FP16, "sequential"), signed=True),
    "05 ones": lambda: l05.stagnation([FP32, *FOUR]),
    "05 ones in FP32": lambda: l05.stagnation([FP32]),
    "05 products": products,
    "05 small products": lambda: products(below=2.0**-12),
    "06 depths": depths,
    "06 depths of either sign": lambda: depths(signed=True),
    "06 cuts": lambda: l06.plot_cut_errors(l06.measure_cut_errors(terms=256)),
    "06 a step": lambda: l06.bits_of_a_step(A, B, c=3 * 2.0**-14),
    "06 a step in FP16": lambda: l06.bits_of_a_step(
        np.array([1.0, 2.0**-12, 1.0]),
        np.array([1.0, 2.0**-13, -1.0]),
        input_format=FP16,
    ),
    "07 paths": lambda: l07.weight_paths(paths([0.1, 0.4, 1, 2], 0.003), update=0.003),
    "07 least updates": lambda: l07.least_updates([FP32, *FOUR[:3]], update=0.003),
    "07 descents": lambda: descents("nearest", "master", "stochastic"),
    "07 one descent": lambda: descents("nearest"),
    "07 coins": lambda: l07.stochastic_spread(
        paths(np.ones(60), -2e-4, method="stochastic", seed=1), update=-2e-4
    ),
    "08 outcomes": lambda: l08.shares_and_outcomes(
        {"A": (WELL, SLEEPY), "B": (WELL, STALLED)}
    ),
    "08 one outcome": lambda: l08.shares_and_outcomes({"B": (WELL, STALLED)}),
    "08 poor in both": lambda: l08.shares_and_outcomes(
        {"poor": (POOR, POOR), "B": (WELL, SLEEPY)}
    ),
    "08 table": lambda: l08.flushed_over_steps({"A": SLEEPY, "B": STALLED}),
    "09 rules": lambda: rules(LossScaler, DoublingScaler, FlooredScaler),
    "09 one rule": lambda: rules(LossScaler),
    "09 clipped": lambda: l09.clipped_norms(
        POWERS, {"first": np.ones(8), "last": POWERS}, max_norm=1.0
    ),
    "12 blocks": lambda: l12.block_errors(BLOCKS, {"zeros": 0 * BLOCKS, "near": NEAR}),
    "12 exact": lambda: l12.block_errors(BLOCKS, {"exact": BLOCKS}),
    "14 variance": lambda: l14.plot_formula_errors(formulas("variance", BF16)),
    "14 log-sum-exp": lambda: l14.plot_formula_errors(formulas("log-sum-exp", FP16)),
    "14 small root": lambda: l14.plot_formula_errors(formulas("small root", FP32)),
    "14 blame": lambda: l14.blame(formulas("small root", FP32)),
    "14 derivatives": lambda: l14.plot_derivative_errors(
        [l14.measure_derivative_errors(fmt) for fmt in (FP32, FP16, BF16)]
    ),
    "15 costs": lambda: costs([[1.0, 2.0], [2.0, 2.0], [3.0, NAN]]),
    "15 nowhere": lambda: costs([[NAN], [1.0]]),
    "15 inner steps": lambda: costs([[4.0], [4.5], [8.0]], "gmres"),
    "15 few inner steps": lambda: costs([[4.0], [4.0]], "gmres"),
    "16 courses": lambda: l16.time_courses(
        {
            "exact": 20 + 70 * np.exp(-0.1 * np.arange(21)),
            "E4M3": integrate(lambda t: -0.1 * (t - 20), 90.0, 1.0, 20, FP8_E4M3),
        },
        until=20,
    ),
    "16 freezing": freezing,
    "16 frozen": lambda: l16.plot_freezing_points(
        [l16.measure_freezing_points(fmt) for fmt in (FP8_E4M3, FP16, BF16)]
    ),
    "16 steps": of_steps,
    "16 errors": lambda: l16.plot_simulation_errors(
        [l16.measure_step_errors(BF16, seed=1)]
    ),
    "16 orbits": lambda: l16.orbits(
        {"one": CYCLE, "two": np.arange(15.0).reshape(5, 3)}
    ),
    "17 errors": lambda: l17.plot_emulation_errors(
        {"FP16": [1e-3, 1e-9, 1e-17, 0.0], "BF16 alone": [1e-3, 6e-8]}
    ),
    "17 one error": lambda: l17.plot_emulation_errors({"x": [0.5]}),
    "17 grid": lambda: l17.slice_grid([0.8, -0.3, 0.045, -0.0071]),
    "17 wrong sums": lambda: l17.plot_wrong_sums(l17.measure_wrong_sums(64, seed=2)),
    "17 needed": lambda: needed(FP16=6, INT8=8, moduli=15),
    "18 scales": lambda: l18.plot_four_bit_errors(l18.measure_scale_errors(seed=1)),
    "18 outliers": lambda: l18.plot_four_bit_errors(l18.measure_outlier_errors()),
    "18 quiet": lambda: l18.plot_four_bit_errors(l18.measure_quiet_errors()),
    "19 orders": lambda: l19.plot_order_errors(
        l19.measure_order_errors(orders=100, seed=1)
    ),
    "19 trees": lambda: l19.plot_orders(
        {"pairs": ((0, 1), (2, 3)), "a loop": (((0, 1), 2), 3)}
    ),
    "19 apart": apart,
    "20 rests": lambda: l20.plot_rests(l20.measure_rests()),
    "20 moves": lambda: l20.plot_moves(l20.measure_moves()),
    "20 growth": lambda: l20.plot_growth(l20.measure_growth()),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_a_lesson_draws_what_it_drew_can_be_read_and_is_described(name):
    picture = assert_legible(FIGURES[name]())
    assert_as_it_was(told(picture), __file__, f"{name}.txt")
    assert picture.alt.startswith(picture.claim)
    assert len(picture.alt) > len(picture.claim) + 20
    assert not re.search(r"\bnan\b|\binf\b", picture.alt)
