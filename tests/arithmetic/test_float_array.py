"""The array that computes in its format."""

import io
import re
from functools import partial

import numpy as np
import pytest
from cases import assert_same_bits

import mplab
from mplab import BF16, FP4_E2M1, FP8_E4M3, FP16, FP32
from mplab.arithmetic import (
    FloatArray,
    _float_array,
    _numpy_functions,
    operations,
    reductions,
)


def test_operators_are_the_functions_of_the_format():
    rng = np.random.default_rng(0)
    a, b = (mplab.round_to(rng.standard_normal(50), FP16) for _ in range(2))
    x, y = FloatArray(a, FP16), FloatArray(b, FP16)
    for got, function in [
        (x + y, operations.add),
        (x - y, operations.subtract),
        (x * y, operations.multiply),
        (x / y, operations.divide),
    ]:
        assert got.fmt == FP16
        assert_same_bits(got.values, function(a, b, FP16))
    assert_same_bits((-x).values, -a)
    assert_same_bits(abs(x).sqrt().values, operations.sqrt(np.abs(a), FP16))


@pytest.mark.slow
def test_products_of_matrices_round_every_product_and_every_sum():
    rng = np.random.default_rng(1)
    a, b = mplab.round_to(rng.standard_normal((4, 9)), FP16), np.ones((9, 2))
    how = {"accumulator_format": FP16, "product_format": FP16}
    got = FloatArray(a, FP16) @ FloatArray(b, FP16)
    assert_same_bits(got.values, reductions.matmul(a, b, **how))
    assert (FloatArray(a, FP16) @ b[:, 0]).shape == (4,)
    assert (FloatArray(a[0].copy(), FP16) @ b[:, 0]).shape == ()
    assert float(FloatArray(np.ones(3000), FP16).sum()) == 2048.0
    assert float(FloatArray(np.ones(3000), FP16).sum(order="pairwise")) == 3000.0


def test_formats_are_not_mixed_silently():
    x, y = FloatArray([1.0], FP16), FloatArray([1.0], BF16)
    for operation in (lambda: x + y, lambda: y @ x, lambda: x / y, lambda: x == y):
        with pytest.raises(TypeError, match="both operands must have one format; got"):
            operation()
    assert float((x + y.to(FP16))[0]) == 2.0


def test_floats_and_arrays_join_in_where_they_belong_to_the_format():
    x = FloatArray([1.0, 2.0], FP16)
    assert (1.5 - x).values.tolist() == [0.5, -0.5]
    assert (2 * x).values.tolist() == [2.0, 4.0]
    assert (np.array([1.0, 4.0]) / x).values.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"add: b must hold values of FP16; got 0\.1"):
        x + 0.1


def test_values_that_are_none_of_the_format_are_refused_or_rounded():
    with pytest.raises(ValueError, match=r"FloatArray: values must hold values of FP8_E4M3"):
        FloatArray([0.1], FP8_E4M3)
    assert FloatArray.rounded([0.1], FP8_E4M3).codes.tolist() == [0x1D]


def test_it_prints_values_with_codes():
    assert repr(FloatArray([1.0, -0.0], FP8_E4M3)) == "FloatArray, FP8_E4M3:\n  1 (0x38)  -0 (0x80)"
    assert "shape (20,)" in repr(FloatArray(np.zeros(20), FP16))
    assert repr(FloatArray(np.zeros(20), FP16)).endswith("and 12 more")
    with np.errstate(invalid="ignore"):
        mark = FloatArray([0.0], FP4_E2M1) / FloatArray([0.0], FP4_E2M1)
    assert repr(mark) == "FloatArray, FP4_E2M1:\n  nan (no code)"


def test_it_cannot_be_changed_and_behaves_as_a_container():
    x = FloatArray([[1.0, 2.0], [3.0, 4.0]], FP32)
    assert len(x) == 2 and [row.values.tolist() for row in x] == [[1.0, 2.0], [3.0, 4.0]]
    assert x.T.values.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert np.asarray(x).sum() == 10.0
    assert (x == x).all()
    with pytest.raises(ValueError, match="read-only"):
        x.values[0, 0] = 5.0


@pytest.mark.parametrize("function", [np.sum, np.mean, np.linalg.norm, lambda x: np.dot(x, x)])
def test_functions_of_numpy_that_would_add_in_float64_are_refused(function):
    x = FloatArray([2048.0, 1.0, 1.0], FP16)
    with pytest.raises(TypeError, match=r"^numpy.*: arguments must not be FloatArrays.*x\.sum\(\)"):
        function(x)
    assert float(x.sum()) == 2048.0 and function(x.values) > 0


