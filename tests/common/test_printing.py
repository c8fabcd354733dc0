"""What the library prints, an old Windows console can show, and a file of it can hold."""

import ast
from pathlib import Path

import pytest
from cases import run_script

import mplab

PACKAGE = Path(mplab.__file__).parent
OLD = {"PYTHONIOENCODING": "cp1252:strict", "PYTHONUTF8": "0"}

NUMBERS = """
import numpy as np
from mplab import *
from mplab import arithmetic
from mplab.lessons.l07.descent import fit_by_gradient_descent
from mplab.lessons.l19.orders import reveal_order
from mplab.numbers.formats import FORMATS

for fmt in FORMATS.values():
    print(fmt, repr(fmt))
print(tally(np.array([1e-9, 7e4]), FP16), Stream(1), list(Rounding), Event.OVERFLOW)
a = np.array([[4.0, 1.0], [1.0, 3.0]])
print(arithmetic.lu(a, FP16), arithmetic.refine(a, [1.0, 2.0], factor_format=FP16))
print(arithmetic.FloatArray(a, FP16), arithmetic.ARCHITECTURES)
print(reveal_order(np.sum, 9), fit_by_gradient_descent(FP16, steps=9))
"""
ROOMS = (
    NUMBERS
    + """
import copy
import torch
from torch import nn
from mplab import check
from mplab import health, pictures, scaling, simulation, training
from mplab.lessons.l06.probes import PROBES
from mplab.lessons.l11 import rooflines, stages
from mplab.lessons.l13.clinic import CASES
import histories

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
inputs = torch.ones(2, 4)
print(simulation.POLICIES, simulation.explain(model, inputs, fmt=FP16))
low = copy.deepcopy(model).half()
print(simulation.explain(low, inputs.half(), policy=simulation.AS_WRITTEN))
print(scaling.quantize(inputs, FP8_E4M3, block=(1, 4)), scaling.LossScaler())

runs = [histories.learning(seed=seed) for seed in (0, 1)]
print(training.RECIPES, training.TASKS, runs, pictures.results_table(runs))
print(stages.memory("regression", "fp16-naive"), stages.stage_times("regression", "fp32"))
print(rooflines.recorded(), PROBES)

print([case.broken().report for case in CASES.values()])
with health.Health(model) as watch:
    for scale in (1.0, 2.0**30):  # the second one overflows
        with simulation.simulated(FP16):
            loss = model(scale * inputs).sum()
            loss.backward()
        watch.step(loss)
print(watch.report())
print(check("flush_threshold", 1.0), check("flush_threshold", 2.0**-25))
"""
)


@pytest.mark.slow
def test_formats_and_arithmetic_print_in_an_old_encoding():
    """`print(FP16)` to a file raised: cp1252 has no superscript minus."""
    assert "2^-11" in run_script(NUMBERS, env=OLD, encoding="cp1252")


@pytest.mark.slow
def test_what_each_room_offers_prints_in_an_old_encoding():
    printed = run_script(ROOMS, env=OLD, encoding="cp1252")
    assert "PROBLEM" in printed and "flush_threshold: right" in printed


def test_hints_of_exercises_print_in_an_old_encoding():
    texts = [
        node.value
        for path in PACKAGE.parent.glob("lessons/**/exercises.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(texts) > 1000
    assert [text for text in texts if text != in_old(text)] == []


def in_old(text):
    return text.encode("cp1252", "replace").decode("cp1252")
