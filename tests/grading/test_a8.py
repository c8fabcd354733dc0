"""The references of A8, held against the library, NumPy and exact fractions."""

import math
from fractions import Fraction
from functools import partial

import corpus
import numpy as np
import pytest

from mplab import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, Format, round_to
from mplab.arithmetic import condition
from mplab.lessons.l16.integration import integrate
from mplab.lessons.l17.emulation import slice_bits, split

pytestmark = pytest.mark.slow

reference = partial(corpus.reference, "a8")
cases = partial(corpus.hidden_cases, "a8")


def test_a_running_variance_in_fp32_is_that_of_numpy():
    x = np.random.default_rng(1).normal(size=40) + 5
    found = reference("running")(np.asarray(round_to(x, FP32)), FP32)
    wanted = [np.var(x[:n], ddof=1) for n in range(2, 41)]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5)


def test_the_running_variance_is_off_by_a_few_times_its_bar_where_one_pass_loses_all():
    x = np.asarray(round_to(60 + np.random.default_rng(2).normal(size=200), FP16))
    found, bar = reference("running")(x, FP16)[:, -1]
    exact = np.var(x, ddof=1)
    one_pass = (
        (round_to(np.mean(x * x), FP16) - round_to(x.mean() ** 2, FP16)) * 200 / 199
    )
    assert abs(found - exact) < 4 * bar < 1 / 2
    assert abs(one_pass - exact) > 4 * bar


def test_the_finest_plain_step_is_the_last_one_that_integrate_brings_to_the_goal():
    for k, room, start, goal, halvings, fmt in cases("freezing", "cups that cool"):
        arrives = []
        for dt in 0.5 ** np.arange(halvings + 1):
            path = integrate(
                lambda t, k=k, room=room: k * (room - t), start, dt, 400, fmt
            )
            arrives += [dt] if np.min(path) <= goal else []
        found = reference("freezing")(k, room, start, goal, halvings, fmt)[0]
        assert found == min(arrives, default=math.nan) or (
            math.isnan(found) and not arrives
        )


@pytest.mark.parametrize(
    "fmt", [FP16, BF16, FP8_E4M3, FP8_E5M2], ids=lambda fmt: fmt.name
)
def test_what_converged_solves_the_system_and_says_its_error_in_exact_fractions(fmt):
    found = set()
    for lower, diagonal, upper, b, _ in cases("system", "systems that converge", 3):
        result = reference("system")(lower, diagonal, upper, b, fmt)
        found.add(result["why"])
        a = np.diag(diagonal) + np.diag(lower, -1) + np.diag(upper, 1)
        exact = [[Fraction(v) for v in row] for row in a.tolist()]
        x, right = ([Fraction(v) for v in w.tolist()] for w in (result["x"], b))
        rest = [p - sum(q * y for q, y in zip(row, x, strict=True))
                for row, p in zip(exact, right, strict=True)]  # fmt: skip
        norm = max(sum(map(abs, row)) for row in exact)
        error = max(map(abs, rest)) / (norm * max(map(abs, x)) + max(map(abs, right)))
        assert abs(float(error) - result["error"]) <= 2.0**-51
        if result["why"] == "converged":
            wanted = np.linalg.solve(a, b)
            far = np.abs(result["x"] - wanted).max() / np.abs(wanted).max()
            assert far <= 2.0**-49 * condition(a, np.inf)
    assert "converged" in found


def test_what_is_stuck_is_beyond_patience_and_no_x_before_the_end_was_better():
    solve, found = reference("system"), set()
    for seed in (1, 2):
        for case in cases("system", "rough factors", seed):
            result = solve(*case)
            found.add(result["why"])
            patient = solve(*case, patience=math.inf, most=80)
            assert (patient["why"] == "converged") == (result["why"] == "converged")
            if result["why"] == "stuck":
                earlier = [solve(*case, patience=math.inf, most=k, keep="last")["error"]
                           for k in range(result["steps"] + 1)]  # fmt: skip
                assert result["error"] == min(earlier) and min(earlier[-3:]) >= min(
                    earlier[:-3]
                )
    assert found >= {"stuck", "converged"}


def test_zero_pivots_end_as_broken():
    found = {reference("system")(*case)["why"] for case in cases("system", "pivots")}
    assert {"broken", "converged"} <= found


def test_a_plan_without_promotion_has_the_bits_of_the_library_s_rule():
    for n, p, held, q in cases("plan"):
        b, m, steps = reference("plan")(n, p, held, q)
        assert m * 4 ** (b - 1) <= 2**held and (
            m == n or (m + 1) * 4 ** (b - 1) > 2**held
        )
        fmt = Format("short", exponent_bits=8, precision=p)
        if 2**held >= n and p > 1:
            rule = slice_bits(n, fmt, held)
            slices = -(-q // rule)
            assert steps <= slices * (slices + 1) // 2
            assert (
                b >= rule or steps < slices * (slices + 1) // 2 or slices == -(-q // b)
            )


def test_the_product_is_the_exact_one_but_for_the_pairs_that_were_left_out():
    for x, y, p, held, q in cases("dot", "positive rows, which fill the sums"):
        value, largest = reference("dot")(x, y, p, held, q)
        b, _, _ = reference("plan")(len(x), p, held, q)
        slices = -(-q // b)
        left, right = (split(v, slices, b) for v in (x, y))
        exact = sum(Fraction(a) * Fraction(c) for a, c in zip(x, y, strict=True))
        size = len(x) * np.abs(x).max() * np.abs(y).max()
        assert abs(float(exact) - value) <= 4 * (slices + 2) * size * 2.0 ** (
            -b * slices
        )
        assert largest <= 2**held
        assert np.abs(left[0]).max() <= 2 ** (b - 1) >= np.abs(right[0]).max()
