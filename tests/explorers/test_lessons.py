"""The explorers of sums, matrix units, updates, scales and policies: numbers at every position."""

import math
import re
from itertools import product
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
import torch
from every_explorer import SHOWN_WITH, kinds
from legible import assert_words_stand_out
from positions import assert_every_position_differs, assert_texts_within, positions
from tiers import mostly_slow

from mplab import BF16, FP8_E4M3, FP16, FP32, round_to
from mplab.arithmetic import mma, refine
from mplab.course.pictures.canvas import FACES, GOOD, INK
from mplab.lessons.l05.explorer import LENGTHS, AccumulatorRace
from mplab.lessons.l06.explorer import UNITS, MatrixStep
from mplab.lessons.l07.descent import update_trajectory
from mplab.lessons.l07.explorer import UpdateStagnation
from mplab.lessons.l09.explorer import ScalerTimeline
from mplab.lessons.l10.explorer import OPERATIONS, PolicyExplorer
from mplab.lessons.l12.explorer import AmaxHistory
from mplab.lessons.l13.clinic import CASES
from mplab.lessons.l13.explorer import Clinic
from mplab.lessons.l14.explorer import ErrorBudget
from mplab.lessons.l15.explorer import Refiner
from mplab.lessons.l15.figures import random_system
from mplab.lessons.l17.explorer import SliceSums
from mplab.lessons.l18.explorer import FourBitBlock
from mplab.lessons.l19.explorer import SplitRow

pytestmark = pytest.mark.slow

EXPLORERS = [
    kind
    for name, kind in kinds().items()
    if name not in SHOWN_WITH and kind is not ScalerTimeline  # it has a test of its own
]
every_explorer = pytest.mark.parametrize(
    "kind",  # all runs of the clinic take long, and a test below sees each of them
    mostly_slow(EXPLORERS, [kind for kind in EXPLORERS if kind is not Clinic]),
    ids=lambda kind: kind.__name__,
)


@every_explorer
def test_every_position_of_every_control_draws_and_says_something_else_that_can_be_read(
    kind,
):
    assert_every_position_differs(kind)
    assert_texts_within(kind)
    for shown in positions(kind):
        for picture, _ in shown:
            assert_words_stand_out(picture)


# The race --------------------------------------------------------------------------------


def loop(terms, fmt):
    total, moved = 0.0, 0
    for n, term in enumerate(terms, start=1):
        new = float(round_to(total + term, fmt))
        total, moved = new, n if new != total else moved
    return total, moved


def test_the_race_of_ones_ends_where_loops_end():
    race = AccumulatorRace()
    race.length.value = 4096
    by_name = {standing.lane.name: standing for standing in race.standings}
    for name, fmt in (("E4M3", FP8_E4M3), ("BF16", BF16), ("FP16", FP16)):
        total, moved = loop(np.ones(4096), fmt)
        standing = by_name[f"{name} one by one"]
        assert (standing.total, standing.stalled) == (total, moved)
        assert f"{name} one by one at term {moved:,}" in race.state.value
    assert by_name["FP32 one by one"].words == "4,096, exact"
    # By chance, the sum goes on past the number at which the loop stops, with an error.
    chance = by_name["BF16 stochastic"]
    assert chance.stalled is None
    assert 2**11 < chance.total < 2**13
    race.length.value = 256
    # BF16 holds 256 ones, and has not failed yet.
    assert race.standings[1].stalled is None
    assert "E4M3 one by one: 16, 93.8% short, stalled" in race.state.value


def test_random_terms_are_numbers_of_every_format_in_the_race():
    race = AccumulatorRace(seed=3)
    for name, terms in race._terms.items():
        for fmt in (FP8_E4M3, BF16, FP16, FP32):
            np.testing.assert_array_equal(round_to(terms, fmt), terms)
        race.terms.value = name
        race.length.value = LENGTHS[12]
        total, _ = loop(terms[: LENGTHS[12]], BF16)
        assert race.standings[1].total == total
        assert race.standings[0].exact == terms[: LENGTHS[12]].sum()


def test_the_bars_of_the_race_are_as_long_as_their_sums():
    race = AccumulatorRace()
    race.length.value = 4096
    svg = ElementTree.fromstring(race.picture.value)
    widths = [float(bar.get("width")) for bar in svg.iter("rect")][1:]
    shares = [width / widths[-1] for width in widths]  # FP32 is exact
    chance = race.standings[5].total / 4096
    expected = [16 / 4096, 256 / 4096, 0.5, 1, 1, chance, 1]
    assert np.allclose(shares, expected, atol=0.001)


