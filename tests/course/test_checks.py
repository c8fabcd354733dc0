"""Each exercise: the right answers pass, each known wrong one fails with its own sentence."""

import ast
import gc
import json
import math
import re
import threading
import time
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from answers import answers_in
from tiers import mostly_slow

import mplab
from mplab import (
    BF16,
    FP8_E4M3,
    FP16,
    check,
    decode,
    fields,
    next_down,
    next_up,
    round_to,
    ulp,
)
from mplab.common.files import course_folder
from mplab.course import EXERCISES, Exercise, HashedValue, Misconception, equal
from mplab.course.exercises import lessons, practice
from mplab.course.exercises.calls import watched
from mplab.course.exercises.exercise import TIME_LIMIT, misconception_of, verdict_on
from mplab.course.grading.kernel import Outputs

ANSWERS = answers_in("course")
GROUPS = ANSWERS.values()
count = ANSWERS["l01"].count
RIGHT = {name: answers for group in GROUPS for name, answers in group.RIGHT.items()}
WRONG, BY_LIBRARY = (
    {
        name: answers
        for group in GROUPS
        for name, answers in getattr(group, kind, {}).items()
    }
    for kind in ("WRONG", "BY_LIBRARY")
)
# As text, because a call of the file itself is refused.
SHOWN: dict = {}
exec((course_folder("lessons") / "solutions.py").read_text(encoding="utf-8"), SHOWN)
for name in practice.solutions():
    RIGHT[name] = [*RIGHT[name], SHOWN[name]]

SUMS = ("kahan_sum", "pairwise_sum", "promoted_sum")
"""Exercises whose checks add long sums in Python: most of their wrong answers are slow tests."""


@pytest.mark.slow
def test_each_solution_that_pages_show_fits_its_stub_and_the_names_of_its_lesson():
    asked = {name for name, exercise in EXERCISES.items() if callable(exercise.answer)}
    for path in course_folder("lessons").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = "\n".join(
            "".join(c["source"]) for c in cells if c["cell_type"] == "code"
        )
        known = " ".join(re.findall(r"(?m)^(?:import|from|def|\w+ =) .*", code))
        stubs = {
            node.name: node for node in ast.parse(code).body if hasattr(node, "args")
        }
        for name in asked & stubs.keys():
            asked.remove(name)
            solution = ast.parse(practice.solutions()[name]).body[0]
            both = [[each.arg for each in x.args.args] for x in (solution, stubs[name])]
            used = {
                node.id for node in ast.walk(solution) if isinstance(node, ast.Name)
            }
            assert both[0] == both[1]
            assert used & SHOWN.keys() <= {*re.findall(r"\w+", known)}
    assert asked == set()


def pairs(table, slow=()):
    every = [(name, i, entry) for name in table for i, entry in enumerate(table[name])]
    marks = {True: pytest.mark.slow, False: ()}
    return [
        pytest.param(n, e, id=f"{n}-{i}", marks=marks[n in slow and i > 0])
        for n, i, e in every
    ]


def test_every_exercise_has_right_and_wrong_answers():
    """One of the right answers to a coding exercise is the solution that pages show."""
    assert set(RIGHT) == set(EXERCISES) >= set(WRONG), "see answers/lNN.py"
    for name, exercise in EXERCISES.items():
        assert len(RIGHT[name]) + len(BY_LIBRARY.get(name, [])) >= 2
        assert 2 <= len(exercise.misconceptions) <= 3


def test_a_lesson_that_is_begun_stops_no_check(tmp_path, monkeypatch):
    """The stub of a new lesson has a file for its exercises, and none in it."""
    for lesson, text in (("l90", "ROWS = 3\n"), ("l91", "EXERCISES = {'new': 1}\n")):
        (tmp_path / lesson).mkdir()
        (tmp_path / lesson / "exercises.py").write_text(text)
    monkeypatch.setattr(lessons, "course_folder", lambda _: tmp_path)
    monkeypatch.setattr(mplab.lessons, "__path__", [str(tmp_path)])
    with pytest.warns(UserWarning, match=r"l90.exercises\.py has no EXERCISES yet"):
        assert lessons._Found().data == {"new": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "answer"), pairs(RIGHT))
