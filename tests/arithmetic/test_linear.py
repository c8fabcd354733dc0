"""Factors and solves against the same steps in Fractions; refinement against exact solutions."""

from fractions import Fraction
from itertools import product
from math import inf, isfinite

import exact_arithmetic as exact
import numpy as np
import pytest
from cases import assert_same_bits
from tiers import mostly_slow

from mplab import BF16, FORMATS, FP8_E4M3, FP8_E5M2, FP8_E8M0, FP16, FP32
from mplab.arithmetic import condition, divide, multiply, subtract
from mplab.arithmetic.linear import (
    backward_error,
    lu,
    refine,
    solve_triangular,
)
from mplab.numbers import Format, Overflow, Rounding, Stream, round_to, values

MODES = pytest.mark.parametrize("rounding", exact.DETERMINISTIC, ids=lambda m: m.name)
FAST = (FP16, FP8_E4M3, FP8_E8M0, FORMATS["FP4_E2M1"])
EVERY_FORMAT = pytest.mark.parametrize(
    "fmt", mostly_slow(FORMATS.values(), FAST), ids=lambda f: f.name
)


# The second voice ------------------------------------------------------------------------
class Slow:
    """Elimination element by element: each entry is finished before the next is begun.

    The library takes all of the remaining matrix a step further at once.
    """

    def __init__(self, fmt, **rules):
        self.fmt, self.rounding = fmt, rules.get("rounding", Rounding.TIES_TO_EVEN)
        self.overflow = rules.get("overflow", Overflow.IEEE)

    def do(self, name, *operands):
        result = exact.rounded(name, operands, self.fmt, self.rounding, self.overflow)
        return float(result)

    def less_products(self, x, pairs):
        """The x from which products are taken one after the other."""
        for a, b in pairs:
            x = self.do("subtract", x, self.do("multiply", a, b))
        return x

    def lu(self, a):
        """The factors, column by column; None if a pivot is 0 or any entry is not finite."""
        a, n = [list(map(float, row)) for row in a], len(a)
        order = list(range(n))
        for k in range(n):
            for i in range(n):
                taken = [(a[i][j], a[j][k]) for j in range(min(i, k))]
                a[i][k] = self.less_products(a[i][k], taken)
            if not all(isfinite(a[i][k]) for i in range(n)):
                return None
            best = max(range(k, n), key=lambda i: (abs(a[i][k]), -i))
            a[k], a[best], order[k], order[best] = a[best], a[k], order[best], order[k]
            if a[k][k] == 0:
                return None
            for i in range(k + 1, n):
                a[i][k] = self.do("divide", a[i][k], a[k][k])
        lower = np.tril(a, -1)
        np.fill_diagonal(lower, 1.0)
        return lower, np.triu(a), np.array(order)

    def solve(self, t, b, *, lower):
        x = {}
        order = range(len(b)) if lower else range(len(b) - 1, -1, -1)
        for i in order:
            taken = [(float(t[i, j]), x[j]) for j in x]
            x[i] = self.do(
                "divide", self.less_products(float(b[i]), taken), float(t[i, i])
            )
        return np.array([x[i] for i in range(len(b))])


def matrices(fmt, n, count, seed=0):
    """Square matrices of values of a format: from around 1, and of any 8-bit pattern."""
    rng = np.random.default_rng(seed)
    anywhere = values(fmt) if fmt.bits <= 8 else np.array([])
    anywhere = anywhere[np.abs(anywhere) <= fmt.max_finite]  # MXINT8 has a code beyond
    for k in range(count):
        a = rng.standard_normal((n, n)) * (
            1.0 if k % 2 else rng.choice([1.0, 1e-2, 30.0], n)
        )
        yield round_to(a if fmt.signed else np.abs(a), fmt)
        if anywhere.size:
            yield rng.choice(anywhere, (n, n))


def agree(factors, expected):
    """Whether both broke down; where neither did, every bit must be the same."""
    assert (factors.reason != "") == (expected is None), factors.reason
    if expected is None:
        return 0
    for got, wanted in zip(factors, expected, strict=False):
        assert_same_bits(got, wanted)
    return expected[0].size


