"""The array that computes in its format."""

import operator
import pickle
from fractions import Fraction

import numpy as np
import pytest
from cases import assert_same_bits

import mplab
from mplab import BF16, FP4_E2M1, FP8_E4M3, FP16, FP32
from mplab.arithmetic import FloatArray, operations, reductions


def test_operators_are_the_functions_of_the_format():
    rng = np.random.default_rng(0)
    a, b = (mplab.round_to(rng.standard_normal(50), FP16) for _ in range(2))
    x = FloatArray(a, FP16)
    y = FloatArray(b, FP16)
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
    a = mplab.round_to(rng.standard_normal((4, 9)), FP16)
    b = np.ones((9, 2))
    how = {"accumulator_format": FP16, "product_format": FP16}
    got = FloatArray(a, FP16) @ FloatArray(b, FP16)
    assert_same_bits(got.values, reductions.matmul(a, b, **how))
    assert (FloatArray(a, FP16) @ b[:, 0]).shape == (4,)
    assert (FloatArray(a[0].copy(), FP16) @ b[:, 0]).shape == ()
    assert float(FloatArray(np.ones(3000), FP16).sum()) == 2048.0
    assert float(FloatArray(np.ones(3000), FP16).sum(order="pairwise")) == 3000.0


def test_formats_are_not_mixed_silently():
    x = FloatArray([1.0], FP16)
    y = FloatArray([1.0], BF16)
    for operation in (lambda: x + y, lambda: y @ x, lambda: x / y):
        with pytest.raises(TypeError, match="operands must have one format; got"):
            operation()
    assert float((x + y.to(FP16))[0]) == 2.0


def test_values_that_are_none_of_the_format_are_refused_or_rounded():
    with pytest.raises(
        ValueError, match=r"FloatArray: values must hold values of FP8_E4M3"
    ):
        FloatArray([0.1], FP8_E4M3)
    assert FloatArray.rounded([0.1], FP8_E4M3).codes.tolist() == [0x1D]


def test_it_prints_values_with_codes():
    assert (
        repr(FloatArray([1.0, -0.0], FP8_E4M3))
        == "FloatArray, FP8_E4M3:\n  1 (0x38)  -0 (0x80)"
    )
    assert "shape (20,)" in repr(FloatArray(np.zeros(20), FP16))
    assert repr(FloatArray(np.zeros(20), FP16)).endswith("and 12 more")
    with np.errstate(invalid="ignore"):
        mark = FloatArray([0.0], FP4_E2M1) / FloatArray([0.0], FP4_E2M1)
    assert repr(mark) == "FloatArray, FP4_E2M1:\n  nan (no code)"


def test_it_cannot_be_changed_and_behaves_as_a_container():
    x = FloatArray([[1.0, 2.0], [3.0, 4.0]], FP32)
    assert len(x) == 2 and [row.values.tolist() for row in x] == [
        [1.0, 2.0],
        [3.0, 4.0],
    ]
    assert x.T.values.tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert (x == x).all()


def test_its_operators_can_be_sent_to_other_processes():
    x = FloatArray([1.0, 2.0], FP16)
    for method in (x.__add__, x.__rsub__, x.__matmul__, x.__lt__):
        assert str(pickle.loads(pickle.dumps(method))(x)) == str(method(x))


def test_a_single_number_is_true_unless_it_is_zero():
    assert FloatArray(1.0, FP16) and not FloatArray(0.0, FP16)
    with pytest.raises(TypeError, match="len"):  # and it is not an empty list
        list(FloatArray(1.0, FP16))


# NumPy ----------------------------------------------------------------------------------

