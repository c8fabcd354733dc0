"""The order in which a sum adds, revealed from its results."""

import inspect
import math
import sys

import numpy as np
import pytest

from mplab import BF16, FP32
from mplab.arithmetic import mma, sum as long_sum
from mplab.lessons.l19.orders import reveal_order


def evaluated(tree, x):
    return (
        x[tree]
        if isinstance(tree, int)
        else np.sum([evaluated(part, x) for part in tree])
    )


def in_order(order):
    return lambda x: long_sum(x, accumulator_format=FP32, order=order)


def test_each_order_of_sum_is_revealed():
    assert reveal_order(in_order("sequential"), 5) == ((((0, 1), 2), 3), 4)
    assert reveal_order(in_order("reversed"), 4) == (0, (1, (2, 3)))
    assert reveal_order(in_order("pairwise"), 6) == (((0, 1), (2, 3)), (4, 5))
    assert reveal_order(in_order("blocked(2)"), 6) == (((0, 1), (2, 3)), (4, 5))
    assert reveal_order(in_order("sequential"), 1) == 0
    swapped = [3, 0, 2, 1]
    assert reveal_order(lambda x: in_order("sequential")(x[swapped]), 4) == (
        ((0, 3), 2),
        1,
    )


def test_numpy_s_own_order_gives_numpy_s_bits():
    rng = np.random.default_rng(0)
    for n in (7, 19, 33):
        tree = reveal_order(np.sum, n)
        x = rng.standard_normal(n)
        assert evaluated(tree, x).hex() == np.sum(x).hex()


def test_a_matrix_unit_adds_several_terms_at_once():
    def product(architecture):
        def of(x):
            return mma(
                x[None], np.ones((16, 1)), architecture=architecture, input_format=BF16
            )[0, 0]

        return of

    assert reveal_order(product("hopper"), 16) == tuple(range(16))
    first, *others = reveal_order(product("ampere"), 16)
    assert first == tuple(range(8)) and others == list(range(8, 16))


def test_functions_that_lose_no_unit_or_add_no_sum_are_refused():
    for f in (math.fsum, np.prod, np.max, lambda x: np.sum(x[1:])):
        with pytest.raises(
            ValueError, match=r"^reveal_order: f must add each term once"
        ):
            reveal_order(f, 6)


def merged_at(x):
    """The result of adding from the last term on, for terms that `reveal_order` passes."""
    return float(min(x.argmax(), x.argmin()))


def test_an_order_deeper_than_python_recurses_is_revealed_and_printed():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        tree = reveal_order(merged_at, 100)
        text = repr(tree)
    finally:
        sys.setrecursionlimit(limit)
    assert text.startswith("(0, (1, (2, ") and text.endswith("(98, 99" + 99 * ")")
    left = repr(reveal_order(lambda x: 1199 - max(x.argmax(), x.argmin()), 1200))
    assert left.startswith(1199 * "(" + "0, 1), 2)") and left.endswith(", 1199)")


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
def test_a_sum_one_by_one_is_revealed_in_a_few_calls_a_term(order):
    n = 600
    terms = np.arange(n) if order == "forward" else np.arange(n)[::-1]
    if order == "shuffled":
        terms = np.random.default_rng(1).permutation(n)
    calls = []

    def f(x):
        calls.append(x)
        return np.cumsum(x[terms])[-1]

    tree = reveal_order(f, n)
    for term in terms[:1:-1].tolist():
        (tree,) = [part for part in tree if part != term]
    assert sorted(tree) == sorted(terms[:2].tolist())
    assert len(calls) < 5 * n