# Factors and solves ----------------------------------------------------------------------
@EVERY_FORMAT
@MODES
def test_every_bit_of_the_factors_is_that_of_the_steps_in_fractions(
    fmt, rounding, record_property
):
    compared = 0
    for overflow in Overflow:
        rules = {"rounding": rounding, "overflow": overflow}
        for a in matrices(fmt, 5, 3):
            compared += agree(lu(a, fmt, **rules), Slow(fmt, **rules).lu(a))
    assert compared or not fmt.signed, "all of them broke down"
    record_property("entries of L and U compared", 2 * compared)


@EVERY_FORMAT
@MODES
def test_every_bit_of_a_triangular_solution_is_that_of_the_steps_in_fractions(
    fmt, rounding, record_property
):
    compared = 0
    for a in matrices(fmt, 5, 4):
        for lower in (True, False):
            got = solve_triangular(a, a[2], fmt, lower=lower, rounding=rounding)
            assert_same_bits(
                got, Slow(fmt, rounding=rounding).solve(a, a[2], lower=lower)
            )
            compared += got.size
    record_property("unknowns compared", compared)


@pytest.mark.full
def test_all_pairs_of_rows_of_four_bits_have_the_factors_of_the_oracle(record_property):
    fmt = FORMATS["FP4_E2M1"]
    every = np.unique(values(fmt))
    upward = every[every >= 0]
    compared = 0
    for first, below in ((p, q) for p in upward for q in upward):
        for right in every:
            for last in every:
                a = np.array([[first, right], [below, last]])
                compared += agree(lu(a, fmt), Slow(fmt).lu(a))
    assert compared > 10_000
    record_property("entries compared", 2 * compared)


def test_stochastic_factors_take_the_bits_of_the_same_steps_written_out():
    a = round_to(np.random.default_rng(1).standard_normal((9, 9)), FP16)
    rules = {"rounding": Rounding.STOCHASTIC, "stream": Stream(5)}
    rest = a.copy()
    order = np.arange(9)
    for k in range(9):
        pivot = k + int(np.argmax(np.abs(rest[k:, k])))
        rest[[k, pivot]], order[[k, pivot]] = rest[[pivot, k]], order[[pivot, k]]
        rest[k + 1 :, k] = divide(rest[k + 1 :, k], rest[k, k], FP16, **rules)
        products = multiply(
            rest[k + 1 :, k : k + 1], rest[k : k + 1, k + 1 :], FP16, **rules
        )
        rest[k + 1 :, k + 1 :] = subtract(
            rest[k + 1 :, k + 1 :], products, FP16, **rules
        )
    found = lu(a, FP16, rounding=Rounding.STOCHASTIC, stream=Stream(5))
    assert_same_bits(found.upper, np.triu(rest))
    assert_same_bits(np.tril(found.lower, -1), np.tril(rest, -1))
    assert_same_bits(found.permutation, order)
    other = lu(a, FP16, rounding=Rounding.STOCHASTIC, stream=Stream(6))
    assert not np.array_equal(found.upper, other.upper)


def wilkinson(n):
    """Ones on the diagonal and in the last column, −1 below: elimination doubles the column."""
    a = np.eye(n) - np.tril(np.ones((n, n)), -1)
    a[:, -1] = 1.0
    return a


def in_fractions(x):
    return np.vectorize(lambda value: Fraction(float(value)), otypes=[object])(x)


def test_wilkinsons_matrix_grows_by_two_to_the_n_minus_1_until_fp16_ends():
    for n in range(1, 17):
        found = lu(wilkinson(n), FP16)
        assert (found.reason, found.upper[-1, -1]) == ("", 2.0 ** (n - 1))
        assert np.array_equal(found.lower @ found.upper, wilkinson(n))
    assert lu(wilkinson(17), FP16).reason == "column 16 meets inf"
    assert lu(wilkinson(10), FP8_E4M3).reason == "column 9 meets nan"
    assert (
        lu(wilkinson(17), FP16, overflow=Overflow.SATURATE).upper[-1, -1]
        == FP16.max_finite
    )


