"""The figures of FP64 from low formats: what they measure, and whether they can be read."""

from fractions import Fraction

import numpy as np
import pytest

from mplab.lessons.l17 import figures
from mplab.lessons.l17.emulation import emulation_bound

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("spread", [0, 30, 500])
def test_an_error_is_that_of_fractions(spread):
    rng = np.random.default_rng(spread)
    exponents = range(-spread, spread + 1)
    a, b = (
        np.ldexp(rng.standard_normal(s), rng.choice(exponents, s))
        for s in ((3, 4), (4, 5))
    )
    left, right, found = (
        np.vectorize(Fraction, otypes="O")(x.astype(object)) for x in (a, b, a @ b)
    )
    want = np.max(abs(found - left @ right) / (abs(left) @ abs(right)))
    assert figures.emulation_error(found, a, b) == float(want) > 0


def test_an_error_where_nothing_is_added_is_0_or_infinite():
    zero = np.zeros((1, 1))
    one = np.ones((1, 1))
    assert figures.emulation_error(zero, zero, one) == 0
    assert figures.emulation_error(one, zero, one) == np.inf
    # Past float64.
    assert figures.emulation_error(1e300 * one, 1e-300 * one, one) == np.inf
    assert figures.emulation_error([[5e-324]], [[2.0**-537]], [[2.0**-537]]) == 0


def test_slices_needed_are_the_first_whose_bound_is_small_enough():
    found = figures.measure_slices_needed("FP16", draws=1, seed=4)
    assert (found.unit, found.counts.shape) == ("FP16", (5, 1))
    rng = np.random.default_rng(4)
    shapes = ((16, 64), (64, 16))
    a, b = ((rng.random(s) - 0.5) * np.exp(0 * rng.standard_normal(s)) for s in shapes)
    n = int(found.counts[0, 0])
    aim = 2.0**-51 * (np.abs(a) @ np.abs(b))
    assert (emulation_bound(a, b, slices=n) <= aim).all()
    assert not (emulation_bound(a, b, slices=n - 1) <= aim).all()
