"""The figures of FP64 from low formats: what they measure, and whether they can be read."""

from fractions import Fraction

import numpy as np
import pytest
from legible import assert_legible, words_of

from mplab.lessons.l17 import figures
from mplab.lessons.l17.emulation import emulation_bound, split
from mplab.lessons.l17.figures import KINDS, SlicesNeeded

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


def test_wrong_sums_are_those_that_24_bits_cannot_hold():
    found = figures.measure_wrong_sums(256, seed=2)
    assert (found.rule, found.bits.tolist()) == (9, [7, 8, 9, 10, 11, 12])
    rng = np.random.default_rng(2)
    a, b = (KINDS["positive"](rng, shape) for shape in ((32, 256), (256, 32)))
    for bits, share in zip((9, 10), found.shares["positive"][2:4], strict=True):
        sums = split(a, 1, bits)[0][0] @ split(b, 1, bits, axis=0)[0][0]
        high = np.mean(sums > 2.0**24)
        assert (share > 0) == (high > 0)
        assert share <= high  # an even sum past 2^24 can come out right


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


def test_the_grid_shows_the_slices_of_split_and_their_units():
    x = [0.8, -0.3, 0.045, -0.0071]
    picture = assert_legible(figures.slice_grid(x))
    assert ": 4 for each number by itself, 1 for the row on one grid." in picture.claim
    shown = [text.get_text().replace("−", "-") for text in picture.axes[1].texts]
    parts, exponents, _ = split(x, 3, 4)
    assert shown == [f"{v:.0f}" for v in parts.T.ravel()]
    lefts = sorted({bar.get_x() for bar in picture.axes[1].patches})
    assert lefts == [exponents[0] - 8, exponents[0] - 4, exponents[0]]


def test_errors_are_legible_and_the_title_says_who_arrives():
    picture = figures.plot_emulation_errors(
        {"FP16": [1e-3, 1e-9, 1e-17, 0.0], "BF16 alone": [1e-3, 6e-8]}
    )
    assert_legible(picture)
    assert (
        picture.claim
        == "An error of 2⁻⁵² at most: FP16 with 3; BF16 alone ends at 6e-08."
    )
    assert {"FP16", "BF16 alone"} <= words_of(picture)
    line = picture.axes[0].lines[0]
    np.testing.assert_array_equal(
        line.get_ydata(), np.maximum([1e-3, 1e-9, 1e-17, 0], 2.0**-58)
    )
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
    assert figures.plot_emulation_errors({"x": [0.5]}).claim == "x ends at 5e-01."


def test_one_bit_too_many_is_legible_and_says_from_where_on():
    picture = assert_legible(figures.plot_wrong_sums(figures.measure_wrong_sums(64)))
    assert "random signs, never; positive, from 11 bits on" in picture.claim


def test_counts_are_legible_and_the_title_says_from_what_to_what():
    spreads = np.array([0.0, 8.0])
    curves = [
        SlicesNeeded(name, spreads, np.array([[n, n], [2 * n, 2 * n]]))
        for name, n in (("FP16", 6), ("INT8", 8), ("moduli", 15))
    ]
    picture = assert_legible(figures.plot_slices_needed(curves))
    assert "FP16 6 to 12; INT8 8 to 16; moduli 15 to 30." in picture.claim