def test_functions_of_numpy_that_round_nothing_take_the_values():
    x = FloatArray([3.0, 1.0], FP16)
    assert np.max(x) == 3 and np.argmin(x) == 1 and np.array_equal(x, [3.0, 1.0])
    assert np.concatenate([x, x]).values.tolist() == [3, 1, 3, 1]
    assert np.where(x == 1.0, x, 0.0).values.tolist() == [0, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: np.clip(x, y, 2.0),
        lambda x, y: np.append(x, [y]),
        lambda x, y: np.where(x > 1, x, y),
        lambda x, y: np.max(x, initial=y),
        lambda x, y: np.maximum(x, np.full(2, y)),
        lambda x, y: np.full_like(x, y),
    ],
)
def test_functions_of_numpy_that_choose_values_give_the_format_and_take_only_its_values(call):
    x = FloatArray([3.0, 1.0], FP16)
    assert isinstance(call(x, 1.5), FloatArray) and call(x, 1.5).fmt == FP16
    with pytest.raises(
        ValueError, match=r"^numpy\.\w+: arguments must hold values of FP16; got 0\.1"
    ):
        call(x, 0.1)


def test_parts_that_are_indices_or_answers_stay_plain():
    x = FloatArray([3.0, 1.0, 3.0], FP16)
    values, counts = np.unique(x, return_counts=True)
    assert isinstance(values, FloatArray) and counts.tolist() == [1, 2]
    assert isinstance(np.unique_counts(x).values, FloatArray)
    assert np.argsort(x).tolist() == [1, 0, 2]
    assert np.isin(x, 0.1).tolist() == [False] * 3 and np.searchsorted(np.sort(x), 0.1) == 0
    assert [type(part) for part in np.split(x, 3)] == [FloatArray] * 3


def test_a_single_number_is_true_unless_it_is_zero():
    assert FloatArray(1.0, FP16) and not FloatArray(0.0, FP16)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(FloatArray([1.0, 2.0], FP16))


# NumPy ----------------------------------------------------------------------------------

ROOMS = {"numpy": np, "numpy.linalg": np.linalg, "numpy.fft": np.fft}
FUNCTIONS = {
    f"{room}.{name}": getattr(module, name)
    for room, module in ROOMS.items()
    for name in dir(module)
    if not name.startswith("_") and hasattr(getattr(module, name), "_implementation")
}
"""All public functions that ask their arguments for `__array_function__`."""
UFUNCS = {name: u for name in dir(np) if isinstance(u := getattr(np, name), np.ufunc)}
A = FloatArray([[3.0, 1.0], [2.0, 1.0]], FP16)
V = FloatArray([3.0, 1.0, 2.0, -0.0], FP16)
THERE = {0.0, 1.0, 2.0, 3.0}


def by_name(calls):
    """The calls of a table whose keys hold several names."""
    return {name: call for names, call in calls.items() for name in names.split()}


MOVED = by_name({
    """
        atleast_1d atleast_2d atleast_3d copy flip fliplr flipud matrix_transpose ravel real rot90
        transpose permute_dims squeeze tril triu diag diagonal linalg.diagonal
        linalg.matrix_transpose fft.fftshift fft.ifftshift diagflat sort max min amax amin nanmax
        nanmin unique unique_values unique_all unique_counts unique_inverse broadcast_arrays
        unstack block ones_like zeros_like
    """: lambda f: f(A),
    "concat concatenate stack vstack hstack dstack column_stack": lambda f: f([A, A]),
    "array_split hsplit split vsplit": lambda f: f(A, 2),
    "append intersect1d setdiff1d setxor1d union1d": lambda f: f(A, V[:1]),
    "dsplit": lambda f: f(FloatArray(np.ones((1, 1, 2)), FP16), 2),
    "broadcast_to": lambda f: f(V, (2, 4)),
    "choose": lambda f: f([0, 1, 0, 1], [V, V]),
    "clip": lambda f: f(V, 1.0, 2.0),
    "compress": lambda f: f([True, False], A, axis=0),
    "delete": lambda f: f(V, 1),
    "expand_dims": lambda f: f(V, 0),
    "extract": lambda f: f(V > 0, V),
    "full_like": lambda f: f(V, 2.0),
    "insert": lambda f: f(V, 1, V[0]),
    "moveaxis": lambda f: f(A, 0, 1),
    "partition": lambda f: f(V, 1),
    "repeat": lambda f: f(V, 2),
    "reshape": lambda f: f(A, (4,)),
    "resize": lambda f: f(A, (3, 3)),
    "roll": lambda f: f(V, 1),
    "rollaxis": lambda f: f(A, 1),
    "select": lambda f: f([V.values > 1], [V]),
    "swapaxes": lambda f: f(A, 0, 1),
    "take": lambda f: f(V, [0, 2]),
    "take_along_axis": lambda f: f(A, np.array([[0], [1]]), 1),
    "tile": lambda f: f(V, 2),
    "trim_zeros": lambda f: f(V),
    "where": lambda f: f(V > 1, V, 0.0),
})  # fmt: skip
"""A call for each function on the list that gives values: only those that were there."""
ASKED = by_name({
    """
        all any argmax argmin argsort nanargmax nanargmin argwhere count_nonzero flatnonzero
        iscomplexobj isneginf isposinf isrealobj ndim nonzero shape size array2string array_repr
        array_str empty_like result_type
    """: lambda f: f(V),
    "array_equal array_equiv isin may_share_memory shares_memory": lambda f: f(V, V),
    "argpartition": lambda f: f(V, 1),
    "digitize": lambda f: f(V, FloatArray([1.0, 2.0], FP16)),
    "lexsort": lambda f: f((V, V)),
    "searchsorted": lambda f: f(FloatArray([1.0, 2.0], FP16), V),
})  # fmt: skip
"""The same for those that give an answer: what they give for the plain values."""
WRITING = {"save", "savetxt", "savez", "savez_compressed"}


