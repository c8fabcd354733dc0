"""Integer and number options of public functions: those outside the contract are refused."""

from math import inf, nan

import numpy as np
import pytest

import mplab
from mplab import BF16, FP8_E4M3, FP16, Format, arithmetic, scaling
from mplab.lessons.l05 import bounds
from mplab.lessons.l07 import descent
from mplab.lessons.l16.integration import integrate
from mplab.lessons.l17 import emulation
from mplab.lessons.l19.orders import reveal_order

X = np.ones(4)
TWO = np.eye(2)
TERMS = {"accumulator_format": FP16}


def of_weights(**options):
    return descent.update_trajectory(1.0, 0.5, 2, BF16, **options)


INTEGERS = {  # the call, and the integers among TRIED that it takes
    "set_threads(count)": (mplab.numbers.set_threads, {1}),
    "Stream(seed)": (mplab.Stream, {0, 1}),
    "Stream(calls)": (lambda n: mplab.Stream(1, calls=n), {0, 1}),
    "Stream(bits)": (lambda n: mplab.Stream(1, bits=n), {1}),
    "roundings(n)": (bounds.roundings, {0, 1}),
    "linear_bound(n)": (lambda n: bounds.linear_bound(n, FP16), {0, 1}),
    "probabilistic_bound(n)": (
        lambda n: bounds.probabilistic_bound(n, FP16),
        {0, 1},
    ),
    "slice_bits(k)": (lambda n: emulation.slice_bits(n, FP16, 24), {1}),
    "slice_bits(accumulator_bits)": (
        lambda n: emulation.slice_bits(1, FP16, n),
        {0, 1},
    ),
    "split(slices)": (lambda n: emulation.split(X, n, 4), {1}),
    "split(bits)": (lambda n: emulation.split(X, 2, n), {1}),
    "matmul_fp64(slices)": (lambda n: emulation.matmul_fp64(TWO, TWO, slices=n), {1}),
    "mma(promote_every)": (
        lambda n: arithmetic.mma(
            TWO, TWO, architecture=arithmetic.MatrixUnit(1, 24), promote_every=n
        ),
        {1},
    ),
    "matmul(split_k)": (lambda n: arithmetic.matmul(TWO, TWO, split_k=n, **TERMS), {1}),
    "distinct_sums(orders)": (
        lambda n: arithmetic.distinct_sums(X, FP16, orders=n),
        {1},
    ),
    "variance(ddof)": (
        lambda n: arithmetic.variance(X, ddof=n, **TERMS),
        {-1, 0, 1},
    ),
    "refine(limit)": (
        lambda n: arithmetic.refine(TWO, X[:2], factor_format=FP16, limit=n),
        {0, 1},
    ),
    "integrate(steps)": (
        lambda n: integrate(lambda y: y, 1.0, 0.1, n, FP16),
        {0, 1},
    ),
    "update_trajectory(steps)": (
        lambda n: descent.update_trajectory(1.0, 0.5, n, BF16),
        {0, 1},
    ),
    "update_trajectory(seed)": (lambda n: of_weights(seed=n), {0, 1}),
    "fit_by_gradient_descent(steps)": (
        lambda n: descent.fit_by_gradient_descent(BF16, steps=n),
        {1},
    ),
    "reveal_order(n)": (lambda n: reveal_order(np.sum, n), {1}),
    "scale_for(margin)": (
        lambda n: scaling.scale_for(1.0, FP8_E4M3, margin=n),
        {-1, 0, 1},
    ),
    "DelayedScaling(amax_history_len)": (
        lambda n: scaling.DelayedScaling(FP8_E4M3, amax_history_len=n),
        {1},
    ),
    "Format(precision)": (lambda n: Format("F", exponent_bits=4, precision=n), {}),
}
TRIED = (0, 1, -1, True, np.True_, 2.5, nan, inf, "1", None, [1])
NONE_IS_A_CHOICE = {"matmul_fp64(slices)", "mma(promote_every)"}


@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_option_is_an_integer_in_its_range(name):
    call, taken = INTEGERS[name]
    for value in TRIED:
        if value is None and name in NONE_IS_A_CHOICE:
            continue
        if type(value) is int and value in taken:
            call(value)
            continue
        with pytest.raises((TypeError, ValueError)):
            call(value)
            pytest.fail(f"{name} took {value!r}")


NUMBERS = {
    "probabilistic_bound(confidence)": (
        lambda c: bounds.probabilistic_bound(4, FP16, confidence=c),
        (0.5, 1, np.float32(2.72)),
        (0, -1, -0.0, nan, inf, "1", None),
    ),
    "condition(p)": (
        lambda p: arithmetic.condition(TWO, p),
        (1, 2, inf, 2.0),
        (0, -2, -inf, True, 2.5, nan, "fro", None, [2]),
    ),
    "FixedScaling(scale)": (
        scaling.FixedScaling,
        (0.5, 1),
        (0, -1, nan, inf, "x", None),
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_option_is_a_number_in_its_range(name):
    call, taken, refused = NUMBERS[name]
    for value in taken:
        call(value)
    for value in refused:
        with pytest.raises((TypeError, ValueError)):
            call(value)
            pytest.fail(f"{name} took {value!r}")


def test_no_more_parts_than_terms():
    for split_k in (3, 9):
        with pytest.raises(ValueError, match=r"^matmul: split_k must be an integer, "):
            arithmetic.matmul(TWO, TWO, split_k=split_k, **TERMS)
