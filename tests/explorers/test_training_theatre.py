"""The explorer of runs: from losses down to the bits of one gradient, as the runs had them."""

from dataclasses import replace
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest
from histories import history
from positions import assert_texts_within

from mplab import FP16, FP32, encode
from mplab.lessons.l08.explorer import TrainingTheatre
from mplab.training import RECIPES, exponent_histogram
from mplab.training.history import sample

STEPS = (0, 10, 30)


def run(recipe="fp32", *, scale=1.0, lowest=0.5, seed=0, task="t"):
    """A run of 40 steps whose loss falls to `lowest`, with two layers of 12 gradients."""
    generator, low_format = (
        np.random.default_rng(seed),
        RECIPES[recipe].compute_format == FP16,
    )
    gradients, flushed, samples = {}, {}, {}
    for step in STEPS:
        gradients[step], flushed[step], samples[step] = {}, {}, {}
        for layer, size in (("layer 1", 2.0**-30), ("layer 2", 2.0**-20)):
            exact = (
                (generator.standard_normal(12) * size)
                .astype(np.float32)
                .astype(np.float64)
            )
            low = exact * scale
            if low_format:
                with np.errstate(under="ignore"):
                    low = low.astype(np.float16).astype(np.float64)
            gradients[step][layer] = exponent_histogram(low / scale)
            flushed[step][layer] = int((low == 0).sum()), 12
            samples[step][layer] = sample(exact, low)
    loss = np.maximum(np.linspace(1.0, 0.1, 40), lowest)
    recorded = {"gradients": gradients, "flushed": flushed, "samples": samples}
    return history(
        recipe,
        40,
        task=task,
        seed=seed,
        loss=loss,
        loss_scale=np.full(40, scale),
        **recorded,
    )


def three():
    return [run(), run("fp16-naive", lowest=0.8), run("fp16-scaled", scale=65536.0)]


def test_every_position_says_what_each_run_has():
    runs = three()
    theatre = TrainingTheatre(runs)
    seen = set()
    for step, layer, number in product(STEPS, ("layer 1", "layer 2"), range(8)):
        theatre.step.value, theatre.layer.value, theatre.gradient.value = (
            step,
            layer,
            number,
        )
        svg = ElementTree.fromstring(theatre.picture.value)
        words = [text.text for text in svg.iter("text")]
        for each in runs:
            stored = each.samples[step][layer].stored[number]
            fmt = FP16 if each.compute_format == "FP16" else FP32
            assert f"0x{int(encode(stored, fmt)):0{fmt.bits // 4}X}" in words
        seen.add((theatre.picture.value, theatre.state.value))
    assert len(seen) == 48
    assert theatre.errors.outputs == ()


def test_the_bits_drawn_are_those_of_the_code():
    theatre = TrainingTheatre(three())
    svg = ElementTree.fromstring(theatre.picture.value)
    cells = [b for b in svg.iter("rect") if b.get("height") == "14.0"]
    assert len(cells) == 32 + 16 + 16
    stored = float(theatre.runs[0].samples[0]["layer 1"].stored[0])
    filled = [int("white" not in cell.get("fill")) for cell in cells[:32]]
    assert int("".join(map(str, filled)), 2) == int(np.float32(stored).view(np.uint32))


def test_words_say_where_the_runs_part_and_the_button_goes_there():
    theatre = TrainingTheatre(three())
    assert theatre.parting == 30  # until step 13 the losses are above 0.8 in all
    assert "The losses part at step 30." in theatre.state.value
    real = TrainingTheatre([run("amp-fp16-naive")] * 2)
    assert "FP16 without scaling, real: " in real.state.value
    theatre.jump.click()
    assert theatre.step.value == 30 and "this one" in theatre.state.value
    alike = TrainingTheatre([run(), run("bf16")])
    assert alike.parting is None and alike.jump.disabled
    assert "No run ends a tenth above the first" in alike.state.value


def test_a_run_that_becomes_nan_parts_there_and_can_be_drawn():
    lost = run("fp16-static", scale=65536.0)
    lost.loss[5:] = np.nan
    theatre = TrainingTheatre([run(), lost])
    assert theatre.parting == 10
    theatre.step.value = 30
    assert "loss nan" in theatre.state.value
    ElementTree.fromstring(theatre.picture.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_no_numbers_have_bits_too(value):
    bad = run("fp16-naive")
    bad.samples[0]["layer 1"].stored[0] = value
    theatre = TrainingTheatre([run(), bad])
    assert "0x7E00" in theatre.picture.value or "C00" in theatre.picture.value
    assert ("NaN" if np.isnan(value) else "∞") in theatre.state.value


def test_a_scale_of_zero_or_no_power_of_two_can_be_drawn():
    for scale in (0.0, 1126.4, np.inf):
        odd = replace(run("fp16-scaled"), loss_scale=np.full(40, scale))
        ElementTree.fromstring(TrainingTheatre([run(), odd]).picture.value)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_no_word_runs_out_of_the_picture(count):
    assert_texts_within(
        lambda: TrainingTheatre([*three(), run("amp-fp16", scale=8.0)][:count])
    )


def test_runs_of_two_tasks_are_refused():
    with pytest.raises(ValueError, match="runs must be of one task"):
        TrainingTheatre([run(), run(task="u")])
