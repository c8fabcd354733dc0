"""What lesson 19 claims of two runs that disagree, computed again."""

import copy

import nbformat
import numpy as np
import pytest
import torch

from mplab import BF16, FP32, arithmetic, pictures, round_to
from mplab.course.files import course_folder
from mplab.explorers import SplitRow
from mplab.pictures._two_runs import Decoder
from mplab.training import TASKS

CELLS = nbformat.read(next(course_folder("lessons").glob("19_*.ipynb")), as_version=4).cells


def prose():
    return "\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")


def cell(name):
    return next(cell.source for cell in CELLS if cell.id == name)


SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
def test_a_thousand_orders_share_a_few_dozen_places_and_one_after_a_cast(seed):
    assert "a thousand orders have to share a few dozen places" in prose()
    assert "other seeds gave up to 200" in prose()
    found = pictures.order_errors(seed=seed).offsets
    counts = [len(found[name]) for name in ("FP32", "FP16", "BF16")]
    assert 15 <= min(counts) <= max(counts) <= 200
    assert max(counts) < 1.5 * min(counts)
    assert len(found["FP32, then FP16"]) == len(found["FP32, then BF16"]) == 1
    assert np.ptp(found["BF16"]) * 2**-8 > 0.1  # "more than a tenth of the result"


def test_twenty_seven_fp32_sums_agree_in_five_digits(capsys):
    assert "(b), and all of them agree in five digits" in prose()
    exec(cell("setup") + "\n" + cell("surprise"), space := {})
    low, high = space["found"][[0, -1]]
    assert 20 <= len(space["found"]) <= 30
    assert f"{low:.5g}" == f"{high:.5g}" or high - low < 5e-6 * high


def test_four_splits_make_four_rows_and_a_fixed_one_makes_one(capsys):
    assert "Four splits make four rows 0; a fixed split makes one" in prose()
    exec(cell("setup") + "\n" + cell("batch"), {})
    assert capsys.readouterr().out == ("by batch: 4 different rows\nalways 4: 1 different rows\n")


def test_about_half_of_fp32_s_numbers_change_and_none_that_is_stored_in_bf16():
    assert "In FP32 about half of the numbers change" in prose()
    explorer, changed = SplitRow(), {}
    for way in explorer.way.options:
        explorer.way.value = way
        for parts in range(2, 17):
            explorer.parts.value = parts
            changed.setdefault(way, []).append(explorer.changed)
    assert 4 <= min(changed["FP32"]) <= np.mean(changed["FP32"]) <= max(changed["FP32"]) <= 8
    assert not any(changed["FP32, the result in BF16"])
    assert min(changed["FP16"] + changed["BF16"]) >= 9


def test_in_longer_rows_a_stored_number_changes_now_and_then():
    assert "in longer ones, now and then, a number near a tie does" in prose()
    rng, how = np.random.default_rng(1), {"accumulator_format": FP32, "output_format": BF16}
    x, w = (round_to(rng.standard_normal(shape), BF16) for shape in ((1, 256), (256, 16384)))
    whole, cut = (arithmetic.matmul(x, w, split_k=parts, **how) for parts in (1, 16))
    assert 0 < np.mean(whole != cut) < 0.002


@pytest.mark.slow
@SEEDS
def test_a_plain_run_comes_again_and_noise_over_noise_sets_the_nudged_one_apart(seed):
    assert "The first two runs do not differ anywhere" in prose()
    assert "More than nine tenths of the distance" in prose()
    source = cell("digest").replace("manual_seed(0)", f"manual_seed({seed})")
    exec(cell("setup") + "\n" + source, space := {})
    (plain, a), (again, _), (nudged, b) = (space["run"](n, steps=1) for n in (0, 0, 1))
    assert space["compare"](plain, again).equal
    assert space["compare"](plain, nudged).first.site.direction == "start"
    bias, other = (m.layers[0].self_attn.in_proj_bias for m in (a, b))
    gradient, apart = (t.detach().view(3, 32).norm(dim=1) for t in (bias.grad, bias - other))
    assert 1e-10 < gradient[1] < 1e-9
    assert min(gradient[0], gradient[2]) > 1e-3
    assert apart[1] > 1e4 * max(apart[0], apart[2])
    between = [
        (p - q).detach().double().norm() ** 2 for p, q in zip(*map(weights, (a, b)), strict=True)
    ]
    keys = [
        (m.self_attn.in_proj_bias - n.self_attn.in_proj_bias).detach()[32:64].double().norm() ** 2
        for m, n in zip(a.layers, b.layers, strict=True)
    ]
    assert float(sum(keys) / sum(between)) > 0.9**2