def test_a_right_answer_passes_however_it_is_written(name, answer):
    verdict = check(name, answer)
    assert verdict, verdict.message


def free(name):
    """The exercise for whom anything may be called, also its own reference."""
    return replace(EXERCISES[name], uses=None)


@pytest.mark.parametrize(("name", "answer"), pairs(BY_LIBRARY))
def test_an_answer_that_the_library_gives_is_right_and_refused(name, answer):
    assert verdict_on(name, free(name), answer)
    verdict = check(name, answer)
    assert not verdict and "The answer calls mplab's " in verdict.message


@pytest.mark.parametrize(("name", "entry"), pairs(WRONG, slow=SUMS))
def test_a_wrong_answer_fails_with_the_sentence_for_it(name, entry):
    answer, sentence = entry
    verdict = check(name, answer)
    assert not verdict and sentence in verdict.message


@pytest.mark.parametrize("name", mostly_slow(EXERCISES, EXERCISES.keys() - {*SUMS}))
def test_each_misconception_is_met_by_its_own_sentence(name):
    for wrong, sentence in EXERCISES[name].misconceptions:
        verdict = check(name, wrong)
        assert not verdict and verdict.message.endswith(sentence)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_not_attempted_and_does_not_raise(name):
    def stub(*arguments):
        raise NotImplementedError(name)

    given = stub if callable(EXERCISES[name].answer) else None
    verdict = check(name, given)
    assert not verdict and "not attempted yet" in verdict.message


@pytest.mark.parametrize(
    "function", [ulp, round_to, next_up, next_down, decode, fields]
)
def test_a_function_of_the_library_is_known_by_its_own_name(function):
    """A decorator's name stood there for a while, and right answers were refused."""
    exercise = Exercise(lambda x: 1.0, "", cases=[1], uses=(function.__name__,))

    def calling(x):
        function(x, FP16)
        return 1.0

    assert verdict_on("one", exercise, calling)
    verdict = verdict_on("one", replace(exercise, uses=("values",)), calling)
    assert f"calls mplab's {function.__name__};" in verdict.message


def test_the_smallest_counterexample_comes_first_with_both_values():
    verdict = check("flushed_share", lambda x: 1 - count(x))
    assert verdict.message.splitlines()[:4] == [
        "flushed_share: 6 of 10 cases differ.",
        "  x        = [1.0]",
        "  expected = 0.0",
        "  yours    = 1.0",
    ]


def test_two_records_are_shown_where_they_differ():
    assert (
        "in\n    2  output[0]: 1.0 and -1.0"
        in check("first_divergence", lambda *_: 0).message
    )


def in_e4m3(x):
    return float(round_to(x, FP8_E4M3))


@pytest.mark.parametrize(
    ("right", "answer", "case", "shown"),
    [
        (in_e4m3, lambda x: math.nan, 464.0, "464.0 | 448.0 (0x7E) | nan (0x7F)"),
        (
            lambda x: [7, 8],
            lambda x: [np.int64(7), 0.5],
            1.0,
            "1.0 | [7, 8] | [7, 0.5]",
        ),
        (lambda x: np.uint8([x, 255]), np.uint8, 126, "126 | [0x7E, 0xFF] | 0x7E"),
        (
            np.negative,
            np.abs,
            np.float32([0.1, 8]),
            "[0.1, 8.0] | [-0.1, -8.0] | [0.1, 8.0]",
        ),
        (np.ravel, list, np.eye(1), "[1.0] of shape (1, 1) | [1.0] | [[1.0]]"),
        (lambda a, b: b, lambda a, b: 0, ((8, 11), 2), "(8, 11), 2 | 2 | 0"),
        (len, min, [[np.float32([1, math.nan])], []], "[[[1.0, nan]], []] | 2 | []"),
        (
            len,
            min,
            {"a": [2.0], "b": "w"},
            "\n    a        [2.0]\n    b        'w' | 2 | 'a'",
        ),
        (lambda x: 2.0**x, float, 9, "9 | 512.0 | 9.0"),
        (lambda x: -(2.0**x), float, 10, "10 | -2^10 | 10.0"),
        (lambda x: 2.0**x, float, -9, "-9 | 0.001953125 | -9.0"),
        (lambda x: 2.0**x, float, -10, "-10 | 2^-10 | -10.0"),
        (np.arange, int, 12, "12 | [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] | 12"),
        (
            np.arange,
            int,
            14,
            "14 | [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, and 2 more] | 14",
        ),
    ],
)
def test_a_counterexample_shows_what_a_reader_would_write(right, answer, case, shown):
    fmt = FP8_E4M3 if right is in_e4m3 else None
    message = verdict_on(
        "it", Exercise(right, "", cases=[case], fmt=fmt), answer
    ).message
    given, wanted, yours = shown.split(" | ")
    assert (
        f"\n  x        = {given}\n  expected = {wanted}\n  yours    = {yours}\n"
        in message
    )


