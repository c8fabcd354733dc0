"""What only a CUDA device meets, on one that is pretended: see tests/support/pretend_cuda.py."""

from functools import partial

import pytest
import record
import torch
from pretend_cuda import NAME, OnCuda, pretended
from tiers import mostly_slow

from mplab import FORMATS, FP8_E5M2
from mplab.commands.main import main
from mplab.hardware import load, probes
from mplab.hardware.probes import product
from mplab.scaling import dequantize, quantize
from mplab.simulation import convert_linears
from mplab.simulation.casts import SCALINGS
from mplab.training import RECIPES, TASKS, stages, train


@pytest.fixture
def cuda(monkeypatch):
    with pretended(monkeypatch) as device:
        yield device


def problems_in(tree):
    """All that a recording's data call a problem."""
    if isinstance(tree, dict):
        own = [tree["problem"]] if tree.get("problem") else []
        return own + [found for value in tree.values() for found in problems_in(value)]
    return [found for value in tree for found in problems_in(value)] if type(tree) is list else []


# The pretended device itself ---------------------------------------------------------------


def test_the_pretended_device_refuses_two_devices_in_one_operation(cuda):
    there, here = torch.ones(3, 4, device=cuda), torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="on the same device"):
        there + here
    assert (there + 1.0).cpu().sum() == 24
    assert (there * torch.tensor(2.0)).device.type == "cuda"  # a scalar may come from anywhere
    with pytest.raises(TypeError, match="can't convert cuda"):
        there.numpy()


def test_the_pretended_device_refuses_what_cuda_does_not_multiply(cuda):
    four, five, one = torch.float8_e4m3fn, torch.float8_e5m2, torch.ones((), device=cuda)
    for kind, length, other, width, wrong in (
        (five, 32, five, 16, "e5m2 matrices"), (four, 24, four, 16, "divisible by 16"),
        (four, 32, four, 10, "divisible by 16"), (four, 32, four, 16, ""), (five, 32, four, 16, ""),
    ):  # fmt: skip
        a = torch.ones(3, length, device=cuda).to(kind)
        b = torch.ones(width, length, device=cuda).to(other).t()
        product = partial(torch._scaled_mm, a, scale_a=one, scale_b=one, out_dtype=torch.float32)
        if wrong:
            with pytest.raises((RuntimeError, ValueError), match=wrong):
                product(b)
        else:
            assert product(b).cpu().eq(32).all()
            with pytest.raises(RuntimeError, match="row_major"):
                product(b.contiguous())


# The library on it -------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", mostly_slow(RECIPES, ["fp16-scaled", "amp-fp16"]))
def test_every_recipe_keeps_its_tensors_on_the_device(cuda, recipe):
    run = train("regression", recipe, steps=2, device="cuda", progress=False)
    assert run.device == NAME
    assert len(run.loss) == 2


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_every_task_keeps_its_tensors_on_the_device(cuda, task):
    for recipe in ("fp32", "fp16-scaled", "bf16-pure", "amp-fp16", "amp-fp8-current"):
        assert len(train(task, recipe, steps=2, device="cuda", progress=False).loss) == 2


@pytest.mark.parametrize("recipe", ["fp32", "fp16-scaled", "amp-bf16"])
def test_memory_and_times_of_a_step_are_measured_on_the_device(cuda, recipe):
    for checkpointed in (False, True):
        found = stages.memory("digits-cnn", recipe, device="cuda", checkpointed=checkpointed)
        assert found.peak == torch.cuda.max_memory_allocated()
        assert found.kept > 0
    times = stages.stage_times("digits-cnn", recipe, device="cuda", steps=1)
    assert (times.device, set(times.seconds)) == (NAME, set(stages.STAGES))


@pytest.mark.parametrize("name", ["FP8_E4M3", "FP8_E5M2", "FP6_E2M3", "FP4_E2M1"])
def test_quantized_tensors_stay_on_the_device(cuda, name):
    x = torch.linspace(-3, 3, 128, device=cuda).reshape(2, 64)
    for block in (None, (32,)):
        back = dequantize(quantize(x, FORMATS[name], block=block))
        assert isinstance(back, OnCuda)
        assert float((back - x).abs().max()) < 0.5


@pytest.mark.parametrize("scaling", SCALINGS)
def test_fp8_layers_stay_on_the_device(cuda, scaling):
    real = SCALINGS[scaling].is_real()
    model = torch.nn.Sequential(torch.nn.Linear(20, 10)).to(cuda)
    layer = convert_linears(model, scaling=scaling, real=real, filter=lambda *_: True)
    layer(torch.ones(3, 20, device=cuda)).sum().backward()
    assert layer[0].weight.grad.device.type == "cuda"


def test_e5m2_is_multiplied_by_e4m3_since_cuda_refuses_it_with_itself(cuda):
    a, b = torch.ones(16, 32, device=cuda), torch.ones(32, 16, device=cuda)
    assert product(a, b, FP8_E5M2).cpu().eq(32).all()


def test_the_probes_are_asked_and_reported(cuda, capsys):
    assert main(["probe"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"GPU: {NAME}, torch ")
    asked = [p for p in probes.PROBES if "hopper" in p.architectures]
    answered, refused = (said.count(f"this GPU{x}") for x in ("   ", ", with this torch, cannot"))
    assert answered + refused == len(probes.PROBES)
    assert answered >= len(asked)  # some CPUs multiply more pairs than a GPU does


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(record.PARTS))
def test_each_part_is_recorded_without_a_problem(cuda, part, tmp_path):
    made = record.record(part, record.Request(cuda, tmp_path, [part], rehearse=True))
    assert (made.complete, made.problem) == (True, "")
    assert problems_in(load(part, where=tmp_path).data) == []
    assert made.provenance["device"] == NAME