def test_a_breakdown_is_reported_with_its_column_and_raises_nothing():
    zero = np.zeros((3, 3))
    for a, reason in (
        (zero, "the pivot of column 0 is 0.0"),
        (np.diag([1.0, 2.0, 0.0]), "the pivot of column 2 is 0.0"),
        (zero + np.nan, "column 0 meets nan"),
        (np.diag([1.0, 1.0, inf]), "column 2 meets inf"),
        ([[1.0, 0, -inf], [0, 1.0, 0], [0, 0, 1.0]], "column 0 meets -inf"),
        ([[1.0, 0, 0], [0, 1.0, 0], [-inf, 0, 1.0]], "column 0 meets -inf"),
        ([[1e-3, 1.0], [1e-3, -1.0]], ""),
    ):
        assert lu(round_to(np.array(a), FP16), FP16).reason == reason
    singular = solve_triangular([[0.0, 0.0], [1.0, 1.0]], [1.0, 1.0], FP16, lower=True)
    assert singular.tolist() == [inf, -inf]


def test_arguments_are_left_as_they_were():
    a = np.array([[0.5, 1.0], [2.0, 1.0]])
    b = np.array([1.0, 2.0])
    for call in (
        lambda: lu(a, FP16),
        lambda: solve_triangular(a, b, FP16, lower=False),
        lambda: refine(a, b, factor_format=FP16, method="gmres"),
    ):
        call()
        assert (a.tolist(), b.tolist()) == ([[0.5, 1.0], [2.0, 1.0]], [1.0, 2.0])


# Judging ---------------------------------------------------------------------------------
def exact_backward_error(a, x, b):
    a, x, b = map(in_fractions, (a, x, b))
    residual = max(abs(b - a @ x))
    norms = max(abs(a).sum(axis=1)) * max(abs(x)) + max(abs(b))
    return float(residual / norms) if residual else 0.0


def test_backward_errors_are_those_of_fractions_rounded_once():
    rng = np.random.default_rng(4)
    for n in (1, 2, 7):
        for reach in (0, 1, 40, 300):
            for _ in range(5):
                spread = 10.0 ** rng.uniform(-reach, reach, (n + 2, n))
                a = rng.standard_normal((n, n)) * spread[:n]
                x, b = spread[n:]
                near = np.linalg.solve(a, b) if reach < 2 else x
                for guess in (x, near, np.zeros(n)):
                    assert backward_error(a, guess, b) == exact_backward_error(
                        a, guess, b
                    )
    least = np.full((2, 2), 5e-324)
    most = np.full(2, 1.7e308)
    assert backward_error(least, most, most) == exact_backward_error(least, most, most)
    assert backward_error(np.zeros((2, 2)), np.zeros(2), np.zeros(2)) == 0.0
    assert backward_error(np.zeros((2, 2)), np.ones(2), np.ones(2)) == 1.0


def test_condition_numbers_are_those_of_exact_inverses():
    hilbert = 1 / (1.0 + np.arange(3)[:, None] + np.arange(3))
    # Of rows 11/6, 13/12, 47/60; and 408.
    assert condition(hilbert, 1) == pytest.approx(748)
    assert condition(hilbert, np.inf) == pytest.approx(748)
    assert condition(np.diag([8.0, 2.0, 0.5])) == pytest.approx(16)
    assert condition(np.eye(3) * 1e-300, 1) == pytest.approx(1)
    for p in (1, np.inf):
        assert condition(np.ones((2, 2)), p) == inf
    assert condition(np.zeros((2, 2))) == inf and condition(np.ones((2, 2))) > 1e15


