"""Each exercise: the right answers pass, each known wrong one fails with its own sentence."""

import math

import numpy as np
import pytest

import mplab
from mplab import FP8_E4M3, FP16, round_to
from mplab.checks import EXERCISES, Exercise, check

FLOOR = FP16.min_subnormal


def count(x):
    """Flushed share, written with loops and comparisons instead of `round_to`."""
    nonzero = [abs(float(v)) for v in x if v != 0]
    return sum(v <= 2.0**-25 for v in nonzero) / len(nonzero) if nonzero else 0.0


def half(x):
    """Flushed share by NumPy's own float16."""
    with np.errstate(under="ignore"):
        kept = np.count_nonzero(x.astype(np.float16))
    nonzero = np.count_nonzero(x)
    return (nonzero - kept) / nonzero if nonzero else 0.0


def by_exponent(gradient):
    """Smallest scale from the exponent; a power of two is a tie and needs one step more."""
    significand, exponent = math.frexp(abs(gradient))
    return 2.0 ** max(0, -24 - exponent + (significand == 0.5))


def by_search(gradient):
    return next(2.0**k for k in range(200) if abs(gradient) * 2.0**k > 2.0**-25)


RIGHT = {
    "flush_threshold": [2.0**-25, np.float32(2.0**-25), FLOOR / 2],
    "flushed_share": [count, half],
    "smallest_scale": [by_exponent, by_search],
}

# Written apart from the sentences they must draw: what somebody would really hand in.
WRONG = {
    "flush_threshold": [
        (2.0**-24, "itself a number"),
        (2.0**-14, "smallest normal"),
        (2.0**-10, "a matter of precision"),
        (2.0**-26, "nearer to 0"),
        (0.0, "midpoint"),
        (-(2.0**-25), "midpoint"),
    ],
    "flushed_share": [
        (lambda x: float((round_to(x, FP16) == 0).mean()) if len(x) else 0.0, "zero before"),
        (lambda x: sum((round_to(x, FP16) == 0) & (x != 0)) / max(len(x), 1), "not of all"),
        (lambda x: _share(np.abs(x[x != 0]) < 2.0**-14), "are not zero"),
        (lambda x: _share(np.abs(x[x != 0]) < 2.0**-24), "nearer to the smallest"),
        (lambda x: _share(np.abs(x[x != 0]) < 2.0**-25), "goes to the even one"),
        (lambda x: _share(x[x != 0] <= 2.0**-25), "compare magnitudes"),
        (lambda x: float((round_to(x[x != 0], FP16) == 0).sum()), "not zero before"),
        (lambda x: 1 - count(x), "not zero before"),
        (lambda x: x[7], "not zero before"),
    ],
    "smallest_scale": [
        (lambda g: _lift(g, 2.0**-14), "a normal number"),
        (lambda g: _lift(g, 2.0**-24), "need not reach"),
        (lambda g: _lift(g, 2.0**-25), "there is a tie"),
        (lambda g: by_search(g) if g > 0 else 1.0, "look at its magnitude"),
        (lambda g: 65536.0, "GradScaler"),
        (lambda g: 2 * by_search(g), "half the scale"),
        (lambda g: 2.0**-25 / g, "half the scale"),
    ],
}


def _share(flags):
    return float(flags.mean()) if flags.size else 0.0


def _lift(gradient, target):
    scale = 1.0
    while abs(gradient) * scale < target:
        scale *= 2
    return scale


def pairs(table):
    return [pytest.param(name, entry, id=f"{name}-{i}") for name in table
            for i, entry in enumerate(table[name])]  # fmt: skip


def test_every_exercise_has_right_and_wrong_answers_here():
    assert set(RIGHT) == set(WRONG) == set(EXERCISES)
    assert all(len(RIGHT[name]) >= 2 and len(WRONG[name]) >= 5 for name in EXERCISES)


@pytest.mark.parametrize(("name", "answer"), pairs(RIGHT))
def test_a_right_answer_passes_however_it_is_written(name, answer):
    verdict = check(name, answer)
    assert verdict, verdict.message
    assert check(name, EXERCISES[name].answer)


@pytest.mark.parametrize(("name", "entry"), pairs(WRONG))
def test_a_wrong_answer_fails_with_the_sentence_for_it(name, entry):
    answer, sentence = entry
    verdict = check(name, answer)
    assert not verdict
    assert sentence in verdict.message


@pytest.mark.parametrize("name", EXERCISES)
def test_each_misconception_is_met_by_its_own_sentence(name):
    for wrong, sentence in EXERCISES[name].misconceptions:
        verdict = check(name, wrong)
        assert not verdict
        assert verdict.message.endswith(sentence)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_not_attempted_and_does_not_raise(name):
    def stub(x):
        raise NotImplementedError(name)

    given = stub if callable(EXERCISES[name].answer) else None
    verdict = check(name, given)
    assert not verdict
    assert "not attempted yet" in verdict.message


def test_the_smallest_counterexample_comes_first_with_both_values():
    verdict = check("flushed_share", lambda x: 1 - count(x))
    assert verdict.message.splitlines()[:4] == [
        "flushed_share: 6 of 10 cases differ.",
        "  x        = [1.0]",
        "  expected = 0.0",
        "  yours    = 1.0",
    ]


def test_a_result_in_a_format_is_shown_with_its_code(monkeypatch):
    exercise = Exercise(
        answer=lambda x: float(round_to(x, FP8_E4M3)),
        reason="A tie goes to the even significand.",
        cases=(1.0, 464.0),
        fmt=FP8_E4M3,
    )
    monkeypatch.setitem(EXERCISES, "round", exercise)
    verdict = check("round", lambda x: 1.0 if x == 1.0 else math.nan)
    assert verdict.message.splitlines() == [
        "round: 1 of 2 cases differs.",
        "  x        = 464.0",
        "  expected = 448.0 (0x7E)",
        "  yours    = nan (0x7F)",
        "  A tie goes to the even significand.",
    ]


def test_an_exception_in_an_answer_is_shown_as_its_outcome():
    assert "raised ZeroDivisionError" in check("smallest_scale", lambda g: 1 / 0).message


def test_an_answer_cannot_change_the_cases():
    def destroy(x):
        x[:] = 0
        return 0.0

    check("flushed_share", destroy)
    assert check("flushed_share", count)


def test_a_value_instead_of_a_function_is_refused_with_a_hint():
    assert "hand in the function itself" in check("flushed_share", 0.5).message


def test_an_unknown_exercise_raises_and_names_the_known_ones():
    with pytest.raises(ValueError, match=r"name must be an exercise; got 'nope'.*flushed_share"):
        check("nope", 1)


def test_a_verdict_prints_itself_and_escapes_html():
    verdict = check("flush_threshold", "<b>")
    assert not verdict
    assert "&lt;b&gt;" in verdict._repr_html_()
    assert mplab.check is check