def test_no_finite_answer_is_near_to_infinity_and_infinities_compare_without_warnings():
    infinite = Exercise(
        lambda x: x, "", cases=[math.inf, -math.inf, math.nan], tolerance=0.1
    )
    assert verdict_on("same", infinite, lambda x: x)
    assert not verdict_on("same", infinite, lambda x: -x)
    assert not verdict_on("same", infinite, lambda x: 1.0)


def test_a_value_instead_of_a_function_is_refused_with_a_hint():
    assert "hand in the function itself" in check("flushed_share", 0.5).message


def test_an_exception_in_an_answer_is_shown_as_its_outcome():
    message = check("smallest_scale", lambda g: 1 / 0).message
    assert "raised ZeroDivisionError: division by zero\n           in line " in message
    # The line of the answer.
    assert 'check("smallest_scale", lambda g: 1 / 0)' in message


@pytest.mark.slow
def test_no_answer_is_told_of_a_misconception_that_it_shows_in_some_cases_only():
    """An answer that was wrong at one tie was told that it cuts bits off."""
    for name in EXERCISES.keys() - {*SUMS}:
        exercise = EXERCISES[name]
        if not callable(exercise.answer):
            continue
        answers = [exercise.answer, *(m.answer for m in exercise.misconceptions)]
        outcomes = [exercise.outcomes(answer) for answer in answers]
        for a, b in permutations(outcomes, 2):
            agreed = [equal(*pair, exercise) for pair in zip(a, b, strict=True)]
            part = agreed.index(False) + 1
            mixed = [*a[:part], *b[part:]]
            for (_, sentence), theirs in zip(
                exercise.misconceptions, outcomes[1:], strict=True
            ):
                if misconception_of(exercise, mixed) == sentence:
                    pairs = zip(mixed, theirs, strict=True)
                    assert all(equal(*pair, exercise) for pair in pairs), name


def test_two_slips_at_once_get_the_reason():
    verdict = check("smallest_scale", lambda g: 65536.0 if g > 1e-7 else 1.0)
    assert verdict.message.endswith(EXERCISES["smallest_scale"].reason)


def test_a_power_in_quotation_marks_is_told_that_it_is_text():
    assert "This is text" in check("flush_threshold", "2**-25").message


def test_an_answer_of_another_kind_is_told_so():
    """It got the reason, which speaks of something else."""
    for name, answer, said in (
        ("flush_threshold", lambda: 1, "This is a function"),
        ("flush_threshold", [2.0**-25], "One number is wanted; this is of type list"),
        (
            "bits_left",
            np.array([1, 2]),
            "One number is wanted; this is of type ndarray",
        ),
        (
            "flushed_share",
            lambda x: {1: 2},
            "One number is wanted; this is of type dict",
        ),
        ("flushed_share", lambda x: flush, "This is a function"),
        ("nvfp4_scales", lambda x: 3, "Several numbers are wanted"),
        ("next_state", lambda *_: 1.0, "Several numbers are wanted"),
    ):
        assert said in check(name, answer).message, (name, said)


