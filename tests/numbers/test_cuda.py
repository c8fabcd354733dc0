"""What only a CUDA device meets; without one, on a pretended one: tests/support/pretend_cuda.py."""

from functools import partial

import pytest
import record
import same_bits
import torch
from pretend_cuda import pretended
from tiers import mostly_full

from mplab import FP8_E5M2
from mplab.commands.main import main
from mplab.lessons.l06 import probes
from mplab.lessons.l06.probes import product
from mplab.lessons.l11 import stages
from mplab.lessons.recordings import load
from mplab.training import RECIPES, TASKS, train


@pytest.fixture
def cuda(monkeypatch):
    """The device where there is one, so that the tests say something about its arithmetic, too."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    with pretended(monkeypatch) as device:
        yield device


def problems_in(tree):
    """All that a recording's data call a problem."""
    if isinstance(tree, dict):
        own = [tree["problem"]] if tree.get("problem") else []
        return own + [found for value in tree.values() for found in problems_in(value)]
    return (
        [found for value in tree for found in problems_in(value)]
        if type(tree) is list
        else []
    )


# The pretended device itself ---------------------------------------------------------------


def test_the_pretended_device_refuses_two_devices_in_one_operation(cuda):
    there = torch.ones(3, 4, device=cuda)
    here = torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="on the same device"):
        there + here
    assert (there + 1.0).cpu().sum() == 24
    # A scalar may come from anywhere.
    assert (there * torch.tensor(2.0)).device.type == "cuda"
    with pytest.raises(TypeError, match="can't convert cuda"):
        there.numpy()


def test_the_pretended_device_refuses_what_cuda_does_not_multiply(cuda):
    four = torch.float8_e4m3fn
    five = torch.float8_e5m2
    one = torch.ones((), device=cuda)
    for kind, length, other, width, wrong in (
        (five, 32, five, 16, "e5m2 matrices"), (four, 24, four, 16, "divisible by 16"),
        (four, 32, four, 10, "divisible by 16"), (four, 32, four, 16, ""), (five, 32, four, 16, ""),
    ):  # fmt: skip
        a = torch.ones(3, length, device=cuda).to(kind)
        b = torch.ones(width, length, device=cuda).to(other).t()
        product = partial(
            torch._scaled_mm, a, scale_a=one, scale_b=one, out_dtype=torch.float32
        )
        if wrong:
            with pytest.raises((RuntimeError, ValueError), match=wrong):
                product(b)
        else:
            assert product(b).cpu().eq(32).all()
            with pytest.raises(RuntimeError, match="row_major"):
                product(b.contiguous())


# The library on it -------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", mostly_full(RECIPES, ["fp16-scaled", "amp-fp16"]))
def test_every_recipe_keeps_its_tensors_on_the_device(cuda, recipe):
    run = train("regression", recipe, steps=2, device="cuda", progress=False)
    assert run.device == torch.cuda.get_device_name()
    assert len(run.loss) == 2


@pytest.mark.full
@pytest.mark.parametrize("task", TASKS)
def test_every_task_keeps_its_tensors_on_the_device(cuda, task):
    for recipe in ("fp32", "fp16-scaled", "bf16-pure", "amp-fp16", "amp-fp8-current"):
        assert (
            len(train(task, recipe, steps=2, device="cuda", progress=False).loss) == 2
        )


@pytest.mark.parametrize("recipe", ["fp32", "fp16-scaled", "amp-bf16"])
def test_memory_and_times_of_a_step_are_measured_on_the_device(cuda, recipe):
    for checkpointed in (False, True):
        found = stages.memory(
            "digits-cnn", recipe, device="cuda", checkpointed=checkpointed
        )
        assert 0 < found.peak <= torch.cuda.max_memory_allocated()
        assert found.activations > 0
    times = stages.stage_times("digits-cnn", recipe, device="cuda", steps=1)
    assert (times.device, set(times.seconds)) == (
        torch.cuda.get_device_name(),
        set(stages.STAGES),
    )


@pytest.mark.parametrize("check", mostly_full(same_bits.CHECKS, same_bits.CHECKS[2:]))
def test_the_device_has_the_bits_and_the_counts_of_the_cpu(cuda, check):
    found = {
        what: same_bits.difference(here, there) for what, here, there in check(cuda)
    }
    assert found and {what: words for what, words in found.items() if words} == {}


@pytest.mark.slow
def test_what_a_step_costs_on_the_device_is_measured(cuda):
    found = same_bits.costs(cuda, width=16, rounds=1)
    assert len(found) == 8 and min(found.values()) > 0


def test_e5m2_is_multiplied_by_e4m3_since_cuda_refuses_it_with_itself(cuda):
    a = torch.ones(16, 32, device=cuda)
    b = torch.ones(32, 16, device=cuda)
    assert product(a, b, FP8_E5M2).cpu().eq(32).all()


def test_the_probes_are_asked_and_reported(cuda, capsys):
    assert main(["probe"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"GPU: {torch.cuda.get_device_name()}, torch ")
    asked = [p for p in probes.PROBES if "hopper" in p.architectures]
    answered, refused = (
        said.count(f"this GPU{x}") for x in ("   ", ", with this torch, cannot")
    )
    assert answered + refused == len(probes.PROBES)
    assert answered >= len(asked)  # some CPUs multiply more pairs than a GPU does


@pytest.mark.full
@pytest.mark.parametrize("part", sorted(record.PARTS))
def test_each_part_is_recorded_without_a_problem(cuda, part, tmp_path):
    made = record.record(part, record.Request(cuda, tmp_path, [part], rehearse=True))
    assert (made.complete, made.problem) == (True, "")
    assert problems_in(load(part, where=tmp_path).data) == []
    assert made.provenance["device"] == torch.cuda.get_device_name()
