"""The figures of conditioning: what they measure, and whether they can be read."""

import numpy as np
import pytest

from mplab import BF16
from mplab.lessons.l14 import figures
from mplab.lessons.l14.figures import _error, medians

pytestmark = pytest.mark.slow


def test_without_a_number_the_error_is_everything():
    off = _error(np.array([np.nan, np.inf, -np.inf, 5.0, 1.5]), np.ones(5))
    assert off.tolist() == [1.0, 1.0, 1.0, 1.0, 0.5]


def test_where_rounding_leaves_nothing_to_find_there_is_no_error():
    found = figures.measure_formula_errors("variance", BF16)
    for errors in found.errors.values():
        assert np.isnan(errors[-1]).any()
        assert np.isnan(medians(errors[-1:] + np.nan)[0])
    assert np.isinf(np.median(found.conditions[-1]))