def flush():
    """A helper that was forgotten to be called."""


def test_a_word_for_a_number_is_not_told_to_leave_out_quotation_marks():
    """'FP32' without them would be a format, which is as wrong."""
    message = check("result_precision", lambda *_: "FP32").message
    assert "no text is wanted" in message and "leave out" not in message


def test_a_power_written_with_a_caret_is_told_what_python_takes_it_for():
    wrong = 2 ^ -25
    assert wrong == -27 and "exclusive or" in check("flush_threshold", wrong).message
    assert "exclusive or" in check("largest_dead_update", 2 ^ -8).message
    assert "exclusive or" not in check("flush_threshold", -26).message


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ({"scale": 8.0, "more": [1.0]}, lambda case: case.update(scale=4.0)),
        ({"scale": 8.0, "more": [1.0]}, lambda case: case["more"].append(2.0)),
        (np.array([1.0, 0.0]), lambda case: case.__setitem__(1, -0.0)),
        ([np.ones(3), np.ones(2)], lambda case: case[1].sort() or case.reverse()),
    ],
)
def test_a_right_answer_that_changes_its_arguments_is_told_so(case, change):
    exercise = Exercise(answer=lambda x: 1.0, reason="", cases=[case, case])
    verdict = verdict_on("one", exercise, lambda x: change(x) or 1.0)
    assert not verdict and "changes its arguments" in verdict.message
    assert verdict_on("one", exercise, lambda x: 1.0)


def test_an_answer_cannot_change_what_lies_inside_a_case():
    def destroy(state, arrays):
        state["scale"] = arrays[0][0] = 0.0
        arrays.clear()

    case = ({"scale": 8.0}, [np.array([3.0]), np.array([4.0])])
    exercise = Exercise(
        answer=lambda s, a: s["scale"] + len(a) + a[0][0], reason="", cases=[case]
    )
    assert not verdict_on("inside", exercise, destroy)
    assert verdict_on("inside", exercise, lambda s, a: 13.0)


def test_dictionaries_and_sequences_that_hold_others_are_compared_to_the_last_item(
    monkeypatch,
):
    wanted = ([True, False, True], {"scale": 8.0, "count": 0})
    monkeypatch.setitem(
        EXERCISES, "nested", Exercise(answer=lambda x: wanted, reason="")
    )
    assert check("nested", lambda x: wanted)
    assert check(
        "nested", lambda x: [np.array([1.0, 0.0, 1.0]), {"count": 0.0, "scale": 8}]
    )
    for wrong in (
        (wanted[0], {"scale": 8.0, "count": 1}),
        (wanted[0], {"scale": 8.0}),
        (wanted[0], {**wanted[1], "more": 0}),
        (wanted[0], [8.0, 0]),
        (wanted[0],),
        ([True, True, True], wanted[1]),
        ([True, False], wanted[1]),
        (*wanted, 0),
        wanted[1],
        np.array([1.0, 0.0]),
        np.float64(8.0),
        "both",
        None,
    ):
        assert not check("nested", lambda x, wrong=wrong: wrong), wrong


def test_words_formats_and_arrays_in_a_sequence_leave_its_numbers_their_tolerance():
    exercise = Exercise(abs, "Because.", tolerance=1e-12)
    for given, wanted, other in (
        (("ok", 0.1 + 0.2), ["ok", 0.3], ("bad", 0.3)),
        (["bad", math.nan], ("bad", math.nan), ["bad", 0.0]),
        (["a", "b"], ("a", "b"), "ab"),
        ((np.array([0.1 + 0.2, 1]), 2), ([0.3, 1.0], 2.0), ([0.3, 1.0], 3.0)),
        ((np.ones(2), 3), (np.ones(2), 3.0), (np.ones(3), 3.0)),
        ([FP16, 1], (FP16, 1.0), (BF16, 1.0)),
        (FP16, FP16, "FP16"),
    ):
        assert equal(given, wanted, exercise), wanted
        assert not equal(other, wanted, exercise), wanted


def forever(x):
    while True:
        pass


