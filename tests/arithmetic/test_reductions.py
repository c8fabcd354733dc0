"""Sums rounded at every step, against the same steps taken one by one with Fractions."""

import itertools
import math
import re
import shutil
import subprocess
import sys
from fractions import Fraction
from functools import partial
from math import inf, nan
from pathlib import Path

import exact_arithmetic as exact
import numpy as np
import oracle
import pytest
from cases import assert_same_bits
from tiers import mostly_full

import mplab
from mplab import BF16, FP8_E4M3, FP8_E4M3FNUZ, FP8_E5M2, FP8_E8M0, FP16, FP32
from mplab.arithmetic import loops, reductions
from mplab.lessons.l05 import bounds
from mplab.numbers import Overflow, Rounding, Stream, threads
from mplab.numbers.parameters import rounding_parameters

ORDERS = ["sequential", "reversed", "pairwise", "blocked(4)", "kahan"]
MODES = pytest.mark.parametrize("rounding", exact.DETERMINISTIC, ids=lambda m: m.name)


class Slow:
    """The same sums, an operation at a time, each with one Fraction rounded by the oracle."""

    def __init__(self, fmt, rounding, product_format=None):
        self.fmt = fmt
        self.rounding = rounding
        self.product_format = product_format

    def enter(self, q, fmt):
        if q == 0 and not isinstance(q, float):
            q = -0.0 if self.rounding is Rounding.TOWARD_NEGATIVE else 0.0
        return oracle.round_fraction(q, fmt, self.rounding, Overflow.IEEE)

    def add(self, x, y):
        return self.enter(exact._sum(x, y), self.fmt)

    def product(self, x, y):
        if x != x or y != y:
            return nan
        q = exact._product(x, y)
        return q if self.product_format is None else self.enter(q, self.product_format)

    def sum(self, terms, order):
        if order == "reversed":
            return self.sum(terms[::-1], "sequential")
        return getattr(self, order.partition("(")[0])(terms)

    def sequential(self, terms):
        total = self.enter(terms[0], self.fmt)
        for term in terms[1:]:
            total = self.add(total, term)
        return total

    def blocked(self, terms, size=4):
        parts = [terms[i : i + size] for i in range(0, len(terms), size)]
        return self.sequential([self.sequential(part) for part in parts])

    def pairwise(self, terms):
        row = [self.enter(term, self.fmt) for term in terms]
        while len(row) > 1:
            pairs = [self.add(*row[i : i + 2]) for i in range(0, len(row) - 1, 2)]
            row = pairs + row[len(row) - len(row) % 2 :]
        return row[0]

    def kahan(self, terms):
        total = 0.0 if self.rounding is Rounding.TOWARD_NEGATIVE else -0.0
        lost = 0.0
        for term in terms:
            corrected = self.add(term, -lost)
            after = self.add(total, corrected)
            lost = self.add(self.add(after, -total), -corrected)
            total = after
        return total


def operands(kind, count, rng):
    """Two vectors of FP16 values: ordinary, far apart, tiny, or with special values."""
    shape = (2, count)
    if kind == "ordinary":
        x = rng.standard_normal(shape)
    elif kind == "far apart":
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 9, shape)
    elif kind == "extreme":  # so far apart that float64 cannot hold a sum
        x = rng.choice([1.0, -1.0, 1.5], shape) * 2.0 ** rng.choice(
            [-24, -23, 0, 14, 15], shape
        )
    elif kind == "tiny":
        x = rng.integers(-3, 4, shape) * 2.0 ** rng.integers(-16, -10, shape)
    else:
        x = rng.choice([0.0, -0.0, 1.0, -1.0, 60000.0, inf, -inf, nan], shape,
                       p=[0.3, 0.3, 0.15, 0.15, 0.04, 0.02, 0.02, 0.02])  # fmt: skip
    return mplab.round_to(x, FP16)


