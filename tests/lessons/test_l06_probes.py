"""The probes: each unit's answer, and the models that the answer rules out."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from mplab import FP16, FP32
from mplab.arithmetic import MatrixUnit, mma
from mplab.commands.main import main
from mplab.lessons.l06 import probes


def rejected(question, model):
    """The sum by a model that hardware refutes: another unit, or other options."""
    known = {each.name for each in fields(MatrixUnit)}
    unit = {key: value for key, value in model.changes.items() if key in known}
    options = {key: value for key, value in model.changes.items() if key not in known}
    here = question._unit(question.architecture)
    return question.ask(architecture=replace(here, **unit), **options)


@pytest.mark.parametrize(
    "question", probes.PROBES, ids=lambda p: p.terms.replace(" ", "_")
)
def test_a_probe_gives_hopper_s_answer_and_the_rejected_model_gives_the_other(question):
    assert probes.same(question.ask(), question.answer)
    assert question.rejected
    for model in question.rejected:
        assert probes.same(rejected(question, model), model.answer)
        assert not probes.same(model.answer, question.answer)


def test_probes_tell_units_apart():
    asked = {
        p.terms: {x: p.ask(architecture=x) for x in p.architectures}
        for p in probes.PROBES
    }
    for terms, answers in {
        "1, 2^-25, -1": {"ampere": 0.0, "blackwell": 2.0**-25},
        "1, 2^-14, -1 in E4M3": {"blackwell": 2.0**-14},
        # Volta keeps 23 fraction bits of 2^24: even numbers.
        "2^24 | sixteen 1": {"volta": 16777216.0, "turing": 16777232.0},
        "2^24, 1, 1, -2^24": {"cdna1": 1.0, "cdna2": 1.0, "cdna3": 2.0, "hopper": 2.0},
        "2^24 | 1, 0, 1 in BF16": {"cdna1": 2.0**24, "cdna2": 2.0**24 + 2},
    }.items():
        assert answers.items() <= asked[terms].items(), terms
    of_fp16 = {p.terms for p in probes.PROBES if p.input_format == FP16}
    assert {terms for terms in asked if " in " not in terms} == of_fp16
    for terms, answer, alone in (
        ("2^-24 as a subnormal", 0.0, {"cdna2"}),
        ("-2^-26 | 1", 1 - 2.0**-24, {"cdna3"}),
        ("2^128, -2^127 in BF16", np.inf, {"cdna1", "cdna2", "cdna3"}),
    ):
        assert {x for x, found in asked[terms].items() if found == answer} == alone
    both = {"blackwell", "rtx_blackwell"}
    assert set(asked["36*2^16, 2^-19, -36*2^16 in NVFP4"]) == both
    for found in asked.values():
        assert found.get("blackwell") == found.get("rtx_blackwell")


def test_the_command_says_politely_that_there_is_no_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["probe"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("There is no CUDA device here")
    assert all(p.terms in printed for p in probes.PROBES)


@pytest.mark.parametrize(
    "line",
    [
        "  this GPU                            2.9802322387695312e-08",
        "  hopper                              2.9802322387695312e-08    agrees",
        "  ampere                              0.0                       differs",
        "  not: 24 fraction bits               0.0                       differs",
    ],
)
def test_the_command_compares_hardware_with_each_model(line):
    assert line in probes.report(probes.PROBES[0], 2.0**-25)
    assert probes.report(probes.PROBES[0], None)[1].split() == ["volta", "0.0"]


def test_a_gpu_is_asked_for_the_sum_of_the_probe(monkeypatch):
    """The device is pretended: a model multiplies what it gets."""

    def product(a, b, fmt):
        assert len(a) == b.shape[1] == 128
        out = float if fmt is float else FP32
        a, b = (np.asarray(x) for x in (a[1:2], b[:, :1]))
        return torch.from_numpy(mma(a, b, input_format=fmt, output_format=out))

    to = torch.Tensor.to
    monkeypatch.setattr(probes, "product", product)
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *how: to(x, *{*how} - {"cuda"}))
    for probe in probes.PROBES:
        if probe.scales:
            with pytest.raises(RuntimeError, match="of the models alone"):
                probes.on_cuda(probe)
        elif probe.architecture == "hopper":
            assert probes.same(probes.on_cuda(probe), probe.answer), probe.terms
    assert not torch.backends.cuda.matmul.allow_fp16_accumulation