def listed(name):
    """Whether a function of this name is on the list."""
    return FUNCTIONS[name] in _numpy_functions.ROUNDING_NOTHING


def numbers_in(answer):
    """All numbers in an answer, of tuples of arrays too."""
    parts = answer if isinstance(answer, list | tuple) else [answer]
    return np.concatenate([np.asarray(part, float).ravel() for part in parts])


def in_numpy(name):
    return FUNCTIONS.get(f"numpy.{name}")


def test_every_function_of_numpy_is_on_the_list_and_tried_or_refused_by_name():
    assert len(FUNCTIONS) > 250
    tried = {f"numpy.{name}" for name in {*MOVED, *ASKED, *WRITING}}
    on_the_list = {FUNCTIONS[name] for name in FUNCTIONS if listed(name)}
    assert on_the_list == {FUNCTIONS[name] for name in tried & FUNCTIONS.keys()}
    for name, function in FUNCTIONS.items():
        if not listed(name):
            with pytest.raises(
                TypeError, match=r": arguments must not be FloatArrays.*Use x @ y"
            ) as e:
                A.__array_function__(function, (FloatArray,), (A,), {})
            assert re.match(r"numpy[\w.]*: ", str(e.value))
            assert f".{function.__name__}: " in str(e.value)


@pytest.mark.parametrize("name", [name for name in MOVED if in_numpy(name)])
def test_a_listed_function_that_moves_values_gives_only_values_that_were_there(name):
    answer = MOVED[name](in_numpy(name))
    assert set(numbers_in(answer).tolist()) <= THERE
    if in_numpy(name) is not np.resize:
        assert numbers_in(answer).size


@pytest.mark.parametrize("name", [name for name in ASKED if in_numpy(name)])
def test_a_listed_function_that_answers_gives_the_answer_for_the_values(name):
    answer = ASKED[name](in_numpy(name))
    if name == "empty_like":
        assert answer.shape == V.shape
    elif name not in (
        "may_share_memory",
        "shares_memory",
        "array2string",
        "array_repr",
        "array_str",
    ):
        plain = ASKED[name](lambda *a: in_numpy(name)(*(_float_array._plain(x) for x in a)))
        assert np.array_equal(answer, plain)


def test_numpy_saves_the_values():
    written = io.BytesIO()
    np.savez(written, a=V)
    written.seek(0)
    assert_same_bits(np.load(written)["a"], V.values)


@pytest.mark.parametrize(
    "call",
    [
        *(partial(getattr(np.linalg, name), A) for name in ("det", "inv", "trace", "vector_norm")),
        *(partial(getattr(np.linalg, name), A) for name in ("norm", "svd", "eigh", "cholesky")),
        *(partial(f, A, A) for f in (np.linalg.matmul, np.linalg.solve, np.linalg.outer)),
        lambda: np.linalg.multi_dot([A, A]), lambda: np.linalg.matrix_power(A, 2),
        lambda: np.cumulative_sum(V), lambda: np.nancumsum(V), lambda: np.nanprod(V),
        lambda: np.nanvar(V), lambda: np.nanstd(V), lambda: np.nanmedian(V),
        lambda: np.polyval(V, 2.0), lambda: np.polyval([1.0, 2.0], V), lambda: np.ediff1d(V),
        lambda: np.gradient(V), lambda: np.quantile(V, 0.5), lambda: np.fft.fft(V),
        lambda: np.ptp(V), lambda: np.histogram(V), lambda: np.pad(V, 1), lambda: np.round(V, 1),
        lambda: np.exp(V), lambda: np.add.reduce(V), lambda: np.add.outer(V, V),
        lambda: np.concatenate([V, V], dtype=np.float16, casting="unsafe"),
        lambda: np.max(V, out=np.zeros((), np.float32)), lambda: np.add(V, V, out=np.ones(4)),
    ],
)  # fmt: skip
def test_what_would_compute_in_float64_or_round_to_another_dtype_is_refused(call):
    with pytest.raises(TypeError, match=r"^numpy[\w.]*: arguments must not be FloatArrays"):
        call()


