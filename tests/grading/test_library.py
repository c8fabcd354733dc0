"""No exercise is answered by a function of the library, in the notebook or in the grade."""

import importlib
import inspect
import sys
from functools import cache, partial

import numpy as np
import pytest
import torch
from corpus import NAMES, answer, assignment, judge
from fronts import offered

import mplab
from mplab import BF16, FP8_E4M3, FP16, Overflow, Rounding
from mplab.course import EXERCISES, equal
from mplab.course.exercises.calls import watched
from mplab.course.exercises.limit import ends_within
from mplab.simulation import simulated

# A call that is ended early may be in a callback of numba's, which cannot raise.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)

TOY = 'mplab.Format("toy", exponent_bits=exponent_bits, precision=trailing_bits + 1)'
BY_LIBRARY = {
    ("a1", "fields"): f"""
def fields_of(code, exponent_bits, trailing_bits):
    return tuple(map(int, mplab.fields(code, {TOY})))""",
    ("a1", "value"): f"""
def value_of(code, exponent_bits, trailing_bits):
    return float(mplab.decode(code, {TOY}))""",
    ("a1", "max_finite"): f"""
def max_finite(exponent_bits, trailing_bits):
    return {TOY}.max_finite""",
    ("a1", "encode"): f"""
def encode_nearest(x, exponent_bits, trailing_bits):
    fmt = {TOY}
    return int(mplab.encode(float(mplab.round_to(float(x), fmt)), fmt))""",
}


@pytest.mark.parametrize(
    ("name", "exercise"),
    list(BY_LIBRARY),
    ids=["-".join(entry) for entry in BY_LIBRARY],
)
def test_what_the_library_answers_earns_nothing_though_it_is_right(name, exercise):
    given = answer(name, exercise, BY_LIBRARY[name, exercise])
    known = assignment(name).graded[exercise].exercise
    right = zip(known.outcomes(given), known.outcomes(known.answer), strict=True)
    assert all(equal(*pair, known) for pair in right)
    judgement = judge(name, exercise, given)
    assert "The answer calls mplab's " in judgement.message
    assert set(judgement.earned) == {0}


@cache
def calls():
    """The public functions of the rooms, also with a format, a rounding or saturation."""
    found = {}
    for room in ("numbers", "arithmetic", "scaling", "health", "training"):
        module = importlib.import_module(f"mplab.{room}")
        every = {name: getattr(module, name) for name in offered(module)}
        found |= {n: f for n, f in every.items() if inspect.isroutine(f)}
    plain = dict(found)
    for name, function in plain.items():
        for fmt in (FP8_E4M3, FP16):
            found[f"{name}, {fmt}"] = lambda *given, f=function, fmt=fmt: f(*given, fmt)
    for rounding in Rounding:
        found[f"round_to, {rounding}"] = partial(mplab.round_to, rounding=rounding)
    found["saturated"] = lambda x: mplab.round_to(
        x, FP8_E4M3, overflow=Overflow.SATURATE
    )
    return found


def answering(exercise):
    """The calls of the library that are right in all cases, and whether each is refused."""
    first, wanted = exercise.cases[0], exercise.outcomes(exercise.answer)
    arguments = first if isinstance(first, tuple) else (first,)
    found = {}
    for name, call in calls().items():
        one = []

        def once(call=call, one=one):
            try:
                one.append(call(*arguments))
            except Exception as error:
                one.append(error)

        if not ends_within(0.5, once) or not equal(one[0], wanted[0], exercise):
            continue
        called = []
        given = exercise.outcomes(watched(call, exercise.uses, called))
        if all(equal(*pair, exercise) for pair in zip(given, wanted, strict=True)):
            found[name] = bool(called)
    return found


FOUND = {"decode_e4m3": "decode, ", "gap_fp16": "ulp, ", "round_e4m3": "round_to, ",
         "saturating_cast": "saturated", "system_backward_error": "backward_error",
         "gap_at": "", "round_even": "", "round_up": ""}  # fmt: skip
"""What one call does answer, or the search would find nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lessons", *NAMES])
def test_no_call_of_the_library_answers_an_exercise(name):
    exercises = EXERCISES
    if name in NAMES:
        exercises = {n: g.exercise for n, g in assignment(name).graded.items()}
    for known, exercise in exercises.items():
        if callable(exercise.answer):
            with np.errstate(all="ignore"):
                found = answering(exercise)
            assert all(found.values()), (known, found)
            wanted = FOUND.get(known)
            assert wanted is None or any(call.startswith(wanted) for call in found)


# What counts as a call -------------------------------------------------------------------
def called(answer, *arguments, uses=()):
    found = []
    watched(answer, uses, found)(*arguments)
    return found


def test_a_call_counts_by_whatever_name_and_from_wherever():
    helper = mplab.round_to

    def hidden(x):
        try:
            return helper(x, FP16)
        except BaseException:
            return None

    assert called(hidden, 1.1) == ["round_to"]
    assert called(lambda x: [*map(partial(getattr(mplab, "round_to"), fmt=FP16), [x])],  # noqa: B009
                  1.1) == ["round_to"]  # fmt: skip
    assert called(lambda: mplab.Format("t", exponent_bits=3, precision=3)) == ["Format"]
    assert called(EXERCISES["decode_e4m3"].answer, 3) != []  # the solution


def test_attributes_of_a_format_and_what_is_named_do_not_count():
    assert (
        called(
            lambda f: (f.max_finite, f.has_infinity, f.emin, f == FP16, hash(f)), FP16
        )
        == []
    )
    assert called(lambda x: mplab.round_to(x, FP16), 1.1, uses=("round_to",)) == []
    assert called(lambda x: mplab.scaling and x, 1.1) == []  # a room is loaded
    saturate = partial(mplab.round_to, fmt=FP16, overflow=Overflow.SATURATE)
    assert called(saturate, 1e9, uses=("round_to",)) == ["round_to with overflow"]
    assert called(saturate, 1e9, uses=("round_to", "overflow")) == []


def a_step():
    layer = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters())

    def closure():
        with torch.autocast("cpu", torch.bfloat16):
            loss = layer(torch.ones(2, 3)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_operations_of_torch_do_not_count_while_a_simulation_lives_or_runs():
    """Torch calls its kernels, and then those of the simulation, from within the answer."""
    simulation = simulated(BF16)
    with simulation:
        assert called(a_step) == []
    assert called(a_step) == []  # it lives, and replaces torch's kernels

    def simulating():
        with simulated(FP16):
            a_step()

    assert called(simulating, uses=("simulated",)) == []
    assert set(called(simulating)) == {"simulated"}


def test_an_import_within_an_answer_does_not_count():
    def imports():
        with pytest.raises(ModuleNotFoundError):
            import this_is_nowhere  # noqa: F401

    assert called(imports) == []


def test_a_profile_that_was_on_goes_on_after_it():
    def mine(*_): ...

    before = sys.getprofile()
    sys.setprofile(mine)
    try:
        called(lambda: mplab.ulp(1.0, FP16))
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(before)