ROOMS = {"numpy": np, "numpy.linalg": np.linalg, "numpy.fft": np.fft}
FUNCTIONS = {
    f"{room}.{name}": getattr(module, name)
    for room, module in ROOMS.items()
    for name in dir(module)
    if hasattr(getattr(module, name), "_implementation")
    or isinstance(getattr(module, name), np.ufunc)
    or name in ("array", "asarray", "asanyarray", "fromiter", "nditer", "full")
}
A = FloatArray([[3.0, 1.0], [2.0, 1.0]], FP16)
V = FloatArray([3.0, 1.0, 2.0, -0.0], FP16)
CALLS = [
    (A,),
    (V,),
    (V[0],),
    (A, A),
    (V, V),
    (A, 1),
    (V, 2),
    ([V, V],),
    ([V[0], V[0]],),
    (V, V, V),
    (np.ones(4), V),
    (V, np.ones(4)),
    (V > 1, V, V),
    (V, [0, 1]),
]


def numbers_in(answer):
    """Whether an answer holds floats or objects, also in tuples."""
    if isinstance(answer, list | tuple):
        return any(numbers_in(part) for part in answer)
    return isinstance(answer, float | np.ndarray | np.generic) and (
        np.asarray(answer).dtype.kind in "fcO"
    )


@pytest.mark.filterwarnings("ignore")
def test_no_function_of_numpy_computes_with_the_values_in_another_format():
    """Each raises an error, or answers without numbers, such as `np.shape`."""
    assert len(FUNCTIONS) > 340
    answered = set()
    wrong = []
    for name, function in FUNCTIONS.items():
        for arguments in CALLS:
            try:
                answer = function(*arguments)
            except Exception:
                continue
            if answer is not arguments[0] and numbers_in(answer):
                wrong.append((name, arguments, answer))
            answered.add(name)
    assert wrong == []
    assert "numpy.shape" in answered and len(answered) < 60


def test_floats_and_arrays_join_in_where_they_belong_to_the_format():
    x = FloatArray([2048.0, 1.0], FP16)
    ones = np.ones(2)
    for got, want in [
        (1.5 - x, [-2046.0, 0.5]),
        (2 * x, [4096.0, 2.0]),
        (ones + x, [2048.0, 2.0]),
        (ones - x, [-2047.0, 0.0]),
        (np.float64(3.0) * x, [6144.0, 3.0]),
        (ones / FloatArray([3.0, 4.0], FP16), [0.333251953125, 0.25]),
    ]:
        assert got.fmt == FP16 and got.values.tolist() == want
    assert (ones @ x).fmt == FP16 and float(ones @ x) == 2048.0
    assert ([1.0, 1.0] @ x).values == 2048.0
    with pytest.raises(
        ValueError, match=r"^matmul: b must hold values of FP16; got 0\.1"
    ):
        x @ np.array([0.1, 0.1], np.float32)
    with pytest.raises(ValueError, match=r"add: b must hold values of FP16; got 0\.1"):
        x + 0.1


def test_comparisons_take_any_numbers_and_round_nothing():
    x = FloatArray([1.0, 2.0, np.nan], FP16)
    assert (x < 2).tolist() == [True, False, False] == (np.float64(2) > x).tolist()
    assert (x <= 1.0).tolist() == [True, False, False] == (np.ones(3) >= x).tolist()
    assert (
        (x > 0.99999).tolist()
        == [True, True, False]
        == (np.full(3, 0.99999) < x).tolist()
    )
    assert (x >= x).tolist() == [True, True, False] == (x == x).tolist()
    assert (x != 1).tolist() == [False, True, True] == (np.ones(3) != x).tolist()
    assert (x < 10**400).tolist() == [True, True, False]
    assert bool(x[0] < x[1]) and sorted(x[:2], reverse=True)[0] == 2.0


def test_equality_with_numbers_of_other_kinds_is_refused_and_never_false_in_silence():
    x = FloatArray([1.0, 2.0], FP16)
    for other in (
        np.array([1, 2], object),
        [Fraction(1)] * 2,
        np.array([1, 2j]),
        range(2),
    ):
        for compare in (operator.eq, operator.ne, operator.lt):
            with pytest.raises(TypeError, match="must be an array of float32"):
                compare(x, other)


def test_a_mask_is_never_lost():
    x = FloatArray([1.0, 2.0], FP16)
    masked = np.ma.array([1.0, 2.0], mask=[0, 1])
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
