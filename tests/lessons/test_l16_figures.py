"""The figures of time steps: what they measure, and whether they can be read."""

import numpy as np
import pytest

from mplab.lessons.l16.figures import cycle, orbits, time_courses

pytestmark = pytest.mark.slow


def test_a_cycle_is_what_repeats_until_the_end():
    states = np.array([5, 1, 2, 3, 1, 2, 3, 1.0])[:, None]
    assert cycle(states) == (4, 3)
    # A state again, and then another.
    assert cycle(np.array([1, 2, 1, 3.0])[:, None]) == (
        3,
        0,
    )
    assert cycle(np.array([7, 7.0])[:, None]) == (1, 1)
    assert cycle(np.arange(4.0)[:, None]) == (4, 0)


def test_runs_that_end_alike_or_stand_still_are_called_so():
    claim = time_courses({"a": np.ones(3), "b": np.ones(5)}, until=2).claim
    assert claim == "After 2 minutes all runs end at 1 °C."
    assert "a visits 1 state, then" in orbits({"a": np.ones((4, 3))}).claim