def never_below(g):
    s = 1.0
    while -abs(g) * s <= 2.0**-25:
        s = min(2 * s, 2.0**99)
    return s


def catching(x):
    while True:
        try:
            forever(x)
        except Exception:
            continue


def answering_late(x):
    try:
        forever(x)
    except BaseException:
        return 8.0


def by_numpy(x):
    z = np.zeros(1000)
    while True:
        z = np.sqrt(z + 1)


def doubly(n):
    try:
        return doubly(n + 1)
    except RecursionError:
        return doubly(n)


ENDLESS = [forever, never_below, catching, answering_late, by_numpy, doubly]


@pytest.fixture
def no_collection():
    """At the limit of recursion a callback of the collector (Hypothesis has one) cannot run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    "answer",
    mostly_slow(ENDLESS, [forever, never_below, catching]),
    ids=lambda f: f.__name__,
)
def test_an_answer_that_never_ends_gets_a_verdict_and_leaves_no_thread(
    answer, no_collection
):
    before = threading.enumerate()
    for _ in range(2):
        verdict = check("smallest_scale", answer, seconds=0.2)
        assert not verdict
        assert verdict.message.startswith("smallest_scale: did not finish in 0.2 s.\n")
    assert threading.enumerate() == before
    assert check("smallest_scale", RIGHT["smallest_scale"][0])


def test_the_case_that_does_not_end_is_shown():
    exercise = Exercise(answer=lambda x: x, reason="", cases=(1.0, -2.0, 3.0))
    verdict = verdict_on(
        "same", exercise, lambda x: x if x > 0 else forever(x), seconds=0.1
    )
    assert verdict.message.splitlines() == [
        "same: did not finish in 0.1 s.",
        "  x        = -2.0",
        "  Does every loop end here? If it is only slow: check(…, seconds=1).",
    ]


def test_a_right_answer_may_be_slow():
    def slow(x):
        time.sleep(0.05)
        return x

    exercise = Exercise(answer=lambda x: x, reason="", cases=(1.0, 2.0, 3.0))
    assert verdict_on("same", exercise, slow)
    assert verdict_on("same", exercise, slow, seconds=math.inf)


def test_an_answer_runs_in_the_thread_and_the_context_of_its_check(monkeypatch):
    def here(x):
        seen.append((threading.current_thread(), np.geterr()["over"]))
        return x

    seen = []
    monkeypatch.setitem(EXERCISES, "same", Exercise(answer=lambda x: x, reason=""))
    with np.errstate(over="raise"):
        check("same", here)
    assert seen == [(threading.current_thread(), "raise")]


def test_an_endless_recursion_is_an_outcome_not_a_crash(no_collection):
    def deeper(g):
        return deeper(g)

    assert "raised RecursionError" in check("smallest_scale", deeper).message


def test_an_interrupt_passes_through():
    def interrupted(g):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("smallest_scale", interrupted)


def test_every_right_answer_takes_a_small_part_of_the_limit():
    for name in SUMS:  # the longest
        begun = time.process_time()
        check(name, RIGHT[name][0])
        assert time.process_time() - begun < TIME_LIMIT / 4


def test_an_unknown_exercise_raises_and_names_the_known_ones():
    with pytest.raises(
        ValueError, match=r"name must be an exercise; got 'nope'.*flushed_share"
    ):
        check("nope", 1)


def test_a_verdict_prints_itself_and_escapes_html():
    verdict = check("flush_threshold", "<b>")
    assert not verdict and "&lt;b&gt;" in verdict._repr_html_()
    for number in (str(2.0**-25), np.array(str(2.0**-25))):
        assert not check("flush_threshold", number)
    assert mplab.check is check


def test_a_tensor_is_the_array_that_would_be_handed_in():
    torch = pytest.importorskip("torch")
    exercise = Exercise(answer=lambda x: [2.0, 3.0], reason="", cases=[None])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert verdict_on(
            "one", exercise, lambda _, d=dtype: torch.tensor([2.0, 3.0], dtype=d)
        )
        assert not verdict_on(
            "one", exercise, lambda _, d=dtype: torch.tensor([2.0, 4.0], dtype=d)
        )
    assert verdict_on(
        "one", exercise, lambda _: torch.tensor([2.0, 3.0], requires_grad=True)
    )
    assert verdict_on(
        "one", exercise, lambda _: [torch.tensor(2.0, requires_grad=True), 3.0]
    )


def test_a_sealed_value_opens_for_the_same_number_only():
    hashed = HashedValue.of(254)
    assert hashed == HashedValue.of(254.0) == HashedValue.of(np.float32(254))
    assert hashed not in (
        HashedValue.of(-254),
        HashedValue.of([254]),
        HashedValue.of(0),
    )
    assert HashedValue.of(0.0) != HashedValue.of(-0.0)
    assert hashed == HashedValue.of(Fraction(254))


def test_an_odd_answer_is_wrong_and_no_error():
    value = Exercise(1.0, "Because.")
    for odd in (
        None,
        object(),
        len,
        {},
        {1.0},
        "1",
        b"1",
        1j,
        np.ones(2, complex),
        10**400,
        [10**400],
        ["a"],
        [None],
        [[1.0], [1.0, 2.0]],
        np.datetime64("2020", "D"),
        np.ma.masked,
    ):
        assert (
            equal(odd, 0.5, value) is False
            and equal(odd, HashedValue.of(0.5), value) is False
        )
        assert not check("flush_threshold", odd)
    assert not equal(np.array([0.5 + 1j]), [0.5], value)


def test_an_exercise_that_would_pass_or_refuse_every_answer_is_refused():
    with pytest.raises(ValueError, match="cases must not be empty"):
        Exercise(abs, "Because.", cases=[])
    with pytest.raises(TypeError, match="uses must be a list of names"):
        Exercise(abs, "Because.", uses=("round_to"))
    with pytest.raises(TypeError, match="misconceptions must be a list"):
        Exercise(abs, "Because.", misconceptions=(Misconception(len, "No.")))
    with pytest.raises(ValueError, match="must be a number or an array of numbers"):
        HashedValue.of("FP16")


def test_an_error_names_the_innermost_line_of_the_answer_and_none_of_a_library():
    def inner(x):
        return json.loads("{")

    def answer(x):
        return inner(x)

    exercise = Exercise(answer=lambda x: x, reason="", cases=(1.0,))
    message = verdict_on("same", exercise, answer).message
    assert "in line " in message
    assert message.splitlines()[-2].endswith(': return json.loads("{")')


def test_an_error_in_a_decorated_answer_names_the_answer_s_own_line():
    @np.errstate(all="ignore")
    def answer(x):
        return x / 0

    exercise = Exercise(answer=lambda x: x, reason="", cases=(1.0,))
    message = verdict_on("same", exercise, answer).message
    assert message.splitlines()[-2].endswith(": return x / 0")


def test_a_record_is_shown_with_all_digits_and_asked_for_by_its_kind():
    exercise = Exercise(
        answer=lambda x: {"x": np.array(x)}, reason="Because.", cases=(0.1 + 0.2,)
    )
    message = verdict_on("record", exercise, lambda x: (x,)).message
    assert "0.30000000000000004" in message and "array(" not in message
    assert message.endswith("A dictionary is wanted; this is of type tuple.")
    broken = verdict_on("record", exercise, lambda x: x / 0).message
    assert broken.endswith("Because.")


def test_a_page_offers_the_solution_of_an_exercise_by_its_name():
    shown = practice.practice('mplab.check("kahan_sum", kahan_sum)', lambda code: code)
    assert "def kahan_sum(" in shown
    assert practice.practice('mplab.check("nothing", 1)', str) == ""


def test_an_answer_that_raises_what_the_reference_raises_is_right():
    exercise = EXERCISES["kahan_sum"]
    assert equal(ValueError("one text"), ValueError("another"), exercise)
    assert not equal(ValueError(), TypeError(), exercise)


def test_what_the_sandbox_captures_of_an_answer_is_no_call_of_the_library():
    called = []
    watched(lambda: Outputs().text("stdout", "printed"), (), called)()
    assert called == []
