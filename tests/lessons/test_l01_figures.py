"""The digits that trained networks paint: the picture in README."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mplab.lessons.l01.figures import (
    WITH,
    WITHOUT,
    PaintedDigits,
    measure_painted_digits,
    plot_painted_digits,
    rescue,
)
from mplab.training import TASKS, train

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_title_names_the_networks_that_reproduce_less_than_a_tenth():
    images = np.random.default_rng(0).random((9, 64))
    real = "real FP16"
    scaled = "real FP16\nwith a loss scale"
    for r2, said in (
        ({"fp16-naive": 0.02, real: 0.3}, "picture for every digit: simulated FP16."),
        ({"fp16-naive": 0.02, scaled: 0.3}, "Without a loss scale, nearly the same"),
        ({"fp16-naive": 0.02, scaled: -0.001}, "Nearly the same picture"),
        ({"fp16-naive": 0.3, real: 0.3}, "Every network tells the digits apart."),
    ):
        found = PaintedDigits(images, dict.fromkeys(r2, images), r2, {})
        picture = plot_painted_digits(found, count=3)
        assert said in picture.claim
        assert f"simulated FP16 {r2['fp16-naive']:.2f}" in picture.alt


def test_the_rescue_says_which_runs_end_with_fp32_and_which_do_not():
    how = {"steps": 30, "progress": False}
    fp32 = train("sigmoid-autoencoder", "fp32", record_gradients_at=(0,), **how)
    alike = {WITHOUT: fp32.loss * 2.5, WITH: fp32.loss}
    low = train("sigmoid-autoencoder", "fp16-scaled", **how)
    high = replace(low, loss=low.loss * 3)
    picture = rescue(fp32, [high, low], alike)
    assert picture.claim == (
        "FP16 ends at 2.5 to 3.0× FP32's loss without a scale,"
        " and within 10% of it with one, simulated and real"
    )
    assert re.search(
        r"4\d(\.\d)?% are flushed to 0 in FP16, and <0.1% times 2¹⁶", picture.alt
    )


def test_what_is_painted_is_what_the_run_was_judged_by(monkeypatch):
    task = replace(TASKS["sigmoid-autoencoder"], steps=2)
    monkeypatch.setitem(TASKS, "sigmoid-autoencoder", task)
    found = measure_painted_digits("fp32", "fp16-naive", seed=3, progress=False)
    for name, run in found.runs.items():
        assert found.painted[name].shape == found.images.shape
        output = torch.from_numpy(found.painted[name])
        assert task.metrics(output, task.data()) == run.metrics
        assert run.seed == 3 and found.r2[name] == run.metrics["r2"]


def test_readme_shows_the_picture_under_its_own_title():
    words, place = re.search(
        r"!\[(.*?)\]\((\S+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    ).groups()
    assert (ROOT / place).read_bytes().startswith(b"\x89PNG")
    assert re.fullmatch(
        r"FP16 ends at (\d\.\d to )?\d\.\d× FP32's loss without a scale, and within 10% of it"
        r" with one, simulated and real",
        words,
    )
