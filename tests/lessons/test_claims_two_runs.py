"""What lesson 19 claims of two runs that disagree, computed again."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from prose import ran
from tiers import mostly_full

from mplab import BF16, FP32, arithmetic, round_to
from mplab.lessons.l19 import figures as l19
from mplab.lessons.l19.explorer import SplitRow
from mplab.lessons.l19.figures import Decoder
from mplab.training import TASKS

pytestmark = pytest.mark.slow

SEEDS = pytest.mark.parametrize("seed", range(3))

TASK = TASKS["sequence-transformer"]

ONE_SEED = pytest.mark.parametrize("seed", mostly_full(range(5), [0]))


@SEEDS
def test_a_thousand_orders_share_a_few_dozen_places_and_one_after_a_cast(seed):
    """Lesson 19: “a thousand orders have to share a few dozen places”, “most other seeds give
    fewer than 60, a few give hundreds”.
    """
    found = l19.measure_order_errors(seed=seed).offsets
    counts = [len(found[name]) for name in ("FP32", "FP16", "BF16")]
    assert 15 <= min(counts) <= max(counts) <= 600
    assert max(counts) < 1.5 * min(counts)
    assert len(found["FP32 then FP16"]) == len(found["FP32 then BF16"]) == 1
    assert np.ptp(found["BF16"]) * 2**-8 > 0.1  # "more than a tenth of the result"


def test_twenty_seven_fp32_sums_agree_in_five_digits(capsys):
    """Lesson 19: “(b), and all of them agree in five digits”."""
    found = ran(19, "setup", "surprise")["found"]
    low, high = found[[0, -1]]
    assert 20 <= len(found) <= 30
    assert f"{low:.5g}" == f"{high:.5g}" or high - low < 5e-6 * high


def test_four_splits_make_four_rows_and_a_fixed_one_makes_one(capsys):
    """Lesson 19: “Four splits make four versions of row 0; a fixed split makes one”."""
    ran(19, "setup", "batch")
    assert capsys.readouterr().out == (
        "by batch: 4 different rows\nalways 4: 1 different rows\n"
    )


def test_about_half_of_fp32_s_numbers_change_and_none_that_is_stored_in_bf16():
    """Lesson 19: “In FP32 four to seven of the twelve numbers change”, “An accumulator of 16
    bits changes nine or more”.
    """
    explorer = SplitRow()
    changed = {}
    for way in explorer.way.options:
        explorer.way.value = way
        for parts in range(2, 17):
            explorer.parts.value = parts
            changed.setdefault(way, []).append(explorer.changed)
    assert (min(changed["FP32"]), max(changed["FP32"])) == (4, 7)
    assert not any(changed["FP32, the result in BF16"])
    assert min(changed["FP16"] + changed["BF16"]) == 9


@SEEDS
def test_a_split_chooses_the_expert_of_some_tokens_in_a_hundred_with_bf16_sums(
    seed, capsys
):
    """Lesson 19: “None in FP32, some in a hundred with BF16 sums”, “one token in a hundred has
    two largest scores”.
    """
    space = ran(19, "setup", "batch") | {"rng": np.random.default_rng(seed)}
    ran(19, "router", **space)
    lines = capsys.readouterr().out.splitlines()[2:]
    wide, narrow, stored = (
        [int(word) for word in line.partition(": ")[2].split() if word.isdigit()]
        for line in lines
    )
    assert wide[0] == 0 and 60 < narrow[0] < 140
    assert stored[0] <= 2 and 10 < stored[1] < 45


def test_in_longer_rows_a_stored_number_changes_now_and_then():
    """Lesson 19: “in longer rows a number near a tie now and then changes”."""
    rng = np.random.default_rng(1)
    how = {"accumulator_format": FP32, "output_format": BF16}
    x, w = (
        round_to(rng.standard_normal(shape), BF16) for shape in ((1, 256), (256, 16384))
    )
    whole, cut = (arithmetic.matmul(x, w, split_k=parts, **how) for parts in (1, 16))
    assert 0 < np.mean(whole != cut) < 0.002


@SEEDS
def test_a_plain_run_comes_again_and_noise_sets_key_biases_apart(seed):
    """Lesson 19: “The first two runs do not differ anywhere”, “more than 99 percent of the
    distance”, “a gradient of less than 10⁻⁹: rounding errors”, “after one step key biases are
    about a hundred thousand times farther apart”, “they move a hundredth as far”.
    """
    space = ran(19, "setup", "digest", seed=seed)
    (plain, a), (again, _), (nudged, b) = (space["run"](n, steps=1) for n in (0, 0, 1))
    assert space["compare"](plain, again).equal
    assert space["compare"](plain, nudged).first.site.direction == "start"
    bias, other = (m.layers[0].self_attn.in_proj_bias for m in (a, b))
    gradient, apart = (
        t.detach().view(3, 32).norm(dim=1) for t in (bias.grad, bias - other)
    )
    assert 1e-10 < gradient[1] < 1e-9
    assert min(gradient[0], gradient[2]) > 1e-3
    ratios = (apart[1] / apart[::2]).tolist()
    assert 5e4 < min(ratios) <= max(ratios) < 2.5e5
    moved = bias.detach().view(3, 32).norm(dim=1).tolist()
    assert 0.005 < moved[1] / moved[0] < 0.02
    # Quotients of 1 or −1.
    assert moved[::2] == pytest.approx([0.003 * 32**0.5] * 2, rel=1e-3)
    between = [
        (p - q).detach().double().norm() ** 2
        for p, q in zip(*map(weights, (a, b)), strict=True)
    ]
    keys = [
        (m.self_attn.in_proj_bias - n.self_attn.in_proj_bias)
        .detach()[32:64]
        .double()
        .norm()
        ** 2
        for m, n in zip(a.layers, b.layers, strict=True)
    ]
    assert float(sum(keys) / sum(between)) > 0.99**2


def weights(model):
    return list(model.parameters())


def test_the_attention_layers_move_millions_of_ulps_apart():
    """Lesson 19: “nearly every tensor, by a few to some hundred ulps”, “In the attention
    layers they are millions of ulps apart and more”.
    """
    space = ran(19, "setup", "digest")
    found = space["compare"](*(space["run"](nudge, steps=4)[0] for nudge in (0, 1)))
    forward = [d.ulps for d in found.differences if d.site.direction == "forward"]
    assert 1 < np.median(forward) < 1000
    updates = [d for d in found.differences if d.site.direction == "update"]
    attention = [d.ulps for d in updates if d.site.what == "in_proj_bias"]
    assert sum(p.numel() for p in TASK.model().parameters()) == 18_058
    assert max(attention) > 1e6
    assert np.median([d.ulps for d in updates if "self_attn" not in d.site.layer]) < 100


def without_key_biases():
    model = TASK.model()

    def clear(attention, _):
        attention.in_proj_bias.data[32:64] = 0

    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(clear)
    return model


@SEEDS
def test_key_biases_do_not_set_the_other_weights_apart(seed):
    """Lesson 19: “We kept them at 0 in both runs, and all other weights were as far apart”."""
    how = {"seed": seed, "steps": 20, "without": "in_proj_bias"}
    free, still = (
        l19.measure_runs_apart(task, "fp32", **how).distances[-1]
        for task in (TASK, replace(TASK, model=without_key_biases))
    )
    assert free == pytest.approx(still, rel=0.1)


@ONE_SEED
def test_bf16_hides_one_ulp_and_then_enlarges_it_and_accuracy_agrees(seed):
    """Lesson 19: “in these 150 steps they come no farther than 10⁻⁵ apart”, “thousands of times
    farther apart than those in FP32”, “In FP32 both runs of a pair have the same accuracy, to
    the last digit”, “they differ, but by less than 0.02”.

    Measured on four processors, distance at the end, seeds 0 to 4: FP32 2.3e-7 to 1.2e-6; BF16
    3.1e-3 to 1.43e-2, or 0 where BF16 forgets the ulp: seed 4 did on two processors, and parted at
    step 24 to 44 on the others. Accuracy: FP32 the same, BF16 up to 0.0132 apart.
    """
    how = {"seed": seed, "steps": 150, "without": "in_proj_bias"}
    wide, narrow = (
        l19.measure_runs_apart("sequence-transformer", recipe, **how)
        for recipe in ("fp32", "amp-bf16")
    )
    assert narrow.distances[0] < 1e-9 < wide.distances[0] < 1e-7
    assert wide.distances.max() < 1e-5
    if narrow.parted is not None:
        assert narrow.distances[-1] > 2000 * wide.distances[-1]
    assert wide.metrics[0] == wide.metrics[1]
    assert abs(narrow.metrics[0] - narrow.metrics[1]) < 0.02


@SEEDS
def test_gaps_have_a_ratio_of_eight_and_grow_like_the_root(seed):
    """Lesson 19: “By about 8 = 2³, and like √T”."""
    found = l19.measure_rollout_gaps(seed=seed).gaps
    fp16, bf16 = (np.abs(found[name]).mean() for name in ("FP16", "BF16"))
    assert 7 < bf16 / fp16 < 9
    spread = np.cumsum(found["BF16"], axis=1).std(axis=0)
    assert 0.3 < np.log(spread[127] / spread[7]) / np.log(16) < 0.7
    assert 0.017 < spread[127] < 0.03  # "about 2 percent"
    assert 0.15 < spread[127] * (10_000 / 128) ** 0.5 < 0.27


def learnt(seed, dtype):
    """The share of steps upward in texts that are rewarded for them, after 150 updates."""
    torch.manual_seed(seed)
    model = Decoder(12)
    generator = torch.Generator().manual_seed(seed)
    rewards = []
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


@ONE_SEED
def test_a_small_policy_learns_as_well_from_rollouts_in_bf16(seed):
    """Lesson 19: “with rollouts in BF16 and training in FP32 it learns as well”.

    Measured, rewards in FP32, seeds 0 to 4: .75 to .91; BF16 differs by .0004 at most.
    """
    wide, narrow = (learnt(seed, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert wide > 0.6  # by chance: 1/16
    assert abs(wide - narrow) < 0.01