def weights(model):
    return list(model.parameters())


def test_the_attention_layers_move_millions_of_ulps_apart():
    assert "In the attention layers they are millions of ulps apart" in prose()
    exec(cell("setup") + "\n" + cell("digest"), space := {})
    found = space["compare"](*(space["run"](nudge, steps=4)[0] for nudge in (0, 1)))
    updates = [d for d in found.differences if d.site.direction == "update"]
    attention = [d.ulps for d in updates if d.site.what == "in_proj_bias"]
    assert sum(p.numel() for p in TASKS["sequence-transformer"].model().parameters()) == 18_058
    assert max(attention) > 1e6
    assert np.median([d.ulps for d in updates if "self_attn" not in d.site.layer]) < 100


@pytest.mark.slow
@SEEDS
def test_bf16_hides_one_ulp_and_then_enlarges_it_and_accuracy_agrees(seed):
    assert "Coarse rounding hides small differences" in prose()
    assert "Two runs of a pair agree within 0.01" in prose()
    wide, narrow = (
        pictures.runs_apart("sequence-transformer", recipe, seed=seed, steps=150)
        for recipe in ("fp32", "amp-bf16")
    )
    assert narrow.distances[0] < 1e-9 < 1e-6 < wide.distances[0] < 1e-5
    if narrow.parted is not None:
        assert narrow.distances[-1] > 10 * wide.distances[-1]
    for pair in (wide, narrow):
        assert abs(pair.metrics[0] - pair.metrics[1]) < 0.01


@pytest.mark.slow
@SEEDS
def test_gaps_have_a_ratio_of_eight_and_grow_like_the_root(seed):
    assert "By 8 = 2³, and like √T" in prose()
    found = pictures.rollout_gaps(seed=seed).gaps
    fp16, bf16 = (np.abs(found[name]).mean() for name in ("FP16", "BF16"))
    assert 7 < bf16 / fp16 < 9
    spread = np.cumsum(found["BF16"], axis=1).std(axis=0)
    assert 0.3 < np.log(spread[127] / spread[7]) / np.log(16) < 0.7
    assert 0.017 < spread[127] < 0.03  # "about 2 percent"
    assert 0.15 < spread[127] * (10_000 / 128) ** 0.5 < 0.27


def learnt(seed, dtype):
    """The share of steps upward in texts that are rewarded for them, after 150 updates."""
    torch.manual_seed(seed)
    model, generator, rewards = Decoder(12), torch.Generator().manual_seed(seed), []
    adam = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        tokens, _ = copy.deepcopy(model).to(dtype).rollout(64, 12, generator)
        reward = (tokens[:, 1:] == (tokens[:, :-1] + 1) % 16).float()
        to_come = reward.flip(1).cumsum(1).flip(1)
        better = to_come - to_come.mean(0)
        adam.zero_grad()
        (-(better / (better.std() + 1e-6) * model.scores(tokens)).mean()).backward()
        adam.step()
        rewards.append(float(reward.mean()))
    return np.mean(rewards[-10:])


@pytest.mark.slow
def test_a_small_policy_learns_as_well_from_rollouts_in_bf16():
    assert "with rollouts in BF16 and training in FP32 it learns as well" in prose()
    wide, narrow = (
        np.array([learnt(seed, dtype) for seed in range(2)])
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert min(wide) > 0.3  # by chance: 1/16
    assert np.all(abs(wide - narrow) < 0.03)
