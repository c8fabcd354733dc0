"""The digits that trained networks paint: the picture in README."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mplab.lessons.l01.figures import (
    PaintedDigits,
    measure_painted_digits,
    plot_painted_digits,
)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SIMULATED = ("fp32", "fp16-naive", "fp16-scaled")


def test_the_title_names_the_networks_that_reproduce_less_than_a_tenth():
    images = np.random.default_rng(0).random((9, 64))
    painted = dict.fromkeys(("fp16-naive", "fp16-scaled", "amp-fp16"), images)
    for r2, said in (
        (
            {"fp16-naive": 0.02, "amp-fp16": 0.3},
            "picture for every digit: simulated FP16.",
        ),
        (
            {"fp16-naive": 0.02, "fp16-scaled": 0.3},
            "Without a loss scale, nearly the same",
        ),
        ({"fp16-naive": 0.3, "amp-fp16": 0.3}, "Every network tells the digits apart."),
    ):
        runs = {
            n: SimpleNamespace(metrics={"r2": share}, device="cpu")
            for n, share in r2.items()
        }
        picture = plot_painted_digits(PaintedDigits(images, painted, runs), count=3)
        assert said in picture.claim
        assert f"simulated FP16 {r2['fp16-naive']:.2f}" in picture.alt


@pytest.mark.parametrize("seed", [3, 11])
def test_without_a_loss_scale_simulated_fp16_paints_one_picture_and_with_one_what_fp32_does(
    seed,
):
    found = measure_painted_digits(*SIMULATED, seed=seed)
    wide, naive, scaled = (found.runs[name].metrics["r2"] for name in SIMULATED)
    assert wide > 0.3 and naive < 0.1
    assert abs(scaled - wide) < 0.02
    assert found.painted["fp16-naive"].shape == found.images.shape


def test_readme_shows_the_picture_under_its_own_title():
    (words, place) = re.search(
        r"!\[(.*?)\]\((\S+)\)", (ROOT / "README.md").read_text(encoding="utf-8")
    ).groups()
    assert (ROOT / place).read_bytes().startswith(b"\x89PNG")
    assert words.startswith(
        "Without a loss scale, nearly the same picture for every digit: "
    )