@pytest.mark.parametrize("name", UFUNCS)
def test_every_ufunc_is_one_of_the_format_or_on_the_list_or_refused_by_name(name):
    ufunc = UFUNCS[name]
    x = FloatArray([3.0, 1.0, 2.0, 0.5], FP16)
    operands, plain = [x] * ufunc.nin, [x.values] * ufunc.nin
    if ufunc in _numpy_functions.UFUNCS_OF_THE_FORMAT:
        got, want = ufunc(*operands), ufunc(*plain)
        if isinstance(got, FloatArray):
            assert_same_bits(got.values, mplab.round_to(want, FP16))
        else:
            assert got.dtype == bool and np.array_equal(got, want)
    elif ufunc in _numpy_functions.UFUNCS_ROUNDING_NOTHING:
        got = np.asarray(ufunc(*operands))
        assert_same_bits(got * 1.0, ufunc(*plain) * 1.0)
        assert set((got * 1.0).tolist()) <= {*THERE, 0.5}
    else:
        with pytest.raises(TypeError, match=rf"^numpy\.{ufunc.__name__}: arguments must not"):
            ufunc(*operands)


def test_there_are_many_ufuncs():
    assert len(UFUNCS) > 90


def test_an_array_on_the_left_leaves_the_operation_to_the_format():
    x, ones = FloatArray([2048.0, 1.0], FP16), np.ones(2)
    for got, want in [
        (ones + x, [2048.0, 2.0]),
        (ones - x, [-2047.0, 0.0]),
        (np.float64(3.0) * x, [6144.0, 3.0]),
        (ones / FloatArray([3.0, 4.0], FP16), [0.333251953125, 0.25]),
    ]:
        assert got.fmt == FP16 and got.values.tolist() == want
    assert (ones @ x).fmt == FP16 and float(ones @ x) == 2048.0
    assert ([1.0, 1.0] @ x).values == 2048.0
    with pytest.raises(ValueError, match=r"^matmul: a and b must be vectors or matrices"):
        np.ones(3) @ x
    with pytest.raises(ValueError, match=r"^matmul: b must hold values of FP16; got 0\.1"):
        x @ np.array([0.1, 0.1], np.float32)
    with pytest.raises(TypeError, match=r"^numpy\.add: arguments must not be FloatArrays"):
        ones += x


def test_comparisons_take_any_numbers_and_round_nothing():
    x = FloatArray([1.0, 2.0, np.nan], FP16)
    assert (x < 2).tolist() == [True, False, False] == (np.float64(2) > x).tolist()
    assert (x <= 1.0).tolist() == [True, False, False] == (np.ones(3) >= x).tolist()
    assert (x > 0.99999).tolist() == [True, True, False] == (np.full(3, 0.99999) < x).tolist()
    assert (x >= x).tolist() == [True, True, False] == (x == x).tolist()
    assert (x != 1).tolist() == [False, True, True] == (np.ones(3) != x).tolist()
    assert (x < 10**400).tolist() == [True, True, False]
    assert (x == None).tolist() == [False] * 3 and (x != "one").tolist() == [True] * 3  # noqa: E711
    assert bool(x[0] < x[1]) and sorted(x[:2], reverse=True)[0] == 2.0
    with pytest.raises(TypeError, match=r"^<: both operands must have one format; got"):
        _ = x < x.to(BF16)
    with pytest.raises(ValueError, match=r"^==: self and other must have shapes that broadcast"):
        _ = x == np.ones(2)


def test_a_mask_is_never_lost():
    x, masked = FloatArray([1.0, 2.0], FP16), np.ma.array([1.0, 2.0], mask=[0, 1])
    for call in (
        lambda: FloatArray(masked, FP16),
        lambda: FloatArray.rounded(masked, FP16),
        lambda: x + masked,
        lambda: masked + x,
        lambda: masked @ x,
        lambda: x < masked,
    ):
        with pytest.raises(TypeError, match=r"mask|Masked"):
            call()
    assert (masked == x).mask.tolist() == [False, True]


def test_functions_of_numpy_do_not_mix_formats():
    x, y = FloatArray([1.0], FP16), FloatArray([1.0], BF16)
    for name, call in (
        ("numpy.concatenate", lambda: np.concatenate([x, y])),
        ("numpy.maximum", lambda: np.maximum(x, y)),
    ):
        with pytest.raises(TypeError, match=rf"^{name}: arguments must have one format; got FP16"):
            call()
