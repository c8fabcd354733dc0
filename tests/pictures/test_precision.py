"""The figure of sensitive layers: what it claims, and whether it can be read."""

import numpy as np
from legible import assert_legible, drawn_texts

from mplab import BF16, FP16, pictures


def test_one_layer_has_no_others():
    picture = assert_legible(pictures.sensitivity({FP16: {"head": 0.5}}))
    assert picture.claim == "Alone in FP16, head costs 50%"


def test_where_all_layers_cost_about_as_much_none_is_named():
    picture = pictures.sensitivity(
        {BF16: {"left": 0.0049, "right": 0.0048, "fusion": 0.0046}}
    )
    assert picture.claim == "Alone in BF16, no layer costs more than 0.49%"


def test_an_infinite_error_is_drawn_at_the_edge_and_said():
    found = {
        FP16: {"stem": 0.01, "peak": np.inf},
        BF16: {"stem": 0.02, "peak": 0.5},
    }
    picture = assert_legible(pictures.sensitivity(found))
    assert picture.claim == (
        "Alone in FP16, peak costs all, any other at most 1%; in BF16, peak costs 50%, any other "
        "at most 2%"
    )
    assert "FP16: stem 1%, peak all" in picture.alt
    words = [text for text, _ in drawn_texts(picture)]
    assert words.count("inf, NaN") == 1
    assert {"stem", "peak", "FP16", "BF16"} <= set(words)
    (axes,) = picture.axes
    marks = [line.get_xdata().tolist() for line in axes.get_lines()]
    assert marks == [[np.log2(0.01), 2], [np.log2(0.02), -1]]
    assert axes.get_xlim()[1] > 2


def test_nan_costs_as_much_as_infinity():
    found = {FP16: {"stem": np.nan, "peak": 0.1, "head": 0.2}}
    picture = pictures.sensitivity(found)
    assert picture.claim == "Alone in FP16, stem costs all, any other at most 20%"
    assert sorted(picture.axes[0].lines[0].get_ydata()) == [0, 1, 2]
