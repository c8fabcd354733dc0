"""The figure of sensitive layers: what it claims, and whether it can be read."""

import numpy as np
import pytest
import torch
from legible import assert_legible, drawn_texts
from torch import nn

from mplab import BF16, FP16, pictures
from mplab.simulation import sensitivity


def test_one_layer_has_no_others():
    picture = assert_legible(pictures.sensitivity({FP16: {"head": 0.5}}))
    assert picture.claim == "Alone in FP16, head costs 50%"


def test_where_all_layers_cost_about_as_much_none_is_named():
    picture = pictures.sensitivity(
        {BF16: {"left": 0.0049, "right": 0.0048, "fusion": 0.0046}}
    )
    assert picture.claim == "Alone in BF16, no layer costs more than 0.49%"


class Weak(nn.Module):
    """One layer whose activations leave FP16, and one whose gradients do."""

    def __init__(self):
        super().__init__()
        self.stem, self.faint, self.peak = (
            nn.Linear(2, 2),
            nn.Linear(2, 2),
            nn.Linear(2, 2),
        )
        nn.init.constant_(self.peak.weight, 1e5)

    def forward(self, x):
        h = self.stem(x)
        return 1e-5 * self.peak(h) + 1e-9 * self.faint(h)


@pytest.fixture(scope="module")
def measured():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Weak()
    batches = [torch.ones(2, 2)]
    formats = [FP16, BF16]
    return sensitivity(
        model, batches, lambda m, x: m(x).mean(), formats, progress=False
    )


def test_what_was_measured_has_a_panel_for_each_pass_and_the_larger_error_counts(
    measured,
):
    picture = assert_legible(pictures.sensitivity(measured))
    worst = sorted(
        max(m[1:3]) for (_, fmt), m in measured.measures.items() if fmt is BF16
    )
    assert picture.claim.startswith(
        "Alone in FP16, peak costs all, any other at most 100%; in BF16, "
    )
    assert f"{100 * worst[-1]:.2g}%" in picture.claim.partition("BF16")[2]
    assert "FP16 forward: stem" in picture.alt and "peak all" in picture.alt
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert titles == ["forward", "backward"]
    words = [text for text, _ in drawn_texts(picture)]
    assert words.count("inf, NaN") == 2
    assert {"stem", "faint", "peak", "FP16", "BF16"} <= set(words)
    errors = "output_error", "gradient_error"
    for axes, error in zip(picture.axes, errors, strict=True):
        for line, fmt in zip(axes.get_lines(), (FP16, BF16), strict=True):
            of_format = [m for (_, each), m in measured.measures.items() if each is fmt]
            costs = [getattr(m, error) for m in of_format]
            marks = [2 if np.isinf(cost) else np.log2(cost) for cost in costs if cost]
            assert line.get_xdata().tolist() == marks
        assert axes.get_xlim()[1] > 2