# Refinement ------------------------------------------------------------------------------
def of_condition(n, kappa, seed):
    """A matrix whose singular values fall evenly on a logarithmic axis, and a right-hand side."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    a = (left * kappa ** (-np.arange(n) / max(n - 1, 1))) @ right
    return a, a @ rng.standard_normal(n)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["classic", "gmres"])
@pytest.mark.parametrize(
    "residual_format", [None, FP32, FP16], ids=lambda f: f and f.name
)
def test_what_is_said_to_have_converged_has_and_nothing_else(method, residual_format):
    said = []
    for seed in range(2):
        for fmt in (FP32, FP16, BF16, FP8_E4M3, FP8_E5M2, FP8_E8M0):
            for kappa in (2.0, 1e3, 1e9, 1e18):
                a, b = of_condition(8, kappa, seed)
                found = refine(a, b, factor_format=fmt, residual_format=residual_format,
                               method=method, limit=9)  # fmt: skip
                errors = found.backward_errors
                assert found.steps == max(len(errors) - 1, 0) <= 9
                assert found.converged == (not found.reason)
                if errors.size and np.isfinite(found.x).all():
                    powers = 2.0 ** (1 - np.frexp(abs(a).max(axis=0))[1])
                    both = ((a, found.x), (a * powers, found.x / powers))
                    wanted = max(exact_backward_error(*each, b) for each in both)
                    assert errors[-1] == wanted
                    assert found.converged == (errors[-1] <= 2.0**-52)
                else:
                    assert not found.converged
                said.append(found.converged)
    assert not all(said) and (any(said) or residual_format is not None)


def test_gmres_goes_on_where_the_classic_method_stops_but_gains_little_at_last():
    for kappa, least in ((1e6, 60), (1e8, 100)):
        hard = of_condition(64, kappa, 1)
        assert "no longer halve" in refine(*hard, factor_format=FP16).reason
        gmres = refine(*hard, factor_format=FP16, method="gmres")
        assert (
            gmres.converged and gmres.steps <= 3 and least < gmres.inner_steps <= 3 * 64
        )


def test_a_step_that_does_not_halve_the_error_ends_nothing_as_long_as_three_do():
    found = refine(*of_condition(24, 1e3, 0), factor_format=BF16)
    ratios = found.backward_errors[7:] / found.backward_errors[6:-1]
    assert found.converged and ratios.max() > 0.5


def test_a_power_of_two_changes_no_bit_and_other_scales_no_step():
    a, b = of_condition(32, 100.0, 3)
    plain = refine(a, b, factor_format=FP16)
    for power in (-600, -20, 20, 600):
        scaled = refine(np.ldexp(a, power), b, factor_format=FP16)
        assert_same_bits(scaled.x, np.ldexp(plain.x, -power))
        assert_same_bits(scaled.backward_errors, plain.backward_errors)
    for c in (1e6, 1e-6):
        assert abs(refine(c * a, c * b, factor_format=FP16).steps - plain.steps) <= 1
        unscaled = refine(c * a, c * b, factor_format=FP16, scale=False)
        assert not unscaled.converged
        assert ("broke down: column 0 meets" in unscaled.reason) == (c > 1)
        assert refine(c * a, c * b, factor_format=BF16, scale=False).converged


@pytest.mark.parametrize("most", [10, 30, 250])
def test_columns_times_powers_of_two_take_the_same_steps_to_the_same_bits(most):
    """Small ones do not underflow in FP16, and a norm that sees the large ones ends nothing."""
    a, b = of_condition(32, 100.0, 3)
    powers = np.random.default_rng(most).integers(-most, most + 1, 32)
    for fmt in (FP16, BF16):
        plain = refine(a, b, factor_format=fmt)
        scaled = refine(np.ldexp(a, powers), b, factor_format=fmt)
        assert plain.converged and scaled.converged
        assert_same_bits(np.ldexp(scaled.x, powers), plain.x)
    low, as_wide = (
        refine(m, b, factor_format=FP16, residual_format=FP16).x
        for m in (np.ldexp(a, powers), a)
    )
    assert_same_bits(np.ldexp(low, powers), as_wide)
    assert abs(as_wide - plain.x).max() < 0.1 * abs(plain.x).max()
    as_it_is = refine(np.ldexp(a, powers), b, factor_format=BF16, scale=False)
    off = abs(np.ldexp(as_it_is.x, powers) - plain.x).max()
    assert as_it_is.converged == (most <= 30) and not off < 1e-12


def test_what_converged_is_right_to_its_condition_whatever_the_columns():
    rng = np.random.default_rng(5)
    converged = 0
    for n, most in 5 * [*product(range(1, 7), (0, 10, 100, 900))]:
        a = rng.integers(-(2**20), 2**20, (n, n)).astype(np.float64)
        x = rng.integers(-9, 10, n).astype(np.float64)
        sizes = np.exp2(np.frexp(abs(a).max(axis=0))[1] - 1.0)
        powers = rng.integers(-most, most + 1, n)
        for fmt in (BF16, FP16, FP8_E4M3):
            found = refine(np.ldexp(a, powers), a @ x, factor_format=fmt)
            if found.converged:
                off = sizes * abs(np.ldexp(found.x, powers) - x)
                reach = condition(a / sizes, np.inf) * (sizes * abs(x)).max()
                assert off.max() <= 4 * 2.0**-52 * reach
                converged += 1
    assert converged > 200


def test_the_largest_entry_of_each_column_is_1_to_2():
    """So that four times as much, which elimination makes of it here, is 6, where E2M1 ends."""
    a = 1.5 * np.array([[1.0, 0.0, 1.0], [-1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]])
    for powers in ([0, 0, 0], [9, -40, 200]):
        found = refine(np.ldexp(a, powers), [1.0, 2.0, 4.0], factor_format="FP4_E2M1")
        assert found.converged and found.steps == 0


@pytest.mark.parametrize("fmt", [FP16, BF16, FP32], ids=lambda f: f.name)
def test_a_low_residual_starts_with_b_and_rounds_each_difference_once(fmt):
    upper = np.triu(round_to(np.random.default_rng(8).uniform(1, 2, (5, 5)), FP16))
    a = upper + 2.0**-13 * np.triu(np.ones((5, 5)), 1)
    b = np.array([0.1, 0.7, 1.3, -0.4, 1.9])
    first, second = (
        refine(a, b, factor_format=FP16, residual_format=fmt, scale=False, limit=n).x
        for n in (0, 1)
    )
    assert_same_bits(first, np.linalg.solve(upper, b))
    low_a = round_to(-a, fmt)
    low_x = round_to(first, fmt)
    residual = round_to(b, fmt)
    for i in range(5):
        for j in range(5):
            terms = float(low_a[i, j]), float(low_x[j]), float(residual[i])
            residual[i] = exact.rounded("fma", terms, fmt, Rounding.TIES_TO_EVEN)
    assert_same_bits(second, first + np.linalg.solve(upper, residual))


def test_refinement_tells_why_it_ended():
    a, b = of_condition(8, 10.0, 1)
    wide = Format("E11M20", exponent_bits=11, precision=21)
    for reason, call in (
        ("0 steps were too few", lambda m: refine(a, b, factor_format=FP16, method=m, limit=0)),
        ("1 steps were too few", lambda m: refine(a, b, factor_format=FP8_E5M2, method=m, limit=1)),
        ("factors in FP16 broke down: the pivot of column 0 is 0.0",
         lambda m: refine(np.zeros((8, 8)), b, factor_format=FP16, method=m)),
        ("x is no longer finite",
         lambda m: refine([[2.0**-600]], [2.0**600], factor_format=FP16, method=m)),
        ("x is no longer finite",
         lambda m: refine([[1.0, 2.0], [3.0, 4.0]], [1e6, 1.0], factor_format=FP16, method=m,
                          residual_format=FP16)),
        ("three steps no longer halve the backward error",
         lambda m: refine([[1 + 2.0**-40]], [1.0], factor_format=FP16, method=m,
                          residual_format=FP16)),
        ("", lambda m: refine(a, 0 * b, factor_format=FP16, method=m)),
        ("", lambda m: refine([[2.0**-1000 * (1 + 2.0**-30)]], [1.0], factor_format=wide,
                              scale=False, method=m)),
    ):  # fmt: skip
        for method in ("classic", "gmres"):
            found = call(method)
            assert (found.reason, found.converged) == (reason, not reason), method
    first = refine(a, b, factor_format=FP16, limit=0)
    assert (first.steps, first.backward_errors.size) == (0, 1) and first.x.any()
    broken = refine(np.zeros((8, 8)), b, factor_format=FP16)
    assert (broken.steps, broken.inner_steps, broken.backward_errors.size) == (0, 0, 0)
    assert np.isnan(broken.x).all()


def test_shapes_and_values_that_are_no_system_are_refused_by_name():
    b = np.ones(2)
    for message, call in (
        (r"^lu: matrices must have a shape .*; got \(0, 0\)", lambda: lu(np.ones((0, 0)), FP16)),
        (r"^lu: matrix must hold values of FP16; got 0.1", lambda: lu([[0.1]], FP16)),
        (r"^solve_triangular: b must have the shape \(2,\).*; got \(2, 2\)",
         lambda: solve_triangular(np.eye(2), np.eye(2), FP16, lower=True)),
        (r"^refine: b must have the shape \(2,\).*; got \(2, 1\)",
         lambda: refine(np.eye(2), b[:, None], factor_format=FP16)),
        (r"^refine: a must hold finite numbers; got nan",
         lambda: refine(np.eye(2) * np.nan, b, factor_format=FP16)),
        (r"^backward_error: x must hold finite numbers; got inf",
         lambda: backward_error(np.eye(2), b * inf, b)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()
