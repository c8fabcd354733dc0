"""The figure of sensitive layers: what it claims, and whether it can be read."""

import numpy as np
import pytest
from legible import assert_legible, drawn_texts

from mplab import BF16, FP16, pictures

ERRORS = {
    FP16: {"left.0": 0.000423, "right.0": 0.00051, "fusion": 1.0},
    BF16: {"left.0": 0.0037, "right.0": 0.0, "fusion": 0.0049},
}


def test_the_figure_names_the_costliest_layer_of_each_format():
    picture = pictures.sensitivity(ERRORS)
    assert_legible(picture)
    assert picture.claim == (
        "Alone in FP16, fusion costs 100%, any other at most 0.051%; in BF16, fusion costs "
        "0.49%, any other at most 0.37%"
    )
    assert "BF16: left.0 0.37%, right.0 0%, fusion 0.49%" in picture.alt
    assert {"left.0", "right.0", "fusion", "FP16", "BF16"} <= {t for t, _ in drawn_texts(picture)}


def test_each_mark_is_in_the_row_of_its_layer_and_no_error_has_none():
    axes = pictures.sensitivity(ERRORS).axes[0]
    first, second = axes.get_lines()
    assert first.get_ydata().tolist() == [0, 1, 2]
    np.testing.assert_array_equal(first.get_xdata(), np.log2([0.000423, 0.00051, 1.0]))
    assert second.get_ydata().tolist() == [0, 2]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(ERRORS[FP16])


def test_one_layer_has_no_others():
    picture = pictures.sensitivity({FP16: {"head": 0.5}})
    assert_legible(picture)
    assert picture.claim == "Alone in FP16, head costs 50%"


def test_where_all_layers_cost_about_as_much_none_is_named():
    picture = pictures.sensitivity({BF16: {"left": 0.0049, "right": 0.0048, "fusion": 0.0046}})
    assert picture.claim == "Alone in BF16, no layer costs more than 0.49%"


@pytest.mark.parametrize("errors", [{}, {FP16: {}}, {FP16: {"a": 1.0}, BF16: {"b": 1.0}}])
def test_errors_that_cannot_be_compared_are_refused(errors):
    with pytest.raises(ValueError, match="sensitivity: errors must hold the same layers"):
        pictures.sensitivity(errors)