@pytest.mark.parametrize(
    "rounding",
    mostly_full(exact.DETERMINISTIC, [Rounding.TIES_TO_EVEN]),
    ids=lambda mode: mode.name,
)
@pytest.mark.parametrize("order", ORDERS)
def test_every_order_takes_the_steps_of_the_oracle(order, rounding):
    rng = np.random.default_rng([7, *order.encode(), rounding])
    formats = [(FP16, None), (FP16, FP16), (BF16, FP16), (FP8_E4M3, BF16), (FP8_E5M2, None),
               (FP8_E4M3FNUZ, FP8_E5M2), (FP32, None), (mplab.FP4_E2M1, None)]  # fmt: skip
    for fmt, product_format in formats:
        slow = Slow(fmt, rounding, product_format)
        for kind in ("ordinary", "far apart", "extreme", "tiny", "special"):
            for count in (1, 2, 3, 4, 5, 7, 13, 13, 13, 31, 31):
                a, b = operands(kind, count, rng)
                terms = [
                    slow.product(x, y)
                    for x, y in zip(a.tolist(), b.tolist(), strict=True)
                ]
                got = reductions.dot(
                    a,
                    b,
                    accumulator_format=fmt,
                    product_format=product_format,
                    order=order,
                    rounding=rounding,
                )
                assert_same_bits(got, np.float64(slow.sum(terms, order)))


@pytest.mark.parametrize("order", ORDERS)
def test_each_element_of_a_matrix_product_is_an_inner_product(order):
    rng = np.random.default_rng(1)
    a = mplab.round_to(rng.standard_normal((5, 11)), FP16)
    b = operands("far apart", 11, rng).T.copy()
    how = {"accumulator_format": FP16, "order": order}
    got = reductions.matmul(a, b, **how)
    want = [[reductions.dot(row, column.copy(), **how) for column in b.T] for row in a]
    assert_same_bits(got, np.array(want))