# One step --------------------------------------------------------------------------------


def test_the_step_writes_what_the_unit_writes_at_every_position():
    explorer = MatrixStep()
    for unit, large, small, back in product(
        UNITS, (-12, 0, 7, 16), (-12, -5, 4), (True, False)
    ):
        explorer.unit.value, explorer.back.value = unit, back
        explorer.large.value, explorer.small.value = large, small
        step = explorer.step
        architecture, fmt = UNITS[unit]
        rows = [float(row.value) for row in step.terms]
        assert (
            rows
            == [2.25 * 2.0**large, 1.71875 * 2.0**small, -2.25 * 2.0**large][: 2 + back]
        )
        halves = [2.0 ** (e // 2) for e in (large, small, large)]
        rest = [2.0 ** (e - e // 2) for e in (large, small, large)]
        a = np.array([1.5, 1.375, -1.5]) * halves
        b = np.array([1.5, 1.25, 1.5]) * rest
        count = 2 + back
        got = mma(
            a[None, :count],
            b[:count, None],
            architecture=architecture,
            input_format=fmt,
        )
        assert float(step.rows[-1].value) == got[0, 0]
        assert np.isclose(step.error, got[0, 0] - sum(rows), rtol=0, atol=2.0**-60)


def test_the_line_stands_between_what_is_kept_and_what_is_cut():
    explorer = MatrixStep()
    explorer.small.value = -8  # the last bit kept is 1
    svg = ElementTree.fromstring(explorer.picture.value)
    line = next(path for path in svg.iter("path") if "black" in path.get("stroke"))
    at = float(re.match(r"M([\d.]+) ", line.get("d"))[1])
    cells = list(svg.iter("rect"))
    pale, dark = (FACES[i].strip("#") for i in (5, 4))
    kept = [
        float(c.get("x")) + float(c.get("width"))
        for c in cells
        if pale in c.get("fill")
    ]
    cut = [float(c.get("x")) for c in cells if dark in c.get("fill")]
    assert len(cut) == 3
    assert max(kept) - 0.2 <= at <= min(cut) + 0.2


def test_the_answer_to_its_question_moves_with_the_large_product():
    """E4M3 on Hopper keeps bits down to 13 places below the large product's exponent."""
    explorer = MatrixStep()
    for large in (1, 2, 3):
        explorer.large.value = large
        explorer.small.value = large - 13
        assert "5 bits are 1; the cut takes 4 of them" in explorer.state.value
    explorer.small.value = -11
    assert "the cut takes all of them" in explorer.state.value
    assert "written 0." in explorer.state.value


# Updates ---------------------------------------------------------------------------------


def test_the_explorer_of_updates_follows_the_weights():
    explorer = UpdateStagnation(seed=5)
    kinds = {"to nearest": "nearest", "Kahan": "kahan", "FP32 master": "master"}
    for method, weight, exponent in product(kinds, (0.25, 1.0, 3.0), (-16, -9, -4)):
        explorer.method.value, explorer.weight.value = method, weight
        explorer.update.value, explorer.direction.value = exponent, "down"
        want = update_trajectory(
            weight, -(2.0**exponent), 256, BF16, method=kinds[method]
        )
        np.testing.assert_array_equal(explorer.path, want)
        assert (
            f"the weight is {want[-1]:.6g};".replace("-", "−") in explorer.state.value
        )


def test_half_the_way_up_is_a_tie_and_the_same_update_goes_all_the_way_down():
    explorer = UpdateStagnation()
    explorer.update.value = -8
    assert (
        "exactly half, so rounding to nearest returns to the weight"
        in explorer.state.value
    )
    explorer.direction.value = "down"
    assert "is 100% of the way from 1 down" in explorer.state.value
    assert "goes to 0.996094" in explorer.state.value
    assert re.search(r"(?s)>1\.0078125<.*>Δ = −2⁻⁸<", explorer.picture.value)


# A history of magnitudes -----------------------------------------------------------------


@pytest.mark.parametrize("rule", ["the largest in the history", "the latest"])
@pytest.mark.parametrize("fmt", ["E4M3", "E5M2"])
def test_each_scale_of_the_history_is_that_of_the_tensors_before(rule, fmt):
    explorer = AmaxHistory(seed=2)
    explorer.rule.value, explorer.fmt.value = rule, fmt
    dtypes = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}
    largest = float(ml_dtypes.finfo(dtypes[fmt]).max)
    for length, margin, spike in ((1, 0, 12), (4, 3, 18), (32, 0, 24)):
        explorer.history.value, explorer.margin.value = length, margin
        explorer.spike.value = spike
        window, tensors = explorer.window, explorer.tensors
        amaxes = np.abs(tensors).max(1)
        assert np.argmax(amaxes) == 14
        for step in range(1, len(tensors)):
            seen = amaxes[max(0, step - length) : step]
            amax = seen[-1] if rule == "the latest" else seen.max()
            scale = window.scales[step]
            assert amax * scale <= largest / 2**margin < 2 * amax * scale
            zeros = (tensors[step] * scale).astype(np.float32).astype(dtypes[fmt]) == 0
            assert window.flushed[step] == zeros.mean()


def test_the_tensor_itself_never_saturates_and_a_margin_saves_a_small_spike():
    explorer = AmaxHistory()
    assert explorer.window.saturated[14] > 0.9
    assert (
        "step 14 is 2¹⁸ times as large. Of the spike 100% saturates"
        in explorer.state.value
    )
    explorer.spike.value = 4
    assert explorer.window.saturated[14] > 0.5
    explorer.margin.value = 5
    assert explorer.window.saturated[14] == 0
    explorer.margin.value, explorer.spike.value = 0, 24
    explorer.rule.value = "the tensor itself"
    assert explorer.window.saturated.max() == explorer.spoilt == 0


def test_the_step_that_is_looked_at_is_the_one_in_words():
    explorer = AmaxHistory()
    for step in (0, 14, 30, 31):
        explorer.step.value = step
        window = explorer.window
        amax, zeros = np.abs(explorer.tensors[step]).max(), 100 * window.flushed[step]
        assert f"Step {step}: largest magnitude {amax:.3g}," in explorer.state.value
        assert f" {zeros:.1f}% became 0" in explorer.state.value.replace(
            "0% b", "0.0% b"
        )


# Policies --------------------------------------------------------------------------------


@pytest.mark.parametrize("low", ["FP16", "BF16"])
@pytest.mark.parametrize("inputs", ["low format", "FP32", "one of each"])
def test_the_policy_of_the_cpu_gives_what_autocast_on_the_cpu_gives(low, inputs):
    """The dtypes of torch itself, operation by operation."""
    explorer = PolicyExplorer()
    explorer.fmt.value, explorer.inputs.value = low, inputs
    dtypes = {"FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32}
    formats = {"low format": (low, low), "FP32": ("FP32", "FP32")}.get(
        inputs, (low, "FP32")
    )
    a, b = (torch.rand(4, 4).add(1).to(dtypes[fmt]) for fmt in formats)
    for name, operation in OPERATIONS.items():
        explorer.operation.value = name
        with torch.autocast("cpu", dtype=dtypes[low]):
            real = operation.run(a, b).dtype
        gives = explorer.verdicts["CPU_AUTOCAST"].gives.name
        assert dtypes[gives] == real, name
        assert f"CPU_AUTOCAST gives {gives} (" in explorer.state.value
        assert explorer.picture.value.count(f">{gives}<") >= 1


VERDICTS = [
    ("exp", "low format", "CUDA_AUTOCAST", ((FP32,), 0, FP32, 1)),
    ("matmul: a @ b", "one of each", "KERAS_MIXED", ((FP16, FP16), 1, FP16, 1)),
    ("add: a + b", "one of each", "CUDA_AUTOCAST", ((FP16, FP32), 0, FP32, 1)),
    ("add: a + b", "one of each", "KERAS_MIXED", ((FP16, FP16), 1, FP16, 1)),
    # A log_softmax, and a choice from it.
    ("cross_entropy", "low format", "CPU_AUTOCAST", ((FP32,), 0, FP32, 2)),
    # One kernel, whose key and value are the wide input.
    ("attention", "one of each", "EVERYTHING", ((FP16,) * 3, 2, FP16, 1)),
]


@pytest.mark.parametrize(("operation", "inputs", "policy", "expected"), VERDICTS)
def test_inputs_rounded_for_an_operation_and_its_steps_are_counted(
    operation, inputs, policy, expected
):
    explorer = PolicyExplorer()
    explorer.operation.value, explorer.inputs.value = operation, inputs
    found = explorer.verdicts[policy]
    assert (found.takes, found.rounded, found.gives, found.steps) == expected
    assert f"{policy} gives {found.gives.name} ({found.rule}" in explorer.state.value
    assert found.note in explorer.state.value


# Refinement ------------------------------------------------------------------------------


def test_refinement_is_drawn_as_it_is_computed():
    explorer = Refiner()
    for fmt, level, power, scale in (
        (FP16, 7, 0, False),
        (BF16, 3, 12, True),
        (FP16, 20, 0, True),
    ):
        explorer.fmt.value, explorer.level.value = fmt.name, level
        explorer.power.value, explorer.scale.value = power, scale
        a, b, _ = random_system(2.0**level, size=32)
        want = refine(2.0**power * a, b, factor_format=fmt, scale=scale)
        np.testing.assert_array_equal(
            explorer.found.backward_errors, want.backward_errors
        )
        svg = ElementTree.fromstring(explorer.picture.value)
        heights = [float(dot.get("cy")) for dot in svg.iter("circle")]
        exponents = np.maximum(np.log2(np.maximum(want.backward_errors, 2.0**-60)), -60)
        assert np.allclose(heights, 16 + 246 * -exponents / 60, atol=0.06)
        verdict = "converged, from" if want.converged else "not converged, from"
        assert f": {verdict} 2" in explorer.state.value
        assert f" in {want.steps} corrections" in explorer.state.value


def test_where_there_are_no_factors_the_explorer_says_why():
    explorer = Refiner()
    explorer.power.value = 20
    assert "factors in FP16 broke down: column 0 meets inf." in explorer.state.value
    assert "broke down: column 0 meets inf<" in explorer.picture.value
    explorer.scale.value = True
    assert ": converged, from" in explorer.state.value
    explorer.method.value, explorer.level.value = "gmres", 20
    assert (
        f"with {explorer.found.inner_steps} inner steps, n = 32" in explorer.state.value
    )


# One block of four bits ------------------------------------------------------------------


def test_each_number_of_the_block_comes_back_from_the_nearest_value_of_its_scale():
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    explorer = FourBitBlock()
    for way, position in product(explorer.way.options, range(14)):
        explorer.way.value, explorer.outlier.value = way, position
        exact, stored, back = np.array(explorer.fates).T
        scale = np.abs(back).max() / np.abs(stored).max()
        off = np.abs(np.abs(exact)[:, None] - scale * e2m1)
        if "floor" in way:
            assert scale == 2.0 ** (np.floor(np.log2(np.abs(exact).max())) - 2)
        elif "RCEIL" in way:
            assert scale == 2.0 ** np.ceil(np.log2(np.abs(exact).max() / 6))
        else:
            assert scale == pytest.approx(np.abs(exact).max() / 6, rel=1e-6)
        assert np.all(np.abs(back - exact) <= off.min(axis=1) + 1e-6)
        survivors = int(np.sum(np.abs(back - exact) <= np.abs(exact) / 4))
        said = f"Survivors: {survivors} of 16; zeros: {int((back == 0).sum())}"
        assert said in explorer.state.value


# Slices ----------------------------------------------------------------------------------


def test_the_growing_sum_and_its_verdict_are_those_of_integers():
    explorer = SliceSums()
    for bits, level, kind in (
        (10, 6, "positive"),
        (11, 6, "nearly equal"),
        (12, 0, "positive"),
    ):
        explorer.bits.value, explorer.level.value, explorer.kind.value = (
            bits,
            level,
            kind,
        )
        found, k = explorer.found, 2**level
        assert found.path.shape == (k,)
        assert np.all(found.path <= 4.0 ** (bits - 1) * np.arange(1, k + 1))
        assert (found.bound, found.rule) == (
            level + 2 * bits - 2,
            min(12, (26 - level) // 2),
        )
        fits = "fits whatever the numbers" if found.bound <= 24 else "need not fit"
        assert fits in explorer.state.value
        assert f"the unit gets {found.wrong} wrong" in explorer.state.value
        if found.path.max() <= 2**24:
            assert found.wrong == 0
        svg = ElementTree.fromstring(explorer.picture.value)
        growing = next(
            p for p in svg.iter("path") if GOOD.strip("#") in p.get("stroke")
        )
        last = float(growing.get("d").split()[-1])
        assert np.isclose(last, 292 - 278 * np.log2(found.path[-1]) / 36, atol=0.06)
    explorer.bits.value, explorer.level.value = 11, 6
    assert explorer.found.wrong > 0


# The bits of a row -----------------------------------------------------------------------


def test_each_row_is_that_of_a_loop_over_the_parts():
    rng = np.random.default_rng(19)
    x, w = (
        round_to(rng.standard_normal(shape), BF16) for shape in ((1, 256), (256, 12))
    )
    explorer, rows = SplitRow(), {}
    for parts in (1, 3, 16):
        total = np.zeros(12, np.float32)
        for c in range(parts):
            part = np.zeros(12, np.float32)
            for k in range(c * 256 // parts, (c + 1) * 256 // parts):
                # Products are exact.
                part = part + np.float32(x[0, k]) * w[k].astype(np.float32)
            total = total + part
        rows[parts] = total.view(np.int32)
        explorer.parts.value, explorer.way.value = parts, "FP32"
        assert explorer.flips == (rows[parts] ^ rows[1]).tolist()
        dark = re.findall(
            rf'<rect [^>]*fill="var.--c{INK[1:]}.', explorer.picture.value
        )
        assert len(dark) == sum(flip.bit_count() for flip in explorer.flips)


def test_gaps_part_sign_exponent_and_significand_of_what_is_stored():
    explorer = SplitRow()
    for way, exponent, bits in (
        ("FP32", 8, 32), ("FP32, the result in BF16", 8, 16), ("FP16", 5, 16), ("BF16", 8, 16),
    ):  # fmt: skip
        explorer.way.value = way
        rows = re.findall(
            r'<text x="(\d+)" y="(\d+)" text-anchor="middle"', explorer.picture.value
        )
        for y in {y for _, y in rows}:
            steps = np.diff([int(x) for x, at in rows if at == y])
            assert len(steps) == bits - 1
            assert np.flatnonzero(steps > steps.min()).tolist() == [0, exponent]


# The clinic ------------------------------------------------------------------------------


def test_the_clinic_shows_what_each_case_shows_under_each_treatment():
    explorer = Clinic()
    for name, case in CASES.items():
        explorer.case.value = name
        for words, treatment in (
            ("none", "broken"),
            ("usual remedy", "wrong"),
            ("cure", "fixed"),
        ):
            explorer.treatment.value = words
            verdict = "healthy" if treatment == "fixed" else "ill"
            assert explorer.outcome is case.run(treatment)
            assert f"so the run is {verdict}." in explorer.state.value
            assert (
                f"{case.run(treatment).observed:.3g} – {verdict}<"
                in explorer.picture.value
            )
            nan = any(math.isnan(loss) for loss in explorer.outcome.losses)
            assert (">NaN<" in explorer.picture.value) == nan


def test_the_clinic_says_that_it_trains_a_run_and_only_the_first_time():
    explorer, shown = Clinic(), []
    explorer.picture.observe(lambda change: shown.append(change["new"]), names="value")
    explorer.case.value = "positions"
    said = ["Training positions, treatment: none …" in picture for picture in shown]
    assert said == [True, False]
    explorer.case.value = "no-loss-scale"
    explorer.case.value = "positions"
    assert not any("Training" in picture for picture in shown[1:])


# The error budget ------------------------------------------------------------------------


def verdicts(problem, fmt):
    """Who is to blame for each formula, at every position of the slider."""
    budget = ErrorBudget()
    budget.problem.value, budget.fmt.value = problem, fmt
    said = []
    for level in range(budget.level.max + 1):
        budget.level.value = level
        said.append([verdict for _, _, verdict in budget.verdicts])
    return said


def test_whoever_loses_all_while_the_data_hold_an_answer_is_to_blame():
    """In FP16 two passes overflow from 2^8 on; the data hold an answer up to 2^9."""
    fault = "the formula's fault"
    two_passes = [good for _, good in verdicts("variance", "FP16")]
    assert two_passes[8:] == [fault] * 2 + ["only more bits help"] * 3
    assert fault not in two_passes[:8]
    assert [bad for bad, _ in verdicts("variance", "BF16")][4:7] == [fault] * 3
    assert {good for _, good in verdicts("small root", "FP32")} == {
        "as good as its data"
    }
