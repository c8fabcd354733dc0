"""Each figure of a few data draws what it drew when somebody looked at it."""

import pytest
from drawn import assert_as_it_was, told
from every_figure import FIGURES, RUNS

from mplab.course.pictures import results_table


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_draws_what_it_drew(name):
    assert_as_it_was(told(FIGURES[name]()), __file__, f"{name}.txt")


def test_a_table_has_the_cells_that_it_had():
    assert_as_it_was(f"{results_table(RUNS)}\n", __file__, "results.txt")
