"""The table and the curves of several runs, by seed and by recipe."""

import pytest
from histories import learning as history
from legible import assert_legible

from mplab.course.pictures import loss_curves
from mplab.training import RECIPES

pytestmark = pytest.mark.slow


def test_all_recipes_together_can_be_read():
    assert_legible(
        loss_curves([history(r, factor=1 + i / 9) for i, r in enumerate(RECIPES)])
    )