@pytest.mark.parametrize("rounding", [Rounding.TIES_TO_EVEN, Rounding.TOWARD_NEGATIVE])
@pytest.mark.parametrize("order", ORDERS)
def test_a_split_product_is_the_sum_of_its_parts_in_order(order, rounding):
    rng = np.random.default_rng([7, *order.encode()])
    a, b = (mplab.round_to(rng.standard_normal(s), FP16) for s in ((2, 11), (11, 2)))
    slow = Slow(BF16, rounding, FP8_E5M2)
    how = {
        "accumulator_format": BF16,
        "product_format": FP8_E5M2,
        "output_format": FP8_E4M3,
    }
    how |= {"order": order, "rounding": rounding}
    for splits in (1, 2, 3, 5, 11):
        want = np.empty((2, 2))
        for i, j in np.ndindex(2, 2):
            terms = [slow.product(x, y) for x, y in zip(a[i], b[:, j], strict=True)]
            ends = [c * 11 // splits for c in range(splits + 1)]
            total, *rest = [
                slow.sum(terms[begin:end], order)
                for begin, end in itertools.pairwise(ends)
            ]
            for part in rest:
                total = slow.add(total, part)
            want[i, j] = slow.enter(exact._sum(total, -0.0), FP8_E4M3)
        assert_same_bits(reductions.matmul(a, b, split_k=splits, **how), want)


def test_distinct_sums_are_those_of_all_orders():
    """Of five numbers, all 120 orders are found, and each sum is one that some order gives."""
    rng = np.random.default_rng(8)
    for fmt in (FP16, BF16, FP8_E4M3):
        x = mplab.round_to(rng.standard_normal(5) * 2.0 ** rng.integers(-3, 4, 5), fmt)
        slow = Slow(fmt, Rounding.TIES_TO_EVEN)
        every = {
            slow.sum(list(order), "sequential")
            for order in itertools.permutations(x.tolist())
        }
        found = reductions.distinct_sums(x, fmt, orders=3000)
        assert found.tolist() == sorted(every)
        few = reductions.distinct_sums(x.reshape(5, 1), fmt, orders=2, seed=1)
        assert 1 <= len(few) <= 2
        assert set(few) <= every
    assert len(reductions.distinct_sums([np.inf, 1.0, -np.inf], FP16)) == 1
    assert reductions.distinct_sums([], FP16).tolist() == [0.0]


@pytest.mark.parametrize("order", ["sequential", "reversed", "blocked(4)"])
def test_sums_side_by_side_and_a_single_sum_take_the_same_steps(order):
    """One column has a loop of its own, and formats without −0 are compiled apart."""
    rng = np.random.default_rng([9, *order.encode()])
    kinds = ("ordinary", "far apart", "extreme", "tiny", "special")
    b = np.concatenate([operands(kind, 24, rng) for kind in kinds]).T.copy()
    a = operands("extreme", 24, rng)[:1]
    formats = [
        (FP16, None),
        (FP32, None),
        (BF16, FP16),
        (FP8_E4M3FNUZ, None),
        (FP8_E5M2, FP8_E8M0),
    ]
    for fmt, product_format in formats:
        how = {
            "accumulator_format": fmt,
            "product_format": product_format,
            "order": order,
        }
        alone = [
            reductions.matmul(a, column[:, None], **how)[0, 0] for column in b.T.copy()
        ]
        assert_same_bits(reductions.matmul(a, b, **how)[0], np.array(alone))


def test_running_sums_are_those_of_numpy():
    for fmt, dtype, count in ((FP32, np.float32, 200_000), (FP16, np.float16, 20_000)):
        x = np.random.default_rng(4).standard_normal(count).astype(dtype)
        want = np.add.accumulate(x, dtype=dtype).astype(np.float64)
        assert_same_bits(reductions.cumsum(x, accumulator_format=fmt), want)


@pytest.mark.parametrize("order", ["sequential", "reversed", "kahan"])
def test_the_last_running_sum_is_the_sum(order):
    x = mplab.round_to(np.random.default_rng(3).standard_normal((40, 3)), FP16)
    running = reductions.cumsum(x, axis=0, accumulator_format=FP16, order=order)
    totals = reductions.sum(x, axis=0, accumulator_format=FP16, order=order)
    assert_same_bits(running[0 if order == "reversed" else -1], totals)
    assert running.shape == x.shape


def test_results_do_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(8)
    a, b = (mplab.round_to(rng.standard_normal((96, 96)), FP16) for _ in range(2))
    for rounding in (Rounding.TIES_TO_EVEN, Rounding.STOCHASTIC):
        results = []
        for count in (1, 3):
            before = threads.set_threads(count)
            try:
                stream = Stream(5) if rounding is Rounding.STOCHASTIC else None
                how = {
                    "rounding": rounding,
                    "stream": stream,
                    "accumulator_format": FP16,
                }
                results.append(reductions.matmul(a, b, product_format=FP16, **how))
            finally:
                threads.set_threads(before)
        assert_same_bits(*results)


def test_random_bits_of_a_long_product_do_not_repeat_past_2_to_the_32_steps():
    lanes, row = 7, 306_783_378  # two steps a row: this one begins 4 below 2^32
    x = np.full((1, lanes), 17.0)  # halfway between 16 and 18
    for seed in range(60):
        keys_of = Stream(seed).keys()
        out = np.empty((1, lanes))
        rules = rounding_parameters(FP8_E4M3, np.dtype(np.float64)).numbers
        keys = np.array([keys_of(run) for run in range(2)])
        loop = loops._loop_for(int(Rounding.STOCHASTIC), False, True, False)
        one = np.ones((1, 1))
        trace = np.empty((0, lanes))
        plan = (False, 1, False)
        loop(one, x, out, trace, rules, rules, np.array([keys, keys]), plan, row)
        first = row * 2 * lanes
        bits = [oracle.random_bits(seed, 0, first + i) for i in range(lanes)]
        want = [16.0 if bit < 1 << 31 else 18.0 for bit in bits]
        assert out[0].tolist() == want


def test_a_mean_of_very_many_numbers_is_divided_with_one_rounding():
    rng = np.random.default_rng(5)
    wrong_with_two = 0
    e5m27 = mplab.Format("E5M27", exponent_bits=5, precision=28, signed=False)
    for fmt, k in ((FP32, 32), (e5m27, 28)):
        p = fmt.precision
        tried = 0
        while tried < 40:
            # total / count = middle / 2^k · (1 ± 1 / (middle · count)), beside a midpoint
            middle = (1 << p) + 2 * int(rng.integers(1 << (p - 1))) + 1
            sign = int(rng.choice([-1, 1]))
            count = sign * pow(middle, -1, 1 << k) % (1 << k)
            total = (middle * count - sign) >> k
            if total >> p:
                continue
            tried += 1
            unit = Fraction(2) ** (10 - p)
            scaled = float(total * unit)
            for rounding in exact.DETERMINISTIC:
                how = np.array([[scaled]]), count, fmt, {"rounding": rounding}
                got = reductions._quotient(*how)[0, 0]
                want = oracle.round_fraction(
                    total * unit / count, fmt, rounding, Overflow.IEEE
                )
                assert got == want, (fmt, total, count, rounding)
                twice = mplab.round_to(scaled / count, fmt, rounding=rounding)
                wrong_with_two += twice != want
    assert wrong_with_two > 20


# What lessons rely on -------------------------------------------------------------------


def test_a_sum_of_ones_stagnates_where_one_is_half_an_ulp_and_better_orders_go_on():
    ones = np.ones(4096)
    for fmt, limit in (
        (FP16, 2048.0),
        (BF16, 256.0),
        (FP8_E4M3, 16.0),
        (FP8_E5M2, 8.0),
    ):
        assert (
            reductions.sum(ones, accumulator_format=fmt) == limit == 2.0**fmt.precision
        )
    for order in ("pairwise", "blocked(64)", "kahan"):
        assert reductions.sum(ones, accumulator_format=FP16, order=order) == 4096.0


def test_stochastic_rounding_does_not_stagnate():
    ones = np.ones((8192, 64))
    how = {"rounding": Rounding.STOCHASTIC, "stream": Stream(1)}
    totals = reductions.sum(ones, axis=0, accumulator_format=FP16, **how)
    assert abs(totals.mean() - 8192) < 60
    assert totals.std() > 0


def test_an_empty_sum_is_plus_zero():
    for rounding in exact.DETERMINISTIC:
        total = reductions.sum(np.zeros(0), accumulator_format=FP16, rounding=rounding)
        assert_same_bits(total, np.float64(0.0))
    nothing = np.ones((2, 0)), np.ones((0, 3))
    product = reductions.matmul(*nothing, split_k=1, accumulator_format=FP16)
    assert_same_bits(product, np.zeros((2, 3)))


def test_a_sum_of_zeros_keeps_their_sign():
    for rounding in exact.DETERMINISTIC:
        how = {"accumulator_format": FP16, "rounding": rounding}
        for zero in (0.0, -0.0):
            assert_same_bits(reductions.sum(np.full(3, zero), **how), np.float64(zero))


def test_saturation_keeps_a_sum_finite():
    x = np.full(3, 300.0)
    how = {"accumulator_format": FP8_E4M3}
    x = mplab.round_to(x, FP8_E4M3)
    assert np.isnan(reductions.sum(x, **how))
    assert reductions.sum(x, overflow=Overflow.SATURATE, **how) == 448.0


# What is built on sums ------------------------------------------------------------------


@MODES
def test_means_variances_and_norms_take_the_steps_of_the_oracle(rounding):
    rng = np.random.default_rng(20)
    for fmt in (FP16, BF16, FP32):
        slow = Slow(fmt, rounding, fmt)
        x = mplab.round_to(3 + rng.standard_normal(9), fmt)
        how = {"accumulator_format": fmt, "product_format": fmt, "rounding": rounding}
        centre = exact.rounded(
            "divide", (slow.sum(x.tolist(), "sequential"), 9.0), fmt, rounding
        )
        assert reductions.mean(x, **how) == centre
        deviations = [slow.add(v, -centre) for v in x.tolist()]
        squares = slow.sum([slow.product(d, d) for d in deviations], "sequential")
        want = exact.rounded("divide", (squares, 8.0), fmt, rounding)
        assert reductions.variance(x, ddof=1, **how) == want
        squares = slow.sum([slow.product(v, v) for v in x.tolist()], "sequential")
        assert reductions.norm(x, **how) == exact.rounded(
            "sqrt", (squares,), fmt, rounding
        )
        first = exact.rounded("divide", (squares, 9.0), fmt, rounding)
        second = exact.rounded("multiply", (centre, centre), fmt, rounding)
        assert reductions.variance(x, method="one-pass", **how) == slow.add(
            first, -second
        )


def test_statistics_go_along_an_axis():
    x = mplab.round_to(np.random.default_rng(6).standard_normal((4, 5, 6)), FP16)
    how = {"accumulator_format": FP16}
    for function in (
        reductions.sum,
        reductions.mean,
        reductions.variance,
        reductions.norm,
    ):
        got = function(x, axis=1, **how)
        assert got.shape == (4, 6)
        assert got[2, 3] == function(x[2, :, 3].copy(), **how)


def test_a_two_pass_variance_never_rounds_a_square_twice():
    wide = mplab.Format("E3M28", exponent_bits=3, precision=29)
    with pytest.raises(
        ValueError, match=r"^variance: accumulator_format must have at most 26"
    ):
        reductions.variance([2.25, -(2.0**-26)], accumulator_format=wide)
    assert (
        reductions.variance([2.0, -2.0], accumulator_format=wide, method="one-pass")
        == 4
    )
    for wrong in ({"method": "three-pass"}, {"method": "one-pass", "ddof": 1}):
        with pytest.raises(ValueError, match="method must be 'two-pass', or"):
            reductions.variance([2.0, -2.0], accumulator_format=FP16, **wrong)


def test_softmax_without_a_shift_overflows_early():
    x = mplab.round_to(np.array([[12.0, 0.0], [1.0, 2.0]]), FP16)
    got = reductions.softmax(x, accumulator_format=FP16)
    want = np.exp(x - x.max(axis=1, keepdims=True))
    want /= want.sum(axis=1, keepdims=True)
    assert np.all(np.abs(got - want) <= 3 * FP16.unit_roundoff)
    assert np.isnan(reductions.softmax(x, shift=False, accumulator_format=FP16)).any()
    columns = reductions.softmax(x, axis=0, accumulator_format=FP16)
    assert_same_bits(
        columns, reductions.softmax(x.T.copy(), accumulator_format=FP16).T.copy()
    )


# Bounds ---------------------------------------------------------------------------------


def test_the_linear_bound_holds_for_every_order():
    rng = np.random.default_rng(31)
    x = mplab.round_to(rng.standard_normal(1000), FP16)
    scale = np.abs(x).sum()
    for order in ORDERS[:4]:
        total = reductions.sum(x, accumulator_format=FP16, order=order)
        limit = bounds.linear_bound(bounds.roundings(1000, order), FP16)
        assert abs(total - math.fsum(x)) <= limit * scale


def test_the_probabilistic_bound_separates_random_signs_from_stagnation():
    rng = np.random.default_rng(32)
    n = 4096
    x = mplab.round_to(rng.uniform(-1, 1, (n, 200)), FP16)
    exactly = np.array([math.fsum(column) for column in x.T])
    errors = np.abs(reductions.sum(x, axis=0, accumulator_format=FP16) - exactly)
    relative = errors / np.abs(x).sum(axis=0)
    assert np.all(relative <= bounds.probabilistic_bound(n, FP16))
    stuck = 1 - reductions.sum(np.ones(n), accumulator_format=FP16) / n
    assert stuck > 5 * bounds.probabilistic_bound(n, FP16)
    assert stuck <= bounds.linear_bound(n, FP16)


def test_roundings_are_the_longest_chain():
    assert [bounds.roundings(n) for n in (0, 1, 2, 9)] == [0, 0, 1, 8]
    assert [bounds.roundings(n, "pairwise") for n in (1, 2, 3, 8, 9)] == [0, 1, 2, 3, 4]
    assert [bounds.roundings(n, "blocked(4)") for n in (3, 4, 5, 12)] == [2, 3, 4, 5]


# Arguments ------------------------------------------------------------------------------


def test_terms_must_be_values_of_fp32():
    good = np.ones((1, 1))
    bad = np.full((1, 1), 0.1)
    how = {"accumulator_format": FP16}
    for message, function, terms in (
        (r"^sum: x must hold values of FP32; got 0\.1, between", reductions.sum, [bad]),
        (
            r"^dot: b must hold .*round_to\(b, FP32\)\.$",
            reductions.dot,
            [good[0], bad[0]],
        ),
        (r"^matmul: a must hold values of FP32", reductions.matmul, [bad, good]),
    ):
        with pytest.raises(ValueError, match=message):
            function(*terms, **how)


EVERY = ["matmul", "dot", "sum", "cumsum", "norm", "mean", "variance", "softmax"]


@pytest.mark.parametrize("name", EVERY)
def test_a_misspelt_option_is_refused_rather_than_ignored(name):
    x = np.ones((2, 2)) if name == "matmul" else np.ones(2)
    function = partial(
        getattr(reductions, name), *[x] * (1 + (name in ("matmul", "dot")))
    )
    with pytest.raises(TypeError, match="unexpected keyword argument 'oder'"):
        function(accumulator_format=FP16, oder="pairwise")
    with pytest.raises(TypeError, match="accumulator_format"):
        function()
    if name == "cumsum":
        with pytest.raises(
            ValueError, match="order must be one of sequential, reversed"
        ):
            function(accumulator_format=FP16, order="pairwise")


def test_a_block_longer_than_any_sum_is_all_of_it():
    x = np.array([2048.0, 1.0, 1.0])
    assert (
        reductions.sum(x, accumulator_format=FP16, order=f"blocked({10**30})") == 2048
    )


def test_sums_along_an_axis_of_no_columns_keep_their_shape():
    nothing = np.zeros((3, 0))
    assert reductions.softmax(nothing, axis=0, accumulator_format=FP16).shape == (3, 0)
    assert reductions.cumsum(nothing, axis=0, accumulator_format=FP16).shape == (3, 0)
    assert reductions.sum(nothing, axis=0, accumulator_format=FP16).shape == (0,)


@pytest.mark.full
def test_loops_are_compiled_anew_when_the_definition_of_rounding_changes(tmp_path):
    """numba's cache sees only the loop's own file; `_EDITION` stands for the other one."""
    package = tmp_path / "mplab"
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(mplab.__file__).parent, package, ignore=skip)
    code = (
        "import numpy as np, mplab\n"
        "from mplab.arithmetic import reductions\n"
        "print(reductions.sum(np.full(2, 2049.0), accumulator_format=mplab.FP16))"
    )
    command = [sys.executable, "-c", code]

    def answer():
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return float(done.stdout)

    assert answer() == answer() == 4096.0  # 2049 goes down to 2048, then 4097 to 4096
    kernels = package / "numbers" / "kernels.py"
    text = kernels.read_text(encoding="utf-8")
    line = "addend = _as(a, _as(a, low >> 1) - _mask(a, parity & up != 0))"
    assert line in text
    kernels.write_text(text.replace(line, "addend = low"), encoding="utf-8")
    assert answer() == 4100.0  # away from zero: 2050, then 4099 goes to 4100


@pytest.mark.parametrize("axis", [-3, 2, 2**40, True, 1.0, "1"])
def test_a_wrong_axis_is_refused_in_numpy_s_own_words(axis):
    x = np.ones((2, 2))
    with pytest.raises((ValueError, TypeError)) as theirs:
        x.sum(axis=axis)
    for reduction in (reductions.sum, reductions.cumsum, reductions.softmax):
        with pytest.raises(theirs.type, match=f"^{re.escape(str(theirs.value))}$"):
            reduction(x, axis=axis, accumulator_format=FP16)
