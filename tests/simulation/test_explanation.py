"""What explain() says: that it is what ran, that it changes nothing, and that it can be read."""

import copy

import pytest
import torch
from legible import assert_legible, drawn_texts
from networks import gradients, loss, mlp
from torch import nn
from torch.nn import functional as F

from mplab import BF16, FP16, FP32
from mplab.course.pictures import precision_map
from mplab.simulation import explain, simulated
from mplab.simulation.policies import (
    CPU_AUTOCAST,
    CUDA_AUTOCAST,
    EVERYTHING,
    KERAS_MIXED,
    POLICIES,
)


class SmallTransformer(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, **layer) for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def explained(policy=CUDA_AUTOCAST, blocks=1):
    x = torch.randint(0, 11, (2, 5))

    def loss(output):
        return F.cross_entropy(output.flatten(0, 1), x.flatten())

    return explain(SmallTransformer(blocks), x, policy=policy, loss=loss)


def formats(found, operation, module=""):
    return {
        row.format
        for row in found.rows
        if row.operation == operation and module in row.module
    }


@pytest.mark.parametrize("policy", POLICIES.values())
def test_the_counts_of_a_run_agree_with_what_is_explained(policy):
    """Each operation that rounded, and no other, is said to have given a low result."""
    model = mlp(6, 5, 3)
    x = torch.randn(4, 6)
    found = explain(model, x, policy=policy, loss=loss)
    with simulated(FP16, policy=policy) as sim:
        loss(model(x)).backward()
    said: dict[str, int] = {}
    for row in found.rows:
        if row.format == FP16:
            name = row.operation.removesuffix("_backward")
            name += " backward" if row.phase == "backward" else ""
            said[name] = said.get(name, 0) + torch.Size(row.shape).numel()
    totals = {
        name: tally.total
        for name, tally in sim.by_operation.items()
        if "cast" not in name
    }
    assert said == totals


def test_layers_of_a_transformer_are_explained_under_each_policy():
    cuda, cpu, every = (explained(p) for p in (CUDA_AUTOCAST, CPU_AUTOCAST, EVERYTHING))
    assert formats(cuda, "native_layer_norm") == {FP32}
    assert formats(cuda, "embedding") == formats(cpu, "embedding") == {FP32}
    assert formats(every, "native_layer_norm") == formats(every, "embedding") == {FP16}
    assert formats(explained(KERAS_MIXED), "native_layer_norm") == {FP32}  # then cast
    for found in (cuda, cpu, every):
        assert formats(found, "addmm") == {FP16}
        assert formats(found, "nll_loss_forward") == {FP32}
        # torch's cross entropy asks for the dtype of its logits; only the CPU's autocast widens it
        assert formats(found, "_log_softmax") == {FP16 if found is cuda else FP32}
        assert formats(found, "add", "self_attn") >= {FP16}  # the bias, within linear


def test_the_rules_are_named():
    chosen = explained(CUDA_AUTOCAST.with_layers({"head": FP32, "blocks": BF16}))
    head = {(row.format, row.rule) for row in chosen.rows if row.module == "head"}
    assert head == {
        (FP32, "layer choice 'head': FP32"),
        (FP32, "as its forward operation"),
    }
    assert formats(chosen, "addmm", "linear2") == {BF16}
    found = explained()
    rules = {(row.operation, row.rule) for row in found.rows}
    assert ("addmm", "listed: linear runs in the low format") in rules
    assert ("native_layer_norm", "listed: layer_norm runs in FP32") in rules or (
        "native_layer_norm",
        "listed: native_layer_norm runs in FP32",
    ) in rules
    assert (
        "relu",
        "not listed: runs in the widest format of its inputs, FP16",
    ) in rules
    assert ("nll_loss_forward", "listed: nll_loss runs in FP32") in rules


def test_explaining_changes_nothing():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(5, 4)
    state = torch.get_rng_state()
    explain(model, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    with simulated(FP16) as sim:
        model(x).sum().backward()
    assert not sim._mode.observers
    assert len(gradients(model)) == 4


def test_it_prints_and_is_shown_as_a_table_and_counts_what_was_cast():
    found = explain(nn.Linear(2, 2), torch.ones(1, 2))
    assert (found.rows[0].operation, found.rows[0].cast) == ("addmm", 3)
    lines = repr(found).splitlines()
    assert lines[0] == "Linear under CUDA_AUTOCAST: 3 of 3 operations in a low format"
    assert lines[1].split() == [
        "pass",
        "module",
        "operation",
        "format",
        "inputs",
        "cast",
        "rule",
    ]
    assert len(lines) == 2 + len(found.rows)
    assert found._repr_html_().count("<tr>") == 1 + len(found.rows)
    forward_only = explain(nn.Softmax(1), torch.randn(2, 2))
    assert [(row.phase, row.module) for row in forward_only.rows] == [
        ("forward", "Softmax")
    ]


# The picture


@pytest.mark.slow
def test_the_map_of_a_transformer_can_be_read():
    policy = CUDA_AUTOCAST.with_layers({"head": FP32, "blocks.2": BF16})
    found = explained(policy, blocks=4)
    picture = precision_map(found)
    assert_legible(picture)
    words = [text for text, _ in drawn_texts(picture)]
    assert {
        "blocks.3.self_attn",
        "attention",
        "outside modules",
        "FP16",
        "BF16",
    } <= set(words)
    counts = {f: sum(row.format == f for row in found.rows) for f in (FP16, BF16, FP32)}
    assert picture.claim == (
        f"CUDA_AUTOCAST with 2 choices of layers runs {counts[FP16]} of {len(found.rows)} "
        f"operations of SmallTransformer in FP16, {counts[BF16]} in BF16 and {counts[FP32]} in FP32"
    )
    assert "head: 0% of" in picture.alt


def test_inputs_are_given_by_name_too():
    model = nn.Bilinear(2, 3, 4)
    x = {"input1": torch.ones(1, 2), "input2": torch.ones(1, 3)}
    assert explain(model, **x).rows == explain(model, *x.values()).rows
